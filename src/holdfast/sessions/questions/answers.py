"""Answers to questions, from anywhere: another task, process or machine. The answerer need not own the session.

Invariant: the first answer counts. The commit that stores it also claims the question's id, so the store rejects a second
answer from anybody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.faults import Fault, HoldfastError
from holdfast.runtime.runtime import default_runtime
from holdfast.sessions.journal import audit, fresh_id, memory_of
from holdfast.sessions.log import Answered, QuestionRaised, TurnEnded, new_entry, read_entry
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
from holdfast.stores.records import WAKE

if TYPE_CHECKING:
    from holdfast.runtime.runtime import Runtime
    from holdfast.sessions.questions.question import Question
    from holdfast.stores import NewAudit, Store

__all__ = ["GIVEN_DIRECTLY", "already_answered", "answer", "answered_by", "audit_of", "claim_of", "pending"]

GIVEN_DIRECTLY = "a password given to the program that asks for it"
"""What is expected instead of a password that would be stored."""
CLIENT = "interaction"
"""The client name under which the store keeps the claims on answers."""


async def pending(store: Store, session: str) -> list[Question]:
    """Return the questions of a session that wait for an answer.

        for question in await pending(store, "release-42"):
            print(question.prompt)

    Raises SESS_NOT_FOUND for an unknown session, and SESS_MANIFEST_DRIFT if its log is damaged.
    """
    memory = await memory_of(store, session)
    return [question_of(session, raised) for raised in memory.pending()]


async def answer(
    store: Store,
    session: str,
    id: str,  # noqa: A002 - the protocol's own name
    value: Any = None,
    *,
    approved: bool | None = None,
    by: str = "",
    kind: str | None = None,
    shown: str = "",
    runtime: Runtime | None = None,
) -> Answered:
    """Answer a question of a session; return the stored answer.

        async with open_store() as store:
            await answer(store, "release-42", "q-1f2e3d", approved=True, by="ann")

    `value` is a value that fits the kind of question, or an `Answer`. `approved=True` is the same as the value True. If `kind` is
    given, the question must be of that kind. `shown` is the hash of what the person was shown, `arguments_hash` of a message of the bridge:
    it must be this question's. The clock of `runtime` decides whether the question has expired. You may give the
    same answer again.

    Raises SESS_ALREADY_ANSWERED if another answer came first, SESS_INTERACTION_EXPIRED if the answer comes too late, and
    SESS_NOT_FOUND if there is no such question. Raises SESS_INTERACTION_MISMATCH if the answer does not fit, and for a password,
    because only the program that asks can take a password.
    """
    known = await _find(store, session, id)
    question = question_of(session, known.raised)
    if kind is not None and kind != question.kind:
        raise mismatch(id, f"an answer to {question.kind}", f"an answer to {kind}")
    if shown and shown != known.raised.args:
        raise mismatch(id, "an answer to what this question asks", "an answer to something else that was shown")
    given = checked(question, _answer(value, approved=approved))
    # Check this before the expiry: an answer that came in time may be repeated at any later time.
    if known.answered is not None:
        return _again(known.answered, question, given)
    now = (runtime or default_runtime()).clock.wall()
    if known.over or (question.expires_at is not None and now >= question.expires_at):
        raise expired(question.id)
    if is_secret(question.kind) and given.outcome == "accepted":
        raise mismatch(id, GIVEN_DIRECTLY, "a password through the store")
    answered = answered_by(question, given, by)
    commit = Commit(
        session=session,
        entries=(new_entry(answered, fresh_id()),),
        claim=claim_of(question, given),
        audit=(audit_of(question, answered),),
        work=WAKE,
    )
    try:
        await store.commit(commit)
    except HoldfastError as error:
        if error.fault.code != "PROTO_DUPLICATE_ID":
            raise
        # Somebody else answered between our read and our commit. The error names the first answer.
        first = (await _find(store, session, id)).answered
        raise already_answered(id, first) from error
    return answered


def answered_by(question: Question, given: Answer, by: str) -> Answered:
    """Return the log entry of an answer. For a secret it only records that an answer was given."""
    value = None if is_secret(question.kind) else given.value
    return Answered(id=question.id, outcome=given.outcome, value=value, reason=given.reason, by=by)


def claim_of(question: Question, given: Answer) -> Claim:
    """Return the claim that makes this the only answer."""
    return Claim(client=CLIENT, id=question.id, body_hash=body_hash(question.kind, given))


def audit_of(question: Question, answered: Answered) -> NewAudit:
    """Return the audit record of an answer."""
    return audit(
        "Approval",
        f"{question.session}/{question.turn}",
        event="answered",
        question=question.id,
        kind=question.kind,
        outcome=answered.outcome,
        value=answered.value,
        reason=answered.reason,
        by=answered.by,
    )


def already_answered(id_: str, first: Answered | None) -> HoldfastError:
    """Return the error of an answer that came second."""
    if first is not None and first.outcome == "timeout":
        return expired(id_)
    context: dict[str, Any] = {"interaction_id": id_}
    if first is not None:
        context |= {"outcome": first.outcome, "by": first.by}
    return HoldfastError(Fault.of("SESS_ALREADY_ANSWERED", context=context))


def expired(id_: str, seconds: float | None = None) -> HoldfastError:
    """Return SESS_INTERACTION_EXPIRED for this question."""
    context: dict[str, Any] = {"interaction_id": id_}
    if seconds is not None:
        context["timeout_s"] = f"{seconds:g}"
    return HoldfastError(Fault.of("SESS_INTERACTION_EXPIRED", context=context))


class _Known(NamedTuple):
    raised: QuestionRaised
    answered: Answered | None
    over: bool
    """The question's turn has ended."""


async def _find(store: Store, session: str, id_: str) -> _Known:
    memory = await memory_of(store, session)
    for raised in (*memory.session_questions.values(), *memory.questions.values()):
        if raised.id == id_:
            return _Known(raised, memory.answers.get(id_), over=False)
    return await _find_in_log(store, session, id_)


async def _find_in_log(store: Store, session: str, id_: str) -> _Known:
    """Search the whole log: the question may belong to an earlier turn."""
    raised: QuestionRaised | None = None
    answered: Answered | None = None
    over = False
    after = (await store.session(session)).oldest - 1
    while entries := await store.read(session, after=after):
        for entry in entries:
            match body := read_entry(session, entry):
                case QuestionRaised(id=id) if id == id_:
                    raised = body
                case Answered(id=id) if id == id_:
                    answered = answered or body
                case TurnEnded(turn=turn):
                    over = over or (raised is not None and raised.turn == turn)
                case _:
                    pass
        after = entries[-1].offset
    if raised is None:
        message = f"Session '{session}' has no question '{id_}'"
        raise HoldfastError(Fault.of("SESS_NOT_FOUND", message, context={"session_id": session, "interaction_id": id_}))
    return _Known(raised, answered, over=over)


def _answer(value: Any, *, approved: bool | None) -> Answer:
    if approved is not None:
        return Answer(approved)
    return value if isinstance(value, Answer) else Answer(value)


def _again(first: Answered, question: Question, given: Answer) -> Answered:
    if is_same(first, question.kind, given):
        return first
    raise already_answered(question.id, first)
