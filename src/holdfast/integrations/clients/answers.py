"""Whole answers that are none: an error with status 200, or a proxy's page where an object was asked for.

The SDKs hand out both as if they were answers, and the caller fails later, where nobody tries again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.faults import Fault, HoldfastError

if TYPE_CHECKING:
    from holdfast.integrations.clients.operation import ClientOperation

__all__ = ["checked"]


def checked(op: ClientOperation, cast_to: Any, answer: Any) -> Any:
    """Return an answer, or raise what it is instead."""
    if isinstance(answer, str) and hasattr(cast_to, "model_fields"):
        message = f"{op.binding.name} answered with text where an object was expected"
        raise HoldfastError(Fault.of("PROVIDER_MALFORMED_RESPONSE", message))
    dialect = op.pool.dialect
    if (refused := dialect.refused(answer)) is not None:
        raise dialect.error(refused.message, _request(op), body=refused.body)
    return answer


def _request(op: ClientOperation) -> Any:
    """The request that was answered, as far as an exception shows it."""
    client, options = op.member.client, op.options
    return client._client.build_request(options.method, client._prepare_url(options.url))  # noqa: SLF001 - ditto
