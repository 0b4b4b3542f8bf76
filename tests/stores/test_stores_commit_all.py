"""Commits that are made together: each has an outcome of its own, in every store the same."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.stores import Claim, Commit, MemoryStore, NewEntry, NewSession, SqliteStore
from holdfast.stores.failpoints import FAILPOINTS
from holdfast.stores.store import commit_all

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Plain(SqliteStore):
    """A store that changes `commit` only, so every commit must pass there."""

    passed = 0

    async def commit(self, commit):
        self.passed += 1
        return await super().commit(commit)


@pytest.fixture(params=[MemoryStore, SqliteStore, Plain])
def store(request, tmp_path):
    return MemoryStore() if request.param is MemoryStore else request.param(tmp_path / "s.db")


def said(id_, body=b"1", session="s"):
    entry = NewEntry(type="t", body=body, id=f"e-{id_}-{body.decode()}")
    return Commit(session=session, entries=(entry,), claim=Claim(client="c", id=id_, body_hash=body))


def shown(outcome):
    fault = getattr(outcome, "fault", None)
    return fault.code if fault else (outcome.first, outcome.duplicate)


async def test_each_commit_has_an_outcome_of_its_own(store):
    async with store:
        await store.commit(Commit(session="s", create=NewSession(manifest=b"{}")))
        commits = [
            said("a"),
            said("b"),
            said("a"),
            said("a", b"2"),
            said("c", session="none"),
            said("", b"3"),
            said("d"),
        ]
        assert [shown(outcome) for outcome in await commit_all(store, commits)] == [
            (1, False),
            (2, False),
            (1, True),
            "PROTO_DUPLICATE_ID",
            "SESS_NOT_FOUND",
            "CONFIG_OPTION_INVALID",
            (3, False),
        ]
        assert await commit_all(store, []) == []
        assert [entry.offset for entry in await store.read("s")] == [1, 2, 3]
    assert getattr(store, "passed", 8) == 8


async def test_groups_of_one_turn_share_a_transaction(tmp_path, monkeypatch):
    reached = []
    async with SqliteStore(tmp_path / "s.db") as store:
        await store.commit(Commit(session="s", create=NewSession(manifest=b"{}")))
        monkeypatch.setattr(FAILPOINTS, "hook", reached.append)
        groups = [[said(f"{group}-{number}") for number in range(20)] for group in range(3)]
        outcomes = await asyncio.gather(*(commit_all(store, group) for group in groups))
        assert [[receipt.first for receipt in group] for group in outcomes] == [
            list(range(20 * group + 1, 20 * group + 21)) for group in range(3)
        ]
    assert reached.count("committed") == 1


async def test_a_closed_store_takes_none_of_them(tmp_path):
    async with SqliteStore(tmp_path / "s.db") as store:
        await store.commit(Commit(session="s", create=NewSession(manifest=b"{}")))
    outcomes = await commit_all(store, [said("a"), said("b")])
    assert [shown(outcome) for outcome in outcomes] == ["SESS_STORE_UNAVAILABLE"] * 2
