"""The answers of the bridge over HTTP: JSON, and errors in the one form that all routes share.

Invariant: every error has the fields `error`, `code`, `message` and `suggestions`, the id of the request, and the time. None of them
shows a secret or a stack.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.extras import needs_extra
from holdfast.faults import Fault, HoldfastError
from holdfast.views import wire
from holdfast.wire.envelope import stamp

with needs_extra("holdfast.bridge", "starlette", "server"):
    from starlette.exceptions import HTTPException
    from starlette.responses import Response

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    from holdfast.faults import Redactor

__all__ = ["EXCEPTION_HANDLERS", "RejectedError", "error_response", "json_response", "rejected", "request_id"]

_WORDS = {
    400: "BadRequest",
    403: "Forbidden",
    404: "NotFound",
    405: "MethodNotAllowed",
    408: "RequestTimeout",
    413: "ContentTooLarge",
    415: "UnsupportedMediaType",
    429: "TooManyRequests",
}
"""The words of statuses that are not the ones of the fault's code."""


class RejectedError(HoldfastError):
    """A request that is wrong as HTTP, before anything is known about what it wants. `status` is the answer's."""

    code = "PROTO_INVALID_MESSAGE"
    status = 400
    suggestion = ""
    """What to do, in place of what the catalog says about the code."""


def rejected(
    status: int, message: str, code: Any = "PROTO_INVALID_MESSAGE", *, suggestion: str = "", **context: Any
) -> RejectedError:
    """Return the error for a request that is wrong as HTTP, to be raised: 415, and a sentence about its content type."""
    error = RejectedError(Fault.of(code, message, context=context))
    error.status = status
    error.suggestion = suggestion
    return error


def request_id(scope: Mapping[str, Any]) -> str:
    """Return the id that the guard has given a request; its answer has it as `x-request-id`."""
    return str(scope.get("state", {}).get("request_id", ""))


def json_response(document: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return an answer with a JSON body."""
    body = msgspec.json.encode(document)
    return Response(body, status, dict(headers or {}), media_type="application/json")


def error_response(
    error: HoldfastError | Fault,
    *,
    request_id: str | None = None,
    headers: Mapping[str, str] | None = None,
    redactor: Redactor | None = None,
) -> Response:
    """Return the answer for an error, with the status of its code and how long to wait, if that is known.

    error_response(Fault.of("SESS_NOT_FOUND", context={"session_id": "s"})).status_code == 404
    """
    fault = error if isinstance(error, Fault) else error.fault
    status = error.status if isinstance(error, RejectedError) else fault.entry.http_status
    # What is wrong as HTTP has a sentence of its own.
    literal = not isinstance(error, RejectedError)
    body = wire.http_body(
        fault,
        request_id=request_id,
        timestamp=stamp(time.time()),
        # Below the address that the client has asked, whatever that is.
        documentation_url=f"/errors/{fault.code}",
        literal=literal,
        redactor=redactor,
    )
    suggestion = error.suggestion if isinstance(error, RejectedError) else _suggestion(fault)
    if suggestion:
        body["suggestions"] = [suggestion]
    if status != fault.entry.http_status and status in _WORDS:
        body["error"] = _WORDS[status]
    own = dict(headers or {})
    if fault.retry_after is not None:
        own["retry-after"] = str(max(1, math.ceil(fault.retry_after)))
    if status == 401:
        own["www-authenticate"] = "Bearer"
    return json_response(body, status, own)


def _suggestion(fault: Fault) -> str:
    """Return what to do over HTTP, if the catalog speaks of messages; empty if it does not."""
    if fault.code == "AUTH_REQUIRED":
        return "Send the header Authorization: Bearer TOKEN; `holdfast tokens create NAME` makes a token"
    if fault.code == "SESS_NOT_FOUND" and "interaction_id" in fault.context:
        return f"GET /sessions/{fault.context.get('session_id', '')}/snapshot lists the questions that wait"
    return ""


async def _on_error(request: Request, error: Exception) -> Response:
    fault = error if isinstance(error, HoldfastError) else Fault.of("SYS_INTERNAL_ERROR")
    return error_response(fault, request_id=request_id(request.scope))


async def _on_http(request: Request, error: Exception) -> Response:
    """Answer for what no route answers: an unknown path, a method that it does not have."""
    status = getattr(error, "status_code", 500)
    message = {
        404: f"There is nothing at {request.url.path[:200]}",
        405: f"{request.method} is not possible at {request.url.path[:200]}",
    }.get(status, str(getattr(error, "detail", "")))
    headers = getattr(error, "headers", None)
    code: Any = "PROTO_UNKNOWN_TYPE" if status in {404, 405} else "PROTO_INVALID_MESSAGE"
    suggestion = ""
    if status == 405 and headers and "Allow" in headers:
        suggestion = f"Use one of {', '.join(sorted(headers['Allow'].split(', ')))}"
    elif status in {404, 405}:
        suggestion = "GET /openapi.json lists the paths, and the methods of each"
    return error_response(
        rejected(status, message, code, suggestion=suggestion), request_id=request_id(request.scope), headers=headers
    )


EXCEPTION_HANDLERS: dict[Any, Any] = {HoldfastError: _on_error, HTTPException: _on_http, Exception: _on_error}
"""What a Starlette app does with exceptions, so that its errors have our form: `Starlette(exception_handlers=EXCEPTION_HANDLERS)`."""
