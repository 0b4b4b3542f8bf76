"""The breaker: closed, open, half-open, as arithmetic on the time it is handed.

    CLOSED ── a rule is broken ─▶ OPEN ── its time is up, at the next admit ─▶ HALF_OPEN
       ▲                            ▲ ◀───────── a probe fails ────────────────────┤
       └──────────────────────────────── enough probes succeed ────────────────────┘

Every change of state begins a new generation. An outcome of an earlier one is added to the totals and to nothing else, so a
late failure neither extends an open time nor reopens what has closed since.

Not safe under threads by itself: whoever owns a breaker holds a lock around each call. No method calls foreign code.

Invariant: a permit counts once, and at most `probes` probes younger than `probe_limit` are out at any time.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from holdfast.events import CircuitState
from holdfast.policies.circuit.records import BreakerMetrics, Permit, Rejection, Transition, Verdict
from holdfast.policies.circuit.rules import Rule, broken_rule
from holdfast.policies.circuit.window import Usual, Window

if TYPE_CHECKING:
    from holdfast.faults import Code
    from holdfast.policies.circuit.config import Circuit, Mode

__all__ = ["Breaker"]

TEXT_CAP = 200
"""Characters of a failure's text that are kept: there may be a hundred thousand breakers."""
SHORTEST_ASKED_S = 1.0
"""A circuit that opens stays open for this at least, whatever was asked for."""
TRANSITIONS_KEPT = 16
"""Changes of state that wait to be taken. They are taken after each call, but a breaker nobody watches must not grow."""

# Needed with every call, and a global is looked up faster than an enum's member.
_SUCCESS: Final = Verdict.SUCCESS
_FAILURE: Final = Verdict.FAILURE
_CLOSED: Final = CircuitState.CLOSED
_OPEN: Final = CircuitState.OPEN
_HALF_OPEN: Final = CircuitState.HALF_OPEN


class _Why(NamedTuple):
    """What is known about a failure."""

    code: Code | None
    text: str | None
    asked: float | None


_UNCOUNTED: Final = Permit(generation=-1, started=0.0, settled=True)
"""What a disabled breaker hands out: settled already, so it counts nowhere."""


class Breaker:
    """One circuit's state. Attributes are for reading; only the methods here write them."""

    __slots__ = (
        "_counting",
        "_generation",
        "_probes_out",
        "_slow",
        "cancelled",
        "config",
        "disabled",
        "failures",
        "good_probes",
        "idle_since",
        "ignored",
        "isolations",
        "last_change",
        "last_failure",
        "last_success",
        "name",
        "open_time",
        "open_until",
        "opens",
        "pending",
        "recorded_state",
        "rejected",
        "rejection",
        "reopen_time",
        "streak",
        "successes",
        "usual",
        "window",
    )

    def __init__(self, config: Circuit, name: str = "") -> None:
        self.config = config
        self.name = name
        self.idle_since = -math.inf
        """When it was last asked for a permit."""
        self.pending: tuple[Transition, ...] = ()
        """Changes of state nobody has taken yet. Nearly always empty: look here before you call `take_transitions`."""
        self.successes = self.failures = self.ignored = self.cancelled = self.rejected = self.opens = 0
        self.last_failure: float | None = None
        self.last_success: float | None = None
        self.last_change: float | None = None
        self.recorded_state = _CLOSED
        """The state as of the last call; `state` knows what has become of it since."""
        self.streak = 0
        """Failures since the last success."""
        self.usual = Usual() if config.adaptive else None
        self.window = Window(config.window, self.usual)
        self.open_until: float | None = None
        """When an open circuit lets a probe through. None: not open, or held open."""
        self.open_time = 0.0
        """The present open time; 0 once the circuit has closed."""
        self.reopen_time = 0.0
        """From the latest bad probe's start to the next; 0 once the circuit has closed: the next begins small again."""
        self.rejection: Rejection | None = None
        """What every call is answered while the circuit is open, or half-open with all probes out."""
        self.good_probes = 0
        self.isolations = 0
        """How many `force_open` are not released yet."""
        self.disabled = False
        """Somebody called `disable`."""
        self._generation = 0
        self._probes_out: list[Permit] | None = None
        self._slow = config.slow
        self._counting = config.mode != "disabled"
        if config.mode == "forced-open":
            self.recorded_state = _OPEN
            self.rejection = Rejection(name=name, state=_OPEN, rule=Rule.FORCED)

    def admit(self, now: float) -> Permit | Rejection:
        """Return leave to make a call, or why it must not be made.

        You must settle the permit once the call has ended. The state may have changed: look at `pending`.
        """
        self.idle_since = now
        if self.recorded_state is _CLOSED and self._counting:
            return Permit(self._generation, now)
        return self._admit_with_care(now)

    # No keyword-only arguments: on Python 3.11 they make a call twice as dear, and every call of a user comes here.
    def settle(  # noqa: PLR0917 - ditto
        self,
        permit: Permit,
        verdict: Verdict,
        now: float,
        code: Code | None = None,
        text: str | None = None,
        asked: float | None = None,
    ) -> None:
        """Say how the call ended. A second time for the same permit changes nothing.

        `code` and `text` are the failure's; people will read the text, so secrets must be out of it. `asked` is how long
        who failed asks to be left alone: a circuit that this failure opens stays open for that, not for `open_for`. The
        state may have changed: look at `pending`.
        """
        if permit.settled:
            return
        permit.settled = True
        if verdict is not _SUCCESS or permit.generation != self._generation or permit.probe or self._slow is not None:
            self._settle_with_care(permit, verdict, now, _Why(code, text, asked))
            return
        self.successes += 1
        self.last_success = now
        self.streak = 0
        window = self.window
        if now >= window.ends:
            window.turn(now)
        window.good += 1

    def take_transitions(self) -> tuple[Transition, ...]:
        """Return the changes of state since they were last taken, oldest first."""
        taken = self.pending
        self.pending = ()
        return taken

    def state(self, now: float) -> CircuitState:
        """Return the state. An open circuit whose time is up is half-open, though it changes only with the next call."""
        until = self.open_until
        return _HALF_OPEN if until is not None and now >= until else self.recorded_state

    @property
    def held(self) -> bool:
        """Whether somebody holds it open or has disabled it by hand: such a breaker must not be evicted."""
        return self.disabled or self.isolations > 0

    def metrics(self, now: float) -> BreakerMetrics:
        """Return how it is doing."""
        self._turn_window(now)
        window, calls = self.window, self.window.calls
        return BreakerMetrics(
            name=self.name,
            state=self.state(now),
            failures=self.failures,
            successes=self.successes,
            ignored=self.ignored,
            cancelled=self.cancelled,
            total_calls=self.successes + self.failures + self.ignored + self.cancelled,
            rejected=self.rejected,
            opens=self.opens,
            consecutive_failures=self.streak,
            window_calls=calls,
            failure_rate=window.failures / calls if calls else 0.0,
            slow_rate=window.slow_calls / calls if calls else 0.0,
            last_failure=self.last_failure,
            last_success=self.last_success,
            last_state_change=self.last_change,
            open_until=self.open_until,
        )

    def force_open(self, now: float) -> None:
        """Hold it open, however long it takes, until `release` was called as often (R62)."""
        self.isolations += 1
        self._obey_mode(now)

    def release(self, now: float) -> None:
        """Take one `force_open` back. The last one closes the circuit; one too many changes nothing."""
        self.isolations = max(0, self.isolations - 1)
        self._obey_mode(now)

    def disable(self, now: float) -> None:
        """Let every call through uncounted until `enable` or `reset`. `force_open` is stronger."""
        self.disabled = True
        self._obey_mode(now)

    def enable(self, now: float) -> None:
        """Take `disable` back."""
        self.disabled = False
        self._obey_mode(now)

    def reset(self, now: float) -> None:
        """Close it and forget what led here, `force_open` and `disable` included. Totals stay; `config.mode` still holds."""
        self.isolations = 0
        self.disabled = False
        self._obey_mode(now)
        if self.config.mode != "forced-open":
            self._close(now)

    def reconfigure(self, config: Circuit, now: float) -> None:
        """Go on under another configuration. State, counts and the permits that are out survive (R85)."""
        self._turn_window(now)
        parts = tuple(self.window.parts(now))
        self.usual = (self.usual or Usual()) if config.adaptive else None
        self.window = Window(config.window, self.usual)
        self.window.load(parts, now)
        self.config = config
        self._slow = config.slow
        if self.open_until is not None:
            self.open_time = min(self.open_time, config.open_cap)
            self._stay_open_until(min(self.open_until, now + self.open_time))
        self._obey_mode(now)

    # What happens when not all is well: from here on, nothing is on the path of a good call.

    def _admit_with_care(self, now: float) -> Permit | Rejection:
        if not self._counting:
            return _UNCOUNTED
        if self.recorded_state is _OPEN:
            if self.open_until is None or now < self.open_until:
                return self._refuse()
            self._become(_HALF_OPEN, now)
        return self._admit_probe(now)

    def _admit_probe(self, now: float) -> Permit | Rejection:
        out = self._probes_out or []
        if len(out) >= self.config.probes:
            # A probe that hangs must not keep the circuit from ever closing (Polly#216).
            out = [probe for probe in out if now - probe.started < self.config.probe_limit]
        self._probes_out = out
        if len(out) >= self.config.probes:
            return self._refuse()
        probe = Permit(self._generation, now, probe=True)
        out.append(probe)
        return probe

    def _refuse(self) -> Rejection:
        self.rejected += 1
        assert self.rejection is not None
        return self.rejection

    def _settle_with_care(self, permit: Permit, verdict: Verdict, now: float, why: _Why) -> None:
        self._add_to_totals(verdict, now)
        if permit.generation != self._generation:
            return
        slow = self._slow is not None and now - permit.started >= self._slow
        if permit.probe:
            self._probe_ended(permit, verdict, now, why, slow=slow)
        elif verdict is _SUCCESS or verdict is _FAILURE:
            self._count(now, why, failed=verdict is _FAILURE, slow=slow)

    def _add_to_totals(self, verdict: Verdict, now: float) -> None:
        if verdict is _SUCCESS:
            self.successes += 1
            self.last_success = now
        elif verdict is _FAILURE:
            self.failures += 1
            self.last_failure = now
        elif verdict is Verdict.IGNORED:
            self.ignored += 1
        else:
            self.cancelled += 1

    def _count(self, now: float, why: _Why, *, failed: bool, slow: bool) -> None:
        window = self.window
        if now >= window.ends:
            window.turn(now)
        window.slow += slow
        if failed:
            window.bad += 1
            self.streak += 1
        else:
            window.good += 1
            self.streak = 0
        if (failed or slow) and self._mode() == "normal":
            factor = self.usual.factor() if self.usual else 1.0
            rule = broken_rule(self.config, self.streak, window, factor)
            if rule is not None:
                self._open(now, now + self.config.open_for, rule, why)

    def _probe_ended(self, probe: Permit, verdict: Verdict, now: float, why: _Why, *, slow: bool) -> None:
        if self._probes_out and probe in self._probes_out:
            self._probes_out.remove(probe)
        if verdict is _FAILURE or (verdict is _SUCCESS and slow):
            self._open(now, max(now, probe.started + self._reopening()), Rule.PROBE, why)
        elif verdict is _SUCCESS:
            self.good_probes += 1
            if self.good_probes >= self.config.successes:
                self._close(now)

    def _reopening(self) -> float:
        """Return the seconds from the start of the probe that just failed to the next; they grow from one to the next."""
        config = self.config
        grown = max(config.first_reopening(), self.reopen_time) * config.open_growth
        self.reopen_time = min(config.open_cap, grown)
        return self.reopen_time

    def _open(self, now: float, until: float, rule: Rule, why: _Why) -> None:
        if why.asked is not None:
            # Who limits us knows when the limit ends: sooner a probe is wasted, later the time is.
            until = now + min(max(why.asked, SHORTEST_ASKED_S), self.config.open_cap)
        self.open_time = until - now
        text = why.text[:TEXT_CAP] if why.text else None
        self.rejection = Rejection(name=self.name, state=_OPEN, reason=why.code, last_failure=text, rule=rule)
        self._stay_open_until(until)
        self._become(_OPEN, now)

    def _stay_open_until(self, until: float | None) -> None:
        self.open_until = until
        self.rejection = msgspec.structs.replace(self.rejection, retry_at=until) if self.rejection else None

    def _close(self, now: float) -> None:
        self.streak = 0
        self.window.clear()
        self.open_time = self.reopen_time = 0.0
        self.rejection = None
        self._become(_CLOSED, now)

    def _become(self, state: CircuitState, now: float) -> None:
        """Begin a new generation: whatever is out from before no longer matters."""
        before, self.recorded_state = self.recorded_state, state
        self._generation += 1
        self._probes_out = None
        self.good_probes = 0
        if state is not _OPEN:
            self.open_until = None
        if state is _HALF_OPEN and self.rejection:
            self.rejection = msgspec.structs.replace(self.rejection, state=_HALF_OPEN, retry_at=None)
        if before is state:
            return
        self.last_change = now
        self.opens += state is _OPEN
        self.pending = (*self.pending, self._transition(before, now))[-TRANSITIONS_KEPT:]

    def _transition(self, before: CircuitState, now: float) -> Transition:
        why = self.rejection if self.recorded_state is _OPEN else None
        return Transition(
            from_=before,
            to=self.recorded_state,
            at=now,
            reason=why.reason if why else None,
            until=self.open_until,
            rule=why.rule if why else None,
        )

    def _mode(self) -> Mode:
        """What holds now: a hand that holds it open, a hand that disabled it, or the configuration."""
        if self.isolations or self.config.mode == "forced-open":
            return "forced-open"
        return "disabled" if self.disabled else self.config.mode

    def _obey_mode(self, now: float) -> None:
        """Bring the state in line with the mode after either may have changed."""
        mode = self._mode()
        self._counting = mode != "disabled"
        held_open = self.recorded_state is _OPEN and self.open_until is None
        if mode == "forced-open":
            if not held_open:
                self.rejection = Rejection(name=self.name, state=_OPEN, rule=Rule.FORCED)
                self.open_until = None
                self._become(_OPEN, now)
        elif held_open or (mode != "normal" and self.recorded_state is not _CLOSED):
            self._close(now)

    def _turn_window(self, now: float) -> None:
        """Let old calls go. While open the window stays as it was: it shows why, and an outage teaches nothing."""
        if self.recorded_state is _CLOSED and now >= self.window.ends:
            self.window.turn(now)
