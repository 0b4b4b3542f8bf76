"""`RecoveringModel`: a pydantic-ai model whose requests recover.

Invariant: one attempt is one request; what surfaces is the exception pydantic-ai raised.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from pydantic_ai.models.wrapper import WrapperModel

from holdfast.faults import InvalidError
from holdfast.integrations.passing import Calls
from holdfast.integrations.pydantic_ai.quiet import Quiet
from holdfast.integrations.pydantic_ai.signals import PASSING
from holdfast.integrations.pydantic_ai.streams import check_whole, flowing
from holdfast.policies.target import Target
from holdfast.runtime.credentials import credential_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import KnownModelName, Model, ModelRequestParameters, StreamedResponse
    from pydantic_ai.settings import ModelSettings
    from pydantic_ai.tools import RunContext

    from holdfast.policies import Policy
    from holdfast.runtime.runtime import Runtime

__all__ = ["RecoveringModel"]

_STREAMED_BEHIND = frozenset({"anthropic"})
"""Providers whose whole answers pydantic-ai may put together from a stream, and take one that was cut for whole."""


class RecoveringModel(WrapperModel):
    """A model like `wrapped` whose requests recover: `Agent(RecoveringModel("anthropic:claude-haiku-4-5"))`.

    The retries of its SDK are off. `name` is what circuits and events call the provider, by default what the model calls
    it. A stream recovers before its first content; after it a failure is a `StreamCutError` with what arrived.
    """

    def __init__(
        self,
        wrapped: Model | KnownModelName,
        *,
        policy: Policy | None = None,
        name: str | None = None,
        runtime: Runtime | None = None,
    ) -> None:
        if isinstance(wrapped, RecoveringModel):
            raise InvalidError.saying("RecoveringModel.wrapped", "a model that does not recover yet", "one that does")
        if name is not None and not name:
            raise InvalidError.at("RecoveringModel.name", "a name such as 'claude', or None", name)
        super().__init__(wrapped)
        self._quiet = Quiet(self.wrapped)
        target = Target(
            provider=name or self.wrapped.system,
            model=self.wrapped.model_name,
            credential=credential_of(getattr(self.wrapped, "client", None)),
        )
        self._calls = Calls(target, policy, passing=PASSING, told=used_by, runtime=runtime)

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        """Make a request, and what else it takes."""
        settings = self._quiet.settings(model_settings)

        async def attempt() -> ModelResponse:
            answer = await self.wrapped.request(messages, settings, model_request_parameters)
            check_whole(answer, _STREAMED_BEHIND)
            return answer

        response: ModelResponse = await self._calls.acall(attempt)
        return response

    @asynccontextmanager
    async def request_stream(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
        run_context: RunContext[Any] | None = None,
    ) -> AsyncGenerator[StreamedResponse]:
        """The same for a stream."""
        settings = self._quiet.settings(model_settings)

        def opened() -> Any:
            return self.wrapped.request_stream(messages, settings, model_request_parameters, run_context)

        if self._calls.plan.off:
            async with opened() as response:
                yield response
            return
        async with flowing(self._calls, opened) as response:
            yield response


def used_by(response: Any) -> Any:
    """What a response says it used, in the words of Anthropic: there the kinds of tokens do not overlap."""
    usage = response.usage
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
