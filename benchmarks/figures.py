"""What a contender did on the traces of a kind, as figures. Samples of several seeds are pooled call by call."""

from __future__ import annotations

from bisect import bisect_left
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from benchmarks.inside.clairvoyant import best_calls
from benchmarks.inside.clients import DEADLINE_S, MODEL
from benchmarks.inside.traces import GOOD_ANSWER_S
from benchmarks.table import quantile
from holdfast.policies.models.prices import LIST_PRICES
from holdfast.policies.models.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from benchmarks.inside.clairvoyant import Call
    from benchmarks.inside.traces import Trace

BEST, BOUNDED = "clairvoyant", f"clairvoyant, {DEADLINE_S:g} s"
SOON_S = 30.0


class Sample(msgspec.Struct, frozen=True):
    """One contender through one trace."""

    took: list[float]
    """Seconds that each call took. One without an answer counts until the end of the trace, or until its error if nobody could answer it."""
    answered: int
    requests: int
    limited: int
    """Requests that got a 429."""
    lost: float
    """Seconds of all calls beyond the clairvoyant's."""
    beyond: float
    """Seconds of all calls beyond those of the clairvoyant with a deadline."""
    possible: int
    """Calls that the clairvoyant with a deadline answers."""
    used: float
    """What this contender answered by the time that clairvoyant is done, as a share of what that one answered."""
    backs: list[float]
    """For each return of the service: seconds to the first answer, beyond those of the clairvoyant with a deadline."""
    peaks: list[int]
    """For each return of the service: requests in the busiest second after it."""
    usd: float


class Figures(NamedTuple):
    """The pooled samples of a kind."""

    calls: int
    answered: int
    possible: int
    wasted: int
    p50: float
    p95: float
    regret: float
    beyond: float
    limited: float
    """Share of the requests that got a 429."""
    goodput: float
    back: float | None
    peak: int | None
    usd: float | None
    """For a thousand calls that were answered; None if none was."""


def sample(trace: Trace, played: dict[str, Any]) -> Sample:
    calls, arrivals = played["calls"], played["arrivals"]
    best, bounded = best_calls(trace), best_calls(trace, DEADLINE_S)
    took = _all_seconds(trace, calls)
    done = max((end for _, end, good in bounded if good), default=0.0)
    possible = sum(good for *_, good in bounded)
    # If no call is due after a return, nobody can notice it.
    returns = [moment for moment in trace.returns if moment < trace.due[-1]]
    usd = LIST_PRICES.cost(MODEL, Usage(**played["usage"])) if played["usage"] else 0.0
    assert usd is not None
    return Sample(
        took=[round(seconds, 3) for seconds in took],
        answered=sum(good for *_, good in calls),
        requests=len(arrivals),
        limited=played["limited"],
        lost=sum(took) - sum(_all_seconds(trace, best)),
        beyond=sum(took) - sum(_all_seconds(trace, bounded)),
        possible=possible,
        # The allowance is for floats and for a client's own delay before it sends.
        used=sum(good and end <= done + 0.1 for _, end, good in calls) / possible if possible else 1.0,
        backs=[_back(calls, moment) - _back(bounded, moment) for moment in returns],
        peaks=[_peak(arrivals, moment) for moment in returns],
        usd=usd * played["charged"],
    )


def best_played(trace: Trace, deadline: float = float("inf")) -> dict[str, Any]:
    """Return the clairvoyant's calls, as a contender's are played."""
    calls = best_calls(trace, deadline)
    sent = sorted(end - trace.call(place).answer_s for place, (_, end, good) in enumerate(calls) if good)
    return {"calls": calls, "arrivals": sent, "limited": 0, "charged": 0, "usage": None}


def pooled(samples: Sequence[Sample]) -> Figures:
    took = [seconds for one in samples for seconds in one.took]
    answered, requests = sum(one.answered for one in samples), sum(one.requests for one in samples)
    return Figures(
        calls=len(took),
        answered=answered,
        possible=sum(one.possible for one in samples),
        wasted=requests - answered,
        p50=quantile(took, 0.5),
        p95=quantile(took, 0.95),
        regret=sum(one.lost for one in samples) / len(took),
        beyond=sum(one.beyond for one in samples) / len(took),
        limited=sum(one.limited for one in samples) / max(1, requests),
        goodput=fmean(one.used for one in samples),
        back=_most(back for one in samples for back in one.backs),
        peak=_most(peak for one in samples for peak in one.peaks),
        usd=1000 * sum(one.usd for one in samples) / answered if answered else None,
    )


def _most(values: Iterable[Any]) -> Any:
    return max(values, default=None)


def _all_seconds(trace: Trace, calls: Sequence[Call]) -> list[float]:
    return [_seconds(trace, place, call) for place, call in enumerate(calls)]


def _seconds(trace: Trace, place: int, call: Call) -> float:
    due, end, good = call
    # What nobody can answer need not be done over: it is over when its caller knows.
    return (end if good or trace.call(place).is_hopeless else max(end, trace.seconds)) - due


def _back(calls: Sequence[Call], moment: float) -> float:
    """Return the seconds from the return of the service to the first answer to a later request."""
    return min((end - moment for _, end, good in calls if good and end >= moment + GOOD_ANSWER_S), default=float("inf"))


def _peak(arrivals: Sequence[float], moment: float) -> int:
    soon = arrivals[bisect_left(arrivals, moment) : bisect_left(arrivals, moment + SOON_S)]
    return max((bisect_left(soon, at + 1.0) - place for place, at in enumerate(soon)), default=0)
