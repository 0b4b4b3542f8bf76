"""Traces: when calls are due, and what the service does through time, as data drawn from a seed. The fault provider plays them.

Invariant: without `limits`, what a request meets depends on when it comes and on the call that it belongs to, and on nothing else. So
no contender's requests change what another's, or its own next one, will meet, and the best that anybody could do can be computed. In
most kinds all calls are alike, and only the moment counts; in the mixed kinds calls differ (`Asked`). With `limits` it depends on the
contender's own requests, too; then the best is a schedule on the limit's bucket (`clairvoyant.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from math import inf, log
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from holdfast.testing.provider import Limit, Rule, Script

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

GOOD_ANSWER_S = 1.0
_SLOW = "slow"
GOOD = f"{_SLOW};seconds={GOOD_ANSWER_S:g}"
"""A good answer, as long as a short one of a model takes."""
CHARGED = ("cut", "hang")
"""Failures that a provider charges for: it had read the question and written an answer."""
TOKENS = 331
"""Of one call, question and answer, as the fault provider counts them."""
CALLERS = 20
EVERY_S = 30.0
_LULL_S = 5.0
"""A service that was down for less than this did not return: it was never away."""
_HOUR = 3600.0
_DAY = 24 * _HOUR
_DOWN = ("503", "overloaded", "500", "disconnect")
"""How a service that does not answer may fail."""


class Window(NamedTuple):
    since: float
    until: float
    step: str
    """A step of the fault provider's scripts."""
    model: str = ""
    """The model that fails; empty: all of them."""
    cuts: bool = False
    """Whether answers that are under way at its beginning are cut."""


class Asked(NamedTuple):
    """What one call asks for, and how. It is the same for all its requests."""

    answer_s: float = GOOD_ANSWER_S
    """Seconds that a good answer takes."""
    model: str = ""
    """Its model; empty: the one of all calls."""
    poison: str = ""
    """A step that each of its requests meets, whatever the moment; empty: it meets what its moment brings."""
    limit_s: float = inf
    """The time limit of its caller for one request."""

    @property
    def is_hopeless(self) -> bool:
        """Whether no request of it can be answered, at any time."""
        return bool(self.poison) or self.answer_s >= self.limit_s


ALIKE = Asked()


class Met(NamedTuple):
    """What a request meets."""

    step: str
    """A step of the fault provider's scripts."""
    cut_after: float | None = None
    """The connection is closed after so many seconds instead."""


class Trace(NamedTuple):
    name: str
    seconds: float
    """Until when an unanswered call is counted. Beyond it all is well."""
    windows: tuple[Window, ...]
    """When it fails and how, in order."""
    returns: tuple[float, ...]
    """When the service came back."""
    due: tuple[float, ...] = (0.0,)
    """When calls are due, whatever became of those before."""
    limits: tuple[Limit, ...] = ()
    """Limits that depend on the contender's own load."""
    asked: tuple[Asked, ...] = ()
    """What the calls ask for, in the order of `due`; empty: all are alike."""

    def call(self, place: int) -> Asked:
        """Return what the call at this place of `due` asks for."""
        return self.asked[place] if self.asked else ALIKE

    def window_at(self, at: float, asked: Asked = ALIKE) -> Window | None:
        """Return the window in which a request at this moment fails, or None if it is answered."""
        if self.asked:
            # Windows of several models overlap. A mixed trace has few of them.
            return next((window for window in self._of(asked) if window.since <= at < window.until), None)
        place = bisect_right(self.windows, at, key=_since) - 1
        return self.windows[place] if place >= 0 and at < self.windows[place].until else None

    def next_good(self, at: float, asked: Asked = ALIKE) -> float:
        """Return the first moment from `at` on at which a request is answered well; infinity: never."""
        if asked.is_hopeless:
            return inf
        while (window := self.window_at(at, asked) or self._cuts(at, asked)) is not None:
            at = window.until
        return at

    def meets(self, at: float, asked: Asked = ALIKE) -> Met:
        """Return what a request of this call meets at this moment."""
        if asked.poison:
            return Met(asked.poison)
        if (window := self.window_at(at, asked)) is not None:
            return Met(window.step)
        cut = self._cuts(at, asked)
        return Met(f"{_SLOW};seconds={asked.answer_s:g}", None if cut is None else cut.since - at)

    def _of(self, asked: Asked) -> Iterable[Window]:
        return (window for window in self.windows if window.model in ("", asked.model))

    def _cuts(self, at: float, asked: Asked) -> Window | None:
        """Return the window that cuts the answer to a request of this moment."""
        if not self.asked:
            return None
        return next((window for window in self._of(asked) if window.cuts and at < window.since < at + asked.answer_s), None)  # fmt: skip

    def script(self) -> Script:
        """Return the trace as a script of the fault provider, if all calls are alike."""
        failing = [Rule(steps=step, loop=True, since=since, until=until) for since, until, step, *_ in self.windows]
        return Script(rules=(*failing, Rule(steps=GOOD, loop=True)), limits=self.limits)


def _since(window: Window) -> float:
    return window.since


def _trace(name: str, seconds: float, windows: Iterable[Window], due: Sequence[float]) -> Trace:
    ordered = tuple(sorted(windows))
    return Trace(name, seconds, ordered, _returns(ordered), tuple(due))


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


def arrivals(rng: Random, seconds: float, callers: int = CALLERS, every: float = EVERY_S) -> list[float]:
    """Return when calls are due: each caller's about every so many seconds."""
    due = [0.0]  # the provider's time begins with the first request: for everybody at the same moment
    for _ in range(callers):
        at = rng.uniform(0, every)
        while at < seconds:
            due.append(at)
            at += rng.uniform(0.5, 1.5) * every
    return sorted(due)


# --- what goes wrong ---


def limited(since: int, until: int) -> list[Window]:
    """A rate limit that announces, second by second, when it will be over."""
    return [Window(at, at + 1, f"429;retry-after={until - at}") for at in range(since, until)]


def now_and_then(rng: Random, since: int, until: int, share: float, step: str) -> list[Window]:
    """Single bad seconds, this share of all."""
    return [Window(at, at + 1, step) for at in range(since, until) if rng.random() < share]


def some_of_ten(rng: Random, since: int, until: int, bad: int, step: str) -> list[Window]:
    """Of every ten seconds, so many bad ones."""
    seconds = (at + place for at in range(since, until, 10) for place in sorted(rng.sample(range(10), bad)))
    return [Window(at, at + 1, step) for at in seconds if at < until]


def fading(rng: Random, since: int, until: int, step: str) -> list[Window]:
    """Single bad seconds, at first nearly all, at last none."""
    return [Window(at, at + 1, step) for at in range(since, until) if rng.random() < 0.95 * (until - at) / (until - since)]  # fmt: skip


def flapping(since: int, until: int, each: int, step: str, every: int | None = None) -> list[Window]:
    return [Window(at, at + each, step) for at in range(since, until, every or 2 * each)]


def _mixed(rng: Random) -> list[Window]:
    """An hour with a bit of everything, single bad seconds in between."""
    incidents = [
        *limited(300, 320),
        Window(500, 530, "429"),
        *now_and_then(rng, 800, 920, 0.5, "overloaded"),
        *now_and_then(rng, 1200, 1320, 0.3, "cut"),
        Window(1500, 1560, "503"),
        *flapping(1800, 1980, 10, "disconnect"),
        Window(2280, 2300, "hang"),
        Window(2580, 2880, "502"),
        *limited(3180, 3190),
    ]
    quiet = [
        window
        for window in now_and_then(rng, 10, 3500, 0.01, "500")
        if not any(taken.since - 2 * _LULL_S <= window.since <= taken.until + 2 * _LULL_S for taken in incidents)
    ]
    return [*incidents, *quiet]


def _any_brownouts(rng: Random) -> list[Window]:
    """Three stretches of 80 s, each with its own share of bad seconds."""
    return [
        window
        for since in (30, 120, 210)
        for window in now_and_then(rng, since, since + 80, rng.uniform(0.2, 0.8), rng.choice(_DOWN))
    ]


def _incidents(rng: Random, seconds: int) -> list[Window]:
    """Every few minutes an outage of up to a minute, or a minute with bad seconds."""
    windows: list[Window] = []
    at = rng.randrange(60, 240)
    while at < seconds:
        step = rng.choice(_DOWN)
        lasts = rng.randrange(15, 60)
        down = rng.random() < 0.5
        windows += [Window(at, at + lasts, step)] if down else now_and_then(rng, at, at + 60, 0.5, step)
        at += rng.randrange(120, 360)
    return windows


# --- the kinds ---


class Kind(NamedTuple):
    """A kind of trace: the same calls and failures each time, drawn anew from each seed."""

    seconds: float
    windows: Callable[[Random], list[Window]]
    callers: int = CALLERS
    every: float = EVERY_S

    def draw(self, name: str, rng: Random) -> Trace:
        return _trace(name, self.seconds, self.windows(rng), arrivals(rng, self.seconds, self.callers, self.every))


class Loaded(NamedTuple):
    """A kind of trace in which a limit depends on the load."""

    seconds: float
    limit: Limit
    due: Callable[[Random], list[float]]

    def draw(self, name: str, rng: Random) -> Trace:
        return Trace(name, self.seconds, (), (), tuple(self.due(rng)), (self.limit,))


class Mixed(NamedTuple):
    """A kind of trace in which calls differ from each other."""

    seconds: float
    windows: Callable[[Random], list[Window]]
    asked: Callable[[Random], Asked]

    def draw(self, name: str, rng: Random) -> Trace:
        windows, due = tuple(sorted(self.windows(rng))), tuple(arrivals(rng, self.seconds))
        # The first call only begins the provider's time.
        asked = (ALIKE, *(self.asked(rng) for _ in due[1:]))
        # No returns: an answer that was long under way does not show when a contender noticed one.
        return Trace(name, self.seconds, windows, (), due, (), asked)


def _from(rng: Random, least: int = 20) -> int:
    """Return when the incident begins: a second that differs from seed to seed."""
    return least + rng.randrange(11)


def _down(seconds: int, least: int = 30) -> Callable[[Random], list[Window]]:
    def windows(rng: Random) -> list[Window]:
        since = _from(rng, least)
        return [Window(since, since + seconds, "503")]

    return windows


def _limit_named(rng: Random) -> list[Window]:
    return limited(since := _from(rng), since + 20)


def _limit_unnamed(rng: Random) -> list[Window]:
    return [Window(since := _from(rng), since + 30, "429")]


def _lying(lasts: int, announced: int) -> Callable[[Random], list[Window]]:
    def windows(rng: Random) -> list[Window]:
        return [Window(since := _from(rng), since + lasts, f"429;retry-after={announced}")]

    return windows


def _slow_return(rng: Random) -> list[Window]:
    since = _from(rng)
    return [Window(since, since + 60, "503"), *fading(rng, since + 60, since + 240, "503")]


def _hang_then_outage(rng: Random) -> list[Window]:
    since = _from(rng, 30)
    return [Window(since, since + 20, "hang"), Window(since + 20, since + 80, "503")]


def _flapping(rng: Random) -> list[Window]:
    return flapping(since := _from(rng), since + 180, 10, "disconnect")


def _hang(rng: Random) -> list[Window]:
    return [Window(since := _from(rng, 30), since + 20, "hang")]


def _brownout(bad: int) -> Callable[[Random], list[Window]]:
    return lambda rng: some_of_ten(rng, 30, 270, bad, rng.choice(_DOWN))


def _offered(per_minute: float, seconds: float) -> Callable[[Random], list[float]]:
    """Calls at this rate, each at a moment of its own."""
    return lambda rng: sorted([0.0, *(rng.uniform(0, seconds) for _ in range(round(per_minute * seconds / 60)))])


def _at_once(calls: int) -> Callable[[Random], list[float]]:
    return lambda rng: [0.0, *[5.0 + rng.random()] * calls]


def _small_bursts(rng: Random) -> list[float]:
    """Three calls in four seconds, and every 40 s eight at once: a little less than one a second."""
    bursts = [at + rng.uniform(0, 10) for at in range(20, 270, 40)]
    return sorted([*_offered(45, 280)(rng), *(at for at in bursts for _ in range(8))])


def _bucket(per_minute: int, *, burst: int, **announces: bool) -> Limit:
    return Limit(requests=per_minute, burst=burst, **{"retry_after": False, "headers": False, **announces})


# --- calls that differ ---

_USUAL_S, _TAIL = 2.0, 1.3
_SHORTEST_S, _LONGEST_S = 0.3, 300.0
_SICK, _LIMITED, _WELL = "gpt-5", "gpt-5-nano", "gpt-5-mini"
"""Three models that one key may use."""
_IMPATIENT_S = 5.0


def _answer_s(rng: Random) -> float:
    """Return how long an answer takes: half of them up to 2 s, one in 25 more than 20 s, one in 200 more than a minute."""
    return round(min(_LONGEST_S, max(_SHORTEST_S, rng.lognormvariate(log(_USUAL_S), _TAIL))), 3)


def _any_length(rng: Random) -> Asked:
    return Asked(_answer_s(rng))


def _any_model(rng: Random) -> Asked:
    return Asked(_answer_s(rng), rng.choice((_SICK, _LIMITED, _WELL)))


def _sometimes_poison(rng: Random) -> Asked:
    """One call in twenty gets a 500 each time."""
    return Asked(_answer_s(rng), poison="500" if rng.random() < 0.05 else "")


def _sometimes_impatient(rng: Random) -> Asked:
    """One call in five has a caller that waits 5 s for a request."""
    return Asked(_answer_s(rng), limit_s=_IMPATIENT_S if rng.random() < 0.2 else inf)


def _one_sick_one_limited(rng: Random) -> list[Window]:
    since = _from(rng, 30)
    return [Window(since, since + 90, "503", _SICK), Window(since, since + 60, "429", _LIMITED)]


def _cutting(rng: Random) -> list[Window]:
    since = _from(rng, 100)
    return [Window(since, since + 60, "503", cuts=True)]


MIXED: dict[str, Mixed] = {
    "mixed: answers of 0.3 s to 5 min": Mixed(300, lambda _: [], _any_length),
    "mixed: such answers, brownout 40 %": Mixed(300, _brownout(4), _any_length),
    "mixed: such answers, cut by an outage of 60 s": Mixed(300, _cutting, _any_length),
    "mixed: one model down, one limited, one well": Mixed(300, _one_sick_one_limited, _any_model),
    "mixed: poison prompts among good ones": Mixed(300, lambda _: [], _sometimes_poison),
    "mixed: impatient callers among patient ones": Mixed(300, lambda _: [], _sometimes_impatient),
}
"""Kinds with mixed answers and mixed health."""
_SILENT = _bucket(60, burst=5)
KINDS: dict[str, Kind | Loaded | Mixed] = {
    "rate limit of 20 s, delay named": Kind(120, _limit_named),
    "rate limit of 30 s, no delay named": Kind(120, _limit_unnamed),
    "overload, every other second": Kind(240, lambda rng: now_and_then(rng, 30, 150, 0.5, "overloaded")),
    "outage of 60 s": Kind(240, _down(60)),
    "outage of 10 min": Kind(900, _down(600, 60)),
    "flapping, 10 s down, 10 s up": Kind(300, _flapping),
    "cut answers, one second in three": Kind(180, lambda rng: now_and_then(rng, 20, 140, 0.33, "cut")),
    "hang of 20 s": Kind(240, _hang),
    "one hour of all of these": Kind(_HOUR, _mixed, every=60.0),
    "brownout 40 %": Kind(300, _brownout(4)),
    "brownout 70 %": Kind(300, _brownout(7)),
    "brownouts of any share": Kind(300, _any_brownouts),
    "blips of 3 s each half minute": Kind(300, lambda rng: flapping(_from(rng, 5), 290, 3, rng.choice(_DOWN), 30)),
    "outage, then a slow return": Kind(420, _slow_return),
    "limit of 40 s that announces 1 s": Kind(240, _lying(40, 1)),
    "limit of 15 s that announces 60 s": Kind(240, _lying(15, 60)),
    "cuts for an hour": Kind(_HOUR, lambda rng: now_and_then(rng, 20, 3580, 0.2, "cut"), every=90.0),
    "hang of 20 s, then outage of 60 s": Kind(240, _hang_then_outage),
    "one quiet caller": Kind(3 * _HOUR, lambda rng: _incidents(rng, 10_800), callers=1, every=180.0),
    "crowd of 150, outage of 45 s": Kind(150, _down(45), callers=150),
    "bucket of 60/min, Retry-After": Loaded(420, _bucket(60, burst=5, retry_after=True), _offered(120, 180)),
    "bucket of 60/min, headers": Loaded(420, _bucket(60, burst=5, retry_after=True, headers=True), _offered(120, 180)),
    "bucket of 60/min, nothing announced": Loaded(420, _SILENT, _offered(120, 180)),
    "200 at once, 120/min, nothing announced": Loaded(240, _bucket(120, burst=10), _at_once(200)),
    "200 at once, 120/min, Retry-After": Loaded(240, _bucket(120, burst=10, retry_after=True), _at_once(200)),
    "just below 60/min, small bursts": Loaded(360, _bucket(60, burst=10), _small_bursts),
    "bucket of tokens for 60/min, headers": Loaded(
        420, Limit(tokens=60 * TOKENS, burst=5 * TOKENS), _offered(120, 180)
    ),
    "100 at once, 8 at a time": Loaded(120, Limit(concurrency=8, headers=False), _at_once(100)),
    **MIXED,
}
FIRST_NINE = tuple(KINDS)[:9]
"""The kinds that were measured before the others came."""
LOADED = tuple(name for name, kind in KINDS.items() if isinstance(kind, Loaded))


def draw(kind: str, seed: int) -> Trace:
    """Return the trace of a kind, or of a month, for a seed."""
    rng = Random(f"{kind}, seed {seed}")
    return {**KINDS, **MONTHS}[kind].draw(kind, rng)


# --- published outages ---


class Month(NamedTuple):
    """Thirty days with outages as often and as long as a provider's status page shows."""

    repair_h: float
    """Mean hours of an outage."""
    between_d: float
    """Mean days from one outage to the next."""
    callers: int = 3
    every: float = 1800.0

    def draw(self, name: str, rng: Random) -> Trace:
        windows: list[Window] = []
        ends: list[float] = []
        at = rng.expovariate(1 / self.between_d) * _DAY
        while at < 30 * _DAY:
            since, until = round(at), round(at + 60 + rng.expovariate(1 / self.repair_h) * _HOUR)
            step, share = rng.choice(_DOWN), rng.uniform(0.3, 0.9)
            # Every other outage is partial: a part of the requests fails.
            dead = len(ends) % 2 == 0
            windows += [Window(since, until, step)] if dead else now_and_then(rng, since, until, share, step)
            ends.append(windows[-1].until)
            at = until + rng.expovariate(1 / self.between_d) * _DAY
        due = arrivals(rng, 30 * _DAY, self.callers, self.every)
        return Trace(name, 30 * _DAY, tuple(windows), tuple(ends), tuple(due))


MONTHS = {"a month of OpenAI's outages": Month(2.6, 5.0), "a month of Anthropic's outages": Month(2.8, 6.0)}
