"""`suppress`: failures that are ignored on purpose are reported (S2-10, C21)."""

from __future__ import annotations

import asyncio

import pytest
from recover_kit import World, reset

from holdfast import Budget, InvalidError, Policy, Runtime, suppress
from holdfast.events import Failed, SuppressedError
from holdfast.runtime.runtime import use_runtime
from holdfast.runtime.suppress import suppressed


def test_FR29_S2_10_an_ignored_failure_is_an_event_with_its_reason() -> None:
    world = World()
    with suppress(OSError, reason="the cache is optional", runtime=world.runtime) as ignored:
        raise reset()
    assert ignored.fault is not None
    assert ignored.fault.code == "CONN_RESET"
    (event,) = world.of(SuppressedError)
    assert (event.reason, event.code, event.run) == ("the cache is optional", "CONN_RESET", "")
    assert "reset by peer" in event.cause


def test_a_block_that_succeeds_reports_nothing() -> None:
    world = World()
    with suppress(OSError, reason="optional", runtime=world.runtime) as ignored:
        pass
    assert ignored.fault is None
    assert not list(world.events)


def test_another_failure_and_a_cancellation_pass_through() -> None:
    world = World()
    with pytest.raises(KeyError), suppress(OSError, reason="optional", runtime=world.runtime):
        raise KeyError
    with pytest.raises(asyncio.CancelledError), suppress(Exception, reason="optional", runtime=world.runtime):
        raise asyncio.CancelledError
    assert not list(world.events)


def test_inside_a_recovery_the_event_belongs_to_its_operation() -> None:
    world = World()

    @world.recover("claude", Policy(attempts=2))
    async def ask() -> str:
        with suppress(OSError, reason="optional", runtime=world.runtime):
            raise reset()
        raise reset()

    with pytest.raises(ConnectionResetError):
        world.run(ask())
    events = world.of(SuppressedError)
    assert len(events) == 2
    assert {event.run for event in events} == {world.of(Failed)[0].run}


def test_inside_a_budget_it_needs_no_operation() -> None:
    world = World()
    with Budget(attempts=3, runtime=world.runtime), suppress(OSError, reason="optional", runtime=world.runtime):
        raise reset()
    assert world.of(SuppressedError)[0].run == ""


def test_without_a_runtime_the_default_one_gets_the_event() -> None:
    world = World()
    with use_runtime(world.runtime), suppress(OSError, reason="optional"):
        raise reset()
    assert len(world.of(SuppressedError)) == 1


def test_a_caught_failure_is_reported_too() -> None:
    world = World()
    assert suppressed(reset(), "optional", runtime=world.runtime).code == "CONN_RESET"
    assert world.of(SuppressedError)[0].reason == "optional"


@pytest.mark.parametrize(
    ("kinds", "options", "message"),
    [
        ((), {"reason": "x"}, "classes of exceptions to ignore"),
        ((asyncio.CancelledError,), {"reason": "x"}, "such as OSError"),
        ((OSError("x"),), {"reason": "x"}, "such as OSError"),
        ((OSError,), {"reason": " "}, "why the failure does not matter"),
        ((OSError,), {"reason": "x", "runtime": 5}, "a Runtime or None"),
    ],
)
def test_a_wrong_call_names_what_is_wrong(kinds: tuple[type[Exception], ...], options: dict, message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        suppress(*kinds, **options)


def test_a_secret_of_an_ignored_failure_is_masked() -> None:
    runtime = Runtime()
    heard: list[SuppressedError] = []
    runtime.on(heard.append, SuppressedError)
    with suppress(ValueError, reason="optional", runtime=runtime):
        raise ValueError("sk-ant-api03-" + "a1B2" * 12)
    assert "a1B2a1B2" not in heard[0].cause
