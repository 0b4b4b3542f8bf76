"""Programs that are killed at each of their points: real processes, a real payment service, real SQLite files."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from crashtest_kit import Payments, crash, serving, verdicts

from holdfast.faults import InvalidError
from holdfast.testing import CrashTest, serve_in_thread

EFFECT_THEN_MARK = """
db = sqlite3.connect("state.db")
db.execute("CREATE TABLE IF NOT EXISTS done (step)")
if not db.execute("SELECT 1 FROM done").fetchone():
    post("/charges", {"order": 42})
    with db:
        db.execute("INSERT INTO done VALUES ('charge')")
print("paid")
"""


@pytest.fixture(scope="module")
def payments() -> Iterator[Payments]:
    with serving() as server:
        yield server


def test_an_effect_that_is_marked_afterwards_is_doubled_by_exactly_one_kill(tmp_path: Path, payments: Payments):
    report = crash(tmp_path, EFFECT_THEN_MARK, payments)
    assert verdicts(report) == {
        "before commit state.db (1 of 2)": "ok",
        "before POST /charges": "ok",
        "after POST /charges": "doubled",
        "after commit state.db (2 of 2)": "ok",
    }
    assert (report.doubled, report.lost, report.effects, report.points, report.notes) == (1, 0, 1, 3, ())
    # The program ran in copies.
    assert [path.name for path in tmp_path.iterdir()] == ["agent.py"]


def test_only_the_first_run_reaches_the_service_unless_it_is_there_to_be_tested(tmp_path: Path):
    with serving() as service:
        assert crash(tmp_path, EFFECT_THEN_MARK, service, kills=2).doubled == 1
        assert service.performed["/charges"] == 1
        # Two runs without a kill, and two kills: before the request, and after it.
        assert crash(tmp_path, EFFECT_THEN_MARK, service, kills=2, live=True).doubled == 1
        assert service.performed["/charges"] == 1 + 2 + 1 + 2


def test_fake_effects_are_sent_to_nobody(tmp_path: Path):
    report = crash(tmp_path, EFFECT_THEN_MARK, environment={"PAY": "http://pay.invalid"}, fake_effects=True, kills=2)
    assert verdicts(report) == {"before POST /charges": "ok", "after POST /charges": "doubled"}


def test_a_mark_that_is_set_before_the_effect_loses_it(tmp_path: Path, payments: Payments):
    program = """
    db = sqlite3.connect("state.db", isolation_level=None)
    db.execute("CREATE TABLE IF NOT EXISTS done (step)")
    if not db.execute("SELECT 1 FROM done").fetchone():
        db.execute("INSERT INTO done VALUES ('charge')")
        post("/charges", {"order": 42})
    """
    report = crash(tmp_path, program, payments)
    assert verdicts(report) == {
        "before commit state.db (1 of 2)": "ok",
        "after commit state.db (1 of 2)": "ok",
        "before POST /charges": "lost",
        "after POST /charges": "ok",
    }


def test_an_effect_with_a_stable_key_is_not_doubled(tmp_path: Path, payments: Payments):
    report = crash(tmp_path, 'post("/charges", {"order": 42}, **{"Idempotency-Key": "order-42"})', payments)
    assert set(verdicts(report).values()) == {"ok"}
    assert not report.damage


def test_a_file_that_is_written_in_place_can_be_left_empty(tmp_path: Path):
    program = """
    if os.path.exists("state.json"):
        json.loads(open("state.json").read())
    with open("state.json", "w") as file:
        file.write('{"step": 1}')
    """
    report = crash(tmp_path, program)
    assert verdicts(report) == {"before open state.json": "ok", "after open state.json": "fails"}
    # The same error twice is enough; it is not run a fourth time.
    assert (report.rows[1].runs, report.rows[1].detail) == (
        3,
        "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
    )


def test_a_file_that_replaces_another_is_never_half(tmp_path: Path):
    program = """
    if os.path.exists("state.json"):
        json.loads(open("state.json").read())
    with open("state.new", "w") as file:
        file.write('{"step": 1}')
    os.replace("state.new", "state.json")
    """
    report = crash(tmp_path, program)
    assert set(verdicts(report).values()) == {"ok"}
    assert "after rename state.json" in verdicts(report)


def test_a_lock_that_nobody_removes_lets_the_next_run_wait_for_ever(tmp_path: Path):
    program = """
    import time
    while os.path.exists("lock"):
        time.sleep(0.01)
    open("lock", "x").close()
    os.remove("lock")
    """
    report = crash(tmp_path, program, timeout=4)
    assert verdicts(report)["before open lock"] == "ok"
    assert verdicts(report)["after open lock"] == "never ends"
    assert report.rows[1].detail == "no end after 4 s"


ASK = """
def ask(turn):
    body = {"model": "claude-haiku-4-5", "max_tokens": 9, "messages": [{"role": "user", "content": turn}]}
    url = os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages"
    headers = {"content-type": "application/json", "x-api-key": "test", "anthropic-version": "2023-06-01"}
    return json.loads(urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)).read())
print(ask("one")["content"][0]["text"], ask("two")["content"][0]["text"])
"""


def test_the_model_is_asked_in_one_run_and_later_answers_are_the_recorded_ones(tmp_path: Path):
    with serve_in_thread() as provider:
        report = crash(
            tmp_path, ASK, environment={"ANTHROPIC_BASE_URL": provider.url}, expect="You said: one You said: two"
        )
        assert provider.counters.received == 2
    assert {row.killed: row.paid for row in report.rows} == {
        "before POST /v1/messages (1 of 2)": 0,
        "after POST /v1/messages (1 of 2)": 1,
        "after POST /v1/messages (2 of 2)": 2,
    }
    assert (report.model_requests, report.effects, report.damage) == (2, 0, ())


def test_live_asks_the_model_each_time(tmp_path: Path):
    with serve_in_thread() as provider:
        report = crash(tmp_path, ASK, environment={"ANTHROPIC_BASE_URL": provider.url}, live=True, kills=1)
        # Two observations, and two runs of the only kill: in the first of them one request was not answered.
        assert provider.counters.received == 4 + 2 + report.rows[0].paid
    assert len(report.rows) == 1


def test_a_fake_model_needs_no_key(tmp_path: Path):
    report = crash(tmp_path, ASK, fake_model=True, kills=1)
    assert [row.verdict for row in report.rows] == ["ok"]


def test_a_check_of_the_end_sees_what_is_wrong_with_the_state(tmp_path: Path):
    program = """
    with open("log", "a") as file:
        file.write("line\\n")
    open("end", "w").close()
    """

    def check(folder: Path) -> str | None:
        lines = (folder / "log").read_text().count("\n")
        return None if lines == 1 else f"{lines} lines"

    report = crash(tmp_path, program, check=check)
    assert {row.killed: row.detail for row in report.damage} == {
        "before open end": "2 lines",
        "after open end": "2 lines",
    }


def test_two_payments_at_the_same_time_are_killed_one_by_one(tmp_path: Path, payments: Payments):
    program = """
    from concurrent.futures import ThreadPoolExecutor
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: post(f"/{name}", {}), ("left", "right")))
    """
    report = crash(tmp_path, program, payments, effects=[payments.url])
    kills = verdicts(report)
    assert {"after POST /left", "after POST /right"} <= set(kills)
    assert kills["after POST /left"] == "doubled"


def test_named_effects_are_the_only_ones_and_get_an_address_of_their_own(tmp_path: Path, payments: Payments):
    program = """
    post("/log", {})
    urllib.request.urlopen(urllib.request.Request(os.environ["CARDS"] + "/charges", b"{}"))
    """
    report = crash(tmp_path, program, payments, effects=[f"CARDS={payments.url}/v2"])
    assert report.effects == 1
    # The log entry that is sent again is none of the named effects.
    assert verdicts(report) == {
        "before POST /log": "ok",
        "before POST /v2/charges": "ok",
        "after POST /v2/charges": "doubled",
    }


DURABLE = """
import asyncio
from holdfast import Session, tool
from holdfast.tools import Toolbox

@tool(effect="unsafe")
async def charge(order: str) -> str:
    return "paid"

async def main():
    async with Session.open("order-42") as session:
        print(await session.step(Toolbox([charge])["charge"], order="42"))

asyncio.run(main())
"""


def test_our_tool_calls_are_points_and_a_person_is_asked_where_nobody_knows_what_happened(tmp_path: Path):
    """The default store of sessions is in the state folder, and so a part of each copy."""
    report = crash(tmp_path, DURABLE, kills=2)
    assert verdicts(report) == {"before tool charge": "asks", "after tool charge": "asks"}
    assert "its end is not known" in report.rows[0].detail
    assert (report.damage, report.notes) == ((), ())


def test_state_outside_of_the_folder_and_encrypted_requests_are_noted(tmp_path: Path):
    folder = tmp_path / "work"
    folder.mkdir()
    program = f"""
    open({str(tmp_path / "elsewhere.txt")!r}, "a").close()
    try:
        urllib.request.urlopen("https://127.0.0.1:1/")
    except OSError:
        pass
    """
    report = crash(folder, program, live=True)
    assert report.notes == (
        "requests to 127.0.0.1 are encrypted and were not seen: name the variable of their address as a target",
        f"state outside of the folder is not reset between kills: {tmp_path / 'elsewhere.txt'}",
    )


def test_encrypted_requests_that_each_run_would_send_in_earnest_stop_the_test(tmp_path: Path):
    program = """
    try:
        urllib.request.urlopen("https://127.0.0.1:1/")
    except OSError:
        pass
    """
    with pytest.raises(InvalidError) as raised:
        crash(tmp_path, program)
    assert "got encrypted ones to 127.0.0.1" in str(raised.value)


def test_a_program_that_is_not_python_is_killed_at_its_requests(tmp_path: Path, payments: Payments):
    """The shell's own writes are not seen. Its Python, without our hook, makes the request."""
    script = (
        f"{sys.executable} -I -c \"import os, urllib.request as u; u.urlopen(os.environ['PAY'] + '/charges', b'x')\""
    )
    report = CrashTest(["sh", "-c", script], folder=tmp_path, environment={"PAY": payments.url}).run()
    assert verdicts(report) == {"before POST /charges": "ok", "after POST /charges": "doubled"}
    assert report.notes[0].startswith("only HTTP requests were seen")


def test_a_killed_program_leaves_no_process_behind(tmp_path: Path, payments: Payments):
    """The children of a killed program are killed with it: one of them would go on to pay."""
    program = """
    import subprocess
    child = "import time, urllib.request as u; time.sleep(2); u.urlopen(%r, b'')" % (os.environ["PAY"] + "/late")
    late = subprocess.Popen([sys.executable, "-c", child])
    post("/charges", {})
    late.kill()
    """
    report = crash(tmp_path, program, payments, kills=2)
    assert [row.killed for row in report.rows] == ["before POST /charges", "after POST /charges"]
    assert payments.performed["/late"] == 0


@pytest.mark.parametrize(
    ("program", "options", "words"),
    [
        ("sys.exit('no luck')", {}, "it exited with 1: no luck"),
        ("print('other')", {"expect": "done"}, "no run printed 'done'"),
        ("import time; time.sleep(60)", {"timeout": 0.5}, "it did not end within"),
        ("urllib.request.urlopen('http://127.0.0.1:1/x', b'')", {}, "(no answer from 127.0.0.1:1)"),
    ],
)
def test_a_program_that_does_not_work_by_itself_is_not_tested(
    tmp_path: Path, program: str, options: dict[str, Any], words: str
):
    with pytest.raises(InvalidError) as raised:
        crash(tmp_path, program, **options)
    assert "expected a program that works when it is not killed" in str(raised.value)
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("command", "options", "words"),
    [
        ([], {}, "expected a program and its arguments, got nothing"),
        (["no-such-program-here"], {}, "'no-such-program-here', which is not found"),
        (["true"], {"folder": "/no/such/folder"}, "expected a folder with the program's state"),
        (["true"], {"effects": ["pay.example"]}, "expected an address with http:// or https://"),
        (["true"], {"targets": {"URL": 7}}, "expected an address with http:// or https://"),
        (["true"], {"kills": 0}, "crashtest.kills"),
        (["true"], {"restarts": 0}, "crashtest.restarts"),
        (["true"], {"timeout": -1}, "crashtest.timeout"),
    ],
)
def test_options_that_cannot_be_are_rejected(command: list[str], options: dict[str, Any], words: str):
    with pytest.raises(InvalidError) as raised:
        CrashTest(command, **options).run()
    assert words in str(raised.value)


def test_the_fixture_runs_the_python_of_the_test(tmp_path: Path, crash_test: Any):
    (tmp_path / "agent.py").write_text("open('done', 'w').close()")
    report = crash_test(["python", "agent.py"], folder=tmp_path)
    assert verdicts(report) == {"before open done": "ok", "after open done": "ok"}
