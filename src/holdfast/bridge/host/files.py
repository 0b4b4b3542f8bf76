"""`HostFiles`: where a bridge finds the process of its agents: its address, its log, and who may use it.

Invariant: only the owner of the folder can reach the process. At most one process of agents and one server use the same files: each holds a lock,
which ends with it, however it ends.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast.bridge.access.private_files import read_private, write_private

if TYPE_CHECKING:
    from collections.abc import Sequence

try:
    import fcntl
except ModuleNotFoundError:  # Windows has no flock, and no Unix sockets: agents cannot be detached there
    fcntl = None  # type: ignore[assignment]

__all__ = ["HostFiles", "HostRecord"]

_LONGEST_ADDRESS = 100
"""Bytes of the path of a Unix socket. Systems allow 104 or 108."""
_LONGEST_LOG = 1_000_000
_SHOWN_LOG = 600


class HostRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What the file of a process of agents says."""

    pid: int
    address: str
    version: str


class HostFiles:
    """The files of the process that runs an agent for the sessions of one store: `HostFiles.of(home, "app:agent", "sqlite:work.db")`."""

    def __init__(self, folder: Path, key: str) -> None:
        self.folder = folder
        self.key = key
        self.record_path = folder / f"{key}.json"
        self.log_path = folder / f"{key}.log"

    @classmethod
    def of(cls, home: Path, *facts: str) -> HostFiles:
        """Return the files for an agent: what makes it another agent must be among the facts."""
        return cls(home / "agents", sha256(msgspec.json.encode(facts)).hexdigest()[:12])

    @classmethod
    def all_in(cls, home: Path) -> Sequence[HostFiles]:
        """Return the files of every process that is known in a bridge's folder."""
        return [cls(path.parent, path.stem) for path in sorted((home / "agents").glob("*.json"))]

    def make_folder(self) -> None:
        """Make the folder, for its owner only."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def record(self) -> HostRecord | None:
        """Return how the process is reached, or None if it is not known."""
        content = read_private(self.record_path)
        if content is None:
            return None
        with suppress(msgspec.MsgspecError):  # a record that nobody can read is none
            return msgspec.json.decode(content, type=HostRecord)
        return None

    def write(self, record: HostRecord) -> None:
        """Say how the process is reached."""
        write_private(self.record_path, msgspec.json.encode(record))

    def address(self) -> str:
        """Return a path for the socket. Its folder is only for its owner, also if it is not the bridge's."""
        own = self.folder / f"{self.key}.sock"
        if len(os.fsencode(own)) <= _LONGEST_ADDRESS:
            return str(own)
        return str(Path(tempfile.mkdtemp(prefix="holdfast-")) / "agents.sock")

    def forget(self, record: HostRecord) -> None:
        """Remove what says how the process is reached."""
        self.record_path.unlink(missing_ok=True)
        address = Path(record.address)
        address.unlink(missing_ok=True)
        if address.parent != self.folder:
            with suppress(OSError):  # other hosts may have their sockets in it
                address.parent.rmdir()

    def lock(self, who: str) -> int | None:
        """Take a lock that the end of this process ends. None: another process has it."""
        assert fcntl is not None
        self.make_folder()
        descriptor = os.open(self.folder / f".{self.key}.{who}", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        return descriptor

    def open_log(self) -> int:
        """Return the log of the process, open for writing."""
        self.make_folder()
        log = os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        if os.fstat(log).st_size > _LONGEST_LOG:
            os.ftruncate(log, 0)
        return log

    def end_of_log(self) -> str:
        """Return the last line that the process wrote."""
        with suppress(OSError, IndexError):  # an empty or missing log has no last line
            return self.log_path.read_text(errors="replace").strip().splitlines()[-1][:_SHOWN_LOG]
        return ""
