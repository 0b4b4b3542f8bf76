"""`StoreSaver`: LangGraph's checkpoints in a store of ours, so a graph goes on after a crash.

A thread of LangGraph is a session of the store. Each checkpoint and each set of pending writes is one entry of its log, and the state of
the thread is what follows from the log.

Invariant: entries are only added. Of two checkpoints with one id the later counts; of two writes with one number the first counts, except
for those that LangGraph numbers below zero (errors, interrupts, resumes).
"""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakValueDictionary

import msgspec
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    CheckpointTuple,
    get_checkpoint_id,
    get_checkpoint_metadata,
    writes_sort_key,
)

from holdfast import options
from holdfast.integrations.store_log import StoreLog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence

    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata
    from langgraph.checkpoint.serde.base import SerializerProtocol

    from holdfast.stores.store import Store

__all__ = ["StoreSaver"]

T = TypeVar("T")

_KEPT_THREADS = 16


class _Put(msgspec.Struct, frozen=True, tag="checkpoint"):
    thread: str
    """The id of the thread, from which the name of the session cannot always be read."""
    ns: str
    id: str
    parent: str | None
    checkpoint: tuple[str, str]
    metadata: tuple[str, str]


class _Writes(msgspec.Struct, frozen=True, tag="writes"):
    ns: str
    id: str
    task: str
    path: str
    writes: tuple[tuple[int, str, tuple[str, str]], ...]
    """The number of each write, its channel and its value."""


class _Dropped(msgspec.Struct, frozen=True, tag="dropped"):
    ids: tuple[tuple[str, str], ...]
    """Checkpoints that are gone: namespace and id."""


_READER = msgspec.json.Decoder(_Put | _Writes | _Dropped)


@dataclass(slots=True)
class _Thread:
    """What follows from the log of a thread, up to an offset."""

    epoch: str
    offset: int = 0
    puts: dict[tuple[str, str], _Put] = field(default_factory=dict)
    writes: dict[tuple[str, str], dict[tuple[str, int], tuple[str, str, tuple[str, str]]]] = field(default_factory=dict)

    def take(self, entry: _Put | _Writes | _Dropped) -> None:
        match entry:
            case _Put():
                self.puts[entry.ns, entry.id] = entry
            case _Writes():
                known = self.writes.setdefault((entry.ns, entry.id), {})
                for number, channel, value in entry.writes:
                    if number < 0 or (entry.task, number) not in known:
                        known[entry.task, number] = (entry.path, channel, value)
            case _Dropped():
                for key in entry.ids:
                    self.puts.pop(key, None)
                    self.writes.pop(key, None)


class StoreSaver(BaseCheckpointSaver[str]):
    """A checkpointer of LangGraph on a store that is open: SQLite, PostgreSQL or memory.

    For example:
        async with open_store("sqlite:work.db") as store:
            graph = builder.compile(checkpointer=StoreSaver(store))
            await graph.ainvoke(question, {"configurable": {"thread_id": "release-42"}})

    Make it inside the event loop in which the store is open, and use `ainvoke`. Sync methods work only from other threads of the program. Raises
    what the store raises, for example SESS_STORE_UNAVAILABLE.
    """

    @options.suggests
    def __init__(self, store: Store, *, serde: SerializerProtocol | None = None) -> None:
        super().__init__(serde=serde)
        self._log = StoreLog(store, "langgraph")
        self._loop = asyncio.get_running_loop()
        self._threads: OrderedDict[str, _Thread] = OrderedDict()
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    # --- what LangGraph calls in an event loop ---

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return a checkpoint with its pending writes: the one that the config names, or the last."""
        thread, ns = _place(config)
        found = await self._read(self._log.name(thread))
        if found is None:
            return None
        wanted = get_checkpoint_id(config)
        ids = [id_ for space, id_ in found.puts if space == ns and wanted in {None, id_}]
        return self._tuple(found, (ns, max(ids))) if ids else None

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph names it
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """Yield checkpoints, the newest first."""
        names = (
            [self._log.name(_place(config)[0])] if config is not None else [each async for each in self._log.names()]
        )
        space = None if config is None else _chosen(config).get("checkpoint_ns")
        wanted = None if config is None else get_checkpoint_id(config)
        bound = None if before is None else get_checkpoint_id(before)
        found: list[CheckpointTuple] = []
        for name in names:
            if (state := await self._read(name)) is None:
                continue
            for ns, id_ in state.puts:
                if space in {None, ns} and wanted in {None, id_} and (bound is None or id_ < bound):
                    found.append(self._tuple(state, (ns, id_)))
        found.sort(key=lambda each: _chosen(each.config)["checkpoint_id"], reverse=True)
        chosen = [each for each in found if _fits(each.metadata, filter)]
        for each in chosen if limit is None else chosen[:limit]:
            yield each

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint. It is on disk when this returns."""
        del new_versions  # every entry holds the whole state
        thread, ns = _place(config)
        entry = _Put(
            thread=thread,
            ns=ns,
            id=checkpoint["id"],
            parent=get_checkpoint_id(config),
            checkpoint=self._written(checkpoint),
            metadata=self._written(get_checkpoint_metadata(config, metadata)),
        )
        await self._append(self._log.name(thread), entry)
        return _config(thread, ns, checkpoint["id"])

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task has written. It is on disk when this returns."""
        thread, ns = _place(config)
        numbered = tuple(
            (WRITES_IDX_MAP.get(channel, number), channel, self._written(value))
            for number, (channel, value) in enumerate(writes)
        )
        checkpoint = _chosen(config)["checkpoint_id"]
        await self._append(
            self._log.name(thread), _Writes(ns=ns, id=checkpoint, task=task_id, path=task_path, writes=numbered)
        )

    async def adelete_thread(self, thread_id: str) -> None:
        """Remove a thread from the store with everything in it."""
        name = self._log.name(thread_id)
        self._threads.pop(name, None)
        await self._log.remove(name)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Drop the checkpoints and writes of some runs, in all threads."""
        async for name in self._log.names():
            state = await self._read(name)
            gone = [key for key, put in state.puts.items() if self._run_of(put) in run_ids] if state is not None else []
            if gone:
                await self._append(name, _Dropped(ids=tuple(gone)))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy all checkpoints and writes of a thread to another one."""
        state = await self._read(self._log.name(source_thread_id))
        if state is None:
            return
        entries: list[_Put | _Writes | _Dropped] = [
            msgspec.structs.replace(put, thread=target_thread_id) for put in state.puts.values()
        ]
        for (ns, id_), writes in state.writes.items():
            for (task, number), (path, channel, value) in writes.items():
                entries.append(_Writes(ns=ns, id=id_, task=task, path=path, writes=((number, channel, value),)))
        await self._append(self._log.name(target_thread_id), *entries)

    # --- the same for threads ---

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return what `aget_tuple` returns, for a thread that is not the event loop's."""
        return self._wait(self.aget_tuple(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - LangGraph names it
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Return what `alist` yields, for a thread that is not the event loop's."""

        async def gathered() -> Any:
            return [each async for each in self.alist(config, filter=filter, before=before, limit=limit)]

        return iter(self._wait(gathered()))

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint, for a thread that is not the event loop's."""
        return self._wait(self.aput(config, checkpoint, metadata, new_versions))

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store what a task has written, for a thread that is not the event loop's."""
        self._wait(self.aput_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """Remove a thread, for a thread that is not the event loop's."""
        self._wait(self.adelete_thread(thread_id))

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            is_inside = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            is_inside = False
        if is_inside:
            work.close()
            message = (
                "a sync call inside the event loop of the store would wait for itself; use `ainvoke` and `aget_state`"
            )
            raise asyncio.InvalidStateError(message)
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # --- the log ---

    async def _append(self, name: str, *entries: _Put | _Writes | _Dropped) -> None:
        await self._log.append(name, *map(msgspec.json.encode, entries))

    async def _read(self, name: str) -> _Thread | None:
        """Return the state of a thread. Only what is new in the log is read."""
        # Two readers of one thread would take an entry twice.
        async with self._locks.setdefault(name, asyncio.Lock()):
            if (record := await self._log.record(name)) is None:
                self._threads.pop(name, None)
                return None
            state = self._threads.get(name)
            if state is None or state.epoch != record.epoch:
                state = self._threads[name] = _Thread(record.epoch)
            async for entry in self._log.entries(record, state.offset):
                state.take(_READER.decode(entry.body))
                state.offset = entry.offset
            self._threads.move_to_end(name)
            while len(self._threads) > _KEPT_THREADS:
                self._threads.popitem(last=False)
            return state

    # --- values ---

    def _written(self, value: Any) -> tuple[str, str]:
        kind, data = self.serde.dumps_typed(value)
        return kind, b64encode(data).decode()

    def _value(self, written: tuple[str, str]) -> Any:
        kind, data = written
        return self.serde.loads_typed((kind, b64decode(data)))

    def _run_of(self, put: _Put) -> Any:
        return self._value(put.metadata).get("run_id")

    def _tuple(self, state: _Thread, key: tuple[str, str]) -> CheckpointTuple:
        ns, id_ = key
        put = state.puts[key]
        thread = put.thread
        writes = sorted(
            ((path, task, number, channel, value) for (task, number), (path, channel, value) in state.writes.get(key, {}).items()),
            key=lambda each: writes_sort_key(*each[:3]),
        )  # fmt: skip
        return CheckpointTuple(
            config=_config(thread, ns, id_),
            checkpoint=self._value(put.checkpoint),
            metadata=self._value(put.metadata),
            parent_config=None if put.parent is None else _config(thread, ns, put.parent),
            pending_writes=[(task, channel, self._value(value)) for _, task, _, channel, value in writes],
        )


def _chosen(config: RunnableConfig) -> dict[str, Any]:
    # LangGraph checks the config before it calls a checkpointer.
    return config.get("configurable", {})


def _place(config: RunnableConfig) -> tuple[str, str]:
    chosen = _chosen(config)
    return str(chosen["thread_id"]), chosen.get("checkpoint_ns") or ""


def _config(thread: str, ns: str, checkpoint: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ns, "checkpoint_id": checkpoint}}


def _fits(metadata: CheckpointMetadata, wanted: dict[str, Any] | None) -> bool:
    return all(metadata.get(name) == value for name, value in (wanted or {}).items())
