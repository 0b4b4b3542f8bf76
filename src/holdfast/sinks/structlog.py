"""Writes events to structlog: the same lines and facts as `log_events`, as an event dict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast import options
from holdfast.events import KINDS, AttemptEnded, AttemptStarted
from holdfast.events.lines import Levels, LogLines
from holdfast.extras import needs_extra
from holdfast.runtime.bus import structlog_writer
from holdfast.sinks.reader import subscribe

with needs_extra("log_to_structlog", "structlog", "structlog"):
    import structlog

if TYPE_CHECKING:
    from holdfast.runtime.bus import Subscription
    from holdfast.runtime.runtime import Runtime

__all__ = ["log_to_structlog"]


@options.suggests
def log_to_structlog(
    runtime: Runtime | None = None, logger: Any = None, *, levels: Levels | None = None, attempts: bool = False
) -> Subscription:
    """Log events to a structlog logger, by default `structlog.get_logger("holdfast")`.

    The event is the line that `log_events` writes; `holdfast` holds the event's JSON, with secrets masked. `attempts` adds
    the beginning and end of every call. While the subscription lasts, the default runtime's own log is silent.

        log_to_structlog(levels=Levels(step=None))

    Raises `InvalidError` for an option of the wrong type. Importing it without structlog raises `ModuleNotFoundError`.
    """
    log = structlog.get_logger("holdfast") if logger is None else logger
    left_out = () if attempts else (AttemptStarted, AttemptEnded)
    handlers = dict.fromkeys((kind for kind in KINDS if kind not in left_out), structlog_writer(log, LogLines(levels)))
    return subscribe(runtime, handlers, replaces_log=True)
