"""Locks between processes that use the same file. `TurnLock` avoids SQLite's WAL-reset bug; `Presence` shows other processes.

Invariant: on POSIX, at most one Holdfast process at a time opens, closes, writes or tidies a file. A forked child does not share
its parent's locks, so they end with the parent.
"""

from __future__ import annotations

import os
import time
import weakref
from typing import TYPE_CHECKING

from holdfast._platform import after_fork
from holdfast.stores.errors import unavailable
from holdfast.stores.sqlite.high_water import HighWater
from holdfast.stores.sqlite.holders import holder_of

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.faults import HoldfastError

try:
    import fcntl
except ModuleNotFoundError:  # Windows has no flock; SQLite's own locks must be enough
    fcntl = None  # type: ignore[assignment]

_POLL_S = 0.001
_LONGEST_ID = 256


class _LockFile:
    """A file beside the store's file that we lock. On Windows we lock none: SQLite's own locks must be enough."""

    def __init__(self, path: Path) -> None:
        self._file: int | None = None
        if fcntl is not None:
            # Use flock, not a POSIX lock, because POSIX locks end when any descriptor of the file is closed.
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            _OPEN.add(self)

    @property
    def file(self) -> int | None:
        """Its descriptor, while it is open."""
        return self._file

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


_OPEN: weakref.WeakSet[_LockFile] = weakref.WeakSet()


def _leave_to_parent() -> None:
    # A lock lives until every process that shares it closes it. Without this function a child would keep the lock of its dead
    # parent.
    for lock in list(_OPEN):
        lock.close()


after_fork(_leave_to_parent)


class TurnLock(_LockFile):
    """A lock held for one transaction at a time."""

    def __init__(self, path: Path, limit: float) -> None:
        super().__init__(path)
        self._path = path
        self._limit = limit

    def __enter__(self) -> None:
        if self._file is None:
            return
        end = time.monotonic() + self._limit
        # Poll, because a blocking flock has no time limit.
        while not self.acquire_at_once():
            if time.monotonic() > end:
                raise _held(self._path, self._limit)
            time.sleep(_POLL_S)

    def acquire_at_once(self) -> bool:
        """Take the lock if no other process holds it; return whether it was taken. `release` gives it back."""
        return self._file is None or _try(self._file)

    def release(self) -> None:
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def __exit__(self, *_: object) -> None:
        self.release()


def _held(path: Path, limit: float) -> HoldfastError:
    holder = holder_of(path)
    reason = f"another process holds {path} for more than {limit:g} s"
    return unavailable(reason) if holder is None else unavailable(f"{reason}: {holder}", pid=holder.pid)


class NoTurns:
    """In place of `TurnLock` where SQLite's own locks are enough."""

    def __enter__(self) -> None:
        pass

    def acquire_at_once(self) -> bool:
        return True

    def release(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


class Presence(_LockFile):
    """Shows whether other processes have the store open, because each holds a shared lock. It also notes the store's id and last commit."""

    def alone(self) -> bool:
        """Whether no other process has the store open. Call it while holding the turn. Afterwards we hold our shared lock."""
        if self._file is None:
            return True
        # We get an exclusive lock only if no other process holds a shared lock. Then we turn it into a shared lock at once.
        alone = _try(self._file)
        fcntl.flock(self._file, fcntl.LOCK_SH)
        return alone

    def noted(self) -> str:
        """Return the id of the store that was opened here last, or an empty text."""
        if self._file is None:
            return ""
        # What follows the line is the note of the last commit.
        return os.pread(self._file, _LONGEST_ID, 0).decode(errors="replace").partition("\n")[0].strip()

    @property
    def high_water(self) -> HighWater:
        """The note of the last commit, in the same file."""
        return HighWater(self)

    def note(self, store_id: str) -> None:
        """Note the id of the store."""
        if self._file is not None and self.noted() != store_id:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"{store_id}\n".encode(), 0)


def forget_store(path: Path) -> None:
    """Forget the noted id, because the store's file was deleted and a new file is about to be made."""
    if path.exists():
        os.truncate(path, 0)


def _try(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
