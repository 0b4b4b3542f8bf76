"""What the `audit` verbs share: which records are wanted, and how one is shown."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from holdfast.classify.durations import parse_duration, parse_rfc3339
from holdfast.cli.output import show_json, show_line, show_table
from holdfast.faults import InvalidError, resolve
from holdfast.stores.chain import session_chain
from holdfast.stores.records import AUDIT_CLASSES

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from holdfast.stores.records import AuditRecord

__all__ = ["Form", "Wanted", "document_of", "form_of", "order", "payload_of", "show", "wanted_of"]

Form: TypeAlias = Literal["table", "json", "jsonl"]
COLUMNS = ("time", "chain", "n", "class", "correlation", "payload")


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Filters; a record must fit them all."""

    chains: frozenset[str] | None = None
    """None: every chain."""
    kinds: frozenset[str] = frozenset()
    code: str | None = None
    correlation: str | None = None
    since: float | None = None
    until: float | None = None

    def reads(self, chain: str) -> bool:
        """Whether a chain may hold wanted records."""
        return self.chains is None or chain in self.chains

    def fits(self, record: AuditRecord) -> bool:
        return (
            self.reads(record.chain)
            and (not self.kinds or record.kind in self.kinds)
            and (self.correlation is None or record.correlation == self.correlation)
            and (self.since is None or _at(record) >= self.since)
            and (self.until is None or _at(record) < self.until)
            and (self.code is None or _code_of(record) == self.code)
        )


def wanted_of(
    chain: str | None,
    session: str | None,
    kinds: Collection[str] | None,
    code: str | None,
    correlation: str | None,
    since: str | None,
    until: str | None,
    *,
    now: float,
) -> Wanted:
    """Return the filters that flags name; raise where one of them means nothing."""
    named = [frozenset((name,)) for name in (chain, session and session_chain(session)) if name]
    entry = None if code is None else resolve(code)
    return Wanted(
        chains=frozenset.intersection(*named) if named else None,
        kinds=frozenset(map(_class_of, kinds or ())),
        code=code if entry is None else entry.code,
        correlation=correlation,
        since=_instant("--since", since, now),
        until=_instant("--until", until, now),
    )


def form_of(as_json: bool, as_jsonl: bool, *, follow: bool = False) -> Form:
    """Return how to show records; one JSON document has an end, what is followed has none."""
    if as_json and (as_jsonl or follow):
        raise InvalidError.saying("--json", f"--jsonl with {'--follow' if follow else 'nothing beside it'}", "--json")
    return "json" if as_json else "jsonl" if as_jsonl else "table"


def order(record: AuditRecord) -> tuple[float, str, int]:
    """Return what records of several chains are sorted by."""
    return (_at(record), record.chain, record.seq)


def payload_of(record: AuditRecord) -> Any:
    """Return what a record says; of one that somebody broke, its text."""
    try:
        return msgspec.json.decode(record.payload)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return bytes(record.payload).decode("utf-8", "replace")


def document_of(record: AuditRecord) -> dict[str, Any]:
    """Return a record as JSON values."""
    return {
        "at": _time(record.at),
        "chain": record.chain,
        "seq": record.seq,
        "class": record.kind,
        "correlation": record.correlation,
        "payload": payload_of(record),
    }


def show(records: Sequence[AuditRecord], form: Form) -> None:
    """Print records; every form holds the same."""
    documents = [document_of(record) for record in records]
    match form:
        case "json":
            show_json({"schema": "holdfast.audit/1", "records": documents})
        case "jsonl":
            for document in documents:
                show_line({"schema": "holdfast.audit/1", **document})
        case "table":
            show_table(COLUMNS, map(_row, documents))


def _row(document: dict[str, Any]) -> tuple[str, ...]:
    *plain, payload = document.values()
    return (*map(str, plain), msgspec.json.encode(payload).decode())


def _at(record: AuditRecord) -> float:
    """Return a record's time; somebody may have written something else there."""
    at: Any = record.at
    return at if isinstance(at, (int, float)) else 0.0


def _code_of(record: AuditRecord) -> str | None:
    payload = payload_of(record)
    return payload.get("code") if isinstance(payload, dict) else None


def _class_of(name: str) -> str:
    known: dict[str, str] = {kind.lower(): kind for kind in AUDIT_CLASSES}
    if name.lower() not in known:
        raise InvalidError.at("--class", f"one of {', '.join(sorted(AUDIT_CLASSES))}", name)
    return known[name.lower()]


def _instant(flag: str, text: str | None, now: float) -> float | None:
    if text is None:
        return None
    at = parse_rfc3339(text)
    if at is None and (ago := parse_duration(text)) is not None:
        at = now - ago
    if at is None:
        raise InvalidError.at(flag, "a date and time such as 2026-03-20T14:32:00Z, or how long ago, such as 15m", text)
    return at


def _time(at: Any) -> str:
    try:
        return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    except (TypeError, ValueError, OverflowError, OSError):  # somebody wrote no time there
        return str(at)
