"""`run` and recoveries: one clock for the event loop and the runtime, whoever made it."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import CircuitOpenError, DeadlineError, Policy, Runtime, recover
from holdfast.runtime.runtime import default_runtime
from holdfast.testing import Capture, Midpoint, VirtualClock, run, script, use_runtime


@recover("claude")
async def ask(calls):
    return await calls.acall()


def test_a_recovery_waits_in_virtual_time():
    clock = VirtualClock()
    assert run(ask(script("429;retry-after=100, ok:hello")), clock=clock) == "hello"
    assert clock.monotonic() == 100


def test_the_deadline_is_measured_by_the_same_clock():
    clock = VirtualClock()
    with pytest.raises(DeadlineError):
        run(ask(script("hang*2")), clock=clock)
    assert clock.monotonic() == 120


def test_on_a_virtual_runtime_it_takes_that_ones_clock_and_readers():
    capture = Capture()
    with use_runtime(Runtime(clock=VirtualClock(), rng=Midpoint())) as runtime:
        runtime.on(capture)
        run(ask(script("429;retry-after=7, 503, ok")))
        run(asyncio.sleep(2))
        assert runtime.clock.monotonic() == 10
    assert capture.assert_recovered(attempts=3).after == 8


def test_on_another_clock_it_has_a_runtime_of_its_own_and_leaves_the_default_as_it_was():
    capture, clock = Capture(), VirtualClock()
    before = default_runtime()
    with before.on(capture):
        run(ask(script("429;retry-after=7, ok")), clock=clock)
    assert clock.monotonic() == 7
    assert capture.types == []
    assert default_runtime() is before


def test_each_run_has_circuits_of_its_own_unless_the_runtime_is_yours():
    refused = script("503*20")
    once = recover("claude", Policy(attempts=1)).call

    async def six_times():
        for _ in range(6):
            with pytest.raises(Exception, match=r"HTTP 503|CIRCUIT_OPEN"):
                await once(refused.acall)

    run(six_times())
    run(six_times())
    assert refused.calls == 10  # five failures open a circuit, so one call of each run was not made
    with use_runtime(Runtime(clock=VirtualClock())):
        run(six_times())
        with pytest.raises(CircuitOpenError):
            run(once(refused.acall))


def test_the_same_run_twice_waits_the_same():
    def waited():
        clock = VirtualClock()
        run(ask(script("503, 503, ok")), clock=clock)
        return clock.monotonic()

    assert waited() == waited() != 0


def test_a_recovery_that_is_switched_off_stays_so():
    calls = script("503, ok")
    with use_runtime(Runtime(enabled=False)), pytest.raises(Exception, match="HTTP 503"):
        run(ask(calls))
    assert calls.calls == 1
