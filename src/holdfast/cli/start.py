"""`holdfast` alone: what to do next, by what is here.

Invariant: it changes nothing. It makes no store, contacts no server, and a store that cannot be read is a line of its own.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast._version import __version__
from holdfast.cli.exits import Exit
from holdfast.cli.output import counted, one_line
from holdfast.faults import HoldfastError
from holdfast.stores.records import SessionState

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from holdfast.stores import SessionRecord

KEYS = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "XAI_API_KEY")
"""The variables with the keys of providers."""

_FILE = "holdfast.toml"
_WIDTH = 60
"""The text fits half a terminal."""
_COMMAND = len("holdfast explain 429")
"""The width of the column of commands. A longer command moves its own line only."""
_LONGEST_ID = 20
_MOST_SESSIONS = 200
_WHY = (_FAILED, _INTERRUPTED, _PARKED, _PAUSED) = "failed", "interrupted", "parked", "paused"
"""Why a session does not go on by itself; what needs a person first comes first."""


class WaitingSession(msgspec.Struct, frozen=True):
    """A session that does not go on by itself."""

    id: str
    why: str


class Situation(msgspec.Struct, frozen=True, kw_only=True):
    """What is here."""

    has_settings: bool = False
    mistakes: int = 0
    """Mistakes in the settings."""
    sessions: tuple[WaitingSession, ...] = ()
    store_fails: bool = False
    key: str = ""
    """The variable that holds a provider's key."""


def start() -> Exit:
    """Say what to do next."""
    sys.stdout.write(f"holdfast {__version__}: error recovery for AI agents\n\n")
    sys.stdout.write("".join(_lines(next_steps(_look(dict(os.environ))))))
    return Exit.OK


def next_steps(here: Situation) -> Iterator[tuple[str, str]]:
    """Yield commands with what they are good for: first what this situation needs, then what everybody may want."""
    if here.mistakes:
        yield "holdfast policy check", f"the settings have {counted(here.mistakes, 'mistake')}"
    if here.store_fails:
        yield "holdfast doctor", "the store cannot be read"
    yield from _about_sessions(here.sessions)
    if not here.has_settings and not here.sessions:
        # The first visit of a person.
        yield "holdfast demo", "see it work: half a minute, no keys"
    if here.key:
        yield "holdfast agent run", f"an agent that survives a crash ({here.key})"
    yield "holdfast explain 429", "what an error means and what to do"
    if here.has_settings:
        yield "holdfast policy show", "what your settings do to failures"
    else:
        yield "holdfast init", "write a holdfast.toml to adjust"
    if not here.store_fails:
        yield "holdfast doctor", "check this machine and its settings"
    yield "holdfast --help", "every command"


def _about_sessions(sessions: tuple[WaitingSession, ...]) -> Iterator[tuple[str, str]]:
    if len(sessions) == 1 and len(sessions[0].id) <= _LONGEST_ID:
        yield f"holdfast sessions show {sessions[0].id}", f"it is {sessions[0].why}"
    elif sessions:
        counts = Counter(each.why for each in sessions)
        more = " or more" if len(sessions) == _MOST_SESSIONS else ""
        reasons = ", ".join(f"{counts[why]} {why}" for why in _WHY if counts[why])
        yield "holdfast sessions ls", f"{counted(len(sessions), 'session')}{more}: {reasons}"


def _lines(steps: Iterable[tuple[str, str]]) -> Iterator[str]:
    for command, why in steps:
        line = f"  {command:<{_COMMAND}}  {why}"
        yield f"{line}\n" if len(line) <= _WIDTH else f"  {command}\n      {why}\n"


# --- what is here ---


def _look(environ: Mapping[str, str]) -> Situation:
    has_settings = Path(_FILE).is_file() or bool(environ.get("HOLDFAST_CONFIG"))
    found: dict[str, Any] = {"sessions": ()}
    try:
        found["sessions"] = tuple(_waiting())
    except (HoldfastError, OSError, sqlite3.Error):
        found["store_fails"] = True
    key = next((name for name in KEYS if environ.get(name)), "")
    return Situation(
        has_settings=has_settings, mistakes=_mistakes(environ, has_settings=has_settings), key=key, **found
    )


def _mistakes(environ: Mapping[str, str], *, has_settings: bool) -> int:
    # Without settings their reader is not imported: it takes as long as the rest of this command.
    if not has_settings and not any(name.startswith(("HOLDFAST_", "RESILIENCE_")) for name in environ):
        return 0
    from holdfast.config import ConfigError, load

    try:
        load(environ=environ, folder=Path())
    except ConfigError as error:
        return len(error.problems)
    return 0


def _waiting() -> Iterator[WaitingSession]:
    """Yield the sessions of the default store that do not go on by themselves."""
    # Only a file is read: this command must not wait for a server.
    from holdfast.stores import EncryptedStore, SqliteStore, default_url, open_store

    url = default_url()
    if url.startswith(("postgres", "memory")):
        return
    kept = open_store(url)
    file = kept.inner if isinstance(kept, EncryptedStore) else kept
    if not isinstance(file, SqliteStore) or not file.path.is_file():
        return
    import asyncio

    from holdfast.sessions.admin import in_use

    async def read() -> list[SessionRecord]:
        states = [SessionState.ACTIVE, SessionState.PAUSED, SessionState.ERROR]
        # Read only: a store of an older version is not changed by a command that only looks.
        async with open_store(url if "mode=" in url else f"{url}{'&' if '?' in url else '?'}mode=ro") as store:
            page = await store.sessions(states=states, limit=_MOST_SESSIONS)
            return [record for record in page if not in_use(record, store)]

    for record in asyncio.run(read()):
        yield WaitingSession(one_line(record.id), _why(record))


def _why(record: SessionRecord) -> str:
    from holdfast.sessions.parked_runs import parked_until

    if record.state is SessionState.ERROR:
        return _FAILED
    if parked_until(record) is not None:
        return _PARKED
    return _INTERRUPTED if record.state is SessionState.ACTIVE else _PAUSED
