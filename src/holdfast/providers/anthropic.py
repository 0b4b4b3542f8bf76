"""Anthropic's Messages, over the official SDK (extra `anthropic`)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.policies.models.usage import usage_of
from holdfast.providers.messages import Assistant, ToolResult, User
from holdfast.providers.model import RecoveringModel
from holdfast.providers.replies import Called, cut, raise_for_error, reply
from holdfast.providers.written import Written
from holdfast.runtime.streams.stream import ALIVE

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from typing import Unpack

    from anthropic import AsyncAnthropic

    from holdfast.providers.messages import File, Message, Part, Reply, Request, Stop
    from holdfast.providers.model import ModelOptions

__all__ = ["anthropic_model"]

# A reason that is not listed is "other": providers add new ones, and a reply must not fail for it.
_STOPS: Mapping[str | None, Stop] = {
    "end_turn": "end",
    "stop_sequence": "end",
    "tool_use": "tools",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refused",
    "pause_turn": "paused",
}

_CHOICES = {"required": {"type": "any"}, "none": {"type": "none"}}


def anthropic_model(model: str, client: AsyncAnthropic, **options: Unpack[ModelOptions]) -> RecoveringModel:
    """Return a model that sends its requests through a copy of this client, with the client's own retries off."""
    return RecoveringModel.over(Messages(client.copy(max_retries=0)), client, model, "anthropic", options)


class Messages:
    """The wire protocol. One call is one request."""

    def __init__(self, client: AsyncAnthropic) -> None:
        self._client = client
        self._written = Written(_add)

    async def exchange(self, model: str, request: Request) -> Reply:
        # Without an explicit timeout the SDK rejects requests for long answers that are not streamed.
        answer = await self._client.messages.create(**self._body(model, request), timeout=self._client.timeout)
        raise_for_error(answer)
        called = [
            Called(block.id, block.name, _written(block.input)) for block in answer.content if block.type == "tool_use"
        ]
        return reply(
            request,
            text="".join(block.text for block in answer.content if block.type == "text"),
            called=called,
            stop=_STOPS.get(answer.stop_reason, "other"),
            usage=usage_of(answer),
            model=answer.model,
            # Text and calls alone are in the reply already.
            blocks=[block.to_dict(warnings=False) for block in answer.content]
            if any(block.type not in ("text", "tool_use") for block in answer.content)
            else (),
        )

    async def parts(self, model: str, request: Request) -> AsyncGenerator[Part, None]:
        incoming = _Incoming()
        async with await self._client.messages.create(**self._body(model, request), stream=True) as stream:
            async for event in stream:
                # An event without text, such as a part of a tool call, still shows that the provider is at work.
                yield incoming.take(event) or ALIVE
        if not incoming.ended:
            raise cut()
        yield reply(
            request,
            text="".join(incoming.texts),
            called=incoming.called.values(),
            stop="other" if incoming.open else _STOPS.get(incoming.stop, "other"),
            usage=usage_of({"usage": incoming.usage}),
            model=incoming.model,
            blocks=incoming.whole_blocks(),
        )

    def _body(self, model: str, request: Request) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": model,
            "max_tokens": request.max_output,
            "messages": self._written.of(request.messages),
        }
        if request.system:
            body["system"] = request.system
        tools = [
            {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
            for tool in request.tools
        ]
        if tools or request.server_tools:
            body["tools"] = [*tools, *request.server_tools]
            if request.tool_choice != "auto":
                body["tool_choice"] = _CHOICES.get(request.tool_choice) or {"type": "tool", "name": request.tool_choice}
        if request.temperature is not None:
            # Newer versions of the SDK do not know it any more; many models do.
            body["extra_body"] = {"temperature": request.temperature}
        output: dict[str, Any] = {}
        if isinstance(request.thinking, int):
            body["thinking"] = {"type": "enabled", "budget_tokens": request.thinking}
        elif request.thinking is not None:
            body["thinking"] = {"type": "adaptive"}
            output["effort"] = request.thinking
        if request.schema is not None:
            output["format"] = {"type": "json_schema", "schema": request.schema}
        if output:
            body["output_config"] = output
        if request.needs.level("promptCaching") != "absent":
            body["cache_control"] = {"type": "ephemeral"}
        return body


class _Incoming:
    """The message so far, from the events that have arrived."""

    def __init__(self) -> None:
        self.model = ""
        self.texts: list[str] = []
        self.called: dict[int, Called] = {}
        self.blocks: dict[int, dict[str, Any]] = {}
        """Thinking, and what we do not know, as it came."""
        self.inputs: dict[int, str] = {}
        """What calls of the provider's own tools were called with."""
        self.open: set[int] = set()
        """The blocks without an end."""
        self.usage: dict[str, Any] = {}
        self.stop: str | None = None
        self.ended = False

    def take(self, event: Any) -> str:
        """Add an event; return the text it contains."""
        match event.type:
            case "message_start":
                self.model = event.message.model
                self.usage |= _counts(event.message.usage)
            case "content_block_start":
                self.open.add(event.index)
                self.blocks[event.index] = event.content_block.to_dict()
                if event.content_block.type == "tool_use":
                    self.called[event.index] = Called(event.content_block.id, event.content_block.name, "")
            case "content_block_delta":
                return self._add(event.index, event.delta)
            case "content_block_stop":
                self.open.discard(event.index)
            case "message_delta":
                self.stop = event.delta.stop_reason
                self.usage |= _counts(event.usage)
            case "message_stop":
                self.ended = True
        return ""

    def _add(self, index: int, delta: Any) -> str:
        """Add a piece to its block; return the text it contains."""
        block = self.blocks.setdefault(index, {})
        match delta.type:
            case "text_delta":
                self.texts.append(delta.text)
                block["text"] = block.get("text", "") + delta.text
                return str(delta.text)
            case "input_json_delta" if index in self.called:
                self.called[index].arguments += delta.partial_json
            case "input_json_delta":
                self.inputs[index] = self.inputs.get(index, "") + delta.partial_json
            case "citations_delta":
                block["citations"] = [*(block.get("citations") or ()), delta.citation.to_dict(warnings=False)]
            case "thinking_delta":
                block["thinking"] = block.get("thinking", "") + delta.thinking
            case "signature_delta":
                block["signature"] = delta.signature
            case _:
                pass
        return ""

    def whole_blocks(self) -> list[dict[str, Any]]:
        """Return the blocks as a whole answer has them. `reply` knows the arguments of its calls."""
        for index, written in self.inputs.items():
            self.blocks[index]["input"] = json.loads(written or "{}") if index not in self.open else {}
        return [self.blocks[index] for index in sorted(self.blocks)]


def _written(arguments: Any) -> str:
    """Return arguments as text, so that streamed and whole answers make a reply in the same way. Some servers send text."""
    try:
        return arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
    except UnicodeEncodeError:
        # Half of a character. It is written as it came, and `reply` rejects it.
        return json.dumps(arguments)


def _add(turns: list[dict[str, Any]], message: Message) -> None:
    """Put the results of several calls into one user turn, because the API rejects two turns of one role in a row."""
    role = "assistant" if isinstance(message, Assistant) else "user"
    before = turns.pop()["content"] if turns and turns[-1]["role"] == role else []
    turns.append({"role": role, "content": [*before, *_blocks(message)]})


def _file(file: File) -> dict[str, Any]:
    source = (
        {"type": "url", "url": file.url}
        if file.url
        else {"type": "base64", "media_type": file.media_type, "data": file.data}
    )
    if file.is_image:
        return {"type": "image", "source": source}
    return {"type": "document", "source": source, **({"title": file.name} if file.name else {})}


def _blocks(message: Message) -> list[dict[str, Any]]:
    match message:
        case User():
            return [*map(_file, message.files), {"type": "text", "text": message.text}]
        case ToolResult():
            result = {"type": "tool_result", "tool_use_id": message.id, "content": message.text}
            return [{**result, "is_error": True} if message.failed else result]
        case Assistant() if message.blocks and not message.items:
            # The API rejects thinking that was changed or left out before the results of its tool calls.
            return list(message.blocks)
        case Assistant():
            # The API rejects a text block without a word. Models write empty lines before they call a tool.
            texts = [{"type": "text", "text": message.text}] if message.text.strip() else []
            calls = [
                {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
                for call in message.calls
            ]
            return [*texts, *calls]


def _counts(usage: Any) -> dict[str, Any]:
    """Return the counts that a usage report contains. A later report wins, but it may leave counts out."""
    return {name: count for name, count in usage.to_dict().items() if count is not None}
