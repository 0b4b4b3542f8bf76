"""`simulate_load`: play a limit that depends on the callers' own load under a policy, in virtual time.

    report = simulate_load(INTERACTIVE, Load(kind="bucket", rate=2), seed=1)

The runtime itself makes the calls, and the limit is the fault provider's own: nothing here decides. `holdfast policy simulate`
shows the result, and `benchmarks recovery` plays the same limits with an SDK's client.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import msgspec

from holdfast import options
from holdfast.classify.hints import AnnouncedLimit, AnnouncedLimits
from holdfast.events import Retry
from holdfast.events.lines import WAITS_FOR
from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.policies.simulation import Moment, SimulationReport
from holdfast.policies.target import Target
from holdfast.runtime.ambient import AMBIENT
from holdfast.runtime.operation.operation import Operation
from holdfast.runtime.recover import recover
from holdfast.runtime.runtime import Runtime
from holdfast.testing.clock import VirtualClock, seeded
from holdfast.testing.loop import run
from holdfast.testing.provider.limits import Limit, Limits

if TYPE_CHECKING:
    from random import Random

    from holdfast.events import Event
    from holdfast.policies import Policy
    from holdfast.runtime.recover import Recovery
    from holdfast.testing.provider.limits import Standing

LoadKind: TypeAlias = Literal["bucket", "silent-bucket", "tokens", "burst", "concurrency"]
"""`bucket`: half as many requests as come are accepted, and headers and Retry-After announce it. `silent-bucket`: nothing
announces it. `tokens`: the same for tokens, announced. `burst`: the operations of 20 s come at once, and a fifth of the rate
is accepted; nothing announces it. `concurrency`: the operations of 10 s come at once, and at most 0.8 s of them run at the same
time."""
LOAD_KINDS: tuple[LoadKind, ...] = get_args(LoadKind)

MOST_OPERATIONS = 20_000
"""More would take minutes, because each of them is a real call of the runtime."""
TOKENS = 300
"""Of each call."""
_BURST_AT_S = 5.0
_BURST_OF_S = 20.0
_CROWD_OF_S = 10.0


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """The load, and the limit that it meets. Wrong values raise `InvalidError`.

    Load(kind="tokens", rate=2, duration=180)
    """

    kind: LoadKind = "bucket"
    limit: Limit | None = None
    """The limit; None: one that fits the kind and the rate."""
    rate: float = 10.0
    """Operations per second."""
    duration: float = 120.0
    """Seconds in which operations begin; each of them is played to its end."""
    answers_in: float = 0.5
    """Seconds a good call takes."""

    def __post_init__(self) -> None:
        options.one_of("load.kind", self.kind, LOAD_KINDS)
        options.at_least("load.rate", self.rate, 0.001)
        options.seconds("load.duration", self.duration)
        options.seconds("load.answers_in", self.answers_in, zero=True)
        if self.rate * self.duration > MOST_OPERATIONS:
            raise InvalidError.at("load.rate", f"at most {MOST_OPERATIONS:,} operations in all", self.rate)

    @property
    def enforced(self) -> Limit:
        """The limit that is enforced."""
        if self.limit is not None:
            return self.limit
        half = max(1.0, 30.0 * self.rate)
        seconds = max(1.0, 2.5 * self.rate)
        match self.kind:
            case "bucket":
                return Limit(requests=half, burst=seconds)
            case "silent-bucket":
                return Limit(requests=half, burst=seconds, headers=False, retry_after=False)
            case "tokens":
                return Limit(tokens=half * TOKENS, burst=seconds * TOKENS)
            case "burst":
                burst = max(1.0, self.rate)
                return Limit(requests=max(1.0, 12 * self.rate), burst=burst, headers=False, retry_after=False)
            case _:
                return Limit(concurrency=max(1, round(0.8 * self.rate)), headers=False)

    def due(self, rng: Random) -> list[float]:
        """Draw when operations begin."""
        if self.kind in ("burst", "concurrency"):
            crowd = _BURST_OF_S if self.kind == "burst" else _CROWD_OF_S
            return [_BURST_AT_S] * max(1, round(self.rate * crowd))
        moments = []
        at = rng.expovariate(self.rate)
        while at < self.duration:
            moments.append(at)
            at += rng.expovariate(self.rate)
        return moments


def simulate_load(policy: Policy, load: Load, seed: int = 1) -> SimulationReport:
    """Play the load under a policy and return the result. The same seed gives the same result."""
    return _Play(policy, load, seed).report()


class _Play:
    """One load in virtual time, and what became of its operations."""

    def __init__(self, policy: Policy, load: Load, seed: int) -> None:
        self.load = load
        self.clock = VirtualClock()
        self.limits = Limits([load.enforced])
        self.runtime = Runtime(clock=self.clock, rng=seeded(seed))
        self.runtime.on(self._waits, Retry)
        target = Target(provider="simulated", model="model", credential="key")
        self.recovery: Recovery = recover(target, policy, runtime=self.runtime)
        self.due = load.due(seeded(seed))
        self.moments: list[Moment] = []
        self.hit: set[str] = set()
        self.calls = self.wasted = self.succeeded = self.recovered = self.blocked = 0

    def report(self) -> SimulationReport:
        run(self._all(), clock=self.clock)
        return SimulationReport(
            operations=len(self.due),
            calls=self.calls,
            wasted_calls=self.wasted,
            succeeded=self.succeeded,
            hit=len(self.hit),
            recovered=self.recovered,
            blocked=self.blocked,
            time_to_recovery=None,
            seconds=tuple(self.moments),
        )

    async def _all(self) -> None:
        await asyncio.gather(*map(self._operation, self.due))

    async def _operation(self, due: float) -> None:
        await asyncio.sleep(due)
        runs: list[str] = []
        try:
            await self.recovery.call(self._call, runs)
        except HoldfastError as error:
            # No call was made, or none that counted: it waited for its turn, or its turn would have come too late.
            self.blocked += error.fault.code in WAITS_FOR
        else:
            self._moment().good += 1
            self.succeeded += 1
            self.recovered += bool(self.hit.intersection(runs))

    async def _call(self, runs: list[str]) -> None:
        op = AMBIENT.get()
        assert isinstance(op, Operation)
        runs.append(op.run)
        self.calls += 1
        admission = self.limits.admit("key", "model", tokens=TOKENS, at=self.clock.monotonic())
        rejection = admission.rejection
        if (announced := _announced(admission.standings)) is not None:
            op.plan.announced(announced, op.attempt_started, accepted=rejection is None)
        if rejection is not None:
            self.wasted += 1
            self._moment().failed += 1
            self.hit.add(op.run)
            raise HoldfastError(Fault.of("PROVIDER_RATE_LIMITED", retry_after=rejection.seconds))
        try:
            await asyncio.sleep(self.load.answers_in)
        finally:
            self.limits.release(admission)

    def _waits(self, event: Event) -> None:
        if isinstance(event, Retry) and event.fault.code in WAITS_FOR:
            self._moment().blocked += 1
            self.hit.add(event.run)

    def _moment(self) -> Moment:
        second = math.floor(self.clock.monotonic())
        while len(self.moments) <= second:
            self.moments.append(Moment())
        return self.moments[second]


def _announced(standings: tuple[Standing, ...]) -> AnnouncedLimits | None:
    """Return what the headers of an answer would announce."""
    found = {
        standing.kind: AnnouncedLimit(standing.limit, standing.remaining, max(0.001, standing.seconds))
        for standing in standings
    }
    return AnnouncedLimits(found.get("requests"), found.get("tokens")) if found else None
