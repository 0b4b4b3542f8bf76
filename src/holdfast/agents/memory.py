"""What an agent remembers of a session: the messages of its earlier runs, and the runs that failed.

Each run adds its own messages to the session's context, and the session stores what changed. So a long conversation is not written
again with each turn.

A run that failed is continued if it is started again with the same prompt, in this process as after a crash: otherwise its unsafe calls
would be made a second time.

Invariant: a run that is repeated after a crash is remembered once. A turn that fails is not remembered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import msgspec

from holdfast.providers.messages import Message

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.sessions.session import Session
    from holdfast.sessions.step_runner import StepRunner
    from holdfast.sessions.turn import Turn

__all__ = ["Unfinished", "remember", "remembered"]

_CONTEXT = "holdfast.agents"
"""The name in `Session.context` under which the conversations are: by agent, then by turn and run."""


class Unfinished:
    """The runs that failed in this process."""

    def __init__(self) -> None:
        self._turns: WeakKeyDictionary[Session, tuple[int | None, str]] = WeakKeyDictionary()
        """The turn that a failed run outside of `turn` blocks has left in flight, and its prompt."""
        self._runs: WeakKeyDictionary[StepRunner, dict[str, list[str]]] = WeakKeyDictionary()
        """The failed runs inside of a turn, by their prompt."""

    def leave_turn(self, session: Session, prompt: str) -> None:
        """Note that a run failed, and left its turn in flight."""
        self._turns[session] = session.in_flight, prompt

    def continues(self, session: Session, prompt: str) -> bool:
        """Whether the turn in flight is of a run with this prompt that failed."""
        return session.in_flight is not None and self._turns.pop(session, None) == (session.in_flight, prompt)

    def leave_run(self, turn: Turn, prompt: str, run: str) -> None:
        """Note that a run failed inside of a turn."""
        self._runs.setdefault(turn.steps, {}).setdefault(prompt, []).append(run)

    def run(self, turn: Turn, prompt: str) -> str | None:
        """Return the id of a run of this turn with this prompt that failed, to continue it; None if there is none."""
        left = self._runs.get(turn.steps, {}).get(prompt)
        return left.pop(0) if left else None


def remembered(session: Session, agent: str, run: str) -> list[Message]:
    """Return the messages of the agent's earlier runs in this session, without those of the run itself."""
    runs = _runs(session, agent)
    own, turn = _name(session, run), _turn(session)
    messages: list[Message] = []
    for name, entry in runs.items():
        # A program that is run from its start again repeats earlier turns. They must not see what came after them.
        if name != own and int(name.partition("/")[0]) <= turn:
            messages += msgspec.json.decode(entry, type=list[Message])
    return messages


def remember(session: Session, agent: str, run: str, messages: Sequence[Message], *, anew: bool) -> None:
    """Remember the messages that a run added. With `anew` they stand for the whole conversation, which was made shorter."""
    turn = session.current_turn
    if turn is not None and turn.replayed:
        # The context has them already.
        return
    runs = session.context.setdefault(_CONTEXT, {}).setdefault(agent, {})
    if anew:
        runs.clear()
    # As text: the session compares its whole context with the stored one at each turn, and texts are compared fast.
    runs[_name(session, run)] = msgspec.json.encode(messages).decode()


def _runs(session: Session, agent: str) -> dict[str, Any]:
    agents = session.context.get(_CONTEXT)
    found = agents.get(agent) if isinstance(agents, dict) else None
    return found if isinstance(found, dict) else {}


def _name(session: Session, run: str) -> str:
    return f"{_turn(session)}/{run}"


def _turn(session: Session) -> int:
    turn = session.current_turn
    return 0 if turn is None else turn.number
