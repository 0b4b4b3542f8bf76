"""Recovery for LangChain and LangGraph.

    recovering   a chat model, or any other runnable, whose calls recover
    chat_models  chat models: their own class, with recovery around every request
    runnables    every other runnable, recovered as a whole
    middleware   `RecoveryMiddleware` for agents: model calls with fallback models, tool calls by their effect
    graph        nodes of a graph: `recovering_node`, and `retry_policy` for LangGraph's own loop
    saver        `StoreSaver`: checkpoints in a store of ours
    retries      turns LangChain's own retries off where possible, and warns where not

Invariant: LangGraph's control flow (interrupts, commands to a parent, a drain) is never a failure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar, overload

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import Runnable

from holdfast import options
from holdfast.faults import InvalidError
from holdfast.integrations.calls import check_after_first
from holdfast.integrations.langchain.chat_models import recover_model
from holdfast.integrations.langchain.graph import recovering_node, retry_policy
from holdfast.integrations.langchain.middleware import RecoveryMiddleware
from holdfast.integrations.langchain.retries import is_bound_model, warn_of_retries_in
from holdfast.integrations.langchain.runnables import RecoveringRunnable
from holdfast.integrations.langchain.saver import StoreSaver
from holdfast.policies.decide import EFFECTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.policies import Effect, Policy
    from holdfast.runtime.runtime import Runtime
    from holdfast.runtime.streams.stream import AfterFirst

__all__ = ["RecoveryMiddleware", "StoreSaver", "recovering", "recovering_node", "retry_policy"]

M = TypeVar("M", bound=BaseChatModel)
Input = TypeVar("Input")
Output = TypeVar("Output")


@overload
def recovering(  # type: ignore[overload-overlap] # a chat model is a runnable too: the first that fits counts
    runnable: M,
    *,
    policy: Policy | None = None,
    name: str | None = None,
    effect: Effect | None = None,
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
    effect: Effect | None = None,
    after_first: AfterFirst = "raise",
    resume: Callable[[Any, Any], Any] | None = None,
    runtime: Runtime | None = None,
) -> Runnable[Input, Output]: ...
@options.suggests
def recovering(
    runnable: Any,
    *,
    policy: Policy | None = None,
    name: str | None = None,
    effect: Effect | None = None,
    after_first: AfterFirst = "raise",
    resume: Callable[[Any, Any], Any] | None = None,
    runtime: Runtime | None = None,
) -> Any:
    """Return a runnable like `runnable` whose calls recover, streams included; nothing changes on `runnable` itself.

        model = recovering(ChatAnthropic(model="claude-haiku-4-5"))
        agent = model.bind_tools([search]) | parser

    A chat model comes back as its own class with its client's retries off, so `bind_tools`, `with_structured_output` and
    pipes work as before. Any other runnable is recovered as a whole.

    `name` is the name of the target in circuits and events. By default it is the model's provider, or the runnable's name.
    `effect` declares what calling a runnable does to the world: `"read"`, `"idempotent"`, `"keyed"` or `"unsafe"`. A chat
    model needs none.
    `after_first` decides what a failure in the middle of a stream does. `"raise"` raises `StreamCutError` with the items
    that arrived. `"continue"` calls `resume(arrived, input)`, which returns the input for the rest of the answer.
    `"restart"` streams the answer again from its beginning; chat models do not support it. After a part of a tool call was
    delivered, the failure is always raised, because the parts of two answers do not fit together.

    Calls raise the runnable's own exceptions, or `CircuitOpenError`, `DeadlineError` and `BudgetError` where no call was
    made. `recovering` itself raises `InvalidError` for something that is not a runnable, and for options that conflict.
    """
    if not isinstance(runnable, Runnable):
        raise InvalidError.at("recovering.runnable", "a chat model, or another Runnable", runnable)
    if name is not None and not name:
        raise InvalidError.at("recovering.name", "a name such as 'claude', or None", name)
    if effect is not None:
        options.one_of("recovering.effect", effect, EFFECTS)
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
    warn_of_retries_in(runnable)
    return RecoveringRunnable(
        runnable, policy=policy, name=name, effect=effect, after_first=after_first, resume=resume, runtime=runtime
    )
