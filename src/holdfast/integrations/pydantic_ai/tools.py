"""Tool functions of pydantic-ai: repeated only where that does no harm, and reported to the model when they fail.

Invariant: the decorated function has the signature of the original function.
"""

from __future__ import annotations

import functools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, overload

from pydantic_ai.exceptions import UserError

from holdfast import options
from holdfast._steps import Steps, twin
from holdfast.integrations.calls import Calls
from holdfast.integrations.pydantic_ai.exceptions import PASSING, for_the_model
from holdfast.policies.target import Target
from holdfast.runtime.callables import is_async, name_of, reject_generator
from holdfast.runtime.tool import contract_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast.policies import Effect, Policy
    from holdfast.runtime.runtime import Runtime

__all__ = ["recovering_tool"]

F = TypeVar("F", bound="Callable[..., Any]")

Failures = Literal["tell", "raise"]

_RAISED_AS_THEY_ARE: tuple[type[Exception], ...] = (*PASSING, UserError)
"""Exceptions that reach pydantic-ai unchanged: those that steer it, and mistakes of the developer, which no model can fix."""


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
@options.suggests
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

        @agent.tool_plain
        @recovering_tool(effect="read")
        async def weather(city: str) -> str: ...

    `effect` declares what a call does to the world; the function's own `@holdfast.tool` wins. A tool without a declared
    effect is called once. When a tool has failed for good, `failures="tell"` reports it to the model (`for_the_model`), and
    `failures="raise"` raises the tool's own exception, which ends the run. Raises `InvalidError` for a generator function
    and for options that are not valid.
    """
    if fn is None:
        return functools.partial(
            recovering_tool, effect=effect, policy=policy, name=name, failures=failures, runtime=runtime
        )
    options.one_of("recovering_tool.failures", failures, get_args(Failures))
    reject_generator(fn)
    # Without a declared effect nobody knows whether a second call does harm. The function then reports failures, but is not
    # retried.
    declared = effect is not None or contract_of(fn) is not None
    target = Target(tool=name or name_of(fn).rpartition(".")[2])
    calls = Calls(target, policy, passing=PASSING, effect=effect, fn=fn, runtime=runtime) if declared else None
    is_sync = not is_async(fn)

    def recovered(*args: Any, **kwargs: Any) -> Steps[Any]:
        def attempt() -> Any:
            return fn(*args, **kwargs)

        with _reported(failures):
            if calls is None:
                return (yield attempt())
            return (yield (calls.call if is_sync else calls.acall)(attempt))

    return functools.wraps(fn)(twin(recovered, is_sync=is_sync))


@contextmanager
def _reported(failures: Failures) -> Iterator[None]:
    """Turn a failure inside into a message for the model, unless it is to be raised."""
    try:
        yield
    except _RAISED_AS_THEY_ARE:
        raise
    except Exception as error:
        if failures == "raise":
            raise
        raise for_the_model(error) from error
