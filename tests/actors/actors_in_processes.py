"""Actors that run in processes: their classes must stand at the top of a module."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
import time
from typing import Literal

import msgspec

from holdfast.actors import Actor, IgnoreStart
from holdfast.runtime.ambient import AMBIENT, in_force
from holdfast.runtime.lineage import REQUEST


class Note(msgspec.Struct):
    text: str
    line: int


class OddError(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


class Worker(Actor, host="process", timeout=60):
    def __init__(self, name: str = "worker") -> None:
        self.name = name
        self.count = 0

    async def pid(self) -> int:
        return os.getpid()

    async def request(self) -> str:
        return REQUEST.get()

    async def add(self, n: int) -> int:
        self.count += n
        return self.count

    async def review(self, notes: list[Note], *, first: bool = False) -> tuple[Note, ...]:
        return tuple(notes[:1] if first else notes)

    async def wait(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return self.name

    async def block(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 - a worker that is busy is what is tested

    async def die(self, how: str) -> None:
        match how:
            case "exit":
                os._exit(1)
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "segfault":
                ctypes.string_at(0)
            case "sys.exit":
                raise SystemExit(3)

    async def fail(self, what: str) -> None:
        match what:
            case "timeout":
                raise TimeoutError("the provider is slow")
            case "key":
                raise KeyError("plan")
            case "odd":
                raise OddError(1, 2)
            case "group":
                raise ExceptionGroup("several", [ValueError("one")])
            case "object":
                raise KeyError(Worker)
            case "large":
                raise ValueError(10**30)
            case "half":
                raise ValueError("\ud800")

    async def fork(self, how: str) -> int:
        """Return the exit code of a fork that leaves this method as `how` says."""
        child = os.fork()
        if child == 0:
            match how:
                case "exits":
                    raise SystemExit(7)
                case "raises":
                    raise KeyError("in the fork")
                case "returns":
                    return 1_000
                case "writes":
                    for number in range(3, 64):
                        with contextlib.suppress(OSError):
                            os.write(number, b"from the fork")
                    os._exit(9)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])  # noqa: ASYNC222 - as above

    async def start_sleeper(self) -> int:
        # It has another session, no environment and no parent.
        script = "env -i setsid sleep 300 >/dev/null 2>&1 & echo $!"
        return int(subprocess.run(["bash", "-c", script], capture_output=True, check=True).stdout)  # noqa: ASYNC221

    async def seconds_left(self) -> float | None:
        scope = in_force(AMBIENT.get())
        return None if scope is None else scope.cut_on(time.monotonic) - time.monotonic()

    async def finish(self) -> str:
        self.stop("done")
        return "bye"

    async def odd_result(self) -> object:
        return lambda: None

    async def anything(self, value: object) -> None: ...

    async def label(
        self,
        text: str,
        counts: dict[int, str] | None = None,
        *,
        level: Literal["low", "high"] = "low",
        share: float = 0,
    ) -> object:
        return (text, counts, level, share)


class Remembering(Worker):
    def snapshot(self) -> int:
        return self.count

    def restore(self, state: int) -> None:
        self.count = state


class Pickled(Worker, pickle=True):
    async def odd_result(self) -> object:
        return {OddError}

    async def unpicklable(self) -> object:
        return lambda: None


class FailsToStart(Worker):
    async def started(self) -> None:
        if self.name == "ignore":
            raise IgnoreStart
        if self.name == "exit":
            os._exit(7)
        raise ValueError("no such model")


class Tidy(Worker):
    async def stopping(self, exit) -> None:  # noqa: A002
        with open(self.name, "w") as file:  # noqa: ASYNC230, PTH123
            file.write(str(exit))
