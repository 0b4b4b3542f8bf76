"""A model as our agents use it: what it can do is checked before a request, and each exchange recovers.

Invariant: a request that the model is known not to support is never sent. One attempt is one request.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, TypedDict

from holdfast.events import SuppressedError
from holdfast.faults import HoldfastError, InvalidError
from holdfast.policies.models.capabilities import able, lacking, negotiate
from holdfast.policies.target import Target
from holdfast.providers.messages import Reply
from holdfast.providers.offers import offers_of
from holdfast.runtime.recover import recover
from holdfast.runtime.runtime import default_runtime
from holdfast.runtime.secrets import credential_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Sequence
    from contextlib import AbstractAsyncContextManager

    from holdfast.policies import Policy
    from holdfast.policies.models.capabilities import Needs, Offers
    from holdfast.policies.models.usage import Usage
    from holdfast.providers.messages import Part, Request
    from holdfast.runtime.runtime import Runtime

AfterFirst: TypeAlias = Literal["raise", "restart"]
"""What happens if a stream is cut after its first words. No mode continues the answer: a second answer has other words."""

Parts: TypeAlias = "AbstractAsyncContextManager[AsyncIterator[Part]]"


class Model(Protocol):
    """What an agent needs of a model, and what a provider from another package must implement.

    An agent compares each request with `offers` before it sends it. A model that does that itself, as ours do, says so with an attribute
    `negotiates = True`: one that stands for several models, of which `offers` describes the first.
    """

    @property
    def name(self) -> str:
        """Its name in messages and configuration: `anthropic/claude-haiku-4-5`."""
        ...

    @property
    def offers(self) -> Offers:
        """What it can do."""
        ...

    async def exchange(self, request: Request) -> Reply:
        """Return the complete answer, or raise the SDK's exception with its fault attached."""
        ...

    def stream(self, request: Request, *, after_first: AfterFirst = "raise") -> Parts:
        """Return the answer in parts: `async with model.stream(request) as parts`. The last part is the complete reply."""
        ...


class Wire(Protocol):
    """One provider's protocol over its SDK. One call is one request."""

    async def exchange(self, model: str, request: Request) -> Reply:
        """Send one request and read the answer."""
        ...

    def parts(self, model: str, request: Request) -> AsyncGenerator[Part, None]:
        """Send one request and yield the answer as it arrives. The last part is the reply; a cut stream raises instead."""
        ...


class ModelOptions(TypedDict, total=False):
    """The options of a model, whichever its provider is."""

    provider: str
    """Its name in circuits and events."""
    credential: str | None
    """The name of the key in circuits and events; None for a fingerprint of the key."""
    offers: Offers | None
    """What the model can do. Give it if our table does not know the model, or is wrong."""
    policy: Policy | None
    runtime: Runtime | None


class RecoveringModel:
    """One model of one provider with one key. The provider, the model and the key each have a circuit."""

    negotiates = True

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
        # An exchange changes nothing in the world, so a retry is always safe. It costs tokens only.
        self._recovery = recover(target, policy, effect="read", runtime=runtime)

    @classmethod
    def over(cls, wire: Wire, client: Any, model: str, provider: str, options: ModelOptions) -> RecoveringModel:
        """Return the model that uses the protocol `wire`. Its key is the client's key."""
        credential = options.get("credential")
        target = Target(
            provider=options.get("provider", provider),
            model=model,
            credential=credential_of(client) if credential is None else credential,
        )
        return cls(
            wire,
            target,
            offers=options.get("offers"),
            policy=options.get("policy"),
            runtime=options.get("runtime"),
        )

    async def exchange(self, request: Request) -> Reply:
        """Return the complete answer, with retries."""
        _check(self, request.wants(streamed=False), self._runtime)
        return await self._recovery.call(self._wire.exchange, self._model, request)

    def stream(self, request: Request, *, after_first: AfterFirst = "raise") -> Parts:
        """Return the answer in parts. A failure before the first part is retried."""
        _check(self, request.wants(streamed=True), self._runtime)
        return self._recovery.stream(self._flow, after_first=after_first)(request)

    def _flow(self, request: Request) -> _Metered:
        return _Metered(self._wire.parts(self._model, request))


class _Metered:
    """The parts of one answer. After the last part, `usage` and `model` are set, so that the budget is charged."""

    usage: Usage | None = None
    model = ""

    def __init__(self, parts: AsyncGenerator[Part, None]) -> None:
        self._parts = parts

    def __aiter__(self) -> _Metered:
        return self

    async def __anext__(self) -> Part:
        part = await anext(self._parts)
        # The stream machine reads these when the source has ended, as it does for any source.
        if isinstance(part, Reply):
            self.usage, self.model = part.usage, part.model
        return part

    async def aclose(self) -> None:
        await self._parts.aclose()


def check_offers(model: Model, request: Request, runtime: Runtime | None, *, streamed: bool = False) -> None:
    """Do, before a request is sent to a model of any kind, what those of ours do by themselves: raise if it cannot do what is needed."""
    if not getattr(model, "negotiates", False):
        _check(model, request.wants(streamed=streamed), runtime)


def _check(model: Model, needs: Needs, runtime: Runtime | None) -> None:
    """Raise if the model cannot do what is needed; emit an event if it lacks something that is only preferred (N2-18)."""
    found = negotiate(needs, model.offers)
    if not found.agreed:
        raise HoldfastError(lacking(model.name, found.hard, needs, model.offers))
    # A preference that is not met must not fail the request. The event explains, for example, why nothing is cached.
    if found.preferred:
        using = runtime or default_runtime()
        fault = lacking(model.name, found.preferred, needs, model.offers)
        using.bus.emit(SuppressedError.of(fault, "the model lacks a preferred capability", at=using.clock.wall()))


def choose(name: str, models: Sequence[Model], needs: Needs, *, runtime: Runtime | None = None) -> Model:
    """Return the configured model of that name.

    Raises `InvalidError` if no model has the name, and `HoldfastError` if the model cannot do what is needed. The error
    names the models that can. The function chooses none of them, because that is the user's decision.
    """
    named = {model.name: model for model in models}
    model = named.get(name)
    if model is None:
        # Names are long and alike; a hint saves the user a look into the configuration.
        near = get_close_matches(name, named) or sorted(named)
        raise InvalidError.at("model", f"a configured model ({', '.join(near) or 'there is none'})", name)
    found = negotiate(needs, model.offers)
    if not found.agreed:
        instead = able(needs, {other: named[other].offers for other in named})
        raise HoldfastError(lacking(name, found.hard, needs, model.offers, instead=instead))
    _check(model, needs, runtime)
    return model
