"""Encryption at rest: nothing readable reaches the inner store, rows cannot be swapped, and a wrong key says so."""

from __future__ import annotations

import asyncio
import base64
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast import Session, tool
from holdfast.faults import HoldfastError, InvalidError
from holdfast.sessions.admin import close
from holdfast.sessions.retention import Retention, decide, prune
from holdfast.sessions.transfer import export_lines, import_lines, persisted
from holdfast.stores import (
    Claim,
    Commit,
    EncryptedStore,
    MemoryStore,
    NewAudit,
    NewCheckpoint,
    NewEntry,
    NewSession,
    SessionState,
    SqliteStore,
    open_store,
    verify_store,
)
from holdfast.testing import run

KEY, OTHER = bytes(range(32)), bytes(range(1, 33))
WORD = "content-Zq81-of-the-program"


@dataclass
class Report:
    text: str


@tool(effect="unsafe")
def write(text: str) -> Report:
    return Report(text)


async def worked(store: Any, session: str = "s") -> None:
    """A session with everything that a store can hold, all of it with the word."""
    async with Session.open(session, store=store, project_root=f"/{WORD}", config={"a": WORD}) as opened:
        await opened.message({"text": WORD}, id="m-1", client="phone")
        assert await opened.step(write, WORD) == Report(WORD)
        async with opened.turn(WORD):
            opened.context["word"] = WORD
        with pytest.raises(ZeroDivisionError):
            await opened.step(fail, WORD)


def fail(text: str) -> None:
    raise ZeroDivisionError(text)


def code(error: pytest.ExceptionInfo[HoldfastError]) -> str:
    return error.value.fault.code


def test_no_content_is_in_the_file_and_all_of_it_comes_back(tmp_path: Path) -> None:
    async def main() -> None:
        for _ in range(2):
            async with EncryptedStore(SqliteStore(tmp_path / "s.db"), KEY) as store:
                await worked(store)
        async with EncryptedStore(SqliteStore(tmp_path / "s.db"), KEY) as store:
            assert (await verify_store(store)).sound
            records = await store.audit("session:s")
            payloads = [msgspec.json.decode(record.payload) for record in records]
            assert {"write"} == {one["step"].partition("@")[0] for one in payloads if one.get("effect") == "unsafe"}
        # Without the key, the hashes can still be checked.
        async with SqliteStore(tmp_path / "s.db") as plain:
            assert (await verify_store(plain)).sound

    asyncio.run(main())
    files = [file.read_bytes() for file in tmp_path.iterdir()]
    assert sum(map(len, files)) > 10_000
    for written in files:
        assert WORD.encode() not in written
        assert base64.b64encode(WORD.encode())[:20] not in written
    # What the page says stays plain.
    assert any(b"step_ended" in written and b"ToolInvocation" in written for written in files)


@pytest.mark.parametrize(
    "given",
    [KEY, KEY.hex(), base64.b64encode(KEY).decode(), base64.urlsafe_b64encode(KEY).decode().rstrip("="), lambda: KEY],
)
def test_a_key_may_be_given_in_any_form(given: Any) -> None:
    async def main() -> None:
        inner = MemoryStore()
        await worked(EncryptedStore(inner, KEY))
        await worked(EncryptedStore(inner, given))

    run(main())


@pytest.mark.parametrize("given", [b"short", "too short a text", "ab" * 31, lambda: b"", "kein-schlüssel"])
def test_a_key_of_another_length_is_rejected_without_showing_it(given: Any, tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(InvalidError, match="32 random bytes") as raised:
            async with EncryptedStore(SqliteStore(tmp_path / "s.db"), given):
                pass
        assert repr(given) not in str(raised.value)

    asyncio.run(main())
    assert list(tmp_path.iterdir()) == []


def test_an_address_names_the_variable_of_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORK_KEY", KEY.hex())
    for url in (
        "memory:?key_env=WORK_KEY",
        f"{tmp_path}/a.db?key_env=WORK_KEY",
        f"sqlite:{tmp_path}/a.db?key_env=WORK_KEY",
    ):
        assert isinstance(open_store(url), EncryptedStore)
    fast = open_store(f"sqlite:{tmp_path}/a.db?key_env=WORK_KEY&durability=fast")
    assert (fast.inner.path, fast.inner._durability) == (tmp_path / "a.db", "fast")
    fast = open_store(f"sqlite:{tmp_path}/a.db?durability=fast&key_env=WORK_KEY")
    assert (fast.inner.path, fast.inner._durability) == (tmp_path / "a.db", "fast")
    server = open_store("postgresql://me@/db?key_env=WORK_KEY&host=/run/x&schema=mine")
    assert (server.inner._schema, server.inner._server) == ("mine", "postgresql://me@/db?host=/run/x")
    assert open_store("memory:?key_env=WORK_KEY").key_id == EncryptedStore(MemoryStore(), KEY).key_id
    with pytest.raises(InvalidError, match="the name of an environment variable"):
        open_store("memory:?key_env=")

    async def main() -> None:
        with pytest.raises(InvalidError, match="a key in the environment variable NO_KEY"):
            async with open_store(f"sqlite:{tmp_path}/b.db?key_env=NO_KEY"):
                pass

    asyncio.run(main())
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_key_says_so_and_changes_nothing() -> None:
    async def main() -> None:
        inner = MemoryStore()
        await worked(EncryptedStore(inner, KEY))
        before = [line async for line in export_lines(EncryptedStore(inner, KEY), "s", plain=True)]
        wrong = EncryptedStore(inner, OTHER)
        for call in (
            wrong.session("s"),
            wrong.read("s"),
            wrong.checkpoint("s"),
            wrong.commit(Commit(session="s", entries=(NewEntry(type="t", body=b"1", id="x"),))),
            worked(wrong),
            worked(wrong, "another"),
        ):
            with pytest.raises(HoldfastError, match="is encrypted with key") as raised:
                await call
            assert code(raised) == "SESS_KEY_WRONG"
        # A list shows the session, and the trail can be verified.
        assert [record.id for record in await wrong.sessions()] == ["s"]
        assert (await verify_store(wrong)).heads
        # Without a key.
        with pytest.raises(HoldfastError, match="opened without a key") as raised:
            await worked(inner)
        assert code(raised) == "SESS_KEY_WRONG"
        assert [line async for line in export_lines(EncryptedStore(inner, KEY), "s", plain=True)] == before

    run(main())


def test_a_session_that_is_not_encrypted_is_not_read_with_a_key() -> None:
    async def main() -> None:
        inner = MemoryStore()
        await worked(inner)
        with pytest.raises(HoldfastError, match="is not encrypted, and the store was opened with a key") as raised:
            await worked(EncryptedStore(inner, KEY))
        assert code(raised) == "SESS_KEY_WRONG"
        # The way out.
        lines = [line async for line in export_lines(inner, "s", exact=True)]
        other = EncryptedStore(MemoryStore(), KEY)
        await import_lines(other, lines)
        await worked(other)

    run(main())


def swap(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        assert connection.execute(statement).rowcount > 0


@pytest.mark.parametrize(
    ("statement", "reads", "message"),
    [
        (
            "UPDATE entry SET body = (SELECT body FROM entry WHERE id = 'a' LIMIT 1) WHERE id = 'b'",
            "read",
            "its entry 2",
        ),
        ("UPDATE entry SET type = 'other' WHERE id = 'a'", "read", "its entry 1"),
        ("UPDATE entry SET body = CAST('\"plain\"' AS BLOB) WHERE id = 'a'", "read", "its entry 1"),
        (
            "UPDATE session SET manifest = (SELECT manifest FROM session WHERE name = 's2')",
            "session",
            "encrypted with key",
        ),
        ("UPDATE inbox SET result = (SELECT result FROM inbox WHERE id = 'm2')", "claims", "the result of message m1"),
    ],
)
def test_rows_cannot_be_swapped_or_replaced(tmp_path: Path, statement: str, reads: str, message: str) -> None:
    path = tmp_path / "s.db"

    async def main() -> None:
        async with EncryptedStore(SqliteStore(path), KEY) as store:
            for session in ("s1", "s2"):
                await store.commit(Commit(session=session, create=NewSession(manifest=b"{}")))
            for n in ("1", "2"):
                claim = Claim(client="c", id=f"m{n}", body_hash=b"h", result=f'"{n}"'.encode())
                entry = NewEntry(type="t", body=f'"{n}"'.encode(), id="ab"[int(n) - 1])
                await store.commit(Commit(session="s1", entries=(entry,), claim=claim))
        # As somebody would who can compute hashes: without them only the ciphertext can show it.
        swap(path, "UPDATE entry SET hash = NULL")
        swap(path, "UPDATE session SET head = NULL")
        swap(path, statement)
        async with EncryptedStore(SqliteStore(path), KEY) as store:
            with pytest.raises(HoldfastError, match=message) as raised:
                await getattr(store, reads)("s1")
            assert code(raised) in ("SESS_MANIFEST_DRIFT", "SESS_KEY_WRONG")

    asyncio.run(main())


def test_a_checkpoint_of_another_session_does_not_open() -> None:
    async def main() -> None:
        inner = MemoryStore()
        store = EncryptedStore(inner, KEY)
        for session in ("s1", "s2"):
            await store.commit(Commit(session=session, create=NewSession(manifest=b"{}")))
        new = NewCheckpoint(message_count=1, last_message_id=None, snapshot=b"1")
        await store.commit(Commit(session="s1", checkpoint=new))
        stolen = (await inner.checkpoint("s1")).snapshot  # type: ignore[union-attr]
        await inner.commit(Commit(session="s2", checkpoint=msgspec.structs.replace(new, snapshot=bytes(stolen))))
        assert (await store.checkpoint("s1")).snapshot == msgspec.Raw(b"1")  # type: ignore[union-attr]
        with pytest.raises(HoldfastError, match="its checkpoint was changed, or belongs elsewhere"):
            await store.checkpoint("s2")

    run(main())


def test_two_equal_values_have_different_ciphertexts_and_hashes_of_messages_are_hidden() -> None:
    async def main() -> None:
        inner = MemoryStore()
        store = EncryptedStore(inner, KEY)
        await store.commit(Commit(session="s", create=NewSession(manifest=b"{}")))
        entries = tuple(NewEntry(type="t", body=b'"same"', id=id_) for id_ in ("a", "b"))
        claim = Claim(client="c", id="m", body_hash=b"h" * 16, result=b"[1]")
        await store.commit(Commit(session="s", entries=entries, claim=claim))
        one, other = await inner.read("s")
        assert one.body != other.body
        (kept,) = await inner.claims("s")
        assert kept.body_hash != claim.body_hash
        assert [(known.body_hash, known.result) for known in await store.claims("s")] == [(b"h" * 16, b"[1]")]
        again = await store.commit(Commit(session="s", claim=claim))
        assert (again.duplicate, bytes(again.result)) == (True, b"[1]")

    run(main())


def test_a_key_is_rotated_by_wrapping_the_data_keys_anew() -> None:
    async def main() -> None:
        inner = MemoryStore()
        old = EncryptedStore(inner, OTHER)
        for name in ("open", "closed", "used"):
            await worked(old, name)
        async with Session.open("closed", store=old) as session:
            await session.close()
        bodies = [entry.body for entry in await inner.read("open")]
        both = EncryptedStore(inner, KEY, old_keys=[OTHER])
        # Until it is rewrapped, the old key reads and writes it.
        await worked(both, "open")
        async with Session.open("used", store=old):
            done = await both.rekey()
            assert set(done.skipped) == {"used"}
            assert "owned by" in done.skipped["used"]
        assert set(done.rewrapped) == {"open", "closed", "holdfast-keys"}
        done = await both.rekey()
        assert (done.rewrapped, done.current, done.skipped) == (("used",), 3, {})
        # Now the old key is not needed any more, and does not open anything.
        new = EncryptedStore(inner, KEY)
        assert [entry.body for entry in await inner.read("open")][: len(bodies)] == bodies
        await worked(new, "open")
        assert len(await new.read("closed")) > 3
        assert (await new.session("closed")).state is SessionState.CLOSED
        assert (await verify_store(new)).sound
        with pytest.raises(HoldfastError) as raised:
            await EncryptedStore(inner, OTHER).read("open")
        assert code(raised) == "SESS_KEY_WRONG"

    run(main())


def test_a_plain_export_of_an_encrypted_session_is_explicit() -> None:
    async def main() -> None:
        store = EncryptedStore(MemoryStore(), KEY)
        await worked(store)
        with pytest.raises(InvalidError, match="--plain"):
            [line async for line in export_lines(store, "s")]
        with pytest.raises(InvalidError, match="--plain"):
            await persisted(store, "s")
        lines = [line async for line in export_lines(store, "s", exact=True, plain=True)]
        assert WORD in b"".join(lines).decode()
        assert (await persisted(store, "s", plain=True)).checkpoint is not None
        # To a plain store, and back into one with another key, with its message ids.
        plain, other = MemoryStore(), EncryptedStore(MemoryStore(), OTHER)
        for target in (plain, other):
            await import_lines(target, lines)
            async with Session.open("s", store=target) as session:
                assert session.context == {"word": WORD}
                assert await session.step(write, WORD) == Report(WORD)
                await session.message({"text": WORD}, id="m-1", client="phone")
                with pytest.raises(HoldfastError) as raised:
                    await session.message("another", id="m-1", client="phone")
                assert code(raised) == "PROTO_DUPLICATE_ID"

    run(main())


def test_the_audit_trail_of_a_removed_session_stays_readable() -> None:
    async def main() -> None:
        inner = MemoryStore()
        store = EncryptedStore(inner, KEY)
        await worked(store)
        async with Session.open("s", store=store) as session:
            await session.close()
        await store.remove("s")
        records = await EncryptedStore(inner, KEY).audit("session:s")
        assert all(isinstance(msgspec.json.decode(record.payload), dict) for record in records)
        assert [record.id for record in await store.sessions()] == []
        with pytest.raises(HoldfastError) as raised:
            await store.session("holdfast-keys")
        assert code(raised) == "SESS_NOT_FOUND"
        with pytest.raises(InvalidError, match="is reserved"):
            await worked(store, "holdfast-keys")

    run(main())


def test_a_session_that_was_removed_and_made_again_elsewhere_has_its_new_key() -> None:
    async def main() -> None:
        inner = MemoryStore()
        here, there = EncryptedStore(inner, KEY), EncryptedStore(inner, KEY)
        create = Commit(session="s", create=NewSession(manifest=b"{}"))
        entry = Commit(session="s", entries=(NewEntry(type="t", body=b'"one"', id="a"),))
        await here.commit(create)
        await here.commit(entry)
        await there.commit(Commit(session="s", state=SessionState.CLOSED))
        await there.remove("s")
        await there.commit(create)
        await there.commit(entry)
        # This process still knows the old key.
        assert [bytes(one.body) for one in await here.read("s")] == [b'"one"']
        await here.commit(Commit(session="s", entries=(NewEntry(type="t", body=b'"two"', id="b"),)))
        assert [bytes(one.body) for one in await there.read("s")] == [b'"one"', b'"two"']

    run(main())


def test_two_processes_agree_on_the_key_of_the_audit_trail() -> None:
    async def main() -> None:
        inner = MemoryStore()
        stores = [EncryptedStore(inner, KEY) for _ in range(8)]
        record = NewAudit(kind="Turn", correlation="r", payload=b'{"a":1}')
        await asyncio.gather(*(store.commit(Commit(chain="work", audit=(record,))) for store in stores))
        for store in stores:
            assert {bytes(one.payload) for one in await store.audit("work")} == {b'{"a":1}'}

    run(main())


def test_a_large_audit_record_is_cut_before_it_is_encrypted() -> None:
    async def main() -> None:
        store = EncryptedStore(MemoryStore(), KEY)
        for size in (60_000, 200_000):
            payload = msgspec.json.encode({"text": "x" * size})
            await store.commit(Commit(chain="work", audit=(NewAudit(kind="Turn", correlation="r", payload=payload),)))
        whole, cut = [msgspec.json.decode(record.payload)["text"] for record in await store.audit("work")]
        assert whole == "x" * 60_000
        assert cut.endswith("bytes truncated]")

    run(main())


async def _aged(inner: Any) -> None:
    """An encrypted store with a trail, whose key session an older version has closed, if it can be."""
    store = EncryptedStore(inner, KEY)
    async with Session.open("s", store=store) as session:
        await session.step(write, WORD)


PLAIN = NewSession(manifest=b"{}")
WRITES = {
    "closed": Commit(session="holdfast-keys", state=SessionState.CLOSED),
    "appended to": Commit(session="holdfast-keys", entries=(NewEntry(type="t", body=b"{}", id="a"),)),
    "given a plain manifest": Commit(session="holdfast-keys", manifest=b"{}"),
    "audited": Commit(session="holdfast-keys", audit=(NewAudit(kind="Turn", correlation="r", payload=b"{}"),)),
}


@pytest.mark.parametrize("what", WRITES)
@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_XD11_the_session_that_holds_the_key_of_the_audit_trail_cannot_be(what: str, kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "s.db") as inner:
            with pytest.raises(InvalidError, match="key of the audit trail"):
                await inner.commit(Commit(session="holdfast-keys", create=PLAIN))
            await _aged(inner)
            before = (await inner.session("holdfast-keys")).manifest
            with pytest.raises(InvalidError, match="key of the audit trail"):
                await inner.commit(WRITES[what])
            assert (await inner.session("holdfast-keys")).manifest == before
            await _aged(inner)

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_XD11_pruning_and_closing_without_the_key_leave_the_audit_key(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with MemoryStore() if kind == "memory" else SqliteStore(tmp_path / "s.db") as inner:
            await _aged(inner)
            for store in (inner, EncryptedStore(inner, KEY)):
                with pytest.raises(InvalidError, match="key of the audit trail"):
                    await close(store, "holdfast-keys")
                with pytest.raises(InvalidError, match="key of the audit trail"):
                    await store.remove("holdfast-keys")
            # An older version has closed it.
            record = await inner.session("holdfast-keys")
            old = msgspec.structs.replace(record, state=SessionState.CLOSED)
            rules = Retention(closed=0.0, failed=0.0, idle=0.0, entries=0)
            assert decide(old, rules, record.last_at + 1e9) is None
            dropped = await prune(inner, rules, record.last_at + 1e9)
            assert "holdfast-keys" not in {action.session for action in dropped}
            store = EncryptedStore(inner, KEY)
            records = await store.audit("session:s")
            assert records
            assert not any(bytes(record.payload).startswith(b'"hfe1.') for record in records)

    asyncio.run(main())
