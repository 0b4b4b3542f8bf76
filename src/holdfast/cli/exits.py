"""Exit codes: the contract with shells, schedulers and CI."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Exit", "table"]


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
    INTERRUPTED = 130


_MEANING = {
    Exit.OK: "it worked",
    Exit.FAILED: "the operation failed, and will fail again (permanent)",
    Exit.USAGE: "the command was called wrongly, or the configuration is wrong",
    Exit.NOT_FOUND: "what was asked for does not exist",
    Exit.EXHAUSTED: "retries are used up, the failure is transient: a scheduler may try later",
    Exit.CIRCUIT_OPEN: "the circuit is open; nothing was sent",
    Exit.TIMEOUT: "it took too long",
    Exit.REFUSED: "refused, or a confirmation is needed",
    Exit.DEGRADED: "it worked with less than asked (only with --strict; otherwise 0)",
    Exit.INTERRUPTED: "interrupted with Ctrl-C",
}


def table() -> list[tuple[int, str]]:
    """Return every exit code with its meaning."""
    return [(code.value, _MEANING[code]) for code in Exit]
