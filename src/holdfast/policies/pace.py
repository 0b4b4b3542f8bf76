"""Pacing: start calls only as fast as the other side accepts them, learned from the calls that it rejects.

    pace.limited(started, now, requested, …)   the other side rejected a call because there were too many
    pace.wait(now, ahead)                   how long a call must wait; `ahead` calls go before it
    pace.started(now)                       a call starts
    pace.accepted(started, now)             a call was answered
    pace.ended()                            a call ended in another way

Two rejections measure a limit: a bucket is empty at both, so the calls accepted between them are what it gives in that
time. From then on the pace follows TCP's CUBIC, counted in calls: soon back at what was accepted, flat around it, then ever
faster, because the limit may be gone.

A limit may also be a number of places: so many calls at the same time, however many per second. Then a rejection finds all
places taken, and each answer frees one. `Places` tries that first, because a wrong guess costs one more rejection.

Invariant: calls that were under way when the pace was cut do not cut it again. A service that rejects every call does not
cut it at all: that says nothing about how many calls it would accept, so calls only pause for longer and longer.
"""

from __future__ import annotations

from bisect import insort

BURST = 10
OPEN_PER_S = 600.0
OPEN_GROWTH = 10.0
"""Before any rejection, a burst is spread a little, so that its first calls show the limit to the others: so many calls at
once, then so many per second, and this many more per second with each call. Of a burst of 60 calls the last one starts after
0.06 s, of 1,000 after 0.3 s, of 10,000 after 0.5 s: a healthy service is hardly slower."""
FIRST_PER_S = 4.0
"""The pace after the first rejection, when nothing is known about the limit."""
SEARCH_GROWTH = 1.25
"""Until a limit is measured, each call makes the pace this much faster."""
CUT = 0.92
"""A rejection sets the pace to this share of what was accepted."""
DEEP_CUT = 0.5
"""The same if hardly a call was accepted since the last cut: the pace is far too fast."""
FEW = 3
"""Fewer calls than this between two rejections measure nothing."""
LEVEL = 8
"""Calls from a cut until the pace is what was accepted before it."""
CROWD_S = 20.0
LEVEL_S = 8.0
"""Where a call that comes now would wait longer than the first, the pace also rises with time, in the second instead of `LEVEL`
calls. At a slow pace few calls start, and a limit that has ended must not outlive its end by minutes."""
QUIET_S = 20.0
"""A longer time without a call is no part of the first measurement: the limit might have accepted many in it."""
FREE = 48
"""Calls without a rejection after which the limit is gone: the pace is then 11 times what was accepted."""
FORGET_S = 30.0
"""Where no call was rejected for so long and none waits, the pace holds nobody up, and the next burst may start at once."""
LOW_SHARE = 0.85
LOW_RISE = 0.25
LOW_PAUSE = 2.0
"""Calls of low priority leave room for others: they start at this share of the pace, raise it by this share of a call, and pause so
many times as long after a rejection. So the other side has usually saved a call when somebody comes who cannot wait."""
EVEN_CUT = 0.96
EVEN_LEVEL = 16
"""The same for a limit that saves nothing for later: one call too soon is rejected, and what was not used is lost. So the pace
stays nearer to the limit and rises more slowly."""
RECENT = 32
"""Starts of calls that are remembered."""
RATED = 10
"""So many of the latest answered calls show how many are accepted per second."""
SOON = 0.5
"""A call that starts more than this share of the time between two calls before its turn comes long before it."""
EXACT = 1.02
"""Times may be inexact by so much."""
SLOWEST_PER_S = 1 / 60
"""The pace never falls below this."""
FIRST_PAUSE_S = 1.0
PAUSE_GROWTH = 1.6
LONGEST_PAUSE_S = 5.0
"""Where no call is accepted, the pauses between two calls grow from the first to the longest."""
TRUSTED_S = 10.0
TRUSTED_SHARE = 0.25
"""The call that was rejected waits for the whole delay that the other side names. The other calls wait for this share of it,
but at least this many seconds. Then one of them finds out whether the limit still holds."""
PLACE_GAP_S = 0.05
PLACE_GAP_SHRINKS = 0.8
"""Seconds between two calls that take a place which was only guessed, and what each such call multiplies them by."""
LOOK_S = 0.01
"""A call behind others looks again after this time at the earliest: somebody ahead may wait for longer, as for an open circuit."""
FEWEST_PLACES = 3
"""With fewer calls under way, a rejection does not suggest a number of places: a slow pace looks the same."""
SAME_PLACES = 0.7
"""Once the number is known: a rejection while at least this share of the places was taken says that there are fewer. With
fewer calls under way, or while the number is a guess, it says that the limit is not a number of places."""
ROUNDS = 4
"""Times that all places must be used again before one more is tried."""
RAISES = 6
"""So many raises in a row without a rejection: the limit is gone. The first adds one place, each further one twice as many."""
USUAL_ANSWER_S = 1.0
"""How long an answer takes, before any was measured."""
NEWER = 0.2
"""The weight of the latest answer in the usual time of an answer."""


class Places:
    """How many calls the other side answers at the same time. A guess until as many calls as there are places were answered."""

    __slots__ = (
        "_answer_s",
        "_answers",
        "_gap",
        "_most",
        "_next",
        "_raises",
        "_since",
        "in_use",
        "is_known",
        "is_wrong",
    )

    def __init__(self) -> None:
        self.in_use = 0
        """Calls under way."""
        self.is_known = False
        """The guess was right."""
        self.is_wrong = False
        """The limit is not a number of places."""
        self._most = 0
        """Calls that may be under way; 0: nobody knows."""
        self._since = 0.0
        """When that was guessed."""
        self._answers = 0
        """Answers since then, or since the last change, that came while all places were in use."""
        self._raises = 0
        self._answer_s = USUAL_ANSWER_S
        self._next = float("-inf")
        self._gap = PLACE_GAP_S

    @property
    def is_guessed(self) -> bool:
        """Whether a number of places is being tried, and nobody knows yet whether it is right."""
        return self._most > 0 and not self.is_known

    @property
    def is_over(self) -> bool:
        """Whether so many more calls were answered at the same time that there is no limit to keep to."""
        return self._raises >= RAISES

    def wait(self, now: float, ahead: int) -> float:
        """Return the seconds until a call may take a place, if `ahead` calls go before it."""
        missing = self.in_use + ahead + 1 - self._most
        if missing > 0:
            return max(missing / self._most * self._answer_s, PLACE_GAP_S)
        if self.is_known:
            return 0.0
        gap = max(0.0, self._next - now) + ahead * self._gap
        return max(gap, LOOK_S) if ahead else gap

    def taken(self, now: float) -> None:
        """A call starts."""
        self.in_use += 1
        if self.is_guessed:
            self._next = now + self._gap
            self._gap *= PLACE_GAP_SHRINKS

    def freed(self) -> None:
        """A call ended."""
        self.in_use = max(0, self.in_use - 1)

    def answered(self, started: float, now: float) -> None:
        """A call that began at `started` was answered, and its place was freed."""
        self._answer_s += NEWER * (now - started - self._answer_s)
        if self.is_guessed and not self._answers:
            # The other side may free the place a little later than it sends the answer.
            self._next = max(self._next, now + PLACE_GAP_S)
        if not self._most or started < self._since or self.in_use + 1 < self._most:
            return
        self._answers += 1
        if not self.is_known:
            self.is_known = self._answers >= self._most
            self._answers = 0 if self.is_known else self._answers
        elif self._answers >= (1 if self._raises else ROUNDS) * self._most:
            self._most += 2**self._raises
            self._raises += 1
            self._answers = 0

    def rejected(self, now: float, beside: int, waiting: int, *, began_before: bool) -> bool:
        """A call was rejected, and its place was freed. Return whether this only shows that the guess was wrong.

        `beside`: the calls under way when it started. `waiting`: the calls that wait now. `began_before`: it was under way at
        an earlier rejection.
        """
        if self.is_wrong:
            return False
        # A guess may cost a rejection. That pays only where as many calls wait for a place as there would be places.
        if not self._most and not FEWEST_PLACES <= self.in_use <= waiting:
            return False
        if not self._most:
            self._most, self._since, self._next, self._gap = self.in_use, now, now, PLACE_GAP_S
        elif began_before:
            # Calls that were under way with it are rejected one after the other. The last one shows how many are left.
            self._most = max(1, min(self._most, self.in_use))
        elif beside < (SAME_PLACES if self.is_known else 1.0) * self._most:
            was_guessed, self._most, self.is_known, self.is_wrong = self.is_guessed, 0, False, True
            return was_guessed
        else:
            self._most = min(self._most, beside)
        self._answers = self._raises = 0
        return False


class Pace:
    """The learned pace of one target. It is not thread-safe: its owner holds a lock around each call."""

    __slots__ = (
        "_answered",
        "_closest",
        "_cut_at",
        "_idle",
        "_is_measured",
        "_lent",
        "_low_next",
        "_named_until",
        "_next",
        "_open_per_s",
        "_pause",
        "_paused_until",
        "_quiet",
        "_recent",
        "_rise",
        "_starts",
        "_surpassed",
        "_top",
        "_trials",
        "_waiting",
        "_widest",
        "places",
    )

    def __init__(self, *, is_limited: bool = True, before: Pace | None = None) -> None:
        """`before` is the pace whose limit is gone: a limit that was not a number of places will not become one."""
        self._open_per_s = 0.0 if is_limited else OPEN_PER_S
        """The pace before any rejection; 0 after one."""
        self._top = FIRST_PER_S
        """Calls per second that were accepted before the last cut."""
        self._is_measured = False
        self._starts = 0
        """Calls since the last cut, without those that were rejected."""
        self._rise = 0.0
        """How many of them raise the pace."""
        self._surpassed = 1
        """By how many calls the next one that does not wait raises it, if it is accepted."""
        self._trials = 0
        """Calls since the last cut that took a guessed place before the pace would have let them start."""
        self._cut_at = float("-inf")
        self._idle = 0.0
        """Seconds since the last cut in which a call might have started, and none came."""
        self._quiet = 0.0
        """Those of them that came in long stretches."""
        self._waiting = 0
        """Calls that waited when the latest one started."""
        self._lent = 0.0
        """Seconds by which a call that is not of low priority may start before `_next`."""
        self._paused_until = float("-inf")
        """Until when nobody starts, because a call was rejected."""
        self._answered: list[float] = []
        """When the latest calls started that were answered."""
        self._recent: list[float] = []
        """When the latest calls started, without those that were rejected."""
        self._closest = float("inf")
        """The shortest time between two calls that were accepted."""
        self._widest = 0.0
        """The longest time between a call and the one after it that was rejected."""
        self._next = float("-inf")
        """When the next call may start."""
        self._low_next = float("-inf")
        """When the next call of low priority may start, if that is later."""
        self._named_until = float("-inf")
        """When the last pause ends that the other side named."""
        self._pause = 0.0
        """Seconds between two calls while none is accepted; 0: they follow the pace."""
        self.places = Places()
        self.places.is_wrong = before is not None and before.places.is_wrong

    @property
    def is_open(self) -> bool:
        """Whether no limit is known: only a burst is spread."""
        return self._open_per_s > 0.0

    def per_second(self, now: float) -> float:
        """Return the calls that may start per second."""
        if self._open_per_s:
            return self._open_per_s
        if self._pause:
            return 1.0 / self._pause
        if not self._is_measured:
            return float(self._top * SEARCH_GROWTH ** min(self._rise, FREE))
        rise = (min(self._levels(now), FREE / LEVEL) - 1.0) ** 3
        return max(SLOWEST_PER_S, self._top * (1.0 + (1.0 - (EVEN_CUT if self._is_even else CUT)) * rise))

    def _levels(self, now: float) -> float:
        """Return how far the pace has risen since the last cut: at 1 it is what was accepted before, at 6 the limit is gone."""
        by_calls = self._rise / (EVEN_LEVEL if self._is_even else LEVEL)
        # Only while calls are accepted: of a quiet hour nobody learns anything.
        is_crowded = self._starts and self._waiting > CROWD_S * self._top
        return max(by_calls, (now - self._cut_at) / LEVEL_S) if is_crowded else by_calls

    @property
    def _is_even(self) -> bool:
        """Whether the limit saves nothing for later: calls were accepted only if they were further apart than rejected ones."""
        return 0.0 < self._widest < EXACT * self._closest < float("inf")

    def is_over(self, now: float) -> bool:
        """Whether so many calls were accepted in a row that there is no limit to keep to."""
        if self.places.is_known:
            return self.places.is_over
        if self._open_per_s or 2 * self.places.in_use > self._starts:
            # Most of them have no answer yet: they may still be rejected.
            return False
        return self._starts >= FEW and self._levels(now) >= FREE / LEVEL

    def is_stale(self, now: float) -> bool:
        """Whether no call was rejected for a while: if nobody waits, the pace need not be kept to."""
        return not self._open_per_s and not self.places.in_use and now - self._cut_at > FORGET_S

    def wait(self, now: float, ahead: int = 0, *, low: bool = False) -> float:
        """Return the seconds until a call may start, if `ahead` calls go before it; 0: now. `low`: its priority is low."""
        if self._open_per_s:
            return max(0.0, self._next - now + (ahead - BURST + 1) / self._open_per_s)
        # While every call is rejected, nobody knows the pace of those that follow. The last known one is the best guess.
        start = max(self._next, self._low_next) if low else max(self._next - self._lent, self._paused_until)
        wait = max(0.0, start - now + ahead / max(self.per_second(now), CUT * self._top))
        if self.places.is_known:
            return max(self.places.wait(now, ahead), self._named_until - now)
        return min(wait, self.places.wait(now, ahead)) if self.places.is_guessed else wait

    def started(self, now: float, *, low: bool = False, waiting: int = 0) -> None:
        """A call starts. `low`: its priority is low. `waiting`: how many others wait."""
        self._waiting = waiting
        if self._open_per_s and self._next > now + (BURST - 1.5) / self._open_per_s:
            self._open_per_s += OPEN_GROWTH
        self._recent = [*self._recent[1 - RECENT :], now]
        takes_guessed_place = self.places.is_guessed and now < self._next
        if now > self._next > self._cut_at:
            idle = now - max(self._next, self._cut_at)
            self._idle += idle
            self._quiet += idle if idle > QUIET_S else 0.0
        gap = 1.0 / self.per_second(now)
        self._next = max(now, self._next) + gap
        self._low_next = max(now, self._low_next) + (gap / LOW_SHARE if low else gap)
        # After a call that could wait, one that cannot need not wait: the limit saves a little for later.
        self._lent = gap if low and not self._is_even else 0.0
        if takes_guessed_place:
            # The pace alone would not have let it start, so it must not make the pace faster.
            self._trials += 1
        else:
            self._starts += 1
            self._rise += LOW_RISE if low and self._rise >= LEVEL else 1.0
        self.places.taken(now)

    def started_before(self, started: float) -> None:
        """A call is under way that started before there was this pace. It takes nobody's turn, so the next one starts no later."""
        self._recent = [*self._recent[1 - RECENT :], started]
        self._starts += 1
        self._rise += 1.0
        self.places.taken(started)

    def accepted(self, started: float, now: float) -> None:
        """A call that began at `started` was answered, so not every call is rejected."""
        self._pause = 0.0
        insort(self._answered, started)
        del self._answered[:-RATED]
        if (gap := self._gap_before(started)) is not None:
            self._closest = min(self._closest, gap)
        self.places.freed()
        self.places.answered(started, now)

    def ended(self) -> None:
        """A call ended in another way: it failed, or its caller stopped it."""
        self.places.freed()

    def limited(self, started: float, now: float, requested: float | None, beside: int = 0, waiting: int = 0) -> None:
        """The other side rejected a call that began at `started`; `requested` is the pause it named.

        `beside`: how many calls were under way when it began. `waiting`: how many wait now.
        """
        began_before = started < self._cut_at
        self.places.freed()
        if requested is None:
            if self.places.rejected(now, beside, waiting, began_before=began_before):
                # As in `started`: this call does not show that the pace is too fast. The other trials were accepted.
                began_before = True
                self._starts += self._trials
                self._rise += self._trials
        else:
            self._named_until = max(self._named_until, now + _trusted(requested))
        if self._open_per_s:
            self._open_per_s, self._starts, self._rise = 0.0, 0, 0.0
        self._starts, self._rise = max(0, self._starts - 1), max(0.0, self._rise - 1)
        if (gap := self._gap_before(started)) is not None:
            self._widest = max(self._widest, gap)
        if started in self._recent:
            self._recent.remove(started)
        if not began_before:
            self._cut(now)
        pause = 1.0 / self.per_second(now) if requested is None else _trusted(requested)
        self._next = self._paused_until = max(self._next, now + pause) if began_before else now + pause
        self._low_next = max(self._low_next, now + LOW_PAUSE * pause)

    def _gap_before(self, started: float) -> float | None:
        """Return the seconds from the start of the call before, if that is known."""
        # Of several calls that started at once, one is the first. The others have a call before them.
        before = [start for start in self._recent if start <= started]
        return started - before[-2] if len(before) > 1 and before[-1] == started else None

    def is_soon(self, now: float) -> bool:
        """Whether a call now would come long before its turn, whoever else waits: a pace may be a little too slow."""
        if self.places.is_known:
            return self.places.wait(now, 0) > 0
        return now < self._next - SOON / self.per_second(now)

    def follow_answers(self, now: float) -> None:
        """Calls begin to wait for their turn: set the pace to that at which the latest ones were accepted."""
        measured = self._answered_per_s()
        if self._open_per_s or self.places.is_known or not measured:
            return
        self._top, self._is_measured, self._pause = max(SLOWEST_PER_S, measured), True, 0.0
        self._begin_level(now)
        self._next = self._paused_until = now + 1.0 / self.per_second(now)

    def _answered_per_s(self) -> float:
        """Return how many of the latest calls were accepted per second; 0: nobody knows."""
        latest = self._answered
        if len(latest) < FEW or latest[-1] <= latest[0]:
            return 0.0
        measured = (len(latest) - 1) / (latest[-1] - latest[0])
        return measured if self._is_measured or measured <= FIRST_PER_S else 0.0

    def started_early(self, now: float, *, alone: bool) -> None:
        """A call starts before its turn. It takes nobody's turn, but those who wait follow at a distance if it is `alone`."""
        if alone:
            self._next = max(self._next, now + 1.0 / self.per_second(now))
        self._recent = [*self._recent[1 - RECENT :], now]
        self.places.taken(now)

    def came_too_soon(self, started: float) -> None:
        """A call was rejected that did not wait for the pace."""
        self._surpassed = 1
        if started in self._recent:
            self._recent.remove(started)
        self.ended()

    def surpassed(self, started: float, now: float) -> None:
        """A call was accepted that did not wait for the pace: the more of these in a row, the likelier the pace is too slow."""
        if not self._open_per_s:
            self._next = max(self._next, started + 1.0 / self.per_second(now))
            self._starts += 1
        self._rise += self._surpassed
        self._surpassed = min(2 * self._surpassed, LEVEL)

    def _cut(self, now: float) -> None:
        accepted, took = self._starts, now - self._cut_at
        if accepted and took == float("inf"):
            # The first rejection. Nobody knows since when the calls before it were counted by the other side.
            self._top = FIRST_PER_S
        elif not accepted:
            self._pause = min(LONGEST_PAUSE_S, max(FIRST_PAUSE_S, self._pause * PAUSE_GROWTH))
        elif accepted < FEW or took <= 0.0:
            self._top = max(SLOWEST_PER_S, self.per_second(now) * DEEP_CUT / CUT, self._answered_per_s())
            self._is_measured = True
        else:
            if not self._is_measured:
                took = max(took - self._quiet, min(took, accepted / FIRST_PER_S))
            self._measure(accepted / took)
        if self._is_even and self._is_measured:
            # It accepted calls that were no further apart.
            self._top = 1.0 / self._closest
        self._begin_level(now)

    def _begin_level(self, now: float) -> None:
        """The pace was set anew: it rises from here."""
        self._starts = self._trials = 0
        self._rise, self._surpassed = 0.0, 1
        self._idle = self._quiet = 0.0
        self._cut_at = now

    def _measure(self, per_s: float) -> None:
        """Learn from the calls per second that were accepted between two rejections."""
        measured = max(SLOWEST_PER_S, per_s)
        if self._is_measured and self._idle > 0.0 and measured < self._top:
            # Nobody called for a while: that so few were accepted says nothing about the limit.
            return
        # The mean of two measurements: one alone is off by the calls that were under way.
        self._top = (self._top + measured) / 2 if self._is_measured else measured
        self._is_measured = True


def _trusted(requested: float) -> float:
    return min(requested, max(TRUSTED_S, TRUSTED_SHARE * requested))
