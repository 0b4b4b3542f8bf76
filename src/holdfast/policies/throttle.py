"""Turn calls away here that would be refused over there: adaptive client throttling (Google SRE book, chapter 21).

Invariant: a call is turned away with a probability below 1, so that somebody always notices the recovery (R89).
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
    """When to turn calls away before they are sent."""

    k: float = 2.0
    """How many calls per accepted one are let through: 2 wastes one refused call for each good one, 1.1 hardly any."""
    window: float = 120.0
    """Seconds that outcomes are remembered."""

    def __post_init__(self) -> None:
        options.at_least("throttle.k", self.k, 1)
        options.seconds("throttle.window", self.window)


class ThrottleMachine:
    """The state of one throttle, shared by all callers of one name.

    A call counts when its end is known. The book counts it when it is sent, which is the same for short calls; for
    those of an LLM it would take fifty calls in flight for fifty refusals.
    """

    __slots__ = ("_accepted", "_k", "_not_accepted", "accepted", "refused")

    def __init__(self, throttle: Throttle) -> None:
        self._k = throttle.k
        slice_seconds = throttle.window / _SLICES
        self._accepted = Tally(slice_seconds, _SLICES)
        self._not_accepted = Tally(slice_seconds, _SLICES)
        # Every call comes through one of these: the tally's own methods, without a frame of ours around them.
        self.accepted = self._accepted.add
        """`accepted(now)`: the other side took the call, whatever came of it."""
        self.refused = self._not_accepted.add
        """`refused(now)`: the other side was overloaded or down. A cancelled call is neither."""

    def admit(self, now: float, rng: Rng) -> bool:
        """Return whether to send a call; one that is turned away is counted as not accepted."""
        risk = self.risk(now)
        if risk <= 0.0 or rng.random() >= risk:
            return True
        self._not_accepted.add(now)
        return False

    def risk(self, now: float) -> float:
        """Return the probability, from 0 and below 1, that `admit` turns a call away."""
        not_accepted = self._not_accepted.total(now)
        if not not_accepted:
            return 0.0
        accepted = self._accepted.total(now)
        calls = accepted + not_accepted
        return max(0.0, (calls - self._k * accepted) / (calls + 1))
