"""Other processes at the same file: taking turns with them where SQLite itself may fail (the WAL-reset bug), and seeing them.

Invariant: on POSIX, at most one process of Holdfast writes to or tidies a file at a time.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

from holdfast.stores.refusals import unavailable

if sys.platform != "win32":
    import fcntl

__all__ = ["Presence", "Turns"]

_LOOK_AGAIN_S = 0.001


class Turns:
    """A lock on a file beside the store's, held for one transaction at a time. Without a path it does nothing."""

    def __init__(self, path: Path | None, limit: float) -> None:
        self._path = path
        self._limit = limit
        self._file = None if path is None else _lock_file(path)

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

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


class Presence:
    """Tells whether other processes have the same store open: each holds its share of a lock on a file beside it."""

    def __init__(self, path: Path) -> None:
        self._file = _lock_file(path)

    def alone(self) -> bool:
        """Whether nobody else has it open. Our own share is held afterwards."""
        if self._file is None:
            return True
        alone = _try(self._file)
        fcntl.flock(self._file, fcntl.LOCK_SH)
        return alone

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _lock_file(path: Path) -> int | None:
    """Return a file to lock, or None where SQLite's own locks have to do."""
    return None if sys.platform == "win32" else os.open(path, os.O_RDWR | os.O_CREAT, 0o600)


def _try(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
