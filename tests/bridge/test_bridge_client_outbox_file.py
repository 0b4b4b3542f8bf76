"""The file of a client: what is in it after a restart, a kill, and a mistake."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from holdfast import HoldfastError
from holdfast.bridge.client.outbox_file import OutboxFile
from holdfast.wire.outbox import Outgoing
from holdfast.wire.position import Position


def run(work: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 20))


def test_messages_and_positions_are_there_again_in_order(tmp_path: Path) -> None:
    async def work() -> None:
        path = tmp_path / "new" / "outbox.db"
        file = await OutboxFile.open(path)
        client = file.client_id
        sent = [Outgoing(f"m{number}", "s", b"{%d}" % number, 9.0 if number else None) for number in range(50)]
        await asyncio.gather(*(file.add(message) for message in sent))
        file.remove("m3")
        for offset in range(1, 200):
            file.move("s", Position(epoch="e", offset=offset, id=f"i{offset}"))
        file.move("t", Position(epoch="e", offset=7))
        await file.close()
        assert path.stat().st_mode & 0o777 == 0o600
        again = await OutboxFile.open(path)
        assert again.client_id == client
        assert again.messages == [message for message in sent if message.id != "m3"]
        assert again.positions == {"s": Position(epoch="e", offset=199, id="i199"), "t": Position(epoch="e", offset=7)}
        await again.close()

    run(work)


_KILLED = """
import asyncio, sys
from holdfast.bridge.client.outbox_file import OutboxFile
from holdfast.wire.outbox import Outgoing

async def main():
    file = await OutboxFile.open(sys.argv[1])
    for number in range(10_000):
        await file.add(Outgoing(f"m{number}", "s", b"{}"))
        print(number, flush=True)

asyncio.run(main())
"""


def test_what_was_kept_survives_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "outbox.db"
    with subprocess.Popen([sys.executable, "-c", _KILLED, str(path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = [next(process.stdout) for _ in range(20)]
        os.kill(process.pid, signal.SIGKILL)
        told += process.stdout.readlines()

    async def work() -> None:
        file = await OutboxFile.open(path)
        kept = [message.id for message in file.messages]
        assert kept[: len(told)] == [f"m{number}" for number in range(len(told))]
        # One more may be written, and not told yet.
        assert len(kept) - len(told) in (0, 1)
        await file.close()

    run(work)


def test_a_second_client_with_the_same_file_is_told_so(tmp_path: Path) -> None:
    async def work() -> None:
        file = await OutboxFile.open(tmp_path / "outbox.db")
        with pytest.raises(HoldfastError, match="in use by another client"):
            await OutboxFile.open(tmp_path / "outbox.db")
        await file.close()
        await (await OutboxFile.open(tmp_path / "outbox.db")).close()

    run(work)


def test_a_damaged_file_is_named_and_left_as_it_is(tmp_path: Path) -> None:
    async def work() -> None:
        path = tmp_path / "outbox.db"
        path.write_bytes(b"not a database" * 100)
        with pytest.raises(HoldfastError, match="damaged"):
            await OutboxFile.open(path)
        assert path.read_bytes() == b"not a database" * 100

    run(work)


def test_a_file_of_a_newer_version_is_left_as_it_is(tmp_path: Path) -> None:
    async def work() -> None:
        path = tmp_path / "outbox.db"
        await (await OutboxFile.open(path)).close()
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA user_version = 9")
        connection.close()
        with pytest.raises(HoldfastError, match="newer version"):
            await OutboxFile.open(path)

    run(work)


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    async def work() -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(HoldfastError, match="cannot be written"):
            await OutboxFile.open(tmp_path / "file" / "outbox.db")

    run(work)


def test_a_message_that_cannot_be_kept_is_not_taken(tmp_path: Path) -> None:
    async def work() -> None:
        file = await OutboxFile.open(tmp_path / "outbox.db")
        await file.add(Outgoing("m1", "s", b"{}"))
        with pytest.raises(HoldfastError, match="cannot be written"):
            await file.add(Outgoing("m1", "s", b"{}"))
        await file.add(Outgoing("m2", "s", b"{}"))
        await file.close()

    run(work)
