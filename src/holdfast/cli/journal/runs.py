"""`holdfast runs ls` and `holdfast runs show`: the calls in a journal, and where the time of each went."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast.cli.exits import Exit
from holdfast.cli.output import counted, fail, narrate, show_drawing, show_facts, show_json, show_table
from holdfast.cli.store.access import time_of
from holdfast.cli.store.audit import instant_of
from holdfast.journal import JournalFile, bars_of, drawn

if TYPE_CHECKING:
    from holdfast.cli.journal.flags import RunFilters
    from holdfast.journal import RunSummary

_COLUMNS = ("began", "run", "operation", "outcome", "code", "took", "waited", "attempts", "cost")


def runs_ls(*, filters: RunFilters, limit: int, journal: str, as_json: bool) -> Exit:
    """List the runs that fit."""
    if (opened := _opened(journal)) is None:
        return Exit.NOT_FOUND
    now = time.time()
    with opened:
        found = opened.runs(
            operation=filters.operation or "",
            outcome=filters.outcome or "",
            code=filters.code or "",
            request=filters.request or "",
            session=filters.session or "",
            since=instant_of("--since", filters.since, now),
            before=instant_of("--until", filters.until, now),
            limit=limit,
        )
    if as_json:
        show_json({"schema": "holdfast.runs/1", "runs": msgspec.to_builtins(found)})
    elif found:
        show_table(_COLUMNS, (_row(record) for record in found))
    else:
        narrate("no run fits: calls that worked at once are only counted")
    return Exit.OK


def runs_show(*, run: str, journal: str, as_json: bool) -> Exit:
    """Draw one run."""
    if (opened := _opened(journal)) is None:
        return Exit.NOT_FOUND
    with opened:
        record = opened.run(run)
        events = opened.events(run)
    if record is None:
        fail(f"the journal {journal} has no run {run}", "holdfast runs ls")
        return Exit.NOT_FOUND
    bars = bars_of(events)
    if as_json:
        show_json({"schema": "holdfast.run/1", "run": msgspec.to_builtins(record), "bars": msgspec.to_builtins(bars)})
        return Exit.OK
    show_facts(
        f"{record.operation or 'a call'} {record.outcome} after {record.took:.1f} s",
        (
            ("run", record.run),
            ("began", time_of(record.began)),
            ("request", record.request),
            ("session", record.session and f"{record.session}, turn {record.turn}"),
            ("step", record.step),
            ("process", record.process),
            ("failure", record.code),
            ("waited", f"{record.waited:.1f} s of it"),
            ("answered by", record.via if record.via != "primary" else record.model),
            ("cost", _cost(record)),
        ),
    )
    if not bars:
        narrate("its events are no longer kept")
    show_drawing(drawn(bars))
    return Exit.OK


def _opened(path: str) -> JournalFile | None:
    """Return the journal; None, with what to do, if there is none. Reading one must not make one."""
    if Path(path).is_file():
        return JournalFile(path)
    fail(f"there is no journal at {path}", "journal_to() in your program writes one; --journal names another file")
    return None


def _row(record: RunSummary) -> tuple[str, ...]:
    return (
        time_of(record.began),
        record.run,
        record.operation,
        record.outcome if record.via == "primary" else f"{record.outcome} via {record.via}",
        record.code,
        f"{record.took:.1f} s",
        f"{record.waited:.1f} s",
        str(record.attempts),
        "" if record.usd is None else f"${record.usd:.4f}",
    )


def _cost(record: RunSummary) -> str:
    if record.usd is None:
        return ""
    extra = f", ${record.extra_usd:.4f} of it for recovery" if record.extra_usd else ""
    tokens = "" if record.tokens is None else f", {counted(record.tokens, 'token')}"
    return f"${record.usd:.4f}{extra}{tokens}"
