"""The flags of `holdfast worker` and `holdfast work …`."""

from typing import Annotated

import typer

from holdfast.cli.flags import JsonOption, StoreOption
from holdfast.cli.verbs import group_of, store_verb, verb

work = group_of("Look after what was submitted for workers: dead letters, queues, signals.")
workers = typer.Typer()
"""Holds `holdfast worker` until the command takes it."""

_Items = Annotated[list[str], typer.Argument(metavar="ITEM…", help="The ids of items, such as refund:o-7.")]
_OptionalItems = Annotated[list[str] | None, typer.Argument(metavar="ITEM…", help="The ids of items.")]
_Item = Annotated[str, typer.Argument(metavar="ITEM", help="The id of an item, such as refund:o-7.")]
_Queue = Annotated[str | None, typer.Option(metavar="NAME", help="A whole queue, in place of items.")]


@verb(workers, "worker", "work.items")
def worker(
    programs: Annotated[
        str, typer.Argument(metavar="MODULE:NAME", help="The programs: one of them, or a list, such as app:programs.")
    ],
    store: StoreOption = None,
    concurrency: Annotated[int, typer.Option(help="How many items run at once.")] = 16,
    queues: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="The queues to take from, such as fast,slow=2: at most two items of slow run at once, over all workers."
            " By default those of the programs.",
        ),
    ] = None,
    lease: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long after the death of this machine others take over.")
    ] = 30.0,
    grace: Annotated[
        float, typer.Option(metavar="SECONDS", help="How long the steps in flight may take when it is stopped.")
    ] = 30.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="A JSON object a line on stdout for each run that ended.")
    ] = False,
) -> None:
    """Run programs: claim what was submitted, and go on with what a dead worker left. SIGTERM stops it after the steps in flight."""


@store_verb(work, "ls", "work.items")
def work_ls(
    status: Annotated[
        list[str] | None, typer.Option(help="Only items with this status, such as failed or done; may be repeated.")
    ] = None,
    queue: Annotated[str | None, typer.Option(help="Only items of this queue.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="The most items.")] = None,
    as_json: JsonOption = False,
    as_jsonl: Annotated[bool, typer.Option("--jsonl", help="One JSON object a line.")] = False,
) -> None:
    """List the items that have not ended well: ready, running, waiting, paused, failed."""


@store_verb(work, "show", "work.items")
def work_show(item: _Item, as_json: JsonOption = False) -> None:
    """Show an item: its input, why it last failed, and what can be done."""


@store_verb(work, "retry", "work.items")
def work_retry(items: _Items) -> None:
    """Try dead letters again, or let items that wait go on now. What their steps have stored stays."""


@store_verb(work, "cancel", "work.items")
def work_cancel(items: _Items) -> None:
    """End items: at once if they do not run, otherwise after the steps in flight."""


@store_verb(work, "pause", "work.items")
def work_pause(items: _OptionalItems = None, queue: _Queue = None) -> None:
    """Keep items, or all of a queue, from beginning. What runs goes on."""


@store_verb(work, "resume", "work.items")
def work_resume(items: _OptionalItems = None, queue: _Queue = None) -> None:
    """Let paused items, or those of a paused queue, begin again."""


@store_verb(work, "signal", "work.items")
def work_signal(
    item: _Item,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the program waits for, such as approved.")],
    value: Annotated[str | None, typer.Argument(metavar="VALUE", help="The value: JSON, or a text.")] = None,
) -> None:
    """Tell a program something that it waits for with session.wait_for."""
