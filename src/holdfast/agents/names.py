"""One agent per name in a session. What a session stores for an agent is found by its name: its conversation, its runs, its usage limit.

Invariant: two agents that differ do not share what is stored. The same agent may be made again, for each message for example.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

from holdfast.faults import InvalidError

if TYPE_CHECKING:
    from collections.abc import Hashable

    from holdfast.agents.kind import AnyAgent
    from holdfast.sessions.session import Session

__all__ = ["take_names"]


class _Holder(NamedTuple):
    agent: weakref.ref[Any]
    made_of: Hashable


_NAMES: WeakKeyDictionary[Session, dict[str, _Holder]] = WeakKeyDictionary()
"""The agents that have run in a session of this process, by name."""


def take_names(session: Session, agent: AnyAgent) -> None:
    """Note that an agent runs in a session, with the agents among its tools.

    Raise `InvalidError` if another agent with its name has run there, and both are still in use. The attribute `made_of` of an agent is equal
    for two objects that stand for the same agent; one without it stores nothing by its name.
    """
    made_of = getattr(agent, "made_of", None)
    if made_of is not None:
        _take(session, agent, made_of)
    for inner in getattr(agent, "agents", ()):
        take_names(session, inner)


def _take(session: Session, agent: AnyAgent, made_of: Hashable) -> None:
    holders = _NAMES.setdefault(session, {})
    holder = holders.get(agent.name)
    other = None if holder is None else holder.agent()
    if holder is not None and other is not None and holder.made_of != made_of:
        raise InvalidError.saying(
            "agent.name",
            f"a name of its own for each agent of session {session.id!r}, because the session finds an agent's conversation by it",
            f"{agent.name!r} for two agents: {other!r} and {agent!r}, which differ",
        )
    if other is not agent:
        holders[agent.name] = _Holder(weakref.ref(agent), made_of)
