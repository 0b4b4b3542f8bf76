"""`@tool`: the effect of a function on the world, declared once and read by recoveries, steps and agents.

Invariant: the declared function is the same object and is called in the same way.
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
# `help(tool)` shows this default, so it reads as what it means.
_MISSING = cast("Effect", "required")


class ToolContract(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """The declaration of one tool, as `@tool` writes it. Wrong options raise `InvalidError`."""

    effect: Effect
    timeout: float | None = None
    """Seconds that one call may take. It wins over the policy's timeout."""
    retry: Tries | None = None
    """Attempts and backoff of this tool. They win over the policy's."""

    def __post_init__(self) -> None:
        options.one_of("tool.effect", self.effect, EFFECTS)
        options.seconds("tool.timeout", self.timeout, optional=True)
        if not isinstance(self.retry, Tries | None):
            raise InvalidError.at("tool.retry", "a Tries or None", self.retry)


def tool(
    *bare: Never, effect: Effect = _MISSING, timeout: float | None = None, retry: Tries | None = None
) -> Callable[[F], F]:
    """Declare what a function does to the world, so that recoveries know whether they may repeat it.

        from holdfast import tool

        @tool(effect="unsafe", timeout=60)
        def deploy(plan): ...

    effect: `read` changes nothing. `idempotent` may be repeated. `keyed` may be repeated with the same `call_key()`, which
        the function sends along. `unsafe` must not happen twice: if it may have happened, `OutcomeUnknownError` is raised.
    timeout: seconds that one call may take. It wins over the policy's timeout.
    retry: a `Tries` with attempts and backoff. They win over the policy's.

    The function itself is returned, unchanged. Wrong options, or `@tool` without parentheses, raise `InvalidError`.
    """
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
            raise InvalidError.at(
                "tool", "a function with attributes; write a `def` that calls this one, and declare that", fn
            ) from None
        return fn

    return declare


def contract_of(fn: Any) -> ToolContract | None:
    """Return the contract of a function, method, partial or callable object; None if it has none."""
    for candidate in (fn, getattr(fn, "func", None), getattr(fn, "__wrapped__", None), getattr(fn, "__call__", None)):  # noqa: B004 - a callable object may declare its __call__
        contract = getattr(candidate, _ATTRIBUTE, None)
        if isinstance(contract, ToolContract):
            return contract
    return None


def call_key() -> str:
    """Return the idempotency key of the call under way: every attempt gets the same one. Outside of a recovery it is empty.

    A function with `effect="keyed"` sends it along, and the other side recognises a call that it has already done:

        from holdfast import call_key, tool

        @tool(effect="keyed")
        def pay(amount):
            return http.post("/payments", json={"amount": amount}, headers={"Idempotency-Key": call_key()})

    In a step of a session the key is the same after a crash, too.
    """
    around = AMBIENT.get()
    if around is None:
        return ""
    step: Any = around
    while step is not None and not hasattr(step, "key_of"):
        step = step.around
    # In a durable step the key survives a crash of the process. Elsewhere it lives as long as the call.
    return around.run if step is None else str(step.key_of(around.run))
