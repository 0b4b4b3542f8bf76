"""`holdfast audit tail|query|verify|export`: read, search, verify and copy the audit trail of a store."""

from __future__ import annotations

import asyncio
import heapq
import sys
import time
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import options
from holdfast.classify.times import parse_duration, parse_rfc3339
from holdfast.cli.exits import Exit
from holdfast.cli.output import counted, fail, narrate, show_json, show_line, show_table
from holdfast.cli.store.access import form_of, time_of
from holdfast.faults import InvalidError, resolve
from holdfast.stores.chain import session_chain
from holdfast.stores.records import AUDIT_CLASSES
from holdfast.stores.verification import ANCHORS, ChainHead, heads_of, records_of, unaudited, verify_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.cli.store.access import Form
    from holdfast.cli.store.flags import AuditFlags
    from holdfast.stores.records import AuditRecord
    from holdfast.stores.store import Store
    from holdfast.stores.verification import Verification

COLUMNS = ("time", "chain", "n", "class", "correlation", "payload")
POLL_S = 0.5
_LEAST_PAGE = 100


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """The filters of a search. A record must fit every filter."""

    chains: frozenset[str] | None = None
    """None means every chain."""
    kinds: frozenset[str] = frozenset()
    code: str | None = None
    correlation: str | None = None
    since: float | None = None
    until: float | None = None

    def reads(self, chain: str) -> bool:
        """Whether a chain may hold wanted records."""
        return self.chains is None or chain in self.chains

    def shows(self, chain: str) -> bool:
        """Whether people want to see a chain. Anchors are for `verify`, and shown only if the user names their chain."""
        return chain != ANCHORS if self.chains is None else chain in self.chains

    def fits(self, record: AuditRecord) -> bool:
        """Whether a record fits every filter."""
        return (
            self.reads(record.chain)
            and (not self.kinds or record.kind in self.kinds)
            and (self.correlation is None or record.correlation == self.correlation)
            and (self.since is None or _at(record) >= self.since)
            and (self.until is None or _at(record) < self.until)
            # This filter comes last, because it decodes the payload, which is slow.
            and (self.code is None or _code_of(record) == self.code)
        )


class _Anchor(msgspec.Struct):
    heads: tuple[ChainHead, ...]


def filters_of(flags: AuditFlags) -> Filters:
    """Return the filters that the flags name. Raises `InvalidError` for an invalid value."""
    chains = (flags.chain, flags.session and session_chain(flags.session))
    named = [frozenset((name,)) for name in chains if name]
    entry = None if flags.code is None else resolve(flags.code)
    now = time.time()
    return Filters(
        chains=frozenset.intersection(*named) if named else None,
        kinds=frozenset(map(_class_of, flags.kinds or ())),
        code=flags.code if entry is None else entry.code,
        correlation=flags.correlation,
        since=instant_of("--since", flags.since, now),
        until=instant_of("--until", flags.until, now),
    )


# --- tail ---


async def audit_tail(
    store: Store, *, filters: AuditFlags, lines: int, follow: bool, as_json: bool, as_jsonl: bool
) -> Exit:
    """Show the newest records of all chains together. With `follow`, continue with new records until Ctrl-C."""
    wanted, form = filters_of(filters), form_of(as_json, as_jsonl, follow=follow)
    heads = [head async for head in heads_of(store) if wanted.shows(head.chain)]
    _show(await _newest(store, wanted, heads, lines), form)
    if follow:
        await _follow(store, wanted, {head.chain: head.seq for head in heads}, form)
    return Exit.OK


async def _newest(store: Store, filters: Filters, heads: list[ChainHead], count: int) -> list[AuditRecord]:
    found = [record for head in heads for record in await _end_of(store, filters, head, count)]
    found.sort(key=_order)
    return found[len(found) - min(count, len(found)) :]


async def _end_of(store: Store, filters: Filters, head: ChainHead, count: int) -> list[AuditRecord]:
    """Return the last records of a chain that fit.

    It reads from the end, because a chain may have millions of records.
    """
    found: list[AuditRecord] = []
    end, step = head.seq, max(count, _LEAST_PAGE)
    while end > 0 and len(found) < count:
        begin = max(0, end - step)
        page = await store.audit(head.chain, after=begin, limit=end - begin)
        found = [record for record in page if record.seq <= end and filters.fits(record)] + found
        end = begin
    return found[len(found) - min(count, len(found)) :]


async def _follow(store: Store, filters: Filters, seen: dict[str, int], form: Form) -> None:
    # The store is polled, because other processes write to it and SQLite cannot notify us.
    while True:
        new: list[AuditRecord] = []
        async for head in heads_of(store):
            after = seen.get(head.chain, 0)
            if head.seq > after and filters.shows(head.chain):
                async for record in records_of(store, head.chain, after=after):
                    seen[head.chain] = record.seq
                    new.append(record)
        new.sort(key=_order)
        if fitting := [record for record in new if filters.fits(record)]:
            _show(fitting, form)
        await asyncio.sleep(POLL_S)


# --- query ---


async def audit_query(store: Store, *, filters: AuditFlags, limit: int, as_json: bool, as_jsonl: bool) -> Exit:
    """Show the newest `limit` records that fit, in the order of their times."""
    form = form_of(as_json, as_jsonl)
    records, count = await _fitting(store, filters_of(filters), limit)
    if records or form != "table":
        _show(records, form)
    if not count:
        narrate("holdfast: no record fits all of these filters")
    elif count > limit:
        narrate(f"the newest {limit} of {count} records that fit; --limit shows more")
    return Exit.OK if count else Exit.NOT_FOUND


async def _fitting(store: Store, filters: Filters, limit: int) -> tuple[list[AuditRecord], int]:
    """Return the newest records that fit, and how many fit in all. At most `limit` are in memory."""
    kept: list[tuple[tuple[float, str, int], AuditRecord]] = []
    count = 0
    async for head in heads_of(store):
        if not filters.shows(head.chain):
            continue
        async for record in records_of(store, head.chain):
            if filters.fits(record):
                count += 1
                # The heap has the oldest record on top. A newer record replaces it.
                keep = heapq.heappush if len(kept) < limit else heapq.heappushpop
                keep(kept, (_order(record), record))
    return [record for _, record in sorted(kept, key=itemgetter(0))], count


# --- verify ---


async def audit_verify(store: Store, *, expect: str | None, anchor: str | None, as_json: bool) -> Exit:
    """Verify every chain and show each with its result."""
    result = await verify_store(store, anchor=_anchor_of(anchor), expect=expect)
    without = await unaudited(store)
    if as_json:
        facts = msgspec.to_builtins(result)
        show_json({"schema": "holdfast.audit.verify/1", "sound": result.sound, **facts, "unaudited": without})
    else:
        _show_chains(result, without)
    return _conclude(result)


def _conclude(result: Verification) -> Exit:
    """Print the verdict and return its exit code."""
    narrate(
        f"{counted(result.records, 'sound record')} in {counted(len(result.heads), 'chain')}; digest {result.digest}"
    )
    error = result.error
    if error is None:
        return Exit.OK
    fail(str(error), f"holdfast explain {error.fault.code}")
    return Exit(error.fault.entry.exit_code)


def _show_chains(result: Verification, without: list[str]) -> None:
    found = {broken.chain: f"breaks at record {broken.seq}: {broken.reason}" for broken in reversed(result.broken)}
    rows = [(head.chain, str(head.seq), head.hash, found.pop(head.chain, "sound")) for head in result.heads]
    # The remaining chains broke at their first record, so they have no head.
    rows += [(chain, "", "", reason) for chain, reason in found.items()]
    rows += [(session_chain(session), "0", "", "not audited") for session in without]
    show_table(("chain", "records", "hash", "found"), rows)


def _anchor_of(file: str | None) -> tuple[ChainHead, ...]:
    if file is None:
        return ()
    try:
        return msgspec.json.decode(Path(file).read_bytes(), type=_Anchor).heads
    except (msgspec.DecodeError, UnicodeDecodeError, OSError) as error:
        raise InvalidError.at("--anchor", "the output of `holdfast audit verify --json`", str(error)) from error


# --- export ---


async def audit_export(store: Store, *, filters: AuditFlags) -> Exit:
    """Write the records that fit as JSON Lines, chain by chain, and verify those chains while writing."""
    wanted = filters_of(filters)

    def write(record: AuditRecord) -> None:
        if wanted.fits(record):
            sys.stdout.write(_export_line(record) + "\n")

    if wanted.chains is not None and not wanted.chains:
        # --chain and --session name different chains, so nothing can fit. No chain has the name "".
        return _conclude(await verify_store(store, chains=("",)))
    return _conclude(await verify_store(store, chains=tuple(wanted.chains or ()), each=write))


def _export_line(record: AuditRecord) -> str:
    """Return a record with exactly the stored bytes of its payload, because the hash is computed from those bytes."""
    payload = _payload_of(record)
    document = {
        "schema": "holdfast.audit.export/1",
        "chain": record.chain,
        "seq": record.seq,
        "at": record.at,
        "class": record.kind,
        "correlation": record.correlation,
        "payload": payload if isinstance(payload, str) else record.payload,
        "hash": record.hash,
    }
    if bytes(record.stored):
        # The hash covers the ciphertext.
        document["stored"] = record.stored
    return msgspec.json.encode(document).decode()


# --- records ---


def _show(records: Sequence[AuditRecord], form: Form) -> None:
    """Print records. Every output form holds the same data."""
    documents = [_document_of(record) for record in records]
    match form:
        case "json":
            show_json({"schema": "holdfast.audit/1", "records": documents})
        case "jsonl":
            for document in documents:
                show_line({"schema": "holdfast.audit/1", **document})
        case "table":
            show_table(COLUMNS, map(_row, documents))


def _document_of(record: AuditRecord) -> dict[str, Any]:
    return {
        "at": time_of(record.at),
        "chain": record.chain,
        "seq": record.seq,
        "class": record.kind,
        "correlation": record.correlation,
        "payload": _payload_of(record),
    }


def _row(document: dict[str, Any]) -> tuple[str, ...]:
    *plain, payload = document.values()
    return (*map(str, plain), msgspec.json.encode(payload).decode())


def _payload_of(record: AuditRecord) -> Any:
    """Return the decoded payload. If the record is damaged, return the payload as text."""
    try:
        return msgspec.json.decode(record.payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return bytes(record.payload).decode("utf-8", "replace")


def _order(record: AuditRecord) -> tuple[float, str, int]:
    """Return the sort key for records of several chains."""
    return (_at(record), record.chain, record.seq)


def _at(record: AuditRecord) -> float:
    at: Any = record.at
    # A record that was tampered with may hold anything here; it must still be shown.
    return at if isinstance(at, (int, float)) else 0.0


def _code_of(record: AuditRecord) -> str | None:
    payload = _payload_of(record)
    return payload.get("code") if isinstance(payload, dict) else None


def _class_of(name: str) -> str:
    known: dict[str, str] = {kind.lower(): kind for kind in AUDIT_CLASSES}
    if name.lower() not in known:
        hint = options.suggestion(name, sorted(AUDIT_CLASSES))
        raise InvalidError.saying("--class", f"a class of audit records ({hint})", repr(name))
    return known[name.lower()]


def instant_of(flag: str, text: str | None, now: float) -> float | None:
    if text is None:
        return None
    at = parse_rfc3339(text)
    if at is None:
        at = _midnight(text, now)
    if at is None and (ago := parse_duration(text)) is not None:
        at = now - ago
    if at is None:
        raise InvalidError.at(
            flag,
            "a date and time such as 2026-03-20T14:32:00Z, a day such as 2026-03-20 or yesterday, or how long ago, such as 15m",
            text,
        )
    return at


def _midnight(text: str, now: float) -> float | None:
    """Return the start of a day in UTC, as all times of the trail: `2026-03-20`, `today`, `yesterday`. None if the text names no day."""
    days_ago = {"today": 0, "yesterday": 1}.get(text.strip().lower())
    if days_ago is not None:
        return now - now % _DAY_S - days_ago * _DAY_S
    return parse_rfc3339(f"{text.strip()}T00:00:00Z")


_DAY_S = 86400.0
