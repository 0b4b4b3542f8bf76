"""The desk where a session's questions are put: to everybody who is attached, and to the log.

Invariant: a question is raised once and answered once, however many are asked, and however often its program is started again. Only
one prompt is up at a time, in the order of asking; answers that come through the log need not wait for that.
"""

from __future__ import annotations

import asyncio
import secrets
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast import options
from holdfast.faults import Fault, HoldfastError
from holdfast.runtime.runtime import default_runtime
from holdfast.sessions.journal import audit
from holdfast.sessions.log import Answered, Asked
from holdfast.sessions.questions import answers
from holdfast.sessions.questions.question import (
    KINDS,
    Answer,
    by_itself,
    checked,
    is_secret,
    mismatch,
    question_of,
    same_question,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from holdfast.runtime.runtime import Runtime
    from holdfast.sessions.journal import Journal
    from holdfast.sessions.questions.question import Interactor, Question

__all__ = ["Put", "QuestionBroker"]

_LOOK_S = 1.0
"""How often the log is looked at for answers of another process."""
_LEAVE_S = 1.0
"""How long a prompt that was cancelled may take to leave the screen."""


class Put(NamedTuple):
    """What a session wants to ask."""

    name: str
    """Which question of the turn it is."""
    turn: int
    kind: str
    payload: dict[str, Any]
    """What is stored and shown."""
    expires: float | None = None
    user_code: str = ""
    """What is only shown."""
    anew: bool = False
    """A no that is on record is not taken for the answer: it is asked again."""


class QuestionBroker:
    """Who is attached to a session, and what they are asked."""

    def __init__(
        self, journal: Journal, *, mode: str, runtime: Runtime | None, interactors: Iterable[Interactor]
    ) -> None:
        self._journal = journal
        self._mode = mode
        self._runtime = runtime
        self._interactors = list(interactors)
        self._moved = asyncio.Event()
        """Somebody came or went."""
        self._prompting = asyncio.Lock()

    def attach(self, interactor: Interactor) -> None:
        self._interactors.append(interactor)
        self._moved.set()

    def detach(self, interactor: Interactor) -> None:
        if interactor in self._interactors:
            self._interactors.remove(interactor)
            self._moved.set()

    async def put(self, put: Put) -> tuple[Answered, Any]:
        """Ask, and return what is on record as the answer, and its value. Asked and answered before, that is returned."""
        _check(put)
        asked = self._journal.memory.asked.get(put.name)
        if asked is not None:
            await self._journal.catch_up()
            known = self._known(put, asked)
            if known is not None:
                return known, known.value
        if asked is None or asked.id in self._journal.memory.answers:
            asked = await self._raise(put)
        return await self._answer(question_of(self._journal.session, asked, put.user_code), put.expires)

    def answered(self, name: str) -> Answered | None:
        """Return the answer to a question of the turn, if it is on record."""
        memory = self._journal.memory
        asked = memory.asked.get(name)
        return None if asked is None else memory.answers.get(asked.id)

    def _known(self, put: Put, asked: Asked) -> Answered | None:
        """The answer that holds. One that came too late, or cannot be had again, is asked for anew."""
        if asked.args != same_question(put.kind, put.payload):
            if put.anew:
                return None
            raise HoldfastError(Fault.of("SESS_STEP_DRIFT", context={"step": put.name, "turn": put.turn}))
        known = self._journal.memory.answers.get(asked.id)
        if known is None or known.outcome not in ("accepted", "rejected"):
            return None
        lost = is_secret(put.kind) and known.outcome == "accepted"
        return None if lost or (put.anew and known.outcome == "rejected") else known

    async def _raise(self, put: Put) -> Asked:
        asked = Asked(
            id=f"q-{secrets.token_hex(5)}",
            step=put.name,
            turn=put.turn,
            kind=put.kind,
            payload=put.payload,
            args=same_question(put.kind, put.payload),
            expires_at=None if put.expires is None else self._now() + put.expires,
        )
        told = audit(
            "Approval",
            f"{self._journal.session}/{put.turn}",
            event="raised",
            question=asked.id,
            kind=put.kind,
            prompt=put.payload.get("prompt", ""),
        )
        await self._journal.write(asked, audit=(told,))
        return asked

    async def _answer(self, question: Question, expires: float | None) -> tuple[Answered, Any]:
        if not self._interactors:
            if self._mode == "yolo":
                return await self._give(question, by_itself(question), "yolo")
            if expires is None and question.expires_at is None:
                raise nobody(question)
        until = question.expires_at
        if until is None and expires is not None:
            until = self._now() + expires
        said, value = await self._race(question, until)
        if said.outcome == "timeout":
            raise answers.expired(question.id, expires)
        return said, value

    async def _race(self, question: Question, until: float | None) -> tuple[Answered, Any]:
        watching = asyncio.ensure_future(self._watch(question, until))
        prompting = asyncio.ensure_future(self._prompt(question, patient=until is not None))
        async with _stopped(watching, prompting):
            await asyncio.wait({watching, prompting}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                said = watching.result()
                if not is_secret(question.kind) or said.outcome != "accepted":
                    return said, said.value
            # A secret is only known to whoever was given it.
            return await prompting

    async def _watch(self, question: Question, until: float | None) -> Answered:
        """Wait until an answer is on record; when the time is up, put that on record."""
        journal = self._journal
        while (said := journal.memory.answers.get(question.id)) is None:
            left = _LOOK_S if until is None else until - self._now()
            if left <= 0:
                said, _ = await self._give(question, Answer(None, "timeout"), "")
                return said
            try:
                await journal.store.changed(journal.session, journal.seen, min(left, _LOOK_S))
                await journal.catch_up()
            except HoldfastError as error:
                if error.fault.code != "SESS_STORE_UNAVAILABLE":
                    raise
                await asyncio.sleep(min(left, _LOOK_S))
        return said

    async def _prompt(self, question: Question, *, patient: bool) -> tuple[Answered, Any]:
        """Ask everybody who is attached; `patient`: while nobody is, wait for somebody."""
        async with self._prompting:
            prompts: dict[asyncio.Future[tuple[Answered, Any]], Interactor] = {}
            failed: list[Interactor] = []
            failure: Exception | None = None
            async with _stopped_all(prompts):
                while True:
                    self._moved.clear()
                    self._meet(question, prompts, failed)
                    if not prompts and not patient:
                        raise failure or nobody(question)
                    for prompt in await self._first(prompts):
                        interactor = prompts.pop(prompt)
                        if prompt.cancelled():
                            continue
                        error = prompt.exception()
                        if error is None:
                            return prompt.result()
                        if not isinstance(error, Exception):
                            raise error
                        failed.append(interactor)
                        failure = _told(question, error)

    def _meet(
        self,
        question: Question,
        prompts: dict[asyncio.Future[tuple[Answered, Any]], Interactor],
        failed: list[Interactor],
    ) -> None:
        """Ask those who came, and no longer those who went."""
        asked = list(prompts.values())
        for interactor in self._interactors:
            if interactor not in asked and interactor not in failed:
                prompts[asyncio.ensure_future(self._ask(interactor, question))] = interactor
        for prompt, interactor in prompts.items():
            if interactor not in self._interactors:
                prompt.cancel()

    async def _first(
        self, prompts: dict[asyncio.Future[tuple[Answered, Any]], Interactor]
    ) -> list[asyncio.Future[tuple[Answered, Any]]]:
        moved = asyncio.ensure_future(self._moved.wait())
        async with _stopped(moved):
            waiting: list[asyncio.Future[Any]] = [moved, *prompts]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        return [prompt for prompt in prompts if prompt.done()]

    async def _ask(self, interactor: Interactor, question: Question) -> tuple[Answered, Any]:
        given = checked(question, await interactor.ask(question))
        if given.outcome == "timeout":
            raise mismatch(question.id, "accepted, rejected or dismissed", "timeout")
        return await self._give(question, given, str(getattr(interactor, "name", type(interactor).__name__)))

    async def _give(self, question: Question, given: Answer, by: str) -> tuple[Answered, Any]:
        """Put an answer on record, or find another there."""
        said = answers.answered_by(question, given, by)
        told = answers.audit_of(question, said)
        try:
            receipt = await self._journal.write(said, claim=answers.claim_of(question, given), audit=(told,))
        except HoldfastError as error:
            if error.fault.code != "PROTO_DUPLICATE_ID":
                raise
        else:
            if not receipt.duplicate:
                return said, given.value
        await self._journal.catch_up()
        first = self._journal.memory.answers.get(question.id)
        if first is None:
            # Its turn ended meanwhile, and nobody asks any more.
            raise HoldfastError(Fault.of("SESS_ALREADY_ANSWERED", context={"interaction_id": question.id}))
        return first, first.value

    def _now(self) -> float:
        return (self._runtime or default_runtime()).clock.wall()


def nobody(question: Question) -> HoldfastError:
    if is_secret(question.kind):
        # A store must not hold a password, so no other process can give it.
        how = "only a client of this program can answer it"
    else:
        value = {"Ask": "TEXT", "Select": "CHOICE"}.get(question.kind, "--yes")
        how = f"answer it with: holdfast sessions answer {question.session} {question.id} {value}"
    message = f"Permission required: {question.prompt} Nobody is attached to answer, and the question is kept; {how}"
    context = {"session_id": question.session, "interaction_id": question.id, "kind": question.kind}
    return HoldfastError(Fault.of("SESS_NO_INTERACTOR", message, context=context))


def _told(question: Question, error: Exception) -> Exception:
    error.add_note(f"while question {question.id} of session {question.session} was asked")
    return error


def _check(put: Put) -> None:
    options.seconds("expires", put.expires, optional=True)
    if put.kind not in KINDS:
        raise HoldfastError(Fault.of("SESS_INTERACTION_UNKNOWN_KIND", context={"received": put.kind}))
    if put.kind == "Select" and not put.payload.get("choices"):
        raise mismatch(put.name, "at least one choice", "none")


@asynccontextmanager
async def _stopped(*tasks: asyncio.Future[Any]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await _stop(tasks)


@asynccontextmanager
async def _stopped_all(tasks: dict[asyncio.Future[Any], Any]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await _stop(tasks)


async def _stop(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel, and wait for the end; not for ever: somebody else's prompt may hang."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running, timeout=_LEAVE_S)
    for task in running:
        if task.done() and not task.cancelled():
            task.exception()
