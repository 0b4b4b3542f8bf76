"""`RemoteSession`: a session on the other side of a bridge.

Invariant: an iteration yields each message of the session's log once and in order, or a `Gap`. A message counts as taken when the
application asks for the next one, or leaves the block without an error; only then the kept position moves.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Literal, Self

import msgspec

from holdfast.bridge.client.messages import Gap, Question, QuestionClosed, SessionEvent, State
from holdfast.faults import HoldfastError, InvalidError
from holdfast.sessions.questions.question import Answer

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from holdfast.bridge.client.driver import Driver
    from holdfast.bridge.client.messages import Message, Snapshot
    from holdfast.faults import Fault
    from holdfast.wire.position import Position

__all__ = ["RemoteSession"]

_COMMAND_EXPIRES_S = 30.0
"""After this many seconds a command that could not be sent is not sent any more: what it is about has changed."""


class RemoteSession:
    """A session that a client is in: `async with client.join("release-42") as session`.

        async for message in session:
            match message:
                case Text(text=text): print(text, end="")
                case Question(id=id): await session.answer(id, True)
                case Gap(): await session.reload()
                case SessionEvent(event="turn_ended"): break

    A `Text` is a piece of an answer. The turn is over when the `SessionEvent` with `turn_ended` comes.

    Entering the block raises `HoldfastError` if there is no such session (SESS_NOT_FOUND) or if the client has given up. The iteration
    goes on over lost connections; it raises when the client gives up, and ends when the block or the client ends, and when the session is
    closed for good.
    """

    def __init__(self, driver: Driver, id_: str, *, limit: int, wait: bool, **options: Any) -> None:
        self.id = id_
        self._driver = driver
        self._limit = limit
        self._wait = wait
        self._options = options
        self._inbox: deque[Message] = deque()
        self._is_held_back = False
        self._changed = asyncio.Event()
        self._last: Message | None = None
        """The message that the application works on."""
        self._has_gap = False
        """Whether the application knows of a gap and has not loaded a snapshot yet."""
        self._joined: asyncio.Future[None] | None = None
        self._snapshot: asyncio.Future[Snapshot] | None = None
        self._asked: dict[str, str] = {}
        """The questions that came and are open, each with the hash of exactly what it asks."""
        self._turn: int | None = None
        """The number of the turn that runs, or of the last one, as far as anything has come; None: nobody said it yet."""
        self._is_in_turn = False
        self._is_closed = False
        """Whether the end of its log has come: somebody has closed it."""
        self._is_over = False
        self._error: BaseException | None = None
        self.about: dict[str, Any] = {}
        """What the server said at the last join: `state`, `role`, `clients`, `top_offset`."""
        self.state: State | None = None
        """What the session does, as far as the application has read."""
        self.position: Position | None = options.get("after")
        """The last message that the application is done with. Give it to `join(after=…)` to go on there.

        A message counts when you ask for the next one, or when the block is left without an error. So after a `break` read it behind the
        block, or use `message.position` inside.
        """

    async def __aenter__(self) -> Self:
        self._joined = asyncio.get_running_loop().create_future()
        self._driver.join(self.id, self, **self._options)
        if self._wait:
            try:
                await self._joined
            except BaseException as error:
                self._leave()
                if isinstance(error, HoldfastError) and error.fault.code == "SESS_NOT_FOUND":
                    raise HoldfastError(self._missing(error.fault)) from None
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # A message whose handling has failed comes again, if the position is kept.
        if error is None:
            self._finish()
        self._leave()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        self._finish()
        while True:
            if self._inbox:
                return self._take()
            if self._error is not None:
                raise self._error
            if self._is_over or self._is_closed:
                raise StopAsyncIteration
            if self._has_gap:
                # The application went on without a snapshot. It gets one, because nothing else can follow a gap.
                self._last = await self.reload()
                return self._last
            self._changed.clear()
            await self._changed.wait()

    @property
    def ended_with(self) -> BaseException | None:
        """Why the client is not in the session any more, if it did not leave by itself; None: it is, or it left."""
        return self._error

    # --- what the application does ---

    async def send(self, text: str, *, expires: float | None = None) -> int:
        """Send a message to the agent. Return its offset in the session's log, once it is stored there.

            offset = await session.send("fix the tests")

        While the client is not connected it waits. If you cancel it, or its time limit passes, the message stays in the outbox and is
        sent later: `client.pending` shows it. After `expires` seconds it is not sent any more, and this raises.

        Raises `HoldfastError` if the outbox is full (SYS_RESOURCE_EXHAUSTED), if the message is larger than the server takes
        (PROTO_MESSAGE_TOO_LARGE, `fault.context["limit"]`), if the server rejects it, and if the client gives up.
        """
        result = await self._driver.send(self.id, "session_message", {"content": text}, expires)
        return result.offset or 0

    async def answer(self, id_: str, value: Any = True, *, expires: float | None = None) -> None:  # noqa: FBT002 - a yes is the usual answer
        """Answer a question: with True or False, a text, one of its choices, or an `Answer` with a reason.

            await session.answer(question.id, Answer.no("too risky"))

        Raises `HoldfastError` if somebody was faster (SESS_ALREADY_ANSWERED), if the question has expired, or if the answer does not fit.
        """
        given = value if isinstance(value, Answer) else Answer(value)
        payload = {"question_id": id_, "value": given.value, "outcome": given.outcome, "reason": given.reason}
        if shown := self._asked.get(id_):
            payload["arguments_hash"] = shown
        await self._driver.send(self.id, "answer", payload, expires)

    async def command(
        self,
        run: str,
        command: Literal["retry_now", "fall_back", "cancel"],
        *,
        expires: float | None = _COMMAND_EXPIRES_S,
    ) -> None:
        """Tell an operation that waits what to do: `await session.command(recovery.run, "retry_now")`.

        While the client is not connected it waits, for `expires` seconds at most. Then it raises, and is not sent any more.
        """
        await self._driver.send(self.id, "command", {"run": run, "command": command}, expires)

    async def stop(self, *, expires: float | None = _COMMAND_EXPIRES_S) -> None:
        """Stop what the agent does now. The session stays.

        Only the turn is stopped that runs as far as this client knows, or that comes next if none runs. While the client is not
        connected this waits, for `expires` seconds at most. Raises `HoldfastError`: SESS_ILLEGAL_TRANSITION if that turn does not run
        any more, SYS_TIMEOUT if it could not be sent in time.
        """
        turn = self._turn
        # A client that holds messages back, or lacks some, does not know which turn runs.
        is_known = turn is not None and not (self._is_held_back or self._has_gap)
        payload = {"turn": turn if self._is_in_turn else (turn or 0) + 1} if is_known else {}
        await self._driver.send(self.id, "stop", payload, expires)

    async def rename(self, title: str, *, expires: float | None = _COMMAND_EXPIRES_S) -> None:
        """Give the session another title, for everybody; its id stays: `await session.rename("Release 42, second try")`.

        Raises `HoldfastError`: AUTH_FORBIDDEN for an observer, PROTO_INVALID_MESSAGE for a title that is too long, SESS_CLOSED,
        SYS_TIMEOUT if it could not be sent within `expires` seconds.
        """
        await self._driver.send(self.id, "session_rename", {"title": title}, expires)

    async def close(self, *, expires: float | None = _COMMAND_EXPIRES_S) -> None:
        """Close the session for good, and stop what its agent does: `await session.close()`. Its log stays.

        Raises `HoldfastError`: AUTH_FORBIDDEN for an observer, SESS_CLOSED if somebody else was first, SYS_TIMEOUT if it could not be
        sent within `expires` seconds.
        """
        await self._driver.send(self.id, "session_close", {}, expires)

    async def reload(self) -> Snapshot:
        """Load the session as it is: `snapshot.state`. Messages from before it are skipped, and what follows begins after it."""
        if self._error is not None:
            raise self._error
        if self._is_over:
            raise InvalidError.saying("session", "a session that is joined", f"{self.id!r}, which was left")
        waiter: asyncio.Future[Snapshot] = asyncio.get_running_loop().create_future()
        self._snapshot = waiter
        self._has_gap = self._is_held_back = False
        self._driver.perform(self._driver.machine.reload(self.id))
        try:
            snapshot = await waiter
        finally:
            if self._snapshot is waiter:
                self._snapshot = None
        self._last = snapshot
        return snapshot

    # --- what the driver hands over ---

    def joined(self, payload: dict[str, Any]) -> None:
        """The client is in the session, for the first time or again."""
        self.about = payload
        if self._joined is not None and not self._joined.done():
            self._joined.set_result(None)

    def delivered(self, message: Message) -> None:
        """A message has come."""
        match message:
            case Question(id=id_, arguments_hash=asked):
                self._asked[id_] = asked
            case QuestionClosed(id=id_):
                self._asked.pop(id_, None)
            case State(pending_approvals=approvals, pending_questions=questions):
                self._know_open((*approvals, *questions))
                self._turn, self._is_in_turn = message.turn_number, message.in_flight
            case SessionEvent(event="session_closed" | "session_error"):
                self._is_closed = True
            case SessionEvent(event="turn_started" | "turn_ended", details={"turn": int(turn)}):
                self._turn, self._is_in_turn = turn, message.event == "turn_started"
        self._inbox.append(message)
        self._changed.set()
        if len(self._inbox) >= self._limit and not self._is_held_back:
            # An application that is slower than its agent must not fill the memory. The rest stays in the session's log.
            self._is_held_back = True
            self._driver.machine.hold_back(self.id)

    def _know_open(self, questions: Iterable[Any]) -> None:
        known = (each for each in questions if isinstance(each, dict))
        self._asked = {str(each.get("question_id", "")): str(each.get("arguments_hash", "")) for each in known}

    def loaded(self, snapshot: Snapshot) -> None:
        """A snapshot has come. What was not read yet is a part of it."""
        state = snapshot.state if isinstance(snapshot.state, dict) else {}
        self._know_open((*state.get("pending_approvals", ()), *state.get("pending_questions", ())))
        self._turn, self._is_in_turn = state.get("turn"), bool(state.get("in_flight"))
        kept = [message for message in self._inbox if message.position is None and not isinstance(message, Gap)]
        self._inbox.clear()
        self._inbox.extend(kept)
        if self._snapshot is not None and not self._snapshot.done():
            self._snapshot.set_result(snapshot)
        else:
            self._inbox.appendleft(snapshot)
        self._changed.set()

    def ended(self, error: BaseException | None) -> None:
        """The client is not in the session any more. What came before that can still be read."""
        self._error, self._is_over = error, True
        for waiter in (self._joined, self._snapshot):
            if waiter is not None and not waiter.done():
                if error is None:
                    waiter.cancel()
                else:
                    waiter.set_exception(error)
        self._changed.set()

    # ---

    def _take(self) -> Message:
        message = self._inbox.popleft()
        self._last = message
        if isinstance(message, Gap):
            self._has_gap = True
        elif isinstance(message, State):
            self.state = message
        if self._is_held_back and len(self._inbox) <= self._limit // 2:
            self._is_held_back = False
            self._driver.perform(self._driver.machine.catch_up(self.id))
        return message

    def _finish(self) -> None:
        message, self._last = self._last, None
        if message is not None and message.position is not None:
            self.position = message.position
            self._driver.taken(self.id, message.position)

    def _missing(self, fault: Fault) -> Fault:
        """Return the fault for a session that does not exist, with how to make it if that was not tried."""
        if self._options.get("creation") is not None:
            return fault
        return msgspec.structs.replace(fault, message=f"{fault.message}; client.create({self.id!r}) makes it")

    def _leave(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._driver.leave(self.id)
            self._changed.set()
