"""Whether a stream was cut inside a tool call, read from the events of the providers' protocols and of the frameworks.

The arguments of a tool call come in fragments. A second response phrases them differently, so fragments of two responses
never fit together. A stream that was cut inside a tool call may restart, but it cannot continue.
"""

from __future__ import annotations

from typing import Any

# The event types of Anthropic's Messages and OpenAI's Responses. No name means two things, so one table holds both.
_BEGINS = frozenset({"content_block_start", "response.output_item.added"})
_ENDS = frozenset({"content_block_stop", "response.output_item.done", "response.function_call_arguments.done"})
_FRAGMENTS = frozenset({"response.function_call_arguments.delta", "response.custom_tool_call_input.delta"})
_CALLS = frozenset({"tool_use", "server_tool_use", "mcp_tool_use", "function_call", "custom_tool_call", "mcp_call"})

# The parts of a pydantic-ai response that are tool calls.
_CALL_PARTS = frozenset({"tool-call", "builtin-tool-call"})

_MOST_WRAPPED = 4
"""How deep an event may be wrapped in the items of a framework."""


class CallTracker:
    """Follows a stream item by item. `inside` is whether the last item was inside a tool call."""

    __slots__ = ("inside",)

    def __init__(self) -> None:
        self.inside = False

    def follow(self, item: Any) -> None:
        """Follow the next item. An item that is no event of a known protocol changes nothing."""
        for event in _events_in(item, _MOST_WRAPPED):
            inside = _typed(event)
            for read in (_chat, _langchain, _pydantic_ai, _converse):
                if inside is not None:
                    break
                inside = read(event)
            if inside is not None:
                self.inside = inside


def _events_in(item: Any, depth: int) -> list[Any]:
    """Return the events that an item holds: frameworks put a model's event into an item of their own."""
    if isinstance(item, tuple):
        # LangGraph: `(chunk, metadata)`, or `(namespace, mode, (chunk, metadata))`.
        return [event for part in item for event in _events_in(part, depth - 1)] if depth else []
    if _get(item, "type") == "raw_response_event":
        # The Agents SDK of OpenAI.
        return [_get(item, "data")]
    # LangChain: the items of `astream_events`, then the chunks that a chat model's own `_stream` makes.
    chunk = _get(_get(item, "data"), "chunk") or _get(item, "message")
    return [item] if chunk is None else [item, chunk]


# Each function below returns whether the event is inside a tool call, or None if the event does not say.


def _typed(event: Any) -> bool | None:
    kind = _get(event, "type")
    if not isinstance(kind, str):
        return None
    if kind in _ENDS:
        return False
    if kind in _FRAGMENTS:
        return True
    if kind in _BEGINS:
        block = _get(event, "content_block") or _get(event, "item")
        return _get(block, "type") in _CALLS
    return None


def _chat(event: Any) -> bool | None:
    """Read a chunk of Chat Completions, where a tool call ends together with its choice."""
    choices = _get(event, "choices")
    inside = None
    for choice in choices if isinstance(choices, (list, tuple)) else ():
        delta = _get(choice, "delta")
        if _get(choice, "finish_reason") is not None:
            inside = False
        # `function_call` is what the API sent before it had several tool calls; some servers still send it.
        elif _get(delta, "tool_calls") or _get(delta, "function_call"):
            inside = True
    return inside


def _langchain(event: Any) -> bool | None:
    """Read a message chunk. LangChain joins the fragments of a whole message, so a call ends with its message only."""
    if _get(event, "tool_call_chunks"):
        return True
    metadata = _get(event, "response_metadata")
    is_last = _get(event, "chunk_position") == "last"
    return False if is_last or _get(metadata, "finish_reason") or _get(metadata, "stop_reason") else None


def _pydantic_ai(event: Any) -> bool | None:
    kind = _get(event, "event_kind")
    if kind == "part_start":
        return _get(_get(event, "part"), "part_kind") in _CALL_PARTS
    if kind == "part_end":
        return False
    delta = _get(event, "delta") if kind == "part_delta" else event
    return True if _get(delta, "part_delta_kind") == "tool_call" else None


def _converse(event: Any) -> bool | None:
    """Read an event of Bedrock's Converse, which is named by its only key."""
    if (start := _get(event, "contentBlockStart")) is not None:
        return _get(_get(start, "start"), "toolUse") is not None
    if (block := _get(event, "contentBlockDelta")) is not None:
        return True if _get(_get(block, "delta"), "toolUse") is not None else None
    ended = _get(event, "contentBlockStop") is not None or _get(event, "messageStop") is not None
    return False if ended else None


def _get(item: Any, name: str) -> Any:
    return item.get(name) if isinstance(item, dict) else getattr(item, name, None)
