"""The allowance: what a service says it still accepts, in requests and in tokens, by the headers of its answers.

    allowance.learn(limits, since, now)   an answer announces the limits; its call started at `since`
    allowance.wait(now, ahead)            how long a call must wait; `ahead` calls go before it
    allowance.started(now)                a call starts
    allowance.used(tokens)                an answer reports what its call took

An announcement names what remains and the seconds until all of it is back. It is as old as its call: the calls that started
later are not in it. Two announcements show how it comes back. If less remains and the time is longer, it flows back evenly,
and the two differences are its rate, as with OpenAI and Anthropic. If less remains and the time is shorter, all of it comes
back when the time is over. How many tokens a call takes is estimated by what is missing after the calls before it, and by the
usage that their answers report.

Invariant: no call starts that the service would reject by what it announced. A service that announces what is not so is not
believed for long: nothing waits longer than `trusted` seconds for it, and after `LIES` contradictions nothing waits at all.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.classify.hints import AnnouncedLimit, AnnouncedLimits

TRUSTED_S = 60.0
TRUSTED_SHARE = 0.25
"""Where nothing remains, one call finds out whether that still holds, after this share of the announced time, but not before
so many seconds."""
FIRST_TRUST_S = 0.5
LIES = 2
"""So many announcements in a row that nothing remains, of calls that waited for all of it to be back, are not believed."""
LOOK_S = 1.0
"""Where all of it has been used since it came back and no answer has announced anything yet: seconds until the next look."""
FALL, RISE = 0.3, 0.1
"""How fast the usual tokens of a call follow the latest ones. They rise slowly: other programs with the same key use tokens,
too, and these must not count as ours."""
RATE_RISE = 0.02
"""How fast the rate rises to the latest measurement. It falls at once: what remains is announced in whole numbers, and so a
measurement is the rate or more."""
SURE_FOR = 0.99
CLOSE = 0.7
"""A measurement of the rate counts if its times differ at least by this share of the longest difference so far. What is
remembered of that shrinks with each announcement."""
SPARE = 1.1
"""A call starts when so many times its usual tokens are left, because it may take a little more."""
MOST_STARTS = 10_000
"""Calls that are remembered while no answer announces anything."""
_SURE_S = 1.0
"""Announced times are often whole seconds. A difference within a shorter time shows nothing."""
_ROUNDING = 1e-6
_INFINITY = float("inf")


class Allowance:
    """What one key may still use of one model. It is not thread-safe: its owner holds a lock around each call."""

    __slots__ = ("_buckets",)

    def __init__(self) -> None:
        self._buckets: dict[str, _Bucket] = {}

    def learn(self, limits: AnnouncedLimits, since: float, now: float, *, accepted: bool = True) -> None:
        """An answer announced these limits. Its call started at `since`, and was accepted or rejected."""
        others = 0.0
        for kind, announced in (("requests", limits.requests), ("tokens", limits.tokens)):
            if announced is not None:
                if kind not in self._buckets:
                    self._buckets[kind] = _Bucket(units_differ=kind == "tokens")
                # The requests come first: they show whether other programs use the key.
                others = self._buckets[kind].learn(announced, since, now, accepted=accepted, others=others)

    @property
    def known_at(self) -> float:
        """When the call started that brought the latest announcement."""
        return max((bucket.known_at for bucket in self._buckets.values()), default=-_INFINITY)

    def wait(self, now: float, ahead: int = 0) -> float:
        """Return the seconds until a call may start, if `ahead` calls go before it; 0: now. The tighter limit decides."""
        return max((bucket.wait(now, ahead) for bucket in self._buckets.values()), default=0.0)

    def started(self, now: float) -> None:
        """A call starts."""
        for bucket in self._buckets.values():
            bucket.started(now)

    def used(self, tokens: int) -> None:
        """An answer reports how many tokens its call took."""
        bucket = self._buckets.get("tokens")
        if bucket is not None:
            bucket.used(float(tokens))


class _Bucket:
    """What remains of one limit."""

    __slots__ = (
        "_back_at",
        "_empty_since",
        "_evenly",
        "_fullest",
        "_is_believed",
        "_last_start",
        "_left",
        "_left_at",
        "_lies",
        "_limit",
        "_missing",
        "_most",
        "_period",
        "_rate",
        "_remaining",
        "_reported",
        "_reset",
        "_spent",
        "_starts",
        "_sure",
        "_trust",
        "_unit",
        "_units_differ",
        "known_at",
    )

    def __init__(self, *, units_differ: bool) -> None:
        self._units_differ = units_differ
        self._unit = 1.0
        """What a call takes. Until it is known for tokens, a call is held back only if none is left."""
        self._trust = FIRST_TRUST_S
        """Seconds after which one call finds out whether nothing remains indeed. Each rejection doubles them."""
        self._is_believed = False
        """It has announced that something remains, or a call was rejected: so it is a limit."""
        self._missing, self._reported = _Usual(), _Usual()
        """What calls took, by what is missing after them, and by what their answers report. The larger one counts: services
        may count tokens that are not in the report, and announced times that are rounded hide what is missing."""
        self.known_at = -_INFINITY
        """When the call started that brought the latest announcement."""
        self._empty_since = _INFINITY
        """When the first call started of those in a row that announced that nothing remains."""
        self._remaining = self._reset = 0.0
        """That announcement."""
        self._limit: float | None = None
        self._fullest = (-1.0, 0.0)
        """The announcement with the most remaining, and the seconds until all of it was back."""
        self._most = 0.0
        """How much it holds, as far as anybody saw."""
        self._left = self._left_at = 0.0
        """What is left for further calls, and when that was computed."""
        self._back_at = _INFINITY
        """When all of it is back."""
        self._period = 0.0
        """The longest announced time until then."""
        self._evenly: bool | None = None
        """It flows back evenly; False: all of it comes back at once; None: nobody knows."""
        self._rate = 0.0
        """How much flows back per second; 0: nobody knows."""
        self._sure = 0.0
        """The longest difference of announced times that it was measured by."""
        self._starts: deque[tuple[float, float]] = deque()
        """When calls started that are not in the latest announcement, and what each of them takes."""
        self._spent = 0.0
        """The sum of what they take."""
        self._last_start = -_INFINITY
        self._lies = 0

    # --- calls ---

    def wait(self, now: float, ahead: int) -> float:
        if self._lies >= LIES or not self._is_believed:
            return 0.0
        self._refill(now)
        # A call that takes more than there ever is must not wait for ever.
        needed = self._unit * (SPARE if self._units_differ else 1.0)
        missing = min(needed, self._most) + ahead * self._unit - self._left
        if missing <= _ROUNDING:
            return 0.0
        wait = missing / self._rate if self._rate else max(self._back_at - now, LOOK_S)
        if ahead:
            return wait
        trusted = max(self._last_start, self.known_at) + min(self._trust, max(TRUSTED_S, TRUSTED_SHARE * self._reset))
        return min(wait, max(0.0, trusted - now))

    def started(self, now: float) -> None:
        self._refill(now)
        self._left -= self._unit
        self._spent += self._unit
        self._starts.append((now, self._unit))
        self._last_start = now
        if len(self._starts) > MOST_STARTS:
            self._spent -= self._starts.popleft()[1]

    def _refill(self, now: float) -> None:
        if self._rate:
            self._left = min(self._most, self._left + self._rate * (now - self._left_at))
        elif now >= self._back_at:
            self._left = self._limit if self._limit is not None and self._evenly is False else self._most
            self._back_at = now + self._period
        self._left_at = now

    # --- announcements ---

    def learn(
        self, announced: AnnouncedLimit, since: float, now: float, *, accepted: bool, others: float = 0.0
    ) -> float:
        """Take over an announcement; return how many calls of other programs it shows, if it counts calls.

        `others`: what the announcement of the requests has shown.
        """
        remaining, reset = announced.remaining, announced.reset
        self._learn_return(remaining, reset, since)
        is_lie = accepted and not remaining and self._empty_since < since < self._back_at and not self._rate
        if since < self.known_at or (since == self.known_at and remaining > self._remaining):
            # An older one: answers do not come back in the order of their calls.
            if is_lie:
                self._trust = FIRST_TRUST_S
            return 0.0
        is_first = self.known_at == -_INFINITY
        # Some announce from the first answer on that nothing remains, and accept the next call all the same.
        self._is_believed = not is_lie and (self._is_believed or remaining > 0 or not accepted)
        if remaining > 0:
            # It counts down, as a limit does.
            self._trust = _INFINITY
        elif is_lie:
            self._trust = FIRST_TRUST_S
        elif not accepted:
            # A call that came sooner than the last look shows nothing about a later one.
            self._trust = max(self._trust, min(2 * self._trust, 2 * (since - self.known_at)))
        if remaining > 0:
            self._lies = 0
        elif since >= self.known_at + self._reset and announced.limit != 1 and not is_first:
            self._lies += 1
        # A call that was rejected took nothing.
        calls = self._forget_starts(since) - (not accepted)
        if is_first:
            others = 0.0
        elif self._units_differ and calls > 0:
            self._learn_unit(self._missing_at(remaining, since), calls, others)
        else:
            others = max(0.0, self._missing_at(remaining, since) - calls)
        self._limit, self._most = announced.limit, max(self._most, remaining + self._unit)
        self.known_at, self._remaining, self._reset = since, remaining, reset
        self._empty_since = _INFINITY if remaining else min(self._empty_since, since)
        self._period, self._back_at = max(self._period, reset), since + reset
        self._left = min(self._most, remaining + self._rate * (now - since)) - self._spent
        self._left_at = now
        return others

    def _missing_at(self, remaining: float, since: float) -> float:
        """Return what was taken since the announcement before."""
        return min(self._most, self._remaining + self._rate * (since - self.known_at)) - remaining

    def _forget_starts(self, since: float) -> int:
        """Forget the calls that are in the announcement of the call that started at `since`; return how many."""
        calls, starts = 0, self._starts
        while starts and starts[0][0] <= since:
            self._spent -= starts.popleft()[1]
            calls += 1
        if not starts:
            # Sums of floats drift.
            self._spent = 0.0
        return calls

    def _learn_return(self, remaining: float, reset: float, since: float) -> None:
        """Learn how it comes back. That shows in any announcement, however old."""
        passed = since - self.known_at
        if passed > 0 and remaining < self._remaining:
            if reset > self._reset:
                self._evenly = True
            elif passed >= _SURE_S and self._reset - reset >= passed / 2:
                self._evenly, self._rate, self._fullest = False, 0.0, (-1.0, 0.0)
        most, then = self._fullest
        if remaining >= most:
            self._fullest = (remaining, reset)
        elif reset > then and self._evenly is not False:
            self._evenly = True
            self._learn_rate((most - remaining) / (reset - then), reset - then)

    def _learn_rate(self, rate: float, seconds: float) -> None:
        # The longer the difference, the less roundings matter.
        self._sure *= SURE_FOR
        if seconds < CLOSE * self._sure:
            return
        self._sure = max(self._sure, seconds)
        is_lower = not self._rate or rate < self._rate
        self._rate = rate if is_lower else self._rate + RATE_RISE * (rate - self._rate)

    def _learn_unit(self, missing: float, calls: int, others: float) -> None:
        """Learn what a call takes, from what is missing since the announcement before, and how many calls took it."""
        if others >= 1.0 and self._reported.count:
            # What other programs have taken is in it. The answers say what our own calls take.
            return
        took = missing / (calls + others)
        if took > 0:
            self._missing.add(took)
            self._unit = max(self._missing.amount, self._reported.amount)

    def used(self, took: float) -> None:
        self._reported.add(took)
        self._unit = max(self._missing.amount, self._reported.amount)


class _Usual:
    """What a call usually takes, as a mean that forgets."""

    __slots__ = ("amount", "count")

    def __init__(self) -> None:
        self.amount = 1.0
        self.count = 0

    def add(self, took: float) -> None:
        self.count += 1
        share = max(1 / self.count, FALL if took < self.amount else RISE)
        self.amount += share * (took - self.amount)
