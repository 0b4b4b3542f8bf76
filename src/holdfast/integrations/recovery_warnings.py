"""Warnings about other code that retries below an integration's calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.runtime.operation.recovery_warnings import RECOVERS, RecoveryWarning, warn

if TYPE_CHECKING:
    from holdfast.policies import Policy

__all__ = ["RECOVERS", "RecoveryWarning", "warn", "warn_of_sync_hedge", "warn_of_transport"]


def warn_of_sync_hedge(policy: Policy | None, what: str) -> None:
    """Warn if a policy hedges calls that cannot be hedged: a blocking call cannot be cancelled when another one has answered."""
    if getattr(policy, "hedge", None) is not None:
        warn(f"`hedge` has no effect on {what}, whose calls block: only async calls are hedged")


def warn_of_transport(transport: Any) -> None:
    """Warn if a transport reconnects by itself, or recovers already."""
    retries = getattr(getattr(transport, "_pool", None), "_retries", 0)
    if isinstance(retries, int) and retries > 0:
        warn(
            f"the transport connects again by itself (retries={retries}), so an attempt may be up to {retries + 1} "
            "connections: give it retries=0",
        )
    if getattr(transport, RECOVERS, False):
        warn("the transport recovers already, so attempts multiply: remove one of the two")
