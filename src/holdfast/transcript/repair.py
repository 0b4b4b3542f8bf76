"""`repair` and `check`: make the history of a conversation acceptable to its provider."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from holdfast import options
from holdfast.faults import InvalidError
from holdfast.transcript.changes import OUTCOMES
from holdfast.transcript.forms import form_of
from holdfast.transcript.pairs import pair

if TYPE_CHECKING:
    from holdfast.transcript.changes import Change, OpenCall, Outcome, OutcomeOf
    from holdfast.transcript.forms import FormName

M = TypeVar("M")


class Repaired(NamedTuple, Generic[M]):
    """A history that its provider accepts, and what had to be changed for it."""

    history: list[M]
    """A new list. Messages that were not changed are the very objects that were given."""
    changes: tuple[Change, ...]
    """Everything that was changed, added or taken out; empty if the history was valid."""


@options.suggests
def repair(
    history: Sequence[M], form: FormName | None = None, *, outcome: Outcome | OutcomeOf = "interrupted"
) -> Repaired[M]:
    """Return the history as its provider accepts it, and the list of changes. What was given is not changed.

    Repair a history right before it is sent: a call that has no result by then gets one that says so. `form` is
    "anthropic", "chat", "responses", "langchain" or "pydantic-ai"; without it the messages show which one they are. `outcome` says
    what became of calls without a result: "interrupted", "unknown" or "not-run", or a function of the call that returns
    one of them.

    For example:
        messages, changes = repair(messages)
        for change in changes:
            log.warning("message %s: %s (%s)", change.where, change.what, change.why)

    Raises `InvalidError` for messages of several forms at once, or of none of them.
    """
    if isinstance(history, (str, bytes)) or not isinstance(history, Sequence):
        raise InvalidError.saying("history", "a list of messages", type(history).__name__)
    kind = form_of(history, form)
    turns = [kind.read(message, where) for where, message in enumerate(history)]
    changes = [*kind.tidy(turns), *pair(kind, turns, _outcome_of(outcome))]
    # A call or a result that went may leave something that cannot stand alone.
    changes += kind.tidy(turns)
    written: list[M] = [kind.write(turn) if turn.touched else turn.message for turn in turns]
    return Repaired(written, tuple(sorted(changes, key=lambda change: change.where)))


def check(history: Sequence[object], form: FormName | None = None) -> tuple[Change, ...]:
    """Return what `repair` would change; empty if the provider accepts the history.

    For example:
        assert check(messages) == ()

    Raises `InvalidError` as `repair` does.
    """
    return repair(history, form).changes


def _outcome_of(outcome: Outcome | OutcomeOf) -> OutcomeOf:
    if not callable(outcome):
        options.one_of("outcome", outcome, OUTCOMES)
        return lambda _: outcome

    def checked(call: OpenCall) -> Outcome:
        found = outcome(call)
        options.one_of(f"outcome of the call {call.id}", found, OUTCOMES)
        return found

    return checked
