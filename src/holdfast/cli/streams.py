"""The three standard streams, as shells really hand them over: closed, full, binary, or of another encoding."""

from __future__ import annotations

import io
import os
import sys
from typing import BinaryIO, TextIO

from holdfast.cli.exits import Exit

__all__ = ["give_up", "one_line", "ready_streams", "tail"]

_CONTROLS = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0)), "\N{REPLACEMENT CHARACTER}") | {0x09: "\t"}


def ready_streams() -> None:
    """Make every stream usable; leave with 1 where there is none for the result."""
    # A stream that the shell closed is None.
    if sys.stdin is None:
        sys.stdin = io.TextIOWrapper(io.BytesIO())
    if sys.stderr is None:
        sys.stderr = io.StringIO()
    if sys.stdout is None:
        sys.stderr.write("holdfast: cannot write the result: standard output is closed\n")
        sys.exit(Exit.FAILED)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal or pipe that cannot show a character gets a question mark, not a traceback.
            stream.reconfigure(errors="replace")


def give_up(stream: TextIO) -> None:
    """Drop what is still to be written to a stream that takes nothing any more, or Python would complain at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def tail(stream: BinaryIO, size: int) -> bytes:
    """Return the last `size` bytes of a stream, however long it is, holding no more than twice that."""
    kept = b""
    while chunk := stream.read(size):
        kept = (kept + chunk)[-size:]
    return kept


def one_line(text: str) -> str:
    """Return foreign text fit for a line on a terminal: what could steer the terminal is replaced."""
    return text.translate(_CONTROLS)
