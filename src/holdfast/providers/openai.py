"""OpenAI's Responses, over the official SDK (extra `openai`)."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.faults import HoldfastError
from holdfast.policies.models.usage import usage_of
from holdfast.providers.messages import Assistant, ToolResult, User
from holdfast.providers.model import RecoveringModel
from holdfast.providers.offers import offers_of
from holdfast.providers.replies import Called, cut, raise_for_error, reply
from holdfast.providers.written import Written
from holdfast.runtime.fault_of import fault_of
from holdfast.runtime.streams.stream import ALIVE

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping
    from typing import Unpack

    from openai import AsyncOpenAI

    from holdfast.providers.messages import File, Message, Part, Reply, Request, Stop
    from holdfast.providers.model import ModelOptions

# A reason that is not listed is "other": providers add new ones, and a reply must not fail for it.
_INCOMPLETE: Mapping[str | None, Stop] = {"max_output_tokens": "length", "content_filter": "refused"}
_LAST = frozenset({"response.completed", "response.incomplete", "response.failed"})


def openai_model(model: str, client: AsyncOpenAI, **options: Unpack[ModelOptions]) -> RecoveringModel:
    """Return a model that sends its requests through a copy of this client, with the client's own retries off."""
    offers = options.get("offers") or offers_of(model)
    wire = Responses(client.copy(max_retries=0), reasons=offers.reasoning is True)
    return RecoveringModel.over(wire, client, model, "openai", options)


class Responses:
    """The wire protocol. One call is one request."""

    def __init__(self, client: AsyncOpenAI, *, reasons: bool = False) -> None:
        self._client = client
        self._reasons = reasons
        """Whether the model is known to reason. Others reject a request for their reasoning."""
        self._written = Written(_add)

    async def exchange(self, model: str, request: Request) -> Reply:
        return _read(request, await self._client.responses.create(**self._body(model, request)))

    async def parts(self, model: str, request: Request) -> AsyncGenerator[Part, None]:
        response: Any = None
        async with await self._client.responses.create(**self._body(model, request), stream=True) as stream:
            async for event in stream:
                if event.type == "error":
                    # The SDK yields a failure like any other event, so it is raised here.
                    raise HoldfastError(fault_of({"error": event.to_dict()}))
                if event.type in _LAST:
                    response = event.response
                yield event.delta if event.type == "response.output_text.delta" and event.delta else ALIVE
        # Only the last event has the complete response. Without it the text that arrived may be half an answer.
        if response is None:
            raise cut()
        yield _read(request, response)

    def _body(self, model: str, request: Request) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": model,
            "max_output_tokens": request.max_output,
            "input": self._written.of(request.messages),
            # Every request contains the whole conversation, so the provider need not store it.
            "store": False,
        }
        if self._reasons:
            # Nothing is stored at the provider, so the reasoning that led to a call must come back with the call's result.
            body["include"] = ["reasoning.encrypted_content"]
        if request.system:
            body["instructions"] = request.system
        if request.temperature is not None:
            body["temperature"] = request.temperature
        if request.effort is not None:
            body["reasoning"] = {"effort": request.effort}
        if request.needs.level("promptCaching") != "absent":
            # Requests of one conversation find its cache only on the machine that has it.
            body["extra_body"] = {"prompt_cache_key": _cache_key(request)}
        if request.tools or request.server_tools:
            if request.tool_choice != "auto":
                is_named = request.tool_choice not in ("required", "none")
                body["tool_choice"] = (
                    {"type": "function", "name": request.tool_choice} if is_named else request.tool_choice
                )
            body["tools"] = [
                {
                    "type": "function",
                    "name": tool.name,
                    "description": tool.description,
                    "parameters": tool.parameters,
                    # Strict mode rejects schemas with optional properties, which tools often have.
                    "strict": False,
                }
                for tool in request.tools
            ] + list(request.server_tools)
        if request.schema is not None:
            body["text"] = {"format": {"type": "json_schema", "name": "answer", "schema": request.schema}}
        return body


def _read(request: Request, response: Any) -> Reply:
    raise_for_error(response)
    items = [item for item in response.output if item.type == "message"]
    functions = [item for item in response.output if item.type == "function_call"]
    parts = [part for item in items for part in item.content]
    refusals = [part.refusal for part in parts if part.type == "refusal"]
    return reply(
        request,
        text="".join(part.text for part in parts if part.type == "output_text") or "".join(refusals),
        called=[Called(item.call_id, item.name, item.arguments) for item in functions],
        stop="refused" if refusals else _stop(response, functions),
        usage=usage_of(response),
        model=response.model,
        blocks=_kept_items(response),
    )


def _kept_items(response: Any) -> list[dict[str, Any]]:
    """Return the items of an answer with reasoning that can be sent back; empty: text and calls are enough, or all there is."""
    reasoning = [item for item in response.output if item.type == "reasoning"]
    if not reasoning or not all(getattr(item, "encrypted_content", None) for item in reasoning):
        return []
    return [item.to_dict(warnings=False) for item in response.output]


def _stop(response: Any, functions: list[Any]) -> Stop:
    if response.status == "incomplete":
        return _INCOMPLETE.get(getattr(response.incomplete_details, "reason", None), "other")
    # A response that is cancelled or still in progress is no answer, and an unfinished call must not run.
    if response.status != "completed" or any(item.status not in (None, "completed") for item in functions):
        return "other"
    return "tools" if functions else "end"


def _add(turns: list[dict[str, Any]], message: Message) -> None:
    turns += _items(message)


def _cache_key(request: Request) -> str:
    """Return what the requests of one conversation share: its instructions and its first message."""
    first = request.messages[:1]
    return sha256(msgspec.json.encode([request.system, first])).hexdigest()[:32]


def _file(file: File) -> dict[str, Any]:
    if file.is_image:
        return {"type": "input_image", "detail": "auto", "image_url": file.address}
    if file.url:
        return {"type": "input_file", "file_url": file.url}
    return {"type": "input_file", "filename": file.name or "document.pdf", "file_data": file.address}


def _items(message: Message) -> list[dict[str, Any]]:
    match message:
        case User():
            if not message.files:
                return [{"role": "user", "content": message.text}]
            return [
                {"role": "user", "content": [*map(_file, message.files), {"type": "input_text", "text": message.text}]}
            ]
        case ToolResult():
            return [{"type": "function_call_output", "call_id": message.id, "output": message.text}]
        case Assistant() if message.items:
            # Reasoning is rejected without the item that it led to, and that item without its reasoning.
            return list(message.items)
        case Assistant():
            texts = [{"role": "assistant", "content": message.text}] if message.text else []
            return [*texts, *(_called(call.id, call.name, call.arguments) for call in message.calls)]


def _called(call_id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    written = msgspec.json.encode(arguments).decode()
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": written}
