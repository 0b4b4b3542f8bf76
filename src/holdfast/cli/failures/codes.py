"""`holdfast codes`: the catalog as a filtered table, and the facts that other verbs show about one code."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.cli.exits import Exit
from holdfast.cli.output import narrate, show_json, show_table
from holdfast.faults import CATALOG, NextActor
from holdfast.faults.surfaces import fill

if TYPE_CHECKING:
    from holdfast.cli.app import CodeFilters
    from holdfast.faults import Entry


_FACTS = (
    *("user", "suggestions", "aliases", "layer", "kind", "severity", "retryable", "schedule", "next_actor", "scope"),
    *("http_status", "close_code", "exit_code", "category"),
)
"""The facts of an entry that JSON shows under their own names."""


def codes(*, words: list[str] | None, filters: CodeFilters, as_json: bool) -> Exit:
    """Show the entries that fit every filter."""
    wanted = {name: value for name, value in msgspec.structs.asdict(filters).items() if value is not None}
    entries = [entry for entry in CATALOG.values() if _fits(entry, words or [], wanted)]
    if as_json:
        show_json({"schema": "holdfast.codes/1", "codes": [entry_document(entry) for entry in entries]})
        return Exit.OK if entries else Exit.NOT_FOUND
    # "Not found" has its own exit code, so that a script can check whether a code exists.
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


def _fits(entry: Entry, words: list[str], wanted: dict[str, Any]) -> bool:
    if any(getattr(entry, name) != value for name, value in wanted.items()):
        return False
    # Aliases are searched too: people search for the name that another program gave the failure.
    text = " ".join((entry.code, entry.message, entry.user, entry.classed, *entry.aliases)).casefold()
    return all(word.casefold() in text for word in words)


def entry_document(entry: Entry) -> dict[str, Any]:
    """Return a catalog entry as JSON values."""
    # The catalog holds templates. They are filled without facts, because braces mean nothing to a reader.
    named = {"code": entry.code, "message": fill(entry.message, {})}
    return named | {name: getattr(entry, name) for name in _FACTS} | {"class_code": entry.classed, "task": entry.task}


def next_to_act(actor: NextActor) -> str:
    """Return who must act after a failure, in words."""
    # The log names the operator after an operation has given up, so the page must say when that is.
    return "machine must act; the operator once it has given up" if actor is NextActor.MACHINE else f"{actor} must act"


def entry_facts(entry: Entry) -> list[tuple[str, str]]:
    """Return the facts that `explain` shows above the page."""
    return [
        (
            "kind",
            f"{entry.kind.value}, {'retryable' if entry.retryable else 'not retried'} (schedule: {entry.schedule.value})",
        ),
        ("next", next_to_act(entry.next_actor)),
        ("scope", entry.scope.value),
        ("severity", entry.severity.value),
        ("layer", entry.layer.value),
        ("category", entry.category.value),
        ("status", f"HTTP {entry.http_status} · close {entry.close_code} · exit {entry.exit_code}"),
        ("aliases", ", ".join(entry.aliases)),
        ("in other formats", f"{entry.classed} · {entry.task}"),
    ]
