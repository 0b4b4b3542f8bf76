"""The provider's own paths, below `/_holdfast/`: read the counters, begin anew, play another script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.faults import InvalidError
from holdfast.testing.provider.acts import Data, Ending, Head, Plan
from holdfast.testing.provider.protocols.base import as_json

if TYPE_CHECKING:
    from holdfast.testing.provider.core import Provider
    from holdfast.testing.provider.requests import Request

__all__ = ["PREFIX", "control"]

PREFIX = "/_holdfast/"
_JSON = (("content-type", "application/json"),)


def control(provider: Provider, request: Request) -> Plan:
    """Do what a request to the control interface asks for."""
    status, document = _perform(provider, request)
    body = as_json(document)
    yield Head(status, _JSON, len(body))
    yield Data(body)
    yield Ending.END


def _perform(provider: Provider, request: Request) -> tuple[int, Any]:
    wanted = f"{request.method} {request.path.removeprefix(PREFIX)}"
    if wanted == "GET counters":
        return 200, provider.counters.document()
    if wanted == "GET script":
        return 200, msgspec.to_builtins(provider.script)
    if wanted == "POST reset":
        provider.reset()
        return 200, provider.counters.document()
    if wanted == "POST script":
        try:
            provider.set_script(request.body.decode("utf-8", "replace"))
        except InvalidError as error:
            return 400, {"error": str(error)}
        return 200, msgspec.to_builtins(provider.script)
    return 404, {"error": f"expected GET counters, GET script, POST reset or POST script below {PREFIX}, got {wanted}"}
