"""xAI's Chat Completions, over OpenAI's SDK (extra `openai`), as `AsyncOpenAI(base_url=XAI_URL, api_key=…)`.

Others that speak the same protocol are models of it under their own name: `xai_model(…, provider="vllm")`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.faults import Fault, HoldfastError
from holdfast.policies.models.usage import usage_of
from holdfast.policies.target import Target
from holdfast.providers.model import RecoveringModel
from holdfast.providers.reading import Called, cut, refuse_error, reply
from holdfast.providers.words import Assistant, ToolResult, User
from holdfast.runtime.credentials import credential_of
from holdfast.runtime.stream import ALIVE

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping

    from openai import AsyncOpenAI

    from holdfast.policies import Policy
    from holdfast.policies.models.capabilities import Offers
    from holdfast.providers.words import Message, Part, Reply, Request, Stop
    from holdfast.runtime.runtime import Runtime

__all__ = ["XAI_URL", "xai_model"]

XAI_URL = "https://api.x.ai/v1"

_STOPS: Mapping[str | None, Stop] = {
    "stop": "end",
    "tool_calls": "tools",
    "length": "length",
    "content_filter": "refused",
}


def xai_model(
    model: str,
    client: AsyncOpenAI,
    *,
    provider: str = "xai",
    credential: str | None = None,
    offers: Offers | None = None,
    policy: Policy | None = None,
    runtime: Runtime | None = None,
) -> RecoveringModel:
    """Return a model behind this client, whose own retries are off here; the client itself stays as it is.

    `credential` names the key in circuits and events, by default by its fingerprint. `offers` is what the model can do,
    where we do not know it or know it wrongly.
    """
    wire = Completions(client.copy(max_retries=0))
    key = credential_of(client) if credential is None else credential
    target = Target(provider=provider, model=model, credential=key)
    return RecoveringModel(wire, target, offers=offers, policy=policy, runtime=runtime)


class Completions:
    """The protocol: one call is one request."""

    def __init__(self, client: AsyncOpenAI) -> None:
        self._client = client

    async def exchange(self, model: str, request: Request) -> Reply:
        answer = await self._client.chat.completions.create(**_body(model, request))
        refuse_error(answer)
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
        coming = _Coming()
        body = {**_body(model, request), "stream": True, "stream_options": {"include_usage": True}}
        async with await self._client.chat.completions.create(**body) as stream:
            async for chunk in stream:
                yield coming.take(chunk) or ALIVE
        if coming.finish is None:
            raise cut()
        yield reply(
            request,
            text="".join(coming.texts),
            called=coming.called.values(),
            stop=_STOPS.get(coming.finish, "other"),
            usage=usage_of({"usage": coming.usage}),
            model=coming.model,
        )


class _Coming:
    """An answer as its chunks come."""

    def __init__(self) -> None:
        self.model = ""
        self.texts: list[str] = []
        self.called: dict[int, Called] = {}
        self.usage: Any = None
        self.finish: str | None = None

    def take(self, chunk: Any) -> str:
        """Note a chunk and return the text it brings."""
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
        called = self.called.setdefault(call.index, Called("", "", ""))
        called.id = call.id or called.id
        if call.function is not None:
            called.name = call.function.name or called.name
            called.arguments += call.function.arguments or ""


def _body(model: str, request: Request) -> dict[str, Any]:
    system = [{"role": "system", "content": request.system}] if request.system else []
    body: dict[str, Any] = {
        "model": model,
        "max_completion_tokens": request.max_output,
        "messages": [*system, *(_message(message) for message in request.messages)],
    }
    if request.tools:
        body["tools"] = [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
            }
            for tool in request.tools
        ]
    if request.schema is not None:
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": request.schema, "strict": True},
        }
    return body


def _message(message: Message) -> dict[str, Any]:
    match message:
        case User():
            return {"role": "user", "content": message.text}
        case ToolResult():
            return {"role": "tool", "tool_call_id": message.id, "content": message.text}
        case Assistant():
            said: dict[str, Any] = {"role": "assistant", "content": message.text or None}
            if message.calls:
                said["tool_calls"] = [_called(call.id, call.name, call.arguments) for call in message.calls]
            return said


def _called(call_id: str, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    function = {"name": name, "arguments": msgspec.json.encode(arguments).decode()}
    return {"id": call_id, "type": "function", "function": function}
