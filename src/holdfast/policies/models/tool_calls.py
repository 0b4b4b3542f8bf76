"""Whether a stream broke off inside a tool call, read off the events of the providers' protocols.

Arguments of a call come in fragments. Another answer words them anew, so the fragments of two never belong together: a
stream that broke off inside a call may begin again, but it cannot go on.
"""

from __future__ import annotations

from typing import Any

__all__ = ["OpenCall"]

_BEGINS = frozenset({"content_block_start", "response.output_item.added"})
_ENDS = frozenset({"content_block_stop", "response.output_item.done", "response.function_call_arguments.done"})
_FRAGMENTS = frozenset({"response.function_call_arguments.delta", "response.custom_tool_call_input.delta"})
_CALLS = frozenset({"tool_use", "server_tool_use", "mcp_tool_use", "function_call", "custom_tool_call", "mcp_call"})


class OpenCall:
    """Sees the items of a stream one by one; `inside` says whether the last was within a tool call."""

    __slots__ = ("inside",)

    def __init__(self) -> None:
        self.inside = False

    def see(self, item: Any) -> None:
        """Take in the next item; what is no event of a known protocol changes nothing."""
        kind = _get(item, "type")
        if kind in _ENDS:
            self.inside = False
        elif kind in _FRAGMENTS:
            self.inside = True
        elif kind in _BEGINS:
            block = _get(item, "content_block") or _get(item, "item")
            self.inside = _get(block, "type") in _CALLS
        elif kind is None:
            self._see_chunk(item)

    def _see_chunk(self, item: Any) -> None:
        """Chat Completions: calls are over when the choice is."""
        choices = _get(item, "choices")
        for choice in choices if isinstance(choices, (list, tuple)) else ():
            if _get(choice, "finish_reason") is not None:
                self.inside = False
            elif _get(_get(choice, "delta"), "tool_calls"):
                self.inside = True


def _get(item: Any, name: str) -> Any:
    return item.get(name) if isinstance(item, dict) else getattr(item, name, None)
