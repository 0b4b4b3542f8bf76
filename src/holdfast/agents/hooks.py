"""`Hooks`: functions of the application that an agent's loop calls at its fixed points."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import options
from holdfast.agents.validators import Validator
from holdfast.faults import InvalidError
from holdfast.providers.messages import Request, ToolCall

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.agents.parts import AgentPart

__all__ = ["Hooks", "guards_of", "hooks_of"]


class Hooks(msgspec.Struct, frozen=True, kw_only=True):
    """Functions that an agent calls at fixed points of its loop. Each may be async.

        def only_reads(call):
            return None if call.name.startswith("read") else "this agent may only read"

        agent = Agent("reader", model, tools, hooks=Hooks(guard=only_reads))

    Guards and observers get copies: what they change in them changes nothing. A transform or guard that raises ends the run with its error. An observer that raises is ignored, and reported once.
    """

    transform: Callable[[Request], Request | Awaitable[Request]] | None = None
    """Gets each request before it is sent, and returns the one that is sent."""
    observer: Callable[[Any], object] | None = None
    """Gets each part of the run, as `Agent.stream` yields it."""
    guard: Callable[[ToolCall], str | bool | Awaitable[str | bool | None] | None] | None = None
    """Gets each tool call before it is run. None or True allows it. A text denies it: the model gets the text, and may do something else.
    Anything else raises `InvalidError`, and the call is not run."""
    validators: Sequence[Validator] = ()
    """Check tool calls, their results and the answer, in this order; they pass, correct or reject them."""

    def __post_init__(self) -> None:
        for validator in options.listed("hooks.validators", self.validators, "validators"):
            if not isinstance(validator, Validator):
                raise InvalidError.at("hooks.validators", "several of Validator(…)", validator)
        for name in ("transform", "observer", "guard"):
            given = getattr(self, name)
            if given is not None and not callable(given):
                raise InvalidError.at(f"hooks.{name}", "a function", given)


def hooks_of(given: Hooks | Iterable[Hooks] | None) -> tuple[Hooks, ...]:
    """Return the hooks that an agent was given, one or several."""
    hooks = () if given is None else (given,) if isinstance(given, Hooks) else tuple(given)
    for one in hooks:
        if not isinstance(one, Hooks):
            raise InvalidError.at("agent.hooks", "Hooks(transform=…, observer=…, guard=…), or several", one)
    return hooks


def guards_of(hooks: Iterable[Hooks]) -> list[Callable[[ToolCall], Awaitable[str | None]]]:
    """Return the guards as functions that return why a call is denied, or None."""
    return [_checked(one.guard) for one in hooks if one.guard is not None]


def _checked(guard: Callable[[ToolCall], Any]) -> Callable[[ToolCall], Awaitable[str | None]]:
    async def verdict(call: ToolCall) -> str | None:
        # A copy: a person may have approved exactly these arguments.
        given = guard(copy.deepcopy(call))
        if inspect.isawaitable(given):
            given = await given
        if given is None or given is True:
            return None
        if isinstance(given, str) and given.strip():
            return given
        expected = "a function that returns None or True to allow a call, or a text that says why it is denied"
        raise InvalidError.at("hooks.guard", expected, given)

    return verdict


if TYPE_CHECKING:

    def _observes(part: AgentPart) -> None: ...

    Hooks(observer=_observes)
