"""A world: services that are well or ill, and callers with their calls. Pure data, drawn from a seed.

What a service does with a request depends on the world, the call, the number of the attempt, the time and the load, and on
nothing else. So two clients that send the same requests get the same answers. A world prints as the expression that makes it.
"""

from __future__ import annotations

import math
import random
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any

PROVIDERS = {
    "anthropic": ("claude-haiku-4-5", "claude-sonnet-4-5", "claude-opus-4-5"),
    "openai": ("gpt-5-mini", "gpt-5", "gpt-4o"),
}
REGIONS = {
    "anthropic": ("https://api.anthropic.com", "https://eu.gateway.test", "https://gateway.test/tenant-a"),
    "openai": ("https://api.openai.com/v1", "https://eu.gateway.test/v1", "https://gateway.test/tenant-b/v1"),
}
"""The first of each is the SDK's own address."""

SDK = ("sdk", "stream", "helper")
"""Doors that are a method of the SDK's client."""
FUNCTIONS = ("function", "method", "block", "iterator", "nested")
"""Doors that are a function around a model's call."""
WEB = ("read", "post", "unsafe")
"""Doors that are a function around another service: a GET, a POST, and a POST that is declared unsafe."""
FRAMEWORKS = ("langchain",)
"""Doors that are a framework's model; only with OpenAI and async, since others take no HTTP client."""
DOORS = SDK + FUNCTIONS + WEB + FRAMEWORKS
EFFECTS = ("post", "unsafe")

HEALTHY = ("well", "slow", "after")
"""`after`: what was wrong has been over for longer than anybody waits."""
AFTER_S = 130.0
SDK_LIMIT_S = 600.0
"""How long the SDKs wait for a byte where nobody names a limit."""
WEB_LIMIT_S = 30.0
"""How long the functions around other services wait for a byte."""
LIMITED = ("limited", "lying")

EXTRAS = ("deadline", "seconds", "usd", "fallback", "hedge", "concurrency", "per_second", "priority")
POOL = ("key-a", "key-b", "key-c")
"""The keys of a caller with the extra `pool`, which are used in turn."""


class Brief:
    """A dataclass that prints only what differs from its defaults."""

    def __repr__(self) -> str:
        said = []
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            default = field.default
            if default is MISSING or value != default:
                said.append(f"{field.name}={_shown(value)}")
        return f"{type(self).__name__}({', '.join(said)})"


def _shown(value: Any) -> str:
    return "math.inf" if value == math.inf else repr(value)


@dataclass(frozen=True, kw_only=True, repr=False)
class Call(Brief):
    """One call.

    takes: seconds until a good answer is complete, at any attempt. tokens: of the answer; `most` is what the caller allows.
    pieces: of a stream. gaps: in a stream, after which share of its pieces it is silent for how many more seconds.
    cancel: seconds after its start at which its caller cancels it. timeout: the SDK's option of that name.
    poison: the service fails on this prompt, whatever its state.
    """

    at: float = 0.0
    takes: float = 1.0
    tokens: int = 50
    most: int = 1000
    prompt: int = 40
    pieces: int = 5
    gaps: tuple[tuple[float, float], ...] = ()
    cancel: float | None = None
    timeout: float | None = None
    poison: bool = False
    tools: bool = False


@dataclass(frozen=True, kw_only=True, repr=False)
class Extra(Brief):
    """What one caller adds: a limit, a fallback, a hedge. The twin has the same in plain lines.

    value: the limit; of a fallback, the seconds that the call has with it, or 0. model: that of the fallback.
    `leaves`: each call is under `asyncio.timeout(value)`, of which Holdfast cannot know.
    shared: callers with this name share one limit of calls. priority: "high" or "low" in such a limit.
    """

    kind: str
    value: float = 0.0
    model: str = ""
    shared: str = ""
    priority: str = "normal"


@dataclass(frozen=True, kw_only=True, repr=False)
class Caller(Brief):
    """Who calls: by which door, which model with which key. `target` is the name in `recover(…)`; "" is the caller's own.

    retries: the client's `max_retries`. workers: so many calls at the same time, and the others wait; 0: all.
    """

    name: str
    calls: tuple[Call, ...]
    door: str = "sdk"
    provider: str = "anthropic"
    region: int = 0
    model: str = "claude-haiku-4-5"
    key: str = "key-a"
    timeout: float | None = None
    extra: Extra | None = None
    target: str = ""
    retries: int | None = None
    workers: int = 0

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the keys that it calls with."""
        return POOL if self.extra and self.extra.kind == "pool" else (self.key,)


@dataclass(frozen=True, kw_only=True, repr=False)
class Trouble(Brief):
    """What requests meet between two moments. None in `provider`, `region`, `model`, `key`, `door`, `caller` means any.

    kind: `status` (answers with it), `limit` (429, or 503 if `status` says so, beyond `per_minute` or `places`), `dead` (no connection), `hang` (silence),
    `reset` (the connection breaks before the answer, after the work), `cut` (a stream breaks in the middle), `slow` (a good
    answer, `after` seconds later).
    share: of the attempts. first: only so many attempts of each call. after: seconds until it shows.
    retry_after: the header as it is sent, or `true`, `late`, `early`: the real time, ten times it, a tenth of it.
    announces: `true` or `lie`: the headers that tell what remains of a limit.
    """

    kind: str
    provider: str | None = None
    region: int | None = None
    model: str | None = None
    key: str | None = None
    door: str | None = None
    caller: str | None = None
    start: float = 0.0
    end: float = math.inf
    share: float = 1.0
    first: int | None = None
    status: int = 500
    after: float = 0.1
    retry_after: str = ""
    per_minute: float = 0.0
    burst: int = 1
    places: int = 0
    announces: str = ""

    def concerns(self, provider: str, region: int, model: str, key: str, door: str = "", caller: str = "") -> bool:  # noqa: PLR0917 - who sends a request, in one tuple
        """Return whether requests of this kind can meet it."""
        return (
            self.provider in (None, provider)
            and self.caller in (None, caller)
            and self.region in (None, region)
            and self.model in (None, model)
            and self.key in (None, key)
            and self.door in (None, door)
        )

    @property
    def health(self) -> str:
        """Return the word for a service that has it."""
        if self.kind == "limit":
            false = self.announces == "lie" or self.retry_after not in ("", "true")
            return "lying" if false else "limited"
        if self.kind == "slow":
            return "slow"
        if self.kind in ("hang", "cut", "dead"):
            return self.kind
        return "flaky" if self.share < 1 or self.first else "sick"


@dataclass(frozen=True, kw_only=True, repr=False)
class World(Brief):
    """Callers and troubles. `jumps` sets the wall clock. `sync`: one thread makes all calls one after the other.

    chance: the number of its chances: which attempts a trouble with a share meets.
    """

    callers: tuple[Caller, ...]
    troubles: tuple[Trouble, ...] = ()
    jumps: tuple[tuple[float, float], ...] = ()
    sync: bool = False
    seed: int = 0
    chance: int = 0

    def again(self, chance: int) -> World:
        """Return the same world with other chances, and each caller up to a second later; 0: itself.

        Whether a call comes just before the end of an outage, or just after it, is chance, too.
        """
        if not chance:
            return self
        rng = random.Random(f"harm {self.seed} again {chance}")
        return replace(self, callers=tuple(_later(one, rng.random()) for one in self.callers), chance=chance)

    def health(self, caller: Caller, call: Call) -> str:
        """Return how well the service of a call is: the worst that the call may meet."""
        if call.poison:
            return "poison"
        troubles = self.troubles_of(caller)
        met = [one.health for one in troubles if call.at < one.end + AFTER_S]
        for worst in ("dead", "hang", "sick", "cut", "lying", "limited", "flaky"):
            if worst in met:
                return worst
        limit = WEB_LIMIT_S if caller.door in WEB else (call.timeout or caller.timeout or SDK_LIMIT_S)
        slower = max((one.after for one in troubles if one.kind == "slow"), default=0.0) if "slow" in met else 0.0
        if _silence(caller, call, slower) >= limit - 0.1:
            return "impatient"
        if len(met) < len(troubles):
            return "after"
        return "slow" if own_s(call) >= 20 or "slow" in met else "well"

    def troubles_of(self, caller: Caller) -> list[Trouble]:
        """Return what the calls of a caller may meet, at some time or other."""
        return [one for one in self.troubles if self._concerns(one, caller)]

    def _concerns(self, trouble: Trouble, caller: Caller) -> bool:
        models = {caller.model, caller.extra.model} if caller.extra and caller.extra.model else {caller.model}
        if caller.door in WEB:
            return trouble.door == caller.door and trouble.caller in (None, caller.name)
        return any(
            trouble.concerns(caller.provider, caller.region, model, key, "", caller.name)
            for model in models
            for key in caller.keys
        )

    @property
    def calls(self) -> int:
        """Return the number of calls."""
        return sum(len(caller.calls) for caller in self.callers)

    @property
    def features(self) -> set[str]:
        """Return the names of everything that occurs in it, for counting what a generator covers."""
        found = {f"door:{one.door}" for one in self.callers} | {f"trouble:{one.kind}" for one in self.troubles}
        found |= {f"extra:{one.extra.kind}" for one in self.callers if one.extra}
        found |= {f"health:{self.health(one, call)}" for one in self.callers for call in one.calls}
        found |= {f"provider:{one.provider}" for one in self.callers}
        found |= {
            f"fallback with {'a' if one.extra.value else 'no'} deadline"
            for one in self.callers
            if one.extra and one.extra.model
        }
        found |= {f"status:{one.status}" for one in self.troubles if one.kind == "status"}
        found |= {f"retry-after:{one.retry_after}" for one in self.troubles if one.retry_after}
        found |= {f"announces:{one.announces}" for one in self.troubles if one.announces}
        every = [call for one in self.callers for call in one.calls]
        asked = {
            "sync": self.sync,
            "clock jump": bool(self.jumps),
            "no trouble": not self.troubles,
            "several troubles": len(self.troubles) > 1,
            "several models": len({one.model for one in self.callers}) > 1,
            "several keys": len({one.key for one in self.callers}) > 1,
            "several regions": len({one.region for one in self.callers}) > 1,
            "shared target": any(one.target for one in self.callers),
            "timeout of the client": any(one.timeout for one in self.callers),
            "retries of the client": any(one.retries is not None for one in self.callers),
            "timeout of the call": any(call.timeout for call in every),
            "cancel": any(call.cancel is not None for call in every),
            "poison": any(call.poison for call in every),
            "tools": any(call.tools for call in every),
            "gaps": any(call.gaps for call in every),
            "long gap": any(gap > 60 for call in every for _, gap in call.gaps),
            "answer over 60 s": any(call.takes > 60 for call in every),
            "answer over 10 min": any(call.takes > 600 for call in every),
            "an hour": any(call.at > 1800 for call in every),
            "first attempts": any(one.first for one in self.troubles),
            "late failure": any(one.after > 60 for one in self.troubles if one.kind == "status"),
            "places": any(one.places for one in self.troubles),
            "trouble that ends": any(one.end < math.inf for one in self.troubles),
            "shared limit": any(one.extra and one.extra.shared for one in self.callers),
            "comeback": any(
                one.kind == "limit" and any(two.end == one.start for two in self.troubles) for one in self.troubles
            ),
            "overload": any(one.kind == "limit" and one.status == 503 for one in self.troubles),
            "healthy beside ill": {"well", "slow"} & {self.health(o, c) for o in self.callers for c in o.calls} != set()
            and bool(self.troubles),
        }
        return found | {name for name, there in asked.items() if there}


def own_s(call: Call) -> float:
    """Return how long its answer takes on a service that is well."""
    return call.takes + sum(gap for _, gap in call.gaps)


def _later(caller: Caller, seconds: float) -> Caller:
    return replace(caller, calls=tuple(replace(call, at=call.at + seconds) for call in caller.calls))


def _silence(caller: Caller, call: Call, slower: float) -> float:
    """Return the longest time without a byte in a good answer that comes so many seconds later."""
    takes = call.takes + slower
    if caller.door in ("stream", "helper", "iterator"):
        step = takes / (call.pieces + 1)
        return max([step, *(step + gap for _, gap in call.gaps)])
    return takes


SCENES = 0.12
"""The share of the worlds that are a scene."""
SHARED = 0.3
"""Of these, the share of the scenes with callers that must not harm each other."""
LATE_SCENES = 0.03
"""The share of the worlds that are one of the scenes that an attack found and no world showed."""
_STATUSES = (500, 502, 503, 503, 529, 529)
_MOST_CALLS = 60


def draw(seed: int) -> World:
    """Return the world of a seed."""
    # A stream of chance of its own, so that the other seeds keep their worlds.
    more = random.Random(f"harm {seed} more")
    world = _Drawer(seed).world()
    late = random.Random(f"harm {seed} late")
    if late.random() < LATE_SCENES:
        return _Scenes(seed, late).late_world()
    if more.random() < SCENES:
        return _Scenes(seed, more).world()
    world = _with_rejections(world, random.Random(f"harm {seed} 429"))
    world = _with_pool(world, random.Random(f"harm {seed} pool"))
    return _with_habits(world, random.Random(f"harm {seed} habits"))


HABITS = 0.1
"""The share of the callers whose clients have more retries than the SDK's, and of those who leave early."""


def _with_habits(world: World, rng: random.Random) -> World:
    """Sometimes let callers have more retries in their clients, or a time limit of their own around each call."""
    callers = []
    for caller in world.callers:
        more = rng.choice((4, 5, 8))
        leaves = Extra(kind="leaves", value=rng.choice((1.5, 3.0, 8.0, 30.0)))
        retries = more if rng.random() < HABITS and caller.door in SDK else None
        may_leave = rng.random() < HABITS and caller.extra is None and not world.sync
        callers.append(replace(caller, retries=retries, extra=leaves if may_leave else caller.extra))
    return replace(world, callers=tuple(callers))


REJECTIONS = 0.1
"""The share of the worlds with 429s that say nothing about other calls."""


def _with_rejections(world: World, rng: random.Random) -> World:
    """Sometimes let one caller have a limit of its own, or a share of all requests be rejected at random."""
    if rng.random() >= REJECTIONS or world.sync:
        return world
    caller = rng.choice(world.callers)
    named = rng.choice(("", "", "2", "8.4", "600"))
    where: dict[str, Any] = {"door": caller.door} if caller.door in WEB else {"provider": caller.provider}
    if rng.random() < 0.5:
        made = Trouble(kind="status", status=429, caller=caller.name, retry_after=named, **where)
    else:
        share = rng.choice((0.02, 0.1, 0.2))
        made = Trouble(kind="status", status=429, share=share, retry_after="" if named == "600" else named, **where)
    return replace(world, troubles=(*world.troubles, made))


POOLS = 0.25
"""The share of the worlds in which somebody has a pool of keys."""


def _with_pool(world: World, rng: random.Random) -> World:
    """Sometimes let one caller use several keys in turn. One of them may be ill, or somebody beside it may be rejected always."""
    able = [one for one in world.callers if one.door in SDK and one.extra is None]
    if rng.random() >= POOLS or world.sync or not able:
        return world
    one = rng.choice(able)
    mine = replace(one, extra=Extra(kind="pool"))
    callers, troubles = [mine if caller is one else caller for caller in world.callers], world.troubles
    where: dict[str, Any] = {"provider": one.provider}
    if rng.random() < 0.5:
        kind, status = rng.choice((("hang", 500), ("dead", 500), *(("status", code) for code in (404, 403, 403, 429))))
        troubles = (*troubles, Trouble(kind=kind, status=status, key=rng.choice(POOL), **where))
    elif world.calls < _MOST_CALLS:
        name = next(
            name for number in range(_MOST_CALLS) if (name := f"c{number}") not in {one.name for one in callers}
        )
        calls = mine.calls[: _MOST_CALLS - world.calls][:10]
        callers.append(replace(mine, name=name, calls=calls))
        named = rng.choice(("", "2", "60"))
        troubles = (*troubles, Trouble(kind="status", status=429, caller=name, retry_after=named, **where))
    return replace(world, callers=tuple(callers), troubles=troubles)


class _Drawer:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(f"harm {seed}")
        rng = self.rng
        self.horizon = rng.choice((20.0, 60.0, 60.0, 300.0, 300.0, 1200.0, 3600.0))
        self.providers = rng.sample(list(PROVIDERS), rng.choice((1, 1, 1, 2)))
        self.speeds = {model: self.speed() for models in PROVIDERS.values() for model in models}
        self.sync = rng.random() < 0.12

    def speed(self) -> tuple[float, float, float, float]:
        """Median seconds of an answer, its spread, the share of very long ones, and how long they are at most."""
        rng = self.rng
        median = rng.choice((0.2, 0.5, 1.0, 1.0, 3.0, 8.0, 25.0))
        return (
            median,
            rng.choice((0.1, 0.4, 0.9)),
            rng.choice((0.0, 0.0, 0.02, 0.08)),
            rng.choice((20.0, 60.0, 240.0, 580.0, 900.0)),
        )

    def world(self) -> World:
        rng = self.rng
        left, callers = _MOST_CALLS, []
        for number in range(rng.choice((1, 2, 2, 3, 3, 4, 5, 6))):
            caller = self.caller(f"c{number}", left)
            left -= len(caller.calls)
            callers.append(caller)
            if left <= 0:
                break
        troubles = self.troubles(callers)
        if rng.random() < 0.4 and not self.sync:
            place = rng.randrange(len(callers))
            callers[place] = self.with_extra(callers[place])
            extra = callers[place].extra
            if extra and extra.kind == "priority" and rng.random() < 0.7:
                callers, troubles = self.backlog(callers, place)
            if extra and extra.kind in ("concurrency", "per_second") and len(callers) > 1 and rng.random() < 0.6:
                callers = self.share(callers, place)
        jumps = (
            ((rng.uniform(0, self.horizon), rng.choice((-3600.0, -30.0, 45.0, 7200.0))),) if rng.random() < 0.1 else ()
        )
        return World(
            callers=tuple(callers), troubles=tuple(troubles), jumps=_rounded(jumps), sync=self.sync, seed=self.seed
        )

    def caller(self, name: str, left: int) -> Caller:
        rng = self.rng
        provider = rng.choice(self.providers)
        door = rng.choices(DOORS, weights=(30, 14, 5, 8, 4, 4, 5, 6, 4, 5, 3, 3))[0]
        if self.sync and door == "iterator":
            door = "stream"
        if door in FRAMEWORKS:
            door, provider = ("sdk", provider) if self.sync else (door, "openai")
        model = rng.choice(PROVIDERS[provider])
        timeout = rng.choice((10.0, 30.0, 120.0, 1200.0)) if rng.random() < 0.15 else None
        made = [self.call(door, model, at, timeout) for at in self.times(left)]
        if rng.random() < 0.12:
            place = rng.randrange(len(made))
            made[place] = replace(made[place], poison=True)
        return Caller(
            name=name,
            calls=tuple(made),
            door=door,
            provider=provider,
            region=rng.choice((0, 0, 0, 1, 2)),
            model=model,
            key=rng.choice(("key-a", "key-a", "key-b")),
            timeout=timeout,
            target=provider if door in FUNCTIONS + WEB and rng.random() < 0.15 else "",
        )

    def times(self, left: int) -> list[float]:
        rng = self.rng
        pattern = rng.choice(("burst", "steady", "steady", "poisson", "poisson", "quiet"))
        count = rng.randint(1, 3) if pattern == "quiet" else rng.choice((4, 8, 12, 20, 30, 60))
        count = max(1, min(count, left))
        begin = rng.uniform(0, self.horizon / 2) if rng.random() < 0.5 else 0.0
        if pattern == "burst":
            return [round(begin + rng.uniform(0, 0.2), 2) for _ in range(count)]
        if pattern == "steady":
            step = (self.horizon - begin) / count
            return [round(begin + step * number, 2) for number in range(count)]
        return sorted(round(rng.uniform(begin, self.horizon), 2) for _ in range(count))

    def call(self, door: str, model: str, at: float, timeout: float | None) -> Call:
        rng = self.rng
        median, spread, tail, longest = self.speeds[model]
        size = rng.choice((0.5, 1.0, 1.0, 2.0))
        takes = median * size * rng.lognormvariate(0, spread)
        if rng.random() < tail:
            takes = rng.uniform(longest / 3, longest)
        if door not in ("stream", "helper", "iterator") and (timeout or 600.0) <= 600.0:
            takes = min(takes, 580.0)  # what the SDK itself would wait for
        if door in WEB:
            takes = min(takes, 25.0)
        gaps = ()
        if door in ("stream", "helper", "iterator") and rng.random() < 0.25:
            gaps = ((rng.choice((0.0, 0.0, 0.4, 0.8)), rng.choice((3.0, 12.0, 45.0, 150.0))),)
        return Call(
            at=at,
            takes=round(min(max(takes, 0.2), 900.0), 2),
            tokens=int(40 * size * rng.uniform(0.5, 2)),
            most=rng.choice((200, 1000, 8000)),
            prompt=rng.choice((20, 40, 400)),
            pieces=30 if takes > 10 and rng.random() < 0.5 else 5,
            gaps=gaps,
            cancel=round(rng.uniform(0.05, 20), 2) if rng.random() < 0.03 and not self.sync else None,
            timeout=rng.choice((8.0, 40.0)) if rng.random() < 0.03 and door in SDK else None,
            tools=rng.random() < 0.1,
        )

    def troubles(self, callers: list[Caller]) -> list[Trouble]:
        rng = self.rng
        made = []
        for _ in range(rng.choices((0, 1, 2, 3), weights=(25, 45, 20, 10))[0]):
            caller = rng.choice(callers)
            if caller.door in WEB:
                where: dict[str, Any] = {"door": caller.door}
            else:
                scope = rng.choices(("model", "key", "region", "provider"), weights=(45, 20, 20, 15))[0]
                where = {"provider": caller.provider}
                if scope != "provider":
                    where[scope] = getattr(caller, scope)
            made += self.comeback(where) if rng.random() < 0.08 and not self.sync else [self.trouble(where)]
        return made

    def comeback(self, where: dict[str, Any]) -> list[Trouble]:
        """An outage after which the service takes only so much, and rejects the rest as overloaded."""
        rng = self.rng
        begin = rng.choice((0.0, 0.0, round(rng.uniform(0, self.horizon), 1)))
        back = begin + rng.choice((20.0, 60.0))
        limit = Trouble(kind="limit", status=503, start=back, per_minute=rng.choice((60.0, 120.0)), burst=2, **where)
        return [Trouble(kind="status", status=503, start=begin, end=back, **where), limit]

    def trouble(self, where: dict[str, Any]) -> Trouble:
        rng = self.rng
        kind = rng.choices(
            ("status", "limit", "flaky", "dead", "hang", "reset", "cut", "slow", "first"),
            weights=(16, 22, 16, 7, 6, 6, 6, 8, 10),
        )[0]
        begin = round(rng.uniform(0, self.horizon), 1) if rng.random() < 0.6 else 0.0
        lasts = rng.choice((3.0, 10.0, 30.0, 60.0, 180.0, math.inf))
        # One thread that waits for one call makes the next one late: it must not meet another weather than in the twin.
        when = {} if self.sync else {"start": begin, "end": begin + lasts}
        status = rng.choice(_STATUSES)
        named = rng.choice(("", "", "", "0", "0.001", "2", "20")) if status == 503 or rng.random() < 0.3 else ""
        if kind == "limit":
            return self.limit({**where, **when})
        if kind == "flaky":
            share = rng.choice((0.05, 0.2, 0.4, 0.7))
            after = rng.choice((0.1, 0.1, 1.0, 8.0))
            return Trouble(kind="status", status=status, share=share, after=after, retry_after=named, **where, **when)
        if kind == "first":
            return rng.choice(
                (
                    Trouble(kind="hang", first=1, share=0.3, **where, **when),
                    Trouble(kind="status", status=503, after=130.0, first=1, share=0.5, **where, **when),
                    Trouble(kind="status", status=status, first=rng.choice((1, 2)), retry_after=named, **where, **when),
                )
            )
        if kind == "slow":
            return Trouble(
                kind="slow",
                first=1,
                share=rng.choice((0.1, 0.3)),
                after=rng.choice((5.0, 30.0, 120.0)),
                **where,
                **when,
            )
        if kind == "status":
            return Trouble(
                kind="status",
                status=status,
                after=rng.choice((0.1, 0.1, 2.0, 30.0)),
                retry_after=named,
                **where,
                **when,
            )
        share = rng.choice((1.0, 1.0, 0.3))
        return Trouble(kind=kind, share=share, **where, **when)

    def limit(self, where: dict[str, Any]) -> Trouble:
        rng = self.rng
        told = rng.choice(("", "true", "true", "late", "early", "0", "0.001"))
        announces = rng.choice(("", "", "true", "lie"))
        if rng.random() < 0.25:
            return Trouble(
                kind="limit", places=rng.choice((1, 2, 4)), retry_after=told if told in ("0", "0.001") else "", **where
            )
        rate = rng.choice((6.0, 20.0, 60.0, 60.0, 300.0))
        if rng.random() < 0.15:
            return Trouble(kind="limit", status=503, per_minute=rate, burst=rng.choice((1, 5)), **where)
        return Trouble(
            kind="limit", per_minute=rate, burst=rng.choice((1, 5, 20)), retry_after=told, announces=announces, **where
        )

    def backlog(self, callers: list[Caller], place: int) -> tuple[list[Caller], list[Trouble]]:
        """Let a caller have a backlog on a limit that another one shares."""
        rng = self.rng
        mine = callers[place]
        if mine.door in WEB:
            mine = replace(mine, door="sdk")
        begin = mine.calls[0].at
        piled = tuple(replace(mine.calls[0], at=begin, poison=False, cancel=None) for _ in range(rng.choice((20, 40))))
        step = rng.choice((3.0, 6.0))
        waits = [self.call("sdk", mine.model, round(begin + 1 + step * number, 2), None) for number in range(15)]
        other = Caller(name=f"c{len(callers)}", calls=tuple(waits), provider=mine.provider, region=mine.region, model=mine.model, key=mine.key)  # fmt: skip
        limit = Trouble(kind="limit", provider=mine.provider, key=mine.key, per_minute=60.0, burst=5, retry_after=rng.choice(("", "true")))  # fmt: skip
        return [replace(mine, calls=piled), other], [limit]

    def share(self, callers: list[Caller], place: int) -> list[Caller]:
        """Let another caller share the limit of calls, with another priority and the same door."""
        mine, other = callers[place], (place + 1) % len(callers)
        assert mine.extra
        low, high = (
            replace(mine.extra, shared="pool", priority="low"),
            replace(mine.extra, shared="pool", priority="high"),
        )
        shared = replace(
            mine,
            name=callers[other].name,
            calls=tuple(replace(call, poison=False) for call in callers[other].calls),
            extra=high,
        )
        made = [*callers]
        made[place], made[other] = replace(mine, extra=low), shared
        return made

    def with_extra(self, caller: Caller) -> Caller:
        rng = self.rng
        kind = rng.choice(EXTRAS)
        if caller.door in WEB and kind in ("usd", "fallback", "hedge"):
            kind = "deadline"
        if kind == "fallback":
            others = [model for model in PROVIDERS[caller.provider] if model != caller.model]
            return replace(
                caller,
                door="function",
                extra=Extra(kind=kind, model=rng.choice(others), value=rng.choice((0.0, 0.0, 10.0, 45.0))),
            )
        if kind == "hedge":
            door = caller.door if caller.door in ("sdk", "function") else "sdk"
            return replace(caller, door=door, extra=Extra(kind=kind, value=rng.choice((2.0, 10.0, 30.0))))
        if kind == "usd":
            door = caller.door if caller.door in SDK + FRAMEWORKS else "sdk"
            calls = tuple(
                replace(call, tokens=min(int(call.most * rng.uniform(0.6, 1)), _generated(call)))
                for call in caller.calls
            )
            return replace(caller, door=door, calls=calls, extra=Extra(kind=kind, value=rng.choice((0.3, 0.6, 2.0))))
        value = {
            "deadline": rng.choice((2.0, 15.0, 60.0, 240.0)),
            "seconds": rng.choice((2.0, 15.0, 60.0, 240.0)),
            "concurrency": rng.choice((1.0, 2.0, 5.0)),
            "per_second": rng.choice((0.5, 2.0, 10.0)),
            "priority": rng.choice((-1.0, 1.0)),
        }[kind]
        return replace(caller, extra=Extra(kind=kind, value=value), target="")


class _Scenes:
    """Ordinary situations that need several things at the same time, which independent draws bring together too rarely."""

    def __init__(self, seed: int, rng: random.Random) -> None:
        self.seed = seed
        self.rng = rng
        self.provider = rng.choice(list(PROVIDERS))
        self.model, self.other = rng.sample(PROVIDERS[self.provider], 2)
        self.takes = rng.choice((0.3, 1.0, 1.0, 4.0))

    def world(self) -> World:
        scenes = (self.hedged, self.neighbours, self.limit_ends, self.budgeted, self.pauses, self.patient, self.crowd)
        shared = (self.sick_neighbour, self.impatient_neighbour, self.long_backlog)
        is_shared = random.Random(f"harm {self.seed} shared").random() < SHARED
        callers, troubles = self.rng.choice(shared if is_shared else scenes)()
        return World(callers=tuple(callers), troubles=tuple(troubles), seed=self.seed)

    def late_world(self) -> World:
        callers, troubles = self.rng.choice((self.poisoned_workers, self.fixed_pause))()
        return World(callers=tuple(callers), troubles=tuple(troubles), seed=self.seed)

    def every(self, step: float, count: int, begin: float = 0.0, **options: Any) -> tuple[Call, ...]:
        takes = options.pop("takes", self.takes)
        return tuple(
            Call(at=round(begin + step * number, 2), takes=round(takes * self.rng.uniform(0.8, 1.2), 2), **options)
            for number in range(count)
        )

    def caller(self, name: str, calls: tuple[Call, ...], **options: Any) -> Caller:
        made = {"provider": self.provider, "model": self.model, "key": "key-a", **options}
        return Caller(name=name, calls=calls, **made)

    def hedged(self) -> tuple[list[Caller], list[Trouble]]:
        """Some first attempts are slow, and their caller hedges."""
        rng = self.rng
        extra = Extra(kind="hedge", value=rng.choice((2.0, 10.0)))
        slow = Trouble(kind="slow", first=1, share=rng.choice((0.2, 0.4)), after=rng.choice((30.0, 120.0)), provider=self.provider)  # fmt: skip
        door = rng.choice(("sdk", "sdk", "function"))
        return [self.caller("c0", self.every(rng.choice((2.0, 20.0)), 30), door=door, extra=extra)], [slow]

    def neighbours(self) -> tuple[list[Caller], list[Trouble]]:
        """One model has a limit, and another one of the same key has none."""
        rng = self.rng
        told = rng.choice(("", "true"))
        limit = Trouble(kind="limit", provider=self.provider, model=self.other, per_minute=rng.choice((3.0, 20.0)), retry_after=told)  # fmt: skip
        busy = self.every(rng.choice((0.0, 1.0)), 20)
        return [self.caller("c0", busy, model=self.other), self.caller("c1", self.every(rng.choice((1.0, 3.0)), 30, 2.0))], [limit]  # fmt: skip

    def sick_neighbour(self) -> tuple[list[Caller], list[Trouble]]:
        """One model is sick and busy, and another one of the same key is well and quiet."""
        rng = self.rng
        sick = Trouble(kind="status", provider=self.provider, model=self.other, status=rng.choice(_STATUSES))
        busy = self.caller("c0", self.every(rng.choice((1.0, 2.0)), 40), model=self.other)
        return [busy, self.caller("c1", self.every(rng.choice((5.0, 15.0)), 12, 30.0))], [sick]

    def impatient_neighbour(self) -> tuple[list[Caller], list[Trouble]]:
        """One caller waits for less time than answers take, another one for long enough, with another model and key."""
        rng = self.rng
        hasty = self.caller("c0", self.every(rng.choice((2.0, 5.0)), 20, takes=45.0), timeout=30.0)
        patient = self.every(rng.choice((8.0, 20.0)), 10, 60.0, takes=45.0)
        return [hasty, self.caller("c1", patient, model=self.other, key="key-b")], []

    def long_backlog(self) -> tuple[list[Caller], list[Trouble]]:
        """A backlog that lasts for minutes, beside somebody who waits for each answer."""
        rng = self.rng
        limit = Trouble(kind="limit", provider=self.provider, key="key-a", per_minute=20.0, burst=5, retry_after=rng.choice(("", "true")))  # fmt: skip
        batch = self.caller("c0", self.every(0.0, 45), extra=Extra(kind="priority", value=-1.0))
        return [batch, self.caller("c1", self.every(10.0, 15, 5.0))], [limit]

    def fixed_pause(self) -> tuple[list[Caller], list[Trouble]]:
        """A backlog beside people, on a limit whose 429s name the same pause each time, however soon it accepts the next call."""
        rng = self.rng
        limit = Trouble(kind="limit", provider=self.provider, key="key-a", per_minute=rng.choice((30.0, 60.0)), burst=5, retry_after=rng.choice(("10", "30")))  # fmt: skip
        batch = self.caller("c0", self.every(0.0, 40), extra=Extra(kind="priority", value=-1.0))
        return [batch, self.caller("c1", self.every(rng.choice((4.0, 6.0)), 20, 1.0))], [limit]

    def poisoned_workers(self) -> tuple[list[Caller], list[Trouble]]:
        """A pool of workers with calls of which a part always fails."""
        rng = self.rng
        share = rng.choice((0.1, 0.3))
        calls = tuple(replace(call, poison=rng.random() < share) for call in self.every(0.0, _MOST_CALLS))
        door = rng.choice(("sdk", "sdk", "function", "stream"))
        return [self.caller("c0", calls, door=door, workers=rng.choice((4, 8)))], []

    def limit_ends(self) -> tuple[list[Caller], list[Trouble]]:
        """A limit is in force for a while, and calls go on after it."""
        rng = self.rng
        limit = Trouble(kind="limit", provider=self.provider, model=self.model, per_minute=6.0, end=60.0, retry_after=rng.choice(("", "true")))  # fmt: skip
        before, after = self.every(2.0, 25), self.every(rng.choice((1.0, 3.0)), 35, rng.choice((61.0, 200.0)))
        return [self.caller("c0", before), self.caller("c1", after)], [limit]

    def budgeted(self) -> tuple[list[Caller], list[Trouble]]:
        """Streams one after the other, or at once, under a budget that is too small for all of them."""
        rng = self.rng
        calls = self.every(rng.choice((0.0, 2.0, 8.0)), 40, tokens=900, most=1000)
        extra = Extra(kind="usd", value=rng.choice((0.1, 0.3)))
        return [self.caller("c0", calls, door=rng.choice(("stream", "stream", "helper")), extra=extra)], []

    def pauses(self) -> tuple[list[Caller], list[Trouble]]:
        """Bursts on a limit, with long pauses between them."""
        rng = self.rng
        limit = Trouble(kind="limit", provider=self.provider, per_minute=rng.choice((20.0, 60.0)), burst=rng.choice((1, 5)), retry_after=rng.choice(("", "", "true")))  # fmt: skip
        gap = rng.choice((60.0, 300.0))
        bursts = tuple(call for number in range(4) for call in self.every(rng.choice((0.0, 0.5)), 14, gap * number))
        return [self.caller("c0", bursts)], [limit]

    def patient(self) -> tuple[list[Caller], list[Trouble]]:
        """A sick model, a fallback to another one that is slow, and a deadline around both."""
        rng = self.rng
        seconds = rng.choice((10.0, 45.0))
        extra = Extra(kind="fallback", model=self.other, value=seconds)
        calls = self.every(rng.choice((5.0, 15.0)), 12, takes=seconds * rng.choice((0.5, 2.0)))
        sick = Trouble(kind="status", provider=self.provider, model=self.model, status=rng.choice(_STATUSES))
        return [self.caller("c0", calls, door="function", extra=extra)], [sick]

    def crowd(self) -> tuple[list[Caller], list[Trouble]]:
        """Many wait for the end of an outage, after which the service takes only so much."""
        rng = self.rng
        back = rng.choice((30.0, 60.0))
        outage = Trouble(kind="status", provider=self.provider, status=503, end=back)
        limit = Trouble(kind="limit", provider=self.provider, status=503, start=back, per_minute=rng.choice((30.0, 60.0)), burst=2)  # fmt: skip
        calls = self.every(back / 50, 40, rng.uniform(0, 5))
        return [self.caller("c0", calls), self.caller("c1", self.every(2.0, 20, back))], [outage, limit]


FASTEST = 150
"""Tokens that a model generates in a second, at most."""


def _generated(call: Call) -> int:
    """Return the tokens that a model generates at most in the time of a call."""
    return max(1, int(FASTEST * own_s(call)))


def _rounded(jumps: tuple[tuple[float, float], ...]) -> tuple[tuple[float, float], ...]:
    return tuple((round(at, 1), by) for at, by in jumps)
