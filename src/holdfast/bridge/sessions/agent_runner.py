"""`AgentRunner`: lets an agent answer the messages of one session, one turn for each, in order.

Invariant: a message is answered once. If the process dies, the turn goes on where it was when a server opens the session again, and messages
that waited are answered after it. A turn that fails is reported; the next message is a turn of its own.
"""

from __future__ import annotations

import asyncio
import inspect
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import msgspec

from holdfast.agents.kind import is_agent
from holdfast.agents.parts import Compacted, Done, Parked, Retrying, Text, ToolCalled, ToolReturned
from holdfast.bridge.log import log_error, log_warning
from holdfast.bridge.sessions.deaths import CONTINUED, ENTRIES, MOST, Deaths, rest
from holdfast.bridge.sessions.exits import contained, exit_text, is_ctrl_c
from holdfast.bridge.sessions.frames import exact
from holdfast.bridge.sessions.publisher import Publisher
from holdfast.bridge.sessions.turn import Turn
from holdfast.events import Failed
from holdfast.faults import AbortedError, Fault, HoldfastError, InvalidError, Severity
from holdfast.policies.severity import REACTIONS, Reaction
from holdfast.runtime.fault_of import is_reported
from holdfast.runtime.secrets import process_redactor
from holdfast.sessions import Session
from holdfast.sessions.manifest import decode_manifest
from holdfast.tools.toolbox import ends_only_its_call, is_stray
from holdfast.views import wire

if TYPE_CHECKING:
    from holdfast.agents.parts import AgentPart
    from holdfast.bridge.sessions.live_session import LiveSession
    from holdfast.runtime.runtime import Runtime
    from holdfast.sessions.questions.question import Answer, Notice, Question
    from holdfast.stores import SessionRecord, Store

__all__ = ["AgentRunner", "agent_name", "check_agent", "problem"]

_AGAIN_S = (0.2, 1.0, 2.0, 5.0, 10.0, 30.0)
"""How long to wait before a session that cannot be read or opened is tried again."""
_LOOK_BACK = 512
"""How many entries of a log are read at first to find the last turn."""
_SHOWN_CONTENT = 262_144
"""The most characters of a tool's result that clients get: more than tools give a model, unless they are agents."""
_NO_REASON = "TOOL_EXECUTION_FAILED"
"""The code of a program that did not say why it failed, other than in its own words: no file is missing, and nothing is forbidden."""


class WaitingMessage(NamedTuple):
    """A message of a user that has no answer yet."""

    offset: int
    text: str
    id: str
    """The id of its entry in the log: its turn is known by it."""
    coalesced: tuple[int, ...] = ()
    """The offsets of earlier messages that are answered together with it."""


class _Found(NamedTuple):
    """What the log says about the last turn."""

    cursor: int = 0
    """The offset of the message that the last turn is about; 0 if there was none."""
    is_cut: bool = False
    """Whether that turn has begun and not ended."""
    open_stream: str = ""
    """The answer that was begun and not ended."""
    has_ended: bool = False
    """Whether its answer is in the log, whole."""
    seen: int = 0
    """The offset up to which the log was read for this."""
    epoch: str = ""
    """The name of that log."""
    deaths: Deaths = Deaths()


_TURNS = frozenset({"turn_started", "turn_ended", "stream_start", "stream_end"}) | ENTRIES


def _after(found: _Found, type_: str, body: dict[str, Any]) -> _Found:
    """Return what is known after one more entry."""
    found = found._replace(deaths=found.deaths.after(type_, body))
    match type_:
        case "turn_started":
            given = body.get("input")
            offset = given.get("offset") if isinstance(given, dict) else None
            if not isinstance(offset, int):
                # The turn of another program.
                return found._replace(is_cut=False, open_stream="", has_ended=False)
            return found._replace(cursor=max(found.cursor, offset), is_cut=True, open_stream="", has_ended=False)
        case "turn_ended":
            return found._replace(is_cut=False)
        case "stream_start":
            return found._replace(open_stream=str(body.get("stream_id", "")), has_ended=False)
        case "stream_end":
            return found._replace(open_stream="", has_ended=body.get("finish_reason") == "stop")
        case _:
            return found


class _People:
    """Everybody who is connected, as the session's interactor. Answers come through the log, except what must not be stored."""

    name = "bridge"

    def __init__(self, live: LiveSession, publisher: Publisher) -> None:
        self._live = live
        self._publisher = publisher
        self._secret: dict[str, asyncio.Future[Answer]] = {}
        self.open_questions = 0
        """How many questions wait for somebody."""

    async def ask(self, question: Question) -> Answer:
        """Wait for an answer that the log does not hold. The session cancels this when the log has one."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if question.kind == "Auth.Password":
            self._secret[question.id] = answer
        if question.user_code:
            self._live.show_code(question.id, question.user_code)
        self.open_questions += 1
        try:
            return await answer
        finally:
            self.open_questions -= 1
            self._secret.pop(question.id, None)
            self._live.secrets.pop(question.id, None)

    async def notify(self, notice: Notice) -> None:
        """Show a notice to everybody."""
        data = {} if notice.fault is None else {"code": notice.fault.code}
        payload = {"notification_id": str(uuid4()), "notification_type": "notice", "title": notice.text, "data": data}
        self._publisher.put("notification", payload)

    def give(self, question: str, answer: Answer) -> bool:
        """Hand a password to the program that asks for it. False: nobody asks for it here."""
        waiting = self._secret.get(question)
        if waiting is None or waiting.done():
            return False
        waiting.set_result(answer)
        return True


class AgentRunner:
    """Runs the agent of one session: `runner.start()`, and `await runner.stop()` at the end.

    agent: an `Agent`, `CommandAgent`, `FunctionAgent`, a role, or `async def agent(turn)`; None: messages stay unanswered.
    coalesces: whether messages that wait are answered together.
    """

    def __init__(
        self, agent: Any, live: LiveSession, store: Store, *, runtime: Runtime, coalesces: bool = False
    ) -> None:
        self.session: Session | None = None
        """The session, while it is open here."""
        self._agent = agent
        self._live = live
        self._store = store
        self._runtime = runtime
        self._coalesces = coalesces
        self._publisher = Publisher(store, live.id)
        self._people = _People(live, self._publisher)
        self._turn: Any = None
        self._task: asyncio.Task[None] | None = None
        self._leaving = asyncio.Event()
        self._opened = asyncio.Event()
        self._close_reason: str | None = None
        self._starts_again = False
        """Whether it was started while it was about to leave."""
        self._drains = False
        """Whether it answers what waits before it leaves."""
        self._stops = False
        """Whether its task was cancelled."""
        self._failures = 0
        """How often in a row the session could not be read or opened."""

    @property
    def is_busy(self) -> bool:
        """Whether a turn runs."""
        return self._turn is not None

    @property
    def is_running(self) -> bool:
        """Whether it answers messages."""
        return self._task is not None and not self._task.done()

    @property
    def is_asking(self) -> bool:
        """Whether a turn waits for the answer of a person."""
        return self._people.open_questions > 0

    def start(self, *, opens: bool = False) -> None:
        """Answer what waits, and what comes. opens: open the session now, and not only when there is something to answer."""
        if self.is_running:
            # One that leaves may have looked for messages for the last time. Then another look follows.
            self._starts_again = self._leaving.is_set()
        else:
            self._leaving.clear()
            self._drains = self._stops = False
            self._starts_again = False
            self._close_reason = None
            self._opened.clear()
            self._task = asyncio.create_task(self._run(opens=opens), name=f"bridge: agent of {self._live.id}")
            self._task.add_done_callback(self._look_at_end)

    def _look_at_end(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, HoldfastError):
            # A defect. Clients see no answer, so at least the log must say why.
            log_error("agent of %s ended", self._live.id, cause=error)
        if self._starts_again and not task.cancelled():
            self.start()

    async def has_work(self) -> bool:
        """Return whether a turn was cut off, or a message waits for its answer."""
        return await self._has_work(await self._look_back(_Found()))

    async def _has_work(self, found: _Found) -> bool:
        return found.is_cut or (await self._messages(found.cursor))[0] is not None

    async def opened(self) -> None:
        """Wait until the session is open here, or raise what prevents it."""
        assert self._task is not None
        waiting = asyncio.ensure_future(self._opened.wait())
        try:
            await asyncio.wait((waiting, self._task), return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
        if self._task.done():
            self._task.result()

    async def leave(self, *, drains: bool = False) -> None:
        """Stop after the turn that runs, and with `drains` after all messages that wait. The session is paused."""
        self._drains = drains
        self._leaving.set()
        await self._ended()

    async def stop(self) -> None:
        """Stop now. A turn that runs goes on when the session is opened again."""
        self._starts_again = False
        if self._task is not None and not self._task.done():
            self._stops = True
            self._task.cancel()
        await self._ended()

    async def activate(self) -> None:
        """Open the session again, or raise what prevents it."""
        await self.stop()
        self.start(opens=True)
        await self.opened()

    async def pause(self) -> bool:
        """Pause the session after the turn that runs, if it is open here; return whether it was."""
        if self.session is None:
            return False
        await self.leave()
        return True

    async def close(self, reason: str) -> bool:
        """Close the session for good, if it is open here; return whether it was."""
        if not self.is_running or self.session is None:
            await self.stop()
            return False
        self._close_reason = reason
        await self.stop_turn()
        await self.leave()
        return True

    async def stop_turn(self, turn: int | None = None) -> bool:
        """Cancel the turn that runs; return whether there was one. turn: its number, if no other turn is to be cancelled."""
        return self._turn is not None and turn in (None, self._turn.number) and bool(self._turn.cancel())

    async def give(self, question: str, answer: Answer) -> bool:
        """Hand over an answer that must not be stored. False: nobody waits for it here."""
        return self._people.give(question, answer)

    async def command(self, run: str, command: str, by: str) -> bool:
        """Tell an operation that waits what to do. False: it is none of this session, or does not wait (any more)."""
        # A run of another session is as unknown as one that never was.
        return run in self._live.runs and bool(getattr(self._runtime.commands, command)(run, by=by))

    def publish(self, type_: str, payload: dict[str, Any]) -> None:
        """Add a message to the log, in order with what the agent says."""
        self._publisher.put(type_, payload)

    async def _ended(self) -> None:
        if self._task is not None:
            await asyncio.wait((self._task,))
        # The turn has raised what could not be stored.
        with suppress(Exception):
            await self._publisher.flush()

    # --- the session ---

    async def _run(self, *, opens: bool) -> None:
        found, self._failures = _Found(), 0
        while self._drains or not self._leaving.is_set():
            opens = opens and not self._opened.is_set()
            try:
                found = await self._look_back(found)
                if not opens and not found.is_cut and await self._next(found.cursor) is None:
                    return
                if await self._serve(found, opens=opens):
                    return
            except Exception as error:
                if opens and not self._opened.is_set():
                    raise
                fault = self._runtime.fault_of(error)
                if self._leaving.is_set() or fault.code in ("SESS_CLOSED", "SESS_NOT_FOUND", "SESS_NOT_RESUMABLE"):
                    return
                # Messages are acknowledged whether or not somebody can answer them. So this goes on until it can.
                if not isinstance(error, HoldfastError):
                    log_error("agent of %s failed", self._live.id, cause=error)
                await self._cannot(fault)

    async def _serve(self, found: _Found, *, opens: bool) -> bool:
        """Open the session, and answer until the runner is to leave. False: another server has answered all, or it is opened anew."""
        record = await self._store.session(self._live.id)
        manifest = decode_manifest(self._live.id, bytes(record.manifest))
        session = Session.open(
            self._live.id,
            store=self._store,
            project_root=manifest.project_root,
            mode=manifest.mode,
            agent_type=manifest.agent_type,
            on_drift="accept",
            runtime=self._runtime,
            interactors=(self._people,),
        )
        async with session:
            self.session = session
            self._opened.set()
            try:
                # Another server may have answered while this one waited for the session. Nobody else can from now on.
                found = await self._look_back(found)
                serves = opens or self._leaving.is_set() or await self._has_work(found)
                if serves:
                    serves = await self._answer_all(session, found)
                if self._close_reason is not None:
                    await session.close(self._close_reason)
            finally:
                self.session = None
        return serves

    async def _answer_all(self, session: Session, found: _Found) -> bool:
        """Answer until the runner is to leave. False: a turn failed fatally, and the session must not be used any longer."""
        if found.open_stream:
            # The process that wrote it is gone. Its messages do not count.
            self._publisher.put("stream_end", {"stream_id": found.open_stream, "finish_reason": "error"})
        deaths = found.deaths.in_a_row
        if found.is_cut and deaths > MOST:
            title = f"{_died(deaths)} It is given up: send it again to try once more."
            fault = Fault.of("SYS_PROCESS_EXIT", title)
            self._report(session, fault)
            await self._turn_failed(session, fault, "failed", title)
        elif found.is_cut:
            if not await self._answer(session, None, is_said=found.has_ended, deaths=deaths):
                return False
            self._failures = 0
        elif session.in_flight is not None:
            # The turn of another program. Nobody here knows how to go on with it.
            await session.abandon("a message came over the bridge")
        cursor = found.cursor
        while (waiting := await self._next(cursor)) is not None:
            if self._agent is not None:
                if not await self._answer(session, waiting, is_said=False):
                    return False
                self._failures = 0
            cursor = waiting.offset
        return True

    async def _cannot(self, fault: Fault) -> None:
        """Say why nothing is answered, and wait."""
        log_warning("session %s: %s", self._live.id, fault.message)
        failures = self._failures
        self._failures += 1
        if failures == 0:
            # The log has it already. A store that is down must not end the wait.
            with suppress(Exception):
                await self._live.publish(("notification", problem("agent_unavailable", fault)))
        delay = _AGAIN_S[min(failures, len(_AGAIN_S) - 1)]
        with suppress(TimeoutError):  # the delay has passed, so it tries again
            await asyncio.wait_for(self._leaving.wait(), delay)

    # --- messages ---

    async def _look_back(self, found: _Found) -> _Found:
        """Return which message the last turn was about, and what became of it. Turns say it in the log.

        found: what is known already. Only what came after it is read.
        """
        record = await self._store.session(self._live.id)
        if found.epoch != record.epoch:
            found = _Found(epoch=record.epoch, seen=await self._before_last_turn(record))
        while entries := await self._store.read(self._live.id, after=max(found.seen, record.oldest - 1)):
            for entry in entries:
                if entry.type in _TURNS:
                    found = _after(found, entry.type, msgspec.json.decode(entry.body))
            found = found._replace(seen=entries[-1].offset)
        return found

    async def _before_last_turn(self, record: SessionRecord) -> int:
        """Return the offset before the last turn that answers a message. What came earlier does not matter any more.

        Turns are answered in order, so the last one says which message was answered last. It is looked for from the end, because a log may be
        long.
        """
        count, begin = _LOOK_BACK, record.oldest - 1
        while True:
            after, last = max(begin, record.top - count), None
            while entries := await self._store.read(self._live.id, after=after):
                for entry in entries:
                    if (
                        entry.type == "turn_started"
                        and _after(_Found(), entry.type, msgspec.json.decode(entry.body)).is_cut
                    ):
                        last = entry.offset - 1
                after = entries[-1].offset
            if last is not None or record.top - count <= begin:
                return begin if last is None else last
            count *= 8

    async def _next(self, cursor: int) -> WaitingMessage | None:
        """Return the next message after an offset. Wait for one; None: the runner is to leave."""
        while self._drains or not self._leaving.is_set():
            news = self._live.news()
            found, scanned = await self._messages(cursor)
            if found is not None or self._leaving.is_set():
                return found
            leaving = asyncio.ensure_future(self._leaving.wait())
            coming = asyncio.ensure_future(news.wait())
            try:
                await asyncio.wait((leaving, coming), return_when=asyncio.FIRST_COMPLETED)
            finally:
                leaving.cancel()
                coming.cancel()
            cursor = scanned
        return None

    async def _messages(self, cursor: int) -> tuple[WaitingMessage | None, int]:
        """Return what waits after an offset, and up to where there is no other message."""
        texts, offsets, known_as, after = list[str](), list[int](), "", cursor
        while entries := await self._store.read(self._live.id, after=after):
            for entry in entries:
                text = _text_of(entry.type, entry.body)
                if text is None:
                    continue
                texts.append(text)
                offsets.append(entry.offset)
                known_as = entry.id
                if not self._coalesces:
                    return WaitingMessage(entry.offset, text, known_as), entry.offset
            after = entries[-1].offset
        if not texts:
            return None, after
        *earlier, last = offsets
        return WaitingMessage(last, "\n\n".join(texts), known_as, tuple(earlier)), after

    # --- turns ---

    async def _answer(
        self, session: Session, waiting: WaitingMessage | None, *, is_said: bool, deaths: int = 0
    ) -> bool:
        """Run a turn for a message; None: go on with the turn that was cut, in which so many processes died.

        Returns whether the session may be used any longer.
        """
        block = (
            session.turn(unfinished="continue") if waiting is None else session.turn(_input_of(waiting), key=waiting.id)
        )
        try:
            async with block as turn:
                self._turn = turn
                if self._close_reason is not None:
                    # Somebody closed the session after the message was taken and before its turn began.
                    turn.cancel()
                if deaths:
                    await self._rest(turn.number, deaths)
                text = str(turn.input["text"])
                await self._work_as_told(session, text, turn.number, is_said=is_said)
                await self._publisher.flush()
        except AbortedError as error:
            await self._turn_failed(session, error.fault, "cancelled")
        except Exception as error:
            fault = self._runtime.fault_of(error)
            if self._may_go_on_later(session, fault):
                raise
            log_warning("a turn of %s failed: %s", self._live.id, fault.message)
            if not is_reported(error):
                self._report(session, fault)
            # What a function of the user's own raises is not known as a failure of anything, or only as one of a tool.
            title = "" if isinstance(error, HoldfastError) else _title(error, fault)
            await self._turn_failed(session, fault, "failed", title)
            if Reaction.TERMINATE in REACTIONS[fault.severity]:
                await self._terminate(session, fault)
                return False
        finally:
            self._turn = None
        return True

    def _may_go_on_later(self, session: Session, fault: Fault) -> bool:
        """Whether a turn failed because its session cannot be used at present: it goes on when the session is opened again.

        What the turn uses may fail with the same codes: another session, a virtual actor. Opening this session anew does not help
        then. If it cannot be said whose store failed, the turn is tried again as often as there are delays.
        """
        if fault.code not in ("SESS_STORE_UNAVAILABLE", "SESS_LEASE_LOST"):
            return False
        if not session.is_owned:
            return True
        return fault.code == "SESS_STORE_UNAVAILABLE" and self._failures < len(_AGAIN_S)

    def _report(self, session: Session, fault: Fault) -> None:
        """Tell logs, metrics and alerts of a turn's failure. Of those of its operations, the operations do."""
        at, name = self._runtime.clock.wall(), agent_name(self._agent)
        event = Failed(at=at, operation=name, session=session.id, fault=fault, exhausted=False, attempts=0)
        self._runtime.bus.emit(event)

    async def _terminate(self, session: Session, fault: Fault) -> None:
        """End the use of a session after a fatal failure. With the profile of the bridges' document, the session is lost for good."""
        if self._runtime.profile.name == "bridge":
            log_error("session %s has ended with an error: %s", session.id, fault.message)
            await session.fail(f"failed: {fault.code}")

    async def _rest(self, turn: int, deaths: int) -> None:
        """Wait before a turn goes on in which processes died, so that others are served meanwhile."""
        delay = rest(deaths, self._runtime.rng)
        if delay:
            then = f"It goes on in {delay:.0f} s"
            log_warning("session %s, turn %s: %s %s", self._live.id, turn, _died(deaths), then)
            title = f"{_died(deaths)} {then}; stop it to give it up."
            note = {"notification_id": str(uuid4()), "notification_type": "turn_rests", "title": title}
            self._publisher.put("notification", note | {"priority": "high"})
            await self._publisher.flush()
            await asyncio.sleep(delay)
        # Before the work: if that ends this process, the log must say that it had begun.
        self._publisher.put(CONTINUED, {"turn": turn})
        await self._publisher.flush()

    async def _turn_failed(self, session: Session, fault: Fault, how: str, title: str = "") -> None:
        """Say that the turn has ended without an answer. Otherwise clients would wait for ever."""
        kind = "turn_cancelled" if how == "cancelled" else "agent_error"
        self._publisher.put("notification", problem(kind, fault, title))
        await self._publisher.flush()
        await session.abandon(f"{how}: {fault.code}")

    async def _work_as_told(self, session: Session, text: str, number: int, *, is_said: bool) -> None:
        task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        try:
            with contained():
                await self._work(session, text, number, is_said=is_said)
            if task.cancelling() > before:
                # It may have cancelled its task at the very end, and not heard of it yet.
                await asyncio.sleep(0)
        except Exception:
            raise
        except BaseException as error:
            if (
                is_ctrl_c(error)
                or self._times_told()
                or (isinstance(error, GeneratorExit) and not ends_only_its_call(error))
            ):
                raise
            # It may end its turn. The server belongs to all sessions.
            raise RuntimeError(_how_it_ended(error)) from None
        finally:
            # What it did to its task ends with its turn, so that a stop is told from it.
            while task.cancelling() > before + self._times_told():
                task.uncancel()

    def _times_told(self) -> int:
        """Return how often the turn was told to end: by whoever stopped it, and by the end of this runner."""
        return self._stops + (self._turn.scope.reason is not None)

    async def _work(self, session: Session, text: str, number: int, *, is_said: bool) -> None:
        if is_agent(self._agent):
            shown = _Shown(self._publisher, number, is_said=is_said, profile=self._runtime.profile.name)
            try:
                async with self._agent.stream(text, session=session) as parts:
                    async for part in parts:
                        shown.take(part)
                        await self._publisher.room()
            except BaseException as error:
                is_cut = isinstance(error, HoldfastError) and error.fault.code == "TASK_OUTPUT_EXHAUSTED"
                shown.end("length" if is_cut else "error")
                raise
            return
        turn = Turn(text, session, number, self._publisher)
        made = self._agent(turn)
        if inspect.isasyncgen(made):
            async with aclosing(made):
                async for piece in made:
                    await turn.say(str(piece))
            return
        answer = await made
        if answer is not None:
            await turn.say(str(getattr(answer, "text", answer)))


def _died(deaths: int) -> str:
    return f"The server died {deaths} times while the agent worked on this message."


def _how_it_ended(error: BaseException) -> str:
    """Return what an agent did that raised something else than an `Exception`."""
    match error:
        case asyncio.CancelledError() if is_stray(error):
            return "the agent awaited something that was cancelled, and nobody cancelled its turn"
        case asyncio.CancelledError():
            return "the agent cancelled its own turn"
        case _:
            return exit_text(error)


def _input_of(waiting: WaitingMessage) -> dict[str, Any]:
    """Return what the turn about a message stores of it."""
    stored: dict[str, Any] = {"text": waiting.text, "offset": waiting.offset}
    return stored | {"coalesced": list(waiting.coalesced)} if waiting.coalesced else stored


class _Shown:
    """What clients see of one run of an agent."""

    def __init__(self, publisher: Publisher, turn: int, *, is_said: bool, profile: str) -> None:
        self._publisher = publisher
        self._turn = turn
        self._stream = ""
        self._has_text = is_said
        self._may_be_repeated = profile == "bridge"

    def take(self, part: AgentPart) -> None:
        match part:
            case Text(text=text):
                self._text(text)
            case ToolCalled():
                self.end("tool_call")
                call = {"tool_call_id": part.id, "tool": part.name, "params": part.arguments, "turn": self._turn}
                self._publisher.put("tool_call", call | exact(part.arguments))
            case ToolReturned():
                self._publisher.put(*_returned(part, may_be_repeated=self._may_be_repeated))
            case Retrying(restarts_text=True):
                # The messages of this answer do not count: it begins anew.
                self.end("error")
                self._has_text = False
            case Parked(until=until, fault=fault):
                self._publisher.put("notification", problem("parked", fault) | {"data": {"until": until}})
            case Compacted(before=before, after=after):
                title = f"The conversation was shortened from {before} to {after} messages"
                note = {"notification_id": str(uuid4()), "notification_type": "compacted", "title": title}
                self._publisher.put("notification", note | {"priority": "low"})
            case Done(reply=reply):
                if reply.text and not self._has_text:
                    self._text(reply.text)
                usage = None if reply.usage is None else msgspec.to_builtins(reply.usage)
                self.end("stop", usage=usage, usd=reply.usd)
            case _:
                # Retries and fallbacks come as events, which have the id for commands. Questions are in the log.
                pass

    def _text(self, text: str) -> None:
        if not self._stream:
            self._stream = str(uuid4())
            self._publisher.put("stream_start", {"stream_id": self._stream, "turn": self._turn})
        self._has_text = True
        self._publisher.text(self._stream, text)

    def end(self, reason: str, **facts: Any) -> None:
        """End the stream that is open, if one is."""
        if not self._stream:
            return
        known = {name: value for name, value in facts.items() if value is not None}
        self._publisher.put("stream_end", {"stream_id": self._stream, "finish_reason": reason} | known)
        self._stream = ""
        if reason == "tool_call":
            # The text after the tools is another part of the answer.
            self._has_text = False


def agent_name(agent: Any) -> str:
    """Return the name of an agent, for people."""
    return str(getattr(agent, "name", None) or getattr(agent, "__name__", type(agent).__name__))


def check_agent(agent: Any) -> None:
    """Raise `InvalidError` if this is not something that can be served."""
    if agent is None or is_agent(agent) or inspect.iscoroutinefunction(agent) or inspect.isasyncgenfunction(agent):
        return
    if callable(agent) and inspect.iscoroutinefunction(getattr(agent, "__call__", None)):  # noqa: B004 - an object whose call is async
        return
    raise InvalidError.at("bridge.agent", "an agent, or a function `async def agent(turn)`", agent)


def _returned(part: ToolReturned, *, may_be_repeated: bool) -> tuple[str, dict[str, Any]]:
    if (fault := part.fault) is not None:
        if may_be_repeated and fault.ended_itself:
            # With the profile, a client may offer to make the call again. Nothing here does so by itself.
            fault = msgspec.structs.replace(fault, retryable=fault.entry.retryable or fault.code == _NO_REASON)
        payload = wire.tool_error(fault, literal=True, redactor=process_redactor())["payload"]
        return "tool_error", payload | {"tool_call_id": part.id, "tool": part.name}
    result = {"tool_call_id": part.id, "tool": part.name, "success": not part.is_error}
    cut = max(0, len(part.content) - _SHOWN_CONTENT)
    return "tool_result", result | {"content": part.content[:_SHOWN_CONTENT]} | ({"cut": cut} if cut else {})


def _title(error: Exception, fault: Fault) -> str:
    """Return what people read about an exception of the agent's own code; empty if the fault says what failed."""
    if not fault.code.startswith(("TOOL_", "SYS_")):
        return ""
    return f"The agent failed with {type(error).__name__}. Its log has the details."


def problem(kind: str, fault: Fault, title: str = "") -> dict[str, Any]:
    """Return a notification about a failure, in words for people."""
    return {
        "notification_id": str(uuid4()),
        "notification_type": kind,
        "title": title or fault.for_user(redactor=process_redactor()),
        "priority": "low" if fault.severity is Severity.INFO else "high",
        "data": {"code": fault.code},
    }


def _text_of(type_: str, body: bytes) -> str | None:
    """Return the text of an entry that is a message of a user."""
    if type_ != "message":
        return None
    message = msgspec.json.decode(body)
    if message.get("role", "user") != "user":
        return None
    content = message.get("content")
    return content if isinstance(content, str) else msgspec.json.encode(content).decode()
