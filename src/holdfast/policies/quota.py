"""Retries as a share of traffic, with a floor: an outage is not multiplied by those who suffer from it.

Invariant: whenever a retry is granted, the retries of the last `window` seconds that were not given back are at most
`floor + share x calls` of the same seconds, whatever the interleaving (R35).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast import options
from holdfast.policies.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Quota", "QuotaMachine"]

_SLICES = 10
_ROUNDING = 1e-9
"""0.29 x 100 is 28.999999999999996; the 29th retry is still due."""


class Quota(options.Options, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """How many retries (hedges included) may be made among the calls behind one name."""

    share: float = 0.1
    """Retries per call: 0.1 allows one for every ten calls. 0: the floor only."""
    floor: float = 3.0
    """Retries per window that are allowed however little traffic there is (R38). 0: none."""
    window: float = 10.0
    """Seconds that calls and retries are remembered."""

    def __post_init__(self) -> None:
        options.share("quota.share", self.share, zero=True)
        options.at_least("quota.floor", self.floor, 0)
        options.seconds("quota.window", self.window)


class QuotaMachine:
    """The state of one quota, shared by all callers of one name."""

    __slots__ = ("_calls", "_floor", "_retries", "_share", "called")

    called: Callable[[float], None]
    """`called(now)`: a first attempt is made. It earns a share of a retry."""

    def __init__(self, quota: Quota) -> None:
        self._share = quota.share
        self._floor = quota.floor + _ROUNDING
        slice_seconds = quota.window / _SLICES
        # Calls are forgotten a little early and retries a little late, so that slices never loosen the bound.
        self._calls = Tally(slice_seconds, _SLICES)
        self._retries = Tally(slice_seconds, _SLICES + 1)
        # Every call comes through here: the tally's own method, without a frame of ours around it.
        self.called = self._calls.add

    def ask(self, now: float) -> bool:
        """Withdraw one retry; False where the quota is spent and the retry must not be made."""
        if self._retries.total(now) + 1 > self._floor + self._share * self._calls.total(now):
            return False
        self._retries.add(now)
        return True

    def succeeded(self, now: float, retries: int = 1) -> None:
        """Give back what an operation had withdrawn before it succeeded, and never more than is out (R39)."""
        self._retries.take_back(now, retries)

    def left(self, now: float) -> int:
        """Return how many retries `ask` would grant at once."""
        return max(0, int(self._floor + self._share * self._calls.total(now) - self._retries.total(now)))
