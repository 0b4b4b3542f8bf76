"""How long to wait before the next attempt: a curve, a cap and some chance.

Invariant: a delay is finite, never negative, and never above the cap; only a curve that says `jitter_after_cap` may
exceed it, by its own jitter (document 001 has it so).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import msgspec

from holdfast import options
from holdfast.faults import InvalidError

if TYPE_CHECKING:
    from holdfast.clock import Rng

__all__ = ["Backoff", "Curve", "Jitter"]

Curve: TypeAlias = Literal["exponential", "linear", "fixed"]
Jitter: TypeAlias = Literal["none", "full", "equal", "decorrelated"]


class Backoff(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """A waiting curve. `Backoff()` waits 1, 2, 4 … seconds, each ±20 %, at most 30.

    Retries are counted from 1: retry 1 is the wait after the first call failed.
    """

    initial: float = 1.0
    """Seconds before the first retry. 0 retries at once."""
    factor: float = 2.0
    """What each wait of an exponential curve is multiplied by."""
    cap: float = 30.0
    """No wait is longer."""
    jitter: float | Jitter = 0.2
    """A share (0.2 spreads each wait over ±20 %) or a strategy.

    `full`: anywhere from 0 to the wait; `equal`: from half of it; `decorrelated`: from `initial` to three times the last.
    """
    curve: Curve = "exponential"
    """`exponential` multiplies, `linear` adds `initial` each time, `fixed` stays."""
    steps: tuple[float, ...] = ()
    """The waits one by one, in place of a curve; the last one repeats (S0-5: 1, 2, 5, 10, 30)."""
    jitter_after_cap: bool = False
    """Cap first, then jitter, so that a wait may exceed the cap by its jitter (S1-9)."""

    def __post_init__(self) -> None:
        options.seconds("backoff.initial", self.initial, zero=True)
        options.at_least("backoff.factor", self.factor, 1)
        options.seconds("backoff.cap", self.cap, zero=True)
        options.one_of("backoff.curve", self.curve, get_args(Curve))
        if isinstance(self.jitter, str):
            options.one_of("backoff.jitter", self.jitter, get_args(Jitter))
        else:
            options.share("backoff.jitter", self.jitter, zero=True)
        if not isinstance(self.steps, (tuple, list)):
            raise InvalidError.at("backoff.steps", "a list of seconds", self.steps)
        for index, step in enumerate(self.steps):
            options.seconds(f"backoff.steps[{index}]", step, zero=True)
            if step > self.cap:
                raise InvalidError.at(f"backoff.steps[{index}]", f"at most backoff.cap ({self.cap:g})", step)
        options.flag("backoff.jitter_after_cap", self.jitter_after_cap)
        if not self.steps and self.cap < self.initial:
            raise InvalidError.at("backoff.cap", f"at least backoff.initial ({self.initial:g})", self.cap)

    def delay(self, retry: int, rng: Rng, previous: float = 0.0) -> float:
        """Return the seconds to wait before retry number `retry` (from 1); `previous` is the last wait, 0 at first."""
        if self.jitter == "decorrelated":
            base = self.steps[0] if self.steps else self.initial
            return min(self.cap, base + rng.random() * max(0.0, 3 * (previous or base) - base))
        wait = self.wait(retry)
        return self._jittered(wait, rng) if self.jitter_after_cap else min(self.cap, self._jittered(wait, rng))

    def wait(self, retry: int) -> float:
        """Return the curve's own value before any jitter, capped."""
        if self.steps:
            return min(self.cap, self.steps[min(retry, len(self.steps)) - 1])
        if self.curve == "fixed":
            return min(self.cap, self.initial)
        if self.curve == "linear":
            return min(self.cap, self.initial * retry)
        try:
            return min(self.cap, self.initial * self.factor ** (retry - 1))
        except OverflowError:  # 2.0 ** 5000: far beyond any cap (R5)
            return self.cap if self.initial else 0.0

    def shortest(self, retry: int) -> float:
        """Return the shortest wait that chance may pick for `retry`."""
        match self.jitter:
            case "decorrelated":
                return min(self.cap, self.steps[0] if self.steps else self.initial)
            case "full":
                return 0.0
            case "equal":
                return self.wait(retry) / 2
            case "none":
                return self.wait(retry)
            case share:
                return self.wait(retry) * (1 - share)

    def longest(self, retry: int) -> float:
        """Return the longest wait that chance may pick for `retry`: what a worst case adds up."""
        if self.jitter == "decorrelated":
            return self.cap
        spread = self.jitter if isinstance(self.jitter, (int, float)) else 0.0
        wait = self.wait(retry) * (1 + spread)
        return wait if self.jitter_after_cap else min(self.cap, wait)

    def _jittered(self, wait: float, rng: Rng) -> float:
        match self.jitter:
            case "none":
                return wait
            case "full":
                return wait * rng.random()
            case "equal":
                return wait * (0.5 + rng.random() / 2)
            case share:
                # `decorrelated` was answered by `delay`; what is left is a number.
                return wait * (1 + float(share) * (2 * rng.random() - 1)) if share else wait
