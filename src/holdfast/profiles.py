"""Profiles and phases.

A profile is a named set of attempts, delays, circuit and time limits. A phase is one step of a gradual introduction:
later phases switch on more of the recovery.

    from holdfast import recover
    from holdfast.profiles import phase, policy_of, spec016

    recover("claude", policy_of(spec016))
    spec016.timeout("llm-call")             # 60.0
    recover("claude", phase(2).policy)      # time limits and retries, no circuit yet
"""

from __future__ import annotations

from holdfast.policies.policy import Phase, phase, policy_of
from holdfast.policies.profiles import (
    ACTOR,
    AGENT_CHAINS,
    AGENTS,
    BRIDGE,
    HOLDFAST,
    PROVIDER_CHAINS,
    PROVIDERS,
    SPEC016,
    SPEC016_ROLES,
    STUD,
    TASK,
    Profile,
)
from holdfast.policies.role import RoleSettings

__all__ = [
    "AGENTS",
    "AGENT_CHAINS",
    "PROVIDERS",
    "PROVIDER_CHAINS",
    "SPEC016_ROLES",
    "Phase",
    "Profile",
    "RoleSettings",
    "actor",
    "bridge",
    "holdfast",
    "phase",
    "policy_of",
    "spec016",
    "stud",
    "task",
]

holdfast = HOLDFAST
"""The default profile: attempts and delays differ by kind of failure."""
bridge = BRIDGE
"""For connections to remote clients: five attempts to connect, and a circuit that stays open for 60 s."""
spec016 = SPEC016
"""All retryable failures have the same backoff, including failures of tools."""
stud = STUD
"""The same numbers as the default profile."""
task = TASK
"""For task systems that retry themselves: only a search for context is retried, once, and a script has 300 s."""
actor = ACTOR
"""For actors: three attempts with short delays."""
