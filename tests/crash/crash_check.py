"""What must be true of a store after its processes were killed, whatever they were doing.

Each broken promise is a line; an empty list is a sound store.
"""

from __future__ import annotations

import sqlite3
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from crash_work import Note, claim_of, entries_of

from holdfast.faults import HoldfastError
from holdfast.stores import AuditRecord, Commit, Entry, NewEntry, SessionRecord, SessionState, SqliteStore
from holdfast.stores.chain import session_chain, verify


class Found:
    """What is in a store, all of it."""

    def __init__(self) -> None:
        self.sessions: dict[str, SessionRecord] = {}
        self.logs: dict[str, list[Entry]] = {}
        self.audits: dict[str, list[AuditRecord]] = {}
        self.heads: dict[str, tuple[int, str]] = {}


async def find(store: SqliteStore) -> Found:
    found = Found()
    for record in await store.sessions():
        found.sessions[record.id] = record
        log = found.logs[record.id] = []
        after = record.oldest - 1
        while page := await store.read(record.id, after=after):
            log += page
            after = page[-1].offset
    for name, seq, sealed in await store.chains():
        found.heads[name] = (seq, sealed)
        found.audits[name] = await store.audit(name, limit=100_000)
    return found


async def check(path: Path, notes: list[Note]) -> list[str]:
    """Open a store after a crash; return what is wrong with it."""
    async with SqliteStore(path) as store:
        found = await find(store)
        wrong = [*_files(path), *_logs(found), *_noted(found, notes), *_records(path, found, notes), *_audits(found)]
        wrong += await _goes_on(store, found, notes)
    return wrong


def _files(path: Path) -> Iterable[str]:
    with closing(sqlite3.connect(path)) as connection:
        for (line,) in connection.execute("PRAGMA integrity_check"):
            if line != "ok":
                yield f"SQLite finds: {line}"


def _body(entry: Entry) -> dict[str, Any]:
    body: dict[str, Any] = msgspec.json.decode(entry.body)
    return body


def _logs(found: Found) -> Iterable[str]:
    """Offsets without holes, times that never go back, no id twice, each commit whole, each writer's order kept."""
    for id_, log in found.logs.items():
        record = found.sessions[id_]
        if [entry.offset for entry in log] != list(range(record.oldest, record.top + 1)):
            yield f"{id_}: offsets {[entry.offset for entry in log]}, not {record.oldest} to {record.top}"
        if any(later.at < earlier.at for earlier, later in pairwise(log)):
            yield f"{id_}: time goes back"
        yield from (f"{id_}: {name} is there {n} times" for name, n in Counter(e.id for e in log).items() if n > 1)
        yield from _whole_commits(id_, log, record.oldest)
        yield from _orders(id_, log)


def _whole_commits(id_: str, log: list[Entry], oldest: int) -> Iterable[str]:
    for entry in log:
        body = _body(entry)
        start = entry.offset - body["k"]
        wanted = range(max(start, oldest), start + body["of"])
        there = {other.offset for other in log if _body(other)["op"] == body["op"]}
        if there != set(wanted):
            yield f"{id_}: of {body['op']} there is {sorted(there)}, not {list(wanted)}"


def _orders(id_: str, log: list[Entry]) -> Iterable[str]:
    orders: dict[str, list[int]] = defaultdict(list)
    for entry in log:
        worker, _, n = _body(entry)["op"].rpartition(".")
        orders[worker].append(int(n))
    yield from (f"{id_}: {worker} wrote {order}" for worker, order in orders.items() if order != sorted(order))


def _noted(found: Found, notes: list[Note]) -> Iterable[str]:
    """Everything confirmed is there, at the place that was returned; nothing rejected is."""
    gone = {note.session for note in notes if note.way == "remove" and note.answer != "no"}
    for note in notes:
        log, record = found.logs.get(note.session), found.sessions.get(note.session)
        if note.answer == "ack" and note.way == "remove" and record is not None:
            yield f"{note.op}: {note.session} was removed and is there"
        if note.session in gone or not note.session:
            continue
        if log is None or record is None:
            if note.answer == "ack":
                yield f"{note.op}: {note.session} is lost"
            continue
        if note.answer == "ack" and note.way == "close" and record.state is not SessionState.CLOSED:
            yield f"{note.op}: {note.session} was closed and is {record.state}"
        yield from _entries_noted(note, log, record)


def _entries_noted(note: Note, log: list[Entry], record: SessionRecord) -> Iterable[str]:
    there = {entry.offset: entry.id for entry in log}
    if note.answer == "ack" and note.entries:
        for k in range(note.entries):
            offset = note.first + k
            if offset >= record.oldest and there.get(offset) != f"{note.op}.{k}":
                yield f"{note.op}: acknowledged at {offset} of {note.session}, where {there.get(offset)} is"
    if note.answer == "no" and note.way != "lease" and any(id_ == f"{note.op}.0" for id_ in there.values()):
        yield f"{note.op}: refused with {note.code} and there"


def _records(path: Path, found: Found, notes: list[Note]) -> Iterable[str]:
    """States, checkpoints, fences and claims agree with what was acknowledged and with the log."""
    for id_, record in found.sessions.items():
        states = [
            state
            for link in found.audits.get(session_chain(id_), [])
            if (state := msgspec.json.decode(link.payload).get("state")) is not None
        ]
        if record.state != (states[-1] if states else "created"):
            yield f"{id_}: it is {record.state}, and the audit trail says {states[-1:]}"
        if record.oldest > (record.checkpoint or 0) + 1:
            yield f"{id_}: {record.oldest} is its oldest, and its checkpoint is at {record.checkpoint}"
        mine = [note for note in notes if note.session == id_ and note.answer == "ack"]
        fences = [note.value for note in mine if note.way == "lease"]
        if len(fences) != len(set(fences)) or max(fences, default=0) > record.fence:
            yield f"{id_}: fences {fences} were given, and it has {record.fence}"
        if max((note.value for note in mine if note.way == "compact"), default=0) > record.oldest:
            yield f"{id_}: it was compacted further than {record.oldest}"
    with closing(sqlite3.connect(path)) as connection:
        yield from _checkpoints(connection)
        yield from _claims(connection, found)


def _checkpoints(connection: sqlite3.Connection) -> Iterable[str]:
    rows = connection.execute(
        "SELECT s.name, s.top, s.checkpoint, c.pos, c.message_count, c.last_message_id, c.snapshot"
        " FROM session s LEFT JOIN checkpoint c ON c.session = s.key"
    )
    for id_, top, at, pos, count, last, snapshot in rows:
        if at != pos or (pos or 0) > top:
            yield f"{id_}: its checkpoint is at {pos}, the session says {at}, its log ends at {top}"
        if snapshot is not None and msgspec.json.decode(snapshot) != {"op": last, "count": count}:
            yield f"{id_}: half a checkpoint: {count}, {last}, {snapshot!r}"
    ((orphans,),) = connection.execute(
        "SELECT count(*) FROM (SELECT session FROM entry UNION SELECT session FROM checkpoint UNION SELECT session"
        " FROM inbox) WHERE session NOT IN (SELECT key FROM session)"
    ).fetchall()
    if orphans:
        yield f"{orphans} sessions were removed by half"


def _claims(connection: sqlite3.Connection, found: Found) -> Iterable[str]:
    for id_, claimed, first in connection.execute(
        "SELECT s.name, i.id, i.first FROM inbox i JOIN session s ON s.key = i.session"
    ):
        record = found.sessions[id_]
        ids = {entry.offset: entry.id for entry in found.logs[id_]}
        if first >= record.oldest and ids.get(first) != f"{claimed}.0":
            yield f"{id_}: {claimed} is claimed at {first}, where {ids.get(first)} is"


def _audits(found: Found) -> Iterable[str]:
    """The chains hold, and each commit that is in a log is in the trail once, and the other way round."""
    for name, links in found.audits.items():
        seq, sealed, broken = verify(links)
        if broken is not None or (seq, sealed.hex()) != found.heads[name]:
            yield f"chain {name}: {broken}, {seq} records, its head says {found.heads[name][0]}"
    for id_, log in found.logs.items():
        times = Counter(link.correlation for link in found.audits.get(session_chain(id_), []))
        once = {_body(entry)["op"] for entry in log}
        yield from (f"{id_}: {op} is {times[op]} times in the audit trail" for op in once if times[op] != 1)
    pairs = Counter(link.correlation for link in found.audits.get("program", []))
    yield from (f"chain program: half of {op}" for op, n in pairs.items() if n != 2)


async def _goes_on(store: SqliteStore, found: Found, notes: list[Note]) -> list[str]:
    """What was not acknowledged is tried again by its claim and is there once; every open session takes more."""
    wrong: list[str] = []
    acknowledged = {note.op for note in notes if note.answer == "ack"}
    for note in notes:
        if note.way != "claim" or note.answer != "try" or note.session not in found.sessions:
            continue
        claim = claim_of(note.op, note.op.rpartition(".")[0])
        receipt = await store.commit(Commit(session=note.session, claim=claim, entries=entries_of(note.op, 1)))
        if note.op in acknowledged and not receipt.duplicate:
            wrong.append(f"{note.op}: acknowledged, and its claim is not known")
    for id_, record in found.sessions.items():
        if record.state is SessionState.CLOSED:
            continue
        top = (await store.session(id_)).top
        more = NewEntry(type="more", id="more", body=b"{}")
        try:
            receipt = await store.commit(Commit(session=id_, entries=(more,)))
        except HoldfastError as error:
            wrong.append(f"{id_}: takes no more: {error}")
        else:
            if receipt.first != top + 1:
                wrong.append(f"{id_}: goes on at {receipt.first} after {top}")
        again = Counter(entry.id for entry in await store.read(id_, after=record.oldest - 1, limit=100_000))
        wrong += [f"{id_}: {name} is there {n} times after a second try" for name, n in again.items() if n > 1]
    return wrong
