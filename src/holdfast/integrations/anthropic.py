"""Clients of the Anthropic SDK that recover: `recovering(client, *more)`.

Invariant: the client that is returned is of the same class. The SDK's own retries are off, so one attempt is one request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeVar

from holdfast import options
from holdfast.integrations.clients.anthropic import ANTHROPIC
from holdfast.integrations.clients.client import recover_clients
from holdfast.integrations.recovery_warnings import RecoveryWarning

if TYPE_CHECKING:
    from collections.abc import Sequence

    # Only for the type checker: older versions of the SDK do not have every one of these.
    from anthropic import (
        Anthropic,
        AnthropicBedrock,
        AnthropicBedrockMantle,
        AnthropicVertex,
        AsyncAnthropic,
        AsyncAnthropicBedrock,
        AsyncAnthropicBedrockMantle,
        AsyncAnthropicVertex,
    )

    from holdfast.policies import Policy
    from holdfast.runtime.runtime import Runtime

__all__ = ["RecoveryWarning", "recovering"]

Client = TypeVar(
    "Client",
    bound="Anthropic | AsyncAnthropic | AnthropicBedrock | AsyncAnthropicBedrock | AnthropicBedrockMantle"
    " | AsyncAnthropicBedrockMantle | AnthropicVertex | AsyncAnthropicVertex",
)


@options.suggests
def recovering(
    client: Client,
    *more: Client,
    policy: Policy | None = None,
    name: str | None = None,
    weights: Sequence[float] | None = None,
    after_first: Literal["raise", "restart"] = "raise",
    runtime: Runtime | None = None,
) -> Client:
    """Return a client like `client` whose calls recover, streams included; nothing changes on `client` itself.

        client = recovering(Anthropic())
        answer = client.messages.create(model="claude-haiku-4-5", max_tokens=100, messages=messages)

    With `more` clients, usually the same with other keys, calls are distributed by `weights`. When a key is rejected or rate
    limited, the call uses the next key at once, and the failed key is not used for a while. `policy` is the policy of every
    call. `name` is the name of the provider in circuits and events. By default it is "anthropic";
    for a client that talks to another address, it is protocol, host, port and path, such as "anthropic@localhost:4000".

    `after_first` decides what a failure in the middle of a stream does. `"raise"` raises it, with the events so far.
    `"restart"` sends the request again: a `stream-resumed` event is emitted, and the stream begins again with another `message_start`.
    Discard what came before it. The helpers that assemble an answer, such as `messages.stream()`, always raise.

    Calls raise the SDK's own exceptions. A stream that breaks after its first content raises `StreamCutError`, and
    `CircuitOpenError`, `DeadlineError` or `BudgetError` is raised where no request was made; each of them is an error of the
    SDK too, so `except APIError` catches it. `recovering` itself raises `InvalidError`
    for something that is not a client of the SDK, or that recovers already.
    """
    return recover_clients(
        (client, *more),
        sdk=ANTHROPIC,
        policy=policy,
        name=name,
        weights=weights,
        after_first=after_first,
        runtime=runtime,
    )
