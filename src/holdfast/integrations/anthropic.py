"""Clients of the Anthropic SDK that recover: `recovering(client, *more)`.

Invariant: the client that comes back is of the same class; the SDK's own retries are off, so one attempt is one request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from anthropic import (
    Anthropic,
    AnthropicBedrock,
    AnthropicVertex,
    APIError,
    AsyncAnthropic,
    AsyncAnthropicBedrock,
    AsyncAnthropicVertex,
)

from holdfast.integrations.clients import Dialect, Refused, Used, recover_clients
from holdfast.integrations.inner import RecoveryWarning

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.policies import Policy
    from holdfast.runtime.runtime import Runtime

__all__ = ["RecoveryWarning", "recovering"]

Client = TypeVar(
    "Client",
    bound=Anthropic
    | AsyncAnthropic
    | AnthropicBedrock
    | AsyncAnthropicBedrock
    | AnthropicVertex
    | AsyncAnthropicVertex,
)

_OPENING = frozenset({"message_start", "content_block_start", "ping"})
_MESSAGE = frozenset(
    {*_OPENING, "content_block_delta", "content_block_stop", "message_delta", "message_stop"},
)


def recovering(
    client: Client,
    *more: Client,
    policy: Policy | None = None,
    name: str | None = None,
    weights: Sequence[float] | None = None,
    runtime: Runtime | None = None,
) -> Client:
    """Return a client like `client` whose calls recover, streams included; nothing changes on `client` itself.

    With `more` clients, usually the same with other keys, calls are shared out by `weights`. A key that is refused or rate
    limited is left for the next at once and rests. `policy` is the policy of every call; `name` is what circuits and events
    call the provider (by default "anthropic", or the host where the client talks to another).
    """
    return recover_clients(
        (client, *more), dialect=_DIALECT, policy=policy, name=name, weights=weights, runtime=runtime
    )


def _opens(event: Any) -> bool:
    return getattr(event, "type", None) in _OPENING


def _ends(event: Any) -> bool | None:
    kind = getattr(event, "type", None)
    return kind == "message_stop" if kind in _MESSAGE else None


def _no_failure(event: Any, request: Any) -> None:  # noqa: ARG001 - this SDK raises for every failure in a stream
    return None


def _refused(answer: Any) -> Refused | None:
    if getattr(answer, "type", None) != "error":
        return None
    body = answer.to_dict()
    error = body.get("error")
    return Refused(str(error.get("message") if isinstance(error, dict) else error), body)


def _used(event: Any) -> Used | None:
    """The start tells the model and what was read, each later change of the message what was written so far."""
    kind = getattr(event, "type", None)
    if kind == "message_start":
        return Used(event.message.model, event.message.usage.to_dict())
    return Used(None, event.usage.to_dict()) if kind == "message_delta" else None


_DIALECT = Dialect(
    sync=(Anthropic, AnthropicBedrock, AnthropicVertex),
    async_=(AsyncAnthropic, AsyncAnthropicBedrock, AsyncAnthropicVertex),
    names={"api.anthropic.com": "anthropic"},
    opens=_opens,
    ends=_ends,
    failure=_no_failure,
    refused=_refused,
    error=APIError,
    used=_used,
)
