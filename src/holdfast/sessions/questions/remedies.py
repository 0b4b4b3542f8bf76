"""What to ask about a step that failed, and what follows from the answer (S2-19).

Invariant: a recorded yes is followed without failing again, so a resumed session takes the same way; a step that may have happened
is never offered for a repeat. People are asked three times at most: where answers come by themselves, nothing goes on for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import msgspec

from holdfast.faults import Category, Kind, NextActor, OutcomeUnknownError
from holdfast.runtime.fault_of import fault_of
from holdfast.sessions import codec
from holdfast.sessions.questions.broker import Put
from holdfast.sessions.questions.question import mismatch
from holdfast.sessions.turn import NOT_THE_STEPS, name_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.faults import Fault
    from holdfast.sessions.log import Answered
    from holdfast.sessions.questions.broker import QuestionBroker
    from holdfast.sessions.turn import Turn

__all__ = ["DeviceCode", "Remedy", "remedy_for", "step_or_ask"]

MOST_QUESTIONS = 3

Remedy: TypeAlias = Literal["retry", "replace", "authenticate"]

_INPUT = frozenset({Category.INVALID, Category.NOT_FOUND, Category.VALIDATION, Category.OVERFLOW})
_KIND = {"retry": "Approve", "replace": "Ask", "authenticate": "Auth.DeviceCode"}
_WORDS = {"retry": "Retry the call?", "replace": "Replacement input?", "authenticate": "Authenticate again?"}


class DeviceCode(msgspec.Struct, frozen=True):
    """Where a person signs in, and what to type there."""

    url: str
    user_code: str = ""

    def __repr__(self) -> str:
        return f"DeviceCode(url={self.url!r})"


class _Session(Protocol):
    """What is needed of a session here."""

    sign_in: Callable[[Fault], Awaitable[DeviceCode]] | None

    @property
    def _broker(self) -> QuestionBroker: ...

    async def put(self, turn: Turn, put: Put) -> tuple[Answered, Any]: ...


def remedy_for(fault: Fault) -> Remedy | None:
    """Return what a person could do about a failure; None where asking would not help."""
    if fault.kind in (Kind.CANCELLED, Kind.FATAL):
        return None
    if fault.category is Category.AUTH:
        return "authenticate"
    if fault.retryable:
        return "retry"
    if fault.category in _INPUT and not fault.maybe_executed and fault.next_actor is not NextActor.DEVELOPER:
        return "replace"
    return "retry" if fault.kind is Kind.RECOVERABLE else None


async def step_or_ask(
    session: _Session, turn: Turn, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Do a step, and do with its failures what people say."""
    name = turn.next_name(name_of(fn))
    attempt = name
    for n in range(1, MOST_QUESTIONS + 1):
        question = f"{name}?{n}"
        decided = _recorded(session, question)
        if decided is None:
            try:
                return await turn.perform(attempt, fn, args, kwargs)
            except Exception as error:
                remedy = _remedy(turn, attempt, error)
                decided = remedy and await _ask(session, turn, question, remedy, fault_of(error), args=args)
                if decided is None:
                    raise
        if isinstance(decided, str):
            # Other input is another step. The same again is the same step: its key tells the other side so.
            attempt = f"{name}/{n + 1}"
            args = _replaced(args, decided, question)
    return await turn.perform(attempt, fn, args, kwargs)


def _recorded(session: _Session, question: str) -> str | Literal[True] | None:
    """Return what was decided before: the input to take, or to try again. None where nothing was, or not to."""
    said = session._broker.answered(question)  # noqa: SLF001 - this is part of the session
    if said is None or said.outcome != "accepted":
        return None
    return said.value if isinstance(said.value, str) else True


def _remedy(turn: Turn, attempt: str, error: Exception) -> Remedy | None:
    fault = fault_of(error)
    if fault.code in NOT_THE_STEPS or isinstance(error, OutcomeUnknownError) or turn.may_have_happened(attempt):
        return None
    return remedy_for(fault)


async def _ask(
    session: _Session, turn: Turn, question: str, remedy: Remedy, fault: Fault, *, args: tuple[Any, ...]
) -> str | Literal[True] | None:
    """Ask what to do about a failure; return the input to take, or that it is to be tried again; None to give up."""
    prompt = f"{question.partition('?')[0]} failed: {fault.message}. {_WORDS[remedy]}"
    payload: dict[str, Any] = {"prompt": prompt}
    code = DeviceCode("")
    if remedy == "replace":
        payload["prompt"] = f"{prompt} It was {codec.encode(args, question).decode()}"
    if remedy == "authenticate":
        if session.sign_in is not None:
            code = await session.sign_in(fault)
        payload["url"] = code.url
    put = Put(question, turn.number, _KIND[remedy], payload, None, code.user_code, anew=True)
    said, value = await session.put(turn, put)
    if said.outcome != "accepted":
        return None
    if remedy == "replace":
        return str(value)
    return True if value is True else None


def _replaced(args: tuple[Any, ...], text: str, question: str) -> tuple[Any, ...]:
    """Return the arguments with what was typed: the text itself for a single text, else JSON."""
    if len(args) == 1 and isinstance(args[0], str):
        return (text,)
    try:
        typed = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise mismatch(question, "the arguments as JSON", repr(text)) from error
    if len(args) == 1:
        return (typed,)
    if not isinstance(typed, list) or len(typed) != len(args):
        raise mismatch(question, f"a JSON list of {len(args)} arguments", repr(text))
    return tuple(typed)
