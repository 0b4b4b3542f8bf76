"""`holdfast codes`: the catalog as a table, filtered."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.cli.exits import Exit
from holdfast.cli.facts import entry_document
from holdfast.cli.output import narrate, show_json, show_table
from holdfast.faults import CATALOG
from holdfast.faults.surfaces import fill

if TYPE_CHECKING:
    from holdfast.faults import Entry

__all__ = ["codes"]


def codes(words: list[str], wanted: dict[str, str | None], *, retryable: bool | None, as_json: bool) -> Exit:
    """Show the entries that fit every filter (AND)."""
    entries = [entry for entry in CATALOG.values() if _fits(entry, words, wanted, retryable=retryable)]
    if as_json:
        show_json({"schema": "holdfast.codes/1", "codes": [entry_document(entry) for entry in entries]})
        return Exit.OK if entries else Exit.NOT_FOUND
    if not entries:
        narrate("holdfast: no code fits all of these filters; without filters all are shown")
        return Exit.NOT_FOUND
    show_table(
        ("code", "kind", "retry", "next", "category", "http", "what happened"),
        [
            (
                entry.code,
                entry.kind.value,
                entry.schedule.value if entry.retryable else "no",
                entry.next_actor.value,
                entry.category.value,
                str(entry.http_status),
                fill(entry.message, {}),
            )
            for entry in entries
        ],
    )
    narrate(f"{len(entries)} of {len(CATALOG)} codes; a page for each: holdfast explain CODE")
    return Exit.OK


def _fits(entry: Entry, words: list[str], wanted: dict[str, str | None], *, retryable: bool | None) -> bool:
    if retryable is not None and entry.retryable is not retryable:
        return False
    if any(value is not None and str(getattr(entry, name)) != value for name, value in wanted.items()):
        return False
    text = " ".join((entry.code, entry.message, entry.user, entry.classed, *entry.aliases)).casefold()
    return all(word.casefold() in text for word in words)
