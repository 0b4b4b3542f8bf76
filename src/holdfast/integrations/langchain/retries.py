"""Turns LangChain's own retries off on a copy of the model. Where that is not possible, there is a `RecoveryWarning`.

Invariant: nothing changes on the model that was given.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import RunnableBinding, RunnableParallel, RunnableSequence
from langchain_core.runnables.retry import RunnableRetry

from holdfast.integrations.clients.client import checked_client
from holdfast.integrations.recovery_warnings import warn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.integrations.clients.sdk import Sdk
    from holdfast.runtime.runtime import Runtime

__all__ = ["LAZY_CLIENTS", "checked", "is_bound_model", "warn_of_retries_in", "without_retries"]

M = TypeVar("M", bound=BaseChatModel)

LAZY_CLIENTS = ("_client", "_async_client")
"""The attributes in which ChatAnthropic keeps its clients. It makes them when they are first needed."""
_LAZY = ("_client_params", *LAZY_CLIENTS)
_SDKS = frozenset({"openai", "anthropic"})
_EAGER_CLIENTS = (("root_client", "client"), ("root_async_client", "async_client"))
"""The attributes in which ChatOpenAI and its subclasses keep their clients, and the part of each client that they use."""


def without_retries(model: M, runtime: Runtime | None, *, above: int = 0) -> M:
    """Return a copy of the model whose client does not retry. Warn if the client may still retry."""
    retries = getattr(model, "max_retries", None)
    copy = model.model_copy(update={} if retries is None and not _has_clients(model) else {"max_retries": 0})
    held = vars(copy)
    # The copy holds clients that the model made before, with their retries. Remove them, so that it makes new clients.
    for name in _LAZY:
        held.pop(name, None)
    for root, part in _EAGER_CLIENTS:
        client: Any = held.get(root)
        if hasattr(client, "with_options"):
            held[root] = checked(client, runtime)
            held[part] = held[root].chat.completions
    if retries and not _is_known(model):
        warn(
            f"{type(model).__name__} has max_retries={retries}, and its client may already use that value: "
            "give the model max_retries=0",
            above=above + 1,
        )
    return copy


def checked(client: Any, runtime: Runtime | None) -> Any:
    """Return the client without its own retries. A client of the two SDKs also raises for a response that is a failure."""
    name = next((name for cls in type(client).__mro__ if (name := cls.__module__.partition(".")[0]) in _SDKS), None)
    if name is None:
        return client.with_options(max_retries=0)
    # We only know that the SDK of this client is installed, so only that SDK's module may be imported.
    sdk: Sdk = getattr(import_module(f"holdfast.integrations.clients.{name}"), name.upper())
    return checked_client(client, sdk, runtime)


def _has_clients(model: Any) -> bool:
    return any(hasattr(model, root) for root, _ in _EAGER_CLIENTS)


def _is_known(model: Any) -> bool:
    """Return whether this model keeps its clients in one of the two ways above. Then its retries are off."""
    return _has_clients(model) or all(hasattr(type(model), name) for name in _LAZY)


def warn_of_retries_in(runnable: Any, *, above: int = 0) -> None:
    """Warn of every part that retries by itself inside a runnable that recovers as a whole."""
    for part in _parts(runnable, depth=8):
        if isinstance(part, RunnableRetry):
            warn(
                f"with_retry inside retries up to {part.max_attempt_number} times by itself, so attempts multiply: "
                "remove one of the two",
                above=above + 1,
            )
        elif isinstance(part, BaseChatModel) and not hasattr(part, "recovery"):
            # None means the SDK's default, which is two retries.
            retries = getattr(part, "max_retries", 0)
            if retries or (retries is None and _has_clients(part)):
                warn(
                    f"{type(part).__name__} inside retries by itself (max_retries={retries}), so attempts multiply: "
                    "recover the model, or give it max_retries=0",
                    above=above + 1,
                )


def _parts(runnable: Any, depth: int) -> Iterator[Any]:
    """Yield the runnable and the runnables it consists of."""
    yield runnable
    # The depth is limited, because a wrapper of another package may refer to itself.
    if not depth:
        return
    inner: list[Any] = []
    if isinstance(runnable, RunnableSequence):
        inner = list(runnable.steps)
    elif isinstance(runnable, RunnableParallel):
        inner = list(runnable.steps__.values())
    else:
        # Bindings, retries and fallbacks keep the runnable inside under these names. Wrappers of other packages may too.
        inner = [*_held(runnable, "bound"), *_held(runnable, "runnable"), *_held(runnable, "fallbacks")]
    for one in inner:
        yield from _parts(one, depth - 1)


def _held(runnable: Any, name: str) -> list[Any]:
    held = vars(runnable).get(name) if hasattr(runnable, "__dict__") else None
    if held is None:
        return []
    return list(held) if isinstance(held, (list, tuple)) else [held]


def is_bound_model(runnable: Any) -> bool:
    """Return whether a runnable is a chat model with arguments bound to it, such as tools."""
    return (
        isinstance(runnable, RunnableBinding)
        and not isinstance(runnable, RunnableRetry)
        and isinstance(runnable.bound, BaseChatModel)
    )
