"""Anthropic's Messages, over the official SDK (extra `anthropic`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.policies.models.usage import usage_of
from holdfast.policies.target import Target
from holdfast.providers.model import RecoveringModel
from holdfast.providers.reading import Called, cut, refuse_error, reply
from holdfast.providers.words import Assistant, ToolResult, User
from holdfast.runtime.credentials import credential_of
from holdfast.runtime.stream import ALIVE

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from anthropic import AsyncAnthropic

    from holdfast.policies import Policy
    from holdfast.policies.models.capabilities import Offers
    from holdfast.providers.words import Message, Part, Reply, Request, Stop
    from holdfast.runtime.runtime import Runtime

__all__ = ["anthropic_model"]

_STOPS: Mapping[str | None, Stop] = {
    "end_turn": "end",
    "stop_sequence": "end",
    "tool_use": "tools",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refused",
}


def anthropic_model(
    model: str,
    client: AsyncAnthropic,
    *,
    provider: str = "anthropic",
    credential: str | None = None,
    offers: Offers | None = None,
    policy: Policy | None = None,
    runtime: Runtime | None = None,
) -> RecoveringModel:
    """Return a model behind this client, whose own retries are off here; the client itself stays as it is.

    `credential` names the key in circuits and events, by default by its fingerprint. `offers` is what the model can do,
    where we do not know it or know it wrongly.
    """
    wire = Messages(client.copy(max_retries=0))
    key = credential_of(client) if credential is None else credential
    target = Target(provider=provider, model=model, credential=key)
    return RecoveringModel(wire, target, offers=offers, policy=policy, runtime=runtime)


class Messages:
    """The protocol: one call is one request."""

    def __init__(self, client: AsyncAnthropic) -> None:
        self._client = client

    async def exchange(self, model: str, request: Request) -> Reply:
        # Told a limit, the SDK does not refuse long answers that are not streamed: the policy has a limit for attempts.
        answer = await self._client.messages.create(**_body(model, request), timeout=self._client.timeout)
        refuse_error(answer)
        called = [
            Called(block.id, block.name, msgspec.json.encode(block.input).decode())
            for block in answer.content
            if block.type == "tool_use"
        ]
        return reply(
            request,
            text="".join(block.text for block in answer.content if block.type == "text"),
            called=called,
            stop=_STOPS.get(answer.stop_reason, "other"),
            usage=usage_of(answer),
            model=answer.model,
        )

    async def parts(self, model: str, request: Request) -> AsyncGenerator[Part, None]:
        coming = _Coming()
        async with await self._client.messages.create(**_body(model, request), stream=True) as stream:
            async for event in stream:
                yield coming.take(event) or ALIVE
        if not coming.ended:
            raise cut()
        yield reply(
            request,
            text="".join(coming.texts),
            called=coming.called.values(),
            stop=_STOPS.get(coming.stop, "other"),
            usage=usage_of({"usage": coming.usage}),
            model=coming.model,
        )


class _Coming:
    """A message as its events come."""

    def __init__(self) -> None:
        self.model = ""
        self.texts: list[str] = []
        self.called: dict[int, Called] = {}
        self.usage: dict[str, Any] = {}
        self.stop: str | None = None
        self.ended = False

    def take(self, event: Any) -> str:
        """Note an event and return the text it brings."""
        match event.type:
            case "message_start":
                self.model = event.message.model
                self.usage |= _told(event.message.usage)
            case "content_block_start" if event.content_block.type == "tool_use":
                self.called[event.index] = Called(event.content_block.id, event.content_block.name, "")
            case "content_block_delta" if event.delta.type == "text_delta":
                self.texts.append(event.delta.text)
                return str(event.delta.text)
            case "content_block_delta" if event.delta.type == "input_json_delta" and event.index in self.called:
                self.called[event.index].arguments += event.delta.partial_json
            case "message_delta":
                self.stop = event.delta.stop_reason
                self.usage |= _told(event.usage)
            case "message_stop":
                self.ended = True
        return ""


def _body(model: str, request: Request) -> dict[str, Any]:
    body: dict[str, Any] = {"model": model, "max_tokens": request.max_output, "messages": _messages(request.messages)}
    if request.system:
        body["system"] = request.system
    if request.tools:
        body["tools"] = [
            {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
            for tool in request.tools
        ]
    if request.schema is not None:
        body["output_config"] = {"format": {"type": "json_schema", "schema": request.schema}}
    if request.needs.level("promptCaching") != "absent":
        body["cache_control"] = {"type": "ephemeral"}
    return body


def _messages(messages: tuple[Message, ...]) -> list[dict[str, Any]]:
    """Results of several calls go into one turn of the user: two turns of one side in a row are refused."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        role = "assistant" if isinstance(message, Assistant) else "user"
        if not turns or turns[-1]["role"] != role:
            turns.append({"role": role, "content": []})
        turns[-1]["content"] += _blocks(message)
    return turns


def _blocks(message: Message) -> list[dict[str, Any]]:
    match message:
        case User():
            return [{"type": "text", "text": message.text}]
        case ToolResult():
            result = {"type": "tool_result", "tool_use_id": message.id, "content": message.text}
            return [{**result, "is_error": True} if message.failed else result]
        case Assistant():
            # A text block must not be empty.
            said = [{"type": "text", "text": message.text}] if message.text else []
            calls = [
                {"type": "tool_use", "id": call.id, "name": call.name, "input": call.arguments}
                for call in message.calls
            ]
            return [*said, *calls]


def _told(usage: Any) -> dict[str, Any]:
    """What is told later holds, except what is not told again."""
    return {name: count for name, count in usage.to_dict().items() if count is not None}
