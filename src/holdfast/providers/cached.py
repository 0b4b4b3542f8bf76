"""The same answer to the same request, without asking again. For those who want it: tests, evaluations, repeated work.

Invariant: only whole answers are kept, for the very same request to the very same model, and never after their time.
"""

from __future__ import annotations

import copy
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from holdfast import options
from holdfast.events import SuppressedError
from holdfast.providers.words import Reply
from holdfast.runtime.cache import MemoryCache
from holdfast.runtime.fault_of import fault_of
from holdfast.runtime.runtime import default_runtime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.policies.models.capabilities import Offers
    from holdfast.providers.model import AfterFirst, Model, Parts
    from holdfast.providers.words import Part, Request
    from holdfast.runtime.cache import CacheStore
    from holdfast.runtime.runtime import Runtime

__all__ = ["CachedModel"]

_KEPT = frozenset({"end", "tools"})
"""What was cut off or refused may go better the next time."""


class CachedModel:
    """A model with a memory for `ttl` seconds. A store that fails is no store: it is told, and the model is asked."""

    def __init__(
        self, model: Model, *, ttl: float, store: CacheStore | None = None, runtime: Runtime | None = None
    ) -> None:
        options.seconds("cached.ttl", ttl)
        self._model = model
        self._ttl = ttl
        self._store = MemoryCache() if store is None else store
        self._runtime = runtime
        self.name = model.name

    @property
    def offers(self) -> Offers:
        return self._model.offers

    async def exchange(self, request: Request) -> Reply:
        kept = self._recall(request)
        if kept is not None:
            return kept
        reply = await self._model.exchange(request)
        self._keep(request, reply)
        return reply

    def stream(self, request: Request, *, after_first: AfterFirst = "raise") -> Parts:
        kept = self._recall(request)
        return (
            _again(kept)
            if kept is not None
            else self._noted(request, self._model.stream(request, after_first=after_first))
        )

    @asynccontextmanager
    async def _noted(self, request: Request, parts: Parts) -> AsyncIterator[AsyncIterator[Part]]:
        async def passing(opened: AsyncIterator[Part]) -> AsyncIterator[Part]:
            async for part in opened:
                if isinstance(part, Reply):
                    self._keep(request, part)
                yield part

        async with parts as opened:
            yield passing(opened)

    def _key(self, request: Request) -> str:
        return f"{self.name}:{msgspec.json.encode(request, order='deterministic').decode()}"

    def _recall(self, request: Request) -> Reply | None:
        try:
            kept = self._store.get(self._key(request), self._using.clock.monotonic())
        except Exception as error:  # noqa: BLE001 - whatever a foreign store raises
            self._tell(error)
            return None
        return _own(kept) if isinstance(kept, Reply) else None

    def _keep(self, request: Request, reply: Reply) -> None:
        if reply.stop not in _KEPT:
            return
        # What is answered from memory costs nothing: it must not be charged again.
        kept = _own(msgspec.structs.replace(reply, usage=None))
        try:
            self._store.put(self._key(request), kept, self._using.clock.monotonic(), self._ttl)
        except Exception as error:  # noqa: BLE001 - ditto
            self._tell(error)

    @property
    def _using(self) -> Runtime:
        return self._runtime or default_runtime()

    def _tell(self, error: Exception) -> None:
        using = self._using
        using.bus.emit(SuppressedError.of(fault_of(error), "the cache of a model failed", at=using.clock.wall()))


def _own(reply: Reply) -> Reply:
    """Return a reply whose arguments and data are its own: whoever changes them must not change the one that is kept."""
    return copy.deepcopy(reply)


@asynccontextmanager
async def _again(reply: Reply) -> AsyncIterator[AsyncIterator[Part]]:
    async def parts() -> AsyncIterator[Part]:
        if reply.text:
            yield reply.text
        yield reply

    yield parts()
