"""When to stop: `stop_after_attempt(5) | stop_after_delay(60)`. Any function of the state will do as well."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from holdfast import options
from holdfast.compat.tenacity.durations import Duration, seconds
from holdfast.policies.retry import Reason

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.compat.tenacity.state import RetryCallState

__all__ = [
    "Stop",
    "most_attempts",
    "stop_after_attempt",
    "stop_after_delay",
    "stop_all",
    "stop_any",
    "stop_base",
    "stop_before_delay",
    "stop_never",
    "stop_when_event_set",
    "why_stopped",
]

Stop: TypeAlias = "Callable[[RetryCallState], Any]"


class stop_base:
    """What can be combined with `|` and `&`. Derive from it for strategies of your own."""

    def __call__(self, retry_state: RetryCallState) -> bool:
        raise NotImplementedError

    def __or__(self, other: Stop) -> stop_any:
        return stop_any(self, other)

    def __ror__(self, other: Stop) -> stop_any:
        return stop_any(other, self)

    def __and__(self, other: Stop) -> stop_all:
        return stop_all(self, other)

    def __rand__(self, other: Stop) -> stop_all:
        return stop_all(other, self)


class stop_any(stop_base):
    """Stop where one of them says so."""

    def __init__(self, *stops: Stop) -> None:
        self.stops = stops

    def __call__(self, retry_state: RetryCallState) -> bool:
        return any(stop(retry_state) for stop in self.stops)


class stop_all(stop_base):
    """Stop where all of them say so."""

    def __init__(self, *stops: Stop) -> None:
        self.stops = stops

    def __call__(self, retry_state: RetryCallState) -> bool:
        return all(stop(retry_state) for stop in self.stops)


class _stop_never(stop_base):
    def __call__(self, retry_state: RetryCallState) -> bool:
        return False


stop_never = _stop_never()
"""Try for ever."""


class _Event(Protocol):
    def is_set(self) -> bool: ...


class stop_when_event_set(stop_base):
    """Stop once somebody has set the event."""

    def __init__(self, event: _Event) -> None:
        self.event = event

    def __call__(self, retry_state: RetryCallState) -> bool:
        return self.event.is_set()


class stop_after_attempt(stop_base):
    """Stop after so many calls, the first included."""

    def __init__(self, max_attempt_number: int) -> None:
        options.count("stop_after_attempt", max_attempt_number)
        self.max_attempt_number = max_attempt_number

    def __call__(self, retry_state: RetryCallState) -> bool:
        return retry_state.attempt_number >= self.max_attempt_number


class stop_after_delay(stop_base):
    """Stop after an attempt that ends so long after the first began. The last wait may end later than that."""

    def __init__(self, max_delay: Duration) -> None:
        self.max_delay = seconds("stop_after_delay", max_delay)

    def __call__(self, retry_state: RetryCallState) -> bool:
        return (retry_state.seconds_since_start or 0.0) >= self.max_delay


class stop_before_delay(stop_base):
    """Stop where the next wait would end so long after the first attempt began."""

    def __init__(self, max_delay: Duration) -> None:
        self.max_delay = seconds("stop_before_delay", max_delay)

    def __call__(self, retry_state: RetryCallState) -> bool:
        return (retry_state.seconds_since_start or 0.0) + retry_state.upcoming_sleep >= self.max_delay


def most_attempts(stop: Stop, attempt: int) -> int:
    """Return how many calls there will be at most, as far as can be told after `attempt`: at least one more."""
    if isinstance(stop, stop_after_attempt):
        return stop.max_attempt_number
    if isinstance(stop, stop_any):
        known = [part.max_attempt_number for part in stop.stops if isinstance(part, stop_after_attempt)]
        return min(known, default=attempt + 1)
    return attempt + 1


def why_stopped(stop: Stop, retry_state: RetryCallState) -> Reason:
    """Return whether it was the time or the number of attempts (R11)."""
    parts = stop.stops if isinstance(stop, stop_any) else (stop,)
    for part in parts:
        if isinstance(part, (stop_after_attempt, stop_after_delay, stop_before_delay)) and part(retry_state):
            return Reason.ATTEMPTS if isinstance(part, stop_after_attempt) else Reason.DEADLINE
    return Reason.ATTEMPTS
