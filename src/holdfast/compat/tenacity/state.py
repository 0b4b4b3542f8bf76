"""What hooks and strategies look at: the call under way, how its last attempt ended, and what it came to.

Invariant: a state belongs to one call; nothing here is shared between calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from holdfast.runtime.callables import name_of
from holdfast.runtime.runtime import default_runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from holdfast.clock import Rng
    from holdfast.compat.tenacity.retrying import BaseRetrying

__all__ = ["Board", "Future", "RetryAction", "RetryCallState", "RetryError", "TryAgain"]


class TryAgain(Exception):  # noqa: N818 - tenacity's name
    """Raise it to be called again, whatever the condition says."""


class Future:
    """How an attempt ended. Only the part of a future that makes sense for what is over."""

    __slots__ = ("_error", "_value", "attempt_number")

    def __init__(self, attempt_number: int, value: Any = None, error: BaseException | None = None) -> None:
        self.attempt_number = attempt_number
        self._value = value
        self._error = error

    @classmethod
    def construct(cls, attempt_number: int, value: Any, has_exception: bool) -> Future:  # noqa: FBT001 - tenacity's signature
        """Return the end of an attempt, by value or by exception."""
        return cls(attempt_number, error=value) if has_exception else cls(attempt_number, value)

    @property
    def failed(self) -> bool:
        """Whether it ended in an exception."""
        return self._error is not None

    def exception(self) -> BaseException | None:
        """Return the exception it ended in."""
        return self._error

    def result(self) -> Any:
        """Return the value it ended in, or raise the exception."""
        if self._error is not None:
            raise self._error
        return self._value

    def done(self) -> bool:
        """Return True: there are no others."""
        return True

    def __repr__(self) -> str:
        ended = self._value if self._error is None else self._error
        how = "returned" if self._error is None else "raised"
        return f"<attempt {self.attempt_number} {how} {type(ended).__name__}>"


class RetryError(Exception):
    """No further attempt was made. `last_attempt` tells how the last one ended; its exception is the cause of this one."""

    def __init__(self, last_attempt: Future) -> None:
        super().__init__(last_attempt)
        self.last_attempt = last_attempt

    def reraise(self) -> NoReturn:
        """Raise the last attempt's own exception; this one, where it ended in a value."""
        raise self.behind()

    def behind(self) -> BaseException:
        """Return what `reraise` raises."""
        error = self.last_attempt.exception()
        if isinstance(error, TryAgain):
            # What made the function ask for another attempt tells more than that it asked.
            error = error.__cause__ or error.__context__ or error
        return self if error is None else error

    def __str__(self) -> str:
        return f"{type(self).__name__}[{self.last_attempt!r}]"


class RetryAction:
    """What was decided: to sleep so long, then to try again."""

    __slots__ = ("sleep",)

    def __init__(self, sleep: float) -> None:
        self.sleep = float(sleep)

    def __repr__(self) -> str:
        return f"RetryAction(sleep={self.sleep:g})"


class RetryCallState:
    """One call of a function, or one loop over a block."""

    def __init__(
        self,
        retry_object: BaseRetrying | None,
        fn: Callable[..., Any] | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        self._clock = default_runtime().clock
        self.start_time = self._clock.monotonic()
        self.retry_object = retry_object
        self.fn = fn
        self.args = args
        self.kwargs = kwargs
        self.attempt_number = 1
        self.outcome: Future | None = None
        """How the attempt just made ended; None while one is under way."""
        self.outcome_timestamp: float | None = None
        self.idle_for = 0.0
        """Seconds slept so far."""
        self.next_action: RetryAction | None = None
        self.upcoming_sleep = 0.0
        self.statistics: dict[str, Any] = {
            "start_time": self.start_time,
            "attempt_number": 1,
            "idle_for": 0.0,
            "delay_since_first_attempt": 0.0,
        }
        """This call's own numbers, whoever else is calling."""

    @property
    def seconds_since_start(self) -> float | None:
        """Seconds from the first attempt's start to the last one's end."""
        return None if self.outcome_timestamp is None else self.outcome_timestamp - self.start_time

    @property
    def rng(self) -> Rng:
        """The chance that waits draw from."""
        return default_runtime().rng

    def get_fn_name(self) -> str:
        """Return the name of what is called."""
        return str(self.retry_object) if self.fn is None else name_of(self.fn)

    def set_result(self, val: Any) -> None:
        """Say what the attempt came to; in a loop over a block, after the block."""
        self.outcome = Future(self.attempt_number, val)
        self.outcome_timestamp = self._clock.monotonic()

    def set_exception(self, exc_info: tuple[type[BaseException], BaseException, TracebackType | None]) -> None:
        """Say that the attempt failed."""
        self.outcome = Future(self.attempt_number, error=exc_info[1])
        self.outcome_timestamp = self._clock.monotonic()

    def prepare_for_next_attempt(self) -> None:
        """Forget how the last attempt ended."""
        self.outcome = None
        self.outcome_timestamp = None
        self.attempt_number += 1
        self.next_action = None

    def __repr__(self) -> str:
        return f"<RetryCallState attempt #{self.attempt_number}; slept for {self.idle_for:g}; last: {self.outcome!r}>"


class Board:
    """Where the numbers of the call that began last are shown: one dict, so that wrappers which copied it see them too."""

    __slots__ = ("_owner", "shown")

    def __init__(self) -> None:
        self.shown: dict[str, Any] = {}
        # The numbers, not the call: what it ended in would live as long as the decorated function.
        self._owner: dict[str, Any] | None = None

    def show(self, state: RetryCallState) -> None:
        """Show this call from now on."""
        self._owner = state.statistics
        self.shown.clear()
        self.shown.update(state.statistics)

    def note(self, state: RetryCallState, **numbers: float) -> None:
        """Write numbers of this call down; they are shown unless another has begun since."""
        state.statistics.update(numbers)
        if self._owner is state.statistics:
            self.shown.update(numbers)
