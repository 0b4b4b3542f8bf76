"""`Hooks`: functions of the application that an agent's loop calls at its fixed points."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.faults import InvalidError
from holdfast.providers.messages import Request, ToolCall

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.agents.parts import AgentPart

__all__ = ["Hooks", "hooks_of"]


class Hooks(msgspec.Struct, frozen=True, kw_only=True):
    """Functions that an agent calls at fixed points of its loop. Each may be async.

        def only_reads(call):
            return None if call.name.startswith("read") else "this agent may only read"

        agent = Agent("reader", model, tools, hooks=Hooks(guard=only_reads))

    A transform or guard that raises ends the run with its error. An observer that raises is ignored, and reported once.
    """

    transform: Callable[[Request], Request | Awaitable[Request]] | None = None
    """Gets each request before it is sent, and returns the one that is sent."""
    observer: Callable[[Any], object] | None = None
    """Gets each part of the run, as `Agent.stream` yields it."""
    guard: Callable[[ToolCall], str | Awaitable[str | None] | None] | None = None
    """Gets each tool call before it is run. A text denies it: the model gets the text, and may do something else."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
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


if TYPE_CHECKING:

    def _observes(part: AgentPart) -> None: ...

    Hooks(observer=_observes)
