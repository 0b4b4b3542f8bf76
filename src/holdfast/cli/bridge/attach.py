"""`holdfast attach`: follow a session of a bridge in the terminal, and take part in it.

    holdfast attach release-42
    holdfast attach release-42 --url wss://bridge.example/ws --pin sha256/…
    echo "fix the tests" | holdfast attach release-42

A line that is typed goes to the agent, or answers the question that waits. `/stop` stops what the agent does, `/retry`, `/fallback` and
`/cancel` tell an operation that waits what to do, `/pending` lists what the bridge has not stored, `/discard N` takes one out, `/quit` or Ctrl-D leaves; the agent goes on.

Invariant: only what the agent says goes to stdout; everything else goes to stderr. Nothing that was typed is lost silently: what the bridge did not
store is listed at the end.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.bridge import (
    Answer,
    AnswerEnded,
    Client,
    Gap,
    HookEvent,
    Notification,
    NotStored,
    Question,
    QuestionClosed,
    Recovery,
    SessionEvent,
    Snapshot,
    State,
    Text,
    ToolCalled,
    ToolFailed,
    ToolReturned,
    UserText,
)
from holdfast.cli.exits import Exit
from holdfast.cli.output import fail, narrate, one_line, show_line
from holdfast.cli.store.history import command
from holdfast.faults import HoldfastError, InvalidError, visible
from holdfast.runtime.secrets import redactor_for
from holdfast.sessions.questions.question import answer_word

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from holdfast.bridge import ConnectionStatus, Message, RemoteSession
    from holdfast.cli.bridge.flags import AttachFlags

_SHOWN = 200
"""Characters of a tool's arguments or result that a line shows."""
_SHOWN_QUESTION = 2_000
"""Characters of a question that are shown without being opened."""
_UNREAD_S = 1.0
"""How long a question has stood there at least when a person answers it. A line that comes earlier was typed for what stood there before."""
_COMMANDS = {"/retry": "retry_now", "/fallback": "fall_back", "/cancel": "cancel"}
_YES_OR_NO = frozenset({"Approve", "Confirm"})


def attach(*, flags: AttachFlags) -> int:
    """Follow a session until the user leaves, and return the exit code."""
    try:
        return asyncio.run(_Attached(flags, _token(flags)).run())
    except HoldfastError as error:
        if error.fault.code != "SESS_NOT_FOUND" or flags.create:
            raise
        fail(f"{error.fault.code}  the bridge has no session {flags.session!r}", "--create makes it")
        return Exit.NOT_FOUND


def _token(flags: AttachFlags) -> str:
    """Return the token of a file or of the environment. It is no flag: other users of the machine can read command lines."""
    if flags.token_file is not None:
        found = flags.token_file.read_text(encoding="utf-8").strip()
    else:
        found = os.environ.get("BRIDGE_TOKEN", "").strip()
    if not found:
        text = "a token in BRIDGE_TOKEN or in a file (--token-file); `holdfast serve` shows one, and `holdfast tokens create NAME` makes one"
        raise InvalidError.saying("holdfast attach", text, "none")
    return found


class _Attached:
    """One run: what is typed, and what is shown."""

    def __init__(self, flags: AttachFlags, token: str) -> None:
        self._flags = flags
        self._client = Client(
            flags.url,
            token=token,
            on_status=self._show_status,
            pins=tuple(flags.pin or ()),
            ca=None if flags.ca is None else str(flags.ca),
            outbox=flags.outbox,
            accept_public=flags.accept_public,
            insecure=flags.insecure,
        )
        self._questions: dict[str, Question] = {}
        """The questions that wait for an answer, oldest first."""
        self._question_id = ""
        """The question that a line answers; empty: a line is a message to the agent."""
        self._question_since = 0.0
        """When that changed without the user, by the loop's clock."""
        self._opened: set[str] = set()
        """The questions that were too long to be shown at once, and were opened."""
        self._waiting = ""
        """The operation that waits, and takes commands."""
        self._sent = 0
        """The offset of the last message that was sent from here."""
        self._answers = self._answered = 0
        """The offsets of the message that the last turn answers, and of the last one whose turn has ended."""
        self._mine: set[int] = set()
        """The offsets of the messages that were sent from here."""
        self._failed: set[int] = set()
        """The offsets of the messages whose turns have ended without an answer."""
        self._is_in_turn = False
        self._has_answered = False
        """Whether a question was answered from here, and the turn goes on with the answer."""
        self._exit = Exit.OK
        """What a script exits with: why a line of it came to nothing."""
        self._is_caught_up = asyncio.Event()
        self._is_settled = asyncio.Event()
        """Set while nothing more can come for a script: its last message is answered, or a person must answer first."""
        self._sends: set[asyncio.Task[None]] = set()
        self._is_open_line = False
        """Whether the last line on stdout is not ended yet."""

    async def run(self) -> int:
        """Follow and take part until the user leaves."""
        flags = self._flags
        async with self._client as client:
            role: Any = "observer" if flags.observe else "controller"
            history: Any = flags.history
            found = (
                client.create(flags.session) if flags.create else client.join(flags.session, role=role, history=history)
            )
            async with found as session:
                follow = asyncio.create_task(self._follow(session))
                take_part = asyncio.create_task(self._take_part(session))
                try:
                    await asyncio.wait((follow, take_part), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for task in (follow, take_part, *self._sends):
                        task.cancel()
                    await asyncio.wait((follow, take_part, *self._sends))
                    self._end_line()
                for task in (follow, take_part):
                    if not task.cancelled():
                        task.result()
            return self._left(client)

    def _left(self, client: Client) -> int:
        for each in client.pending:
            kept = (
                f"kept in {self._flags.outbox}"
                if self._flags.outbox
                else "lost: use --outbox FILE to keep such messages"
            )
            narrate(f"not stored by the bridge yet, and {kept}: {each.text}")
        if self._questions and (self._sent > self._answered or self._has_answered) and not sys.stdin.isatty():
            question, session = next(iter(self._questions.values())), self._flags.session
            answer = command(None, "answer", session, question.id, answer_word(question.kind))
            here = shlex.join(("holdfast", "attach", session, "--url", self._flags.url))
            fail(
                f"the agent waits for an answer: {question.prompt}",
                f"with the bridge's store: {answer}",
                f"at a terminal: {here}",
            )
            return Exit.REFUSED
        if client.pending and not self._flags.outbox:
            return Exit.EXHAUSTED
        if sys.stdin.isatty() or self._exit:
            return Exit.OK if sys.stdin.isatty() else self._exit
        return Exit.FAILED if self._mine & self._failed else Exit.OK

    # --- what is typed ---

    async def _take_part(self, session: RemoteSession) -> None:
        if self._flags.observe:
            await asyncio.Event().wait()
        is_script = not sys.stdin.isatty()
        if is_script:
            # The first line of a script may answer a question that waits already.
            await self._is_caught_up.wait()
        async for line in _lines():
            if line.strip() == "/quit":
                return
            if is_script and not line.startswith("/"):
                # Its next line may answer a question that the turn of this one asks.
                await self._settled()
            if line.strip() and not self._is_for_another(line):
                # While the connection is lost, a message waits, and the user can go on typing, or leave.
                task = asyncio.create_task(self._typed(session, line))
                self._sends.add(task)
                task.add_done_callback(self._sends.discard)
        # At a terminal Ctrl-D leaves at once. A script waits for the answer to what it has sent.
        if is_script:
            await self._settled()

    async def _settled(self) -> None:
        """Wait until what was sent is answered, or a question waits."""
        await asyncio.gather(*self._sends)
        self._note_progress()
        await self._is_settled.wait()

    async def _typed(self, session: RemoteSession, line: str) -> None:
        word = line.strip()
        try:
            if word == "/stop":
                await session.stop()
            elif word in _COMMANDS:
                if not self._waiting:
                    return narrate("no operation is waiting for a command")
                command_: Any = _COMMANDS[word]
                await session.command(self._waiting, command_)
            elif word == "/pending":
                self._show_pending()
            elif word.startswith("/discard"):
                self._discard(word.removeprefix("/discard").strip())
            elif word.startswith("/"):
                narrate("commands: /stop, /retry, /fallback, /cancel, /pending, /discard N, /quit")
            elif self._questions:
                await self._answer(session, next(iter(self._questions.values())), word)
            else:
                offset = await session.send(line)
                self._mine.add(offset)
                self._sent = max(self._sent, offset)
        except HoldfastError as error:
            # If the client has given up, `_follow` ends with the same error.
            if session.ended_with is None:
                narrate(f"not accepted: {error}")
                self._has_answered = False
                self._exit = Exit(error.fault.entry.exit_code)
        return None

    def _is_for_another(self, line: str) -> bool:
        """Say so if a line was typed for a question that stood there before. What a script sends is meant for what comes."""
        is_read = asyncio.get_running_loop().time() - self._question_since >= _UNREAD_S
        if is_read or line.startswith("/") or not sys.stdin.isatty():
            return False
        why = "before this question was shown" if self._question_id else "for a question that is closed"
        narrate(f"typed {why}, so nothing was sent; type it again: {_short(line)}")
        return True

    def _note_question(self, *, by_user: bool = False) -> None:
        first = next(iter(self._questions), "")
        if first != self._question_id:
            self._question_id = first
            # After an answer of theirs, people may go on typing, but not to a question that they have not read.
            self._question_since = asyncio.get_running_loop().time() if first or not by_user else 0.0

    def _show_pending(self) -> None:
        for number, each in enumerate(self._client.pending, 1):
            why = "" if each.fault is None else f"  ({each.fault.message})"
            narrate(f"{number}. {_short(each.text)}{why}")
        if not self._client.pending:
            narrate("the bridge has stored everything")

    def _discard(self, place: str) -> None:
        pending, number = self._client.pending, int(place) if place.isdecimal() else 0
        if not 0 < number <= len(pending):
            return narrate("name a message by its number in /pending")
        self._client.discard(pending[number - 1].id)
        return narrate(f"discarded: {_short(pending[number - 1].text)}")

    async def _answer(self, session: RemoteSession, question: Question, text: str) -> None:
        if question.id not in self._opened and _is_folded(question):
            if text.strip().lower() == "o":
                self._opened.add(question.id)
                return narrate(_whole_question(question))
            answer = _answer_of(question, text)
            if answer is not None and answer.value is True:
                return narrate("it is longer than what was shown: o shows all, and then you can say yes")
        answer = _answer_of(question, text)
        if question.cut and answer is not None and answer.value is True:
            return narrate("what is asked is too long to be shown whole, so nobody can say yes here: n says no")
        if answer is None:
            return narrate(
                "answer with y or n; a reason may follow" if question.kind in _YES_OR_NO else "answer with a number"
            )
        # Another client may answer meanwhile; then the next line is not for this question.
        self._questions.pop(question.id, None)
        self._note_question(by_user=True)
        self._has_answered = self._is_in_turn
        self._note_progress()
        await session.answer(question.id, answer)
        return None

    # --- what is shown ---

    async def _follow(self, session: RemoteSession) -> None:
        async for message in session:
            if self._flags.as_json:
                # The names of the fields in Python: those on the wire differ.
                fields = msgspec.to_builtins(msgspec.structs.asdict(message))
                show_line({"type": type(message).__name__, **fields})
                sys.stdout.flush()
            else:
                self._show(message)
            self._note(message)
            if isinstance(message, State):
                self._take_open(message.questions)
            if isinstance(message, Gap):
                self._take_open((await session.reload()).questions)

    def _take_open(self, questions: tuple[Question, ...]) -> None:
        """Show and remember the questions that are open and were not shown: their messages may be too old, or too long, to be sent again."""
        for question in questions:
            if question.id not in self._questions:
                if not self._flags.as_json:
                    self._show(question)
                self._note(question)
        for closed in self._questions.keys() - {question.id for question in questions}:
            del self._questions[closed]
        self._note_progress()

    def _note(self, message: Message) -> None:
        """Remember what the next line that is typed is about."""
        match message:
            case Question():
                self._questions[message.id] = message
                self._note_progress()
            case QuestionClosed(id=id_):
                self._questions.pop(id_, None)
                self._note_progress()
            case Recovery(event={"type": "hook"}):
                # What waits goes on waiting.
                pass
            case Recovery(run=run, can=can):
                self._waiting = run if can else ""
            case State(in_flight=in_flight):
                self._is_in_turn = in_flight
                self._is_caught_up.set()
            case SessionEvent(event="turn_started", details=details):
                self._answers, self._is_in_turn = details.get("answers", 0), True
            case SessionEvent(event="turn_ended"):
                self._answered = max(self._answered, self._answers)
                if message.details.get("outcome", "ok") != "ok":
                    self._failed.add(self._answers)
                    self._exit = Exit.FAILED if self._has_answered else self._exit
                self._has_answered = self._is_in_turn = False
                self._note_progress()
            case _:
                pass

    def _note_progress(self) -> None:
        """Notice when the turn ends that answers the last message from here, also without an answer, and when a question waits."""
        self._note_question()
        if self._questions or not (self._has_answered or self._sent > self._answered):
            self._is_settled.set()
        else:
            # Another line was sent after this was noticed, or another client has answered.
            self._is_settled.clear()

    def _show(self, message: Message) -> None:
        match message:
            case Text(text=text):
                self._write(text)
            case AnswerEnded():
                self._end_line()
            case Question():
                self._progress(_question_line(message))
            case UserText(client_id=client) if client == self._client.client_id and sys.stdin.isatty():
                # It stands there already, as it was typed.
                pass
            case _:
                line = _line(message)
                if line:
                    self._progress(line)

    def _show_status(self, now: ConnectionStatus) -> None:
        if now.status == "reconnecting":
            why = "" if now.fault is None else f" ({now.fault.code}: {now.fault.message})"
            self._progress(f"connection lost{why}: attempt {now.attempt} in {now.delay:.0f} s")
        elif now.status == "connected":
            self._progress(f"connected to {self._flags.url}")

    def _write(self, text: str) -> None:
        # What an agent says is foreign text: it must not move the cursor.
        safe = "\n".join(one_line(part) for part in redactor_for().text(text).split("\n"))
        sys.stdout.write(safe)
        sys.stdout.flush()
        self._is_open_line = not safe.endswith("\n") if safe else self._is_open_line

    def _end_line(self) -> None:
        if self._is_open_line:
            self._write("\n")

    def _progress(self, line: str) -> None:
        if not self._flags.as_json:
            self._end_line()
        for part in line.split("\n"):
            narrate(part)


def _answer_of(question: Question, text: str) -> Answer | None:
    """Return the answer that a typed line gives; None if it does not fit."""
    word, _, reason = text.partition(" ")
    if question.kind in _YES_OR_NO or question.kind == "Auth.DeviceCode":
        if word.lower() in ("y", "yes"):
            return Answer(True)
        return Answer.no(reason) if word.lower() in ("n", "no") else None
    if question.kind == "Select":
        if text in question.choices:
            return Answer(text)
        place = int(text) if text.isdecimal() else 0
        return Answer(question.choices[place - 1]) if 0 < place <= len(question.choices) else None
    return Answer(text)


def _question_line(question: Question) -> str:
    whole = _whole_question(question)
    lines = [f"? {whole[:_SHOWN_QUESTION]}"]
    if _is_folded(question):
        lines.append(f"  … {len(whole) - _SHOWN_QUESTION} characters more: o shows them")
    if question.cut:
        lines.append("  these arguments are not whole, so you cannot say yes here")
    if question.url:
        code = f" with the code {visible(question.user_code)}" if question.user_code else ""
        lines.append(f"  sign in at {visible(question.url)}{code}")
    lines += [f"  {number}. {visible(choice)}" for number, choice in enumerate(question.choices, 1)]
    hint = "[y/n]" if question.kind in _YES_OR_NO else "type the answer"
    return "\n".join([*lines, f"  {hint}"])


def _whole_question(question: Question) -> str:
    """Return all that is asked, as a person reads it who decides: for a tool call its arguments, whole."""
    if not question.params:
        return visible(question.prompt)
    call = f"{question.tool} {msgspec.json.encode(question.params).decode()}"
    # The sentence about a call has its arguments once more, and perhaps not whole.
    return visible(call if question.prompt.startswith(f"Run {question.tool}(") else f"{question.prompt}\n  {call}")


def _is_folded(question: Question) -> bool:
    return len(_whole_question(question)) > _SHOWN_QUESTION


def _line(message: Message) -> str:
    """Return the line of progress for a message of the agent's work; empty: it is not shown."""
    match message:
        case UserText(text=text):
            return f"> {text}"
        case ToolCalled(tool=tool, params=params):
            return f"· {tool} {_short(params)}"
        case ToolReturned(tool=tool, success=success, content=content, cut=cut):
            rest = f" (and {cut} characters more)" if cut else ""
            return f"· {tool} {'returned' if success else 'failed'}: {_short(content)}{rest}"
        case ToolFailed(tool=tool, code=code, message=text):
            return f"· {tool} failed: {code}  {text}"
        case Recovery(event={"type": "hook", "what": "pending" | "triggered" | "passed" | "skipped"}):
            return ""
        case Recovery(line=line, can=can):
            return f"{line}  ({', '.join(word for word, name in _COMMANDS.items() if name in can)})" if can else line
        case _:
            return _line_of_session(message)


def _line_of_session(message: Message) -> str:
    """Return the line of progress for any other message."""
    match message:
        case QuestionClosed(outcome=outcome, by=by):
            return f"answered: {outcome}" + (f" by {by}" if by else "")
        case Notification(title=title, body=body):
            return f"! {title}" + (f": {body}" if body else "")
        case HookEvent(event=event, data=data):
            return f"· {event} {data.get('tool') or data.get('tool_name') or ''}".rstrip()
        case Gap(reason=reason, requested=after):
            return f"messages after number {after} are missing ({reason}); loading the state of the session"
        case Snapshot():
            return "the session is loaded"
        case NotStored(fault=fault):
            return f"not stored: {fault.message}"
        case State(state=state, turn=turn):
            return f"session {state}, turn {turn}"
        case _:
            return ""


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


async def _lines() -> AsyncIterator[str]:
    """Yield the lines of stdin as they come, without a thread that would outlive the program."""
    found: asyncio.Queue[bytes] = asyncio.Queue()
    loop, file = asyncio.get_running_loop(), sys.stdin.fileno()

    def read() -> None:
        try:
            found.put_nowait(os.read(file, 65_536))
        except OSError:
            found.put_nowait(b"")

    stop: Callable[[], Any]
    try:
        loop.add_reader(file, read)
        stop = lambda: loop.remove_reader(file)  # noqa: E731
    except PermissionError:
        # A file is always readable, and the loop does not watch such.
        for line in sys.stdin:
            yield line.rstrip("\n")
        return
    rest = b""
    try:
        while chunk := await found.get():
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield line.decode("utf-8", "replace").rstrip("\r")
        if rest:
            yield rest.decode("utf-8", "replace")
    finally:
        with suppress(ValueError, OSError):  # the terminal has gone
            stop()
