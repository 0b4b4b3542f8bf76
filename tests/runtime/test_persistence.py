"""Circuits across restarts (S1's open question; off unless asked for)."""

from __future__ import annotations

import pytest

from holdfast import Circuit, CircuitOpenError, InvalidError, Policy, Runtime, recover
from holdfast.events import CircuitState
from holdfast.runtime.persistence import load_circuits, save_circuits
from holdfast.testing import VirtualClock

KEPT = Policy(attempts=1, circuit=Circuit(failures=2, rate=None, persist=True))


def down():
    raise ConnectionRefusedError("down")


def opened(runtime: Runtime, policy: Policy = KEPT) -> None:
    for _ in range(2):
        with pytest.raises(ConnectionRefusedError):
            recover("claude", policy, runtime=runtime).call(down)


def restarted(clock: VirtualClock, seconds: float) -> Runtime:
    """Another process: its monotonic clock begins anew, the wall clock went on."""
    return Runtime(clock=VirtualClock(monotonic=5.0, wall=clock.wall() + seconds))


def test_an_open_circuit_is_still_open_after_a_restart(tmp_path):
    clock = VirtualClock()
    runtime = Runtime(clock=clock)
    opened(runtime)
    assert save_circuits(runtime, tmp_path / "circuits.json") == 1

    after = restarted(clock, 10)
    assert load_circuits(after, tmp_path / "circuits.json") == 1
    with pytest.raises(CircuitOpenError) as refused:
        recover("claude", KEPT, runtime=after).call(lambda: "up")
    assert refused.value.fault.retry_after == pytest.approx(20)
    after.clock.advance(20)
    assert recover("claude", KEPT, runtime=after).call(lambda: "up") == "up"
    assert after.lines.get("provider:claude").breaker.state(after.clock.monotonic()) is CircuitState.CLOSED


def test_a_circuit_that_does_not_ask_for_it_is_neither_written_nor_read(tmp_path):
    clock = VirtualClock()
    runtime = Runtime(clock=clock)
    forgetful = Policy(attempts=1, circuit=Circuit(failures=2, rate=None))
    opened(runtime, forgetful)
    assert save_circuits(runtime, tmp_path / "circuits.json") == 0

    opened(kept := Runtime(clock=clock))
    save_circuits(kept, tmp_path / "circuits.json")
    after = restarted(clock, 1)
    load_circuits(after, tmp_path / "circuits.json")
    assert recover("claude", forgetful, runtime=after).call(lambda: "up") == "up"


def test_no_file_is_no_memory(tmp_path):
    assert load_circuits(Runtime(), tmp_path / "none.json") == 0


@pytest.mark.parametrize(
    ("written", "says"),
    [
        (b"\x00garbage", "circuits as save_circuits writes them"),
        (b'{"circuits": 3}', "$.circuits"),
        (b'{"version": 2, "circuits": []}', "a newer Holdfast"),
        (b'{"circuits": [{"at": "now"}]}', "$.circuits[0].at"),
        (b'{"circuits": [{"at": 1.0, "name": "x", "failures": -3}]}', "failures"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused_and_changes_nothing(tmp_path, written, says):
    path = tmp_path / "circuits.json"
    path.write_bytes(written)
    runtime = Runtime()
    with pytest.raises(InvalidError) as refused:
        load_circuits(runtime, path)
    assert says in str(refused.value)
    assert path.read_bytes() == written
    assert recover("x", KEPT, runtime=runtime).call(lambda: 1) == 1


def test_writing_leaves_no_other_file_behind(tmp_path):
    runtime = Runtime()
    opened(runtime)
    save_circuits(runtime, tmp_path / "circuits.json")
    save_circuits(runtime, tmp_path / "circuits.json")
    assert [path.name for path in tmp_path.iterdir()] == ["circuits.json"]
