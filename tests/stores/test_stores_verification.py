"""Whether tampering with the audit trail is found: by SQL, as somebody with the file would do it."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing

import msgspec
import pytest

from holdfast.faults import HoldfastError
from holdfast.stores import Commit, MemoryStore, NewAudit, NewSession, SqliteStore, verify_store
from holdfast.stores.chain import GENESIS, link
from holdfast.stores.verification import ChainHead, unaudited


def audit(n, note="fine"):
    payload = msgspec.json.encode({"n": n, "note": note})
    return NewAudit(kind="Retry", correlation=f"run-{n}", payload=payload)


async def fill(store, chains=("alpha", "beta"), count=5):
    for chain in chains:
        for n in range(1, count + 1):
            await store.commit(Commit(chain=chain, audit=(audit(n),)))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "trail.db"

    async def make():
        async with SqliteStore(path) as store:
            await fill(store)

    asyncio.run(make())
    return path


def verified(path, **options):
    async def read():
        async with SqliteStore(path) as store:
            return await verify_store(store, **options)

    return asyncio.run(read())


def tamper(path, *statements):
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(*statement if isinstance(statement, tuple) else (statement,))
        connection.commit()


ALPHA = "chain = (SELECT key FROM chain WHERE name = 'alpha')"


def test_a_trail_nobody_touched_is_sound(path):
    result = verified(path)
    assert (result.sound, result.records, result.error) == (True, 10, None)
    assert [(head.chain, head.seq) for head in result.heads] == [("alpha", 5), ("beta", 5)]
    result.check()
    assert verified(path, expect=result.digest, anchor=result.heads).sound


def test_an_empty_store_is_sound():
    result = asyncio.run(verify_store(MemoryStore()))
    assert (result.sound, result.records, result.heads) == (True, 0, ())


@pytest.mark.parametrize(
    ("change", "at", "why"),
    [
        (f"UPDATE audit SET payload = '{{\"n\":3,\"note\":\"never\"}}' WHERE {ALPHA} AND seq = 3", 3, "content was changed"),
        (f"UPDATE audit SET payload = x'7b7d' WHERE {ALPHA} AND seq = 3", 3, "content was changed"),
        (f"UPDATE audit SET payload = 7 WHERE {ALPHA} AND seq = 3", 3, "content was changed"),
        (f"UPDATE audit SET at = at + 1 WHERE {ALPHA} AND seq = 1", 1, "content was changed"),
        (f"UPDATE audit SET at = 'noon' WHERE {ALPHA} AND seq = 1", 1, "content was changed"),
        (f"UPDATE audit SET kind = 'Approval' WHERE {ALPHA} AND seq = 5", 5, "content was changed"),
        (f"UPDATE audit SET correlation = 'run-9' WHERE {ALPHA} AND seq = 2", 2, "content was changed"),
        (f"UPDATE audit SET hash = 'none' WHERE {ALPHA} AND seq = 2", 2, "content was changed"),
        (f"DELETE FROM audit WHERE {ALPHA} AND seq = 1", 1, "record 1 is missing"),
        (f"DELETE FROM audit WHERE {ALPHA} AND seq = 3", 3, "record 3 is missing"),
        (f"DELETE FROM audit WHERE {ALPHA} AND seq IN (2, 3)", 2, "record 2 is missing"),
        (f"DELETE FROM audit WHERE {ALPHA} AND seq = 5", 5, "record 5 is missing: the chain had 5"),
        (f"DELETE FROM audit WHERE {ALPHA}", 1, "record 1 is missing: the chain had 5"),
        ("UPDATE chain SET seq = 4 WHERE name = 'alpha'", 4, "not the one the chain ends with"),
        ("UPDATE chain SET hash = x'00' WHERE name = 'alpha'", 5, "not the one the chain ends with"),
        ("UPDATE chain SET seq = 9 WHERE name = 'alpha'", 6, "record 6 is missing: the chain had 9"),
    ],
)  # fmt: skip
def test_an_edit_or_a_deletion_is_found_where_it_is(path, change, at, why):
    tamper(path, change)
    result = verified(path)
    first = result.broken[0]
    assert (first.chain, first.seq) == ("alpha", at)
    assert why in first.reason
    assert {broken.chain for broken in result.broken} == {"alpha"}
    with pytest.raises(HoldfastError) as raised:
        result.check()
    fault = raised.value.fault
    assert (fault.code, fault.context["record"], fault.context["chain"]) == ("SYS_AUDIT_TAMPERED", at, "alpha")


def test_records_that_change_places_are_found(path):
    tamper(
        path,
        f"UPDATE audit SET seq = 99 WHERE {ALPHA} AND seq = 2",
        f"UPDATE audit SET seq = 2 WHERE {ALPHA} AND seq = 3",
        f"UPDATE audit SET seq = 3 WHERE {ALPHA} AND seq = 99",
    )
    assert [(broken.chain, broken.seq) for broken in verified(path).broken] == [("alpha", 2)]


def test_records_that_close_a_gap_are_found(path):
    tamper(
        path,
        f"DELETE FROM audit WHERE {ALPHA} AND seq = 3",
        f"UPDATE audit SET seq = 3 WHERE {ALPHA} AND seq = 4",
        f"UPDATE audit SET seq = 4 WHERE {ALPHA} AND seq = 5",
        "UPDATE chain SET seq = 4 WHERE name = 'alpha'",
    )
    assert [(broken.chain, broken.seq) for broken in verified(path).broken] == [("alpha", 3)]


def test_a_record_of_another_chain_is_found(path):
    tamper(
        path,
        f"DELETE FROM audit WHERE {ALPHA} AND seq = 2",
        "UPDATE audit SET chain = (SELECT key FROM chain WHERE name = 'alpha')"
        " WHERE chain = (SELECT key FROM chain WHERE name = 'beta') AND seq = 2",
    )
    assert [(broken.chain, broken.seq) for broken in verified(path).broken] == [("alpha", 2), ("beta", 2)]


def test_a_record_behind_the_end_is_found(path):
    """Its hash fits, but no commit wrote it: the chain ends before it."""
    with closing(sqlite3.connect(path)) as connection:
        ((key, before),) = connection.execute("SELECT key, hash FROM chain WHERE name = 'alpha'")
        new = audit(6)
        sealed = link(before, new, chain="alpha", seq=6, at=1.0)
        row = (key, 6, 1.0, new.kind, new.correlation, new.payload, sealed)
        connection.execute("INSERT INTO audit VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        connection.commit()
    (broken,) = verified(path).broken
    assert (broken.chain, broken.seq, broken.reason) == ("alpha", 6, "it was added after the end of the chain")


def forge(path, chain="alpha", count=4):
    """Write a chain anew as somebody who knows the rule would: every hash fits."""
    with closing(sqlite3.connect(path)) as connection:
        ((key,),) = connection.execute("SELECT key FROM chain WHERE name = ?", (chain,))
        connection.execute("DELETE FROM audit WHERE chain = ?", (key,))
        before = GENESIS
        for seq in range(1, count + 1):
            new = audit(seq, note="nothing happened")
            before = link(before, new, chain=chain, seq=seq, at=1.0)
            row = (key, seq, 1.0, new.kind, new.correlation, new.payload, before)
            connection.execute("INSERT INTO audit VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        connection.execute("UPDATE chain SET seq = ?, hash = ? WHERE key = ?", (count, before, key))
        connection.commit()


def test_a_chain_that_was_forged_whole_is_found_with_an_anchor_only(path):
    before = verified(path)
    forge(path)
    assert verified(path).sound
    with_heads = verified(path, anchor=before.heads)
    assert [(broken.chain, broken.seq) for broken in with_heads.broken] == [("alpha", 5)]
    with_digest = verified(path, expect=before.digest)
    assert "not the expected" in with_digest.broken[0].reason


def test_a_tail_that_was_cut_with_its_head_set_back_is_found_with_an_anchor_only(path):
    before = verified(path)
    tamper(
        path,
        f"DELETE FROM audit WHERE {ALPHA} AND seq > 3",
        f"UPDATE chain SET seq = 3, hash = (SELECT hash FROM audit WHERE {ALPHA} AND seq = 3) WHERE name = 'alpha'",
    )
    assert verified(path).sound
    (broken,) = verified(path, anchor=before.heads).broken
    assert (broken.chain, broken.seq) == ("alpha", 5)


def test_a_chain_that_vanished_is_found_with_an_anchor_only(path):
    before = verified(path)
    tamper(path, f"DELETE FROM audit WHERE {ALPHA}", "DELETE FROM chain WHERE name = 'alpha'")
    assert verified(path).sound
    (broken,) = verified(path, anchor=before.heads).broken
    assert (broken.chain, broken.reason) == ("alpha", "the whole chain is gone")


def test_an_anchor_holds_while_the_trail_grows(path):
    before = verified(path)

    async def grow():
        async with SqliteStore(path) as store:
            await fill(store, ("alpha", "gamma"))

    asyncio.run(grow())
    grown = verified(path, anchor=before.heads)
    assert (grown.sound, grown.records) == (True, 20)
    assert grown.digest != before.digest


def test_what_is_written_meanwhile_is_left_for_the_next_time():
    """A commit between reading the heads and reading the records must not look like tampering."""

    class Busy(MemoryStore):
        async def audit(self, chain, **page):
            await self.commit(Commit(chain=chain, audit=(audit(99),)))
            return await super().audit(chain, **page)

    async def main():
        store = Busy()
        await fill(store)
        return await verify_store(store)

    result = asyncio.run(main())
    assert (result.sound, result.records) == (True, 10)


def test_long_chains_are_followed_page_by_page():
    seen = []

    async def main():
        store = MemoryStore()
        await store.commit(Commit(chain="long", audit=tuple(audit(n) for n in range(2_500))))
        return await verify_store(store, each=seen.append)

    assert asyncio.run(main()).records == 2_500
    assert [record.seq for record in seen] == list(range(1, 2_501))


def test_only_the_named_chains():
    async def main():
        store = MemoryStore()
        await fill(store)
        return await verify_store(store, chains=("beta",), anchor=(ChainHead(chain="alpha", seq=9, hash="x"),))

    result = asyncio.run(main())
    assert (result.sound, [head.chain for head in result.heads]) == (True, ["beta"])


def test_sessions_without_a_chain_are_listed():
    async def main():
        store = MemoryStore()
        await store.commit(Commit(session="quiet", create=NewSession(manifest=b"{}")))
        await store.commit(Commit(session="audited", create=NewSession(manifest=b"{}"), audit=(audit(1),)))
        return await unaudited(store)

    assert asyncio.run(main()) == ["quiet"]
