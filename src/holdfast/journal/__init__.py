"""What every process writes about its runs: which call it was, what each second was spent on, and what it cost.

journal_to   a sink: keeps the events of runs that were not plainly good, and sums up all of them by the minute
JournalFile      reads it: `runs`, `run`, `minutes`, `prune`
runs         what the events of one call and of all calls inside it add up to
waterfall    the same as rows of attempts and waits, and as text

The journal is a file of its own beside the store, and it may be lost: the audit trail is the complete record. It may import the events and
below, the runtime and the address of stores.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._lazy import loader

if TYPE_CHECKING:
    from holdfast.journal.file import JournalFile
    from holdfast.journal.recorder import JournalSink, journal_to
    from holdfast.journal.runs import Minute, RunSummary
    from holdfast.journal.waterfall import Bar, bars_of, drawn

__all__ = ["Bar", "JournalFile", "JournalSink", "Minute", "RunSummary", "bars_of", "drawn", "journal_to"]

_HOMES = (
    {"JournalFile": "holdfast.journal.file"}
    | dict.fromkeys(("JournalSink", "journal_to"), "holdfast.journal.recorder")
    | dict.fromkeys(("Minute", "RunSummary"), "holdfast.journal.runs")
    | dict.fromkeys(("Bar", "bars_of", "drawn"), "holdfast.journal.waterfall")
)

__getattr__ = loader(__name__, globals(), _HOMES)
