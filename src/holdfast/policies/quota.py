"""The retry quota: retries are limited to a share of traffic, so that callers do not multiply the load of an outage.

Invariant: whenever a retry is granted, the retries of the last `window` seconds that were not given back are at most
`floor + share x calls` of the same seconds, in whatever order callers come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast import options
from holdfast.policies.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Quota", "QuotaMachine"]

_SLICES = 10
# As floats, 0.29 x 100 is 28.999999999999996. The 29th retry must still be granted.
_ROUNDING = 1e-9


class Quota(options.Options, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """How many retries and hedges all callers of one target may make together. Wrong options raise `InvalidError`.

    If the quota is spent, a failed call is not retried: it fails at once, or moves on to a fallback.

        from holdfast import Policy, Quota

        Policy(retry_quota=Quota(share=0.2))        # one retry for every five calls
    """

    share: float = 0.1
    """Retries per call: 0.1 allows one for every ten calls. 0: the floor only."""
    floor: float = 3.0
    """Retries per window that are always allowed, even with little traffic. 0: none."""
    window: float = 10.0
    """Seconds for which calls and retries are remembered."""

    def __post_init__(self) -> None:
        options.share("quota.share", self.share, zero=True)
        options.at_least("quota.floor", self.floor, 0)
        options.seconds("quota.window", self.window)


class QuotaMachine:
    """The state of one quota, shared by all callers of one target."""

    __slots__ = ("_calls", "_floor", "_retries", "_share", "called")

    called: Callable[[float], None]
    """`called(now)` records a first attempt, which earns a share of a retry."""

    def __init__(self, quota: Quota) -> None:
        self._share = quota.share
        self._floor = quota.floor + _ROUNDING
        slice_seconds = quota.window / _SLICES
        # Calls are forgotten up to a slice early and retries up to a slice late, so that slices never loosen the bound.
        self._calls = Tally(slice_seconds, _SLICES)
        self._retries = Tally(slice_seconds, _SLICES + 1)
        # The tally's own method, without a wrapper: every call of a user runs it.
        self.called = self._calls.add

    def withdraw(self, now: float) -> bool:
        """Withdraw one retry. False: the quota is spent and the retry must not be made."""
        if self._retries.total(now) + 1 > self._floor + self._share * self._calls.total(now):
            return False
        self._retries.add(now)
        return True

    def succeeded(self, now: float, retries: int = 1) -> None:
        """Give back the retries of an operation that succeeded, but never more than were withdrawn."""
        self._retries.take_back(now, retries)

    def left(self, now: float) -> int:
        """Return how many retries `withdraw` would grant now."""
        return max(0, int(self._floor + self._share * self._calls.total(now) - self._retries.total(now)))
