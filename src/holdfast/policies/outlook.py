"""Forecast what a policy does: its waits, and the most calls and seconds that one operation can take.

Invariant: no run of the policy makes more calls or takes longer than the worst case computed here. Delays that the other
side requests come on top of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.faults import CATALOG, Code, Fault, Schedule

if TYPE_CHECKING:
    from holdfast.policies.backoff import Tries
    from holdfast.policies.policy import Policy

SHOWN = 6
"""Waits that are listed, plus one, where no number limits the attempts."""


class WaitRange(msgspec.Struct, frozen=True, kw_only=True):
    """The shortest and the longest wait before one retry."""

    retry: int
    """Counted from 1."""
    least: float
    most: float


class Outlook(msgspec.Struct, frozen=True, kw_only=True):
    """The course of an operation in which every call fails in the same way."""

    what: str
    """The schedule, or the code that has one of its own."""
    codes: tuple[Code, ...]
    """Which failures it is for."""
    calls: int | None
    """Calls at most. None: as many as the deadline allows."""
    waits: tuple[WaitRange, ...]
    seconds: float | None
    """The longest time it can take, if every call reaches its time limit. None: nothing limits it."""
    reached: int
    """Retries that can happen before the deadline, if every call fails at once and every wait is the shortest."""


def outlook(policy: Policy) -> tuple[Outlook, ...]:
    """Return what the policy does about each class of failures that has a schedule, then about its own codes."""
    return (*_schedules(policy), *_own_codes(policy))


def _schedules(policy: Policy) -> list[Outlook]:
    found = []
    for schedule in Schedule:
        codes = tuple(
            entry.code
            for entry in CATALOG.values()
            if entry.schedule is schedule and entry.retryable and entry.code not in policy.per_code
        )
        # All codes of a schedule are retried alike, so the first stands for them.
        if codes:
            found.append(_outlook_of(policy, schedule.value, codes, policy.tries(Fault.of(codes[0]))))
    return found


def _own_codes(policy: Policy) -> list[Outlook]:
    return [_outlook_of(policy, code, (code,), tries) for code, tries in policy.per_code.items()]


def _outlook_of(policy: Policy, what: str, codes: tuple[Code, ...], tries: Tries) -> Outlook:
    backoff = tries.backoff
    retries = range(1, tries.attempts or SHOWN)
    waits = tuple(
        WaitRange(retry=retry, least=backoff.shortest(retry), most=backoff.longest(retry)) for retry in retries
    )
    return Outlook(
        what=what,
        codes=codes,
        calls=tries.attempts,
        waits=waits,
        seconds=_longest(policy, tries.attempts, waits),
        reached=_reached(policy.window, waits),
    )


def _longest(policy: Policy, calls: int | None, waits: tuple[WaitRange, ...]) -> float | None:
    if policy.timeout is None:
        # Without a timeout, a single call may use up the whole deadline. Where there is none, the call's own limits decide.
        return policy.deadline
    # The last attempt may start when the time for attempts is nearly over.
    ends = policy.deadline if policy.deadline is not None or policy.window is None else policy.window + policy.timeout
    if calls is None:
        return ends
    whole = calls * policy.timeout + sum(wait.most for wait in waits)
    return whole if ends is None else min(whole, ends)


def _reached(deadline: float | None, waits: tuple[WaitRange, ...]) -> int:
    # The best case: if even the shortest waits pass the deadline, the retry never happens.
    waited = 0.0
    for done, wait in enumerate(waits):
        waited += wait.least
        if deadline is not None and waited >= deadline:
            return done
    return len(waits)
