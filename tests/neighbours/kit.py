"""What the rooms share: a neighbour does its jobs in turn, and each job ends well, wrong, or not at all."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

    from tests.neighbours.storm_world import World

LOCKED_OUT_S = 10.0
"""Nobody waits longer than this for one thing."""
_GIVES_UP_S = 2.5 * LOCKED_OUT_S
_PAUSE_S = 0.05


class WrongError(Exception):
    """A neighbour got what is not its own, or what is not true."""


class Done(msgspec.Struct):
    """What became of one job."""

    who: int
    job: str
    how: str
    """well, failed, late or wrong."""
    took: float
    why: str = ""


class Played(msgspec.Struct):
    """What one play has shown."""

    done: list[Done] = []
    peak_mb: float = 0.0
    """The most memory that the process with Holdfast in it had."""
    left: list[str] = []
    """What is still there and should not be: processes."""
    ended: str = ""
    """How the play itself broke; empty: it did not."""
    took: float = 0.0


def same(got: Any, right: Any) -> None:
    """Say that a neighbour got something wrong, unless it is this."""
    if got != right:
        raise WrongError(f"got {shown(got)}, not {shown(right)}")


def shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:120]}… of {len(text)}"


class FairClock:
    """Time without the moments in which these processes were ready and had no processor: other work of this machine is no neighbour."""

    def __init__(self, *pids: int) -> None:
        self._paths = [Path(f"/proc/{pid}/schedstat") for pid in pids]
        self._at, self._waited, self._now = time.monotonic(), self._waits(), 0.0

    def _waits(self) -> list[float]:
        with suppress(OSError, IndexError):
            return [int(path.read_text().split()[1]) / 1e9 for path in self._paths]
        return [0.0] * len(self._paths)

    def __call__(self) -> float:
        at, waited = time.monotonic(), self._waits()
        longest = max(now - before for now, before in zip(waited, self._waited, strict=True))
        self._now += max(0.0, at - self._at - max(0.0, longest))
        self._at, self._waited = at, waited
        return self._now


async def one(who: int, job: str, work: Awaitable[Any], clock: Callable[[], float]) -> Done:
    """Let a neighbour do one job, for longer than it may take."""
    begun, how, why = clock(), "well", ""
    try:
        async with asyncio.timeout(_GIVES_UP_S):
            await work
    except WrongError as error:
        how, why = "wrong", str(error)
    except BaseException as error:
        if isinstance(error, asyncio.CancelledError) and (task := asyncio.current_task()) and task.cancelling():
            raise
        how, why = "failed", f"{type(error).__name__}: {error}"[:300]
    took = clock() - begun
    return Done(who, job, "late" if how == "well" and took > LOCKED_OUT_S else how, took, why)


async def neighbours(
    world: World,
    jobs: dict[str, Callable[[int, int], Coroutine[Any, Any, Any]]],
    clock: Callable[[], float] = time.monotonic,
    pause: float = _PAUSE_S,
) -> list[Done]:
    """Let all neighbours do their jobs at the same time; return what became of them."""

    async def life(who: int) -> list[Done]:
        done = []
        for turn, job in enumerate(world.work_of(who)):
            await asyncio.sleep(pause * (1 + who % 5) / 5)
            begun = time.monotonic()
            done.append(await one(who, job, jobs[job](who, turn), clock))
            if time.monotonic() - begun > _GIVES_UP_S * 0.9:
                break  # It is locked out, and more would only say so again.
        return done

    lives = await asyncio.gather(*(life(who) for who in range(world.neighbours)))
    return [each for life_ in lives for each in life_]


async def member(world: World, acts: dict[str, Callable[[int], Coroutine[Any, Any, Any]]], pause: float = 0.0) -> None:
    """Let the one member do what it does until it is cancelled. Its own failures are its own."""

    async def over_and_over(kind: str, strength: int) -> None:
        while True:
            try:
                await acts[kind](strength)
            except asyncio.CancelledError:
                if (task := asyncio.current_task()) and task.cancelling():
                    raise
            except BaseException:
                pass
            await asyncio.sleep(pause)

    await asyncio.gather(*(over_and_over(each.kind, each.strength) for each in world.acts))


async def beside(work: Coroutine[Any, Any, Any], other: Coroutine[Any, Any, Any] | None, head_start: float) -> Any:
    """Do work while the member does its own, which began a moment earlier."""
    if other is None:
        return await work
    task = asyncio.create_task(other)
    try:
        await asyncio.sleep(head_start)
        return await work
    finally:
        task.cancel()
        await asyncio.wait([task], timeout=1)
