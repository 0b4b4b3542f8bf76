"""What our agents send to a model and get back, independent of any provider: messages, tool calls, requests, replies.

Invariant: a tool call is complete. Its arguments come from one answer; a call that was cut off is left out.
"""

from __future__ import annotations

import mimetypes
from base64 import b64encode
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from holdfast import options
from holdfast.faults import InvalidError
from holdfast.policies.models.capabilities import Needs
from holdfast.policies.models.usage import Usage

_MEDIA_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp", "application/pdf")
"""What all three providers take."""


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


class File(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An image or a PDF in a message of the user: `File.read("plan.pdf")`, `File(url="https://…/cat.png", media_type="image/png")`.

    Other media types raise `InvalidError`, and so does a file without an address and without content.
    """

    media_type: str
    data: str = ""
    """Its content in base64."""
    url: str = ""
    """Its address, which the provider reads; instead of the content."""
    name: str = ""

    def __post_init__(self) -> None:
        options.one_of("file.media_type", self.media_type, _MEDIA_TYPES)
        if bool(self.data) == bool(self.url):
            raise InvalidError.saying("file", "either data or a url", "both" if self.data else "none of them")

    @classmethod
    def read(cls, path: str | Path) -> File:
        """Read a file. Its ending says what it is."""
        where = Path(path)
        kind = mimetypes.guess_type(where.name)[0] or where.suffix or "no ending"
        return cls(media_type=kind, data=b64encode(where.read_bytes()).decode(), name=where.name)

    @property
    def is_image(self) -> bool:
        """Whether it is an image, and not a document."""
        return self.media_type.startswith("image/")

    @property
    def address(self) -> str:
        """Its address, or its content as a data URL."""
        return self.url or f"data:{self.media_type};base64,{self.data}"


class User(_Message, frozen=True, kw_only=True, tag="user"):
    """A message of the user."""

    text: str
    files: tuple[File, ...] = ()
    """Images and documents that belong to it."""


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


Effort: TypeAlias = Literal["low", "medium", "high"]
_CHOICES = ("auto", "required", "none")


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
    temperature: float | None = None
    thinking: Effort | int | None = None
    """How much the model thinks before it answers: a word, or a number of tokens. None: as the provider decides."""
    tool_choice: str = "auto"
    """Whether the model calls a tool: `auto`, `required`, `none`, or the name of the tool that it must call."""
    server_tools: tuple[dict[str, Any], ...] = ()
    """Tools that run at the provider, such as a web search, as its API has them."""
    needs: Needs = Needs()
    """What the model must be able to do, beyond what tools, schema and streaming already require."""

    def __post_init__(self) -> None:
        # Check it here, because a provider would reject it only after the request was sent.
        options.count("request.max_output", self.max_output)
        options.at_least("request.temperature", self.temperature, 0, optional=True)
        if isinstance(self.thinking, str):
            options.one_of("request.thinking", self.thinking, get_args(Effort))
        else:
            options.count("request.thinking", self.thinking, optional=True)
            if self.thinking is not None and self.thinking >= self.max_output:
                # The limit counts both.
                raise InvalidError.at(
                    "request.max_output", f"more tokens than thinking={self.thinking}", self.max_output
                )
        if self.tool_choice not in _CHOICES:
            names = {tool.name for tool in self.tools} | {tool.get("name") for tool in self.server_tools}
            if self.tool_choice not in names:
                expected = f"{', '.join(_CHOICES)} or the name of a tool"
                raise InvalidError.at("request.tool_choice", expected, self.tool_choice)

    @property
    def effort(self) -> Effort | None:
        """How much the model thinks, in a word."""
        if not isinstance(self.thinking, int):
            return self.thinking
        return "low" if self.thinking < 4096 else "medium" if self.thinking < 16384 else "high"

    def wants(self, *, streamed: bool) -> Needs:
        """Return everything that the model must be able to do for this request."""
        has_files = any(isinstance(message, User) and message.files for message in self.messages)
        shown = {
            "toolCalling": bool(self.tools),
            "multimodal": has_files,
            "structuredOutput": self.schema is not None,
            "streaming": streamed,
        }
        return self.needs.requiring(*(name for name, is_shown in shown.items() if is_shown))  # type: ignore[arg-type] # the keys are capabilities


Stop: TypeAlias = Literal["end", "tools", "length", "refused", "paused", "other"]
"""Why the model stopped: done, wants tools run, token limit, declined to answer, goes on when it gets its answer back, or a reason we do not
know."""


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
