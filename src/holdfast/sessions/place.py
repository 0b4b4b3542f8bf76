"""Where the running code is in a session: inside of which step, and of which part with its own key, such as a tool call of an agent.

Invariant: steps and questions inside of a step or a part are counted apart from all others of the session. So one that is left out, because
its result is stored, takes nothing from another one.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from holdfast.once.identity import within
from holdfast.once.place import in_part, in_step

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from holdfast.once.identity import Identity
    from holdfast.once.replay import Use
    from holdfast.sessions.journal import Journal

__all__ = ["Here", "here", "inside", "known_as", "part", "uses_around"]


class Here:
    """A block of the program that is a place of its own. `with here:` is the block."""

    __slots__ = ("_token", "around", "journal", "part", "places", "use")

    def __init__(self, journal: Journal, place: str, part: str, use: Use | None) -> None:
        self.journal = journal
        self.part = part
        """The key of the innermost part; empty if there is none."""
        self.use = use
        """The use of the step whose function this is, if it is one."""
        self.around = _HERE.get()
        known = here(journal)
        self.places: tuple[str, ...] = (*(() if known is None else known.places), place)
        """The places around the running code, the innermost last."""

    @property
    def place(self) -> str:
        """What the place is known by."""
        return self.places[-1]

    def __enter__(self) -> None:
        self._token = _HERE.set(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        _HERE.reset(self._token)


_HERE: ContextVar[Here | None] = ContextVar("holdfast_here", default=None)


def here(journal: Journal) -> Here | None:
    """Return where the running code is in the session of this journal; None if it is in no step or part of it."""
    around = _HERE.get()
    while around is not None and around.journal is not journal:
        around = around.around
    return around


def uses_around() -> set[Use]:
    """Return the uses of all steps that the running code is inside of, in whatever session."""
    found, around = set(), _HERE.get()
    while around is not None:
        if around.use is not None:
            found.add(around.use)
        around = around.around
    return found


def inside(journal: Journal, use: Use) -> Here:
    """Return the block of a step's function."""
    around = here(journal)
    return Here(journal, in_step(use.name), "" if around is None else around.part, use)


@contextmanager
def part(journal: Journal, key: str) -> Iterator[None]:
    """A part with its own key: see `Session.part`."""
    with Here(journal, in_part(key), key, None):
        yield


def known_as(journal: Journal, identity: Identity) -> Identity:
    """Return what a question of this journal, or a step of an earlier version, is known by here: inside of a part by the part's key too."""
    around = here(journal)
    return identity if around is None or not around.part or identity.key else within(identity, around.part)
