"""How often and when to retry: `Backoff` is the delay before each retry, `Tries` is a number of calls with a backoff.

Invariant: a delay is finite, never negative, and never above the cap. Only a backoff with `jitter_after_cap` may exceed
the cap, by its jitter; document 001 requires that.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import msgspec

from holdfast import options
from holdfast.faults import InvalidError

if TYPE_CHECKING:
    from holdfast.clock import Rng

_LEAST_SCALE = 0.5
"""Scaled jitter multiplies a delay by 0.5 to 1.5."""

PLAIN_ATTEMPTS = 3
"""Attempts that a provider's own client makes. What we have learned holds back few of these."""

Curve: TypeAlias = Literal["exponential", "linear", "fixed"]
Jitter: TypeAlias = Literal["none", "full", "equal", "scaled", "decorrelated"]


class Backoff(options.Options, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """The delay before each retry. `Backoff()` waits 1, 2, 4 … seconds, each ±20 %, at most 30.

    Retries are counted from 1: retry 1 follows the first call. Wrong options raise `InvalidError`.

        from holdfast import Backoff, Policy

        Policy(backoff=Backoff(initial=0.5, cap=10))        # 0.5, 1, 2, 4, 8, 10, 10 … seconds
        Policy(backoff=Backoff(steps=(1, 5, 30)))           # 1, 5, 30, 30 … seconds
    """

    initial: float = 1.0
    """Seconds before the first retry. 0 retries at once."""
    factor: float = 2.0
    """An exponential curve multiplies each delay by this."""
    cap: float = 30.0
    """The longest delay in seconds."""
    jitter: float | Jitter = 0.2
    """A share (0.2 spreads each delay over ±20 %) or a strategy.

    `full`: from 0 to the delay; `equal`: from half of it; `scaled`: from half of the curve's delay to one and a half of it, and
    only then the cap; `decorrelated`: from `initial` to three times the last delay.
    """
    curve: Curve = "exponential"
    """`exponential` multiplies by `factor`, `linear` adds `initial` each time, `fixed` stays at `initial`."""
    steps: tuple[float, ...] = ()
    """The delays one by one, in place of a curve. The last one repeats."""
    jitter_after_cap: bool = False
    """Apply the cap before the jitter, so that a delay may exceed the cap by its jitter."""

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
        if isinstance(self.steps, list):
            # A tuple like any other: the value stays frozen, can be a key, and equals the one written with a tuple.
            msgspec.structs.force_setattr(self, "steps", tuple(self.steps))
        options.flag("backoff.jitter_after_cap", self.jitter_after_cap)
        if not self.steps and self.cap < self.initial:
            raise InvalidError.at("backoff.cap", f"at least backoff.initial ({self.initial:g})", self.cap)

    def delay(self, retry: int, rng: Rng, previous: float = 0.0) -> float:
        """Return the seconds to wait before retry `retry` (from 1). `previous` is the last delay, 0 at first."""
        if self.jitter == "decorrelated":
            base = self.steps[0] if self.steps else self.initial
            return min(self.cap, base + rng.random() * max(0.0, 3 * (previous or base) - base))
        if self.jitter == "scaled":
            return min(self.cap, self._curve(retry) * (_LEAST_SCALE + rng.random()))
        wait = self.wait(retry)
        return self._jittered(wait, rng) if self.jitter_after_cap else min(self.cap, self._jittered(wait, rng))

    def at_least(self, retry: int, rng: Rng, previous: float = 0.0) -> float:
        """Return the delay before a restart: as `delay`, but a share of jitter only lengthens it.

        What restarts must have the delay that was asked for; a caller that retries had better not come with the others.
        """
        if isinstance(self.jitter, str) or not self.jitter:
            return self.delay(retry, rng, previous)
        longer = self.wait(retry) * (1 + float(self.jitter) * rng.random())
        return longer if self.jitter_after_cap else min(self.cap, longer)

    def wait(self, retry: int) -> float:
        """Return the delay before retry `retry` without jitter, capped."""
        return min(self.cap, self._curve(retry))

    def _curve(self, retry: int) -> float:
        """Return the delay before retry `retry` without jitter and without the cap."""
        if self.steps:
            return self.steps[min(retry, len(self.steps)) - 1]
        if self.curve == "fixed":
            return self.initial
        if self.curve == "linear":
            return self.initial * retry
        try:
            return self.initial * self.factor ** (retry - 1)
        except OverflowError:  # 2.0 ** 5000 does not fit a float; it is far beyond any cap (R5)
            return inf if self.initial else 0.0

    def shortest(self, retry: int) -> float:
        """Return the shortest delay that jitter may give for `retry`."""
        match self.jitter:
            case "decorrelated":
                return min(self.cap, self.steps[0] if self.steps else self.initial)
            case "full":
                return 0.0
            case "equal":
                return self.wait(retry) / 2
            case "scaled":
                return min(self.cap, self._curve(retry) * _LEAST_SCALE)
            case "none":
                return self.wait(retry)
            case share:
                return self.wait(retry) * (1 - share)

    def longest(self, retry: int) -> float:
        """Return the longest delay that jitter may give for `retry`."""
        if self.jitter == "decorrelated":
            return self.cap
        if self.jitter == "scaled":
            return min(self.cap, self._curve(retry) * (_LEAST_SCALE + 1))
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
                # `delay` handles "scaled" and "decorrelated" itself, so `share` is a number here. A share of 0 draws no random
                # number: schedules without jitter must not disturb the sequence of a seeded source.
                return wait * (1 + float(share) * (2 * rng.random() - 1)) if share else wait


class Tries(options.Options, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """How often a call is made, with the delays of `backoff` between attempts. Wrong options raise `InvalidError`.

    Attempts count calls: three attempts are three calls and two delays. There is no delay after the last call.

        from holdfast import Backoff, Policy, Tries

        Policy(per_code={"PROVIDER_OVERLOADED": Tries(attempts=5, backoff=Backoff(initial=2))})
    """

    attempts: int | None = 3
    """Calls in all, the first included. None: as many as the deadline allows."""
    backoff: Backoff = Backoff()
    """The delays between them."""

    def __post_init__(self) -> None:
        options.count("tries.attempts", self.attempts, optional=True)
        if not isinstance(self.backoff, Backoff):
            raise InvalidError.at("tries.backoff", "a Backoff", self.backoff)

    def jittered_after_cap(self) -> Tries:
        """Return the same attempts with delays that are capped before their jitter."""
        if self.backoff.jitter_after_cap:
            return self
        backoff = msgspec.structs.replace(self.backoff, jitter_after_cap=True)
        return msgspec.structs.replace(self, backoff=backoff)


NEVER = Tries(attempts=1)
"""One call and no retry."""
