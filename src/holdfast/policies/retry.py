"""Retry as arithmetic: given what failed and how often, say whether and when to try again.

Invariant: a decision never asks for a wait that would end at or after the deadline, and never repeats what may have
happened and must not happen twice.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from holdfast.classify.hints import PATIENCE_S
from holdfast.faults import CATALOG
from holdfast.policies.effect import leaves_outcome_unknown, repeats_unknown

if TYPE_CHECKING:
    from holdfast.clock import Rng
    from holdfast.faults import Fault, Schedule
    from holdfast.policies.effect import Effect
    from holdfast.policies.policy import Policy

__all__ = [
    "LONGEST_CIRCUIT_WAIT_S",
    "NEXT_PROBE_S",
    "RETURN_SPREAD",
    "Again",
    "Decision",
    "GiveUp",
    "Reason",
    "Retrying",
]

NEXT_PROBE_S = 1.0
"""When to look again at a circuit that is being probed by somebody else."""
LONGEST_CIRCUIT_WAIT_S = 3600.0
"""How long a patient operation waits for circuits in all before it gives up: an outage without end must end somewhere."""
RETURN_SPREAD = 0.2
"""Up to this share of the time it has waited for a circuit, a caller comes back later than it might. So those
that an outage has held up return one after the other, as they came: of 600 that ten minutes held up, 28 in one second."""


class Reason(StrEnum):
    """Why no further attempt is made."""

    PERMANENT = "permanent"
    """Sending the same again cannot help."""
    ATTEMPTS = "attempts"
    """All attempts were used."""
    DEADLINE = "deadline"
    """The next attempt would start after the deadline."""
    RETRY_AFTER = "retry-after"
    """The other side asks for a longer wait than we accept."""
    UNSAFE = "unsafe"
    """The call may have happened and must not happen twice."""
    UNKNOWN = "unknown"
    """Nobody recognised the failure, and repeating the call is not declared harmless."""
    CIRCUIT = "circuit"
    """The circuit is open."""
    UNWANTED = "unwanted"
    """The caller asked for no retry of this failure."""
    COMMANDED = "commanded"
    """Somebody asked to go on with the fallbacks."""
    UNREPAIRED = "unrepaired"
    """The repair for it could not help."""
    PARTIAL = "partial"
    """A part was delivered already, and the caller chose not to have it again."""
    NESTED = "nested"
    """A recovery inside this one has already done what could be done."""
    QUOTA = "quota"
    """Retries have used their share of the traffic."""
    BUDGET = "budget"
    """The budget is spent."""


class Again(msgspec.Struct, frozen=True):
    """Wait `delay` seconds, then call again."""

    delay: float
    of: int
    """Calls in all that this failure's schedule allows."""
    asked: bool = False
    """The other side asked for this wait."""


class GiveUp(msgspec.Struct, frozen=True):
    """Stop, and say why."""

    reason: Reason


Decision: TypeAlias = Again | GiveUp


class Retrying:
    """The retries of one operation.

    After `decide` returned `Again` you must wait that long and make the call, or give up for a reason of your own.
    """

    __slots__ = ("_circuit_waited", "_failures", "_last_wait", "_most", "_probes", "_waits", "attempts", "policy")

    def __init__(self, policy: Policy, *, waits: bool | None = None) -> None:
        self.policy = policy
        self._waits = bool(policy.wait_for_circuit) if waits is None else waits
        """It waits for open circuits."""
        self.attempts = 0
        """Calls made so far."""
        self._failures: dict[Schedule, int] = {}
        self._last_wait = 0.0
        self._circuit_waited = 0.0
        self._probes = 0
        """Calls that were probes of a circuit it waits for. They do not use up its attempts."""
        self._most = 0
        """Calls in all: as many as the most patient of the schedules met so far allows."""

    def decide(
        self,
        fault: Fault,
        *,
        now: float,
        deadline: float | None,
        rng: Rng,
        effect: Effect | None,
        wish: bool | None = None,
        prompt: bool = False,
        reopened: float | None = None,
    ) -> Decision:
        """Return what to do after the call that just ended in `fault`; `attempts` counts that call already.

        `wish` is what the caller says of this very failure: True, worth another call; False, not; None, nothing. `prompt`:
        where an open circuit is waited for, do not return later than it may, since no other will look at it in time.
        `reopened`: the call was a circuit's probe, and the circuit is open for so long again.
        """
        chance = None if prompt else rng
        if fault.code == "CIRCUIT_OPEN":
            return self._wait_for_circuit(fault.retry_after, now, deadline, chance)
        if (reason := self._forbidden(fault, effect, wish)) is not None:
            return GiveUp(reason)
        if reopened is not None and self._waits:
            # Who waits for a circuit and happens to be its probe has learned what all the others did who wait on.
            self._probes += 1
            return self._wait_for_circuit(reopened, now, deadline, chance)
        tries = self.policy.tries(fault, wished=bool(wish))
        # Each schedule counts its own failures: a rate limit after two blips starts at its first wait, and a blip after a
        # rate limit that was waited out has all its tries. The largest of their numbers bounds the whole.
        failures = self._failures[fault.schedule] = self._failures.get(fault.schedule, 0) + 1
        self._most = max(self._most, tries.attempts)
        if failures >= tries.attempts or self.attempts - self._probes >= self._most:
            return GiveUp(Reason.ATTEMPTS)
        asked = fault.retry_after
        if asked is not None and asked > self.policy.max_retry_after:
            return GiveUp(Reason.RETRY_AFTER)
        # A server that names its own delay knows more than our curve does; it is never cut short.
        delay = (
            tries.backoff.delay(failures, rng, self._last_wait)
            if asked is None
            else asked * (1 + self.policy.spread * rng.random())
        )
        if deadline is not None and now + delay >= deadline:
            return GiveUp(Reason.DEADLINE)
        self._last_wait = delay
        return Again(delay, self._most, asked is not None)

    def _wait_for_circuit(
        self, until_probe: float | None, now: float, deadline: float | None, rng: Rng | None
    ) -> Decision:
        """A refused call is no attempt, so its waits are counted here. They are spread, and no call is lost by that."""
        delay = until_probe or NEXT_PROBE_S
        waited = self._circuit_waited + delay
        if not self._waits or waited > LONGEST_CIRCUIT_WAIT_S:
            return GiveUp(Reason.CIRCUIT)
        if deadline is not None and now + delay >= deadline:
            return GiveUp(Reason.DEADLINE)
        if rng is not None:
            later = max(self.policy.spread, RETURN_SPREAD) * waited
            if deadline is not None:
                later = min(later, (deadline - now - delay) / 2)
            # The root makes long ones likelier: who has waited little crowds the beginning as it is.
            delay += later * math.sqrt(rng.random())
        self._circuit_waited += delay
        return Again(delay, self.attempts + 1, asked=True)

    def _forbidden(self, fault: Fault, effect: Effect | None, wish: bool | None) -> Reason | None:  # noqa: FBT001 - a verdict, not a switch
        if leaves_outcome_unknown(effect, fault):
            return Reason.UNSAFE
        if wish is not None:
            return None if wish else Reason.UNWANTED
        if fault.code in self.policy.per_code:
            return None
        if not fault.retryable and not _asks_for_patience(fault):
            return Reason.PERMANENT
        if fault.code == "SYS_UNKNOWN" and not repeats_unknown(effect):
            return Reason.UNKNOWN
        return None


def _asks_for_patience(fault: Fault) -> bool:
    """Whether the classifier ruled a retry out only because of the wait: how long to wait is the policy's to say (R31)."""
    asked = fault.retry_after
    return asked is not None and asked > PATIENCE_S and CATALOG[fault.code].retryable
