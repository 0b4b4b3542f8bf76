"""A power cut at any moment of the SQLite store's work: what was acknowledged is there, and nothing is there by half."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from crash_power import Ack, Image, digest, images, lay_out, record, states
from crash_work import SHARED, WAYS, Journal, Plan, Worker

from holdfast.stores import Commit, NewSession, SqliteStore
from holdfast.stores.sqlite import files, writer
from holdfast.testing import run

Trace = Callable[..., list[str]]


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Trace:
    """Return what a store really says to SQLite in a run that writes in every way."""
    folder = tmp_path / "traced"
    folder.mkdir()

    def trace(*, durability: str = "full", before: str | None = None, ops: int = 2) -> list[str]:
        heard: list[str] = []
        plain = files.migrate

        def migrate(connection: sqlite3.Connection, path: Path) -> str:
            # The connection that writes. Statements from before it could be traced are repeated here.
            ((synchronous,),) = connection.execute("PRAGMA synchronous").fetchall()
            heard.extend(
                ("PRAGMA journal_mode = WAL", f"PRAGMA synchronous = {synchronous}", "PRAGMA wal_autocheckpoint = 0")
            )
            connection.set_trace_callback(heard.append)
            return plain(connection, path)

        async def main() -> None:
            if before is not None:
                await _work(folder, before, 1, "before")
            await _work(folder, durability, ops, "a")

        monkeypatch.setattr(files, "migrate", migrate)
        monkeypatch.setattr(writer, "MOST_WAL_BYTES", 48 * 1024)
        run(main())
        monkeypatch.setattr(files, "migrate", plain)
        return [line for line in heard if not line.startswith("SELECT")]

    return trace


async def _work(folder: Path, durability: str, ops: int, name: str) -> None:
    async with SqliteStore(folder / "store.db", durability=durability) as store:
        if name == "before" or not await store.sessions():
            for shared in SHARED:
                await store.commit(Commit(session=shared, create=NewSession(manifest=b"{}")))
        for n, way in enumerate(WAYS):
            plan = Plan(store="", journal="", name=f"{name}{n}", seed=n, way=way, ops=ops)
            await Worker(store, Journal(str(folder / "journal")), plan, 0).work()


def found_in(image: Image, folder: Path) -> tuple[str, bool]:
    """Open an image with plain SQLite: what its tables hold, and whether they say that a fast store was in use."""
    with closing(sqlite3.connect(lay_out(image, folder), isolation_level=None)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        held = digest(connection)
        has_meta = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchall()
        fast = has_meta and connection.execute("SELECT 1 FROM meta WHERE name = 'fast_in_use'").fetchall()
    return held, bool(fast)


def losses(
    statements: list[str],
    folder: Path,
    *,
    each: int,
    stride: int = 1,
    synchronous: str | None = None,
    early: int = 0,
) -> Iterator[str]:
    """Yield what is lost or half there. `early`: how many transactions too early each is acknowledged."""
    watched, remains = folder / "watched", folder / "remains"
    watched.mkdir()
    remains.mkdir()
    legal = states(statements)
    events = record(statements, watched, synchronous=synchronous).events
    for image in images(events, random.Random(7), each=each, stride=stride):
        try:
            held, _ = found_in(image, remains)
        except (sqlite3.DatabaseError, AssertionError) as error:
            yield f"event {image.at}: damaged: {error}"
            continue
        if held not in legal:
            yield f"event {image.at}: half a transaction"
        elif held not in legal[min(image.acknowledged + early, len(legal) - 1) :]:
            yield f"event {image.at}: {image.acknowledged} acknowledged, found {legal.index(held)}"


def test_nothing_acknowledged_is_lost_by_a_power_cut(traced: Trace, tmp_path: Path) -> None:
    statements = traced()
    assert statements.count("COMMIT") > 20
    assert any("wal_checkpoint" in statement for statement in statements)
    assert list(losses(statements, tmp_path, each=2, stride=4)) == []


@pytest.mark.soak
def test_nothing_acknowledged_is_lost_by_a_power_cut_at_length(traced: Trace, tmp_path: Path) -> None:
    assert list(losses(traced(ops=6), tmp_path, each=12)) == []


def test_the_test_finds_a_store_that_does_not_sync(traced: Trace, tmp_path: Path) -> None:
    assert any(losses(traced(), tmp_path, each=0, synchronous="OFF"))


def test_the_test_finds_a_store_that_syncs_too_seldom(traced: Trace, tmp_path: Path) -> None:
    assert any("acknowledged" in loss for loss in losses(traced(), tmp_path, each=0, synchronous="NORMAL"))


def test_the_test_finds_an_acknowledgement_before_the_commit(traced: Trace, tmp_path: Path) -> None:
    assert any("acknowledged" in loss for loss in losses(traced(), tmp_path, each=0, early=1))


def test_a_store_whose_making_was_cut_off_opens(traced: Trace, tmp_path: Path) -> None:
    """SQLite makes the file without a WAL: what is left of that has to be rolled back, though we look before we write."""
    watched, remains = tmp_path / "watched", tmp_path / "remains"
    watched.mkdir()
    remains.mkdir()
    events = record(traced(ops=1), watched).events
    made = next(n for n, event in enumerate(events) if isinstance(event, Ack))
    seen = set()

    async def opens(path: Path) -> None:
        async with SqliteStore(path) as store:
            assert await store.sessions() == []

    for image in images(events[: made + 1], random.Random(3), each=2):
        seen |= image.files.keys()
        run(opens(lay_out(image, remains)))
    assert seen == {"store.db", "store.db-journal", "store.db-wal"}


def test_a_fast_store_that_lost_something_has_new_epochs(traced: Trace, tmp_path: Path) -> None:
    """Offsets that were given away and are lost must not come back with another meaning."""
    statements = traced(durability="fast", before="full")
    legal = states(statements)
    watched, remains = tmp_path / "watched", tmp_path / "remains"
    watched.mkdir()
    remains.mkdir()
    lossy = 0
    for image in images(record(statements, watched).events, random.Random(9), each=1, stride=5):
        held, fast = found_in(image, remains)
        assert held in legal
        if held not in legal[image.acknowledged :]:
            lossy += 1
            assert fast, f"event {image.at}: a loss that the next to open the store cannot know of"
            if lossy % 10 == 1:
                run(_changes_epochs(lay_out(image, remains)))
    assert lossy > 20


async def _changes_epochs(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        before = dict(connection.execute("SELECT name, epoch FROM session").fetchall())
    async with SqliteStore(path, durability="fast") as store:
        after = {record.id: record.epoch for record in await store.sessions()}
    assert before.keys() == after.keys()
    assert all(after[id_] != epoch for id_, epoch in before.items())
