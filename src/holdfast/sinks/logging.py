"""Events to the standard library's logging: quiet while all is well, one line when something recovered or was given up."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from holdfast.events import KINDS, AttemptEnded, AttemptStarted, Event
from holdfast.faults import InvalidError
from holdfast.runtime.secrets import process_redactor
from holdfast.sinks.log_lines import Levels, LogLines
from holdfast.sinks.reader import facts_of, read

if TYPE_CHECKING:
    from holdfast.runtime.bus import Subscription
    from holdfast.runtime.runtime import Runtime

__all__ = ["log_events"]


def log_events(
    runtime: Runtime | None = None,
    logger: str | logging.Logger = "holdfast",
    *,
    levels: Levels | None = None,
    attempts: bool | None = None,
) -> Subscription:
    """Log what happens: INFO when an operation recovered, WARNING when it was given up, DEBUG for the steps between.

    The record's `holdfast` attribute holds the event's JSON, secrets masked. `attempts` adds a line for the beginning and
    end of every call, also of those that work at once; unless told, it does so if the logger is at DEBUG now.
    """
    if not isinstance(logger, (str, logging.Logger)):
        raise InvalidError.at("logger", "a logger or its name", logger)
    log = logging.getLogger(logger) if isinstance(logger, str) else logger
    lines = LogLines(levels)

    def write(event: Event) -> None:
        level, line = lines.of(event)
        if level is not None and log.isEnabledFor(level):
            # The line goes in as an argument: a `%` in a name is no format.
            log.log(level, "%s", line, extra={"holdfast": facts_of(event, process_redactor())})

    level = lines.levels.attempt
    if attempts is None:
        attempts = level is not None and log.isEnabledFor(level)
    silent = () if attempts else (AttemptStarted, AttemptEnded)
    return read(runtime, {kind: write for kind in KINDS if kind not in silent})
