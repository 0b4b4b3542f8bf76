"""Several processes, one key: how much of a limit they use, how many requests are in vain, and how fair it is.

In virtual time: as many runtimes as processes on one event loop, one service with a limit that nobody is told, twice as much work as it
takes. And for truth real processes with a real Redis. `python -m benchmarks fleet`
"""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import random
import time
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from benchmarks.table import show
from holdfast import Runtime, recover
from holdfast.policies.fleet_options import SharedOptions
from holdfast.runtime.fleet.link import FleetLink
from holdfast.stores.shared_state.local import LocalState
from holdfast.testing import ScriptedHTTPError, VirtualClock
from holdfast.testing import run as run_virtually
from holdfast.testing.redis import PrivateRedis

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.clock import Clock
    from holdfast.policies.queue import Priority

    Form = Literal["silent", "retry-after", "headers"]
    Contender = Literal["shared", "unshared", "tenacity"]

__all__ = ["Figures", "Service", "play", "play_for_real", "run"]

SECONDS, QUICK_S = 900.0, 120.0
REAL_S, QUICK_REAL_S = 120.0, 10.0
FLEETS, QUICK_FLEETS = (1, 4, 8, 100), (1, 8)

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
    link = FleetLink(lambda: engine, runtime.clock.monotonic, lambda _: None, SharedOptions(), threads=False)
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

    run_virtually(whole(), clock=clock)
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
    clock: Clock,
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


# --- real processes ---


def play_for_real(processes: int, *, shared: bool, seconds: float, per_s: float = 10.0, burst: float = 20.0) -> Figures:
    """Play a fleet of real processes with a real Redis, against a service on a socket that has a limit."""
    return asyncio.run(_play_for_real(processes, shared, seconds, Service(per_s, burst, sent=[], answered=[])))


async def _play_for_real(processes: int, shared: bool, seconds: float, service: Service) -> Figures:  # noqa: FBT001 - ours
    service.sent, service.answered = [0] * processes, [0] * processes

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            number = int(await reader.readline())
            try:
                await service.call(number)
                writer.write(b"200\n")
            except ScriptedHTTPError:
                writer.write(b"429\n")
            await writer.drain()
        except (ValueError, OSError):
            pass
        finally:
            writer.close()

    with PrivateRedis() as engine:
        path = engine.url.removeprefix("unix://") + ".service"
        url = engine.url if shared else ""
        context = multiprocessing.get_context("spawn")
        gap = processes / (2 * service.per_s)
        most = max(2, int(BACKLOG_S * service.per_s / processes))
        children = [
            context.Process(target=_real_process, args=(path, url, number, gap, most, seconds), daemon=True)
            for number in range(processes)
        ]
        async with await asyncio.start_unix_server(serve, path):
            for child in children:
                child.start()
            while any(child.is_alive() for child in children):  # noqa: ASYNC110 - a process has no event
                await asyncio.sleep(0.1)
    return figures(service, seconds)


def _real_process(path: str, url: str, number: int, gap: float, most: int, seconds: float) -> None:  # noqa: PLR0917 - a child's arguments
    runtime = Runtime(shared=url)

    @recover("claude", runtime=runtime)
    async def call() -> None:
        reader, writer = await asyncio.open_unix_connection(path)
        try:
            writer.write(f"{number}\n".encode())
            if await reader.readline() != b"200\n":
                raise ScriptedHTTPError(429)
        finally:
            writer.close()

    async def whole() -> None:
        offers = asyncio.create_task(_offers(call, gap, most, random.Random(number), runtime.clock, []))
        await asyncio.sleep(seconds)
        offers.cancel()
        await asyncio.gather(offers, return_exceptions=True)

    asyncio.run(whole())


# --- the tables ---


def run(*, quick: bool) -> dict[str, Any]:
    """Play fleets of several sizes, and print what they used, what was in vain and how fair it was."""
    seconds = QUICK_S if quick else SECONDS
    contenders: tuple[Contender, ...] = ("shared", "unshared", "tenacity")
    forms: tuple[Form, ...] = ("silent",) if quick else ("silent", "retry-after", "headers")
    found: dict[str, Any] = {}
    for form in forms:
        rows = []
        for processes in QUICK_FLEETS if quick else FLEETS:
            for contender in contenders:
                if contender == "tenacity" and not _has_tenacity():
                    continue
                one = play(contender, processes, form=form, seconds=seconds)
                rows.append([str(processes), contender, *_cells(one), f"{one.messages:.1f}"])
                found[f"{form}/{processes}/{contender}"] = [one.used, one.rejected, one.jain, one.messages]
        show(
            f"One limit of 60 a minute, {form}, twice the work, {seconds:.0f} virtual seconds",
            ["processes", "", "used", "429", "Jain", "messages/s"],
            rows,
        )
    rows = []
    for shared in (True, False):
        real = play_for_real(8, shared=shared, seconds=QUICK_REAL_S if quick else REAL_S)
        rows.append(["8", "shared" if shared else "unshared", *_cells(real)])
        found[f"real/8/{'shared' if shared else 'unshared'}"] = [real.used, real.rejected, real.jain]
    show("Real processes and a real Redis, 600 a minute", ["processes", "", "used", "429", "Jain"], rows)
    return found


def _cells(one: Figures) -> list[str]:
    return [f"{one.used:.1%}", f"{one.rejected:.1%}", f"{one.jain:.3f}"]


def _has_tenacity() -> bool:
    return find_spec("tenacity") is not None
