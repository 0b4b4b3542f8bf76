"""A process exit as evidence: exit code or signal, and what it wrote to stderr."""

from __future__ import annotations

from holdfast.classify.body import read_body
from holdfast.classify.evidence import Evidence, Source, fold
from holdfast.classify.phrases import codes_in, listen

__all__ = ["read_process"]

_TAIL = 4_096
"""The end of stderr tells; its beginning is often a banner."""


def read_process(exit_code: int | None, stderr: str = "", *, provider: str = "", now: float | None = None) -> Evidence:
    """Return the evidence of a process that ended with `exit_code` (negative: killed by that signal)."""
    tail = stderr[-_TAIL:]
    found = read_body(tail)
    message = tail.strip()
    return Evidence(
        source=Source.PROCESS,
        provider=provider.lower(),
        status=found.status,
        codes=tuple(reversed(found.codes)),
        message=message,
        text=(folded := fold(message)),
        heard=listen(folded) | codes_in(found.codes),
        waits=tuple(found.waits),
        resets=tuple(found.resets),
        exit_code=exit_code,
        now=now,
    )
