"""What readers of events put into an attempt's context (a trace's span), kept to the attempt's own code.

The attempt of a stream goes on while its consumer runs in between.
Whatever `admit` changes in the context is therefore changed in a copy, and put in force for each step of the attempt only.

Invariant: outside its steps the caller's context is as it was.
"""

from __future__ import annotations

from contextlib import suppress
from contextvars import ContextVar, Token, copy_context
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.runtime.operation import Operation

__all__ = ["Surroundings", "Tokens", "admit"]

Tokens: TypeAlias = "tuple[Token[Any], ...]"

_NOTHING = object()


class Surroundings:
    """The context variables that an attempt's beginning changed."""

    __slots__ = ("_changes",)

    def __init__(self, begin: Callable[[], None]) -> None:
        context = copy_context()
        context.run(begin)
        self._changes: tuple[tuple[ContextVar[Any], Any], ...] = tuple(
            (variable, value) for variable, value in context.items() if variable.get(_NOTHING) is not value
        )

    def enter(self) -> Tokens:
        """Put them in force; after the step you must `leave` with what this returns."""
        return tuple(variable.set(value) for variable, value in self._changes)

    @staticmethod
    def leave(tokens: Tokens) -> None:
        for token in reversed(tokens):
            # A coroutine that is closed by the garbage collector ends in another context, with nothing to reset.
            with suppress(ValueError):
                token.var.reset(token)


def admit(op: Operation) -> Surroundings | None:
    """Begin an attempt of `op`; None where nobody is told and so nothing can have changed."""
    if op.plan.watched:
        return Surroundings(op.admit)
    op.admit()
    return None
