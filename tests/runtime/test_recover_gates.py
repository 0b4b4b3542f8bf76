"""Places and pace, and the circuit as calls meet it: what is shared by all calls to one name."""

from __future__ import annotations

import asyncio
import threading
import traceback
from typing import Any

import pytest
from recover_kit import LOOSE, Always, Flaky, World, assert_places_free, probes_out, reset, settled

from holdfast import (
    INTERACTIVE,
    Backoff,
    Circuit,
    CircuitOpenError,
    Hedge,
    HoldfastError,
    InvalidError,
    Policy,
    Quota,
    Runtime,
    Target,
    recover,
    tool,
)
from holdfast.events import CircuitState, CircuitStateChange, Failed, RetryDenied
from holdfast.runtime.runtime import use_runtime
from holdfast.testing import ScriptedHTTPError, script

# --- places and pace ---


def test_never_more_calls_at_once_than_there_are_places() -> None:
    world = World()
    running = most = 0

    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1

    async def main() -> None:
        recovery = world.recover("a", Policy(concurrency=5, deadline=None))
        await asyncio.gather(*(recovery.call(work) for _ in range(50)))

    world.run(main())
    assert (most, world.now) == (5, 10)
    assert_places_free(world.line("provider:a"))


def test_R14_fifty_threads_share_five_places() -> None:
    runtime = Runtime(waits=False)
    recovery = recover("a", Policy(concurrency=5, circuit=LOOSE), runtime=runtime)
    lock = threading.Lock()
    running = most = done = 0

    def work() -> None:
        nonlocal running, most, done
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.001)
        with lock:
            running -= 1
            done += 1

    threads = [threading.Thread(target=recovery.call, args=(work,)) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == 50
    assert most <= 5
    line = runtime.registry.known("provider:a")
    assert line is not None
    assert_places_free(line)
    assert line._breaker.successes == 50


def test_R69_a_cancelled_waiter_frees_its_place_and_the_next_runs() -> None:
    world = World()
    order: list[str] = []

    async def work(name: str) -> None:
        order.append(name)
        await asyncio.sleep(5)

    async def main() -> None:
        recovery = world.recover("a", Policy(concurrency=1, deadline=None))
        tasks = {name: asyncio.create_task(recovery.call(work, name)) for name in ("first", "second", "third")}
        await asyncio.sleep(1)
        tasks["second"].cancel()
        await asyncio.wait(tasks.values())
        assert tasks["second"].cancelled()
        assert world.now == 10

    world.run(main())
    assert order == ["first", "third"]
    assert_places_free(world.line("provider:a"))
    assert settled(world.line("provider:a")) == 3


def test_R69_a_waiter_cancelled_as_it_is_woken_hands_the_place_on() -> None:
    world = World()
    order: list[str] = []

    async def work(name: str) -> None:
        order.append(name)
        await asyncio.sleep(5)

    async def main() -> None:
        recovery = world.recover("a", Policy(concurrency=1, deadline=None))
        tasks = {name: asyncio.create_task(recovery.call(work, name)) for name in ("first", "second", "third")}
        await asyncio.sleep(0)
        # In the very turn in which the first ends and wakes the second.
        asyncio.get_running_loop().call_at(5, tasks["second"].cancel)
        await asyncio.wait(tasks.values())

    world.run(main())
    assert order == ["first", "third"]
    assert_places_free(world.line("provider:a"))


def test_a_full_queue_refuses_and_is_no_failure_of_the_callee() -> None:
    world = World()

    async def main() -> list[Any]:
        recovery = world.recover("a", Policy(concurrency=1, waiting=1, attempts=1))
        return await asyncio.gather(*(recovery.call(Flaky(takes=5).acall) for _ in range(3)), return_exceptions=True)

    first, second, third = world.run(main())
    assert (first, second) == ("ok", "ok")
    assert isinstance(third, HoldfastError)
    assert third.fault.code == "SYS_BULKHEAD_FULL"
    assert world.line("provider:a")._breaker.failures == 0
    assert_places_free(world.line("provider:a"))


def test_R71_nobody_may_wait_means_nobody() -> None:
    world = World()

    async def main() -> list[Any]:
        recovery = world.recover("a", Policy(concurrency=1, waiting=0, attempts=1))
        return await asyncio.gather(*(recovery.call(Flaky(takes=5).acall) for _ in range(2)), return_exceptions=True)

    assert [type(end) for end in world.run(main())] == [str, HoldfastError]


@pytest.mark.parametrize("form", ["sync", "async"])
def test_waiting_for_a_place_ends_with_the_deadline(form: str) -> None:
    world = World()
    policy = Policy(concurrency=1, deadline=0.01, timeout=None)
    recovery = world.recover("a", policy)
    limiter = recovery._plan.limiter
    assert limiter is not None
    limiter._places.acquire()  # type: ignore[union-attr] # somebody holds the only place
    with pytest.raises(HoldfastError) as failed:
        recovery.call(Flaky()) if form == "sync" else world.run(recovery.call(Flaky().acall))
    assert failed.value.fault.code == "SYS_BULKHEAD_FULL"
    limiter.release(0)
    assert_places_free(world.line("provider:a"))


def test_calls_start_at_the_pace_and_no_faster() -> None:
    world = World()
    starts: list[float] = []

    async def work() -> None:
        starts.append(world.now)

    async def main() -> None:
        recovery = world.recover("a", Policy(per_second=2, deadline=None))
        await asyncio.gather(*(recovery.call(work) for _ in range(5)))

    world.run(main())
    assert starts == pytest.approx([0, 0.5, 1, 1.5, 2])


def test_a_start_beyond_the_deadline_is_refused_with_the_wait_in_it() -> None:
    world = World()
    recovery = world.recover("a", Policy(per_second=0.1, deadline=5, timeout=None, attempts=1))
    recovery.call(Flaky())
    with pytest.raises(HoldfastError) as failed:
        recovery.call(Flaky())
    assert failed.value.fault.code == "SYS_RATE_LIMITED"
    assert failed.value.fault.retry_after == 10
    assert world.line("provider:a")._breaker.failures == 0


def test_a_cancelled_start_is_given_to_the_next() -> None:
    world = World()
    starts: list[float] = []

    async def work() -> None:
        starts.append(world.now)

    async def main() -> None:
        recovery = world.recover("a", Policy(per_second=0.1, deadline=None))
        await recovery.call(work)
        waiting = asyncio.create_task(recovery.call(work))
        await asyncio.sleep(1)
        waiting.cancel()
        await asyncio.wait([waiting])
        await recovery.call(work)

    world.run(main())
    assert starts == [0, 10]


def test_waiting_for_a_place_is_not_the_callees_time() -> None:
    world = World()

    async def main() -> list[Any]:
        recovery = world.recover("a", Policy(concurrency=1, timeout=5, deadline=None))
        return await asyncio.gather(*(recovery.call(Flaky(takes=4).acall) for _ in range(3)))

    assert world.run(main()) == ["ok"] * 3
    assert world.now == 12


# --- the circuit as calls meet it ---

TRIPS = Policy(attempts=1, circuit=Circuit(failures=2, open_for=30))


def test_R43_an_open_circuit_is_not_called_and_says_who_why_and_until_when() -> None:
    world = World()
    for _ in range(2):
        with pytest.raises(ConnectionResetError):
            world.recover("claude", TRIPS).call(Always(reset))
    work = Flaky()
    world.clock.advance(10)
    with pytest.raises(CircuitOpenError) as refused:
        world.recover("claude", TRIPS).call(work)
    assert work.calls == 0
    error = refused.value
    assert error.circuit == "provider:claude"
    assert error.fault.retry_after == 20
    assert error.retry_at == pytest.approx(world.clock.wall() + 20, abs=0.01)
    assert "CONN_RESET" in str(error.fault.context["reason"])
    assert "00:00:30Z" in str(error)


def test_R43_the_traceback_of_a_refusal_does_not_grow() -> None:
    world = World()
    policy = Policy(circuit=Circuit(mode="forced-open"))
    lengths = set()
    for _ in range(20):
        with pytest.raises(CircuitOpenError) as refused:
            world.recover("a", policy).call(Flaky())
        lengths.add(len(traceback.format_exception(refused.value)))
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
        assert world.state("provider:a") is CircuitState.HALF_OPEN
        assert probes_out(world.line("provider:a")) == 0
    assert world.recover("a", TRIPS).call(Flaky()) == "ok"
    assert world.state("provider:a") is CircuitState.CLOSED


def test_R47_a_probe_that_never_returns_does_not_keep_others_out_for_ever() -> None:
    world = World()
    policy = Policy(attempts=1, timeout=None, deadline=None, circuit=Circuit(failures=1, probe_limit=60))

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
    assert world.state("provider:a") is CircuitState.CLOSED


@pytest.mark.parametrize("failure", ["400", "401", "403", "404", "413", "422"])
def test_R53_the_callers_own_mistakes_do_not_count_against_the_provider(failure: str) -> None:
    world = World()
    for _ in range(20):
        with pytest.raises(ScriptedHTTPError):
            world.recover("claude", TRIPS).call(script(failure))
    breaker = world.line("provider:claude")._breaker
    assert (breaker.failures, breaker.ignored) == (0, 20)
    assert world.state("provider:claude") is CircuitState.CLOSED


def test_R53_a_refused_key_opens_the_credentials_circuit_and_not_the_providers() -> None:
    world = World()
    bad = Target(provider="claude", credential="team-a")
    good = Target(provider="claude", credential="team-b")
    for _ in range(2):
        with pytest.raises(ScriptedHTTPError):
            world.recover(bad, TRIPS).call(script("401"))
    work = Flaky()
    with pytest.raises(CircuitOpenError) as refused:
        world.recover(bad, TRIPS).call(work)
    assert refused.value.circuit == "key:claude/team-a"
    assert "key:claude/team-a" in str(refused.value), "the name of a key is not masked as if it were one"
    assert work.calls == 0
    assert world.recover(good, TRIPS).call(Flaky()) == "ok"
    assert world.state("provider:claude") is CircuitState.CLOSED
    # Of the refused call nothing stays out.
    assert settled(world.line("provider:claude")) == 2 + 1 + 1


def test_R55_the_call_that_trips_the_circuit_sees_the_real_error() -> None:
    world = World()
    work = Always(reset)
    with pytest.raises(ConnectionResetError) as failed:
        world.recover("a", Policy(circuit=Circuit(failures=2))).call(work)
    assert failed.value is work.raised[-1]
    assert work.calls == 2
    assert "the circuit is open" in failed.value.__notes__[0]
    assert [event.exhausted for event in world.of(Failed)] == [False]


def test_R59_slow_parallel_calls_are_not_put_one_after_the_other() -> None:
    world = World()

    async def main() -> None:
        await asyncio.gather(*(world.recover("a").call(Flaky(takes=10).acall) for _ in range(5)))

    world.run(main())
    assert world.now == 10


@pytest.mark.parametrize(("counts", "failures"), [("attempt", 3), ("operation", 1)])
def test_R61_each_attempt_counts_or_each_operation(counts: Any, failures: int) -> None:
    world = World()
    policy = Policy(circuit=LOOSE, counts=counts)
    with pytest.raises(ConnectionResetError):
        world.recover("a", policy).call(Always(reset))
    breaker = world.line("provider:a")._breaker
    assert (breaker.failures, settled(world.line("provider:a"))) == (failures, failures)
    assert world.recover("a", policy).call(Flaky(reset())) == "ok"
    assert breaker.successes == 1
    assert breaker.failures == failures + (counts == "attempt")


def test_R61_an_operation_that_ends_at_its_deadline_still_counts_as_one_failure() -> None:
    world = World()
    policy = Policy(circuit=LOOSE, counts="operation", timeout=5, deadline=8)
    with pytest.raises(TimeoutError):
        world.run(world.recover("agent:a", policy).call(Flaky(takes=60).acall))
    breaker = world.line("agent:a")._breaker
    assert (breaker.failures, settled(world.line("agent:a"))) == (1, 1)


def test_S1_27_all_calls_to_one_name_share_its_circuit_and_no_other() -> None:
    world = World()
    for _ in range(2):
        with pytest.raises(ConnectionResetError):
            world.recover("claude", TRIPS)(Always(reset))()
    with pytest.raises(CircuitOpenError):
        world.recover("claude", TRIPS).call(Flaky())
    assert world.recover("openai", TRIPS).call(Flaky()) == "ok"
    assert world.recover("agent:claude", TRIPS).call(Flaky()) == "ok"


def test_the_changes_of_a_circuit_are_told_with_reason_and_time() -> None:
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
    line = runtime.registry.known("provider:a")
    assert line is not None
    assert len(changes) == 1
    assert ends.count("ConnectionResetError") + ends.count("CircuitOpenError") == 50
    assert line._breaker.failures == settled(line) == ends.count("ConnectionResetError") >= 5


# --- reload, conflicts, many names ---


def test_R85_a_call_under_way_finishes_on_the_old_configuration() -> None:
    world = World()
    recovery = world.recover("a")

    async def main() -> None:
        world.runtime.configure(Policy(timeout=50, circuit=LOOSE), {})
        under_way = asyncio.create_task(recovery.call(Flaky(takes=20).acall))
        await asyncio.sleep(1)
        world.runtime.configure(Policy(timeout=5, attempts=1, circuit=LOOSE), {})
        with pytest.raises(TimeoutError):
            await recovery.call(Flaky(takes=20).acall)
        assert world.now == 6
        assert await under_way == "ok"
        assert world.now == 20

    world.run(main())


def test_R85_the_state_of_a_circuit_survives_a_reload() -> None:
    world = World()
    recovery = world.recover("a")
    world.runtime.configure(Policy(attempts=1, circuit=Circuit(failures=2)), {})
    for _ in range(2):
        with pytest.raises(ConnectionResetError):
            recovery.call(Always(reset))
    world.runtime.configure(Policy(attempts=1, circuit=Circuit(failures=9, open_for=60)), {})
    with pytest.raises(CircuitOpenError):
        recovery.call(Flaky())
    world.clock.advance(30)
    assert recovery.call(Flaky()) == "ok"


def test_R85_every_option_behind_a_name_may_change_with_a_reload() -> None:
    world = World()
    recovery = world.recover("a")
    assert recovery.call(Flaky()) == "ok"
    for policy in (
        Policy(circuit=Circuit(failures=7), concurrency=3, retry_quota=Quota(share=0.5)),
        Policy(circuit=Circuit(failures=8), concurrency=4, per_second=100, retry_quota=Quota(share=0.1)),
        Policy(circuit=None),
    ):
        world.runtime.configure(policy, {})
        assert recovery.call(Flaky()) == "ok"
        line = world.line("provider:a")
        plan = recovery._plan
        assert policy.circuit in {None, line.circuit}
        assert policy.retry_quota in {None, line._quota}
        assert (plan.limiter is None) == (policy.concurrency is None and policy.per_second is None)
    world.runtime.configure(Policy(), {"provider:a": Policy(concurrency=9)})
    assert recovery.call(Flaky()) == "ok"
    assert world.line("provider:a")._limiter_options == (9, None, None)


def test_R85_a_call_settles_where_it_was_admitted_whatever_changed_meanwhile() -> None:
    first, second = World(), World()
    decorated = recover("a", Policy(deadline=None, timeout=None))(Flaky(takes=10).acall)

    async def main() -> None:
        with use_runtime(first.runtime):
            under_way = asyncio.create_task(decorated())
            await asyncio.sleep(1)
        with use_runtime(second.runtime):
            await decorated()
        await under_way

    first.run(main())
    assert settled(first.line("provider:a")) == settled(second.line("provider:a")) == 1


def test_R86_two_configurations_of_one_name_are_an_error_and_two_functions_are_not() -> None:
    world = World()
    first = world.recover("a", Policy(circuit=Circuit(failures=2)))(lambda: "first")
    second = world.recover("a", Policy(circuit=Circuit(failures=2)))(lambda: "second")
    assert (first(), second()) == ("first", "second")
    with pytest.raises(InvalidError, match="circuit of provider:a"):
        world.recover("a", Policy(circuit=Circuit(failures=3)))
    assert first() == "first"
    world.recover("a", Policy(circuit=Circuit(failures=2), concurrency=2))
    with pytest.raises(InvalidError, match="concurrency"):
        world.recover("a", Policy(circuit=Circuit(failures=2), concurrency=3))


def test_R87_ten_thousand_names_are_bounded_and_what_is_open_or_held_stays() -> None:
    world = World(most_circuits=100)
    policy = Policy(attempts=1, circuit=Circuit(failures=1))
    with pytest.raises(ConnectionResetError):
        world.recover("down", policy).call(Always(reset))
    world.recover("held", policy).call(Flaky())
    held = world.line("provider:held")
    held._breaker.disable(world.now)
    world.clock.advance(1)
    for number in range(10_000):
        world.recover(f"name-{number}", policy).call(Flaky())
    assert len(world.runtime.registry) <= 100
    assert world.state("provider:down") is CircuitState.OPEN
    assert world.runtime.registry.known("provider:held") is held


def test_R87_a_name_that_was_evicted_under_a_call_comes_back_clean() -> None:
    world = World(most_circuits=10)
    recovery = world.recover("a", Policy(deadline=None, timeout=None, concurrency=1))

    async def main() -> None:
        under_way = asyncio.create_task(recovery.call(Flaky(takes=10).acall))
        await asyncio.sleep(1)
        old = world.line("provider:a")
        for number in range(100):
            world.recover(f"name-{number}").call(Flaky())
        await recovery.call(Flaky().acall)
        await under_way
        assert settled(old) == 1
        assert_places_free(old)
        assert_places_free(world.line("provider:a"))

    world.run(main())


# --- what a policy does not ask for does not concern its calls, whoever else asks for it behind the same name ---


@pytest.fixture(params=["before the others", "after the others"])
def order(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def _plain_beside(world: World, order: str, **options: Any) -> tuple[Any, Any]:
    """One recovery with these options and one without, behind one name; made in either order."""
    plain_policy = Policy(attempts=2, backoff=Backoff(initial=0), circuit=None)
    if order == "before the others":
        plain = world.recover("a", plain_policy)
        return plain, world.recover("a", plain_policy.replace(**options))
    other = world.recover("a", plain_policy.replace(**options))
    return world.recover("a", plain_policy), other


def test_who_wants_no_circuit_is_never_refused(order: str) -> None:
    world = World()
    plain, other = _plain_beside(world, order, circuit=Circuit(failures=1, rate=None))
    with pytest.raises(ConnectionResetError):
        other.call(Always(reset))
    with pytest.raises(CircuitOpenError):
        other.call(Flaky())
    assert plain.call(Flaky(reset())) == "ok"


def test_who_wants_no_circuit_heeds_one_that_is_held_open_by_hand(order: str) -> None:
    world = World()
    plain, _ = _plain_beside(world, order, circuit=Circuit(failures=1, rate=None))
    world.line("provider:a")._breaker.force_open(world.now)
    with pytest.raises(CircuitOpenError):
        plain.call(Flaky())


def test_who_wants_no_quota_is_never_denied_a_retry(order: str) -> None:
    world = World()
    plain, _ = _plain_beside(world, order, retry_quota=Quota(share=0, floor=0))
    assert [plain.call(Flaky(reset())) for _ in range(5)] == ["ok"] * 5
    assert not world.of(RetryDenied)


def test_who_wants_no_pace_does_not_wait(order: str) -> None:
    world = World()
    plain, _ = _plain_beside(world, order, per_second=0.1, concurrency=1)
    assert [plain.call(Flaky()) for _ in range(5)] == ["ok"] * 5
    assert world.now == 0


def test_who_wants_no_hedge_has_none(order: str) -> None:
    world = World()
    plain, _ = _plain_beside(world, order, hedge=Hedge(after=1))
    begun: list[float] = []

    @tool(effect="read")
    async def read() -> None:
        begun.append(world.now)
        await asyncio.sleep(5)

    world.run(plain.call(read))
    assert begun == [0]


def test_R85_a_circuit_stays_open_over_a_reload_though_somebody_wants_none(order: str) -> None:
    world = World()
    plain, other = _plain_beside(world, order, circuit=Circuit(failures=1, rate=None))
    with pytest.raises(ConnectionResetError):
        other.call(Always(reset))
    world.runtime.configure(INTERACTIVE, {})
    assert plain.call(Flaky()) == "ok"
    assert world.state("provider:a") is CircuitState.OPEN
    with pytest.raises(CircuitOpenError):
        other.call(Flaky())
