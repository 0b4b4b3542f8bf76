"""`SqliteStore`: the default store, in one file."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Self, TypeVar

from holdfast import options
from holdfast._platform import boot_id
from holdfast.faults import Fault, HoldfastError
from holdfast.runtime.secrets import process_redactor
from holdfast.runtime.shield import wait_to_end
from holdfast.stores.errors import unavailable
from holdfast.stores.records import may_be_claimed
from holdfast.stores.redaction import Mask, prepared
from holdfast.stores.sql import leases
from holdfast.stores.sql.store import SqlStore
from holdfast.stores.sqlite import files
from holdfast.stores.sqlite.failures import typed
from holdfast.stores.sqlite.open_file import OpenFile, ReadFile
from holdfast.stores.sqlite.tables import run_script
from holdfast.stores.sqlite.watch import Watch
from holdfast.stores.sqlite.writer import WriteJob, Writer
from holdfast.stores.wakeups import WORK, Wakeups

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from holdfast.clock import Clock
    from holdfast.faults import Redactor
    from holdfast.stores.records import Commit, Lease, Receipt
    from holdfast.stores.sql.query import Script
    from holdfast.stores.sqlite.readers import Reader
    from holdfast.stores.wakeups import Follower

T = TypeVar("T")
_READERS = 2
"""The number of threads that read. Reads are short, and more threads would only compete for the interpreter."""


class SqliteStore(SqlStore):
    """Sessions in one file: `async with SqliteStore("work.db") as store`.

    With `durability="full"` (the default) every commit is on disk before it returns. With `"fast"` the operating system writes it to
    disk a little later. Then a killed process loses nothing, but a power cut may lose the last commits, and after an unclean stop
    sessions get a new epoch. With `mode="ro"` the file is only read: it may be a copy that may not be written to, and one of an older
    version is read without being migrated. `busy` is the number of seconds that a write waits for another process. `clock` gives the times of
    records. A commit with a secret that `redactor` knows is rejected; in audit records it is masked.

    Opening raises SESS_STORE_UNAVAILABLE if the file cannot be opened or others may write to it, and SESS_MANIFEST_INVALID if it is
    damaged, or not ours. If somebody deletes or replaces the file while it is open, every commit raises SESS_STORE_UNAVAILABLE.
    """

    @options.suggests
    def __init__(
        self,
        path: str | Path,
        *,
        durability: str = "full",
        mode: str = "rw",
        busy: float = 5.0,
        clock: Clock | None = None,
        redactor: Redactor | None = None,
    ) -> None:
        options.one_of("store.durability", durability, ("full", "fast"))
        options.one_of("store.mode", mode, ("rw", "ro"))
        options.seconds("store.busy", busy, zero=True)
        self._path = Path(path)
        self._durability = durability
        self._mode = mode
        self._busy = busy
        self._clock = clock
        self.mask = Mask(redactor or process_redactor())
        """Knows the secrets that may not be stored."""
        self._wakeups = Wakeups(on_wait=self._start_watch)
        self._readers: list[Reader] = []
        self._writer: Writer | None = None
        self._watch: Watch | None = None
        self._opened: OpenFile | ReadFile | None = None

    @property
    def epoch(self) -> str | None:
        """Another one each time the file was set back, to a backup or without its WAL; None before it is opened."""
        return None if self._opened is None else self._opened.epoch

    @property
    def loses_with_epoch(self) -> bool:
        """Whether another epoch proves that entries were lost."""
        return True

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    @property
    def one_machine(self) -> bool:
        """Whether only processes of one machine can use it: SQLite's write-ahead log is shared through the machine's memory."""
        return True

    @property
    def place(self) -> Hashable:
        """What stores with the same file and options have in common: sessions that are opened by address share one of them."""
        return ("sqlite", str(self._path.absolute()), self._durability, self._mode, self._clock and id(self._clock))

    async def __aenter__(self) -> Self:
        files.log_version(self._path)
        try:
            await wait_to_end(_in_thread(self._open))
        except asyncio.CancelledError:
            # The file may be open by now, and nobody else would close it.
            await wait_to_end(_in_thread(self._close))
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await _in_thread(self._close)

    async def commit(self, commit: Commit) -> Receipt:
        """Write all of the commit, or nothing, and return when it is on disk as `durability` promises.

        Raises what `Store.commit` lists, and SESS_STORE_UNAVAILABLE if the file cannot be written.
        """
        return await self.submit(commit)

    def submit(self, commit: Commit) -> asyncio.Future[Receipt]:
        """Begin a commit; return its future. The commit is made whether or not somebody waits for it; raises as `commit` does."""
        ready = prepared(commit, self.mask)
        begun: asyncio.Future[Receipt] = self._in_use().do(
            WriteJob(None, ready.session, ready, asyncio.get_running_loop())
        )
        if may_be_claimed(ready.work):
            begun.add_done_callback(lambda _: self._wakeups.wake((WORK,)))
        return begun

    async def commit_all(self, commits: Sequence[Commit]) -> list[Receipt | Exception]:
        """Make commits in this order and in one transaction; return the receipt of each, or the error for which it was not made."""
        loop = asyncio.get_running_loop()
        written: asyncio.Future[None] = loop.create_future()
        begun: list[WriteJob | HoldfastError] = []
        for commit in commits:
            try:
                ready = prepared(commit, self.mask)
                begun.append(WriteJob(None, ready.session, ready, loop, written))
            except HoldfastError as error:
                begun.append(error)
        jobs = [job for job in begun if isinstance(job, WriteJob)]
        if jobs:
            self._in_use().do(*jobs)
            await written
        return [job.outcome if isinstance(job, WriteJob) else job for job in begun]

    def renew_all(self, held: Sequence[Lease], ttl: float) -> list[Lease]:
        """Extend many leases to `ttl` seconds from now, from another thread; return those that were renewed."""
        job = WriteJob(lambda: leases.renew_all_script(held, ttl, self._instant()))
        renewed: list[Lease] = self._in_use().do(job).result()
        return renewed

    def _removal(self, session: str) -> Script[None]:
        yield from super()._removal(session)
        # Before COMMIT, so that no other process looks for a session that is gone.
        if isinstance(self._opened, OpenFile):
            self._opened.high_water.clear()

    async def changed(self, session: str, after: int, seconds: float) -> bool:
        """Wait until the session's log goes beyond `after`, for at most `seconds`; return whether it did."""
        return await self._wakeups.beyond(session, after, seconds, self.session)

    def follow(self, session: str) -> Follower:
        """Return what waits for the log of a session again and again, without reading the file each time."""
        self._to_read()
        return self._wakeups.follow(session)

    def follow_work(self) -> Follower:
        """Return what waits for work again and again."""
        self._to_read()
        return self._wakeups.follow(WORK)

    def _work_changed(self) -> None:
        self._wakeups.wake((WORK,))

    def _open(self) -> None:
        try:
            opened: OpenFile | ReadFile = (
                ReadFile(self._path, busy=self._busy)
                if self._mode == "ro"
                else OpenFile(self._path, durability=self._durability, busy=self._busy)
            )
        except sqlite3.Error as error:
            raise typed(error, str(self._path)) from error
        except OSError as error:
            raise unavailable(f"{self._path}: {error.strerror}", path=str(self._path)) from error
        self._opened, self._id, self._process = opened, opened.id, os.getpid()
        # Each thread has its own connection, because two threads must not use one at once.
        self._own, self._readers = threading.local(), []
        self._pool = ThreadPoolExecutor(_READERS, thread_name_prefix="holdfast-sqlite-read")
        if isinstance(opened, OpenFile):
            self._writer = Writer(
                opened.connection,
                str(self._path),
                turns=opened.turns,
                identity=opened.identity,
                high_water=opened.high_water,
                on_commit=self._wakeups.grew,
                now=self._now,
            )
            self._watch = Watch(self._wakeups, self._writer.lend)
        else:
            reader = opened.connect_reader()
            self._readers.append(reader)
            self._watch = Watch(self._wakeups, reader.read)

    def _close(self) -> None:
        opened, self._opened = self._opened, None
        writer, self._writer = self._writer, None
        # A forked child has copies of the parent's connections. Only the parent may close them.
        if opened is None or os.getpid() != self._process:
            return
        if self._watch is not None:
            self._watch.stop()
        # Close the writer first: it finishes the queued commits while everything is still open.
        if writer is not None:
            writer.close()
        self._pool.shutdown()
        opened.close(self._readers)

    def _start_watch(self) -> None:
        if self._watch is not None:
            self._watch.start()

    def _in_use(self) -> Writer:
        writer = self._writer
        if writer is not None and os.getpid() == self._process:
            return writer
        self._to_read()
        if self._writer is None:
            reason = f"{self._path} is open for reading only (mode=ro)"
            message = f"The session store failed: {reason}"
            context = {"path": str(self._path), "reason": reason}
            raise HoldfastError(Fault.of("SESS_STORE_UNAVAILABLE", message, retryable=False, context=context))
        return self._writer

    def _to_read(self) -> OpenFile | ReadFile:
        if self._opened is None:
            raise unavailable(f"{self._path} is not open: use `async with`")
        if os.getpid() != self._process:
            raise unavailable(f"{self._path} was opened before this process was forked: open it in this process")
        return self._opened

    async def _write(self, session: str, script: Callable[[leases.Instant], Script[T]]) -> T:
        job = WriteJob(lambda: script(self._instant()), session, loop=asyncio.get_running_loop())
        result: T = await self._in_use().do(job)
        return result

    async def _read(self, script: Callable[[], Script[T]]) -> T:
        self._to_read()
        try:
            running = asyncio.get_running_loop().run_in_executor(self._pool, self._run_read, script)
        except RuntimeError:
            # The pool was shut down after the check above.
            raise unavailable(f"{self._path} is closed") from None
        return await running

    def _run_read(self, script: Callable[[], Script[T]]) -> T:
        try:
            return self._reader().read(lambda connection: run_script(connection, script()))
        except sqlite3.Error as error:
            raise typed(error, str(self._path)) from error

    def _reader(self) -> Reader:
        reader: Reader | None = getattr(self._own, "reader", None)
        if reader is None:
            reader = self._own.reader = self._to_read().connect_reader()
            self._readers.append(reader)
        return reader

    def _instant(self, server: float = 0.0) -> leases.Instant:  # noqa: ARG002 - a file has no clock
        # A clock of the user's own, such as a test's, decides alone.
        if self._clock is not None:
            return leases.Instant(self._clock.wall())
        return leases.Instant(time.time(), boot_id(), time.monotonic())

    def _now(self) -> float:
        return self._clock.wall() if self._clock is not None else time.time()


async def _in_thread(work: Callable[[], None]) -> None:
    await asyncio.get_running_loop().run_in_executor(None, work)
