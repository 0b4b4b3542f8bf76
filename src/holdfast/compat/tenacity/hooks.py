"""Ready-made hooks: log lines for your logger, and a sleep that an event ends early."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.compat.tenacity.state import RetryCallState

__all__ = [
    "Hook",
    "after_log",
    "after_nothing",
    "before_log",
    "before_nothing",
    "before_sleep_log",
    "before_sleep_nothing",
    "sleep_using_event",
]

Hook: TypeAlias = "Callable[[RetryCallState], Any]"


class _Logger(Protocol):
    def log(self, level: int, msg: str, /) -> Any: ...


class _Event(Protocol):
    def wait(self, timeout: float | None = None) -> Any: ...


def before_nothing(retry_state: RetryCallState) -> None:
    """Do nothing before an attempt."""


def after_nothing(retry_state: RetryCallState) -> None:
    """Do nothing after an attempt."""


def before_sleep_nothing(retry_state: RetryCallState) -> None:
    """Do nothing before a wait."""


def before_log(logger: _Logger, log_level: int) -> Hook:
    """Return a hook that logs the start of each attempt.

    For example:
        @retry(before=before_log(logging.getLogger(), logging.INFO))
        def fetch(): ...
    """

    def log_it(retry_state: RetryCallState) -> None:
        times = _ordinal(retry_state.attempt_number)
        logger.log(log_level, f"Starting call to '{retry_state.get_fn_name()}', this is the {times} time calling it.")

    return log_it


def after_log(logger: _Logger, log_level: int, sec_format: str = "%.3g") -> Hook:
    """Return a hook that logs the end of each attempt that `retry` wants to repeat.

    For example:
        @retry(after=after_log(logging.getLogger(), logging.INFO))
        def fetch(): ...
    """

    def log_it(retry_state: RetryCallState) -> None:
        took = sec_format % (retry_state.seconds_since_start or 0.0)
        times = _ordinal(retry_state.attempt_number)
        name = retry_state.get_fn_name()
        logger.log(log_level, f"Finished call to '{name}' after {took}(s), this was the {times} time calling it.")

    return log_it


def before_sleep_log(
    logger: _Logger,
    log_level: int,
    exc_info: bool = False,  # noqa: FBT001, FBT002 - tenacity's signature
    sec_format: str = "%.3g",
) -> Hook:
    """Return a hook that logs each wait and its reason. `exc_info` adds the traceback.

    For example:
        @retry(before_sleep=before_sleep_log(logging.getLogger(), logging.WARNING))
        def fetch(): ...
    """

    def log_it(retry_state: RetryCallState) -> None:
        wait = sec_format % retry_state.upcoming_sleep
        line = f"Retrying {retry_state.get_fn_name()} in {wait} seconds as it {_ending(retry_state)}."
        error = None if retry_state.outcome is None else retry_state.outcome.exception()
        if exc_info and error is not None:
            line = f"{line}\n{''.join(traceback.format_exception(error)).rstrip()}"
        # The traceback is part of the text and not an `exc_info=` argument: structlog and others take only level and
        # message.
        logger.log(log_level, line)

    return log_it


class sleep_using_event:
    """A sleep that ends early when the event is set.

    For example:
        stopping = threading.Event()
        Retrying(sleep=sleep_using_event(stopping), stop=stop_when_event_set(stopping))(fetch)
    """

    def __init__(self, event: _Event) -> None:
        self.event = event

    def __call__(self, seconds: float) -> None:
        self.event.wait(timeout=seconds)


def _ending(retry_state: RetryCallState) -> str:
    outcome = retry_state.outcome
    if outcome is None:
        return "has not ended"
    error = outcome.exception()
    return f"returned {outcome.result()}" if error is None else f"raised {type(error).__name__}: {error}"


def _ordinal(number: int) -> str:
    # English writes 11th, 12th, 13th, but 21st, 22nd, 23rd.
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"
