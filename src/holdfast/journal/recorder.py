"""`journal_to`: a sink that writes the runs of this process to a journal.

Invariant: a call never waits for the journal. What does not fit into the queue, or cannot be written, is dropped and counted. Of
runs that were plainly good only the sums are kept.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections import deque
from contextlib import ExitStack
from typing import TYPE_CHECKING

from holdfast import options
from holdfast._platform import after_fork
from holdfast.events import (
    ActorResumed,
    BudgetWarning,
    ChildExited,
    ChildLeaked,
    ChildRestarting,
    CircuitStateChange,
    Commanded,
    GaveUp,
    MailboxPressure,
    MCPServerDisconnected,
    MCPServerReconnected,
    MessageDropped,
    OperatorAsked,
    StepNotReplayed,
    StreamResumed,
    SuppressedError,
    UserNotified,
)
from holdfast.events.tracker import Tracker
from holdfast.faults import HoldfastError
from holdfast.journal.file import JournalBatch, JournalFile
from holdfast.journal.runs import OF_RUNS, Minute, by_run, is_end, record_of, whole
from holdfast.runtime.runtime import Runtime, default_runtime
from holdfast.sinks.reader import subscribe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Self

    from holdfast.events import Event
    from holdfast.journal.runs import RunSummary

__all__ = ["JournalSink", "journal_to"]

FLUSH_S = 0.25
"""How often what has come is written."""
MOST_WAITING = 20_000
"""Events that wait to be written. Beyond that they are dropped."""
MOST_A_MINUTE = 100
"""Runs of one operation, outcome and code that are kept whole in one minute. In an outage the first hundred say it all."""
MOST_EVENTS = 2_000
"""Events of one outermost run that are kept."""
_PRUNE_S = 3_600.0
_AROUND = (
    *(
        CircuitStateChange,
        BudgetWarning,
        SuppressedError,
        OperatorAsked,
        UserNotified,
        StepNotReplayed,
        Commanded,
        StreamResumed,
    ),
    *(ChildExited, ChildRestarting, ChildLeaked, GaveUp, MailboxPressure, MessageDropped, ActorResumed),
    *(MCPServerDisconnected, MCPServerReconnected),
)
"""What is kept also where no run is under way that it belongs to."""

_LOG = logging.getLogger("holdfast")


@options.suggests
def journal_to(
    path: str | Path = "holdfast.journal.db", runtime: Runtime | None = None, *, process: str = ""
) -> JournalSink:
    """Write every run that was not plainly good to the journal, with all runs inside it, and sum up all runs by the minute.

        journal = journal_to("holdfast.journal.db")

    path: a SQLite file. Several processes may write to one. process: what the journal calls this process; by default host and process id.

    Returns a subscription: `cancel()` it, or use it as a block; both write what is left. `holdfast runs` reads the journal. Raises
    `HoldfastError` (SESS_STORE_UNAVAILABLE) if the file cannot be opened.
    """
    return JournalSink(JournalFile(path), runtime, process=process)


class JournalSink:
    """A journal that is being written: `sink.dropped` says how much of it was lost."""

    @options.suggests
    def __init__(self, journal: JournalFile, runtime: Runtime | None = None, *, process: str = "") -> None:
        self.dropped = 0
        """Events that were not kept: too many waited, or the file could not be written."""
        self._runtime = runtime or default_runtime()
        self._process = process
        self._journal = journal
        self._open: Tracker[list[Event]] = Tracker(dropped=self._lose)
        """The events of runs that have not ended, by outermost run."""
        self._ended: deque[list[Event]] = deque()
        self._around: deque[Event] = deque(maxlen=MOST_WAITING)
        """What belongs to no run that is under way."""
        self._waiting = 0
        self._kept: dict[tuple[int, str, str, str], int] = {}
        """How many runs were kept, by minute, operation, outcome and code."""
        self._is_silent = False
        self._pid = os.getpid()
        self._pruned = self._runtime.clock.monotonic()
        self._stack = ExitStack()
        self._stack.enter_context(journal)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write_on, name="holdfast-journal", daemon=True)
        self._thread.start()
        self._subscription = subscribe(self._runtime, dict.fromkeys((*OF_RUNS, *_AROUND), self._put))
        after_fork(self._forget)

    @property
    def process(self) -> str:
        """What the journal calls this process."""
        return self._process or f"{socket.gethostname()}:{os.getpid()}"

    def cancel(self) -> None:
        """Take no more events, write what is left, and close the file. A second call does nothing."""
        self._subscription.cancel()
        if self._stop.is_set():
            return
        self._stop.set()
        if self._pid == os.getpid():
            self._thread.join()
            self._open.drop_all()
            self._flush()
            self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def _put(self, event: Event) -> None:
        root = event.root or event.run
        events = self._open.get(root)
        if events is None:
            if not root or not isinstance(event, OF_RUNS):
                self._waiting += 1
                self._around.append(event)
                return
            self._open.put(root, events := [])
        ends = event.run == root and is_end(event, events)
        # Its end is kept in any case.
        if len(events) < MOST_EVENTS or ends:
            events.append(event)
            self._waiting += 1
        else:
            self.dropped += 1
        if ends:
            self._open.take(root)
            self._end(events)

    def _end(self, events: list[Event]) -> None:
        if self._waiting > MOST_WAITING:
            self.dropped += len(events)
            self._waiting -= len(events)
            return
        self._ended.append(events)

    def _lose(self, events: list[Event]) -> None:
        """Keep a run whose end was never reported, as it is."""
        self._end(events)

    # --- in the journal's own thread ---

    def _write_on(self) -> None:
        while not self._stop.wait(FLUSH_S):
            self._flush()
            now = self._runtime.clock.monotonic()
            if now - self._pruned > _PRUNE_S:
                self._pruned = now
                self._try(lambda: self._journal.prune(self._runtime.clock.wall()))

    def _flush(self) -> None:
        batch, count = JournalBatch(), 0
        minutes: dict[tuple[int, str, str], list[RunSummary]] = {}
        while self._ended:
            events = self._ended.popleft()
            count += len(events)
            records = [record_of(run, found, self.process) for run, found in by_run(events).items()]
            for record in records:
                minutes.setdefault((int(record.began // 60), record.operation, record.outcome), []).append(record)
            if self._is_kept(records):
                root = whole(records)
                batch.runs += [root if record.run == root.run else record for record in records]
                batch.events += [(root.run, event) for event in events]
        while self._around:
            batch.events.append(("", self._around.popleft()))
            count += 1
        self._waiting -= count
        batch.minutes = [_summed(key, records) for key, records in minutes.items()]
        if count and not self._try(lambda: self._journal.write(batch)):
            self.dropped += count

    def _is_kept(self, records: list[RunSummary]) -> bool:
        """Whether the runs are kept whole: something was not plainly good, and not too many of the kind were kept this minute."""
        worst = next((each for each in records if each.outcome != "ok"), None)
        if worst is None:
            return False
        minute = int(records[0].began // 60)
        if len(self._kept) > MOST_WAITING:
            self._kept.clear()
        key = (minute, worst.operation, worst.outcome, worst.code)
        self._kept[key] = self._kept.get(key, 0) + 1
        return self._kept[key] <= MOST_A_MINUTE

    def _try(self, write: Callable[[], object]) -> bool:
        """Write, and say once in the log if that fails, and once when it works again."""
        try:
            write()
        except HoldfastError as error:
            if not self._is_silent:
                _LOG.warning("%s. Events are dropped until it can be written", error.fault.message)
            self._is_silent = True
            return False
        if self._is_silent:
            _LOG.warning("the journal %s is written again; %d events were dropped", self._journal.path, self.dropped)
        self._is_silent = False
        return True

    def _forget(self) -> None:
        """In a fork: the file and the thread are the parent's."""
        self._subscription.cancel()


def _summed(key: tuple[int, str, str], records: list[RunSummary]) -> Minute:
    minute, operation, outcome = key
    return Minute(
        minute=minute,
        operation=operation,
        outcome=outcome,
        calls=len(records),
        attempts=sum(record.attempts for record in records),
        took=sum(record.took for record in records),
        waited=sum(record.waited for record in records),
        usd=sum(record.usd or 0.0 for record in records),
        extra_usd=sum(record.extra_usd for record in records),
        tokens=sum(record.tokens or 0 for record in records),
    )
