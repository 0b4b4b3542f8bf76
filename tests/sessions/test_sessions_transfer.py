"""Sessions out of a store and into another: our own JSON Lines, and document 000's file (S0-28, C25)."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from sessions_kit import Crash, code_of, killed, square

from holdfast.faults import HoldfastError, InvalidError
from holdfast.sessions import Session
from holdfast.sessions.transfer import (
    PersistedCheckpoint,
    PersistedSession,
    dump_persisted,
    export_lines,
    import_lines,
    load_persisted,
    parse_persisted,
    persisted,
    save_persisted,
)
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
        assert (await import_lines(other, await exported(store))).session == "s"
        record = await other.session("s")
        assert record.state == "paused"
        assert record.epoch != (await store.session("s")).epoch
        async with Session.open("s", store=other, model="opus", strict=True) as session:
            assert session.in_flight == 1
            done: list[int] = []

            def again(n: int) -> int:
                done.append(n)
                return n

            again.__module__, again.__qualname__ = "sessions_kit", "square"
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
        (lambda lines: [*lines[:-2], lines[-1]], "claims and"),
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
    assert load_persisted(path) == ([], [])
    save_persisted(path, [one("a"), one("b")])
    assert load_persisted(path) == ([one("a"), one("b")], [])
    listed = json.loads(path.read_text())
    assert path.read_text() == json.dumps(listed, indent=2, ensure_ascii=False) + "\n"
    assert list(listed[0]) == ["id", "agentType", "workingDirectory", "createdAt", "lastActivityAt", "checkpoint"]
    assert list(listed[0]["checkpoint"]) == ["messageCount", "lastMessageId", "contextSnapshot"]
    assert listed[0]["createdAt"] == "2025-03-17T10:30:00Z"
    assert path.stat().st_mode & 0o077 == 0


def test_C25_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sessions.json"
    save_persisted(path, [one("a")])
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        save_persisted(path, [one("b")])
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["sessions.json"]


@pytest.mark.parametrize("content", [b"", b"[{", b"{}", b"\xff\xfe", b"null"])
def test_C25_a_corrupt_file_is_an_error_that_names_it_and_is_not_written_over(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "sessions.json"
    path.write_bytes(content)
    for use in (lambda: load_persisted(path), lambda: save_persisted(path, [one("a")])):
        with pytest.raises(HoldfastError, match=r"sessions\.json") as raised:
            use()
        assert code_of(raised.value) == "SESS_MANIFEST_INVALID"
    assert path.read_bytes() == content


def test_C25_the_good_sessions_load_and_the_bad_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "sessions.json"
    bad = [{"id": "half"}, 7, json.loads(dump_persisted([one("x")]))[0] | {"createdAt": "yesterday"}]
    path.write_text(json.dumps([*json.loads(dump_persisted([one("a"), one("b")])), *bad]))
    before = path.read_bytes()
    sessions, problems = load_persisted(path)
    assert sessions == [one("a"), one("b")]
    assert [code_of(problem) for problem in problems] == ["SESS_MANIFEST_DRIFT"] * 3
    assert "Session 2 in" in str(problems[0])
    with pytest.raises(HoldfastError):
        save_persisted(path, sessions)
    assert path.read_bytes() == before


def test_a_file_that_may_not_be_read_is_no_empty_one(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        load_persisted(tmp_path)


def edited(lines: list[bytes], number: int, change: Any) -> list[bytes]:
    """The file with its `number`th audit record changed, as somebody with an editor would."""
    places = [place for place, line in enumerate(lines) if line.startswith(b'{"audit"')]
    document = json.loads(lines[places[number]])
    change(document["audit"])
    return [*lines[: places[number]], json.dumps(document).encode(), *lines[places[number] + 1 :]]


def _other_state(record: Any) -> None:
    record["payload"]["state"] = "never"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_other_state, "record 2 was changed"),
        (lambda record: record.update(kind="Approval"), "record 2 was changed"),
        (lambda record: record.update(at=record["at"] + 1), "record 2 was changed"),
        (lambda record: record.update(hash="00" * 32), "record 2 was changed"),
        (lambda record: record.update(seq=7), "record 2 is missing"),
        # Somebody who says that a record was masked gets no further: the next record is chained to the hash it had.
        (lambda record: record.update(masked=True, hash="00" * 32), "record 3 was changed"),
        (lambda record: record.update(masked=True, hash="no hash"), "record 3 was changed"),
    ],
)
def test_FD12_a_file_with_an_edited_trail_is_rejected(change: Any, says: str) -> None:
    async def main() -> None:
        store, other = await worked(), MemoryStore()
        lines = edited(await exported(store), 1, change)
        with pytest.raises(HoldfastError, match=says) as raised:
            await import_lines(other, lines)
        assert code_of(raised.value) == "SYS_AUDIT_TAMPERED"
        assert await other.sessions() == []

    run(main())


def test_FD12_an_edited_trail_can_be_imported_as_unverified_and_the_new_trail_says_so() -> None:
    async def main() -> None:
        store, other = await worked(), MemoryStore()
        done = await import_lines(other, edited(await exported(store), 1, _other_state), unverified=True)
        assert (done.verified, done.tampered) == (1, "record 2 was changed")
        arrival = json.loads(bytes((await other.audit("session:s"))[-1].payload))
        assert arrival["trail"] == {"records": done.records, "verified": 1, "tampered": "record 2 was changed"}

    run(main())


def test_FD12_a_trail_that_nobody_touched_is_verified_and_the_new_trail_says_so() -> None:
    async def main() -> None:
        store, other, third = await worked(), MemoryStore(), MemoryStore()
        done = await import_lines(other, await exported(store))
        assert done.verified == done.records == len(await store.audit("session:s"))
        # Also the second time: the trail was sealed anew on the way.
        again = await import_lines(third, await exported(other))
        assert again.verified == again.records == done.records + 1

    run(main())


def test_FD12_message_ids_come_along_so_that_a_client_cannot_send_a_message_twice() -> None:
    async def main() -> None:
        store, other = MemoryStore(), MemoryStore()
        async with Session.open("s", store=store) as session:
            first = await session.message("hello", id="m-1", client="phone")
        done = await import_lines(other, await exported(store))
        assert done.claims == 1
        async with Session.open("s", store=other) as session:
            assert await session.message("hello", id="m-1", client="phone") == first
            with pytest.raises(HoldfastError) as raised:
                await session.message("something else", id="m-1", client="phone")
            assert code_of(raised.value) == "PROTO_DUPLICATE_ID"
        messages = [entry for entry in await other.read("s") if entry.type == "message"]
        assert len(messages) == 1

    run(main())


def test_FD12_a_file_of_before_claims_were_exported_can_be_imported() -> None:
    async def main() -> None:
        store, other = MemoryStore(), MemoryStore()
        async with Session.open("s", store=store) as session:
            await session.message("hello", id="m-1")
        lines = [line for line in await exported(store) if not line.startswith(b'{"claim"')]
        end = json.loads(lines[-1])
        del end["end"]["claims"]
        done = await import_lines(other, [*lines[:-1], json.dumps(end).encode()])
        assert (done.claims, done.session) == (0, "s")

    run(main())


def test_FD13_a_body_nested_too_deeply_is_a_typed_fault() -> None:
    async def main() -> None:
        store, other = await worked(), MemoryStore()
        deep = b"[" * 5_000 + b"]" * 5_000
        head, *rest = [line for line in await exported(store) if not line.startswith(b'{"checkpoint"')]
        first = json.loads(rest[0])["entry"]
        spoilt = b'{"entry":{"offset":%d,"id":"x","at":1.0,"type":"message","body":%s}}' % (first["offset"], deep)
        with pytest.raises(HoldfastError, match="nested too deeply") as raised:
            await import_lines(other, [head, spoilt, *rest[1:]])
        assert code_of(raised.value) == "SESS_MANIFEST_INVALID"
        with pytest.raises(HoldfastError, match="nested too deeply") as raised:
            parse_persisted(b'[{"checkpoint":{"contextSnapshot":%s}}]' % deep, "there")
        assert code_of(raised.value) == "SESS_MANIFEST_INVALID"

    run(main())


def test_FD13_what_is_stored_can_be_read_by_every_python() -> None:
    def nested(levels: int) -> list[Any]:
        value: list[Any] = []
        for _ in range(levels - 1):
            value = [value]
        return value

    async def main() -> None:
        store, other = MemoryStore(), MemoryStore()
        async with Session.open("s", store=store) as session:
            for place, kept in (("step", session.step), ("message", session.message)):
                deep = (nested, 201) if place == "step" else (nested(201),)
                with pytest.raises(InvalidError, match="nested more than 200 levels deep"):
                    await kept(*deep)
            # Brackets in text are not levels.
            assert await session.step(str.upper, "[" * 600 + '"' + "{" * 600) == "[" * 600 + '"' + "{" * 600
            assert await session.step(nested, 200) == nested(200)
            await session.message(nested(200))
        await import_lines(other, await exported(store))
        async with Session.open("s", store=other) as session:
            assert await session.step(nested, 200) == nested(200)

    run(main())


def test_FD12_an_edited_entry_of_the_log_is_noticed() -> None:
    async def main() -> None:
        store, other = await worked(), MemoryStore()
        lines = await exported(store)
        spoilt = [line.replace(b'"content":"hello"', b'"content":"HELLO"') for line in lines]
        assert spoilt != lines
        with pytest.raises(HoldfastError, match=r"entry \d+ of its log was changed"):
            await import_lines(other, spoilt)
        assert (await import_lines(other, spoilt, unverified=True)).session == "s"

    run(main())


def test_FD12_a_compacted_log_is_verified_from_its_second_entry_on() -> None:
    async def main() -> None:
        store, other = await worked(), MemoryStore()
        checkpoint = (await store.session("s")).checkpoint
        assert checkpoint is not None
        await store.compact("s", checkpoint)
        assert (await import_lines(other, await exported(store))).tampered == ""

    run(main())


def test_FD13_the_last_message_id_is_the_senders() -> None:
    async def main() -> None:
        store = MemoryStore()
        async with Session.open("s", store=store) as session:
            await session.message("hello", id="m-1", client="phone")
        assert (await persisted(store, "s")).checkpoint.last_message_id == "m-1"
        async with Session.open("s", store=store) as session:
            await session.message("and bye")
        # A message without an id is known by the id of its entry.
        entry = [one for one in await store.read("s") if one.type == "message"][-1]
        assert (await persisted(store, "s")).checkpoint.last_message_id == entry.id

    run(main())
