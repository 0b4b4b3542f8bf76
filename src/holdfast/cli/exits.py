"""The end of a verb: the exit codes, and the exit code for a failure inside a verb.

Exit codes are a contract with shells, schedulers and CI: they never change their meaning.
"""

from __future__ import annotations

import io
import sys
from contextlib import AbstractContextManager, nullcontext
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn

import typer

from holdfast.cli.output import discard, fail
from holdfast.faults import HoldfastError

if TYPE_CHECKING:
    from collections.abc import Callable


class Exit(IntEnum):
    """What the exit status of every verb means."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    EXHAUSTED = 4
    CIRCUIT_OPEN = 5
    TIMEOUT = 6
    REFUSED = 7
    DEGRADED = 8
    # Shells expect 128 + SIGINT from an interrupted program.
    INTERRUPTED = 130


_MEANING = {
    Exit.OK: "it worked",
    Exit.FAILED: "the operation failed, and a retry would fail again",
    Exit.USAGE: "the command line or the configuration is wrong",
    Exit.NOT_FOUND: "what the command names does not exist",
    Exit.EXHAUSTED: "all retries failed, but the failure is temporary: a scheduler may try later",
    Exit.CIRCUIT_OPEN: "the circuit is open; nothing was sent",
    Exit.TIMEOUT: "it took too long",
    Exit.REFUSED: "a person must confirm or answer first",
    Exit.DEGRADED: "it worked, with warnings (only with --strict; otherwise 0)",
    Exit.INTERRUPTED: "interrupted with Ctrl-C",
}


def table() -> list[tuple[int, str]]:
    """Return every exit code with its meaning."""
    return [(code.value, _MEANING[code]) for code in Exit]


def perform(verb: Callable[[], int]) -> NoReturn:
    """Run a verb and exit with its exit code, also if the verb is interrupted or raises an error of ours."""
    try:
        status = verb()
        # The output is flushed here. If it fails at exit instead, Python prints a traceback.
        sys.stdout.flush()
    except KeyboardInterrupt:
        status = Exit.INTERRUPTED
    except BrokenPipeError:
        # The reader closed the pipe (`| head`). It has read enough, so this is not a failure.
        discard(sys.stdout)
        status = Exit.OK
    # Every error of ours knows its exit code, also one that is an OSError as well. Other exceptions are defects and keep their traceback.
    except HoldfastError as error:
        fail(str(error), f"holdfast explain {error.fault.code}")
        status = Exit(error.fault.entry.exit_code)
    except OSError as error:
        discard(sys.stdout)
        fail(f"cannot read the input or write the result: {error.strerror or error}")
        status = Exit.FAILED
    raise typer.Exit(status)


def open_input(file: str, *hints: str) -> AbstractContextManager[BinaryIO]:
    """Open a file that the user names; `-` is stdin.

    If it cannot be opened, print why and leave the verb: with 3 if there is no such file, with 2 for a folder.
    """
    try:
        return nullcontext(sys.stdin.buffer) if file == "-" else Path(file).open("rb")
    except OSError as error:
        fail(f"cannot read {file or repr(file)}: {error.strerror}", *hints)
        statuses = {FileNotFoundError: Exit.NOT_FOUND, IsADirectoryError: Exit.USAGE}
        raise typer.Exit(statuses.get(type(error), Exit.FAILED)) from None


def prepare_streams() -> None:
    """Make the standard streams usable. A shell may pass a closed stream, or an encoding that lacks characters.

    Exits with 1 if standard output is closed: there is no place for the result.
    """
    # Python sets a stream that the shell closed to None.
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BytesIO())
    if sys.stderr is None:
        sys.stderr = io.StringIO()
    if sys.stdout is None:
        sys.stderr.write("holdfast: cannot write the result: standard output is closed\n")
        sys.exit(Exit.FAILED)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot show a character gets a question mark instead of a traceback.
            stream.reconfigure(errors="replace")
