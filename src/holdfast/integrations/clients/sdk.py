"""What differs between the SDKs, as data: their clients, their errors, and the dialect of their streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.policies.target import endpoint_name
from holdfast.runtime.streams.flow import StreamDialect

__all__ = ["ErrorInResponse", "Sdk", "reread", "wire_text"]


class ErrorInResponse(msgspec.Struct, frozen=True):
    """An error in the body of a response with status 200."""

    message: str
    body: Any


def _unchanged(options: Any, host: str) -> Any | None:  # noqa: ARG001 - most streams report their usage by themselves
    return None


def wire_text(source: Any) -> str | None:
    """Return the text that the latest event of a stream was read from: `StreamDialect.wire` of the SDKs."""
    # A response that is not a stream is read as the only item of an iterator.
    return source.text() if hasattr(source, "text") else None


def reread(source: Any, text: str) -> Any:
    """Make an event of its text: `StreamDialect.reread` of the SDKs."""
    return source.reread(text)


class Sdk(msgspec.Struct, frozen=True, kw_only=True):
    """One SDK."""

    sync: tuple[type, ...]
    """The classes of its sync clients."""
    async_: tuple[type, ...]
    """The classes of its async clients."""
    protocol: str
    """The name of its protocol. It stands in the names of endpoints at hosts that are not in `names`."""
    names: Mapping[str, str]
    """The provider's name for each usual host."""
    events: StreamDialect
    """What the events of its streams mean."""
    error_in: Callable[[Any, Any], ErrorInResponse | None]
    """Takes a response and the request's options, and returns the error that the response contains instead of an answer.
    The SDK itself treats such a response as an answer."""
    error: type[Any]
    """The base class of the SDK's errors, and its error for such a response. It takes the message, the request and `body`."""
    unreachable: type[Exception]
    """The SDK's error for a service that cannot be reached, or a connection that is lost."""
    late: type[Exception]
    """The SDK's error for a call that takes too long."""
    limited: type[Any]
    """The SDK's error for a call that a rate limit rejects. It takes the message, the response and `body`."""

    with_usage: Callable[[Any, str], Any | None] = _unchanged
    """Takes the request of a stream and the host, and returns the request with a wish for its usage, or None if it needs no change."""
    is_usage_only: Callable[[Any], bool] | None = None
    """Whether an event is there only because of that wish."""

    def name_of(self, client: Any) -> str:
        """Return the name of the provider that a client talks to."""
        return endpoint_name(self.protocol, str(client.base_url), self.names)
