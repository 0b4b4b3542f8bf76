"""Recovery for nodes of a LangGraph graph, by our own loop or by LangGraph's loop with our classifier.

Invariant: interrupts, commands to a parent graph and a drain pass through. They control the graph and are not failures.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, overload

from langgraph.errors import GraphBubbleUp
from langgraph.runtime import get_runtime
from langgraph.types import RetryPolicy

from holdfast import options
from holdfast._steps import Steps, twin
from holdfast.integrations.calls import Calls
from holdfast.integrations.langchain.retries import warn_of_loops_around
from holdfast.integrations.recovery_warnings import warn
from holdfast.policies.backoff import Backoff
from holdfast.runtime.callables import is_async, name_of, reject_generator
from holdfast.runtime.fault_of import fault_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from langgraph.runtime import ExecutionInfo

    from holdfast.policies import Effect, Policy
    from holdfast.policies.target import TargetLike
    from holdfast.runtime.runtime import Runtime

__all__ = ["PASSING", "GivenUp", "recovering_node", "retry_policy"]

F = TypeVar("F", bound="Callable[..., Any]")

PASSING: tuple[type[Exception], ...] = (GraphBubbleUp,)
"""Exceptions that steer LangGraph: GraphInterrupt, ParentCommand, GraphDrained."""

_ATTEMPTS = 3
_MAX_MARKS = 1000
_MAX_CHECKS = 8


# --- LangGraph's loop with our classifier ---


def retry_policy(policy: Policy | None = None) -> RetryPolicy:
    """Return a LangGraph `RetryPolicy` with the numbers of `policy`, whose `retry_on` is our classifier.

        graph.add_node("ask", ask, retry_policy=retry_policy())

    LangGraph computes its own delays. It knows no Retry-After, deadline or circuit: if you need those, use
    `recovering_node`. If a recovery inside the node has given up on a failure, LangGraph does not retry it.
    """
    backoff = (None if policy is None else policy.backoff) or Backoff()
    attempts = None if policy is None else policy.attempts
    return RetryPolicy(
        initial_interval=backoff.initial,
        backoff_factor=backoff.factor,
        max_interval=backoff.cap,
        max_attempts=attempts or _ATTEMPTS,
        jitter=bool(backoff.jitter) and backoff.jitter != "none",
        retry_on=_is_retryable,
    )


def _is_retryable(error: Exception) -> bool:
    return not isinstance(error, PASSING) and fault_of(error).retryable


# --- our loop ---


@overload
def recovering_node(node: F) -> F: ...
@overload
def recovering_node(
    *,
    policy: Policy | None = None,
    name: TargetLike | None = None,
    effect: Effect | None = None,
    runtime: Runtime | None = None,
) -> Callable[[F], F]: ...
@options.suggests
def recovering_node(
    node: Any = None,
    *,
    policy: Policy | None = None,
    name: TargetLike | None = None,
    effect: Effect | None = None,
    runtime: Runtime | None = None,
) -> Any:
    """Decorate a node, sync or async, so that it recovers.

        @recovering_node(effect="read")
        async def ask(state): ...

        graph.add_node("ask", ask)

    `name` is the name of the target in circuits and events, by default `agent:` and the function's name. `effect` declares
    what running the node does to the world; the node's own `@holdfast.tool` wins. A node that declares nothing runs again only
    if its failure shows that nothing happened, such as a refused connection or a 429; one that only asks a model is `"read"`.
    Do not give such a node a `retry_policy` too, because then both would retry. The node raises its own exceptions. The
    decorator raises `InvalidError` for a generator function.
    """
    if node is None:
        return functools.partial(recovering_node, policy=policy, name=name, effect=effect, runtime=runtime)
    reject_generator(node)
    target = f"agent:{name_of(node).rpartition('.')[2]}" if name is None else name
    calls = Calls(target, policy, passing=PASSING, effect=effect, fn=node, repeats="on-evidence", runtime=runtime)
    given_up = GivenUp()
    is_sync = not is_async(node)

    def recovered(*args: Any, **kwargs: Any) -> Steps[Any]:
        given_up.warn_if_tried_again()
        with given_up.marked():
            return (yield (calls.call if is_sync else calls.acall)(lambda: node(*args, **kwargs)))

    return functools.wraps(node)(twin(recovered, is_sync=is_sync))


# --- LangGraph's loop around ours ---


class GivenUp:
    """What LangGraph or LangChain do after one model, agent or node has given up. Each of those has its own."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[str, None] = OrderedDict()
        """The tasks of graphs in which it gave up, newest last."""
        self._checks_left = _MAX_CHECKS
        """How many more failures look for loops around them. Afterwards a failure costs nothing more."""

    @contextmanager
    def marked(self) -> Iterator[None]:
        """Remember that the call inside failed for good in the present task of a graph."""
        try:
            yield
        except PASSING:
            # An interrupt ends the task too, but its next run is not a retry.
            raise
        except Exception:
            execution = _execution()
            if execution is not None:
                self._tasks[execution.task_id] = None
                # Most graphs never run such a task again, so nothing else would remove its mark.
                while len(self._tasks) > _MAX_MARKS:
                    self._tasks.popitem(last=False)
            if self._checks_left:
                self._checks_left = 0 if warn_of_loops_around() else self._checks_left - 1
            raise

    def warn_if_tried_again(self) -> None:
        """Warn if LangGraph runs a node again in which this recovery gave up."""
        if not self._tasks:
            return
        execution = _execution()
        if execution is not None and execution.node_attempt > 1 and self._tasks.pop(execution.task_id, _ABSENT) is None:
            warn(
                "the node's own retry_policy runs it again after its recovery had given up, so attempts multiply: give "
                "the node none, or holdfast.langchain.retry_policy()",
            )


_ABSENT = object()


def _execution() -> ExecutionInfo | None:
    try:
        return get_runtime().execution_info
    except (RuntimeError, AttributeError, KeyError):
        return None  # not in a graph
