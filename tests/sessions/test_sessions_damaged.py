"""A session whose rows were damaged (B99, C25): it raises SESS_MANIFEST_DRIFT with its name and the place, at once."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

import pytest
from sessions_kit import code_of, square

from holdfast.faults import HoldfastError
from holdfast.sessions import Session, pending
from holdfast.sessions.admin import overview
from holdfast.sessions.transfer import export_lines
from holdfast.stores import SqliteStore, Store

pytestmark = pytest.mark.filterwarnings("ignore:SQLite:UserWarning")

BROKEN = {
    "a snapshot of something else": """UPDATE checkpoint SET snapshot = CAST('{"turn": "x"}' AS BLOB)""",
    "a snapshot that is no JSON": "UPDATE checkpoint SET snapshot = CAST('garbage' AS BLOB)",
    "an entry that lacks a part": """DELETE FROM checkpoint;
        UPDATE entry SET body = CAST('{"said": "step_ended", "turn": 1}' AS BLOB) WHERE type = 'step_ended'""",
    "an entry that is gone": "DELETE FROM checkpoint; DELETE FROM entry WHERE type = 'step_ended'",
    "the end of the log that is gone": "DELETE FROM entry WHERE pos = (SELECT max(pos) FROM entry)",
}


async def worked(store: Store) -> None:
    async with store, Session.open("s", store=store) as session:
        await session.step(square, 3)


@pytest.mark.parametrize("what", BROKEN)
def test_B99_a_damaged_session_raises_wherever_it_is_read(what: str, tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "work.db"
        await worked(SqliteStore(path))
        with sqlite3.connect(path) as connection:
            connection.executescript(BROKEN[what])
        connection.close()
        async with SqliteStore(path) as store:
            for read in (
                Session.open("s", store=store).__aenter__,
                lambda: overview(store, "s"),
                lambda: pending(store, "s"),
            ):
                with pytest.raises(HoldfastError, match="Session 's' is damaged") as raised:
                    await asyncio.wait_for(read(), 5)
                assert code_of(raised.value) == "SESS_MANIFEST_DRIFT"
            assert (await store.session("s")).owner is None

    asyncio.run(main())


def test_B99_a_log_whose_end_is_gone_is_not_exported_as_whole(tmp_path: Path) -> None:
    async def main() -> None:
        path = tmp_path / "work.db"
        await worked(SqliteStore(path))
        with sqlite3.connect(path) as connection:
            connection.execute("DELETE FROM entry WHERE pos = (SELECT max(pos) FROM entry)")
        connection.close()
        async with SqliteStore(path) as store, asyncio.timeout(5):
            with pytest.raises(HoldfastError, match="Session 's' is damaged"):
                _ = [line async for line in export_lines(store, "s")]

    asyncio.run(main())
