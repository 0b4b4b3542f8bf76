"""What an agent asks a model and what it gets back, in no provider's words.

Invariant: a tool call is whole. Its arguments were read from one answer, or it is not there.
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


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """The model wants a tool run."""

    id: str
    """The provider's own; the result must carry it."""
    name: str
    arguments: dict[str, Any]


class User(_Message, frozen=True, kw_only=True, tag="user"):
    """What a person says."""

    text: str


class Assistant(_Message, frozen=True, kw_only=True, tag="assistant"):
    """What the model said before."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()


class ToolResult(_Message, frozen=True, kw_only=True, tag="tool"):
    """What came of a tool call. Every call has a result before the model is asked again."""

    id: str
    text: str
    failed: bool = False


Message: TypeAlias = User | Assistant | ToolResult


class ToolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A tool on offer."""

    name: str
    description: str
    parameters: dict[str, Any]
    """The JSON Schema of its arguments, an object."""


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One question to a model, with everything said before."""

    messages: tuple[Message, ...]
    system: str = ""
    tools: tuple[ToolSpec, ...] = ()
    max_output: int = 4096
    """Tokens the answer may have."""
    schema: dict[str, Any] | None = None
    """The JSON Schema the answer must follow; it is then in `Reply.data`."""
    needs: Needs = Needs()
    """What the model must be able to do beyond what the request shows by itself."""

    def __post_init__(self) -> None:
        options.count("request.max_output", self.max_output)

    def wants(self, *, streamed: bool) -> Needs:
        """Return all that the model must be able to do."""
        shown = {"toolCalling": bool(self.tools), "structuredOutput": self.schema is not None, "streaming": streamed}
        return self.needs.hardly(*(name for name, is_shown in shown.items() if is_shown))  # type: ignore[arg-type] # the keys are capabilities


Stop: TypeAlias = Literal["end", "tools", "length", "refused", "other"]
"""Why the model stopped: it was done, wants tools run, came to its limit, would not, or something newer."""


class Reply(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A whole answer."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    stop: Stop = "end"
    usage: Usage | None = None
    """None: the provider did not tell."""
    model: str = ""
    """The model that answered, as the answer names it."""
    data: Any = None
    """The answer as a value, where a schema was asked for."""

    @property
    def message(self) -> Assistant:
        """What to put into the next request."""
        return Assistant(text=self.text, calls=self.calls)


Part: TypeAlias = str | Reply
"""What a stream gives: pieces of text, and as its last the whole reply. Tools are run from that and never before."""
