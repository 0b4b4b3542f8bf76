"""Clients of the OpenAI SDK that recover: `recovering(client, *more)`. Also for xAI and others that speak its protocol.

Invariant: the client that comes back is of the same class; the SDK's own retries are off, so one attempt is one request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from openai import AsyncOpenAI, OpenAI

from holdfast.integrations.clients import recover_clients
from holdfast.integrations.clients.openai import OPENAI
from holdfast.integrations.recovery_warning import RecoveryWarning

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.policies import Policy
    from holdfast.runtime.runtime import Runtime

__all__ = ["RecoveryWarning", "recovering"]

Client = TypeVar("Client", bound=OpenAI | AsyncOpenAI)


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
    call the provider (by default "openai", "xai", or the host where the client talks to another).
    """
    return recover_clients((client, *more), dialect=OPENAI, policy=policy, name=name, weights=weights, runtime=runtime)
