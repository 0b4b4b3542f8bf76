"""`holdfast` alone: what to do next, by what is here."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys

import pytest
from cli_runs import holdfast

from holdfast.cli.start import Situation, WaitingSession, next_steps
from holdfast.stores import SqliteStore
from holdfast.testing.clock import VirtualClock


@pytest.fixture(autouse=True)
def somewhere_quiet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in ("HOLDFAST_STORE", "HOLDFAST_CONFIG", "ANTHROPIC_API_KEY", "OPENAI_API_KEY", "XAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def commands(**here) -> list[str]:
    return [command for command, _ in next_steps(Situation(**here))]


def shown() -> str:
    result = holdfast()
    assert (result.exit_code, result.stderr) == (0, "")
    assert max(map(len, result.stdout.splitlines())) <= 60
    return result.stdout


def test_a_newcomer_sees_the_demo_first_and_can_write_settings():
    assert commands()[0] == "holdfast demo"
    assert "holdfast init" in commands()
    assert re.findall(r"^  (holdfast \S+)", shown(), re.MULTILINE)[0] == "holdfast demo"


def test_settings_with_mistakes_come_first(somewhere_quiet):
    (somewhere_quiet / "holdfast.toml").write_text("[policy]\natempts = 1\ntimeout = 'x'\n")
    text = shown()
    assert text.splitlines()[2].split() == ["holdfast", "policy", "check", "the", "settings", "have", "2", "mistakes"]
    assert "holdfast init" not in text
    assert "holdfast policy show" in text


_KILLED = """
import asyncio, os
from holdfast import Session

async def main():
    async with Session.open("release-42") as session:
        await session.step(asyncio.sleep, 0)
        os._exit(9)

asyncio.run(main())
"""


def test_a_session_whose_process_was_killed_is_named():
    killed = subprocess.run([sys.executable, "-c", _KILLED], timeout=60, check=False)
    assert killed.returncode == 9
    assert "  holdfast sessions show release-42  it is interrupted\n" in shown()
    assert "holdfast demo" not in shown()


def test_several_sessions_are_counted_by_what_they_need():
    waiting = (WaitingSession("a", "paused"), WaitingSession("b", "failed"), WaitingSession("c", "paused"))
    (found,) = [step for step in next_steps(Situation(sessions=waiting)) if "sessions" in step[0]]
    assert found == ("holdfast sessions ls", "3 sessions: 1 failed, 2 paused")


def test_a_store_that_cannot_be_read_leads_to_the_doctor(somewhere_quiet, monkeypatch):
    (somewhere_quiet / "work.db").write_bytes(b"this is no database" * 100)
    monkeypatch.setenv("HOLDFAST_STORE", str(somewhere_quiet / "work.db"))
    assert "holdfast doctor       the store cannot be read" in shown()


def test_looking_makes_nothing_and_asks_no_server(somewhere_quiet, monkeypatch):
    shown()
    assert list(somewhere_quiet.iterdir()) == []
    # Nobody listens there: a connection would take its time, and fail.
    monkeypatch.setenv("HOLDFAST_STORE", "postgresql://127.0.0.1:1/none")
    assert "the store cannot be read" not in shown()


def test_a_store_of_an_older_version_is_not_changed_by_looking(somewhere_quiet):
    path = somewhere_quiet / "state" / "holdfast" / "holdfast.db"
    path.parent.mkdir(parents=True)
    asyncio.run(_make(path))
    before = path.read_bytes()
    shown()
    assert path.read_bytes() == before


async def _make(path) -> None:
    async with SqliteStore(path, clock=VirtualClock()):
        pass


def test_a_key_is_used_by_its_name_only(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-proj-very-secret")
    text = shown()
    assert "holdfast agent run" in text
    assert "OPENAI_API_KEY" in text
    assert "very-secret" not in text
