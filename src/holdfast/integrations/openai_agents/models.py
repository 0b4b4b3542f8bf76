"""Models and providers of models whose calls recover.

What comes back is a copy of the very class that was given, with methods of its own set on the instance: the SDK asks models
for their class.

Invariant: nothing changes on what was given; one attempt is one request, and the runner's own retries are off.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from agents import (
    AgentsException,
    Model,
    ModelProvider,
    ModelRetryAdvice,
    ModelSettings,
    OpenAIResponsesWSModel,
    ProgrammaticToolCallingTool,
)
from openai import AsyncOpenAI

from holdfast import options
from holdfast.faults import InvalidError
from holdfast.integrations.clients.attentive import attentive
from holdfast.integrations.clients.openai import OPENAI
from holdfast.integrations.openai_agents.events import Events, PassingError
from holdfast.integrations.recovery_warning import RECOVERS, warn, warn_of_transport
from holdfast.policies.target import Target
from holdfast.runtime.credentials import credential_of
from holdfast.runtime.recover import recover

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from agents import ModelRetryAdviceRequest

    from holdfast.policies import Effect, Policy
    from holdfast.runtime.recover import Recovery
    from holdfast.runtime.runtime import Runtime
    from holdfast.runtime.stream import StreamOf

__all__ = ["recovering"]

M = TypeVar("M", bound=Model | ModelProvider)
AfterFirst = Literal["raise", "restart"]


def recovering(
    model: M,
    *,
    policy: Policy | None = None,
    name: str | None = None,
    fallbacks: Sequence[Model] = (),
    after_first: AfterFirst = "raise",
    runtime: Runtime | None = None,
) -> M:
    """Return a model like `model` whose calls recover, or a provider like this one whose models do.

    `fallbacks` are models to ask, in order, when this one has failed for good. A stream that fails after its first content
    raises `StreamCutError`; with `after_first="restart"` the answer begins again, with another `response.created`. `name` is
    what circuits and events call the provider (by default "openai", "xai", or the host the client talks to).
    """
    options.one_of("recovering.after_first", after_first, ("raise", "restart"))
    if name is not None and not name:
        raise InvalidError.at("recovering.name", "a name such as 'openai', or None", name)
    if not isinstance(model, Model | ModelProvider):
        raise InvalidError.at("recovering.model", "a Model or a ModelProvider of the Agents SDK", model)
    if RECOVERS in vars(model):
        raise InvalidError.saying("recovering.model", "a model or provider that does not recover yet", "one that does")
    given: Any = model

    def made(one: Model) -> Way:
        return Way(one, policy=policy, name=name, after_first=after_first, runtime=runtime)

    recovered: M
    if isinstance(given, ModelProvider):
        others = [made(other) for other in fallbacks]
        recovered = _provider(given, lambda one: _model(one, [made(one), *others]))
    else:
        recovered = _model(given, [made(one) for one in (given, *fallbacks)])
    return recovered


def _provider(provider: Any, recovered: Any) -> Any:
    clone = copy.copy(provider)

    def get_model(model_name: str | None) -> Model:
        model = provider.get_model(model_name)
        found: Model = model if RECOVERS in vars(model) else recovered(model)
        return found

    clone.get_model = get_model
    clone.aclose = provider.aclose
    setattr(clone, RECOVERS, True)
    return clone


def _model(model: Any, ways: Sequence[Way]) -> Any:
    clone = copy.copy(ways[0].model)
    calls = {effect: Calls(ways, effect) for effect in (None, "unsafe")}
    clone.get_response = _get_response(calls)
    clone.stream_response = _stream_response(calls)
    clone.get_retry_advice = _no_more
    clone.close = model.close
    clone._cleanup_on_run_end = model._cleanup_on_run_end  # noqa: SLF001 - what the original holds, it lets go
    setattr(clone, RECOVERS, True)
    return clone


class Way:
    """One model that can answer, and how it is called."""

    def __init__(
        self, model: Any, *, policy: Policy | None, name: str | None, after_first: AfterFirst, runtime: Runtime | None
    ) -> None:
        if not isinstance(model, Model):
            raise InvalidError.at("recovering.fallbacks", "models of the Agents SDK", model)
        if isinstance(model, OpenAIResponsesWSModel):
            raise InvalidError.saying("recovering.model", "a model that speaks HTTP", "one on a web socket")
        client = getattr(model, "_client", None)
        self.model: Any = model
        self.after_first = after_first
        self._policy, self._runtime = policy, runtime
        credential = ""
        if isinstance(client, AsyncOpenAI):
            warn_of_transport(getattr(client._client, "_transport", None), above=2)  # noqa: SLF001 - nowhere else to see it
            host = client.base_url.host
            name = name or OPENAI.names.get(host, host)
            credential = credential_of(client)
            self.model = copy.copy(model)
            self.model._client = attentive(client, OPENAI)  # noqa: SLF001 - the SDK's models have no other door
        called = getattr(model, "model", "")
        self.target = Target(
            provider=name or type(model).__name__,
            model=called if isinstance(called, str) else "",
            credential=credential,
        )

    def answering(self, effect: Effect | None) -> Any:
        """Return `get_response` with recovery around it."""
        model = self.model

        async def get_response(*args: Any, **kwargs: Any) -> Any:
            try:
                return await model.get_response(*args, **kwargs)
            except AgentsException as error:
                raise PassingError(error) from error

        return self._recovery(effect)(get_response)

    def streaming(self, effect: Effect | None) -> StreamOf[..., Any]:
        """Return `stream_response` as a stream that recovers."""
        model = self.model

        def stream_response(passing: list[AgentsException], *args: Any, **kwargs: Any) -> Events:
            return Events(model.stream_response(*args, **kwargs), passing)

        return self._recovery(effect).stream(stream_response, after_first=self.after_first)

    def _recovery(self, effect: Effect | None) -> Recovery:
        return recover(self.target, self._policy, effect=effect, runtime=self._runtime)


class Calls:
    """Both calls of a model, with what is asked instead behind them."""

    def __init__(self, ways: Sequence[Way], effect: Effect | None) -> None:
        first, *others = ways
        self.answer = first.answering(effect)
        self.live = first.streaming(effect)
        for other in others:
            self.answer.fallback(name=str(other.target))(other.answering(effect))
            self.live.fallback(other.streaming(effect), name=str(other.target))


def _get_response(calls: dict[Any, Calls]) -> Any:
    async def get_response(*args: Any, **kwargs: Any) -> Any:
        _warn_of_runner(args, kwargs)
        try:
            return await calls[_effect(args, kwargs)].answer(*args, **kwargs)
        except PassingError as passing:
            error = passing.error
        try:
            raise error
        finally:
            # An exception in a frame that it passes through keeps itself alive.
            del error

    return get_response


def _stream_response(calls: dict[Any, Calls]) -> Any:
    async def stream_response(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        _warn_of_runner(args, kwargs)
        passing: list[AgentsException] = []
        try:
            async with calls[_effect(args, kwargs)].live(passing, *args, **kwargs) as stream:
                async for event in stream:
                    yield event
        except PassingError as before:
            passing.append(before.error)
        if passing:
            raise passing.pop()

    return stream_response


def _effect(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Effect | None:
    """Whether asking twice does harm: the provider adds to a conversation it keeps, or runs programs that call tools."""
    tools = kwargs["tools"] if "tools" in kwargs else args[3]
    programs = any(isinstance(tool, ProgrammaticToolCallingTool) for tool in tools)
    return "unsafe" if programs or kwargs.get("conversation_id") is not None else None


def _no_more(request: ModelRetryAdviceRequest) -> ModelRetryAdvice:  # noqa: ARG001 - the SDK's signature
    """Tell the runner that a call that failed is not to be made again: what could be tried was tried."""
    return ModelRetryAdvice(suggested=False, replay_safety="unsafe", reason="holdfast has tried what could be tried")


def _warn_of_runner(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    settings = kwargs["model_settings"] if "model_settings" in kwargs else args[2]
    retry = settings.retry if isinstance(settings, ModelSettings) else None
    if retry is not None and retry.max_retries:
        warn(
            f"retries are the policy's here, so ModelSettings(retry=…) with max_retries={retry.max_retries} has no effect "
            "(or multiplies ours, where its policy approves unsafe replays): give `recovering` a policy with attempts=…"
        )
