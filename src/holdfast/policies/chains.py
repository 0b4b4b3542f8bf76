"""Document 001's names and chains: who stands in for whom (S1-14, S1-18, N1-7).

Invariant: a chain is an order of names; what each name does is the caller's business.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["AGENTS", "AGENT_CHAINS", "CACHED", "PROVIDERS", "PROVIDER_CHAINS", "agent_chain"]

CACHED = "cached"
"""The step that answers from the cache."""

PROVIDERS = ("claude", "openai", "xai", "gemini")
AGENTS = ("builder", "reviewer", "planner", "error-analyzer", "scout", "architect")

AGENT_CHAINS: Mapping[str, tuple[str, ...]] = {
    "builder": ("builder-simple", "manual-mode"),
    "reviewer": ("reviewer-quick", "skip-review"),
    "planner": ("planner-simple", "no-plan"),
    "architect": ("architect-simple", "skip-design"),
    "scout": ("scout-quick", "skip-exploration"),
}
"""Who takes over from an agent, in order."""

PROVIDER_CHAINS: Mapping[str, tuple[str, ...]] = {
    "claude": ("openai", "gemini", CACHED),
    "openai": ("claude", "gemini", CACHED),
    "gemini": ("claude", "openai", CACHED),
}
"""Who answers in a provider's place, in order. Using one of them needs the user's consent (C28)."""


def agent_chain(agent: str) -> tuple[str, ...]:
    """Return who takes over from `agent`; nobody for an agent the document does not know."""
    return AGENT_CHAINS.get(agent, ())
