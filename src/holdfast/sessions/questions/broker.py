"""`QuestionBroker`: puts a session's questions to everybody who is attached, and watches the log for answers.

If a question was answered before, in its turn or outside of turns in its session, the stored answer is returned. If it still waits for
its answer, it is not raised a second time.

Invariant: a question is raised once and answered once, even if many people see it or its program is restarted. Only one question
is shown at a time, in order. An answer through the log may come before its question is shown.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast import options
from holdfast.faults import AbortedError, Fault, HoldfastError, InvalidError
from holdfast.runtime.ambient import WAITING
from holdfast.runtime.runtime import default_runtime
from holdfast.runtime.secrets import process_redactor
from holdfast.runtime.suppress import suppress, suppressed
from holdfast.sessions.journal import audit
from holdfast.sessions.log import Answered, QuestionRaised
from holdfast.sessions.open_ends import close, waits_for
from holdfast.sessions.questions import answers
from holdfast.sessions.questions.question import (
    KINDS,
    Answer,
    answer_word,
    automatic_answer,
    checked,
    is_secret,
    mismatch,
    question_hash,
    question_of,
)
from holdfast.stores.address import cli_option

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence

    from holdfast.runtime.runtime import Runtime
    from holdfast.sessions.journal import Journal
    from holdfast.sessions.questions.question import Interactor, Notice, Question
    from holdfast.sessions.step_runner import StepRunner

__all__ = ["NewQuestion", "QuestionBroker"]

_LOOK_S = 1.0
"""How often the log is read for an answer of another process, in case no wake-up comes."""
_SHOW_S = 10.0
"""How long an interactor may take to show a notice. Nobody answers it, so the work does not wait longer."""
_LEAVE_S = 1.0
"""How long an interactor may take to end after it was cancelled."""
_MOST_COMMANDS = 3
"""How many other open questions an error names."""


class NewQuestion(NamedTuple):
    """A question that a session wants to ask."""

    name: str
    """The question's name in its turn or session."""
    turn: int
    """The number of its turn; 0 outside of turns."""
    kind: str
    payload: dict[str, Any]
    """What is stored and shown: the prompt, the choices, the address."""
    expires: float | None = None
    user_code: str = ""
    """A code that is shown and not stored."""
    anew: bool = False
    """Whether to ask again if the stored answer is a no."""


class QuestionBroker:
    """Knows who is attached to a session, and gets their answers. A `Session` has one.

    `steps` are the steps of the turn that a question belongs to, or the steps outside of turns.
    """

    def __init__(
        self, journal: Journal, *, mode: str, runtime: Runtime | None, interactors: Iterable[Interactor]
    ) -> None:
        self._journal = journal
        self._mode = mode
        self.runtime = runtime
        self._interactors = list(interactors)
        self.watchers: list[Callable[[Question], object]] = []
        """They see each question that waits for an answer, and do not answer."""
        self._changed = asyncio.Event()
        """Set when an interactor is attached or detached."""
        self._prompting = asyncio.Lock()
        self._news: asyncio.Task[None] | None = None
        """Reads what is new in the log, for all questions that wait."""
        self._lookers = 0
        """Held while a question is shown, so that people see one question at a time."""

    def attach(self, interactor: Interactor) -> None:
        self._interactors.append(interactor)
        self._changed.set()

    def detach(self, interactor: Interactor) -> None:
        if interactor in self._interactors:
            self._interactors.remove(interactor)
            self._changed.set()

    async def notify(self, notice: Notice) -> int:
        """Show a notice to everybody who is attached and can show one; return how many did. Who fails is left out."""
        shows = [show for one in self._interactors if callable(show := getattr(one, "notify", None))]
        shown = await asyncio.gather(*(self._show_notice(show, notice) for show in shows))
        return sum(shown)

    async def _show_notice(self, show: Callable[[Notice], Awaitable[None]], notice: Notice) -> bool:
        # A window that was closed must not fail the work that it would have shown something about.
        with suppress(Exception, reason="an interactor did not show a notice", runtime=self.runtime) as failed:
            await asyncio.wait_for(show(notice), _SHOW_S)
        return failed.fault is None

    @property
    def is_attended(self) -> bool:
        """Whether somebody is attached who can answer."""
        return bool(self._interactors)

    async def is_yes(
        self, steps: StepRunner, kind: str, payload: dict[str, Any], expires: float | None, user_code: str = ""
    ) -> bool:
        """Ask a question, and return whether the answer is yes."""
        answered, value = await self._ask(steps, kind, payload, expires, user_code)
        return answered.outcome == "accepted" and value is True

    async def whole_answer(
        self, steps: StepRunner, kind: str, payload: dict[str, Any], expires: float | None
    ) -> Answered:
        """Ask a question, and return the answer as it is stored."""
        answered, _ = await self._ask(steps, kind, payload, expires)
        return answered

    async def value(self, steps: StepRunner, kind: str, payload: dict[str, Any], expires: float | None) -> Any:
        """Ask a question, and return the value of the answer; raise TOOL_APPROVAL_DENIED if it is a no."""
        answered, value = await self._ask(steps, kind, payload, expires)
        if answered.outcome != "accepted":
            why = f": {answered.reason}" if answered.reason else ""
            context = {"interaction_id": answered.id, "reason": answered.reason, "by": answered.by}
            raise HoldfastError(
                Fault.of("TOOL_APPROVAL_DENIED", f"Question {answered.id} was answered with no{why}", context=context)
            )
        return value

    async def prompt(self, steps: StepRunner, prompt: NewQuestion) -> tuple[Answered, Any]:
        """Return the answer to a question, and its value. If the question is dismissed, cancel its turn."""
        known_as = f"question {prompt.turn} {prompt.name}"
        try:
            answered, value = await self._find_or_ask(prompt)
        except HoldfastError as error:
            if error.fault.code == "SESS_NO_INTERACTOR":
                waits_for(self._journal, known_as, error)
            raise
        close(self._journal, known_as)
        if answered.outcome == "dismissed":
            if steps.turn:
                steps.scope.cancel("user")
                # If the caller is the turn's own task, the cancellation is raised at this await.
                await asyncio.sleep(0)
            context = {"session_id": self._journal.session, "interaction_id": answered.id, "reason": answered.reason}
            message = f"The turn was cancelled: question {answered.id} was dismissed"
            raise AbortedError(Fault.of("SESS_TURN_CANCELLED", message, context=context))
        return answered, value

    async def _ask(
        self, steps: StepRunner, kind: str, payload: dict[str, Any], expires: float | None, user_code: str = ""
    ) -> tuple[Answered, Any]:
        async def ask(name: str) -> tuple[Answered, Any]:
            return await self.prompt(steps, NewQuestion(name, steps.turn, kind, payload, expires, user_code))

        return await steps.question(kind, question_hash(kind, payload), ask)

    async def _find_or_ask(self, prompt: NewQuestion) -> tuple[Answered, Any]:
        """Return the stored answer and its value; ask for it if there is none."""
        _check(prompt)
        raised = self._journal.memory.questions_of(prompt.turn).get(prompt.name)
        if raised is not None:
            await self._journal.catch_up()
            known = self._known(prompt, raised)
            if known is not None:
                return known, known.value
        if raised is None or raised.id in self._journal.memory.answers:
            raised = await self._raise(prompt)
        return await self._answer(question_of(self._journal.session, raised, prompt.user_code), prompt.expires)

    def answered(self, turn: int, name: str) -> Answered | None:
        """Return the stored answer to a question of a turn (0: outside of turns), if there is one."""
        memory = self._journal.memory
        raised = memory.questions_of(turn).get(name)
        return None if raised is None else memory.answers.get(raised.id)

    def _known(self, prompt: NewQuestion, raised: QuestionRaised) -> Answered | None:
        """Return the stored answer if it can be used. An expired answer, or a password that was not stored, cannot be used."""
        if raised.args != question_hash(prompt.kind, prompt.payload):
            # A step failed in another way than before, so another question is put about it.
            return None
        known = self._journal.memory.answers.get(raised.id)
        if known is None or known.outcome not in ("accepted", "rejected"):
            return None
        lost = is_secret(prompt.kind) and known.outcome == "accepted"
        return None if lost or (prompt.anew and known.outcome == "rejected") else known

    async def _raise(self, prompt: NewQuestion) -> QuestionRaised:
        raised = QuestionRaised(
            id=f"q-{secrets.token_hex(5)}",
            step=prompt.name,
            turn=prompt.turn,
            kind=prompt.kind,
            payload=prompt.payload,
            args=question_hash(prompt.kind, prompt.payload),
            expires_at=None if prompt.expires is None else self._now() + prompt.expires,
        )
        record = audit(
            "Approval",
            f"{self._journal.session}/{prompt.turn}",
            event="raised",
            question=raised.id,
            kind=prompt.kind,
            prompt=prompt.payload.get("prompt", ""),
        )
        await self._journal.write(raised, audit=(record,))
        return raised

    async def _answer(self, question: Question, expires: float | None) -> tuple[Answered, Any]:
        if not self._interactors and self._mode == "yolo":
            return await self._store(question, automatic_answer(question), "yolo")
        for seen in tuple(self.watchers):
            seen(question)
        if not self._interactors and expires is None and question.expires_at is None:
            # The question has no expiry, so the program would wait for ever.
            raise self._nobody(question)
        until = question.expires_at
        if until is None and expires is not None:
            until = self._now() + expires
        if self._journal.parks and not self._interactors and until is not None and until > self._now():
            # A worker runs the program again when the answer is there, or the time is over.
            raise self._nobody(question)
        with WAITING.get()():
            answered, value = await self._race(question, until)
        if answered.outcome == "timeout":
            raise answers.expired(question.id, expires)
        return answered, value

    async def _race(self, question: Question, until: float | None) -> tuple[Answered, Any]:
        # Watch the log and show the prompt at once: somebody in another process may answer while the prompt is shown here.
        watching = asyncio.ensure_future(self._watch(question, until))
        prompting = asyncio.ensure_future(self._show(question, patient=until is not None))
        async with _stopped((watching, prompting)):
            await asyncio.wait({watching, prompting}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                answered = watching.result()
                if not is_secret(question.kind) or answered.outcome != "accepted":
                    return answered, answered.value
            # The log does not hold secrets, so only the interactor that got the secret can return it.
            return await prompting

    async def _watch(self, question: Question, until: float | None) -> Answered:
        """Wait until the log holds an answer; when the time is up, store that the question expired."""
        journal = self._journal
        while (answered := journal.memory.answers.get(question.id)) is None:
            left = _LOOK_S if until is None else until - self._now()
            if left <= 0:
                answered, _ = await self._store(question, Answer(None, "timeout"), "")
                return answered
            try:
                await self._look(left)
            except HoldfastError as error:
                if error.fault.code != "SESS_STORE_UNAVAILABLE":
                    raise
                # The store failed, but may recover before the question expires.
                await asyncio.sleep(min(left, _LOOK_S))
        return answered

    async def _look(self, seconds: float) -> None:
        """Wait for news in the log. They are read once for all questions that wait."""
        if self._news is None:
            self._news = asyncio.ensure_future(self._read_news())
        news = self._news
        self._lookers += 1
        try:
            await asyncio.wait((news,), timeout=seconds)
        finally:
            self._lookers -= 1
            if not self._lookers:
                news.cancel()
            if self._news is news and (news.done() or not self._lookers):
                self._news = None
        if news.done() and not news.cancelled():
            news.result()

    async def _read_news(self) -> None:
        await self._journal.store.changed(self._journal.session, self._journal.seen, _LOOK_S)
        await self._journal.catch_up()

    async def _show(self, question: Question, *, patient: bool) -> tuple[Answered, Any]:
        """Ask everybody who is attached. If `patient` and nobody is attached, wait for somebody."""
        async with self._prompting:
            prompts: dict[asyncio.Future[tuple[Answered, Any]], Interactor] = {}
            withdrawn: set[asyncio.Future[Any]] = set()
            failed: list[Interactor] = []
            errors: list[tuple[str, Exception]] = []
            async with _stopped(prompts):
                while True:
                    self._changed.clear()
                    self._follow_changes(question, prompts, withdrawn, failed)
                    # Nobody is left who could answer, and the question has no expiry.
                    last = None if prompts or patient else errors.pop()[1] if errors else self._nobody(question)
                    self._report(errors)
                    errors.clear()
                    if last is not None:
                        raise last
                    for prompt in await self._first(prompts):
                        interactor = prompts.pop(prompt)
                        if prompt in withdrawn and prompt.cancelled():
                            continue
                        # What it waited for was cancelled, such as the task of its connection. It is asked no second time.
                        error = _cancelled() if prompt.cancelled() else prompt.exception()
                        if error is None:
                            return prompt.result()
                        if not isinstance(error, Exception):
                            raise error
                        failed.append(interactor)
                        # The others may still answer.
                        where = _place(interactor, question, error)
                        error.add_note(where)
                        errors.append((where, error))

    def _report(self, errors: Iterable[tuple[str, Exception]]) -> None:
        """Report errors of interactors that are not raised, in the log and as events."""
        for where, error in errors:
            fault = suppressed(error, where, runtime=self.runtime)
            logging.getLogger("holdfast").error("%s: %s", where, process_redactor().text(fault.message))

    def _follow_changes(
        self,
        question: Question,
        prompts: dict[asyncio.Future[tuple[Answered, Any]], Interactor],
        withdrawn: set[asyncio.Future[Any]],
        failed: list[Interactor],
    ) -> None:
        """Ask the interactors that were attached, and cancel the prompts of those that were detached."""
        known = list(prompts.values())
        for interactor in self._interactors:
            if interactor not in known and interactor not in failed:
                prompts[asyncio.ensure_future(self._ask_one(interactor, question))] = interactor
        for prompt, interactor in prompts.items():
            if interactor not in self._interactors:
                withdrawn.add(prompt)
                prompt.cancel()

    async def _first(
        self, prompts: dict[asyncio.Future[tuple[Answered, Any]], Interactor]
    ) -> list[asyncio.Future[tuple[Answered, Any]]]:
        changed = asyncio.ensure_future(self._changed.wait())
        async with _stopped((changed,)):
            waiting: list[asyncio.Future[Any]] = [changed, *prompts]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        return [prompt for prompt in prompts if prompt.done()]

    async def _ask_one(self, interactor: Interactor, question: Question) -> tuple[Answered, Any]:
        given = checked(question, await _answer_of(interactor, question))
        if given.outcome == "timeout":
            raise mismatch(question.id, "accepted, rejected or dismissed", "timeout")
        return await self._store(question, given, _name(interactor))

    async def _store(self, question: Question, given: Answer, by: str) -> tuple[Answered, Any]:
        """Store an answer; return it, or the answer that came first."""
        answered = answers.answered_by(question, given, by)
        record = answers.audit_of(question, answered)
        try:
            receipt = await self._journal.write(answered, claim=answers.claim_of(question, given), audit=(record,))
        except HoldfastError as error:
            if error.fault.code != "PROTO_DUPLICATE_ID":
                raise
        else:
            if not receipt.duplicate:
                return answered, given.value
        await self._journal.catch_up()
        first = self._journal.memory.answers.get(question.id)
        if first is None:
            # The question's turn has ended meanwhile, so the memory no longer holds its answer.
            raise HoldfastError(Fault.of("SESS_ALREADY_ANSWERED", context={"interaction_id": question.id}))
        return first, first.value

    def _nobody(self, question: Question) -> HoldfastError:
        memory, session = self._journal.memory, self._journal.session
        known = [question_of(session, raised) for raised in memory.pending() if raised.kind in KINDS]
        return nobody(question, [each for each in known if each.id != question.id], cli_option(self._journal.store))

    def _now(self) -> float:
        return (self.runtime or default_runtime()).clock.wall()


def nobody(question: Question, others: Sequence[Question] = (), store_option: str = "") -> HoldfastError:
    """Return SESS_NO_INTERACTOR for a question that nobody can answer now.

    `others` are the other open questions of the session. `store_option` is what a command needs to find the store.
    """
    if is_secret(question.kind):
        # A store must not hold a password, so no other process can answer.
        how = "only a client of this program can answer it"
    else:
        how = f"answer it with: {_command(question, store_option)}"
    how += _others(question.session, [each for each in others if not is_secret(each.kind)], store_option)
    message = f"Permission required: {question.prompt} Nobody is attached to answer, and the question is kept; {how}"
    context = {
        "session_id": question.session,
        "interaction_id": question.id,
        "kind": question.kind,
        "open": [*(each.id for each in others), question.id],
    }
    return HoldfastError(Fault.of("SESS_NO_INTERACTOR", message, context=context))


def _others(session: str, others: Sequence[Question], store_option: str) -> str:
    """Return a sentence that says how to answer the other open questions."""
    if not others:
        return ""
    count = "1 more question is" if len(others) == 1 else f"{len(others)} more questions are"
    commands = "; ".join(_command(each, store_option) for each in others[:_MOST_COMMANDS])
    rest = f"; all of them: holdfast sessions show {session}{store_option}" if len(others) > _MOST_COMMANDS else ""
    return f". {count} open: {commands}{rest}"


def _command(question: Question, store_option: str) -> str:
    return f"holdfast sessions answer {question.session} {question.id} {answer_word(question.kind)}{store_option}"


def _place(interactor: Interactor, question: Question, error: Exception) -> str:
    kind = type(error).__name__
    return f"interactor {_name(interactor)} failed with {kind} at question {question.id} of session {question.session}"


def _cancelled() -> ConnectionAbortedError:
    return ConnectionAbortedError("what the interactor waited for was cancelled")


def _name(interactor: Interactor) -> str:
    return str(getattr(interactor, "name", type(interactor).__name__))


async def _answer_of(interactor: Interactor, question: Question) -> Answer:
    """Return what an interactor answers. Raise `InvalidError` if it returns something else."""
    given: object = interactor.ask(question)
    is_async = inspect.isawaitable(given)
    if inspect.isawaitable(given):
        given = await given
    if is_async and isinstance(given, Answer):
        return given
    # Only the type: the value may be a password.
    got = "None" if given is None else options.an(type(given).__name__)
    got += "" if is_async else " from a function that is not async"
    raise InvalidError.saying(f"{type(interactor).__name__}.ask", "an Answer, from an async function", got)


def _check(prompt: NewQuestion) -> None:
    options.seconds("expires", prompt.expires, optional=True)
    if prompt.kind not in KINDS:
        raise HoldfastError(Fault.of("SESS_INTERACTION_UNKNOWN_KIND", context={"received": prompt.kind}))
    if prompt.kind == "Select" and not prompt.payload.get("choices"):
        raise mismatch(prompt.name, "at least one choice", "none")


@asynccontextmanager
async def _stopped(tasks: Iterable[asyncio.Future[Any]]) -> AsyncIterator[None]:
    """Stop the tasks when the block ends, including tasks that were added to `tasks` meanwhile."""
    try:
        yield
    finally:
        await _stop(tasks)


async def _stop(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait for their end, but not for ever: an interactor of the application may hang."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running, timeout=_LEAVE_S)
    for task in running:
        if task.done() and not task.cancelled():
            # Read the exception, or asyncio would log that it was never retrieved.
            task.exception()
