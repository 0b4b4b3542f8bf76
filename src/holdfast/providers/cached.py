"""`CachedModel`: the same request gets the same answer from memory. It is for tests, evaluations and repeated work.

Invariant: only complete answers are kept, and no longer than `ttl`. A kept answer is used only for an equal request to the
same model.
"""

from __future__ import annotations

import copy
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import msgspec

from holdfast import options
from holdfast.events import SuppressedError
from holdfast.providers.messages import Reply
from holdfast.providers.model import check_offers
from holdfast.runtime.fallbacks.cache import MemoryCache
from holdfast.runtime.fault_of import fault_of
from holdfast.runtime.runtime import default_runtime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from holdfast.policies.models.capabilities import Offers
    from holdfast.providers.messages import Part, Request
    from holdfast.providers.model import AfterFirst, Model, Parts
    from holdfast.runtime.fallbacks.cache import CacheStore
    from holdfast.runtime.runtime import Runtime

_KEPT = frozenset({"end", "tools"})
"""Reasons to stop whose answers are kept. If an answer was cut off or declined, the next answer may be better."""


class CachedModel:
    """A model that keeps its answers for `ttl` seconds. If the cache's store fails, an event reports it and the model is called."""

    negotiates = True

    @options.suggests
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
        """What the model can do: the same as without the cache."""
        return self._model.offers

    async def exchange(self, request: Request) -> Reply:
        """Return the answer from memory, without usage; or ask the model, and keep its answer if it is complete."""
        kept = self._recall(request)
        if kept is not None:
            return kept
        check_offers(self._model, request, self._runtime)
        reply = await self._model.exchange(request)
        self._keep(request, reply)
        return reply

    def stream(self, request: Request, *, after_first: AfterFirst = "raise") -> Parts:
        """Return the answer in parts. An answer from memory is one part of text and the reply."""
        kept = self._recall(request)
        if kept is not None:
            return _replayed(kept)
        check_offers(self._model, request, self._runtime, streamed=True)
        return self._kept_at_the_end(request, self._model.stream(request, after_first=after_first))

    @asynccontextmanager
    async def _kept_at_the_end(self, request: Request, parts: Parts) -> AsyncIterator[AsyncIterator[Part]]:
        async def passing(opened: AsyncIterator[Part]) -> AsyncIterator[Part]:
            async for part in opened:
                # Only the last part is a reply, so nothing is kept of a stream that was cut or not read to its end.
                if isinstance(part, Reply):
                    self._keep(request, part)
                yield part

        async with parts as opened:
            yield passing(opened)

    def _key(self, request: Request) -> str:
        # The order must be deterministic: the same schema with its fields in another order must give the same key.
        return f"{self.name}:{msgspec.json.encode(request, order='deterministic').decode()}"

    def _recall(self, request: Request) -> Reply | None:
        try:
            kept = self._store.get(self._key(request), self._using.clock.monotonic())
        except Exception as error:  # noqa: BLE001 - whatever a foreign store raises
            self._report(error)
            return None
        # Other programs may use the same store, so it may return anything under our key.
        return _copy_of(kept) if isinstance(kept, Reply) else None

    def _keep(self, request: Request, reply: Reply) -> None:
        if reply.stop not in _KEPT or any(call.mistake for call in reply.calls):
            return
        # An answer from memory costs nothing, so its usage must not be charged a second time.
        kept = _copy_of(msgspec.structs.replace(reply, usage=None))
        try:
            self._store.put(self._key(request), kept, self._using.clock.monotonic(), self._ttl)
        except Exception as error:  # noqa: BLE001 - whatever a foreign store raises
            self._report(error)

    @property
    def _using(self) -> Runtime:
        return self._runtime or default_runtime()

    def _report(self, error: Exception) -> None:
        using = self._using
        using.bus.emit(SuppressedError.of(fault_of(error), "the cache of a model failed", at=using.clock.wall()))


def _copy_of(reply: Reply) -> Reply:
    """Return a copy, so that a caller who changes its arguments or data does not change the answer in memory."""
    return copy.deepcopy(reply)


@asynccontextmanager
async def _replayed(reply: Reply) -> AsyncIterator[AsyncIterator[Part]]:
    async def parts() -> AsyncIterator[Part]:
        if reply.text:
            yield reply.text
        yield reply

    yield parts()
