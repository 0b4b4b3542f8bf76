"""The questions of a session: one method per kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from holdfast.faults import AbortedError, Fault, HoldfastError
from holdfast.sessions.questions import answers, remedies
from holdfast.sessions.questions.broker import Prompt, QuestionBroker
from holdfast.sessions.questions.question import question_hash, question_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from holdfast.runtime.runtime import Runtime
    from holdfast.sessions.journal import Journal
    from holdfast.sessions.log import Answered
    from holdfast.sessions.questions.question import Interactor, Question
    from holdfast.sessions.questions.remedies import DeviceCode
    from holdfast.sessions.step_runner import StepRunner

__all__ = ["QuestionMethods"]

P = ParamSpec("P")
T = TypeVar("T")


class QuestionMethods(ABC):
    """The part of a session that asks people; `Session` is the class to use.

    A question is durable. If it was answered before, in this turn or outside of turns in this session, the stored answer is returned.
    If it still waits for its answer, it is not raised a second time. `expires` is the number of seconds in which it may be answered, by the wall clock, also across
    restarts. After that time SESS_INTERACTION_EXPIRED is raised. If nobody is attached, a question with `expires` waits for an
    answer through the store. A question without it raises SESS_NO_INTERACTOR and is kept. Dismissing a question cancels the turn.
    """

    __slots__ = ("_broker_or_parts", "sign_in")

    _journal: Journal

    def __init__(self, mode: str, interactors: Iterable[Interactor], runtime: Runtime | None) -> None:
        self.sign_in: Callable[[Fault], Awaitable[DeviceCode]] | None = None
        """A function that returns where a person signs in. `step_or_ask` calls it if a step fails because of its credentials."""
        self._broker_or_parts: QuestionBroker | tuple[str, tuple[Interactor, ...], Runtime | None] = (
            mode,
            tuple(interactors),
            runtime,
        )
        """The broker, or the arguments to make it. Most sessions ask nothing, so the broker is made at its first use."""

    def attach(self, interactor: Interactor) -> None:
        """Let an interactor answer from now on: `session.attach(Console())`.

        All attached interactors are asked at once. The first answer counts, and the others are cancelled.
        """
        self._broker.attach(interactor)

    def detach(self, interactor: Interactor) -> None:
        """Stop asking an interactor. A prompt that it shows is cancelled."""
        self._broker.detach(interactor)

    @property
    def pending(self) -> tuple[Question, ...]:
        """The questions that wait for an answer."""
        return tuple(question_of(self._journal.session, raised) for raised in self._journal.memory.pending())

    async def ask(self, prompt: str, *, expires: float | None = None) -> str:
        """Ask for a text: `name = await session.ask("Which branch?")`. A no raises TOOL_APPROVAL_DENIED."""
        return str(await self._value("Ask", {"prompt": prompt}, expires))

    async def approve(self, prompt: str, *, expires: float | None = None) -> bool:
        """Ask for permission; return whether it was given: `if await session.approve("Deploy?", expires=3600)`."""
        return await self._yes("Approve", {"prompt": prompt}, expires)

    async def confirm(self, prompt: str, *, expires: float | None = None) -> bool:
        """Ask whether a fact is true: `if await session.confirm("Is the site up?")`."""
        return await self._yes("Confirm", {"prompt": prompt}, expires)

    async def select(self, prompt: str, choices: Sequence[str], *, expires: float | None = None) -> str:
        """Ask for one of several choices: `await session.select("Where?", ["staging", "production"])`.

        A no raises TOOL_APPROVAL_DENIED; an empty list of choices raises SESS_INTERACTION_MISMATCH.
        """
        return str(await self._value("Select", {"prompt": prompt, "choices": list(choices)}, expires))

    async def authenticate(
        self, prompt: str, *, url: str = "", user_code: str = "", expires: float | None = None
    ) -> bool:
        """Ask somebody to sign in elsewhere; return whether they did. The code is shown but not stored.

        await session.authenticate("Sign in to GitHub", url="https://github.com/login/device", user_code="AB-12")
        """
        return await self._yes("Auth.DeviceCode", {"prompt": prompt, "url": url}, expires, user_code)

    async def password(self, prompt: str, *, expires: float | None = None) -> str | None:
        """Ask for a password; return None if mode `yolo` answers. The password is not stored, so a resumed session asks again.

        A no raises TOOL_APPROVAL_DENIED.
        """
        value = await self._value("Auth.Password", {"prompt": prompt}, expires)
        return None if value is None else str(value)

    async def answer(
        self,
        id: str,  # noqa: A002 - the protocol's own name
        value: Any = None,
        *,
        approved: bool | None = None,
        by: str = "",
    ) -> Answered:
        """Answer a question of this session: `await session.answer(session.pending[0].id, approved=True)`.

        `holdfast.sessions.answer` does the same from another process. Its documentation lists the errors of both.
        """
        journal = self._journal
        answered = await answers.answer(
            journal.store, journal.session, id, value, approved=approved, by=by, runtime=self._broker.runtime
        )
        # The commit did not go through our journal, so the journal must read it from the store.
        await journal.catch_up()
        return answered

    @overload
    async def step_or_ask(self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    async def step_or_ask(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    async def step_or_ask(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Run a step; if it fails, ask a person: retry, retry with other input, sign in and retry, or say whether it happened.

            await session.step_or_ask(fetch, url)

        If the person declines, or no person can help, or after three questions, the step's error is raised as `step` raises it.
        """
        return await remedies.step_or_ask(self, await self._steps(), fn, args, kwargs)

    async def _prompt(self, steps: StepRunner, prompt: Prompt) -> tuple[Answered, Any]:
        """Return the answer to a question. If the question is dismissed, cancel its turn."""
        answered, value = await self._broker.ask(prompt)
        if answered.outcome == "dismissed":
            await self._dismissed(steps)
            context = {"session_id": self._journal.session, "interaction_id": answered.id, "reason": answered.reason}
            message = f"The turn was cancelled: question {answered.id} was dismissed"
            raise AbortedError(Fault.of("SESS_TURN_CANCELLED", message, context=context))
        return answered, value

    async def _yes(self, kind: str, payload: dict[str, Any], expires: float | None, user_code: str = "") -> bool:
        answered, value = await self._ask(kind, payload, expires, user_code)
        return answered.outcome == "accepted" and value is True

    async def _value(self, kind: str, payload: dict[str, Any], expires: float | None) -> Any:
        answered, value = await self._ask(kind, payload, expires)
        if answered.outcome != "accepted":
            why = f": {answered.reason}" if answered.reason else ""
            context = {"interaction_id": answered.id, "reason": answered.reason, "by": answered.by}
            raise HoldfastError(
                Fault.of("TOOL_APPROVAL_DENIED", f"Question {answered.id} was answered with no{why}", context=context)
            )
        return value

    async def _ask(
        self, kind: str, payload: dict[str, Any], expires: float | None, user_code: str = ""
    ) -> tuple[Answered, Any]:
        steps = await self._steps()

        async def ask(name: str) -> tuple[Answered, Any]:
            return await self._prompt(steps, Prompt(name, steps.turn, kind, payload, expires, user_code))

        return await steps.question(kind, question_hash(kind, payload), ask)

    @property
    def _broker(self) -> QuestionBroker:
        if not isinstance(self._broker_or_parts, QuestionBroker):
            mode, interactors, runtime = self._broker_or_parts
            self._broker_or_parts = QuestionBroker(self._journal, mode=mode, interactors=interactors, runtime=runtime)
        return self._broker_or_parts

    @property
    @abstractmethod
    def unknown(self) -> tuple[str, ...]:
        """The keys of steps that may have happened."""

    @abstractmethod
    async def resolve(self, key: str, *, happened: bool, result: Any = None) -> None:
        """Record whether a step whose outcome is unknown has happened."""

    @abstractmethod
    async def _steps(self) -> StepRunner:
        """Return what runs the steps of the turn that a question belongs to, or the steps outside of turns."""

    @abstractmethod
    async def _dismissed(self, steps: StepRunner) -> None:
        """Cancel the turn whose question was dismissed."""
