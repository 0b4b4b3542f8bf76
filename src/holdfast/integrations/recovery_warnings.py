"""`RecoveryWarning`: other code retries inside or around our calls.

Each such retry multiplies our attempts, and the policy, the circuit and the budget do not see it.
"""

from __future__ import annotations

import warnings
from typing import Any

__all__ = ["RECOVERS", "RecoveryWarning", "warn", "warn_of_transport"]

RECOVERS = "__holdfast_recovers__"
"""The attribute that marks an object that recovers already, so that it is not wrapped a second time."""


class RecoveryWarning(UserWarning):
    """Recovery works, but other code retries as well, so attempts multiply.

    Turn it into an error in your tests: `warnings.simplefilter("error", holdfast.httpx.RecoveryWarning)`.
    """


def warn(message: str, *, above: int = 0) -> None:
    """Warn at the line that called the caller of this function, or `above` frames further up."""
    warnings.warn(message, RecoveryWarning, stacklevel=3 + above)


def warn_of_transport(transport: Any, *, above: int = 0) -> None:
    """Warn if a transport reconnects by itself, or recovers already."""
    retries = getattr(getattr(transport, "_pool", None), "_retries", 0)
    if isinstance(retries, int) and retries > 0:
        warn(
            f"the transport connects again by itself (retries={retries}), so an attempt may be up to {retries + 1} "
            "connections: give it retries=0",
            above=above + 1,
        )
    if getattr(transport, RECOVERS, False):
        warn("the transport recovers already, so attempts multiply: remove one of the two", above=above + 1)
