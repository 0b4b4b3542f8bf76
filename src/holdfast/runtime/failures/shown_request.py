"""The request that a failure shows: a POST, or an INSERT, that may have happened is not sent twice unless somebody declared that it may be.

`request_search.py` finds the requests behind a failure. This module judges them.

Invariant: a failure that shows no request is left as it is. So is one of a model's SDK whose request asks a model.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.faults import Schedule
from holdfast.policies.models.endpoints import is_model_endpoint
from holdfast.runtime.failures.evidence import evidence_in
from holdfast.runtime.failures.request_search import (
    MODEL_SDKS,
    aws_request_of,
    carried_by,
    exceptions_of,
    is_of,
    is_unsent,
    requests_of,
)
from holdfast.runtime.failures.shown_statement import write_in_doubt
from holdfast.runtime.tool import unsafe_tool_in

if TYPE_CHECKING:
    from holdfast.faults import Fault
    from holdfast.runtime.failures.request_search import ShownRequest
    from holdfast.runtime.operation.plan import Plan

__all__ = ["DOUBT", "is_wrong_arguments", "may_have_happened", "unrepeatable_request", "unsafe_in_doubt"]

DOUBT = "__holdfast_doubt__"
"""The attribute of an exception that came out of a step of a session: the key of the step, if it is in doubt."""

_UNREPEATABLE = frozenset({"POST", "PATCH"})
_OWN_ADDRESSES = ("openai", "anthropic")
"""SDKs whose errors carry the request that was really made."""
_RESOURCE = re.compile(r"://[^?#]*/v\d\w*/\w")
"""An address that names something below the version of an API. Fakes in tests have less."""
_ADDRESS = re.compile(r"[\w+.-]+://(?:[^/?#@]*@)?(?P<host>\[[^\]]*\]|[^/?#:]*)(?::\d*)?(?P<path>[^?#]*)")
"""`urllib.parse` would make importing `recover` slower."""
_REJECTED, _FAILED, _UNAVAILABLE, _LATE = 400, 500, 503, 408
_NOT_REACHED = frozenset({501, 505, 521, 522, 523, 525, 526, 529})
"""Statuses above 500 of a request that was not carried out: the service cannot, is overloaded, or its gateway could not reach it."""


def may_have_happened(error: Exception, plan: Plan, *, acted: bool = False, made: bool = True) -> Fault:
    """Return the fault of a failed call, marked if it may have happened and may not be repeated.

    An unsafe call, or that of a tool that declares nothing, may have, unless there is evidence that it did not. Another one that declares
    nothing may have if the error shows such a request. `acted`: a recovery inside the call was answered, and may have changed something.
    `made`: the function was called.
    """
    fault = plan.runtime.fault_of(error, provider=plan.provider)
    if not plan.watches_requests or fault.maybe_executed:
        return fault
    if not fault.retryable and (plan.effect != "unsafe" or not made or is_wrong_arguments(error, fault)):
        # The caller's own rules and fallbacks may answer other failures than retryable ones, so an unsafe call looks at all of them.
        return fault
    if plan.effect == "unsafe" or (plan.is_tool and plan.effect is None):
        # The tool's author may say that a failure of its own is one before the effect.
        is_said = plan.contract is not None and plan.contract.codes.get(fault.code, False)
        is_known = is_said or (not acted and bool(evidence_in(error, fault)))
    else:
        is_known = unrepeatable_request(error, plan) is None
    return fault if is_known else msgspec.structs.replace(fault, maybe_executed=True)


def unsafe_in_doubt(error: BaseException, plan: Plan) -> str | None:
    """Return the name of a function that is declared unsafe, if the failed call called it, and nothing shows that it did not happen.

    What the user declares about the whole call wins.
    """
    if plan.effect is not None:
        return None
    step: str
    for cause in exceptions_of(error):
        if step := getattr(cause, DOUBT, ""):
            return step
    names = (unsafe_tool_in(cause) for cause in exceptions_of(error) if not is_unsent(cause))
    name = next(filter(None, names), None)
    return name if name is not None and not evidence_in(error, plan.runtime.fault_of(error)) else None


def is_wrong_arguments(error: BaseException, fault: Fault) -> bool:
    """Whether a function was not entered, because its arguments did not fit."""
    return isinstance(error, TypeError) and fault.code == "TOOL_INPUT_INVALID"


def unrepeatable_request(error: BaseException, plan: Plan) -> str | None:
    """Return the request that a failure shows, if it may have happened and a second one may do harm: `POST shop.test/orders`."""
    # A step of a session is not repeated by itself: its next call says what to do, or that it has drifted.
    is_of_step = any(hasattr(cause, DOUBT) for cause in exceptions_of(error))
    if not is_of_step and (name := unsafe_in_doubt(error, plan)) is not None:
        return f"{name}, which is declared unsafe,"
    for cause in exceptions_of(error):
        if is_unsent(cause):
            continue
        if (verb := write_in_doubt(cause)) is not None:
            return f"{verb} of a database"
        if any(is_of(kind.__module__, MODEL_SDKS) for kind in type(cause).__mro__):
            return _created_by_sdk(cause, plan)
        if (operation := aws_request_of(cause)) is not None:
            return _judged(operation, cause, plan)
        for request in requests_of(cause, MODEL_SDKS):
            if (described := _judged(request, cause, plan)) is not None:
                return described
    return None


def _created_by_sdk(error: BaseException, plan: Plan) -> str | None:
    """Return the request of an SDK's error if it creates something, such as a batch. Most of them ask a model."""
    if not is_of(type(error).__module__, _OWN_ADDRESSES):
        return None
    for request in carried_by(error, by_sdk=True):
        if _RESOURCE.search(request.url) and (described := _judged(request, error, plan)) is not None:
            return described
    return None


def _judged(request: ShownRequest, cause: BaseException, plan: Plan) -> str | None:
    described = _described(request)
    return described if described is not None and _is_in_doubt(request, cause, plan) else None


def _described(request: ShownRequest) -> str | None:
    """Return method and address of a request that may not be repeated, without its query, which may hold secrets."""
    if request.method not in _UNREPEATABLE or _has_key(request.headers):
        return None
    found = _ADDRESS.match(request.url)
    host, path = ("", "") if found is None else (found["host"].lower(), found["path"])
    is_models = is_model_endpoint(path, None if request.by_sdk else host)
    return None if is_models else f"{request.method} {host}{path}".rstrip()


def _has_key(headers: Any) -> bool:
    try:
        return any(str(name).lower() == "idempotency-key" for name in headers)
    except Exception:  # noqa: BLE001 - a foreign object may be anything
        return False


def _is_in_doubt(request: ShownRequest, cause: BaseException, plan: Plan) -> bool:
    """Whether a request may have been carried out. 429, 529 and 503 with a time to come back reject it."""
    status = request.status
    if status is None:
        fault = plan.runtime.fault_of(cause, provider=plan.provider)
        return fault.maybe_executed or not _says_it_was_rejected(fault)
    if status == _UNAVAILABLE:
        return plan.runtime.fault_of(request.response, provider=plan.provider).retry_after is None
    if _REJECTED <= status < _FAILED:
        return status == _LATE
    return status not in _NOT_REACHED


def _says_it_was_rejected(fault: Fault) -> bool:
    is_limit = fault.schedule is Schedule.RATE_LIMIT or fault.code == "PROVIDER_OVERLOADED"
    return is_limit or fault.code.startswith("CONN_")
