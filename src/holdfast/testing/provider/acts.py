"""What a provider does with a connection, as data: the server and the in-memory transports perform the same acts.

Invariant: a plan ends with exactly one of `END`, `CLOSE` and `RESET`, unless it hangs for ever.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple, TypeAlias

__all__ = ["Act", "Data", "Ending", "Head", "Headers", "Pause", "Plan", "Raw"]

Headers: TypeAlias = tuple[tuple[str, str], ...]


class Pause(NamedTuple):
    """Send nothing for some seconds; None: for as long as the client stays."""

    seconds: float | None


class Head(NamedTuple):
    """Status line and headers. Without a length the body is sent in chunks."""

    status: int
    headers: Headers
    length: int | None = None


class Data(NamedTuple):
    """Bytes of the body."""

    data: bytes


class Raw(NamedTuple):
    """Bytes in place of a head: what comes is not HTTP."""

    data: bytes


class Ending(Enum):
    """How the answer ends."""

    END = "the answer is whole; the connection stays"
    CLOSE = "the connection is closed"
    RESET = "the connection is reset"


Act: TypeAlias = Pause | Head | Data | Raw | Ending
Plan: TypeAlias = Iterator[Act]
