"""How a program ended, and what to raise if it failed.

Invariant: every failure is one fault with the classifier's code, and the fault holds what the program printed.
"""

from __future__ import annotations

import errno
import os
import shlex
import signal
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import msgspec

from holdfast.classify import from_process
from holdfast.faults import Fault, HoldfastError, Partial
from holdfast.faults.redaction import REDACTOR, cap
from holdfast.runtime.secrets import process_redactor

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.faults import Code

__all__ = ["Finished", "ProcessError", "ProcessTimeoutError", "StopReason", "failure_of", "not_started"]

_COMMAND_BYTES = 200
_CLASSIFIED_CHARS = 8_192
"""How much of the end of the output is classified. A program prints last how it failed."""

Limit: TypeAlias = Literal["start", "idle", "timeout", "deadline", "output", "stopped"]


class StopReason(msgspec.Struct, frozen=True):
    """Why we stopped a process: the limit, and its seconds or bytes."""

    limit: Limit
    value: float | None


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """How a program ended.

    finished = await run(["git", "status"])
    print(finished.exit_code, finished.stdout)
    """

    command: tuple[str, ...]
    exit_code: int
    """Negative: the number of the signal that ended it."""
    stdout: str
    """The output, with a mark where a part in the middle was cut. Bytes that are not UTF-8 are shown as question marks."""
    stderr: str
    took: float
    """Seconds."""
    truncated: bool = False
    """Whether a part of the output was cut."""
    leftovers: tuple[int, ...] = ()
    """The ids of processes that still ran when the program ended. They were killed, unless `leftovers="leave"`."""
    leaked: tuple[int, ...] = ()
    """The ids of processes that survived SIGKILL, because they hang in the kernel."""

    @property
    def signal(self) -> str:
        """The name of the signal that ended it, such as `SIGKILL`; empty if none did."""
        if self.exit_code >= 0:
            return ""
        try:
            return signal.Signals(-self.exit_code).name
        except ValueError:
            return f"signal {-self.exit_code}"


class ProcessError(HoldfastError):
    """A program could not be started, failed, or was stopped. `error.fault` says why, `error.finished` holds the output.

    try:
        await run(["npm", "test"])
    except ProcessError as error:
        print(error.fault.code, error.finished.stderr)
    """

    code: ClassVar[Code] = "TOOL_EXECUTION_FAILED"
    finished: Finished | None = None
    """How it ended; None if it did not start."""

    @property
    def ended_itself(self) -> bool:
        """Whether it ended with an exit code of its own: no limit and no signal ended it.

        A shell that exits with 137 ended by itself, and says how its last command ended. Git exits with 128 for any error, ssh with 255.
        """
        return self.finished is not None and self.finished.exit_code > 0 and "limit" not in self.fault.context


class ProcessTimeoutError(ProcessError, TimeoutError):
    """A program was stopped because it printed nothing, or ran, for too long.

    except ProcessTimeoutError as error:
        print(error.fault.context["limit"], error.finished.stdout)
    """

    code = "TOOL_TIMEOUT"


def failure_of(finished: Finished, reason: StopReason | None, *, check: bool) -> ProcessError | None:
    """Return the error of a program that has ended; None if it has not failed."""
    if reason is not None:
        return _stopped(finished, reason)
    if finished.exit_code == 0 or not check:
        return None
    text = finished.stderr.strip() or finished.stdout
    fault = from_process(finished.exit_code, text[-_CLASSIFIED_CHARS:])
    detail = f": {fault.message}" if text.strip() else ""
    fault = msgspec.structs.replace(fault, message=f"{_how_ended(finished)}{detail}")
    return _error(ProcessError, finished, _with_facts(fault, finished))


def not_started(argv: Sequence[str], cwd: str | None, error: OSError) -> ProcessError:
    """Return the error of a program that could not be started."""
    name = _shown(argv[:1])
    missing_cwd = cwd is not None and not os.path.isdir(cwd)  # noqa: PTH112 - one look
    code: Code
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR if missing_cwd:
            code, message = "TOOL_FILE_NOT_FOUND", f"{name} was not started: there is no directory {cwd}"
        case errno.ENOENT | errno.ENOTDIR:
            code, message = "TOOL_COMMAND_NOT_FOUND", f"{name} is not installed here, or not on PATH"
        case errno.EACCES | errno.EPERM | errno.ENOEXEC:
            code, message = "TOOL_COMMAND_NOT_FOUND", f"{name} cannot be executed: {error.strerror}"
            if missing_cwd or (cwd is not None and not os.access(cwd, os.X_OK)):
                code, message = "TOOL_FORBIDDEN", f"{name} was not started: the directory {cwd} may not be entered"
        case errno.E2BIG:
            code, message = "TOOL_INPUT_TOO_LARGE", f"{name} was not started: its arguments are too long; use `input`"
        case _:
            code, message = "SYS_RESOURCE_EXHAUSTED", f"{name} was not started: {error.strerror or error}"
    return ProcessError(Fault.of(code, message, maybe_executed=False, context={"command": name}))


def _how_ended(finished: Finished) -> str:
    name = PurePath(finished.command[0]).name or finished.command[0]
    return (
        f"{name} was ended by {finished.signal}" if finished.signal else f"{name} exited with code {finished.exit_code}"
    )


def _stopped(finished: Finished, reason: StopReason) -> ProcessError:
    name = _shown(finished.command)
    seconds = f"{reason.value:g} s" if reason.value is not None else ""
    code: Code = "TOOL_TIMEOUT"
    match reason.limit:
        case "start":
            message = f"{name} printed nothing for {seconds} after its start, and was stopped"
        case "idle":
            message = f"{name} printed nothing for {seconds}, and was stopped"
        case "timeout":
            message = f"{name} did not finish within {seconds}, and was stopped"
        case "deadline":
            code, message = "SYS_DEADLINE_EXCEEDED", f"{name} was stopped: the deadline of the work around it has come"
        case "output":
            code, message = (
                "TOOL_OUTPUT_TOO_LARGE",
                f"{name} printed more than {reason.value:.0f} bytes, and was stopped",
            )
        case "stopped":
            code, message = "TOOL_CANCELLED", f"{name} was stopped before it had finished"
    context: dict[str, Any] = {"limit": reason.limit}
    if code == "TOOL_TIMEOUT":
        context["timeout_s"] = reason.value
    fault = Fault.of(code, message, context=context, maybe_executed=True)
    is_late = code in ("TOOL_TIMEOUT", "SYS_DEADLINE_EXCEEDED")
    return _error(ProcessTimeoutError if is_late else ProcessError, finished, _with_facts(fault, finished))


def _with_facts(fault: Fault, finished: Finished) -> Fault:
    context = {
        **fault.context,
        "command": _shown(finished.command),
        "exit_code": finished.exit_code,
        "execution_time_ms": round(finished.took * 1000),
    }
    if finished.signal:
        context["signal"] = finished.signal
    if finished.leaked:
        context["leaked"] = list(finished.leaked)
    printed = {name: text for name in ("stdout", "stderr") if (text := getattr(finished, name))}
    truncated = finished.truncated or fault.code == "TOOL_OUTPUT_TOO_LARGE"
    partial = Partial(payload=printed, truncated=truncated) if printed else None
    return msgspec.structs.replace(fault, context=context, partial=partial).masked(process_redactor())


def _error(kind: type[ProcessError], finished: Finished, fault: Fault) -> ProcessError:
    error = kind(fault)
    error.finished = finished
    return error


def _shown(argv: Sequence[str]) -> str:
    """Return a command for messages, masked and short."""
    return cap(REDACTOR.text(process_redactor().text(shlex.join(argv))), _COMMAND_BYTES)
