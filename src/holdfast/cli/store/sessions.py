"""`holdfast sessions ls|close|answer|export|import|prune`: work with the sessions of a store."""

from __future__ import annotations

import contextlib
import getpass
import os
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.classify.times import parse_duration
from holdfast.cli.exits import Exit
from holdfast.cli.output import confirmed, counted, fail, narrate, show_json, show_line, show_table, show_text
from holdfast.cli.store.access import form_of, time_of, with_store
from holdfast.faults import HoldfastError, InvalidError
from holdfast.once.identity import key_of
from holdfast.sessions import Answer, answer, pending, transfer
from holdfast.sessions.admin import close, find, in_use, overview
from holdfast.sessions.journal import memory_of
from holdfast.sessions.parked_runs import parked_until
from holdfast.sessions.retention import ACTORS, Retention, plan, prune
from holdfast.sessions.transfer import Imported, PersistedSession, export_lines, import_lines
from holdfast.stores import EncryptedStore, SessionState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from holdfast.cli.store.flags import AnswerFlags, RetentionFlags
    from holdfast.stores import SessionRecord, Store

SCHEMA = "holdfast.sessions/1"
COLUMNS = ("session", "state", "in use", "entries", "checkpoint", "created", "last", "parked until")

_MOST_READ = 1_000
"""The most sessions that `ls` reads, to find steps in doubt."""

# --- ls ---


async def sessions_ls(
    store: Store, *, state: Sequence[SessionState] | None, limit: int | None, as_json: bool, as_jsonl: bool
) -> Exit:
    """List the sessions. If states are given, list only sessions in these states."""
    form = form_of(as_json, as_jsonl)
    records = [record async for record in _records(store, tuple(state or ()), limit)]
    found = [record_document(record, used=in_use(record, store)) for record in records]
    doubts = {} if form == "jsonl" else await _doubts(store, records)
    if form == "table" and doubts:
        steps = counted(sum(map(len, doubts.values())), "unsafe step")
        show_text(f"{steps} may have happened, and nobody knows: `holdfast sessions show` {', '.join(doubts)}")
    match form:
        case "json":
            show_json({"schema": SCHEMA, "sessions": found, "unknown_steps": doubts})
        case "jsonl":
            for document in found:
                show_line({"schema": SCHEMA, **document})
        case "table" if found:
            show_table(COLUMNS, [[_cell(value) for value in document.values()] for document in found])
        case _:
            narrate("no sessions")
    return Exit.OK


async def _doubts(store: Store, records: Sequence[SessionRecord]) -> dict[str, list[str]]:
    """Return the keys of the steps in doubt, by session. A closed session has none that matter, and one in use may not know yet."""
    found: dict[str, list[str]] = {}
    for record in records[:_MOST_READ]:
        if record.state is SessionState.CLOSED or in_use(record, store) or record.id.startswith(ACTORS):
            continue
        # A damaged session must not hide the others.
        with contextlib.suppress(HoldfastError):
            if unknown := (await memory_of(store, record.id)).unknown():
                found[record.id] = [key_of(record.id, after) for after in unknown]
    return found


def ids_from(url: str | None, beginning: str) -> list[str]:
    """Return the session ids with this prefix, for shell completion; an empty list if the store cannot be read."""
    found: list[str] = []

    async def look(store: Store) -> Exit:
        # A page begins after an id. So the search starts just before the prefix.
        page = await store.sessions(after=beginning[:-1])
        found.extend(record.id for record in page if record.id.startswith(beginning))
        return Exit.OK

    # The shell would print an error into the line that the person is typing.
    with contextlib.suppress(HoldfastError, OSError):
        with_store(url, look)
    return found


async def _records(store: Store, states: Sequence[SessionState], limit: int | None) -> AsyncIterator[SessionRecord]:
    # Sessions are read page by page, because a store may hold millions of them.
    after, left = "", limit
    while page := await store.sessions(states=states, after=after):
        for record in page[:left]:
            yield record
        if left is not None and (left := left - len(page)) <= 0:
            return
        after = page[-1].id


def record_document(record: SessionRecord, *, used: bool) -> dict[str, Any]:
    """Return the facts about a session that need no reading of its log. `used`: a living process owns it."""
    until = parked_until(record)
    return {
        "session": record.id,
        "state": record.state.value,
        "in_use": used,
        "entries": record.top,
        "checkpoint": record.checkpoint,
        "created_at": time_of(record.created_at),
        "last_at": time_of(record.last_at),
        "parked_until": None if until is None else time_of(until),
    }


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else str(value)


# --- close ---


async def sessions_close(store: Store, *, ids: Sequence[str], reason: str, yes: bool, as_json: bool) -> Exit:
    """Close each session, and stop at the first that cannot be closed. A person confirms it, or says `yes`."""
    meant = {one: await find(store, one) for one in ids}
    found = list(dict.fromkeys(meant.values()))
    # With --yes nobody sees which session a beginning means before it is closed for good.
    cut = [one for one, session in meant.items() if one != session]
    if yes and cut:
        raise InvalidError.saying("session", f"with --yes, a whole id such as {meant[cut[0]]}", repr(cut[0]))
    if not yes and not confirmed(await _closing(store, found)):
        narrate("nothing was closed")
        return Exit.REFUSED
    for session in found:
        await close(store, session, reason)
        narrate(f"closed {session}")
    if as_json:
        show_json({"schema": "holdfast.sessions.close/1", "closed": found})
    return Exit.OK


async def _closing(store: Store, sessions: Sequence[str]) -> str:
    """Return the question that a person answers before sessions are closed."""
    if len(sessions) > 1:
        return f"Close {len(sessions)} sessions for good ({', '.join(sessions)})?"
    seen = await overview(store, sessions[0])
    facts = [seen.record.state.value]
    if seen.in_flight:
        facts.append(f"turn {seen.turn} is in flight and would be abandoned")
    if seen.unknown:
        facts.append(f"{counted(len(seen.unknown), 'step')} may have happened and would stay unresolved")
    return f"Close {sessions[0]} for good? It is {'; '.join(facts)}."


# --- answer ---


def _answer_of(flags: AnswerFlags) -> Answer:
    """Return the answer that the flags and the argument give.

    Raises `InvalidError` unless there is exactly one answer.
    """
    given = {"VALUE": flags.value is not None, "--yes": flags.yes, "--no": flags.no, "--dismiss": flags.dismiss}
    named = [name for name, is_given in given.items() if is_given]
    # There is no default, because an answer that nobody gave could approve an action.
    if len(named) != 1:
        raise InvalidError.saying(
            "answer", "one of VALUE, --yes, --no, --dismiss", " and ".join(named) or "none of them"
        )
    if flags.dismiss:
        return Answer.dismissed(flags.reason)
    if flags.no:
        return Answer.no(flags.reason)
    return Answer(value=True if flags.yes else flags.value, reason=flags.reason)


def person() -> str:
    """Return who uses this command, for the audit trail: `ann@laptop`."""
    return f"{getpass.getuser()}@{socket.gethostname()}"


async def sessions_answer(
    store: Store, *, session: str, question: str, flags: AnswerFlags, by: str | None, as_json: bool
) -> Exit:
    """Record an answer to a question. The program that waits for it need not run."""
    reply = _answer_of(flags)
    session = await find(store, session)
    id_ = await _question_id(store, session, question)
    answered = await answer(store, session, id_, reply, by=by or person())
    if as_json:
        show_json({"schema": "holdfast.sessions.answer/1", "session": session, **msgspec.to_builtins(answered)})
    else:
        narrate(f"{id_} of {session}: {answered.outcome}, by {answered.by}")
    return Exit.OK


async def _question_id(store: Store, session: str, given: str) -> str:
    """Return the id of the open question with this prefix.

    An unknown prefix is returned as it is; the store rejects it.
    """
    fitting = [question.id for question in await pending(store, session) if question.id.startswith(given)]
    if given in fitting or not fitting:
        return given
    if len(fitting) > 1:
        raise InvalidError.saying("question", "the beginning of one id", f"that of {', '.join(fitting)}")
    return fitting[0]


# --- export and import ---


async def sessions_export(
    store: Store, *, ids: Sequence[str], persisted: bool, exact: bool, plain: bool, output: str | None
) -> Exit:
    """Write one session as JSON Lines, or any number of sessions as one JSON list (`persisted`)."""
    found = list(dict.fromkeys([await find(store, one) for one in ids]))
    if persisted:
        sessions = [await transfer.persisted(store, session, exact=exact, plain=plain) for session in found]
        if output is not None:
            transfer.save_persisted(output, sessions)
        else:
            sys.stdout.write(transfer.dump_persisted(sessions).decode())
    else:
        if len(found) > 1:
            raise InvalidError.saying("export", "one session a file, or --persisted", f"{len(found)} sessions")
        # All lines are collected before writing, so that a damaged session writes nothing.
        lines = [line.decode() + "\n" async for line in export_lines(store, found[0], exact=exact, plain=plain)]
        _write("".join(lines), output)
    narrate(f"exported {', '.join(found)}")
    return Exit.OK


def sessions_import(*, store: str | None, file: str, persisted: bool, unverified: bool, as_json: bool) -> Exit:
    """Put exported sessions into a store; the store is created if it does not exist."""
    # The file is read before the store is created, so that a wrong path leaves no empty store behind.
    content = _read(file)
    problems: list[HoldfastError] = []
    done: Imported | None = None
    trails: list[dict[str, Any]] = []

    async def import_them(opened: Store) -> Exit:
        nonlocal done, trails
        if persisted:
            loaded = transfer.parse_persisted(content, "stdin" if file == "-" else file)
            problems.extend(loaded.problems)
            imported = await _put(opened, loaded.sessions, problems)
        else:
            done = await import_lines(opened, content.splitlines(), unverified=unverified)
            imported, trails = [done.session], [msgspec.to_builtins(done)]
        if as_json:
            messages = [problem.fault.message for problem in problems]
            document = {"imported": imported, "problems": messages, "trails": trails}
            show_json({"schema": "holdfast.sessions.import/1", **document})
        else:
            narrate(f"imported {', '.join(imported) or 'nothing'}")
            if done is not None:
                _narrate_trail(done)
        for problem in problems:
            fail(str(problem), f"holdfast explain {problem.fault.code}")
        return Exit(problems[0].fault.entry.exit_code) if problems else Exit.OK

    return with_store(store, import_them, create=True)


def _narrate_trail(done: Imported) -> None:
    """Print what the import found out about the audit trail."""
    if done.tampered:
        narrate(f"the file was changed, and the new audit trail says so: {done.tampered}")
    else:
        narrate(f"verified {done.verified} of {counted(done.records, 'audit record')}")
    if done.masked:
        narrate(f"{counted(done.masked, 'line')} had values masked as secrets: steps of the session get the masks")


async def _put(store: Store, sessions: Sequence[PersistedSession], problems: list[HoldfastError]) -> list[str]:
    """Import every session that can be imported. A session that cannot be imported does not stop the others."""
    imported: list[str] = []
    for session in sessions:
        try:
            await transfer.put_persisted(store, session)
        except HoldfastError as error:
            # Without a store, all other sessions would fail in the same way.
            if error.fault.code == "SESS_STORE_UNAVAILABLE":
                raise
            problems.append(error)
        else:
            imported.append(session.id)
    return imported


def _read(file: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise InvalidError.saying(file, "a file that can be read", error.strerror or str(error)) from error


def _write(text: str, output: str | None) -> None:
    if output is None:
        sys.stdout.write(text)
        return
    # The file is renamed when it is complete. A full disk must not leave half an export under the final name. Only its owner may
    # read it: it holds everything that the session knows.
    path = Path(output)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


# --- rekey ---


async def sessions_rekey(store: Store, *, as_json: bool) -> Exit:
    """Wrap the data keys of an encrypted store with its current key. Exit with EXHAUSTED if some still need an old key."""
    if not isinstance(store, EncryptedStore):
        raise InvalidError.saying(
            "--store", "an encrypted store: ADDRESS?key_env=NEW_KEY,OLD_KEY", "a store without a key"
        )
    done = await store.rekey()
    if as_json:
        show_json({"schema": "holdfast.sessions.rekey/1", "key": store.key_id, **msgspec.to_builtins(done)})
    else:
        narrate(f"rewrapped {counted(len(done.rewrapped), 'data key')} with key {store.key_id}; {done.current} had it")
    for session, reason in done.skipped.items():
        fail(f"{session} still needs its old key: {reason}", "end the program that works in it, and repeat")
    return Exit.EXHAUSTED if done.skipped else Exit.OK


# --- prune ---


def _rules_of(flags: RetentionFlags) -> Retention:
    """Return the retention rules that the flags name."""
    claims = _seconds("--claims", flags.claims)
    if claims is None:
        raise InvalidError.at("--claims", "a time such as 1d", flags.claims)
    times = {name: _seconds(f"--{name}", getattr(flags, name)) for name in ("closed", "failed", "idle")}
    return Retention(entries=flags.entries, claims=claims, **times)


async def sessions_prune(store: Store, *, flags: RetentionFlags, yes: bool, as_json: bool) -> Exit:
    """Drop the data that the rules do not keep. Without `yes`, only show the data, and exit with 7 if there is any."""
    rules, now = _rules_of(flags), time.time()
    # The same rules apply with and without --yes, so that --yes drops exactly what was shown.
    actions = await prune(store, rules, now) if yes else [action async for action in plan(store, rules, now)]
    if as_json:
        listed = [msgspec.to_builtins(action) for action in actions]
        show_json({"schema": "holdfast.sessions.prune/1", "done": yes, "actions": listed})
    elif actions:
        rows = [(one.session, one.what, str(one.before), str(one.entries), one.reason) for one in actions]
        show_table(("session", "what", "before", "entries", "reason"), rows)
    if not actions:
        narrate("nothing to drop")
    elif not yes:
        narrate(f"{counted(len(actions), 'session')} would lose this for good: say --yes to drop it")
        return Exit.REFUSED
    return Exit.OK


def _seconds(flag: str, text: str) -> float | None:
    if text == "never":
        return None
    if (seconds := parse_duration(text)) is None:
        raise InvalidError.at(flag, "a time such as 30d or 12h, or never", text)
    return seconds
