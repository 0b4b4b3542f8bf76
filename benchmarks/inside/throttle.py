"""Adaptive throttling: reject calls locally that an overloaded service would reject anyway (Google SRE book, chapter 21).

Invariant: a call is rejected with a probability below 1, so that some call always notices the recovery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast import options
from holdfast.policies.tally import Tally

if TYPE_CHECKING:
    from holdfast.clock import Rng

__all__ = ["Throttle", "ThrottleMachine"]

_SLICES = 12


class Throttle(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """When to reject calls before they are sent."""

    k: float = 2.0
    """Calls that are sent per accepted call. 2 lets one call fail for each accepted one, 1.1 lets one fail for ten."""
    window: float = 120.0
    """Seconds for which outcomes are remembered."""

    def __post_init__(self) -> None:
        options.at_least("throttle.k", self.k, 1)
        options.seconds("throttle.window", self.window)


class ThrottleMachine:
    """The state of one throttle, shared by all callers of one target.

    A call counts when it has ended. The book counts it when it is sent, which makes no difference for short calls. A call
    to a model takes long: fifty calls in flight would look like fifty rejected ones.
    """

    __slots__ = ("_accepted", "_k", "_not_accepted", "accepted", "rejected")

    def __init__(self, throttle: Throttle) -> None:
        self._k = throttle.k
        slice_seconds = throttle.window / _SLICES
        self._accepted = Tally(slice_seconds, _SLICES)
        self._not_accepted = Tally(slice_seconds, _SLICES)
        # The tally's own methods, without a wrapper: every call of a user runs one of them.
        self.accepted = self._accepted.add
        """`accepted(now)`: the service accepted the call, whether it then succeeded or failed."""
        self.rejected = self._not_accepted.add
        """`rejected(now)`: the service was overloaded or down. A cancelled call is neither accepted nor rejected."""

    def admit(self, now: float, rng: Rng) -> bool:
        """Return whether to send a call. A call that is not sent counts as rejected by the service."""
        risk = self.risk(now)
        if risk <= 0.0 or rng.random() >= risk:
            return True
        self._not_accepted.add(now)
        return False

    def risk(self, now: float) -> float:
        """Return the probability, at least 0 and below 1, that `admit` rejects a call."""
        not_accepted = self._not_accepted.total(now)
        if not not_accepted:
            return 0.0
        accepted = self._accepted.total(now)
        calls = accepted + not_accepted
        return max(0.0, (calls - self._k * accepted) / (calls + 1))
