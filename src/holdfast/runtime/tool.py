"""`@tool`: what a function does to the world, declared once and read by recoveries, steps and agents.

Invariant: declaring changes nothing about calling; the function is the same object.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Never, TypeVar, cast

import msgspec

from holdfast import options
from holdfast.faults import InvalidError
from holdfast.policies.backoff import Tries
from holdfast.policies.decide import EFFECTS, Effect
from holdfast.runtime.ambient import AMBIENT

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["ToolContract", "call_key", "contract_of", "tool"]

F = TypeVar("F", bound="Callable[..., Any]")

_ATTRIBUTE = "__holdfast_tool__"
_MISSING = cast("Effect", "missing")


class ToolContract(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """What a tool promises about itself."""

    effect: Effect
    timeout: float | None = None
    """Seconds one call may take; wins over the policy's."""
    retry: Tries | None = None
    """How often and when a failure that may be retried is (S2-16)."""

    def __post_init__(self) -> None:
        options.one_of("tool.effect", self.effect, EFFECTS)
        options.seconds("tool.timeout", self.timeout, optional=True)
        if not isinstance(self.retry, Tries | None):
            raise InvalidError.at("tool.retry", "a Tries or None", self.retry)


def tool(
    *bare: Never, effect: Effect = _MISSING, timeout: float | None = None, retry: Tries | None = None
) -> Callable[[F], F]:
    """Declare a function's effect: `read`, `idempotent`, `keyed` (repeat it with `call_key()`) or `unsafe`."""
    # `@tool` without parentheses passes the function here. Python's own TypeError would not say what to write instead.
    if bare or effect is _MISSING:
        raise InvalidError.saying(
            "tool", "@tool(effect=…) with read, idempotent, keyed or unsafe", "@tool without an effect"
        )
    contract = ToolContract(effect=effect, timeout=timeout, retry=retry)

    def declare(fn: F) -> F:
        if not callable(fn):
            raise InvalidError.at("tool", "a function", fn)
        try:
            setattr(fn, _ATTRIBUTE, contract)
        except AttributeError:
            raise InvalidError.at("tool", "a function that can be marked: put a `def` around this one", fn) from None
        return fn

    return declare


def contract_of(fn: Any) -> ToolContract | None:
    """Return what a function, method or partial declares about itself."""
    for candidate in (fn, getattr(fn, "func", None), getattr(fn, "__wrapped__", None), getattr(fn, "__call__", None)):  # noqa: B004 - a callable object may declare its __call__
        contract = getattr(candidate, _ATTRIBUTE, None)
        if isinstance(contract, ToolContract):
            return contract
    return None


def call_key() -> str:
    """Return the stable key of the logical call under way: the same on every attempt, to be sent as idempotency key."""
    around = AMBIENT.get()
    if around is None:
        return ""
    step: Any = around
    while step is not None and not hasattr(step, "key_of"):
        step = step.around
    # In a durable step the key outlives the process; outside of one it lives as long as the call.
    return around.run if step is None else str(step.key_of(around.run))
