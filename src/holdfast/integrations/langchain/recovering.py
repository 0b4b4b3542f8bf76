"""`recovering`: one word for chat models, models with tools bound to them, and every other runnable."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable

from holdfast.faults import InvalidError
from holdfast.integrations.langchain.chat_models import recover_model
from holdfast.integrations.langchain.quiet import is_bound_model, warn_of_retries_in
from holdfast.integrations.langchain.runnables import RecoveringRunnable
from holdfast.integrations.reading import check_after_first

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.policies import Policy
    from holdfast.runtime.runtime import Runtime
    from holdfast.runtime.stream import AfterFirst

__all__ = ["recovering"]

M = TypeVar("M", bound=BaseChatModel)
Input = TypeVar("Input")
Output = TypeVar("Output")


@overload
def recovering(  # type: ignore[overload-overlap] # a chat model is a runnable too: the first that fits counts
    runnable: M,
    *,
    policy: Policy | None = None,
    name: str | None = None,
    after_first: AfterFirst = "raise",
    resume: Callable[[Any, Any], Any] | None = None,
    runtime: Runtime | None = None,
) -> M: ...
@overload
def recovering(
    runnable: Runnable[Input, Output],
    *,
    policy: Policy | None = None,
    name: str | None = None,
    after_first: AfterFirst = "raise",
    resume: Callable[[Any, Any], Any] | None = None,
    runtime: Runtime | None = None,
) -> Runnable[Input, Output]: ...
def recovering(
    runnable: Any,
    *,
    policy: Policy | None = None,
    name: str | None = None,
    after_first: AfterFirst = "raise",
    resume: Callable[[Any, Any], Any] | None = None,
    runtime: Runtime | None = None,
) -> Any:
    """Return a runnable like `runnable` whose calls recover, streams included; nothing changes on `runnable` itself.

    A chat model comes back as its own class with its client's retries off: `bind_tools`, `with_structured_output` and
    pipes go on from there. Anything else is recovered as a whole. `name` is what circuits and events call it: by default
    the model's provider, or the runnable's name. `after_first` says what a failure in the middle of a stream does: `raise`
    with what arrived; `continue`, where `resume` is given what arrived and the input and returns the input for the rest;
    `restart` (not for chat models). Once a part of a tool call was delivered, it is always `raise`.
    """
    if not isinstance(runnable, Runnable):
        raise InvalidError.at("recovering.runnable", "a chat model, or another Runnable", runnable)
    if name is not None and not name:
        raise InvalidError.at("recovering.name", "a name such as 'claude', or None", name)
    check_after_first("recovering", after_first, ("raise", "continue", "restart"), resume)
    if isinstance(runnable, BaseChatModel):
        return recover_model(
            runnable, policy=policy, name=name, after_first=after_first, resume=resume, runtime=runtime
        )
    if is_bound_model(runnable):
        bound: Any = runnable
        model = recover_model(
            bound.bound, policy=policy, name=name, after_first=after_first, resume=resume, runtime=runtime
        )
        return bound.model_copy(update={"bound": model})
    warn_of_retries_in(runnable, above=1)
    return RecoveringRunnable(
        runnable, policy=policy, name=name, after_first=after_first, resume=resume, runtime=runtime
    )
