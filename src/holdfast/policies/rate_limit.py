"""The rate limit: how many calls start per second (GCRA), and pacing by the limits that a service announces.

Invariant: any `t` seconds hold at most `per_second x t + burst` starts that were reserved and not given back. Giving a
reservation back never lets two other calls start closer together.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, TypeAlias

from holdfast import options
from holdfast.policies.queue import SHARES

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.policies.queue import Priority

__all__ = ["Rank", "RateLimit", "RateLimitMachine", "StartQueue"]

Rank: TypeAlias = tuple[int, int]
"""The place of a call among those that wait for a start: the smallest goes first."""

_INFINITY = float("inf")
# Callers compute a start as time plus wait. Two such sums that differ by less than this are the same reservation.
_SAME = 1e-6
_NUMBERS = count()


class RateLimit(options.Options, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """How many calls to one target may start per second; further calls wait."""

    per_second: float
    """Starts per second in the long run. 0.5 is one start every two seconds."""
    burst: int = 1
    """Starts at the same time after a quiet period."""

    def __post_init__(self) -> None:
        options.above_zero("rate_limit.per_second", self.per_second)
        options.count("rate_limit.burst", self.burst)


class RateLimitMachine:
    """The state of one limit. Without a `RateLimit` it only follows the announcements passed to `learn`."""

    __slots__ = ("_ahead", "_before", "_free", "_interval", "_last", "_left", "_next", "_pace", "_period", "_until")

    def __init__(self, limit: RateLimit | None = None) -> None:
        self._interval = 0.0
        # How long before its even time a call may start. GCRA calls it the tolerance.
        self._ahead = 0.0
        if limit is not None:
            self.change(limit)
        # The even time of the next call. GCRA calls it the theoretical arrival time.
        self._next = -_INFINITY
        # When the latest reservation starts.
        self._last = -_INFINITY
        # The value of `_next` before the latest reservation, to undo it.
        self._before = -_INFINITY
        # A heap of starts that were reserved and given back.
        self._free: list[float] = []
        # When the announced limit resets.
        self._until = -_INFINITY
        # Calls that the service still accepts before the reset.
        self._left = 0
        # The longest announced time to a reset, in seconds.
        self._period = 0.0
        # Seconds between the calls that wait for the reset.
        self._pace = 0.0

    def change(self, limit: RateLimit, waiting: int = 0) -> None:
        """Follow another limit. The last `waiting` reservations are forgotten: their callers reserve again, in order."""
        before, self._interval = self._interval, 1.0 / limit.per_second
        self._ahead = (limit.burst - 1) * self._interval
        if waiting:
            # The next call comes one new interval after the last one that has started.
            self._next += self._interval - before * (waiting + 1)
            self._last, self._free = -_INFINITY, []

    def reserve(self, now: float) -> float:
        """Reserve the next start and return the seconds to wait for it; 0: start now.

        A caller that does not start after all must call `cancel(now + wait)`.
        """
        interval = self._obey() if now < self._until else self._interval
        if self._free and (start := self._take_free(now)) is not None:
            return start - now
        even = self._before = self._next
        if even <= now:
            # No call is due before this one, so it starts now.
            self._next = now + interval
            self._last = now
            return 0.0
        self._next = even + interval
        self._last = max(even - self._ahead, now)
        return self._last - now

    def peek(self, now: float) -> float:
        """Return the wait that `reserve` would return, without a reservation."""
        held = now < self._until and self._left <= 0
        earliest = self._until if held else now
        free = min((start for start in self._free if start >= earliest), default=_INFINITY)
        return min(max(self._next - self._ahead, earliest), free) - now

    def cancel(self, start: float) -> None:
        """Give back the reservation that was to start at `start`."""
        if start < self._until:
            self._left += 1
        if abs(start - self._last) <= _SAME:
            # It is the latest reservation, so it can be undone.
            self._next = self._before
            self._last = -_INFINITY
        else:
            # Later reservations exist, so this one cannot be undone. Another call may only start at exactly this time:
            # so it keeps its distance from the calls before and after it.
            heappush(self._free, start)

    def learn(self, limit: float | None, remaining: float | None, reset: float | None, now: float) -> None:
        """Follow an announced limit: `remaining` of `limit` calls until the reset in `reset` seconds.

        The remaining calls may start at our own rate. Further calls wait for the reset and then start one by one. Values that
        make no sense are ignored, because any server can send any header. Reservations that exist keep their starts.
        """
        # NaN fails both comparisons, so it is ignored too.
        if remaining is None or reset is None or not (0 <= remaining < _INFINITY and 0 < reset < _INFINITY):
            return
        self._left = int(remaining)
        self._until = now + reset
        # Services do not announce how long their window is. The longest time to a reset comes close to it.
        self._period = max(self._period, reset)
        if limit is not None and 1 <= limit < _INFINITY:
            self._pace = self._period / limit

    def _obey(self) -> float:
        """Take one of the remaining calls, or move behind the reset. Return the seconds between this call and the next."""
        if self._left > 0:
            self._left -= 1
            return self._interval
        self._next = max(self._next, self._until + self._ahead)
        while self._free and self._free[0] < self._until:
            heappop(self._free)
        return max(self._interval, self._pace)

    def _take_free(self, now: float) -> float | None:
        """Return the soonest start that was given back and has not passed; None: there is none."""
        while self._free:
            start = heappop(self._free)
            if start >= now:
                return start
        return None


class StartQueue:
    """Which waiting call has which reserved start. A call of a higher priority takes the starts of those behind it.

    Invariant: unless the limit changes or a call gives its start back, a start only ever moves to a later time, so that nobody has to be
    woken early: a call that wakes up looks whether its start has moved, and sleeps on.
    """

    __slots__ = ("_last", "_lines", "_moved_up", "_reached", "_starts")

    def __init__(self) -> None:
        self._starts: dict[Rank, float] = {}
        self._last: Rank | None = None
        """No waiting call has a later turn."""
        self._lines: dict[Priority, int] = {}
        """For each priority, the latest turn."""
        self._reached = 0
        """The turn of the latest call that started."""
        self._moved_up = False
        """Starts have moved to an earlier time, and their calls may sleep too long."""

    def turn(self, priority: Priority) -> Rank:
        """Return the turn of a call that comes now: the priorities share the starts as in a `WaitQueue`."""
        turn = self._lines[priority] = max(self._reached, self._lines.get(priority, 0)) + SHARES[priority]
        return turn, next(_NUMBERS)

    def join(self, turn: Rank, start: float) -> float:
        """A call with this turn has reserved a start and waits; return the start that it gets."""
        if self._last is None or turn > self._last:
            # It comes last, as nearly every call does.
            self._last = turn
            self._starts[turn] = start
            return start
        late, mover = start, turn
        # Each call takes the start of the next one behind it, and the last of them takes the new start.
        for own, other in sorted((own, other) for other, own in self._starts.items()):
            if other > mover and own < late:
                self._starts[mover], mover = own, other
        self._starts[mover] = late
        return self._starts[turn]

    def __len__(self) -> int:
        return len(self._starts)

    def reassign(self, start: Callable[[], float]) -> None:
        """The limit has changed: give each waiting call, in order, the start that `start` returns. Wake all of them."""
        for _, turn in sorted((own, turn) for turn, own in self._starts.items()):
            self._starts[turn] = start()

    def free(self, turn: Rank) -> None:
        """Let a call start now, whatever the limit is. Wake it."""
        if turn in self._starts:
            self._starts[turn] = -_INFINITY

    def start_of(self, turn: Rank) -> float:
        """Return the start that a waiting call has now."""
        return self._starts[turn]

    def leave(self, turn: Rank) -> None:
        """The call starts."""
        self._reached = max(self._reached, turn[0])
        self._starts.pop(turn, None)
        self._check_empty()

    def give_back(self, turn: Rank) -> float | None:
        """The call does not start: each one behind it gets the start of the one before. Return the start that nobody has now.

        None: it has not waited.
        """
        free = self._starts.pop(turn, None)
        if free is None:
            return None
        for own, other in sorted((own, other) for other, own in self._starts.items()):
            if other > turn and own > free:
                self._starts[other], free = free, own
                self._moved_up = True
        self._check_empty()
        return free

    @property
    def next_to_wake(self) -> Rank | None:
        """The call that starts next, if it may sleep too long; None: nobody does. Each one that starts is asked for the next."""
        return min(self._starts, key=self._starts.__getitem__) if self._moved_up else None

    def _check_empty(self) -> None:
        if not self._starts:
            self._last, self._moved_up = None, False
