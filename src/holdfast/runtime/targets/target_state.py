"""`TargetState`: what all calls to one name share: a circuit, a pace, a retry quota, hedge statistics and a limiter.

Only this module touches a circuit's machine or its lock; all others call the methods of `TargetState`. Where several processes share
what they know of the target, `share` has what the others know (`runtime/fleet/`).

Invariant: a policy without a circuit ignores the circuit that another policy gave to the same name. The same holds for quotas and
limiters.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast._lazy import lazy_module
from holdfast.events import CircuitState
from holdfast.faults import InvalidError
from holdfast.policies.allowance import Allowance
from holdfast.policies.backoff import PLAIN_ATTEMPTS
from holdfast.policies.callers import Callers
from holdfast.policies.circuit import Breaker, Circuit, Rejection, Rule
from holdfast.policies.circuit import Verdict as _Verdict
from holdfast.policies.early import AnnouncedCalls, EarlyCalls
from holdfast.policies.hedge import HedgeMachine
from holdfast.policies.pace import Pace
from holdfast.policies.queue import WaitQueue
from holdfast.policies.quota import QuotaMachine
from holdfast.runtime.fleet.shared_target import SharedTarget
from holdfast.runtime.locks import if_free, new_lock
from holdfast.runtime.targets.limiter import limiter_for, limits_of, strictest
from holdfast.runtime.targets.request_watch import RequestWatch

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable

    from holdfast.classify.hints import AnnouncedLimits
    from holdfast.faults import Code, Fault
    from holdfast.policies import Policy
    from holdfast.policies.circuit import BreakerMetrics, Permit, Transition, Verdict
    from holdfast.policies.hedge import Hedge
    from holdfast.policies.queue import Priority, QueueTurn
    from holdfast.policies.quota import Quota
    from holdfast.runtime.fleet.share import TargetShare
    from holdfast.runtime.targets.limiter import Limiter, LimiterOptions
else:
    logging = lazy_module("logging", globals())

__all__ = ["TargetState"]


_METRICS_ONLY = Circuit(mode="metrics-only")
"""Counts calls where no policy has a circuit."""
_LIMITS = ("concurrency", "waiting", "per_second", "burst")
_LIMITER_OPTIONS = ", ".join(_LIMITS)
_NO_LIMITER = (None, None, None, None)
MISSING_S = 1.0
"""Seconds after which a woken call that has not come does not count any more."""
SHORT_ANNOUNCED_S = 2.0
"""A call waits for so long because of what the other side announced, before it is tried whether that is true."""
MOST_ALLOWANCES = 256
"""The most limits of one target whose announcements are kept."""
_ROUNDING = 1e-6
"""Seconds. A timer may fire early by a rounding error."""
_ALL = frozenset({"circuit", "retry_quota", "hedge", _LIMITER_OPTIONS})
_NONE: frozenset[str] = frozenset()
# Every call reads these, and a global is faster than an enum's member.
_CLOSED: Final = CircuitState.CLOSED
_SUCCESS: Final = _Verdict.SUCCESS
_CANCELLED: Final = _Verdict.CANCELLED
_GIVES_BACK: Final = (_Verdict.IGNORED, _CANCELLED)
"""Verdicts that say nothing about the callee: they only give a permit back."""


class TargetState(SharedTarget):
    """The state behind one name. Its methods may be called from any thread.

    Methods that return True for "changed" leave transitions of the circuit to be read with `take_transitions`.
    """

    __slots__ = (
        "__weakref__",
        "_allowances",
        "_announced",
        "_awaited",
        "_breaker",
        "_called",
        "_callers",
        "_early",
        "_expects_limits",
        "_hedge",
        "_hedge_machine",
        "_is_busy",
        "_left",
        "_limited_at",
        "_limiter_options",
        "_lock",
        "_pace",
        "_paced",
        "_queue",
        "_quota",
        "_quota_machine",
        "_rejection",
        "_renewed",
        "_unsettled",
        "_warned",
        "admit_if_closed",
        "circuit",
        "counts_tokens",
        "limiter",
        "name",
        "requests",
        "share",
        "shares_declared",
    )

    def __init__(self, name: str) -> None:  # noqa: PLR0915 - one line for each thing that calls share
        self.name = name
        self.circuit: Circuit | None = None
        """The settings of its circuit; None until a policy brings some."""
        self.limiter: Limiter | None = None
        self._lock = new_lock()
        self._breaker = breaker = Breaker(_METRICS_ONLY, name)
        self.admit_if_closed = breaker.admit_if_closed
        """Returns a permit for one call where the circuit is closed, else None: then call `admit`. The breaker's own method,
        because every call comes here; it needs no lock."""
        self._quota: Quota | None = None
        self._quota_machine: QuotaMachine | None = None
        self._hedge: Hedge | None = None
        self._hedge_machine: HedgeMachine | None = None
        self._limiter_options: LimiterOptions | None = None
        self._queue: WaitQueue[Callable[[], None]] = WaitQueue()
        """The calls that wait for it, each as the function that wakes it."""
        self._pace: Pace | None = None
        """How fast calls may start; None while no limit of the other side is known."""
        self.counts_tokens = False
        """The other side announces limits of tokens."""
        self._allowances: dict[str, Allowance] = {}
        """What the other side says it still accepts, by what it limits, such as a model."""
        self._paced: dict[Permit, int] = {}
        """The calls under way that the pace counts, and how many others were under way when each began."""
        self._called: dict[QueueTurn, float] = {}
        """Calls that were woken and have not come yet, and when they were woken."""
        self._callers = Callers()
        self._left: list[tuple[QueueTurn, bool]] = []
        """Calls that stopped waiting while the lock was held, and whether they are lost: see `leave`."""
        self._early = EarlyCalls()
        """What became of calls that did not wait for their turn, and of those that did; without those of low priority, which always wait."""
        self._announced = AnnouncedCalls()
        """The same of calls that the other side announced not to accept."""
        self.shares_declared = False
        """Somebody declared that its calls share a limit: they wait for their turn."""
        self.share: TargetShare | None = None
        """What this process shares of it with others; None: nothing."""
        self.requests = RequestWatch(self._lock)
        self._expects_limits, self._limited_at = False, -math.inf
        """When the other side last rejected a call because there were too many, or announced that it would."""
        self._is_busy = False
        """Calls wait for it, or it has a pace."""
        self._rejection: tuple[Rejection, Fault] | None = None
        """The fault of the present rejection. In an outage many callers are rejected, and all get the same fault."""
        self._awaited: Rejection | None = None
        """The rejection whose end a caller already waits for."""
        self._unsettled: list[tuple[Permit, Verdict, float]] = []
        """Permits given back while the lock was held. Whoever reads what they change settles them first."""
        self._warned = False
        """A warning says already that policies name different limits."""
        self._renewed = _NONE
        """Options in which the next policy may differ from the last one, because the settings were reloaded."""

    # --- the circuit ---

    def admit(  # noqa: C901 - one decision, read from top to bottom
        self,
        now: float,
        turn: QueueTurn,
        *,
        queues: bool = True,
        limited_as: str = "",
        tries: int = PLAIN_ATTEMPTS,
        low: bool = False,
        forced: bool = False,
    ) -> Permit | Rejection:
        """Return a permit for one call, or why the call must not be made now. Its turn is its place among those that wait.

        `queues` is False where no time passes in waits, as in a test that skips them: such a call's turn would never come.
        `limited_as` names the announced limits that the call is under. `tries`: see `Breaker.admit`. `low`: its
        priority is low. `forced`: it goes before its turn, because its time would end before.
        """
        with self._lock:
            if self._unsettled or self._left:
                self._settle_given_back(now)
            self._called.pop(turn, None)
            allowance = self._allowances.get(limited_as)
            shared = self._governing_share(now) if queues else None
            wait = self._wait_for_turn(now, turn, allowance, tries, low=low) if queues else None
            # Calls of low priority yield. The people beside them would be rejected in their place.
            early = None if low or shared is not None else self._early_calls(now, allowance)
            if shared is not None:
                # While nobody knows whether it helps to wait, the plain client's attempts do not.
                forced = forced or not (shared.is_held or low or tries >= PLAIN_ATTEMPTS)
            is_paced = wait is not None and wait.rule is Rule.PACE and not (self.shares_declared or low)
            if wait is not None and is_paced and tries < PLAIN_ATTEMPTS and shared is None:
                # The plain client would make this attempt now. It waits only where that helps.
                forced = (early is not None and self._goes_early(now, turn, early, tries)) or forced
                wait = _at_most(wait, now + self._longest_wait(now, turn, early, allowance))
                wait = msgspec.structs.replace(wait, holds=early is self._early)
            answer = (None if forced else wait) or self._breaker.admit(now, tries)
            if isinstance(answer, Rejection) or not self._breaker.paced:
                return answer
            if not answer.settled:
                answer.forced, answer.early = wait is not None, early
                answer.again, answer.caller = tries > 0, turn.caller
                if early is not None and not (answer.forced and early.is_held and not self._comes_soon(now, early)):
                    answer.number = early.started(is_early=answer.forced)
                    answer.first = early.first_started() if answer.forced and not tries else 0
            self._queue.served(turn)
            if shared is not None:
                answer.start = shared.started(now)
            if allowance is not None:
                allowance.started(now)
            if self._pace is not None:
                if answer.forced and early is not None:
                    self._pace.started_early(now, alone=early.is_held)
                else:
                    self._pace.started(now, low=low, waiting=len(self._queue))
                self._paced[answer] = len(self._paced)
                if self._pace.is_over(now):
                    self._set_pace(self._open_pace())
            due = self._take_due(now)
        self._wake(due)
        return answer

    def _goes_early(self, now: float, turn: QueueTurn, early: EarlyCalls | AnnouncedCalls, tries: int) -> bool:
        """Return whether an attempt of the plain client starts before its turn."""
        if early is self._early and not tries and self._callers.was_only_answered(turn.caller):
            # Only others are rejected, as far as anybody knows: theirs may be another limit.
            return True
        was_held = early.is_held
        may_start = early.may_start(now, may_be_trial=not tries and self._comes_soon(now, early))
        if early.is_held and not was_held and self._pace is not None:
            self._pace.follow_answers(now)
        return may_start

    def _longest_wait(
        self, now: float, turn: QueueTurn, early: EarlyCalls | AnnouncedCalls | None, allowance: Allowance | None
    ) -> float:
        """Return after how many seconds an attempt of the plain client that waits should look again."""
        if early is not None:
            return early.longest_wait(now)
        # A short wait that was announced ends before the pace does. Then it is decided whether the call goes early.
        short = 0.0 if allowance is None or self._queue.ahead(turn) else allowance.wait(now)
        return short if short > _ROUNDING else math.inf

    def _comes_soon(self, now: float, early: EarlyCalls | AnnouncedCalls) -> bool:
        """Whether a call now would be so early that its outcome shows whether calls need to wait."""
        return early is self._announced or self._pace is None or self._pace.is_soon(now)

    def _early_calls(self, now: float, allowance: Allowance | None) -> EarlyCalls | AnnouncedCalls | None:
        """Return what says whether a call need not wait for its turn; None: the wait is short, or only spreads a burst."""
        announced = 0.0 if allowance is None else allowance.wait(now)
        if announced > _ROUNDING:
            # A short wait that was announced is kept to.
            return self._announced if announced > SHORT_ANNOUNCED_S else None
        return None if self._pace is None or self._pace.is_open else self._early

    def _open_pace(self) -> Pace | None:
        """Return the pace of a target whose limit is gone."""
        return Pace(is_limited=False, before=self._pace) if self._expects_limits else None

    def take_turn(self, priority: Priority, caller: int = 0) -> QueueTurn:
        """Return the place of a call among those that wait; see `WaitQueue.turn`."""
        with self._lock:
            return self._queue.turn(priority, caller)

    def _wait_for_turn(
        self, now: float, turn: QueueTurn, allowance: Allowance | None, tries: int, *, low: bool
    ) -> Rejection | None:
        """Return why a call must wait although the circuit would admit it; None: it need not."""
        ahead = self._queue.ahead(turn)
        if self._pace is not None and not self._queue and self._pace.is_stale(now):
            self._set_pace(self._open_pace())
        wait = 0.0 if self._pace is None else self._pace.wait(now, ahead, low=low)
        if (share := self._governing_share(now)) is not None:
            # The others' calls count too. What is announced to this process is what all of them have left.
            wait = share.wait(now, ahead)
        elif allowance is not None:
            # A call that can wait leaves one for a call that cannot.
            wait = max(wait, allowance.wait(now, ahead + low))
        if wait > _ROUNDING:
            return Rejection(name=self.name, state=self._breaker.state(now), retry_at=now + wait, rule=Rule.PACE)
        # The first probe is for any caller: those who wait may sleep a little longer than they must.
        is_behind = ahead and self._breaker.good_probes and self._breaker.holds_back(tries)
        return self._breaker.rejection if is_behind else None

    def wait_of_next(self, now: float) -> float:
        """Return the seconds for which a call that comes now would wait for its turn, as an estimate; reading changes nothing."""
        return 0.0 if (pace := self._pace) is None or pace.is_open else pace.wait(now, len(self._queue))

    def makes_way(self, now: float) -> Rejection | None:
        """Return why a call that a fallback could answer must not be made; None: it may be."""
        with self._lock:
            return self._breaker.makes_way(now)

    @property
    def makes_way_until(self) -> float | None:
        """Until when calls that a fallback could answer are not made; None: they are made."""
        with self._lock:
            return self._breaker.makes_way_until

    def rests(self, now: float, since: float) -> Rejection | None:
        """Return why a retry that has waited since then had better wait for a moment more; None: it need not."""
        with self._lock:
            return self._breaker.rests(now, since)

    def succeed(self, permit: Permit, now: float) -> bool:
        """Settle a permit after a good answer; return whether the circuit changed."""
        breaker = self._breaker
        with self._lock:
            breaker.settle(permit, _SUCCESS, now)
        if self._is_busy or permit.probe:
            self._accepted(permit, now)
        # `pending` is nearly always an empty tuple. `bool(…)` would cost one more call.
        return breaker.pending  # type: ignore[return-value] # only its truth is read

    def settle(  # noqa: PLR0917 - as `Breaker.settle` takes them
        self,
        permit: Permit,
        verdict: Verdict,
        now: float,
        code: Code | None = None,
        requested: float | None = None,
        first: bool = False,  # noqa: FBT001, FBT002 - as `Breaker.settle` takes it
    ) -> bool:
        """Settle a permit; return whether the circuit changed."""
        if verdict in _GIVES_BACK:
            self._give_back(permit, verdict, now)
            return False
        if verdict is _SUCCESS:
            return self.succeed(permit, now)
        with self._lock:
            self._settle_given_back(now)
            self._breaker.settle(permit, verdict, now, code=code, requested=requested, first=first)
            if first:
                self.requests.seen.failed(permit.started)
                self._is_busy = True
            due = self._take_due(now) if self._ended(permit) else []
            changed = bool(self._breaker.pending)
            if self.share is not None:
                self.share.ended(permit, now, answered=False, is_away=self._breaker.is_away)
        self._wake(due)
        return changed

    def expect_limits(self) -> None:
        """The other side limits the number of calls, as model providers do: bursts are spread from the beginning."""
        with self._lock:
            if not self._expects_limits and self._breaker.config.graded:
                self._expects_limits = True
                self._set_pace(self._pace or Pace(is_limited=False))

    def limited(self, permit: Permit, now: float, requested: float | None) -> None:
        """The other side rejected a call because there were too many: calls start more slowly from now on.

        Call it before the permit is settled, which ends the call for the pace, too.
        """
        with self._lock:
            self._limited_at = now
            if self.share is not None and self._breaker.config.graded:
                self.share.limited(permit, requested, now)
            if permit.caller:
                self._callers.rejected(permit.caller)
            self._learn(permit, now, rejected=True)
            if self._breaker.config.graded:
                if self._pace is None:
                    self._set_pace(Pace())
                assert self._pace is not None
                if permit not in self._paced:
                    # It started before there was this pace.
                    self._pace.started_before(permit.started)
                beside = self._paced.pop(permit, 0)
                if permit.forced and permit.early is not None:
                    # It came too soon, and we knew.
                    self._pace.came_too_soon(permit.started)
                else:
                    self._pace.limited(permit.started, now, requested, beside, len(self._queue))
                    if permit.early is not None and not permit.early.is_held:
                        self._pace.follow_answers(now)

    def announced(
        self, limits: AnnouncedLimits, since: float, now: float, *, accepted: bool = True, limited_as: str = ""
    ) -> None:
        """An answer announced how many calls are still accepted. Its call started at `since`."""
        with self._lock:
            if not self._breaker.config.graded:
                return
            allowance = self._allowances.get(limited_as)
            if allowance is None:
                if len(self._allowances) >= MOST_ALLOWANCES:
                    self._allowances = {}
                allowance = self._allowances[limited_as] = Allowance()
                self._set_pace(self._pace)
            allowance.learn(limits, since, now, accepted=accepted)
            if self._pace is not None and self._pace.is_open:
                # What is announced says how fast calls may start. No burst needs to be spread to find out.
                self._set_pace(None)
            if allowance.wait(now) > 0:
                self._limited_at = now
            self.counts_tokens = self.counts_tokens or limits.tokens is not None

    @property
    def is_announced(self) -> bool:
        """Whether the other side announces limits."""
        return bool(self._allowances)

    def announced_nothing(self, since: float, limited_as: str) -> None:
        """A good answer announced no limit. Its call started at `since`: what was announced before is not in force any more."""
        with self._lock:
            allowance = self._allowances.get(limited_as)
            if allowance is not None and since > allowance.known_at:
                del self._allowances[limited_as]
                self._set_pace(self._pace)

    def limited_for(self, now: float) -> float:
        """Return the seconds since the other side last rejected a call because there were too many, or announced that it would."""
        return now - self._limited_at

    def used(self, tokens: int, limited_as: str = "") -> None:
        """An answer reports how many tokens its call took."""
        with self._lock:
            allowance = self._allowances.get(limited_as)
            if allowance is not None:
                allowance.used(tokens)

    # --- calls that wait ---

    def join(self, turn: QueueTurn, wake: Callable[[], None]) -> None:
        """A call waits for this target; `wake` ends its wait early."""
        with self._lock:
            self._queue.join(turn, wake)
            self._is_busy = True
            self._want_start(turn.priority)

    def leave(self, turn: QueueTurn, now: float, *, is_lost: bool = False) -> None:
        """The call does not wait any more: it was woken, its time is over, or it was cancelled.

        `is_lost`: it was cancelled, and the plain client would have made its attempt by then.
        """
        # As in `_give_back`: the garbage collector may come here while this thread holds the lock, so nobody waits for it.
        self._left.append((turn, is_lost))
        # A call that was woken has left already. Only one that left by itself makes room for the next.
        due = if_free(self._lock, lambda: self._take_due(now) if self._remove_left(now) else [])
        self._wake(due or [])

    def _remove_left(self, now: float) -> bool:
        """Remove the calls that stopped waiting; return whether one of them was still in the queue."""
        removed = False
        while self._left:
            turn, is_lost = self._left.pop()
            removed |= self._queue.leave(turn)
            if is_lost:
                self._early.lost(now)
        self._is_busy = bool(self._queue) or self._breaker.paced or self.requests.seen.is_watched
        return removed

    def _ended(self, permit: Permit) -> bool:
        """Tell the pace that a call has ended without an answer; return whether it counted the call."""
        if self._paced.pop(permit, None) is None:
            return False
        assert self._pace is not None
        self._pace.ended()
        return True

    def _accepted(self, permit: Permit, now: float) -> None:
        """A call was answered: those who wait may follow."""
        with self._lock:
            if not permit.again:
                self.requests.seen.answered(permit.started, now)
                self._is_busy = bool(self._queue) or self._breaker.paced or self.requests.seen.is_watched
            if permit.caller:
                self._callers.answered(permit.caller)
            self._learn(permit, now, rejected=False)
            if permit.again and permit.early is not None:
                permit.early.retry_accepted()
            if self.share is not None:
                self.share.ended(permit, now, answered=True, is_away=self._breaker.is_away)
            if self._paced.pop(permit, None) is not None:
                assert self._pace is not None
                self._pace.accepted(permit.started, now)
                if permit.forced and permit.early is not None:
                    self._pace.surpassed(permit.started, now)
            self._forget_missing(now)
            if not self._queue and not self._called:
                self._breaker.nobody_waits(now)
            # Where nobody has to wait any more, those who wait come back in a ramp.
            due = self._take_due(now, 1 if permit.early is None or permit.early.is_held else 2)
        self._wake(due)

    @staticmethod
    def _learn(permit: Permit, now: float, *, rejected: bool) -> None:
        """Learn from the outcome of a call whether it helps to wait."""
        if permit.early is not None and permit.number:
            permit.early.ended(now, permit.number, rejected=rejected, is_early=permit.forced, first=permit.first)

    def _forget_missing(self, now: float) -> None:
        """Forget the woken calls that do not come, because they were cancelled meanwhile."""
        for turn in [turn for turn, woken in self._called.items() if now - woken > MISSING_S]:
            del self._called[turn]

    def _take_due(self, now: float, most: int = 1) -> list[Callable[[], None]]:
        """Take out those who should look again: they may start, or know better when they may. The caller holds the lock."""
        if not self._queue or not self._breaker.config.graded:
            return []
        room = max(0, self._breaker.room(now) - len(self._called))
        if (free := self._free_starts(now)) is not None:
            room, most = min(room, free - len(self._called)), sys.maxsize
        # A pace lets calls start one by one, and the first of those who wait computes when.
        due = self._queue.take(min(room, most) if self._breaker.paced else room)
        self._called.update((turn, now) for turn, _ in due)
        return [wake for _, wake in due]

    @staticmethod
    def _wake(due: list[Callable[[], None]]) -> None:
        # Without the lock: a woken thread may call back at once.
        for wake in due:
            wake()

    def _set_pace(self, pace: Pace | None) -> None:
        if pace is not self._pace:
            self._pace = pace
            self._paced.clear()
            if pace is None or pace.is_open:
                self._callers.forget()
        self._breaker.set_paced(pace is not None or bool(self._allowances) or self._is_shared_pace)
        self._is_busy = bool(self._queue) or self._breaker.paced or self.requests.seen.is_watched

    def _give_back(self, permit: Permit, verdict: Verdict, now: float) -> None:
        # The garbage collector may close a dropped stream or coroutine at any allocation, also in a method here that holds
        # the lock, in the same thread. To wait for the lock would then last for ever, and an RLock would let us into a change
        # that is half done. So nobody waits: such a verdict never changes the state, and only `admit` and `metrics` need it.
        self._unsettled.append((permit, verdict, now))
        if_free(self._lock, lambda: self._settle_given_back(now))

    def _settle_given_back(self, now: float) -> None:
        """Settle the permits that could not be settled when they were given back. The caller holds the lock."""
        while self._unsettled:
            permit, verdict, ended = self._unsettled.pop()
            self._breaker.settle(permit, verdict, ended)
            self._ended(permit)
            if (
                verdict is _CANCELLED
                and isinstance(permit.early, EarlyCalls)
                and permit.waited > ended - permit.started
            ):
                # Most of its caller's time went by while it waited for its turn.
                permit.early.lost(ended, permit.number)
        if self._left:
            self._remove_left(now)

    @property
    def is_graded(self) -> bool:
        """Whether its circuit slows calls down before it rejects them."""
        return self._breaker.config.graded

    def is_far_beyond(self, seconds: float) -> bool:
        """Whether a call that took so long without an answer shows that the service is sick: far longer than any answer so far."""
        return self._breaker.is_far_beyond(seconds)

    @property
    def is_closed(self) -> bool:
        """Whether its circuit is closed, as of the last call."""
        return self._breaker.recorded_state is _CLOSED

    @property
    def is_held(self) -> bool:
        """Whether a person holds its circuit open or disabled it. A circuit that is held open rejects every policy's calls."""
        return self._breaker.held

    @property
    def rejects_until(self) -> float | None:
        """When its circuit stops rejecting calls; infinity while it is held open; None where it is not open."""
        with self._lock:
            return self._breaker.rejects_until

    def failure_lasts(self, now: float) -> float:
        """Return how many seconds a failure of this moment lasts, if it answers most of its calls; 0: nobody can say."""
        with self._lock:
            return self._breaker.failure_lasts(now)

    def circuit_state(self, now: float) -> CircuitState:
        """Return the state of its circuit; reading changes nothing."""
        with self._lock:
            return self._breaker.state(now)

    def rejects(self, now: float) -> bool:
        """Whether its circuit would reject a call now; reading changes nothing."""
        return self.circuit_state(now) is CircuitState.OPEN

    def metrics(self, now: float) -> BreakerMetrics:
        """Return how its circuit is doing, in numbers."""
        with self._lock:
            self._settle_given_back(now)
            return self._breaker.metrics(now)

    def reset(self, now: float) -> None:
        """Close the circuit by hand and forget what led here; totals stay."""
        with self._lock:
            self._breaker.reset(now)

    def force_open(self, now: float) -> None:
        """Hold the circuit open by hand until it is released as often."""
        with self._lock:
            self._breaker.force_open(now)

    def release(self, now: float) -> None:
        """Take one `force_open` back."""
        with self._lock:
            self._breaker.release(now)

    @property
    def has_transitions(self) -> bool:
        """Whether there are changes of the circuit to take."""
        return bool(self._breaker.pending)

    def take_transitions(self) -> tuple[Transition, ...]:
        """Return the changes of the circuit since they were last taken, oldest first."""
        with self._lock:
            return self._breaker.take_transitions()

    def fault_of(self, rejection: Rejection) -> Fault | None:
        """Return the fault that was kept for this rejection; None where there is none yet."""
        known = self._rejection
        return known[1] if known is not None and known[0] is rejection else None

    def keep_fault(self, rejection: Rejection, fault: Fault) -> None:
        """Keep the fault of a rejection for all callers that get the same rejection."""
        self._rejection = (rejection, fault)

    def reject_again(self, now: float) -> tuple[Fault, float] | None:
        """Reject a call as the one before, if the circuit is still open: return the fault and the seconds left.

        None: call `admit`.
        """
        with self._lock:
            breaker, known = self._breaker, self._rejection
            until = breaker.open_until
            if known is None or known[0] is not breaker.rejection or until is None or now >= until:
                return None
            breaker.idle_since = now
            breaker.rejected += 1
            return known[1], until - now

    def is_first_to_wait(self, rejection: Rejection) -> bool:
        """Register a caller that waits for the end of a rejection; return whether it is the first one."""
        # No lock: if two threads both count as the first, both return on time, and the circuit admits no more than its probes.
        is_first, self._awaited = self._awaited is not rejection, rejection
        return is_first

    def reopened_for(self, now: float) -> float | None:
        """Return how long the circuit is open after a failed probe; None: not open. The caller is the first to wait."""
        with self._lock:
            until = self._breaker.open_until
            if until is None:
                return None
            self._awaited = self._breaker.rejection
            return max(0.0, until - now)

    # --- the retry quota ---

    def withdraw_retry(self, now: float) -> bool:
        """Take one retry from the quota; False where it is used up."""
        machine = self._quota_machine
        if machine is None:
            return True
        with self._lock:
            return machine.withdraw(now)

    def called(self, now: float) -> None:
        """Count a first attempt; it earns a share of a retry."""
        if self._quota_machine is not None:
            with self._lock:
                self._quota_machine.called(now)

    def return_retries(self, now: float, retries: int) -> None:
        """Give back the retries of an operation that succeeded in the end (R39)."""
        if self._quota_machine is not None:
            with self._lock:
                self._quota_machine.succeeded(now, retries)

    # --- hedges ---

    def hedges_after(self) -> float | None:
        """Return the delay in seconds before a slow call gets a hedge; None while too few answers were measured."""
        machine = self._hedge_machine
        if machine is None:
            return None
        with self._lock:
            return machine.after()

    def answered_in(self, seconds: float) -> None:
        """Remember how long an answer took."""
        if self._hedge_machine is not None:
            with self._lock:
                self._hedge_machine.took(seconds)

    # --- settings ---

    def serve(self, policy: Policy, now: float) -> bool:
        """Take on a policy's circuit, quota, hedges and limits; return whether its limiter was replaced by a stricter one.

        Raises `InvalidError` where two policies disagree about the circuit, quota or hedges of one name (R86).
        """
        with self._lock:
            if self._is_new("circuit", self.circuit, policy.circuit):
                self.circuit = policy.circuit
                self._breaker.reconfigure(policy.circuit or _METRICS_ONLY, now)
                if not self._breaker.config.graded:
                    self._expects_limits, self._allowances = False, {}
                    self._set_pace(None)
            if self._is_new("retry_quota", self._quota, policy.retry_quota):
                self._quota = policy.retry_quota
                self._quota_machine = None if self._quota is None else QuotaMachine(self._quota)
            if self._is_new("hedge", self._hedge, policy.hedge):
                self._hedge = policy.hedge
                self._hedge_machine = None if self._hedge is None else HedgeMachine(self._hedge)
        burst = None if policy.per_second is None else policy.burst
        wanted = (policy.concurrency, policy.waiting, policy.per_second, burst)
        return wanted != _NO_LIMITER and self._limit(wanted, now)

    def _limit(self, wanted: LimiterOptions, now: float) -> bool:
        """Take on a policy's limits. Two libraries may name different ones: the smallest number of each option holds."""
        with self._lock:
            present = None if _LIMITER_OPTIONS in self._renewed else self._limiter_options
            self._renewed -= {_LIMITER_OPTIONS}
            options = wanted if present is None else strictest(present, wanted)
            differs = present is not None and present != wanted and not self._warned
            self._warned = self._warned or differs
            is_stricter = options != self._limiter_options
            if is_stricter:
                self._limiter_options = options
                if self.limiter is None:
                    self.limiter = limiter_for(self.name, *options)
                else:
                    # The same limiter goes on: calls that run count for the new number of places.
                    self.limiter.change(*limits_of(*options), now)
        if differs:
            # Outside the lock: a handler of the log may make a recovered call.
            logging.getLogger("holdfast").warning(
                "policies name different limits for %s, so the strictest of each hold: %s",
                self.name,
                ", ".join(f"{name}={value}" for name, value in zip(_LIMITS, options, strict=True) if value is not None),
            )
        return is_stricter and present is not None

    def renew(self) -> None:
        """Settings were reloaded: the next policy may differ from the last one. Open circuits stay open (R85)."""
        self._renewed = _ALL

    def forget_pace(self) -> None:
        """Forget what rate limits have taught: calls start at once again."""
        with self._lock:
            self._set_pace(None)

    @property
    def has_current_circuit(self) -> bool:
        """Whether a policy brought circuit settings since the last reload."""
        return self.circuit is not None and "circuit" not in self._renewed

    def _is_new(self, option: str, present: Any, wanted: Any) -> bool:
        """Whether a policy changes this option. A policy that does not have the option changes nothing (R85)."""
        if wanted is None:
            return False
        renewed = option in self._renewed
        if renewed:
            self._renewed -= {option}
        if wanted == present:
            return False
        if present is None or renewed:
            return True
        raise InvalidError.saying(f"policy.{option} of {self.name}", f"what it already has, {present!r}", repr(wanted))

    def after_fork(self) -> None:
        """Replace the lock and the limiter after a fork: threads of the parent may hold them and do not exist here."""
        self._lock = self.requests.lock = new_lock()
        # The calls that wait are the parent's.
        self._queue = WaitQueue()
        self._called, self._left = {}, []
        self._is_busy = self._breaker.paced
        if self.share is not None:
            self.share.after_fork()
        if self.limiter is not None and self._limiter_options is not None:
            self.limiter = limiter_for(self.name, *self._limiter_options)

    # --- for the registry ---

    @property
    def opens(self) -> int:
        """How often its circuit opened."""
        return self._breaker.opens


def _at_most(wait: Rejection, until: float) -> Rejection:
    """Return a rejection that ends no later."""
    return wait if wait.retry_at is None or wait.retry_at <= until else msgspec.structs.replace(wait, retry_at=until)
