"""How the routes of the bridge read a request: its token, its body, its parameters.

Invariant: what is wrong with a request is named by field. A token in the address is never looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin

import msgspec

from holdfast.bridge.access.mode import mode_of
from holdfast.bridge.http.responses import rejected
from holdfast.extras import needs_extra
from holdfast.faults import Fault, HoldfastError
from holdfast.wire.envelope import read_json

with needs_extra("holdfast.bridge", "starlette", "server"):
    from starlette.requests import ClientDisconnect

if TYPE_CHECKING:
    from starlette.requests import Request

    from holdfast.bridge.access.identity import TokenHolder, TokenKind
    from holdfast.bridge.hub import Hub
    from holdfast.wire.messages import ConnectionMode

__all__ = [
    "bearer_token",
    "body_as",
    "choice",
    "idempotency_key",
    "identify",
    "mode",
    "number",
    "peer_of",
    "read_body",
    "user_agent_of",
    "violation",
]

B = TypeVar("B")
_BEARER = "bearer "


def mode(request: Request, hub: Hub) -> ConnectionMode:
    """Return how the request has come: from this machine, over a private network, or over the internet."""
    return mode_of(
        peer_of(request),
        is_encrypted=request.url.scheme == "https",
        host=request.headers.get("host", ""),
        allows_plain=hub.settings.insecure,
    )


def bearer_token(header: str) -> str | None:
    """Return the token of an `Authorization` header; None if it has another form.

    >>> bearer_token("Bearer hf_1")
    'hf_1'
    """
    return header[len(_BEARER) :].strip() if header.lower().startswith(_BEARER) else None


def identify(request: Request, hub: Hub, *kinds: TokenKind) -> TokenHolder:
    """Return the holder of the request's token, or raise why it may not ask."""
    if mode(request, hub) == "misconfigured":
        # Before the token is looked at: it has crossed the network for everybody to read.
        raise HoldfastError(Fault.of("CONN_INSECURE_TRANSPORT"))
    token = bearer_token(request.headers.get("authorization", ""))
    if token is None:
        raise HoldfastError(Fault.of("AUTH_REQUIRED"))
    identity = hub.authenticator.identify(token, peer=peer_of(request))
    identity.require(*kinds)
    return identity


async def read_body(request: Request) -> Any:
    """Return the body of a request. Any other content type than JSON could come from a page that does not ask first."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        message = f"Expected a body of application/json, received {kind[:80] or 'no Content-Type'}"
        raise rejected(415, message, suggestion="Send the header Content-Type: application/json")
    try:
        return read_json(await request.body())
    except ClientDisconnect:
        raise rejected(400, "The body did not come whole") from None


async def body_as(request: Request, kind: type[B]) -> B:
    given = await read_body(request)
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `")
        field = place.rstrip("`").removeprefix("$.") or "$"
        raise violation(field, f"{message}{_allowed(kind, field)}") from None


def _allowed(kind: type, field: str) -> str:
    """Return the values that a field takes, if they are counted."""
    for each in msgspec.structs.fields(kind):
        if each.encode_name == field and get_origin(each.type) is Literal:
            return f"; expected one of {', '.join(map(str, get_args(each.type)))}"
    return ""


def violation(field: str, constraint: str) -> HoldfastError:
    violations = [{"field": field, "constraint": constraint}]
    return HoldfastError(Fault.of("PROTO_INVALID_MESSAGE", context={"violations": violations}))


def number(request: Request, name: str, default: int, *, least: int, most: int) -> int:
    given = request.query_params.get(name)
    if given is None:
        return default
    if not (given.isascii() and given.isdigit() and len(given) < 20 and least <= int(given) <= most):
        raise violation(name, f"a whole number from {least} to {most}")
    return int(given)


def choice(request: Request, name: str, choices: tuple[str, ...]) -> str:
    given = request.query_params.get(name, choices[0])
    if given not in choices:
        raise violation(name, f"one of {', '.join(choices)}")
    return given


def idempotency_key(request: Request) -> str:
    return request.headers.get("idempotency-key", "")[:256]


def peer_of(request: Request) -> str:
    return request.client.host if request.client else ""


def user_agent_of(request: Request) -> str:
    return request.headers.get("user-agent", "")
