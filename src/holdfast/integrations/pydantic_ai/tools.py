"""Tool functions of pydantic-ai: repeated only where that does no harm, and told to the model when they fail.

Invariant: the function that comes back has the signature of the one that went in.
"""

from __future__ import annotations

import functools
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, overload

from pydantic_ai.exceptions import ModelRetry, ToolFailed, UserError

from holdfast import options
from holdfast.faults import NextActor
from holdfast.integrations.passing import Calls
from holdfast.integrations.pydantic_ai.signals import PASSING
from holdfast.policies.target import Target
from holdfast.runtime.callables import is_async, name_of, refuse_generator
from holdfast.runtime.fault_of import fault_of
from holdfast.runtime.tool import contract_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.policies import Effect, Policy
    from holdfast.runtime.runtime import Runtime

__all__ = ["for_the_model", "recovering_tool"]

F = TypeVar("F", bound="Callable[..., Any]")

Failures = Literal["tell", "raise"]

_NOT_TOLD: tuple[type[Exception], ...] = (*PASSING, UserError)


def for_the_model(error: Exception) -> ModelRetry | ToolFailed:
    """Return what to raise in a tool so that the model learns of a failure: what it may know, and nothing else.

    `ModelRetry` where the model can do something about it, such as other arguments; else `ToolFailed`.
    """
    fault = fault_of(error)
    text = json.dumps(fault.for_model())
    return ModelRetry(text) if fault.next_actor is NextActor.MODEL else ToolFailed(text)


@overload
def recovering_tool(fn: F) -> F: ...
@overload
def recovering_tool(
    *,
    effect: Effect | None = None,
    policy: Policy | None = None,
    name: str | None = None,
    failures: Failures = "tell",
    runtime: Runtime | None = None,
) -> Callable[[F], F]: ...
def recovering_tool(
    fn: Any = None,
    *,
    effect: Effect | None = None,
    policy: Policy | None = None,
    name: str | None = None,
    failures: Failures = "tell",
    runtime: Runtime | None = None,
) -> Any:
    """Decorate a tool function, below `@agent.tool`, so that its calls recover.

    `effect` says what calling it does (the function's own `@holdfast.tool` wins); a tool nobody has said that of is called
    once. A tool that has failed for good tells the model (`for_the_model`), or with `failures="raise"` ends the run.
    """
    if fn is None:
        return functools.partial(
            recovering_tool, effect=effect, policy=policy, name=name, failures=failures, runtime=runtime
        )
    options.one_of("recovering_tool.failures", failures, get_args(Failures))
    refuse_generator(fn)
    declared = effect is not None or contract_of(fn) is not None
    target = Target(tool=name or name_of(fn).rpartition(".")[2])
    calls = Calls(target, policy, passing=PASSING, effect=effect, fn=fn, runtime=runtime) if declared else None
    if is_async(fn):

        @functools.wraps(fn)
        async def recovered_async(*args: Any, **kwargs: Any) -> Any:
            async def attempt() -> Any:
                return await fn(*args, **kwargs)

            with _telling(failures):
                return await (attempt() if calls is None else calls.acall(attempt))

        return recovered_async

    @functools.wraps(fn)
    def recovered(*args: Any, **kwargs: Any) -> Any:
        with _telling(failures):
            return fn(*args, **kwargs) if calls is None else calls.call(lambda: fn(*args, **kwargs))

    return recovered


@contextmanager
def _telling(failures: Failures) -> Iterator[None]:
    """Turn what fails inside into words for the model, if so asked."""
    try:
        yield
    except _NOT_TOLD:
        raise
    except Exception as error:
        if failures == "raise":
            raise
        raise for_the_model(error) from error
