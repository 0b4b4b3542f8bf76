"""What a run of the program did in earlier openings of a session: a program may enter `Session.open` twice, one after the other.

Invariant: an opening goes on with the run of the one before it only if that ended well, in the same event loop, and no recovery around has begun
a later attempt since. After any other end the program may have begun from its start again. The answer decides what has drifted, and
never which call is which: an equal call of another opening is the same call.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import msgspec

from holdfast.once.replay import Attempts, is_later
from holdfast.sessions.siblings import attempts_around

if TYPE_CHECKING:
    from holdfast.sessions.journal import Journal

__all__ = ["Openings", "keep", "take"]

_MOST = 1_000
"""Sessions of one loop whose openings are known. One that is forgotten is taken for one of another run, which is safe."""


class Openings(msgspec.Struct, frozen=True):
    """What the run did in its openings of one session so far."""

    steps: frozenset[str] = frozenset()
    """The unsafe steps outside of turns that it called."""
    run: int = 0
    """The number of the first turn of the run; 0: it has none."""
    turns: frozenset[int] = frozenset()
    """The turns that it made."""
    attempts: Attempts = {}
    """The operations that were around."""


_NONE = Openings()
_KEPT: WeakKeyDictionary[asyncio.AbstractEventLoop, OrderedDict[tuple[str, str], Openings]] = WeakKeyDictionary()


def take(journal: Journal) -> Openings:
    """Return what the run did before this opening of the session. Only `keep` makes it known to the next one."""
    kept = _KEPT.get(asyncio.get_running_loop())
    found = _NONE if kept is None else kept.pop((journal.store.id, journal.session), _NONE)
    return _NONE if is_later(attempts_around(), found.attempts) else found


def keep(journal: Journal, openings: Openings) -> None:
    """Keep what the run did, at the end of an opening that ended well."""
    kept = _KEPT.setdefault(asyncio.get_running_loop(), OrderedDict())
    kept[journal.store.id, journal.session] = msgspec.structs.replace(openings, attempts=attempts_around())
    if len(kept) > _MOST:
        kept.popitem(last=False)
