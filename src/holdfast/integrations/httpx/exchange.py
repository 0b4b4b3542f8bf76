"""One HTTP exchange: which requests may be repeated, which responses are failures, and how bodies are read.

It works with httpx and httpx2. Our classes have the base classes of every one of these libraries that is installed.

Invariant: a body that failed, or was read to its end, is closed. Closing the body that the caller gets closes its source.
"""

from __future__ import annotations

import re
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from holdfast._lazy import lazy_module
from holdfast.classify.hints import announced_limits, limit_headers
from holdfast.extras import missing_extra
from holdfast.faults import AbortedError, CircuitOpenError, DeadlineError, HoldfastError, InvalidError
from holdfast.integrations.errors import make_also
from holdfast.policies.decide import GiveUp, Reason
from holdfast.runtime.operation.adapter import Adapter
from holdfast.runtime.operation.errors import deadline_passed, named_end, timed_out
from holdfast.runtime.secrets import name_of_key

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Collection, Iterator

    import httpx
    import httpx2

    from holdfast._steps import Steps
    from holdfast.faults import Fault
    from holdfast.policies import Effect
    from holdfast.runtime.operation.operation import Operation
    from holdfast.runtime.operation.plan import Plan

    class Transport(httpx.BaseTransport, httpx2.BaseTransport):  # type: ignore[misc] # each has its own Request
        """A transport of either library."""

    class AsyncTransport(httpx.AsyncBaseTransport, httpx2.AsyncBaseTransport):  # type: ignore[misc] # each has its own Request
        """An async transport of either library."""

    class Body(httpx.SyncByteStream, httpx2.SyncByteStream):
        """A body of either library."""

    class AsyncBody(httpx.AsyncByteStream, httpx2.AsyncByteStream):
        """A body of either library that is read in a task."""
else:
    asyncio = lazy_module("asyncio", globals())

    _LIBRARIES = [import_module(name) for name in ("httpx", "httpx2") if find_spec(name) is not None]
    if not _LIBRARIES:
        raise missing_extra("holdfast.httpx", "httpx or httpx2", "httpx")

    def _of_every_library(name: str) -> type:
        return type(name, tuple(getattr(library, name) for library in _LIBRARIES), {})

    Transport = _of_every_library("BaseTransport")
    AsyncTransport = _of_every_library("AsyncBaseTransport")
    Body = _of_every_library("SyncByteStream")
    AsyncBody = _of_every_library("AsyncByteStream")

__all__ = [
    "IDEMPOTENT",
    "REPEATS",
    "SENT_ONCE",
    "AsyncTransport",
    "FailedResponse",
    "Transport",
    "comes_as_events",
    "effect_of",
    "failure_in",
    "is_failure",
    "learn_limits",
    "limit_body",
    "limited_as",
    "make_library_error",
    "may_repeat",
    "read",
    "with_limit",
]

IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
"""Methods that may be sent twice (RFC 9110, section 9.2.2)."""

_RETRY_LATER = frozenset({408, 425, 429})
"""Statuses below 500 after which the same request may succeed later."""

_TOO_MANY = 429
_EVENTS = frozenset({
    "text/event-stream",
    "application/x-ndjson",
    "application/ndjson",
    "application/jsonl",
    "application/json-seq",
    "application/vnd.amazon.eventstream",
    "multipart/x-mixed-replace",
})  # fmt: skip
"""The types of bodies that are streams of events."""
_KEYS = ("authorization", "x-api-key", "api-key", "x-goog-api-key")
"""The headers that carry a key."""
_MODEL = re.compile(rb'"model"\s*:\s*"([^"\\]{1,200})"')
_BEGINNING = 4096
"""The bytes of a request in which its model is looked for. The SDKs write it before the messages."""

_KINDS = ((CircuitOpenError, "ConnectError"), (DeadlineError, "TimeoutException"))
"""The error of the library that one of ours is."""

_MAX_ERROR_BODY = 1024 * 1024
"""The most bytes of an error's body that are read to learn what failed. A longer body goes to the caller as it is."""


# --- requests ---


class RequestRules(Adapter):
    """The rules of HTTP requests: a request that must not be sent twice is given up after its first failure."""

    def __init__(self, *, repeats: bool) -> None:
        self._repeats = repeats

    def propose(self, op: Operation, error: Exception) -> GiveUp | None:  # noqa: ARG002 - an adapter's signature
        """Give up on a request that must not be sent twice."""
        return None if self._repeats else GiveUp(Reason.NOT_REPEATABLE)

    def fault_of(self, error: Exception) -> Fault | None:
        """Return the fault that was read from a failed response."""
        return error.fault if isinstance(error, FailedResponse) else None


# The rules have no state of their own, so all requests share these two.
REPEATS, SENT_ONCE = RequestRules(repeats=True), RequestRules(repeats=False)


def may_repeat(request: Any, methods: Collection[str]) -> bool:
    """Return whether the request may be sent again: its method or key allows it, and its body can be read again."""
    allowed = request.method in methods or "idempotency-key" in request.headers
    return allowed and _can_replay(request.stream)


def effect_of(request: Any, methods: Collection[str]) -> Effect | None:
    """Return what sending the request does to the world, as its method and its idempotency key declare it."""
    if request.method in ("GET", "HEAD", "OPTIONS", "TRACE"):
        return "read"
    return "idempotent" if request.method in methods or "idempotency-key" in request.headers else None


def limited_as(request: Any) -> str:
    """Return a name for what services limit: the key of a request, which the name does not reveal, and its model."""
    headers = request.headers
    key = next((value for name in _KEYS if (value := headers.get(name))), "")
    # A body that is a stream is not read here: it can be read only once.
    body = getattr(request, "_content", b"")
    found = _MODEL.search(body[:_BEGINNING]) if isinstance(body, bytes) else None
    model = "" if found is None else found[1].decode("utf-8", "replace")
    return f"{name_of_key(key)}/{model}" if key else model


def with_limit(request: Any, seconds: float | None) -> dict[str, Any]:
    """Return the request's extensions with no part of its time limit above `seconds`."""
    extensions: dict[str, Any] = dict(request.extensions)
    if seconds is not None:
        parts = extensions.get("timeout") or dict.fromkeys(("connect", "read", "write", "pool"))
        extensions["timeout"] = {name: seconds if own is None else min(own, seconds) for name, own in parts.items()}
    return extensions


def _can_replay(stream: Any) -> bool:
    """Return whether a body can be read again. Bytes can, a form can if its files can be rewound, a generator cannot."""
    kind = type(stream).__name__
    # Compare the class by its name, because httpx and httpx2 each have their own classes.
    if kind == "MultipartStream":
        files = (getattr(field, "file", b"") for field in stream.fields)
        return all(isinstance(file, (str, bytes)) or _can_rewind(file) for file in files)
    return kind == "ByteStream"


def _can_rewind(file: Any) -> bool:
    seekable = getattr(file, "seekable", None)
    return bool(callable(seekable) and seekable())


# --- responses ---


class FailedResponse(Exception):  # noqa: N818 - it carries a response through the recovery; no caller sees it
    """Carries a response that reports a failure through the recovery."""

    def __init__(self, fault: Fault, response: Any) -> None:
        super().__init__(fault)
        self.fault = fault
        self.response = response


def is_failure(response: Any) -> bool:
    """Return whether the status of a response reports a temporary failure."""
    return response.status_code >= 500 or response.status_code in _RETRY_LATER


def comes_as_events(response: Any) -> bool:
    """Return whether a body comes in parts, each when it happens: the first one may wait for what the caller does next."""
    kind, _, _ = response.headers.get("content-type", "").partition(";")
    return kind.strip().lower() in _EVENTS


def learn_limits(response: Any, op: Operation) -> None:
    """Learn the limits that a response announces for the key and the model of its request."""
    headers = limit_headers(response.headers.raw)
    limits = announced_limits(headers, op.plan.runtime.clock.wall()) if headers else None
    if limits is not None:
        op.plan.announced(limits, op.attempt_started, accepted=response.status_code != _TOO_MANY)
    elif not is_failure(response):
        op.plan.announced_nothing(op.attempt_started)


def failure_in(response: Any, body: bytes, plan: Plan) -> FailedResponse:
    """Return the failure that a response reports by its status, headers and body."""
    try:
        # A new response made from the raw body decodes its content encoding, so that the classifier sees plain text.
        plain = type(response)(response.status_code, headers=response.headers, content=body)
    except Exception:  # noqa: BLE001 - the body is not encoded as its header says; the status still says what failed
        plain = response
    return FailedResponse(plan.runtime.fault_of(plain, provider=plan.provider), response)


# --- errors of ours ---


def make_library_error(error: HoldfastError, request: Any) -> None:
    """Make one of our errors an error of the request's library too, so that `except httpx.HTTPError` catches it."""
    if isinstance(error, (AbortedError, InvalidError)):
        return
    library = import_module(type(request).__module__.partition(".")[0])
    kind = next((name for ours, name in _KINDS if isinstance(error, ours)), "TransportError")
    # Both libraries keep the request under this name, and read it with the property `request`.
    make_also(error, getattr(library, kind), {"_request": request})


# --- bodies ---


class _Rest(Body):
    """A body that yields the chunks that were read already, then the rest."""

    def __init__(self, held: list[bytes], rest: Iterator[bytes], source: Any) -> None:
        self._held = held
        self._rest = rest
        self._source = source

    def __iter__(self) -> Iterator[bytes]:
        yield from self._held
        yield from self._rest

    def close(self) -> None:
        self._source.close()


class _AsyncRest(AsyncBody):
    """The same as `_Rest`, for a body that is read in a task."""

    def __init__(self, held: list[bytes], rest: AsyncIterator[bytes], source: Any) -> None:
        self._held = held
        self._rest = rest
        self._source = source

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for chunk in self._held:
            yield chunk
        async for chunk in self._rest:
            yield chunk

    async def aclose(self) -> None:
        await self._source.aclose()


class _LimitedBody(AsyncBody):
    """A body each part of which comes within the policy's `timeout`, and before a deadline that the user named."""

    def __init__(self, source: Any, op: Operation, request: Any) -> None:
        self._source = source
        self._op = op
        self._request = request

    async def __aiter__(self) -> AsyncIterator[bytes]:
        op, parts = self._op, aiter(self._source)
        while True:
            ends, now = named_end(op), op.plan.monotonic()
            limits = [limit for limit in (op.plan.timeout, ends and ends - now) if limit is not None]
            limit = asyncio.timeout(min(limits, default=None))
            try:
                async with limit:
                    part = await anext(parts, None)
            except TimeoutError:
                if not limit.expired():
                    raise
                is_over = ends is not None and op.plan.monotonic() >= ends
                error = deadline_passed(op, ends - op.started) if is_over and ends else timed_out(op)
                make_library_error(error, self._request)
                raise error from None
            if part is None:
                return
            yield part

    async def aclose(self) -> None:
        await self._source.aclose()


def limit_body(response: Any, op: Operation, request: Any) -> None:
    """Let the limits that the user named hold for the part of a body that the caller reads."""
    if not hasattr(response, "_content") and (op.plan.timeout is not None or named_end(op) is not None):
        response.stream = _LimitedBody(response.stream, op, request)


def read(response: Any, *, whole: bool, is_sync: bool) -> Steps[bytes | None]:
    """Read the first bytes of a body, or all of it, and put them back. Return the body if it was read to its end.

    The first bytes are read here because, if the connection is lost before them, another attempt can still be made.
    """
    # A response that was made with its content, as in tests, has nothing to read.
    if hasattr(response, "_content"):
        return bytes(response.content)
    source = response.stream
    held: list[bytes] = []
    rest: Any = iter(source) if is_sync else aiter(source)
    kind, following, close = (_Rest, next, source.close) if is_sync else (_AsyncRest, anext, source.aclose)
    try:
        while (chunk := (yield following(rest, None))) is not None:
            held.append(chunk)
            if _enough(held, whole=whole):
                response.stream = kind(held, rest, source)
                return None
    except BaseException:
        yield close()
        raise
    yield close()
    response.stream = kind(held, rest, source)
    return b"".join(held)


def _enough(held: list[bytes], *, whole: bool) -> bool:
    # Empty chunks prove nothing: a connection may still break before the first byte.
    return sum(map(len, held)) > _MAX_ERROR_BODY if whole else bool(held[-1])
