"""The best that anybody could do on a trace: computed, because it needs no client.

Without limits: one request at the first moment when the service answers it; none for a call that no moment answers. With a limit on the load: the calls in the order of their
deadlines, each as soon as the bucket allows. All calls have the same time to their deadline, so that order is first come, first served.
Dropping a call that cannot be answered in time leaves its place to the next one, so no other schedule answers more calls.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import msgspec

from benchmarks.inside.traces import GOOD_ANSWER_S, TOKENS
from holdfast.testing.provider import Limits

if TYPE_CHECKING:
    from benchmarks.inside.traces import Trace

    Call = tuple[float, float, bool]
    """When it was due, when it ended, and whether it was answered."""


def best_calls(trace: Trace, deadline: float = float("inf")) -> list[Call]:
    """Return what becomes of the calls of a trace if each may take `deadline` seconds.

    The deadline is for the wait and an answer of the usual length: as in our default policy, a longer answer that has begun may go on.
    """
    starts = _scheduled(trace, deadline) if trace.limits else [trace.next_good(due, trace.call(place)) for place, due in enumerate(trace.due)]  # fmt: skip
    return [
        (due, start + trace.call(place).answer_s, True) if _is_in_time(start, due, deadline) else (due, due, False)
        for place, (due, start) in enumerate(zip(trace.due, starts, strict=True))
    ]


def _is_in_time(start: float, due: float, deadline: float) -> bool:
    """Whether a call that is sent at `start` keeps its deadline; one that is never sent does not."""
    return start < float("inf") and start + GOOD_ANSWER_S - due <= deadline


def _scheduled(trace: Trace, deadline: float) -> list[float]:
    """Return when each call is sent; never, if that would be too late."""
    (limit,) = trace.limits
    if limit.concurrency is not None:
        return _in_places(trace, limit.concurrency, deadline)
    # What the limit announces to clients may be nothing or wrong; a clairvoyant knows the truth.
    limits = Limits([msgspec.structs.replace(limit, retry_after=True, lie=1.0)])
    starts: list[float] = []
    at = 0.0
    for due in trace.due:
        at = max(at, due)
        start = _next_place(limits, at, due + deadline - GOOD_ANSWER_S)
        starts.append(start)
        at = start if start < float("inf") else at
    return starts


def _next_place(limits: Limits, at: float, latest: float) -> float:
    while at <= latest:
        admission = limits.admit("", "", tokens=TOKENS, at=at)
        if admission.rejection is None:
            return at
        assert admission.rejection.seconds is not None
        at += admission.rejection.seconds
    return float("inf")


def _in_places(trace: Trace, places: int, deadline: float) -> list[float]:
    """Return when each call is sent if so many may be answered at the same time."""
    ends = [0.0] * places
    starts: list[float] = []
    for due in trace.due:
        start = max(due, ends[0])
        in_time = start + GOOD_ANSWER_S <= due + deadline
        starts.append(start if in_time else float("inf"))
        if in_time:
            heapq.heapreplace(ends, start + GOOD_ANSWER_S)
    return starts
