"""A day of mixed faults, from a seed, in virtual time: does recovery meet S1-2? `python -m benchmarks day`.

Callers use the real anthropic and openai SDKs through `recovering` clients with the default policy, Claude first and GPT as
its configured fallback, as the documentation shows it; one call in three is a stream that begins again when it is cut. The
fault provider is in memory, so 24 hours pass in minutes, and counts what reaches it.

    transient errors   calls that met one, on the wire or as a rejection by an open circuit, and how they ended
    a dead service     requests that reached it while it was down, beside those of the same callers without a circuit
    the return         seconds from the moment it is back to the first answer from it

The day is drawn before it begins and knows nothing about policies. Nothing here is asserted; tests do that.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from contextvars import ContextVar
from typing import Any

import anthropic
import httpx2
import msgspec
import openai

from benchmarks.table import quantile, show
from holdfast import Backoff, Policy, Runtime, fault_of, recover
from holdfast.anthropic import recovering as recovering_claude
from holdfast.events import AttemptStarted
from holdfast.openai import recovering as recovering_gpt
from holdfast.testing import FaultProvider, VirtualClock
from holdfast.testing import run as run_virtually
from holdfast.testing.clock import seeded
from holdfast.testing.provider import Rule, Script

HOUR = 3600.0
CALLS, QUICK, HOURS = 20_000, 2_000, 24.0
LOADS = (20_000, 100_000, 250_000)
"""Calls a day, for the outages alone: how much a circuit can prevent depends on how many call."""
AROUND = "assistant"
CLAUDE, GPT = "claude-haiku-4-5", "gpt-5-mini"
RECOVERED, PREVENTED, BACK = 0.99, 0.95, 30.0
"""What S1-2 asks for; the first is sharpened, it asks for 90 %."""
PLAIN = Policy(circuit=None, attempts=3, backoff=Backoff(initial=1, factor=2, cap=30))
"""How the same callers behave without a circuit: three attempts. It is written out, so that a change of our default does not
change what it is compared with."""

ANSWERING = "slow;seconds=1, slow;seconds=3, slow;seconds=2, slow;seconds=5, slow;seconds=1.5"
"""How long good answers take."""
ANSWER = 2.5
NOISE = "500, cut;after=2, 429;retry-after=3, reset, silence;after=2, html, disconnect, cut;after=0, malformed-json, error-200, hang, 529"
"""What goes wrong on any day, for one request in a hundred."""
OUTAGES = ("503", "529", "disconnect", "hang", "500", "503;retry-after=20")


class Window(msgspec.Struct, frozen=True):
    """A stretch of time in which something is wrong."""

    what: str
    since: float
    until: float
    share: float = 1.0
    model: str = CLAUDE

    def holds(self, at: float) -> bool:
        return self.since <= at < self.until

    def rule(self) -> Rule:
        return Rule(steps=self.what, loop=True, share=self.share, since=self.since, until=self.until, models=(self.model,))  # fmt: skip


class Day(msgspec.Struct, frozen=True):
    """What happens: when callers call, and what is wrong when."""

    seed: int
    hours: float
    arrivals: list[float]
    outages: list[Window]
    """The primary is down altogether."""
    others: list[Window]

    def script(self) -> Script:
        windows = [*self.outages, *self.others]
        noise = [Rule(steps=NOISE, loop=True, share=share, models=(model,)) for share, model in ((0.01, CLAUDE), (0.005, GPT))]  # fmt: skip
        return Script(seed=self.seed, rules=(*(it.rule() for it in windows), *noise, Rule(steps=ANSWERING, loop=True)))


def draw(seed: int, calls: int, hours: float = HOURS) -> Day:
    """Draw a day: load that follows the sun, six outages, and waves of overload and rate limits."""
    rng = seeded(seed)
    span = hours * HOUR
    outages = []
    for number, what in enumerate(OUTAGES):
        # One in each sixth of the day, so that they do not overlap: 2 to 10 minutes long.
        begins = span * (number + 0.1 + 0.6 * rng.random()) / len(OUTAGES)
        outages.append(Window(what, begins, begins + (120 + 480 * rng.random()) * min(1, hours / HOURS * 4)))
    both = outages[rng.randrange(len(outages))]
    others = [Window("503", both.since, both.since + (both.until - both.since) / 3, model=GPT)]
    for number in range(24):
        begins, lasts = span * rng.random(), 60 + 240 * rng.random()
        what = (
            "529",
            f"429;retry-after={rng.randrange(2, 20)}",
            "429",
        )[number % 3]
        others.append(Window(what, begins, begins + lasts, share=0.2 + 0.3 * rng.random()))
    return Day(seed, hours, _arrivals(rng, calls, span), outages, others)


def _arrivals(rng: Any, calls: int, span: float) -> list[float]:
    """Moments of calls: four times as many at the day's height as at its low, every tenth with nine more at once."""
    found = [0.0]
    while len(found) < calls:
        at = span * rng.random()
        if rng.random() < (1 + 0.6 * math.sin(2 * math.pi * (at / span - 0.25))) / 1.6:
            found.extend([at] * (10 if rng.random() < 0.011 else 1))
    return sorted(found[:calls])


class Call:
    """One call and its outcome."""

    __slots__ = ("began", "code", "ended", "met", "rejected", "sent", "via")

    def __init__(self, began: float) -> None:
        self.began = began
        self.ended = began
        self.met: list[str] = []
        """Faults it met on the wire."""
        self.sent: list[tuple[float, str]] = []
        """Its requests: when, and to which model."""
        self.rejected = False
        """A circuit that was open kept it from the wire."""
        self.via = ""
        """Who answered; empty where nobody did."""
        self.code = ""

    @property
    def troubled(self) -> bool:
        return bool(self.met) or self.rejected


CALL: ContextVar[Call] = ContextVar("call")


class Watched(FaultProvider):
    """A provider that records for each call what its requests met."""

    def plan(self, request):
        call, before = CALL.get(), self.counters.injected.copy()
        call.sent.append((self.clock.monotonic(), request.model))
        acts = super().plan(request)
        call.met.extend(name for name in (self.counters.injected - before) if name != "slow")
        return acts


class Callers:
    """The program under test: what a user of the documentation writes."""

    def __init__(self, provider: FaultProvider, runtime: Runtime, policy: Policy) -> None:
        http = httpx2.AsyncClient(transport=provider.transport())
        self.claude = recovering_claude(
            anthropic.AsyncAnthropic(api_key="key", http_client=http), runtime=runtime, policy=policy
        )
        self.gpt = recovering_gpt(openai.AsyncOpenAI(api_key="key", http_client=http), runtime=runtime, policy=policy)
        around = recover(AROUND, policy.replace(circuit=None), runtime=runtime)
        self.ask = around(self._ask_claude)
        self.ask.fallback(self._ask_gpt)
        self.stream = around.stream(self._stream_claude, after_first="restart").fallback(self._stream_gpt)

    async def _ask_claude(self) -> str:
        await self.claude.messages.create(model=CLAUDE, max_tokens=99, messages=[{"role": "user", "content": "hello"}])
        return CLAUDE

    async def _ask_gpt(self) -> str:
        await self.gpt.responses.create(model=GPT, input="hello")
        return GPT

    async def _stream_claude(self):
        request = {"model": CLAUDE, "max_tokens": 99, "messages": [{"role": "user", "content": "hello"}]}
        async with await self.claude.messages.create(stream=True, **request) as events:
            async for _ in events:
                yield CLAUDE

    async def _stream_gpt(self):
        async with await self.gpt.responses.create(model=GPT, input="hello", stream=True) as events:
            async for _ in events:
                yield GPT

    async def call(self, number: int) -> str:
        if number % 3:
            return await self.ask()
        async with self.stream() as events:
            return [via async for via in events][-1]


class Lived(msgspec.Struct):
    """The outcome of a day."""

    day: Day
    calls: list[Call]
    provider: Watched
    events: Counter
    attempts: int
    """As the clients count them: each should be one request."""
    seconds: float


def live(day: Day, *, policy: Policy | None = None, arrivals: list[float] | None = None) -> Lived:
    """Live through a day, or through some of its calls."""
    clock = VirtualClock()
    runtime, events, attempts = Runtime(clock=clock, rng=seeded(day.seed)), Counter(), []
    runtime.on(lambda event: events.update([type(event).__name__]))
    runtime.on(lambda event: attempts.append("/" in event.operation), AttemptStarted)
    provider = Watched(day.script(), clock=clock)
    calls = [Call(at) for at in (day.arrivals if arrivals is None else arrivals)]
    began = time.perf_counter()
    run_virtually(_live(provider, runtime, policy or Policy(), calls), clock=clock)
    return Lived(day, calls, provider, events, sum(attempts), time.perf_counter() - began)


async def _live(provider: Watched, runtime: Runtime, policy: Policy, calls: list[Call]) -> None:
    callers, clock = Callers(provider, runtime, policy), runtime.clock
    running: set[asyncio.Task[None]] = set()
    for number, call in enumerate(calls):
        if (left := call.began - clock.monotonic()) > 0:
            await asyncio.sleep(left)
        task = asyncio.create_task(_make(callers, number, call, clock))
        running.add(task)
        task.add_done_callback(running.discard)
    if running:
        await asyncio.wait(running)


async def _make(callers: Callers, number: int, call: Call, clock: VirtualClock) -> None:
    CALL.set(call)
    try:
        call.via = await callers.call(number)
    except Exception as error:
        call.code = fault_of(error).code
    call.ended = clock.monotonic()
    call.rejected = not any(model == CLAUDE for _, model in call.sent)


# --- the report ---


class Outage(msgspec.Struct):
    """One outage, as the callers saw it."""

    what: str
    since: float
    lasted: float
    calls: int
    reached: int
    """Requests that reached the dead service."""
    without: int
    """The same for callers with three attempts and no circuit."""
    back: float | None
    """Seconds from its return to the first answer from it."""

    @property
    def prevented(self) -> float:
        return 1 - self.reached / self.without if self.without else 1.0

    @property
    def least(self) -> float:
        """Requests that anybody must send during this outage to have an answer in time after it, whenever it ends."""
        return max(1.0, self.lasted / (BACK - ANSWER))


class Report(msgspec.Struct):
    """The figures of the day for S1-2."""

    seed: int
    calls: int
    requests: int
    attempts: int
    injected: dict[str, int]
    troubled: int
    """Calls that met a transient error."""
    by_claude: int
    by_gpt: int
    lost: dict[str, int]
    """Calls that nobody answered, by code."""
    took: list[float]
    """Seconds that the recovered calls took, in order."""
    outages: list[Outage]
    events: dict[str, int]
    seconds: float

    @property
    def recovered(self) -> float:
        return (self.by_claude + self.by_gpt) / self.troubled if self.troubled else 1.0


def report(seed: int, calls: int, hours: float = HOURS) -> Report:
    """Live through the day with the default policy, and through its outages once more without a circuit."""
    day = draw(seed, calls, hours)
    lived = live(day)
    troubled = [call for call in lived.calls if call.troubled]
    lost = [call for call in troubled if not call.via]
    return Report(
        seed=seed,
        calls=len(lived.calls),
        requests=lived.provider.counters.received,
        attempts=lived.attempts,
        injected={name: count for name, count in sorted(lived.provider.counters.injected.items()) if name != "slow"},
        troubled=len(troubled),
        by_claude=sum(call.via == CLAUDE for call in troubled),
        by_gpt=sum(call.via == GPT for call in troubled),
        lost=dict(Counter(call.code for call in lost)),
        took=sorted(call.ended - call.began for call in troubled if call.via),
        outages=_outages(lived),
        events=dict(lived.events),
        seconds=lived.seconds,
    )


def outages_alone(seed: int, calls: int, only: slice = slice(None)) -> list[Outage]:
    """Live through the outages of a day with so many calls, or some of them, and through nothing else."""
    day = draw(seed, calls)
    day = msgspec.structs.replace(day, outages=day.outages[only])
    return _outages(live(day, arrivals=_around_outages(day)))


def prevented(outages: list[Outage]) -> float:
    without = sum(it.without for it in outages)
    return 1 - sum(it.reached for it in outages) / without if without else 1.0


def at_best(outages: list[Outage]) -> float:
    """Return the share that can be prevented if the return is noticed in time: probes must not be further apart than that."""
    without = sum(it.without for it in outages)
    return 1 - sum(it.least for it in outages) / without if without else 1.0


def returns(outages: list[Outage]) -> list[float]:
    return [it.back for it in outages if it.back is not None]


def _outages(lived: Lived) -> list[Outage]:
    without = live(lived.day, policy=PLAIN, arrivals=_around_outages(lived.day))
    return [_outage(it, lived, without) for it in lived.day.outages]


def _around_outages(day: Day) -> list[float]:
    near = [at for at in day.arrivals if any(it.since - 60 <= at < it.until + 120 for it in day.outages)]
    return [0.0, *near]  # windows count from the first request


def _outage(window: Window, lived: Lived, without: Lived) -> Outage:
    answered = (
        call.ended - window.until
        for call in lived.calls
        if call.via == CLAUDE and call.sent[-1][0] >= window.until and call.ended >= window.until
    )
    return Outage(
        what=window.what,
        since=window.since,
        lasted=window.until - window.since,
        calls=sum(window.holds(call.began) for call in lived.calls),
        reached=_reached(window, lived),
        without=_reached(window, without),
        back=min(answered, default=None),
    )


def _reached(window: Window, lived: Lived) -> int:
    return sum(window.holds(at) and model == CLAUDE for call in lived.calls for at, model in call.sent)


def run(*, quick: bool, seed: int = 1, calls: int | None = None) -> dict[str, Any]:
    """Live through the day, then through its outages under more load, and print what they say."""
    found = report(seed, calls or (QUICK if quick else CALLS))
    _print_day(found)
    loads = {load: outages_alone(seed, load) for load in (() if quick else LOADS)}
    if loads:
        _print_loads(loads)
    return {
        **{name: value for name, value in msgspec.to_builtins(found).items() if name != "took"},
        "recovered": found.recovered,
        "loads": {
            load: {"prevented": prevented(them), "at_best": at_best(them), "returns": returns(them)}
            for load, them in loads.items()
        },
        "verdict": [verdict_of(load, them) for load, them in loads.items()],
    }


def _met(good):
    return "met" if good else "missed"


def _print_day(found: Report) -> None:
    rows = [
        [f"{it.what} at {it.since / HOUR:.1f} h", f"{it.lasted:.0f}", f"{it.calls:,}", f"{it.without:,}", f"{it.reached:,}",
         f"{it.prevented:.1%}", "-" if it.back is None else f"{it.back:.1f}"]
        for it in found.outages
    ]  # fmt: skip
    lost = sum(found.lost.values())
    why = ", ".join(f"{count} {code}" for code, count in sorted(found.lost.items())) or "none"
    half, most = (quantile(found.took or [0.0], share) for share in (0.5, 0.95))
    answered = f"{found.by_claude:,} answered by the same provider, {found.by_gpt:,} by the fallback"
    verdict = f"target {RECOVERED:.0%}: {_met(found.recovered >= RECOVERED)}"
    faults = ", ".join(f"{count:,} {name}" for name, count in found.injected.items())
    show(
        f"A day of mixed faults: {found.calls:,} calls in 24 virtual hours, seed {found.seed} ({found.seconds:.0f} s)",
        ["outage", "s", "calls", "requests without circuit", "reached it", "prevented", "s to first answer"],
        rows,
        [
            f"{found.requests:,} requests in {found.attempts:,} attempts met {sum(found.injected.values()):,} faults: {faults}",
            f"{found.troubled:,} calls met a transient error: {answered}, {lost:,} given up: {why}",
            f"recovered {found.recovered:.2%}; {verdict}",
            f"a recovered call took {half:.1f} s (median), {most:.1f} s (95 %), {ANSWER:g} s of that the answer itself",
            "events: " + ", ".join(f"{count:,} {name}" for name, count in sorted(found.events.items())),
        ],
    )


def verdict_of(load: int, outages: list[Outage]) -> str:
    """Return in one line whether the outages of a day with so many calls met both targets."""
    share, longest, most = prevented(outages), max(returns(outages), default=math.inf), at_best(outages)
    # Where even the fewest possible probes are too many, both targets cannot hold.
    possible = "" if share > PREVENTED or most > PREVENTED else f" (both cannot hold: at best {most:.1%})"
    return (
        f"{load:,} calls a day: prevented {share:.1%}, target {PREVENTED:.0%}: {_met(share > PREVENTED)}{possible}; "
        f"first answer after a return {longest:.1f} s at the latest, target {BACK:g} s: {_met(longest < BACK)}"
    )


def _print_loads(loads: dict[int, list[Outage]]) -> None:
    rows = []
    for load, them in loads.items():
        back = returns(them)
        called = sum(it.calls for it in them) / sum(it.lasted for it in them)
        shares = [f"{prevented(them):.2%}", f"{at_best(them):.2%}"]
        rows.append(
            [f"{load:,} calls a day", f"{called * 60:.0f}", *shares, f"{quantile(back, 0.5):.1f}", f"{max(back):.1f}"]
        )
    show(
        "A dead service, by load",
        ["load", "calls a minute while down", "prevented", "at best", "median s to first answer", "longest"],
        rows,
        [
            *(verdict_of(load, them) for load, them in loads.items()),
            f"at best: a request every {BACK - ANSWER:g} s is the least that notices every return within {BACK:g} s, the answer taking {ANSWER:g} s",
            "prevented: beside the same callers with three attempts and no circuit",
        ],
    )
