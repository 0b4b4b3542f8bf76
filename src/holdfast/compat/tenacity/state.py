"""The data that hooks and strategies read: the state of one call, the outcome of its last attempt, the final errors.

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

__all__ = ["Future", "RetryAction", "RetryCallState", "RetryError", "RetryObject", "Statistics", "TryAgain"]


class TryAgain(Exception):  # noqa: N818 - tenacity's name
    """Raise it in the function to get another attempt, whatever `retry` says. `stop` still applies.

    For example:
        @retry(stop=stop_after_attempt(3))
        def poll():
            if not job.done:
                raise TryAgain
    """


class Future:
    """The outcome of one attempt: a value or an exception. It has the methods of a finished future.

    For example:
        if retry_state.outcome.failed:
            print(retry_state.outcome.exception())
    """

    __slots__ = ("_error", "_value", "attempt_number")

    def __init__(self, attempt_number: int, value: Any = None, error: BaseException | None = None) -> None:
        self.attempt_number = attempt_number
        self._value = value
        self._error = error

    @classmethod
    def construct(cls, attempt_number: int, value: Any, has_exception: bool) -> Future:  # noqa: FBT001 - tenacity's signature
        """Return an outcome with `value` as its result, or as its exception if `has_exception`."""
        return cls(attempt_number, error=value) if has_exception else cls(attempt_number, value)

    @property
    def failed(self) -> bool:
        """Whether the attempt raised."""
        return self._error is not None

    def exception(self) -> BaseException | None:
        """Return the exception the attempt raised, or None."""
        return self._error

    def result(self) -> Any:
        """Return the attempt's value, or raise its exception."""
        if self._error is not None:
            raise self._error
        return self._value

    def underlying(self) -> BaseException | None:
        """Return the exception that explains the failure; None if the attempt returned a value."""
        error = self._error
        if isinstance(error, TryAgain):
            # TryAgain itself gives no reason. If it was raised from another exception, that exception is the reason.
            return error.__cause__ or error.__context__ or error
        return error

    def done(self) -> bool:
        """Return True: an outcome exists only for a finished attempt."""
        return True

    def __repr__(self) -> str:
        outcome = self._value if self._error is None else self._error
        verb = "returned" if self._error is None else "raised"
        return f"<attempt {self.attempt_number} {verb} {type(outcome).__name__}>"


class RetryError(Exception):
    """No further attempt is made. `last_attempt` is the last outcome, and `__cause__` is its exception.

    For example:
        try:
            fetch()
        except RetryError as error:
            print(error.last_attempt.exception())
    """

    def __init__(self, last_attempt: Future) -> None:
        super().__init__(last_attempt)
        self.last_attempt = last_attempt

    def reraise(self) -> NoReturn:
        """Raise the last attempt's own exception, or this error if the last attempt returned a value."""
        raise self.underlying()

    def underlying(self) -> BaseException:
        """Return the exception that `reraise` raises."""
        return self.last_attempt.underlying() or self

    def __str__(self) -> str:
        return f"{type(self).__name__}[{self.last_attempt!r}]"


class RetryAction:
    """The decision to sleep `sleep` seconds and then make another attempt."""

    __slots__ = ("sleep",)

    def __init__(self, sleep: float) -> None:
        self.sleep = float(sleep)

    def __repr__(self) -> str:
        return f"RetryAction(sleep={self.sleep:g})"


class RetryObject:
    """The settings of a call: the base of `Retrying` and `AsyncRetrying`.

    It stands in this module because the state and the attempts read it, and `retrier` imports both.
    """

    sleep: Callable[..., Any] | None
    stop: Callable[..., Any]
    wait: Callable[..., Any]
    retry: Callable[..., Any]
    before: Callable[..., Any] | None
    after: Callable[..., Any] | None
    before_sleep: Callable[..., Any] | None
    reraise: bool
    retry_error_cls: type[BaseException]
    retry_error_callback: Callable[..., Any] | None
    name: str | None
    enabled: bool

    @property
    def statistics(self) -> dict[str, Any]:
        """The numbers of the call that began last; empty before the first."""
        raise NotImplementedError

    def rest(self, seconds: float) -> Any:
        """Sleep, or return the awaitable that sleeps."""
        raise NotImplementedError


class RetryCallState:
    """The state of one call of a function, or of one loop over a block. Hooks and strategies get it as their argument.

    For example:
        def slower_each_time(retry_state: RetryCallState) -> float:
            return 2.0 * retry_state.attempt_number
    """

    def __init__(
        self,
        retry_object: RetryObject | None,
        fn: Callable[..., Any] | None,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
    ) -> None:
        # The clock is kept for the whole call: a duration needs one clock, even if the default runtime is replaced
        # meanwhile.
        self._clock = default_runtime().clock
        self.start_time = self._clock.monotonic()
        self.retry_object = retry_object
        self.fn = fn
        self.args = args
        self.kwargs = kwargs
        self.attempt_number = 1
        self.outcome: Future | None = None
        """The outcome of the last attempt; None while an attempt runs."""
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
        """The numbers of this call alone, also when other calls run at the same time."""

    @property
    def seconds_since_start(self) -> float | None:
        """Seconds from the start of the first attempt to the end of the last one; None while an attempt runs."""
        return None if self.outcome_timestamp is None else self.outcome_timestamp - self.start_time

    @property
    def rng(self) -> Rng:
        """The random source of the waits: the runtime's, so that tests can fix it."""
        return default_runtime().rng

    def get_fn_name(self) -> str:
        """Return the name of the function, or of the retry object for a block."""
        return str(self.retry_object) if self.fn is None else name_of(self.fn)

    def set_result(self, val: Any) -> None:
        """Set the attempt's result. In a loop over a block, call it after the block."""
        self.outcome = Future(self.attempt_number, val)
        self.outcome_timestamp = self._clock.monotonic()

    def set_exception(self, exc_info: tuple[type[BaseException], BaseException, TracebackType | None]) -> None:
        """Set the attempt's exception."""
        self.outcome = Future(self.attempt_number, error=exc_info[1])
        self.outcome_timestamp = self._clock.monotonic()

    def prepare_for_next_attempt(self) -> None:
        """Clear the outcome of the last attempt and count the next one."""
        self.outcome = None
        self.outcome_timestamp = None
        self.attempt_number += 1
        self.next_action = None

    def __repr__(self) -> str:
        error = None if self.outcome is None else self.outcome.exception()
        if self.outcome is None:
            last = "none yet"
        elif error is None:
            last = f"returned {self.outcome.result()}"
        else:
            last = f"failed ({type(error).__name__} {error})"
        slept = round(self.idle_for, 2)
        return f"<RetryCallState {id(self)}: attempt #{self.attempt_number}; slept for {slept}; last result: {last}>"


class Statistics:
    """The numbers that `statistics` of a retry object shows: those of the call that began last.

    `shown` stays the same dict for ever, because decorated functions and wrappers around them keep a reference to it.
    """

    __slots__ = ("_owner", "shown")

    def __init__(self) -> None:
        self.shown: dict[str, Any] = {}
        # Only the numbers are kept. The state would keep the call's result in memory as long as the decorated function
        # lives.
        self._owner: dict[str, Any] | None = None

    def show(self, state: RetryCallState) -> None:
        """Show the numbers of this call from now on."""
        # Calls in other threads may still record numbers. From now on only the numbers of this call are shown.
        self._owner = state.statistics
        self.shown.clear()
        self.shown.update(state.statistics)

    def record(self, state: RetryCallState, **numbers: float) -> None:
        """Record numbers of this call. They are shown unless a later call has begun."""
        state.statistics.update(numbers)
        if self._owner is state.statistics:
            self.shown.update(numbers)
