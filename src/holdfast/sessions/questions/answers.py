"""Answering a question from anywhere: another task, another process, another machine. Owning the session is not needed.

Invariant: the first answer counts. It is claimed in the commit that stores it, so two cannot win, whoever they come from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.faults import Fault, HoldfastError
from holdfast.runtime.runtime import default_runtime
from holdfast.sessions.journal import audit, fresh_id, recalled
from holdfast.sessions.log import Answered, Asked, TurnEnded, new_entry, read_entry
from holdfast.sessions.questions.question import (
    Answer,
    body_hash,
    checked,
    is_same,
    is_secret,
    mismatch,
    question_of,
)
from holdfast.stores import Claim, Commit

if TYPE_CHECKING:
    from holdfast.sessions.log import Remembered
    from holdfast.sessions.questions.question import Question
    from holdfast.stores import NewAudit, Store

__all__ = ["answer", "answered_by", "audit_of", "claim_of", "pending", "refusal", "remembered"]

CLIENT = "interaction"
"""Whose ids the claims on answers are."""


async def remembered(store: Store, session: str) -> Remembered:
    """Return what a session knows from its log, without opening it."""
    return (await recalled(store, session))[0]


async def pending(store: Store, session: str) -> list[Question]:
    """Return the questions of a session that wait for an answer."""
    memory = await remembered(store, session)
    return [question_of(session, asked) for asked in memory.pending()]


async def answer(
    store: Store,
    session: str,
    id: str,  # noqa: A002 - the word of the protocol
    value: Any = None,
    *,
    approved: bool | None = None,
    by: str = "",
    kind: str | None = None,
) -> Answered:
    """Answer a question; return the answer that is on record.

    `value` is what the kind of question asks for, or an `Answer`; `approved=True` is the same as the value True. The same answer
    again is fine. Refused are another one (SESS_ALREADY_ANSWERED), a late one (SESS_INTERACTION_EXPIRED), one that does not fit
    (SESS_INTERACTION_MISMATCH), and a password: that can only be given to the program that asks.
    """
    known = await _find(store, session, id)
    question = question_of(session, known.asked)
    if kind is not None and kind != question.kind:
        raise mismatch(id, f"an answer to {question.kind}", f"one to {kind}")
    given = checked(question, _answer(value, approved=approved))
    if known.answered is not None:
        return _again(known.answered, question, given)
    if known.over or (question.expires_at is not None and default_runtime().clock.wall() >= question.expires_at):
        raise expired(question.id)
    if is_secret(question.kind) and given.outcome == "accepted":
        raise mismatch(id, "a password given to the program that asks for it", "one through the store")
    said = answered_by(question, given, by)
    commit = Commit(
        session=session,
        entries=(new_entry(said, fresh_id()),),
        claim=claim_of(question, given),
        audit=(audit_of(question, said),),
    )
    try:
        await store.commit(commit)
    except HoldfastError as error:
        if error.fault.code != "PROTO_DUPLICATE_ID":
            raise
        first = (await _find(store, session, id)).answered
        raise refusal(id, first) from error
    return said


def answered_by(question: Question, given: Answer, by: str) -> Answered:
    """Return what goes on record: of a secret only that it was given."""
    value = None if is_secret(question.kind) else given.value
    return Answered(id=question.id, outcome=given.outcome, value=value, reason=given.reason, by=by)


def claim_of(question: Question, given: Answer) -> Claim:
    return Claim(client=CLIENT, id=question.id, body_hash=body_hash(question.kind, given))


def audit_of(question: Question, said: Answered) -> NewAudit:
    return audit(
        "Approval",
        f"{question.session}/{question.turn}",
        event="answered",
        question=question.id,
        kind=question.kind,
        outcome=said.outcome,
        value=said.value,
        reason=said.reason,
        by=said.by,
    )


def refusal(id_: str, first: Answered | None) -> HoldfastError:
    """Return why an answer that came second is refused."""
    if first is not None and first.outcome == "timeout":
        return expired(id_)
    context: dict[str, Any] = {"interaction_id": id_}
    if first is not None:
        context |= {"outcome": first.outcome, "by": first.by}
    return HoldfastError(Fault.of("SESS_ALREADY_ANSWERED", context=context))


def expired(id_: str, seconds: float | None = None) -> HoldfastError:
    context: dict[str, Any] = {"interaction_id": id_}
    if seconds is not None:
        context["timeout_s"] = f"{seconds:g}"
    return HoldfastError(Fault.of("SESS_INTERACTION_EXPIRED", context=context))


class _Known(NamedTuple):
    asked: Asked
    answered: Answered | None
    over: bool
    """The turn that asked has ended."""


async def _find(store: Store, session: str, id_: str) -> _Known:
    memory = await remembered(store, session)
    for asked in memory.asked.values():
        if asked.id == id_:
            return _Known(asked, memory.answers.get(id_), over=not memory.in_flight)
    return await _find_in_the_past(store, session, id_)


async def _find_in_the_past(store: Store, session: str, id_: str) -> _Known:
    """Look through all that is left of the log: the question may be one of an earlier turn."""
    asked: Asked | None = None
    answered: Answered | None = None
    over = False
    after = (await store.session(session)).oldest - 1
    while entries := await store.read(session, after=after):
        for entry in entries:
            match said := read_entry(session, entry):
                case Asked(id=id) if id == id_:
                    asked = said
                case Answered(id=id) if id == id_:
                    answered = answered or said
                case TurnEnded():
                    over = asked is not None
                case _:
                    pass
        after = entries[-1].offset
    if asked is None:
        message = f"Session '{session}' has no question '{id_}'"
        raise HoldfastError(Fault.of("SESS_NOT_FOUND", message, context={"session_id": session, "interaction_id": id_}))
    return _Known(asked, answered, over=over)


def _answer(value: Any, *, approved: bool | None) -> Answer:
    if approved is not None:
        return Answer(approved)
    return value if isinstance(value, Answer) else Answer(value)


def _again(first: Answered, question: Question, given: Answer) -> Answered:
    if is_same(first, question.kind, given):
        return first
    raise refusal(question.id, first)
