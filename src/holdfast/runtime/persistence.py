"""Circuits across restarts, for those who ask for it: what a process knew to be down is still known after it.

Only circuits with `persist=True` are written. Invariant: a file that cannot be read changes nothing and says what is wrong
with it; writing replaces the old file whole or not at all.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast.faults import InvalidError
from holdfast.policies.circuit import Breaker, BreakerSnapshot, Circuit

if TYPE_CHECKING:
    from holdfast.runtime.runtime import Runtime

__all__ = ["load_circuits", "save_circuits"]


class _File(msgspec.Struct, frozen=True, kw_only=True):
    """What is in the file. Times are wall clock."""

    version: int = 1
    circuits: tuple[BreakerSnapshot, ...] = ()


def save_circuits(runtime: Runtime, path: str | Path) -> int:
    """Write the state of the circuits that ask for it; return how many there were."""
    now, wall = runtime.clock.monotonic(), runtime.clock.wall()
    lines = [line for line in runtime.lines if line.circuit is not None and line.circuit.persist]
    snapshots = []
    for line in lines:
        with line.lock:
            snapshots.append(line.breaker.snapshot(now, wall))
    _replace(Path(path), msgspec.json.encode(_File(circuits=tuple(snapshots))))
    return len(snapshots)


def load_circuits(runtime: Runtime, path: str | Path) -> int:
    """Take on what `save_circuits` wrote; return how many circuits. No file: none.

    A circuit that is known here already keeps what it knows; the others begin with their state of then, once they are used
    with a policy whose circuit has `persist=True`.
    """
    try:
        written = Path(path).read_bytes()
    except FileNotFoundError:
        return 0
    try:
        file = msgspec.json.decode(written, type=_File)
    except msgspec.ValidationError as error:
        raise InvalidError.from_msgspec(error) from error
    except msgspec.DecodeError as error:
        raise InvalidError.saying(str(path), "circuits as save_circuits writes them", str(error)) from error
    if file.version != 1:
        raise InvalidError.at(f"{path}: version", "1; a newer Holdfast wrote this", file.version)
    now, wall = runtime.clock.monotonic(), runtime.clock.wall()
    for snapshot in file.circuits:
        # What makes no sense is refused here, by name, and not by the first call to that circuit.
        Breaker.restore(Circuit(persist=True), snapshot, now, wall)
    runtime.lines.remember(file.circuits, wall - now)
    return len(file.circuits)


def _replace(path: Path, content: bytes) -> None:
    """Write beside the file and move it in place: a crash leaves the old one."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
