"""`run` and `no_waiting`: one clock for the event loop and the runtime, and retries without pauses."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import CircuitOpenError, DeadlineError, Policy, Runtime, Target, recover
from holdfast.classify import Verdict
from holdfast.events import Retry
from holdfast.policies.circuit import PROVIDER
from holdfast.runtime.runtime import default_runtime
from holdfast.testing import Capture, Midpoint, ScriptedHTTPError, VirtualClock, no_waiting, run, script, use_runtime


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
        run(recover("claude", Policy(deadline=120)).call(script("hang*2").acall), clock=clock)
    assert clock.monotonic() == 120


def test_the_patience_is_measured_by_the_same_clock():
    clock = VirtualClock()
    with pytest.raises(DeadlineError):
        run(recover("claude", Policy(timeout=60)).call(script("hang*3").acall), clock=clock)
    # Two attempts of a minute each: after the second, the time in which attempts start is over.
    assert 120 < clock.monotonic() < 122


def test_a_default_runtime_on_a_virtual_clock_is_used():
    capture = Capture()
    with use_runtime(Runtime(clock=VirtualClock(), rng=Midpoint())) as runtime:
        runtime.on(capture)
        run(ask(script("429;retry-after=7, 503, ok")))
        run(asyncio.sleep(2))
        assert runtime.clock.monotonic() == 9.875
    assert capture.assert_recovered(attempts=3).after == 7.875


def test_the_new_runtime_has_the_settings_of_the_default_one():
    program = Runtime()
    program.configure(Policy(attempts=2), {"provider:batch": Policy(attempts=3)})
    # A rule of the program: by itself, nobody retries a teapot.
    program.rules.add((lambda evidence: Verdict(code="PROVIDER_OVERLOADED") if evidence.status == 418 else None,))
    with use_runtime(program):
        for target, attempts in (("claude", 2), ("batch", 3)):
            calls = script("418*9")
            with pytest.raises(ScriptedHTTPError, match="HTTP 418"):
                run(recover(target).call(calls.acall))
            assert calls.calls == attempts


def test_the_new_runtime_asks_for_consent_as_the_default_one_does():
    asked = []

    @recover("claude", Policy(attempts=1))
    async def answer():
        raise ConnectionResetError

    @answer.fallback(consent="ask")
    async def cheaper():
        return "from the cheaper model"

    with use_runtime(Runtime(consent=lambda *about: asked.append(about) or True)):
        assert run(answer()) == "from the cheaper model"
    assert len(asked) == 1


def test_with_another_clock_it_uses_a_new_runtime_and_restores_the_default():
    capture, clock = Capture(), VirtualClock()
    before = default_runtime()
    with before.on(capture):
        run(ask(script("429;retry-after=7, ok")), clock=clock)
    assert clock.monotonic() == 7
    assert capture.types == []
    assert default_runtime() is before


def test_each_run_has_circuits_of_its_own_unless_the_runtime_is_yours():
    failing = script("503*20")
    once = recover("claude", Policy(attempts=1, circuit=PROVIDER, wait_for_circuit=False)).call

    async def six_times():
        for _ in range(6):
            with pytest.raises(Exception, match=r"HTTP 503|CIRCUIT_OPEN"):
                await once(failing.acall)

    run(six_times())
    run(six_times())
    assert failing.calls == 10  # five failures open a circuit, so one call of each run was not made
    with use_runtime(Runtime(clock=VirtualClock())):
        run(six_times())
        with pytest.raises(CircuitOpenError):
            run(once(failing.acall))


def test_the_same_run_twice_waits_the_same():
    def waited():
        clock = VirtualClock()
        run(ask(script("503, 503, ok")), clock=clock)
        return clock.monotonic()

    assert waited() == waited() != 0


def test_a_disabled_runtime_stays_disabled():
    calls = script("503, ok")
    with use_runtime(Runtime(enabled=False)), pytest.raises(Exception, match="HTTP 503"):
        run(ask(calls))
    assert calls.calls == 1


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


def test_calls_to_a_model_that_limits_them_are_not_paced_without_waiting(runtime):
    target = Target(provider="claude", model="haiku")
    with no_waiting():
        assert [recover(target).call(script("429, 429;retry-after=9, ok:hi")) for _ in range(30)] == ["hi"] * 30
    assert runtime.clock.monotonic() == 0
