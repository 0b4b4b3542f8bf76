"""HTTP responses that a recovered function returns: one that reports a temporary failure is that failure.

A plain call returns such a response and does not raise. So does a recovered one, when its last attempt has failed.

Invariant: nothing is read from a response but its status, its headers and a body that is already in memory.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from holdfast.faults import HoldfastError

if TYPE_CHECKING:
    from holdfast.faults import Fault
    from holdfast.runtime.operation.operation import Operation

__all__ = ["RESPONSES", "FailedResponseError", "failure_in_response", "give_up_on"]

RESPONSES = frozenset({"Response", "ClientResponse"})
"""Names of the classes. Every answer is compared with them first, because that costs next to nothing."""
_LIBRARIES = frozenset({"httpx", "httpx2", "requests", "aiohttp", "niquests", "curl_cffi"})
_GIVEN_UP = "__holdfast_given_up__"
"""The attribute of a response that a recovery has given up on. The recovery around it does not retry it."""
_TOO_MANY, _SERVER_ERROR = 429, 500


class FailedResponseError(HoldfastError):
    """Carries a returned response through the recovery. The caller gets the response."""

    def __init__(self, fault: Fault, response: Any) -> None:
        super().__init__(fault)
        self.response = response

    def copy(self) -> FailedResponseError:
        """Return the same failure as another object."""
        other = FailedResponseError(self.fault, self.response)
        other.__dict__.update(self.__dict__)
        return other


def failure_in_response(op: Operation, value: Any) -> FailedResponseError | None:
    """Return the failure that a returned response reports by status 429 or 5xx; None: it reports none."""
    plan = op.plan
    if plan.off or op.adapter is not None or type(value).__module__.partition(".")[0] not in _LIBRARIES:
        return None
    status = getattr(value, "status_code", None) or getattr(value, "status", None)
    is_failure = isinstance(status, int) and (status == _TOO_MANY or status >= _SERVER_ERROR)
    # An unsafe call is not repeated in any case, and its caller reads the status.
    if not is_failure or plan.effect == "unsafe" or getattr(value, _GIVEN_UP, False):
        return None
    return FailedResponseError(plan.runtime.fault_of(value, provider=plan.provider), value)


def give_up_on(response: Any) -> Any:
    """Mark a response that a recovery returns because its attempts have failed; return it."""
    # A class may have no room for attributes of others.
    with suppress(AttributeError):
        setattr(response, _GIVEN_UP, True)
    return response
