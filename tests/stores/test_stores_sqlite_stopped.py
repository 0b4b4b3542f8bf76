"""A process that stands still in the middle of a write to a SQLite file: the others say which one it is, and go on when it does."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from holdfast.faults import HoldfastError, InvalidError
from holdfast.stores import Commit, NewEntry, NewSession, SqliteStore, open_store
from holdfast.stores.sqlite import files
from holdfast.stores.sqlite.holders import holder_of

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/locks"), reason="only Linux names who holds a lock")  # noqa: PTH110

CREATE = Commit(session="s", create=NewSession(manifest=b"{}"))
STOPS = """
import asyncio, os, signal, sys
from holdfast.stores import Commit, NewEntry, SqliteStore
from holdfast.stores.failpoints import FAILPOINTS
from holdfast.stores.sqlite import files

if sys.argv[2] == "free":
    files.is_affected = lambda version: False

def stop(name):
    if name == "begun":
        FAILPOINTS.hook = None
        os.kill(os.getpid(), signal.SIGSTOP)

async def write():
    async with SqliteStore(sys.argv[1]) as store:
        FAILPOINTS.hook = stop
        await store.commit(Commit(session="s", entries=(NewEntry(type="t", body=b"{}", id="other"),)))
asyncio.run(write())
"""


def append(id_):
    return Commit(session="s", entries=(NewEntry(type="t", body=b"{}", id=id_),))


@pytest.mark.parametrize("turns", ["turns", "free"])
def test_XD10_a_stopped_process_that_holds_the_file_is_named_and_the_others_go_on_after_it(
    tmp_path, turns, monkeypatch
):
    path = tmp_path / "s.db"
    if turns == "free":
        monkeypatch.setattr(files, "is_affected", lambda _: False)

    async def scene():
        async with SqliteStore(path, busy=0.2) as store:
            await store.commit(CREATE)
            child = await asyncio.to_thread(subprocess.Popen, [sys.executable, "-c", STOPS, str(path), turns])
            try:
                _, status = await asyncio.to_thread(os.waitpid, child.pid, os.WUNTRACED)
                assert os.WIFSTOPPED(status)
                with pytest.raises(HoldfastError) as raised:
                    await store.commit(append("mine"))
                fault = raised.value.fault
                assert (fault.code, fault.context["pid"], fault.retryable) == (
                    "SESS_STORE_UNAVAILABLE",
                    child.pid,
                    True,
                )
                assert f"process {child.pid} (" in fault.message
                assert (
                    f"is stopped: continue it (kill -CONT {child.pid}), or end it (kill -KILL {child.pid})"
                    in fault.message
                )
                # Reading takes no turn.
                assert await store.read("s") == []
                if turns == "turns":
                    with pytest.raises(HoldfastError, match=f" s: process {child.pid}"):
                        async with SqliteStore(path, busy=0.2):
                            pass
            finally:
                child.send_signal(signal.SIGCONT)
                assert child.wait(30) == 0
            await store.commit(append("mine"))
            assert [entry.id for entry in await store.read("s")] == ["other", "mine"]

    asyncio.run(scene())


def test_XD10_a_lock_that_nobody_holds_has_no_holder(tmp_path):
    assert holder_of(tmp_path / "none") is None
    (tmp_path / "free").touch()
    assert holder_of(tmp_path / "free") is None


def test_XD10_an_address_says_how_long_a_write_waits_for_another_process(tmp_path):
    assert open_store(f"sqlite:{tmp_path}/s.db?busy=60")._busy == 60.0
    for wrong in ("soon", "-1"):
        with pytest.raises(InvalidError):
            open_store(f"sqlite:{tmp_path}/s.db?busy={wrong}")
