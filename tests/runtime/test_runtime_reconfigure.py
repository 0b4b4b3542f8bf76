"""R85: settings change while calls are under way."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
from collections.abc import AsyncIterator, Callable

import pytest

from holdfast import (
    BATCH,
    INTERACTIVE,
    PATIENT,
    Backoff,
    Circuit,
    DeadlineError,
    InvalidError,
    Policy,
    Runtime,
    Target,
    Tries,
    recover,
)
from holdfast.events import CircuitState, Failed
from holdfast.manager import ExecutionOptions, ResilienceManager
from holdfast.policies.circuit import GRADED, PROVIDER
from holdfast.testing import Capture, VirtualClock, run

THREE = Policy(attempts=3, backoff=Backoff(initial=1, jitter=0), patience=None, circuit=None)
ONE = Policy(attempts=1, patience=None, circuit=None)


@pytest.fixture
def runtime() -> Runtime:
    return Runtime(clock=VirtualClock())


def test_R85_calls_under_way_finish_on_the_settings_they_began_with(runtime):
    runtime.configure(THREE, {})
    calls = []

    @recover("claude", runtime=runtime)
    async def ask(who: str) -> str:
        calls.append(who)
        await asyncio.sleep(1)
        raise ConnectionResetError(who)

    async def main() -> None:
        early = asyncio.create_task(ask.outcome("early"))
        also = asyncio.create_task(ask("also"))
        await asyncio.sleep(0.5)
        runtime.configure(ONE, {})
        await ask.outcome("late")
        with pytest.raises(ConnectionResetError):
            await ask("later")
        await early
        with pytest.raises(ConnectionResetError):
            await also

    run(main(), clock=runtime.clock)
    assert {who: calls.count(who) for who in calls} == {"early": 3, "also": 3, "late": 1, "later": 1}


@pytest.mark.parametrize("way", ["default", "by name"])
def test_R85_a_circuit_keeps_its_state_under_other_settings(runtime, way):
    def configure(circuit: Circuit | None) -> None:
        policy = Policy(attempts=1, circuit=circuit, wait_for_circuit=False)
        runtime.configure(*((policy, {}) if way == "default" else (INTERACTIVE, {"provider:claude": policy})))

    def state() -> CircuitState:
        return runtime.registry.get("provider:claude")._breaker.state(runtime.clock.monotonic())

    @recover("claude", runtime=runtime)
    def ask(fails: bool) -> str:
        if fails:
            raise ConnectionResetError
        return "hi"

    configure(Circuit(failures=2, rate=None))
    for _ in range(2):
        with pytest.raises(ConnectionResetError):
            ask(fails=True)
    assert state() is CircuitState.OPEN
    configure(Circuit(failures=9, rate=None))
    with pytest.raises(Exception, match="CIRCUIT_OPEN"):
        ask(fails=False)
    runtime.clock.advance(30)
    assert ask(fails=False) == "hi"
    assert state() is CircuitState.CLOSED
    configure(None)
    for _ in range(20):
        with pytest.raises(ConnectionResetError):
            ask(fails=True)


def test_R86_after_a_change_two_policies_that_disagree_are_still_a_mistake(runtime):
    recover("claude", Policy(circuit=Circuit(failures=2)), runtime=runtime).call(len, "x")
    runtime.configure(INTERACTIVE, {})
    other = Policy(circuit=Circuit(failures=3))
    assert recover("claude", other, runtime=runtime).call(len, "x") == 1
    with pytest.raises(InvalidError, match=r"policy.circuit of provider:claude"):
        recover("claude", Policy(circuit=Circuit(failures=4)), runtime=runtime)


NINE = Circuit(failures=9, rate=None)
WAYS = pytest.mark.parametrize("way", ["default", "by name"])


def _configure(runtime: Runtime, way: str, policy: Policy) -> None:
    runtime.configure(*((policy, {}) if way == "default" else (INTERACTIVE, {"provider:claude": policy})))


@WAYS
@pytest.mark.parametrize("policy", [PATIENT, BATCH, Policy(attempts=2), PATIENT.replace(attempts=2)])
def test_FR1_a_policy_that_names_no_circuit_takes_the_configured_one(runtime, way, policy):
    plain = recover("claude", runtime=runtime)
    own = recover("claude", policy, runtime=runtime)
    for _ in range(2):
        assert plain.call(len, "x") == own.call(len, "x") == 1
        _configure(runtime, way, Policy(circuit=NINE))
    assert own.call(len, "x") == plain.call(len, "x") == 1
    assert runtime.registry.get("provider:claude").circuit == NINE
    # It keeps everything else of its own.
    assert own._plan.fresh().policy == policy.replace(circuit=NINE)
    runtime.configure(INTERACTIVE, {})
    assert own.call(len, "x") == plain.call(len, "x") == 1
    assert runtime.registry.get("provider:claude").circuit == GRADED


@pytest.mark.parametrize("copied", [lambda it: pickle.loads(pickle.dumps(it)), copy.copy, copy.deepcopy])
def test_FR1_a_policy_that_was_pickled_or_copied_still_names_no_circuit(runtime, copied):
    runtime.configure(Policy(circuit=NINE), {})
    assert recover("claude", runtime=runtime).call(len, "x") == 1
    for policy in (PATIENT, Policy(attempts=2, per_code={"AUTH_FAILED": Tries(attempts=2)})):
        assert copied(policy) == policy
        assert recover("claude", copied(policy), runtime=runtime).call(len, "x") == 1
    named = copied(Policy(circuit=PROVIDER))
    with pytest.raises(InvalidError, match="circuit of provider:claude"):
        recover("claude", named, runtime=runtime)


@pytest.mark.parametrize("policy", [None, PATIENT])
def test_FR1_the_circuit_of_an_agent_is_not_that_of_its_provider(runtime, policy):
    runtime.configure(INTERACTIVE, {"agent:a": Policy(circuit=NINE)})
    recovery = recover(Target(agent="a", provider="claude"), policy, runtime=runtime)
    assert recovery.call(len, "x") == 1
    assert recover("claude", runtime=runtime).call(len, "x") == 1
    assert recover("agent:a", runtime=runtime).call(len, "x") == 1
    assert runtime.registry.get("agent:a").circuit == NINE
    assert runtime.registry.get("provider:claude").circuit == GRADED
    # The settings of the provider are not those of the agent, either.
    runtime.configure(INTERACTIVE, {"provider:claude": Policy(circuit=NINE)})
    assert recovery.call(len, "x") == 1
    assert runtime.registry.get("agent:a").circuit == GRADED
    assert runtime.registry.get("provider:claude").circuit == NINE


def test_FR1_the_manager_keeps_the_circuit_of_each_name(runtime):
    runtime.configure(INTERACTIVE, {"agent:a": Policy(circuit=NINE)})
    three = Circuit(failures=3)
    assert recover("claude", Policy(circuit=three), runtime=runtime).call(len, "x") == 1
    options = ExecutionOptions(agent="a", provider="claude")
    assert ResilienceManager(runtime).execute(lambda: 1, options) == 1
    assert recover("agent:a", runtime=runtime).call(len, "x") == 1
    assert runtime.registry.get("agent:a").circuit == NINE
    assert runtime.registry.get("provider:claude").circuit == three


@WAYS
def test_FR1_a_policy_that_names_no_circuit_has_none_where_the_settings_have_none(runtime, way):
    _configure(runtime, way, Policy(circuit=None))

    @recover("claude", Policy(attempts=1), runtime=runtime)
    def ask() -> None:
        raise ConnectionResetError

    for _ in range(20):
        with pytest.raises(ConnectionResetError):
            ask()


@WAYS
@pytest.mark.parametrize("named", [None, PROVIDER, Circuit(), Circuit(failures=2)])
def test_FR1_a_policy_that_names_its_circuit_keeps_it(runtime, way, named):
    _configure(runtime, way, Policy(circuit=NINE))
    recovery = recover("claude", Policy(circuit=named), runtime=runtime)
    assert recovery.call(len, "x") == 1
    assert runtime.registry.get("provider:claude").circuit == named


def test_R69_an_unchanged_limiter_survives_a_reload(runtime):
    two = Policy(concurrency=2, attempts=1)
    runtime.configure(two, {})
    most = now = 0

    @recover("claude", runtime=runtime)
    async def ask() -> None:
        nonlocal most, now
        now += 1
        most = max(most, now)
        await asyncio.sleep(1)
        now -= 1

    async def main() -> None:
        early = [asyncio.create_task(ask()) for _ in range(3)]
        await asyncio.sleep(0.1)
        runtime.configure(two.replace(attempts=2), {})
        await asyncio.gather(*early, *(ask() for _ in range(3)))

    run(main(), clock=runtime.clock)
    assert most == 2


def test_an_outcome_that_is_an_error_is_reported_once(runtime):
    heard = Capture()
    runtime.on(heard, Failed)
    runtime.configure(ONE, {})

    def fail() -> None:
        raise ConnectionResetError

    recover("claude", runtime=runtime).outcome(fail)
    assert heard.types == ["failed"]


@pytest.mark.parametrize("fails", [False, True], ids=["the stream", "its fallback"])
def test_a_stream_has_the_limits_of_the_present_settings(fails: bool) -> None:
    clock = VirtualClock()
    runtime = Runtime(clock=clock)
    runtime.configure(Policy(timeout=30, attempts=1), {})

    async def silent() -> AsyncIterator[str]:
        await asyncio.sleep(20)
        yield "late"

    async def broken() -> AsyncIterator[str]:
        raise ConnectionResetError
        yield

    live = recover("claude", runtime=runtime).stream(broken if fails else silent)
    live = live.fallback(silent) if fails else live
    runtime.configure(Policy(timeout=2, attempts=1), {})

    async def read() -> None:
        async with live() as stream:
            async for _ in stream:
                pass

    with pytest.raises(ConnectionResetError if fails else DeadlineError):
        run(read(), clock=clock)
    assert clock.monotonic() == 2.0


# --- calls that wait for a place or a start follow the new limits at once ---

ONE_IN_TEN = Policy(per_second=0.1)
ONE_PLACE = Policy(concurrency=1)


def played(runtime: Runtime, before: Policy, change: Callable[[], None], policy: Policy | None = None) -> list[float]:
    """20 calls of a second come at once, and the settings change after 15 s. Return when each call starts."""
    runtime.configure(before, {})
    starts: list[float] = []

    @recover("svc", policy, runtime=runtime)
    async def ask() -> None:
        starts.append(runtime.clock.monotonic())
        await asyncio.sleep(1)

    async def main() -> None:
        calls = [asyncio.create_task(ask()) for _ in range(20)]
        await asyncio.sleep(15.5)
        change()
        await asyncio.gather(*calls)

    run(main(), clock=runtime.clock)
    state = runtime.registry.known("provider:svc")
    assert state is not None
    assert state.limiter is not None
    assert not state.limiter._wakers
    assert not state.limiter._naps
    assert not state.limiter._starts._starts
    assert state.limiter._places is None or state.limiter._places.running == 0
    return starts


@pytest.mark.parametrize(
    ("after", "last"), [(Policy(per_second=2), 24.0), (Policy(per_second=100), 15.67), (Policy(), 15.5)]
)
def test_R85_calls_that_wait_for_a_start_follow_a_new_rate(runtime, after, last):
    starts = played(runtime, ONE_IN_TEN, lambda: runtime.configure(after, {}))
    assert starts[:2] == [0, 10]
    assert starts[2] == pytest.approx(15.5)
    assert starts[-1] == pytest.approx(last, abs=0.02)


def test_R85_calls_that_wait_for_a_start_follow_a_lower_rate(runtime):
    starts = played(runtime, Policy(per_second=1), lambda: runtime.configure(Policy(per_second=0.5), {}))
    assert starts == pytest.approx([*range(16), 17, 19, 21, 23])


@pytest.mark.parametrize(("after", "last"), [(Policy(concurrency=5), 15.5), (Policy(), 15.5)])
def test_R85_calls_that_wait_for_a_place_follow_a_new_number(runtime, after, last):
    starts = played(runtime, ONE_PLACE, lambda: runtime.configure(after, {}))
    assert starts[:16] == [float(second) for second in range(16)]
    assert starts[-1] == pytest.approx(last)


@pytest.mark.parametrize("before", [ONE_IN_TEN, ONE_PLACE])
@pytest.mark.parametrize("mode", ["off", "observe"])
@pytest.mark.parametrize("by_name", [False, True])
def test_R85_calls_that_wait_go_on_when_recovery_is_switched_off(runtime, before, mode, by_name):
    def change() -> None:
        if by_name:
            runtime.set_modes(None, {"provider:svc": mode})
        else:
            runtime.mode = mode

    assert played(runtime, before, change)[-1] == pytest.approx(15.5)


def test_R85_a_limit_that_the_code_names_stays_for_its_own_calls(runtime):
    starts = played(runtime, Policy(per_second=0.2), lambda: runtime.configure(Policy(), {}), ONE_PLACE)
    assert starts == pytest.approx([float(second) for second in range(20)])


def test_R85_threads_that_wait_follow_the_new_limits():
    runtime = Runtime()
    runtime.configure(Policy(per_second=0.01), {})
    ask = recover("svc", runtime=runtime)(lambda: "ok")
    got = [ask()]
    threads = [threading.Thread(target=lambda: got.append(ask())) for _ in range(3)]
    for thread in threads:
        thread.start()
    state = runtime.registry.known("provider:svc")
    assert state is not None
    assert state.limiter is not None
    while len(state.limiter._naps) < 3:
        threading.Event().wait(0.001)
    runtime.configure(Policy(per_second=1000), {})
    for thread in threads:
        thread.join(5)
    assert got == ["ok"] * 4
