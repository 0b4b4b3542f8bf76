"""Several processes, one key: how much of a limit they use, how many requests are in vain, and how fair it is.

In virtual time: as many runtimes as processes on one event loop, one service with a limit that nobody is told, twice as much work as it
takes. And for truth real processes with a real Redis. `python -m benchmarks fleet`
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from holdfast import Runtime, recover
from holdfast.policies.fleet_options import SharedOptions
from holdfast.runtime.fleet.link import Link
from holdfast.stores.shared_state.local import LocalState
from holdfast.testing import ScriptedHTTPError, VirtualClock, run

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.policies.queue import Priority

    Form = Literal["silent", "retry-after", "headers"]
    Contender = Literal["shared", "unshared", "tenacity"]

__all__ = ["Figures", "Service", "play", "run"]

ANSWER_S = 0.3
REJECT_S = 0.05
BACKLOG_S = 60.0
"""Programs that fall behind have as many calls under way as the service takes in this time: they do not pile them up for ever."""


@dataclass
class Service:
    """A token bucket that nobody is told of."""

    per_s: float
    burst: float
    form: Form = "silent"
    clock: Callable[[], float] = time.monotonic
    sent: list[int] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    down: tuple[float, float] = (math.inf, -math.inf)
    """From when until when it answers 503."""
    requests_while_down: int = 0
    first_answer: float = math.inf
    left: float = field(init=False)
    at: float = field(init=False)

    def __post_init__(self) -> None:
        self.left, self.at = self.burst, self.clock()

    async def call(self, process: int) -> None:
        """Answer a request of a process, or raise 429."""
        now = self.clock()
        self.left, self.at = min(self.burst, self.left + self.per_s * (now - self.at)), now
        self.sent[process] += 1
        if self.down[0] <= now < self.down[1]:
            self.requests_while_down += 1
            await asyncio.sleep(REJECT_S)
            raise ScriptedHTTPError(503)
        if self.left < 1:
            headers = self._headers()
            await asyncio.sleep(REJECT_S)
            raise ScriptedHTTPError(429, headers)
        self.left -= 1
        if now >= self.down[1]:
            self.first_answer = min(self.first_answer, now)
        await asyncio.sleep(ANSWER_S)
        self.answered[process] += 1

    def _headers(self) -> dict[str, str]:
        wait = (1 - self.left) / self.per_s
        if self.form == "retry-after":
            return {"retry-after": f"{wait:.3f}"}
        if self.form == "headers":
            full = (self.burst - self.left) / self.per_s
            return {
                "x-ratelimit-limit-requests": str(int(self.burst)),
                "x-ratelimit-remaining-requests": str(int(self.left)),
                "x-ratelimit-reset-requests": f"{full:.3f}s",
            }
        return {}


@dataclass
class Figures:
    """What came of a play."""

    used: float
    rejected: float
    jain: float
    messages: float = 0.0
    service: Service | None = None
    waits: dict[Priority, list[float]] = field(default_factory=dict)


def figures(service: Service, seconds: float) -> Figures:
    """Return the figures of what a service saw."""
    accepted, requests = sum(service.answered), sum(service.sent)
    squares = sum(count**2 for count in service.answered)
    return Figures(
        used=accepted / (service.burst + service.per_s * seconds),
        rejected=(requests - accepted) / max(1, requests),
        jain=accepted**2 / (len(service.answered) * squares) if squares else 0.0,
        service=service,
    )


class _Engine(LocalState):
    """An engine in virtual time, which counts what it is asked and can be away."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock=clock.monotonic)
        self.messages = 0

    def change(self, name: str, step: Any) -> Any:
        self.messages += 1
        return super().change(name, step)


def share_in_virtual_time(runtime: Runtime, engine: Any, process: str = "") -> asyncio.Task[None]:
    """Connect a runtime to an engine, with a task of the running loop in place of the link's thread."""
    woken = asyncio.Event()
    link = Link(lambda: engine, runtime.clock.monotonic, lambda _: None, SharedOptions(), threads=False)
    link.woken = woken.set
    link.process = process or link.process
    runtime.link = link
    runtime.registry.share(link)

    async def serve() -> None:
        while True:
            woken.clear()
            wait = link.step()
            # A message takes a moment.
            await asyncio.sleep(0.001)
            with suppress(TimeoutError):
                await asyncio.wait_for(woken.wait(), max(wait, 0.001))

    return asyncio.get_running_loop().create_task(serve())


def play(
    contender: Contender,
    processes: int,
    *,
    per_s: float = 1.0,
    burst: float = 2.0,
    form: Form = "silent",
    offered: float = 2.0,
    seconds: float = 900.0,
    seed: int = 1,
    priorities: tuple[Priority, ...] = ("normal",),
    down: tuple[float, float] = (math.inf, -math.inf),
) -> Figures:
    """Play a fleet in virtual time. `offered`: work, as a multiple of the limit."""
    clock = VirtualClock()
    service = Service(per_s, burst, form, clock.monotonic, [0] * processes, [0] * processes, down)
    engine = _Engine(clock)
    waits: dict[Priority, list[float]] = {priority: [] for priority in priorities}

    async def whole() -> None:
        rng = random.Random(seed)
        tasks: list[asyncio.Task[Any]] = []
        for number in range(processes):
            runtime = Runtime(clock=clock, rng=random.Random(rng.random()))
            if contender == "shared":
                tasks.append(share_in_virtual_time(runtime, engine, str(number)))
            priority = priorities[number % len(priorities)]
            call = _caller(contender, runtime, service, number, priority)
            gap = processes / (offered * per_s)
            most = max(2, int(BACKLOG_S * per_s / processes))
            offers = _offers(call, gap, most, random.Random(rng.random()), clock, waits[priority])
            tasks.append(asyncio.create_task(offers))
        await asyncio.sleep(seconds)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    run(whole(), clock=clock)
    found = figures(service, seconds)
    found.messages, found.waits = engine.messages / seconds, waits
    return found


def _caller(
    contender: Contender, runtime: Runtime, service: Service, number: int, priority: Priority
) -> Callable[[], Awaitable[None]]:
    if contender == "tenacity":
        from tenacity import retry, stop_after_delay, wait_random_exponential

        @retry(stop=stop_after_delay(120), wait=wait_random_exponential(max=60))
        async def plain() -> None:
            await service.call(number)

        return plain

    policy = runtime.policy_named("").replace(priority=priority)

    @recover("claude", policy, runtime=runtime)
    async def recovered() -> None:
        await service.call(number)

    return recovered


async def _offers(  # noqa: PLR0917 - a program, in numbers
    call: Callable[[], Awaitable[None]],
    gap: float,
    most: int,
    rng: random.Random,
    clock: VirtualClock,
    waits: list[float],
) -> None:
    under_way: set[asyncio.Task[None]] = set()

    async def one() -> None:
        began = clock.monotonic()
        try:
            await call()
        except Exception:
            return
        waits.append(clock.monotonic() - began)

    await asyncio.sleep(rng.random() * gap)
    try:
        while True:
            if len(under_way) < most:
                task = asyncio.create_task(one())
                under_way.add(task)
                task.add_done_callback(under_way.discard)
            await asyncio.sleep(rng.expovariate(1 / gap))
    finally:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
