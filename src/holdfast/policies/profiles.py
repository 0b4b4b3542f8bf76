"""Profiles: the schedules, circuit and time limits of each source document, under its name.

Invariant: the catalog of faults names a schedule, and a profile gives its numbers. No other code holds such numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal, TypeAlias

import msgspec

from holdfast.faults import Schedule
from holdfast.policies import circuit
from holdfast.policies.backoff import NEVER, Backoff, Tries
from holdfast.policies.role import RoleSettings

__all__ = [
    "ACTOR",
    "AGENTS",
    "AGENT_CHAINS",
    "BRIDGE",
    "CACHED",
    "HOLDFAST",
    "PROFILES",
    "PROVIDERS",
    "PROVIDER_CHAINS",
    "SPEC016",
    "SPEC016_ROLES",
    "STUD",
    "TASK",
    "TOOL_TIMEOUTS",
    "Profile",
    "ProfileName",
]

ProfileName: TypeAlias = Literal["holdfast", "bridge", "spec016", "stud", "task", "actor"]


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """A named set of numbers: how each kind of failure is retried, a circuit, and time limits.

    `Policy(profile=NAME)` takes the first, `policy_of(profile)` takes all of them.

        from holdfast.profiles import policy_of, spec016

        spec016.timeout("llm-call")         # 60.0
        policy_of(spec016)                  # a Policy with these numbers
    """

    name: ProfileName
    """The name that `Policy.profile` takes."""
    schedules: Mapping[Schedule, Tries]
    """Attempts and delays by kind of failure."""
    circuit: circuit.Circuit
    """The circuit of the targets."""
    timeouts: Mapping[str, float]
    """Seconds by kind of operation or name of tool; `default` for all others."""
    tries: Mapping[str, Tries] = {}
    """Attempts and delays by kind of operation, whatever the failure, for operations that have their own."""
    roles: Mapping[str, RoleSettings] = {}
    """The agents that the specification names, with those that take over from them. `holdfast.agents.Roles` has them by default."""
    event_form: Literal["record", "document", "envelope"] = "record"
    """What handlers of a `ResilienceManager` get: a record; a document of the recovery-event format; or an envelope,
    `{name, correlationId, monotonicTs, payload}`."""
    permanent: frozenset[int] = frozenset()
    """HTTP statuses after which nothing is retried, whatever the words of the response promise."""
    jitter_after_cap: bool = False
    """Every backoff, also one that a policy names, is capped before its jitter."""
    limits: Mapping[str, float] = {}
    """The specification's other numbers by name: seconds in names that end in `_s`, otherwise bytes, counts and shares."""

    def timeout(self, *names: str) -> float:
        """Return the seconds for the first of `names` that the profile knows, else its default. Pass the most specific first."""
        return next((self.timeouts[name] for name in names if name in self.timeouts), self.timeouts["default"])

    def agent_timeout(self, agent: str) -> float | None:
        """Return the seconds that an agent's work may take where the program keeps to this profile; None: it names no limit."""
        if self.name == "holdfast":
            return None
        return next((self.timeouts[name] for name in (agent, "agent-spawn") if name in self.timeouts), None)


# No jitter: these documents give their delays as exact numbers.
_EXACT = 0.0
_TRANSIENT = Tries(attempts=3, backoff=Backoff(initial=1, factor=2, cap=30))
_ONCE = Tries(attempts=2, backoff=Backoff(initial=1))
_OPERATIONS = {"default": 30.0, "llm-call": 60.0, "tool-execution": 120.0, "file-read": 5.0, "web-fetch": 30.0, "agent-spawn": 300.0}  # fmt: skip
TOOL_TIMEOUTS: Mapping[str, float] = MappingProxyType(
    {"bash": 300.0, "read_file": 10.0, "edit_file": 30.0, "search": 60.0}
)
"""Seconds that a call of a tool may take, by its name (S0-23)."""

# Document 002 (S2-14 to S2-17). Where the documents differ, it is the most specific one (C1, C6).
STUD = Profile(
    name="stud",
    schedules={
        Schedule.NONE: NEVER,
        Schedule.ONCE: _ONCE,
        Schedule.MATCHING: _ONCE,
        Schedule.TRANSIENT: _TRANSIENT,
        Schedule.RATE_LIMIT: Tries(attempts=6, backoff=Backoff(initial=5, factor=2, cap=160)),
        Schedule.STORE: Tries(attempts=3, backoff=Backoff(initial=2, curve="linear", jitter=_EXACT)),
        Schedule.CONNECT: Tries(attempts=3, backoff=Backoff(steps=(1, 2, 5, 10, 20), jitter=_EXACT)),
        Schedule.RECONNECT: Tries(attempts=6, backoff=Backoff(steps=(1, 2, 5, 10, 30), jitter=_EXACT)),
        Schedule.TOOL_SERVER: Tries(attempts=6, backoff=Backoff(steps=(0, 0.25, 0.5, 1, 2), cap=4)),
        Schedule.TOOL: NEVER,
    },
    # The document has no circuit. One that opened would cut short the attempts of whoever calls beside the others.
    circuit=circuit.Circuit(mode="metrics-only"),
    timeouts={**_OPERATIONS, **TOOL_TIMEOUTS},
    event_form="envelope",
)
"""Three attempts for what passes by itself, six for rate limits; delays differ by kind of failure."""

# The first delay is about a second long, because many failures last less. Longer ones are waited for in steps that stay
# short enough for a person. Chance spreads callers that failed together.
_UNTIL_DEADLINE = Tries(attempts=None, backoff=Backoff(steps=(0.7, 1.2, 1.8, 2.7, 4, 6, 8), cap=8, jitter=0.2))
_UNTIL_ACCEPTED = Tries(attempts=None, backoff=Backoff(initial=1, factor=1.6, cap=8, jitter=0.2))

HOLDFAST = Profile(
    name="holdfast",
    schedules={**STUD.schedules, Schedule.TRANSIENT: _UNTIL_DEADLINE, Schedule.RATE_LIMIT: _UNTIL_ACCEPTED},
    circuit=circuit.GRADED,
    timeouts=STUD.timeouts,
)
"""The default profile: what passes by itself is retried until the deadline, everything else as in `stud`."""

# Document 000 (S0-5, S0-12, S0-23).
BRIDGE = Profile(
    name="bridge",
    schedules={
        **STUD.schedules,
        Schedule.CONNECT: Tries(attempts=5, backoff=Backoff(steps=(1, 2, 5, 10, 20, 30), jitter=_EXACT)),
    },
    circuit=circuit.BRIDGE,
    timeouts={**_OPERATIONS, **TOOL_TIMEOUTS, "default": 10.0},
    tries={"recovery": Tries(attempts=5, backoff=Backoff(initial=1, curve="linear", jitter=_EXACT))},
    limits={
        "session_grace_s": 300.0,
        "replay_age_s": 1800.0,
        "replay_bytes": 102_400,
        "heartbeat_s": 15.0,
        "pong_s": 10.0,
        "event_queue": 1000,
    },
)
"""For connections to remote clients: five attempts to connect, and a circuit that stays open for 60 s."""

# Document 001: its names and fallback chains (S1-14, S1-18, N1-7), its numbers (S1-8, S1-12, S1-20, C7).
PROVIDERS = ("claude", "openai", "xai", "gemini")
"""The providers that document 001 knows."""
AGENTS = ("builder", "reviewer", "planner", "error-analyzer", "scout", "architect")
"""The agents that document 001 knows."""

AGENT_CHAINS: Mapping[str, tuple[str, ...]] = {
    "builder": ("builder-simple", "manual-mode"),
    "reviewer": ("reviewer-quick", "skip-review"),
    "planner": ("planner-simple", "no-plan"),
    "architect": ("architect-simple", "skip-design"),
    "scout": ("scout-quick", "skip-exploration"),
}
"""The agents that take over from an agent, in order."""

CACHED = "cached"
"""The cache, in a chain of providers."""
PROVIDER_CHAINS: Mapping[str, tuple[str, ...]] = {
    "claude": ("openai", "gemini", "xai", CACHED),
    "openai": ("claude", "gemini", "xai", CACHED),
    "gemini": ("claude", "openai", "xai", CACHED),
    "xai": ("claude", "openai", "gemini", CACHED),
}
"""The providers that answer instead of a provider, in order; `cached` is the cache. `FallbackChain.of_provider` uses those that it is given,
which is the user's consent (C28)."""

_SPEC016_TRIES = Tries(attempts=3, backoff=Backoff(initial=1, factor=2, cap=30, jitter=0.2, jitter_after_cap=True))
SPEC016 = Profile(
    name="spec016",
    schedules={
        # All schedules get this backoff first, so that a schedule added later has it too. Then come those that differ.
        **dict.fromkeys(Schedule, _SPEC016_TRIES),
        Schedule.NONE: NEVER,
        Schedule.ONCE: Tries(attempts=2, backoff=_SPEC016_TRIES.backoff),
        Schedule.MATCHING: Tries(attempts=2, backoff=_SPEC016_TRIES.backoff),
    },
    circuit=circuit.SPEC016,
    timeouts=_OPERATIONS,
    roles={
        name: RoleSettings(
            understudies=AGENT_CHAINS.get(name, ()), timeout=_OPERATIONS["agent-spawn"], retry=_SPEC016_TRIES
        )
        for name in AGENTS
    },
    event_form="document",
    permanent=frozenset({401, 403, 404}),
    jitter_after_cap=True,
)
"""One backoff for everything that may be retried, including tools."""

SPEC016_ROLES: Mapping[str, RoleSettings] = SPEC016.roles
"""The roles of document 001 with their understudies, as settings for `holdfast.agents.Roles`."""

# Document 003 (C30, N3).
TASK = Profile(
    name="task",
    schedules={**dict.fromkeys(Schedule, NEVER), Schedule.MATCHING: _ONCE},
    circuit=circuit.PROVIDER,
    timeouts={"default": 300.0},
    limits={"loop_iterations": 5, "depth": 5, "resource_warning": 0.8},
)
"""For task systems that retry themselves: only a search for context is retried, once, and a script has 300 s."""

# Document 004 (S4-9 to S4-13).
_ACTOR_TRIES = Tries(attempts=3, backoff=Backoff(initial=1, factor=2, cap=10, jitter="scaled"))
ACTOR = Profile(
    name="actor",
    schedules={
        **dict.fromkeys(Schedule, _ACTOR_TRIES),
        Schedule.NONE: NEVER,
        Schedule.ONCE: Tries(attempts=2, backoff=_ACTOR_TRIES.backoff),
        Schedule.MATCHING: Tries(attempts=2, backoff=_ACTOR_TRIES.backoff),
    },
    circuit=circuit.ACTOR,
    timeouts={
        "default": 30.0,
        "claude": 120.0,
        "stream": 300.0,
        "bash": 30.0,
        "network": 30.0,
        "db": 10.0,
        "internal": 5.0,
    },
    tries={
        "claude": Tries(attempts=2, backoff=Backoff(initial=5, factor=2, cap=10, jitter="scaled")),
        "claude-send": Tries(attempts=2, backoff=Backoff(initial=2, factor=2, cap=5, jitter="scaled")),
    },
    limits={"restarts": 3, "restart_window_s": 60.0},
)
"""For actors: three attempts with short delays, each multiplied by 0.5 to 1.5 and then capped at 10 s."""

PROFILES: Mapping[str, Profile] = {profile.name: profile for profile in (HOLDFAST, BRIDGE, SPEC016, STUD, TASK, ACTOR)}
"""All profiles by name."""
