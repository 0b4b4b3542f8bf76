"""`holdfast explain CODE|-`: the catalog page of a code, or of whatever failure stands on stdin."""

from __future__ import annotations

import sys

from holdfast.classify import from_text
from holdfast.cli.classify import fault_document, fault_facts, fault_headline
from holdfast.cli.codes import entry_document, entry_facts
from holdfast.cli.exits import Exit
from holdfast.cli.output import fail, show_facts, show_json, show_page, tail
from holdfast.faults import Entry, Fault, nearest, resolve
from holdfast.runtime import page_of, redactor_for

__all__ = ["explain"]

MAX_STDIN = 1_048_576
_LONGEST_NAME = 100


def explain(name: str, *, as_json: bool, now: float) -> Exit:
    """Show the page of a code, an alias, or (with `-`) of the failure read from stdin."""
    if name == "-":
        # The end of a log tells what came of it.
        text = tail(sys.stdin.buffer, MAX_STDIN).decode("utf-8", "replace")
        if not text.strip():
            fail("nothing on standard input", "pipe a traceback or a JSON error in: program 2>&1 | holdfast explain -")
            return Exit.USAGE
        fault = from_text(text, now=now).masked(redactor_for())
        return _show(fault.entry, fault, as_json=as_json)
    entry = resolve(name)
    if entry is None:
        told = name[:_LONGEST_NAME] or "''"
        near = nearest(told)
        if as_json:
            show_json({"schema": "holdfast.explain/1", "error": f"no code {told}", "nearest": near})
        fail(f"there is no code {told}", f"did you mean {', '.join(near)}?", "all of them: holdfast codes")
        return Exit.NOT_FOUND
    return _show(entry, None, as_json=as_json)


def _show(entry: Entry, fault: Fault | None, *, as_json: bool) -> Exit:
    page = page_of(entry.code)
    if as_json:
        verdict = {} if fault is None else {"fault": fault_document(fault) | {"message": fault.message}}
        show_json({"schema": "holdfast.explain/1", **entry_document(entry), **verdict, "page": page})
        return Exit.OK
    if fault is not None:
        show_facts(fault_headline(fault), fault_facts(fault))
        sys.stdout.write("\n")
    title, _, rest = page.partition("\n")
    show_page(title)
    show_facts("", entry_facts(entry))
    show_page(rest)
    return Exit.OK
