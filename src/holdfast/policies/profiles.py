"""The numbers: each source document's schedules, circuit and time limits under its name.

Invariant: the catalog names a schedule, a profile gives its numbers; nothing else in the code holds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from holdfast.faults import Schedule
from holdfast.policies import circuit
from holdfast.policies.backoff import NEVER, Backoff, Tries

__all__ = ["ACTOR", "BRIDGE", "HOLDFAST", "PROFILES", "SPEC016", "STUD", "TASK", "Profile", "ProfileName"]

ProfileName: TypeAlias = Literal["holdfast", "bridge", "spec016", "stud", "task", "actor"]


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """One document's constants."""

    name: ProfileName
    schedules: Mapping[Schedule, Tries]
    circuit: circuit.Circuit
    timeouts: Mapping[str, float]
    """Seconds by kind of operation or name of tool; `default` for the rest (C8)."""

    def timeout(self, *names: str) -> float:
        """Return the limit of the first name the profile knows, most specific first, else its default."""
        return next((self.timeouts[name] for name in names if name in self.timeouts), self.timeouts["default"])


_EXACT = 0.0
_TRANSIENT = Tries(attempts=3, backoff=Backoff(initial=1, factor=2, cap=30))
_OPERATIONS = {"default": 30.0, "llm-call": 60.0, "tool-execution": 120.0, "file-read": 5.0, "web-fetch": 30.0, "agent-spawn": 300.0}  # fmt: skip
_TOOLS = {"bash": 300.0, "read_file": 10.0, "edit_file": 30.0, "search": 60.0}

HOLDFAST = Profile(
    name="holdfast",
    schedules={
        Schedule.NONE: NEVER,
        Schedule.ONCE: Tries(attempts=2, backoff=Backoff(initial=1)),
        Schedule.TRANSIENT: _TRANSIENT,
        Schedule.RATE_LIMIT: Tries(attempts=6, backoff=Backoff(initial=5, factor=2, cap=160)),
        Schedule.STORE: Tries(attempts=3, backoff=Backoff(initial=2, curve="linear", jitter=_EXACT)),
        Schedule.CONNECT: Tries(attempts=3, backoff=Backoff(steps=(1, 2, 5, 10, 20), jitter=_EXACT)),
        Schedule.RECONNECT: Tries(attempts=6, backoff=Backoff(steps=(1, 2, 5, 10, 30), jitter=_EXACT)),
        Schedule.TOOL_SERVER: Tries(attempts=6, backoff=Backoff(steps=(0, 0.25, 0.5, 1, 2), cap=4)),
        Schedule.TOOL: NEVER,
    },
    circuit=circuit.PROVIDER,
    timeouts={**_OPERATIONS, **_TOOLS},
)
"""What holds where no document is named: each document's most specific word (C1, C6)."""

STUD = msgspec.structs.replace(HOLDFAST, name="stud")
"""Document 002 (S2-14 to S2-17). Its schedules are Holdfast's own."""

BRIDGE = Profile(
    name="bridge",
    schedules={
        **HOLDFAST.schedules,
        Schedule.CONNECT: Tries(attempts=5, backoff=Backoff(steps=(1, 2, 5, 10, 20, 30), jitter=_EXACT)),
    },
    circuit=circuit.BRIDGE,
    timeouts={**_OPERATIONS, **_TOOLS, "default": 10.0},
)
"""Document 000 (S0-5, S0-12, S0-23)."""

_SPEC016_TRIES = Tries(attempts=3, backoff=Backoff(initial=1, factor=2, cap=30, jitter=0.2, jitter_after_cap=True))
SPEC016 = Profile(
    name="spec016",
    schedules={
        **dict.fromkeys(Schedule, _SPEC016_TRIES),
        Schedule.NONE: NEVER,
        Schedule.ONCE: Tries(attempts=2, backoff=_SPEC016_TRIES.backoff),
    },
    circuit=circuit.SPEC016,
    timeouts=_OPERATIONS,
)
"""Document 001 (S1-8, S1-12, S1-20): one curve for all that may be retried, tools included (C7)."""

TASK = Profile(
    name="task",
    schedules={**dict.fromkeys(Schedule, NEVER)},
    circuit=circuit.PROVIDER,
    timeouts={"default": 300.0},
)
"""Document 003: nothing is retried by itself (C30); a script has 300 s (N3)."""

_ACTOR_TRIES = Tries(attempts=3, backoff=Backoff(initial=1, factor=2, cap=10, jitter=0.5))
ACTOR = Profile(
    name="actor",
    schedules={
        **dict.fromkeys(Schedule, _ACTOR_TRIES),
        Schedule.NONE: NEVER,
        Schedule.ONCE: Tries(attempts=2, backoff=_ACTOR_TRIES.backoff),
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
)
"""Document 004 (S4-9 to S4-13): each wait times 0.5 to 1.5, then capped."""

PROFILES: Mapping[str, Profile] = {profile.name: profile for profile in (HOLDFAST, BRIDGE, SPEC016, STUD, TASK, ACTOR)}
