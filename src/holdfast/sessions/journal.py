"""The journal of a session: writes to its log, and keeps the session's memory in step with it.

Invariant: the memory reflects exactly the log up to `seen`, also the entries of other writers. A write that the store did not
confirm does not change the memory, and one that has returned is in it. After three failed attempts to write, the session is in
error (S2-17).
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import secrets
import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from holdfast._platform import after_fork
from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.policies import Policy
from holdfast.policies.target import Target
from holdfast.runtime.ambient import AMBIENT
from holdfast.runtime.recover import recover
from holdfast.runtime.runtime import default_runtime
from holdfast.runtime.shield import ignore_ours, shielded
from holdfast.runtime.suppress import suppressed
from holdfast.sessions import codec
from holdfast.sessions.log import ContextSaved, SessionMemory, difference, new_entry
from holdfast.sessions.recorder import Recorder
from holdfast.stores import Commit, NewAudit, NewCheckpoint, Receipt
from holdfast.stores.chain import session_chain
from holdfast.stores.encryption import unreadable
from holdfast.stores.errors import damaged, set_back
from holdfast.stores.store import submits
from holdfast.stores.verification import ANCHORS, anchor_of, head_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from holdfast.once.records import EntryBody
    from holdfast.runtime.runtime import Runtime
    from holdfast.sessions.lease import LeaseKeeper
    from holdfast.sessions.log import Change
    from holdfast.sessions.recorder import Unwritten
    from holdfast.stores import Checkpoint, Entry, Store

__all__ = [
    "VERSION",
    "IdleLock",
    "Journal",
    "audit",
    "entries_of",
    "fresh_id",
    "memory_of",
    "read_memory",
    "read_snapshot",
]

_POLICY = Policy(profile="stud", circuit=None, timeout=None, deadline=None, patience=None)
"""The policy of writes. The schedule of the store's fault decides alone: three attempts, 2 and 4 s apart. A store that is not
ours may raise other failures, and nobody must wait an hour for them."""

_FINAL = ("SESS_STORE_UNAVAILABLE", "SESS_LEASE_LOST", "SESS_MANIFEST_DRIFT")
"""Codes after which nothing more is written: the store failed, another process owns the session, or the store was set back."""

_ANCHOR_EVERY = 100
"""Audit records after which a session anchors its chain. It also does when it is left."""


VERSION = 2
"""The version of the snapshots that are written."""
_SMALL = 4_096
"""A checkpoint of this many bytes is written each time: that costs less than to read a longer log."""


class _Ids:
    """Ids that no other process makes: what is random in them is drawn once for each process, because drawing it costs a system call."""

    def __init__(self) -> None:
        self.renew()
        # A forked child would go on with the ids of its parent.
        after_fork(self.renew)

    def renew(self) -> None:
        self._prefix, self._numbers = secrets.token_urlsafe(12), itertools.count(1)

    def next(self) -> str:
        return f"{self._prefix}{next(self._numbers):x}"


_IDS = _Ids()


def fresh_id() -> str:
    """Return an id that no other entry has."""
    return _IDS.next()


def audit(kind: str, correlation: str, /, **payload: Any) -> NewAudit:
    """Return an audit record with this payload."""
    return NewAudit(kind=kind, correlation=correlation, payload=msgspec.json.encode(payload))


async def memory_of(store: Store, session: str) -> SessionMemory:
    """Return what a session knows from its log, without opening it."""
    return (await read_memory(store, session)).memory


async def entries_of(store: Store, session: str, after: int) -> AsyncIterator[Entry]:
    """Yield the entries of a session's log after an offset."""
    while page := await store.read(session, after=after):
        for entry in page:
            yield entry
        after = page[-1].offset


class Read(NamedTuple):
    """What was read of a session."""

    memory: SessionMemory
    seen: int
    """The last offset that is in the memory."""
    last: str
    """The id of the entry there; empty if only the checkpoint has it."""
    checkpoint: int
    """Bytes of the checkpoint."""
    log: int
    """Bytes of the log after it."""


async def read_memory(store: Store, session: str) -> Read:
    """Read a session's checkpoint and the log after it."""
    # Read `top` first. All entries up to it must be found. Entries that are added from now on may be missing.
    record = await store.session(session)
    top = record.top
    checkpoint = await store.checkpoint(session)
    memory, seen = SessionMemory(version=VERSION), 0
    if checkpoint is not None:
        memory, seen = read_snapshot(session, checkpoint), checkpoint.offset
        if memory.version < VERSION:
            await _find_session_steps(store, session, memory, record.oldest, checkpoint.offset)
    log, last = 0, ""
    # Not for ever: a log may grow as fast as it is read.
    while seen < top and (entries := await store.read(session, after=seen)):
        for entry in entries:
            _take(session, memory, entry, seen + 1)
            seen, last = entry.offset, entry.id
            log += len(bytes(entry.body))
    if seen < top:
        raise damaged(session, f"its log ends at entry {seen}, and had {top}")
    return Read(memory, seen, last, 0 if checkpoint is None else len(bytes(checkpoint.snapshot)), log)


async def _find_session_steps(store: Store, session: str, memory: SessionMemory, oldest: int, last: int) -> None:
    """Add the steps outside of turns to the memory of a checkpoint of version 1, which forgot them with the end of each turn."""
    found, seen = SessionMemory(), oldest - 1
    while seen < last and (entries := await store.read(session, after=seen)):
        for entry in entries:
            if entry.offset <= last:
                found.take(session, entry)
            seen = entry.offset
    if memory.own:
        # Version 1 counted a turn with the steps outside of turns as in flight.
        own = {f"{memory.turn}/{name}": entry for name, entry in memory.steps.items()}
        found.session_steps = {**found.session_steps, **own}
        found.session_questions = {**found.session_questions, **memory.questions}
        found.answers = {**found.answers, **memory.answers}
        memory.in_flight, memory.steps, memory.questions = False, {}, {}
    memory.session_steps = found.session_steps
    memory.session_questions = found.session_questions
    memory.answers = {**found.answers, **memory.answers}
    memory.doubts = {key: entry for key, entry in found.doubts.items() if not memory.is_open(entry.turn)}
    memory.version = VERSION


def read_snapshot(session: str, checkpoint: Checkpoint) -> SessionMemory:
    """Return the memory that a checkpoint holds; raise SESS_MANIFEST_DRIFT if it cannot be decoded, SESS_KEY_WRONG without its key."""
    try:
        return msgspec.json.decode(checkpoint.snapshot, type=SessionMemory)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise unreadable(session, "checkpoint", checkpoint.snapshot, error) from error


def _take(session: str, memory: SessionMemory, entry: Entry, expected: int) -> None:
    if entry.offset != expected:
        raise damaged(session, f"its entry {expected} is missing")
    memory.take(session, entry)


class _Commits(NamedTuple):
    """How commits are made on a store."""

    begin: Callable[[Commit], asyncio.Future[Receipt]] | None
    """Begins a commit without a task of its own, if the store can."""
    commit: Callable[[Commit], Awaitable[Receipt]]
    """Makes a commit, with retries."""
    again: Callable[[Commit, list[Exception]], Awaitable[Receipt]]
    """Makes a commit whose first attempt has failed with the given exception."""


def _recovering(store: Store, runtime: Runtime | None) -> _Commits:
    """Return the store's `commit` with retries. All sessions of a runtime on one store share it."""
    known = _COMMITS.setdefault(store, {})
    name = 0 if runtime is None else id(runtime)
    if name not in known:
        recovery = recover(Target(tool="session-store"), _POLICY, effect="idempotent", runtime=runtime)
        # Hold the store weakly: this function is kept as long as the store lives, and must not keep the store alive.
        weakly = weakref.ref(store)

        async def attempt(what: Commit, failures: list[Exception]) -> Receipt:
            kept = weakly()
            assert kept is not None
            if failures:
                raise failures.pop()
            return await kept.commit(what)

        retried = recovery(attempt)

        async def commit(what: Commit) -> Receipt:
            kept = weakly()
            assert kept is not None
            # Nearly every commit succeeds at once, and a recovery costs as much as the commit. Its first attempt is made here.
            try:
                return await kept.commit(what)
            except Exception as error:  # noqa: BLE001 - the recovery decides what is retried
                return await retried(what, [error])

        # The entry also keeps the runtime alive, so that no other runtime can get the same `id()`.
        known[name] = (runtime, _Commits(_begins(weakly), commit, retried))
    return known[name][1]


def _begins(weakly: weakref.ref[Store]) -> Callable[[Commit], asyncio.Future[Receipt]] | None:
    """Return what begins a commit on a store that has `submit`; None if it has none."""
    store = weakly()
    if store is None or not submits(store):
        return None

    def begin(what: Commit) -> asyncio.Future[Receipt]:
        kept: Any = weakly()
        begun: asyncio.Future[Receipt] = kept.submit(what)
        return begun

    return begin


_COMMITS: weakref.WeakKeyDictionary[Store, dict[int, tuple[Runtime | None, _Commits]]] = weakref.WeakKeyDictionary()


class _Write:
    """A write that is under way."""

    __slots__ = ("commit", "is_over", "late", "named", "waiting")

    def __init__(self, commit: Commit, named: tuple[tuple[EntryBody, str], ...], waiting: Unwritten) -> None:
        self.commit = commit
        self.named = named
        """Its entries, with their ids."""
        self.waiting = waiting
        """The audit records of the recorder that it writes."""
        self.is_over = False
        self.late: asyncio.Future[None] | None = None
        """Done when it is over. It is made when its caller is cancelled."""


def _pass_on(written: asyncio.Future[Receipt], made: asyncio.Future[Receipt]) -> None:
    """Give the caller of a write its outcome."""
    if made.cancelled():
        # The event loop ends.
        written.cancel()
        return
    error = made.exception()
    if written.done():
        # The caller was cancelled meanwhile.
        ignore_ours(made)
    elif error is None:
        written.set_result(made.result())
    else:
        written.set_exception(error)


class IdleLock:
    """A fair `asyncio.Lock` that exists only while somebody uses it, because a process may hold many thousands of idle sessions."""

    __slots__ = ("_lock", "_users")

    def __init__(self) -> None:
        self._lock: asyncio.Lock | None = None
        self._users = 0

    async def __aenter__(self) -> None:
        self._users += 1
        if self._lock is None:
            self._lock = asyncio.Lock()
        try:
            await self._lock.acquire()
        except BaseException:
            self._leave()
            raise

    async def __aexit__(self, *_: object) -> None:
        assert self._lock is not None
        self._lock.release()
        self._leave()

    def _leave(self) -> None:
        self._users -= 1
        if not self._users:
            self._lock = None


class Journal:
    """Writes to a session's log, and remembers what is in it."""

    __slots__ = (
        "_anchoring",
        "_commits",
        "_early",
        "_flushing",
        "_last",
        "_saving",
        "_sealed",
        "_since",
        "_size",
        "_writing",
        "failed",
        "fence",
        "gate",
        "heard",
        "keeper",
        "late",
        "memory",
        "parks",
        "parts",
        "recorder",
        "running",
        "runtime",
        "seen",
        "session",
        "store",
        "taking",
        "unstored",
        "waited",
        "waiting",
    )

    def __init__(self, store: Store, session: str, runtime: Runtime | None) -> None:
        self.store = store
        self.session = session
        self.runtime = runtime
        self.fence: int | None = None
        self.keeper: LeaseKeeper | None = None
        """Renews the session's lease, once it is entered."""
        self.failed: Fault | None = None
        """Why nothing more is written: the store failed, the lease is lost, or the session was closed or left."""
        self.unstored = ""
        """The key of an unsafe step that has happened, which could not be stored."""
        self.running: Callable[[], set[str]] = set
        """Returns the steps that run now, as in `SessionMemory.unknown`."""
        self.memory = SessionMemory(version=VERSION)
        self.seen = 0
        """The memory holds the log up to this offset."""
        self._last = ""
        """The id of the entry there, if it is known."""
        self._early: dict[int, tuple[tuple[EntryBody, str], ...]] | None = None
        """Our own writes beyond `seen`, by offset. They wait until the earlier entries of other writers are read."""
        self._commits: _Commits
        self.recorder = Recorder(session, self)
        """The retries and other events inside the session, on their way into its audit chain."""
        self._flushing: asyncio.Future[Receipt] | None = None
        self._sealed = 0
        """How many audit records were written since the last anchor."""
        self._anchoring: asyncio.Task[None] | None = None
        self.late: set[asyncio.Future[Any]] = set()
        """Writes that go on although their callers were cancelled."""
        self.waiting: set[asyncio.Task[Any] | None] = set()
        """Tasks whose calls wait for what other tasks call."""
        self.parks = False
        """Whether a worker runs the program: a wait that takes long ends this run of it, and the worker begins another one."""
        self.taking: set[str] = set()
        """The ids of signals that are being taken."""
        self.gate: asyncio.Event | None = None
        """Not set: no further step begins, because the worker stops."""
        self.heard = 0
        """How many entries of other writers have come since the session was opened."""
        self.waited: int | None = None
        """How many had come when the first wait of this run began that has not ended."""
        self.parts: set[str] = set()
        """The places of the parts that the program has entered."""
        self._writing = 0
        """How many commits are under way."""
        self._saving = IdleLock()
        self._size = 0
        """Bytes of the last checkpoint."""
        self._since = 0
        """Bytes of the log after it."""

    def use(self, store: Store) -> None:
        """Write to this store, from now on. It must be called before the first write."""
        self.store = store
        self._commits = _recovering(store, self.runtime)

    def fault_of(self, error: Exception) -> Fault:
        """Return the fault of an exception, by the clock and the rules of the session's runtime."""
        return (self.runtime or default_runtime()).fault_of(error)

    async def load(self) -> None:
        """Read the memory from the checkpoint and the log after it."""
        read = await read_memory(self.store, self.session)
        self.memory, self.seen, self._size, self._since = read.memory, read.seen, read.checkpoint, read.log
        self._last = read.last

    async def catch_up(self) -> None:
        """Apply the entries that other writers added to the log. Raise SESS_MANIFEST_DRIFT if the log was set back."""
        while entries := await self._later():
            for entry in entries:
                # One of our own writes may have advanced `seen` while the page was read.
                if entry.offset > self.seen:
                    _take(self.session, self.memory, entry, self.seen + 1)
                    self.seen, self._last = entry.offset, entry.id
                    self.heard += 1
                    self._since += len(bytes(entry.body))
        if self._early:
            self._early = {first: bodies for first, bodies in self._early.items() if first > self.seen}

    async def _later(self) -> list[Entry]:
        """Return entries after `seen`. Raise if the log ends before it, or has another entry there: it was set back."""
        seen, last = self.seen, self._last
        try:
            page = await self.store.read(self.session, after=seen - 1 if last else seen)
        except HoldfastError as error:
            reason = error.fault.context.get("reason")
            if error.fault.code != "SESS_GAP" or (reason != "ahead" and not last):
                raise
            if reason == "ahead":
                raise self._stop(set_back(self.session, seen, int(error.fault.context["top"]))) from None
            # A checkpoint covers the entry at `seen`, and it was dropped.
            return await self.store.read(self.session, after=seen)
        if not last:
            return page
        if not page or page[0].id != last:
            raise self._stop(set_back(self.session, seen, page[0].offset if page else seen - 1))
        # A page of one entry does not say that the log ends: the next entry may have found no room beside it.
        return page[1:] or await self.store.read(self.session, after=seen)

    def _stop(self, error: HoldfastError) -> HoldfastError:
        """Write nothing more, for the reason of this error; return it."""
        self.failed = self.failed or error.fault
        return error

    @property
    def is_owned(self) -> bool:
        """Whether the session is surely ours: nothing has failed, and the time of its lease is not over."""
        return self.failed is None and (
            self.keeper is None or self.fence is None or self.keeper.holds(self.session, self.fence)
        )

    async def confirm(self) -> None:
        """Make sure that the session is ours. Raise why it is not: SESS_LEASE_LOST if another process has taken it over."""
        if self.failed is not None:
            raise HoldfastError(self.failed)
        if self.keeper is None:
            return
        try:
            await self.keeper.confirm(self.session)
        except HoldfastError as error:
            if error.fault.code == "SESS_LEASE_LOST":
                self._stop(error)
            raise

    @property
    def is_behind(self) -> bool:
        """Whether our own writes wait in memory for entries of other writers that come before them."""
        return self._early is not None

    async def write(self, *bodies: EntryBody, type_: str | None = None, **parts: Any) -> Receipt:
        """Append entries, the last one of type `type_` if it is given, with the other `parts` of the commit.

        Raise SESS_STORE_UNAVAILABLE after the last attempt, and SESS_LEASE_LOST once another process owns the session. A write
        that was started runs to its end even if the caller is cancelled, because later writes depend on its outcome.
        """
        if self.failed is not None:
            raise HoldfastError(self.failed)
        self.recorder.check_loop()
        # Entering a session sets the fence. Only the write that creates the session happens before that.
        if self.fence is None and "create" not in parts:
            expected = f"`async with Session.open({self.session!r}, …) as session`"
            raise InvalidError.saying("session", expected, "a session that was not entered")
        write, written = self._start(bodies, type_, parts)
        try:
            if written.done():
                # Nothing was waited for: other tasks come all the same.
                await asyncio.sleep(0)
            receipt = await (shielded(written) if isinstance(written, asyncio.Task) else written)
        except asyncio.CancelledError:
            if not write.is_over:
                write.late = asyncio.get_running_loop().create_future()
                self.keep_late(write.late)
            raise
        if bodies and self.seen < receipt.first + len(bodies) - 1:
            # Another writer came before us: a message, a hook, an answer. The caller goes on with what it has written.
            await self.catch_up()
        return receipt

    def keep_late(self, work: asyncio.Future[Any]) -> None:
        """Remember what a cancelled call has left under way: the next call of its step, and the end of the session, wait for it."""
        self.late.add(work)
        work.add_done_callback(self.late.discard)

    async def finish_late(self) -> None:
        """Wait for what cancelled calls have left under way. It is part of the session: this run and the next one see the same."""
        if self.late:
            await asyncio.wait(self.late)

    def _start(
        self, bodies: tuple[EntryBody, ...], type_: str | None, parts: dict[str, Any]
    ) -> tuple[_Write, asyncio.Future[Receipt]]:
        """Begin a write; return it with its future. The write goes on if the caller is cancelled: later writes depend on its outcome."""
        named = tuple([(body, _IDS.next()) for body in bodies])
        entries = tuple([new_entry(body, id_) for body, id_ in named])
        if type_ is not None:
            entries = (*entries[:-1], new_entry(*named[-1], type_))
        waiting = self.recorder.take()
        if waiting.events:
            # Before the commit's own records: they happened before it.
            parts["audit"] = (*self.recorder.records(waiting), *parts.get("audit", ()))
        after = None if self.fence is None else self.seen
        commit = Commit(session=self.session, fence=self.fence, after=after, entries=entries, **parts)
        write = _Write(commit, named, waiting)
        self._writing += 1
        begin = self._commits.begin
        if begin is None:
            return write, self._in_task(write, None)
        try:
            begun = begin(write.commit)
        except Exception as error:  # noqa: BLE001 - the recovery decides what is retried
            return write, self._in_task(write, error)
        # A task for each write would cost as much as the rest of a step.
        written: asyncio.Future[Receipt] = begun.get_loop().create_future()
        if begun.done():
            self._begun(write, written, begun)
        else:
            begun.add_done_callback(partial(self._begun, write, written))
        return write, written

    def _begun(self, write: _Write, written: asyncio.Future[Receipt], begun: asyncio.Future[Receipt]) -> None:
        """The store has made a commit, or has failed to."""
        error = asyncio.CancelledError() if begun.cancelled() else begun.exception()
        if isinstance(error, Exception):
            self._in_task(write, error).add_done_callback(partial(_pass_on, written))
            return
        if error is not None:
            self._end_write(write)
            self.recorder.put_back(write.waiting)
            _pass_on(written, begun)
            return
        receipt = begun.result()
        try:
            self._written(write, receipt)
        except HoldfastError as rejection:
            if not written.done():
                written.set_exception(rejection)
        self._end_write(write)
        # The caller may have been cancelled meanwhile.
        if not written.done():
            written.set_result(receipt)

    def _in_task(self, write: _Write, failure: Exception | None) -> asyncio.Task[Receipt]:
        # The caller's deadline and budget must not stop this write: the result of finished work must be saved.
        context = contextvars.copy_context()
        context.run(AMBIENT.set, None)
        return asyncio.get_running_loop().create_task(self._write(write, failure), context=context)

    async def _write(self, write: _Write, failure: Exception | None) -> Receipt:
        commits = self._commits
        try:
            receipt = await (
                commits.commit(write.commit) if failure is None else commits.again(write.commit, [failure])
            )
        except BaseException as error:
            self.recorder.put_back(write.waiting)
            # Other errors, such as an illegal transition, concern this write only.
            if isinstance(error, HoldfastError) and error.fault.code in _FINAL:
                self.failed = error.fault
            self._end_write(write)
            raise
        try:
            self._written(write, receipt)
        finally:
            self._end_write(write)
        return receipt

    def _end_write(self, write: _Write) -> None:
        self._writing -= 1
        write.is_over = True
        if write.late is not None:
            write.late.set_result(None)

    def _written(self, write: _Write, receipt: Receipt) -> None:
        if receipt.duplicate:
            # It wrote nothing. The memory already has the effect of the first write.
            self.recorder.put_back(write.waiting)
            return
        after = write.commit.after
        # A store that does not look at `after` has written into a log that was set back.
        if after is not None and (receipt.top < after or (write.named and receipt.first <= after)):
            raise self._stop(set_back(self.session, after, receipt.top - len(write.named)))
        self._sealed += len(write.commit.audit)
        for entry in write.commit.entries:
            self._since += len(entry.body)
        self._take(receipt, write.named)
        if self._sealed >= _ANCHOR_EVERY:
            self._anchoring = asyncio.get_running_loop().create_task(self._anchor())

    async def finish(self, *, lost: bool) -> None:
        """Wait for what is being written in the background, and anchor the audit chain unless another process owns it now."""
        under_way: list[asyncio.Future[Any]] = [task for task in (self._flushing, self._anchoring) if task is not None]
        await asyncio.gather(*under_way, return_exceptions=True)
        if not lost:
            await self._anchor()

    async def _anchor(self) -> None:
        """Record the end of the session's audit chain in the store's chain of anchors, if it grew: a cut is noticed then."""
        if not self._sealed:
            return
        self._sealed = 0
        try:
            head = await head_of(self.store, session_chain(self.session))
            if head is not None:
                await self.store.commit(Commit(chain=ANCHORS, audit=(anchor_of(head),)))
        except Exception as error:  # noqa: BLE001 - a store of somebody else's may raise anything
            # The session's own work is saved. Its next anchor also covers these records.
            suppressed(error, "the session's audit chain was not anchored", runtime=self.runtime)

    async def write_waiting(self) -> None:
        """Write the records that wait, if there are any. A store that fails is reported, because no work of the session is lost."""
        if not self.recorder.is_waiting:
            return
        try:
            await self.write()
        except Exception as error:  # noqa: BLE001 - a store of somebody else's may raise anything
            suppressed(error, "records of the session's audit trail were not written", runtime=self.runtime)

    def flush(self) -> None:
        """Write the records that nothing else has written in time."""
        if self._writing:
            # A store that fails is being asked already, and its retries are such records too: they must not add commits.
            self.recorder.schedule()
        elif self.failed is None:
            # The task is kept, because the loop holds tasks weakly.
            _, self._flushing = self._start((), None, {})
            # If it fails, the records wait for the next write, which reports the failure.
            self._flushing.add_done_callback(lambda task: task.cancelled() or task.exception())

    def _take(self, receipt: Receipt, named: tuple[tuple[EntryBody, str], ...]) -> None:
        if receipt.first == self.seen + 1:
            self._apply(named)
        elif named and receipt.first > self.seen:
            # Entries before ours are missing. `write` reads them, or our own earlier write comes.
            self._early = {**(self._early or {}), receipt.first: named}
        while self._early and (bodies := self._early.pop(self.seen + 1, None)) is not None:
            self._apply(bodies)
        self._early = self._early or None

    def _apply(self, named: tuple[tuple[EntryBody, str], ...]) -> None:
        for body, id_ in named:
            self.memory.apply(body, id_)
            self._last = id_
        self.seen += len(named)

    async def save(
        self, context: dict[str, Any] | None, *bodies: EntryBody, checkpoint: bool = True, **parts: Any
    ) -> None:
        """Write what changed in the session's context, and `bodies`, in one commit: both are stored or neither.

        `context` None keeps the one that is stored. With `checkpoint` a checkpoint is written too, if the log since the last one is
        as long as that was. So all checkpoints together are about as long as the log, and a long history is not written again
        with each turn.
        """
        # A second save must compare with what the first one stored.
        async with self._saving:
            await self.catch_up()
            if context is not None and (saved := self._saved(context)) is not None:
                bodies = (saved, *bodies)
            if checkpoint and self._is_due():
                snapshot = self._checkpoint(bodies)
                await self.write(*bodies, checkpoint=snapshot, **parts)
                self._size, self._since = len(snapshot.snapshot), 0
            elif bodies or parts:
                await self.write(*bodies, **parts)

    def _saved(self, context: dict[str, Any]) -> ContextSaved | None:
        memory = self.memory
        stored = codec.encode_result(context, Any, "session.context")
        plain = msgspec.json.decode(stored)
        if memory.saves == 0:
            # The first one has the whole, so that the log alone is enough to find the context.
            return ContextSaved(number=1, changes=[[[], plain]]) if plain or memory.context else None
        changes = difference(memory.context, plain)
        if not changes:
            return None
        whole: list[Change] = [[[], plain]]
        is_small = len(msgspec.json.encode(changes)) < len(stored)
        return ContextSaved(number=memory.saves + 1, changes=changes if is_small else whole)

    def _is_due(self) -> bool:
        return self._size + self._since <= _SMALL or self._since >= self._size

    def _checkpoint(self, bodies: tuple[EntryBody, ...]) -> NewCheckpoint:
        """Return a checkpoint of the memory after `bodies`.

        It includes their effect, although its offset is before them. Applying them once more after a restart changes nothing.
        """
        # Apply `bodies` to a copy: if the commit fails, the memory must stay as it was.
        after = msgspec.structs.replace(self.memory)
        for body in bodies:
            after.apply(body, "")
        return NewCheckpoint(
            offset=self.seen,
            message_count=after.message_count,
            last_message_id=after.last_message_id,
            snapshot=msgspec.json.encode(after),
        )
