"""Files that only their owner may read: tokens and private keys.

Invariant: such a file never exists with a wider mode, not even for a moment, and a reader sees the old content or the new one, never
a part. A file that others could read or replace is not used.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING

from holdfast.faults import Fault, HoldfastError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

try:
    import fcntl
except ModuleNotFoundError:  # Windows has no flock; two commands at the same moment could lose one change there
    fcntl = None  # type: ignore[assignment]

__all__ = ["locked", "read_private", "state_folder", "write_private"]


def state_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return where a bridge keeps its tokens and keys: `holdfast/bridge` in the user's state folder (`XDG_STATE_HOME`).

    `HOLDFAST_BRIDGE_HOME` names another folder.
    """
    environ = os.environ if environ is None else environ
    named = environ.get("HOLDFAST_BRIDGE_HOME", "").strip()
    if named:
        return Path(named).expanduser()
    state = environ.get("XDG_STATE_HOME", "")
    # The XDG specification says to ignore a relative path.
    folder = Path(state) if Path(state).is_absolute() else Path.home() / ".local" / "state"
    return folder / "holdfast" / "bridge"


def read_private(path: Path) -> bytes | None:
    """Return the content of a private file, or None if there is none.

    Raises CONFIG_INVALID if others may read or replace it: whoever could do that holds the secrets already.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        # The open file is checked, not its name, which could be exchanged in between.
        _check_mode(path, os.fstat(descriptor).st_mode, stat.S_IRWXG | stat.S_IRWXO, "600")
        _check_folder(path.parent)
        return file.read()


def write_private(path: Path, content: bytes) -> None:
    """Write a private file in one step. Its folder is made if it is missing; it survives a power cut."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_folder(path.parent)
    early = path.with_name(f".{path.name}.{token_hex(6)}")
    descriptor = os.open(early, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        early.replace(path)
    except BaseException:
        early.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a private file while it is read, changed and written. Other processes wait."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # A file beside it is locked, because the file itself is replaced by each write.
    descriptor = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if fcntl is not None:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _check_folder(folder: Path) -> None:
    mode = folder.stat().st_mode
    # In a sticky folder such as /tmp nobody can replace the files of other users.
    if not mode & stat.S_ISVTX:
        _check_mode(folder, mode, stat.S_IWGRP | stat.S_IWOTH, "go-w")


def _check_mode(path: Path, mode: int, forbidden: int, remedy: str) -> None:
    if os.name == "posix" and mode & forbidden:
        verb = "read" if forbidden & stat.S_IROTH else "changed"
        message = f"{path} can be {verb} by other users (mode {stat.S_IMODE(mode):o}): run chmod {remedy} on it, and replace its secrets"
        raise HoldfastError(Fault.of("CONFIG_INVALID", message, context={"path": str(path)}))


def _sync_folder(folder: Path) -> None:
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
