"""Chat models that recover: the model's own class with its four doors to the provider (`_generate`, `_stream`, async) ours.

These are below LangChain's callbacks and caches: a call that recovers is one run to a tracer, and a cached answer is no attempt.
The class is derived, not the instance changed, so that copies (`model_copy`, `configurable_fields`) recover as well.

Invariant: one attempt is one request; the parts of a tool call always come from one answer.
"""

from __future__ import annotations

import functools
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from pydantic import Field

from holdfast.faults import InvalidError
from holdfast.integrations.langchain.graph import PASSING, mark_given_up, warn_if_tried_again
from holdfast.integrations.langchain.retries import LAZY_CLIENTS, attending, without_retries
from holdfast.integrations.passing import Calls
from holdfast.integrations.reading import Form, read, read_async
from holdfast.policies.target import Target
from holdfast.runtime.credentials import name_of_key

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from langchain_core.messages import BaseMessage
    from langchain_core.outputs import ChatGenerationChunk, ChatResult

    from holdfast.faults import Partial
    from holdfast.policies import Policy
    from holdfast.runtime.runtime import Runtime
    from holdfast.runtime.stream import AfterFirst

_KEYS = ("anthropic_api_key", "openai_api_key", "api_key")
"""Where chat models keep their key."""

__all__ = ["recover_model", "target_of_model", "used_by_message"]

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
        self._runtime = runtime
        self.after_first = after_first
        self.resume = resume
        self._calls: dict[Target, Calls] = {}

    def calls(self, model: BaseChatModel, kwargs: dict[str, Any]) -> Calls:
        """Return how calls to the model that is asked recover; `bind(model=…)` may name another than its own."""
        target = target_of_model(model, self._name, kwargs)
        known = self._calls.get(target)
        if known is None:
            known = self._calls[target] = Calls(
                target, self._policy, passing=PASSING, told=_used_by_result, runtime=self._runtime
            )
        return known


def target_of_model(model: BaseChatModel, name: str | None, kwargs: dict[str, Any] | None = None) -> Target:
    """Return what a model calls, as it tells tracers."""
    told = _told_to_tracers(model)
    asked = (kwargs or {}).get("model") or told.get("ls_model_name") or getattr(model, "model", None)
    provider = name or told.get("ls_provider") or type(model).__name__
    return Target(
        provider=str(provider), model=asked if isinstance(asked, str) else "", credential=_credential_of(model)
    )


def _credential_of(model: BaseChatModel) -> str:
    """Return a name for the model's key, so that each key has a circuit of its own; empty where it holds none."""
    for field in _KEYS:
        secret = getattr(getattr(model, field, None), "get_secret_value", None)
        if secret is not None and (key := secret()):
            return name_of_key(key)
    return ""


def _told_to_tracers(model: BaseChatModel) -> dict[str, Any]:
    try:
        return dict(model._get_ls_params())  # noqa: SLF001 - what every tracer reads; there is no other name for it
    except Exception:  # noqa: BLE001 - a model of someone's own may need arguments here; then its class names it
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
    """Return a copy of the model that recovers; it is of the model's class and called so."""
    if hasattr(model, "recovery"):
        raise InvalidError.saying("recovering.runnable", "a model that does not recover yet", "one that does")
    if after_first == "restart":
        raise InvalidError.saying(
            "recovering.after_first",
            "'raise' or 'continue' for a chat model",
            "'restart': LangChain joins all parts of a call to one message, also those of a first try",
        )
    recovery = ModelRecovery(policy=policy, name=name, after_first=after_first, resume=resume, runtime=runtime)
    recovery.calls(model, {})  # a policy that cannot be had is told here, not at the first call
    copy = without_retries(model, above=2)
    object.__setattr__(copy, "__class__", _recovering_class(type(model)))
    vars(copy)["recovery"] = recovery
    return copy


@functools.cache
def _recovering_class(base: type[BaseChatModel]) -> type[BaseChatModel]:
    """Derive the class that recovers; only what the model implements itself is taken over."""
    body: dict[str, Any] = {
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "__annotations__": {"recovery": Any},
        # A field, so that whatever copies or rebuilds a model keeps it; left out where models are written down.
        "recovery": Field(default=None, exclude=True, repr=False),
    }
    for door, recovered in (
        ("_generate", _generate),
        ("_agenerate", _agenerate),
        ("_stream", _stream),
        ("_astream", _astream),
    ):
        own = getattr(base, door)
        if own is not getattr(BaseChatModel, door):
            body[door] = functools.wraps(own)(recovered(own))
    for name in LAZY_CLIENTS:
        made = getattr(base, name, None)
        if isinstance(made, functools.cached_property):
            body[name] = _attending(name, made.func)
    return type(base.__name__, (base,), body)


def _attending(name: str, made: Callable[[Any], Any]) -> functools.cached_property[Any]:
    def client(self: Any) -> Any:
        return attending(made(self))

    client.__name__ = name
    return functools.cached_property(client)


def _generate(own: Callable[..., ChatResult]) -> Callable[..., ChatResult]:
    def generate(self: Any, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        calls = _calls_of(self, kwargs)
        if calls is None:
            return own(self, messages, *args, **kwargs)
        with mark_given_up():
            result: ChatResult = calls.call(lambda: own(self, messages, *args, **kwargs))
        return result

    return generate


def _agenerate(own: Callable[..., Awaitable[ChatResult]]) -> Callable[..., Awaitable[ChatResult]]:
    async def agenerate(self: Any, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        async def attempt() -> ChatResult:
            return await own(self, messages, *args, **kwargs)

        calls = _calls_of(self, kwargs)
        if calls is None:
            return await attempt()
        with mark_given_up():
            result: ChatResult = await calls.acall(attempt)
        return result

    return agenerate


def _stream(own: Callable[..., Iterator[ChatGenerationChunk]]) -> Callable[..., Iterator[ChatGenerationChunk]]:
    def stream(self: Any, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        def attempt(asked: list[BaseMessage]) -> Iterator[ChatGenerationChunk]:
            return own(self, asked, *args, **kwargs)

        calls = _calls_of(self, kwargs)
        if calls is None:
            yield from attempt(messages)
            return
        rest, mode = _rest_of(self.recovery, messages), self.recovery.after_first
        with mark_given_up():
            yield from read(calls, FORM, attempt, messages, after_first=mode, resume=rest)

    return stream


def _astream(own: Callable[..., AsyncIterator[Any]]) -> Callable[..., AsyncIterator[Any]]:
    async def astream(self: Any, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        def attempt(asked: list[BaseMessage]) -> AsyncIterator[Any]:
            return own(self, asked, *args, **kwargs)

        calls = _calls_of(self, kwargs)
        if calls is None:
            async for chunk in attempt(messages):
                yield chunk
            return
        rest, mode = _rest_of(self.recovery, messages), self.recovery.after_first
        with mark_given_up():
            async with aclosing(read_async(calls, FORM, attempt, messages, after_first=mode, resume=rest)) as stream:
                async for chunk in stream:
                    yield chunk

    return astream


def _calls_of(model: Any, kwargs: dict[str, Any]) -> Calls | None:
    """Return how this call recovers; None: it is part of one that does, as where a model makes calls of streams."""
    if model.recovery is None:
        return None
    calls: Calls = model.recovery.calls(model, kwargs)
    if calls.within():
        return None
    warn_if_tried_again()
    return calls


def _rest_of(recovery: ModelRecovery, messages: list[BaseMessage]) -> Callable[[Partial], tuple[Any, ...]] | None:
    """Return what makes the messages to go on with from what was delivered."""
    resume = recovery.resume
    if resume is None:
        return None

    def rest(partial: Partial) -> tuple[Any, ...]:
        chunks = [chunk.message for chunk in partial.payload]
        return (resume(functools.reduce(lambda whole, part: whole + part, chunks), messages),)

    return rest


# --- what is known about the parts of an answer ---


def _says_something(message: Any) -> bool:
    content = message.content
    said = bool(content) if isinstance(content, str) else any(_block_says(block) for block in content)
    # The name of a tool alone is an opening, as in the SDKs' own streams.
    calls = getattr(message, "tool_call_chunks", None) or ()
    return said or any(call.get("args") for call in calls) or _is_last_of(message)


def _block_says(block: Any) -> bool:
    if not isinstance(block, dict):
        return bool(block)
    opening = {"type", "index", "id", "name", "caller"} if block.get("type") == "tool_use" else {"type", "index", "id"}
    return any(value for field, value in block.items() if field not in opening)


def _opens(chunk: ChatGenerationChunk) -> bool:
    info = chunk.generation_info or {}
    return not _says_something(chunk.message) and not info.get("finish_reason")


def _is_fragment(chunk: ChatGenerationChunk) -> bool:
    return bool(getattr(chunk.message, "tool_call_chunks", None) or getattr(chunk.message, "tool_calls", None))


def _is_last_of(message: Any) -> bool:
    told = message.response_metadata
    return getattr(message, "chunk_position", None) == "last" or bool(told.get("stop_reason"))


def _watch_for_the_end() -> Callable[[ChatGenerationChunk], bool | None]:
    """These two say when an answer is whole; of others an end is taken for an end."""

    def is_last(chunk: ChatGenerationChunk) -> bool | None:
        if chunk.message.response_metadata.get("model_provider") not in {"anthropic", "openai"}:
            return None
        return _is_last_of(chunk.message) or bool((chunk.generation_info or {}).get("finish_reason"))

    return is_last


def _used_by_chunks(chunks: list[ChatGenerationChunk]) -> Any:
    used = [told for chunk in chunks if (told := used_by_message(chunk.message)) is not None]
    return used[-1] if used else None


def _used_by_result(result: Any) -> Any:
    generations = getattr(result, "generations", None)
    return used_by_message(generations[0].message) if generations else result


def used_by_message(message: Any) -> Any:
    """What a message says it used, in the words of Anthropic: there the kinds of tokens do not overlap."""
    told = message.usage_metadata if isinstance(message, AIMessage | AIMessageChunk) else None
    if told is None:
        return None
    details = told.get("input_token_details") or {}
    cached, written = details.get("cache_read") or 0, details.get("cache_creation") or 0
    return {
        "model": message.response_metadata.get("model_name"),
        "usage": {
            "input_tokens": max(0, told["input_tokens"] - cached - written),
            "output_tokens": told["output_tokens"],
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": written,
        },
    }


FORM = Form(opens=_opens, fragment=_is_fragment, check=_watch_for_the_end, used=_used_by_chunks)
