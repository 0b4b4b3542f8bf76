"""`holdfast sessions show` and `resume`: one session from outside, and whether its program can go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.cli.exits import Exit
from holdfast.cli.output import narrate, show_facts, show_json
from holdfast.cli.sessions_ls import record_document, time_of
from holdfast.cli.stored import with_store
from holdfast.sessions import machine
from holdfast.sessions.outside import find, make_resumable, overview

if TYPE_CHECKING:
    from holdfast.sessions import Question
    from holdfast.sessions.outside import Overview
    from holdfast.stores import Store

__all__ = ["sessions_resume", "sessions_show"]


def sessions_show(url: str | None, given: str, *, as_json: bool) -> Exit:
    """Show all that is to be seen of a session."""

    async def show(store: Store) -> Exit:
        _show(await overview(store, await find(store, given)), as_json=as_json)
        return Exit.OK

    return with_store(url, show)


def sessions_resume(url: str | None, given: str, *, as_json: bool) -> Exit:
    """Make a session resumable if it can be, show it, and say what waits for a person; raise why it cannot."""

    async def resume(store: Store) -> Exit:
        seen = await make_resumable(store, await find(store, given))
        _show(seen, as_json=as_json)
        for key in seen.unknown:
            narrate(f"{key} may have happened: the program must say so with session.resolve, or it stops there again")
        for question in seen.questions:
            narrate(f"to be answered: holdfast sessions answer {seen.record.id} {question.id}")
        narrate("start the program of this session: it goes on by itself")
        return Exit.OK

    return with_store(url, resume)


def _show(seen: Overview, *, as_json: bool) -> None:
    document = _document(seen)
    if as_json:
        show_json({"schema": "holdfast.sessions.show/1", **document})
    else:
        show_facts(f"{document['session']}  {document['state']}", [(k, _text(v)) for k, v in document.items()][2:])


def _document(seen: Overview) -> dict[str, Any]:
    record, manifest, checkpoint = seen.record, seen.manifest, seen.checkpoint
    resumable = manifest is not None and manifest.resumable
    return {
        **record_document(record),
        "document_000": machine.bridge_view(record.state, resumable=resumable),
        "document_002": machine.stud_view(record.state).value,
        "can_resume": not seen.problem,
        "problem": seen.problem,
        "owner": record.owner or "",
        "epoch": record.epoch,
        "oldest": record.oldest,
        "turn": seen.turn,
        "turn_in_flight": seen.in_flight,
        "steps": seen.steps,
        "unknown_steps": list(seen.unknown),
        "questions": [_question(question) for question in seen.questions],
        "messages": seen.messages,
        "checkpoint_at": None if checkpoint is None else time_of(checkpoint.at),
        "last_message_id": None if checkpoint is None else checkpoint.last_message_id,
        "manifest": None if manifest is None else msgspec.to_builtins(manifest),
    }


def _question(question: Question) -> dict[str, Any]:
    return {
        "id": question.id,
        "kind": question.kind,
        "prompt": question.prompt,
        "choices": list(question.choices),
        "expires_at": None if question.expires_at is None else time_of(question.expires_at),
    }


def _text(value: Any) -> str:
    """A value on one line: nothing for nothing, JSON for what has parts."""
    if value is None or value == []:
        return ""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
