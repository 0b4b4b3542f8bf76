"""What our agents send to a model and get back, independent of any provider: messages, tool calls, requests, replies.

Invariant: a tool call is complete. Its arguments come from one answer; a call that was cut off is left out.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from holdfast import options
from holdfast.policies.models.capabilities import Needs
from holdfast.policies.models.usage import Usage

__all__ = [
    "Assistant",
    "Message",
    "Part",
    "Reply",
    "Request",
    "Stop",
    "ToolCall",
    "ToolResult",
    "ToolSpec",
    "User",
]


class _Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="role"):
    pass


class ToolCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The model's request to run a tool."""

    id: str
    """The provider's id of the call. The result must carry the same id."""
    name: str
    arguments: dict[str, Any]
    mistake: str = ""
    """Why the call cannot be run: its arguments are no JSON object, and stand in `arguments` as `{"invalid_json": "…"}`. Empty: it can."""


class User(_Message, frozen=True, kw_only=True, tag="user"):
    """A message of the user."""

    text: str


class Assistant(_Message, frozen=True, kw_only=True, tag="assistant"):
    """An earlier answer of the model."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    blocks: tuple[dict[str, Any], ...] = ()
    """The answer as its provider gave it, if it holds more than text and calls, such as thinking. That provider wants it back unchanged;
    other providers do not get it."""

    @property
    def items(self) -> tuple[dict[str, Any], ...]:
        """The blocks, if they are items of OpenAI's Responses: they have reasoning among them."""
        return self.blocks if any(block.get("type") == "reasoning" for block in self.blocks) else ()


class ToolResult(_Message, frozen=True, kw_only=True, tag="tool"):
    """The result of a tool call. Providers reject a request in which a call has no result."""

    id: str
    text: str
    failed: bool = False


Message: TypeAlias = User | Assistant | ToolResult


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that the model may call."""

    name: str
    description: str
    parameters: dict[str, Any]
    """The JSON Schema of its arguments; its type is object."""


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request to a model, with the whole conversation so far."""

    messages: tuple[Message, ...]
    system: str = ""
    tools: tuple[ToolSpec, ...] = ()
    max_output: int = 4096
    """The most tokens the answer may have."""
    schema: dict[str, Any] | None = None
    """The JSON Schema the answer must follow; it is then in `Reply.data`."""
    accepts_invalid: bool = False
    """Whether an answer of the wrong form is returned, with `ToolCall.mistake` or without `Reply.data`, and not raised as
    PROVIDER_OUTPUT_INVALID. The caller then asks again, with that answer in the conversation."""
    needs: Needs = Needs()
    """What the model must be able to do, beyond what tools, schema and streaming already require."""

    def __post_init__(self) -> None:
        # Check it here, because a provider would reject it only after the request was sent.
        options.count("request.max_output", self.max_output)

    def wants(self, *, streamed: bool) -> Needs:
        """Return everything that the model must be able to do for this request."""
        shown = {"toolCalling": bool(self.tools), "structuredOutput": self.schema is not None, "streaming": streamed}
        return self.needs.requiring(*(name for name, is_shown in shown.items() if is_shown))  # type: ignore[arg-type] # the keys are capabilities


Stop: TypeAlias = Literal["end", "tools", "length", "refused", "other"]
"""Why the model stopped: done, wants tools run, token limit, declined to answer, or a reason we do not know."""


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A complete answer of a model."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    stop: Stop = "end"
    usage: Usage | None = None
    """None if the provider reports no usage."""
    model: str = ""
    """The model that answered, as the answer names it."""
    data: Any = None
    """The answer as a JSON value, if the request has a schema."""
    blocks: tuple[dict[str, Any], ...] = ()
    """See `Assistant.blocks`."""

    @property
    def message(self) -> Assistant:
        """The message that represents this reply in the next request."""
        return Assistant(text=self.text, calls=self.calls, blocks=self.blocks)


Part: TypeAlias = str | Reply
"""An item of a stream: pieces of text, then the complete reply. Run tools from the reply only, never from earlier items."""
