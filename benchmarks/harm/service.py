"""The services of a world, in memory: transports for httpx2 whose waits pass on a virtual clock.

Every request is kept with what it met. A request that is accepted is billed its prompt, and the part of its answer that was
generated until its client left or the connection broke: tokens come evenly over the time that the answer takes.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import math
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import httpx2

from benchmarks.harm.world import REGIONS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterator

    from benchmarks.harm.world import Call, Caller, Trouble, World
    from holdfast.testing import VirtualClock

    Waits = Generator[float, None, Any]
    """Yields how long the service is silent; returns the response, or raises."""

_Who: TypeAlias = "tuple[str, int, str, str, str, str]"
"""Provider, region, model, key, door and caller of a request."""
WEB_URL = "https://shop.test"
_ID = re.compile(rb"#(c\d+\.\d+)#")
_MODEL = re.compile(rb'"model": ?"([^"]+)"')
_STREAM = re.compile(rb'"stream": ?true')
_USAGE = re.compile(rb'"include_usage": ?true')


@dataclass
class Sent:
    """A request as the service saw it."""

    call: str
    model: str
    at: float
    attempt: int
    limit: float | None
    met: str = ""
    tokens: tuple[int, int] = (0, 0)
    ended: float | None = None
    extra: float = 0.0
    key: str = ""


@dataclass
class Service:
    """All services of one play of a world."""

    world: World
    clock: VirtualClock
    sent: list[Sent] = field(default_factory=list)
    effects: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.began = self.clock.monotonic()
        self.calls: dict[str, tuple[Caller, Call]] = {}
        for caller in self.world.callers:
            for number, call in enumerate(caller.calls):
                self.calls[f"{caller.name}.{number}"] = (caller, call)
        self._attempts: dict[tuple[str, str], int] = {}
        self._buckets = {trouble: _Bucket(trouble) for trouble in self.world.troubles if trouble.kind == "limit"}

    def now(self) -> float:
        """Return the seconds since the world began."""
        return self.clock.monotonic() - self.began

    def serve(self, request: httpx2.Request) -> Waits:
        """Answer a request: yield the seconds of silence, return the response or raise what the client meets."""
        body = request.read()
        url = str(request.url)
        web = url.startswith(WEB_URL)
        name = url.rpartition("/")[2] if web else _ID.search(body)[1].decode()  # type: ignore[index]
        caller, call = self.calls[name]
        model = "" if web else _MODEL.search(body)[1].decode()  # type: ignore[index]
        provider = "" if web else ("anthropic" if "/v1/messages" in url else "openai")
        region = 0 if web else _region(provider, url)
        key = "" if web else _key(request)
        attempt = self._attempts[name, model] = self._attempts.get((name, model), 0) + 1
        read = request.extensions.get("timeout", {}).get("read")
        seen = Sent(call=name, model=model, at=self.now(), attempt=attempt, limit=read, key=key)
        self.sent.append(seen)
        who = (provider, region, model, key, caller.door if web else "", caller.name)
        asked = _Asked(request, body, caller, call, name, model, provider, web)
        try:
            return (yield from self._serve(asked, who, seen))
        finally:
            seen.ended = self.now()

    def _serve(self, asked: _Asked, who: _Who, seen: Sent) -> Waits:
        met = self._trouble(who, seen)
        seen.met = met.kind if met else ("poison" if asked.call.poison else "")
        if met is not None and met.kind == "limit":
            return (yield from self._reject(asked, met))
        if met is not None and met.kind != "cut":
            yield from self._fail(asked, met)
            return _error(asked, met.status, _named(met.retry_after, 1.0))
        if asked.call.poison:
            yield 0.2
            return _error(asked, 500, {})
        return (yield from self._answer(asked, who, seen, cut=met is not None))

    def _reject(self, asked: _Asked, met: Trouble) -> Waits:
        yield met.after
        bucket = self._buckets[met]
        said = _named(met.retry_after, bucket.wait(self.now())) | bucket.headers(asked.provider, self.clock.wall())
        return _error(asked, 503 if met.status == 503 else 429, said)

    def _answer(self, asked: _Asked, who: _Who, seen: Sent, *, cut: bool) -> Waits:
        headers: dict[str, str] = {}
        release = []
        for trouble, bucket in self._buckets.items():
            if self._holds(trouble) and trouble.concerns(*who):
                bucket.took(self.now())
                release.append(bucket)
                headers |= bucket.headers(asked.provider, self.clock.wall())
        seen.tokens, began = (asked.call.prompt, asked.call.tokens), self.now()

        def bill(whole: float) -> None:
            share = min(1.0, (self.now() - began) / whole) if whole else 1.0
            seen.tokens = (asked.call.prompt, math.ceil(round(asked.call.tokens * share, 6)))

        if asked.web:
            self._happen(asked)
        takes = asked.call.takes + seen.extra
        if asked.streams:
            waits = list(_pieces(asked, takes, cut=cut))
            whole = takes + sum(gap for _, gap in asked.call.gaps)
            try:
                yield waits[0][0]
            finally:
                bill(whole)
            return _Streamed(headers, waits, release, partial(bill, whole))
        try:
            yield takes / 2 if cut else takes
        finally:
            bill(takes)
            for bucket in release:
                bucket.left()
        if cut:
            raise httpx2.RemoteProtocolError("peer closed connection without sending complete message body")
        return httpx2.Response(200, headers=headers, content=_whole(asked))

    def _fail(self, asked: _Asked, met: Trouble) -> Waits:
        if met.kind == "dead":
            yield 0.05
            raise httpx2.ConnectError("All connection attempts failed")
        # A gateway that has lost the answer says 502, 503 or 504 without a time to come back.
        is_lost = met.status in (500, 502, 504) or (met.status == 503 and not _named(met.retry_after, 1.0))
        if asked.web and (met.kind in ("reset", "hang", "cut") or is_lost):
            self._happen(asked)
        if met.kind == "hang":
            yield 1e6
        if met.kind == "reset":
            yield asked.call.takes
            raise httpx2.ReadError("Connection reset by peer")
        yield met.after

    def _happen(self, asked: _Asked) -> None:
        if asked.request.method == "POST":
            self.effects[asked.name] = self.effects.get(asked.name, 0) + 1

    def _trouble(self, who: _Who, seen: Sent) -> Trouble | None:
        for number, trouble in enumerate(self.world.troubles):
            if not self._holds(trouble) or not trouble.concerns(*who):
                continue
            if trouble.kind == "limit":
                if self._buckets[trouble].full(self.now()):
                    return trouble
            elif trouble.first is None or seen.attempt <= trouble.first:
                # The coin of an attempt is the same on both sides. With `first`, one coin decides for a call. What another model does is
                # another chance.
                coin = f"{self.world.seed} {number} {seen.call} {'' if trouble.first else seen.attempt}"
                if seen.model not in ("", self.calls[seen.call][0].model):
                    coin += f" {seen.model}"
                if self.world.chance:
                    coin += f" again {self.world.chance}"
                if trouble.share < 1 and chance(coin) >= trouble.share:
                    continue
                if trouble.kind != "slow":
                    return trouble
                seen.extra = max(seen.extra, trouble.after)
        return None

    def _holds(self, trouble: Trouble) -> bool:
        return trouble.start <= self.now() < trouble.end


@dataclass
class _Asked:
    request: httpx2.Request
    body: bytes
    caller: Caller
    call: Call
    name: str
    model: str
    provider: str
    web: bool

    @property
    def streams(self) -> bool:
        return not self.web and _STREAM.search(self.body) is not None


class _Bucket:
    """A limit on the rate, or on the number of requests under way."""

    def __init__(self, trouble: Trouble) -> None:
        self.trouble = trouble
        self.level = float(trouble.burst)
        self.at = trouble.start
        self.inside = 0

    def _fill(self, now: float) -> None:
        if now > self.at:
            self.level = min(self.trouble.burst, self.level + (now - self.at) * self.trouble.per_minute / 60)
            self.at = now

    def full(self, now: float) -> bool:
        if self.trouble.places:
            return self.inside >= self.trouble.places
        self._fill(now)
        return self.level < 1 - 1e-9

    def took(self, now: float) -> None:
        self.inside += 1
        self._fill(now)
        self.level -= 1

    def left(self) -> None:
        self.inside -= 1

    def wait(self, now: float) -> float:
        if self.trouble.places:
            return 1.0
        self._fill(now)
        return max(0.0, 1 - self.level) * 60 / self.trouble.per_minute

    def headers(self, provider: str, wall: float) -> dict[str, str]:
        if not self.trouble.announces or not self.trouble.per_minute:
            return {}
        lie = self.trouble.announces == "lie"
        rate, remaining = int(self.trouble.per_minute), 0 if lie else max(0, int(self.level))
        reset = 300.0 if lie else (self.trouble.burst - self.level) * 60 / self.trouble.per_minute
        if provider == "openai":
            return {"x-ratelimit-limit-requests": str(rate), "x-ratelimit-remaining-requests": str(remaining), "x-ratelimit-reset-requests": f"{reset:.3f}s"}  # fmt: skip
        moment = _rfc3339(wall + reset)
        name = "anthropic-ratelimit-requests"
        return {f"{name}-limit": str(rate), f"{name}-remaining": str(remaining), f"{name}-reset": moment}


def chance(coin: str) -> float:
    return int.from_bytes(hashlib.blake2b(coin.encode(), digest_size=4).digest(), "big") / 2**32


def _rfc3339(wall: float) -> str:
    return datetime.fromtimestamp(wall, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _named(how: str, true: float) -> dict[str, str]:
    """Return the header that names a delay."""
    if not how:
        return {}
    times = {"true": 1.0, "late": 10.0, "early": 0.1}.get(how)
    return {"retry-after": how if times is None else f"{max(true * times, 0.01):.3f}"}


def _region(provider: str, url: str) -> int:
    return max(
        range(3), key=lambda number: len(REGIONS[provider][number]) if url.startswith(REGIONS[provider][number]) else -1
    )


def _key(request: httpx2.Request) -> str:
    return request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")


def answer_of(name: str) -> str:
    """Return the right answer to a call."""
    return f"The answer to {name} is one two three four."


def _whole(asked: _Asked) -> bytes:
    text, call = answer_of(asked.name), asked.call
    if asked.web:
        return json.dumps({"text": text}).encode()
    if asked.provider == "anthropic":
        content: list[dict[str, Any]] = [{"type": "text", "text": text}]
        if call.tools:
            content.append({"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": "it"}})
        usage = {"input_tokens": call.prompt, "output_tokens": call.tokens}
        return json.dumps({"id": "msg_1", "type": "message", "role": "assistant", "model": asked.model, "content": content, "stop_reason": "tool_use" if call.tools else "end_turn", "stop_sequence": None, "usage": usage}).encode()  # fmt: skip
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if call.tools:
        message["tool_calls"] = [{"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at": "it"}'}}]  # fmt: skip
    choice = {"index": 0, "message": message, "finish_reason": "tool_calls" if call.tools else "stop"}
    return json.dumps({"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": asked.model, "choices": [choice], "usage": _usage(call)}).encode()  # fmt: skip


def _usage(call: Call) -> dict[str, int]:
    return {
        "prompt_tokens": call.prompt,
        "completion_tokens": call.tokens,
        "total_tokens": call.prompt + call.tokens,
    }


_ERRORS = {
    403: ("permission_error", "Your API key does not have permission to use the specified resource"),
    404: ("not_found_error", "model: {model}"),
    429: ("rate_limit_error", "Number of requests has exceeded your rate limit"),
    529: ("overloaded_error", "Overloaded"),
}


def _error(asked: _Asked, status: int, headers: dict[str, str]) -> httpx2.Response:
    kind, words = _ERRORS.get(status, ("api_error", "Internal server error"))
    words = words.format(model=asked.model)
    body: dict[str, Any] = {"error": {"type": kind, "message": words}}
    if asked.provider == "anthropic":
        body["type"] = "error"
    return httpx2.Response(status, headers=headers, json=body)


def _pieces(asked: _Asked, takes: float, *, cut: bool) -> Iterator[tuple[float, bytes | None]]:
    """Yield the pieces of a stream with the silence before each. None: the connection breaks."""
    step = takes / (asked.call.pieces + 1)
    text, count = answer_of(asked.name), asked.call.pieces
    texts = [text[len(text) * number // count : len(text) * (number + 1) // count] for number in range(count)]
    gaps = {min(int(share * len(texts)), len(texts) - 1): gap for share, gap in asked.call.gaps}
    write = _Anthropic(asked) if asked.provider == "anthropic" else _Chat(asked)
    # The head comes with the first step, so that a client sees a response before it sees content.
    yield min(step, 1.0), write.head()
    for number, text in enumerate(texts):
        wait = step + gaps.get(number, 0.0) + (step - min(step, 1.0) if number == 0 else 0.0)
        if cut and number == 2:
            yield wait, None
            return
        yield wait, write.text(text)
    yield 0.0, write.tail()


def _event(kind: str, **data: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()


@dataclass
class _Anthropic:
    asked: _Asked

    def head(self) -> bytes:
        usage = {"input_tokens": self.asked.call.prompt, "output_tokens": 1}
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": self.asked.model, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}  # fmt: skip
        block = {"type": "text", "text": ""}
        return _event("message_start", message=message) + _event("content_block_start", index=0, content_block=block)

    def text(self, text: str) -> bytes:
        return _event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})

    def tail(self) -> bytes:
        made = _event("content_block_stop", index=0)
        if self.asked.call.tools:
            block = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
            made += _event("content_block_start", index=1, content_block=block)
            made += _event(
                "content_block_delta", index=1, delta={"type": "input_json_delta", "partial_json": '{"at": "it"}'}
            )
            made += _event("content_block_stop", index=1)
        ended = {"stop_reason": "tool_use" if self.asked.call.tools else "end_turn", "stop_sequence": None}
        return made + _event("message_delta", delta=ended, usage={"output_tokens": self.asked.call.tokens}) + _event("message_stop")  # fmt: skip


@dataclass
class _Chat:
    asked: _Asked

    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> bytes:
        data = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": self.asked.model, "choices": choices, **more}  # fmt: skip
        return f"data: {json.dumps(data)}\n\n".encode()

    def head(self) -> bytes:
        return self._chunk([{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])

    def text(self, text: str) -> bytes:
        return self._chunk([{"index": 0, "delta": {"content": text}, "finish_reason": None}])

    def tail(self) -> bytes:
        made = b""
        if self.asked.call.tools:
            one = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at": "it"}'}}  # fmt: skip
            made = self._chunk([{"index": 0, "delta": {"tool_calls": [one]}, "finish_reason": None}])
        made += self._chunk(
            [{"index": 0, "delta": {}, "finish_reason": "tool_calls" if self.asked.call.tools else "stop"}]
        )
        if _USAGE.search(self.asked.body):
            made += self._chunk([], usage=_usage(self.asked.call))
        return made + b"data: [DONE]\n\n"


@dataclass
class _Streamed:
    """A streamed answer before it is sent. The transports make a response of it."""

    headers: dict[str, str]
    waits: list[tuple[float, bytes | None]]
    release: list[_Bucket]
    bill: Callable[[], None]
    is_left: bool = False

    def response(self, stream: Any) -> httpx2.Response:
        return httpx2.Response(200, headers={**self.headers, "content-type": "text/event-stream"}, stream=stream)

    def left(self) -> None:
        if not self.is_left:
            self.bill()
        self.is_left = True
        for bucket in self.release:
            bucket.left()
        self.release = []


def _read_limit(request: httpx2.Request) -> float:
    read = request.extensions.get("timeout", {}).get("read")
    return 1e9 if read is None else float(read)


_BROKEN = "peer closed connection without sending complete message body (incomplete chunked read)"


class AsyncTransport(httpx2.AsyncBaseTransport):
    """The services for async clients."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        limit = _read_limit(request)
        work = self.service.serve(request)
        try:
            wait = next(work)
            while True:
                await _silence(wait, limit)
                wait = work.send(None)
        except StopIteration as done:
            answer = done.value
        finally:
            work.close()
        return answer.response(_AsyncBody(answer, limit)) if isinstance(answer, _Streamed) else answer


async def _silence(wait: float, limit: float) -> None:
    await asyncio.sleep(min(wait, limit))
    if wait > limit:
        raise httpx2.ReadTimeout("")


class _AsyncBody(httpx2.AsyncByteStream):
    def __init__(self, answer: _Streamed, limit: float) -> None:
        self.answer = answer
        self.limit = limit

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            for number, (wait, piece) in enumerate(self.answer.waits):
                if number:
                    await _silence(wait, self.limit)
                if piece is None:
                    raise httpx2.RemoteProtocolError(_BROKEN)
                yield piece
        finally:
            self.answer.left()

    async def aclose(self) -> None:
        self.answer.left()


class Transport(httpx2.BaseTransport):
    """The services for blocking clients. Their waits move the clock."""

    def __init__(self, service: Service) -> None:
        self.service = service

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        limit = _read_limit(request)
        work = self.service.serve(request)
        try:
            wait = next(work)
            while True:
                self.pause(wait, limit)
                wait = work.send(None)
        except StopIteration as done:
            answer = done.value
        finally:
            work.close()
        return answer.response(_Body(answer, limit, self)) if isinstance(answer, _Streamed) else answer

    def pause(self, wait: float, limit: float) -> None:
        self.service.clock.sleep(min(wait, limit))
        if wait > limit:
            raise httpx2.ReadTimeout("")


class _Body(httpx2.SyncByteStream):
    def __init__(self, answer: _Streamed, limit: float, transport: Transport) -> None:
        self.answer = answer
        self.limit = limit
        self.transport = transport

    def __iter__(self) -> Iterator[bytes]:
        for number, (wait, piece) in enumerate(self.answer.waits):
            if number:
                self.transport.pause(wait, self.limit)
            if piece is None:
                raise httpx2.RemoteProtocolError(_BROKEN)
            yield piece
        self.answer.left()

    def close(self) -> None:
        self.answer.left()
