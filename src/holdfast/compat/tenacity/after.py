"""Hooks for `after`: what happens after each attempt that `retry` wants to repeat."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.compat.tenacity.before import ordinal

if TYPE_CHECKING:
    from holdfast.compat.tenacity.before import Hook, Logger
    from holdfast.compat.tenacity.state import RetryCallState

__all__ = ["after_log", "after_nothing"]


def after_nothing(retry_state: RetryCallState) -> None:
    """Do nothing after an attempt."""


def after_log(logger: Logger, log_level: int, sec_format: str = "%.3g") -> Hook:
    """Return a hook that logs the end of each attempt that `retry` wants to repeat.

    For example:
        @retry(after=after_log(logging.getLogger(), logging.INFO))
        def fetch(): ...
    """

    def log_it(retry_state: RetryCallState) -> None:
        since = retry_state.seconds_since_start
        took = "?" if since is None else sec_format % since
        times = ordinal(retry_state.attempt_number)
        name = retry_state.get_fn_name()
        logger.log(log_level, f"Finished call to '{name}' after {took}(s), this was the {times} time calling it.")

    return log_it
