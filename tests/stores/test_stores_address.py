"""A store by its address."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from holdfast.config import load
from holdfast.faults import HoldfastError, InvalidError
from holdfast.stores import MemoryStore, PostgresStore, SqliteStore, default_url, open_store
from holdfast.stores.address import shown

PASSWORD = "pa55-Zq81-word"


def test_an_address_says_which_store(tmp_path):
    assert isinstance(open_store("memory:"), MemoryStore)
    for url in (f"sqlite:{tmp_path}/a.db", f"{tmp_path}/a.db", tmp_path / "a.db"):
        store = open_store(url)
        assert isinstance(store, SqliteStore)
        assert store.path == tmp_path / "a.db"
    assert open_store("sqlite:work.db").path == Path("work.db")
    assert open_store("sqlite:~/work.db").path == Path.home() / "work.db"
    assert isinstance(open_store("postgresql:///db"), PostgresStore)
    assert isinstance(open_store("postgres://me@host:5432/db?sslmode=require"), PostgresStore)


def test_a_file_may_be_fast():
    assert open_store("sqlite:a.db?durability=fast")._durability == "fast"
    assert open_store("sqlite:a.db")._durability == "full"
    with pytest.raises(InvalidError, match="durability"):
        open_store("sqlite:a.db?durability=some")


def test_a_schema_may_be_named():
    store = open_store("postgresql://me@/db?host=/run/x&schema=mine")
    assert store._schema == "mine"
    assert store._server == "postgresql://me@/db?host=/run/x"
    assert open_store("postgresql:///db")._schema == "holdfast"


def test_a_server_by_its_address_works(postgres):
    async def scene():
        async with open_store(f"{postgres.url}&schema=by_address") as store:
            assert store.id.startswith("postgres-")
            assert await store.sessions() == []

    asyncio.run(scene())


@pytest.mark.parametrize(
    "url",
    [
        "",
        "sqlite:",
        "sqlite:///a.db",
        "memory:x",
        f"mysql://root:{PASSWORD}@host/db",
        f"postgresql://me:{PASSWORD}@[::1/db",
        f"postgresql://me:{PASSWORD}@host/db?sslmode",
        f"postgresql://me:{PASSWORD}@host/db?nonsense={PASSWORD}",
        f"postgresql:me:{PASSWORD}",
        f"postgresql://me:{PASSWORD}@host/db?schema=a/b",
    ],
)
def test_a_wrong_address_is_rejected_without_its_password(url):
    with pytest.raises(InvalidError) as caught:
        open_store(url)
    assert caught.value.fault.code == "CONFIG_OPTION_INVALID"
    shown = f"{caught.value} {caught.value.fault!r} {caught.value.__cause__!r}"
    assert PASSWORD not in shown


def test_a_server_that_is_not_there_is_typed_and_tells_no_password(tmp_path):
    async def scene():
        async with open_store(f"postgresql://me:{PASSWORD}@/db?host={tmp_path}"):
            raise AssertionError

    with pytest.raises(HoldfastError) as caught:
        asyncio.run(scene())
    assert caught.value.fault.code == "SESS_STORE_UNAVAILABLE"
    assert caught.value.fault.retryable
    assert PASSWORD not in f"{caught.value} {caught.value.fault!r} {caught.value.__cause__!r}"


def test_people_see_an_address_without_who_and_how():
    assert shown(f"postgresql://me:{PASSWORD}@host:5432/db?password={PASSWORD}") == "postgresql://host:5432/db"
    assert shown(f"postgresql:{PASSWORD}") == "postgresql:…"
    assert shown("sqlite:/a/b.db") == "sqlite:/a/b.db"
    assert shown("memory:") == "memory:"


def test_the_address_there_is_when_none_is_given(monkeypatch, tmp_path):
    assert default_url({"HOLDFAST_STORE": " memory: "}) == "memory:"
    assert default_url({"XDG_STATE_HOME": "/state"}) == "sqlite:/state/holdfast/holdfast.db"
    home = f"sqlite:{Path.home()}/.local/state/holdfast/holdfast.db"
    assert default_url({}) == default_url({"XDG_STATE_HOME": "relative"}) == home
    monkeypatch.setenv("HOLDFAST_STORE", f"sqlite:{tmp_path}/own.db")
    assert open_store().path == tmp_path / "own.db"
    assert load(environ={"HOLDFAST_STORE": "memory:"}, folder=tmp_path).enabled


def test_without_its_driver_the_message_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("holdfast.stores.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(HoldfastError, match=r"pip install '\.\[postgres\]' in a clone") as caught:
        open_store("postgresql:///db")
    assert caught.value.fault.code == "SYS_DEPENDENCY_MISSING"


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite:///work.db", "sqlite:////srv/work.db"])
def test_FU10_an_sqlalchemy_address_gets_a_hint(url):
    with pytest.raises(InvalidError, match=r"sqlite:PATH without //: sqlite:work\.db, or sqlite:/srv/work\.db"):
        open_store(url)
