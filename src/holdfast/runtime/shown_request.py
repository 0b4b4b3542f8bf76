"""The HTTP request that a failure shows: a POST that may have happened is not sent twice unless somebody declared that it may be.

Exceptions of httpx, httpx2, requests and aiohttp carry their request. No library is imported.

Invariant: a failure that shows no request is left as it is. So is one of a model's SDK: its requests ask a model.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.policies.models.endpoints import is_model_endpoint

if TYPE_CHECKING:
    from holdfast.faults import Fault
    from holdfast.runtime.plan import Plan

__all__ = ["may_have_happened", "unrepeatable_request"]

_UNREPEATABLE = frozenset({"POST", "PATCH"})
_NOT_SENT = frozenset({"ConnectError", "ConnectTimeout", "PoolTimeout", "ClientConnectorError", "UnsupportedProtocol"})
"""Classes of failures before the first byte of a request."""
_MODEL_SDKS = (
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
_ADDRESS = re.compile(r"[\w+.-]+://(?:[^/?#@]*@)?(?P<host>\[[^\]]*\]|[^/?#:]*)(?::\d*)?(?P<path>[^?#]*)")
"""`urllib.parse` would make importing `recover` slower."""
_MAX_CAUSES = 8
_UNAVAILABLE = 503
_FAILED_AT_WORK = frozenset({500, 502, 504})
"""Statuses after which a request may have been carried out: the service, or what is behind its gateway, failed at work."""


def may_have_happened(error: Exception, plan: Plan) -> Fault:
    """Return the fault of a failed call, marked if the error shows a request that may have happened and may not be repeated."""
    fault = plan.runtime.fault_of(error, provider=plan.provider)
    if not plan.watches_requests:
        return fault
    if fault.maybe_executed or not fault.retryable or not _may_have_happened(error, fault):
        return fault
    return fault if unrepeatable_request(error) is None else msgspec.structs.replace(fault, maybe_executed=True)


def unrepeatable_request(error: BaseException) -> str | None:
    """Return the request that a failure shows, if a second one may do harm and it may have been sent: `POST shop.test/orders`."""
    cause: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if cause is None:
            return None
        if (request := _request_of(cause)) is not None:
            return None if _is_harmless(cause) else _described(request)
        cause = cause.__cause__
    return None


def _request_of(error: BaseException) -> Any:
    """Return the request that an exception carries: an object with `method` and `url`; None: it carries none."""
    response = _read(error, "response")
    holders = ((error, "request"), (response, "request"), (error, "request_info"), (response, "request_info"))
    for holder, name in holders:
        request = _read(holder, name)
        if isinstance(_read(request, "method"), str) and _read(request, "url"):
            return request
    return None


def _is_harmless(error: BaseException) -> bool:
    classes = type(error).__mro__
    if not _NOT_SENT.isdisjoint(kind.__name__ for kind in classes):
        return True
    return any(f"{kind.__module__}.".startswith(tuple(f"{sdk}." for sdk in _MODEL_SDKS)) for kind in classes)


def _described(request: Any) -> str | None:
    """Return method and address of a request that may not be repeated, without its query, which may hold secrets."""
    method = request.method.upper()
    if method not in _UNREPEATABLE or _has_key(request):
        return None
    found = _ADDRESS.match(str(request.url))
    host, path = ("", "") if found is None else (found["host"].lower(), found["path"])
    return None if is_model_endpoint(path, host) else f"{method} {host}{path}"


def _has_key(request: Any) -> bool:
    headers = _read(request, "headers")
    try:
        return any(str(name).lower() == "idempotency-key" for name in headers)
    except Exception:  # noqa: BLE001 - a foreign object may be anything
        return False


def _may_have_happened(error: BaseException, fault: Fault) -> bool:
    """Whether a response says that the request may have been carried out. 429, 529 and 503 with a time to come back reject it."""
    response = _read(error, "response")
    status = _read(response, "status_code") or _read(response, "status") or _read(error, "status")
    return status in _FAILED_AT_WORK or (status == _UNAVAILABLE and fault.retry_after is None)


def _read(holder: Any, name: str) -> Any:
    try:
        return getattr(holder, name, None)
    except Exception:  # noqa: BLE001 - httpx raises where no request is set
        return None
