"""A model as our agents see it: it is asked what it can do, and each exchange recovers.

Invariant: nothing is sent that the model is known not to do, and one attempt is one request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from holdfast.events import SuppressedError
from holdfast.faults import HoldfastError
from holdfast.policies.models.capabilities import lacking, negotiate
from holdfast.providers.known import offers_of
from holdfast.providers.words import Reply
from holdfast.runtime.recover import recover
from holdfast.runtime.runtime import default_runtime

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator
    from contextlib import AbstractAsyncContextManager

    from holdfast.policies import Policy
    from holdfast.policies.models.capabilities import Needs, Offers
    from holdfast.policies.models.usage import Usage
    from holdfast.policies.target import Target
    from holdfast.providers.words import Part, Request
    from holdfast.runtime.runtime import Runtime

__all__ = ["AfterFirst", "Model", "Parts", "RecoveringModel", "Wire", "check"]

AfterFirst: TypeAlias = Literal["raise", "restart"]
"""What a stream that is cut after its first words does. Going on where it broke off is no mode: a model says it anew."""

Parts: TypeAlias = "AbstractAsyncContextManager[AsyncIterator[Part]]"


class Model(Protocol):
    """What an agent needs of a model; what a provider of another package must offer."""

    @property
    def name(self) -> str:
        """What people call it: `anthropic/claude-haiku-4-5`."""
        ...

    @property
    def offers(self) -> Offers:
        """What it can do."""
        ...

    async def exchange(self, request: Request) -> Reply:
        """Return the whole answer, or raise what the SDK raises, with its fault on it."""
        ...

    def stream(self, request: Request, *, after_first: AfterFirst = "raise") -> Parts:
        """Return the answer in pieces: `async with model.stream(request) as parts`. The last part is the whole reply."""
        ...


class Wire(Protocol):
    """One provider's protocol over its SDK: one call is one request."""

    async def exchange(self, model: str, request: Request) -> Reply:
        """Send one request and read the answer."""
        ...

    def parts(self, model: str, request: Request) -> AsyncGenerator[Part, None]:
        """Send one request and read the answer as it comes; its last part is the reply, or it raises."""
        ...


class RecoveringModel:
    """One model of one provider by one key. Its circuits are the provider's, the model's and the key's."""

    def __init__(
        self,
        wire: Wire,
        target: Target,
        *,
        offers: Offers | None = None,
        policy: Policy | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        self.name = str(target)
        self.offers = offers_of(target.model) if offers is None else offers
        self._wire = wire
        self._model = target.model
        self._runtime = runtime
        # An exchange changes nothing in the world: asking again costs money, not safety.
        self._recovery = recover(target, policy, effect="read", runtime=runtime)

    async def exchange(self, request: Request) -> Reply:
        check(self, request.wants(streamed=False), self._runtime)
        return await self._recovery.call(self._wire.exchange, self._model, request)

    def stream(self, request: Request, *, after_first: AfterFirst = "raise") -> Parts:
        check(self, request.wants(streamed=True), self._runtime)
        return self._recovery.stream(self._flow, after_first=after_first)(request)

    def _flow(self, request: Request) -> _Metered:
        return _Metered(self._wire.parts(self._model, request))


class _Metered:
    """The parts of one answer; where they have ended it tells what they used, as a whole answer would."""

    usage: Usage | None = None
    model = ""

    def __init__(self, parts: AsyncGenerator[Part, None]) -> None:
        self._parts = parts

    def __aiter__(self) -> _Metered:
        return self

    async def __anext__(self) -> Part:
        part = await anext(self._parts)
        if isinstance(part, Reply):
            self.usage, self.model = part.usage, part.model
        return part

    async def aclose(self) -> None:
        await self._parts.aclose()


def check(model: Model, needs: Needs, runtime: Runtime | None) -> None:
    """Refuse what a model is known not to do, before anything is sent; tell of what it does without (N2-18)."""
    found = negotiate(needs, model.offers)
    if not found.agreed:
        raise HoldfastError(lacking(model.name, found.hard, needs, model.offers))
    if found.preferred:
        using = runtime or default_runtime()
        fault = lacking(model.name, found.preferred, needs, model.offers)
        using.bus.emit(SuppressedError.of(fault, "preferred, and done without", at=using.clock.wall()))
