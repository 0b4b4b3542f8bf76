"""What a person can do about a step that failed (S2-19): retry it, give other input, sign in, or say whether it happened.

Invariant: a resumed session follows a stored yes at once, without failing first, so it takes the same path. A retry is never
offered for a step that may have happened: first a person who is attached says whether it did. There are at most three questions
about a step, because automatic answers would never stop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import msgspec

from holdfast.faults import Category, HoldfastError, Kind, NextActor, OutcomeUnknownError, Scope
from holdfast.once.doubt import OUTCOMES
from holdfast.runtime.failures.left_behind import LEFT_BEHIND
from holdfast.runtime.secrets import process_redactor
from holdfast.sessions import codec
from holdfast.sessions.map_items import SESSION_FAILURES
from holdfast.sessions.questions.broker import NewQuestion
from holdfast.sessions.questions.question import mismatch
from holdfast.sessions.stored_types import hints

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.faults import Fault
    from holdfast.sessions.doubts import Doubts
    from holdfast.sessions.questions.broker import QuestionBroker
    from holdfast.sessions.step_runner import StepRunner

__all__ = ["DeviceCode", "Remedies", "Remedy", "remedy_for"]

MOST_QUESTIONS = 3

Remedy: TypeAlias = Literal["retry", "replace", "authenticate"]

_INPUT = frozenset({Category.INVALID, Category.NOT_FOUND, Category.VALIDATION, Category.OVERFLOW})
_KIND = {"retry": "Approve", "replace": "Ask", "authenticate": "Auth.DeviceCode"}
_WORDS = {"retry": "Retry the call?", "replace": "Replacement input?", "authenticate": "Authenticate again?"}


class DeviceCode(msgspec.Struct, frozen=True):
    """The address where a person signs in, and the code to type there.

    async def sign_in(fault):
        return DeviceCode("https://github.com/login/device", user_code="AB-12")

    session.sign_in = sign_in
    """

    url: str
    user_code: str = ""

    def __repr__(self) -> str:
        return f"DeviceCode(url={self.url!r})"


class _Session(Protocol):
    """What a session offers that is used here."""

    sign_in: Callable[[Fault], Awaitable[DeviceCode]] | None

    @property
    def unknown(self) -> tuple[str, ...]: ...

    @property
    def doubts(self) -> Doubts: ...

    async def resolve(self, key: str, *, happened: bool, result: Any = None, by: str = "") -> None: ...


def remedy_for(fault: Fault) -> Remedy | None:
    """Return what a person can do about a failure, or None if nobody can help."""
    # A person who cancelled must not be asked whether to go on.
    if fault.kind in (Kind.CANCELLED, Kind.FATAL):
        return None
    # Signing in does not help a tool that may not touch a file.
    if fault.category is Category.AUTH and fault.scope is not Scope.TOOL:
        return "authenticate"
    if fault.retryable:
        return "retry"
    # If the first call may have had an effect, a call with other input would have a second effect.
    if fault.category in _INPUT and not fault.maybe_executed and fault.next_actor is not NextActor.DEVELOPER:
        return "replace"
    return "retry" if fault.kind is Kind.RECOVERABLE else None


class Remedies:
    """Runs steps of a session, and asks a person about those that fail. `Session.step_or_ask` makes it.

    `steps` are the steps of the turn that runs, or the steps outside of turns.
    """

    def __init__(self, session: _Session, broker: QuestionBroker, steps: StepRunner) -> None:
        self._session = session
        self._broker = broker
        self._steps = steps

    async def step_or_ask(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a step, and follow a person's decision on each failure."""
        steps = self._steps
        name = steps.name_of_next(fn, args, kwargs)
        for n in range(1, MOST_QUESTIONS + 1):
            question = f"{name}?{n}"
            decided = self._recorded(question)
            if decided is None:
                attempt = steps.name_of_next(fn, args, kwargs)
                try:
                    return await steps.step(fn, args, kwargs)
                except Exception as error:
                    if await self._settle(fn, attempt, error):
                        continue
                    remedy = self._remedy(attempt, error)
                    decided = remedy and await self._ask(question, remedy, steps.fault_of(error), args)
                    if decided is None:
                        raise
            if isinstance(decided, str):
                # With other input it is another step. A plain retry is the same step with the same key, so the server can recognise it.
                args = _replaced(args, decided, question)
        return await steps.step(fn, args, kwargs)

    async def _settle(self, fn: Callable[..., Any], attempt: str, error: Exception) -> bool:
        """Ask a person whether a step of unknown outcome happened; return whether the person knows."""
        steps, broker = self._steps, self._broker
        key = error.key if isinstance(error, OutcomeUnknownError) else steps.key(attempt)
        # Nothing but a person may answer: an automatic yes would be a lie.
        if key not in self._session.unknown or not broker.is_attended:
            return False
        # A thread that still runs may take effect after the person has looked.
        if LEFT_BEHIND.runs(key):
            return False
        what = f"{key.rpartition('/')[2]}?outcome"
        number = 1
        # Each doubt has a question of its own: the answer to an earlier one says nothing about this one.
        while broker.answered(steps.turn, f"{what}{number}") is not None:
            number += 1
        call = self._session.doubts.text(key)
        prompt = f"{call} was started and its end is not known. Did it happen?"
        details = {"call": key}
        choices = {"prompt": prompt, "choices": list(OUTCOMES), "details": details}
        answered, value = await broker.prompt(steps, NewQuestion(f"{what}{number}", steps.turn, "Select", choices))
        happened = OUTCOMES.get(str(value)) if answered.outcome == "accepted" else None
        if happened is None or key not in self._session.unknown:
            # Somebody else may have resolved it meanwhile. That has answered the question too.
            return key not in self._session.unknown
        result = None
        if happened:
            is_text = hints(fn).get("return") is str
            form = "" if is_text else ", as JSON"
            payload = {
                "prompt": f"What was the result of {call}{form}? Leave it empty if it has none",
                "details": details,
            }
            question = NewQuestion(f"{what}{number}/result", steps.turn, "Ask", payload)
            _, text = await broker.prompt(steps, question)
            if key not in self._session.unknown:
                return True
            result = _result(str(text), question.name, is_text=is_text) if text else None
        try:
            await self._session.resolve(key, happened=happened, result=result, by=answered.by)
        except HoldfastError as refused:
            if refused.fault.code != "SESS_ALREADY_ANSWERED":
                raise
            # Somebody else found it out meanwhile. That counts, and the step continues with it.
        return True

    def _recorded(self, question: str) -> str | Literal[True] | None:
        """Return the stored decision: the other input, or True to retry. Return None without a decision, or if it was a no."""
        answered = self._broker.answered(self._steps.turn, question)
        if answered is None or answered.outcome != "accepted":
            return None
        return answered.value if isinstance(answered.value, str) else True

    def _remedy(self, attempt: str, error: Exception) -> Remedy | None:
        fault = self._steps.fault_of(error)
        if fault.code in SESSION_FAILURES or isinstance(error, OutcomeUnknownError):
            return None
        return None if self._steps.may_have_happened(attempt) else remedy_for(fault)

    async def _ask(
        self, question: str, remedy: Remedy, fault: Fault, args: tuple[Any, ...]
    ) -> str | Literal[True] | None:
        """Ask what to do about a failure. Return the other input, True to retry, or None to give up."""
        text = f"{question.partition('@')[0].partition('#')[0]} failed: {fault.message}. {_WORDS[remedy]}"
        payload: dict[str, Any] = {"prompt": text}
        code = DeviceCode("")
        if remedy == "replace":
            payload["prompt"] = f"{text} It was {process_redactor().text(codec.encode(args, question).decode())}"
        if remedy == "authenticate":
            if self._session.sign_in is not None:
                code = await self._session.sign_in(fault)
            payload["url"] = code.url
        prompt = NewQuestion(question, self._steps.turn, _KIND[remedy], payload, None, code.user_code, anew=True)
        answered, value = await self._broker.prompt(self._steps, prompt)
        if answered.outcome != "accepted":
            return None
        if remedy == "replace":
            return str(value)
        return True if value is True else None


def _replaced(args: tuple[Any, ...], text: str, question: str) -> tuple[Any, ...]:
    """Return the arguments that a person typed: the text itself in place of a single text, else JSON."""
    if len(args) == 1 and isinstance(args[0], str):
        return (text,)
    typed = _json(text, question)
    if len(args) == 1:
        return (typed,)
    if not isinstance(typed, list) or len(typed) != len(args):
        raise mismatch(question, f"a JSON list of {len(args)} arguments", repr(text))
    return tuple(typed)


def _result(text: str, question: str, *, is_text: bool) -> Any:
    """Return the result that a person typed: JSON, or any text for a step that returns a text."""
    if not is_text:
        return _json(text, question)
    try:
        return msgspec.json.decode(text, type=str)
    except msgspec.MsgspecError:
        return text


def _json(text: str, question: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise mismatch(question, "JSON", repr(text)) from error
