"""Sees the points that a program reaches, and kills the program at one of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Self

import msgspec

from holdfast.testing.crashtest.links import Links
from holdfast.testing.crashtest.points import Kind, Mark, Side

if TYPE_CHECKING:
    from collections.abc import Callable


class PointWatch:
    """The points of one run, and the mark at which it is killed."""

    def __init__(self, mark: Mark | None = None) -> None:
        self._mark = mark
        self._seen: Counter[tuple[Kind, str]] = Counter()
        self.marks: list[Mark] = []
        self.kill: Callable[[], None] | None = None
        """Kills the program; set when it has started."""
        self.killed = False
        self.outside: set[str] = set()
        """Files that the program writes outside of its state folder."""
        self.connected = False
        """Whether the program reports its writes."""

    def reach(self, kind: Kind, name: str, side: Side, nth: int | None = None) -> int | None:
        """Note a mark; return its number among those of its name, or None if the program is killed here.

        nth: for `after`, the number that `before` returned.
        """
        if nth is None:
            self._seen[kind, name] += 1
            nth = self._seen[kind, name]
        mark = Mark(side, kind, name, nth)
        if self.killed:
            return None
        self.marks.append(mark)
        if mark == self._mark and self.kill is not None:
            self.killed = True
            self.kill()
            return None
        return nth


class _Message(msgspec.Struct):
    """What the module inside the program sends."""

    kind: Kind = "commit"
    name: str = ""
    side: Side = "before"
    outside: str = ""
    hello: str = ""


class Hook:
    """Listens to the module that runs inside the program. Each of its messages waits for an answer, so the program stands still."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.watch = PointWatch()
        self._links = Links()

    async def __aenter__(self) -> Self:
        self._links.add(await asyncio.start_unix_server(self._links.serving(self._serve), self.path))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._links.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        watch = self.watch
        # A thread may begin a second point before the first ends: a tool call contains commits.
        begun: dict[tuple[str, str], list[int]] = {}
        while line := await reader.readline():
            message = msgspec.json.decode(line, type=_Message)
            if not self._may_go_on(watch, message, begun):
                # No answer: the program is being killed. Wait until it is dead.
                await reader.read()
                return
            writer.write(b"\n")

    @staticmethod
    def _may_go_on(watch: PointWatch, message: _Message, begun: dict[tuple[str, str], list[int]]) -> bool:
        if message.hello:
            watch.connected = True
        elif message.outside:
            watch.outside.add(message.outside)
        else:
            point = (message.kind, message.name)
            if message.side == "before":
                nth = watch.reach(message.kind, message.name, "before")
                begun.setdefault(point, []).append(nth or 0)
            else:
                numbers = begun.get(point) or [0]
                nth = watch.reach(message.kind, message.name, "after", numbers.pop())
            return nth is not None
        return True
