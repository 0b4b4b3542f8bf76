"""A process exit as evidence: exit code or signal, and what it wrote to stderr."""

from __future__ import annotations

from holdfast.classify.evidence import Evidence, Source
from holdfast.classify.readers.named import read_named, split_traceback

__all__ = ["read_process"]

_TAIL = 4_096
"""The end of stderr tells; its beginning is often a banner."""


def read_process(exit_code: int | None, stderr: str = "", *, provider: str = "", now: float | None = None) -> Evidence:
    """Return the evidence of a process that ended with `exit_code` (negative: killed by that signal)."""
    # What a program prints before it goes is a log: a traceback, a status, a JSON error, or plain words.
    module, name, message = split_traceback(stderr[-_TAIL:])
    return read_named(module, name, message, exit_code=exit_code, provider=provider, now=now, source=Source.PROCESS)
