"""`holdfast sessions export` and `import`: sessions out of a store and into one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.cli.exits import Exit
from holdfast.cli.output import fail, narrate, show_json
from holdfast.cli.stored import with_store
from holdfast.faults import HoldfastError, InvalidError
from holdfast.sessions import persisted as document_000
from holdfast.sessions.moving import export_lines, import_lines
from holdfast.sessions.outside import find

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.stores import Store

__all__ = ["sessions_export", "sessions_import"]


def sessions_export(url: str | None, given: Sequence[str], *, persisted: bool, output: str | None) -> Exit:
    """Write one session as JSON Lines, or any number of them as document 000 has them."""

    async def export(store: Store) -> Exit:
        found = list(dict.fromkeys([await find(store, one) for one in given]))
        if persisted:
            sessions = [await document_000.persisted(store, session) for session in found]
            if output is not None:
                document_000.save(output, sessions)
            else:
                sys.stdout.write(document_000.dump(sessions).decode())
        else:
            if len(found) > 1:
                raise InvalidError.saying("export", "one session a file, or --persisted", f"{len(found)} sessions")
            lines = [line.decode() + "\n" async for line in export_lines(store, found[0])]
            _write("".join(lines), output)
        narrate(f"exported {', '.join(found)}")
        return Exit.OK

    return with_store(url, export)


def sessions_import(url: str | None, file: str, *, persisted: bool, as_json: bool) -> Exit:
    """Put what was exported into a store, which is made where there is none."""
    content = _read(file)
    problems: list[HoldfastError] = []

    async def bring(store: Store) -> Exit:
        if persisted:
            loaded = document_000.parse(content, "stdin" if file == "-" else file)
            problems.extend(loaded.problems)
            brought = await _put(store, loaded.sessions, problems)
        else:
            brought = [await import_lines(store, content.splitlines())]
        if as_json:
            told = [problem.fault.message for problem in problems]
            show_json({"schema": "holdfast.sessions.import/1", "imported": brought, "problems": told})
        else:
            narrate(f"imported {', '.join(brought) or 'nothing'}")
        for problem in problems:
            fail(str(problem), f"holdfast explain {problem.fault.code}")
        return Exit(problems[0].fault.entry.exit_code) if problems else Exit.OK

    return with_store(url, bring, make=True)


async def _put(
    store: Store, sessions: Sequence[document_000.PersistedSession], problems: list[HoldfastError]
) -> list[str]:
    """Put in each that can be; one that cannot does not keep out the others."""
    brought: list[str] = []
    for session in sessions:
        try:
            await document_000.put(store, session)
        except HoldfastError as error:
            if error.fault.code == "SESS_STORE_UNAVAILABLE":
                raise
            problems.append(error)
        else:
            brought.append(session.id)
    return brought


def _read(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise InvalidError.saying(file, "a file that can be read", error.strerror or str(error)) from error


def _write(text: str, output: str | None) -> None:
    if output is None:
        sys.stdout.write(text)
        return
    unfinished = Path(f"{output}.part")
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(output)
