"""What a tool declares about its outcome: `check` looks at a result, `verify` finds out whether a call happened.

Invariant: a result that fails its check is a failure, never an answer. If `verify` fails, or returns something else than a verdict,
the outcome stays unknown.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from holdfast.faults import CATALOG, Fault, HoldfastError
from holdfast.runtime.callables import PLAN_ATTRIBUTE, name_of
from holdfast.runtime.tool import CANNOT_TELL, NOT_HAPPENED, Happened, contract_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.runtime.tool import ToolContract, Verdict

__all__ = ["NOT_VERIFIED", "check", "check_async", "check_plain_call", "recovers", "verify", "verify_async"]

NOT_VERIFIED = "verify failed, so the outcome stays unknown"
"""Why a failure of `verify` is ignored."""


def check(contract: ToolContract, result: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Raise `HoldfastError` if the tool's check rejects a result."""
    if contract.check is None:
        return
    try:
        verdict = _call_check(contract, result, args, kwargs)
    except Exception as error:
        raise _failed(contract, f"its check raised {type(error).__name__}: {error}") from error
    _judge(contract, verdict)


async def check_async(contract: ToolContract, result: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Do the same as `check`. The check may be async."""
    if contract.check is None:
        return
    try:
        verdict = _call_check(contract, result, args, kwargs)
        if inspect.isawaitable(verdict):
            verdict = await verdict
    except Exception as error:
        raise _failed(contract, f"its check raised {type(error).__name__}: {error}") from error
    _judge(contract, verdict)


async def check_plain_call(fn: Any, result: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return the result of a function that was called without recovery; raise `HoldfastError` if its check rejects it."""
    contract = contract_of(fn)
    if contract is not None and not recovers(fn, contract):
        await check_async(contract, result, args, kwargs)
    return result


def recovers(fn: Any, contract: ToolContract) -> bool:
    """Whether a function is decorated with `recover` and its recovery knows the contract: it checks each attempt."""
    plan = getattr(fn, PLAN_ATTRIBUTE, None)
    return plan is not None and plan.contract is contract


def _call_check(contract: ToolContract, result: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    assert contract.check is not None
    return contract.check(result, *args, **kwargs) if contract.checks_arguments else contract.check(result)


def _judge(contract: ToolContract, verdict: Any) -> None:
    match verdict:
        case None | True:
            return
        case Fault():
            raise HoldfastError(verdict)
        case str() if verdict in CATALOG:
            code: Any = verdict
            raise HoldfastError(Fault.of(code, maybe_executed=True))
        case str():
            raise _failed(contract, verdict)
        case _:
            raise _failed(contract, "its check rejects the result")


def _failed(contract: ToolContract, reason: str) -> HoldfastError:
    context = {"reason": reason, "check": name_of(contract.check)}
    # The call was made and came back. Nobody knows which part of its work it did.
    # Another call may do it. The effect decides whether one may be made, and the policy how many.
    return HoldfastError(Fault.of("TOOL_EXECUTION_FAILED", context=context, maybe_executed=True, retryable=True))


def _verdict(contract: ToolContract, returned: Any) -> Verdict:
    """Return what a tool's `verify` found out; raise TypeError if it returned something else than a verdict."""
    if isinstance(returned, Happened) or returned in (NOT_HAPPENED, CANNOT_TELL):
        return returned  # type: ignore[no-any-return] # just checked
    name = name_of(contract.verify)
    raise TypeError(f"{name} returned {type(returned).__name__}, not Happened(result), NOT_HAPPENED or CANNOT_TELL")


async def verify_async(contract: ToolContract, key: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Verdict:
    """Return what the tool's `verify`, which may be async, finds out about the call with this key. Make this call with recovery."""
    assert contract.verify is not None
    returned = contract.verify(key, *args, **kwargs)
    return _verdict(contract, await returned if inspect.isawaitable(returned) else returned)


def verify(contract: ToolContract, key: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Verdict:
    """Do the same as `verify_async`, for a plain function."""
    assert contract.verify is not None
    return _verdict(contract, contract.verify(key, *args, **kwargs))
