"""Tools: fifty callers read, search, edit and compute; one caller's tools do what no tool should.

Shapes: `shared` is one toolbox for all; `own` is a toolbox for each caller, all of them on the same folder.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.neighbours.kit import FairClock, Played, WrongError, beside, member, neighbours, same, shown

from holdfast import CommandAgent, Policy, Tries, fault_of, tool
from holdfast.agents import ToolCalls
from holdfast.policies.circuit import BRIDGE
from holdfast.providers import ToolCall
from holdfast.tools import Toolbox, bash, edit_file, process_tool, read_file, search

if TYPE_CHECKING:
    from tests.neighbours.storm_world import World

MARK = "9876.125"
"""Programs of the member sleep so long; nobody else's do."""
_SHORT = 0.3
_ONCE = Policy(attempts=1, circuit=BRIDGE, wait_for_circuit=False)
_ANSWERED_S = 75.0
"""A call of the member's is answered after so long, whatever it does: its tools say how long they may take."""


def warm() -> None:
    """Everything is imported."""


def play(world: World, *, alone: bool) -> Played:
    with tempfile.TemporaryDirectory() as folder:
        room = _Room(world, Path(folder))
        return Played(done=asyncio.run(room.perform(alone=alone)), left=room.unanswered + _left())


def _left() -> list[str]:
    """Return the programs of the member that still run a moment after the end."""
    found: list[str] = []
    for _ in range(20):
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if MARK in line and os.getsid(int(process.name)) and _is_ours(int(process.name)):
                    found.append(line.strip()[:80])
        if not found:
            return []
        time.sleep(0.1)
    return found


def _is_ours(pid: int) -> bool:
    return f"NEIGHBOURS={os.getpid()}\0".encode() in Path(f"/proc/{pid}/environ").read_bytes()


class _Room:
    def __init__(self, world: World, folder: Path) -> None:
        os.environ["NEIGHBOURS"] = str(os.getpid())
        self.world, self.folder = world, folder
        self.unanswered: list[str] = []
        for who in range(world.neighbours):
            (folder / f"n{who}.txt").write_text(f"first of {who}\nword{who}x here\nlast of {who}\n")
        (folder / "evil.txt").write_text("a" * 40 + "b\n")
        mine = self.odd_tools()
        if world.shape == "shared":
            box = Toolbox([*self.good_tools(), *mine])
            self.boxes = [box] * world.neighbours
            self.box = box
        else:
            self.boxes = [Toolbox(self.good_tools()) for _ in range(world.neighbours)]
            self.box = Toolbox([*self.file_tools(), *mine])

    def file_tools(self) -> list[Any]:
        return [read_file(self.folder), search(self.folder), edit_file(self.folder)]

    def good_tools(self) -> list[Any]:
        @tool(effect="read", timeout=8)
        def square(n: int) -> int:
            """Compute the square of a number."""
            time.sleep(0.005)
            return n * n

        @tool(effect="read", timeout=8)
        async def twice(n: int) -> int:
            """Compute twice a number."""
            await asyncio.sleep(0.005)
            return 2 * n

        return [*self.file_tools(), square, twice]

    async def perform(self, *, alone: bool) -> Any:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda *_: None)
        jobs = {name: getattr(self, name) for name in ("read", "search", "edit", "many")}
        jobs |= {"sync": self.sync, "async": self.plain}
        acts = {each.kind: getattr(self, "act_" + each.kind.replace("-", "_")) for each in self.world.acts}
        return await beside(
            neighbours(self.world, jobs, FairClock(os.getpid())),
            None if alone else member(self.world, acts, 0.01),
            head_start=0.6,
        )

    # What neighbours do.

    async def _has(self, who: int, name: str, arguments: dict[str, Any], right: str) -> None:
        answer = await self.boxes[who].answer(name, arguments)
        if answer.is_error:
            raise RuntimeError(f"{name}: {answer.content}")
        if right not in answer.content:
            raise WrongError(f"{name}: no {right!r} in {shown(answer.content)}")

    async def read(self, who: int, turn: int) -> None:
        await self._has(who, "read_file", {"path": f"n{who}.txt"}, f"first of {who}\n")

    async def search(self, who: int, turn: int) -> None:
        await self._has(who, "search", {"pattern": f"word{who}x"}, f"n{who}.txt:2: word{who}x here")

    async def edit(self, who: int, turn: int) -> None:
        path = self.folder / f"n{who}.txt"
        old = path.read_text().splitlines()[2]
        answer = await self.boxes[who].answer(
            "edit_file", {"path": path.name, "old": old, "new": f"last of {who}, turn {turn}"}
        )
        if answer.is_error:
            raise RuntimeError(f"edit_file: {answer.content}")
        if path.read_text() != f"first of {who}\nword{who}x here\nlast of {who}, turn {turn}\n":
            raise WrongError(shown(path.read_text()))

    async def sync(self, who: int, turn: int) -> None:
        await self._has(who, "square", {"n": 1000 + who}, str((1000 + who) ** 2))

    async def plain(self, who: int, turn: int) -> None:
        await self._has(who, "twice", {"n": 1000 + who}, str(2000 + 2 * who))

    async def many(self, who: int, turn: int) -> None:
        await asyncio.gather(self.read(who, turn), self.search(who, turn), self.sync(who, turn), self.plain(who, turn))
        if who % 2 == 0:
            reply = await CommandAgent(["bash", "-c", f"echo script of {who}"], policy=_ONCE).run("work")
            same(reply.text, f"script of {who}")

    # What the member does.

    async def ask(self, name: str, times: int = 1, box: Toolbox | None = None, **arguments: Any) -> None:
        async def once() -> None:
            try:
                async with asyncio.timeout(_ANSWERED_S):
                    answer = await (box or self.box).answer(name, arguments)
                answer.content.encode()
            except (Exception, SystemExit) as error:
                self.unanswered.append(f"{name} was not answered: {type(error).__name__}: {error}"[:200])

        await asyncio.gather(*(once() for _ in range(times)))

    def odd_tools(self) -> list[Any]:
        @tool(effect="read")
        async def cycle() -> Any:
            loop: list[Any] = [1]
            loop.append({"again": loop})
            return loop

        @tool(effect="read")
        async def surrogate() -> Any:
            return {"text": "half \ud83d", "\udc00": ["\ud83d"]}

        @tool(effect="read")
        async def huge() -> str:
            return "x" * 100_000_000

        @tool(effect="read")
        async def huge_list() -> Any:
            return [{"row": n, "text": "x" * 90} for n in range(300_000)]

        @tool(effect="read")
        def exits() -> str:
            raise SystemExit(3)

        @tool(effect="read")
        async def exits_async() -> str:
            raise SystemExit(3)

        class OddError(BaseException):
            def __str__(self) -> str:
                raise RuntimeError("no text")

            __repr__ = __str__

        @tool(effect="read")
        async def raises_base() -> str:
            raise OddError

        @tool(effect="read")
        def raises_base_sync() -> str:
            raise OddError

        @tool(effect="read", timeout=_SHORT)
        def hangs() -> str:
            threading.Event().wait(60)
            return ""

        @tool(effect="read", timeout=_SHORT)
        async def hangs_async() -> str:
            await asyncio.Event().wait()
            return ""

        @tool(effect="read", timeout=_SHORT)
        async def swallows() -> str:
            until = time.monotonic() + 60
            while time.monotonic() < until:
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(1)
            return ""

        @tool(effect="read")
        async def garbage() -> bytes:
            return os.urandom(200_000)

        @tool(effect="read")
        async def deep() -> Any:
            inner: Any = []
            for _ in range(200_000):
                inner = [inner]
            return inner

        @tool(effect="read")
        async def recursion() -> Any:
            async def down() -> Any:
                return await down()

            return await down()

        @tool(effect="read")
        async def generator() -> Any:
            return (n for n in range(10**9))

        @tool(effect="read")
        async def huge_error() -> str:
            raise ValueError("no " * 5_000_000)

        @tool(effect="read")
        async def odd_text() -> Any:
            class Odd:
                def __str__(self) -> str:
                    raise SystemExit(4)

                __repr__ = __str__

            return {"odd": Odd(), "nan": float("nan"), "set": {1}, "lambda": lambda: 1}

        @tool(effect="read", retry=Tries(attempts=5))
        async def retries() -> str:
            raise ConnectionRefusedError(111, "refused")

        @tool(effect="read", service="someone")
        async def serves() -> str:
            raise ConnectionResetError(104, "reset")

        @tool(effect="read")
        def prints() -> str:
            print("{" * 1_000_000)  # noqa: T201
            os.write(1, b"\x00\xff" * 100_000)
            return "ok"

        @tool(effect="read")
        def closed_loop() -> Any:
            return asyncio.run(asyncio.sleep(0.01))

        @tool(effect="read")
        async def no_return() -> Any:
            return asyncio.sleep(0), object(), type

        return [
            cycle, surrogate, huge, huge_list, exits, exits_async, raises_base, raises_base_sync, hangs, hangs_async, swallows,
            garbage, deep, recursion, generator, huge_error, odd_text, retries, serves, prints, closed_loop, no_return,
            process_tool("flood", ["bash", "-c", f"yes 'line {MARK}'"], effect="read", timeout=2),
            process_tool("sleeps", ["bash", "-c", f"trap '' TERM; sleep {MARK}"], effect="read", timeout=_SHORT),
            process_tool("leaves", ["bash", "-c", f"setsid sleep {MARK} & (sleep {MARK} &) ; echo done"], effect="read", timeout=5),
            bash(self.folder),
        ]  # fmt: skip

    async def act_slow_pattern(self, strength: int) -> None:
        await self.ask("search", 5 * strength, pattern="(a|a)*$")
        await self.ask("search", strength, pattern="(a+)+$")

    async def act_bad_pattern(self, strength: int) -> None:
        for pattern in ("(", "a" * 100_000, "\ud83d", "\x00", "(?P<", "[" * 500, "(" * 5000 + ")" * 5000):
            await self.ask("search", 2 * strength, pattern=pattern)

    async def act_wrong_path(self, strength: int) -> None:
        for path in ("../../etc/passwd", "/etc/shadow", "none.txt", "", ".", "\x00", "a" * 5000, "\ud83d", "n1.txt/x"):
            await self.ask("read_file", 2 * strength, path=path)
            await self.ask("edit_file", strength, path=path, old="a", new="b")

    async def act_cycle(self, strength: int) -> None:
        await self.ask("cycle", strength)

    async def act_surrogate(self, strength: int) -> None:
        await self.ask("surrogate", strength)
        await self.ask("retries\ud83d", strength)
        await self.ask("square", strength, n="\ud83d")

    async def act_huge(self, strength: int) -> None:
        await self.ask("huge")
        await self.ask("huge_list")
        await asyncio.sleep(0.5 / strength)

    async def act_exits(self, strength: int) -> None:
        await self.ask("exits", strength)
        await self.ask("exits_async", strength)

    async def act_hangs(self, strength: int) -> None:
        await self.ask("hangs", 30 * strength)

    async def act_hangs_async(self, strength: int) -> None:
        await self.ask("hangs_async", 30 * strength)

    async def act_swallows(self, strength: int) -> None:
        await self.ask("swallows", 30 * strength)

    async def act_garbage(self, strength: int) -> None:
        await self.ask("garbage", strength)

    async def act_deep(self, strength: int) -> None:
        await self.ask("deep", strength)
        await self.ask("square", strength, n=[[[[]]]] * 1000)

    async def act_wrong_arguments(self, strength: int) -> None:
        for wrong in ({}, {"n": "x"}, {"n": 10**5000}, {"n": None, "z": 1}, {"m": 1}):
            await self.ask("square", strength, **wrong)
        for text in ("{", "null", "[1]", '{"n": NaN}', "x" * 100_000, '"' + "\\ud83d" * 9, "[" * 100_000):
            with suppress(Exception):
                await self.box.answer("square", text)

    async def act_program_flood(self, strength: int) -> None:
        await self.ask("flood", strength)

    async def act_program_hangs(self, strength: int) -> None:
        await self.ask("sleeps", 3 * strength)

    async def act_program_leaves(self, strength: int) -> None:
        await self.ask("leaves", 2 * strength)
        await self.ask("bash", strength, command=f"nohup setsid sleep {MARK} >/dev/null 2>&1 & disown; echo ok")

    async def act_sick_disk(self, strength: int) -> None:
        sick = Toolbox([read_file("/proc/self"), search("/proc/self")])  # `mem` cannot be read: EIO
        await self.ask("read_file", 4 * strength, box=sick, path="mem")
        await self.ask("read_file", 4 * strength, box=sick, path="attr/exec")

    async def act_retries(self, strength: int) -> None:
        await self.ask("retries", 5 * strength)

    async def act_same_service(self, strength: int) -> None:
        sick = CommandAgent(["bash", "-c", "echo network down >&2; exit 1"], policy=_ONCE)
        await asyncio.gather(*(sick.outcome("work") for _ in range(12)))

        @tool(effect="read", name="square")
        async def other(n: int) -> int:
            raise ConnectionResetError(104, "reset")

        await self.ask("serves", 5 * strength)
        await self.ask("square", 8 * strength, box=Toolbox([other]), n=1)

    async def act_raises_base(self, strength: int) -> None:
        for ends in ("raises_base", "raises_base_sync"):
            await self.beside(ends)
        await self.ask("raises_base", strength)
        await self.ask("raises_base_sync", strength)

    async def beside(self, ends: str) -> None:
        """The calls of one reply are neighbours, too: what one of them raises takes no result of another."""
        names = ["square", "twice", ends, "square"]
        calls = [
            ToolCall(id=f"{n}", name=name, arguments={"n": n} if name != ends else {}) for n, name in enumerate(names)
        ]
        try:
            results = [
                each.content for each in await ToolCalls(Toolbox([*self.good_tools(), *self.odd_tools()])).run(calls)
            ]
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                raise
            partial = fault_of(error).partial
            results = [] if partial is None else [each["content"] for each in partial.payload["results"]]
        if results[:2] != ["0", "2"] or results[3:] != ["9"]:
            self.unanswered.append(f"beside {ends} there is {shown(str(results))}")

    async def act_recursion(self, strength: int) -> None:
        await self.ask("recursion", strength)

    async def act_generator(self, strength: int) -> None:
        await self.ask("generator", strength)

    async def act_huge_error(self, strength: int) -> None:
        await self.ask("huge_error", strength)

    async def act_odd_text(self, strength: int) -> None:
        await self.ask("odd_text", strength)

    async def act_edits(self, strength: int) -> None:
        await self.ask("edit_file", 5 * strength, path="evil.txt", old="a", new="")
        await self.ask("edit_file", strength, path=f"new{strength}.txt", old="", new="x" * 2_000_000)

    async def act_closed_loop(self, strength: int) -> None:
        await self.ask("closed_loop", strength)

    async def act_big_file(self, strength: int) -> None:
        big = self.folder / "big.bin"
        if not big.exists():
            big.write_bytes(b"\xff\x00line without an end" * 2_000_000)
            (self.folder / "\udce4.txt").write_text("a name that is no text\n")
        await self.ask("read_file", 2 * strength, path="big.bin")
        await self.ask("search", strength, pattern="end$")

    async def act_no_return(self, strength: int) -> None:
        await self.ask("no_return", strength)

    async def act_prints(self, strength: int) -> None:
        await self.ask("prints", strength)
