"""Group commit on PostgreSQL: the commits of all sessions that wait are one statement, and none fails because of another."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager

import psycopg
import pytest
from stores_postgres_kit import new_schema

from holdfast.faults import HoldfastError
from holdfast.stores import Commit, NewAudit, NewEntry, NewSession, SessionState
from holdfast.stores.postgres import PostgresStore, groups
from holdfast.stores.postgres.groups import Groups
from holdfast.stores.verification import verify_store

AUDIT = (NewAudit(kind="Turn", correlation="r", payload=b"{}"),)


def entry(id_: str) -> tuple[NewEntry, ...]:
    return (NewEntry(type="t", body=b"{}", id=id_),)


@pytest.fixture
def sent(monkeypatch):
    """How many sessions each group had."""
    sizes: list[int] = []
    send = Groups._send

    async def counted(self, connection, slot, batch):
        sizes.append(len(batch.after))
        return await send(self, connection, slot, batch)

    monkeypatch.setattr(Groups, "_send", counted)
    return sizes


@pytest.fixture
def statements(monkeypatch):
    """The names of the statements that wrote."""
    names: list[bytes] = []
    arguments = groups._arguments

    def noted(slot, batch):
        name, args = arguments(slot, batch)
        names.append(name)
        return name, args

    monkeypatch.setattr(groups, "_arguments", noted)
    return names


@asynccontextmanager
async def filled(server, count, **options):
    async with PostgresStore(server.url, **{"schema": new_schema(), **options}) as store:
        for n in range(count):
            await store.commit(
                Commit(session=f"s{n}", create=NewSession(manifest=b"{}"), state=SessionState.ACTIVE, audit=AUDIT)
            )
        yield store


def test_FD14_those_who_wait_are_written_with_one_statement(postgres, sent):
    async def scene():
        async with filled(postgres, 20) as store:
            for turn in range(3):
                await asyncio.gather(
                    *(store.commit(Commit(session=f"s{n}", entries=entry(f"e{turn}"), audit=AUDIT)) for n in range(20))
                )
            return [await store.read(f"s{n}") for n in range(20)], await store.chains()

    logs, chains = asyncio.run(scene())
    assert sent == [20, 20, 20]
    assert [[one.id for one in log] for log in logs] == [["e0", "e1", "e2"]] * 20
    assert all(one.hash for log in logs for one in log)
    assert [seq for _, seq, _ in chains] == [4] * 20


def test_FD14_a_commit_that_fails_does_not_fail_its_neighbours(postgres, sent):
    async def scene():
        schema = new_schema()
        async with filled(postgres, 10, schema=schema, busy=0.2) as store:
            fence = (await store.acquire("s1", "a", 30)).fence
            await store.acquire("s1", "a", 30)
            await store.commit(Commit(session="s2", state=SessionState.CLOSED))
            async with await psycopg.AsyncConnection.connect(postgres.url) as rival:
                await rival.execute(f"SELECT 1 FROM {schema}.session WHERE name = 's3' FOR UPDATE")
                commits = [
                    *(Commit(session=f"s{n}", entries=entry("e")) for n in (0, *range(4, 10))),
                    Commit(session="s1", entries=entry("e"), fence=fence),
                    Commit(session="s2", entries=entry("e")),
                    Commit(session="s3", entries=entry("e")),
                    Commit(session="gone", entries=entry("e")),
                    Commit(session="s0", entries=entry("f"), expect=(SessionState.PAUSED,)),
                ]
                return await asyncio.gather(*map(store.commit, commits), return_exceptions=True)

    results = asyncio.run(scene())
    assert [receipt.top for receipt in results[:7]] == [1] * 7
    codes = [error.fault.code for error in results[7:]]
    assert codes == [
        "SESS_LEASE_LOST",
        "SESS_CLOSED",
        "SESS_STORE_UNAVAILABLE",
        "SESS_NOT_FOUND",
        "SESS_ILLEGAL_TRANSITION",
    ]
    assert max(sent) >= 7


def test_FD14_a_session_that_somebody_else_wrote_to_is_written_to_all_the_same(postgres):
    async def scene():
        schema = new_schema()
        async with filled(postgres, 3, schema=schema) as one, PostgresStore(postgres.url, schema=schema) as other:
            for turn in range(20):
                await asyncio.gather(
                    *(
                        store.commit(Commit(session=f"s{n}", entries=entry(f"{name}{turn}"), audit=AUDIT))
                        for n in range(3)
                        for name, store in (("a", one), ("b", other))
                    )
                )
            return [await one.read(f"s{n}") for n in range(3)]

    for log in asyncio.run(scene()):
        assert [one.offset for one in log] == list(range(1, 41))
        for name in "ab":
            assert [one.id for one in log if one.id[0] == name] == [f"{name}{turn}" for turn in range(20)]


@pytest.mark.parametrize("sessions", [1, 2])
def test_FD14_a_commit_alone_and_in_company_stores_the_same(postgres, statements, sessions):
    """One entry of one session has a statement of its own. It checks and writes what the statement of a group does."""

    async def scene():
        async with filled(postgres, sessions) as store:
            receipts = [
                await asyncio.gather(
                    *(store.commit(Commit(session=f"s{n}", entries=entry(f"e{turn}"))) for n in range(sessions))
                )
                for turn in range(2)
            ]
            # An entry and a change of state, then a long entry.
            await store.commit(Commit(session="s0", entries=entry("é\u2028"), state=SessionState.PAUSED))
            await store.commit(
                Commit(session="s0", entries=(NewEntry(type="t", body=b'"' + b"x" * 99_999 + b'"', id="b"),))
            )
            (await verify_store(store)).check()
            return receipts, await store.read("s0"), await store.session("s0")

    receipts, log, record = asyncio.run(scene())
    assert [[receipt.first for receipt in turn] for turn in receipts] == [[1] * sessions, [2] * sessions]
    assert [(one.offset, one.id, len(one.body)) for one in log] == [
        (1, "e0", 2),
        (2, "e1", 2),
        (3, "é\u2028", 2),
        (4, "b", 100_001),
    ]
    assert record.state is SessionState.PAUSED
    assert statements[:2] == [b"holdfast_one" if sessions == 1 else b"holdfast_group"] * 2
    assert statements[-1] == b"holdfast_one"


def test_FD14_a_commit_alone_sees_what_another_process_has_changed(postgres, statements):
    async def scene():
        schema = new_schema()
        async with (
            filled(postgres, 1, schema=schema, busy=0.2) as one,
            PostgresStore(postgres.url, schema=schema) as other,
        ):
            for turn in range(3):
                await one.commit(Commit(session="s0", entries=entry(f"a{turn}")))
                await other.commit(Commit(session="s0", entries=entry(f"b{turn}")))
            fence = (await other.acquire("s0", "b", 30)).fence
            with pytest.raises(HoldfastError, match="SESS_LEASE_LOST"):
                await one.commit(Commit(session="s0", entries=entry("late"), fence=fence - 1))
            await other.commit(Commit(session="s0", state=SessionState.PAUSED))
            with pytest.raises(HoldfastError, match="SESS_ILLEGAL_TRANSITION"):
                await one.commit(Commit(session="s0", entries=entry("not so"), expect=(SessionState.ACTIVE,)))
            async with await psycopg.AsyncConnection.connect(postgres.url) as rival:
                await rival.execute(f"SELECT 1 FROM {schema}.session FOR UPDATE")
                # It does not wait for the row together with the sessions of others, but alone, for `busy` seconds.
                with pytest.raises(HoldfastError, match="SESS_STORE_UNAVAILABLE"):
                    await one.commit(Commit(session="s0", entries=entry("locked")))
            await one.commit(Commit(session="s0", entries=entry("end")))
            return [entry.id for entry in await one.read("s0")]

    assert asyncio.run(scene()) == ["a0", "b0", "a1", "b1", "a2", "b2", "end"]
    # Only the change of state has no entry.
    assert statements.count(b"holdfast_group") == 1
    assert statements.count(b"holdfast_one") > 8


def test_FD14_commits_of_one_session_keep_their_order_whatever_they_hold(postgres):
    async def scene():
        async with filled(postgres, 1) as store:
            commits = [
                Commit(session="s0", entries=entry(f"e{n}"), **({"manifest": b"{}"} if n % 3 == 0 else {}))
                for n in range(30)
            ]
            receipts = await asyncio.gather(*map(store.commit, commits))
            return [receipt.first for receipt in receipts]

    assert asyncio.run(scene()) == list(range(1, 31))


def test_a_caller_that_is_cancelled_before_its_group_writes_nothing(postgres):
    async def scene():
        async with filled(postgres, 1) as store:
            first = asyncio.create_task(store.commit(Commit(session="s0", entries=entry("first"))))
            await asyncio.sleep(0)
            second = asyncio.create_task(store.commit(Commit(session="s0", entries=entry("second"))))
            await asyncio.sleep(0)
            second.cancel()
            await asyncio.gather(first, second, return_exceptions=True)
            return [one.id for one in await store.read("s0")]

    assert asyncio.run(scene()) == ["first"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_FD11_a_store_that_was_opened_before_a_fork_is_rejected_in_the_child(postgres):
    async def scene():
        async with filled(postgres, 1) as store:
            child = os.fork()
            if child == 0:
                # The loop belongs to the parent, so the calls are only begun: both must raise before they reach the network.
                codes = set()
                for call in (store.commit(Commit(session="s0", entries=entry("x"))), store.session("s0")):
                    try:
                        call.send(None)
                    except HoldfastError as error:
                        codes.add((error.fault.code, "forked" in str(error)))
                    except BaseException:
                        codes.add(("other", False))
                os._exit(0 if codes == {("SESS_STORE_UNAVAILABLE", True)} else 1)
            assert os.waitpid(child, 0)[1] == 0  # noqa: ASYNC222 - nothing else runs
            await store.commit(Commit(session="s0", entries=entry("parent")))
            return [one.id for one in await store.read("s0")]

    assert asyncio.run(scene()) == ["parent"]
