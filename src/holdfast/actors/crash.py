"""What is reported of a child that crashed: its fault, and at DEBUG its traceback.

Invariant: the words of a program's own exception choose no code. What leaves this module is masked.
"""

from __future__ import annotations

import logging
import traceback
from typing import TYPE_CHECKING

from holdfast.actors.errors import IgnoreStart
from holdfast.faults import Fault
from holdfast.runtime.secrets import process_redactor
from holdfast.supervision.directive import is_plain
from holdfast.supervision.exits import Error, Exit, Killed

if TYPE_CHECKING:
    from holdfast.runtime.runtime import Runtime

__all__ = ["crash_of", "fault_of_exit", "log_traceback"]


def fault_of_exit(how: Exit, path: str, runtime: Runtime) -> Fault | None:
    """Return what a child of this path failed with; None if it did not fail."""
    match how:
        case Error(error=IgnoreStart()):
            return None
        case Error(error=error) | Killed(error=BaseException() as error):
            return crash_of(error, runtime.fault_of(error), path)
        case Killed():
            return Fault.of("ACTOR_CRASHED", context={"actor": path, "reason": str(how)})
        case _:
            return None


def crash_of(error: BaseException, fault: Fault, path: str) -> Fault:
    """Return the fault to report: ACTOR_CRASHED for a program's own exception, else the fault as it was read."""
    cause = fault.cause
    if cause is None or not is_plain(fault, error):
        return fault
    name = cause.type.rpartition(".")[2]
    reason = f"{name}: {cause.message}" if cause.message else name
    return Fault.of("ACTOR_CRASHED", cause=cause, context={"actor": path, "reason": reason})


def log_traceback(error: BaseException, path: str, runtime: Runtime) -> None:
    """Log the traceback at DEBUG, if the runtime has a log. An event cannot hold it: it is a value that is sent and stored."""
    log = logging.getLogger("holdfast")
    if isinstance(error, IgnoreStart) or not (log.isEnabledFor(logging.DEBUG) and (runtime.log or runtime.log_readers)):
        return
    try:
        text = "".join(traceback.format_exception(error))
    except Exception:  # noqa: BLE001 - a foreign exception may raise when it is shown, and its supervisor must go on
        text = type(error).__name__
    # As text and not as `exc_info`, which nobody could mask.
    log.debug("%s raised:\n%s", path, process_redactor().text(text.rstrip()))
