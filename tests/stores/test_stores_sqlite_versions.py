"""The version check of SQLite: which have the WAL-reset bug, and where that is reported."""

from __future__ import annotations

import asyncio
import logging
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
def test_FU11_a_program_gets_a_log_line_and_no_warning(tmp_path, monkeypatch, caplog, affected):
    monkeypatch.setattr(files, "is_affected", lambda _: affected)

    async def opened():
        async with SqliteStore(tmp_path / "work.db"):
            pass

    with caplog.at_level(logging.DEBUG, logger="holdfast"), warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(opened())
    lines = [record for record in caplog.records if "WAL-reset" in record.getMessage()]
    assert [record.levelname for record in lines] == ["DEBUG"] * affected
    assert all("holdfast doctor" in record.getMessage() for record in lines)
