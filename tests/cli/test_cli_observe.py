"""`holdfast policy observe`: what recovery would have changed, from an audit trail or a file of events."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress

import pytest
from cli_runs import holdfast

from holdfast import Runtime, recover
from holdfast.events import Observed, Retry, encode_lines
from holdfast.events.lines import LogLines
from holdfast.faults import Fault
from holdfast.sinks import audit_to
from holdfast.stores import SqliteStore
from holdfast.testing import Capture, VirtualClock, script

OVERLOADED = Fault.of("PROVIDER_OVERLOADED")
CALLS = (
    *(Observed(at=float(at), operation="claude", outcome="answered", took=1.0) for at in range(120)),
    Observed(at=120.0, operation="claude", outcome="failed", took=2.0, would="retry", delay=0.7, fault=OVERLOADED),
    Observed(
        at=121.0, operation="claude", outcome="failed", took=9.0, would="give-up", requests=3, unwanted=2, saved=7.5
    ),
    Observed(at=122.0, operation="gpt", outcome="answered", took=1.0, would="wait", waits=7.0),
    Retry(at=123.0, attempt=1, max_attempts=3, delay=1.0, fault=OVERLOADED),
)


@pytest.fixture
def events(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_bytes(b"".join(encode_lines(CALLS)))
    return str(path)


def document(*arguments: str, status: int = 0):
    done = holdfast("policy", "observe", *arguments, "--json")
    assert done.exit_code == status, done.output
    return {each["target"]: each for each in json.loads(done.stdout)["targets"]}


def test_each_target_is_summed_up_with_a_verdict_and_the_line_that_switches_it_on(events):
    done = holdfast("policy", "observe", events)
    assert done.exit_code == 0
    assert "None of 120 answered calls would have been worse off. 1 of 2 failed calls would have been tried again." in (
        done.stdout
    )
    assert '[targets."claude"] mode = "recover"' in done.stdout
    assert "1 of 1 answered call would have been worse off: 1 delayed, by 7.0 s in all at least." in done.stdout
    assert '[targets."gpt"]' not in done.stdout


def test_json_has_the_same_sums(events):
    found = document(events)
    claude = found["claude"]
    assert (claude["calls"], claude["answered"], claude["failed"]) == (122, 120, 2)
    assert claude["failed_would_have"] == {"give-up": 1, "retry": 1}
    assert (claude["own_retries"], claude["own_retries_unwanted"], claude["saved_s"]) == (2, 2, 7.5)
    assert (claude["harmed"], found["gpt"]["harmed"]) == (0, 1)
    assert found["gpt"]["answered_would_have_been"]["delayed_s"] == 7.0


def test_filters_and_strict(events):
    assert list(document(events, "--target", "gpt")) == ["gpt"]
    assert list(document(events, "--since", "1970-01-01T00:02:02Z")) == ["gpt"]
    document(events, "--strict", status=8)
    document(events, "--strict", "--target", "claude")
    document(events, "--target", "nobody", status=3)


def test_a_file_that_is_not_there_or_no_json(tmp_path):
    assert holdfast("policy", "observe", str(tmp_path / "none.jsonl")).exit_code == 3
    (tmp_path / "x").write_text("hello\n")
    done = holdfast("policy", "observe", str(tmp_path / "x"))
    assert done.exit_code == 2
    assert "JSON Lines" in done.output


def test_the_audit_trail_of_a_store_and_its_export(tmp_path):
    runtime = Runtime(clock=VirtualClock(), mode="observe")
    path = str(tmp_path / "work.db")

    async def main() -> None:
        async with SqliteStore(path) as store, audit_to(store, runtime):
            ask = recover("claude", runtime=runtime)
            service = script("529;retry-after=3, 401, ok")
            for _ in range(3):
                with suppress(Exception):
                    ask.call(service)

    asyncio.run(main())
    found = document("--store", path)["claude"]
    assert (found["calls"], found["answered"], found["failed"]) == (3, 1, 2)
    exported = tmp_path / "trail.jsonl"
    exported.write_text(holdfast("audit", "export", "--store", path).stdout)
    assert document(str(exported))["claude"] == found


def test_the_log_has_one_line_a_minute():
    lines = LogLines()
    shown = [lines.of(event) for event in CALLS if isinstance(event, Observed)]
    texts = [(level, text) for level, text in shown if text]
    assert [level for level, _ in texts] == [20, 20]
    assert texts[0][1].startswith("observe mode, 60 s: 61 calls, 61 answered, 0 failed")
    assert all(level is None for level, text in shown if not text)


def test_a_runtime_logs_the_minute_by_itself(caplog):
    caplog.set_level("INFO", logger="holdfast")
    clock = VirtualClock()
    runtime = Runtime(clock=clock, mode="observe", log=True)
    heard = Capture()
    runtime.on(heard)
    for _ in range(4):
        recover("claude", runtime=runtime).call(abs, 1)
        clock.sleep(30)
    assert len(heard) == 4
    assert [record.getMessage() for record in caplog.records] == [
        "observe mode, 60 s: 3 calls, 3 answered, 0 failed, 0 answered calls would have been worse off"
    ]


def test_what_is_not_judged_stands_beside_the_verdict_and_is_not_enough_for_strict(tmp_path):
    path = tmp_path / "events.jsonl"
    call = {"operation": "claude", "outcome": "answered", "took": 1.0}
    calls = [Observed(at=float(at), **call, unjudged=("budget",)) for at in range(120)]
    path.write_bytes(b"".join(encode_lines(calls)))
    done = holdfast("policy", "observe", str(path))
    assert "None of 120 answered calls would have been worse off. Not judged: budget (120 calls)." in done.stdout
    assert "Switch it on" not in done.stdout
    assert holdfast("policy", "observe", str(path), "--strict").exit_code == 8


def test_answers_that_accept_rejects_are_worse_off(tmp_path):
    path = tmp_path / "events.jsonl"
    call = {"operation": "claude", "outcome": "answered", "took": 1.0}
    calls = [Observed(at=float(at), **call, accepted=at > 1) for at in range(120)]
    path.write_bytes(b"".join(encode_lines(calls)))
    done = holdfast("policy", "observe", str(path), "--strict")
    assert "2 of 120 answered calls would have been worse off: 2 answered with something that `accept` rejects." in (
        done.stdout
    )
    assert done.exit_code == 8
