"""Hooks for `before`: what happens before each attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.compat.tenacity.state import RetryCallState

__all__ = ["Hook", "Logger", "before_log", "before_nothing", "ordinal"]

Hook: TypeAlias = "Callable[[RetryCallState], Any]"


class Logger(Protocol):
    """The method of a logger that the log hooks call; structlog's loggers have it too."""

    def log(self, level: int, msg: str, /) -> Any: ...


def before_nothing(retry_state: RetryCallState) -> None:
    """Do nothing before an attempt."""


def before_log(logger: Logger, log_level: int) -> Hook:
    """Return a hook that logs the start of each attempt.

    For example:
        @retry(before=before_log(logging.getLogger(), logging.INFO))
        def fetch(): ...
    """

    def log_it(retry_state: RetryCallState) -> None:
        times = ordinal(retry_state.attempt_number)
        logger.log(log_level, f"Starting call to '{retry_state.get_fn_name()}', this is the {times} time calling it.")

    return log_it


def ordinal(number: int) -> str:
    """Return the number as English writes it: 1st, 2nd, 3rd."""
    # English writes 11th, 12th, 13th, but 21st, 22nd, 23rd.
    if number % 100 in (11, 12, 13):
        return f"{number}th"
    return f"{number}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th') }"
