"""What an agent remembers of a session: the messages of its earlier runs, so that the next run continues the conversation.

Each run adds its own messages to the session's context, and the session stores what changed. So a long conversation is not written
again with each turn.

The context is saved with the end of a turn, and with the end of the session's block. If the program is killed before, it is run again and
repeats its runs from what is stored, so that they are remembered again.

Invariant: a run that is repeated after a crash is remembered once. A turn that fails is not remembered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.providers.messages import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.sessions.session import Session

__all__ = ["remember", "remembered"]

_CONTEXT = "holdfast.agents"
"""The name in `Session.context` under which the conversations are: by agent, then by turn (0: outside of turns) and run."""


def remembered(session: Session, agent: str, run: str) -> list[Message]:
    """Return the messages of the agent's earlier runs in this session, without those of the run itself."""
    messages: list[Message] = []
    for name in _earlier(session, _runs(session, agent), run):
        messages += msgspec.json.decode(_runs(session, agent)[name], type=list[Message])
    return messages


def remember(session: Session, agent: str, run: str, messages: Sequence[Message], *, anew: bool) -> None:
    """Remember the messages that a run added. With `anew` they stand for the whole conversation, which was made shorter."""
    turn = session.current_turn
    if turn is not None and turn.replayed:
        # The context has them already.
        return
    runs = session.context.setdefault(_CONTEXT, {}).setdefault(agent, {})
    for name in _earlier(session, runs, run) if anew else ():
        del runs[name]
    # As text: the session compares its whole context with the stored one at each turn, and texts are compared fast.
    runs[_name(session, run)] = msgspec.json.encode(messages).decode()


def _runs(session: Session, agent: str) -> dict[str, Any]:
    agents = session.context.get(_CONTEXT)
    found = agents.get(agent) if isinstance(agents, dict) else None
    return found if isinstance(found, dict) else {}


def _earlier(session: Session, runs: dict[str, Any], run: str) -> list[str]:
    """Return the names of the runs that were made before this one.

    A program that is run from its start again repeats earlier runs. They must not see what came after them.
    """
    names, own, turn = list(runs), _name(session, run), session.current_turn
    before = names[: names.index(own)] if own in runs else names
    return [name for name in before if turn is None or int(name.partition("/")[0]) <= turn.number]


def _name(session: Session, run: str) -> str:
    return f"{_turn(session)}/{run}"


def _turn(session: Session) -> int:
    turn = session.current_turn
    return 0 if turn is None else turn.number
