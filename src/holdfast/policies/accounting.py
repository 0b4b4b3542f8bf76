"""Which circuit counts a failure: the one of the fault's scope, if the call has such a circuit.

Invariant: a caller's own mistake never trips the circuit of the service it called, and a cancelled call trips none (C12).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.faults import Category, Kind, Layer, Scope

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.faults import Fault

__all__ = ["counted_by"]


def counted_by(fault: Fault, scopes: Sequence[Scope]) -> Scope | None:
    """Return which of the circuits a call has (`scopes`, the main one first) counts this fault; None: none of them."""
    if fault.kind is Kind.CANCELLED or fault.layer is Layer.RECOVERY:
        # What our own protections refuse says nothing about the service behind them.
        return None
    own = fault.scope if fault.scope in scopes else None
    if fault.kind is Kind.TRANSIENT:
        return own or scopes[0]
    if fault.category is Category.AGENT_CRASH and Scope.AGENT in scopes:
        return Scope.AGENT
    if fault.scope is Scope.CREDENTIAL:
        # A key that is refused stays refused: its own circuit may open, the provider's must not (R53).
        return own
    return None
