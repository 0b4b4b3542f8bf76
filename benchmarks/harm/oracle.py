"""The bounds: what Holdfast may not do worse than its twin. A group is all calls that share a door, a service, its health and an extra.

- `answered`: at least the twin's, less 1 % rounded down: in a group of up to 99 calls not one fewer. A limit of places gives seconds, not
  calls: where the calls that share one have at least the twin's seconds of answers, a long answer stands for several short ones.
- `requests`, `tokens`: where the service is healthy (it never fails, limits or hangs in this world; slow is healthy) no more than
  the twin's. A hedge may add the requests that it declares. A function that its own HTTP client's limit ends is repeated: that is what
  its caller wants of a recovery. The tokens of a call that its caller cancels on both sides are not compared if nothing is generated after that:
  the sooner such a call begins, the more is generated until then.
- `p50`, `p95`: at most 1.05 times the twin's and 0.1 s. An unanswered call took for ever, on both sides, so answering more is
  never punished. Where a service is ill, only calls that both sides answered are compared: a twin that gives up after a second
  has short times because it has few answers, and which call waits is chance: what is compared is the time beyond the answers' own, and
  their own quantile is added on both sides. Where a service is limited and Holdfast answered more of the calls that share the limit,
  times are not compared at all: the limit's capacity is the same, and each further answer takes a part of it from the others.
  Neither are they in a pool of which a key is ill, where Holdfast answers calls that the twin loses: which call gets that key is chance.
  Callers that declared themselves `BATCH` are not compared: they yield on purpose. Neither are those whose `concurrency` or
  `per_second` is shared with calls that fail: retries take places. A pool of workers of which some calls always fail is such a limit, too, but
  nobody named it: there times are at most 1.5 times the twin's and 5 s. Until it is known that the requests are at fault, each holds a worker.
  Callers on the limit of one that declared itself more urgent are not compared by times, and by answers only together with it: that goes
  first on purpose, and nobody's call may be lost by it that no other got.
- `effects`: a POST to something that is not a model is not repeated more often than in the twin, after it has happened.
- `budget`: what the service billed at list price stays within `Budget(usd=)`. A tight budget refuses calls, so `answered`
  counts only where the limit is twice what all calls cost at most; in a tight one at least the first call that fits is answered.
- `priority`: beside a caller that declared itself `BATCH`, p95 of the others is at most 1.5 times that without it, and 1 s, or the
  time in which the limit allows one more call: nobody can know when the next one comes. Where a limit names a pause that is not so, the twin's
  p95 beside the batch may be it, too: who is rejected once keeps to that pause, as in the twin.
- `deadline`: `Policy(deadline=)` and `Budget(seconds=)` are kept to 0.1 s; a request's own limit is never longer than the SDK's `timeout`.
  A call that ends because its time is over says so: `TimeoutError` or the SDK's `APITimeoutError`.
- `flood`: no call is repeated at once more often in a row than by the twin, or twice.
- `rejected`: a limit rejects no more requests than the twin's, or ten for each call: what a limit accepts can be learned. It is confirmed
  as answers and times are: how long a single call is rejected beside others, until one place is free for it, is chance.
- `cancel`: a cancelled call ends within 0.1 s. `text`: an answer belongs to its question. `error`: what surfaces is an error of
  the SDK (of the function) or a documented one of Holdfast, and where nobody named a limit, a call whose latest request was answered with
  a status ends in an error with a status: the `except` around it is for that. `hang`: a world ends.
- `busy`: beyond the twin's, no more than 500 timers are set for each call: whoever waits does not look all the time.

Chance: where a service is ill, chance decides what a call meets: jitter, the service's coins, and the moment at which an outage ends. A
suspicious group there is played again, on both sides, with other jitter, other coins, and callers that come up to a second later. The
means of 5 such plays are compared with two standard errors of grace, and what is still suspicious must show it once more in 20 further
plays: of some thousand groups, 1 in 20 would fail one such test by chance alone. Healthy groups get no grace and no second play, but for
those in a pool of which one key is slow by the service's coin.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass, field, replace
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

import anthropic
import httpx2
import openai

from benchmarks.harm.plays import Ended, Plain, Played, Recovering, ShopError, dollars, play, price_of
from benchmarks.harm.world import EFFECTS, FRAMEWORKS, HEALTHY, LIMITED, SDK, WEB, own_s
from benchmarks.table import quantile
from holdfast import HoldfastError, StreamCutError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks.harm.world import Caller, World

FEWER = 0.01
TIMES, SECONDS = 1.05, 0.1
"""How much longer answers may take."""
PROMPT_S = 0.1
"""How late a deadline or a cancellation may be."""
REJECTIONS = 10
TIMERS = 500
BESIDE_TIMES, BESIDE_S = 1.5, 1.0
WORKERS_TIMES, WORKERS_S = 1.5, 5.0
"""How much longer answers may take in a pool of workers that calls which always fail hold, too."""
REPLAYS = (range(1, 6), range(6, 26))
"""The plays in which a suspicion must be confirmed, one series after the other."""
GRACE = 2.0
BOUNDS = (
    "answered",
    "requests",
    "tokens",
    "p50",
    "p95",
    "effects",
    "budget",
    "priority",
    "deadline",
    "cancel",
    "flood",
    "rejected",
    "text",
    "error",
    "hang",
    "busy",
)


@dataclass(frozen=True)
class Group:
    """Calls that are compared as one."""

    health: str
    door: str
    service: str
    extra: str
    names: tuple[str, ...] = field(compare=False, repr=False)
    caller: Any = field(compare=False, repr=False)

    @property
    def healthy(self) -> bool:
        return self.health in HEALTHY

    def __str__(self) -> str:
        return (
            f"{self.health} {self.door} {self.service}{self.extra and f' with {self.extra}'}, {len(self.names)} calls"
        )


@dataclass(frozen=True)
class Compared:
    """One bound of one group: the two figures, and whether it holds."""

    bound: str
    health: str
    where: str
    twin: float
    ours: float
    harmed: bool
    why: str = ""

    def __str__(self) -> str:
        return f"{self.bound}: twin {self.twin:g}, Holdfast {self.ours:g} ({self.where}){self.why and f': {self.why}'}"


def groups_of(world: World) -> list[Group]:
    """Return the groups of a world."""
    by_key: dict[tuple[str, ...], list[str]] = {}
    first: dict[tuple[str, ...], Caller] = {}
    for caller in world.callers:
        for number, call in enumerate(caller.calls):
            service = caller.door if caller.door in WEB else f"{caller.model}/{caller.region}/{caller.key}"
            extra = (
                f"{caller.extra.kind}={caller.extra.model or caller.extra.value}:{caller.name}" if caller.extra else ""
            )
            if caller.retries is not None:
                service += f" with {caller.retries} retries"
            key = (world.health(caller, call), caller.door, service, extra)
            by_key.setdefault(key, []).append(f"{caller.name}.{number}")
            first.setdefault(key, caller)
    return [Group(*key, tuple(names), first[key]) for key, names in by_key.items()]


def compare(world: World, side: type[Plain] = Recovering) -> list[Compared]:
    """Play a world on both sides and return every comparison."""
    pairs = _Pairs(world, side)
    return [*_whole(pairs), *(one for group in groups_of(world) for one in _Bounds(world, group, pairs).all())]


def harms(world: World, side: type[Plain] = Recovering) -> list[Compared]:
    """Return what is worse than in the twin."""
    return [one for one in compare(world, side) if one.harmed]


class _Pairs:
    """Plays of both sides, by the number of their chances; played when they are asked for."""

    def __init__(self, world: World, side: type[Plain]) -> None:
        self.world = world
        self.side = side
        self._kept: dict[int, tuple[Played, Played]] = {}
        others = tuple(caller for caller in world.callers if not _is_batch(caller))
        beside = 0 < len(others) < len(world.callers) and not world.sync
        self._others = others if beside else ()
        self._alone: dict[int, Played] = {}

    def __getitem__(self, chance: int) -> tuple[Played, Played]:
        if chance not in self._kept:
            world = self.world.again(chance)
            self._kept[chance] = (play(world, Plain, chance), play(world, self.side, chance))
        return self._kept[chance]

    @property
    def has_batch(self) -> bool:
        """Whether some callers, and not all, declared that they yield."""
        return bool(self._others)

    def alone(self, chance: int) -> Played:
        """Return the play of our side without those that yield."""
        if chance not in self._alone:
            world = replace(self.world, callers=self._others).again(chance)
            self._alone[chance] = play(world, self.side, chance)
        return self._alone[chance]


def _whole(pairs: _Pairs) -> Iterator[Compared]:
    twin, ours = pairs[0]
    yield Compared("hang", "world", "the world", twin.hung, ours.hung, ours.hung and not twin.hung)
    yield Compared("busy", "world", "the world", twin.timers, ours.timers, ours.timers > twin.timers + TIMERS * pairs.world.calls)  # fmt: skip
    wrong = [name for name, ended in ours.calls.items() if ended.how == "wrong"]
    yield Compared("text", "world", "the world", 0, len(wrong), bool(wrong), ", ".join(wrong))


class _Bounds:
    """The bounds of one group."""

    def __init__(self, world: World, group: Group, pairs: _Pairs) -> None:
        self.world = world
        self.group = group
        self.pairs = pairs
        self.twin, self.ours = pairs[0]
        self.extra = group.caller.extra
        self.names = [name for name in group.names if self._counts(name)]

    def _counts(self, name: str) -> bool:
        """Return whether a call's answer counts: one that its caller cancels in the middle does not."""
        _, call = self.ours.service.calls[name]
        ended = self.twin.calls.get(name), self.ours.calls.get(name)
        return call.cancel is None or (self.group.healthy and not any(one is None or one.how == "cancelled" for one in ended))  # fmt: skip

    def all(self) -> Iterator[Compared]:
        if self._is_beside_urgent():
            yield self._mean("answered", self._answered_in_all, _fewer)
        elif not self._tight():
            yield self._mean("answered", self._answered, _fewer)
            if not self._yields() and not self._shares_places_with_ill():
                longer = _longer_among_workers if self._shares_workers_with_poison() else _longer
                yield self._mean("p50", lambda played: self._quantile(played, 0.5), longer)
                yield self._mean("p95", lambda played: self._quantile(played, 0.95), longer)
        if self.group.healthy or (self.group.health == "impatient" and self.group.door not in WEB):
            yield self._requests()
            yield self._tokens()
        if self.group.door in EFFECTS:
            yield self._plain("effects", *(self._repeated(side) for side in (self.twin, self.ours)))
        if self.extra is not None and self.extra.kind == "usd":
            yield from self._budget()
        if self.extra is None and self.group.health in (*LIMITED, *HEALTHY) and self.pairs.has_batch:
            yield self._beside_batch()
        yield from self._deadline()
        yield from self._cancel()
        twin, ours = (_quick(side.of({*self.group.names})) for side in (self.twin, self.ours))
        yield self._make("flood", twin, ours, ours > max(2, twin))
        if self.group.health in LIMITED or self.group.health == "sick":
            yield self._mean("rejected", self._rejected, self._more_rejected)
        yield self._errors()

    def _make(self, bound: str, twin: float, ours: float, harmed: bool, why: str = "") -> Compared:  # noqa: FBT001
        return Compared(bound, self.group.health, str(self.group), twin, ours, harmed, why)

    def _plain(self, bound: str, twin: float, ours: float) -> Compared:
        return self._make(bound, twin, ours, ours > twin)

    def _repeated(self, played: Played) -> int:
        """Return how many effects were one too many. The first of a call is what its caller wanted."""
        return sum(max(0, played.service.effects.get(name, 0) - 1) for name in self.group.names)

    def _tight(self) -> bool:
        return self.extra is not None and self.extra.kind == "usd" and self.extra.value < 2

    def _yields(self) -> bool:
        return self.extra is not None and (self.extra.priority == "low" or _is_batch(self.group.caller))

    def _shares_places_with_ill(self) -> bool:
        """Return whether calls that fail have a limit of calls with the group. Their retries, which its caller wanted, take places."""
        if self.extra is None or self.extra.kind not in ("concurrency", "per_second"):
            return False
        pool = self.extra.shared or self.group.caller.name
        sharing = [one for one in self.world.callers if one.extra and (one.extra.shared or one.name) == pool]
        return any(self.world.health(one, call) not in HEALTHY for one in sharing for call in one.calls)

    def _shares_workers_with_poison(self) -> bool:
        return self.group.caller.workers > 0 and any(call.poison for call in self.group.caller.calls)

    def _is_beside_urgent(self) -> bool:
        """Return whether another caller, more urgent as it declared, meets a limit that the group meets."""
        limits = [one for one in self.world.troubles_of(self.group.caller) if one.kind == "limit"]
        return any(
            _is_urgent(one)
            and one is not self.group.caller
            and any(limit in self.world.troubles_of(one) for limit in limits)
            for one in self.world.callers
        )

    # answers and times

    def _answered(self, pair: tuple[Played, Played]) -> tuple[float, float]:
        twin, ours = (
            sum(side.calls[name].how == "answered" for name in self.names if name in side.calls) for side in pair
        )
        if ours < twin and self._serves_longer(pair):
            return float(ours), float(ours)
        return float(twin), float(ours)

    def _answered_in_all(self, pair: tuple[Played, Played]) -> tuple[float, float]:
        """Return the answers of all calls that share a limit with the group: what a more urgent caller takes is not lost."""
        limits = {one for one in self.world.troubles_of(self.group.caller) if one.kind == "limit"}
        sharing = [one for one in self.world.callers if limits & {*self.world.troubles_of(one)}]
        names = [f"{one.name}.{number}" for one in sharing for number in range(len(one.calls))]
        twin, ours = (sum(side.calls[name].how == "answered" for name in names if name in side.calls) for side in pair)
        return float(twin), float(ours)

    def _quantile(self, pair: tuple[Played, Played], share: float) -> tuple[float, float]:
        twin, ours = (
            [side.calls[name].took if name in side.calls else math.inf for name in self.names] for side in pair
        )
        if self.group.healthy:
            return (quantile(twin, share), quantile(ours, share)) if twin else (0.0, 0.0)
        alone = [own_s(self.ours.service.calls[name][1]) for name in self.names]
        both = [one for one in zip(twin, ours, alone, strict=True) if max(one) < math.inf]
        if not both or (self._shares_limit() and (self._answers_more(pair) or self._serves_longer(pair))):
            return 0.0, 0.0
        if len(self.group.caller.keys) > 1 and len(both) < sum(took < math.inf for took in ours):
            return 0.0, 0.0
        own = quantile([alone for _, _, alone in both], share)
        return tuple(own + quantile([one[side] - one[2] for one in both], share) for side in (0, 1))  # type: ignore[return-value]

    def _has_slow_key(self) -> bool:
        """Return whether one key of a pool is slow by the service's coin: which call gets that key is chance."""
        slow = [one for one in self.world.troubles_of(self.group.caller) if one.kind == "slow"]
        return len(self.group.caller.keys) > 1 and any(one.share < 1 and one.key is not None for one in slow)

    def _shares_limit(self) -> bool:
        """Return whether calls of the group meet a limit, whatever else they meet."""
        return any(one.kind == "limit" for one in self.world.troubles_of(self.group.caller))

    def _answers_more(self, pair: tuple[Played, Played]) -> bool:
        """Return whether more of the calls that meet a limit were answered than in the twin, so that the rest had less of it."""
        limited = [
            name
            for group in groups_of(self.world)
            if any(one.kind == "limit" for one in self.world.troubles_of(group.caller))
            for name in group.names
        ]
        twin, ours = (
            sum(side.calls[name].how == "answered" for name in limited if name in side.calls) for side in pair
        )
        return ours > twin

    def _serves_longer(self, pair: tuple[Played, Played]) -> bool:
        """Return whether calls that meet a limit of places had as many seconds of answers as in the twin: a long answer holds a place."""
        if not any(one.places for one in self.world.troubles_of(self.group.caller)):
            return False
        limited = [one for one in self.world.callers if any(trouble.places for trouble in self.world.troubles_of(one))]
        calls = [(f"{one.name}.{number}", call) for one in limited for number, call in enumerate(one.calls)]
        twin, ours = (
            sum(own_s(call) for name, call in calls if name in side.calls and side.calls[name].how == "answered")
            for side in pair
        )
        return ours >= twin

    def _mean(
        self,
        bound: str,
        figures: Callable[[tuple[Played, Played]], tuple[float, float]],
        harmed: Callable[[float, float, int], float],
    ) -> Compared:
        """Compare one play; where the service is ill and the play is suspicious, the means of several."""
        twin, ours = figures(self.pairs[0])
        suspicious, why = harmed(twin, ours, len(self.names)) > 0, ""
        for chances in () if self.group.healthy and not self._has_slow_key() else REPLAYS:
            if not suspicious:
                break
            every = [figures(self.pairs[chance]) for chance in chances]
            beyond = [harmed(one, other, len(self.names)) for one, other in every]
            suspicious = mean(beyond) > GRACE * stdev(beyond) / math.sqrt(len(chances))
            twin, ours = mean(one for one, _ in every), mean(other for _, other in every)
            why = f"mean of {len(chances)}"
        return self._make(bound, twin, ours, suspicious, why)

    def _beside_batch(self) -> Compared:
        """Compare with the same side without its batch: a backlog may make a call wait, but not for the whole of it."""
        rates = [one.per_minute for one in self.world.troubles_of(self.group.caller) if one.per_minute]
        one_more = max([BESIDE_S, *(60.0 / rate for rate in rates)])

        def longer(alone: float, beside: float, twin: float) -> float:
            most = BESIDE_TIMES * alone + one_more
            return beside - (max(most, twin * TIMES + SECONDS) if self.group.health == "lying" else most)

        alone, beside, twin = self._p95_beside(0)
        is_harmed, why = longer(alone, beside, twin) > 0, ""
        for chances in () if self.group.healthy else REPLAYS:
            if not is_harmed:
                break
            every = [self._p95_beside(chance) for chance in chances]
            beyond = [longer(*one) for one in every]
            is_harmed = math.inf in beyond or mean(beyond) > GRACE * stdev(beyond) / math.sqrt(len(chances))
            alone, beside = mean(one[0] for one in every), mean(one[1] for one in every)
            why = f"mean of {len(chances)}"
        return self._make("priority", alone, beside, is_harmed, why)

    def _p95_beside(self, chance: int) -> tuple[float, float, float]:
        """Return p95 of the calls that are answered without the batch: without it, beside it, and beside it in the twin."""
        sides = (self.pairs.alone(chance), self.pairs[chance][1], self.pairs[chance][0])
        without, beside, twin = ([side.calls[name].took if name in side.calls else math.inf for name in self.names] for side in sides)  # fmt: skip
        answered = [one for one in zip(without, beside, twin, strict=True) if one[0] < math.inf]
        if not answered:
            return 0.0, 0.0, 0.0
        return tuple(quantile([one[side] for one in answered], 0.95) for side in range(3))  # type: ignore[return-value]

    # requests

    def _copies(self) -> int:
        """Return how many requests a caller allows for one attempt."""
        return 2 if self.extra is not None and self.extra.kind == "hedge" else 1

    def _sent_once(self) -> set[str]:
        """Return the calls that our side sent once, and the twin never."""
        return {name for name in self.group.names if len(self.ours.of({name})) == 1 and not self.twin.of({name})}

    def _requests(self) -> Compared:
        names = {*self.group.names} - self._sent_once()
        twin, ours = (len(side.of(names)) for side in (self.twin, self.ours))
        declared = self._copies() * len(self.group.names) if self._copies() > 1 else 0
        return self._make("requests", twin, ours, ours > max(twin, declared))

    def _tokens(self) -> Compared:
        stopped = {name for name in self.group.names if self._stops_with_its_caller(name)}
        names = {*self.group.names} - stopped - self._sent_once()
        twin, ours = (sum(sum(sent.tokens) for sent in side.of(names)) for side in (self.twin, self.ours))
        return self._make("tokens", twin, ours, ours > twin * self._copies())

    def _stops_with_its_caller(self, name: str) -> bool:
        """Return whether its caller ends a call on both sides, and nothing is generated after that: the sooner it begins, the more is before."""
        ends = [side.calls.get(name) for side in (self.twin, self.ours)]
        if not all(one is not None and (one.how == "cancelled" or self._is_timed_out(one)) for one in ends):
            return False
        _, call = self.ours.service.calls[name]
        until = ends[1].ended + PROMPT_S  # type: ignore[union-attr]
        return all(
            sent.tokens[1] <= math.ceil(call.tokens * (until - sent.at) / own_s(call)) for sent in self.ours.of({name})
        )

    def _is_timed_out(self, ended: Ended) -> bool:
        """Return whether a time limit that its caller named for the whole of a call has ended it."""
        seconds = self.extra.value if self.extra is not None and self.extra.kind == "leaves" else self._seconds()
        return seconds is not None and ended.how == "failed" and ended.ended - ended.began >= seconds - PROMPT_S

    # limits

    def _rejected(self, pair: tuple[Played, Played]) -> tuple[float, float]:
        twin, ours = (sum(sent.met == "limit" for sent in side.of({*self.group.names})) for side in pair)
        return float(twin), float(ours)

    def _more_rejected(self, twin: float, ours: float, _: int) -> float:
        return ours - max(twin, REJECTIONS * self._copies() * len(self.group.names))

    def _budget(self) -> Iterator[Compared]:
        limit = dollars(self.group.caller)
        mine = {f"{self.group.caller.name}.{number}" for number in range(len(self.group.caller.calls))}
        billed = sum(price_of(sent.model, *sent.tokens) for sent in self.ours.of(mine))
        yield self._make("budget", limit, billed, billed > limit * (1 + 1e-9))
        fits = (
            max(price_of(self.group.caller.model, call.prompt, call.most) for call in self.group.caller.calls) <= limit
        )
        if fits and self._tight() and len(self.names) == len(mine):
            twin, ours = self._answered(self.pairs[0])
            yield self._make("answered", min(twin, 1), ours, min(twin, 1) > ours, "a budget that allows a call")

    def _seconds(self) -> float | None:
        """Return the seconds that each call of the group has, if its caller named some."""
        timed = self.extra is not None and self.extra.kind in ("deadline", "seconds", "fallback")
        return self.extra.value or None if timed else None

    def _deadline(self) -> Iterator[Compared]:
        seconds = self._seconds()
        if seconds is not None:
            took = [ended.ended - ended.began for name, ended in self.ours.calls.items() if name in self.group.names]
            longest = max(took, default=0.0)
            yield self._make("deadline", seconds, longest, longest > seconds + PROMPT_S)
            mine = [
                ended for name, ended in self.ours.calls.items() if name in self.group.names and ended.how == "failed"
            ]
            late = [one.error for one in mine if one.ended - one.began >= seconds - 1e-6]
            odd = [error for error in late if not _says_late(error)]
            yield self._make(
                "error", 0, len(odd), bool(odd), ", ".join(sorted({_type(error) for error in odd if error}))
            )
        if self.group.door in WEB + FRAMEWORKS:
            return
        for sent in self.ours.of({*self.group.names}):
            caller, call = self.ours.service.calls[sent.call]
            limit = call.timeout or caller.timeout
            if limit is not None and (sent.limit is None or sent.limit > limit + PROMPT_S):
                yield self._make("deadline", limit, sent.limit or math.inf, harmed=True, why="the SDK's timeout")
                return

    def _cancel(self) -> Iterator[Compared]:
        for name in self.group.names:
            _, call = self.ours.service.calls[name]
            ended = self.ours.calls.get(name)
            if call.cancel is not None and ended is not None:
                took = ended.ended - ended.began
                yield self._make("cancel", call.cancel, took, took > call.cancel + PROMPT_S)

    def _errors(self) -> Compared:
        odd = [
            ended.error
            for name, ended in self.ours.calls.items()
            if name in self.group.names and ended.error is not None
        ]
        odd = [error for error in odd if not isinstance(error, self._expected())]
        odd += [self.ours.calls[name].error for name in self.group.names if self._hides_status(name)]
        return self._make("error", 0, len(odd), bool(odd), ", ".join(sorted({_type(error) for error in odd})))

    def _hides_status(self, name: str) -> bool:
        """Return whether a call failed with a status, and its caller gets another error. A limit that somebody named has one of its own."""
        ended, sent = self.ours.calls.get(name), self.ours.of({name})
        if ended is None or ended.how != "failed" or not sent or sent[-1].met not in STATUSES:
            return False
        if sent[-1].limit is not None and ended.ended - sent[-1].at >= sent[-1].limit - PROMPT_S:
            # The client did not wait for it.
            return False
        if self._seconds() is not None or self.group.door == "unsafe":
            return False
        if self.extra is not None and self.extra.kind in ("leaves", "usd"):
            return False
        return getattr(ended.error, "status_code", None) is None and not isinstance(ended.error, httpx2.HTTPStatusError | ShopError)  # fmt: skip

    def _expected(self) -> tuple[type[BaseException], ...]:
        sdk: tuple[type[BaseException], ...] = (anthropic.APIError, openai.APIError)
        if self._seconds() is not None or (self.extra is not None and self.extra.kind == "leaves"):
            sdk = (*sdk, TimeoutError)
        if self.group.door in SDK:
            return (*sdk, asyncio.CancelledError)
        return (*sdk, HoldfastError, asyncio.CancelledError, httpx2.HTTPError, ShopError)


STATUSES = ("status", "limit", "poison")
"""What a request met that was answered with a status."""
_TIMEOUTS = (TimeoutError, anthropic.APITimeoutError, openai.APITimeoutError)
_AT_ONCE_S = 0.3


def _says_late(error: BaseException | None) -> bool:
    """Return whether an error names the time as its reason; a stream that was cut may say so in its fault."""
    code = error.fault.code if isinstance(error, StreamCutError) else ""
    return isinstance(error, _TIMEOUTS) or code == "SYS_DEADLINE_EXCEEDED"


def _is_batch(caller: Caller) -> bool:
    return caller.extra is not None and caller.extra.kind == "priority" and caller.extra.value < 0


def _is_urgent(caller: Caller) -> bool:
    return caller.extra is not None and caller.extra.kind == "priority" and caller.extra.value > 0


def _quick(sent: list[Any]) -> int:
    """Return how often in a row a call was repeated at once after it had failed."""
    longest = 0
    run: dict[str, int] = {}
    last: dict[str, Any] = {}
    for one in sent:
        before = last.get(one.call)
        at_once = before is not None and before.ended is not None and 0 <= one.at - before.ended < _AT_ONCE_S
        run[one.call] = run.get(one.call, 0) + 1 if at_once else 0
        last[one.call] = one
        longest = max(longest, run[one.call])
    return longest


def _type(error: BaseException) -> str:
    return f"{type(error).__module__}.{type(error).__qualname__}"


def _fewer(twin: float, ours: float, calls: int) -> float:
    """Return how many answers are missing beyond the bound."""
    return twin - math.floor(FEWER * calls) - ours


def _longer(twin: float, ours: float, _: int) -> float:
    """Return the seconds beyond the bound."""
    if math.isinf(twin):
        return 0.0
    return ours - (twin * TIMES + SECONDS + 1e-6)


def _longer_among_workers(twin: float, ours: float, _: int) -> float:
    return 0.0 if math.isinf(twin) else ours - (twin * WORKERS_TIMES + WORKERS_S)
