"""Chat models that recover: a subclass of the model's class, with recovery in the four methods that call the provider.

LangChain's callbacks and caches are above these methods (`_generate`, `_stream` and their async versions). So a tracer sees
a call and its retries as one run, and a cached answer is not an attempt. We derive a class and do not change the instance,
so that copies (`model_copy`, `configurable_fields`) recover as well.

Invariant: one attempt is one request; the parts of a tool call always come from one answer.
"""

from __future__ import annotations

import copy
import functools
import json
import re
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from pydantic import Field

from holdfast import classify
from holdfast._steps import Steps, twin
from holdfast.faults import InvalidError
from holdfast.integrations.calls import Calls
from holdfast.integrations.langchain.graph import PASSING, GivenUp
from holdfast.integrations.langchain.retries import LAZY_CLIENTS, checked, without_retries
from holdfast.policies.models.quote import tokens_of
from holdfast.policies.target import Target, provider_name
from holdfast.runtime.secrets import name_of_key
from holdfast.runtime.streams.flow import StreamDialect, Used

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Sequence

    from langchain_core.messages import BaseMessage
    from langchain_core.outputs import ChatGenerationChunk
    from langchain_core.runnables import Runnable

    from holdfast.faults import Fault, Partial
    from holdfast.policies import Policy
    from holdfast.runtime.runtime import Runtime
    from holdfast.runtime.streams.stream import AfterFirst

_OPENING = frozenset({"type", "index", "id"})
_OPENING_CALL = frozenset({"name", "caller", "call_id", "status", "namespace", "extras"})
_CALLS = frozenset({"tool_use", "function_call", "tool_call_chunk"})
"""The blocks of tool calls: Anthropic's, those of OpenAI's Responses, and LangChain's own. A call's head is not content."""

_KEYS = ("anthropic_api_key", "openai_api_key", "api_key")
"""The fields in which chat models keep their key."""
_ADDRESSES = ("anthropic_api_url", "openai_api_base", "base_url")
"""The fields in which chat models keep the address of their API."""

_FAILED = re.compile(
    r"""ResponseError\(code='(?P<code>\w+)', message=(?P<quote>['"])(?P<message>.*?)(?P=quote)[,)]"""
    r"""|(?P<kind>server_error|rate_limit_exceeded): (?P<words>.*)""",
    re.DOTALL,
)
"""The words of `response.failed` and of an `error` event."""

_LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
"""The fields and arguments that limit the answer of a chat model."""

__all__ = ["recover_model", "settings_of", "target_of_model", "used_by_message"]

M = TypeVar("M", bound=BaseChatModel)


class ModelRecovery:
    """How the calls of a chat model recover."""

    def __init__(
        self,
        *,
        policy: Policy | None,
        name: str | None,
        after_first: AfterFirst,
        resume: Callable[[Any, Any], Any] | None,
        runtime: Runtime | None,
    ) -> None:
        self._policy = policy
        self._name = name
        self.runtime = runtime
        self.after_first = after_first
        self.resume = resume
        self.retries: int | None = None
        """The retries that the model was given. They count while recovery is off."""
        self.given_up = GivenUp()
        self._has_fallback = False
        self._calls: dict[Target, Calls] = {}

    def calls(self, model: BaseChatModel, kwargs: dict[str, Any]) -> Calls:
        """Return how the calls of a model recover. A call may name another model, through `bind(model=…)`."""
        target = target_of_model(model, self._name, kwargs)
        known = self._calls.get(target)
        if known is None:
            known = Calls(
                target,
                self._policy,
                passing=PASSING,
                usage=_usage_of,
                through_client=True,
                reads=_fault_of,
                runtime=self.runtime,
            )
            self._calls[target] = known = known.before_fallback() if self._has_fallback else known
        return known

    def before_fallback(self) -> ModelRecovery:
        """Return how the calls of a model recover that LangChain's own fallbacks stand behind."""
        other = copy.copy(self)
        other._calls, other._has_fallback = {}, True  # noqa: SLF001 - its own class
        return other


def target_of_model(model: BaseChatModel, name: str | None, kwargs: dict[str, Any] | None = None) -> Target:
    """Return the provider, model and key that a chat model calls. The names are those that tracers get."""
    traced = _names_for_tracers(model)
    called = (kwargs or {}).get("model") or traced.get("ls_model_name") or getattr(model, "model", None)
    provider = name or _provider_of(model, str(traced.get("ls_provider") or type(model).__name__))
    return Target(provider=provider, model=called if isinstance(called, str) else "", credential=_credential_of(model))


def _provider_of(model: BaseChatModel, named: str) -> str:
    addresses = (getattr(model, field, None) for field in _ADDRESSES)
    address = next((one for one in addresses if isinstance(one, str) and one), "")
    return provider_name(named, address)


def _credential_of(model: BaseChatModel) -> str:
    """Return a name for the model's key, so that each key has a circuit of its own; empty if it has no key."""
    for field in _KEYS:
        secret = getattr(getattr(model, field, None), "get_secret_value", None)
        if secret is not None and (key := secret()):
            return name_of_key(key)
    return ""


def _fault_of(error: Exception) -> Fault | None:
    """Return the fault of a response that failed. LangChain raises a plain ValueError with its code and its words."""
    found = _FAILED.match(str(error)) if type(error) is ValueError else None
    if found is None:
        return None
    named = {"code": found["code"] or found["kind"], "message": found["message"] or found["words"]}
    return classify.from_text(json.dumps({"error": named}))


def _names_for_tracers(model: BaseChatModel) -> dict[str, Any]:
    try:
        return dict(model._get_ls_params())  # noqa: SLF001 - every tracer reads it; LangChain has no public name for it
    except Exception:  # noqa: BLE001 - a user's own model may need arguments here; then its class names it
        return {}


def recover_model(
    model: M,
    *,
    policy: Policy | None,
    name: str | None,
    after_first: AfterFirst,
    resume: Callable[[Any, Any], Any] | None,
    runtime: Runtime | None,
) -> M:
    """Return a copy of the model that recovers. Its class is a subclass of the model's, with the same name."""
    if hasattr(model, "recovery"):
        raise InvalidError.saying("recovering.runnable", "a model that does not recover yet", "a model that recovers")
    if after_first == "restart":
        raise InvalidError.saying(
            "recovering.after_first",
            "'raise' or 'continue' for a chat model",
            "'restart', but LangChain would join the parts of both attempts to one message",
        )
    recovery = ModelRecovery(policy=policy, name=name, after_first=after_first, resume=resume, runtime=runtime)
    # A policy that is not valid must raise here, where the user wrote it, and not at the first call.
    recovery.calls(model, {})
    recovery.retries = getattr(model, "max_retries", None)
    made = without_retries(model, runtime)
    # pydantic's own `__setattr__` sets fields only, so it is bypassed here.
    object.__setattr__(made, "__class__", _recovering_class(type(model)))
    vars(made)["recovery"] = recovery
    return made


# The cache gives two models of one class the same recovering class.
@functools.cache
def _recovering_class(base: type[BaseChatModel]) -> type[BaseChatModel]:
    """Derive the class that recovers. Only methods that the model implements itself are replaced."""
    body: dict[str, Any] = {
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "__annotations__": {"recovery": Any},
        # A field, so that copies of a model keep it; excluded, so that a serialised model does not contain it.
        "recovery": Field(default=None, exclude=True, repr=False),
    }
    for method, recovered in (
        ("_generate", _generate),
        ("_agenerate", functools.partial(_generate, is_sync=False)),
        ("_stream", _stream),
        ("_astream", _astream),
    ):
        own = getattr(base, method)
        # LangChain checks whether a model overrides `_stream`. If the model does not, our class must not either.
        if own is not getattr(BaseChatModel, method):
            body[method] = functools.wraps(own)(recovered(own))
    body["with_fallbacks"] = _with_fallbacks
    # These clients are made when they are first used, so they cannot be replaced on the copy now.
    for name in LAZY_CLIENTS:
        made = getattr(base, name, None)
        if isinstance(made, functools.cached_property):
            body[name] = _checked(name, made.func)
    return type(base.__name__, (base,), body)


def _with_fallbacks(self: Any, fallbacks: Sequence[Runnable[Any, Any]], **options: Any) -> Any:
    """Return LangChain's own runnable with fallbacks. Because of these, a call of this model fails sooner."""
    before = self.model_copy()
    if before.recovery is not None:
        vars(before)["recovery"] = before.recovery.before_fallback()
    return BaseChatModel.with_fallbacks(before, fallbacks, **options)


def _checked(name: str, made: Callable[[Any], Any]) -> functools.cached_property[Any]:
    def client(self: Any) -> Any:
        recovery = self.recovery
        return (
            checked(made(self), None) if recovery is None else checked(made(self), recovery.runtime, recovery.retries)
        )

    # A cached property keeps its value under the name of its function.
    client.__name__ = name
    return functools.cached_property(client)


def _generate(own: Callable[..., Any], *, is_sync: bool = True) -> Callable[..., Any]:
    def generate(self: Any, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> Steps[Any]:
        def attempt(*_: Any) -> Any:
            return own(self, messages, *args, **kwargs)

        calls = _calls_of(self, kwargs)
        if calls is None:
            return (yield attempt())
        with self.recovery.given_up.marked():
            call = calls.call if is_sync else calls.acall
            return (yield call(attempt, messages, settings_of(self, kwargs)))

    return twin(generate, is_sync=is_sync)


def _stream(own: Callable[..., Iterator[ChatGenerationChunk]]) -> Callable[..., Iterator[ChatGenerationChunk]]:
    def stream(self: Any, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        def attempt(sent: list[BaseMessage], *_: Any) -> Iterator[ChatGenerationChunk]:
            return own(self, sent, *args, **kwargs)

        calls = _calls_of(self, kwargs)
        if calls is None:
            yield from attempt(messages)
            return
        rest, mode = _rest_of(self.recovery, messages), self.recovery.after_first
        settings = settings_of(self, kwargs)
        with self.recovery.given_up.marked():
            yield from calls.read(_CHUNKS, attempt, messages, settings, after_first=mode, resume=rest)

    return stream


def _astream(own: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
    async def astream(self: Any, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        def attempt(sent: list[BaseMessage], *_: Any) -> AsyncIterator[Any]:
            return own(self, sent, *args, **kwargs)

        calls = _calls_of(self, kwargs)
        if calls is None:
            async for chunk in attempt(messages):
                yield chunk
            return
        rest, mode = _rest_of(self.recovery, messages), self.recovery.after_first
        settings = settings_of(self, kwargs)
        with self.recovery.given_up.marked():
            # Without `aclosing`, the inner generator of a consumer that stops early would be closed later, in another task.
            async with aclosing(
                calls.aread(_CHUNKS, attempt, messages, settings, after_first=mode, resume=rest)
            ) as stream:
                async for chunk in stream:
                    yield chunk

    return astream


def settings_of(model: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return what the request of a chat model holds beside its messages: its tools, and how long its answer may be."""
    limits = {name: limit for name in _LIMITS if isinstance(limit := getattr(model, name, None), int)}
    return {**limits, **{name: kwargs[name] for name in (*_LIMITS, "tools", "n") if kwargs.get(name) is not None}}


def _calls_of(model: Any, kwargs: dict[str, Any]) -> Calls | None:
    """Return how this call recovers, or None inside another call of the same model.

    Some models call their own `_stream` to make a whole answer. The outer call already recovers then.
    """
    if model.recovery is None:
        return None
    calls: Calls = model.recovery.calls(model, kwargs)
    if calls.within():
        return None
    model.recovery.given_up.warn_if_tried_again()
    return calls


def _rest_of(recovery: ModelRecovery, messages: list[BaseMessage]) -> Callable[[Partial], tuple[Any, ...]] | None:
    """Return a function that takes the delivered chunks and returns the messages that request the rest of the answer."""
    resume = recovery.resume
    if resume is None:
        return None

    def rest(partial: Partial) -> tuple[Any, ...]:
        # The user's `resume` gets one message, as LangChain's own consumers do, and not a list of chunks.
        chunks = [chunk.message for chunk in partial.payload]
        return (resume(functools.reduce(lambda whole, part: whole + part, chunks), messages),)

    return rest


# --- the dialect of chunks ---


def _has_content(message: Any) -> bool:
    content = message.content
    has_text = bool(content) if isinstance(content, str) else any(_block_has_content(block) for block in content)
    # The name of a tool alone is not content yet, as in the SDKs' own streams.
    calls = getattr(message, "tool_call_chunks", None) or ()
    return has_text or any(call.get("args") for call in calls) or _is_last_of(message)


def _block_has_content(block: Any) -> bool:
    if not isinstance(block, dict):
        return bool(block)
    # These fields announce a block; any other field with a value is content.
    opening = _OPENING | _OPENING_CALL if block.get("type") in _CALLS else _OPENING
    return any(value for field, value in block.items() if field not in opening)


def _opens(chunk: ChatGenerationChunk) -> bool:
    info = chunk.generation_info or {}
    return not _has_content(chunk.message) and not info.get("finish_reason")


def _is_fragment(chunk: ChatGenerationChunk) -> bool:
    return bool(getattr(chunk.message, "tool_call_chunks", None) or getattr(chunk.message, "tool_calls", None))


def _is_last_of(message: Any) -> bool:
    stopped = message.response_metadata.get("stop_reason")
    return getattr(message, "chunk_position", None) == "last" or bool(stopped)


def _ends(chunk: ChatGenerationChunk) -> bool | None:
    # Only these two providers mark the last chunk of a complete answer. For other providers every end counts as complete.
    if chunk.message.response_metadata.get("model_provider") not in {"anthropic", "openai"}:
        return None
    return _is_last_of(chunk.message) or bool((chunk.generation_info or {}).get("finish_reason"))


def _used_by_chunk(chunk: ChatGenerationChunk) -> Used | None:
    return used_by_message(chunk.message)


def _usage_of(result: Any) -> Any:
    generations = getattr(result, "generations", None)
    return used_by_message(generations[0].message) if generations else result


def used_by_message(message: Any) -> Used | None:
    """Return the usage that a message reports, with Anthropic's names, because its kinds of tokens do not overlap."""
    usage = message.usage_metadata if isinstance(message, AIMessage | AIMessageChunk) else None
    if usage is None:
        return None
    # LangChain includes cached tokens in the input tokens, Anthropic does not. They have different prices.
    details = usage.get("input_token_details") or {}
    cached, written = details.get("cache_read") or 0, details.get("cache_creation") or 0
    return Used(
        message.response_metadata.get("model_name"),
        {
            "input_tokens": max(0, usage["input_tokens"] - cached - written),
            "output_tokens": usage["output_tokens"],
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": written,
        },
    )


def _said(chunk: ChatGenerationChunk) -> int:
    message = chunk.message
    calls = getattr(message, "tool_call_chunks", None) or ()
    return tokens_of([message.content, *(call.get("args") for call in calls)])


_CHUNKS = StreamDialect(opens=_opens, fragment=_is_fragment, ends=_ends, used=_used_by_chunk, said=_said)
