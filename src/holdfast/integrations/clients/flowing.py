"""A call whose answer is a stream: it is over when the stream is.

Invariant: from the moment the stream is handed out, whoever watches it settles the operation, once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.runtime.operation import Operation
from holdfast.runtime.surroundings import Surroundings

if TYPE_CHECKING:
    from holdfast.integrations.clients.dialect import Dialect, Used
    from holdfast.runtime.surroundings import Tokens

__all__ = ["Flowing"]


class Flowing(Operation):
    """The state of one such call."""

    surroundings: Surroundings | None = None
    """What the attempt's beginning put into the context, for its own steps only: the consumer runs in between."""
    flowing = False
    """The stream was handed out; whoever watches it settles this operation."""

    @property
    def dialect(self) -> Dialect:
        """What the stream's events mean."""
        raise NotImplementedError

    def surround(self) -> Tokens:
        """Put in force what the attempt's beginning changed in the context; `Surroundings.leave` with what this returns."""
        return () if self.surroundings is None else self.surroundings.enter()

    def admit(self) -> None:
        if self.plan.watched:
            self.surroundings = Surroundings(super().admit)
        else:
            super().admit()

    def succeeded(self, value: object = None) -> None:
        if not self.flowing:
            super().succeeded(value)

    def ended_well(self, used: Used | None) -> None:
        """The stream that was handed out came to its end; the budget is charged what it says it used."""
        self.flowing = False
        self.succeeded(used)
