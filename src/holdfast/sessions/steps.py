"""Stored steps: how they are shown, how a doubt about one is settled, and how a turn is begun anew. Nothing here does I/O.

Which step a call is, and what is done about it, is decided in `once/`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.once.doubt import OUTCOMES, window
from holdfast.once.identity import key_of, suffix
from holdfast.once.records import Resolution, StepEnded, StepStarted, is_bound
from holdfast.runtime.secrets import process_redactor
from holdfast.sessions import codec
from holdfast.sessions.journal import audit
from holdfast.sessions.log import Answered, QuestionRaised, StepsForgotten
from holdfast.stores import Claim

if TYPE_CHECKING:
    from holdfast.sessions.log import SessionMemory
    from holdfast.stores import NewAudit

__all__ = [
    "Finding",
    "Settlement",
    "already_resolved",
    "anew",
    "answers_to",
    "questions_about",
    "settlement",
    "shown",
    "stored_step",
]

_RESOLVER = "resolve"
"""The client name under which the store keeps the claims on doubts."""
_CUT = 1_000
"""Characters of a step's arguments that are kept."""


def stored_step(memory: SessionMemory, session: str, key: str) -> StepStarted | StepEnded:
    """Return the step with this key, of the turn in flight or outside of turns; raise `InvalidError` if there is none."""
    after = key.removeprefix(f"{session}/")
    known = memory.session_steps.get(after) or memory.steps.get(after.removeprefix(f"{memory.turn}/"))
    if known is None:
        raise InvalidError.at("session", "the key of a stored step, such as SESS_STEP_DRIFT names", key)
    return known


def shown(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the arguments of a call as text, masked and cut: `("version 2", retries=3)`."""
    parts = [_text(value) for value in args]
    parts += [f"{name}={_text({name: value}, name)}" for name, value in kwargs.items()]
    text = ", ".join(parts)
    return f"({text})" if len(text) <= _CUT else f"({text[:_CUT]}…"


def _text(value: Any, name: str = "") -> str:
    try:
        plain = process_redactor().value(codec.plain(value, "step"))
    except InvalidError:
        plain = f"<{type(value).__qualname__}>"
    # A value is masked together with its name, because only the name may say that it is a secret.
    return msgspec.json.encode(plain[name] if name and isinstance(plain, dict) else plain).decode()


class Finding(NamedTuple):
    """What somebody found out about a step of unknown outcome."""

    happened: bool
    result: bytes
    """Its result as JSON; null if it did not happen."""
    by: str
    at: float

    @classmethod
    def of(cls, *, happened: bool, result: Any, by: str, at: float) -> Finding:
        return cls(happened, codec.encode_given(result if happened else None, "session.resolve"), by, at)

    def is_same(self, ended: StepEnded) -> bool:
        """Whether a stored resolution says the same. Who found it out, and when, does not matter."""
        return ended.ok is self.happened and bytes(ended.result) == self.result


def questions_about(memory: SessionMemory, key: str) -> list[QuestionRaised]:
    """Return the open questions about a doubt. Their details name its whole key as `call`."""
    return [question for question in memory.pending() if question.payload.get("details", {}).get("call") == key]


def answers_to(memory: SessionMemory, key: str, *, happened: bool, result: bytes, by: str = "") -> tuple[Answered, ...]:
    """Return the answers that close the open questions about a doubt, once it is known what became of it."""
    return tuple(
        Answered(id=question.id, outcome="accepted", value=_answer_to(question, happened, result), by=by)
        for question in questions_about(memory, key)
    )


def _answer_to(question: QuestionRaised, happened: bool, result: bytes) -> str:  # noqa: FBT001 - what was found out
    if question.kind == "Select":
        return next(words for words, means in OUTCOMES.items() if means is happened)
    given = codec.readable(msgspec.json.decode(result))
    return given if isinstance(given, str) else "" if given is None else _text(given)


class Settlement(NamedTuple):
    """The parts of the commit that settles a doubt."""

    key: str
    """The whole key of the step."""
    ended: StepEnded
    record: NewAudit
    claim: Claim
    """The store takes one finding for a doubt, and rejects any other."""
    answers: tuple[Answered, ...] = ()
    """They close the questions about the doubt that nobody has answered."""


def settlement(memory: SessionMemory, session: str, key: str, finding: Finding) -> Settlement:
    """Return what settles a doubt.

    `key` is the whole key, what follows the session in it, or the beginning of that if it is the only one. Raise `InvalidError` for
    a key that is not of an unknown step.
    """
    doubts = memory.unknown()
    wanted = key.removeprefix(f"{session}/")
    found = [wanted] if wanted in doubts else [after for after in doubts if wanted and after.startswith(wanted)]
    if len(found) != 1:
        known = ", ".join(key_of(session, after) for after in (found or doubts))
        expected = f"one of the unknown steps ({known or 'none'})"
        raise InvalidError.at("session.resolve", expected, key)
    entry, whole = doubts[found[0]], key_of(session, found[0])
    # Keep the name and arguments of its start, so that the step is recognised when the program calls it again.
    ended = StepEnded(
        turn=entry.turn,
        step=entry.step,
        args=entry.args,
        fn=entry.fn,
        place=entry.place,
        task=entry.task,
        ok=finding.happened,
        result=msgspec.Raw(finding.result),
        resolution=Resolution(by=finding.by, at=finding.at),
    )
    # The step may be in doubt again after it was resolved as not happened and has run again. That is another doubt.
    doubt = sha256(f"{found[0]} {entry.begun}".encode()).hexdigest()[:32]
    digest = sha256(b"%d %s" % (finding.happened, finding.result)).digest()
    record = audit("Approval", whole, step=entry.step, happened=finding.happened, by=finding.by)
    answers = answers_to(memory, whole, happened=finding.happened, result=finding.result, by=finding.by)
    return Settlement(whole, ended, record, Claim(client=_RESOLVER, id=doubt, body_hash=digest), answers)


def already_resolved(session: str, first: StepEnded, call: str) -> HoldfastError:
    """Return the error of a resolution that came second and differs; `call` is the step as a person knows it."""
    assert first.resolution is not None
    by, at = first.resolution.by, first.resolution.at
    when = datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    result = _text(codec.readable(msgspec.json.decode(first.result)))
    outcome = f"happened, with the result {window(result, 0)}" if first.ok else "not happened"
    message = (
        f"{call} was already resolved as {outcome},{f' by {by}' if by else ''} at {when}. The first resolution counts"
    )
    context = {
        "session_id": session,
        "key": key_of(session, suffix(first.turn, first.step)),
        "happened": first.ok,
        "by": by,
        "at": when,
    }
    return HoldfastError(Fault.of("SESS_ALREADY_ANSWERED", message, context=context))


def anew(memory: SessionMemory, session: str, **facts: Any) -> tuple[StepsForgotten, NewAudit]:
    """Return the entry and the audit record that let the turn in flight begin anew.

    Unsafe steps that happened, or may have, are not forgotten.
    """
    gone = [name for name, entry in memory.steps.items() if not is_bound(entry)]
    record = audit("Turn", session, turn=memory.turn, event="retried", forgotten=len(gone), **facts)
    return StepsForgotten(turn=memory.turn, steps=gone, anew=True), record
