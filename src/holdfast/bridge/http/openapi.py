"""The OpenAPI document of the bridge, made from the table of its routes.

Invariant: a route and its description are one value, so the document cannot differ from what is served.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from holdfast._version import __version__
from holdfast.faults import CATALOG

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from starlette.requests import Request
    from starlette.responses import Response

    from holdfast.bridge.access.identity import TokenKind
    from holdfast.faults import Code

__all__ = ["Endpoint", "ErrorBody", "Parameter", "openapi"]

_PREFIX = "#/components/schemas/"
_ALWAYS: tuple[Code, ...] = ("PROTO_INVALID_MESSAGE", "AUTH_FORBIDDEN", "CONN_RATE_LIMITED")
"""What the guard answers, before any route."""


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Every error."""

    error: str
    """The status in words: NotFound."""
    code: str
    """What it is, for programs: SESS_NOT_FOUND."""
    message: str
    """What it is, for people."""
    suggestions: list[str] = []
    violations: list[dict[str, Any]] = []
    retry_after: float | None = None
    """Seconds to wait."""
    request_id: str = ""
    timestamp: str = ""


class Parameter(NamedTuple):
    """A parameter of a path or query."""

    name: str
    schema: dict[str, Any]
    description: str = ""
    place: str = "query"


class Endpoint(NamedTuple):
    """A route: what answers it, who may use it, what it takes and gives."""

    method: str
    path: str
    handler: Callable[[Request], Awaitable[Response]]
    summary: str
    answer: Any = None
    """The type of its JSON answer; None: something else than JSON."""
    tokens: tuple[TokenKind, ...] = ("device",)
    """The kinds of tokens that may use it; empty: everybody."""
    parameters: tuple[Parameter, ...] = ()
    body: Any = None
    status: int = 200
    media_type: str = "application/json"
    errors: tuple[Code, ...] = ()
    more: dict[int, Any] = {}  # noqa: RUF012 - never changed
    """Answers with another status and their types."""


def openapi(endpoints: Iterable[Endpoint], *, url: str = "/") -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of these routes."""
    endpoints = list(endpoints)
    types = [ErrorBody]
    for each in endpoints:
        types += [kind for kind in (each.answer, each.body, *each.more.values()) if kind is not None]
    schemas, components = msgspec.json.schema_components(types, ref_template=f"{_PREFIX}{{name}}")
    by_type = dict(zip(map(repr, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for each in endpoints:
        path = re.sub(r"\{(\w+):\w+\}", r"{\1}", each.path)
        paths.setdefault(path, {})[each.method.lower()] = _endpoint(each, by_type)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast bridge",
            "version": __version__,
            "description": "Sessions of agents, their events and the hooks of command-line agents. The WebSocket at /ws does the rest.",
        },
        "servers": [{"url": url}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer", "description": "A token of the bridge."}},
        },
    }


def _endpoint(each: Endpoint, by_type: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": each.handler.__name__.strip("_"),
        "summary": each.summary,
        "responses": _responses(each, by_type),
        "security": [{"token": []}] if each.tokens else [],
    }
    if each.tokens:
        found["description"] = f"Needs a token of kind {' or '.join((*each.tokens, 'admin'))}."
    if each.parameters:
        found["parameters"] = [
            {
                "name": one.name,
                "in": one.place,
                "required": one.place == "path",
                "schema": one.schema,
                "description": one.description,
            }
            for one in each.parameters
        ]
    if each.body is not None:
        content = {"application/json": {"schema": by_type[repr(each.body)]}}
        found["requestBody"] = {"required": True, "content": content}
    return found


def _responses(each: Endpoint, by_type: dict[str, Any]) -> dict[str, Any]:
    content = {each.media_type: {} if each.answer is None else {"schema": by_type[repr(each.answer)]}}
    found: dict[str, Any] = {str(each.status): {"description": "Done", "content": content}}
    error = by_type[repr(ErrorBody)]
    for status, kind in each.more.items():
        found[str(status)] = _response("Not done", {"anyOf": [by_type[repr(kind)], error]})
    codes = dict.fromkeys(
        (*_ALWAYS, *each.errors, *(("AUTH_REQUIRED", "AUTH_INSUFFICIENT_SCOPE") if each.tokens else ()))
    )
    by_status: dict[int, list[str]] = {}
    for code in codes:
        by_status.setdefault(CATALOG[code].http_status, []).append(code)
    if each.body is not None:
        for status in (408, 413, 415):
            by_status.setdefault(status, [])
    for status, named in by_status.items():
        found.setdefault(str(status), _response(", ".join(named) or "The body was not taken", error))
    return found


def _response(description: str, schema: Any) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}
