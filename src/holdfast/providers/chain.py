"""`ModelChain`: several models, one after the other. Models that cannot do what a request needs are skipped.

Invariant: a model gets only requests that it can answer. When all models failed, the first model's error is raised. It carries
the failures of the others.
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
    from holdfast.providers.messages import Part, Reply, Request
    from holdfast.providers.model import AfterFirst, Model, Parts
    from holdfast.runtime.runtime import Runtime

__all__ = ["ModelChain"]

_ONCE = Policy(attempts=1, timeout=None, deadline=None, patience=None, circuit=None)
"""Each model has its own attempts, limits and circuits."""


class ModelChain:
    """A model made of several models. With `consent="ask"` the runtime asks for consent before another model answers."""

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
    def models(self) -> tuple[Model, ...]:
        """Its models, in the order in which they are asked."""
        return self._models

    @property
    def offers(self) -> Offers:
        """What its first model can do. Each request is checked against every model."""
        return self._models[0].offers

    async def exchange(self, request: Request) -> Reply:
        """Return the complete answer of the first model that answers.

        Raises the first error if no model answers, and `HoldfastError` if no model can do what the request needs.
        """
        able, lacks = self._able(request.wants(streamed=False))
        ways = [(model.name, model.exchange) for model in able]
        if lacks is not None:
            ways.insert(0, (self._models[0].name, partial(_raise_fault, lacks)))
        (_, first), *others = ways
        # The chain itself retries nothing: each model has its own attempts, and two loops would multiply.
        recovered = recover(None, _ONCE, effect="read", runtime=self._runtime)(_renamed(first, self.name))
        for name, exchange in others:
            recovered.fallback(name=name, consent=self._consent)(exchange)
        return await recovered(request)

    def stream(self, request: Request, *, after_first: AfterFirst = "raise") -> Parts:
        """Return the answer in parts. If a model fails before the first word, another model takes over unnoticed.

        With `consent="ask"` only the first model streams, because nobody can give consent while a stream is open.
        """
        (first, *others), lacks = self._able(request.wants(streamed=True))
        if lacks is not None:
            raise HoldfastError(lacks)
        recovery = recover(None, _ONCE, effect="read", runtime=self._runtime)
        live = recovery.stream(_parts(first, after_first, self.name))
        for model in others if self._consent == "configured" else ():
            live.fallback(_parts(model, after_first, model.name), name=model.name)
        return live(request)

    def _able(self, needs: Needs) -> tuple[list[Model], Fault | None]:
        """Return the models that can answer. Also return the first model's fault if replacing that model needs consent."""
        found = [(model, negotiate(needs, model.offers)) for model in self._models]
        if not any(one.agreed for _, one in found):
            # The first model is the one the user wants, so what it lacks decides the error's code.
            raise HoldfastError(lacking(self.name, found[0][1].hard, needs, self.offers))
        faults = [None if one.agreed else lacking(model.name, one.hard, needs, model.offers) for model, one in found]
        lacks = faults[0] if self._consent == "ask" else None
        runtime = self._runtime or default_runtime()
        for fault in faults:
            # A model that is skipped without an event would look as if it had never been configured.
            if fault is not None and fault is not lacks:
                runtime.bus.emit(SuppressedError.of(fault, "the model was skipped", at=runtime.clock.wall()))
        return [model for model, one in found if one.agreed], lacks


async def _raise_fault(fault: Fault, request: Request) -> Reply:  # noqa: ARG001 - it stands in for a model's `exchange`
    raise HoldfastError(fault)


def _renamed(exchange: Callable[[Request], Awaitable[Reply]], name: str) -> Callable[[Request], Awaitable[Reply]]:
    """Return `exchange` under the name that events show."""

    async def renamed(request: Request) -> Reply:
        return await exchange(request)

    renamed.__qualname__ = name
    return renamed


def _parts(model: Model, after_first: AfterFirst, name: str) -> Callable[[Request], AsyncIterator[Part]]:
    """Return a function that streams the parts of an answer, under the name that events show."""

    async def parts_of(request: Request) -> AsyncIterator[Part]:
        async with model.stream(request, after_first=after_first) as parts:
            async for part in parts:
                yield part

    parts_of.__qualname__ = name
    return parts_of
