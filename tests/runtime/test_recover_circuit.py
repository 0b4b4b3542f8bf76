"""The circuit of a target: when it opens, what a rejected caller sees, and what counts against it."""

from __future__ import annotations

import asyncio
import threading
import traceback
from bisect import bisect_left
from contextlib import suppress
from typing import Any

import pytest
from recover_kit import LOOSE, Always, Flaky, World, probes_out, reset, settled

from holdfast import (
    PATIENT,
    Circuit,
    CircuitOpenError,
    Fault,
    HoldfastError,
    Policy,
    Runtime,
    Target,
    recover,
)
from holdfast.events import AttemptEnded, CircuitState, CircuitStateChange, Failed, Retry
from holdfast.policies.circuit import GRADED
from holdfast.policies.decide import LONGEST_WAIT_S, RETURN_SPREAD
from holdfast.testing import ScriptedHTTPError, script, seeded

TRIPS = Policy(attempts=1, circuit=Circuit(failures=2, open_for=30))


def test_R43_an_open_circuit_rejects_the_call_with_its_name_reason_and_end() -> None:
    world = World()
    for _ in range(2):
        with pytest.raises(ConnectionResetError):
            world.recover("claude", TRIPS).call(Always(reset))
    work = Flaky()
    world.clock.advance(10)
    with pytest.raises(CircuitOpenError) as rejected:
        world.recover("claude", TRIPS).call(work)
    assert work.calls == 0
    error = rejected.value
    assert error.circuit == "provider:claude"
    assert error.fault.retry_after == 20
    assert error.retry_at == pytest.approx(world.clock.wall() + 20, abs=0.01)
    assert "CONN_RESET" in str(error.fault.context["reason"])
    assert "00:00:30Z" in str(error)


def test_R43_the_traceback_of_a_rejection_does_not_grow() -> None:
    world = World()
    policy = Policy(circuit=Circuit(mode="forced-open"))
    lengths = set()
    for _ in range(20):
        with pytest.raises(CircuitOpenError) as rejected:
            world.recover("a", policy).call(Flaky())
        lengths.add(len(traceback.format_exception(rejected.value)))
    assert len(lengths) == 1


def test_R46_a_probe_that_ends_in_an_ignored_error_changes_nothing_and_frees_the_place() -> None:
    world = World()
    for _ in range(2):
        with pytest.raises(ConnectionResetError):
            world.recover("a", TRIPS).call(Always(reset))
    world.clock.advance(30)
    for _ in range(3):
        with pytest.raises(ScriptedHTTPError):
            world.recover("a", TRIPS).call(script("400"))
        assert world.circuit_state("provider:a") is CircuitState.HALF_OPEN
        assert probes_out(world.state("provider:a")) == 0
    assert world.recover("a", TRIPS).call(Flaky()) == "ok"
    assert world.circuit_state("provider:a") is CircuitState.CLOSED


def test_R47_a_probe_that_never_returns_does_not_keep_others_out_for_ever() -> None:
    world = World()
    policy = Policy(attempts=1, timeout=None, patience=None, circuit=Circuit(failures=1, probe_limit=60))

    async def main() -> None:
        with pytest.raises(ConnectionResetError):
            await world.recover("a", policy).call(Always(reset).acall)
        await asyncio.sleep(30)
        stuck = asyncio.create_task(world.recover("a", policy).call(Flaky(takes=100_000).acall))
        await asyncio.sleep(59)
        with pytest.raises(CircuitOpenError):
            await world.recover("a", policy).call(Flaky().acall)
        await asyncio.sleep(1)
        assert await world.recover("a", policy).call(Flaky().acall) == "ok"
        stuck.cancel()
        await asyncio.wait([stuck])

    world.run(main())
    assert world.circuit_state("provider:a") is CircuitState.CLOSED


@pytest.mark.parametrize("failure", ["400", "401", "403", "404", "413", "422"])
def test_R53_the_callers_own_mistakes_do_not_count_against_the_provider(failure: str) -> None:
    world = World()
    for _ in range(20):
        with pytest.raises(ScriptedHTTPError):
            world.recover("claude", TRIPS).call(script(failure))
    breaker = world.state("provider:claude")._breaker
    assert (breaker.failures, breaker.ignored) == (0, 20)
    assert world.circuit_state("provider:claude") is CircuitState.CLOSED


def test_R53_an_invalid_key_opens_the_credentials_circuit_and_not_the_providers() -> None:
    world = World()
    bad = Target(provider="claude", credential="team-a")
    good = Target(provider="claude", credential="team-b")
    for _ in range(2):
        with pytest.raises(ScriptedHTTPError):
            world.recover(bad, TRIPS).call(script("401"))
    work = Flaky()
    with pytest.raises(CircuitOpenError) as rejected:
        world.recover(bad, TRIPS).call(work)
    assert rejected.value.circuit == "key:claude/team-a"
    assert "key:claude/team-a" in str(rejected.value), "the name of a key is not masked as if it were one"
    assert work.calls == 0
    assert world.recover(good, TRIPS).call(Flaky()) == "ok"
    assert world.circuit_state("provider:claude") is CircuitState.CLOSED
    # The rejected call holds no permit.
    assert settled(world.state("provider:claude")) == 2 + 1 + 1


def test_R55_the_call_that_trips_the_circuit_sees_the_real_error() -> None:
    world = World()
    work = Always(reset)
    with pytest.raises(ConnectionResetError) as failed:
        world.recover("a", Policy(circuit=Circuit(failures=2))).call(work)
    assert failed.value is work.raised[-1]
    assert work.calls == 2
    assert "the circuit is open" in failed.value.__notes__[0]
    assert [event.exhausted for event in world.of(Failed)] == [False]


def test_R59_slow_parallel_calls_stay_parallel() -> None:
    world = World()

    async def main() -> None:
        await asyncio.gather(*(world.recover("a").call(Flaky(takes=10).acall) for _ in range(5)))

    world.run(main())
    assert world.now == 10


@pytest.mark.parametrize(("counts", "failures"), [("attempt", 3), ("operation", 1)])
def test_R61_the_circuit_counts_attempts_or_operations(counts: Any, failures: int) -> None:
    world = World()
    policy = Policy(circuit=LOOSE, counts=counts)
    with pytest.raises(ConnectionResetError):
        world.recover("a", policy).call(Always(reset))
    breaker = world.state("provider:a")._breaker
    assert (breaker.failures, settled(world.state("provider:a"))) == (failures, failures)
    assert world.recover("a", policy).call(Flaky(reset())) == "ok"
    assert breaker.successes == 1
    assert breaker.failures == failures + (counts == "attempt")


def test_R61_an_operation_that_ends_at_its_deadline_still_counts_as_one_failure() -> None:
    world = World()
    policy = Policy(circuit=LOOSE, counts="operation", timeout=5, deadline=8)
    with pytest.raises(TimeoutError):
        world.run(world.recover("agent:a", policy).call(Flaky(takes=60).acall))
    breaker = world.state("agent:a")._breaker
    assert (breaker.failures, settled(world.state("agent:a"))) == (1, 1)


def test_S1_27_all_calls_to_one_name_share_one_circuit() -> None:
    world = World()
    for _ in range(2):
        with pytest.raises(ConnectionResetError):
            world.recover("claude", TRIPS)(Always(reset))()
    with pytest.raises(CircuitOpenError):
        world.recover("claude", TRIPS).call(Flaky())
    assert world.recover("openai", TRIPS).call(Flaky()) == "ok"
    assert world.recover("agent:claude", TRIPS).call(Flaky()) == "ok"


def test_changes_of_a_circuit_are_reported_with_reason_and_time() -> None:
    world = World()
    for _ in range(2):
        with pytest.raises(ConnectionResetError):
            world.recover("a", TRIPS).call(Always(reset))
    world.clock.advance(30)
    world.recover("a", TRIPS).call(Flaky())
    assert [(event.from_, event.to, event.reason) for event in world.of(CircuitStateChange)] == [
        ("closed", "open", "CONN_RESET"),
        ("open", "half-open", None),
        ("half-open", "closed", None),
    ]
    opened = world.of(CircuitStateChange)[0]
    assert opened.until == pytest.approx(opened.at + 30)


def test_R14_fifty_threads_trip_one_circuit_once() -> None:
    runtime = Runtime(waits=False)
    changes: list[Any] = []
    runtime.on(changes.append, CircuitStateChange)
    recovery = recover("a", Policy(attempts=1, circuit=Circuit(failures=5, rate=None)), runtime=runtime)
    ready = threading.Barrier(50)
    ends: list[str] = []

    def one() -> None:
        ready.wait()
        try:
            recovery.call(Always(reset))
        except Exception as error:
            ends.append(type(error).__name__)

    threads = [threading.Thread(target=one) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    state = runtime.registry.known("provider:a")
    assert state is not None
    assert len(changes) == 1
    assert ends.count("ConnectionResetError") + ends.count("CircuitOpenError") == 50
    assert state._breaker.failures == settled(state) == ends.count("ConnectionResetError") >= 5


# --- the error of a rejected call ---

POLICY = Policy(attempts=1, circuit=Circuit(failures=2, rate=None, open_for=30, reopen_for=None, open_growth=2))


def opened(world: World, *failures: type[BaseException]) -> tuple:
    answer = Flaky(*failures)
    call = world.recover("claude", POLICY)(answer.__call__)
    for failure in failures[:2]:
        with pytest.raises(failure):
            call()
    return answer, call


def rejected(call) -> CircuitOpenError:
    with pytest.raises(CircuitOpenError) as caught:
        call()
    return caught.value


def test_R55_each_rejection_names_the_same_end_and_the_seconds_until_then():
    world = World()
    answer, call = opened(world, ConnectionRefusedError, ConnectionRefusedError)
    first = rejected(call)
    world.clock.advance(10)
    second = rejected(call)

    assert answer.calls == 2
    assert (first.circuit, second.circuit) == ("provider:claude", "provider:claude")
    assert first.retry_at == second.retry_at == pytest.approx(world.clock.wall() + 20)
    assert first.fault.message == second.fault.message
    assert (first.fault.retry_after, second.fault.retry_after) == (30, 20)


def test_R55_a_rejection_after_a_bad_probe_names_the_new_end_and_the_new_reason():
    world = World()
    _, call = opened(world, ConnectionRefusedError, ConnectionRefusedError, TimeoutError)
    first = rejected(call)
    world.clock.advance(31)
    with pytest.raises(TimeoutError):
        call()
    second = rejected(call)

    assert second.retry_at == pytest.approx(world.clock.wall() + 60)
    assert second.fault.context["reason"] != first.fault.context["reason"]
    assert second.fault.message != first.fault.message


def test_R55_a_rejection_beside_a_running_probe_says_that_the_probe_is_under_way() -> None:
    world = World()

    async def main() -> CircuitOpenError:
        for _ in range(2):
            with pytest.raises(ConnectionResetError):
                await world.recover("a", TRIPS).call(Always(reset).acall)
        await asyncio.sleep(30)
        probe = asyncio.create_task(world.recover("a", TRIPS).call(Flaky(takes=5).acall))
        await asyncio.sleep(1)
        with pytest.raises(CircuitOpenError) as caught:
            await world.recover("a", TRIPS).call(Flaky().acall)
        await probe
        return caught.value

    error = world.run(main())
    code = error.fault.context["reason"]
    assert error.fault.message == f"Circuit a is open until the probe under way has ended: {code}"
    assert error.retry_at is None


def test_a_circuit_that_slow_calls_opened_is_not_reported_as_held_by_hand() -> None:
    world = World()
    policy = Policy(attempts=1, circuit=Circuit(failures=None, rate=None, slow=1, slow_rate=0.5, volume=1))

    async def main() -> CircuitOpenError:
        await world.recover("a", policy).call(Flaky(takes=5).acall)
        with pytest.raises(CircuitOpenError) as caught:
            await world.recover("a", policy).call(Flaky().acall)
        return caught.value

    assert "by hand" not in world.run(main()).fault.message


def test_each_rejected_caller_has_its_own_context():
    world = World()
    _, call = opened(world, ConnectionRefusedError, ConnectionRefusedError)
    first = rejected(call)
    first.fault.context["note"] = "mine"

    assert "note" not in rejected(call).fault.context


@pytest.mark.parametrize(
    ("code", "retry_after", "open_for"),
    [
        ("PROVIDER_RATE_LIMITED", 12.0, 12.0),
        ("PROVIDER_RATE_LIMITED", None, 30.0),
        ("PROVIDER_RATE_LIMITED", 5_000.0, 100.0),
        ("PROVIDER_UNAVAILABLE", 12.0, 30.0),
    ],
)
def test_a_circuit_opened_by_a_rate_limit_stays_open_for_its_retry_after(code, retry_after, open_for):
    world = World()
    limited = HoldfastError(Fault.of(code, retry_after=retry_after))
    policy = Policy(attempts=1, max_retry_after=100.0, circuit=Circuit(failures=1))
    with pytest.raises(HoldfastError):
        world.recover("claude", policy).call(Flaky(limited))
    until = world.state("provider:claude")._breaker.open_until
    assert until == pytest.approx(world.now + open_for)


# --- waiting for an open circuit ---


def test_R34_an_open_inner_circuit_is_not_called_again() -> None:
    world = World()
    work = Always(reset)
    policy = Policy(circuit=Circuit(failures=1))
    with pytest.raises(ConnectionResetError):
        world.recover("inner", policy).call(work)
    with pytest.raises(CircuitOpenError):
        world.recover("outer").call(world.recover("inner", policy)(work))
    assert (work.calls, world.now) == (1, 0)


def test_R34_with_wait_for_circuit_a_call_waits_for_the_next_probe() -> None:
    world = World()
    policy = Policy(circuit=Circuit(failures=1, open_for=30), wait_for_circuit=True, patience=None)
    work = Flaky(reset())
    assert world.recover("a", policy).call(work) == "ok"
    assert (work.calls, world.now) == (2, 30)
    assert [event.fault.code for event in world.of(Retry)] == ["CONN_RESET", "CIRCUIT_OPEN"]


@pytest.mark.parametrize("form", ["sync", "async"])
def test_R34_a_call_rejected_from_the_start_measures_each_wait_from_its_own_start(form: str) -> None:
    world = World()
    circuit = Circuit(failures=1, open_for=30)
    with pytest.raises(ConnectionResetError):
        world.recover("a", Policy(circuit=circuit)).call(Flaky(reset()))
    world.clock.advance(10)

    def probed_by_others(event: object) -> None:
        """While it waits, the circuit opens again for another 30 s."""
        if isinstance(event, Retry) and world.now < 60:
            world.state("provider:a")._breaker._stay_open_until(world.now + 30)

    world.runtime.on(probed_by_others)
    patient = world.recover("a", Policy(circuit=circuit, timeout=5, wait_for_circuit=True, patience=None))
    work = Flaky(takes=2)
    assert (patient.call(work) if form == "sync" else world.run(patient.call(work.acall))) == "ok"
    assert world.waits()[-1:] == [20], "only the first of its waits is news"
    took = 0 if form == "sync" else 2
    assert (world.now, world.of(AttemptEnded)[-1].took) == (40 + took, took)


@pytest.mark.parametrize(("wanted", "waits"), [(None, False), (True, True), (False, False)])
def test_a_caller_who_wants_one_attempt_does_not_wait_for_a_circuit_unless_told_to(
    wanted: bool | None, waits: bool
) -> None:
    world = World(defaults=True)
    circuit = Circuit(failures=12, rate=None)
    recovery = world.recover("claude", Policy(attempts=1, circuit=circuit, wait_for_circuit=wanted))
    breaks = Always(reset)

    async def calls() -> float:
        while world.circuit_state("provider:claude") is not CircuitState.OPEN:
            with pytest.raises((ConnectionResetError, CircuitOpenError)):
                await recovery.call(breaks.acall)
            await asyncio.sleep(1.1)
        began, called = world.now, breaks.calls
        with pytest.raises((ConnectionResetError, CircuitOpenError)):
            await recovery.call(breaks.acall)
        assert (breaks.calls > called) is waits
        return world.now - began

    assert (world.run(calls()) > 0) is waits


def test_S1_1_the_wait_for_a_circuit_has_an_end() -> None:
    world = World()
    policy = Policy(circuit=Circuit(mode="forced-open"), wait_for_circuit=True, patience=None)
    with pytest.raises(CircuitOpenError):
        world.recover("a", policy).call(Flaky())
    assert LONGEST_WAIT_S / 2 < world.now <= LONGEST_WAIT_S * (1 + RETURN_SPREAD)


def test_R34_many_waiting_callers_outlast_an_outage_and_return_spread_out() -> None:
    world = World(defaults=True, rng=seeded(5))
    back, went = 610.0, []

    async def ask() -> str:
        await asyncio.sleep(0.1)
        if world.now < back:
            raise reset()
        went.append(world.now)
        return "ok"

    async def call(at: float) -> str:
        await asyncio.sleep(at)
        return await world.recover("a", PATIENT).call(ask)

    async def main() -> list[str]:
        return await asyncio.gather(*(call(second) for second in range(600)))

    assert world.run(main()) == ["ok"] * 600
    first = went[0] - back
    assert first <= GRADED.open_cap + 0.2, "a waiting caller makes the very next probe"
    busiest = max(bisect_left(went, at + 1) - place for place, at in enumerate(went))
    assert busiest <= 600 / 1.5, "they do not go out at once"
    assert went[-1] - back < GRADED.open_cap + 8, "and none waits for long"


def test_R34_the_first_caller_that_waits_for_a_circuit_probes_on_time() -> None:
    world = World()
    circuit = Circuit(failures=1, open_for=30)
    with pytest.raises(ConnectionResetError):
        world.recover("a", Policy(circuit=circuit)).call(Flaky(reset()))
    waiting = Policy(circuit=circuit, wait_for_circuit=True)
    too_late = waiting.replace(timeout=5, deadline=5)

    async def called(policy: Policy) -> float:
        with suppress(CircuitOpenError):
            await world.recover("a", policy).call(Flaky().acall)
        return world.now

    async def main() -> list[float]:
        return await asyncio.gather(*(called(policy) for policy in (too_late, waiting, waiting)))

    began = world.now
    gave_up, first, second = (ended - began for ended in world.run(main()))
    assert (gave_up, first) == (0, 30)
    assert 30 < second <= 30 * (1 + RETURN_SPREAD)
