"""A system that lacks POSIX features: Holdfast can be imported there, and what needs them raises a typed error when it is used."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys

import pytest

from holdfast import HoldfastError
from holdfast._platform import after_fork, need_posix, need_selector_loop
from holdfast.sessions.lease import is_gone, this_process

# The standard library decides for itself what it needs; only what we import afterwards finds POSIX missing.
POOR = """
import asyncio, getpass, logging, multiprocessing, os, pathlib, signal, sqlite3, subprocess, sys, tempfile
{before}
for name in ("fork", "register_at_fork", "getuid", "geteuid", "chown", "pread", "pwrite"):
    delattr(os, name)
for name in ("SIGHUP", "SIGQUIT", "SIGKILL"):
    delattr(signal, name)
for name in ("fcntl", "grp", "pwd", "resource", "termios", "tty"):
    sys.modules[name] = None
for name in [name for name in sys.modules if name.partition(".")[0] == "holdfast"]:
    del sys.modules[name]
{program}
"""

EVERY_MODULE = """
import importlib, pkgutil, holdfast
for module in pkgutil.walk_packages(holdfast.__path__, "holdfast."):
    if module.name != "holdfast.__main__":
        importlib.import_module(module.name)
print("imported")
"""

A_DAY = """
import asyncio
from holdfast import HoldfastError, Session, recover
from holdfast.config import LiveConfig
from holdfast.testing import script
from holdfast.testing.postgres import PrivateServer

recover("claude").call(script("ok:hi"))

async def main():
    async with Session.open("one", store="sqlite:" + sys.argv[1]) as session:
        print(await session.keyed("seven").step(lambda: 7))

asyncio.run(main())
for feature in (LiveConfig().reload_on_signal, PrivateServer):
    try:
        feature()
    except HoldfastError as error:
        print(error.fault.code)
"""


def on_a_poor_system(program: str, *arguments: str, before: str = "") -> str:
    program = POOR.format(before=before, program=program)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_can_be_imported():
    # Imported once as it is, so that other people's packages are loaded already: they are not what is tested here.
    assert on_a_poor_system(EVERY_MODULE, before=EVERY_MODULE).split() == ["imported", "imported"]


def test_calls_and_sessions_work_and_the_rest_is_a_typed_error(tmp_path):
    shown = on_a_poor_system(A_DAY, str(tmp_path / "store.db")).split()
    assert shown == ["7", "CONFIG_OPTION_INVALID", "SYS_NOT_IMPLEMENTED"]


def test_a_feature_of_posix_is_refused_elsewhere(monkeypatch):
    need_posix("It")
    monkeypatch.delattr(os, "fork")
    with pytest.raises(HoldfastError, match="It needs Linux or macOS") as caught:
        need_posix("It")
    assert caught.value.fault.code == "SYS_NOT_IMPLEMENTED"


def test_the_default_loop_of_windows_is_refused_with_what_to_do():
    class ProactorEventLoop(asyncio.SelectorEventLoop):
        pass

    plain, proactor = asyncio.SelectorEventLoop(), ProactorEventLoop()
    try:
        need_selector_loop("The store", plain)
        with pytest.raises(HoldfastError, match=r"loop_factory=asyncio\.SelectorEventLoop") as caught:
            need_selector_loop("The store", proactor)
    finally:
        plain.close()
        proactor.close()
    assert caught.value.fault.code == "SYS_NOT_IMPLEMENTED"


def test_a_dead_owner_is_not_looked_for_where_looking_would_kill(monkeypatch):
    monkeypatch.setattr(os, "kill", lambda *_: pytest.fail("os.kill(pid, 0) sends Ctrl-C on Windows"))
    monkeypatch.delattr(os, "fork")
    assert not is_gone(this_process())


def test_what_follows_a_fork_is_dropped_where_there_is_none(monkeypatch):
    monkeypatch.delattr(os, "register_at_fork")
    after_fork(lambda: None)
