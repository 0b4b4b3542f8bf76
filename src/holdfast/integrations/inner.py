"""Retries that others make below ours: each multiplies our attempts, unseen by policy, circuit and budget."""

from __future__ import annotations

import warnings
from typing import Any

__all__ = ["RECOVERS", "RecoveryWarning", "warn", "warn_of_transport"]

RECOVERS = "__holdfast_recovers__"
"""Set on transports of ours, so that a client around one can tell."""


class RecoveryWarning(UserWarning):
    """Recovery works, but something beside it retries as well."""


def warn(message: str, *, above: int = 0) -> None:
    """Warn, at the line of whoever called the function that called this one, or `above` it."""
    warnings.warn(message, RecoveryWarning, stacklevel=3 + above)


def warn_of_transport(transport: Any, *, above: int = 0) -> None:
    """Warn where a transport connects again by itself, or is one of ours already."""
    retries = getattr(getattr(transport, "_pool", None), "_retries", 0)
    if isinstance(retries, int) and retries > 0:
        warn(
            f"the transport connects again by itself (retries={retries}), so an attempt may be up to {retries + 1} "
            "connections: give it retries=0",
            above=above + 1,
        )
    if getattr(transport, RECOVERS, False):
        warn("the transport recovers already, so attempts multiply: use one of both", above=above + 1)
