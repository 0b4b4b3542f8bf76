"""Clients of the OpenAI SDK that recover: `recovering(client, *more)`. It also serves xAI and others with the same protocol.

Invariant: the client that is returned is of the same class. The SDK's own retries are off, so one attempt is one request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeVar

from openai import AsyncOpenAI, OpenAI

from holdfast import options
from holdfast.integrations.clients.client import recover_clients
from holdfast.integrations.clients.openai import OPENAI
from holdfast.integrations.recovery_warnings import RecoveryWarning

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.policies import Policy
    from holdfast.runtime.runtime import Runtime

__all__ = ["RecoveryWarning", "recovering"]

Client = TypeVar("Client", bound=OpenAI | AsyncOpenAI)


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

        client = recovering(OpenAI())
        answer = client.responses.create(model="gpt-5", input="hi")

    With `more` clients, usually the same with other keys, calls are distributed by `weights`. When a key is rejected or rate
    limited, the call uses the next key at once, and the failed key is not used for a while. `policy` is the policy of every
    call. `name` is the name of the provider in circuits and events. By default it is "openai" or "xai";
    for a client that talks to another address, it is protocol, host, port and path, such as "openai@localhost:4000".

    `after_first` decides what a failure in the middle of a stream does. `"raise"` raises it, with the events so far.
    `"restart"` sends the request again: a `stream-resumed` event is emitted, and the stream begins again with another
    `response.created`, or a chunk with another `id`.
    Discard what came before it. The helpers that assemble an answer, such as `chat.completions.stream()`, always raise.

    Calls raise the SDK's own exceptions. A stream that breaks after its first content raises `StreamCutError`, and
    `CircuitOpenError`, `DeadlineError` or `BudgetError` is raised where no request was made; each of them is an error of the
    SDK too, so `except APIError` catches it. `recovering` itself raises `InvalidError`
    for something that is not a client of the SDK, or that recovers already.
    """
    return recover_clients(
        (client, *more),
        sdk=OPENAI,
        policy=policy,
        name=name,
        weights=weights,
        after_first=after_first,
        runtime=runtime,
    )
