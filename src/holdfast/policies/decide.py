"""Decide what happens after a failed attempt: every reason to retry, repair, fall back or give up is in this module.

    Facts ─▶ Decider.decide ─▶ Retry(delay) | RunRepair(index) | GiveUp(reason)
    a fallback step's facts ─▶ decide_fallback ─▶ Take | Ask | Skip(reason)

One `Decider` follows one operation. The runtime, the simulation and the tests all drive this same machine: it reads no
clock, and chance comes from the facts.

Invariant: a decision never asks for a wait that would end at or after the deadline, and never repeats a call that may have
happened and must not happen twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias, get_args

import msgspec

from holdfast.clock import Rng
from holdfast.faults import CATALOG, PATIENCE_S, Code, Fault, Schedule, Scope
from holdfast.policies.backoff import PLAIN_ATTEMPTS

if TYPE_CHECKING:
    from holdfast.policies.backoff import Backoff
    from holdfast.policies.fallback import Consent
    from holdfast.policies.policy import Policy
    from holdfast.policies.repair import Repairs

Effect: TypeAlias = Literal["read", "idempotent", "keyed", "unsafe"]
"""`read` changes nothing; `idempotent` may be repeated; `keyed` may be repeated with the same key; `unsafe` may not."""

EFFECTS: tuple[Effect, ...] = get_args(Effect)

TIME_LIMITS: frozenset[Code] = frozenset({"PROVIDER_TIMEOUT", "PROVIDER_STREAM_STALLED", "TOOL_TIMEOUT", "SYS_TIMEOUT"})
"""Failures by a time limit of ours or the caller's: an impatient caller says nothing about the service."""

AfterFirst: TypeAlias = Literal["raise", "continue", "restart"]
"""What a failure after the first item of a stream does: raise with the items that arrived; go on where it broke off; begin
again."""

Why: TypeAlias = Literal["backoff", "requested", "circuit", "turn", "another-key", "proposed"]
"""Why a retry waits as long as it does: by its schedule, as the other side requested, for a circuit, for its turn at a limited
target, because another key is tried, or as a driver with rules of its own proposed."""

_WOKEN = frozenset({"circuit", "turn"})
"""Waits that end as soon as the target may be called."""

NEXT_PROBE_S = 1.0
"""When to look again at a circuit that another caller is probing."""
LONGEST_WAIT_S = 3600.0
"""How long one operation waits in all if it has no deadline. Without this limit, it could wait for ever."""
BEFORE_FALLBACK = 3
"""Attempts before a fallback answers, where no number limits them."""
BEFORE_LESSER_ANSWER = 9
"""Attempts before a degraded answer, where no number and no named time limits them: about 18 s. It is worth waiting for a real answer,
but a person who gets "sorry" should get it while still there."""
SHORT_WAIT_S = 5.0
"""How long a call waits for its turn although it does not wait for circuits."""
BEFORE_FALLBACK_S = 0.25
"""Seconds in which a call waits for its turn, from the first wait on, although a fallback could answer: as long as a burst is spread.
Longer waits bring the primary call no more answers, because the others of the same limit get its turn."""
LONGEST_BEFORE = {BEFORE_FALLBACK: 8.0, BEFORE_LESSER_ANSWER: 20.0}
"""The most seconds that are waited in all because the service names delays, before something else answers: as long as the longest delay
of our own schedules, and about as long as the attempts before a degraded answer take."""
NO_SUCH_NAME = 3
"""Attempts at a host whose name does not exist, where no number limits them: it is misspelt, and no time helps against that."""
SHORTEST_TRUSTED_S = 1.0
"""A requested delay of at least so many seconds is always kept to. A shorter one may be a default that nobody chose: an
operation keeps to it once, and again only if the backoff begins with one as short."""
LAST_TURN = 0.98
LAST_SPREAD = 0.08
"""A call whose turn comes too late by the present estimate waits for this share of the time it has left, or up to so much less."""
_PLAIN_S, _PLAIN_CAP_S, _PLAIN_JITTER = 0.5, 8.0, 0.25
"""The first and the longest delay of the SDKs, and the share by which each may be shorter."""
FRESH_S = 20.0
"""A limit that was seen within so many seconds still holds."""
RETURN_SPREAD = 0.2
"""A caller that waited for a circuit returns up to this share of its wait later than it may, so that callers
return one after the other. Of 600 callers that an outage of ten minutes held up, 28 return in the same second."""


class Reason(StrEnum):
    """Why no further attempt is made."""

    PERMANENT = "permanent"
    """Sending the same request again cannot help."""
    ATTEMPTS = "attempts"
    """All attempts were used."""
    DEADLINE = "deadline"
    """The next attempt would start after the deadline."""
    RETRY_AFTER = "retry-after"
    """The other side requests a longer wait than the policy accepts."""
    UNSAFE = "unsafe"
    """The call may have happened and must not happen twice."""
    UNKNOWN = "unknown"
    """The failure is not recognised, and repeating the call is not declared harmless."""
    UNDECLARED = "undeclared"
    """The call of a tool, or a POST that the failure shows, may have happened, and nothing declares whether it may be repeated."""
    RUNNING = "still-running"
    """The call still runs in a thread, and a second one beside it is not declared harmless."""
    ONE_SHOT = "one-shot"
    """An argument can be read only once, and the failed call has read it."""
    CIRCUIT = "circuit"
    """The circuit is open."""
    MAKES_WAY = "makes-way"
    """The target has failed for a while or names a long delay, and something else can answer now."""
    FULL = "full"
    """All places of the user's own `concurrency` are taken, and no further call may wait for one."""
    UNWANTED = "unwanted"
    """The caller does not want this failure retried."""
    NOT_REPEATABLE = "not-repeatable"
    """The request cannot be sent twice: its method or its body does not allow it."""
    COMMANDED = "commanded"
    """A person chose the fallbacks."""
    UNREPAIRED = "unrepaired"
    """The repair for this failure did not help."""
    PARTIAL = "partial"
    """A part of the stream was delivered, and the caller chose not to receive it again."""
    NESTED = "nested"
    """A recovery inside this one has already done what could be done."""
    QUOTA = "quota"
    """Retries have used their share of the traffic."""
    BUDGET = "budget"
    """The budget is spent."""
    PATIENCE = "patience"
    """It has no deadline, and an hour of waiting has not helped."""
    POISON = "poison"
    """The service fails on this request each time, and answers others meanwhile."""


class Retry(msgspec.Struct, frozen=True):
    """Wait `delay` seconds, then call again."""

    then: ClassVar[str] = "retry"
    """How the history of the attempts names this decision."""

    delay: float
    of: int | None
    """Calls in all that this failure's schedule allows. None: no number limits them, only the deadline does."""
    why: Why = "backoff"
    at_once: bool = False
    """After this wait the call is made in any case, although its turn has not come: its time would end before."""

    @property
    def requested(self) -> bool:
        """Whether the other side determined this wait."""
        return self.why == "requested"

    @property
    def elsewhere(self) -> bool:
        """Whether the next attempt goes to another key or deployment: then it is not a retry of the same call."""
        return self.why == "another-key"


class RunRepair(msgspec.Struct, frozen=True):
    """Have the repair number `index` change the request, then call at once."""

    then: ClassVar[str] = "repair"

    index: int


class GiveUp(msgspec.Struct, frozen=True):
    """Stop, and let the failure through."""

    reason: Reason

    @property
    def then(self) -> str:
        """How the history of the attempts names this decision: by its reason."""
        return self.reason


Decision: TypeAlias = Retry | RunRepair | GiveUp


def _no_quota() -> bool:
    return True


def _not_used_up() -> bool:
    return False


class Facts(msgspec.Struct, kw_only=True):
    """What is known when an attempt has failed, or was rejected before it was made."""

    fault: Fault
    now: float
    rng: Rng
    attempts: int
    """Calls made so far, the failed one included; calls that moved on to another key are not counted."""
    deadline: float | None = None
    effect: Effect | None = None
    is_tool: bool = False
    """The call is a tool's, which may change the world: without a declared effect it is not repeated if it may have happened."""
    shows_request: bool = False
    """The failure itself shows a request that may not be sent twice, such as a POST to a shop."""
    is_running: bool = False
    """The failed call was left behind in its thread and still runs."""
    override: bool | None = None
    """The caller's own rule for this failure: True to retry it, False not to, None if there is no rule for it."""
    final: Reason | None = None
    """A reason to give up whatever the failure is: a person chose so, a part was delivered, or a repair failed."""
    proposal: Retry | GiveUp | None = None
    """The decision that an integration proposes. It replaces the schedule, not the protections of the caller."""
    nested: bool = False
    """A recovery inside this operation has given up on the same failure."""
    budget_spent: bool = False
    waits_for_circuit: bool = False
    open_until: float | None = None
    """When the circuit stops rejecting calls; infinity while it is held open; None if it rejects nothing."""
    makes_way_until: float | None = None
    """Until when calls that a fallback could answer are not made, because the target fails; None: they are made."""
    reopened_for: float | None = None
    """The failed call was a probe, and its circuit is now open again for so many seconds."""
    lasts: float = 0.0
    """The target answers most of its calls, so what failed is over after so many seconds; 0: nobody can say."""
    is_poison: bool = False
    """By what became of other requests, the service fails because of this one, and works for others."""
    before_another: int | None = None
    """Attempts before something else answers: a fallback, or a lesser answer; None: nothing else would answer, or its time was named."""
    limited_for: float = math.inf
    """Seconds since the other side last rejected a call because there were too many, or announced that it would."""
    rejected: bool = False
    """No call was made: a circuit or a limiter rejected it."""
    is_full: bool = False
    """The user's own `concurrency` rejected it. Whether and how long calls wait for a place is the user's choice."""
    no_such_name: bool = False
    """The name of the host does not exist, as far as the resolver knows."""
    is_in_vain: bool = False
    """A time limit ended the call, and the next may end so, too. Its answer may have been on the way, and paid for."""
    is_window_open: bool = False
    """Nobody named the time in which attempts start."""
    bare_attempts: int = 1
    """Attempts that the client would make without us."""
    moves_on: bool = False
    """An attempt may go to another key at once."""
    has_moved: bool = False
    """One did."""
    only_we_read_delay: bool = False
    """The requested delay does not stand in `Retry-After`, so no SDK reads it: it is the reset of a limit, or in the body."""
    first_to_wait: bool = False
    """No other caller waits for the circuit, so this one must return the moment it may."""
    withdraw_retry: Callable[[], bool] = _no_quota
    """Takes one retry from the shared quota; False where it is used up."""
    arguments_used_up: Callable[[], bool] = _not_used_up
    """Whether an argument, such as a generator, has been read and cannot be read again."""


class Decider:
    """The decisions of one operation. It remembers failures by schedule, circuit waits and used repairs.

    After `decide` returned `Retry` or `RunRepair` the caller performs it, or gives up for a reason of its own.
    """

    __slots__ = (
        "_failures",
        "_hurried",
        "_last_delay",
        "_last_turn",
        "_most",
        "_owed",
        "_slept",
        "_timeouts",
        "_turn_asked",
        "_waited",
        "_went_at_once",
        "policy",
        "repairs",
    )

    def __init__(self, policy: Policy, repairs: Repairs | None = None) -> None:
        self.policy = policy
        self.repairs = repairs
        self._failures: dict[Schedule, int] = {}
        self._last_delay = 0.0
        self._owed = 0.0
        """Seconds that a requested delay was shorter than the backoff's first, to be made up for."""
        self._hurried = False
        """A requested delay shorter than the backoff's first was kept to, and the call failed again."""
        self._waited = 0.0
        """Seconds of all waits, as long as they were meant to be."""
        self._timeouts = 0
        """Calls that a time limit ended, and nothing shows that another will not end so."""
        self._turn_asked: float | None = None
        """When it first had to wait for its turn."""
        self._last_turn: float | None = None
        """When it is made although it is not its turn; None: its turn comes before its time is over."""
        self._went_at_once = False
        self._slept = 0.0
        """Seconds of the waits that nothing ends early."""
        self._most: int | None = 0
        """Calls in all: the largest number that any schedule met so far allows. None: any number."""

    def decide(self, facts: Facts) -> Decision:
        """Return what to do about the failure."""
        if facts.final is not None:
            return GiveUp(facts.final)
        # A repair wins over a retry: it changes what made the call fail.
        if self.repairs is not None and (repair := self._repair(self.repairs, facts)) is not None:
            return repair
        # A proposal comes before the check for nested recoveries: an integration may move on to another key.
        if facts.proposal is not None:
            decision = self._allow_proposal(facts.proposal, facts)
        elif facts.nested:
            decision = GiveUp(Reason.NESTED)
        else:
            decision = self._by_schedule(facts)
        return self._grant(decision, facts) if isinstance(decision, Retry) else decision

    def _repair(self, repairs: Repairs, facts: Facts) -> RunRepair | None:
        # Chosen last, because choosing a repair uses it up.
        if leaves_outcome_unknown(facts.effect, facts.fault) or facts.budget_spent or _is_late(facts, 0.0):
            return None
        if _is_running_beside(facts) or facts.arguments_used_up():
            return None
        chosen = repairs.choose(facts.fault)
        return None if chosen is None else RunRepair(chosen)

    def _allow_proposal(self, proposal: Retry | GiveUp, facts: Facts) -> Retry | GiveUp:
        if leaves_outcome_unknown(facts.effect, facts.fault):
            return GiveUp(Reason.UNSAFE)
        if isinstance(proposal, Retry) and _is_running_beside(facts):
            return GiveUp(Reason.RUNNING)
        if isinstance(proposal, Retry) and _is_late(facts, proposal.delay):
            return GiveUp(Reason.DEADLINE)
        return proposal

    def _by_schedule(self, facts: Facts) -> Retry | GiveUp:
        fault = facts.fault
        if leaves_outcome_unknown(facts.effect, fault):
            return GiveUp(Reason.UNSAFE)
        if fault.code == "CIRCUIT_OPEN":
            return self._wait_for_circuit(fault.retry_after, facts)
        if facts.rejected and fault.code == "SYS_RATE_LIMITED":
            return self._wait_for_turn(fault.retry_after, facts)
        if facts.is_full and facts.override is None and fault.code not in self.policy.per_code:
            return GiveUp(Reason.DEADLINE if _is_late(facts, 0.0) else Reason.FULL)
        if (reason := self._forbidden(facts)) is not None:
            return GiveUp(reason)
        tries = self.policy.tries(fault, overridden=bool(facts.override))
        # Each schedule counts its own failures. So a rate limit after two network errors starts at its first delay, and
        # a network error after a rate limit has all its attempts. The schedule with the most attempts limits the whole
        # operation.
        schedule = fault.schedule
        failures = self._failures[schedule] = self._failures.get(schedule, 0) + 1
        attempts = tries.attempts or _unless_chosen(facts)
        self._most = None if self._most is None or attempts is None else max(self._most, attempts)
        if attempts is not None and failures >= attempts:
            return GiveUp(Reason.ATTEMPTS)
        if self._most is not None and facts.attempts >= self._most:
            return GiveUp(Reason.ATTEMPTS)
        self._timeouts += facts.is_in_vain
        if self._timeouts >= max(PLAIN_ATTEMPTS, facts.bare_attempts) and tries.attempts is None:
            return GiveUp(Reason.ATTEMPTS)
        if facts.reopened_for is not None and facts.waits_for_circuit and facts.attempts >= facts.bare_attempts:
            # This call was a probe, and it failed. So the circuit stays open, and the operation waits for the next one. The
            # attempts that the plain client makes come as soon as its own.
            return self._wait_for_circuit(facts.reopened_for, facts)
        return self._back_off(tries.backoff, failures, facts)

    def _is_poison(self, facts: Facts) -> bool:
        """Whether the service fails because of this very request, so that further attempts are in vain. The plain client's are made."""
        if facts.fault.code != "PROVIDER_INTERNAL_ERROR" or facts.fault.retry_after is not None:
            return False
        if self.policy.tries(facts.fault).attempts is not None:
            return False
        return facts.is_poison and facts.attempts >= facts.bare_attempts

    def _back_off(self, backoff: Backoff, failures: int, facts: Facts) -> Retry | GiveUp:
        """Return the wait before the next attempt: as the other side requested, or by the schedule."""
        fault, policy = facts.fault, self.policy
        is_chosen = policy.backoff is not None or fault.code in policy.per_code
        # The profiles of the documents keep to their own numbers.
        is_default = not is_chosen and policy.profile == "holdfast"
        is_plain = is_default and facts.attempts < facts.bare_attempts
        requested = fault.retry_after
        if is_plain and facts.only_we_read_delay and fault.schedule is not Schedule.RATE_LIMIT:
            # When a limit is back says nothing about an outage.
            requested = None
        if is_default and requested is not None and self._makes_way(requested, facts):
            return GiveUp(Reason.MAKES_WAY)
        if requested is not None and self._is_too_long(requested, facts):
            # Nobody named a time for the call, and the plain client waits as long, if it reads the delay. Else its attempts come first.
            is_due = is_default and facts.attempts == facts.bare_attempts if facts.only_we_read_delay else is_plain
            if is_due and facts.is_window_open and requested <= self.policy.max_retry_after:
                self._waited += requested
                return Retry(requested, self._most or None, "requested")
            if not is_plain:
                return GiveUp(Reason.RETRY_AFTER if requested > self.policy.max_retry_after else Reason.DEADLINE)
            # It does not fit into the time of the call. The plain client's attempts are made all the same.
            requested = None
        if requested is not None and self._is_too_quick(
            requested, backoff, facts, trusts=is_plain and not facts.moves_on
        ):
            requested = None
        if requested is None and is_plain:
            # As the plain client: where a second or third attempt helps, no call may be slower than without us. Our own schedule
            # begins when the plain client has given up.
            self._failures[fault.schedule] -= 1
            return self._wait(_plain_delay(facts), facts, "backoff")
        delay = self._delay(requested, backoff, failures, facts)
        if requested is None and not is_chosen and delay < facts.lasts:
            # Sooner it would meet the same failure. Delays that somebody chose are kept.
            delay = facts.lasts * (1 + RETURN_SPREAD * facts.rng.random())
        return self._wait(delay, facts, "backoff" if requested is None else "requested")

    def _makes_way(self, requested: float, facts: Facts) -> bool:
        """Whether the service names a longer delay than a call waits for where something else could answer now."""
        most = None if self.policy.attempts is not None else LONGEST_BEFORE.get(facts.before_another or 0)
        return most is not None and self._waited + requested > most

    def _is_too_long(self, requested: float, facts: Facts) -> bool:
        return requested > self.policy.max_retry_after or _is_late(facts, requested)

    def _delay(self, requested: float | None, backoff: Backoff, failures: int, facts: Facts) -> float:
        # A server that names a delay knows more than our backoff curve, so its delay is never shortened.
        delay = (
            backoff.delay(failures, facts.rng, self._last_delay) + self._owed
            if requested is None
            else requested * (1 + self.policy.spread * facts.rng.random())
        )
        if requested is None:
            self._owed = 0.0
        self._last_delay = delay
        return delay

    def _is_too_quick(self, requested: float, backoff: Backoff, facts: Facts, *, trusts: bool) -> bool:
        """Whether a requested delay is shorter than the backoff begins with, and is zero or such a delay was kept to before.

        Servers send `Retry-After: 0` as a default: it names no time, and the SDKs do not read it either. A client that believes a tiny
        delay each time sends thousands of requests. So only the attempts of the plain client keep to it each time, and otherwise one
        does, unless it has tried other keys at once already. The time that was saved is added to the next delay of the backoff, so that
        no more requests are sent than without the header.
        """
        first = min(backoff.wait(1), SHORTEST_TRUSTED_S)
        if requested >= first:
            return False
        if requested and not facts.has_moved and (trusts or not self._hurried):
            self._hurried, self._owed = True, self._owed + first - requested
            return False
        return True

    def _wait(self, delay: float, facts: Facts, why: Why) -> Retry | GiveUp:
        if _is_late(facts, delay):
            return GiveUp(Reason.DEADLINE)
        self._waited += delay
        if why not in _WOKEN:
            # The waits alone use up the time. A test that skips them would never come to the deadline.
            self._slept += delay
            window = self.policy.window
            is_plain = facts.is_window_open and facts.attempts < facts.bare_attempts
            if window is not None and self._slept >= window and not is_plain:
                return GiveUp(Reason.DEADLINE)
        # The profiles of the documents name attempts and no time, so their schedules end by their own number.
        is_counted = self._most is not None and self.policy.profile != "holdfast" and why not in _WOKEN
        if not is_counted and self._waited > max(LONGEST_WAIT_S, self.policy.window or 0.0):
            return GiveUp(Reason.PATIENCE)
        return Retry(delay, self._most or None, why)

    def _wait_for_turn(self, until_turn: float | None, facts: Facts) -> Retry | GiveUp:
        """Wait until the other side accepts more calls. The wait is an estimate: the pace may rise before it is over."""
        delay = until_turn or NEXT_PROBE_S
        if self._turn_asked is None:
            self._turn_asked = facts.now
        waits = SHORT_WAIT_S if facts.before_another is None else self._turn_asked + BEFORE_FALLBACK_S - facts.now
        if not facts.waits_for_circuit and delay > waits:
            if facts.before_another is None and self.policy.wait_for_circuit is None:
                # Nothing else would answer, and it does not wait: it does what the plain call does.
                return self._go_at_once()
            return GiveUp(Reason.CIRCUIT)
        left = math.inf if facts.deadline is None else facts.deadline - facts.now
        if delay < left:
            return self._wait(delay, facts, "turn")
        # What was learned may spread calls, and never refuses one. At the end of its time it is made in any case, unless the
        # other side has rejected another one just before, or this one.
        if self._last_turn is None:
            wait = left * (LAST_TURN - LAST_SPREAD * facts.rng.random())
            self._last_turn = facts.now + wait
            return self._wait(wait, facts, "turn")
        if facts.now < self._last_turn:
            # It was woken, and others were faster. Its wait is counted already.
            return Retry(self._last_turn - facts.now, self._most or None, "turn")
        if facts.attempts >= facts.bare_attempts or facts.limited_for < FRESH_S:
            return GiveUp(Reason.DEADLINE)
        return self._go_at_once()

    def _go_at_once(self) -> Retry | GiveUp:
        if self._went_at_once:
            return GiveUp(Reason.DEADLINE)
        self._went_at_once = True
        return Retry(0.0, self._most or None, "turn", at_once=True)

    def _wait_for_circuit(self, until_probe: float | None, facts: Facts) -> Retry | GiveUp:
        """Wait for the next probe. A rejected call is not an attempt, so these waits have a limit of their own."""
        # If no time is known, other callers are probing the circuit or a person holds it open. Look again soon.
        delay = until_probe or NEXT_PROBE_S
        if not facts.waits_for_circuit:
            return GiveUp(Reason.CIRCUIT)
        if not facts.first_to_wait and not _is_late(facts, delay):
            delay += self._spread(self._waited + delay, delay, facts)
        return self._wait(delay, facts, "circuit")

    def _spread(self, waited: float, delay: float, facts: Facts) -> float:
        """Return the extra seconds that this caller waits, so that not all waiting callers return at once."""
        later = max(self.policy.spread, RETURN_SPREAD) * waited
        if facts.deadline is not None:
            # Half of the time that is left before the deadline is for the call itself.
            later = min(later, (facts.deadline - facts.now - delay) / 2)
        # The square root makes long delays likelier. Callers that waited only a short time already crowd the beginning.
        return later * math.sqrt(facts.rng.random())

    def _forbidden(self, facts: Facts) -> Reason | None:
        # From the strictest to the loosest rule: a second call beside the first, the caller's rules, the policy's rules, the classifier.
        fault = facts.fault
        if _is_running_beside(facts):
            return Reason.RUNNING
        if facts.override is not None:
            # A caller that names the failure to retry declares that the call may be repeated after it.
            return None if facts.override else Reason.UNWANTED
        may_do_harm = (facts.is_tool or facts.shows_request) and facts.effect is None
        if may_do_harm and fault.maybe_executed and fault.retryable:
            return Reason.UNDECLARED
        if fault.code in self.policy.per_code:
            return None
        if not fault.retryable and not _is_final_only_by_patience(fault):
            return Reason.PERMANENT
        if fault.code == "SYS_UNKNOWN" and not is_repeatable(facts.effect):
            return Reason.UNKNOWN
        return Reason.POISON if self._is_poison(facts) else None

    def _grant(self, retry: Retry, facts: Facts) -> Retry | GiveUp:
        """Check what else must agree to another call. The quota comes last, because checking it takes a retry from it."""
        if facts.budget_spent:
            return GiveUp(Reason.BUDGET)
        if facts.arguments_used_up():
            return GiveUp(Reason.ONE_SHOT)
        rejected_then = facts.open_until is not None and facts.now + retry.delay < facts.open_until
        if rejected_then and not facts.waits_for_circuit:
            # The wait would end at an open circuit. The caller whose failure opened it should see that failure now.
            return GiveUp(Reason.CIRCUIT)
        if facts.makes_way_until is not None and facts.now + retry.delay < facts.makes_way_until:
            # The call would not be made after the wait. Its caller should see its own failure, and the fallback answers now.
            return GiveUp(Reason.MAKES_WAY)
        # A call that a circuit rejected was not made, so the attempt after the wait is not a retry of it.
        if facts.fault.code == "CIRCUIT_OPEN" or facts.rejected or facts.withdraw_retry():
            return retry
        return GiveUp(Reason.QUOTA)


def gives_up_at_once(*, waits: bool) -> bool:
    """Whether an operation whose first call a circuit rejected ends there. It goes on only if it waits for circuits."""
    return not waits


def stays_open(reason: Code | None) -> bool:
    """Whether a circuit that this failure opened stays open until a person acts: a denied key stays denied."""
    return reason is not None and CATALOG[reason].scope is Scope.CREDENTIAL and not CATALOG[reason].retryable


def leaves_outcome_unknown(effect: Effect | None, fault: Fault) -> bool:
    """Whether the call may have happened and must not happen twice: first the outcome must be found out."""
    return effect == "unsafe" and fault.maybe_executed


def _is_running_beside(facts: Facts) -> bool:
    """Whether a second call would run beside the first one, and that is not declared harmless."""
    return facts.is_running and not is_repeatable(facts.effect)


def is_repeatable(effect: Effect | None) -> bool:
    """Whether a call with this effect may be repeated although the first one may have happened."""
    return effect in {"read", "idempotent", "keyed"}


def _unless_chosen(facts: Facts) -> int | None:
    """Return how many calls are made in all where nobody chose a number; None: any number."""
    most = facts.before_another
    return min(most or NO_SUCH_NAME, NO_SUCH_NAME) if facts.no_such_name else most


def _plain_delay(facts: Facts) -> float:
    """Return the delay of the SDKs of OpenAI and Anthropic before their next attempt."""
    delay = min(_PLAIN_S * 2.0 ** (facts.attempts - 1), _PLAIN_CAP_S)
    return float(delay * (1 - _PLAIN_JITTER * facts.rng.random()))


def _is_late(facts: Facts, delay: float) -> bool:
    return facts.deadline is not None and facts.now + delay >= facts.deadline


def _is_final_only_by_patience(fault: Fault) -> bool:
    """Whether the classifier rules out a retry only because of the long wait. How long to wait is the policy's choice (R31)."""
    requested = fault.retry_after
    return requested is not None and requested > PATIENCE_S and CATALOG[fault.code].retryable


# --- fallback steps ---


class Take(msgspec.Struct, frozen=True):
    """Call this step."""


class Ask(msgspec.Struct, frozen=True):
    """Call this step if the user agrees."""


class Skip(msgspec.Struct, frozen=True):
    """Leave this step out."""

    reason: str


# After these failures a fallback would hide a defect, repeat what may have happened, or answer a caller that has left.
_NEVER_ANSWERED: frozenset[Code] = frozenset(
    {
        "SYS_PROGRAMMING_ERROR",
        "TOOL_OUTCOME_UNKNOWN",
        "SYS_CANCELLED",
        # An earlier run of the program has done it, or another process is about to.
        "SESS_STEP_DRIFT",
        "SESS_MANIFEST_DRIFT",
        "SESS_LEASE_LOST",
    }
)


def can_fall_back(fault: Fault, *, effect: Effect | None = None, wrong_arguments: bool = False) -> bool:
    """Whether a fallback may answer this failure at all.

    `effect` is that of the function that failed. `wrong_arguments`: it raised a `TypeError`, and no tool was called. Only
    the arguments of a tool come from a model; other wrong arguments are a defect of the program.
    """
    if fault.code == "TOOL_INPUT_INVALID" and wrong_arguments:
        return False
    return fault.code not in _NEVER_ANSWERED and not leaves_outcome_unknown(effect, fault)


def may_resume(after_first: AfterFirst, *, inside_tool_call: bool) -> bool:
    """Whether a stream that broke after its first item may go on or begin again, as its caller chose.

    Inside a tool call it may not: the arguments of a call are never put together from two answers.
    """
    return after_first != "raise" and not inside_tool_call


def decide_fallback(
    *,
    condition_met: bool,
    circuit_open: bool,
    needs: frozenset[str] = frozenset(),
    offers: frozenset[str] | None = None,
    consent: Consent = "configured",
    budget_spent: bool = False,
    arguments_used_up: bool = False,
    time_over: bool = False,
) -> Take | Ask | Skip:
    """Return what to do about one step of a fallback chain. `offers` is None where the step's capabilities are not known."""
    # The circuit is checked before consent: a user is not bothered with a step that would be rejected.
    if budget_spent:
        return Skip("the budget is spent")
    if time_over:
        return Skip("the time of the fallbacks is over")
    if arguments_used_up:
        return Skip("an argument, such as a generator, can be read only once")
    if not condition_met:
        return Skip("its condition is not met")
    if offers is not None and (missing := needs - offers):
        return Skip(f"it lacks {', '.join(sorted(missing))}")
    if circuit_open:
        return Skip("its circuit is open")
    return Ask() if consent == "ask" else Take()
