"""The SQLite file: its permissions, its version, its connections.

Invariant: a file that is not ours, or that a newer Holdfast wrote, raises before a byte of it changes.
"""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import stat
import time
import uuid
from contextlib import closing
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from holdfast.faults import Fault, HoldfastError
from holdfast.stores.failpoints import FAILPOINTS
from holdfast.stores.records import Commit, NewAudit
from holdfast.stores.sql.commits import commit_script
from holdfast.stores.sql.schema import VERSION, SqlDialect, migrations
from holdfast.stores.sqlite.tables import run_script

if TYPE_CHECKING:
    from pathlib import Path

APPLICATION_ID = 0x486F6C64
"""Marks a SQLite file as ours: "Hold"."""

DIALECT = SqlDialect(
    text="TEXT",
    blob="BLOB",
    real="REAL",
    integer="INTEGER",
    key="INTEGER PRIMARY KEY",
    clustered="WITHOUT ROWID",
    lock="",
)

_LOG = logging.getLogger("holdfast")
_SYNCHRONOUS = {"full": "FULL", "fast": "NORMAL"}
_FIRST_PAGE = 4096


def prepare(path: Path) -> None:
    """Create the file and its folder if needed, for their owner only; raise if others may write to them."""
    _make_folder(path.parent)
    if not path.exists():
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    if os.name == "posix":
        _check_permissions(path)
    # Otherwise SQLite would leave a WAL that nobody can write to. We do not open the file for this check, because closing it would
    # release the POSIX locks of another store of this process.
    if not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, "it may not be written to (to only read it, open sqlite:PATH?mode=ro)")


def check_ours(path: Path) -> None:
    """Raise SESS_MANIFEST_INVALID for a file that is not ours, or too new, without writing to it."""
    # An empty file is new. Do not open it, because SQLite would remove the WAL of a file that was emptied.
    if not path.stat().st_size:
        return
    # `immutable` keeps SQLite from leaving its own files beside a file that may not be ours.
    under_way = any(path.with_name(f"{path.name}-{kind}").exists() for kind in ("wal", "journal"))
    how = "mode=ro" if under_way else "mode=ro&immutable=1"
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?{how}", uri=True, isolation_level=None)) as reading:
        try:
            # Read from one snapshot, because another process may be creating the tables right now.
            reading.execute("BEGIN")
            check_tables(path, reading)
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_READONLY_ROLLBACK:
                raise
            # A process died while writing without a WAL. We write so only while the file is new and has one page.
            if path.stat().st_size > _FIRST_PAGE:
                raise _invalid(path, "is a database of another program") from error


def check_not_emptied(path: Path, held: str) -> None:
    """Raise if a file has become empty. Treating it as new would hide that its sessions are lost."""
    if held and not path.stat().st_size:
        raise _invalid(
            path,
            f"is empty, but it contained the store {held} before: restore the file from a backup, or delete it to start a new store",
        )


def connect(path: Path, *, durability: str, busy: float) -> sqlite3.Connection:
    """Open a connection with our settings; transactions are started by hand."""
    connection = sqlite3.connect(
        path, timeout=busy, isolation_level=None, check_same_thread=False, cached_statements=256
    )
    try:
        # With a WAL readers and the writer never wait for each other.
        connection.execute("PRAGMA journal_mode = WAL")
        set_durability(connection, durability)
        # The writer decides when to move the WAL. A reader must not do it.
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("PRAGMA foreign_keys = OFF")
    except BaseException:
        connection.close()
        raise
    return connection


def set_durability(connection: sqlite3.Connection, durability: str) -> None:
    connection.execute(f"PRAGMA synchronous = {_SYNCHRONOUS[durability]}")


def connect_to_read(path: Path, busy: float, *, idle: bool) -> sqlite3.Connection:
    """Open a connection that cannot write. With `idle` it takes no locks and leaves no file beside this one."""
    how = "mode=ro&immutable=1" if idle else "mode=ro"
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?{how}", uri=True, timeout=busy, isolation_level=None, check_same_thread=False
    )


def copy_migrated(connection: sqlite3.Connection, copy: Path) -> None:
    """Write a copy of an older store whose tables have our version."""
    with closing(sqlite3.connect(copy, isolation_level=None)) as ours:
        connection.backup(ours)
        migrate(ours, copy)
        # Without a WAL the copy is one file.
        ours.execute("PRAGMA journal_mode = DELETE")


class FileState(NamedTuple):
    """How a file looks from outside. It differs after another process has written to it."""

    idle: bool
    """Whether all of its content is in the file itself: it has no WAL or journal."""
    file: tuple[int, int]
    changed: int
    size: int


def state(path: Path) -> FileState:
    """Return how the file looks now."""
    found = path.stat()
    return FileState(not _is_under_way(path), _number(found), found.st_mtime_ns, found.st_size)


class FileIdentity:
    """Which file is open. A person who deletes or replaces it, or its WAL, does not notice that we still write to the old one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._wal = path.with_name(f"{path.name}-wal")
        self._file = _number(os.stat(path))  # noqa: PTH116 - Path.stat takes twice as long, and this is done for each commit
        self._log: tuple[int, int] | None = None
        self.wal_bytes = 0
        """The size of the WAL after the last commit."""

    def check(self) -> None:
        """Raise if the name means another file by now. The WAL is there after the first commit."""
        try:
            file, wal = os.stat(self._path), os.stat(self._wal)  # noqa: PTH116 - see above
        except FileNotFoundError as error:
            raise self._gone("deleted") from error
        log = _number(wal)
        if _number(file) != self._file or log != (self._log or log):
            raise self._gone("replaced")
        self._log, self.wal_bytes = log, wal.st_size

    def _gone(self, how: str) -> HoldfastError:
        reason = (
            f"{self._path}, or its WAL, was {how} while it was open; what is written now would be lost: open it again"
        )
        message = f"The session store failed: {reason}"
        return HoldfastError(
            Fault.of(
                "SESS_STORE_UNAVAILABLE", message, retryable=False, context={"path": str(self._path), "reason": reason}
            )
        )


def _number(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _is_under_way(path: Path) -> bool:
    """Whether the file has a WAL or journal with content that is not in the file itself."""
    beside = (path.with_name(f"{path.name}-{kind}") for kind in ("wal", "journal"))
    return any(other.exists() and other.stat().st_size for other in beside)


def migrate(connection: sqlite3.Connection, path: Path) -> str:
    """Bring the tables to our version, all steps in one transaction; return the store's id."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        # Another process, such as a newer Holdfast, may have changed the file since the first check.
        version = check_tables(path, connection)
        for step in range(version + 1, VERSION + 1):
            for statement in migrations(DIALECT)[step]:
                FAILPOINTS.reach("migrating")
                connection.execute(statement)
        # Set the version in the same transaction as the tables, so that they match after a crash.
        if version < VERSION:
            connection.execute(f"PRAGMA user_version = {VERSION}")
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute("INSERT OR IGNORE INTO meta VALUES ('store_id', ?)", (f"sqlite-{uuid.uuid4().hex}",))
        ((store_id,),) = connection.execute("SELECT value FROM meta WHERE name = 'store_id'").fetchall()
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    return str(store_id)


def begin(connection: sqlite3.Connection, durability: str, *, alone: bool) -> None:
    """Note that a store with fast durability is in use. If such a store stopped uncleanly, give its sessions new epochs.

    After an unclean stop the last entries may be lost, and the same offsets may be used for other entries. If other processes have
    the file open, it did not stop, so only a process that is alone checks this. Call it while the connection is fully durable: the
    note must survive a power cut.
    """
    connection.execute("BEGIN IMMEDIATE")
    if alone and connection.execute("DELETE FROM meta WHERE name = 'fast_in_use' RETURNING 1").fetchall():
        connection.execute("UPDATE session SET epoch = lower(hex(randomblob(12)))")
    if durability == "fast":
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('fast_in_use', '1')")
    connection.execute("COMMIT")


def end(connection: sqlite3.Connection, *, alone: bool) -> None:
    """Remove the note: the last process that had the file open closed it cleanly."""
    if alone:
        connection.execute("DELETE FROM meta WHERE name = 'fast_in_use'")


def epoch(connection: sqlite3.Connection) -> str:
    """Return the store's epoch: its id, until it is set back for the first time."""
    ((found,),) = connection.execute("SELECT max(value) FROM meta WHERE name = 'epoch'").fetchall()
    ((store_id,),) = connection.execute("SELECT value FROM meta WHERE name = 'store_id'").fetchall()
    return str(found or store_id)


def begin_epoch(connection: sqlite3.Connection, path: Path, session: str) -> None:
    """Begin a new epoch of the store and of its sessions, because the file was set back. `session` is one that it does not hold any more."""
    _LOG.warning(
        "the session store %s was set back: it lacks what was stored last, in session %s. A backup was restored, or its WAL was deleted."
        " Sessions that ran before are only resumed with on_drift='accept'",
        path,
        session,
    )
    payload = msgspec.json.encode({"event": "store-set-back", "session": session})
    record = NewAudit(kind="Integrity", correlation=session, payload=payload)
    connection.execute("BEGIN IMMEDIATE")
    # After an offset means another entry than before, clients must load the session anew.
    connection.execute("UPDATE session SET epoch = lower(hex(randomblob(12)))")
    connection.execute("INSERT OR REPLACE INTO meta VALUES ('epoch', ?)", (f"epoch-{uuid.uuid4().hex}",))
    run_script(connection, commit_script(Commit(chain="store", audit=(record,)), time.time(), ""))
    connection.execute("COMMIT")


def is_affected(version: tuple[int, ...]) -> bool:
    """Whether a SQLite version may lose writes if several processes write and checkpoint at the same instant.

    This is the WAL-reset bug (sqlite.org/wal.html). It is fixed in 3.51.3, and in the older lines in 3.50.7 and 3.44.6.
    """
    if version[:2] == (3, 44):
        return version < (3, 44, 6)
    if version[:2] == (3, 50):
        return version < (3, 50, 7)
    return version < (3, 51, 3)


def log_version(path: Path) -> None:
    """Write to the log that this SQLite should be replaced.

    The level is only DEBUG, because Holdfast's own processes are safe and a program's user cannot act on it. `holdfast doctor`
    reports it too.
    """
    if is_affected(sqlite3.sqlite_version_info):
        _LOG.debug(
            "SQLite %s has the WAL-reset bug: keep programs other than Holdfast from writing to %s; see holdfast doctor",
            sqlite3.sqlite_version,
            path.name,
        )


def _check_permissions(path: Path) -> None:
    for place in (path.parent, path):
        mode = place.stat().st_mode
        # In a sticky folder such as /tmp nobody can replace the files of other users.
        if mode & (stat.S_IWGRP | stat.S_IWOTH) and not (place.is_dir() and mode & stat.S_ISVTX):
            message = f"{place} can be written by others (mode {stat.S_IMODE(mode):o}): run chmod go-w on it"
            raise HoldfastError(
                Fault.of("SESS_STORE_UNAVAILABLE", message, retryable=False, context={"path": str(place)})
            )


def _make_folder(folder: Path) -> None:
    """Create a folder so that it survives a power cut."""
    if folder.exists():
        return
    _make_folder(folder.parent)
    folder.mkdir(mode=0o700, exist_ok=True)
    if os.name == "posix":
        above = os.open(folder.parent, os.O_RDONLY)
        try:
            os.fsync(above)
        finally:
            os.close(above)


def check_tables(path: Path, connection: sqlite3.Connection) -> int:
    """Return the version of the tables; 0 for a new file. Raise SESS_MANIFEST_INVALID for tables that are not ours, or too new."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    # The file is new: it has a header, but no tables yet.
    if not tables and not version:
        return 0
    if application != APPLICATION_ID:
        raise _invalid(path, "is a database of another program")
    if version > VERSION:
        raise _invalid(
            path, f"was written by a newer Holdfast (version {version} of the tables; this one knows {VERSION})"
        )
    return int(version)


def _invalid(path: Path, reason: str) -> HoldfastError:
    message = f"The session store {path} {reason}. It was left as it is."
    return HoldfastError(Fault.of("SESS_MANIFEST_INVALID", message, context={"path": str(path), "reason": reason}))
