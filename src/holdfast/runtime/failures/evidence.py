"""Read from an exception whether it shows that a call did not happen. `once/evidence.py` has the closed list and its reasons."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.faults import HoldfastError
from holdfast.once.evidence import KNOWN, NOT_CALLED, VERIFIED, Ending, evidence_of
from holdfast.runtime.callables import PLAN_ATTRIBUTE
from holdfast.runtime.failures.request_search import is_unsent, only_read, read
from holdfast.runtime.failures.tool_fault import ToolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.faults import Fault
    from holdfast.runtime.tool import ToolContract

__all__ = ["evidence_in", "in_doubt", "was_entered"]

_STATUS = ("status_code", "status", "statusCode", "http_status", "code")
_MOST_CAUSES = 16
_NOT_OF_REQUESTS = frozenset({"", NOT_CALLED, KNOWN, VERIFIED})
"""Evidence that no failed request gave."""


def evidence_in(error: BaseException, fault: Fault, *, entered: bool = True) -> str:
    """Return the name of the evidence in an exception that its call did not happen; empty if there is none.

    `entered`: whether the function that was called began.
    """
    if isinstance(error, BaseExceptionGroup):
        # Several things were done at the same time, and only those that failed are in it.
        return ""
    ending = Ending(
        entered=entered,
        is_ours=isinstance(error, HoldfastError),
        is_refusal=isinstance(error, ToolError),
        # Not the errors that the body had handled: it may have gone another way after those.
        is_unsent=any(is_unsent(each) for each in _causes(error)),
        status=_status_in(error, fault),
    )
    found = evidence_of(fault, ending)
    # Evidence about a request that could not be the effect says nothing about a request before it.
    is_of_read = found not in _NOT_OF_REQUESTS and any(only_read(each) for each in _causes(error))
    return "" if is_of_read else found


def in_doubt(error: BaseException, fault: Fault, contract: ToolContract | None) -> bool:
    """Whether a call that failed must not be made again: it is unsafe, and nothing shows that it did not happen."""
    return contract is not None and contract.effect == "unsafe" and not evidence_in(error, fault)


def _status_in(error: BaseException, fault: Fault) -> int | None:
    """Return the status of the fault, if an exception carries it as a number: in a text it could be about anything."""
    status = fault.context.get("status")
    if not isinstance(status, int):
        return None
    is_answer = isinstance(error, HoldfastError) and "source" not in fault.context
    return status if is_answer or any(status in _numbers(each) for each in _causes(error)) else None


def _causes(error: BaseException) -> Iterator[BaseException]:
    current: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if current is None:
            return
        yield current
        current = current.__cause__


def _numbers(error: BaseException) -> Iterator[Any]:
    response = read(error, "response")
    for holder in (error, response):
        yield from (read(holder, name) for name in _STATUS)
    if isinstance(response, dict):
        # An error of AWS has its answer as a dict.
        metadata = response.get("ResponseMetadata")
        yield metadata.get("HTTPStatusCode") if isinstance(metadata, dict) else None


def was_entered(fn: Callable[..., Any], error: Exception) -> bool:
    """Whether a function that raised has begun. Its frame is in the traceback then, unless its arguments did not fit."""
    if hasattr(fn, PLAN_ATTRIBUTE):
        # The wrapper of `recover` takes any arguments and has no effect of its own.
        fn = getattr(fn, "__wrapped__", fn)
    code = getattr(getattr(fn, "__func__", fn), "__code__", None)
    if code is None or not isinstance(error, TypeError):
        return True
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code is code:
            return True
        traceback = traceback.tb_next
    return False
