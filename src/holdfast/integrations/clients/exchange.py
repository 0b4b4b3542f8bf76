"""One request of an SDK and its response: what may be sent again, its time limit, and responses that are failures.

Some responses with status 200 are failures: an error in the body, or a proxy's page in place of an object. The SDKs return
them as answers. The caller would fail later, where nothing is retried.

Invariant: only a copy of a request is changed. A raw response is read once, because the SDKs keep the body after reading.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping
from math import ceil
from typing import TYPE_CHECKING, Any
from weakref import ref

from holdfast.faults import (
    AbortedError,
    CircuitOpenError,
    DeadlineError,
    Fault,
    HoldfastError,
    InvalidError,
    StreamCutError,
)
from holdfast.integrations.errors import make_also
from holdfast.policies.models.endpoints import is_model_endpoint
from holdfast.policies.models.quote import quote_of, quote_of_batch
from holdfast.runtime.failures.request_search import exceptions_of, is_unsent
from holdfast.runtime.operation.errors import named_end

if TYPE_CHECKING:
    from holdfast._steps import Steps
    from holdfast.integrations.clients.sdk import Sdk
    from holdfast.policies import Effect
    from holdfast.policies.models.quote import Quote
    from holdfast.runtime.operation.operation import Operation

__all__ = [
    "Exchange",
    "asks_model",
    "can_replay",
    "creates",
    "effect_of",
    "is_for_helper",
    "is_free",
    "is_raw",
    "limit_reads",
    "may_have_created",
    "model_of",
    "named_retries",
    "quote_of_request",
    "repeated_by_sdk",
    "should_retry",
    "with_limit",
    "without_retries",
]

_EFFECTS: Mapping[str, Effect] = {"get": "read", "put": "idempotent", "delete": "idempotent"}
_CONFLICT = 409
_UNAVAILABLE = 503
_TOO_MANY = 429
_REPEATED = frozenset({408, 409, 429})
_SERVER_ERROR = 500
_REJECTS = frozenset({429, 529})
"""Statuses of requests that were not carried out."""
_FREE = ("/count_tokens", "/moderations", "/input_tokens")
"""The ends of addresses whose answers cost nothing."""
_ASKS = ("/batches", "/runs")
"""The ends of addresses that ask models which the request itself does not name."""
_HELPERS = frozenset({"x-stainless-helper-method", "x-stainless-stream-helper"})
_PARTS = ("connect", "read", "write", "pool")
_SHORTEST_READ_S = 1e-3
"""A limit of 0 would make a socket one that never waits, and fails in another way."""
_HTTP = frozenset({"httpx", "httpx2"})
_NOT_SENT = frozenset({"ConnectTimeout", "PoolTimeout"})
"""Time limits of the HTTP library that end before the request is sent."""


# --- requests ---


def model_of(options: Any) -> str:
    """Return the model that a request names; empty if it names none."""
    body = options.json_data
    model = body.get("model") if isinstance(body, Mapping) else None
    return model if isinstance(model, str) else ""


def quote_of_request(options: Any) -> Quote | None:
    """Return what a request may use at most; None if it names no model, or is no request for an answer."""
    url = options.url.partition("?")[0].rstrip("/")
    if url.endswith("/batches"):
        return quote_of_batch(options.json_data)
    body, extra = options.json_data, getattr(options, "extra_json", None)
    if isinstance(body, Mapping) and isinstance(extra, Mapping):
        # Fields that the SDK does not know yet.
        body = {**body, **extra}
    return quote_of(body, max_output=0 if url.endswith("/embeddings") else None)


def is_free(options: Any) -> bool:
    """Return whether a request asks no model to answer: it lists, counts, stores, or reads an answer that was made before."""
    url = options.url.partition("?")[0].rstrip("/")
    if options.method.lower() != "post" or url.endswith(_FREE):
        return True
    return not (model_of(options) or is_model_endpoint(url) or url.endswith(_ASKS))


def is_raw(options: Any) -> bool:
    """Return whether the caller reads the response itself, without the SDK's stream."""
    headers = options.headers if isinstance(options.headers, Mapping) else {}
    return any(name.lower() == "x-stainless-raw-response" for name in headers)


def effect_of(options: Any) -> Effect | None:
    """Return what a request does to the world, as its method declares it."""
    return _EFFECTS.get(options.method.lower())


def asks_model(options: Any) -> bool:
    """Return whether a request only asks a model, so that a second one changes nothing."""
    # A response that is kept or runs in the background is an object of the account: two requests make two of them.
    body = options.json_data if isinstance(options.json_data, Mapping) else {}
    return is_model_endpoint(options.url) and not body.get("background") and not _uses_servers(body)


def creates(options: Any) -> bool:
    """Return whether a second request may create or do something a second time: a batch, a file, a call of an MCP server."""
    headers = options.headers if isinstance(options.headers, Mapping) else {}
    has_key = any(name.lower() == "idempotency-key" for name in headers)
    return effect_of(options) is None and not asks_model(options) and not has_key


def _uses_servers(body: Mapping[str, Any]) -> bool:
    """Return whether the provider calls tools of other servers (MCP) for this answer. They may change something there."""
    tools = body.get("tools")
    listed = tools if isinstance(tools, (list, tuple)) else ()
    return bool(body.get("mcp_servers")) or any(
        isinstance(tool, Mapping) and tool.get("type") == "mcp" for tool in listed
    )


def named_retries(options: Any) -> int | None:
    """Return the retries that the caller named for one request; None: the client's own."""
    return options.max_retries if isinstance(options.max_retries, int) else None


def is_for_helper(options: Any) -> bool:
    """Return whether a helper of the SDK reads the stream and assembles the answer. The SDKs mark such a request."""
    headers = options.headers if isinstance(options.headers, Mapping) else {}
    return any(name.lower() in _HELPERS for name in headers)


def without_retries(client: Any, options: Any) -> Any:
    """Return the request without the SDK's own retries, and with one idempotency key for all our attempts."""
    options = copy.copy(options)
    # A caller may set retries for one call. The client's own setting does not override that.
    options.max_retries = 0
    if options.idempotency_key is None and options.method.lower() != "get":
        options.idempotency_key = client._idempotency_key()  # noqa: SLF001 - the SDK's own retry loop calls it too
    return options


def with_limit(seconds: float | None, options: Any, client: Any) -> Any:
    """Return the request with every part of its timeout cut to `seconds`. Nothing else limits a blocking request."""
    if seconds is None:
        return options
    limit = options.timeout if _is_limit(options.timeout) else client.timeout
    options = copy.copy(options)
    if limit is None or isinstance(limit, (int, float)):
        options.timeout = seconds if limit is None else min(limit, seconds)
    else:
        parts = {part: getattr(limit, part) for part in _PARTS}
        options.timeout = type(limit)(**{p: seconds if t is None else min(t, seconds) for p, t in parts.items()})
    return options


def limit_reads(response: Any, op: Operation) -> None:
    """Let no read of a blocking response end after the deadline of its operation.

    The HTTP library reads the limit of its reads once, when the body begins. So each read of the connection is cut here.
    """
    extensions = response.extensions
    network = extensions.get("network_stream")
    if network is None or extensions.get("http_version") == b"HTTP/2":
        # A connection of HTTP/2 has the responses of other calls, too.
        return
    own, reading, now = type(network).read, ref(response), op.plan.monotonic

    def read(max_bytes: int, timeout: float | None = None) -> Any:
        current = reading()
        # The connection serves other requests after this response.
        ends = None if current is None or current.is_closed else named_end(op)
        if ends is not None:
            left = max(ends - now(), _SHORTEST_READ_S)
            timeout = left if timeout is None or left < timeout else timeout
        return own(network, max_bytes, timeout=timeout)

    network.read = read


def can_replay(options: Any) -> bool:
    """Return whether the request can be sent again. An iterator, or a file that cannot be rewound, can be sent only once."""
    return _lasts(options.json_data) and _lasts(getattr(options, "content", None)) and _files_last(options.files)


def _is_limit(timeout: Any) -> bool:
    return timeout is None or isinstance(timeout, (int, float)) or all(hasattr(timeout, part) for part in _PARTS)


def _lasts(value: Any) -> bool:
    if isinstance(value, (str, bytes, bytearray, int, float)) or value is None:
        return True
    if isinstance(value, Mapping):
        return all(_lasts(item) for item in value.values())
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(_lasts(item) for item in value)
    # An iterator is consumed by the first attempt, and so is an open file. Other iterables begin anew each time.
    return not hasattr(value, "__next__") and not hasattr(value, "__anext__")


def _files_last(files: Any) -> bool:
    if files is None:
        return True
    named = files.values() if isinstance(files, Mapping) else [file for _, file in files]
    # A tuple is (name, content, …). The HTTP library rewinds every file that can be rewound.
    contents = [file[1] if isinstance(file, tuple) else file for file in named]
    return all(_can_rewind(content) or _lasts(content) for content in contents)


def _can_rewind(content: Any) -> bool:
    seekable = getattr(content, "seekable", None)
    return bool(callable(seekable) and seekable())


def _too_many(request: Any, retry_after: float | None) -> Any:
    """Return the answer to a request that a rate limit holds back, as the service would give it."""
    response: Any = sys.modules[type(request).__module__].Response  # of httpx or httpx2
    headers = {} if retry_after is None else {"retry-after": str(ceil(retry_after))}
    return response(_TOO_MANY, headers=headers, request=request)


# --- responses ---


def should_retry(error: Exception) -> bool | None:
    """Return True if the service requests a retry, False if it forbids one, and None if it leaves that open, as both SDKs read it."""
    headers = getattr(getattr(error, "response", None), "headers", {})
    wish = headers.get("x-should-retry")
    if wish in ("true", "false"):
        return bool(wish == "true")
    # A conflict is a lock that another request holds for a moment.
    return True if getattr(error, "status_code", None) == _CONFLICT else None


def repeated_by_sdk(error: Exception) -> bool:
    """Return whether both SDKs repeat a request with this answer. They read its status, and not its words."""
    status = getattr(error, "status_code", None)
    if not isinstance(status, int) or should_retry(error) is False:
        return False
    return status in _REPEATED or status >= _SERVER_ERROR


def may_have_created(error: Exception, fault: Fault) -> bool:
    """Return whether a failed request may have been carried out. Only what rejects it for certain says no."""
    status = getattr(error, "status_code", None)
    if isinstance(status, int):
        return status not in _REJECTS and not (status == _UNAVAILABLE and fault.retry_after is not None)
    return not any(is_unsent(cause) for cause in exceptions_of(error))


class Exchange:
    """One request, and the check of its response."""

    __slots__ = ("cast_to", "client", "options", "sdk")

    def __init__(self, sdk: Sdk, client: Any, cast_to: Any, options: Any) -> None:
        self.sdk = sdk
        self.client = client
        self.cast_to = cast_to
        self.options = options

    def checked(self, response: Any) -> Steps[Any]:
        """Return the response; raise if it is a failure. A raw response of an async client may have to be awaited."""
        self._check((yield response.parse() if self._is_raw(response) else response))
        return response

    def failure_in(self, response: Any) -> Exception | None:
        """Return the failure in a response, or None. A raw response is left alone: nothing reads it."""
        if self._is_raw(response):
            return None
        try:
            self._check(response)
        except Exception as error:  # noqa: BLE001 - an error of the SDK, or one of ours
            return error
        return None

    @property
    def _wants_object(self) -> bool:
        return hasattr(self.cast_to, "model_fields")

    def _is_raw(self, response: Any) -> bool:
        """Return whether this is a raw response with its whole body. The caller may read other raw responses in parts."""
        # Check the common case first: it does not need the HTTP response.
        if type(response) is self.cast_to:
            return False
        http = getattr(response, "http_response", None)
        return http is not None and self._wants_object and bool(http.is_stream_consumed)

    def _check(self, answer: Any) -> None:
        if isinstance(answer, str) and self._wants_object:
            message = f"{self.client.base_url.host} answered with text where an object was expected"
            raise HoldfastError(Fault.of("PROVIDER_MALFORMED_RESPONSE", message))
        found = self.sdk.error_in(answer, self.options)
        if found is not None:
            raise self.sdk.error(found.message, self._request(), body=found.body)

    # --- errors of ours ---

    def make_sdk_error(self, error: HoldfastError) -> None:
        """Make one of our errors an error of the SDK too: the `except` clauses of its users must catch it.

        A cancellation and a wrong option are no failures of the API, so they stay as they are.
        """
        if isinstance(error, (AbortedError, InvalidError)):
            return
        own = self._own_error(error)
        if own is not None:
            # The SDK's own error broke the stream: this is one of that class, with its status, body and request.
            attributes = {name: value for name, value in vars(own).items() if not name.startswith("__")}
            make_also(error, type(own), attributes)
            return
        theirs = self._made_by_sdk(error)
        attributes = vars(theirs)
        if "code" in attributes:
            attributes["code"] = error.fault.code
        make_also(error, type(theirs), attributes)

    def sdk_error_for(self, error: Exception) -> Exception | None:
        """Return the SDK's error for an error of its HTTP library; None for any other error.

        While a stream is read, the SDKs let such an error through. Their users catch the SDK's errors.
        """
        kinds = {kind.__name__ for kind in type(error).__mro__ if kind.__module__.partition(".")[0] in _HTTP}
        if "RequestError" not in kinds:
            return None
        kind: Any = self.sdk.late if "TimeoutException" in kinds else self.sdk.unreachable
        own: Exception = kind(request=self._request())
        return own

    def is_own_timeout(self, error: Exception) -> bool:
        """Return whether the client's own time limit ended a request that the service may have received."""
        own = error if isinstance(error, self.sdk.late) else self._own_error(error)
        return isinstance(own, self.sdk.late) and type(own.__cause__).__name__ not in _NOT_SENT

    def _own_error(self, error: Exception) -> Exception | None:
        """Return the error of the SDK that led to one of ours."""
        cause: BaseException | None = error
        while isinstance(cause, HoldfastError):
            cause = cause.__cause__
        return cause if isinstance(cause, self.sdk.error) else None

    def _made_by_sdk(self, error: HoldfastError) -> Any:
        """Return the SDK's error that fits best, with our message."""
        fault, request = error.fault, self._request()
        if fault.code == "SYS_RATE_LIMITED":
            # The call was not sent, so that the service need not answer it with this status.
            return self.sdk.limited(fault.message, response=_too_many(request, fault.retry_after), body=None)
        kind: Any = self.sdk.error
        if isinstance(error, DeadlineError) or fault.code == "PROVIDER_STREAM_STALLED":
            kind = self.sdk.late
        elif isinstance(error, (CircuitOpenError, StreamCutError)):
            kind = self.sdk.unreachable
        # The constructors of the other classes have messages of their own.
        made = kind.__new__(kind)
        self.sdk.error.__init__(made, fault.message, request, body=None)
        return made

    def _request(self) -> Any:
        """Return an HTTP request for an exception: only its method and URL are set."""
        client, options = self.client, self.options
        return client._client.build_request(options.method, client._prepare_url(options.url))  # noqa: SLF001 - the SDKs have no public name for it
