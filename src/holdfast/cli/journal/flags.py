"""The flags of the verbs on a journal: `holdfast runs …`."""

from typing import Annotated, Literal

import msgspec
import typer

from holdfast.cli.flags import JsonOption, SinceOption, UntilOption, complete_codes
from holdfast.cli.verbs import group_of, verb

runs = group_of("List calls that recovered, waited or failed, and show what each second of them was spent on.")

_Journal = Annotated[
    str,
    typer.Option("--journal", help="The file that `journal_to` writes.", envvar="HOLDFAST_JOURNAL"),
]
DEFAULT = "holdfast.journal.db"


class RunFilters(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs are listed. A run must fit all of it."""

    operation: Annotated[str | None, typer.Option(help="Only calls of this name: claude, tool:bash …")] = None
    outcome: Annotated[
        Literal["recovered", "degraded", "failed", "cancelled", "unknown"] | None,
        typer.Option(help="Only calls that ended so."),
    ] = None
    code: Annotated[
        str | None, typer.Option(help="Only calls with a failure of this code.", autocompletion=complete_codes)
    ] = None
    request: Annotated[str | None, typer.Option(help="Only calls for this request, also inside others.")] = None
    session: Annotated[str | None, typer.Option(help="Only calls of this session, also inside others.")] = None
    since: SinceOption = None
    until: UntilOption = None


@verb(runs, "ls", "journal.runs")
def runs_ls(
    *,
    filters: RunFilters,
    limit: Annotated[int, typer.Option(min=1, help="Show at most this many, the latest.")] = 50,
    journal: _Journal = DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """List the calls that fit every filter, the latest first. Calls that worked at once are only counted."""


@verb(runs, "show", "journal.runs")
def runs_show(
    run: Annotated[str, typer.Argument(help="The id of a run, as `holdfast runs ls` and the log show it.")],
    journal: _Journal = DEFAULT,
    as_json: JsonOption = False,
) -> None:
    """Draw a call with every attempt, every wait and what it was for, and the calls inside it."""
