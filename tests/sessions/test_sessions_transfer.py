"""Sessions out of a store and into another: our own JSON Lines, and document 000's file (S0-28, C25)."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sessions_kit import Crash, code_of, killed, square

from holdfast.faults import HoldfastError
from holdfast.sessions import Session
from holdfast.sessions.session_file import PersistedCheckpoint, PersistedSession, dump, load, save
from holdfast.sessions.transfer import export_lines, import_lines
from holdfast.stores import MemoryStore, verify_store
from holdfast.testing import run


async def worked() -> MemoryStore:
    """A store with a session killed in its first turn."""
    store = MemoryStore()
    async with Session.open("s", store=store, model="opus") as session:
        await session.step(square, 3)
        await session.message("hello")

    async def cut(session: Session) -> None:
        async with session.turn("cut"):
            await session.step(square, 4)
            raise Crash

    await killed(store, cut, model="opus")
    return store


async def exported(store: Any) -> list[bytes]:
    return [line async for line in export_lines(store, "s")]


def test_a_session_goes_on_in_the_store_it_was_carried_to() -> None:
    async def main() -> None:
        store, other = await worked(), MemoryStore()
        assert await import_lines(other, await exported(store)) == "s"
        record = await other.session("s")
        assert record.state == "paused"
        assert record.epoch != (await store.session("s")).epoch
        async with Session.open("s", store=other, model="opus", strict=True) as session:
            assert session.in_flight == 1
            done: list[int] = []

            def again(n: int) -> int:
                done.append(n)
                return n

            again.__qualname__ = "square"
            async with session.turn("cut"):
                assert await session.step(again, 4) == 16
            assert await session.step(again, 3) == 9
            assert done == []
        assert (await verify_store(other)).sound

    run(main())


def test_a_compacted_log_is_carried_with_its_checkpoint() -> None:
    async def main() -> None:
        store, other = await worked(), MemoryStore()
        checkpoint = (await store.session("s")).checkpoint
        assert checkpoint is not None
        await store.compact("s", checkpoint + 1)
        await import_lines(other, await exported(store))
        record = await other.session("s")
        assert (record.oldest, record.checkpoint) == (1, 0)
        async with Session.open("s", store=other, model="opus") as session:
            assert session.in_flight == 1
            assert await session.step(square, 3) == 9
            assert (await other.checkpoint("s")) is not None

    run(main())


def test_the_audit_trail_comes_along_with_what_it_was_sealed_with() -> None:
    async def main() -> None:
        store, other = await worked(), MemoryStore()
        await import_lines(other, await exported(store))
        before, after = await store.audit("session:s"), await other.audit("session:s")
        assert len(after) == len(before) + 1
        for old, new in zip(before, after, strict=False):
            assert json.loads(bytes(new.payload))["imported"]["hash"] == old.hash
            assert (old.kind, old.correlation) == (new.kind, new.correlation)

    run(main())


def test_one_that_is_there_is_not_written_over() -> None:
    async def main() -> None:
        store = await worked()
        lines = await exported(store)
        before = await store.session("s")
        with pytest.raises(HoldfastError, match="exists already"):
            await import_lines(store, lines)
        assert await store.session("s") == before

    run(main())


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda lines: [], "Line 1"),
        (lambda lines: lines[:-1], "the file is cut"),
        (lambda lines: lines[1:], "its head first"),
        (lambda lines: [*lines, lines[-1]], "its end last"),
        (lambda lines: [lines[0], b"{", *lines[1:]], "Line 2"),
        (lambda lines: [b'{"head":{}}', *lines[1:]], "Line 1"),
        (lambda lines: [lines[0].replace(b"session/1", b"session/9"), *lines[1:]], "expected schema"),
        (lambda lines: [*lines[:2], *lines[3:]], "expected entry 1, got 2"),
        (lambda lines: [*lines[:-2], lines[-1]], "entries and"),
        (lambda lines: [b"\xff", *lines], "Line 1"),
    ],
)
def test_a_file_that_cannot_be_read_is_rejected_with_its_line_and_nothing_is_stored(spoil: Any, says: str) -> None:
    async def main() -> None:
        lines = await exported(await worked())
        other = MemoryStore()
        with pytest.raises(HoldfastError, match=says) as raised:
            await import_lines(other, spoil(lines))
        assert code_of(raised.value) == "SESS_MANIFEST_INVALID"
        assert await other.sessions() == []

    run(main())


def one(name: str) -> PersistedSession:
    at = datetime(2025, 3, 17, 10, 30, tzinfo=UTC)
    kept = PersistedCheckpoint(message_count=7, last_message_id="m-7", context_snapshot="…")
    return PersistedSession(
        id=name, agent_type="coder", working_directory="/srv", created_at=at, last_activity_at=at, checkpoint=kept
    )


def test_S0_28_the_file_is_a_pretty_list_that_reads_back(tmp_path: Path) -> None:
    path = tmp_path / "sessions.json"
    assert load(path) == ([], [])
    save(path, [one("a"), one("b")])
    assert load(path) == ([one("a"), one("b")], [])
    listed = json.loads(path.read_text())
    assert path.read_text() == json.dumps(listed, indent=2, ensure_ascii=False) + "\n"
    assert list(listed[0]) == ["id", "agentType", "workingDirectory", "createdAt", "lastActivityAt", "checkpoint"]
    assert list(listed[0]["checkpoint"]) == ["messageCount", "lastMessageId", "contextSnapshot"]
    assert listed[0]["createdAt"] == "2025-03-17T10:30:00Z"
    assert path.stat().st_mode & 0o077 == 0


def test_C25_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sessions.json"
    save(path, [one("a")])
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        save(path, [one("b")])
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["sessions.json"]


@pytest.mark.parametrize("content", [b"", b"[{", b"{}", b"\xff\xfe", b"null"])
def test_C25_a_corrupt_file_is_an_error_that_names_it_and_is_not_written_over(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "sessions.json"
    path.write_bytes(content)
    for use in (lambda: load(path), lambda: save(path, [one("a")])):
        with pytest.raises(HoldfastError, match=r"sessions\.json") as raised:
            use()
        assert code_of(raised.value) == "SESS_MANIFEST_INVALID"
    assert path.read_bytes() == content


def test_C25_the_good_sessions_load_and_the_bad_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "sessions.json"
    bad = [{"id": "half"}, 7, json.loads(dump([one("x")]))[0] | {"createdAt": "yesterday"}]
    path.write_text(json.dumps([*json.loads(dump([one("a"), one("b")])), *bad]))
    before = path.read_bytes()
    sessions, problems = load(path)
    assert sessions == [one("a"), one("b")]
    assert [code_of(problem) for problem in problems] == ["SESS_MANIFEST_DRIFT"] * 3
    assert "Session 2 in" in str(problems[0])
    with pytest.raises(HoldfastError):
        save(path, sessions)
    assert path.read_bytes() == before


def test_a_file_that_may_not_be_read_is_no_empty_one(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        load(tmp_path)
