"""Other processes at the same file: taking turns with them where SQLite itself may fail (the WAL-reset bug), and seeing them.

Invariant: on POSIX, at most one process of Holdfast opens, closes, writes to or tidies a file at a time. A forked child has no
part in its parent's locks: they end with the parent.
"""

from __future__ import annotations

import os
import time
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

from holdfast._platform import after_fork
from holdfast.stores.errors import unavailable

try:
    import fcntl
except ModuleNotFoundError:  # Windows has no flock: SQLite's own locks have to do
    fcntl = None  # type: ignore[assignment]

__all__ = ["Presence", "Turns", "forget_noted"]

_LOOK_AGAIN_S = 0.001
_MOST_NOTED = 256


class _LockFile:
    """A file beside the store's, open for as long as we may want to lock it. On Windows SQLite's own locks have to do."""

    def __init__(self, path: Path) -> None:
        self._file: int | None = None
        if fcntl is not None:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            _OPEN.add(self)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


_OPEN: weakref.WeakSet[_LockFile] = weakref.WeakSet()


def _leave_to_parent() -> None:
    # A lock lives until every process that shares it closes it: without this a child would keep its dead parent's.
    for lock in list(_OPEN):
        lock.close()


after_fork(_leave_to_parent)


class Turns(_LockFile):
    """A lock held for one transaction at a time."""

    def __init__(self, path: Path, limit: float) -> None:
        super().__init__(path)
        self._path = path
        self._limit = limit

    def __enter__(self) -> None:
        if self._file is None:
            return
        end = time.monotonic() + self._limit
        while not _try(self._file):
            if time.monotonic() > end:
                raise unavailable(f"another process holds {self._path} for more than {self._limit:g} s")
            time.sleep(_LOOK_AGAIN_S)

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)


class Presence(_LockFile):
    """Tells whether other processes have the same store open: each holds its share of a lock. And which store it was."""

    def alone(self) -> bool:
        """Whether nobody else has it open. Our own share is held afterwards. To be called in turn."""
        if self._file is None:
            return True
        alone = _try(self._file)
        fcntl.flock(self._file, fcntl.LOCK_SH)
        return alone

    def noted(self) -> str:
        """Return the id of the store that was here when it was opened last."""
        return "" if self._file is None else os.pread(self._file, _MOST_NOTED, 0).decode(errors="replace").strip()

    def note(self, store_id: str) -> None:
        if self._file is not None and self.noted() != store_id:
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, f"{store_id}\n".encode(), 0)


def forget_noted(path: Path) -> None:
    """Forget which store was here: its file is gone, and another is about to be made."""
    if path.exists():
        os.truncate(path, 0)


def _try(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
