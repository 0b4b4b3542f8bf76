"""`holdfast worker` and `holdfast work`: as real processes, and looked after from the shell."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time

import pytest
from cli_runs import holdfast

from holdfast.stores import SqliteStore
from holdfast.testing import run
from holdfast.work import WorkHandle, submit

APP = """
import asyncio, pathlib

from holdfast import Session
from holdfast.work import program

async def slow(name):
    pathlib.Path("begun").touch()
    while not pathlib.Path("go").exists():
        await asyncio.sleep(0.02)
    with open("notes", "a") as file:
        file.write(name + "\\n")

@program("slow")
async def slowly(session: Session) -> str:
    await session.step(slow, "first")
    await session.step(slow, "second")
    return "end"

@program("refund")
async def refund(session: Session, order: str) -> str:
    return f"{order} {await session.wait_for('approved')}"

@program("wrong")
async def wrong(session: Session) -> None:
    raise TypeError("a mistake")

programs = [slowly, refund, wrong]
"""
STORE = "sqlite:work.db"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setenv("HOLDFAST_STORE", STORE)
    (tmp_path / "work_app_test.py").write_text(APP)
    yield tmp_path
    sys.modules.pop("work_app_test", None)


def submitted(name, *given, **options):
    import work_app_test  # noqa: PLC0415 - the test has written it

    async def main():
        return await submit(getattr(work_app_test, name), *given, store=STORE, **options)

    return run(main())


def started(*more):
    command = [sys.executable, "-m", "holdfast", "worker", "work_app_test:programs", *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_until(what):
    end = time.monotonic() + 60
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


def status(item):
    async def main():
        async with SqliteStore("work.db") as store:
            return await WorkHandle(item, store=store).status()

    return run(main())


def test_a_worker_that_gets_sigterm_lets_the_step_end_and_exits_with_0(folder):
    handle = submitted("slowly", key="k")
    worker = started()
    wait_until((folder / "begun").exists)
    worker.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    assert worker.poll() is None
    (folder / "go").touch()
    _, said = worker.communicate(timeout=60)
    assert worker.returncode == 0
    assert "stopping after the steps in flight of 1 item" in said
    assert "slow:k: ready" in said
    assert (folder / "notes").read_text().split() == ["first"]
    assert status(handle.id) == "ready"
    other = started("--json")
    wait_until(lambda: status(handle.id) == "done")
    other.send_signal(signal.SIGINT)
    said, _ = other.communicate(timeout=60)
    assert other.returncode == 0
    assert json.loads(said) == {"schema": "holdfast.worker/1", "item": "slow:k", "status": "done"}
    assert (folder / "notes").read_text().split() == ["first", "second"]


def test_items_are_listed_shown_and_looked_after(folder):
    submitted("refund", "o-7", key="o-7")
    submitted("wrong", key="w")
    worker = started()
    wait_until(lambda: status("refund:o-7") == "waiting" and status("wrong:w") == "failed")

    listed = holdfast("work", "ls")
    assert "refund:o-7" in listed.stdout
    assert "SYS_PROGRAMMING_ERROR" in listed.stdout
    (failed,) = json.loads(holdfast("work", "ls", "--status", "failed", "--json").stdout)["items"]
    assert (failed["item"], failed["failures"]) == ("wrong:w", 1)
    lines = holdfast("work", "ls", "--queue", "default", "--jsonl").stdout.splitlines()
    assert len(lines) == 2

    shown = holdfast("work", "show", "wrong:w")
    assert "a mistake" in shown.stdout
    assert "holdfast work retry wrong:w" in shown.stderr
    document = json.loads(holdfast("work", "show", "refund:o-7", "--json").stdout)
    assert document["inputs"] == {"order": "o-7"}

    assert holdfast("work", "signal", "refund:o-7", "approved", '{"by": "ann"}').exit_code == 0
    wait_until(lambda: status("refund:o-7") == "done")
    assert "ann" in json.loads(holdfast("work", "show", "refund:o-7", "--json").stdout)["value"]

    assert holdfast("work", "retry", "wrong:w").exit_code == 0
    wait_until(lambda: status("wrong:w") == "failed")
    assert holdfast("work", "cancel", "wrong:w").exit_code == 0
    assert status("wrong:w") == "cancelled"
    assert holdfast("work", "cancel", "wrong:w").exit_code == 1

    assert holdfast("work", "pause", "--queue", "default").exit_code == 0
    assert "paused: default" in holdfast("work", "ls").stderr
    assert holdfast("work", "resume", "--queue", "default").exit_code == 0
    worker.send_signal(signal.SIGTERM)
    worker.communicate(timeout=60)
    assert worker.returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        ("work", "ls", "--status", "nonsense"),
        ("work", "pause"),
        ("worker", "no_such_module:programs"),
        ("worker", "work_app_test:slow"),
        ("worker", "work_app_test:programs", "--queues", "a=,b"),
    ],
)
def test_wrong_flags_are_named(folder, words):
    submitted("wrong", key="w")
    result = holdfast(*words)
    assert result.exit_code == 2, result.stderr
    assert "Traceback" not in result.stderr


def test_what_is_not_there_is_not_found(folder):
    submitted("wrong", key="w")
    assert holdfast("work", "show", "nobody").exit_code == 3
    assert holdfast("work", "retry", "nobody").exit_code == 1
