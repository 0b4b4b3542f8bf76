"""What a tool declares about its outcome: `check` looks at a result, `verify` finds out whether a call happened.

Invariant: a result that fails its check is a failure, never an answer. If `verify` fails, or returns something else than a verdict,
the outcome stays unknown. Where a call has a time limit, what looks at its outcome has one too.
"""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast._lazy import lazy_module
from holdfast.faults import CATALOG, Fault, HoldfastError
from holdfast.runtime.callables import PLAN_ATTRIBUTE, name_of
from holdfast.runtime.tool import CANNOT_TELL, NOT_HAPPENED, Happened, contract_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Mapping

    from holdfast.runtime.tool import ToolContract, Verdict
else:
    asyncio = lazy_module("asyncio", globals())

__all__ = [
    "NOT_VERIFIED",
    "check",
    "check_async",
    "check_plain_call",
    "has_calls_of_its_own",
    "recovers",
    "verify",
    "verify_async",
]

NOT_VERIFIED = "verify failed, so the outcome stays unknown"
"""Why a failure of `verify` is ignored."""
_LEAST_LIMIT_S = 30.0
"""The least that a `check` or a `verify` may take: a call that may take a tenth of a second is looked up in a service that may take longer."""


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
            verdict = await _within_limit(contract, verdict)
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


def has_calls_of_its_own(fn: Any) -> bool:
    """Whether a function is decorated with `recover`, wherever its contract was declared: what it calls has keys of its own."""
    while isinstance(fn, partial):
        fn = fn.func
    return getattr(fn, PLAN_ATTRIBUTE, None) is not None


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
    if inspect.isawaitable(returned):
        returned = await _within_limit(contract, returned)
    return _verdict(contract, returned)


async def _within_limit(contract: ToolContract, looking: Awaitable[Any]) -> Any:
    """Wait for a `check` or a `verify`. One that hangs would hold the call for ever, whatever time limit the tool has."""
    if contract.timeout is None:
        return await looking
    limit = max(contract.timeout, _LEAST_LIMIT_S)
    reached = asyncio.timeout(limit)
    try:
        async with reached:
            return await looking
    except TimeoutError as error:
        if not reached.expired():
            raise
        raise TimeoutError(f"it did not end within {limit:g} s") from error


def verify(contract: ToolContract, key: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Verdict:
    """Do the same as `verify_async`, for a plain function."""
    assert contract.verify is not None
    return _verdict(contract, contract.verify(key, *args, **kwargs))
