"""Secrets out of a fault itself, and out of what `str` and `repr` print.

Invariant: a fault that holds none of the redactor's own secrets is returned as it is, the very object; of one that does,
the verdict is never touched, only texts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from holdfast.faults.redact import MASK, REDACTOR, Redactor

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.faults.fault import Attempt, Cause, Fault
    from holdfast.faults.partial import ItemError, Partial

__all__ = ["PRINTING", "Printing", "masked", "shown"]

_CUT_FROM = 200
"""A text shorter than this was not cut."""
_TELLING = 5
"""Fewer characters of a secret tell nothing."""

_Value = TypeVar("_Value", bound=msgspec.Struct)


def masked(fault: Fault, redactor: Redactor) -> Fault:
    """Return `fault` without the secrets the redactor was given."""
    if not redactor.secrets or not _mentions(fault, redactor.secrets):
        return fault
    return _replace(
        fault,
        message=_text(fault.message, redactor),
        context=redactor.value(fault.context),
        partial=fault.partial and _partial(fault.partial, redactor),
        cause=fault.cause and _cause(fault.cause, redactor),
        attempts=tuple(_attempt(attempt, redactor) for attempt in fault.attempts),
    )


class Printing:
    """What `str` and `repr` mask by. They take no argument, so the runtime, once loaded, says here which secrets it knows."""

    __slots__ = ("redactor",)

    redactor: Callable[[], Redactor]

    def __init__(self) -> None:
        self.redactor = lambda: REDACTOR


PRINTING = Printing()


def shown(value: msgspec.Struct) -> str:
    """Return the `repr` of a value that may hold foreign text, with secrets masked: logs and test reports print it."""
    fields = PRINTING.redactor().value(value).items()
    return f"{type(value).__name__}({', '.join(f'{name}={field!r}' for name, field in fields)})"


def _mentions(fault: Fault, secrets: tuple[str, ...]) -> bool:
    """Search the fault's JSON, which takes a microsecond where walking over it takes twenty."""
    if _cut_secret(fault.message, secrets) or (fault.cause and _cut_secret(fault.cause.message, secrets)):
        return True
    try:
        raw = msgspec.json.encode(fault)
        return any(msgspec.json.encode(secret)[1:-1] in raw for secret in secrets)
    except Exception:  # noqa: BLE001 - its context holds what JSON cannot: look at it value by value
        return True


def _text(text: str, redactor: Redactor) -> str:
    text = redactor.text(text)
    head = _cut_secret(text, redactor.secrets)
    return text[:-head] + MASK if head else text


def _cut_secret(text: str, secrets: tuple[str, ...]) -> int:
    """Return how much of a secret stands at the end of a text that the classifier cut in the middle of it."""
    if len(text) < _CUT_FROM:
        return 0
    for secret in secrets:
        if secret[:_TELLING] in text[-len(secret) :]:
            for length in range(len(secret) - 1, _TELLING - 1, -1):
                if text.endswith(secret[:length]):
                    return length
    return 0


def _cause(cause: Cause, redactor: Redactor) -> Cause:
    chain = tuple(_cause(link, redactor) for link in cause.chain)
    return _replace(cause, type=redactor.text(cause.type), message=_text(cause.message, redactor), chain=chain)


def _attempt(attempt: Attempt, redactor: Redactor) -> Attempt:
    cause = attempt.cause and _cause(attempt.cause, redactor)
    return _replace(attempt, message=_text(attempt.message, redactor), cause=cause)


def _partial(partial: Partial, redactor: Redactor) -> Partial:
    errors = tuple(_item(error, redactor) for error in partial.errors)
    return _replace(partial, payload=redactor.value(partial.payload), errors=errors)


def _item(error: ItemError, redactor: Redactor) -> ItemError:
    return _replace(
        error,
        item=redactor.value(error.item),
        code=redactor.text(error.code),
        message=redactor.text(error.message),
        classed=redactor.text(error.classed),
    )


def _replace(value: _Value, **fields: object) -> _Value:
    return msgspec.structs.replace(value, **fields)
