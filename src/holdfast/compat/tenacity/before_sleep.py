"""Hooks for `before_sleep`: what happens before each wait."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.compat.tenacity.before import Hook, Logger
    from holdfast.compat.tenacity.state import RetryCallState

__all__ = ["before_sleep_log", "before_sleep_nothing"]


def before_sleep_nothing(retry_state: RetryCallState) -> None:
    """Do nothing before a wait."""


def before_sleep_log(
    logger: Logger,
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


def _ending(retry_state: RetryCallState) -> str:
    outcome = retry_state.outcome
    if outcome is None:
        return "has not ended"
    error = outcome.exception()
    return f"returned {outcome.result()}" if error is None else f"raised {type(error).__name__}: {error}"
