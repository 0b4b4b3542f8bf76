"""`RecoveryMiddleware` recovers the model and tool calls of a LangChain agent.

Model calls are retried as the policy says. If they fail for good, the fallback models are called. Each model has its own
circuits. A tool call is repeated only if the tool's declared effect allows it.

Invariant: the incoming request is not changed. LangGraph's control flow passes through.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import TYPE_CHECKING, Any, Literal, get_args

from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    ModelFallbackMiddleware,
    ModelRetryMiddleware,
    ToolRetryMiddleware,
)
from langchain.chat_models import init_chat_model
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import ToolMessage

from holdfast import options
from holdfast.faults import InvalidError
from holdfast.integrations.calls import Calls
from holdfast.integrations.langchain.chat_models import settings_of, target_of_model, used_by_message
from holdfast.integrations.langchain.graph import PASSING, GivenUp
from holdfast.integrations.langchain.retries import without_retries
from holdfast.integrations.recovery_warnings import RecoveryWarning
from holdfast.policies.decide import EFFECTS
from holdfast.policies.target import Target
from holdfast.runtime.failures.tool_fault import fault_of_tool
from holdfast.runtime.tool import contract_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from langchain.agents.middleware import ModelRequest, ModelResponse
    from langchain.agents.middleware.types import ToolCallRequest
    from langgraph.types import Command

    from holdfast.policies import Effect, Policy
    from holdfast.runtime.runtime import Runtime

__all__ = ["RecoveryMiddleware", "ToolFailures"]

ToolFailures = Literal["raise", "tell"]
"""What a tool that has failed for good does: end the run, or inform the model."""


class RecoveryMiddleware(AgentMiddleware[Any, Any, Any]):
    """Recover the model and tool calls of an agent.

        agent = create_agent(model, tools, middleware=[RecoveryMiddleware("openai:gpt-5", effects={"search": "read"})])

    `fallbacks` are models that are called, in order, when the agent's own model has failed for good. `effects` maps the name
    of a tool to what a call does to the world, for tools that do not declare it themselves (`@holdfast.tool`). A tool without
    a declared effect is called once. When a tool has failed for good, `tool_failures="raise"` raises its exception, which ends
    the run; `"tell"` sends the model a safe description of the failure. Raises `InvalidError` for options that are not valid.
    """

    @options.suggests
    def __init__(
        self,
        *fallbacks: BaseChatModel | str,
        policy: Policy | None = None,
        name: str | None = None,
        tool_policy: Policy | None = None,
        effects: Mapping[str, Effect] | None = None,
        tool_failures: ToolFailures = "raise",
        runtime: Runtime | None = None,
    ) -> None:
        super().__init__()
        options.one_of("RecoveryMiddleware.tool_failures", tool_failures, get_args(ToolFailures))
        for tool, effect in (effects or {}).items():
            options.one_of(f"RecoveryMiddleware.effects.{tool}", effect, EFFECTS)
        # LangChain reads this attribute of every middleware.
        self.tools = []
        self._policy = policy
        self._name = name
        self._tool_policy = tool_policy
        self._effects = dict(effects or {})
        self._tool_failures = tool_failures
        self._runtime = runtime
        self._fallbacks = [_model_of(model) for model in fallbacks]
        self._models: dict[int, tuple[BaseChatModel, BaseChatModel, Calls]] = {}
        self._tool_calls: dict[str, Calls] = {}
        self._given_up = GivenUp()
        self._looked_around = False

    @property
    def name(self) -> str:
        """Its name in the agent. When `create_agent` reads the name, this property also looks for other retries."""
        if not self._looked_around:
            self._looked_around = _warn_of_other_middleware()
        return super().name

    # --- model calls ---

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any]:
        """Make the model call, with retries and fallback models. The agent calls this."""
        self._given_up.warn_if_tried_again()
        _, calls = self._prepared(request.model)

        def attempt(*_: Any) -> ModelResponse[Any]:
            return handler(self._without_retries(request))

        others = [self._step(model, request, handler) for model in self._fallbacks]
        with self._given_up.marked():
            answer: ModelResponse[Any] = calls.call(attempt, *_request_of(request), chain=calls.chain(attempt, others))
        return answer

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any]:
        """The same as `wrap_model_call`, in a task."""
        self._given_up.warn_if_tried_again()
        _, calls = self._prepared(request.model)

        async def attempt(*_: Any) -> ModelResponse[Any]:
            return await handler(self._without_retries(request))

        others = [self._astep(model, request, handler) for model in self._fallbacks]
        with self._given_up.marked():
            answer: ModelResponse[Any] = await calls.acall(
                attempt, *_request_of(request), chain=calls.chain(attempt, others)
            )
        return answer

    def _prepared(self, model: BaseChatModel) -> tuple[BaseChatModel, Calls]:
        """Return the model with its client's retries off, and how calls to it recover."""
        # The key is the id, because chat models are not hashable. The entry keeps its model alive, so the id stays unique.
        known = self._models.get(id(model))
        if known is None or known[0] is not model:
            quiet = model if hasattr(model, "recovery") else without_retries(model, self._runtime)
            calls = Calls(
                target_of_model(model, self._name),
                self._policy,
                passing=PASSING,
                usage=_used_by_response,
                through_client=True,
                runtime=self._runtime,
            )
            known = self._models[id(model)] = (model, quiet, calls)
        return known[1:]

    def _without_retries(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        quiet, calls = self._prepared(request.model)
        # While recovery is off, the model's own retries are all there is.
        return request if calls.plan.off or quiet is request.model else request.override(model=quiet)

    def _step(
        self, model: BaseChatModel, request: ModelRequest[Any], handler: Callable[..., Any]
    ) -> tuple[str, Calls, Callable[[], Any]]:
        """Return a fallback model's name, and the call to it. The call recovers with its own circuits."""
        _, calls = self._prepared(model)
        fitted = ModelFallbackMiddleware(model)

        def other(adapted: ModelRequest[Any]) -> Any:
            # LangChain's fallback calls the first model before the fallback models. The first model has failed already.
            if adapted is request:
                raise _FirstModelFailed
            return handler(self._without_retries(adapted))

        def step(*_: Any) -> Any:
            # LangChain's own middleware removes from the request what only the first model understands.
            return calls.call(lambda *_: fitted.wrap_model_call(request, other), *_request_of(request))

        return str(calls.plan.target), calls, step

    def _astep(
        self, model: BaseChatModel, request: ModelRequest[Any], handler: Callable[..., Any]
    ) -> tuple[str, Calls, Callable[[], Any]]:
        _, calls = self._prepared(model)
        fitted = ModelFallbackMiddleware(model)

        async def other(adapted: ModelRequest[Any]) -> Any:
            if adapted is request:
                raise _FirstModelFailed
            return await handler(self._without_retries(adapted))

        async def attempt(*_: Any) -> Any:
            return await fitted.awrap_model_call(request, other)

        async def step(*_: Any) -> Any:
            return await calls.acall(attempt, *_request_of(request))

        return str(calls.plan.target), calls, step

    # --- tool calls ---

    def wrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]]
    ) -> ToolMessage | Command[Any]:
        """Make the tool call, with retries where its effect allows them. The agent calls this."""
        calls = self._calls_of_tool(request)
        try:
            answer: ToolMessage | Command[Any] = (
                handler(request) if calls is None else calls.call(lambda: handler(request))
            )
        except PASSING:
            raise
        except Exception as error:
            if self._tool_failures == "raise":
                raise
            return _failure_message(request, error)
        return answer

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]]
    ) -> ToolMessage | Command[Any]:
        """The same as `wrap_tool_call`, in a task."""
        calls = self._calls_of_tool(request)

        async def attempt(*_: Any) -> ToolMessage | Command[Any]:
            return await handler(request)

        try:
            answer: ToolMessage | Command[Any] = await (attempt() if calls is None else calls.acall(attempt))
        except PASSING:
            raise
        except Exception as error:
            if self._tool_failures == "raise":
                raise
            return _failure_message(request, error)
        return answer

    def _calls_of_tool(self, request: ToolCallRequest) -> Calls | None:
        """Return how calls to the tool recover; None if it has no declared effect, so that it is called once."""
        name = request.tool_call["name"]
        known = self._tool_calls.get(name)
        if known is None:
            declaring = _declaring(request.tool)
            effect = self._effects.get(name)
            if declaring is None and effect is None:
                return None
            known = self._tool_calls[name] = Calls(
                Target(tool=name),
                self._tool_policy,
                passing=PASSING,
                effect=effect,
                fn=declaring,
                runtime=self._runtime,
            )
        return known


class _FirstModelFailed(Exception):  # noqa: N818 - it steers LangChain's fallback, and nobody else sees it
    """The first model has failed already, so LangChain's fallback must go on to the next model."""


def _model_of(model: BaseChatModel | str) -> BaseChatModel:
    if isinstance(model, BaseChatModel):
        return model
    if not isinstance(model, str):
        raise InvalidError.at("RecoveryMiddleware.fallbacks", "chat models, or names such as 'openai:gpt-5'", model)
    made: BaseChatModel = init_chat_model(model)
    return made


def _declaring(tool: Any) -> Any:
    """Return the function of a tool that declares its effect."""
    functions = (getattr(tool, name, None) for name in ("func", "coroutine"))
    return next((fn for fn in functions if fn is not None and contract_of(fn) is not None), None)


def _failure_message(request: ToolCallRequest, error: Exception) -> ToolMessage:
    """Return a message for the model about a failure: class, code, what to do, and the tool's own words, secrets masked."""
    return ToolMessage(
        content=json.dumps(fault_of_tool(error).for_model(), default=str, ensure_ascii=False),
        name=request.tool_call["name"],
        tool_call_id=request.tool_call["id"],
        status="error",
    )


def _request_of(request: ModelRequest[Any]) -> tuple[Any, Mapping[str, Any]]:
    """Return what the model is asked, and the settings of the request."""
    tools = [
        tool if isinstance(tool, dict) else [tool.name, tool.description, getattr(tool, "args", None)]
        for tool in request.tools
    ]
    asked = {"system": request.system_message, "messages": request.messages, "tools": tools}
    return asked, settings_of(request.model, request.model_settings)


def _used_by_response(response: Any) -> Any:
    # An inner middleware may return a response of its own, without messages.
    messages = getattr(response, "result", None)
    return used_by_message(messages[0]) if messages else response


# --- other middleware of the same agent that retries ---

_MAX_FRAMES = 6
"""How many frames up `create_agent` may be. Its own comprehensions are frames too."""


def _warn_of_other_middleware() -> bool:
    """Warn of LangChain's retries in the agent that is being made; return False if no agent is being made.

    An agent does not give a middleware the list of the others. But `create_agent` reads the name of each middleware while
    it makes the agent, and at that moment its local variables hold all of them.
    """
    frame = sys._getframe(1)  # noqa: SLF001 - the public functions for the stack read source files, which is slow
    for depth in range(_MAX_FRAMES):
        if frame.f_code is create_agent.__code__:
            _warn_of_each(frame.f_locals.get("middleware", ()), depth)
            return True
        if frame.f_back is None:
            break
        frame = frame.f_back
    return False


def _warn_of_each(middleware: Sequence[Any], depth: int) -> None:
    for other in middleware:
        if isinstance(other, ModelRetryMiddleware | ToolRetryMiddleware):
            warnings.warn(
                f"{type(other).__name__} beside RecoveryMiddleware retries up to {other.max_retries} times by itself, so "
                "attempts multiply: remove one of the two",
                RecoveryWarning,
                # The line that makes the agent. `create_agent` lies between it and us.
                stacklevel=depth + 4,
            )
