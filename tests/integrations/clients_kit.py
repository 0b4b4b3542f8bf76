"""What the tests of the integrations share: a wire in memory that answers on script and counts, and real clients on it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
from anthropic import Anthropic, AsyncAnthropic
from openai import AsyncOpenAI, OpenAI

from holdfast import Policy, Runtime
from holdfast.policies.circuit import PROVIDER
from holdfast.testing import Capture, Midpoint, VirtualClock, run

Answer = Callable[[httpx2.Request], httpx2.Response]


def world() -> tuple[Runtime, Capture]:
    """A runtime in virtual time whose jitter is pinned to the middle, and its ears."""
    runtime = Runtime(clock=VirtualClock(), rng=Midpoint())
    runtime.configure(Policy(profile="stud", circuit=PROVIDER), {})  # so that a test can count attempts and seconds
    heard = Capture()
    runtime.on(heard)
    return runtime, heard


class Wire:
    """Answers each request as the script says, the last line for all further ones, and keeps the requests."""

    def __init__(self, *script: Any, by_key: dict[str, list[Any]] | None = None) -> None:
        self.script = list(script)
        self.by_key = by_key
        self.requests: list[httpx2.Request] = []

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        script = self.script if self.by_key is None else self.by_key[key_of(request)]
        line = script.pop(0) if len(script) > 1 else script[0]
        if isinstance(line, Exception):
            raise line
        return line() if callable(line) else line

    async def asynchronously(self, request: httpx2.Request) -> httpx2.Response:
        return self(request)

    @property
    def keys(self) -> list[str]:
        return [key_of(request) for request in self.requests]


def key_of(request: httpx2.Request) -> str:
    return request.headers.get("x-api-key") or request.headers["authorization"].removeprefix("Bearer ")


def failing(status: int, kind: str, message: str = "no", **headers: str) -> Callable[[], httpx2.Response]:
    """An error as Anthropic sends it; OpenAI's clients read the same."""
    body = {"type": "error", "error": {"type": kind, "message": message, "code": kind}}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda: httpx2.Response(status, json=body, headers=named)


OVERLOADED = failing(529, "overloaded_error", "Overloaded")
LIMITED = failing(429, "rate_limit_error", "Slow down", retry_after="30")
DENIED = failing(401, "authentication_error", "invalid x-api-key")


def message(text: str = "hi", **headers: str) -> Callable[[], httpx2.Response]:
    """Anthropic's whole answer."""
    body = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-test",
        "content": [{"type": "text", "text": text}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    }
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda: httpx2.Response(200, json=body, headers=named)


def completion(text: str = "hi") -> Callable[[], httpx2.Response]:
    """OpenAI's whole answer."""
    body = {
        "id": "chat_1",
        "object": "chat.completion",
        "created": 1,
        "model": "gpt-test",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}],
    }
    return lambda: httpx2.Response(200, json=body)


class Body(httpx2.SyncByteStream, httpx2.AsyncByteStream):
    """A body that arrives in pieces and may break off."""

    def __init__(self, pieces: list[bytes], error: Exception | None, silence: Any = None) -> None:
        self.pieces = pieces
        self.error = error
        self.silence = silence
        self.closed = False

    def __iter__(self) -> Iterator[bytes]:
        yield from self.pieces
        if self.error is not None:
            raise self.error

    async def __aiter__(self) -> Any:
        for piece in self.pieces:
            yield piece
        if self.silence is not None:
            await self.silence()
        if self.error is not None:
            raise self.error

    def close(self) -> None:
        self.closed = True

    async def aclose(self) -> None:
        self.closed = True


CUT = httpx2.RemoteProtocolError("peer closed connection without sending complete message body")


class Streaming:
    """An event stream of these events, to be called for each request; it keeps the bodies it gave out."""

    def __init__(
        self, *events: dict[str, Any], error: Exception | None = None, silence: Any = None, done: bool = False
    ) -> None:
        self.pieces = [_sse(event) for event in events]
        if done:
            self.pieces.append(b"data: [DONE]\n\n")
        self.error = error
        self.silence = silence
        self.bodies: list[Body] = []

    def __call__(self) -> httpx2.Response:
        body = Body(self.pieces, self.error, self.silence)
        self.bodies.append(body)
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, stream=body)


def _sse(event: dict[str, Any]) -> bytes:
    name = event.get("type")
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(event)}\n\n".encode()


START: dict[str, Any] = {
    "type": "message_start",
    "message": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-test",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 1, "output_tokens": 1},
    },
}
BLOCK: dict[str, Any] = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
TOOL: dict[str, Any] = {
    "type": "content_block_start",
    "index": 0,
    "content_block": {"type": "tool_use", "id": "toolu_1", "name": "deploy", "input": {}},
}
BLOCK_STOP: dict[str, Any] = {"type": "content_block_stop", "index": 0}
TURN: dict[str, Any] = {
    "type": "message_delta",
    "delta": {"stop_reason": "end_turn", "stop_sequence": None},
    "usage": {"output_tokens": 2},
}
STOP: dict[str, Any] = {"type": "message_stop"}
OVERLOADED_EVENT: dict[str, Any] = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}


def text(words: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": words}}


def arguments(part: str) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": part}}


WHOLE = (START, BLOCK, text("Hel"), text("lo"), BLOCK_STOP, TURN, STOP)


def chunk(content: str | None = None, finish: str | None = None, **delta: Any) -> dict[str, Any]:
    if content is not None:
        delta["content"] = content
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "gpt-test", "choices": [choice]}


def anthropic_on(wire: Wire, key: str = "key-a", **options: Any) -> Anthropic:
    http = httpx2.Client(transport=httpx2.MockTransport(wire))
    return Anthropic(api_key=key, http_client=http, **options)


def async_anthropic_on(wire: Wire, key: str = "key-a", **options: Any) -> AsyncAnthropic:
    http = httpx2.AsyncClient(transport=httpx2.MockTransport(wire.asynchronously))
    return AsyncAnthropic(api_key=key, http_client=http, **options)


def openai_on(wire: Wire, key: str = "key-a", **options: Any) -> OpenAI:
    return OpenAI(api_key=key, http_client=httpx2.Client(transport=httpx2.MockTransport(wire)), **options)


def async_openai_on(wire: Wire, key: str = "key-a", **options: Any) -> AsyncOpenAI:
    http = httpx2.AsyncClient(transport=httpx2.MockTransport(wire.asynchronously))
    return AsyncOpenAI(api_key=key, http_client=http, **options)


REQUEST: Any = {"model": "claude-test", "max_tokens": 10, "messages": [{"role": "user", "content": "hi"}]}


def in_time(runtime: Runtime, coroutine: Any) -> Any:
    return run(coroutine, clock=runtime.clock)
