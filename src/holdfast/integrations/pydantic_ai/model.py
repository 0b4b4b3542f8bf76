"""`RecoveringModel`: a pydantic-ai model whose requests recover.

Invariant: one attempt is one request. The caller gets the exception that pydantic-ai raised.
"""

from __future__ import annotations

import sys
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, Literal

from pydantic_ai.models import fallback
from pydantic_ai.models.fallback import FallbackModel
from pydantic_ai.models.wrapper import WrapperModel

from holdfast import options
from holdfast.faults import InvalidError
from holdfast.integrations.calls import Calls, check_after_first
from holdfast.integrations.pydantic_ai.exceptions import PASSING
from holdfast.integrations.pydantic_ai.streams import check_complete, open_stream
from holdfast.integrations.recovery_warnings import warn, warn_of_transport
from holdfast.policies.target import Target, provider_name
from holdfast.runtime.secrets import credential_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterator

    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import KnownModelName, Model, ModelRequestParameters, StreamedResponse
    from pydantic_ai.settings import ModelSettings
    from pydantic_ai.tools import RunContext

    from holdfast.policies import Policy
    from holdfast.policies.decide import AfterFirst
    from holdfast.runtime.runtime import Runtime

__all__ = ["RecoveringModel"]

_FALLBACK_FILE = fallback.__file__
_NEAR = 16
"""So many frames up, a caller of a model is looked for. Wrappers and context managers stand between the two."""
_READ_FROM_STREAMS = frozenset({"anthropic"})
"""Providers for which pydantic-ai may read a whole answer from a stream. It would return a cut stream as a whole answer."""


class RecoveringModel(WrapperModel):
    """A model like `wrapped` whose requests recover.

        agent = Agent(RecoveringModel("anthropic:claude-haiku-4-5"))

    The retries of its SDK are off. `name` is the name of the provider in circuits and events; by default the model gives it.
    A stream recovers before its first content. A failure after the first content raises `StreamCutError` with the events
    that arrived. With `after_first="restart"` the request is made again instead, so that a run whose tools ran already is
    not lost: a `stream-resumed` event is emitted, the events begin again with part 0, and the response holds the new answer
    only. Every other failure raises pydantic-ai's own exception, or `CircuitOpenError`, `DeadlineError` or
    `BudgetError` where no request was made. The constructor raises `InvalidError` for a model that recovers already.
    """

    @options.suggests
    def __init__(
        self,
        wrapped: Model | KnownModelName,
        *,
        policy: Policy | None = None,
        name: str | None = None,
        after_first: Literal["raise", "restart"] = "raise",
        runtime: Runtime | None = None,
    ) -> None:
        check_after_first("RecoveringModel", after_first, ("raise", "restart"), None)
        if isinstance(wrapped, RecoveringModel):
            raise InvalidError.saying(
                "RecoveringModel.wrapped", "a model that does not recover yet", "a model that recovers"
            )
        if name is not None and not name:
            raise InvalidError.at("RecoveringModel.name", "a name such as 'claude', or None", name)
        super().__init__(wrapped)
        self._retries = _Retries(self.wrapped)
        self._after_first: AfterFirst = after_first
        target = Target(
            provider=name or provider_name(self.wrapped.system, self.wrapped.base_url or ""),
            model=self.wrapped.model_name,
            credential=credential_of(getattr(self.wrapped, "client", None)),
        )
        self._before_fallback: Calls | None = None
        self._calls = Calls(target, policy, passing=PASSING, usage=_usage_of, through_client=True, runtime=runtime)

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Make a request, with retries, and return the response. pydantic-ai calls this."""
        plan = self._calls.plan
        # While recovery is off, the model's own retries are all there is.
        settings = model_settings if plan.off else self._retries.off(model_settings)

        async def attempt(*_: Any) -> ModelResponse:
            answer = await self.wrapped.request(messages, settings, model_request_parameters)
            if not plan.off:
                check_complete(answer, _READ_FROM_STREAMS)
            return answer

        asked = _request_of(messages, settings, model_request_parameters)
        response: ModelResponse = await self._calls_now().acall(attempt, *asked)
        return response

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """Open a stream. A failure before its first content is retried. pydantic-ai calls this."""
        plan = self._calls.plan
        settings = model_settings if plan.off else self._retries.off(model_settings)

        def request() -> Any:
            return self.wrapped.request_stream(messages, settings, model_request_parameters, run_context)

        # While recovery is off, the response must be pydantic-ai's own, with nothing replaced on it.
        if plan.off:
            async with AsyncExitStack() as opened:
                # Observed until it is open: what fails later may be the consumer's.
                yield await self._calls.acall(lambda: opened.enter_async_context(request()))
            return
        asked = _request_of(messages, settings, model_request_parameters)
        async with open_stream(self._calls_now(), request, asked, self._after_first) as response:
            yield response

    def _calls_now(self) -> Calls:
        """Return how the call that begins now recovers: sooner given up, if another model of a `FallbackModel` follows."""
        if not _is_before_fallback(self):
            return self._calls
        if self._before_fallback is None:
            self._before_fallback = self._calls.before_fallback()
        return self._before_fallback


def _request_of(messages: Any, settings: Any, parameters: Any) -> tuple[Any, dict[str, Any]]:
    """Return what the model is asked, and the setting that limits its answer."""
    tools = [
        [tool.name, tool.description, tool.parameters_json_schema]
        for tool in (*parameters.function_tools, *parameters.output_tools)
    ]
    most = (settings or {}).get("max_tokens")
    return [messages, {"tools": tools}], {} if most is None else {"max_tokens": most}


def _is_before_fallback(model: Model) -> bool:
    """Whether a `FallbackModel` calls this model and has another one after it."""
    # pydantic-ai does not say who calls a model. But coroutines that await each other share one stack, so the caller is there.
    frame = sys._getframe(2)  # noqa: SLF001 - Python has no other name for it
    for _ in range(_NEAR):
        if frame.f_code.co_filename == _FALLBACK_FILE and isinstance(
            caller := frame.f_locals.get("self"), FallbackModel
        ):
            return all(inner is not model for inner in _wrapped(caller.models[-1]))
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False


def _wrapped(model: Any) -> Iterator[Any]:
    """Yield a model, and the models that it wraps."""
    while model is not None:
        yield model
        model = vars(model).get("wrapped")


def _usage_of(answer: Any) -> Any:
    """Return the usage that a response reports, with Anthropic's names, because its kinds of tokens do not overlap."""
    # For a stream the answer is the stream's source, which holds the response.
    response = getattr(answer, "response", answer)
    usage = response.usage
    # pydantic-ai includes cached tokens in the input tokens, Anthropic does not. They have different prices.
    cached, written = usage.cache_read_tokens, usage.cache_write_tokens
    return {
        "model": response.model_name,
        "usage": {
            "input_tokens": max(0, usage.input_tokens - cached - written),
            "output_tokens": usage.output_tokens,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": written,
        },
    }


_SETTING = "max_retries"


class _Retries:
    """The retries below a model. A setting of each request turns the SDK's retries off; a warning reports other retries."""

    def __init__(self, model: Model) -> None:
        leaves = list(_leaves(model, 8))
        # A model that does not support the setting would warn about it with every request.
        self._supported = all(_SETTING not in leaf.unsupported_settings for leaf in leaves)
        self._warned = False
        for leaf in leaves:
            _warn_of_client(getattr(leaf, "client", None), supported=self._supported)

    def off(self, settings: ModelSettings | None) -> ModelSettings | None:
        """Return the settings with the SDK's retries off."""
        if settings and settings.get(_SETTING) and not self._warned:
            self._warned = True
            warn(
                "the policy decides about retries, so max_retries stays 0: give RecoveringModel a policy with attempts=…"
            )
        return {**(settings or {}), "max_retries": 0} if self._supported else settings


def _warn_of_client(client: Any, *, supported: bool) -> None:
    retries = getattr(client, "max_retries", 0)
    if not supported and isinstance(retries, int) and retries:
        warn(f"the model's client retries by itself (max_retries={retries}): give it max_retries=0")
    transport = getattr(getattr(client, "_client", None), "_transport", None)
    if type(transport).__name__.endswith("TenacityTransport"):
        warn("the client's transport retries by itself, so attempts multiply: remove one of the two")
    warn_of_transport(transport)


def _leaves(model: Any, depth: int) -> Iterator[Any]:
    """Yield the models that make requests, also those inside wrappers and fallbacks."""
    inner = [vars(model)["wrapped"]] if "wrapped" in vars(model) else vars(model).get("models", [])
    if not inner or not depth:
        yield model
        return
    for one in inner:
        yield from _leaves(one, depth - 1)
