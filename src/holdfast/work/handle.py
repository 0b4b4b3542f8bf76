"""`WorkHandle`: what was submitted, to wait for, ask about, tell something and cancel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from holdfast import options
from holdfast.faults import AbortedError, Err, Fault, HoldfastError, Ok
from holdfast.sessions import codec
from holdfast.sessions.journal import memory_of
from holdfast.sessions.waits import signal
from holdfast.stores import shared
from holdfast.work.changes import cancel, item_of

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from holdfast.faults import Outcome
    from holdfast.sessions.log import WorkNoted
    from holdfast.stores import Store
    from holdfast.stores.records import WorkItem, WorkStatus

__all__ = ["WorkHandle"]

T = TypeVar("T")

_ENDED = frozenset({"done", "failed", "cancelled"})
_LOOK_S = 60.0
"""How often the item is read if no news comes."""


class WorkHandle(Generic[T]):
    """Something that was submitted. `await handle` returns what its program returns, in whatever process it ends.

        handle = await submit(refund, order, key=order.id)
        receipt = await handle

    id: the session of the item, which is its name everywhere: `holdfast work show ID`, `holdfast sessions show ID`.
    Without a `store` it looks in the default one.
    """

    @options.suggests
    def __init__(self, id: str, *, store: Store | str | Path | None = None, returns: Any = Any) -> None:  # noqa: A002 - the field's name
        self.id = id
        self._store = store
        self._returns = returns

    def __repr__(self) -> str:
        return f"<handle {self.id}>"

    def __await__(self) -> Generator[Any, None, T]:
        return self._value().__await__()

    async def outcome(self) -> Outcome[T]:
        """Wait for its end; return `Ok` with the value, or `Err`: `match await handle.outcome(): …`.

        A dead letter is an `Err`, too, until somebody retries it.
        """
        noted = await self._ended()
        if noted.status == "done":
            return Ok(self._decoded(noted))
        error = self._error(noted)
        return Err(error.fault, error)

    async def status(self) -> WorkStatus:
        """Return where it is: `ready`, `running`, `waiting`, `paused`, `done`, `failed` or `cancelled`."""
        return (await self.item()).status

    async def item(self) -> WorkItem:
        """Return its row in the store: queue, priority, when it is due, how often it failed."""
        async with shared.opened(self._store) as store:
            return await item_of(store, self.id)

    async def cancel(self, *, by: str = "") -> bool:
        """End it: at once if it does not run, otherwise after the steps that are in flight. Return False if it has ended already."""
        return await cancel(self.id, store=self._store, by=by)

    async def signal(self, name: str, value: Any = None, *, id: str | None = None, by: str = "") -> None:  # noqa: A002 - as in `signal`
        """Tell its program something: `await handle.signal("approved", True)`. See `holdfast.sessions.signal`."""
        await signal(self.id, name, value, store=self._store, id=id, by=by)

    async def _value(self) -> T:
        noted = await self._ended()
        if noted.status == "done":
            return self._decoded(noted)
        raise self._error(noted)

    async def _ended(self) -> WorkNoted:
        async with shared.opened(self._store) as store:
            while True:
                item = await item_of(store, self.id)
                if item.status in _ENDED:
                    noted = (await memory_of(store, self.id)).noted
                    if noted is not None and noted.status in _ENDED:
                        return noted
                await store.changed(self.id, item.top, _LOOK_S)

    def _decoded(self, noted: WorkNoted) -> T:
        value: T = codec.decode(msgspec.json.encode(noted.value), self._returns, f"result of {self.id}")
        return value

    def _error(self, noted: WorkNoted) -> HoldfastError:
        if noted.status == "cancelled":
            by = f" by {noted.by}" if noted.by else ""
            return AbortedError(
                Fault.of("SESS_CANCELLED", f"Work item '{self.id}' was cancelled{by}", context={"session_id": self.id})
            )
        return HoldfastError(msgspec.convert(noted.fault, Fault))
