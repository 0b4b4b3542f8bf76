"""`RecoveryWarning`: an option has no effect, or other code retries inside or around our calls.

Each such retry multiplies our attempts, and the policy, the circuit and the budget do not see it. What retries inside an
attempt is found when the attempt has failed, because only the failure shows it: botocore and the SDKs count their retries,
and tenacity's loop is in the traceback. No library is imported.
"""

from __future__ import annotations

import sys
import warnings
from typing import TYPE_CHECKING, Any

from holdfast.runtime.callables import name_of

if TYPE_CHECKING:
    from types import TracebackType

    from holdfast.runtime.operation.plan import Plan

__all__ = ["RECOVERS", "RecoveryWarning", "warn", "warn_of_options", "warn_of_retries_inside"]

RECOVERS = "__holdfast_recovers__"
"""The attribute that marks an object that recovers already, so that it is not wrapped a second time."""

_MAX_FRAMES = 100
_MAX_CAUSES = 8


class RecoveryWarning(UserWarning):
    """Recovery works, but not as it looks: an option has no effect here, or other code retries too and attempts multiply.

    Turn it into an error in your tests:

        warnings.simplefilter("error", holdfast.RecoveryWarning)
    """


def warn(message: str) -> None:
    """Warn at the line that called this package."""
    warnings.warn(message, RecoveryWarning, stacklevel=_level_of_the_caller())


def warn_of_options(plan: Plan, fn: Any) -> None:
    """Warn of options that somebody chose for `fn` and that have no effect on it."""
    for option in plan.without_effect(fn):
        warn(f"{plan.name or name_of(fn)}: {option}")


def warn_of_retries_inside(plan: Plan, error: Exception) -> None:
    """Warn once for each plan if the failed attempt has made its call several times by itself."""
    checks = plan.checks_left
    if checks[0] <= 0:
        return
    checks[0] -= 1
    found = _retries_inside(error)
    if found is not None:
        checks[0] = 0
        who, times, cure = found
        name = plan.name or "recover"
        often = "once" if times == 1 else f"{times} times"
        warn(f"{who} retried {often} inside one attempt of {name}, so attempts multiply: {cure}")


def _level_of_the_caller() -> int:
    """Return the stack level of the first frame above that is not ours."""
    level, frame = 1, sys._getframe(1)  # noqa: SLF001 - the public functions for the stack read source files, which is slow
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == "holdfast":
        level, frame = level + 1, frame.f_back
    return level


def _retries_inside(error: Exception) -> tuple[str, int, str] | None:
    """Return who retried, how often, and what to change; None if nobody did."""
    # The classifier follows fewer contexts, because they may be unrelated. Here they only show who retried.
    cause: BaseException | None = error
    for _ in range(_MAX_CAUSES):
        if cause is None:
            return None
        found = _counted(cause) or _in_traceback(cause.__traceback__)
        if found is not None:
            return found
        cause = cause.__cause__ or cause.__context__
    return None


# --- what an exception itself says ---

_BOTOCORE = 'give the client Config(retries={"total_max_attempts": 1})'
_SDK = "give its client max_retries=0, or recover the client itself"
_TENACITY = "remove one of the two"


def _counted(error: BaseException) -> tuple[str, int, str] | None:
    response: Any = getattr(error, "response", None)
    if isinstance(response, dict):
        metadata = response.get("ResponseMetadata")
        times = metadata.get("RetryAttempts") if isinstance(metadata, dict) else None
        return ("botocore", times, _BOTOCORE) if isinstance(times, int) and times > 0 else None
    # The SDKs of Anthropic and OpenAI number their requests in a header, whoever uses them.
    request = _attribute(response, "request") or _attribute(error, "request")
    get = getattr(getattr(request, "headers", None), "get", None)
    number = get("x-stainless-retry-count") if callable(get) else None
    if isinstance(number, str) and number.isdigit() and int(number) > 0:
        return ("the SDK's client", int(number), _SDK)
    last = getattr(error, "last_attempt", None) if type(error).__module__ == "tenacity" else None
    return _by_tenacity(getattr(last, "attempt_number", None))


def _attribute(of: Any, name: str) -> Any:
    try:
        return getattr(of, name, None)
    except Exception:  # noqa: BLE001 - httpx raises if a response has no request
        return None


# --- what its traceback shows ---


def _in_traceback(traceback: TracebackType | None) -> tuple[str, int, str] | None:
    for _ in range(_MAX_FRAMES):
        if traceback is None:
            return None
        frame, traceback = traceback.tb_frame, traceback.tb_next
        module = str(frame.f_globals.get("__name__", ""))
        if module.startswith("tenacity"):
            found = _by_tenacity(getattr(frame.f_locals.get("retry_state"), "attempt_number", None))
        elif module == "botocore.endpoint":
            # A failed connection has no response that could count the retries.
            attempts = frame.f_locals.get("attempts")
            found = ("botocore", attempts - 1, _BOTOCORE) if isinstance(attempts, int) and attempts > 1 else None
        else:
            continue
        if found is not None:
            return found
    return None


def _by_tenacity(attempts: Any) -> tuple[str, int, str] | None:
    return ("tenacity", attempts - 1, _TENACITY) if isinstance(attempts, int) and attempts > 1 else None
