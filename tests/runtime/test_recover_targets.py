"""Targets: what calls to one name share, through reloads, conflicting options and many names."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from recover_kit import LOOSE, Always, Flaky, World, assert_places_free, reset, settled

from holdfast import (
    INTERACTIVE,
    Backoff,
    Circuit,
    CircuitOpenError,
    Hedge,
    InvalidError,
    Policy,
    Quota,
    recover,
    tool,
)
from holdfast.events import CircuitState, RetryDenied
from holdfast.runtime.runtime import use_runtime


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
    world.runtime.configure(Policy(attempts=1, circuit=Circuit(failures=2), wait_for_circuit=False), {})
    for _ in range(2):
        with pytest.raises(ConnectionResetError):
            recovery.call(Always(reset))
    world.runtime.configure(Policy(attempts=1, circuit=Circuit(failures=9, open_for=60), wait_for_circuit=False), {})
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
        state = world.state("provider:a")
        plan = recovery._plan
        assert policy.circuit in {None, state.circuit}
        assert policy.retry_quota in {None, state._quota}
        assert (plan.limiter is None) == (policy.concurrency is None and policy.per_second is None)
    world.runtime.configure(Policy(), {"provider:a": Policy(concurrency=9)})
    assert recovery.call(Flaky()) == "ok"
    assert world.state("provider:a")._limiter_options == (9, None, None, None)


def test_R85_a_call_settles_where_it_was_admitted_whatever_changed_meanwhile() -> None:
    first, second = World(), World()
    decorated = recover("a", Policy(patience=None, timeout=None))(Flaky(takes=10).acall)

    async def main() -> None:
        with use_runtime(first.runtime):
            under_way = asyncio.create_task(decorated())
            await asyncio.sleep(1)
        with use_runtime(second.runtime):
            await decorated()
        await under_way

    first.run(main())
    assert settled(first.state("provider:a")) == settled(second.state("provider:a")) == 1


def test_R86_two_configurations_of_one_name_are_an_error_and_two_functions_are_not() -> None:
    world = World()
    first = world.recover("a", Policy(circuit=Circuit(failures=2)))(lambda: "first")
    second = world.recover("a", Policy(circuit=Circuit(failures=2)))(lambda: "second")
    assert (first(), second()) == ("first", "second")
    with pytest.raises(InvalidError, match="circuit of provider:a"):
        world.recover("a", Policy(circuit=Circuit(failures=3)))
    assert first() == "first"


@pytest.mark.parametrize("order", [(1, 3), (3, 1)])
def test_FR19_of_two_libraries_that_limit_one_name_the_stricter_is_obeyed_by_both(
    order: tuple[int, int], caplog: pytest.LogCaptureFixture
) -> None:
    world = World()
    most = running = 0

    async def call() -> None:
        nonlocal most, running
        running += 1
        most = max(most, running)
        await asyncio.sleep(1)
        running -= 1

    libraries = [world.recover("openai", Policy(concurrency=places))(call) for places in order]
    free = world.recover("openai", Policy())(call)

    async def main() -> None:
        nonlocal most
        await asyncio.gather(*(library() for library in libraries for _ in range(3)))
        assert most == 1
        await asyncio.gather(*(free() for _ in range(3)))
        assert most == 3  # a policy without limits is not limited by the others

    world.run(main())
    warnings = [record.getMessage() for record in caplog.records]
    assert warnings == [
        "policies name different limits for provider:openai, so the strictest of each hold: concurrency=1"
    ]


def test_FR19_each_limit_is_the_smallest_that_a_policy_names() -> None:
    world = World()
    for policy in (
        Policy(concurrency=4, per_second=10),
        Policy(concurrency=8, waiting=2, per_second=5),
        Policy(per_second=20),
    ):
        world.recover("openai", policy)
    assert world.state("provider:openai")._limiter_options == (4, 2, 5, 1)


def test_FR19_a_reload_may_raise_a_limit() -> None:
    world = World()
    for places in (4, 8):
        world.recover("openai", Policy(concurrency=places))
    world.runtime.configure(Policy(), {})
    world.recover("openai", Policy(concurrency=8))
    assert world.state("provider:openai")._limiter_options == (8, None, None, None)


def test_R87_the_number_of_names_is_bounded_and_open_or_held_circuits_stay() -> None:
    world = World(most_circuits=100)
    policy = Policy(attempts=1, circuit=Circuit(failures=1))
    with pytest.raises(ConnectionResetError):
        world.recover("down", policy).call(Always(reset))
    world.recover("held", policy).call(Flaky())
    held = world.state("provider:held")
    held._breaker.disable(world.now)
    world.clock.advance(1)
    for number in range(10_000):
        world.recover(f"name-{number}", policy).call(Flaky())
    assert len(world.runtime.registry) <= 100
    assert world.circuit_state("provider:down") is CircuitState.OPEN
    assert world.runtime.registry.known("provider:held") is held


def test_R87_a_name_that_was_evicted_under_a_call_comes_back_clean() -> None:
    world = World(most_circuits=10)
    recovery = world.recover("a", Policy(patience=None, timeout=None, concurrency=1))

    async def main() -> None:
        under_way = asyncio.create_task(recovery.call(Flaky(takes=10).acall))
        await asyncio.sleep(1)
        old = world.state("provider:a")
        for number in range(100):
            world.recover(f"name-{number}").call(Flaky())
        await recovery.call(Flaky().acall)
        await under_way
        assert settled(old) == 1
        assert_places_free(old)
        assert_places_free(world.state("provider:a"))

    world.run(main())


# --- an option that only another policy of the same name has does not affect a call ---


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


def test_a_policy_without_circuit_is_never_rejected(order: str) -> None:
    world = World()
    plain, other = _plain_beside(world, order, circuit=Circuit(failures=1, rate=None))
    with pytest.raises(ConnectionResetError):
        other.call(Always(reset))
    with pytest.raises(CircuitOpenError):
        other.call(Flaky())
    assert plain.call(Flaky(reset())) == "ok"


def test_a_policy_without_circuit_obeys_one_held_open_by_hand(order: str) -> None:
    world = World()
    plain, _ = _plain_beside(world, order, circuit=Circuit(failures=1, rate=None))
    world.state("provider:a")._breaker.force_open(world.now)
    with pytest.raises(CircuitOpenError):
        plain.call(Flaky())


def test_a_policy_without_quota_is_never_denied_a_retry(order: str) -> None:
    world = World()
    plain, _ = _plain_beside(world, order, retry_quota=Quota(share=0, floor=0))
    assert [plain.call(Flaky(reset())) for _ in range(5)] == ["ok"] * 5
    assert not world.of(RetryDenied)


def test_a_policy_without_limiter_does_not_wait(order: str) -> None:
    world = World()
    plain, _ = _plain_beside(world, order, per_second=0.1, concurrency=1)
    assert [plain.call(Flaky()) for _ in range(5)] == ["ok"] * 5
    assert world.now == 0


def test_a_policy_without_hedge_is_not_hedged(order: str) -> None:
    world = World()
    plain, _ = _plain_beside(world, order, hedge=Hedge(after=1))
    begun: list[float] = []

    @tool(effect="read")
    async def read() -> None:
        begun.append(world.now)
        await asyncio.sleep(5)

    world.run(plain.call(read))
    assert begun == [0]


def test_R85_a_circuit_stays_open_over_a_reload_beside_a_policy_without_circuit(order: str) -> None:
    world = World()
    plain, other = _plain_beside(world, order, circuit=Circuit(failures=1, rate=None))
    with pytest.raises(ConnectionResetError):
        other.call(Always(reset))
    world.runtime.configure(INTERACTIVE, {})
    assert plain.call(Flaky()) == "ok"
    assert world.circuit_state("provider:a") is CircuitState.OPEN
    with pytest.raises(CircuitOpenError):
        other.call(Flaky())
