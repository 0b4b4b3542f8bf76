"""FR30: calls that an open circuit rejects one after the other take a short way. It differs in nothing but its time."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import pytest
from recover_kit import Always, World, reset

from holdfast import Budget, BudgetError, Circuit, CircuitOpenError, Policy
from holdfast.events import CircuitState, Failed

POLICY = Policy(
    attempts=1,
    timeout=None,
    patience=None,
    circuit=Circuit(failures=1, open_for=60, open_growth=1),
    wait_for_circuit=False,
)

KINDS = pytest.mark.parametrize("kind", ["sync", "async"])


class Called:
    """A decorated function of either kind, which fails while `fails`, and a way to call it."""

    def __init__(self, kind: str, world: World | None = None, policy: Policy = POLICY) -> None:
        self.world = world or World()
        self.fails = True
        self.count = 0
        recovery = self.world.recover("claude", policy)

        def ask() -> str:
            self.count += 1
            if self.fails:
                raise reset()
            return "hi"

        async def ask_async() -> str:
            return ask()

        self.is_async = kind == "async"
        self.function: Any = recovery(ask_async if self.is_async else ask)

    def __call__(self) -> str:
        if not self.is_async:
            answer: str = self.function()
            return answer
        # Nothing is awaited, so no loop is needed. A loop of its own would make every plan look up again.
        try:
            self.function().send(None)
        except StopIteration as done:
            return str(done.value)
        raise AssertionError("it waits")

    def rejected(self) -> CircuitOpenError:
        with pytest.raises(CircuitOpenError) as caught:
            self()
        return caught.value

    def opened(self) -> Called:
        with pytest.raises(ConnectionResetError):
            self()
        return self


@KINDS
def test_FR30_each_rejection_says_the_same_and_counts(kind: str) -> None:
    ask = Called(kind).opened()
    errors = []
    for _ in range(4):
        errors.append(ask.rejected())
        ask.world.clock.advance(10)
    assert [error.fault.retry_after for error in errors] == [60.0, 50.0, 40.0, 30.0]
    first, *others = errors
    for error in others:
        assert (error.code, error.fault.message, error.fault.context) == (
            first.code,
            first.fault.message,
            first.fault.context,
        )
        assert error.fault.context is not first.fault.context
    assert (first.circuit, first.fault.context["reason"]) == ("provider:claude", "CONN_RESET")
    assert ask.world.state("provider:claude").metrics(ask.world.now).rejected == 4
    # Each is an operation of its own that has failed.
    failed = ask.world.of(Failed)[1:]
    assert [event.fault.code for event in failed] == ["CIRCUIT_OPEN"] * 4
    assert [(event.operation, event.attempts, event.exhausted) for event in failed] == [("claude", 0, False)] * 4
    assert len({event.run for event in failed}) == 4
    assert ask.count == 1


@KINDS
def test_FR30_the_probe_is_made_when_it_is_due_and_a_closed_circuit_is_used_again(kind: str) -> None:
    ask = Called(kind).opened()
    ask.rejected()
    ask.rejected()
    ask.world.clock.advance(60)
    with pytest.raises(ConnectionResetError):
        ask()
    ask.rejected()
    ask.rejected()
    ask.fails = False
    ask.world.clock.advance(60)
    assert [ask(), ask()] == ["hi", "hi"]
    assert ask.world.circuit_state("provider:claude") is CircuitState.CLOSED
    ask.fails = True
    ask.opened()
    ask.rejected()


@KINDS
def test_FR30_a_rejected_call_runs_little_code(kind: str) -> None:
    ask = Called(kind)
    ask.opened()
    ask.world.runtime.bus._handlers = {}
    ask.rejected()
    ask.rejected()
    calls: list[str] = []

    def count(frame: Any, event: str, _: Any) -> None:
        if event == "call":
            calls.append(frame.f_code.co_name)

    # What other tests have left is collected now: its finalizers would be counted.
    gc.collect()
    gc.disable()
    sys.setprofile(count)
    try:
        ask()
    except CircuitOpenError:
        pass
    finally:
        sys.setprofile(None)
        gc.enable()
    assert calls == [
        "__call__",
        "wrapper",
        "reject_again",
        "monotonic",
        "reject_again",
        "wants",
        "__init__",
    ]


@KINDS
def test_FR30_a_fallback_that_is_added_later_answers(kind: str) -> None:
    ask = Called(kind).opened()
    ask.rejected()
    ask.rejected()
    ask.function.fallback(lambda: "plan b")
    assert ask() == "plan b"


@KINDS
def test_FR30_a_scope_around_comes_first(kind: str) -> None:
    ask = Called(kind).opened()
    ask.rejected()
    ask.rejected()
    with Budget(attempts=0), pytest.raises(BudgetError):
        ask()


@KINDS
def test_FR30_a_reset_and_other_settings_are_noticed(kind: str) -> None:
    ask = Called(kind).opened()
    ask.rejected()
    ask.rejected()
    ask.fails = False
    ask.world.state("provider:claude").reset(ask.world.now)
    assert ask() == "hi"
    ask.fails = True
    ask.opened()
    ask.rejected()
    ask.world.runtime.enabled = False
    with pytest.raises(ConnectionResetError):
        ask()
    ask.world.runtime.enabled = True
    ask.rejected()


@KINDS
def test_FR30_a_circuit_that_is_held_open_says_so_each_time(kind: str) -> None:
    ask = Called(kind)
    ask.fails = False
    ask()
    ask.world.state("provider:claude").force_open(ask.world.now)
    reasons = [ask.rejected().fault.context["reason"] for _ in range(3)]
    assert reasons == ["held open by hand"] * 3
    ask.world.state("provider:claude").release(ask.world.now)
    assert ask() == "hi"


def test_FR30_a_policy_without_a_circuit_is_not_rejected_after_a_hold() -> None:
    world = World()
    free = Called("sync", world, POLICY.replace(circuit=None))
    with pytest.raises(ConnectionResetError):
        free()
    state = world.state("provider:claude")
    state.force_open(world.now)
    free.rejected()
    free.rejected()
    state.release(world.now)
    strict = Called("sync", world).opened()
    strict.rejected()
    with pytest.raises(ConnectionResetError):
        free()


@KINDS
def test_FR30_a_rejection_leaves_no_cycle(kind: str) -> None:
    ask = Called(kind).opened()
    ask.rejected()
    gc.collect()
    gc.disable()
    try:
        try:
            ask()
        except CircuitOpenError as error:
            kept = weakref.ref(error)
        assert kept() is None
    finally:
        gc.enable()


def test_FR30_calls_that_wait_still_wait() -> None:
    world = World()
    waiting = world.recover("claude", POLICY.replace(wait_for_circuit=True, attempts=2))
    work = Always(reset)
    ask = Called("sync", world).opened()
    ask.rejected()
    with pytest.raises(ConnectionResetError):
        waiting.call(work)
    assert work.calls >= 1
    assert world.now >= 60
