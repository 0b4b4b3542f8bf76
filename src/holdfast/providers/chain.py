"""`ModelChain`: several models, one after the other. Models that cannot do what a request needs are skipped.

Before another model answers, the prompt cache of the first one is weighed (`prompt_cache`): a short wait may be cheaper.

Invariant: a model gets only requests that it can answer. When all models failed, the first model's error is raised. It carries
the failures of the others.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast import options
from holdfast.events import SuppressedError
from holdfast.faults import HoldfastError, InvalidError
from holdfast.policies import Policy
from holdfast.policies.models.capabilities import lacking, negotiate
from holdfast.policies.models.prices import LIST_PRICES
from holdfast.policies.models.prompt_cache import USD_PER_SECOND
from holdfast.providers.messages import Reply
from holdfast.providers.prompt_cache import WarmPrompts, Weighing
from holdfast.providers.standings import OneRequest, Standings
from holdfast.runtime.fallbacks.fallback import Chain, drive_chain_async
from holdfast.runtime.operation.drivers import call_plainly_async, drive_async
from holdfast.runtime.operation.operation import Operation
from holdfast.runtime.operation.plan import Plan
from holdfast.runtime.runtime import default_runtime
from holdfast.runtime.streams.stream import StreamOf

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from holdfast.faults import Fault
    from holdfast.policies import Consent
    from holdfast.policies.models.capabilities import Offers
    from holdfast.policies.models.prices import Prices
    from holdfast.providers.messages import Part, Request
    from holdfast.providers.model import AfterFirst, Model, Parts
    from holdfast.runtime.runtime import Runtime

_ONCE = Policy(attempts=1, timeout=None, deadline=None, patience=None, circuit=None)
"""Each model has its own attempts, limits and circuits."""


class ModelChain:
    """A model made of several models. With `consent="ask"` the runtime asks for consent before another model answers.

    While the first model has a conversation in its prompt cache, another model would read all of it at its full price. If the
    first one says how long it cannot answer, the chain waits for it where that is cheaper. `usd_per_second` is what a second
    of waiting is worth; None never waits. Without the prices of both models nothing is weighed. The events `Retry` and
    `Fallback` say what was chosen, and `Fallback.usd` what the prompt costs more.

    A model that answered in place of another one stays: the one that failed is asked first again after the time that its failure named, or
    after 30 s, which double each time it fails again (10 minutes at most). With `consent="ask"` every request begins with the first model.

        chain = ModelChain([anthropic_model("claude-opus-5", claude), openai_model("gpt-5", client)], usd_per_second=0.002)
    """

    negotiates = True

    @options.suggests
    def __init__(
        self,
        models: Sequence[Model],
        *,
        consent: Consent = "configured",
        usd_per_second: float | None = USD_PER_SECOND,
        prices: Prices = LIST_PRICES,
        runtime: Runtime | None = None,
    ) -> None:
        if not models:
            raise InvalidError.saying("chain.models", "at least one model", "none")
        options.one_of("chain.consent", consent, ("configured", "ask"))
        options.at_least("chain.usd_per_second", usd_per_second, 0, optional=True)
        self._models = tuple(models)
        self._consent: Consent = consent
        self._worth = usd_per_second
        self._prices = prices
        self._runtime = runtime
        self._warm = WarmPrompts()
        self._standings = Standings()
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
        able, lacks = self._able(request, streamed=False)
        one = OneRequest(self._standings, self._using)
        ways = [(model.name, self._exchanged(model, one)) for model in able]
        if lacks is not None:
            ways.insert(0, (self._models[0].name, partial(_raise_fault, lacks)))
        (_, first), *others = ways
        first = _renamed(first, self.name)
        chain = Chain(first)
        for name, exchange in others:
            chain.fallback(exchange, name=name, consent=self._consent)
        plan = self._plan(first)
        if plan.off:
            plain: Reply = await call_plainly_async(plan, first, (request,))
            return plain
        op = Operation(plan, self._weighing(able, request))
        call = drive_async(op, first, (request,), {})
        answer: Reply = await (drive_chain_async(op, chain, call, (request,), {}) if chain.configured else call)
        return answer

    def stream(self, request: Request, *, after_first: AfterFirst = "raise") -> Parts:
        """Return the answer in parts. If a model fails before the first word, another model takes over unnoticed.

        With `consent="ask"` only the first model streams, because nobody can give consent while a stream is open.
        """
        able, lacks = self._able(request, streamed=True)
        if lacks is not None:
            raise HoldfastError(lacks)
        first, *others = able if self._consent == "configured" else able[:1]
        one = OneRequest(self._standings, self._using)
        parts = self._parts(first, after_first, self.name, one)
        live: StreamOf[[Request], Part] = StreamOf(
            self._plan(parts), parts, adapter=self._weighing([first, *others], request)
        )
        for model in others:
            live.fallback(self._parts(model, after_first, model.name, one), name=model.name)
        return live(request)

    def _plan(self, fn: Callable[..., Any]) -> Plan:
        # The chain itself retries nothing: each model has its own attempts, and two loops would multiply.
        return Plan(None, _ONCE, effect="read", runtime=self._runtime).copy_for(fn).named(fn)

    def _weighing(self, models: list[Model], request: Request) -> Weighing | None:
        """Return what weighs the first model's cache for this request; None: there is nothing to weigh."""
        runtime = self._using
        warm = self._warm.find(models[0], request, runtime.clock.monotonic())
        if warm is None or self._worth is None or len(models) == 1:
            return None
        here, there = (self._prices.price(model.name.rpartition("/")[2]) for model in models[:2])
        if here is None or there is None:
            return None
        writes = request.needs.level("promptCaching") != "absent"
        return Weighing(warm, here=here, there=there, writes=writes, usd_per_second=self._worth, runtime=runtime)

    @property
    def _using(self) -> Runtime:
        return self._runtime or default_runtime()

    def _exchanged(self, model: Model, one: OneRequest) -> Callable[[Request], Awaitable[Reply]]:
        """Return a model's `exchange` that remembers which prompts are in its cache."""

        async def exchange(request: Request) -> Reply:
            try:
                reply = await model.exchange(request)
            except Exception as error:
                one.failed(model, error)
                raise
            one.answered(model)
            self._warm.remember(model, request, reply, self._using.clock.monotonic())
            return reply

        return exchange

    def _parts(
        self, model: Model, after_first: AfterFirst, name: str, one: OneRequest
    ) -> Callable[[Request], AsyncIterator[Part]]:
        """Return a function that streams the parts of an answer, under the name that events show."""

        async def parts_of(request: Request) -> AsyncIterator[Part]:
            try:
                async with model.stream(request, after_first=after_first) as parts:
                    async for part in parts:
                        if isinstance(part, Reply):
                            one.answered(model)
                            self._warm.remember(model, request, part, self._using.clock.monotonic())
                        yield part
            except Exception as error:
                one.failed(model, error)
                raise

        parts_of.__qualname__ = name
        return parts_of

    def _able(self, request: Request, *, streamed: bool) -> tuple[list[Model], Fault | None]:
        """Return the models that can answer, in the order in which they are asked. Also return the first model's fault if replacing that model needs consent."""
        needs = request.wants(streamed=streamed)
        found = [(model, negotiate(needs, model.offers)) for model in self._models]
        if not any(one.agreed for _, one in found):
            # The first model is the one the user wants, so what it lacks decides the error's code.
            raise HoldfastError(lacking(self.name, found[0][1].hard, needs, self.offers))
        faults = [None if one.agreed else lacking(model.name, one.hard, needs, model.offers) for model, one in found]
        lacks = faults[0] if self._consent == "ask" else None
        runtime = self._using
        for fault in faults:
            # A model that is skipped without an event would look as if it had never been configured.
            if fault is not None and fault is not lacks:
                runtime.bus.emit(SuppressedError.of(fault, "the model was skipped", at=runtime.clock.wall()))
        able = [model for model, one in found if one.agreed]
        if self._consent == "configured":
            now = runtime.clock.monotonic()
            able = self._standings.ordered(able, now, lambda model: self._warm.find(model, request, now) is not None)
        return able, lacks


async def _raise_fault(fault: Fault, request: Request) -> Reply:  # noqa: ARG001 - it stands in for a model's `exchange`
    raise HoldfastError(fault)


def _renamed(exchange: Callable[[Request], Awaitable[Reply]], name: str) -> Callable[[Request], Awaitable[Reply]]:
    """Return `exchange` under the name that events show."""

    async def renamed(request: Request) -> Reply:
        return await exchange(request)

    renamed.__qualname__ = name
    return renamed
