"""An event as JSON values that may leave the process: its own fields, secrets masked, content left out.

Invariant: what a model wrote or was asked is not in it. A fault's `partial` is content and is left out everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from holdfast.events import Event
    from holdfast.faults import Redactor

__all__ = ["facts_of", "tag_of"]


def facts_of(event: Event, redactor: Redactor) -> dict[str, Any]:
    """Return the fields of the event's JSON under the same names."""
    facts: dict[str, Any] = msgspec.to_builtins(event)
    fault = facts.get("fault")
    if fault is not None:
        fault.pop("partial", None)
    masked: dict[str, Any] = redactor.value(facts)
    return masked


def tag_of(event: Event) -> str:
    """Return the event's kind as its JSON names it: `attempt-ended`."""
    return str(type(event).__struct_config__.tag)
