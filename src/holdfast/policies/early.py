"""Early calls: whether calls may start although a learned pace would hold them back.

    early.may_start(now)                     whether a call may start before its turn
    early.started(is_early=…)                a call starts, before its turn or in turn; returns its number
    early.ended(now, number, rejected=…, …)  it was answered, or rejected because there were too many
    early.lost(now)                          its caller did not wait any longer

A rejection says that somebody's calls are too many, but not whose: the limit may be another tenant's, or the other side rejects at
random. So calls go at once until most early ones are rejected, and then, as an experiment, all wait for their turn for three seconds.
If most of those in turn are rejected too, the rejections do not depend on our load: calls go at once again, and the next experiment
comes later each time. Else calls wait, as long as those in turn are rejected less than half as often as early ones. Meanwhile one
is tried early now and then, and if such trials are accepted, nobody waits any more.

A caller may have a time limit that nobody here can see, such as `asyncio.timeout`. A call that is cancelled while it waits counts as a
rejected one. If such calls show that waiting does not help, the next experiment comes after the longest time.

Invariant: nobody is told to wait longer, at a time, than waiting has helped already, or than an experiment takes.
"""

from __future__ import annotations

NEWER = 0.1
"""The weight of the latest call in a share."""
MOST = 0.6
AGAIN = 0.3
"""If a larger share of early calls than the first is rejected, an experiment begins: after nine rejections in a row. The second one
counts after an experiment that helped, until one does not."""
EXPERIMENT_S = 3.0
MOST_IN_TURN = 0.5
"""An experiment has helped if no larger share of the calls in turn was rejected."""
HELPED_EARLY = 0.7
HELPED_IN_TURN = 0.2
FEW_IN_TURN = 5.0
"""The shares from which counting goes on then, and for how many calls in turn theirs counts: an experiment is too short for exact ones."""
LESS = 0.5
"""Waiting helps while calls in turn are rejected less than so many times as often as early ones."""
RELEASED = 0.4
"""With a smaller share of rejections among the early calls nobody waits: after six trials that were accepted in a row."""
FIRST_FREE_S = 5.0
LONGEST_FREE_S = 300.0
"""Seconds after waiting did not help until the next experiment. They double each time, until it helps for longer than `SETTLED_S`."""
SETTLED_S = 10.0
FIRST_TRIAL_S = 1.0
LONGEST_TRIAL_S = 30.0
TRIAL_GROWTH = 2.0
"""While calls wait, one is tried early after these seconds. With each rejection they grow up to the second, and otherwise they shrink again,
and the next one follows soon. Rejections before the experiment count too, so after many of them the first trial comes late."""
ANNOUNCED, MOST_ANNOUNCED, LARGEST = 0.6, 0.5, 0.9
"""Where the other side announces that it accepts no more, the share of rejections begins with the first number and never exceeds the last one,
and calls wait while it is larger than the second: until two calls were accepted all the same."""
_NEVER = float("-inf")


class _Share:
    """Which share of the latest calls was rejected. A call counts as accepted until it is rejected, which happens soon if at all."""

    __slots__ = ("_calls", "_rejected", "number")

    def __init__(self, share: float = 0.0, calls: float = 1 / NEWER) -> None:
        self._calls = calls
        self._rejected = share * calls
        self.number = 0
        """Calls so far."""

    @property
    def share(self) -> float:
        return self._rejected / self._calls if self._calls else 1.0

    def started(self) -> int:
        self.number += 1
        self._calls = self._calls * (1 - NEWER) + 1
        self._rejected *= 1 - NEWER
        return self.number

    def rejected(self, number: int) -> None:
        """The call with this number was rejected."""
        self._rejected += (1 - NEWER) ** (self.number - number)

    def is_at(self, share: float) -> None:
        """Go on as if this share had been rejected."""
        self._rejected = share * self._calls


class _Trials:
    """When calls that wait are tried early, one after the other."""

    __slots__ = ("_next", "_pause")

    def __init__(self) -> None:
        self._pause = 0.0
        self._next: float | None = None
        """When the next one is tried; None: nobody has waited yet."""

    def is_due(self, now: float) -> bool:
        """Return whether a call is tried now. If so, the next one waits for its outcome, or for a moment."""
        if self._next is None:
            self.rejected(now)
        assert self._next is not None
        if now < self._next:
            return False
        self._next = now + FIRST_TRIAL_S
        return True

    def rejected(self, now: float) -> None:
        self._pause = min(LONGEST_TRIAL_S, max(FIRST_TRIAL_S, self._pause * TRIAL_GROWTH))
        self._next = now + self._pause

    def accepted(self, now: float) -> None:
        self._pause /= TRIAL_GROWTH
        self._next = now + FIRST_TRIAL_S

    def begin(self) -> None:
        self._next = None


class EarlyCalls:
    """What becomes of calls that start before their turn, and of those in turn. It is not thread-safe: its owner holds a lock around each call."""

    __slots__ = (
        "_early",
        "_ends",
        "_first",
        "_free_s",
        "_free_until",
        "_has_helped",
        "_in_turn",
        "_is_experiment",
        "_is_of_moment",
        "_loses",
        "_trials",
        "is_held",
    )

    def __init__(self) -> None:
        self.is_held = False
        """Whether calls wait for their turn."""
        self._early, self._in_turn, self._trials = _Share(), _Share(), _Trials()
        self._first = _Share()
        """The same of first attempts alone."""
        self._is_of_moment = False
        """A retry was accepted since the last experiment that did not help."""
        self._is_experiment = False
        """Nobody knows yet whether it helps that they wait."""
        self._ends = _NEVER
        """When the latest experiment ends."""
        self._has_helped = False
        """It did the last time."""
        self._loses = False
        """Since the latest experiment began, a call was lost while it waited."""
        self._free_s = FIRST_FREE_S
        self._free_until = _NEVER
        """No experiment begins before."""

    def may_start(self, now: float, *, may_be_trial: bool = True) -> bool:
        """Return whether a call may start before its turn. If calls wait, only a trial may."""
        self._look(now)
        return not self.is_held or (now >= self._ends and may_be_trial and self._trials.is_due(now))

    def longest_wait(self, now: float) -> float:
        """Return after how many seconds a call that waits should look again whether waiting helps."""
        return max(self._ends - now, now - self._ends, FIRST_TRIAL_S)

    def started(self, *, is_early: bool) -> int:
        """A call starts, before its turn or in turn. Return its number."""
        return (self._early if is_early else self._in_turn).started()

    def first_started(self) -> int:
        """It is an early one, and the first attempt of its operation. Return its number among these."""
        return self._first.started()

    def ended(self, now: float, number: int, *, rejected: bool, is_early: bool, first: int = 0) -> None:
        """The call with this number was answered, or rejected because there were too many. `first`: its number as a first attempt."""
        if first and rejected:
            self._first.rejected(first)
        if is_early and rejected:
            self._early.rejected(number)
            self._trials.rejected(now)
        elif is_early:
            self._trials.accepted(now)
        elif rejected and number <= self._in_turn.number:
            self._in_turn.rejected(number)
        self._look(now)

    def lost(self, now: float, number: int = 0) -> None:
        """A call was cancelled that waited for its turn. `number`: its own, if it started in turn and had waited for most of its time."""
        if not self.is_held:
            return
        self._loses = True
        self._in_turn.rejected(number or self._in_turn.started())
        # Who has less time than an experiment takes is lost to it.
        self._ends = min(self._ends, now)
        self._look(now)

    def retry_accepted(self) -> None:
        """A call was accepted that was rejected before: rejections depend on the moment, and not on the call alone."""
        self._is_of_moment = True

    def _look(self, now: float) -> None:
        """Decide anew whether calls wait."""
        if not self.is_held:
            most = AGAIN if self._has_helped else MOST
            # The retries of a call that is rejected because of what it is, such as another tenant's, say nothing about the calls beside it.
            is_crowded = self._first.share > most or (self._is_of_moment and self._early.share > most)
            if is_crowded and now >= self._free_until:
                self.is_held = self._is_experiment = True
                self._ends = now + EXPERIMENT_S
                self._in_turn = _Share(calls=0.0)
                self._loses = False
                self._trials.begin()
        elif now < self._ends:
            pass
        elif self._in_turn.share > (MOST_IN_TURN if self._is_experiment else LESS * self._early.share):
            self.is_held = self._has_helped = self._is_of_moment = False
            self._free_s = LONGEST_FREE_S if self._loses else self._free_s
            self._free_until = now + self._free_s
            self._free_s = min(LONGEST_FREE_S, 2 * self._free_s)
        elif self._is_experiment:
            self._is_experiment, self._has_helped = False, True
            self._early.is_at(HELPED_EARLY)
            self._in_turn = _Share(min(HELPED_IN_TURN, self._in_turn.share), FEW_IN_TURN)
        elif self._early.share <= RELEASED:
            self.is_held = False
        else:
            if now > self._ends + SETTLED_S:
                self._free_s = FIRST_FREE_S
            if self._early.share > HELPED_EARLY:
                self._early.is_at(HELPED_EARLY)


class AnnouncedCalls:
    """What becomes of calls that the other side announced not to accept. It has the methods of `EarlyCalls`, and needs no experiment."""

    __slots__ = ("_share", "_trials")

    def __init__(self) -> None:
        self._share = ANNOUNCED
        self._trials = _Trials()

    @property
    def is_held(self) -> bool:
        """Whether calls wait for what was announced."""
        return self._share > MOST_ANNOUNCED

    def may_start(self, now: float, *, may_be_trial: bool = True) -> bool:
        """See `EarlyCalls.may_start`."""
        return not self.is_held or (may_be_trial and self._trials.is_due(now))

    def longest_wait(self, _: float) -> float:
        """What was announced is waited for."""
        return float("inf")

    def started(self, *, is_early: bool) -> int:
        """Only how it ends counts."""
        return int(is_early)

    def first_started(self) -> int:
        """Which attempt it is does not count."""
        return 0

    def retry_accepted(self) -> None:
        """It needs no experiment."""

    def ended(self, now: float, _: int, *, rejected: bool, is_early: bool, first: int = 0) -> None:  # noqa: ARG002 - as `EarlyCalls`
        """See `EarlyCalls.ended`."""
        if is_early:
            self._share = min(LARGEST, self._share + NEWER * (rejected - self._share))
            (self._trials.rejected if rejected else self._trials.accepted)(now)
