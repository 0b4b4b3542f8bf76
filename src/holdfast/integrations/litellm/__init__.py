"""Recovery for LiteLLM's functions (completions, responses, embeddings) and its `Router`: `recovering(litellm.completion)`.

    functions  one of LiteLLM's functions with recovery around it: its target, its fallbacks, LiteLLM's own retries off
    streams    LiteLLM's streams: recovered until their first content, then watched to the end

Invariant: this package never imports LiteLLM. A caller who passes one of its functions has imported it already. One attempt
is one request.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast import options
from holdfast.faults import InvalidError
from holdfast.integrations.litellm.functions import FUNCTIONS, Function, LiteLLMOptions
from holdfast.integrations.recovery_warnings import RECOVERS, RecoveryWarning, warn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from holdfast.policies import Policy
    from holdfast.runtime.runtime import Runtime

__all__ = ["RecoveryWarning", "recovering"]

T = TypeVar("T")

_FALLBACKS = ("fallbacks", "context_window_fallbacks", "content_policy_fallbacks")


@options.suggests
def recovering(
    target: T,
    *,
    policy: Policy | None = None,
    name: str | None = None,
    fallbacks: Sequence[str | Mapping[str, Any]] = (),
    runtime: Runtime | None = None,
) -> T:
    """Return one of LiteLLM's functions with recovery around it, or a Router whose calls recover.

        completion = recovering(litellm.completion, fallbacks=["anthropic/claude-haiku-4-5"])
        answer = completion(model="openai/gpt-5", messages=messages)

    The functions are `completion`, `responses`, `embedding` and `text_completion`, and their async versions.

    `fallbacks` are used, in order, when a call has failed for good. A fallback is the name of a model (of a group, with a
    Router), or a dict of what to change in the call, such as `{"model": "…", "api_key": "…"}`. `name` is the name of the
    provider in circuits and events. By default it is LiteLLM's own name for the provider, or the Router's group.

    Calls raise LiteLLM's own exceptions, `StreamCutError` for a stream that breaks after its first content, and
    `CircuitOpenError`, `DeadlineError` or `BudgetError` where no request was made. `recovering` itself raises `InvalidError`
    for anything but these functions and a Router, and for a target that recovers already.
    """
    if name is not None and not name:
        raise InvalidError.at("recovering.name", "a name such as 'openai', or None", name)
    if getattr(target, RECOVERS, False):
        raise InvalidError.saying("recovering.target", "a target that does not recover yet", "a target that recovers")
    options = LiteLLMOptions(policy=policy, name=name, fallbacks=tuple(fallbacks), runtime=runtime)
    given: Any = target
    recovered: T
    if _is_router(given):
        recovered = _router(given, options)
    elif _is_function(given):
        recovered = Function(given, options, routed=False).recovered()
    else:
        raise InvalidError.at(
            "recovering.target", f"litellm.completion, another of {', '.join(FUNCTIONS)}, or a Router", target
        )
    return recovered


def _is_router(target: Any) -> bool:
    # Compare the names of classes: importing LiteLLM takes seconds, which only its users should wait for.
    return any(cls.__module__ == "litellm.router" and cls.__name__ == "Router" for cls in type(target).__mro__)


def _is_function(target: Any) -> bool:
    of_litellm = str(getattr(target, "__module__", "")).partition(".")[0] == "litellm"
    return callable(target) and of_litellm and getattr(target, "__name__", "") in FUNCTIONS and not _is_method(target)


def _is_method(target: Any) -> bool:
    return hasattr(target, "__self__")


def _router(router: Any, options: LiteLLMOptions) -> Any:
    for configured in _FALLBACKS:
        if getattr(router, configured, None):
            warn(f"the Router's {configured} are off here: give `recovering` fallbacks=[…]")
    # A shallow copy shares the deployments and their cooldowns with the Router that was given.
    clone = copy.copy(router)
    for name in FUNCTIONS:
        # Older versions of LiteLLM do not have all of them.
        if (function := getattr(router, name, None)) is not None:
            setattr(clone, name, Function(function, options, routed=True).recovered())
    setattr(clone, RECOVERS, True)
    return clone
