"""Several models, one after the other: who cannot do what a request needs is passed over, who fails is followed by the next.

Invariant: a model is asked only for what it can do; the first error surfaces when all have failed, with what became of each.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from holdfast import options
from holdfast.events import SuppressedError
from holdfast.faults import HoldfastError, InvalidError
from holdfast.policies import Policy
from holdfast.policies.models.capabilities import lacking, negotiate
from holdfast.runtime.recover import recover
from holdfast.runtime.runtime import default_runtime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from holdfast.faults import Fault
    from holdfast.policies import Consent
    from holdfast.policies.models.capabilities import Needs, Offers
    from holdfast.providers.model import AfterFirst, Model, Parts
    from holdfast.providers.words import Part, Reply, Request
    from holdfast.runtime.runtime import Runtime

__all__ = ["ModelChain"]

_ONCE = Policy(attempts=1, timeout=None, deadline=None, circuit=None)
"""Each model has its own attempts, limits and circuits."""


class ModelChain:
    """A model that is several. With `consent="ask"` the runtime's consent is asked before another takes over (C28)."""

    def __init__(
        self, models: Sequence[Model], *, consent: Consent = "configured", runtime: Runtime | None = None
    ) -> None:
        if not models:
            raise InvalidError.saying("chain.models", "at least one model", "none")
        options.one_of("chain.consent", consent, ("configured", "ask"))
        self._models = tuple(models)
        self._consent: Consent = consent
        self._runtime = runtime
        self.name = " > ".join(model.name for model in self._models)

    @property
    def offers(self) -> Offers:
        """What its first model can do; what a request needs is asked of each."""
        return self._models[0].offers

    async def exchange(self, request: Request) -> Reply:
        able, refusal = self._able(request.wants(streamed=False))
        ways = [(model.name, model.exchange) for model in able]
        if refusal is not None:
            ways.insert(0, (self._models[0].name, partial(_refused, refusal)))
        (_, first), *others = ways
        recovered = recover(None, _ONCE, effect="read", runtime=self._runtime)(_asking(first, self.name))
        for name, exchange in others:
            recovered.fallback(name=name, consent=self._consent)(exchange)
        return await recovered(request)

    def stream(self, request: Request, *, after_first: AfterFirst = "raise") -> Parts:
        """Return the answer in pieces; before the first word nobody sees another model take over.

        A model that is asked for consent is none of a stream's: nobody could be asked while it is open.
        """
        (first, *others), refusal = self._able(request.wants(streamed=True))
        if refusal is not None:
            raise HoldfastError(refusal)
        recovery = recover(None, _ONCE, effect="read", runtime=self._runtime)
        live = recovery.stream(_flow(first, after_first, self.name))
        for model in others if self._consent == "configured" else ():
            live.fallback(_flow(model, after_first, model.name), name=model.name)
        return live(request)

    def _able(self, needs: Needs) -> tuple[list[Model], Fault | None]:
        """Return who can, and why the first model is refused where another takes its place only with consent."""
        found = [(model, negotiate(needs, model.offers)) for model in self._models]
        if not any(one.agreed for _, one in found):
            # The first is the one that was wanted: what it lacks decides the code.
            raise HoldfastError(lacking(self.name, found[0][1].hard, needs, self.offers))
        faults = [None if one.agreed else lacking(model.name, one.hard, needs, model.offers) for model, one in found]
        refusal = faults[0] if self._consent == "ask" else None
        runtime = self._runtime or default_runtime()
        for fault in faults:
            if fault is not None and fault is not refusal:
                runtime.bus.emit(SuppressedError.of(fault, "passed over", at=runtime.clock.wall()))
        return [model for model, one in found if one.agreed], refusal


async def _refused(fault: Fault, request: Request) -> Reply:  # noqa: ARG001 - in the place of a model's `exchange`
    raise HoldfastError(fault)


def _asking(exchange: Callable[[Request], Awaitable[Reply]], name: str) -> Callable[[Request], Awaitable[Reply]]:
    """Return `exchange` under the name that events call it by."""

    async def asking(request: Request) -> Reply:
        return await exchange(request)

    asking.__qualname__ = name
    return asking


def _flow(model: Model, after_first: AfterFirst, name: str) -> Callable[[Request], AsyncIterator[Part]]:
    """Return the parts of an answer as a function of the request, under the name that events call it by."""

    async def flow(request: Request) -> AsyncIterator[Part]:
        async with model.stream(request, after_first=after_first) as parts:
            async for part in parts:
                yield part

    flow.__qualname__ = name
    return flow
