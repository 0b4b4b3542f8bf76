"""`holdfast audit …`: the flags of its verbs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli.performing import perform
from holdfast.faults import CODES
from holdfast.stores.records import AUDIT_CLASSES

if TYPE_CHECKING:
    from holdfast.cli.exits import Exit

__all__ = ["audit"]

audit = typer.Typer(
    help="The audit trail of a store: read it, search it, verify it, take it along.", no_args_is_help=True
)


def _codes(incomplete: str) -> list[str]:
    return [code for code in sorted(CODES) if code.startswith(incomplete.upper())]


def _classes(incomplete: str) -> list[str]:
    return [name for name in sorted(AUDIT_CLASSES) if name.lower().startswith(incomplete.lower())]


_Store = Annotated[
    str | None,
    typer.Option(
        help="The store: a path, sqlite:PATH or postgresql://…; by default the one of your programs.",
        envvar="HOLDFAST_STORE",
    ),
]
_Chain = Annotated[str | None, typer.Option(help="Only this chain.")]
_Session = Annotated[str | None, typer.Option(help="Only the chain of this session.")]
_Class = Annotated[
    list[str] | None,
    typer.Option("--class", help="Only records of this class; may be repeated.", autocompletion=_classes),
]
_Code = Annotated[
    str | None, typer.Option(help="Only records with this code or an alias of it.", autocompletion=_codes)
]
_Correlation = Annotated[str | None, typer.Option(help="Only what belongs to this run, turn or session.")]
_Since = Annotated[
    str | None, typer.Option(help="Not before: 2026-03-20T14:00:00Z, or 15m for a quarter of an hour ago.")
]
_Until = Annotated[str | None, typer.Option(help="Before: a date and time, or how long ago.")]
_Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
_Jsonl = Annotated[bool, typer.Option("--jsonl", help="One JSON object a line.")]


@audit.command("tail")
def audit_tail(
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="How many of the newest.")] = 10,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what is added, until Ctrl-C.")] = False,
    store: _Store = None,
    chain: _Chain = None,
    session: _Session = None,
    kinds: _Class = None,
    code: _Code = None,
    correlation: _Correlation = None,
    since: _Since = None,
    until: _Until = None,
    as_json: _Json = False,
    as_jsonl: _Jsonl = False,
) -> None:
    """Show the newest records that fit every filter."""
    from holdfast.cli.audit_records import form_of, wanted_of
    from holdfast.cli.audit_tail import audit_tail as verb

    def tail() -> Exit:
        wanted = wanted_of(chain, session, kinds, code, correlation, since, until, now=time.time())
        return verb(store, wanted, lines=lines, follow=follow, form=form_of(as_json, as_jsonl, follow=follow))

    perform(tail)


@audit.command("query")
def audit_query(
    limit: Annotated[int, typer.Option(min=1, help="How many at most; the newest are kept.")] = 1_000,
    store: _Store = None,
    chain: _Chain = None,
    session: _Session = None,
    kinds: _Class = None,
    code: _Code = None,
    correlation: _Correlation = None,
    since: _Since = None,
    until: _Until = None,
    as_json: _Json = False,
    as_jsonl: _Jsonl = False,
) -> None:
    """Show the records that fit every filter, in the order of their times."""
    from holdfast.cli.audit_query import audit_query as verb
    from holdfast.cli.audit_records import form_of, wanted_of

    def query() -> Exit:
        wanted = wanted_of(chain, session, kinds, code, correlation, since, until, now=time.time())
        return verb(store, wanted, limit=limit, form=form_of(as_json, as_jsonl))

    perform(query)


@audit.command("verify")
def audit_verify(
    store: _Store = None,
    expect: Annotated[
        str | None, typer.Option(help="The digest of an earlier verify or export of the same trail.")
    ] = None,
    anchor: Annotated[
        str | None, typer.Option(help="A file with an earlier `verify --json`: what it names must still be there.")
    ] = None,
    as_json: _Json = False,
) -> None:
    """Follow every chain and say where one was changed; exit 1 if one was."""
    from holdfast.cli.audit_verify import audit_verify as verb

    perform(lambda: verb(store, expect=expect, anchor=anchor, as_json=as_json))


@audit.command("export")
def audit_export(
    store: _Store = None,
    chain: _Chain = None,
    session: _Session = None,
    kinds: _Class = None,
    code: _Code = None,
    correlation: _Correlation = None,
    since: _Since = None,
    until: _Until = None,
) -> None:
    """Write the records that fit every filter as JSON Lines, chain by chain, with their hashes; verify them on the way."""
    from holdfast.cli.audit_export import audit_export as verb
    from holdfast.cli.audit_records import wanted_of

    def export() -> Exit:
        return verb(store, wanted_of(chain, session, kinds, code, correlation, since, until, now=time.time()))

    perform(export)
