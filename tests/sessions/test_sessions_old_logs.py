"""Logs from before steps were known by module, bound arguments and place: each program goes on, and repeats nothing that is stored."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast import OutcomeUnknownError, Session
from holdfast.stores import MemoryStore, SqliteStore

FIXTURES = Path(__file__).parent / "fixtures"
sys.path.insert(0, str(FIXTURES))

import old_programs  # noqa: E402 - its folder is no package

LEFT: dict[str, list[Any]] = {
    "finished": [],
    "turn": [("note", "last")],
    "half_map": [("note", "c"), ("note", "d")],
    "agent": [("request", 3)],
    "nested": [("note", "inner"), ("note", "after")],
    "inner_workflow": [("note", "in"), ("note", "after")],
    "inner_agent": [("request", 3), ("note", "after")],
    "parallel": [("note", "a"), ("note", "b")],
    "workflow": [("note", "end")],
    "method": [("note", "end")],
}
"""What each program still had to do when it was killed."""


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    old_programs.DONE.clear()


def restored(name: str, folder: Path) -> SqliteStore:
    file = folder / "work.db"
    with sqlite3.connect(file) as database:
        database.executescript((FIXTURES / f"old_{name}.sql").read_text())
    return SqliteStore(file)


async def whole(name: str) -> Any:
    """What the program returns if nobody stops it."""
    result = await old_programs.run_program(name, MemoryStore())
    old_programs.DONE.clear()
    return result


@pytest.mark.parametrize("name", LEFT)
def test_XD4_a_log_of_the_code_before_is_resumed_and_repeats_nothing(name: str, tmp_path: Path) -> None:
    async def main() -> None:
        expected = await whole(name)
        async with restored(name, tmp_path) as store:
            assert await old_programs.run_program(name, store) == expected
            assert LEFT[name] == old_programs.DONE
            # What is written now is found again, too.
            if name != "turn":
                assert await old_programs.run_program(name, store) == expected
                assert LEFT[name] == old_programs.DONE

    asyncio.run(main())


def test_XD4_a_doubt_in_a_log_of_the_code_before_stays_one_until_it_is_resolved(tmp_path: Path) -> None:
    async def main() -> None:
        async with restored("doubt", tmp_path) as store:
            for _ in range(2):
                with pytest.raises(OutcomeUnknownError):
                    await old_programs.run_program("doubt", store)
            async with Session.open("doubt", store=store, mode="yolo") as session:
                (doubt,) = session.unknown
                await session.resolve(doubt, happened=True, result="it is there")
            assert await old_programs.run_program("doubt", store) == "it is there"
            assert old_programs.DONE == []

    asyncio.run(main())
