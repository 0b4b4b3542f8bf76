"""Flags that several verbs have, and what completes them in a shell."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.faults import CODES

JsonOption = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
StoreOption = Annotated[
    str | None,
    typer.Option(
        help="The store: a path, sqlite:PATH or postgresql://…; by default, the one that programs here use.",
        envvar="HOLDFAST_STORE",
    ),
]
SessionStoreOption = Annotated[
    str | None,
    typer.Option(help="Where the session is stored; by default, where programs here do.", envvar="HOLDFAST_STORE"),
]
SinceOption = Annotated[
    str | None,
    typer.Option(
        help="Not before: 2026-03-20T14:00:00Z, 2026-03-20, yesterday (UTC), or 15m for a quarter of an hour ago."
    ),
]
UntilOption = Annotated[str | None, typer.Option(help="Before: a date and time, a day, or how long ago.")]


# Completion must be instant. So it reads only tables that are already loaded, never a store.
def complete_codes(incomplete: str) -> list[str]:
    """Return the codes that begin so, for shell completion."""
    return [code for code in sorted(CODES) if code.startswith(incomplete.upper())]
