"""Two features of an operation that meet: each works alone, and these tests show them together."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
from recover_kit import World, reset

from holdfast import Budget, Circuit, CircuitOpenError, OutcomeUnknownError, Policy, Runtime, recover, tool
from holdfast.classify import Verdict
from holdfast.faults import AbortedError, HoldfastError
from holdfast.manager import ExecutionOptions, ResilienceManager
from holdfast.runtime import runtime as runtime_module
from holdfast.runtime.runtime import use_runtime
from holdfast.testing import VirtualClock

ONCE = Policy(attempts=1, circuit=None)


def test_the_first_calls_of_many_threads_share_one_default_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_module, "_default", None)
    barrier, made = threading.Barrier(8), []

    def first_call() -> None:
        barrier.wait()
        made.append(runtime_module.default_runtime())

    threads = [threading.Thread(target=first_call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(runtime) for runtime in made}) == 1


def test_a_fallback_step_is_classified_by_the_rules_of_its_runtime() -> None:
    world = World()
    world.runtime.rules.add(
        (lambda evidence: Verdict(code="PROVIDER_BILLING") if "wallet" in str(evidence.text) else None,)
    )

    @world.recover("a", ONCE)
    def call() -> str:
        raise reset()

    @call.fallback
    def other() -> str:
        raise RuntimeError("the wallet is empty")

    with pytest.raises(ConnectionResetError) as caught:
        call()
    assert any("PROVIDER_BILLING" in note for note in caught.value.__notes__)


def test_no_fallback_follows_a_step_that_may_have_happened() -> None:
    world = World()
    calls: list[str] = []

    @world.recover("a", ONCE)
    def pay() -> str:
        raise reset()

    @pay.fallback
    @tool(effect="unsafe")
    def by_card() -> str:
        calls.append("card")
        raise TimeoutError("sent, and no answer")

    @pay.fallback
    def by_transfer() -> str:
        calls.append("transfer")
        return "paid"

    with pytest.raises(OutcomeUnknownError):
        pay()
    assert calls == ["card"]


def test_a_cancel_command_to_a_fallback_ends_the_whole_call() -> None:
    world = World()
    answered: list[str] = []

    @world.recover("a", ONCE)
    async def call() -> str:
        raise reset()

    @call.fallback
    @world.recover("b", Policy(attempts=3))
    async def waits() -> str:
        raise reset()

    @call.fallback
    async def last() -> str:
        answered.append("last")
        return "late"

    async def main() -> None:
        task = asyncio.ensure_future(call())
        await asyncio.sleep(0.1)
        (wait,) = world.runtime.commands.waiting()
        assert world.runtime.commands.cancel(wait.run)
        with pytest.raises(AbortedError):
            await task

    world.run(main())
    assert answered == []


def test_a_person_may_choose_the_fallback_while_the_call_waits_for_its_circuit() -> None:
    world = World()
    policy = Policy(circuit=Circuit(failures=1, open_for=60), attempts=1, wait_for_circuit=True, patience=None)

    @world.recover("a", policy)
    async def call(fails: bool) -> str:
        if fails:
            raise reset()
        return "primary"

    @call.fallback
    async def other(fails: bool) -> str:
        return "other"

    async def main() -> None:
        assert await call(True) == "other"  # the failure opens the circuit
        task = asyncio.ensure_future(call(False))
        await asyncio.sleep(0.1)
        (wait,) = world.runtime.commands.waiting()
        assert world.runtime.commands.fall_back(wait.run)
        assert await task == "other"

    world.run(main())


def test_FR4_a_wait_for_a_place_does_not_extend_the_deadline() -> None:
    world = World()
    recovery = world.recover("a", Policy(concurrency=1, deadline=100, timeout=60, attempts=1))

    async def busy() -> None:
        await asyncio.sleep(50)

    async def hangs() -> None:
        await asyncio.sleep(1000)

    async def main() -> float:
        first = asyncio.ensure_future(recovery.call(busy))
        await asyncio.sleep(0)
        with pytest.raises(HoldfastError):
            await recovery.call(hangs)
        await first
        return world.now

    began = world.now
    assert world.run(main()) - began == pytest.approx(100, abs=0.01)


def test_FR4_a_wait_for_a_circuit_does_not_extend_the_deadline() -> None:
    world = World()
    policy = Policy(
        circuit=Circuit(failures=1, open_for=30), attempts=1, wait_for_circuit=True, deadline=50, timeout=50
    )
    recovery = world.recover("a", policy)

    async def fails() -> None:
        raise reset()

    async def hangs() -> None:
        await asyncio.sleep(1000)

    async def main() -> float:
        with pytest.raises(ConnectionResetError):
            await recovery.call(fails)
        began = world.now
        with pytest.raises(HoldfastError):
            await recovery.call(hangs)
        return world.now - began

    assert world.run(main()) == pytest.approx(50, abs=0.01)


def test_a_circuit_without_a_target_stays_in_its_runtime() -> None:
    @recover
    def call(fails: bool) -> str:
        if fails:
            raise reset()
        return "ok"

    with use_runtime(Runtime(waits=False)) as first:
        first.configure(Policy(circuit=Circuit(failures=1, open_for=600), attempts=1), {})
        with pytest.raises(ConnectionResetError):
            call(True)
        with pytest.raises(CircuitOpenError):
            call(False)
    with use_runtime(Runtime(clock=VirtualClock(), waits=False)):
        assert call(False) == "ok"


def test_outcome_looks_its_plan_up_once_after_a_change() -> None:
    world = World()

    @world.recover("a")
    def call() -> str:
        return "ok"

    world.runtime.on(lambda _: None)
    call.outcome()
    cells = dict(zip(call.outcome.__code__.co_freevars, call.outcome.__closure__, strict=True))
    plan = cells["plan"].cell_contents
    call.outcome()
    assert cells["plan"].cell_contents is plan


def test_an_abort_during_the_wait_for_a_place_makes_no_call() -> None:
    runtime = Runtime()
    manager = ResilienceManager(runtime)
    runtime.configure(Policy(concurrency=1), {})
    abort, release, made = threading.Event(), threading.Event(), []
    holder = threading.Thread(target=lambda: manager.execute(release.wait, ExecutionOptions(provider="a")))
    holder.start()
    options = ExecutionOptions(provider="a", abort=abort)

    def waiter() -> None:
        with pytest.raises(AbortedError):
            manager.execute(lambda: made.append(1), options)

    waiting = threading.Thread(target=waiter)
    waiting.start()
    abort.set()
    release.set()
    for thread in (holder, waiting):
        thread.join(5)
    assert made == []


class _Trackable(Exception):
    pass


class _TrackableStop(StopIteration):
    pass


def _is_freed(make: Any) -> bool:
    gc.disable()
    try:
        error = make()
        reference = weakref.ref(error)
        del error
        return reference() is None
    finally:
        gc.enable()


def _caught(call: Any) -> BaseException:
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("it must raise")


def test_a_defect_in_a_fallback_is_not_kept_alive() -> None:
    world = World()

    @world.recover("a", ONCE)
    def call() -> str:
        raise reset()

    class DefectError(TypeError):
        pass

    @call.fallback
    def broken() -> str:
        raise DefectError("a defect")

    assert _is_freed(lambda: _caught(call))


def test_FR14_a_stop_iteration_is_not_kept_alive() -> None:
    @World().recover("a", ONCE)
    def call() -> str:
        raise _TrackableStop

    call.fallback(lambda: "backup")
    assert _is_freed(lambda: _caught(call))


def test_an_error_that_no_repair_helped_is_not_kept_alive() -> None:
    world = World()

    @world.recover("a", ONCE)
    def call() -> str:
        raise _Trackable

    @call.repair("CONN_RESET", "SYS_UNKNOWN")
    def no_help(_fault: Any) -> None:
        return None

    assert _is_freed(lambda: _caught(call))


def test_a_budget_around_still_holds_while_a_fallback_is_chosen() -> None:
    world = World()
    called: list[str] = []

    @world.recover("a", ONCE)
    def call() -> str:
        raise reset()

    @call.fallback
    def other() -> str:
        called.append("other")
        return "other"

    with Budget(attempts=1, runtime=world.runtime), pytest.raises(ConnectionResetError):
        call()
    assert called == []


def test_FR14_a_handler_whose_error_has_no_text_does_not_end_the_call() -> None:
    class NoText(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    def broken(_event: object) -> None:
        raise NoText

    world = World()
    world.runtime.on(broken)

    @world.recover("a")
    def call() -> str:
        return "ok"

    assert call() == "ok"


def test_FR5_a_frozen_error_surfaces_from_a_stream_whose_fallback_failed_too() -> None:
    @dataclass(frozen=True)
    class FrozenError(Exception):
        code: int = 7

    async def first() -> AsyncIterator[str]:
        raise FrozenError
        yield ""

    async def second() -> AsyncIterator[str]:
        raise reset()
        yield ""

    world = World()
    live = world.recover("a", ONCE).stream(first).fallback(second)

    async def main() -> None:
        async with live() as stream:
            async for _ in stream:
                raise AssertionError("nothing is delivered")

    async def caught() -> BaseException:
        try:
            await main()
        except FrozenError as error:
            return error
        raise AssertionError("it must raise")

    assert isinstance(world.run(caught()), FrozenError)
