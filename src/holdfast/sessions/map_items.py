"""The items of a `map`: what became of those that were started, and which calls the others will be."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Collection
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.faults import Err, HoldfastError, InvalidError, Ok
from holdfast.once.identity import Identity
from holdfast.sessions.call import call_of
from holdfast.sessions.place import here

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from holdfast.faults import Outcome
    from holdfast.once.replay import Attempts, Use, Uses
    from holdfast.sessions.journal import Journal

__all__ = ["SESSION_FAILURES", "MapItems", "coming_of"]

SESSION_FAILURES = frozenset({"SESS_STORE_UNAVAILABLE", "SESS_LEASE_LOST", "SESS_STEP_DRIFT"})
"""Failures of the session itself. They are not the outcome of one item, because every other step would fail too."""


class MapItems:
    """The items of a `map`.

    It holds items back, so a call that waits for others would wait for them in vain: it asks here what is to come.
    """

    def __init__(
        self, journal: Journal, owner: Callable[[], Any], fn: Callable[..., Any], items: Iterable[Any]
    ) -> None:
        self.owner = owner
        """Returns the task that called `map`: its items are calls of that task, in their order."""
        self.failed: list[Use] = []
        self.running: deque[asyncio.Task[Outcome[Any]]] = deque()
        """In the order of the items."""
        self._started = 0
        self._journal = journal
        self._fn = fn
        # What can be read once only is left to the `map` itself.
        self._items = items if isinstance(items, Collection) else ()
        around = here(journal)
        self._place = "" if around is None else around.place
        self._calls: list[Identity | None] | None = None

    def start(self, step: Callable[[], Awaitable[Any]]) -> None:
        """Start the next item."""
        self.running.append(asyncio.ensure_future(self._outcome(step)))
        self._started += 1

    async def _outcome(self, step: Callable[[], Awaitable[Any]]) -> Outcome[Any]:
        try:
            return Ok(await step())
        except HoldfastError as error:
            if error.fault.code in SESSION_FAILURES:
                raise
            return Err(error.fault, error)
        except Exception as error:  # noqa: BLE001 - any failure of an item is its outcome
            return Err(self._journal.fault_of(error), error)

    async def stop(self) -> None:
        """Stop what still runs."""
        for task in self.running:
            task.cancel()
        await asyncio.gather(*self.running, return_exceptions=True)

    def to_come(self) -> Counter[Identity]:
        """Return the calls that the items make that are not started yet."""
        if self._calls is None:
            self._calls = [self._call_of(item) for item in self._items]
        return Counter(call for call in islice(self._calls, self._started, None) if call is not None)

    def _call_of(self, item: Any) -> Identity | None:
        try:
            identity = call_of(self._fn, (item,), {}, "", self._journal).identity
        except InvalidError:
            # It says so when it is started.
            return None
        return msgspec.structs.replace(identity, place=self._place)


def coming_of(maps: list[MapItems], uses: Uses, attempts: Attempts) -> set[str]:
    """Return the names of the steps that those items of the maps will be that are not started yet."""
    to_come = sum((mapped.to_come() for mapped in maps), Counter[Identity]())
    return set(uses.next_of(to_come, attempts))
