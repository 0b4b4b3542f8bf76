"""What the adapters share: reading arguments, JSON, and errors that come inside a good answer.

Invariant: what cannot be read is a fault with a code, never half a value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.faults import Fault, HoldfastError
from holdfast.providers.words import Reply, ToolCall
from holdfast.runtime.fault_of import fault_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.policies.models.usage import Usage
    from holdfast.providers.words import Request, Stop

__all__ = ["Called", "cut", "refuse_error", "reply"]


class Called(msgspec.Struct):
    """A tool call as it came: its arguments still a text, perhaps cut off."""

    id: str
    name: str
    arguments: str


def reply(
    request: Request, *, text: str, called: Iterable[Called], stop: Stop, usage: Usage | None, model: str
) -> Reply:
    """Return the whole reply.

    Where the answer came to its limit, a call that was cut off is not there; anywhere else it is a defect of the answer, as
    is a text that is not the JSON that was asked for.
    """
    calls = tuple(call for one in called if (call := _call(one, may_be_cut=stop == "length")) is not None)
    wants_data = request.schema is not None and stop == "end" and not calls
    data = _data(text) if wants_data else None
    return Reply(text=text, calls=calls, stop=stop, usage=usage, model=model, data=data)


def refuse_error(answer: Any) -> None:
    """Raise where an answer with a good status holds an error, or a proxy's page, in place of a reply."""
    if isinstance(answer, str):
        message = "The provider answered with text where an object was expected"
        raise HoldfastError(Fault.of("PROVIDER_MALFORMED_RESPONSE", message))
    document: dict[str, Any] = answer.to_dict()
    if document.get("error"):
        raise HoldfastError(fault_of(document))


def cut() -> HoldfastError:
    """Return what to raise where a stream ended before its last event."""
    return HoldfastError(Fault.of("PROVIDER_STREAM_CUT", "The stream ended before its last event"))


def _call(called: Called, *, may_be_cut: bool) -> ToolCall | None:
    try:
        # A tool without parameters may be called with nothing at all.
        arguments = msgspec.json.decode(called.arguments or "{}", type=dict[str, Any])
    except msgspec.DecodeError as error:
        if may_be_cut:
            return None
        raise _invalid(f"the arguments of {called.name} are no JSON object: {error}") from error
    return ToolCall(id=called.id, name=called.name, arguments=arguments)


def _data(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise _invalid(f"the answer is not the JSON that was asked for: {error}") from error


def _invalid(reason: str) -> HoldfastError:
    return HoldfastError(Fault.of("PROVIDER_OUTPUT_INVALID", context={"reason": reason}))
