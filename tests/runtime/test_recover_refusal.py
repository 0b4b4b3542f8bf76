"""What a caller is told that an open circuit refuses: who, why and until when, at every refusal as of now."""

from __future__ import annotations

import pytest
from recover_kit import Flaky, World

from holdfast import Circuit, CircuitOpenError, Fault, HoldfastError, Policy

POLICY = Policy(attempts=1, circuit=Circuit(failures=2, rate=None, open_for=30, reopen_for=None, open_growth=2))


def opened(world: World, *failures: type[BaseException]) -> tuple:
    answer = Flaky(*failures)
    call = world.recover("claude", POLICY)(answer.__call__)
    for failure in failures[:2]:
        with pytest.raises(failure):
            call()
    return answer, call


def refused(call) -> CircuitOpenError:
    with pytest.raises(CircuitOpenError) as caught:
        call()
    return caught.value


def test_R55_each_refusal_names_the_same_moment_and_what_is_left_until_then():
    world = World()
    answer, call = opened(world, ConnectionRefusedError, ConnectionRefusedError)
    first = refused(call)
    world.clock.advance(10)
    second = refused(call)

    assert answer.calls == 2
    assert (first.circuit, second.circuit) == ("provider:claude", "provider:claude")
    assert first.retry_at == second.retry_at == pytest.approx(world.clock.wall() + 20)
    assert first.fault.message == second.fault.message
    assert (first.fault.retry_after, second.fault.retry_after) == (30, 20)


def test_R55_a_refusal_after_a_bad_probe_names_the_new_moment_and_the_new_reason():
    world = World()
    _, call = opened(world, ConnectionRefusedError, ConnectionRefusedError, TimeoutError)
    first = refused(call)
    world.clock.advance(31)
    with pytest.raises(TimeoutError):
        call()
    second = refused(call)

    assert second.retry_at == pytest.approx(world.clock.wall() + 60)
    assert second.fault.context["reason"] != first.fault.context["reason"]
    assert second.fault.message != first.fault.message


def test_what_one_caller_writes_into_its_refusal_stays_there():
    world = World()
    _, call = opened(world, ConnectionRefusedError, ConnectionRefusedError)
    first = refused(call)
    first.fault.context["note"] = "mine"

    assert "note" not in refused(call).fault.context


@pytest.mark.parametrize(
    ("code", "asked", "open_for"),
    [
        ("PROVIDER_RATE_LIMITED", 12.0, 12.0),
        ("PROVIDER_RATE_LIMITED", None, 30.0),
        ("PROVIDER_RATE_LIMITED", 5_000.0, 100.0),
        ("PROVIDER_UNAVAILABLE", 12.0, 30.0),
    ],
)
def test_a_circuit_that_a_rate_limit_opened_stays_open_as_long_as_the_limit_says(code, asked, open_for):
    world = World()
    limited = HoldfastError(Fault.of(code, retry_after=asked))
    policy = Policy(attempts=1, max_retry_after=100.0, circuit=Circuit(failures=1))
    with pytest.raises(HoldfastError):
        world.recover("claude", policy).call(Flaky(limited))
    until = world.line("provider:claude")._breaker.open_until
    assert until == pytest.approx(world.now + open_for)
