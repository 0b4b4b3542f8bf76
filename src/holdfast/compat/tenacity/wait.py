"""How long to wait: `wait_fixed(3) + wait_random(0, 2)`. Any function of the state may be used instead.

Invariant: a wait is finite and never negative, however many attempts there were.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from holdfast import options
from holdfast.faults import InvalidError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.compat.tenacity.state import RetryCallState

__all__ = [
    "MAX_WAIT",
    "Duration",
    "Wait",
    "seconds",
    "wait_base",
    "wait_chain",
    "wait_combine",
    "wait_exception",
    "wait_exponential",
    "wait_exponential_jitter",
    "wait_fixed",
    "wait_full_jitter",
    "wait_incrementing",
    "wait_none",
    "wait_random",
    "wait_random_exponential",
]

Duration: TypeAlias = float | timedelta
"""Seconds, or a timedelta."""
Wait: TypeAlias = "Callable[[RetryCallState], Duration | Awaitable[Duration]]"
_PlainWait: TypeAlias = "Callable[[RetryCallState], Duration]"

MAX_WAIT = sys.maxsize / 2
"""The largest wait of tenacity. In practice it never ends."""


def seconds(path: str, value: Any) -> float:
    """Return a duration in seconds. Raises `InvalidError` for negative durations, NaN and other types."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    # The test is `not number >= 0`, because `number < 0` is false for NaN.
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not number >= 0:
        raise InvalidError.at(path, "seconds ≥ 0 or a timedelta", value)
    # Infinity means a wait without end. It is made finite, because arithmetic with infinity may give NaN.
    return min(float(number), MAX_WAIT)


class wait_base:
    """The base of waits that can be added with `+` and `sum`. Derive your own waits from it.

    For example:
        class wait_by_hour(wait_base):
            def __call__(self, retry_state: RetryCallState) -> float:
                return 60.0 if is_night() else 5.0
    """

    def __call__(self, retry_state: RetryCallState) -> float:
        raise NotImplementedError

    def __add__(self, other: _PlainWait) -> wait_combine:
        return wait_combine(self, other)

    def __radd__(self, other: _PlainWait | int) -> wait_base:
        # `sum` starts with 0. Any other number is a mistake: a wait is a function.
        if isinstance(other, int):
            return self if other == 0 else NotImplemented
        return wait_combine(other, self)


class wait_fixed(wait_base):
    """Wait the same time after each attempt: `wait_fixed(3)`."""

    def __init__(self, wait: Duration) -> None:
        self.wait_fixed = seconds("wait_fixed", wait)

    def __call__(self, retry_state: RetryCallState) -> float:
        return self.wait_fixed


class wait_none(wait_fixed):
    """Do not wait: `wait_none()`, the default."""

    def __init__(self) -> None:
        super().__init__(0)


class wait_random(wait_base):
    """Wait a random time between two durations: `wait_random(min=1, max=3)`."""

    def __init__(self, min: Duration = 0, max: Duration = 1) -> None:
        self.wait_random_min = seconds("wait_random: min", min)
        self.wait_random_max = seconds("wait_random: max", max)

    def __call__(self, retry_state: RetryCallState) -> float:
        return _between(self.wait_random_min, self.wait_random_max, retry_state)


class wait_combine(wait_base):
    """Wait the sum of several waits: `wait_combine(wait_fixed(3), wait_random(0, 2))`, or `a + b`."""

    def __init__(self, *strategies: _PlainWait) -> None:
        self.wait_funcs = strategies

    def __call__(self, retry_state: RetryCallState) -> float:
        return sum(seconds("wait_combine", wait(retry_state)) for wait in self.wait_funcs)


class wait_chain(wait_base):
    """Use the waits one after another, and repeat the last wait: `wait_chain(wait_fixed(1), wait_fixed(5))`.

    Raises `InvalidError` if no wait is given.
    """

    def __init__(self, *strategies: _PlainWait) -> None:
        if not strategies:
            raise InvalidError.saying("wait_chain", "at least one wait", "none")
        self.strategies = strategies

    def __call__(self, retry_state: RetryCallState) -> float:
        # Attempt 1 uses the first wait. A state that a user built may have attempt 0.
        place = min(max(retry_state.attempt_number, 1), len(self.strategies))
        return seconds("wait_chain", self.strategies[place - 1](retry_state))


class wait_exception(wait_base):
    """Let a function of the exception decide: `wait_exception(lambda error: error.retry_after)`.

    If `retry` repeats an attempt because of its result, there is no exception and so no wait.
    """

    def __init__(self, predicate: Callable[[BaseException], Duration]) -> None:
        self.predicate = predicate

    def __call__(self, retry_state: RetryCallState) -> float:
        error = None if retry_state.outcome is None else retry_state.outcome.exception()
        return 0.0 if error is None else seconds("wait_exception", self.predicate(error))


class wait_incrementing(wait_base):
    """Wait `start`, then `increment` more after each attempt, at most `max`: `wait_incrementing(1, 2, max=30)`."""

    def __init__(self, start: Duration = 0, increment: Duration = 100, max: Duration = MAX_WAIT) -> None:
        self.start = seconds("wait_incrementing: start", start)
        # It may be negative, so `seconds` cannot check it.
        increment = increment.total_seconds() if isinstance(increment, timedelta) else increment
        options.at_least("wait_incrementing: increment", increment, -MAX_WAIT)
        self.increment = increment
        self.max = seconds("wait_incrementing: max", max)

    def __call__(self, retry_state: RetryCallState) -> float:
        wait = self.start + self.increment * (retry_state.attempt_number - 1)
        return _clip(wait, 0.0, self.max)


class wait_exponential(wait_base):
    """Wait `multiplier` seconds, then `exp_base` times longer after each attempt: `wait_exponential(min=1, max=30)`.

    It has no jitter. With many callers use `wait_random_exponential`; otherwise they all retry at the same moment.
    """

    def __init__(self, multiplier: float = 1, max: Duration = MAX_WAIT, exp_base: float = 2, min: Duration = 0) -> None:
        options.at_least("wait_exponential: multiplier", multiplier, 0)
        options.at_least("wait_exponential: exp_base", exp_base, 0)
        self.multiplier = multiplier
        self.max = seconds("wait_exponential: max", max)
        self.exp_base = exp_base
        self.min = seconds("wait_exponential: min", min)

    def __call__(self, retry_state: RetryCallState) -> float:
        return _clip(_power(self.multiplier, self.exp_base, retry_state.attempt_number), self.min, self.max)


class wait_random_exponential(wait_exponential):
    """Wait a random time between zero and the exponential time ("full jitter"): `wait_random_exponential(max=60)`."""

    def __call__(self, retry_state: RetryCallState) -> float:
        return _between(self.min, super().__call__(retry_state), retry_state)


wait_full_jitter = wait_random_exponential


class wait_exponential_jitter(wait_base):
    """Wait the exponential time plus a random time up to `jitter`, at most `max`: `wait_exponential_jitter(jitter=2)`."""

    def __init__(
        self,
        initial: float = 1,
        max: Duration = MAX_WAIT,
        exp_base: float = 2,
        jitter: Duration = 1,
        min: Duration = 0,
        multiplier: float = 1,
    ) -> None:
        if initial != 1 and multiplier != 1:
            raise InvalidError.saying("wait_exponential_jitter", "one of initial and multiplier", "both")
        # Both names mean the first wait: tenacity renamed `initial` to `multiplier` and still accepts both.
        self.multiplier = initial * multiplier
        options.at_least("wait_exponential_jitter: initial", self.multiplier, 0)
        options.at_least("wait_exponential_jitter: exp_base", exp_base, 0)
        self.max = seconds("wait_exponential_jitter: max", max)
        self.exp_base = exp_base
        self.jitter = seconds("wait_exponential_jitter: jitter", jitter)
        self.min = seconds("wait_exponential_jitter: min", min)

    def __call__(self, retry_state: RetryCallState) -> float:
        wait = _power(self.multiplier, self.exp_base, retry_state.attempt_number)
        return _clip(wait + _between(0.0, self.jitter, retry_state), self.min, self.max)


def _power(multiplier: float, base: float, attempt: int) -> float:
    try:
        return multiplier * float(base) ** (attempt - 1)
    except OverflowError:  # the wait would be far beyond any maximum (R5)
        return MAX_WAIT if multiplier else 0.0


def _clip(wait: float, least: float, most: float) -> float:
    """Return the wait within its bounds. If `least` is greater than `most`, `least` wins, as in tenacity."""
    return max(least, min(wait, most))


def _between(least: float, most: float, retry_state: RetryCallState) -> float:
    return least + retry_state.rng.random() * (most - least)
