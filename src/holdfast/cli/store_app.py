"""The flags of the verbs on a store: `holdfast audit …` and `holdfast sessions …`.

Each verb imports its implementation when it runs, so that `--help` and shell completion stay instant.
"""

import sys
import time
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from holdfast.cli.exits import perform
from holdfast.faults import CODES
from holdfast.stores.records import AUDIT_CLASSES, SessionState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from holdfast.cli.exits import Exit
    from holdfast.stores import Store

__all__ = ["CLOSE", "CommandGroup", "SinceOption", "StoreOption", "UntilOption", "audit", "complete_codes", "sessions"]


CLOSE = 0.75
"""How similar a command must be to be suggested: better no suggestion than a far one."""


class CommandGroup(TyperGroup):
    """A group of commands. Alone it shows its help, with each description in full."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            # Typer would write the help to stderr and exit with 2. But nothing is wrong: it is what people want to read.
            sys.stdout.write(f"{ctx.get_help()}\n")
            ctx.exit()
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name = args[0]
        if not (name.startswith("-") or ctx.resilient_parsing or self.get_command(ctx, name)):
            options = [option for parameter in self.params for option in parameter.opts]
            # `version` is no misspelling of a command.
            near = (
                [f"--{name}"] if f"--{name}" in options else get_close_matches(name, self.list_commands(ctx), 1, CLOSE)
            )
            ctx.fail(f"No such command {name!r}.{''.join(f' Did you mean {each!r}?' for each in near)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as wrong:
            # The prefix is that of the validator inside Typer.
            wrong.message = wrong.message.removeprefix("Value error, ")
            raise

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        # Typer cuts the descriptions to one line of at most 80 columns. Here they wrap.
        named = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.get_short_help_str(limit=1_000)) for name, command in named if command])


StoreOption = Annotated[
    str | None,
    typer.Option(
        help="The store: a path, sqlite:PATH or postgresql://…; by default, the one that programs here use.",
        envvar="HOLDFAST_STORE",
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
_Jsonl = Annotated[bool, typer.Option("--jsonl", help="One JSON object a line.")]


def _perform_on(url: str | None, verb: "Callable[[Store], Awaitable[Exit]]") -> NoReturn:
    """Run a verb on the store at `url`, or on the default store, and leave with its exit code."""
    from holdfast.cli.store import with_store

    # `verb` reads the flags inside `perform`. So a wrong flag gives a message and an exit code, not a traceback.
    perform(lambda: with_store(url, verb))


audit = typer.Typer(
    cls=CommandGroup, help="Read, search, verify and export the audit trail of a store.", no_args_is_help=True
)


# Completion must be instant. So it reads only tables that are already loaded, never a store.
def complete_codes(incomplete: str) -> list[str]:
    """Return the codes that begin so, for shell completion."""
    return [code for code in sorted(CODES) if code.startswith(incomplete.upper())]


def _classes(incomplete: str) -> list[str]:
    return [name for name in sorted(AUDIT_CLASSES) if name.lower().startswith(incomplete.lower())]


_Chain = Annotated[str | None, typer.Option(help="Only this chain.")]
_OfSession = Annotated[str | None, typer.Option(help="Only the chain of this session.")]
_Class = Annotated[
    list[str] | None,
    typer.Option("--class", help="Only records of this class; may be repeated.", autocompletion=_classes),
]
_Code = Annotated[
    str | None, typer.Option(help="Only records with this code or an alias of it.", autocompletion=complete_codes)
]
_Correlation = Annotated[str | None, typer.Option(help="Only records of this run, turn or session.")]
SinceOption = Annotated[
    str | None,
    typer.Option(
        help="Not before: 2026-03-20T14:00:00Z, 2026-03-20, yesterday (UTC), or 15m for a quarter of an hour ago."
    ),
]
UntilOption = Annotated[str | None, typer.Option(help="Before: a date and time, a day, or how long ago.")]


@audit.command("tail")
def audit_tail(
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="Show this many records.")] = 10,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Continue with new records, until Ctrl-C.")] = False,
    store: StoreOption = None,
    chain: _Chain = None,
    session: _OfSession = None,
    kinds: _Class = None,
    code: _Code = None,
    correlation: _Correlation = None,
    since: SinceOption = None,
    until: UntilOption = None,
    as_json: _Json = False,
    as_jsonl: _Jsonl = False,
) -> None:
    """Show the newest records that fit every filter."""
    from holdfast.cli.audit import audit_tail as verb
    from holdfast.cli.audit import filters_of
    from holdfast.cli.store import form_of

    def tail(opened: "Store") -> "Awaitable[Exit]":
        filters = filters_of(chain, session, kinds, code, correlation, since, until, now=time.time())
        return verb(opened, filters, lines=lines, follow=follow, form=form_of(as_json, as_jsonl, follow=follow))

    _perform_on(store, tail)


@audit.command("query")
def audit_query(
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many records, the newest.")] = 1_000,
    store: StoreOption = None,
    chain: _Chain = None,
    session: _OfSession = None,
    kinds: _Class = None,
    code: _Code = None,
    correlation: _Correlation = None,
    since: SinceOption = None,
    until: UntilOption = None,
    as_json: _Json = False,
    as_jsonl: _Jsonl = False,
) -> None:
    """Show the records that fit every filter, in the order of their times."""
    from holdfast.cli.audit import audit_query as verb
    from holdfast.cli.audit import filters_of
    from holdfast.cli.store import form_of

    def query(opened: "Store") -> "Awaitable[Exit]":
        filters = filters_of(chain, session, kinds, code, correlation, since, until, now=time.time())
        return verb(opened, filters, limit=limit, form=form_of(as_json, as_jsonl))

    _perform_on(store, query)


@audit.command("verify")
def audit_verify(
    store: StoreOption = None,
    expect: Annotated[
        str | None, typer.Option(help="The digest of an earlier verify or export of the same trail.")
    ] = None,
    anchor: Annotated[
        str | None,
        typer.Option(
            help="A file with the output of an earlier `verify --json`: every record it counts must still be there."
        ),
    ] = None,
    as_json: _Json = False,
) -> None:
    """Verify every chain and show where a chain was changed. Exit with 1 if any chain was changed."""
    from holdfast.cli.audit import audit_verify as verb

    _perform_on(store, lambda opened: verb(opened, expect=expect, anchor=anchor, as_json=as_json))


@audit.command("export")
def audit_export(
    store: StoreOption = None,
    chain: _Chain = None,
    session: _OfSession = None,
    kinds: _Class = None,
    code: _Code = None,
    correlation: _Correlation = None,
    since: SinceOption = None,
    until: UntilOption = None,
) -> None:
    """Write the records that fit every filter as JSON Lines with their hashes, and verify the records while writing."""
    from holdfast.cli.audit import audit_export as verb
    from holdfast.cli.audit import filters_of

    def export(opened: "Store") -> "Awaitable[Exit]":
        return verb(opened, filters_of(chain, session, kinds, code, correlation, since, until, now=time.time()))

    _perform_on(store, export)


sessions = typer.Typer(
    cls=CommandGroup,
    help="List, show, repair, answer, close, export and prune the sessions of a store.",
    no_args_is_help=True,
)


def _ids(context: typer.Context, incomplete: str) -> list[str]:
    """Complete a session id for the shell."""
    # This completion needs the store, so it is imported when somebody presses Tab.
    from holdfast.cli.sessions import ids_from

    return ids_from(context.params.get("store"), incomplete)


_Session = Annotated[str, typer.Argument(help="A session's id, or the beginning of it.", autocompletion=_ids)]
_Sessions = Annotated[
    list[str], typer.Argument(help="Ids of sessions, or the beginnings of them.", autocompletion=_ids)
]
_Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it. Without this, only show what would be done.")]
_NoQuestion = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
_Persisted = Annotated[bool, typer.Option("--persisted", help="One JSON list of PersistedSession objects.")]


@sessions.command("ls")
def sessions_ls(
    state: Annotated[list[SessionState] | None, typer.Option(help="Only in this state; may be repeated.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Show at most this many sessions.")] = None,
    store: StoreOption = None,
    as_json: _Json = False,
    as_jsonl: _Jsonl = False,
) -> None:
    """List the sessions in order of their ids."""
    from holdfast.cli.sessions import sessions_ls as verb
    from holdfast.cli.store import form_of

    _perform_on(store, lambda opened: verb(opened, tuple(state or ()), limit=limit, form=form_of(as_json, as_jsonl)))


@sessions.command("show")
def sessions_show(session: _Session, store: StoreOption = None, as_json: _Json = False) -> None:
    """Show what happened in a session (turns, steps, results), what is open, and what to do next."""
    from holdfast.cli.session_history import sessions_show as verb

    _perform_on(store, lambda opened: verb(opened, session, url=store, as_json=as_json))


@sessions.command("resume")
def sessions_resume(
    session: _Session,
    accept_set_back: Annotated[
        bool, typer.Option("--accept-set-back", help="Also if the store was set back: steps that ran may run again.")
    ] = False,
    store: StoreOption = None,
    as_json: _Json = False,
) -> None:
    """Pause a session whose process died, and show what to do next. It does not run the program."""
    from holdfast.cli.session_history import sessions_resume as verb

    _perform_on(
        store, lambda opened: verb(opened, session, url=store, as_json=as_json, accept_set_back=accept_set_back)
    )


@sessions.command("resolve")
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
    store: StoreOption = None,
    as_json: _Json = False,
) -> None:
    """Record whether a step of unknown outcome has happened. Its program need not run. The first one who does counts."""
    from holdfast.cli.session_repairs import result_of
    from holdfast.cli.session_repairs import sessions_resolve as verb

    def resolve(opened: "Store") -> "Awaitable[Exit]":
        given = result_of(result, happened=happened, not_happened=not_happened)
        return verb(opened, session, key, happened=happened, result=given, by=by, url=store, as_json=as_json)

    _perform_on(store, resolve)


@sessions.command("unpark")
def sessions_unpark(
    session: _Session,
    agent: Annotated[
        str, typer.Argument(help="The agent, or the key of other work; by default, all that are parked.")
    ] = "",
    by: Annotated[str | None, typer.Option(help="Who lets it go on; by default, you.")] = None,
    store: StoreOption = None,
    as_json: _Json = False,
) -> None:
    """Let a run that is parked go on now: the usage limit was raised, or it need not wait for its next attempt."""
    from holdfast.cli.session_repairs import sessions_unpark as verb

    _perform_on(store, lambda opened: verb(opened, session, agent, by=by, as_json=as_json))


@sessions.command("retry")
def sessions_retry(session: _Session, store: StoreOption = None, as_json: _Json = False) -> None:
    """Let the turn in flight begin anew when the program runs. To continue it instead, just start the program."""
    from holdfast.cli.session_repairs import sessions_retry as verb

    _perform_on(store, lambda opened: verb(opened, session, as_json=as_json))


@sessions.command("abandon")
def sessions_abandon(
    session: _Session,
    reason: Annotated[str, typer.Option(help="Why, for the log and the audit trail.")] = "abandoned by hand",
    yes: _NoQuestion = False,
    store: StoreOption = None,
    as_json: _Json = False,
) -> None:
    """Give up the turn in flight, after you confirm it. The session goes on with its next turn."""
    from holdfast.cli.session_repairs import sessions_abandon as verb

    _perform_on(store, lambda opened: verb(opened, session, reason=reason, yes=yes, as_json=as_json))


@sessions.command("fork")
def sessions_fork(
    session: _Session,
    new: Annotated[str, typer.Argument(help="The id of the new session.")],
    at: Annotated[int | None, typer.Option(min=0, help="Only the log up to this offset.")] = None,
    turn: Annotated[int | None, typer.Option(min=1, help="Only the log before this turn.")] = None,
    store: StoreOption = None,
    as_json: _Json = False,
) -> None:
    """Make a new session that begins with the work of another. The other one stays as it is."""
    from holdfast.cli.session_repairs import sessions_fork as verb

    _perform_on(store, lambda opened: verb(opened, session, new, at=at, turn=turn, url=store, as_json=as_json))


@sessions.command("close")
def sessions_close(
    ids: _Sessions,
    reason: Annotated[str, typer.Option(help="Why, for the log and the audit trail.")] = "closed by hand",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask. The ids must be complete then.")] = False,
    store: StoreOption = None,
    as_json: _Json = False,
) -> None:
    """End sessions for good, after you confirm it. A running turn is abandoned."""
    from holdfast.cli.sessions import sessions_close as verb

    _perform_on(store, lambda opened: verb(opened, ids, reason=reason, yes=yes, as_json=as_json))


@sessions.command("answer")
def sessions_answer(
    session: _Session,
    question: Annotated[str, typer.Argument(help="The question's id, or the beginning of it; see `show`.")],
    value: Annotated[str | None, typer.Argument(help="The text, or the choice.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Approve, confirm, or say that you signed in.")] = False,
    no: Annotated[bool, typer.Option("--no", "-n", help="Say no.")] = False,
    dismiss: Annotated[bool, typer.Option(help="Dismiss the question: its turn is cancelled.")] = False,
    reason: Annotated[str, typer.Option(help="Why.")] = "",
    by: Annotated[str | None, typer.Option(help="Who answers; by default, you.")] = None,
    store: StoreOption = None,
    as_json: _Json = False,
) -> None:
    """Answer a question of a session. Its program need not run. The first answer counts."""
    from holdfast.cli.sessions import answer_of
    from holdfast.cli.sessions import sessions_answer as verb

    def give(opened: "Store") -> "Awaitable[Exit]":
        answer = answer_of(value, yes=yes, no=no, dismiss=dismiss, reason=reason)
        return verb(opened, session, question, answer, by=by, as_json=as_json)

    _perform_on(store, give)


@sessions.command("export")
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
    store: StoreOption = None,
) -> None:
    """Write a session with its log and audit trail as JSON Lines, or several as one JSON list."""
    from holdfast.cli.sessions import sessions_export as verb

    _perform_on(store, lambda opened: verb(opened, ids, persisted=persisted, exact=exact, plain=plain, output=output))


@sessions.command("rekey")
def sessions_rekey(store: StoreOption = None, as_json: _Json = False) -> None:
    """Wrap the data keys of an encrypted store with its current key: --store 'ADDRESS?key_env=NEW_KEY,OLD_KEY'."""
    from holdfast.cli.sessions import sessions_rekey as verb

    _perform_on(store, lambda opened: verb(opened, as_json=as_json))


@sessions.command("import")
def sessions_import(
    file: Annotated[str, typer.Argument(help="The output of `export`; - for stdin.")],
    persisted: _Persisted = False,
    unverified: Annotated[
        bool, typer.Option("--unverified", help="Import it even if its audit trail was changed. The new trail says so.")
    ] = False,
    store: StoreOption = None,
    as_json: _Json = False,
) -> None:
    """Put exported sessions into a store. A session that the store already has is rejected and stays as it is."""
    from holdfast.cli.sessions import sessions_import as verb

    perform(lambda: verb(store, file, persisted=persisted, unverified=unverified, as_json=as_json))


@sessions.command("prune")
def sessions_prune(
    closed: Annotated[
        str, typer.Option(help="Remove sessions that were closed longer ago than this: 30d, 12h, never.")
    ] = "30d",
    failed: Annotated[
        str, typer.Option(help="Remove sessions that have been in error for longer than this.")
    ] = "never",
    idle: Annotated[
        str,
        typer.Option(help="Drop the log before the checkpoint of sessions that have been idle for longer than this."),
    ] = "7d",
    entries: Annotated[
        int, typer.Option(min=0, help="How many entries before the checkpoint all other sessions keep.")
    ] = 10_000,
    claims: Annotated[
        str, typer.Option(help="Forget message ids that are older than this, but keep the last 1,000.")
    ] = "1d",
    yes: _Yes = False,
    store: StoreOption = None,
    as_json: _Json = False,
) -> None:
    """Remove old sessions, and log entries that a checkpoint makes unnecessary. Without --yes, only show them."""
    from holdfast.cli.sessions import rules_of
    from holdfast.cli.sessions import sessions_prune as verb

    def drop(opened: "Store") -> "Awaitable[Exit]":
        rules = rules_of(closed=closed, failed=failed, idle=idle, entries=entries, claims=claims)
        return verb(opened, rules, yes=yes, as_json=as_json)

    _perform_on(store, drop)
