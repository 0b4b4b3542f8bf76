"""Writes events to the standard library's logging: `log_events`.

Invariant: an operation that works at once logs nothing above DEBUG.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from holdfast import options
from holdfast.events import KINDS, AttemptEnded, AttemptStarted
from holdfast.events.lines import Levels, LogLines
from holdfast.faults import InvalidError
from holdfast.runtime.bus import log_writer
from holdfast.sinks.reader import subscribe

if TYPE_CHECKING:
    from holdfast.runtime.bus import Subscription
    from holdfast.runtime.runtime import Runtime

__all__ = ["log_events"]


@options.suggests
def log_events(
    runtime: Runtime | None = None,
    logger: str | logging.Logger = "holdfast",
    *,
    levels: Levels | None = None,
    attempts: bool | None = None,
) -> Subscription:
    """Log the events of `runtime`, or of the default runtime: INFO for a recovery, WARNING for an operation that was given up.

    The steps between are logged at DEBUG; `levels` changes that. The record's `holdfast` attribute holds the event's JSON,
    with secrets masked. `attempts` adds a line for the beginning and end of every call, also of calls that work at once. By
    default `attempts` is on if the logger is at DEBUG now. While the subscription lasts, the default runtime's own log is silent.

        with log_events(levels=Levels(step=logging.INFO)):
            ...

    Raises `InvalidError` for an option of the wrong type.
    """
    if not isinstance(logger, (str, logging.Logger)):
        raise InvalidError.at("logger", "a logger or its name", logger)
    log = logging.getLogger(logger) if isinstance(logger, str) else logger
    lines = LogLines(levels)
    # Decide this now and not per event: a subscription to attempts makes every call slower, also calls that work at once.
    if attempts is None:
        level = lines.levels.attempt
        attempts = level is not None and log.isEnabledFor(level)
    left_out = () if attempts else (AttemptStarted, AttemptEnded)
    handlers = dict.fromkeys((kind for kind in KINDS if kind not in left_out), log_writer(log, lines))
    return subscribe(runtime, handlers, replaces_log=True)
