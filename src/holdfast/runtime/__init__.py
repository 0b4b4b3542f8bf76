"""Performs decisions: the first room below the I/O line.

    recovery   `recover`, what users type: decorator, `.call`, `.stream`, blocks
    decorated  the functions it returns; fallbacks and the cache behind them
    operation  one call: what happens next is decided here, once for all drivers
    driving    the two drivers, sync and async; limits, gates, hedging and threads are ways of making one attempt
    commands   what people tell an operation that waits: retry now, fall back, cancel
    overrides     what the caller says about its own failures: `retry_on`, `never_retry`
    streams    streams; blocks: loops of attempts; surroundings: the context a stream's source runs in
    plan    everything an operation reads, looked up once; lines: what all calls to one name share
    permits    an operation's circuits; charging: its budget; ours: the errors that are ours; mending: its repairs
    runtime    clock, chance, circuits, events; budget and ambient: the scope around a call
    rules      the classifier of this process
    fault_of   the fault of anything that failed; pages: the catalog's pages; secrets: what to mask

This page stays light: `fault_of` is imported where no event loop will ever run.
"""

from __future__ import annotations

from holdfast.runtime.fault_of import FAULT_ATTRIBUTE, fault_of, page_of
from holdfast.runtime.secrets import process_redactor, redactor_for

__all__ = ["FAULT_ATTRIBUTE", "fault_of", "page_of", "process_redactor", "redactor_for"]
