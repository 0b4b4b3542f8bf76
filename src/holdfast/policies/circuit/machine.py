"""The breaker: closed, open and half-open, computed from the time that each method receives.

    CLOSED ── a rule is broken ─▶ OPEN ── its time is up, at the next admit ─▶ HALF_OPEN
       ▲                            ▲ ◀───────── a probe fails ────────────────────┤
       └──────────────────────────────── enough probes succeed ────────────────────┘

Every change of state starts a new generation. The outcome of a call from an earlier generation is added to the totals and
to nothing else, so a late failure neither extends the open time nor reopens a circuit that has closed since.

A breaker is not thread-safe: its owner holds a lock around each call. No method calls foreign code, so the lock is short.

A graded circuit never holds back what the plain call would have got. The first attempt of an operation always goes through: a
prompt that fails again and again, or a model that is sick, says nothing about the next request. Retries are held back: the second
and third attempt if the first attempts of several operations failed in a row, later ones whenever the circuit is open.

Invariant: a permit counts once, and at most `probes` probes younger than `probe_limit` run at any time, besides the calls that a
graded circuit does not hold back.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from holdfast.events import CircuitState
from holdfast.policies.backoff import PLAIN_ATTEMPTS
from holdfast.policies.circuit.ramp import Ramp
from holdfast.policies.circuit.records import BreakerMetrics, Permit, Rejection, Transition, Verdict
from holdfast.policies.circuit.rules import Rule, broken_rule
from holdfast.policies.circuit.window import UsualRate, Window

if TYPE_CHECKING:
    from holdfast.faults import Code
    from holdfast.policies.circuit.config import Circuit, Mode

TEXT_CAP = 200
"""Characters of a failure's text that are kept: a process may have a hundred thousand breakers."""
SHORTEST_REQUESTED_S = 1.0
"""A circuit that opens stays open for at least this, even if the other side requested a shorter delay."""
MOMENT_S = 1.0
"""In a graded circuit, failures within this time are one observation."""
REST_S = 0.6
RESTED_S = 1.0
"""A retry that comes less than the first after a call that failed waits until the second has passed since that call."""
MAKES_WAY = 3
LOOKS_AGAIN_S = 20.0
"""After failures in so many moments, one of the calls that a fallback could answer is made in so many seconds."""
SEVERAL = 2
"""Operations whose first attempts must have failed in a row before others make way for a fallback."""
USUAL = 10
FAR = 4.0
LEAST_S = 10.0
"""A call that ended at a time limit says nothing about the service, unless so many answers are known, and it took this many
times as long as the slowest of them, and at least so many seconds."""
BAD_MOMENTS = 12
"""After a good probe, failures in so many moments without another good call reopen a graded circuit."""
TRANSITIONS_KEPT = 16
"""Changes of state that wait for `take_transitions`. A breaker that nobody watches must not grow."""

# Every call needs these, and a global is looked up faster than an enum's member.
_SUCCESS: Final = Verdict.SUCCESS
_FAILURE: Final = Verdict.FAILURE
_CLOSED: Final = CircuitState.CLOSED
_OPEN: Final = CircuitState.OPEN
_HALF_OPEN: Final = CircuitState.HALF_OPEN


class _Why(NamedTuple):
    """What is known about a failure."""

    code: Code | None
    text: str | None
    requested: float | None
    first: bool


# The permit of a disabled breaker. It is settled already, so its outcome counts nowhere.
_UNCOUNTED: Final = Permit(generation=-1, started=0.0, settled=True)


class Breaker:
    """The state of one circuit. Attributes are for reading; only the methods of this class write them."""

    __slots__ = (
        "_counting",
        "_generation",
        "_is_free",
        "_looked_at",
        "_moment",
        "_probes_out",
        "_ramp",
        "_slow",
        "cancelled",
        "config",
        "disabled",
        "failures",
        "first_failures",
        "good_probes",
        "idle_since",
        "ignored",
        "isolations",
        "last_change",
        "last_code",
        "last_failure",
        "last_success",
        "name",
        "open_time",
        "open_until",
        "opens",
        "paced",
        "pending",
        "recorded_state",
        "rejected",
        "rejection",
        "reopen_time",
        "slowest",
        "streak",
        "successes",
        "usual",
        "window",
    )

    def __init__(self, config: Circuit, name: str = "") -> None:
        self.config = config
        self.name = name
        self.idle_since = -math.inf
        """When a permit was last requested. The registry evicts the breaker that is idle longest."""
        self.pending: tuple[Transition, ...] = ()
        """Changes of state that nobody has taken yet. Nearly always empty: check it before you call `take_transitions`."""
        self.successes = self.failures = self.ignored = self.cancelled = self.rejected = self.opens = 0
        self.last_failure: float | None = None
        self.last_code: Code | None = None
        """What the last failure was."""
        self.last_success: float | None = None
        self.last_change: float | None = None
        self.recorded_state = _CLOSED
        """The state as of the last call. `state(now)` also knows whether the open time has ended since."""
        self.streak = 0
        """Failures since the last success."""
        self.first_failures = 0
        """Operations whose first attempt has failed since then."""
        self.slowest = 0.0
        """Seconds of the slowest good answer so far."""
        self.usual = UsualRate() if config.adaptive else None
        self.window = Window(config.window, self.usual)
        self.open_until: float | None = None
        """When an open circuit lets a probe through. None: not open, or held open."""
        # How long the circuit stays open this time, in seconds, and how long it is from the start of the latest bad probe to the next.
        # Both are 0 while it is closed, so growth starts over.
        self.open_time = self.reopen_time = 0.0
        self.rejection: Rejection | None = None
        """Returned to every call while the circuit is open, or half-open with all probes running."""
        self.good_probes = 0
        self.isolations = 0
        """How many `force_open` calls are not released yet."""
        self.disabled = False
        """Whether `disable` holds."""
        self._generation = 0
        # None instead of an empty list: a process may have a hundred thousand breakers, and few are half-open.
        self._probes_out: list[Permit] | None = None
        self._ramp = Ramp(config.probes)
        self._looked_at = -math.inf
        """When a call with a fallback was last let through to look again."""
        self._moment = -math.inf
        """When the latest failure was counted. In a graded circuit the failures of the second after it are not."""
        self.paced = False
        """Calls must not start without `admit`, because somebody else decides when they may."""
        # Copies of what each call needs, to save the lookups through `config`.
        self._slow = config.slow
        self._counting = config.mode != "disabled"
        self._is_free = self._counting
        """A call may start without further checks."""
        if config.mode == "forced-open":
            self.recorded_state = _OPEN
            self._is_free = False
            self.rejection = Rejection(name=name, state=_OPEN, rule=Rule.FORCED)

    def admit(self, now: float, tries: int = PLAIN_ATTEMPTS) -> Permit | Rejection:
        """Return a permit to make a call, or a rejection that says why it must not be made.

        `tries`: attempts that the operation has made already. The caller must settle the permit when the call has ended. The state
        may have changed: check `pending`.
        """
        return self.admit_if_closed(now) or self._admit_slowly(now, tries)

    def holds_back(self, tries: int) -> bool:
        """Whether an open circuit holds back an operation that has made so many attempts: a graded one none of the plain client's."""
        return not self.config.graded or tries >= PLAIN_ATTEMPTS

    def admit_if_closed(self, now: float) -> Permit | None:
        """Return a permit where the circuit is closed, else None: then call `admit`.

        Safe to call without a lock: a closed circuit decides nothing here, and one that opens at this very moment treats the
        call as begun before it opened.
        """
        self.idle_since = now
        return Permit(self._generation, now) if self._is_free else None

    # No keyword-only arguments: on Python 3.11 they double the cost of a call, and every call of a user is settled here.
    def settle(  # noqa: PLR0917 - the reason is in the comment above
        self,
        permit: Permit,
        verdict: Verdict,
        now: float,
        code: Code | None = None,
        text: str | None = None,
        requested: float | None = None,
        first: bool = False,  # noqa: FBT001, FBT002 - the reason is in the comment above
    ) -> None:
        """Record how the call ended. Settling a permit a second time changes nothing.

        `code` and `text` describe the failure. People will read the text, so the caller removes secrets from it.
        `requested` is the delay that the failing service requested. If this failure opens the circuit, it stays open for
        that long instead of `open_for`. `first`: it was the first attempt of its operation. The state may have changed: check
        `pending`.
        """
        if permit.settled:
            return
        permit.settled = True
        if verdict is not _SUCCESS or permit.generation != self._generation or permit.probe or self._slow is not None:
            self._settle_slowly(permit, verdict, now, _Why(code, text, requested, first))
            return
        self.successes += 1
        self.last_success = now
        self.streak = self.first_failures = 0
        self.slowest = max(self.slowest, now - permit.started)
        # A successful call cannot break a rule, so nothing is checked here.
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
        """Return the state. An open circuit counts as half-open once its time is up, before any call makes it so."""
        until = self.open_until
        return _HALF_OPEN if until is not None and now >= until else self.recorded_state

    @property
    def rejects_until(self) -> float | None:
        """When it stops rejecting calls; infinity while it is held open; None if it is not open."""
        if self.recorded_state is not _OPEN:
            return None
        return math.inf if self.open_until is None else self.open_until

    def room(self, now: float) -> int:
        """Return how many more calls it would admit as probes; while it is closed, more than anybody needs."""
        if self.recorded_state is _CLOSED:
            return sys.maxsize
        if self.recorded_state is _OPEN and (self.open_until is None or now < self.open_until):
            return 0
        room = self._ramp.room(now) if self.good_probes and self.config.graded else self._ramp.places
        out = self._probes_out or ()
        if len(out) >= room:
            # A probe that hangs must not stop the circuit from ever closing (Polly#216).
            self._probes_out = [probe for probe in out if now - probe.started < self.config.probe_limit]
        return room - len(self._probes_out or ())

    def set_paced(self, paced: bool) -> None:  # noqa: FBT001 - the setter of a flag
        """Let every call come through `admit` from now on, or no longer."""
        self.paced = paced
        self._check_free()

    def makes_way(self, now: float) -> Rejection | None:
        """Return why a call that a fallback could answer must not be made; None: it may be.

        A graded circuit lets such calls go sooner than it opens: they lose nothing. One of them looks again now and then.
        """
        until = self.makes_way_until
        if until is None:
            return None
        if now >= until:
            self._looked_at = now
            return None
        self.rejected += 1
        return Rejection(name=self.name, state=_OPEN, retry_at=until, reason=self.last_code, rule=Rule.FALLBACK)

    def is_far_beyond(self, seconds: float) -> bool:
        """Whether a call without an answer for so long shows that the service is ill: it took far longer than any answer so far."""
        return self.successes >= USUAL and seconds >= max(LEAST_S, FAR * self.slowest)

    @property
    def makes_way_until(self) -> float | None:
        """Until when calls that a fallback could answer are not made; None: they are made. One is made after that time."""
        if self.streak < MAKES_WAY or self.first_failures < SEVERAL:
            return None
        if not self.config.graded or self._mode() != "normal":
            return None
        # Counted from the start of the last one that looked, like a probe: one that hangs must not delay the next.
        return self._looked_at + LOOKS_AGAIN_S

    def rests(self, now: float, since: float) -> Rejection | None:
        """Return why a retry that has waited since then had better wait for a moment more; None: it need not.

        A graded circuit knows when the service failed another call. What failed a moment ago most likely still fails.
        """
        failed = self.last_failure
        if failed is None or failed <= since or now >= failed + REST_S:
            return None
        if not self.streak or not self.config.graded:
            return None
        if self.recorded_state is not _CLOSED or self._mode() != "normal":
            return None
        return Rejection(name=self.name, state=_CLOSED, retry_at=failed + RESTED_S, rule=Rule.PACE)

    def failure_lasts(self, now: float) -> float:
        """Return how many seconds a failure of this moment lasts; 0: nobody can say.

        Where most calls are answered, and also the one before this moment, a failure is over after a moment. Where most fail,
        the next moment is as bad.
        """
        if not self.config.graded or self.recorded_state is not _CLOSED or self.streak > 1:
            return 0.0
        self._turn_window(now)
        return MOMENT_S if 2 * self.window.failures < self.window.calls else 0.0

    def nobody_waits(self, now: float) -> None:
        """No call waits for it. A graded circuit that has had a good probe closes, if half of its room is enough."""
        is_back = self.recorded_state is _HALF_OPEN and self.config.graded and self.good_probes >= self.config.successes
        # Calls that wait elsewhere, such as for the pace of a model, do not show here. The room they need does.
        if is_back and 2 * self.room(now) >= self._ramp.places and self._ramp.is_steady(now):
            self._close(now)

    def _check_free(self) -> None:
        self._is_free = self.recorded_state is _CLOSED and self._counting and not self.paced

    @property
    def held(self) -> bool:
        """Whether an operator holds it open or has disabled it. Such a breaker must not be evicted."""
        return self.disabled or self.isolations > 0

    def metrics(self, now: float) -> BreakerMetrics:
        """Return its counts, rates and times."""
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

    @property
    def is_away(self) -> bool:
        """Whether it opened by itself, and no probe was answered since."""
        return self.recorded_state is not _CLOSED and not self.good_probes and self._mode() == "normal"

    def probe_at(self, at: float) -> None:
        """Let the next probe through at this time: another process looks before, or this one is asked to."""
        if self.recorded_state is _OPEN and self.open_until is not None:
            self._stay_open_until(at)

    def answered_elsewhere(self, now: float) -> None:
        """Another process got a good answer. A graded circuit lets those who wait come back as after a probe of its own."""
        if not self.is_away:
            return
        if self.recorded_state is _OPEN:
            self._become(_HALF_OPEN, now)
        if self.config.graded:
            self.good_probes = 1
            self.streak = self.first_failures = 0
            self._ramp.answered(now, now, 1)

    def force_open(self, now: float) -> None:
        """Hold it open until `release` was called as often as this method."""
        self.isolations += 1
        self._obey_mode(now)

    def release(self, now: float) -> None:
        """Take one `force_open` back. The last one closes the circuit; a surplus one changes nothing."""
        self.isolations = max(0, self.isolations - 1)
        self._obey_mode(now)

    def disable(self, now: float) -> None:
        """Let every call through uncounted until `enable` or `reset`. `force_open` takes precedence."""
        self.disabled = True
        self._obey_mode(now)

    def enable(self, now: float) -> None:
        """Take `disable` back."""
        self.disabled = False
        self._obey_mode(now)

    def reset(self, now: float) -> None:
        """Close it and forget recent failures, `force_open` and `disable`. Totals stay, and `config.mode` still holds."""
        self.isolations = 0
        self.disabled = False
        self._obey_mode(now)
        if self.config.mode != "forced-open":
            self._close(now)

    def reconfigure(self, config: Circuit, now: float) -> None:
        """Continue with another configuration. The state, the counts and the running calls survive."""
        self._turn_window(now)
        # The grid of the window depends on its length, so the counts move into a new one.
        parts = tuple(self.window.parts(now))
        self.usual = (self.usual or UsualRate()) if config.adaptive else None
        self.window = Window(config.window, self.usual)
        self.window.load(parts, now)
        self.config = config
        self._slow = config.slow
        if not (config.graded and self.good_probes):
            self._ramp = Ramp(config.probes)
        if self.open_until is not None:
            self.open_time = min(self.open_time, config.open_cap)
            self._stay_open_until(min(self.open_until, now + self.open_time))
        self._obey_mode(now)

    # Nothing below is on the path of a good call on a closed circuit, so it is written for clarity, not for speed.

    def _admit_slowly(self, now: float, tries: int) -> Permit | Rejection:
        if not self._counting:
            return _UNCOUNTED
        if self.recorded_state is _CLOSED:
            return Permit(self._generation, now)
        if self.recorded_state is _OPEN:
            if self.open_until is None:
                return self._reject()
            if now < self.open_until:
                return self._reject() if self.holds_back(tries) else Permit(self._generation, now, probe=True)
            self._become(_HALF_OPEN, now)
        return self._admit_probe(now, tries)

    def _admit_probe(self, now: float, tries: int) -> Permit | Rejection:
        probe = Permit(self._generation, now, probe=True)
        if self.room(now) <= 0:
            return self._reject() if self.holds_back(tries) else probe
        self._probes_out = [*(self._probes_out or ()), probe]
        return probe

    def _reject(self) -> Rejection:
        self.rejected += 1
        assert self.rejection is not None
        return self.rejection

    def _settle_slowly(self, permit: Permit, verdict: Verdict, now: float, why: _Why) -> None:
        self._add_to_totals(verdict, now)
        if verdict is _FAILURE:
            self.last_code = why.code
        # A call that began before the last change of state says nothing about the present one.
        if permit.generation != self._generation:
            if verdict is _SUCCESS and permit.probe and self.config.graded and self.recorded_state is not _CLOSED:
                # But a probe that was answered has shown that the service answers.
                self._good_probe(permit, now)
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
            self.first_failures += why.first
            self._add_to_streak(now)
        else:
            window.good += 1
            self.streak = self.first_failures = 0
        # `metrics-only` counts like this and never opens.
        if (failed or slow) and self._mode() == "normal":
            factor = self.usual.factor() if self.usual else 1.0
            rule = broken_rule(self.config, self.streak, window, factor)
            if rule is not None:
                self._open(now, now + self.config.open_for, rule, why)

    def _probe_ended(self, probe: Permit, verdict: Verdict, now: float, why: _Why, *, slow: bool) -> None:
        # A probe older than `probe_limit` may have lost its place to another one; its outcome still counts.
        if self._probes_out and probe in self._probes_out:
            self._probes_out.remove(probe)
        if verdict is _FAILURE or (verdict is _SUCCESS and slow):
            self._bad_probe(probe, now, why)
        elif verdict is _SUCCESS:
            self._good_probe(probe, now)

    def _good_probe(self, probe: Permit, now: float) -> None:
        if self.recorded_state is _OPEN:
            # It was not held back while the circuit was open.
            self._become(_HALF_OPEN, now)
        self.good_probes += 1
        if self.config.graded:
            self.streak = self.first_failures = 0
            self._ramp.answered(probe.started, now, self.good_probes)
            if self._ramp.is_over(now):
                self._close(now)
        elif self.good_probes >= self.config.successes:
            self._close(now)

    def _bad_probe(self, probe: Permit, now: float, why: _Why) -> None:
        self.first_failures += why.first
        if self.recorded_state is _OPEN:
            # It was not held back. The next probe comes when it is due.
            return
        if self.good_probes and self.config.graded:
            # Some calls are answered, so the service is not down. Fewer calls at a time, and not none.
            self._add_to_streak(now)
            self._ramp.rejected(probe.started)
            # A rejection comes soon. Its place stays taken for a moment, or the next call would be rejected as soon.
            held = Permit(self._generation, now - self.config.probe_limit + MOMENT_S, probe=True)
            self._probes_out = [*(self._probes_out or ()), held]
            if self.streak < BAD_MOMENTS:
                return
            self.reopen_time = 0.0
        # Counted from the probe's start: a probe that hung for a minute has already waited long enough. But the next one never comes at once.
        least = now + (MOMENT_S if self.config.graded else 0.0)
        self._open(now, max(least, probe.started + self._reopening()), Rule.PROBE, why)

    def _add_to_streak(self, now: float) -> None:
        if self.config.graded:
            # A service that fails for a moment fails all calls of that moment, however many there are.
            if now - self._moment < MOMENT_S:
                return
            self._moment = now
        self.streak += 1

    def _reopening(self) -> float:
        """Return the seconds from the start of the failed probe to the next probe. They grow with each failed probe."""
        config = self.config
        grown = max(config.first_reopening(), self.reopen_time) * config.open_growth
        self.reopen_time = min(config.open_cap, grown)
        return self.reopen_time

    def _open(self, now: float, until: float, rule: Rule, why: _Why) -> None:
        if why.requested is not None:
            # The service knows when its limit ends. An earlier probe would fail; a later one would waste time. A graded
            # circuit has waited as requested before it opens. That was in vain, so it does not wait less than it would.
            wanted = now + min(max(why.requested, SHORTEST_REQUESTED_S), self.config.open_cap)
            until = max(until, wanted) if self.config.graded else wanted
        self.open_time = until - now
        text = why.text[:TEXT_CAP] if why.text else None
        self.rejection = Rejection(name=self.name, state=_OPEN, reason=why.code, last_failure=text, rule=rule)
        self._stay_open_until(until)
        self._become(_OPEN, now)

    def _stay_open_until(self, until: float | None) -> None:
        self.open_until = until
        self.rejection = msgspec.structs.replace(self.rejection, retry_at=until) if self.rejection else None

    def _close(self, now: float) -> None:
        # The failures that opened the circuit must not open it again after one more.
        self.streak = self.first_failures = 0
        self.window.clear()
        self.open_time = self.reopen_time = 0.0
        self.rejection = None
        self._become(_CLOSED, now)

    def _become(self, state: CircuitState, now: float) -> None:
        """Change the state and start a new generation: calls that began before no longer count."""
        before, self.recorded_state = self.recorded_state, state
        self._generation += 1
        self._probes_out = None
        self._ramp = Ramp(self.config.probes)
        self._moment = -math.inf
        self.good_probes = 0
        self._check_free()
        if state is not _OPEN:
            self.open_until = None
        if state is _HALF_OPEN and self.rejection:
            # Other calls are rejected with the old reason while probes run. Nobody knows when the probes will end.
            self.rejection = msgspec.structs.replace(self.rejection, state=_HALF_OPEN, retry_at=None)
        if before is state:
            # `reset` of a closed circuit starts a new generation but is no change that listeners should see.
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
        """Return the mode in force: `force_open` first, then `disable`, then the configuration."""
        if self.isolations or self.config.mode == "forced-open":
            return "forced-open"
        return "disabled" if self.disabled else self.config.mode

    def _obey_mode(self, now: float) -> None:
        """Adjust the state to the mode after either may have changed."""
        mode = self._mode()
        self._counting = mode != "disabled"
        self._check_free()
        held_open = self.recorded_state is _OPEN and self.open_until is None
        if mode == "forced-open":
            if not held_open:
                self.rejection = Rejection(name=self.name, state=_OPEN, rule=Rule.FORCED)
                self.open_until = None
                self._become(_OPEN, now)
        # A circuit that is held open has no end time. When nobody holds it any more, it closes.
        elif held_open or (mode != "normal" and self.recorded_state is not _CLOSED):
            self._close(now)

    def _turn_window(self, now: float) -> None:
        """Drop old calls from the window of a closed circuit.

        While the circuit is open, the window keeps what opened it, so that metrics show the reason. Adaptive thresholds must
        not learn from an outage either.
        """
        if self.recorded_state is _CLOSED and now >= self.window.ends:
            self.window.turn(now)
