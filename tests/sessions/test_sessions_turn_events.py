"""The events of a session's turns: they name the session and the turn."""

from __future__ import annotations

import pytest

from holdfast import Runtime, Session
from holdfast.events import SessionTurnEnd, SessionTurnStart
from holdfast.stores import MemoryStore
from holdfast.testing import run


def test_N2_5_a_turn_tells_when_it_begins_and_how_it_ends():
    seen = []
    runtime = Runtime()
    runtime.on(seen.append, SessionTurnStart, SessionTurnEnd)

    async def main():
        async with Session.open("s", store=MemoryStore(), runtime=runtime) as session:
            async with session.turn("a"):
                pass
            with pytest.raises(ValueError, match="no"):
                async with session.turn("b"):
                    raise ValueError("no")

    run(main())
    assert [(type(e).__name__, e.session, e.turn, e.number, getattr(e, "outcome", "")) for e in seen] == [
        ("SessionTurnStart", "s", 1, 1, ""),
        ("SessionTurnEnd", "s", 1, 1, "ok"),
        ("SessionTurnStart", "s", 2, 2, ""),
        ("SessionTurnEnd", "s", 2, 2, "failed"),
    ]
