"""A world and its twin, each played in a process of its own, which is measured and ended with everything that it has started."""

from __future__ import annotations

import importlib
import os
import select
import signal
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from tests.neighbours.kit import Done, Played
from tests.neighbours.storm_world import ACTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.neighbours.storm_world import World

LIMIT_S = 90.0
"""A play that takes longer hangs."""
Patch = "Callable[[Callable[..., None]], None]"


def warm(rooms: tuple[str, ...] = tuple(ACTS)) -> None:
    """Import what the plays need, so that each of them is a fork and nothing more."""
    for room in rooms:
        importlib.import_module(f"tests.neighbours.rooms.{room}_room").warm()


def play(world: World, *, alone: bool = False, patch: Callable[..., None] | None = None) -> Played:
    """Play a world; `alone`: without its hostile member. `patch` puts a bug back first."""
    reader, writer = os.pipe()
    begun = time.monotonic()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        _in_child(world, writer, alone=alone, patch=patch)
    os.close(writer)
    try:
        said = _read(reader, begun + LIMIT_S)
        status = _ended(pid)
    finally:
        os.close(reader)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
    played = msgspec.json.decode(said, type=Played) if said else Played()
    if not said:
        played.ended = "it hung" if time.monotonic() >= begun + LIMIT_S else f"the process ended by itself ({status})"
    played.took = time.monotonic() - begun
    return played


def _in_child(world: World, writer: int, *, alone: bool, patch: Callable[..., None] | None) -> None:
    code = 1
    try:
        os.setsid()
        # What tools print and what the runtime logs is no matter of the neighbours.
        with Path(os.devnull).open("r+b") as nothing:
            os.dup2(nothing.fileno(), 0)
            os.dup2(nothing.fileno(), 1)
            if not os.environ.get("NEIGHBOURS_LOG"):
                os.dup2(nothing.fileno(), 2)
        if patch is not None:
            patch(setattr)
        room = importlib.import_module(f"tests.neighbours.rooms.{world.room}_room")
        try:
            played = room.play(world, alone=alone)
        except BaseException:
            played = Played(ended=traceback.format_exc()[-3000:])
        played.peak_mb = played.peak_mb or peak_mb(os.getpid())
        os.write(writer, b"")
        with os.fdopen(writer, "wb") as out:
            out.write(msgspec.json.encode(played))
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)


def _read(reader: int, until: float) -> bytes:
    said = bytearray()
    while (left := until - time.monotonic()) > 0:
        if select.select([reader], [], [], left)[0]:
            part = os.read(reader, 1 << 20)
            if not part:
                break
            said += part
    with suppress(msgspec.DecodeError):
        msgspec.json.decode(said, type=Played)
        return bytes(said)
    return b""


def _ended(pid: int) -> str:
    for _ in range(100):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return f"exit code {os.waitstatus_to_exitcode(status)}"
        time.sleep(0.01)
    return "still running"


def peak_mb(pid: int) -> float:
    """Return the most memory that a process has had, in MB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1000
    return 0.0


__all__ = ["Done", "Played", "peak_mb", "play", "warm"]
