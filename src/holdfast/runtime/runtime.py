"""`Runtime`: the clock, chance, circuits, settings and readers of events that recoveries share. One is the default.

Invariant: a recovery looks its settings up once, and again after each change; `CHANGES` counts the changes.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload
from weakref import WeakSet

from holdfast import config, options
from holdfast._lazy import lazy_module
from holdfast._platform import after_fork
from holdfast.events import (
    KINDS,
    ActorResumed,
    AgentFallback,
    ChildLeaked,
    ChildRestarting,
    CircuitState,
    CircuitStateChange,
    Degraded,
    Event,
    Failed,
    Fallback,
    GaveUp,
    MessageDropped,
    Observed,
    OperatorAsked,
    Recovered,
    Repaired,
    Retry,
    SharedStateBack,
    SharedStateLost,
    SubtaskFailed,
    TaskDecomposed,
    TaskHalted,
    TaskOutputRejected,
    UserNotified,
)
from holdfast.events.lines import Levels, LogLines
from holdfast.faults import InvalidError
from holdfast.policies.fleet_options import SharedOptions
from holdfast.policies.policy import MODES, names_timeout, policy_at, policy_of
from holdfast.policies.profiles import PROFILES
from holdfast.policies.target import target_of
from holdfast.runtime.bus import Bus, EventStream, Handler, SilentBus, Subscription, log_writer, structlog_writer
from holdfast.runtime.commands import Commands
from holdfast.runtime.fault_of import RuleSet, fault_by, use_rules
from holdfast.runtime.limits import AbandonedThreads
from holdfast.runtime.secrets import process_redactor
from holdfast.runtime.targets.registry import Registry

if TYPE_CHECKING:
    import asyncio
    import logging
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from holdfast.clock import Clock, Rng
    from holdfast.faults import Code, Fault
    from holdfast.policies import Policy
    from holdfast.policies.policy import Mode
    from holdfast.policies.profiles import Profile, ProfileName
    from holdfast.policies.target import Target
    from holdfast.runtime.fleet import attach
    from holdfast.runtime.fleet.link import FleetLink
    from holdfast.runtime.targets.target_state import TargetState

    _A = TypeVar("_A", bound=Event)
    _B = TypeVar("_B", bound=Event)
    _C = TypeVar("_C", bound=Event)
else:
    logging = lazy_module("logging", globals())
    # Most processes share nothing and need none of it.
    attach = lazy_module("holdfast.runtime.fleet.attach", globals())

__all__ = ["CHANGES", "Runtime", "SystemClock", "default_runtime", "forget_targets", "use_runtime"]


class SystemClock:
    """The machine's own clocks."""

    wall = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)


class _Changes:
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def happened(self) -> None:
        # This needs no lock. Two threads may count two changes as one, but a plan only checks whether the number has
        # changed.
        self.count += 1


_LOGGED = (
    *(Retry, Repaired, Fallback, AgentFallback, Degraded, Recovered, Failed, CircuitStateChange),
    *(ActorResumed, MessageDropped, ChildRestarting, ChildLeaked, GaveUp, UserNotified, OperatorAsked),
    *(TaskOutputRejected, TaskDecomposed, SubtaskFailed, TaskHalted, Observed, SharedStateLost, SharedStateBack),
)
"""What a runtime logs by itself. None of these happens in a call that works at once, so the log costs such a call nothing. Only
observe mode reports every call; its log has one line a minute."""

CHANGES = _Changes()
"""Counts the changes after which a recovery looks up its plan again: another runtime, readers, circuits, settings."""


class Runtime:
    """What recoveries share: a clock, chance, circuits, settings and the readers of their events.

    Most programs need not make one: `default_runtime()` is used where no runtime is given. Tests make a runtime with a
    clock of their own:

        from holdfast import Runtime, recover
        from holdfast.testing import VirtualClock

        runtime = Runtime(clock=VirtualClock())
        runtime.on(print)
        recover("claude", runtime=runtime).call(ask, "hello")

    clock, rng: time and chance; by default those of the machine.
    waits: False makes every wait end at once.
    mode: what its recoveries do. `"recover"` acts. `"observe"` makes the plain call and reports what recovery would have done
        and changed. `"off"` makes the plain call. By default the environment variables `HOLDFAST_MODE` and
        `HOLDFAST_ENABLED` decide, else it is `"recover"`.
    enabled: False is another way to write `mode="off"`.
    most_circuits: how many targets it remembers. Beyond that, the targets that were idle longest are forgotten.
    profile: the name of the profile that the whole program keeps to, such as `"spec016"`: its attempts and delays, circuits, time limits
        and other numbers, texts and shapes of events. `profile` in `holdfast.toml` does the same. By default `"holdfast"`.
    consent: a function of operation, step and fault that returns True if a fallback with `consent="ask"` may be used.
    log: whether it writes retries, fallbacks and failures to `logging.getLogger("holdfast")`.
    shared: the engine on which it shares with other processes what it learns of limits and outages: an address such as
        `"redis://cache:6379/0"` or `"postgresql://…"`, or `SharedOptions`. By default nothing is shared.

    Wrong options raise `InvalidError`.
    """

    supervises: bool = True
    """Whether supervisors restart what crashed. The settings of the phases 1 and 2 say no."""
    _write: tuple[Any, Handler] | None = None
    """What the runtime's own log is written with: structlog, or None for `logging`; and the handler."""
    link: FleetLink | None = None
    """The connection to the engine of a fleet; None: nothing is shared."""
    shared: SharedOptions = SharedOptions()
    """What it shares with other processes, and where."""

    @options.suggests
    def __init__(
        self,
        *,
        clock: Clock | None = None,
        rng: Rng | None = None,
        waits: bool = True,
        mode: Mode | None = None,
        enabled: bool | None = None,
        most_circuits: int = 10_000,
        profile: ProfileName = "holdfast",
        consent: Callable[[str, str, Fault], Any] | None = None,
        log: bool = False,
        shared: str | SharedOptions | None = None,
    ) -> None:
        _check(clock, rng, consent)
        options.flag("runtime.waits", waits)
        options.flag("runtime.log", log)
        options.count("runtime.most_circuits", most_circuits)
        options.one_of("runtime.profile", profile, PROFILES)
        _check_mode(mode, enabled)
        self.clock: Clock = clock or SystemClock()
        self.rng: Rng = rng or random.Random()  # noqa: S311 - jitter, not secrets
        self.waits = waits
        """False: no wait takes time, for tests."""
        if mode is None and enabled is not None:
            mode = "recover" if enabled else "off"
        self._given_mode = mode
        self._mode: Mode = mode_by_environment() if mode is None else mode
        self._mode_if_on: Mode = "recover"
        """The mode that `enabled = True` returns to."""
        self._modes: Mapping[str, Mode] = {}
        self._shadow: Runtime | None = None
        self._consent = consent
        self._policy = policy_of(PROFILES[profile])
        self._policies: Mapping[str, Policy] = {}
        self.configured_from = ""
        """Where the policies of recoveries that were given none come from: a file, `the environment`, `code`; empty if from nowhere."""
        self.bus = Bus(CHANGES.happened)
        self.registry = Registry(most_circuits, CHANGES.happened)
        self.commands = Commands()
        """Commands to operations that wait: retry now, fall back, cancel."""
        self.abandoned_threads = AbandonedThreads()
        self.leaked_tasks: set[asyncio.Future[Any]] = set()
        """Tasks that ignored their cancellation and still run."""
        self.rules = RuleSet()
        """The rules that its operations recognise failures by; extensions add theirs."""
        self.skipped_extensions: tuple[dict[str, str], ...] = ()
        """The extensions that were left out, as `Extensions` says it. A session that is resumed reports them."""
        self.log_readers: dict[object, frozenset[type[Event]]] = {}
        self.diverted: set[str] = set()
        """The targets whose calls go to their fallbacks although no circuit has opened."""
        """Sinks that people read (a log, the live line) and their kinds: the runtime's own log leaves these out."""
        self._log: Subscription | None = None
        self.log = log
        self._due: Callable[[], None] | None = None
        self.share(shared)
        # The rules are loaded now and not with the first failure: open files may be what has run out by then.
        _ = self.rules.classifier
        _runtimes.add(self)

    def share(self, shared: str | SharedOptions | None) -> None:
        """Share with other processes what it learns of limits and outages, from now on.

        Nothing is connected before there is something to tell. Raises `InvalidError` for an unknown kind of address, and
        `MissingExtraError` if the engine's package is not installed.

            runtime.share(SharedOptions(url="redis://cache:6379/0", namespace="shop"))
        """
        shared = SharedOptions(url=shared or "") if shared is None or isinstance(shared, str) else shared
        if shared == self.shared:
            return
        self.registry.share(None)
        if shared.url:
            self.link = attach.link_of(self, shared)
            self.registry.share(self.link)
        self.shared = shared

    @property
    def log(self) -> bool:
        """Whether retries, fallbacks, circuit changes and failures are logged to `logging.getLogger("holdfast")`.

        If the program has configured structlog, they are logged to `structlog.get_logger("holdfast")` instead.
        The default runtime logs unless `HOLDFAST_LOG=off` or `log = false` in `holdfast.toml` is set. Events that a log sink
        or the live line shows are left out, so nothing is logged twice.
        """
        return self._log is not None

    @log.setter
    def log(self, log: bool) -> None:
        if log and self._log is None:
            self._log = self.bus.subscribe(self._log_event, _LOGGED)
        elif not log and self._log is not None:
            self._log.cancel()
            self._log = None

    def _log_event(self, event: Event) -> None:
        if any(type(event) in kinds for kinds in tuple(self.log_readers.values())):
            return
        logger, structlog = logging.getLogger("holdfast"), _configured_structlog()
        # structlog does not read the logger's level, which people set to switch the log off.
        if structlog is not None and logger.level > logging.WARNING:
            return
        if self._write is None or self._write[0] is not structlog:
            # Retries and fallbacks are warnings here: somebody who set nothing up must still see why a call takes 20 seconds,
            # and by default `logging` shows warnings.
            lines = LogLines(Levels(step=logging.WARNING), brief=True)
            bound = None if structlog is None else structlog.get_logger("holdfast")
            self._write = (
                structlog,
                log_writer(logger, lines) if bound is None else structlog_writer(bound, lines, brief=True),
            )
        self._write[1](event)

    @property
    def mode(self) -> Mode:
        """What recoveries do from the next call on: `recover`, `observe` or `off`. A target may have a mode of its own."""
        return self._mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        options.one_of("runtime.mode", mode, MODES)
        if mode == "off" != self._mode:
            self._mode_if_on = self._mode
        self._mode = mode
        self._settings_changed()

    def _settings_changed(self) -> None:
        CHANGES.happened()
        self.registry.follow_settings()

    @property
    def enabled(self) -> bool:
        """Whether the mode is not `off`. False makes every recovery a plain call, from the next call on. True takes that back."""
        return self._mode != "off"

    @enabled.setter
    def enabled(self, enabled: bool) -> None:
        self.mode = self._mode_if_on if enabled else "off"

    def set_modes(self, mode: Mode | None, by_name: Mapping[str, Mode]) -> None:
        """Set the mode, and those of single targets, such as `provider:claude`. None: the mode it was made with.

        `off` is off for every target. Otherwise a target's own mode wins.

            runtime.set_modes("observe", {"provider:claude": "recover"})
        """
        for name, one in by_name.items():
            options.one_of(f"runtime.modes.{name}", one, MODES)
        self._modes = dict(by_name)
        self.mode = mode or self._given_mode or "recover"

    @property
    def has_own_modes(self) -> bool:
        """Whether some targets have a mode of their own."""
        return bool(self._modes) and self._mode != "off"

    def mode_for(self, target: Target) -> Mode:
        """Return the mode of a target: that of its first name that has one, else the runtime's."""
        if self.has_own_modes:
            for _, name in target.names:
                if (mode := self._modes.get(name)) is not None:
                    return mode
        return self._mode

    @property
    def shadow(self) -> Runtime:
        """For observe mode: a runtime with the same clock, settings and rules that makes no call, and that nobody hears.

        Its circuits and limits are those that this runtime would have if it recovered.
        """
        if self._shadow is None:
            # Its own chance: the calls of this runtime that do recover must wait as long as they would without it.
            shadow = self.fresh(clock=self.clock, rng=random.Random(0))  # noqa: S311 - jitter, not secrets
            shadow.mode, shadow.rules, shadow.bus = "recover", self.rules, SilentBus(CHANGES.happened)
            shadow._modes = {}  # noqa: SLF001 - its own class. A target that is observed would have a shadow of its shadow.
            shadow._consent = None  # noqa: SLF001 - its own class. Nobody is asked about a fallback that is not used.
            self._shadow = shadow
        return self._shadow

    def consent(self, operation: str, step: str, fault: Fault) -> Any:
        """For recoveries: whether a fallback with `consent="ask"` may be used. Without a `consent` function it may not."""
        return False if self._consent is None else self._consent(operation, step, fault)

    @property
    def profile(self) -> Profile:
        """The profile of the default policy, by whose numbers, texts and shapes of events the whole program goes."""
        return PROFILES[self._policy.profile]

    def policy_for(self, target: Target) -> Policy:
        """Return the policy of a target: the configured one of its first name that has one, else the default policy.

        Where the default is a profile's, its time limit is the one for what is called there: a model, a tool, an agent.
        """
        for _, name in target.names:
            if (policy := self._policies.get(name)) is not None:
                return policy
        return policy_at(self._policy, target)

    def has_policy_for(self, target: Target) -> bool:
        """For recoveries: whether a policy is configured for this very target."""
        return any(name in self._policies for _, name in target.names)

    def timeout_named_for(self, target: Target) -> float | None:
        """For recoveries: return the time limit that somebody named for this very target; None: nobody, so it is a profile's."""
        for _, name in target.names:
            if (policy := self._policies.get(name)) is not None:
                return policy.timeout if names_timeout(policy, target_of(name)) else None
        return None

    def policy_named(self, name: str) -> Policy:
        """For recoveries: return the configured policy of one name, such as `provider:claude`, else the default policy."""
        return self._policies.get(name, self._policy)

    def configure(self, policy: Policy, by_name: Mapping[str, Policy], source: str = "") -> None:
        """Set the policies of recoveries that were given none: the default, and those of single targets.

        Calls that are under way finish with the old ones. Open circuits stay open. `source` says where the policies come from, such
        as a file; the note on an error names it beside a limit that was reached.

            runtime.configure(PATIENT, {"provider:claude": INTERACTIVE})
        """
        self._policy, self._policies, self.configured_from = policy, dict(by_name), source
        # Before the change is counted: a plan that looks up again must find targets that accept the new settings.
        self.registry.renew()
        if self._shadow is not None:
            self._shadow.configure(policy, by_name, source)
        self._settings_changed()

    def fresh(self, *, clock: Clock | None = None, rng: Rng | None = None) -> Runtime:
        """Return a new runtime with the settings of this one: policies, rules, consent, modes and `waits`.

        It has its own circuits, no readers of events and no log. Clock and chance are the machine's by default. For tests,
        which must check the policy that the program has:

            with use_runtime(default_runtime().fresh(clock=VirtualClock())):
                answer("hi")
        """
        new = Runtime(clock=clock, rng=rng, waits=self.waits, mode=self._mode, consent=self._consent)
        new._modes = self._modes
        new.rules = self.rules.copy()
        new.configure(self._policy, self._policies, self.configured_from)
        return new

    def before_next_call(self, do: Callable[[], None]) -> None:
        """Have `do` called before the next call looks up its settings. Signal handlers may use it: it takes no lock."""
        self._due = do
        CHANGES.happened()

    def catch_up(self) -> None:
        """For recoveries: call the function that was left with `before_next_call`."""
        # Taken before it is called: a function that looks settings up itself must not run twice.
        due, self._due = self._due, None
        if due is not None:
            due()

    # One overload for each number of kinds: a type checker joins two classes to their base, not to their union.
    @overload
    def on(self, handler: Handler) -> Subscription: ...
    @overload
    def on(self, handler: Callable[[_A], object], kind: type[_A], /) -> Subscription: ...
    @overload
    def on(self, handler: Callable[[_A | _B], object], kind: type[_A], other: type[_B], /) -> Subscription: ...
    @overload
    def on(
        self, handler: Callable[[_A | _B | _C], object], kind: type[_A], other: type[_B], third: type[_C], /
    ) -> Subscription: ...
    @overload
    def on(self, handler: Callable[[_A], object], kind: type[_A], /, *kinds: type[_A]) -> Subscription: ...
    def on(self, handler: Callable[[Any], object], *kinds: type[Any]) -> Subscription:
        """Call `handler` with every event, or only with events of these kinds, until the subscription is cancelled.

        Handlers run in the thread of the call that reports, so they must be fast. A handler that raises is logged once and
        does not break the call. Anything that is not a function, or not a kind of event, raises `InvalidError`.

            def on_retry(event: Retry) -> None:
                print(event.operation, event.fault.code, event.delay)

            with runtime.on(on_retry, Retry):
                answer("hi")
        """
        if not callable(handler):
            raise InvalidError.at("on", "a function of an event", handler)
        for kind in kinds:
            if kind not in KINDS:
                raise InvalidError.at("on", "kinds of events, such as Retry", kind)
        return self.bus.subscribe(handler, kinds or KINDS)

    @overload
    def events(self) -> EventStream[Event]: ...
    @overload
    def events(self, kind: type[_A], /) -> EventStream[_A]: ...
    @overload
    def events(self, kind: type[_A], other: type[_B], /) -> EventStream[_A | _B]: ...
    @overload
    def events(self, *kinds: type[Event]) -> EventStream[Event]: ...
    def events(self, *kinds: type[Any]) -> EventStream[Any]:
        """Return an async iterator over the events from now on, all or only those of these kinds.

        A slow reader loses the oldest events and never delays a call.

            async with runtime.events(Retry) as events:
                async for event in events: ...
        """
        return EventStream(self.bus, kinds or KINDS)

    def fault_of(self, failure: Any, *, provider: str = "") -> Fault:
        """Return the fault of a failure, by this runtime's clock and rules. See `holdfast.fault_of`."""
        # Not by `fault_of`, which checks the names of its options: every failure of every call comes here.
        return fault_by(self.rules.classifier, failure, provider, self.clock.wall(), process_redactor())

    def sleep(self, seconds: float, until: threading.Lock | None = None) -> None:
        """For recoveries: sleep in a thread, on this runtime's clock.

        With the machine's own clock, releasing `until` ends the sleep.
        """
        # A virtual clock sleeps by moving its time on, so it cannot be interrupted by a lock.
        if self.waits and seconds > 0:
            if until is not None and isinstance(self.clock, SystemClock):
                until.acquire(timeout=min(seconds, threading.TIMEOUT_MAX))
                return
            sleep: Callable[[float], None] = getattr(self.clock, "sleep", time.sleep)
            sleep(seconds)

    def after_fork(self) -> None:
        """Replace the locks and the random state that a forked worker has copied from its parent. Called after each fork."""
        # A thread of the parent may have held a lock at the fork, and workers with the same jitter would retry together.
        if self.link is not None:
            self.link.after_fork()
        self.registry.after_fork()
        self.bus.after_fork()
        self.commands.after_fork()
        self.abandoned_threads.after_fork()
        self.rules.after_fork()
        if isinstance(self.rng, random.Random):
            self.rng.seed()

    def report_diverted(self, name: str, reason: Code | None, until: float | None, run: str) -> None:
        """For recoveries: calls that a fallback can answer are not made any more. It is reported once, like an open circuit."""
        if name not in self.diverted:
            self.diverted.add(name)
            self._report_diversion(name, CircuitState.OPEN, run, reason=reason, until=until)

    def report_returned(self, names: Iterable[str], run: str) -> None:
        """For recoveries: these targets have answered a call that a fallback could have answered."""
        for name in self.diverted.intersection(names):
            self.diverted.discard(name)
            self._report_diversion(name, CircuitState.CLOSED, run)

    def _report_diversion(
        self, name: str, to: CircuitState, run: str, *, reason: Code | None = None, until: float | None = None
    ) -> None:
        before = CircuitState.CLOSED if to is CircuitState.OPEN else CircuitState.OPEN
        at = self.clock.wall()
        self.bus.emit(
            CircuitStateChange(
                at=at, run=run, circuit=name, from_=before, to=to, reason=reason, rule="fallback", until=until
            )
        )

    def report_transitions(self, state: TargetState, run: str = "") -> None:
        """For recoveries: emit the changes of a circuit as events."""
        # Outside the circuit's lock: a reader of the event may look at the circuit.
        transitions = state.take_transitions()
        if not transitions:
            return
        to_wall = self.clock.wall() - self.clock.monotonic()
        for change in transitions:
            until = None if change.until is None else change.until + to_wall
            self.bus.emit(
                CircuitStateChange(
                    at=change.at + to_wall,
                    run=run,
                    circuit=state.name,
                    from_=change.from_,
                    to=change.to,
                    reason=change.reason,
                    rule=change.rule or "",
                    until=until,
                )
            )
            if change.to is CircuitState.CLOSED:
                # The failures that sent calls to the fallbacks are forgotten, also if a person closed it.
                self.report_returned((state.name,), run)


def _configured_structlog() -> Any:
    """Return structlog if the program has configured it, else None. It is never imported for this."""
    structlog: Any = sys.modules.get("structlog")
    return structlog if structlog is not None and structlog.is_configured() else None


def _check(clock: Any, rng: Any, consent: Any) -> None:
    if clock is not None and not (callable(getattr(clock, "wall", 0)) and callable(getattr(clock, "monotonic", 0))):
        raise InvalidError.at("runtime.clock", "a Clock, with wall() and monotonic()", clock)
    if rng is not None and not callable(getattr(rng, "random", None)):
        raise InvalidError.at("runtime.rng", "a source of chance, with random()", rng)
    if consent is not None and not callable(consent):
        raise InvalidError.at("runtime.consent", "a function or None", consent)


def _check_mode(mode: Any, enabled: Any) -> None:
    if enabled is not None and not isinstance(enabled, bool):
        raise InvalidError.at("runtime.enabled", "True or False or None", enabled)
    if mode is not None:
        options.one_of("runtime.mode", mode, MODES)
        if enabled is not None and enabled != (mode != "off"):
            raise InvalidError.saying("runtime.enabled", f"nothing beside mode={mode!r}", repr(enabled))


def mode_by_environment() -> Mode:
    """Return the mode that `HOLDFAST_MODE` and `HOLDFAST_ENABLED` (or its alias `RESILIENCE_ENABLED`) name.

    Raises `InvalidError` if `HOLDFAST_MODE` is no mode.
    """
    # A variable that is set and empty counts as not set.
    value = os.environ.get("HOLDFAST_ENABLED", "").strip() or os.environ.get("RESILIENCE_ENABLED", "").strip()
    if value.lower() in {"false", "0", "no", "off"}:
        return "off"
    mode: Any = os.environ.get("HOLDFAST_MODE", "").strip() or "recover"
    options.one_of("HOLDFAST_MODE", mode, MODES)
    return cast("Mode", mode)


_runtimes: WeakSet[Runtime] = WeakSet()
"""Every runtime of this process: after a fork, each replaces its locks."""
_default: Runtime | None = None
_making_default = threading.Lock()


def default_runtime() -> Runtime:
    """Return the runtime of recoveries that were given none.

    It is made when it is first needed, with the settings of `holdfast.toml` and the environment. Wrong settings raise
    `ConfigError` here and at every recovery: called in `main()`, it ends a program with such a mistake at its start.

        from holdfast.runtime import default_runtime

        default_runtime().on(print)
    """
    if _default is None:
        # Two threads that make their first calls at once must share one registry.
        with _making_default:
            if _default is None:
                # It becomes the default only after its settings were applied: wrong ones must raise again with the next call.
                # Not the mode of the environment, which `load` reads: it lists all mistakes together.
                runtime = Runtime(log=True, mode="recover")
                config.load().apply(runtime)
                _make_default(runtime)
    assert _default is not None
    return _default


@contextmanager
def use_runtime(runtime: Runtime) -> Iterator[Runtime]:
    """Make `runtime` the default of the whole process, all threads included, while the block runs.

    It is meant for tests and for the start of an application:

        with use_runtime(Runtime(clock=VirtualClock())):
            answer("hi")  # a decorated function that was given no runtime
    """
    before = _default
    _make_default(runtime)
    CHANGES.happened()
    try:
        yield runtime
    finally:
        _make_default(before)
        CHANGES.happened()


def forget_targets() -> None:
    """Forget what all recoveries of this process have learned about their targets: circuits, quotas, limits, hedges.

    For tests: five tests with failing calls must not open a circuit that rejects the call of the sixth. The pytest plugin
    calls it before each test; with unittest, call it in `setUp`. Settings, rules and subscriptions stay.

        from holdfast.testing import forget_targets

        class AgentTest(unittest.TestCase):
            def setUp(self):
                forget_targets()
    """
    for runtime in tuple(_runtimes):
        runtime.registry.forget()


def _make_default(runtime: Runtime | None) -> None:
    global _default  # noqa: PLW0603 - one default per process is the point
    _default = runtime
    use_rules(RuleSet() if runtime is None else runtime.rules)


def _after_fork() -> None:
    for runtime in tuple(_runtimes):
        runtime.after_fork()
    CHANGES.happened()


after_fork(_after_fork)
