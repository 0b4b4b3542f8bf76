"""`Policy`: what to do about failures, as one frozen value, and the three that most people need.

Invariant: a policy is checked when it is made. Whatever survives construction can be performed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, Unpack, get_args

import msgspec

from holdfast import options
from holdfast.faults import CATALOG, Code, InvalidError, Schedule
from holdfast.faults.catalog import nearest
from holdfast.policies.backoff import Backoff, Tries
from holdfast.policies.circuit import PROVIDER, Circuit
from holdfast.policies.hedge import Hedge
from holdfast.policies.profiles import ACTOR, HOLDFAST, PROFILES, Profile, ProfileName
from holdfast.policies.quota import Quota

if TYPE_CHECKING:
    from holdfast.faults import Fault

__all__ = [
    "BATCH",
    "INTERACTIVE",
    "PATIENT",
    "PHASES",
    "Counts",
    "Phase",
    "Policy",
    "PolicyOptions",
    "phase",
    "policy_of",
]

Counts: TypeAlias = Literal["attempt", "operation"]


class PolicyOptions(TypedDict, total=False):
    """The options of `Policy`, for `Policy.replace`."""

    attempts: int | None
    backoff: Backoff | None
    timeout: float | None
    deadline: float | None
    circuit: Circuit | None
    concurrency: int | None
    waiting: int | None
    per_second: float | None
    retry_quota: Quota | None
    hedge: Hedge | None
    per_code: Mapping[Code, Tries]
    profile: ProfileName
    max_retry_after: float
    spread: float
    counts: Counts
    wait_for_circuit: bool | None


class Policy(options.Options, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """What to do about failures. `Policy()` is `INTERACTIVE`: somebody is waiting for the answer."""

    attempts: int | None = None
    """Calls in all, the first included, whatever failed. None: as the failure's schedule says (3, rate limits 6)."""
    backoff: Backoff | None = None
    """One curve for every failure. None: the failure's own."""
    timeout: float | None = 60.0
    """Seconds for one attempt. None: no limit."""
    deadline: float | None = 120.0
    """Seconds for all attempts and the waits between them; a fallback has at least `timeout` after it. None: no limit."""
    circuit: Circuit | None = PROVIDER
    """When to stop calling what is down. None: never."""
    concurrency: int | None = None
    """Calls in flight at once behind one name; more wait their turn."""
    waiting: int | None = None
    """Calls that may wait for their turn; more are refused. None: any number."""
    per_second: float | None = None
    """Calls started per second behind one name; more wait."""
    retry_quota: Quota | None = None
    """Retries as a share of the traffic behind one name, so that an outage is not multiplied."""
    hedge: Hedge | None = None
    """A second call when the first is late (async, and only where the effect may be repeated)."""
    per_code: Mapping[Code, Tries] = {}
    """Own numbers for single codes; they also retry a code that is not retried otherwise."""
    profile: ProfileName = "holdfast"
    """Whose numbers the schedules have."""
    max_retry_after: float = 900.0
    """The longest wait another side may ask for. Beyond it we do not sleep but move on."""
    spread: float = 0.0
    """Up to this share is added to a wait the other side asked for, so that many callers do not return at once."""
    counts: Counts = "attempt"
    """What the circuit counts: each attempt, or one outcome per operation (S1-19)."""
    wait_for_circuit: bool | None = None
    """Wait for an open circuit's next probe instead of failing over at once (R34). None: only a recovering client waits, and
    only where no fallback around it could answer."""

    def __post_init__(self) -> None:
        options.count("policy.attempts", self.attempts, optional=True)
        options.seconds("policy.timeout", self.timeout, optional=True)
        options.seconds("policy.deadline", self.deadline, optional=True)
        options.count("policy.concurrency", self.concurrency, optional=True)
        options.count("policy.waiting", self.waiting, least=0, optional=True)
        options.at_least("policy.per_second", self.per_second, 0, optional=True)
        options.seconds("policy.max_retry_after", self.max_retry_after, zero=True)
        options.share("policy.spread", self.spread, zero=True)
        options.one_of("policy.profile", self.profile, PROFILES)
        options.one_of("policy.counts", self.counts, get_args(Counts))
        options.flag("policy.wait_for_circuit", self.wait_for_circuit, optional=True)
        for name, kind in _PARTS.items():
            if not isinstance(getattr(self, name), kind | None):
                raise InvalidError.at(f"policy.{name}", f"a {kind.__name__} or None", getattr(self, name))
        self._check_pairs()
        _check_per_code(self.per_code)

    def _check_pairs(self) -> None:
        if self.per_second == 0:
            raise InvalidError.at("policy.per_second", "a number of calls > 0 or None", self.per_second)
        if self.waiting is not None and self.concurrency is None:
            raise InvalidError.saying("policy.waiting", "policy.concurrency beside it", "no concurrency")
        if self.timeout is not None and self.deadline is not None and self.timeout > self.deadline:
            raise InvalidError.at("policy.timeout", f"at most policy.deadline ({self.deadline:g} s)", self.timeout)

    def replace(self, **changes: Unpack[PolicyOptions]) -> Policy:
        """Return this policy with some options changed, checked like a new one."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in self.__struct_fields__}
        return Policy(**{**fields, **changes})

    def tries(self, fault: Fault, *, wished: bool = False) -> Tries:
        """Return how often and when a call that ended in `fault` may be made (C: call > code > profile).

        A retry that the caller wished for follows the schedule of transient failures where the failure's own has none.
        """
        own = self.per_code.get(fault.code)
        if own is not None:
            return own
        schedule = Schedule.TRANSIENT if wished and fault.schedule in _RARELY else fault.schedule
        usual = PROFILES[self.profile].schedules[schedule]
        if self.attempts is None and self.backoff is None:
            return usual
        attempts = usual.attempts if self.attempts is None else self.attempts
        if schedule is Schedule.ONCE:
            # What nobody understands is not made better by insisting.
            attempts = min(attempts, usual.attempts)
        return Tries(attempts=attempts, backoff=self.backoff or usual.backoff)


_RARELY = frozenset({Schedule.NONE, Schedule.ONCE, Schedule.TOOL})
"""Schedules of failures that nobody retries by himself."""

_PARTS: dict[str, type] = {"backoff": Backoff, "circuit": Circuit, "retry_quota": Quota, "hedge": Hedge}


def _check_per_code(per_code: Mapping[Code, Tries]) -> None:
    if not isinstance(per_code, Mapping):
        raise InvalidError.at("policy.per_code", "a mapping of codes to Tries", per_code)
    for code, tries in per_code.items():
        if code not in CATALOG:
            raise InvalidError.at("policy.per_code", f"a code of the catalog ({', '.join(nearest(code))}?)", code)
        if not isinstance(tries, Tries):
            raise InvalidError.at(f"policy.per_code[{code}]", "a Tries", tries)


INTERACTIVE = Policy()
"""Somebody is waiting: a minute per call, two in all."""

PATIENT = Policy(timeout=300.0, deadline=None, wait_for_circuit=True)
"""Nobody is waiting and the work matters: rate limits are sat out, open circuits waited for."""

BATCH = Policy(timeout=300.0, deadline=1800.0, spread=0.2, retry_quota=Quota(share=0.2), wait_for_circuit=True)
"""Many calls at once: waits are spread, and retries stay a fifth of the traffic."""


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
