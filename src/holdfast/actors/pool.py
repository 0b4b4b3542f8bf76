"""`Pool`: a fixed number of copies of one child; a key always leads to the same copy.

Invariant: equal keys have the same partition, also after others have ended, and a partition that crashes leaves the others alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from zlib import crc32

from holdfast import options
from holdfast.actors.child import Child
from holdfast.actors.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from holdfast.runtime.runtime import Runtime

__all__ = ["Pool"]


class Pool(Supervisor):
    """A supervisor of `size` copies of one child; a key always leads to the same copy.

        async with Pool("rooms", Room, size=4) as rooms:
            room = rooms.partition("lobby")
            await room.ask(Room.say, "hello")

    Work for one key is done by one actor, one message after the other; a crash loses the state of one partition only.

    size: the number of partitions.
    child: options of `Child` for each of them: `child={"restart": "transient"}`.
    max_restarts, window: the restart budget that the partitions share. By default 3 for each partition in 60 s.

    A wrong option raises `InvalidError`.
    """

    @options.suggests
    def __init__(
        self,
        name: str,
        factory: Callable[..., Any],
        *args: Any,
        size: int,
        child: dict[str, Any] | None = None,
        max_restarts: int | None = None,
        window: float = 60.0,
        runtime: Runtime | None = None,
    ) -> None:
        options.count("pool.size", size)
        self.size = size
        copies = [Child(factory, *args, **(child or {}), id=f"{number}") for number in range(size)]
        limit = 3 * size if max_restarts is None else max_restarts
        super().__init__(name, max_restarts=limit, window=window, children=copies, runtime=runtime)

    def partition(self, key: Hashable) -> Any:
        """Return the ref of the partition that a key belongs to. It is the same for equal keys."""
        return self.refs[_number(key) % self.size]

    @property
    def refs(self) -> list[Any]:
        """The refs of all partitions, in order. A partition that has ended for good keeps its place: its keys move to no other one."""
        seats = self._loop.seats
        return [seats[name].host.ref if name in seats else ref for name, ref in self._loop.first_refs.items()]


def _number(key: Hashable) -> int:
    # Python's own hash of a text differs from process to process, and logs of two runs could not be compared.
    if isinstance(key, str):
        return crc32(key.encode())
    return crc32(key) if isinstance(key, bytes) else hash(key)
