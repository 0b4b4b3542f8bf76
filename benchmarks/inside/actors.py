"""Actors: what an `ask` costs beside Pykka, Ray and a bare queue, a restart, an idle actor, and the activation of a virtual one."""

from __future__ import annotations

import asyncio
import gc
import os
import tempfile
from functools import partial
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

from holdfast import Runtime
from holdfast.actors import Actor, Child, Shutdown, Supervisor, VirtualActor, VirtualActors
from holdfast.actors.host import Place, host_for

AT_ONCE = 100


class Adder(Actor):
    async def add(self, n: int) -> int:
        return n + 1

    async def fail(self) -> None:
        raise KeyError("plan")


class Room(VirtualActor):
    state: dict[str, int]

    async def join(self, name: str) -> int:
        self.state[name] = 1
        return len(self.state)


class Bench:
    """One contender: `bare`, `pykka`, `ray` or `holdfast`."""

    def __init__(self, name: str) -> None:
        self._name = name

    def ask(self, *, asks: int) -> dict[str, float]:
        """Return asks a second, by the clock and by processor time, one after the other and many at once."""
        if self._name == "pykka":
            return _pykka(asks)
        if self._name == "ray":
            return _ray(asks)
        return asyncio.run(_bare(asks) if self._name == "bare" else _ours(asks))

    def restart(self, *, restarts: int) -> dict[str, float]:
        """Return the microseconds from a crash to the answer of the next instance, under a supervisor."""
        return asyncio.run(_restart(restarts))

    def idle(self, *, actors: int) -> dict[str, float]:
        """Return the bytes of an idle actor, and of one that has answered a message, task and instance included."""
        return asyncio.run(_idle(actors))

    def activate(self, *, actors: int) -> dict[str, float]:
        """Return activations a second of virtual actors that are saved already, on SQLite."""
        return asyncio.run(_activate(actors))


def _begin() -> tuple[float, float]:
    """Return the time and the processor time. Garbage is collected before: a pass over all that was imported would hit one of them."""
    gc.collect()
    return perf_counter(), process_time()


async def _measured(ask: Any, asks: int) -> dict[str, float]:
    await asyncio.gather(*(ask(n) for n in range(AT_ONCE)))
    began, used = _begin()
    for n in range(asks):
        await ask(n)
    alone, alone_cpu = perf_counter() - began, process_time() - used
    began, used = _begin()
    for _ in range(asks // AT_ONCE):
        await asyncio.gather(*(ask(n) for n in range(AT_ONCE)))
    many, many_cpu = perf_counter() - began, process_time() - used
    return _figures(asks, alone, alone_cpu, many, many_cpu)


async def _bare(asks: int) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[int, asyncio.Future[int]]] = asyncio.Queue()

    async def add(n: int) -> int:
        return n + 1

    async def work() -> None:
        while True:
            n, future = await queue.get()
            future.set_result(await add(n))

    async def ask(n: int) -> int:
        future: asyncio.Future[int] = loop.create_future()
        queue.put_nowait((n, future))
        return await future

    working = asyncio.ensure_future(work())
    measured = await _measured(ask, asks)
    working.cancel()
    return measured


async def _ours(asks: int) -> dict[str, float]:
    async with Supervisor("bench", runtime=Runtime()) as team:
        ref = await team.start(Adder)
        return await _measured(partial(ref.ask, Adder.add), asks)


def _pykka(asks: int) -> dict[str, float]:
    import pykka

    class Peer(pykka.ThreadingActor):  # type: ignore[misc]
        def on_receive(self, message: int) -> int:
            return message + 1

    ref = Peer.start()
    try:
        return _measured_blocking(
            ref.ask, lambda n: ref.ask(n, block=False), lambda futures: [one.get() for one in futures], asks
        )
    finally:
        ref.stop()


def _ray(asks: int) -> dict[str, float]:
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    import ray

    class Peer:
        def add(self, n: int) -> int:
            return n + 1

    # Everything on this machine, and ended with this call.
    ray.init(
        num_cpus=1, include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False, configure_logging=False
    )
    try:
        add = ray.remote(Peer).remote().add.remote
        return _measured_blocking(lambda n: ray.get(add(n)), add, ray.get, asks)
    finally:
        ray.shutdown()


def _measured_blocking(ask: Any, send: Any, receive_all: Any, asks: int) -> dict[str, float]:
    receive_all([send(n) for n in range(AT_ONCE)])
    began, used = _begin()
    for n in range(asks):
        ask(n)
    alone, alone_cpu = perf_counter() - began, process_time() - used
    began, used = _begin()
    for _ in range(asks // AT_ONCE):
        receive_all([send(n) for n in range(AT_ONCE)])
    many, many_cpu = perf_counter() - began, process_time() - used
    return _figures(asks, alone, alone_cpu, many, many_cpu)


def _figures(asks: int, alone: float, alone_cpu: float, many: float, many_cpu: float) -> dict[str, float]:
    return {
        "alone": asks / alone,
        "alone_us": alone_cpu / asks * 1e6,
        "at_once": asks / many,
        "at_once_us": many_cpu / asks * 1e6,
    }


async def _restart(restarts: int) -> dict[str, float]:
    async with Supervisor("bench", max_restarts=None, runtime=Runtime()) as team:
        ref = await team.start(Adder)
        took = []
        for n in range(restarts):
            began = perf_counter()
            ref.tell(Adder.fail)
            await ref.ask(Adder.add, n)
            took.append((perf_counter() - began) * 1e6)
        assert ref.restarts == restarts
    took.sort()
    return {"median_us": took[len(took) // 2], "p99_us": took[int(len(took) * 0.99)]}


async def _idle(actors: int) -> dict[str, float]:
    import tracemalloc

    runtime = Runtime()
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    hosts = [host_for(Child(Adder), Place(f"a{n}", f"team/a{n}", runtime)) for n in range(actors)]
    runs: list[Any] = [await host.start(1, None) for host in hosts]
    gc.collect()
    started = tracemalloc.get_traced_memory()[0]
    for host in hosts:
        await host.ref.ask(Adder.add, 1)
    gc.collect()
    asked = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    for run, host in zip(runs, hosts, strict=True):
        await run.stop(Shutdown(), 5)
        host.close(Shutdown())
    return {"idle_bytes": (started - before) / actors, "asked_bytes": (asked - before) / actors}


async def _activate(actors: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        address = f"sqlite:{Path(folder) / 'rooms.db'}"
        rates = {}
        for what in ("first", "again"):
            async with VirtualActors(address, runtime=Runtime()) as rooms:
                began = perf_counter()
                for start in range(0, actors, AT_ONCE):
                    await asyncio.gather(
                        *(rooms.get(Room, f"r{n}").ask(Room.join, what) for n in range(start, start + AT_ONCE))
                    )
                rates[what] = actors / (perf_counter() - began)
                began = perf_counter()
                await asyncio.gather(*(rooms.get(Room, f"r{n}").ask(Room.join, "more") for n in range(AT_ONCE)))
                rates[f"{what}_saved"] = AT_ONCE / (perf_counter() - began)
        return rates
