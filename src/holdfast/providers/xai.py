"""xAI's Chat Completions, over OpenAI's SDK (extra `openai`), as `AsyncOpenAI(base_url=XAI_URL, api_key=…)`.

Other servers with the same protocol work too. Give them a name of their own: `xai_model(…, provider="vllm")`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.policies.models.usage import usage_of
from holdfast.providers.messages import Assistant, ToolResult, User
from holdfast.providers.model import RecoveringModel
from holdfast.providers.replies import Called, cut, raise_for_error, reply
from holdfast.providers.written import Written
from holdfast.runtime.streams.stream import ALIVE

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from typing import Unpack

    from openai import AsyncOpenAI

    from holdfast.providers.messages import File, Message, Part, Reply, Request, Stop
    from holdfast.providers.model import ModelOptions

XAI_URL = "https://api.x.ai/v1"

# A reason that is not listed is "other": providers add new ones, and a reply must not fail for it.
_STOPS: Mapping[str | None, Stop] = {
    "stop": "end",
    "tool_calls": "tools",
    "length": "length",
    "content_filter": "refused",
}


def xai_model(model: str, client: AsyncOpenAI, **options: Unpack[ModelOptions]) -> RecoveringModel:
    """Return a model that sends its requests through a copy of this client, with the client's own retries off."""
    return RecoveringModel.over(Completions(client.copy(max_retries=0)), client, model, "xai", options)


class Completions:
    """The wire protocol. One call is one request."""

    def __init__(self, client: AsyncOpenAI) -> None:
        self._client = client
        self._written = Written(_add)

    async def exchange(self, model: str, request: Request) -> Reply:
        answer = await self._client.chat.completions.create(**self._body(model, request))
        raise_for_error(answer)
        if not answer.choices:
            raise HoldfastError(Fault.of("PROVIDER_EMPTY_RESPONSE"))
        choice = answer.choices[0]
        called = [
            Called(call.id, call.function.name, call.function.arguments)
            for call in choice.message.tool_calls or ()
            if call.type == "function"
        ]
        return reply(
            request,
            text=choice.message.content or choice.message.refusal or "",
            called=called,
            stop="refused" if choice.message.refusal else _STOPS.get(choice.finish_reason, "other"),
            usage=usage_of(answer),
            model=answer.model,
        )

    async def parts(self, model: str, request: Request) -> AsyncGenerator[Part, None]:
        incoming = _Incoming()
        # Without this option a stream reports no usage, and the budget would not be charged.
        body = {**self._body(model, request), "stream": True, "stream_options": {"include_usage": True}}
        async with await self._client.chat.completions.create(**body) as stream:
            async for chunk in stream:
                yield incoming.take(chunk) or ALIVE
        # Every complete answer has a finish reason; a connection that breaks ends the stream without one.
        if incoming.finish is None:
            raise cut()
        yield reply(
            request,
            text="".join(incoming.texts),
            called=incoming.called.values(),
            stop=_STOPS.get(incoming.finish, "other"),
            usage=usage_of({"usage": incoming.usage}),
            model=incoming.model,
        )

    def _body(self, model: str, request: Request) -> dict[str, Any]:
        system = [{"role": "system", "content": request.system}] if request.system else []
        body: dict[str, Any] = {
            "model": model,
            "max_completion_tokens": request.max_output,
            "messages": [*system, *self._written.of(request.messages)],
        }
        if request.temperature is not None:
            body["temperature"] = request.temperature
        if request.effort is not None:
            body["reasoning_effort"] = request.effort
        if request.tools or request.server_tools:
            if request.tool_choice != "auto":
                is_named = request.tool_choice not in ("required", "none")
                function = {"type": "function", "function": {"name": request.tool_choice}}
                body["tool_choice"] = function if is_named else request.tool_choice
            body["tools"] = [
                {
                    "type": "function",
                    "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
                }
                for tool in request.tools
            ] + list(request.server_tools)
        if request.schema is not None:
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": request.schema, "strict": True},
            }
        return body


class _Incoming:
    """The answer so far, from the chunks that have arrived."""

    def __init__(self) -> None:
        self.model = ""
        self.texts: list[str] = []
        self.called: dict[int, Called] = {}
        self.usage: Any = None
        self.finish: str | None = None

    def take(self, chunk: Any) -> str:
        """Add a chunk; return the text it contains."""
        self.model = chunk.model or self.model
        self.usage = chunk.usage or self.usage
        if not chunk.choices:
            return ""
        choice = chunk.choices[0]
        self.finish = choice.finish_reason or self.finish
        for call in choice.delta.tool_calls or ():
            self._add(call)
        text: str = choice.delta.content or ""
        self.texts.append(text)
        return text

    def _add(self, call: Any) -> None:
        # Only the first part of a call has its id and name; later parts have the index alone.
        called = self.called.setdefault(call.index, Called("", "", ""))
        called.id = call.id or called.id
        if call.function is not None:
            called.name = call.function.name or called.name
            called.arguments += call.function.arguments or ""


def _add(turns: list[dict[str, Any]], message: Message) -> None:
    turns.append(_message(message))


def _file(file: File) -> dict[str, Any]:
    if file.is_image:
        return {"type": "image_url", "image_url": {"url": file.address}}
    if file.url:
        raise InvalidError.saying("file.url", "the content of a document, which this protocol needs", file.url)
    return {"type": "file", "file": {"filename": file.name or "document.pdf", "file_data": file.address}}


def _message(message: Message) -> dict[str, Any]:
    match message:
        case User():
            if not message.files:
                return {"role": "user", "content": message.text}
            return {"role": "user", "content": [*map(_file, message.files), {"type": "text", "text": message.text}]}
        case ToolResult():
            return {"role": "tool", "tool_call_id": message.id, "content": message.text}
        case Assistant():
            turn: dict[str, Any] = {"role": "assistant", "content": message.text or None}
            if message.calls:
                turn["tool_calls"] = [_called(call.id, call.name, call.arguments) for call in message.calls]
            return turn


def _called(call_id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    function = {"name": name, "arguments": msgspec.json.encode(arguments).decode()}
    return {"id": call_id, "type": "function", "function": function}
