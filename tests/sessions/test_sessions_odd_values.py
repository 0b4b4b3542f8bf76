"""A value that JSON cannot hold is rejected where it is given; one that it can hold is recognised after a crash."""

from __future__ import annotations

import asyncio
import math
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from sessions_kit import Crash, killed

from holdfast.faults import HoldfastError, InvalidError
from holdfast.sessions import Session, transfer
from holdfast.sessions.transfer import export_lines, import_lines
from holdfast.stores import MemoryStore, SqliteStore
from holdfast.testing import run


@pytest.mark.parametrize("odd", [object(), math.nan, "\ud800"])
def test_a_message_or_a_turn_of_what_json_cannot_hold_is_rejected(odd: Any) -> None:
    async def main() -> None:
        async with Session.open("s", store=MemoryStore()) as session:
            with pytest.raises(InvalidError, match=r"session\.message"):
                await session.message(odd)
            with pytest.raises(InvalidError, match=r"turn\.given"):
                async with session.turn(odd):
                    pass
            async with session.turn("the next"):
                pass

    run(main())


@pytest.mark.parametrize("given", [("a", 1), {"a": (1, 2)}, "use sk-ant-api03-AbCd_1234-EfGh"])
def test_a_turn_that_was_cut_off_is_recognised_by_what_it_was_given(given: Any) -> None:
    async def main() -> None:
        store = MemoryStore()

        async def work(session: Session) -> None:
            async with session.turn(given):
                raise Crash

        await killed(store, work)
        async with Session.open("s", store=store) as session:
            with pytest.raises(HoldfastError, match="had another input"):
                async with session.turn("another"):
                    pass
            async with session.turn(given) as turn:
                assert turn.number == 1

    run(main())


def test_a_file_of_a_session_with_a_byte_that_is_no_text_is_rejected_with_its_line() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            await session.message("hello")
        lines = [line async for line in export_lines(store, "s")]
        broken = [line.replace(b'"created"', b'"\xe6"') if b'"audit":{' in line else line for line in lines]
        with pytest.raises(HoldfastError, match=r"Line [0-9]+ of the session file cannot be read"):
            await import_lines(MemoryStore(), broken)

    run(main())


@pytest.mark.parametrize(
    "checkpoint",
    ["null", '{"messageCount": 3, "lastMessageId": "m", "contextSnapshot": "any text"}', '{"messageCount": 0}'],
)
def test_S028_what_document_000_saved_comes_out_again_after_a_resume(checkpoint: str) -> None:
    async def main() -> None:
        times = '"createdAt": "2024-01-01T00:00:00Z", "lastActivityAt": "2024-01-01T00:00:00Z"'
        file = f'[{{"id": "a", "agentType": "x", "workingDirectory": "/", {times}, "checkpoint": {checkpoint}}}]'
        (saved,), _ = transfer.parse_persisted(file.encode(), "file")
        async with MemoryStore() as store:
            await transfer.put_persisted(store, saved)
            assert (await transfer.persisted(store, "a")).checkpoint == saved.checkpoint
            async with Session.open("a", store=store):
                pass
            after = (await transfer.persisted(store, "a")).checkpoint
            assert after is not None
            if saved.checkpoint is not None and saved.checkpoint.context_snapshot is not None:
                assert after == saved.checkpoint

    run(main())


@pytest.mark.parametrize("count", ["-1", "1e30", "10000000000000000000"])
def test_S028_a_count_that_is_none_is_a_problem_of_that_session(count: str) -> None:
    times = '"createdAt": "2024-01-01T00:00:00Z", "lastActivityAt": "2024-01-01T00:00:00Z"'
    file = f'[{{"id": "a", "agentType": "x", "workingDirectory": "/", {times}, "checkpoint": {{"messageCount": {count}}}}}]'
    loaded = transfer.parse_persisted(file.encode(), "file")
    assert (loaded.sessions, len(loaded.problems)) == ([], 1)


def open_files() -> list[str]:
    return [str(file.readlink()) for file in Path("/proc/self/fd").iterdir() if file.is_symlink()]


@pytest.mark.filterwarnings("ignore:SQLite:UserWarning")
@pytest.mark.skipif(sys.platform != "linux", reason="counts open files in /proc")
def test_a_cancelled_opening_leaves_no_store_open(tmp_path: Path) -> None:
    async def main() -> None:
        for n in range(8):
            opening = asyncio.ensure_future(SqliteStore(tmp_path / f"{n}.db").__aenter__())
            await asyncio.sleep(n / 2_000)
            opening.cancel()
            try:
                store = await opening
            except asyncio.CancelledError:
                pass
            else:
                await store.__aexit__()
        opened = open_files()
        assert not [name for name in opened if name.startswith(str(tmp_path))]
        assert "holdfast-sqlite" not in {thread.name for thread in threading.enumerate()}

    asyncio.run(main())
