"""Functions with which the adapters make a `Reply`: tool arguments, JSON, and errors inside a response with status 200.

Invariant: an answer that cannot be read raises an error with a code. A `Reply` never holds an incomplete value.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.faults import Fault, HoldfastError
from holdfast.faults.redaction import whole_characters
from holdfast.providers.messages import Reply, ToolCall
from holdfast.runtime.fault_of import fault_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from holdfast.policies.models.usage import Usage
    from holdfast.providers.messages import Request, Stop


class Called(msgspec.Struct):
    """A tool call as the provider sent it. Its arguments are still text, and may be cut off."""

    id: str
    name: str
    arguments: str


def reply(
    request: Request,
    *,
    text: str,
    called: Iterable[Called],
    stop: Stop,
    usage: Usage | None,
    model: str,
    blocks: Sequence[dict[str, Any]] = (),
) -> Reply:
    """Return the reply.

    An answer that did not come to its end has no tool calls: the arguments of the last one may be incomplete and still be valid JSON, such
    as `{}`. In a complete answer arguments that are no JSON object raise `PROVIDER_OUTPUT_INVALID`, and so does text that is not the
    JSON that the request's schema requires, unless the request accepts both. Halves of characters are replaced in its text: the next request
    could not be sent with them.
    """
    text = whole_characters(text)
    try:
        calls = tuple(_call(one, request) for one in called) if stop in ("end", "tools") else ()
        # An answer that calls tools, or was cut off, is not the JSON yet.
        wants_data = request.schema is not None and stop == "end" and not calls
        data = _data(text, request) if wants_data else None
    except _InvalidError as error:
        # The answer was paid for, so a budget must know what it used.
        paid = {} if usage is None else {"model": model, "usage": _counts(usage)}
        raise HoldfastError(
            Fault.of("PROVIDER_OUTPUT_INVALID", context={"reason": str(error), **paid})
        ) from error.__cause__
    return Reply(
        text=text, calls=calls, stop=stop, usage=usage, model=model, data=data, blocks=_kept_blocks(blocks, calls)
    )


def raise_for_error(answer: Any) -> None:
    """Raise if a response with a good status holds an error, or a proxy's page, instead of an answer."""
    if isinstance(answer, str):
        message = "The provider answered with text where an object was expected"
        raise HoldfastError(Fault.of("PROVIDER_MALFORMED_RESPONSE", message))
    if getattr(answer, "error", None):
        raise HoldfastError(fault_of(answer.to_dict(warnings=False)))


def cut() -> HoldfastError:
    """Return the error for a stream that ended before its last event."""
    return HoldfastError(Fault.of("PROVIDER_STREAM_CUT", "The stream ended before its last event"))


def _call(called: Called, request: Request) -> ToolCall:
    try:
        # The answer is complete, so an empty text is not what is left of a longer one: the tool has no parameters.
        arguments = msgspec.json.decode(_joined(called.arguments) or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        mistake = f"the arguments of {called.name} are not a JSON object: {error}"
        if not request.accepts_invalid:
            raise _InvalidError(mistake) from error
        # Every provider accepts an object when the call is sent back.
        written = {"invalid_json": whole_characters(called.arguments)}
        return ToolCall(id=called.id, name=called.name, arguments=written, mistake=mistake)
    return ToolCall(id=called.id, name=called.name, arguments=arguments)


def _joined(text: str) -> str:
    """Return a text in which the halves of a character that came in two pieces of a stream are one character."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _kept_blocks(blocks: Sequence[dict[str, Any]], calls: tuple[ToolCall, ...]) -> tuple[dict[str, Any], ...]:
    """Return the blocks that the provider must get back. Text and calls alone are in the reply already."""
    if all(block.get("type") in ("text", "tool_use") for block in blocks):
        return ()
    complete = {call.id: call for call in calls}
    kept: list[dict[str, Any]] = []
    for block in blocks:
        match block.get("type"):
            case "text" if not str(block.get("text")).strip():
                # The API rejects a text block without a word, although a stream may begin one.
                continue
            case "tool_use":
                if (call := complete.get(str(block.get("id")))) is not None:
                    kept.append({**block, "input": call.arguments})
            case "function_call":
                if (call := complete.get(str(block.get("call_id")))) is None:
                    # Its reasoning cannot stand alone.
                    return ()
                kept.append({**block, "arguments": _written(call)})
            case _:
                kept.append(block)
    return tuple(_whole(block) for block in kept)


def _whole(block: dict[str, Any]) -> dict[str, Any]:
    """Return a block in which every text is one of whole characters."""
    try:
        msgspec.json.encode(block)
    except UnicodeEncodeError:
        whole: dict[str, Any] = json.loads(whole_characters(json.dumps(block, ensure_ascii=False)))
        return whole
    return block


def _written(call: ToolCall) -> str:
    return msgspec.json.encode(call.arguments).decode()


def _data(text: str, request: Request) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        if request.accepts_invalid:
            return None
        raise _InvalidError(f"the answer is not the JSON that the schema requires: {error}") from error


class _InvalidError(Exception):
    """The answer cannot be read."""


def _counts(usage: Usage) -> dict[str, Any]:
    """Return the usage with Anthropic's names, because its kinds of tokens do not overlap."""
    counts: dict[str, Any] = {
        "input_tokens": usage.input,
        "output_tokens": usage.output,
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": usage.written + usage.written_hour,
    }
    if usage.written_hour:
        counts["cache_creation"] = {"ephemeral_1h_input_tokens": usage.written_hour}
    if usage.searches:
        counts["server_tool_use"] = {"web_search_requests": usage.searches}
    return counts
