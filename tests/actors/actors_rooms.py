"""Virtual actors for tests, also for those in other processes: `python actors_rooms.py ADDRESS KEY [COUNT]` holds one."""

from __future__ import annotations

import asyncio
import sys

import msgspec

from holdfast.actors.virtual import VirtualActor, VirtualActors


class RoomState(msgspec.Struct):
    members: list[str] = []
    paid: int = 0


class Room(VirtualActor):
    state: RoomState
    activated = 0
    running = 0

    async def started(self) -> None:
        type(self).activated += 1

    async def join(self, name: str) -> int:
        type(self).running += 1
        assert type(self).running == 1, "two messages at once"
        await asyncio.sleep(0)
        type(self).running -= 1
        self.state.members.append(name)
        return len(self.state.members)

    async def members(self) -> list[str]:
        return list(self.state.members)

    async def pay(self, amount: int) -> int:
        self.state.paid += amount
        return self.state.paid

    async def join_and_fail(self, name: str, error: BaseException) -> None:
        self.state.members.append(name)
        raise error

    async def join_saved_and_fail(self, name: str) -> None:
        self.state.members.append(name)
        await self.save()
        self.state.members.append("lost")
        raise TimeoutError("later")

    async def wait(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return self.key


async def hold(address: str, key: str, count: int) -> None:
    """Join `count` times, print each answer, and stay until the process is killed."""
    async with VirtualActors(address, lease=5) as rooms:
        room = rooms.get(Room, key)
        for n in range(count):
            outcome = await room.outcome(Room.join, f"holder-{n}")
            sys.stdout.write(f"{outcome.value if outcome.ok else outcome.fault.code}\n")
            sys.stdout.flush()
        sys.stdout.write("held\n")
        sys.stdout.flush()
        await asyncio.sleep(60)


if __name__ == "__main__":
    asyncio.run(hold(sys.argv[1], sys.argv[2], int(sys.argv[3])))
