"""Policies of the source documents: one per profile, and document 004's phases (S4-16).

Invariant: a preset holds no number of its own; each comes from a profile.
"""

from __future__ import annotations

import msgspec

from holdfast.faults import InvalidError
from holdfast.policies.policy import INTERACTIVE, Policy
from holdfast.policies.profiles import ACTOR, HOLDFAST, Profile

__all__ = ["PHASES", "Phase", "phase", "policy_of"]


def policy_of(profile: Profile) -> Policy:
    """Return the policy that has a profile's schedules, circuit and time limit."""
    if profile is HOLDFAST:
        return INTERACTIVE
    timeout = profile.timeout()
    deadline = max(INTERACTIVE.deadline or timeout, timeout)
    return Policy(profile=profile.name, circuit=profile.circuit, timeout=timeout, deadline=deadline)


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """How much of it to switch on: document 004 adds a pattern only once it was missed."""

    number: int
    policy: Policy
    supervision: bool = False
    """Actors are supervised."""


_ALL = policy_of(ACTOR)
_CLASSIFY = _ALL.replace(attempts=1, circuit=None, timeout=None, deadline=None)
_RETRY = _ALL.replace(circuit=None)

PHASES = (
    Phase(number=1, policy=_CLASSIFY),
    Phase(number=2, policy=_RETRY),
    Phase(number=3, policy=_RETRY, supervision=True),
    Phase(number=4, policy=_ALL, supervision=True),
)
"""Classification; then time limits and retries; then supervision; then circuits."""


def phase(number: int) -> Phase:
    """Return a phase by its number, 1 to 4."""
    found = next((one for one in PHASES if one.number == number and not isinstance(number, bool)), None)
    if found is None:
        raise InvalidError.at("phase", "a number from 1 to 4", number)
    return found
