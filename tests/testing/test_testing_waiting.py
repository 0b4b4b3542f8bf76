"""The switch that turns waiting off: what is done stays, the pauses between go."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Runtime, recover
from holdfast.events import Retry
from holdfast.runtime.runtime import default_runtime
from holdfast.testing import Capture, VirtualClock, no_waiting, run, script, use_runtime


@pytest.fixture
def runtime():
    with use_runtime(Runtime(clock=VirtualClock())) as runtime:
        yield runtime


def test_a_call_retries_without_waiting(runtime):
    capture, calls = Capture(), script("429;retry-after=100, ok:hello")
    runtime.on(capture)
    with no_waiting():
        assert recover("claude").call(calls) == "hello"
    assert capture.of(Retry)[0].delay == 100
    assert runtime.clock.monotonic() == 0


def test_an_async_call_retries_without_waiting(runtime):
    calls = script("429;retry-after=100, ok:hello")
    with no_waiting():
        assert run(recover("claude").call(calls.acall)) == "hello"
    assert runtime.clock.monotonic() == 0


def test_as_a_function_it_holds_until_it_is_restored(runtime):
    off = no_waiting()
    assert default_runtime().waits is False
    off.restore()
    assert recover("claude").call(script("429;retry-after=100, ok:hello")) == "hello"
    assert runtime.clock.monotonic() == 100


def test_in_a_with_statement_it_holds_for_the_block_however_that_ends(runtime):
    waited = []

    def fail():
        waited.append(runtime.waits)
        raise KeyError

    with pytest.raises(KeyError), no_waiting():
        fail()
    assert (waited, runtime.waits) == ([False], True)


def test_blocks_nest_and_a_runtime_that_did_not_wait_still_does_not(runtime):
    with no_waiting():
        with no_waiting():
            pass
        assert runtime.waits is False
    assert runtime.waits is True
    already = Runtime(waits=False)
    with no_waiting(already):
        pass
    assert (already.waits, runtime.waits) == (False, True)


def test_a_run_with_a_clock_of_its_own_does_not_wait_either(runtime):
    clock = VirtualClock()

    async def main():
        await recover("claude").call(script("429;retry-after=100, ok").acall)
        await asyncio.sleep(1)

    with no_waiting():
        run(main(), clock=clock)
    assert clock.monotonic() == 1
