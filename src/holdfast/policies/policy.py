"""`Policy`: what to do about failures, as one frozen value; and the policies that come with Holdfast.

Invariant: a policy is checked when it is built. A policy that exists can be carried out.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, Unpack, get_args

import msgspec

from holdfast import options
from holdfast.faults import CATALOG, Code, InvalidError, Schedule
from holdfast.faults.catalog import suggested_codes
from holdfast.policies.backoff import Backoff, Tries
from holdfast.policies.circuit import GRADED, PROVIDER, Circuit
from holdfast.policies.hedge import Hedge
from holdfast.policies.profiles import ACTOR, HOLDFAST, PROFILES, STUD, Profile, ProfileName
from holdfast.policies.queue import PRIORITIES, Priority
from holdfast.policies.quota import Quota

if TYPE_CHECKING:
    from holdfast.faults import Fault
    from holdfast.policies.target import Target

Counts: TypeAlias = Literal["attempt", "operation"]
"""What a circuit counts."""

Mode: TypeAlias = Literal["recover", "observe", "off"]
"""What a recovery does. `recover` acts. `observe` makes the plain call and reports what it would have done. `off` makes the plain call."""
MODES: tuple[Mode, ...] = get_args(Mode)


DEFAULT_CIRCUIT = GRADED
"""The circuit of a policy that names none. The settings may have another for the target, which is used instead."""


DOCUMENT_CIRCUIT = PROVIDER.replace()
"""The circuit of a name that only a `ResilienceManager` has used. It is known by identity, as nobody named it."""


DEFAULT_PATIENCE = 120.0
"""The patience of a policy that names none, known by identity: `Policy(patience=120.0)` names one. It ends early where something
else could answer; a patience that somebody named does not."""

LONG_PATIENCE = 3600.0
"""The patience of `PATIENT` and `BATCH`, known by identity too. It is used up before a fallback answers, but it does not end a wait
for the user's own `concurrency` or `per_second`: a long line is no failure, and nobody wrote an hour."""


class PolicyOptions(TypedDict, total=False):
    """The options of `Policy`, for `Policy.replace`."""

    attempts: int | None
    backoff: Backoff | None
    timeout: float | None
    deadline: float | None
    patience: float | None
    circuit: Circuit | None
    concurrency: int | None
    waiting: int | None
    per_second: float | None
    burst: int
    retry_quota: Quota | None
    hedge: Hedge | None
    per_code: Mapping[Code, Tries]
    profile: ProfileName
    max_retry_after: float
    spread: float
    counts: Counts
    wait_for_circuit: bool | None
    priority: Priority
    quota_group: str | None
    has_fallback: bool | None


class Policy(options.Options, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """What to do about failures. `Policy()` is `INTERACTIVE`: a person waits for the answer.

    A policy is a frozen value: share it between calls, threads and targets. Wrong or unknown options raise `InvalidError`,
    which names the option.

        from holdfast import Policy, recover

        patient = Policy(attempts=5, timeout=30, deadline=300)

        @recover("claude", patient)
        async def answer(question: str) -> str: ...

        impatient = patient.replace(attempts=1)
    """

    attempts: int | None = None
    """Calls in all, the first included, for every kind of failure. None: by the failure. Failures that pass by themselves are
    then retried until the deadline."""
    backoff: Backoff | None = None
    """The delays between attempts, for every kind of failure. None: by the failure."""
    timeout: float | None = None
    """Seconds for one attempt. None: no limit of ours, so a call that hangs is not stopped; a client's own limit still holds. Only
    you know how long a healthy answer may take."""
    deadline: float | None = None
    """Seconds for everything: attempts, the delays between them, and an answer that is still coming. A fallback then has at
    least `timeout` more, or the deadline once more. None: no answer is cut, and `patience` limits the rest."""
    patience: float | None = DEFAULT_PATIENCE
    """Seconds in which further attempts start, where there is no deadline. An answer that is coming may take longer. If you name
    them, they are used up before a fallback answers, and also end the wait for a place or a start that `concurrency` or `per_second`
    gives. None: an hour of waiting; none at all for the profiles of the documents, whose schedules end by their number of attempts."""
    circuit: Circuit | None = DEFAULT_CIRCUIT
    """When to stop calling a target that is down. None: no circuit."""
    concurrency: int | None = None
    """Calls to one target that run at the same time; further calls wait. None: no limit."""
    waiting: int | None = None
    """Calls that may wait because of `concurrency`; further calls are rejected. None: any number."""
    per_second: float | None = None
    """Calls to one target that start per second; further calls wait. None: no limit."""
    burst: int = 1
    """Calls that may start at once after a quiet time, where `per_second` limits them."""
    retry_quota: Quota | None = None
    """Limit retries to a share of the traffic to one target, so that retries do not multiply an outage. None: no limit."""
    hedge: Hedge | None = None
    """Start a second call when the first is slow. Only async calls, and only if the effect may be repeated. None: never."""
    per_code: Mapping[Code, Tries] = {}
    """Attempts and delays for single error codes. A code that is listed here is retried even if it is not by default."""
    profile: ProfileName = "holdfast"
    """The profile that gives the attempts and delays of each kind of failure."""
    max_retry_after: float = 900.0
    """The longest requested delay that is accepted, in seconds. For a longer one, Holdfast gives up or falls back."""
    spread: float = 0.0
    """Add up to this share to a delay that the service requested, so that many callers do not return at once."""
    counts: Counts = "attempt"
    """What the circuit counts: each attempt, or one outcome per operation."""
    wait_for_circuit: bool | None = None
    """Wait for the next probe of an open circuit instead of failing at once. None: wait if no fallback could answer,
    the key was not denied, and `attempts` is not 1."""
    priority: Priority = "normal"
    """How the calls that wait for a target share it: `high` has 30 turns and `normal` 10 where `low` has 1. So none waits for
    ever."""
    quota_group: str | None = None
    """A name for a rate limit that several keys, models or deployments share, such as an organisation's. The calls of all
    policies with the same name start at one pace. None: each key and model has a limit of its own."""
    has_fallback: bool | None = None
    """True: something outside of Holdfast answers when a call has failed for good: a router, another library's fallback, an
    `except` of yours. Such a call fails soon: after three attempts, and at once where a circuit is open. False: the call is as
    patient as if nothing else could answer. None: it fails soon if a fallback or a kept answer could answer now, unless
    `patience` is named."""

    def __post_init__(self) -> None:
        options.count("policy.attempts", self.attempts, optional=True)
        options.seconds("policy.timeout", self.timeout, optional=True)
        options.seconds("policy.deadline", self.deadline, optional=True)
        options.seconds("policy.patience", self.patience, optional=True)
        options.count("policy.concurrency", self.concurrency, optional=True)
        options.count("policy.waiting", self.waiting, least=0, optional=True)
        options.above_zero("policy.per_second", self.per_second, optional=True)
        options.count("policy.burst", self.burst)
        options.seconds("policy.max_retry_after", self.max_retry_after, zero=True)
        options.share("policy.spread", self.spread, zero=True)
        options.one_of("policy.profile", self.profile, PROFILES)
        options.one_of("policy.counts", self.counts, get_args(Counts))
        options.one_of("policy.priority", self.priority, PRIORITIES)
        options.name("policy.quota_group", self.quota_group, optional=True)
        options.flag("policy.has_fallback", self.has_fallback, optional=True)
        options.flag("policy.wait_for_circuit", self.wait_for_circuit, optional=True)
        for name, kind in _PARTS.items():
            if not isinstance(getattr(self, name), kind | None):
                raise InvalidError.at(f"policy.{name}", f"{options.an(kind.__name__)} or None", getattr(self, name))
        self._check_pairs()
        _check_per_code(self.per_code)

    def _check_pairs(self) -> None:
        if self.burst != 1 and self.per_second is None:
            raise InvalidError.saying("policy.burst", "policy.per_second beside it", "no per_second")
        if self.waiting is not None and self.concurrency is None:
            raise InvalidError.saying("policy.waiting", "policy.concurrency beside it", "no concurrency")
        # An attempt longer than the deadline would never reach its own limit, so one of the two is a mistake.
        if self.timeout is not None and self.deadline is not None and self.timeout > self.deadline:
            raise InvalidError.at("policy.timeout", f"at most policy.deadline ({self.deadline:g} s)", self.timeout)

    def __reduce__(self) -> tuple[Any, ...]:
        # A circuit or a patience that nobody named is known by its identity, and a copy of it would count as named.
        given = msgspec.structs.asdict(self)
        unnamed = {"circuit": DEFAULT_CIRCUIT, "patience": DEFAULT_PATIENCE}
        named = {name: value for name, value in given.items() if value is not unnamed.get(name, _remade)}
        return _remade, (named, self.patience is LONG_PATIENCE)

    def replace(self, **changes: Unpack[PolicyOptions]) -> Policy:
        """Return a copy with some options changed. It is checked like a new policy and raises `InvalidError`."""
        return self._replaced(changes)

    @property
    def waits(self) -> bool | None:
        """Whether calls wait for an open circuit; None: where nothing else would answer."""
        # Somebody who wants one attempt does not want to wait for a chance to make it.
        return False if self.wait_for_circuit is None and self.attempts == 1 else self.wait_for_circuit

    @property
    def names_patience(self) -> bool:
        """Whether somebody chose for how many seconds attempts start: by a number, or by `PATIENT` or `BATCH`."""
        return self.patience is not None and self.patience is not DEFAULT_PATIENCE

    @property
    def has_own_patience(self) -> bool:
        """Whether the user wrote the seconds. They also limit the wait for a place or a start that the user's own limit gives."""
        return self.names_patience and self.patience is not LONG_PATIENCE

    @property
    def window(self) -> float | None:
        """Seconds in which attempts start: the deadline, or else the patience.

        The profiles of the documents limit attempts and no time, so a patience that nobody named does not cut their schedules.
        """
        if self.deadline is None and self.profile != HOLDFAST.name and self.patience is DEFAULT_PATIENCE:
            return None
        return self.patience if self.deadline is None else self.deadline

    def tries(self, fault: Fault, *, overridden: bool = False) -> Tries:
        """Return how often and when a call that ended in `fault` is made: by `per_code`, else this policy, else its profile.

        If the caller overrides the fault's retryability, a schedule without retries is replaced by that of transient faults.
        """
        own = self.per_code.get(fault.code)
        if own is not None:
            return own.jittered_after_cap() if PROFILES[self.profile].jitter_after_cap else own
        schedule = fault.schedule
        if overridden and schedule in _RARELY:
            schedule = Schedule.TRANSIENT
        # The usual case returns the profile's own value: this runs for each failure.
        if self.attempts is None and self.backoff is None:
            return PROFILES[self.profile].schedules[schedule]
        return _tries(self.profile, schedule, self.attempts, self.backoff)


# Remembered: it runs for each failure, and a checked value takes as long to build as the rest of a decision.
@lru_cache(maxsize=256)
def _tries(profile: ProfileName, schedule: Schedule, attempts: int | None, backoff: Backoff | None) -> Tries:
    """Return a profile's attempts and delays for a schedule, with the number and the delays that a policy names."""
    usual = PROFILES[profile].schedules[schedule]
    most = usual.attempts if attempts is None else attempts
    if schedule in _ONCE:
        # An unknown failure may not be transient at all, so a policy with many attempts must not hammer it.
        most = min(most or 2, usual.attempts or 2)
    tries = Tries(attempts=most, backoff=backoff or usual.backoff)
    return tries.jittered_after_cap() if PROFILES[profile].jitter_after_cap else tries


def _remade(given: dict[str, Any], is_long: bool = False) -> Policy:  # noqa: FBT001, FBT002 - pickle passes it by position
    """Return a policy that was pickled or deeply copied. `is_long`: its patience is that of `PATIENT` and `BATCH`."""
    return Policy(**{**given, "patience": LONG_PATIENCE}) if is_long else Policy(**given)


_ONCE = frozenset({Schedule.ONCE, Schedule.MATCHING})
# Schedules of failures that are retried once at most, or not at all, unless the caller overrides that.
_RARELY = frozenset({Schedule.NONE, Schedule.TOOL}) | _ONCE

_PARTS: dict[str, type] = {"backoff": Backoff, "circuit": Circuit, "retry_quota": Quota, "hedge": Hedge}


def _check_per_code(per_code: Mapping[Code, Tries]) -> None:
    if not isinstance(per_code, Mapping):
        raise InvalidError.at("policy.per_code", "a mapping of codes to Tries", per_code)
    for code, tries in per_code.items():
        if code not in CATALOG:
            raise InvalidError.at("policy.per_code", f"a code of the catalog ({suggested_codes(code)})", code)
        if not isinstance(tries, Tries):
            raise InvalidError.at(f"policy.per_code[{code}]", "a Tries", tries)


INTERACTIVE = Policy()
"""The default policy, for a person who waits: attempts start for 120 s. It does not stop a call that hangs: a client's own limit
does, or one that you name.

    recover("claude", INTERACTIVE)
    recover("claude", INTERACTIVE.replace(timeout=30))
"""

PATIENT = Policy(patience=LONG_PATIENCE, wait_for_circuit=True)
"""For work that matters while nobody waits: calls wait up to an hour for rate limits, overload and outages to pass.

    recover("claude", PATIENT)
"""

BATCH = Policy(patience=LONG_PATIENCE, spread=0.2, priority="low", wait_for_circuit=True)
"""For many calls at once: attempts start for an hour, requested delays are spread, and of the calls that wait a normal one has ten turns
for each of theirs.

    recover("claude", BATCH)
"""


DOCUMENT = Policy(
    profile="stud", circuit=DOCUMENT_CIRCUIT, timeout=STUD.timeout("llm-call"), patience=None, wait_for_circuit=False
)
"""The policy of a `ResilienceManager` where none is configured: the numbers of the documents (S1-8, S1-12)."""


def policy_of(profile: Profile, *operations: str) -> Policy:
    """Return the policy with the schedules, circuit and time limit of a profile.

    operations: the kind of operation, the most specific first, whose time limit it has; the profile's default without one.

    It limits attempts and no time in all, so every schedule comes to its end. It does not wait for an open circuit.

        from holdfast import recover
        from holdfast.profiles import policy_of, spec016

        recover("claude", policy_of(spec016, "llm-call"))
    """
    # The default policy has no timeout: that of its profile is for tools.
    if profile is HOLDFAST:
        return INTERACTIVE
    return Policy(
        profile=profile.name,
        circuit=profile.circuit,
        timeout=profile.timeout(*operations),
        patience=None,
        wait_for_circuit=False,
    )


def policy_at(policy: Policy, target: Target) -> Policy:
    """Return the policy of a whole program for one target: that of a profile has the time limit of what is called there."""
    profile = PROFILES[policy.profile]
    if profile is HOLDFAST or policy.timeout != profile.timeout():
        return policy
    seconds = profile.timeout(*target.operations)
    return policy if seconds == policy.timeout else policy.replace(timeout=seconds)


def names_timeout(policy: Policy, target: Target) -> bool:
    """Return whether somebody named the time limit of a policy that is configured for this very target: its profile has another there."""
    profile = PROFILES[policy.profile]
    # The default policy has no timeout: that of its profile is for tools.
    usual = None if profile is HOLDFAST else profile.timeout(*target.operations)
    return policy.timeout not in (None, usual)


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """One step of introducing recovery into a system, from classification only to everything. See `phase`."""

    number: int
    """1 to 4."""
    policy: Policy
    """The policy for calls in this phase."""
    supervision: bool = False
    """Whether actors are supervised in this phase."""


_ALL = policy_of(ACTOR)
_CLASSIFY = _ALL.replace(attempts=1, circuit=None, timeout=None, deadline=None, patience=None)
_RETRY = _ALL.replace(circuit=None)

PHASES = (
    Phase(number=1, policy=_CLASSIFY),
    Phase(number=2, policy=_RETRY),
    Phase(number=3, policy=_RETRY, supervision=True),
    Phase(number=4, policy=_ALL, supervision=True),
)
"""1 classification; 2 time limits and retries; 3 supervision; 4 circuits. Document 004 (S4-16) defines them."""


def phase(number: int) -> Phase:
    """Return a phase by its number; raise `InvalidError` for any other than 1 to 4.

    Phase 1 only classifies failures, 2 adds time limits and retries, 3 adds supervision, 4 adds circuits.

        from holdfast import recover
        from holdfast.profiles import phase

        recover("claude", phase(2).policy)
    """
    # `True == 1`, but `phase(True)` is a mistake.
    found = next((one for one in PHASES if one.number == number and not isinstance(number, bool)), None)
    if found is None:
        raise InvalidError.at("phase", "a number from 1 to 4", number)
    return found
