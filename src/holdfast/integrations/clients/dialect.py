"""What differs between the SDKs: their names, and the events of their streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

__all__ = ["Dialect", "Refused", "Used"]


class Used(msgspec.Struct, frozen=True):
    """Who answered and what was used; later counts of a stream take the place of earlier ones."""

    model: str | None
    usage: Mapping[str, Any]

    def then(self, later: Used) -> Used:
        told = {name: count for name, count in later.usage.items() if count is not None}
        return Used(later.model or self.model, {**self.usage, **told})


class Refused(msgspec.Struct, frozen=True):
    """An error in place of an answer."""

    message: str
    body: Any


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """One SDK."""

    sync: tuple[type, ...]
    """The classes of its clients; `async_` likewise."""
    async_: tuple[type, ...]
    names: Mapping[str, str]
    """Hosts and what the provider behind them is called; others are called by their host."""
    opens: Callable[[Any], bool]
    """Whether an event comes before any content, so that nobody misses it if the stream begins again."""
    ends: Callable[[Any], bool | None]
    """Whether an event is the last that a whole stream must have; None for events of a kind that has no such sign."""
    failure: Callable[[Any, Any], Exception | None]
    """The exception for an event that tells of a failure where the SDK raises none; takes the event and its request."""
    refused: Callable[[Any, Any], Refused | None]
    """What an answer says that is an error and no answer; the SDKs take it for a good one. Takes also what was asked."""
    error: Callable[..., Exception]
    """The SDK's own exception for that: takes the message, the request and `body`."""
    used: Callable[[Any], Used | None]
    """What an event says about the model and the tokens used so far."""
