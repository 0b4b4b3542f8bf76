"""`holdfast worker` and `holdfast work ls|show|retry|cancel|pause|resume|signal`: run programs, and look after what was submitted.

Invariant: a worker that is told to stop lets the steps in flight end, gives the rest back, and exits with 0.
"""

from __future__ import annotations

import asyncio
import signal as signals
from typing import TYPE_CHECKING, Any, cast, get_args

import msgspec

from holdfast import options
from holdfast.cli.exits import Exit
from holdfast.cli.output import counted, fail, narrate, show_json, show_line, show_table, show_text
from holdfast.cli.programs.agent import imported
from holdfast.cli.store.access import form_of, time_of
from holdfast.cli.store.sessions import person
from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.sessions.journal import memory_of
from holdfast.sessions.waits import signal
from holdfast.stores.records import WorkQueue, WorkStatus
from holdfast.stores.store import work_store
from holdfast.work import Worker, cancel, pause, resume, retry
from holdfast.work.changes import item_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from holdfast.stores import Store
    from holdfast.stores.records import WorkItem

SCHEMA = "holdfast.work/1"
_OPEN: tuple[WorkStatus, ...] = ("ready", "running", "waiting", "paused", "failed")
COLUMNS = ("item", "status", "program", "queue", "priority", "due", "failures", "why")

# --- the worker ---


def worker(
    *, programs: str, store: str | None, concurrency: int, queues: str | None, lease: float, grace: float, as_json: bool
) -> int:
    """Run a worker until a signal stops it, and return the exit code."""
    found = imported(programs, "PROGRAMS")
    made = Worker(
        store,
        found,
        concurrency=concurrency,
        queues=_queues(queues),
        lease=lease,
        grace=grace,
        on_end=_show_end if as_json else lambda item, status: narrate(f"{item}: {status}"),
    )
    return asyncio.run(_serve(made, programs))


def _show_end(item: str, status: WorkStatus) -> None:
    show_line({"schema": "holdfast.worker/1", "item": item, "status": status})


async def _serve(made: Worker, programs: str) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signals.SIGTERM, signals.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with made:
        narrate(f"worker of {programs}: waiting for work (Ctrl-C stops it after the steps in flight)")
        working, told = asyncio.ensure_future(made.serve()), asyncio.ensure_future(stop.wait())
        await asyncio.wait((working, told), return_when=asyncio.FIRST_COMPLETED)
        for number in (signals.SIGTERM, signals.SIGINT):
            # A second signal ends the process at once.
            loop.remove_signal_handler(number)
        if working.done():
            told.cancel()
            await working
        elif running := made.running:
            narrate(f"stopping after the steps in flight of {counted(len(running), 'item')}")
        working.cancel()
    return Exit.OK


def _queues(given: str | None) -> list[WorkQueue] | None:
    """Return the queues of `fast,slow=2`."""
    if given is None:
        return None
    found: list[WorkQueue] = []
    for each in given.split(","):
        name, limited, limit = each.strip().partition("=")
        if not name or (limited and not (limit.isdecimal() and int(limit))):
            raise InvalidError.at(
                "--queues", "names with commas, each with =N if at most N of its items may run", given
            )
        found.append(WorkQueue(name=name, concurrency=int(limit) if limited else None))
    return found


# --- what was submitted ---


async def work_ls(
    store: Store, *, status: list[str] | None, queue: str | None, limit: int | None, as_json: bool, as_jsonl: bool
) -> Exit:
    """List work items: by default, those that have not ended well."""
    for each in status or ():
        options.one_of("--status", each, get_args(WorkStatus))
    form = form_of(as_json, as_jsonl)
    wanted = cast("list[WorkStatus]", status) or _OPEN
    keeps, after = work_store(store), ""
    found: list[WorkItem] = []
    while page := await keeps.work(statuses=wanted, queue=queue, after=after):
        after = page[-1].session
        found += page
        if limit is not None and len(found) >= limit:
            break
    items, paused = found[:limit], await keeps.paused_work()
    match form:
        case "json":
            show_json({"schema": SCHEMA, "items": [_document(item) for item in items], "paused_queues": paused})
        case "jsonl":
            for item in items:
                show_line({"schema": SCHEMA, **_document(item)})
        case "table" if items:
            show_table(COLUMNS, [_row(item) for item in items])
        case _:
            narrate("no work items")
    if paused and form == "table":
        narrate(f"paused: {', '.join(paused)} (holdfast work resume --queue NAME)")
    return Exit.OK


def _document(item: WorkItem) -> dict[str, Any]:
    document = msgspec.to_builtins(item)
    for name in ("due", "added"):
        document[name] = None if document[name] is None else time_of(document[name])
    del document["claim"], document["claim_left"]
    return {"item": document.pop("session"), **document}


def _row(item: WorkItem) -> list[str]:
    version = f" {item.version}" if item.version else ""
    due = time_of(item.due) if item.status == "waiting" and item.due is not None else ""
    return [
        item.session,
        item.status,
        f"{item.program.removeprefix('program ')}{version}",
        item.queue,
        str(item.priority),
        due,
        str(item.failures),
        item.code,
    ]


async def work_show(store: Store, *, item: str, as_json: bool) -> Exit:
    """Show a work item: what was submitted, where it is, why it last failed, and what can be done."""
    return await _show(store, item, as_json=as_json)


async def _show(store: Store, given: str, *, as_json: bool) -> Exit:
    item = await item_of(store, given)
    memory = await memory_of(store, given)
    submitted, noted = memory.submitted, memory.noted
    fault = None if noted is None or noted.fault is None else msgspec.convert(noted.fault, Fault)
    ways = _ways(item, fault, [raised.id for raised in memory.pending()], sorted(memory.unknown()))
    if as_json:
        document = {
            "schema": "holdfast.work-item/1",
            **_document(item),
            "inputs": None if submitted is None else submitted.inputs,
            "value": None if noted is None or noted.status != "done" else noted.value,
            "fault": None if fault is None else fault.for_audit()["fault"],
            "ways": ways,
        }
        show_json(document)
        return Exit.OK
    shown = dict(zip(COLUMNS, _row(item), strict=True))
    for name, value in shown.items():
        if value:
            show_text(f"{name}: {value}")
    if submitted is not None:
        show_text(f"input: {msgspec.json.encode(submitted.inputs).decode()}")
    if noted is not None and noted.status == "done":
        show_text(f"value: {msgspec.json.encode(noted.value).decode()}")
    if fault is not None:
        show_text(f"last failure: {fault.code}  {fault.message}")
    for way in ways:
        narrate(f"  help: {way}")
    return Exit.OK


def _ways(item: WorkItem, fault: Fault | None, questions: list[str], doubts: list[str]) -> list[str]:
    """Return what a person can do about an item."""
    match item.status:
        case "failed":
            ways = [f"holdfast work retry {item.session}", f"holdfast work cancel {item.session}"]
        case "paused":
            ways = [f"holdfast work resume {item.session}"]
        case "ready":
            known = f"{item.program}{f' version {item.version}' if item.version else ''}"
            ways = [f"no worker has claimed it yet: it needs one for queue {item.queue} that knows {known}"]
        case "waiting" if doubts:
            ways = [f"holdfast sessions resolve {item.session} {key} --happened or --not-happened" for key in doubts]
        case "waiting":
            ways = [f"holdfast sessions answer {item.session} {question} --yes or --no" for question in questions]
        case _:
            ways = []
    return [*ways, f"holdfast explain {fault.code}"] if fault is not None and item.status == "failed" else ways


_CHANGES: dict[str, tuple[Callable[..., Any], str, str]] = {
    "retry": (retry, "tried again", "is no dead letter, and does not wait"),
    "cancel": (cancel, "cancelled", "has ended"),
    "pause": (pause, "paused", "runs, or has ended"),
    "resume": (resume, "resumed", "was not paused"),
}


async def work_retry(store: Store, *, items: list[str]) -> Exit:
    """Try dead letters again, or let items that wait go on now."""
    return await _change(store, "retry", items)


async def work_cancel(store: Store, *, items: list[str]) -> Exit:
    """End items."""
    return await _change(store, "cancel", items)


async def work_pause(store: Store, *, items: list[str] | None, queue: str | None) -> Exit:
    """Keep items, or all of a queue, from beginning."""
    return await _change_or_queue(store, "pause", items or [], queue)


async def work_resume(store: Store, *, items: list[str] | None, queue: str | None) -> Exit:
    """Let paused items, or those of a paused queue, begin again."""
    return await _change_or_queue(store, "resume", items or [], queue)


async def _change_or_queue(store: Store, verb: str, items: list[str], queue: str | None) -> Exit:
    if (queue is None) == (not items):
        expected = "ids of items, or --queue NAME"
        raise InvalidError.saying(f"holdfast work {verb}", expected, "both" if queue else "neither")
    if queue is None:
        return await _change(store, verb, items)
    await work_store(store).pause_work(queue, paused=verb == "pause")
    narrate(f"queue {queue}: {'paused; what runs goes on' if verb == 'pause' else 'resumed'}")
    return Exit.OK


async def _change(store: Store, verb: str, items: Sequence[str]) -> Exit:
    """Change items. Exit 1 if one of them could not be changed."""
    change, done, otherwise = _CHANGES[verb]
    failed = False
    for item in items:
        try:
            changed = await change(item, store=store, by=person())
        except HoldfastError as error:
            fail(error.fault.message)
            failed = True
            continue
        failed = failed or not changed
        narrate(f"{item}: {done}" if changed else f"{item}: {otherwise}")
    return Exit.FAILED if failed else Exit.OK


async def work_signal(store: Store, *, item: str, name: str, value: str | None) -> Exit:
    """Send a signal to the program of an item, or of any session."""
    given: Any = None
    if value is not None:
        try:
            given = msgspec.json.decode(value)
        except msgspec.DecodeError:
            given = value
    await signal(item, name, given, store=store, by=person())
    narrate(f"{item}: signalled {name}")
    return Exit.OK
