"""The flags of `holdfast worker` and `holdfast work …`.

Each verb imports its implementation when it runs, so that `--help` and shell completion stay instant.
"""

from typing import Annotated, cast, get_args

import typer

from holdfast.cli.exits import Exit, perform
from holdfast.cli.store_app import CommandGroup, StoreOption
from holdfast.stores.records import WorkStatus

__all__ = ["work", "worker"]

work = typer.Typer(
    cls=CommandGroup,
    help="Look after what was submitted for workers: dead letters, queues, signals.",
    no_args_is_help=True,
)

_Items = Annotated[list[str], typer.Argument(metavar="ITEM…", help="The ids of items, such as refund:o-7.")]
_OptionalItems = Annotated[list[str] | None, typer.Argument(metavar="ITEM…", help="The ids of items.")]
_Item = Annotated[str, typer.Argument(metavar="ITEM", help="The id of an item, such as refund:o-7.")]
_Queue = Annotated[str | None, typer.Option(metavar="NAME", help="A whole queue, in place of items.")]
_Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
_Jsonl = Annotated[bool, typer.Option("--jsonl", help="One JSON object a line.")]


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
    from holdfast.cli.work import worker as verb

    perform(
        lambda: verb(programs, store, concurrency=concurrency, queues=queues, lease=lease, grace=grace, as_json=as_json)
    )


@work.command("ls")
def work_ls(
    status: Annotated[
        list[str] | None, typer.Option(help="Only items with this status, such as failed or done; may be repeated.")
    ] = None,
    queue: Annotated[str | None, typer.Option(help="Only items of this queue.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="The most items.")] = None,
    store: StoreOption = None,
    as_json: _Json = False,
    as_jsonl: _Jsonl = False,
) -> None:
    """List the items that have not ended well: ready, running, waiting, paused, failed."""
    from holdfast import options
    from holdfast.cli.store import form_of, with_store
    from holdfast.cli.work import work_ls as verb

    def listed() -> Exit:
        for each in status or ():
            options.one_of("--status", each, get_args(WorkStatus))
        form = form_of(as_json, as_jsonl)
        statuses = cast("list[WorkStatus]", status or [])
        return with_store(store, lambda opened: verb(opened, statuses, queue, limit=limit, form=form))

    perform(listed)


@work.command("show")
def work_show(item: _Item, store: StoreOption = None, as_json: _Json = False) -> None:
    """Show an item: its input, why it last failed, and what can be done."""
    from holdfast.cli.store import with_store
    from holdfast.cli.work import work_show as verb

    perform(lambda: with_store(store, lambda opened: verb(opened, item, as_json=as_json)))


@work.command("retry")
def work_retry(items: _Items, store: StoreOption = None) -> None:
    """Try dead letters again, or let items that wait go on now. What their steps have stored stays."""
    _change(store, "retry", items)


@work.command("cancel")
def work_cancel(items: _Items, store: StoreOption = None) -> None:
    """End items: at once if they do not run, otherwise after the steps in flight."""
    _change(store, "cancel", items)


@work.command("pause")
def work_pause(items: _OptionalItems = None, queue: _Queue = None, store: StoreOption = None) -> None:
    """Keep items, or all of a queue, from beginning. What runs goes on."""
    _change_or_queue(store, "pause", items or [], queue)


@work.command("resume")
def work_resume(items: _OptionalItems = None, queue: _Queue = None, store: StoreOption = None) -> None:
    """Let paused items, or those of a paused queue, begin again."""
    _change_or_queue(store, "resume", items or [], queue)


@work.command("signal")
def work_signal(
    item: _Item,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the program waits for, such as approved.")],
    value: Annotated[str | None, typer.Argument(metavar="VALUE", help="The value: JSON, or a text.")] = None,
    store: StoreOption = None,
) -> None:
    """Tell a program something that it waits for with session.wait_for."""
    from holdfast.cli.store import with_store
    from holdfast.cli.work import work_signal as verb

    perform(lambda: with_store(store, lambda opened: verb(opened, item, name, value)))


def _change(store: str | None, verb: str, items: list[str]) -> None:
    from holdfast.cli.store import with_store
    from holdfast.cli.work import work_change

    perform(lambda: with_store(store, lambda opened: work_change(opened, verb, items)))


def _change_or_queue(store: str | None, verb: str, items: list[str], queue: str | None) -> None:
    from holdfast.cli.store import with_store
    from holdfast.cli.work import work_pause_queue
    from holdfast.faults import InvalidError

    if queue is None and items:
        _change(store, verb, items)

    def changed() -> Exit:
        if queue is None or items:
            raise InvalidError.saying(
                f"holdfast work {verb}", "ids of items, or --queue NAME", "both" if queue else "neither"
            )
        return with_store(store, lambda opened: work_pause_queue(opened, queue, paused=verb == "pause"))

    perform(changed)
