"""`LiveSession`: a session that somebody is connected to: its newest messages, who is there, and what they send.

Invariant: the store's log is the only truth. The ring holds a copy of its end, and whoever is behind the ring reads the store. What a client
sends is in the store before it is acknowledged.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from holdfast.bridge.log import log_warning
from holdfast.bridge.message_ids import new_message_id
from holdfast.bridge.sessions.frames import (
    LogPlace,
    approval_payload,
    fitting,
    frame_of,
    question_payload,
    tool_call_of,
    user_frame,
)
from holdfast.bridge.sessions.log_reader import LogReader
from holdfast.faults import Fault, HoldfastError
from holdfast.runtime.secrets import process_redactor
from holdfast.runtime.shield import cancel_to_end
from holdfast.sessions.admin import RENAMED
from holdfast.sessions.journal import Read, fresh_id, read_memory
from holdfast.sessions.log import Message, new_entry
from holdfast.sessions.manifest import decode_manifest
from holdfast.sessions.questions.question import mismatch
from holdfast.stores import Claim, Commit, NewEntry, Receipt, SessionState
from holdfast.stores.store import commit_all
from holdfast.stores.wakeups import follow
from holdfast.wire.messages import Question, SessionStatePayload, Snapshot
from holdfast.wire.outbox import AckResult
from holdfast.wire.position import Gap, Position, Reach, resume
from holdfast.wire.replay import RING_AGE_S, RING_BYTES, Ring, RingMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from holdfast.bridge.access.identity import TokenHolder
    from holdfast.bridge.host.link import HostedRunner
    from holdfast.bridge.hub import Connected
    from holdfast.bridge.sessions.agent_runner import AgentRunner
    from holdfast.clock import Clock
    from holdfast.sessions.log import SessionMemory
    from holdfast.stores import Entry, SessionRecord, Store
    from holdfast.stores.wakeups import Follower
    from holdfast.wire.messages import Doing, Payload
    from holdfast.wire.position import Resumption

__all__ = ["Incoming", "LiveSession"]

_PREFILL = 256
"""The most entries that are read into the ring when a session is opened."""
_TAKES = (SessionState.CREATED, SessionState.ACTIVE, SessionState.PAUSED)
"""The states in which a message of a user gets an answer."""
_LOOK_S = 30.0
"""How often the store is asked whether the log began anew, if nothing else happens."""
_STORE_DOWN_S = 1.0
"""How long to wait before a store that does not answer is asked again."""
_RUNS = 1_000
"""The most operations that can be commanded."""
_HANDED_OVER = 100
"""The most answers with secrets that are known again."""
_STORED = 100
"""The most messages of users whose senders learn that they are stored, when they join again."""
_QUESTIONS = 10_000
"""The most questions whose tool calls are remembered."""


class _Sent(msgspec.Struct, frozen=True):
    """Who sent a message, and its id."""

    id: str = ""
    client: str = ""


class Incoming(NamedTuple):
    """A message of a user, before it is stored."""

    content: str
    client: str
    """Who sent it. Its id is its own among those of this client."""
    id: str


class LiveSession:
    """One session in use. `await live.open()` before anything else, `await live.close()` at the end.

    replays_log: whether clients that are behind the ring get what the store has. False: they get a gap.
    broadcast: sends something that is not stored to all its clients.
    """

    def __init__(
        self,
        record: SessionRecord,
        store: Store,
        *,
        clock: Clock,
        ring_bytes: int = RING_BYTES,
        ring_age: float = RING_AGE_S,
        replays_log: bool = True,
        broadcast: Callable[[LiveSession, str, Payload], None] = lambda *_: None,
    ) -> None:
        self.id = record.id
        self.state = record.state
        self.title = _title(record)
        self.clients: set[Connected] = set()
        """The connections that have joined it."""
        self.opened_by = ""
        """The id of the token that has brought it into use; empty: nobody's."""
        self.visits = 0
        """How many requests use it now whose sender has not joined it."""
        self.is_ending = False
        """Whether its grace is over, and its agent finishes what it does."""
        self.was_lost = False
        """Whether the last connection that left it broke."""
        self.secrets: dict[str, str] = {}
        """What is shown with a question and stored nowhere, by the question's id: codes of sign-ins."""
        self.handed_over: deque[tuple[str, str]] = deque(maxlen=_HANDED_OVER)
        """The answers that reached the program and are stored nowhere: who sent them, and their ids. A client may send one again."""
        self.runs: deque[str] = deque(maxlen=_RUNS)
        """The operations of its agent that clients have seen, for their commands."""
        self.runner: AgentRunner | HostedRunner | None = None
        """What answers its messages."""
        self._store = store
        self._clock = clock
        self._replays_log = replays_log
        self._broadcast = broadcast
        self._ring_limits: dict[str, Any] = {"max_bytes": ring_bytes, "max_age": ring_age}
        self._oldest = record.oldest
        self._ring = Ring(epoch=record.epoch, top=max(record.top - _PREFILL, record.oldest - 1), **self._ring_limits)
        self._tool_calls: dict[str, str] = {}
        self._stored: deque[tuple[str, str]] = deque(maxlen=_STORED)
        """The last messages of users, by sender and id."""
        self._news: asyncio.Event | None = None
        """Set at the next message; None: nobody waits for it."""
        self._own_writes = 0
        """How many messages this process is storing now."""
        self._is_behind = False
        """Whether a message of this process came after one that the ring has not."""
        self._settled = asyncio.Event()
        """Set when some of them have ended."""
        self._follower: Follower | None = None
        self._following: asyncio.Task[None] | None = None
        self._reading = asyncio.Lock()
        self._known: Read | None = None
        """What the session knows, up to an offset. Each client that joins needs it, and a log may be long."""
        self._known_epoch = ""
        self._learning: asyncio.Task[None] | None = None
        self._redactor = process_redactor().uncut()

    @property
    def epoch(self) -> str:
        """The name of its log."""
        return self._ring.epoch

    @property
    def top(self) -> int:
        """The offset of the newest message."""
        return self._ring.top

    async def open(self) -> None:
        """Read the end of the log, and follow it from now on."""
        # Before the log is read: what is written after that is not missed.
        self._follower = follower = follow(self._store, self.id)
        try:
            await self.catch_up()
        except BaseException:
            follower.close()
            raise
        self._following = asyncio.create_task(self._follow(follower), name=f"bridge: log of {self.id}")

    @property
    def is_used(self) -> bool:
        """Whether anybody needs it now."""
        return bool(self.clients or self.visits)

    async def open_again(self) -> None:
        """Follow the log of a session that was removed and made anew. Its clients find their position in another epoch."""
        await self.close()
        await self._look()
        await self.open()

    async def close(self) -> None:
        """Stop following the log."""
        for task in (self._following, self._learning):
            if task is not None:
                await cancel_to_end(task)
        if self._follower is not None:
            self._follower.close()
        self._tell()

    # --- the log ---

    def news(self) -> asyncio.Event:
        """Return what is set at the next message. Take it before reading: what comes between reading and waiting is not missed."""
        if self._news is None:
            self._news = asyncio.Event()
        return self._news

    async def catch_up(self) -> None:
        """Read what the store has and the ring has not."""
        # Two readers at once would put the same messages into the ring twice.
        async with self._reading:
            while entries := await self._store.read(self.id, after=self._ring.top):
                for held in await self._frames(entries):
                    # Meanwhile a message of this process may have come with its receipt.
                    if held.offset > self._ring.top:
                        self._ring.append(held, self._clock.monotonic())
                self._tell()

    async def read(
        self,
        after: int,
        *,
        most_bytes: int = 65_536,
        reading: LogReader | None = None,
        identity: TokenHolder | None = None,
    ) -> list[RingMessage] | Gap:
        """Return the messages after an offset, at least one and about `most_bytes`; an empty list if there are none yet.

        reading: how the store is read for somebody, if the ring does not have them; None: at once.
        """
        held = self._ring.read(after, self._clock.monotonic(), most_bytes=most_bytes)
        if held is not None:
            return held
        if not self._replays_log:
            return self._gap(after)
        reading = reading or LogReader()
        kept = reading.find(self.id, self.epoch, after)
        if kept is not None:
            return kept
        async with reading.turn(identity):
            # Whoever was first may have read the same.
            kept = reading.find(self.id, self.epoch, after)
            if kept is not None:
                return kept
            try:
                entries = await self._store.read(self.id, after=after, max_bytes=most_bytes)
            except HoldfastError as error:
                if error.fault.code != "SESS_GAP":
                    raise
                self._oldest = (await self._store.session(self.id)).oldest
                return self._gap(after)
            found = await self._frames(entries)
            reading.keep(self.id, self.epoch, found)
            return found

    async def resume(self, after: Position) -> Resumption:
        """Return whether a client can go on at its position."""
        id_there = None
        if after.id and after.epoch == self.epoch and 0 < after.offset <= self.top:
            id_there = self._ring.id_at(after.offset) or await self._id_in_store(after.offset)
        return resume(after, self.reach(), id_there)

    def start(self, history: str) -> int:
        """Return the offset after which a client begins that has no position."""
        match history:
            case "tail":
                return self._ring.oldest - 1
            case "full":
                return self.reach().oldest - 1
            case _:
                return self.top

    def reach(self) -> Reach:
        """Return what of the log can be sent."""
        stored = self._oldest if self._replays_log else None
        return self._ring.reach(self._clock.monotonic(), oldest_stored=stored)

    def held_since(self, timestamp: str | None) -> tuple[list[RingMessage], bool]:
        """Return the messages of the ring from a time on, and whether these are all that there were."""
        return self._ring.since(timestamp, self._clock.monotonic())

    async def _follow(self, follower: Follower) -> None:
        while True:
            try:
                reached = 0
                if not self._is_behind:
                    reached = await follower.beyond(self.top, _LOOK_S)
                    if not reached:
                        await self._look()
                        continue
                    await self._settle()
                if self._is_behind or self.top < reached:
                    self._is_behind = False
                    await self.catch_up()
            except HoldfastError as error:
                if error.fault.code == "SESS_NOT_FOUND":
                    return
                log_warning("the log of %s cannot be read: %s", self.id, error)
                # What it heard of was not read, and nobody says it again.
                self._is_behind = True
                await asyncio.sleep(_STORE_DOWN_S)

    async def _settle(self) -> None:
        """Wait while this process writes. What it writes comes with the receipts; reading it again would cost more than writing it."""
        while self._own_writes and not self._is_behind:
            self._settled.clear()
            await self._settled.wait()

    async def _look(self) -> None:
        """Find out whether the log began anew. Clients then find their position in another epoch."""
        record = await self._store.session(self.id)
        self.state, self._oldest = record.state, record.oldest
        if record.epoch != self.epoch or record.top < self.top:
            self._ring = Ring(epoch=record.epoch, top=record.oldest - 1, **self._ring_limits)
            self._tool_calls.clear()
            self._stored.clear()
            await self.catch_up()
            self._tell()

    def _tell(self) -> None:
        news, self._news = self._news, None
        if news is not None:
            news.set()

    def _gap(self, after: int) -> Gap:
        found = resume(Position(epoch=self.epoch, offset=after), self.reach())
        if isinstance(found, Gap):
            return found
        return Gap(reason="evicted", requested=after, oldest=self.reach().oldest, top=self.top)

    async def _id_in_store(self, offset: int) -> str | None:
        try:
            entries = await self._store.read(self.id, after=offset - 1, limit=1)
        except HoldfastError as error:
            if error.fault.code != "SESS_GAP":
                raise
            # It was dropped, so nobody knows. What comes after it has no gap.
            return None
        held = await self._frames(entries)
        return held[0].id if held else None

    async def _frames(self, entries: Iterable[Entry]) -> list[RingMessage]:
        found = []
        age_of = self._ages()
        for entry in entries:
            if entry.type == "interaction_raised":
                self._remember(msgspec.json.decode(entry.body))
            elif entry.type == "interaction_answered":
                await self._know(msgspec.json.decode(entry.body).get("id", ""), entry.offset)
            elif entry.type == "message" and entry.offset > self._ring.top:
                message = msgspec.json.decode(entry.body, type=_Sent)
                self._stored.append((message.client, message.id))
            elif entry.type.startswith("session_") and entry.offset > self._ring.top:
                self._take_state(entry)
            found.append(self._frame(entry, age_of))
        return found

    def _frame(self, entry: Entry, age_of: Callable[[float], float]) -> RingMessage:
        return frame_of(
            entry,
            self.id,
            self.epoch,
            redactor=self._redactor,
            tool_call=lambda question: self._tool_calls.get(question, ""),
            at=age_of(entry.at),
        )

    def _ages(self) -> Callable[[float], float]:
        """Return what says when an entry was written, by the monotonic clock."""
        wall, now = self._clock.wall(), self._clock.monotonic()
        # A clock that was set back must not make a message newer than now.
        return lambda at: now - max(0.0, wall - at)

    def _take_state(self, entry: Entry) -> None:
        body = msgspec.json.decode(entry.body)
        if entry.type == RENAMED:
            self.title = str(body.get("title", ""))
        with suppress(ValueError):  # a newer version may write states that this one does not know
            self.state = SessionState(body.get("state", ""))

    def _remember(self, raised: dict[str, Any]) -> None:
        if len(self._tool_calls) >= _QUESTIONS:
            del self._tool_calls[next(iter(self._tool_calls))]
        self._tool_calls[str(raised.get("id", ""))] = tool_call_of(raised)

    async def _know(self, question: str, before: int) -> None:
        """Find a question that was asked before this process read the log, so that its answer becomes the same message each time."""
        if question in self._tool_calls:
            return
        after = (await self._store.session(self.id)).oldest - 1
        while entries := await self._store.read(self.id, after=after):
            for entry in entries:
                if entry.type == "interaction_raised":
                    raised = msgspec.json.decode(entry.body)
                    if raised.get("id") == question:
                        self._remember(raised)
                        return
            after = entries[-1].offset
            if after >= before:
                break

    # --- what clients send, and what the bridge adds ---

    async def store(self, messages: Sequence[Incoming]) -> list[AckResult | Exception]:
        """Store messages of users, each once and in this order; return where each stands, or why the store does not take it."""
        commits = [self._commit(each) for each in messages]
        self._own_writes += len(messages)
        try:
            receipts = await commit_all(self._store, commits)
        finally:
            self._own_writes -= len(messages)
            self._settled.set()
        self._take(zip(messages, commits, receipts, strict=True))
        return [
            receipt if isinstance(receipt, Exception) else _result(each, receipt)
            for each, receipt in zip(messages, receipts, strict=True)
        ]

    def _commit(self, message: Incoming) -> Commit:
        new = new_entry(
            Message(content=message.content, role="user", id=message.id, client=message.client), new_message_id()
        )
        digest = sha256(msgspec.json.encode(message.content)).digest()[:16]
        claim = Claim(client=message.client or "bridge", id=message.id, body_hash=digest)
        return Commit(session=self.id, expect=_TAKES, entries=(new,), claim=claim)

    def _take(self, stored: Iterable[tuple[Incoming, Commit, Receipt | Exception]]) -> None:
        """Give clients what this process has stored. Reading it from the store would cost more than storing it."""
        ring, age_of, now = self._ring, self._ages(), self._clock.monotonic()
        for message, commit, receipt in stored:
            if isinstance(receipt, Exception) or receipt.duplicate:
                continue
            is_of_ring = receipt.epoch == ring.epoch
            if is_of_ring and receipt.first <= ring.top:
                continue
            if not is_of_ring or receipt.first != ring.top + 1:
                # Somebody else has written before it, so the store is read after all.
                self._is_behind = True
                break
            self._stored.append((message.client, message.id))
            place = LogPlace(receipt.first, commit.entries[0].id, receipt.at, self.id, ring.epoch)
            at = age_of(receipt.at)
            ring.append(
                user_frame(message.content, message.client, message.id, place, redactor=self._redactor, at=at), now
            )
        self._tell()

    async def publish(self, *messages: tuple[str, dict[str, Any]]) -> int:
        """Store messages of the bridge, each a type and a payload; return the last offset."""
        entries = tuple(
            NewEntry(type=type_, body=msgspec.json.encode(payload), id=fresh_id()) for type_, payload in messages
        )
        return (await self._store.commit(Commit(session=self.id, entries=entries))).top

    # --- what it is like now ---

    async def summary(self, *, client: str = "") -> SessionStatePayload:
        """Return what the session does now. client: whose messages it lists that are stored, and whose acks may have been lost."""
        memory = await self._memory()
        approvals, questions = self._open_questions(memory)
        return SessionStatePayload(
            session_id=self.id,
            at_offset=self.top,
            state=self.state.value,
            turn=_turn(memory),
            turn_number=memory.turn,
            in_flight=memory.in_flight,
            pending_approvals=approvals,
            pending_questions=questions,
            stop_reason=memory.ended,
            unacked_client_ids=[id_ for sender, id_ in self._stored if sender == client],
        )

    async def doing(self) -> tuple[Doing, int]:
        """Return what its agent does now, and how many questions wait for a person."""
        memory = await self._memory()
        return _turn(memory), len(memory.pending())

    async def snapshot(self) -> Snapshot:
        """Return the session as it is, and the position at which a client goes on."""
        # The position first: what happens after it is read is sent again, and nothing is missed.
        record = await self._store.session(self.id)
        await self.catch_up()
        memory = await self._memory()
        approvals, questions = self._open_questions(memory)
        state = {
            "state": record.state.value,
            "turn": memory.turn,
            "in_flight": memory.in_flight,
            "messages": memory.message_count,
            "pending_approvals": approvals,
            "pending_questions": questions,
        }
        return Snapshot(session_id=self.id, epoch=record.epoch, offset=record.top, state=self._redactor.value(state))

    async def _memory(self) -> SessionMemory:
        """Return what the session knows from its log up to `top`, as it is now. Nobody may change it.

        Whoever needs it waits for the same reading, and leaves it to go on: a log may be long, and grow as fast as it is read.
        """
        # A reading that goes on may have begun before the newest message, and the next one has begun after it.
        for _ in range(2):
            if self._known is not None and self._known_epoch == self.epoch and self._known.seen >= self.top:
                break
            if self._learning is None:
                self._learning = asyncio.create_task(self._learn(), name=f"bridge: knowledge of {self.id}")
                self._learning.add_done_callback(self._learned)
            await asyncio.shield(self._learning)
        assert self._known is not None, "a reading that fails raises"
        return self._known.memory

    def _learned(self, task: asyncio.Task[None]) -> None:
        self._learning = None
        if task.cancelled() or task.exception() is not None:
            # It may have failed half way, so the next one begins anew.
            self._known = None

    async def _learn(self) -> None:
        """Read what the log has now. What comes meanwhile is read by the next."""
        known, epoch, top = self._known, self.epoch, self.top
        try:
            if known is None or self._known_epoch != epoch:
                known = await read_memory(self._store, self.id)
            while known.seen < top and (entries := await self._store.read(self.id, after=known.seen)):
                for entry in entries:
                    known.memory.take(self.id, entry)
                known = known._replace(seen=entries[-1].offset)
        except HoldfastError as error:
            if error.fault.code != "SESS_GAP":
                raise
            known = await read_memory(self._store, self.id)
        self._known, self._known_epoch = known, epoch

    def _open_questions(self, memory: SessionMemory) -> tuple[list[Any], list[Any]]:
        approvals, questions = list[Any](), list[Any]()
        for each in memory.pending():
            raised = msgspec.to_builtins(each)
            payload = question_payload(raised)
            if tool_call_of(raised):
                approvals.append(fitting(payload | approval_payload(raised), self._redactor))
            else:
                questions.append(fitting(payload, self._redactor) | self._secret(each.id))
        return approvals, questions

    def _secret(self, question: str) -> dict[str, str]:
        code = self.secrets.get(question)
        return {} if code is None else {"user_code": code}

    def show_code(self, question: str, code: str) -> None:
        """Show the code of a sign-in to everybody who is here, and to whoever joins while the question is open. It is not stored."""
        self.secrets[question] = code
        payload = Question(question_id=question, kind="Auth.DeviceCode", prompt="", user_code=code)
        self._broadcast(self, "question", payload)

    async def question_of_call(self, tool_call: str, shown: str = "") -> str:
        """Return the question about a tool call. One that waits comes first: ids of older versions were not unique.

        shown: the id of the question that the sender has seen. Raises SESS_NOT_FOUND if there is none, and SESS_INTERACTION_MISMATCH if
        several wait, or if the one that was shown is about another call.
        """
        await self.catch_up()
        waiting = []
        for each in (await self._memory()).pending():
            call = tool_call_of(msgspec.to_builtins(each))
            if each.id == shown and call and tool_call not in (call, each.id):
                raise mismatch(shown, f"tool call '{call}'", f"'{tool_call}'")
            if call and tool_call in (call, each.id):
                waiting.append(each.id)
        if shown:
            return shown
        if len(waiting) > 1:
            raise mismatch(", ".join(waiting), "the question_id of one of them", f"tool call '{tool_call}'")
        # Whoever is late learns that it was answered.
        answered = (known for known, call in reversed(self._tool_calls.items()) if call and tool_call in (call, known))
        found = waiting[0] if waiting else next(answered, "")
        if found:
            return found
        context = {"session_id": self.id, "tool_call_id": tool_call}
        message = f"Session '{self.id}' has no question about tool call '{tool_call}'"
        raise HoldfastError(Fault.of("SESS_NOT_FOUND", message, context=context))


def _turn(memory: SessionMemory) -> Doing:
    return "requires_action" if memory.pending() else "running" if memory.in_flight else "idle"


def _title(record: SessionRecord) -> str:
    """Return a session's title; empty also if its manifest is damaged, which whoever opens it learns."""
    try:
        return decode_manifest(record.id, bytes(record.manifest)).title
    except HoldfastError:
        return ""


def _result(message: Incoming, receipt: Receipt) -> AckResult:
    return AckResult(id=message.id, status="duplicate" if receipt.duplicate else "stored", offset=receipt.first)
