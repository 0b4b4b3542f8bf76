"""Profiles: the numbers of each specification under its name, and phases that switch recovery on step by step.

from holdfast import recover
from holdfast.profiles import phase, policy_of, spec016

recover("claude", policy_of(spec016))
spec016.timeout("llm-call")             # 60.0
recover("claude", phase(2).policy)      # time limits and retries, no circuit yet
"""

from __future__ import annotations

from holdfast.policies.chains import AGENT_CHAINS, AGENTS, PROVIDER_CHAINS, PROVIDERS
from holdfast.policies.policy import Phase, phase, policy_of
from holdfast.policies.profiles import ACTOR, BRIDGE, HOLDFAST, SPEC016, STUD, TASK, Profile

__all__ = [
    "AGENTS",
    "AGENT_CHAINS",
    "PROVIDERS",
    "PROVIDER_CHAINS",
    "Phase",
    "Profile",
    "actor",
    "bridge",
    "holdfast",
    "phase",
    "policy_of",
    "spec016",
    "stud",
    "task",
]

bridge, spec016, stud, task, actor, holdfast = BRIDGE, SPEC016, STUD, TASK, ACTOR, HOLDFAST
