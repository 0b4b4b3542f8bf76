"""`Extensions`: starts the extensions of other packages in order, adds what they bring, and stops them in reverse.

Invariant: whatever an extension does, the other extensions and the program go on (N2-14).
"""

from __future__ import annotations

import functools
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from holdfast import options
from holdfast.classify import Verdict
from holdfast.events import SuppressedError
from holdfast.extensions.entry_points import LoadedExtension, failed, find, load
from holdfast.extensions.order import Described, Skipped, start_order, unmet_requirement
from holdfast.faults import CATALOG, Fault, InvalidError
from holdfast.runtime.runtime import default_runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from importlib.metadata import EntryPoint

    from holdfast.classify import Evidence, Rule
    from holdfast.runtime.runtime import Runtime

__all__ = ["Extensions"]

_LIMIT = 10.0
_MODEL = ("name", "offers", "exchange", "stream")
"""What a provider's model must have. `holdfast.providers` has the types; this room may not import it."""


class Extensions:
    """The extensions that are installed beside Holdfast. A `with` block starts them and stops them again.

    `limit` is the time in seconds that each step (load, start, stop) of one extension may take. `without` holds ids to
    skip. `runtime` is passed to each extension; by default it is the default runtime. Wrong options raise `InvalidError`.
    An extension that fails is skipped and never raises here.

        from holdfast.extensions import Extensions

        with Extensions(without=["gateway"]) as extensions:
            print([one.id for one in extensions.started])
    """

    def __init__(
        self, *, runtime: Runtime | None = None, limit: float = _LIMIT, without: Collection[str] = frozenset()
    ) -> None:
        options.seconds("extensions.limit", limit)
        options.names("extensions.without", frozenset(without) if isinstance(without, (list, tuple)) else without)
        self._runtime = default_runtime() if runtime is None else runtime
        self._limit = limit
        self._without = frozenset(without)
        self._started: list[tuple[LoadedExtension, Callable[[], object]]] = []
        """The running extensions, each with the function that removes what it added."""
        self.skipped: tuple[Skipped, ...] = ()
        """The extensions that were not started, and why."""
        self.providers: dict[str, Any] = {}
        """The models of the started providers, by the extension's id."""

    @property
    def started(self) -> tuple[Described, ...]:
        """The extensions that run, in the order they were started."""
        return tuple(one.described for one, _ in self._started)

    @property
    def document(self) -> dict[str, Any]:
        """The same as plain data: `{started: [id], skipped: [{extId, reason, code}]}`."""
        return {
            "started": [one.id for one in self.started],
            "skipped": [one.document for one in self.skipped],
        }

    def start(self) -> None:
        """Find and start all extensions. One that cannot be started is in `skipped`, and a `SuppressedError` event.

        Raises `InvalidError` if they are started already.
        """
        if self._started:
            raise InvalidError.saying("extensions", "to be started once", "started again without a stop")
        loaded, absent = self._load(*find())
        by_id: dict[str, LoadedExtension] = {}
        for one in loaded:
            by_id.setdefault(one.described.id, one)
        planned = start_order((one.described for one in loaded), absent=absent)
        failed_to_start: dict[str, Fault] = {}
        for described in planned.order:
            fault = unmet_requirement(described, failed_to_start, by_id) or self._start_one(by_id[described.id])
            if fault is not None:
                failed_to_start[described.id] = fault
        late = (Skipped(id=name, fault=fault) for name, fault in failed_to_start.items())
        self.skipped = (*planned.skipped, *late)
        self._runtime.skipped_extensions = tuple(one.document for one in self.skipped)
        for skipped in self.skipped:
            self._report(skipped.fault, f"extension {skipped.id} was left out")

    def stop(self) -> None:
        """Stop the extensions that run, the last started first. A failure to stop is reported as an event."""
        while self._started:
            one, undo = self._started.pop()
            _, fault = self._step(one.described.id, "stop", partial(_end, one.extension, undo))
            if fault is not None:
                self._report(fault, f"extension {one.described.id} did not stop cleanly")

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            # An interrupt during the start: `__exit__` will not run, so stop what already runs.
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # --- one extension ---

    def _load(
        self, found: Iterable[EntryPoint], unreadable: Mapping[str, Fault]
    ) -> tuple[list[LoadedExtension], dict[str, Fault]]:
        loaded: list[LoadedExtension] = []
        absent = dict(unreadable)
        for point in found:
            name = f"{point.name} in {point.group}" if point.name in absent else point.name
            if point.name in self._without:
                # Not even imported: importing runs its code.
                absent[name] = _switched_off(name)
                continue
            one, fault = self._step(name, "load", partial(load, point))
            if fault is not None:
                absent[name] = fault
            elif one.described.id in self._without:
                absent[one.described.id] = _switched_off(one.described.id)
            else:
                loaded.append(one)
        return loaded, absent

    def _start_one(self, one: LoadedExtension) -> Fault | None:
        name, end = one.described.id, partial(_end, one.extension)
        added, fault = self._step(name, "start", lambda: one.extension.start(self._runtime), if_late=end)
        if fault is not None:
            return fault
        # Added here and not in the step's thread: a start that finishes after its limit must add nothing.
        try:
            undo = self._add(one.described.group, name, added)
        except Exception as error:  # noqa: BLE001 - what it adds is a foreign object
            self._step(name, "stop", end)
            return failed(name, "start", error)
        self._started.append((one, undo))
        return None

    def _step(
        self, name: str, phase: str, do: Callable[[], Any], if_late: Callable[[], None] | None = None
    ) -> tuple[Any, Fault | None]:
        """Run one step in its own thread, no longer than the limit; return its value or its fault."""
        step = _Step(do, if_late)
        if not step.finishes_within(self._limit):
            return None, failed(name, phase, f"it did not finish within {self._limit:g} s and was left behind")
        return (step.value, None) if step.error is None else (None, failed(name, phase, step.error))

    def _report(self, fault: Fault, reason: str) -> None:
        runtime = self._runtime
        runtime.bus.emit(SuppressedError.of(fault, reason, at=runtime.clock.wall()))

    # --- what extensions add ---

    def _add(self, group: str, name: str, added: Any) -> Callable[[], object]:
        """Put in use what an extension adds; return the function that removes it again."""
        adders = {
            "holdfast.providers": self._add_provider,
            "holdfast.rules": self._add_rules,
            "holdfast.sinks": self._add_sink,
        }
        return adders[group](f"extension {name}: start()", name, added)

    def _add_rules(self, path: str, _: str, added: Any) -> Callable[[], object]:
        rules = (added,) if callable(added) else added
        if not isinstance(rules, (list, tuple)) or not rules or not all(callable(rule) for rule in rules):
            raise InvalidError.at(path, "a rule or a list of rules", added)
        return self._runtime.rules.add(tuple(_guarded(rule, self._rule_raised) for rule in rules))

    def _rule_raised(self, rule: Any, error: Exception) -> None:
        runtime = self._runtime
        runtime.bus.hook_raised(rule, f"rule {getattr(rule, '__qualname__', rule)}", error, at=runtime.clock.wall())

    def _add_sink(self, path: str, _: str, added: Any) -> Callable[[], object]:
        cancel: Callable[[], object] | None = getattr(added, "cancel", None)
        if not callable(cancel):
            raise InvalidError.at(path, "a subscription, as runtime.on(…) returns", added)
        return cancel

    def _add_provider(self, path: str, name: str, added: Any) -> Callable[[], object]:
        missing = [part for part in _MODEL if not hasattr(added, part)]
        if missing:
            raise InvalidError.saying(path, f"a model, with {', '.join(_MODEL)}", f"one without {', '.join(missing)}")
        self.providers[name] = added
        return partial(self.providers.pop, name, None)


class _Step:
    """One step of an extension in its own thread. Python cannot stop a thread, so a step that hangs is left behind."""

    def __init__(self, do: Callable[[], Any], if_late: Callable[[], None] | None) -> None:
        self.value: Any = None
        self.error: BaseException | None = None
        self._do = do
        self._if_late = if_late
        self._lock = threading.Lock()
        self._finished = threading.Event()
        self._left_behind = False

    def finishes_within(self, limit: float) -> bool:
        """Run the step; return whether it finished in time. If not, `if_late` runs when it finishes."""
        threading.Thread(target=self._run_apart, name="holdfast-extension", daemon=True).start()
        if self._finished.wait(limit):
            return True
        # The step may finish at this very moment. Under the lock, only one side decides whether it is late.
        with self._lock:
            self._left_behind = not self._finished.is_set()
        return not self._left_behind

    def _run_apart(self) -> None:
        self._run(self._do)
        with self._lock:
            self._finished.set()
            left_behind = self._left_behind
        if left_behind and self._if_late is not None and self.error is None:
            self._run(self._if_late)

    def _run(self, do: Callable[[], Any]) -> None:
        try:
            self.value = do()
        except BaseException as error:  # noqa: BLE001 - a SystemExit in an import must end only this extension
            self.error = error


def _end(extension: Any, undo: Callable[[], object] | None = None) -> None:
    try:
        if undo is not None:
            undo()
    finally:
        stop = getattr(extension, "stop", None)
        if callable(stop):
            stop()


def _switched_off(name: str) -> Fault:
    return Fault.of("SYS_LIFECYCLE_FAILURE", f"Extension {name} is switched off", context={"name": name})


def _guarded(rule: Rule, report: Callable[[Rule, Exception], None]) -> Rule:
    """Return `rule` so that if it raises, or returns anything but a verdict or None, it is reported and ignored."""

    @functools.wraps(rule)
    def guarded(evidence: Evidence) -> Verdict | None:
        try:
            verdict: object = rule(evidence)
            if verdict is None or (isinstance(verdict, Verdict) and verdict.code in CATALOG):
                return verdict
            raise InvalidError.at("what a rule returned", "a Verdict with a code of the catalog, or None", verdict)  # noqa: TRY301 - handled like an error of the rule
        except Exception as error:  # noqa: BLE001 - classifying a failure must never be a second failure
            report(rule, error)
            return None

    return guarded
