"""Find the HTTP requests behind a failure: in the exceptions around it, and in the frames of their tracebacks.

Exceptions of httpx, httpx2, requests and partly of aiohttp carry their request. Those of urllib, http.client, urllib3 and botocore
carry none, but the frames of these libraries hold it. No library is imported.

Invariant: foreign objects are only read, and nothing that they raise gets out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

__all__ = [
    "MODEL_SDKS",
    "ShownRequest",
    "aws_request_of",
    "carried_by",
    "exceptions_of",
    "frames_of",
    "is_of",
    "is_unsent",
    "module_of",
    "only_read",
    "read",
    "requests_of",
]

_MOST_EXCEPTIONS = 16
_MOST_FRAMES = 200
_MOST_VARIABLES = 50
_NOT_SENT = frozenset({
    "ConnectError",
    "ConnectTimeout",
    "ConnectTimeoutError",
    "PoolTimeout",
    "UnsupportedProtocol",
    "ClientConnectorError",
    "ConnectionTimeoutError",
    "NewConnectionError",
    "EndpointConnectionError",
    "ProxyConnectionError",
    "ConnectionRefusedError",
    "SSLCertVerificationError",
    "gaierror",
})  # fmt: skip
"""Classes of failures before the first byte of a request."""
_CONNECTS = frozenset({
    ("socket", "create_connection"),
    ("socket", "getaddrinfo"),
    ("http.client", "connect"),
    ("ssl", "do_handshake"),
    ("urllib3.connection", "_new_conn"),
})  # fmt: skip
"""Functions that open a connection: what they raise comes before the first byte of a request, whatever its class is."""
_LIBRARIES = frozenset({
    "httpx", "httpx2", "requests", "niquests", "aiohttp", "urllib", "http", "urllib3", "botocore", "aiobotocore"
})  # fmt: skip
_AWS = frozenset({"botocore", "aiobotocore"})
_READ_METHODS = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
MODEL_SDKS = (
    "openai",
    "anthropic",
    "litellm",
    "groq",
    "mistralai",
    "cohere",
    "together",
    "google.genai",
    "ollama",
    "xai_sdk",
)
"""SDKs of models, which make requests too."""
_READS = ("Get", "List", "Describe", "Head", "BatchGet", "Query", "Scan", "Search", "Select", "Lookup")
"""How the names of AWS's operations begin that change nothing. Most of them are POSTs like the others."""


class ShownRequest(NamedTuple):
    """A request that was made for the call that failed."""

    method: str
    url: str
    headers: Any
    response: Any
    """Its response, an exception that is one, or None."""
    by_sdk: bool
    """The SDK of a model made it."""

    @property
    def status(self) -> int | None:
        """The status of its response."""
        return _status_of(self.response)


# --- the exceptions around a failure ---


def exceptions_of(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its causes, the members of groups, and the errors that were handled when it was raised."""
    waiting, seen, frames = [error], {id(error)}, set[int]()
    while waiting and len(seen) <= _MOST_EXCEPTIONS:
        current = waiting.pop(0)
        yield current
        frames.update(id(frame) for frame in frames_of(current))
        found = [current.__cause__, *_members_of(current)]
        # `from None` hides the context from readers of the traceback. It does not undo the request.
        if _is_inside(current.__context__, frames):
            found.append(current.__context__)
        for one in found:
            if one is not None and id(one) not in seen:
                seen.add(id(one))
                waiting.append(one)


def _members_of(error: BaseException) -> tuple[BaseException, ...]:
    return error.exceptions if isinstance(error, BaseExceptionGroup) else ()


def _is_inside(context: BaseException | None, frames: set[int]) -> bool:
    """Whether an error was handled inside the failed call. A caller may also make a call while it handles an older error."""
    traceback = None if context is None else context.__traceback__
    return traceback is not None and id(traceback.tb_frame) in frames


def frames_of(error: BaseException) -> Iterator[FrameType]:
    """Yield the frames that an exception came through, the outermost first."""
    traceback = error.__traceback__
    for _ in range(_MOST_FRAMES):
        if traceback is None:
            return
        yield traceback.tb_frame
        traceback = traceback.tb_next


def is_unsent(error: BaseException) -> bool:
    """Whether a failure came before the first byte of a request was sent."""
    if not _NOT_SENT.isdisjoint(kind.__name__ for kind in type(error).__mro__):
        return True
    # urllib keeps the error of the socket in `reason`.
    reason = read(error, "reason")
    causes = (error, reason) if isinstance(reason, BaseException) else (error,)
    return any((module_of(frame), frame.f_code.co_name) in _CONNECTS for cause in causes for frame in frames_of(cause))


# --- the requests that one exception shows ---


def requests_of(error: BaseException, sdks: tuple[str, ...]) -> Iterator[ShownRequest]:
    """Yield the requests that an exception shows by itself, in the frames of HTTP libraries, and where it was raised.

    `sdks` are the packages of models' SDKs, which make requests too.
    """
    yield from carried_by(error, by_sdk=False)
    library, by_sdk, frame = "", False, None
    for frame in frames_of(error):
        module = module_of(frame)
        by_sdk = by_sdk or is_of(module, sdks)
        root = module.partition(".")[0]
        # The outermost library knows the whole request. What it is built on may show a part of it only.
        if root in _LIBRARIES and library in ("", root) and (shown := _in_frame(frame, root, error, by_sdk=by_sdk)):
            library = root
            yield from shown
    if frame is not None and not is_of(module_of(frame), ("holdfast", *_LIBRARIES)):
        yield from _in_variables(frame, by_sdk=by_sdk)


def only_read(error: BaseException) -> bool:
    """Whether an exception shows requests, and none of them could change anything: it says nothing about what was done before them."""
    methods = {request.method for request in requests_of(error, MODEL_SDKS)}
    operation = aws_request_of(error)
    if operation is not None:
        methods = {operation.method}
    return bool(methods) and methods <= _READ_METHODS


def aws_request_of(error: BaseException) -> ShownRequest | None:
    """Return the request of an operation of AWS that failed; None if it is none.

    Almost all of them are POSTs, also those that read. So its name counts, and not what the libraries below show.
    """
    for frame in frames_of(error):
        if module_of(frame).partition(".")[0] in _AWS and (shown := _of_aws(frame.f_locals, error)):
            return shown[0]
    return None


def is_of(module: str, packages: tuple[str, ...]) -> bool:
    """Whether a module is one of these packages, or inside of one."""
    return f"{module}.".startswith(tuple(f"{package}." for package in packages))


def carried_by(holder: Any, *, by_sdk: bool) -> Iterator[ShownRequest]:
    """Yield the request of an exception or a response, and those that were redirected before it."""
    response = read(holder, "response")
    response = holder if response is None else response
    for one, name in ((holder, "request"), (response, "request"), (holder, "request_info"), (response, "request_info")):
        request = read(one, name)
        if isinstance(read(request, "method"), str) and read(request, "url"):
            yield _shown(request, response, by_sdk=by_sdk)
            break
    history = read(response, "history") or read(holder, "history")
    yield from _redirected(history, by_sdk=by_sdk)


def _redirected(history: Any, *, by_sdk: bool) -> Iterator[ShownRequest]:
    for earlier in history if isinstance(history, (list, tuple)) else ():
        request = read(earlier, "request") or read(earlier, "request_info")
        if isinstance(read(request, "method"), str):
            yield _shown(request, earlier, by_sdk=by_sdk)


def _shown(request: Any, response: Any, *, by_sdk: bool) -> ShownRequest:
    url = str(read(request, "url") or "")
    return ShownRequest(request.method.upper(), url, read(request, "headers"), response, by_sdk)


def _in_frame(frame: FrameType, root: str, error: BaseException, *, by_sdk: bool) -> list[ShownRequest]:
    """Return the requests that the variables of a library's function hold."""
    variables: Mapping[str, Any] = frame.f_locals
    if root in _AWS:
        return _of_aws(variables, error)
    if root == "urllib":
        return _of_urllib(variables.get("req"), error, by_sdk=by_sdk)
    if root == "http":
        return _of_http_client(variables.get("self"), by_sdk=by_sdk)
    if root == "urllib3":
        is_retry = module_of(frame).startswith("urllib3.util")
        return [] if is_retry else _of_urllib3(variables, error, by_sdk=by_sdk)
    if root == "aiohttp" and frame.f_code.co_name == "_request":
        earlier = _redirected(variables.get("history"), by_sdk=by_sdk)
        return [*_named(variables, error, by_sdk=by_sdk), *earlier]
    request = variables.get("request")
    if isinstance(read(request, "method"), str):
        return [_shown(request, error, by_sdk=by_sdk)]
    return list(carried_by(variables.get("self"), by_sdk=by_sdk))


def _of_aws(variables: Mapping[str, Any], error: BaseException) -> list[ShownRequest]:
    request, name = variables.get("request_dict"), variables.get("operation_name")
    if not isinstance(request, dict) or not isinstance(name, str):
        return []
    method = "GET" if name.startswith(_READS) else str(request.get("method", "POST")).upper()
    return [ShownRequest(method, str(request.get("url", "")), request.get("headers"), error, by_sdk=False)]


def _of_urllib(request: Any, error: BaseException, *, by_sdk: bool) -> list[ShownRequest]:
    method = _called(request, "get_method")
    if method is None:
        return []
    headers = [*_names(read(request, "headers")), *_names(read(request, "unredirected_hdrs"))]
    return [ShownRequest(method, str(read(request, "full_url") or ""), headers, error, by_sdk)]


def _of_http_client(owner: Any, *, by_sdk: bool) -> list[ShownRequest]:
    # A connection or a response. It knows its method, but not the whole address.
    method = read(owner, "_method")
    address = read(owner, "url") or f"http://{read(owner, 'host') or ''}"
    return [ShownRequest(method, str(address), (), owner, by_sdk)] if isinstance(method, str) else []


def _of_urllib3(variables: Mapping[str, Any], error: BaseException, *, by_sdk: bool) -> list[ShownRequest]:
    found = _named(variables, error, by_sdk=by_sdk)
    # It does not hand on the response that it gives up on.
    response = variables.get("response")
    return [one._replace(response=response) for one in found] if _status_of(response) is not None else found


def _named(variables: Mapping[str, Any], error: BaseException, *, by_sdk: bool) -> list[ShownRequest]:
    """Return the request that variables with the usual names describe."""
    method, url, owner = variables.get("method"), variables.get("url"), variables.get("self")
    if not isinstance(method, str) or not url:
        return []
    address = f"http://{read(owner, 'host')}{url}" if str(url).startswith("/") else str(url)
    options = variables.get("kw")
    given = variables.get("headers") or (options.get("headers") if isinstance(options, dict) else None)
    return [ShownRequest(method.upper(), address, given or read(owner, "headers"), error, by_sdk)]


def _in_variables(frame: FrameType, *, by_sdk: bool) -> Iterator[ShownRequest]:
    """Yield the requests of the responses that the function had looked at when it raised an error of its own."""
    for _, value in zip(range(_MOST_VARIABLES), list(frame.f_locals.values()), strict=False):
        root = type(value).__module__.partition(".")[0]
        if root not in _LIBRARIES or _status_of(value) is None:
            continue
        # Responses of urllib3 hold one of http.client, which knows its method.
        below = value if root == "http" else read(value, "_original_response")
        for one in _of_http_client(below, by_sdk=by_sdk):
            yield one._replace(url=str(read(value, "url") or one.url), response=value)
        yield from carried_by(value, by_sdk=by_sdk)


# --- foreign objects ---


def module_of(frame: FrameType) -> str:
    """Return the name of the module whose code a frame runs."""
    name = frame.f_globals.get("__name__")
    return name if isinstance(name, str) else ""


def _names(headers: Any) -> list[str]:
    return [str(name) for name in headers] if isinstance(headers, Mapping) else []


def _status_of(response: Any) -> int | None:
    if isinstance(response, BaseException) and isinstance(inner := read(response, "response"), Mapping):
        # botocore's responses are dicts.
        metadata = inner.get("ResponseMetadata")
        status = metadata.get("HTTPStatusCode") if isinstance(metadata, Mapping) else None
        return status if isinstance(status, int) else None
    holders = (read(response, "response"), response) if isinstance(response, BaseException) else (response,)
    for holder in holders:
        for name in ("status_code", "status", "code"):
            status = read(holder, name)
            if isinstance(status, int) and 100 <= status <= 599:
                return status
    return None


def _called(holder: Any, name: str) -> str | None:
    try:
        value = getattr(holder, name)()
    except Exception:  # noqa: BLE001 - a foreign object may be anything
        return None
    return value.upper() if isinstance(value, str) else None


def read(holder: Any, name: str) -> Any:
    """Return an attribute of a foreign object; None if it has none, or cannot say."""
    try:
        return getattr(holder, name, None)
    except Exception:  # noqa: BLE001 - httpx raises where no request is set
        return None
