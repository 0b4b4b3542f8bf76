"""A partial result among a document's details: what there is, and item by item what is missing (C26).

Invariant: a partial result stands in one place of a document, never twice and never as if it were whole.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.faults import ItemError, Partial

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["gather", "spread"]

_ERRORS = "errors"
_TRUNCATED = "truncated"


def spread(partial: Partial, place: str | None) -> dict[str, Any]:
    """Return the details that tell `partial`, its payload under `place` unless that is told elsewhere."""
    told: dict[str, Any] = {} if place is None or partial.payload is None else {place: partial.payload}
    if partial.errors:
        told[_ERRORS] = partial.errors
    if partial.truncated:
        told[_TRUNCATED] = True
    return told


def gather(details: dict[str, Any], places: Iterable[str], payload: Any = None) -> Partial | None:
    """Take a partial result out of `details`: the payload from the first place that is filled, if it is not given."""
    for place in places:
        if payload is None:
            payload = details.pop(place, None)
    truncated = details.get(_TRUNCATED) is True and details.pop(_TRUNCATED)
    partial = Partial(payload=payload, errors=_items(details), truncated=truncated)
    return None if partial == Partial() else partial


def _items(details: dict[str, Any]) -> tuple[ItemError, ...]:
    """Take the item errors out, if they are ours; anybody may have a field of that name."""
    try:
        errors = msgspec.convert(details[_ERRORS], tuple[ItemError, ...])
    except (KeyError, msgspec.ValidationError):
        return ()
    del details[_ERRORS]
    return errors
