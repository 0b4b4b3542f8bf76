"""Models of the OpenAI Agents SDK that recover: `recovering(model)`, or `recovering(provider)` for all models of a provider.

The result is a copy of the given object, with methods of its own on the instance. It has the same class, because the SDK
checks the class of its models.

Invariant: nothing changes on the given object. One attempt is one request, and the runner's own retries are off. The SDK's
own exceptions, which steer a run, pass through recovery unchanged. They are never retried and never counted.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import msgspec
from agents import (
    AgentsException,
    Model,
    ModelBehaviorError,
    ModelProvider,
    ModelRetryAdvice,
    ModelSettings,
    OpenAIResponsesWSModel,
    ProgrammaticToolCallingTool,
)
from openai import AsyncOpenAI

from holdfast import options
from holdfast.faults import Fault, InvalidError
from holdfast.integrations.calls import Calls
from holdfast.integrations.clients.client import checked_client
from holdfast.integrations.clients.openai import OPENAI
from holdfast.integrations.recovery_warnings import RECOVERS, RecoveryWarning, warn, warn_of_transport
from holdfast.integrations.store_log import StoreLog
from holdfast.policies.target import Target
from holdfast.runtime.failures.tool_fault import fault_of_tool
from holdfast.runtime.secrets import credential_of
from holdfast.transcript import repair

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from agents import ModelRetryAdviceRequest, RunContextWrapper, SessionSettings, TResponseInputItem

    from holdfast.policies import Effect, Policy
    from holdfast.runtime.runtime import Runtime
    from holdfast.runtime.streams.stream import StreamOf
    from holdfast.stores.store import Store

__all__ = ["RecoveryWarning", "StoreSession", "recovering", "tool_failure"]

M = TypeVar("M", bound=Model | ModelProvider)
AfterFirst = Literal["raise", "restart"]

# The SDK's runner would treat an event that reports a failure as a part of the answer.
_EVENTS = msgspec.structs.replace(OPENAI.events, raises_failures=True)

_ARGUMENTS = ("system_instructions", "input", "model_settings", "tools")
"""The first arguments of a model's methods."""
_ASKED = 2


@options.suggests
def recovering(
    model: M,
    *,
    policy: Policy | None = None,
    name: str | None = None,
    fallbacks: Sequence[Model] = (),
    after_first: AfterFirst = "raise",
    runtime: Runtime | None = None,
) -> M:
    """Return a model like `model` whose calls recover, or a provider like `model` whose models recover.

        agent = Agent(name="helper", model=recovering(OpenAIResponsesModel("gpt-5", AsyncOpenAI())))

    `fallbacks` are models that are called, in order, when this model has failed for good. A stream that fails after its first
    content raises `StreamCutError`; with `after_first="restart"` the answer begins again, with another `response.created`.
    `name` is the name of the provider in circuits and events. By default it is "openai" or "xai"; for another address,
    protocol, host, port and path, such as "openai@localhost:4000".

    Calls raise the exceptions of the OpenAI SDK and of the Agents SDK, and `CircuitOpenError`, `DeadlineError` or
    `BudgetError` where no request was made. `recovering` itself raises `InvalidError` for something that is neither a model
    nor a provider, that recovers already, or that uses a web socket.
    """
    options.one_of("recovering.after_first", after_first, ("raise", "restart"))
    if name is not None and not name:
        raise InvalidError.at("recovering.name", "a name such as 'openai', or None", name)
    if not isinstance(model, Model | ModelProvider):
        raise InvalidError.at("recovering.model", "a Model or a ModelProvider of the Agents SDK", model)
    if RECOVERS in vars(model):
        raise InvalidError.saying(
            "recovering.model", "a model or provider that does not recover yet", "one that recovers"
        )
    given: Any = model

    def prepared(one: Model) -> _Prepared:
        return _Prepared(one, policy=policy, name=name, runtime=runtime)

    others = [prepared(other) for other in fallbacks]
    recovered: M
    if isinstance(given, ModelProvider):
        recovered = _provider(given, lambda one: _model(one, [prepared(one), *others], after_first))
    else:
        recovered = _model(given, [prepared(given), *others], after_first)
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


def _model(model: Any, models: Sequence[_Prepared], after_first: AfterFirst) -> Any:
    clone = copy.copy(models[0].model)
    clone.get_response = _get_response(models)
    clone.stream_response = _stream_response(models, after_first)
    # The runner asks the model before it retries by itself.
    clone.get_retry_advice = _advise_against_retries
    clone.close = model.close
    clone._cleanup_on_run_end = model._cleanup_on_run_end  # noqa: SLF001 - the original holds the resources, so it frees them
    setattr(clone, RECOVERS, True)
    return clone


class _Prepared:
    """A model with a checked client, and how calls to it recover."""

    def __init__(self, model: Any, *, policy: Policy | None, name: str | None, runtime: Runtime | None) -> None:
        if not isinstance(model, Model):
            raise InvalidError.at("recovering.fallbacks", "models of the Agents SDK", model)
        if isinstance(model, OpenAIResponsesWSModel):
            raise InvalidError.saying("recovering.model", "a model that uses HTTP", "a model that uses a web socket")
        client = getattr(model, "_client", None)
        self.model: Any = model
        credential = ""
        if isinstance(client, AsyncOpenAI):
            warn_of_transport(getattr(client._client, "_transport", None))  # noqa: SLF001 - the SDK has no public name for it
            name = name or OPENAI.name_of(client)
            credential = credential_of(client)
            self.model = copy.copy(model)
            self.model._client = checked_client(client, OPENAI, runtime)  # noqa: SLF001 - the SDK's models take a client no other way
        called = getattr(model, "model", "")
        target = Target(
            provider=name or type(model).__name__,
            model=called if isinstance(called, str) else "",
            credential=credential,
        )
        self.name = str(target)
        passing = (AgentsException,)
        self.calls: dict[Effect | None, Calls] = {
            effect: Calls(
                target, policy, passing=passing, effect=effect, asks=_asks, through_client=True, runtime=runtime
            )
            for effect in (None, "unsafe")
        }


def _get_response(models: Sequence[_Prepared]) -> Any:
    async def get_response(*args: Any, **kwargs: Any) -> Any:
        _warn_of_runner(args, kwargs)
        effect = _effect(args, kwargs)

        def request(to: _Prepared) -> Any:
            async def respond(*_: Any) -> Any:
                return await to.model.get_response(*args, **kwargs)

            return respond

        def recovered(to: _Prepared) -> Any:
            async def respond(*_: Any) -> Any:
                return await to.calls[effect].acall(request(to), *asked)

            return respond

        # The chain is made for each call, because the fallbacks need the call's own arguments.
        first, *others = models
        asked = _request_of(args, kwargs)
        calls, respond = first.calls[effect], request(first)
        chain = calls.chain(respond, [(other.name, other.calls[effect], recovered(other)) for other in others])
        return await calls.acall(respond, *asked, chain=chain)

    return get_response


def _stream_response(models: Sequence[_Prepared], after_first: AfterFirst) -> Any:
    live = {effect: _live(models, effect, after_first) for effect in models[0].calls}

    async def stream_response(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        _warn_of_runner(args, kwargs)
        async with live[_effect(args, kwargs)](*args, **kwargs) as stream:
            async for event in stream:
                yield event

    return stream_response


def _live(models: Sequence[_Prepared], effect: Effect | None, after_first: AfterFirst) -> StreamOf[..., Any]:
    first, *others = (
        one.calls[effect].stream(_EVENTS, one.model.stream_response, after_first=after_first) for one in models
    )
    for model, other in zip(models[1:], others, strict=True):
        first.fallback(other, name=model.name)
    return first


def _asks(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """Return the request and its settings. A stream has the SDK's own arguments, a call has what `_request_of` returns."""
    if len(args) == _ASKED and isinstance(args[1], Mapping) and not kwargs:
        return args[0], args[1]
    return _request_of(args, kwargs)


def _request_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    named = dict(zip(_ARGUMENTS, args, strict=False)) | dict(kwargs)
    most = getattr(named.get("model_settings"), "max_tokens", None)
    tools = [_described(tool) for tool in named.get("tools") or ()]
    request = {"system": named.get("system_instructions"), "input": named.get("input"), "tools": tools}
    return request, {} if most is None else {"max_tokens": most}


def _described(tool: Any) -> list[Any]:
    """Return what the model gets of a tool."""
    return [getattr(tool, name, None) for name in ("name", "description", "params_json_schema")]


def _effect(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Effect | None:
    """Return the effect of a request. A repeat does harm if the provider stores the conversation, or runs tools itself."""
    tools = kwargs["tools"] if "tools" in kwargs else args[3]
    programs = any(isinstance(tool, ProgrammaticToolCallingTool) for tool in tools)
    return "unsafe" if programs or kwargs.get("conversation_id") is not None else None


def _advise_against_retries(request: ModelRetryAdviceRequest) -> ModelRetryAdvice:  # noqa: ARG001 - the SDK's signature
    """Advise the runner not to repeat a call that failed: our policy has already decided that."""
    return ModelRetryAdvice(suggested=False, replay_safety="unsafe", reason="holdfast has already retried this call")


def _warn_of_runner(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    settings = kwargs["model_settings"] if "model_settings" in kwargs else args[2]
    retry = settings.retry if isinstance(settings, ModelSettings) else None
    if retry is not None and retry.max_retries:
        warn(
            f"the policy decides about retries, so ModelSettings(retry=…) with max_retries={retry.max_retries} has no effect "
            "(or multiplies ours, if it approves unsafe replays): give `recovering` a policy with attempts=…"
        )


# --- tools ---


def tool_failure(context: RunContextWrapper[Any], error: Exception) -> str:  # noqa: ARG001 - the SDK's signature
    """Return a text that informs the model about a failed tool: what failed, and whether and when to retry.

        @function_tool(failure_error_function=tool_failure)
        async def weather(city: str) -> str: ...

    The text is `fault.for_model()` as JSON, with the words of an exception of the tool's own (`ValueError("unknown city")`).
    It holds no stack, path or secret. If the call may have happened, the text says so. (The SDK's own text suggests a retry
    even then.)
    """
    return json.dumps(_tool_fault(error).for_model(), default=str, ensure_ascii=False)


def _tool_fault(error: Exception) -> Fault:
    if isinstance(error, ModelBehaviorError):
        # The arguments are not JSON, or do not fit the tool.
        return Fault.of("TOOL_INPUT_INVALID", context={"reason": str(error)})
    # The SDK wraps the cancellation of a tool in an exception of its own.
    return fault_of_tool(getattr(error, "cancelled_error", error))


class StoreSession:
    """A session of the Agents SDK on a store that is open: the conversation survives the process.

    For example:
        async with open_store("sqlite:work.db") as store:
            await Runner.run(agent, "Pay the bill", session=StoreSession("customer-7", store))

    What a crash left behind is repaired when it is read: a call without a result gets one that says that it was interrupted. The log keeps what
    really happened. Raises what the store raises, for example SESS_STORE_UNAVAILABLE.
    """

    @options.suggests
    def __init__(self, session_id: str, store: Store, *, session_settings: SessionSettings | None = None) -> None:
        options.name("session_id", session_id)
        self.session_id = session_id
        self.session_settings = session_settings
        self._log = StoreLog(store, "openai-agents")
        self._name = self._log.name(session_id)

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the conversation, or its last `limit` items, as the provider accepts it."""
        settings = self.session_settings
        limit = settings.limit if limit is None and settings is not None else limit
        items = await self._items()
        # A limit may cut between a call and its result, so repair what is left.
        kept = items if limit is None else items[max(0, len(items) - limit) :]
        return repair(kept, "responses").history

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Add items. They are on disk when this returns."""
        if items:
            await self._log.append(self._name, msgspec.json.encode({"add": items}))

    async def pop_item(self) -> TResponseInputItem | None:
        """Take the last item out and return it."""
        items = await self._items()
        if not items:
            return None
        await self._log.append(self._name, msgspec.json.encode({"keep": len(items) - 1}))
        last: TResponseInputItem = items[-1]
        return last

    async def clear_session(self) -> None:
        """Remove the conversation from the store."""
        await self._log.remove(self._name)

    async def _items(self) -> list[Any]:
        items: list[Any] = []
        if (record := await self._log.record(self._name)) is not None:
            async for entry in self._log.entries(record):
                change = msgspec.json.decode(entry.body)
                items += change.get("add", ())
                del items[change.get("keep", len(items)) :]
        return items
