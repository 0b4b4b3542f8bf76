"""`Zygote`: a process that has imported what the program imports. Each run is a fork of it, instead of the start of an interpreter.

Invariant: a program is forked only where its runs are as those of an interpreter of its own: on Linux, from one thread, and without a
file that its imports have written.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.testing.crashtest.inside import forks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_PYTHON = re.compile(r"python[0-9.]*")
_IMPORTS_S = 60.0
_LINE_BYTES = 1_048_576


class CannotForkError(Exception):
    """Why the runs of this program start an interpreter each."""


class Forked:
    """A run that was forked. It has what `asyncio.subprocess.Process` has, as far as the test needs it."""

    def __init__(self, pid: int, answers: asyncio.StreamReader) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._answers = answers
        self._status: asyncio.Task[dict[str, Any]] | None = None

    async def wait(self) -> int:
        """Wait until it has ended; return its exit code, or the negative number of the signal that killed it."""
        if self._status is None:
            self._status = asyncio.ensure_future(_answer(self._answers))
        # A wait that is given up must not take the answer along.
        status = (await asyncio.shield(self._status))["status"]
        self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


class Zygote:
    """Forks the runs of one program.

    zygote = await Zygote.open(["python", "agent.py"], modules, folder, variables)
    run = await zygote.start("work", output="out", errors="err")
    await run.wait()
    """

    def __init__(self, process: asyncio.subprocess.Process, command: Sequence[str]) -> None:
        self._process = process
        self._command = list(command)

    @classmethod
    async def open(
        cls, command: Sequence[str], modules: Sequence[str], folder: Path, variables: Mapping[str, str]
    ) -> Zygote:
        """Start the process and let it import the modules. Raises `CannotForkError` where a fork would not be safe."""
        given = _of_python(command)
        if not modules:
            raise CannotForkError("it did not say what it imports")
        process = await asyncio.create_subprocess_exec(
            command[0],
            forks.__file__,
            cwd=folder,
            env=variables,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            start_new_session=True,
            limit=_LINE_BYTES,
        )
        zygote = cls(process, given)
        try:
            await zygote._import(modules, folder)
        except BaseException:
            await zygote.close()
            raise
        return zygote

    async def _import(self, modules: Sequence[str], folder: Path) -> None:
        try:
            self._send({"modules": list(modules)})
            async with asyncio.timeout(_IMPORTS_S):
                answer = await _answer(self._answers)
        except (ConnectionError, ValueError, TimeoutError) as error:
            raise CannotForkError("its imports did not end well without it") from error
        if not answer["safe"]:
            raise CannotForkError("its imports start threads")
        if os.listdir(folder):  # noqa: PTH208 - a moment
            raise CannotForkError("its imports write files")

    async def start(self, folder: Path, *, output: Path, errors: Path) -> Forked:
        """Run the program once in this folder."""
        self._send({"command": self._command, "folder": str(folder), "output": str(output), "errors": str(errors)})
        return Forked((await _answer(self._answers))["pid"], self._answers)

    async def close(self) -> None:
        """End the process. The process that started its children kills them."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    @property
    def _answers(self) -> asyncio.StreamReader:
        assert self._process.stdout is not None
        return self._process.stdout

    def _send(self, request: Mapping[str, object]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")


async def _answer(answers: asyncio.StreamReader) -> dict[str, Any]:
    line = await answers.readline()
    if not line:
        raise ConnectionError("the process that forks the runs has ended")
    answer: dict[str, Any] = json.loads(line)
    return answer


def _of_python(command: Sequence[str]) -> list[str]:
    """Return a command without its Python. Raises `CannotForkError` for what an interpreter must be started for."""
    if sys.platform != "linux":
        raise CannotForkError("runs are forked on Linux only")
    program, *given = command
    if not _PYTHON.fullmatch(Path(program).name):
        raise CannotForkError("its command does not begin with python")
    if not given or (given[0].startswith("-") and (given[0] != "-m" or len(given) == 1)):
        raise CannotForkError("Python gets options")
    return given
