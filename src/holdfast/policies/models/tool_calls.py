"""Whether a stream was cut inside a tool call, read from the events of the providers' protocols.

The arguments of a tool call come in fragments. A second response phrases them differently, so fragments of two responses
never fit together. A stream that was cut inside a tool call may restart, but it cannot continue.
"""

from __future__ import annotations

from typing import Any

__all__ = ["OpenCall"]

# The event types of Anthropic's Messages and OpenAI's Responses. No name means two things, so one table holds both.
_BEGINS = frozenset({"content_block_start", "response.output_item.added"})
_ENDS = frozenset({"content_block_stop", "response.output_item.done", "response.function_call_arguments.done"})
_FRAGMENTS = frozenset({"response.function_call_arguments.delta", "response.custom_tool_call_input.delta"})
_CALLS = frozenset({"tool_use", "server_tool_use", "mcp_tool_use", "function_call", "custom_tool_call", "mcp_call"})


class OpenCall:
    """Follows a stream item by item. `inside` is whether the last item was inside a tool call."""

    __slots__ = ("inside",)

    def __init__(self) -> None:
        self.inside = False

    def follow(self, item: Any) -> None:
        """Follow the next item. An item that is no event of a known protocol changes nothing."""
        kind = _get(item, "type")
        if kind in _ENDS:
            self.inside = False
        elif kind in _FRAGMENTS:
            self.inside = True
        elif kind in _BEGINS:
            block = _get(item, "content_block") or _get(item, "item")
            self.inside = _get(block, "type") in _CALLS
        elif kind is None:
            self._follow_chunk(item)

    def _follow_chunk(self, item: Any) -> None:
        """Follow a chunk of Chat Completions, where a tool call ends together with its choice."""
        choices = _get(item, "choices")
        for choice in choices if isinstance(choices, (list, tuple)) else ():
            if _get(choice, "finish_reason") is not None:
                self.inside = False
            elif _get(_get(choice, "delta"), "tool_calls"):
                self.inside = True


def _get(item: Any, name: str) -> Any:
    return item.get(name) if isinstance(item, dict) else getattr(item, name, None)
