"""Traces: what a service does through time, as data. Each is played by the fault provider as one script of windows.

Invariant: what a request meets depends on when it comes and on nothing else. So no contender's requests change what
another's, or its own next one, will meet, and the best that anybody could do can be computed.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.testing.provider import Script

GOOD_ANSWER_S = 1.0
GOOD = f"slow;seconds={GOOD_ANSWER_S:g}"
"""A good answer, as long as a short one of a model takes."""
CHARGED = ("cut", "hang")
"""Failures that a provider charges for: it had read the question and written an answer."""
_LULL_S = 5.0
"""A service that was down for less than this did not return: it was never away."""


class Window(NamedTuple):
    since: float
    until: float
    step: str
    """A step of the fault provider's scripts."""


class Trace(NamedTuple):
    name: str
    seconds: float
    """How long calls are made; beyond it all is well."""
    windows: tuple[Window, ...]
    """When it fails and how, in order."""
    returns: tuple[float, ...]
    """When the service came back."""

    def next_good(self, at: float) -> float:
        """Return the first moment from `at` on at which a request is answered well."""
        place = max(0, bisect_right(self.windows, at, key=lambda window: window.since) - 1)
        for window in self.windows[place:]:
            if window.since <= at < window.until:
                at = window.until
            elif window.since > at:
                break
        return at

    def script(self) -> Script:
        from holdfast.testing.provider import Rule, Script

        failing = [Rule(steps=step, loop=True, since=since, until=until) for since, until, step in self.windows]
        return Script(rules=(*failing, Rule(steps=GOOD, loop=True)))


def _trace(name: str, seconds: float, windows: Iterable[Window]) -> Trace:
    ordered = tuple(sorted(windows))
    return Trace(name, seconds, ordered, _returns(ordered))


def _returns(windows: tuple[Window, ...]) -> tuple[float, ...]:
    """Return the ends of the stretches in which a service failed for long, lulls within them left out."""
    ends: list[float] = []
    began = until = -_LULL_S
    for window in windows:
        if window.since - until >= _LULL_S:
            if until - began >= _LULL_S:
                ends.append(until)
            began = window.since
        until = window.until
    return (*ends, until) if until - began >= _LULL_S else tuple(ends)


def limited(since: int, until: int) -> list[Window]:
    """A rate limit that tells, second by second, when it will be over."""
    return [Window(at, at + 1, f"429;retry-after={until - at}") for at in range(since, until)]


def now_and_then(since: int, until: int, share: float, step: str, seed: int) -> list[Window]:
    """Single bad seconds, this share of all."""
    rng = random.Random(seed)
    return [Window(at, at + 1, step) for at in range(since, until) if rng.random() < share]


def flapping(since: int, until: int, each: int, step: str) -> list[Window]:
    return [Window(at, at + each, step) for at in range(since, until, 2 * each)]


def _mixed(seed: int) -> list[Window]:
    """An hour with a bit of everything, single bad seconds in between."""
    incidents = [
        *limited(300, 320),
        Window(500, 530, "429"),
        *now_and_then(800, 920, 0.5, "overloaded", seed),
        *now_and_then(1200, 1320, 0.3, "cut", seed + 1),
        Window(1500, 1560, "503"),
        *flapping(1800, 1980, 10, "disconnect"),
        Window(2280, 2300, "hang"),
        Window(2580, 2880, "502"),
        *limited(3180, 3190),
    ]
    quiet = [
        window
        for window in now_and_then(10, 3500, 0.01, "500", seed + 2)
        if not any(taken.since - 2 * _LULL_S <= window.since <= taken.until + 2 * _LULL_S for taken in incidents)
    ]
    return [*incidents, *quiet]


def traces(seed: int = 7) -> dict[str, Trace]:
    made = [
        _trace("rate limit of 20 s, delay named", 120, limited(20, 40)),
        _trace("rate limit of 30 s, no delay named", 120, [Window(20, 50, "429")]),
        _trace("overload, every other second", 240, now_and_then(30, 150, 0.5, "overloaded", seed)),
        _trace("outage of 60 s", 240, [Window(30, 90, "503")]),
        _trace("outage of 10 min", 900, [Window(60, 660, "503")]),
        _trace("flapping, 10 s down, 10 s up", 300, flapping(30, 210, 10, "disconnect")),
        _trace("cut answers, one second in three", 180, now_and_then(20, 140, 0.33, "cut", seed)),
        _trace("hang of 20 s", 240, [Window(30, 50, "hang")]),
        _trace("one hour of all of these", 3600, _mixed(seed)),
    ]
    return {trace.name: trace for trace in made}
