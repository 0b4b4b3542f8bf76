"""The version check of SQLite: which have the WAL-reset bug, and that one is told."""

from __future__ import annotations

import asyncio
import warnings

import pytest

from holdfast.stores import SqliteStore
from holdfast.stores.sqlite import files


@pytest.mark.parametrize(
    ("version", "affected"),
    [
        ((3, 40, 1), True),
        ((3, 44, 5), True),
        ((3, 44, 6), False),
        ((3, 45, 0), True),
        ((3, 50, 6), True),
        ((3, 50, 7), False),
        ((3, 51, 2), True),
        ((3, 51, 3), False),
        ((3, 53, 0), False),
    ],
)
def test_which_versions_have_the_wal_reset_bug(version, affected):
    assert files.is_affected(version) is affected


@pytest.mark.parametrize("affected", [True, False])
def test_who_opens_a_store_is_told_of_it(tmp_path, monkeypatch, affected):
    monkeypatch.setattr(files, "is_affected", lambda _: affected)

    async def opened():
        async with SqliteStore(tmp_path / "work.db"):
            pass

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        asyncio.run(opened())
    said = [str(warning.message) for warning in told if issubclass(warning.category, files.StoreWarning)]
    assert len(said) == affected
    assert all("work.db" in text and "3.51.3" in text for text in said)
