"""`holdfast sessions …`: the flags of its verbs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.performing import perform
from holdfast.stores.records import SessionState  # noqa: TC001 - typer reads annotations

if TYPE_CHECKING:
    from holdfast.cli.exits import Exit

__all__ = ["sessions"]

sessions = typer.Typer(
    help="The sessions of a store: look at them, answer their questions, close them, take them along.",
    no_args_is_help=True,
)


def _ids(context: typer.Context, incomplete: str) -> list[str]:
    """The ids that begin so, for the shell."""
    from holdfast.cli.sessions_ls import ids_from

    return ids_from(context.params.get("store"), incomplete)


_Store = Annotated[
    str | None,
    typer.Option(
        help="The store: a path, sqlite:PATH or postgresql://…; by default the one of your programs.",
        envvar="HOLDFAST_STORE",
    ),
]
_Session = Annotated[str, typer.Argument(help="A session's id, or the beginning of it.", autocompletion=_ids)]
_Sessions = Annotated[
    list[str], typer.Argument(help="Ids of sessions, or the beginnings of them.", autocompletion=_ids)
]
_Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
_Jsonl = Annotated[bool, typer.Option("--jsonl", help="One JSON object a line.")]
_Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it: without this, what would be done is only told.")]
_Persisted = Annotated[bool, typer.Option("--persisted", help="Document 000's JSON list of PersistedSession.")]


@sessions.command("ls")
def sessions_ls(
    state: Annotated[list[SessionState] | None, typer.Option(help="Only in this state; may be repeated.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="How many at most.")] = None,
    store: _Store = None,
    as_json: _Json = False,
    as_jsonl: _Jsonl = False,
) -> None:
    """List the sessions in order of their ids."""
    from holdfast.cli.audit_records import form_of
    from holdfast.cli.sessions_ls import sessions_ls as verb

    perform(lambda: verb(store, tuple(state or ()), limit=limit, form=form_of(as_json, as_jsonl)))


@sessions.command("show")
def sessions_show(session: _Session, store: _Store = None, as_json: _Json = False) -> None:
    """Show one: its state, manifest, turn in flight, steps of unknown outcome, open questions, checkpoint."""
    from holdfast.cli.sessions_show import sessions_show as verb

    perform(lambda: verb(store, session, as_json=as_json))


@sessions.command("resume")
def sessions_resume(session: _Session, store: _Store = None, as_json: _Json = False) -> None:
    """Pause a session whose process died, and say whether its program can go on and what waits for a person.

    It does not run the program: start that, and it resumes by itself.
    """
    from holdfast.cli.sessions_show import sessions_resume as verb

    perform(lambda: verb(store, session, as_json=as_json))


@sessions.command("close")
def sessions_close(
    ids: _Sessions,
    reason: Annotated[str, typer.Option(help="Why, for the log and the audit trail.")] = "closed by hand",
    yes: _Yes = False,
    store: _Store = None,
    as_json: _Json = False,
) -> None:
    """End sessions for good; a turn in flight is abandoned. Several need --yes."""
    from holdfast.cli.sessions_close import sessions_close as verb

    perform(lambda: verb(store, ids, reason=reason, yes=yes, as_json=as_json))


@sessions.command("answer")
def sessions_answer(
    session: _Session,
    question: Annotated[str, typer.Argument(help="The question's id, or the beginning of it; see `show`.")],
    value: Annotated[str | None, typer.Argument(help="The text, or the choice.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Approve, confirm, or say that you signed in.")] = False,
    no: Annotated[bool, typer.Option("--no", "-n", help="Refuse.")] = False,
    dismiss: Annotated[bool, typer.Option(help="Put it away: the turn that asks is cancelled.")] = False,
    reason: Annotated[str, typer.Option(help="Why.")] = "",
    by: Annotated[str | None, typer.Option(help="Who answers; by default, you.")] = None,
    store: _Store = None,
    as_json: _Json = False,
) -> None:
    """Answer a question of a session, whether its program runs or not. The first answer counts."""
    from holdfast.cli.sessions_answer import answer_of
    from holdfast.cli.sessions_answer import sessions_answer as verb

    def give() -> Exit:
        answer = answer_of(value, yes=yes, no=no, dismiss=dismiss, reason=reason)
        return verb(store, session, question, answer, by=by, as_json=as_json)

    perform(give)


@sessions.command("export")
def sessions_export(
    ids: _Sessions,
    persisted: _Persisted = False,
    output: Annotated[
        str | None, typer.Option("--output", "-o", help="A file, written whole or not at all; by default stdout.")
    ] = None,
    store: _Store = None,
) -> None:
    """Write a session as JSON Lines, with its log and audit trail; or several as document 000 has them."""
    from holdfast.cli.sessions_moving import sessions_export as verb

    perform(lambda: verb(store, ids, persisted=persisted, output=output))


@sessions.command("import")
def sessions_import(
    file: Annotated[str, typer.Argument(help="What `export` wrote; - reads it from stdin.")],
    persisted: _Persisted = False,
    store: _Store = None,
    as_json: _Json = False,
) -> None:
    """Put exported sessions into a store. One that is there already is refused and left as it is."""
    from holdfast.cli.sessions_moving import sessions_import as verb

    perform(lambda: verb(store, file, persisted=persisted, as_json=as_json))


@sessions.command("prune")
def sessions_prune(
    closed: Annotated[str, typer.Option(help="Remove sessions closed for longer: 30d, 12h, never.")] = "30d",
    failed: Annotated[str, typer.Option(help="Remove sessions in error for longer.")] = "never",
    idle: Annotated[str, typer.Option(help="Drop the log behind the checkpoint of sessions quiet for longer.")] = "7d",
    entries: Annotated[int, typer.Option(min=0, help="Entries kept behind the checkpoint of the others.")] = 10_000,
    claims: Annotated[str, typer.Option(help="Forget ids of messages older than this, but not the last 1,000.")] = "1d",
    yes: _Yes = False,
    store: _Store = None,
    as_json: _Json = False,
) -> None:
    """Drop what need not be kept: sessions that are over, log that a checkpoint holds. Without --yes, only say what."""
    from holdfast.cli.sessions_prune import rules_of
    from holdfast.cli.sessions_prune import sessions_prune as verb

    def drop() -> Exit:
        rules = rules_of(closed=closed, failed=failed, idle=idle, entries=entries, claims=claims)
        return verb(store, rules, yes=yes, as_json=as_json)

    perform(drop)
