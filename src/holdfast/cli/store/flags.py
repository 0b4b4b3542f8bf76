"""The flags of the verbs on a store: `holdfast audit …` and `holdfast sessions …`."""

from typing import Annotated

import msgspec
import typer

from holdfast.cli.flags import JsonOption, SinceOption, StoreOption, UntilOption, complete_codes
from holdfast.cli.verbs import group_of, store_verb, verb
from holdfast.stores.records import AUDIT_CLASSES, SessionState

audit = group_of("Read, search, verify and export the audit trail of a store.")
_Jsonl = Annotated[bool, typer.Option("--jsonl", help="One JSON object a line.")]


def _classes(incomplete: str) -> list[str]:
    return [name for name in sorted(AUDIT_CLASSES) if name.lower().startswith(incomplete.lower())]


class AuditFlags(msgspec.Struct, frozen=True, kw_only=True):
    """Which records of the audit trail are shown. A record must fit all of it."""

    chain: Annotated[str | None, typer.Option(help="Only this chain.")] = None
    session: Annotated[str | None, typer.Option(help="Only the chain of this session.")] = None
    kinds: Annotated[
        list[str] | None,
        typer.Option("--class", help="Only records of this class; may be repeated.", autocompletion=_classes),
    ] = None
    code: Annotated[
        str | None, typer.Option(help="Only records with this code or an alias of it.", autocompletion=complete_codes)
    ] = None
    correlation: Annotated[str | None, typer.Option(help="Only records of this run, turn or session.")] = None
    since: SinceOption = None
    until: UntilOption = None


@store_verb(audit, "tail", "store.audit")
def audit_tail(
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="Show this many records.")] = 10,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Continue with new records, until Ctrl-C.")] = False,
    *,
    filters: AuditFlags,
    as_json: JsonOption = False,
    as_jsonl: _Jsonl = False,
) -> None:
    """Show the newest records that fit every filter."""


@store_verb(audit, "query", "store.audit")
def audit_query(
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many records, the newest.")] = 1_000,
    *,
    filters: AuditFlags,
    as_json: JsonOption = False,
    as_jsonl: _Jsonl = False,
) -> None:
    """Show the records that fit every filter, in the order of their times."""


@store_verb(audit, "verify", "store.audit")
def audit_verify(
    expect: Annotated[
        str | None, typer.Option(help="The digest of an earlier verify or export of the same trail.")
    ] = None,
    anchor: Annotated[
        str | None,
        typer.Option(
            help="A file with the output of an earlier `verify --json`: every record it counts must still be there."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Verify every chain and show where a chain was changed. Exit with 1 if any chain was changed."""


@store_verb(audit, "export", "store.audit")
def audit_export(
    *,
    filters: AuditFlags,
) -> None:
    """Write the records that fit every filter as JSON Lines with their hashes, and verify the records while writing."""


sessions = group_of("List, show, repair, answer, close, export and prune the sessions of a store.")


def _ids(context: typer.Context, incomplete: str) -> list[str]:
    """Complete a session id for the shell."""
    # This completion needs the store, so it is imported when the user presses Tab.
    from holdfast.cli.store.sessions import ids_from

    return ids_from(context.params.get("store"), incomplete)


_Session = Annotated[str, typer.Argument(help="A session's id, or the beginning of it.", autocompletion=_ids)]
_Sessions = Annotated[
    list[str], typer.Argument(help="Ids of sessions, or the beginnings of them.", autocompletion=_ids)
]
_Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it. Without this, only show what would be done.")]
_NoQuestion = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
_Persisted = Annotated[bool, typer.Option("--persisted", help="One JSON list of PersistedSession objects.")]


@store_verb(sessions, "ls", "store.sessions")
def sessions_ls(
    state: Annotated[list[SessionState] | None, typer.Option(help="Only in this state; may be repeated.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Show at most this many sessions.")] = None,
    as_json: JsonOption = False,
    as_jsonl: _Jsonl = False,
) -> None:
    """List the sessions in order of their ids."""


@store_verb(sessions, "show", "store.history", names_store=True)
def sessions_show(session: _Session, as_json: JsonOption = False) -> None:
    """Show what happened in a session (turns, steps, results), what is open, and what to do next."""


@store_verb(sessions, "resume", "store.history", names_store=True)
def sessions_resume(
    session: _Session,
    accept_set_back: Annotated[
        bool, typer.Option("--accept-set-back", help="Also if the store was set back: steps that ran may run again.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Pause a session whose process died, and show what to do next. It does not run the program."""


@store_verb(sessions, "resolve", "store.repairs", names_store=True)
def sessions_resolve(
    session: _Session,
    key: Annotated[str, typer.Argument(help="The step's key, or the beginning of it; see `show`.")],
    happened: Annotated[bool, typer.Option("--happened", help="The step has happened.")] = False,
    not_happened: Annotated[
        bool,
        typer.Option(
            "--not-happened",
            help="It has not. The program runs it again when it calls it; an agent whose model knows that the outcome is unknown does not.",
        ),
    ] = False,
    result: Annotated[str | None, typer.Option(help="What the step returned, as JSON; by default, null.")] = None,
    by: Annotated[str | None, typer.Option(help="Who found it out; by default, you.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Record whether a step of unknown outcome has happened. Its program need not run. The first one who does counts."""


@store_verb(sessions, "unpark", "store.repairs")
def sessions_unpark(
    session: _Session,
    agent: Annotated[
        str, typer.Argument(help="The agent, or the key of other work; by default, all that are parked.")
    ] = "",
    by: Annotated[str | None, typer.Option(help="Who lets it go on; by default, you.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Let a run that is parked go on now: the usage limit was raised, or it need not wait for its next attempt."""


@store_verb(sessions, "retry", "store.repairs")
def sessions_retry(session: _Session, as_json: JsonOption = False) -> None:
    """Let the turn in flight begin anew when the program runs. To continue it instead, just start the program."""


@store_verb(sessions, "abandon", "store.repairs")
def sessions_abandon(
    session: _Session,
    reason: Annotated[str, typer.Option(help="Why, for the log and the audit trail.")] = "abandoned by hand",
    yes: _NoQuestion = False,
    as_json: JsonOption = False,
) -> None:
    """Give up the turn in flight, after you confirm it. The session goes on with its next turn."""


@store_verb(sessions, "fork", "store.repairs", names_store=True)
def sessions_fork(
    session: _Session,
    new: Annotated[str, typer.Argument(help="The id of the new session.")],
    at: Annotated[int | None, typer.Option(min=0, help="Only the log up to this offset.")] = None,
    turn: Annotated[int | None, typer.Option(min=1, help="Only the log before this turn.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Make a new session that begins with the work of another. The other one stays as it is."""


@store_verb(sessions, "close", "store.sessions")
def sessions_close(
    ids: _Sessions,
    reason: Annotated[str, typer.Option(help="Why, for the log and the audit trail.")] = "closed by hand",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask. The ids must be complete then.")] = False,
    as_json: JsonOption = False,
) -> None:
    """End sessions for good, after you confirm it. A running turn is abandoned."""


class AnswerFlags(msgspec.Struct, frozen=True, kw_only=True):
    """An answer to a question."""

    value: Annotated[str | None, typer.Argument(help="The text, or the choice.")] = None
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Approve, confirm, or say that you signed in.")] = False
    no: Annotated[bool, typer.Option("--no", "-n", help="Say no.")] = False
    dismiss: Annotated[bool, typer.Option(help="Dismiss the question: its turn is cancelled.")] = False
    reason: Annotated[str, typer.Option(help="Why.")] = ""


@store_verb(sessions, "answer", "store.sessions")
def sessions_answer(
    session: _Session,
    question: Annotated[str, typer.Argument(help="The question's id, or the beginning of it; see `show`.")],
    *,
    flags: AnswerFlags,
    by: Annotated[str | None, typer.Option(help="Who answers; by default, you.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Answer a question of a session. Its program need not run. The first answer counts."""


@store_verb(sessions, "export", "store.sessions")
def sessions_export(
    ids: _Sessions,
    persisted: _Persisted = False,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="A file, written completely or not at all; by default, stdout.")
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Do not mask what looks like a secret: to continue the session elsewhere.")
    ] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="Write the content of an encrypted store: the file is not encrypted.")
    ] = False,
) -> None:
    """Write a session with its log and audit trail as JSON Lines, or several as one JSON list."""


@store_verb(sessions, "rekey", "store.sessions")
def sessions_rekey(as_json: JsonOption = False) -> None:
    """Wrap the data keys of an encrypted store with its current key: --store 'ADDRESS?key_env=NEW_KEY,OLD_KEY'."""


@verb(sessions, "import", "store.sessions")
def sessions_import(
    file: Annotated[str, typer.Argument(help="The output of `export`; - for stdin.")],
    persisted: _Persisted = False,
    unverified: Annotated[
        bool, typer.Option("--unverified", help="Import it even if its audit trail was changed. The new trail says so.")
    ] = False,
    store: StoreOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put exported sessions into a store. A session that the store already has is rejected and stays as it is."""


class RetentionFlags(msgspec.Struct, frozen=True, kw_only=True):
    """How long `holdfast sessions prune` keeps what is in a store."""

    closed: Annotated[
        str, typer.Option(help="Remove sessions that were closed longer ago than this: 30d, 12h, never.")
    ] = "30d"
    failed: Annotated[str, typer.Option(help="Remove sessions that have been in error for longer than this.")] = "never"
    idle: Annotated[
        str,
        typer.Option(help="Drop the log before the checkpoint of sessions that have been idle for longer than this."),
    ] = "7d"
    entries: Annotated[
        int, typer.Option(min=0, help="How many entries before the checkpoint all other sessions keep.")
    ] = 10_000
    claims: Annotated[
        str, typer.Option(help="Forget message ids that are older than this, but keep the last 1,000.")
    ] = "1d"


@store_verb(sessions, "prune", "store.sessions")
def sessions_prune(flags: RetentionFlags, *, yes: _Yes = False, as_json: JsonOption = False) -> None:
    """Remove old sessions, and log entries that a checkpoint makes unnecessary. Without --yes, only show them."""
