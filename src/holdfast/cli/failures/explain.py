"""`holdfast explain WORD|FILE|-`: the page of a code, a status, a provider error, an exception, or a failure in a file or on stdin."""

from __future__ import annotations

import sys
import time
from difflib import get_close_matches
from pathlib import Path

from holdfast.classify import from_text
from holdfast.classify.vocabulary import codes_for
from holdfast.cli.exits import Exit
from holdfast.cli.failures.classify import fault_document, fault_facts, fault_headline
from holdfast.cli.failures.codes import entry_document, entry_facts
from holdfast.cli.output import fail, narrate, show_facts, show_json, show_page, show_table, tail
from holdfast.faults import CATALOG, Entry, Fault, nearest, resolve
from holdfast.faults.catalog import CLOSE
from holdfast.runtime import page_of, redactor_for

MAX_STDIN = 1_048_576
_LONGEST_NAME = 100
_SENTENCE = 3
"""From so many words on it is the text of a failure, and not a name such as `HTTP 429`."""
_GUESS = "plain.told"
"""The rule for sentences of which only the tone is known. It explains nothing."""
_SCHEMA = "holdfast.explain/1"
_WRAPPERS = {
    "RetryError": "the attempts are used up; the failure is inside: `error.last_attempt.exception()` of tenacity, else `__cause__`",
    "ExceptionGroup": "several failures at once; explain those in its `exceptions`",
}
"""Exceptions that say nothing about the failure that they contain."""
_NUMBER_LIKE = 0.7


def explain(*, code: str, as_json: bool) -> Exit:
    """Show the page of a code, of a word that means one code, of the failure that a sentence or a file describes (`-`: stdin).

    A word that means several codes, such as `429`, gives a list of them.
    """
    name, now = code, time.time()
    if name == "-":
        # The end of a log shows how the program ended.
        return _explain_text(tail(sys.stdin.buffer, MAX_STDIN), "on standard input", as_json=as_json, now=now)
    # Our own codes come first: TIMEOUT is an alias of a code and also a word of other libraries.
    entry = resolve(name)
    if entry is not None:
        return _show(entry, None, as_json=as_json)
    if (file := _file(name)) is not None:
        with file.open("rb") as log:
            return _explain_text(tail(log, MAX_STDIN), f"in {name}", as_json=as_json, now=now)
    if (
        len(name.split()) >= _SENTENCE
        and (fault := _fault_in(name, now)).code != "SYS_UNKNOWN"
        and fault.rule != _GUESS
    ):
        return _show(fault.entry, fault, as_json=as_json)
    # The word is cut, because a user may paste a whole log line here.
    word = name[:_LONGEST_NAME] or "''"
    found = [CATALOG[code] for code in codes_for(name)]
    if len(found) == 1:
        return _show(found[0], None, as_json=as_json)
    return _list(word, found, as_json=as_json) if found else _unknown(word, as_json=as_json)


def _file(name: str) -> Path | None:
    try:
        return Path(name) if Path(name).is_file() else None
    except (OSError, ValueError):  # a pasted line is no path: too long, or with a null byte
        return None


def _explain_text(raw: bytes, where: str, *, as_json: bool, now: float) -> Exit:
    text = raw.decode("utf-8", "replace")
    if not text.strip():
        fail(f"nothing {where}", "pipe a traceback or a JSON error in: program 2>&1 | holdfast explain -")
        return Exit.USAGE
    fault = _fault_in(text, now)
    return _show(fault.entry, fault, as_json=as_json)


def _fault_in(text: str, now: float) -> Fault:
    return from_text(text, now=now).masked(redactor_for())


def _list(word: str, entries: list[Entry], *, as_json: bool) -> Exit:
    """Show what a word can mean. Each code has its sentence for users, which explains the code without our terms."""
    if as_json:
        codes = [entry_document(entry) for entry in entries]
        show_json({"schema": _SCHEMA, "word": word, "codes": codes})
        return Exit.OK
    rows = [(entry.code, "yes" if entry.retryable else "no", entry.user) for entry in entries]
    show_table(("code", "retried", "what happened"), rows)
    narrate(f"{word} can mean {len(entries)} things, the most likely first; the message and the headers decide")
    narrate("  to read about a code: holdfast explain CODE")
    narrate("  your own failure: holdfast classify --help, or paste it into: holdfast explain -")
    return Exit.OK


_PASTE = "a whole error or traceback, pasted and ended with Ctrl-D: holdfast explain -"


def _unknown(word: str, *, as_json: bool) -> Exit:
    near = _numbers_like(word) if word.isdecimal() else nearest(word, closeness=CLOSE)
    if as_json:
        show_json({"schema": _SCHEMA, "error": f"no code {word}", "nearest": near})
    if (inside := _WRAPPERS.get(word.rpartition(".")[2])) is not None:
        fail(f"`{word}` has no code of its own: {inside}", _PASTE)
        return Exit.NOT_FOUND
    fail(
        f"`{word}` is not a code, status, provider error or exception that Holdfast knows",
        *([f"did you mean {', '.join(near)}?"] if near else []),
        _PASTE,
        "all codes: holdfast codes",
    )
    return Exit.NOT_FOUND


def _numbers_like(number: str) -> list[str]:
    """Return the HTTP statuses that look like a mistyped one."""
    known = sorted({str(entry.http_status) for entry in CATALOG.values()})
    return get_close_matches(number, known, 2, cutoff=_NUMBER_LIKE)


def _show(entry: Entry, fault: Fault | None, *, as_json: bool) -> Exit:
    page = page_of(entry.code)
    if as_json:
        verdict = {} if fault is None else {"fault": fault_document(fault) | {"message": fault.message}}
        show_json({"schema": _SCHEMA, **entry_document(entry), **verdict, "page": page})
        return Exit.OK
    # The verdict on this failure comes first. The page below describes every failure with the code.
    if fault is not None:
        show_facts(fault_headline(fault), fault_facts(fault))
        sys.stdout.write("\n")
    # The facts stand between title and text, because people compare them first.
    title, _, rest = page.partition("\n")
    show_page(title)
    show_facts("", entry_facts(entry))
    show_page(rest)
    return Exit.OK
