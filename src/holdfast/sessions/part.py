"""Parts of a program that have their own key, such as the tool calls of an agent.

Invariant: steps and questions inside of a part are counted apart from all others of the session. So a part that is left out, because its
result is stored, takes nothing from another one.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from holdfast.once.identity import within

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.once.identity import Identity
    from holdfast.sessions.journal import Journal

__all__ = ["known_as", "part"]

_PART: ContextVar[tuple[Journal, str] | None] = ContextVar("holdfast_part", default=None)
"""The part that the running code belongs to: its session's journal, and its key."""


@contextmanager
def part(journal: Journal, key: str) -> Iterator[None]:
    """A part with its own key: see `Session.part`."""
    token = _PART.set((journal, key))
    try:
        yield
    finally:
        _PART.reset(token)


def known_as(journal: Journal, identity: Identity) -> Identity:
    """Return what a step or question of this journal is known by here: inside of a part by the part's key too."""
    around = _PART.get()
    if around is None or around[0] is not journal or identity.key:
        return identity
    return within(identity, around[1])
