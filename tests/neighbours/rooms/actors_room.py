"""Actors: fifty of them answer; one actor, or who writes to it, does what it should not. In virtual time.

Shapes: `flat` is one supervisor with its usual budget of three restarts; `nested` gives each actor a supervisor of its own; `by-child` has a
budget for each child; `pool` has the member in a `Pool` beside them; `virtual` are virtual actors on one store. In a `flat` tree a
member that crashes again and again ends the tree, as the docs say, so there it crashes three times.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any

import httpx
import msgspec
from tests.neighbours.kit import Played, beside, member, neighbours, same

from holdfast import Budget, Fault, HoldfastError
from holdfast.actors import Actor, Pool, Supervisor, VirtualActor, VirtualActors
from holdfast.stores import MemoryStore
from holdfast.testing import VirtualClock, run

if TYPE_CHECKING:
    from tests.neighbours.storm_world import World

MOST_CRASHES = 3
"""So often a supervisor restarts within its window."""
_PAUSE_S = 0.05
_HEAD_START_S = 0.3


def warm() -> None:
    """Everything is imported."""


class Clerk(Actor, timeout=9):
    """An ordinary actor: it counts what it is told, and answers."""

    def __init__(self, who: int) -> None:
        self.who, self.count = who, 0

    async def square(self, n: int) -> int:
        return n * n

    async def slow(self, n: int) -> int:
        await asyncio.sleep(1)
        return -n

    async def add(self, n: int) -> int:
        self.count += n
        return self.count

    async def fail(self) -> None:
        raise FileNotFoundError(2, "no such file", "notes.txt")


class OddError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def _response(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "http://service.test")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status, request=request))


class Trouble(Actor, timeout=3, mailbox=50):
    """The member: it does what it is asked to."""

    broken = False

    def __init__(self) -> None:
        if Trouble.broken:
            raise RuntimeError("it does not start again")

    async def do(self, kind: str) -> Any:
        match kind:
            case "crashes" | "crashes-start":
                raise RuntimeError("x" * 1000)
            case "foreign":
                raise _response(500)
            case "missing-file":
                raise FileNotFoundError(2, "no such file", "x")
            case "denied":
                raise PermissionError(13, "denied")
            case "http-401":
                raise _response(401)
            case "http-404":
                raise _response(404)
            case "hangs":
                await asyncio.Event().wait()
            case "exits":
                raise SystemExit(3)
            case "cancels":
                raise asyncio.CancelledError
            case "recursion":
                return await self.do(kind)
            case "huge":
                return "x" * 30_000_000
            case "timeouts":
                raise TimeoutError
            case "lease":
                raise HoldfastError(Fault.of("SESS_LEASE_LOST"))
            case "budget":
                raise HoldfastError(Fault.of("SYS_BUDGET_EXHAUSTED"))
            case "deadline":
                raise HoldfastError(Fault.of("SYS_DEADLINE_EXCEEDED"))
            case "unprintable":
                raise OddError
            case "swallows":
                for _ in range(30):
                    with suppress(asyncio.CancelledError):
                        await asyncio.sleep(1)
            case "leaves":
                for _ in range(20):
                    asyncio.create_task(self.do("crashes"))  # noqa: RUF006
                    threading.Thread(target=threading.Event().wait, args=(3,), daemon=True).start()
        return None

    async def bother(self, other: Any, times: int) -> None:
        for n in range(times):
            other.using(priority=0).tell(Clerk.square, n)


class Tally(msgspec.Struct):
    count: int = 0


class Room(VirtualActor):
    """An ordinary virtual actor."""

    state: Tally

    async def square(self, n: int) -> int:
        return n * n

    async def slow(self, n: int) -> int:
        await asyncio.sleep(1)
        return -n

    async def add(self, n: int) -> int:
        self.state.count += n
        return self.state.count

    async def fail(self) -> None:
        raise FileNotFoundError(2, "no such file", "notes.txt")


class TroubleRoom(VirtualActor):
    """The member as a virtual actor."""

    state: Tally

    async def do(self, kind: str) -> Any:
        if kind == "huge":
            self.state.count += 1
        return await Trouble.do(self, kind)  # type: ignore[arg-type]

    async def bother(self, other: Any, times: int) -> None:
        await Trouble.bother(self, other, times)  # type: ignore[arg-type]


def play(world: World, *, alone: bool) -> Played:
    clock = VirtualClock()
    room = _Actors(world, clock)
    try:
        done = run(room.perform(alone=alone), clock=clock)
    except HoldfastError as error:
        return Played(ended=f"{error.fault.code}: {error}; it crashed {room.crashes} times")
    return Played(done=done, left=room.left)


class _Actors:
    def __init__(self, world: World, clock: VirtualClock) -> None:
        self.world, self.clock = world, clock
        self.clerks: list[Any] = []
        self.odd: Any = None
        self.kind = Room if world.shape == "virtual" else Clerk
        self.odd_kind = TroubleRoom if world.shape == "virtual" else Trouble
        self.sent = [0] * world.neighbours
        self.crashes = 0
        self.left: list[str] = []

    async def perform(self, *, alone: bool) -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        jobs = {"ask": self.ask, "slow": self.slow, "tell": self.tell, "fail": self.fail}
        async with AsyncExitStack() as stack:
            await self._start(stack)
            acts = {each.kind: self._act(each.kind) for each in self.world.acts}
            other = None if alone else member(self.world, acts, _PAUSE_S)
            done = await beside(neighbours(self.world, jobs, self.clock.monotonic, 0.5), other, _HEAD_START_S)
            Trouble.broken = False
        return done

    async def _start(self, stack: AsyncExitStack) -> None:
        count, shape = self.world.neighbours, self.world.shape
        if shape == "virtual":
            store = await stack.enter_async_context(MemoryStore(clock=self.clock))
            rooms = await stack.enter_async_context(VirtualActors(store))
            self.clerks = [rooms.get(Room, f"n{who}") for who in range(count)]
            self.odd = rooms.get(TroubleRoom, "odd")
            return
        scope: Any = "child" if shape == "by-child" else "supervisor"
        team = await stack.enter_async_context(Supervisor("team", scope=scope))
        self.team = team
        for who in range(count):
            if shape == "nested":
                part = Supervisor(f"part-{who}")
                await team.start(part)
                self.clerks.append(await part.start(Clerk, who))
            else:
                self.clerks.append(await team.start(Clerk, who, id=f"n{who}"))
        if shape == "nested":
            part = Supervisor("odd")
            await team.start(part)
            self.odd = await part.start(Trouble)
        elif shape == "pool":
            pool = Pool("odds", Trouble, size=3)
            await team.start(pool)
            self.odd = pool.partition("odd")
        else:
            self.odd = await team.start(Trouble, id="odd")

    # What neighbours do.

    async def ask(self, who: int, turn: int) -> None:
        same(await self.clerks[who].ask(self.kind.square, who + turn), (who + turn) ** 2)

    async def slow(self, who: int, turn: int) -> None:
        same(await self.clerks[who].ask(self.kind.slow, who + 1), -who - 1)

    async def tell(self, who: int, turn: int) -> None:
        """Everything that was told is counted, and nothing else."""
        for _ in range(3):
            self.clerks[who].tell(self.kind.add, 1)
        self.sent[who] += 4
        same(await self.clerks[who].ask(self.kind.add, 1), self.sent[who])

    async def fail(self, who: int, turn: int) -> None:
        """A message of a neighbour's own fails, and its actor keeps its state."""
        try:
            await self.clerks[who].ask(self.kind.fail)
        except FileNotFoundError:
            return
        raise AssertionError("it did not fail")

    # What the member does.

    _RESTARTS = ("crashes", "crashes-start", "exits", "cancels", "recursion", "unprintable", "lease")

    def _act(self, kind: str) -> Any:
        special = getattr(self, "act_" + kind.replace("-", "_"), None)

        async def plain(strength: int) -> None:
            if kind in self._RESTARTS and self.world.shape in ("flat", "nested", "pool"):
                if self.crashes >= MOST_CRASHES:
                    await asyncio.sleep(1)
                    return
                self.crashes += 1
            await self.odd.outcome(self.odd_kind.do, kind)

        return special or plain

    async def act_crashes_start(self, strength: int) -> None:
        """It crashes once, and from then on its start fails. That spends the budget of the tree, where it is not its own."""
        if self.world.shape == "by-child":
            Trouble.broken = True
            await self.odd.outcome(self.odd_kind.do, "crashes")

    async def act_floods(self, strength: int) -> None:
        """Fill the mailbox of a neighbour with what is not urgent."""
        with suppress(HoldfastError):
            await self.odd.ask(self.odd_kind.bother, self.clerks[0], 300 * strength)

    async def act_fills(self, strength: int) -> None:
        for _ in range(500 * strength):
            self.odd.tell(self.odd_kind.do, "hangs")
        await asyncio.sleep(1)

    async def act_wrong_arguments(self, strength: int) -> None:
        for wrong in ((), (1, 2, 3), (object(),)):
            await self.clerks[strength].outcome(self.kind.square, *wrong) if not wrong or len(wrong) > 1 else None
            await self.odd.outcome(self.odd_kind.do, *wrong)

    async def act_circle(self, strength: int) -> None:
        with suppress(HoldfastError):
            await self.odd.ask(self.odd_kind.do, "hangs")

    async def act_interrupts(self, strength: int) -> None:
        """Callers that give up at once."""
        for clerk in self.clerks[:10]:
            task = asyncio.create_task(clerk.ask(self.kind.slow, 1))
            await asyncio.sleep(0)
            task.cancel()

    async def act_tells_late(self, strength: int) -> None:
        for clerk in self.clerks[: 5 * strength]:
            for n in range(20):
                clerk.tell(self.kind.square, n)

    async def act_watches(self, strength: int) -> None:
        if self.world.shape != "virtual":
            self.crashes += 1
            if self.crashes <= MOST_CRASHES:
                await self.odd.outcome(Trouble.do, "crashes")
            await self.team.which_children()

    async def act_stopping(self, strength: int) -> None:
        """Children that come and go, and one that cannot be stopped."""
        if self.world.shape in ("virtual", "nested"):
            return
        for n in range(5 * strength):
            with suppress(HoldfastError):
                await self.team.start(Trouble, id=f"guest-{n}", restart="temporary")
                await self.team.terminate_child(f"guest-{n}")
                await self.team.delete_child(f"guest-{n}")

    async def act_config(self, strength: int) -> None:
        """A mistake in a message that names a configuration: it stays the message's for `on=`; here it only asks wrongly."""
        with suppress(HoldfastError, TypeError):
            await self.odd.ask(self.kind.square, 1)

    async def act_budget(self, strength: int) -> None:
        with Budget(seconds=0.01), suppress(HoldfastError):
            await self.clerks[strength].ask(self.kind.slow, 1)
        await self.odd.outcome(self.odd_kind.do, "budget")
