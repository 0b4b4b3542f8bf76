"""What an agent remembers of a session: the messages of its earlier runs, so that the next run continues the conversation.

Each run adds its own messages to the session's context, and the session stores what changed. So a long conversation is not written
again with each turn.

The context is saved with the end of a turn, and with the end of the session's block. If the program is killed before, it is run again and
repeats its runs from what is stored, so that they are remembered again. Runs inside of a step are not repeated once that step has ended, so
they are saved before it ends.

Invariant: a run that is repeated after a crash is remembered once. A turn that fails is not remembered. A run that made its
conversation shorter stands only for runs that it has seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import msgspec

from holdfast.providers.messages import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.sessions.session import Session

__all__ = ["messages_of", "remember", "runs_before", "save", "start"]

_CONTEXT = "holdfast.agents"
"""The name in `Session.context` under which the conversations are: by agent, then by turn (0: outside of turns) and run."""
_REPLACED = "holdfast.agents.replaced"
"""The name under which the runs are that made their conversation shorter: by agent and run, the runs that it stands for."""
_UNSEEN = "holdfast.agents.unseen"
"""The name under which the runs are that started while others went on: by agent and run, those others."""
_STARTED: WeakKeyDictionary[Session, dict[str, dict[str, None]]] = WeakKeyDictionary()
"""The runs that have started in this program, by session and agent."""


def start(session: Session, agent: str, run: str) -> list[str]:
    """Note that a run starts. Return the names of the runs that have started, and have not ended: it does not see them.

    The run stores them, because after a restart they may end before it starts.
    """
    started = _STARTED.setdefault(session, {}).setdefault(agent, {})
    own, runs = _name(session, run), _of(session, _CONTEXT, agent)
    started[own] = None
    return [name for name in started if name != own and name not in runs]


def runs_before(session: Session, agent: str, run: str, unseen: Sequence[str]) -> list[str]:
    """Return the names of the agent's earlier runs that this run continues, without those that a shorter conversation stands for."""
    names, own = _earlier(session, _of(session, _CONTEXT, agent), run), _name(session, run)
    others = _of(session, _UNSEEN, agent)
    # A run that did not see this one began after it, so this one has not seen that run either.
    names = [name for name in names if name not in unseen and own not in others.get(name, ())]
    replaced = _of(session, _REPLACED, agent)
    gone = {name for one in names for name in replaced.get(one, ())}
    return [name for name in names if name not in gone]


def messages_of(session: Session, agent: str, names: Sequence[str]) -> list[Message]:
    """Return the messages of these runs."""
    runs, messages = _of(session, _CONTEXT, agent), list[Message]()
    for name in names:
        if name in runs:
            messages += msgspec.json.decode(runs[name], type=list[Message])
    return messages


def remember(
    session: Session,
    agent: str,
    run: str,
    messages: Sequence[Message],
    *,
    unseen: Sequence[str] = (),
    replaces: Sequence[str] = (),
) -> None:
    """Remember the messages that a run added. If it was made shorter, they stand for the runs that it `replaces` too."""
    turn = session.current_turn
    if turn is not None and turn.replayed:
        # The context has them already.
        return
    own = _name(session, run)
    _forget_replaced(session, agent)
    for kind, names in ((_REPLACED, replaces), (_UNSEEN, unseen)):
        if names:
            session.context.setdefault(kind, {}).setdefault(agent, {})[own] = list(names)
    # As text: the session compares its whole context with the stored one at each turn, and texts are compared fast.
    text = session.storable(msgspec.json.encode(messages).decode())
    session.context.setdefault(_CONTEXT, {}).setdefault(agent, {})[own] = text


async def save(session: Session) -> None:
    """Store now what is remembered of this turn. A turn that is repeated has it stored."""
    turn = session.current_turn
    if turn is None or not turn.replayed:
        await session.checkpoint(_CONTEXT, _REPLACED, _UNSEEN)


def _forget_replaced(session: Session, agent: str) -> None:
    """Forget the runs that a shorter conversation stands for, once its turn has ended.

    Until then they stay: another run of that turn may have seen them, and needs them after a restart. Outside of turns nobody knows when
    the last such run has ended.
    """
    runs, replaced, unseen = (_of(session, name, agent) for name in (_CONTEXT, _REPLACED, _UNSEEN))
    for one in [name for name in replaced if 0 < _turn_in(name) < _turn(session)]:
        for name in replaced.pop(one):
            runs.pop(name, None)
            unseen.pop(name, None)


def _of(session: Session, name: str, agent: str) -> dict[str, Any]:
    agents = session.context.get(name)
    found = agents.get(agent) if isinstance(agents, dict) else None
    return found if isinstance(found, dict) else {}


def _earlier(session: Session, runs: dict[str, Any], run: str) -> list[str]:
    """Return the names of the runs that were made before this one.

    A program that is run from its start again repeats earlier runs. They must not see what came after them.
    """
    names, own = list(runs), _name(session, run)
    # A run that is not remembered, because it failed, is among the runs that those after it have not seen.
    return names[: names.index(own)] if own in runs else names


def _name(session: Session, run: str) -> str:
    return f"{_turn(session)}/{run}"


def _turn_in(name: str) -> int:
    return int(name.partition("/")[0])


def _turn(session: Session) -> int:
    turn = session.current_turn
    return 0 if turn is None else turn.number
