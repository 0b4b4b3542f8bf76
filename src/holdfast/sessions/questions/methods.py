"""What a session asks people: one method per kind of question."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from holdfast.faults import AbortedError, Fault, HoldfastError
from holdfast.sessions.questions import answers, remedies
from holdfast.sessions.questions.broker import Put, QuestionBroker
from holdfast.sessions.questions.question import question_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from holdfast.runtime.runtime import Runtime
    from holdfast.sessions.journal import Journal
    from holdfast.sessions.log import Answered
    from holdfast.sessions.questions.question import Interactor, Question
    from holdfast.sessions.questions.remedies import DeviceCode
    from holdfast.sessions.turn import Turn

__all__ = ["QuestionMethods"]

P = ParamSpec("P")
T = TypeVar("T")


class QuestionMethods(ABC):
    """The part of a session that asks people.

    A question is durable: asked and answered before in this turn, it is not asked again; one that waits for its answer is not raised
    twice. `expires` is for how many seconds it may be answered, by the wall clock and over restarts; then SESS_INTERACTION_EXPIRED
    is raised. Where nobody is attached, a question that expires waits for an answer through the store; one that does not halts the
    session with SESS_NO_INTERACTOR and is kept. A question that is dismissed cancels the turn.
    """

    __slots__ = ("_answering", "sign_in")

    _journal: Journal

    def __init__(self, mode: str, interactors: Iterable[Interactor], runtime: Runtime | None) -> None:
        self.sign_in: Callable[[Fault], Awaitable[DeviceCode]] | None = None
        """Where a person signs in again when a step is refused for its credentials: see `step_or_ask`."""
        self._answering: QuestionBroker | tuple[str, tuple[Interactor, ...], Runtime | None] = (
            mode,
            tuple(interactors),
            runtime,
        )
        """The desk, or what it will be made of: most sessions ask nothing most of the time."""

    def attach(self, interactor: Interactor) -> None:
        """Let somebody answer from now on. Several are asked at once; the first answer counts, the others are dismissed."""
        self._broker.attach(interactor)

    def detach(self, interactor: Interactor) -> None:
        """No longer ask somebody."""
        self._broker.detach(interactor)

    @property
    def pending(self) -> tuple[Question, ...]:
        """The questions that wait for an answer."""
        return tuple(question_of(self._journal.session, asked) for asked in self._journal.memory.pending())

    async def ask(self, prompt: str, *, expires: float | None = None) -> str:
        """Ask for a text. A refusal is TOOL_APPROVAL_DENIED."""
        return str(await self._value("Ask", {"prompt": prompt}, expires))

    async def approve(self, prompt: str, *, expires: float | None = None) -> bool:
        """Ask whether something may be done."""
        return await self._yes("Approve", {"prompt": prompt}, expires)

    async def confirm(self, prompt: str, *, expires: float | None = None) -> bool:
        """Ask whether something is so."""
        return await self._yes("Confirm", {"prompt": prompt}, expires)

    async def select(self, prompt: str, choices: Sequence[str], *, expires: float | None = None) -> str:
        """Ask for one of several. A refusal is TOOL_APPROVAL_DENIED."""
        return str(await self._value("Select", {"prompt": prompt, "choices": list(choices)}, expires))

    async def authenticate(
        self, prompt: str, *, url: str = "", user_code: str = "", expires: float | None = None
    ) -> bool:
        """Ask somebody to sign in elsewhere; return whether it was done. The code is shown and not stored."""
        return await self._yes("Auth.DeviceCode", {"prompt": prompt, "url": url}, expires, user_code)

    async def password(self, prompt: str, *, expires: float | None = None) -> str | None:
        """Ask for a password; None where mode `yolo` answers. It is not stored: a session that is resumed asks again."""
        value = await self._value("Auth.Password", {"prompt": prompt}, expires)
        return None if value is None else str(value)

    async def answer(
        self,
        id: str,  # noqa: A002 - the word of the protocol
        value: Any = None,
        *,
        approved: bool | None = None,
        by: str = "",
    ) -> Answered:
        """Answer a question of this session, as `holdfast.sessions.answer` does from another process."""
        journal = self._journal
        said = await answers.answer(journal.store, journal.session, id, value, approved=approved, by=by)
        await journal.catch_up()
        return said

    @overload
    async def step_or_ask(self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    async def step_or_ask(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def step_or_ask(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Do a step; where it fails, ask a person what to do: try again, with other input, or after signing in again (S2-19).

        What the person declines, and what no person can mend, raises as `step` does. After three questions it raises too.
        """
        turn = await self._current()
        return await remedies.step_or_ask(self, turn, fn, args, kwargs)

    async def put(self, turn: Turn, put: Put) -> tuple[Answered, Any]:
        """Ask one question of a turn, or return its answer; dismissed, the turn is cancelled."""
        said, value = await self._broker.put(put)
        if said.outcome == "dismissed":
            await self._dismissed(turn)
            context = {"session_id": self._journal.session, "interaction_id": said.id, "reason": said.reason}
            message = f"The turn was cancelled: question {said.id} was dismissed"
            raise AbortedError(Fault.of("SESS_TURN_CANCELLED", message, context=context))
        return said, value

    async def _yes(self, kind: str, payload: dict[str, Any], expires: float | None, user_code: str = "") -> bool:
        said, value = await self._put(kind, payload, expires, user_code)
        return said.outcome == "accepted" and value is True

    async def _value(self, kind: str, payload: dict[str, Any], expires: float | None) -> Any:
        said, value = await self._put(kind, payload, expires)
        if said.outcome != "accepted":
            why = f": {said.reason}" if said.reason else ""
            context = {"interaction_id": said.id, "reason": said.reason, "by": said.by}
            raise HoldfastError(
                Fault.of("TOOL_APPROVAL_DENIED", f"Question {said.id} was refused{why}", context=context)
            )
        return value

    async def _put(
        self, kind: str, payload: dict[str, Any], expires: float | None, user_code: str = ""
    ) -> tuple[Answered, Any]:
        turn = await self._current()
        name = turn.next_name(f"?{kind}")
        return await self.put(turn, Put(name, turn.number, kind, payload, expires, user_code))

    @property
    def _broker(self) -> QuestionBroker:
        if not isinstance(self._answering, QuestionBroker):
            mode, interactors, runtime = self._answering
            self._answering = QuestionBroker(self._journal, mode=mode, interactors=interactors, runtime=runtime)
        return self._answering

    @abstractmethod
    async def _current(self) -> Turn:
        """Return the turn a question belongs to."""

    @abstractmethod
    async def _dismissed(self, turn: Turn) -> None:
        """Cancel the turn whose question was dismissed."""
