"""The sessions of a bridge in a list: what each is called, and what it does now.

Invariant: a list fits into one message, and texts that programs on the store made too long for it are cut and named. What an agent does is known
of sessions that this server has in use, if it can be found out soon, and said of no others.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from holdfast.bridge.sessions.live_session import LiveSession
from holdfast.faults import HoldfastError
from holdfast.sessions import machine
from holdfast.sessions.manifest import decode_manifest
from holdfast.wire.envelope import stamp
from holdfast.wire.messages import NAME_LENGTH, PATH_LENGTH, SessionSummary

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from holdfast.stores import SessionRecord

__all__ = ["fitting", "summaries"]

_PATIENCE_S = 1.0
"""How long to wait for what the sessions do. It is not said of those that it is not known of by then; the next list has more."""
_SHOWN_TEXTS = {"agent": NAME_LENGTH, "title": NAME_LENGTH, "working_directory": PATH_LENGTH}


async def summaries(
    listed: Iterable[SessionRecord | LiveSession], in_use: Mapping[str, LiveSession], *, most: int
) -> list[SessionSummary]:
    """Return the first of these sessions as they are listed, together at most `most` bytes.

    `await summaries(records, hub.sessions, most=32_768)`
    """
    shown = fitting(map(_summary, listed), most)
    # Clients cannot connect before they have this, and the log of a session may be too long to be read by then.
    with suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE_S):
            for number, each in enumerate(shown):
                shown[number] = await _doing(each, in_use.get(each.session_id))
    return shown


def fitting(found: Iterable[SessionSummary], most: int) -> list[SessionSummary]:
    """Return the first ones that together have at most so many bytes; one at least."""
    shown: list[SessionSummary] = []
    for summary in found:
        most -= len(msgspec.json.encode(summary)) + _DOING_BYTES
        if most < 0 and shown:
            break
        shown.append(summary)
    return shown


_DOING_BYTES = len(',"turn":"requires_action","questions":1000000')
"""What is added to a summary of a session in use, and the comma after it."""


def _summary(record: SessionRecord | LiveSession) -> SessionSummary:
    if isinstance(record, LiveSession):
        return SessionSummary(session_id=record.id, status=record.state.value, title=record.title[:NAME_LENGTH])
    last_at = stamp(record.last_at)
    try:
        manifest = decode_manifest(record.id, bytes(record.manifest))
    except HoldfastError:
        # A damaged one is listed too. Joining it says what is wrong.
        return SessionSummary(session_id=record.id, status=record.state.value, last_at=last_at)
    # Programs on the store may give longer ones than clients may.
    whole = {"agent": manifest.agent_type, "title": manifest.title, "working_directory": manifest.project_root or ""}
    shown = {name: text[: _SHOWN_TEXTS[name]] for name, text in whole.items()}
    return SessionSummary(
        session_id=record.id,
        status=machine.bridge_view(record.state, resumable=manifest.resumable),
        agent=shown["agent"],
        title=shown["title"],
        working_directory=shown["working_directory"],
        last_at=last_at,
        cut=tuple(name for name in whole if shown[name] != whole[name]),
    )


async def _doing(summary: SessionSummary, live: LiveSession | None) -> SessionSummary:
    """Add what the agent does and who waits, if the session is in use here."""
    if live is None:
        return summary
    try:
        turn, questions = await live.doing()
    except HoldfastError:
        # Its log cannot be read. Whoever joins it learns why.
        return summary
    return msgspec.structs.replace(summary, turn=turn, questions=questions)
