"""When to stop: `stop_after_attempt(5) | stop_after_delay(60)`. Any function of the state may be used instead."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from holdfast import options
from holdfast.compat.tenacity.wait import Duration, seconds
from holdfast.policies.decide import Reason

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
    """The base of stops that can be combined with `|` and `&`. Derive your own stops from it.

    For example:
        class stop_at_night(stop_base):
            def __call__(self, retry_state: RetryCallState) -> bool:
                return is_night()
    """

    def __call__(self, retry_state: RetryCallState) -> bool:
        raise NotImplementedError

    def __or__(self, other: Stop) -> stop_any:
        # `a | b | c` is one stop of three, so that events know the number of attempts.
        return stop_any(*self.stops, other) if isinstance(self, stop_any) else stop_any(self, other)

    def __ror__(self, other: Stop) -> stop_any:
        return stop_any(other, self)

    def __and__(self, other: Stop) -> stop_all:
        return stop_all(self, other)

    def __rand__(self, other: Stop) -> stop_all:
        return stop_all(other, self)


class stop_any(stop_base):
    """Stop if any of the given stops returns true: `stop_any(a, b)`, or `a | b`.

    For example:
        stop_any(stop_after_attempt(5), stop_after_delay(60))
    """

    def __init__(self, *stops: Stop) -> None:
        self.stops = stops

    def __call__(self, retry_state: RetryCallState) -> bool:
        return any(stop(retry_state) for stop in self.stops)


class stop_all(stop_base):
    """Stop if all of the given stops return true: `stop_all(a, b)`, or `a & b`.

    For example:
        stop_all(stop_after_attempt(5), stop_after_delay(60))
    """

    def __init__(self, *stops: Stop) -> None:
        self.stops = stops

    def __call__(self, retry_state: RetryCallState) -> bool:
        return all(stop(retry_state) for stop in self.stops)


class _stop_never(stop_base):
    def __call__(self, retry_state: RetryCallState) -> bool:
        return False


stop_never = _stop_never()
"""Never stop. This is the default: `retry(stop=stop_never)`."""


class _Event(Protocol):
    def is_set(self) -> bool: ...


class stop_when_event_set(stop_base):
    """Stop once the event is set: `stop_when_event_set(threading.Event())`."""

    def __init__(self, event: _Event) -> None:
        self.event = event

    def __call__(self, retry_state: RetryCallState) -> bool:
        return self.event.is_set()


class stop_after_attempt(stop_base):
    """Stop after this many calls, the first one included: `stop_after_attempt(5)`.

    Raises `InvalidError` for anything but a whole number from 1.
    """

    def __init__(self, max_attempt_number: int) -> None:
        options.count("stop_after_attempt", max_attempt_number)
        self.max_attempt_number = max_attempt_number

    def __call__(self, retry_state: RetryCallState) -> bool:
        return retry_state.attempt_number >= self.max_attempt_number


class stop_after_delay(stop_base):
    """Stop after the first attempt that ends later than `max_delay` after the start: `stop_after_delay(60)`.

    A wait may begin before `max_delay` and end after it. `stop_before_delay` does not start such a wait.
    """

    def __init__(self, max_delay: Duration) -> None:
        self.max_delay = seconds("stop_after_delay", max_delay)

    def __call__(self, retry_state: RetryCallState) -> bool:
        return (retry_state.seconds_since_start or 0.0) >= self.max_delay


class stop_before_delay(stop_base):
    """Stop if the next wait would end later than `max_delay` after the start: `stop_before_delay(60)`."""

    def __init__(self, max_delay: Duration) -> None:
        self.max_delay = seconds("stop_before_delay", max_delay)

    def __call__(self, retry_state: RetryCallState) -> bool:
        return (retry_state.seconds_since_start or 0.0) + retry_state.upcoming_sleep >= self.max_delay


def most_attempts(stop: Stop, attempt: int) -> int:
    """Return the maximum number of calls if `stop` fixes it, otherwise `attempt + 1`. Events show it as `attempt 2 of 5`."""
    if isinstance(stop, stop_after_attempt):
        return stop.max_attempt_number
    if isinstance(stop, stop_any):
        # With `|` the smallest number decides. With `&` another stop may need more calls, so no number is known.
        known = [part.max_attempt_number for part in stop.stops if isinstance(part, stop_after_attempt)]
        return min(known, default=attempt + 1)
    return attempt + 1


def why_stopped(stop: Stop, retry_state: RetryCallState) -> Reason:
    """Return whether the number of attempts or the time ended the retries (R11)."""
    parts = stop.stops if isinstance(stop, stop_any) else (stop,)
    # Only strategies that we know are evaluated again: a user's function may count its calls.
    for part in parts:
        if isinstance(part, (stop_after_attempt, stop_after_delay, stop_before_delay)) and part(retry_state):
            return Reason.ATTEMPTS if isinstance(part, stop_after_attempt) else Reason.DEADLINE
    return Reason.ATTEMPTS
