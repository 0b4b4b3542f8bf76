"""Supervisors: order, strategies, restart types, budgets, nesting, shutdown, administrative calls."""

from __future__ import annotations

import asyncio
import math
import random
import time

import pytest
from supervision_kit import CrashError, Stage, settled, stubborn

from holdfast import Backoff, HoldfastError, InvalidError, Runtime
from holdfast.actors import (
    Child,
    ChildNotFoundError,
    ChildStoppedError,
    Counts,
    Error,
    GaveUpError,
    Normal,
    Shutdown,
    StartError,
    Supervisor,
    ready,
)
from holdfast.events import ChildLeaked, ChildRestarting, ChildStarted, GaveUp
from holdfast.runtime.runtime import use_runtime
from holdfast.testing import VirtualClock, run


async def states(supervisor):
    return {info.id: info.state for info in await supervisor.which_children()}


async def incarnations(supervisor):
    return {info.id: info.incarnation for info in await supervisor.which_children()}


# Start and stop


def test_A1_A2_children_start_in_order_when_each_is_ready_and_stop_in_reverse_one_after_the_other():
    async def main():
        log = []

        async def slow(name):
            await asyncio.sleep(1)
            log.append(f"start {name}")
            ready()
            try:
                await asyncio.Event().wait()
            finally:
                log.append(f"asked {name}")
                await asyncio.sleep(1)
                log.append(f"stopped {name}")

        async with Supervisor("s", children=[Child(slow, name, id=name, ready=True) for name in "abc"]):
            assert log == ["start a", "start b", "start c"]
            assert asyncio.get_running_loop().time() == pytest.approx(3)
            log.clear()
        assert log == ["asked c", "stopped c", "asked b", "stopped b", "asked a", "stopped a"]

    run(main())


def test_A3_a_child_that_fails_to_start_stops_those_before_it_and_is_named():
    async def main():
        stage = Stage()
        stage.failing["b"] = 1
        with pytest.raises(StartError, match=r"s/b.*b does not start") as caught:
            async with Supervisor("s", children=[stage.child(name) for name in "abd"]):
                pytest.fail("the block must not begin")
        assert stage.take() == "start a, fail b, stop a"
        assert caught.value.fault.context["actor"] == "s/b"
        assert isinstance(caught.value.__cause__, CrashError)

    run(main())


def test_A3_the_child_that_failed_is_named_through_nested_supervisors():
    async def main():
        stage = Stage()
        stage.failing["b"] = 1
        tree = Supervisor("root", children=[stage.child("a"), Supervisor("inner", children=[stage.child("b")])])
        with pytest.raises(StartError) as caught:
            async with tree:
                pytest.fail("the block must not begin")
        assert caught.value.fault.context["actor"] == "root/inner/b"
        assert stage.take() == "start a, fail b, stop a"

    run(main())


def test_A5_two_children_of_one_id_are_rejected_and_nothing_starts():
    stage = Stage()
    with pytest.raises(InvalidError, match="'a' twice"):
        Supervisor("s", children=[stage.child("a"), stage.child("a")])

    async def main():
        async with Supervisor("s", children=[stage.child("a")]) as supervisor:
            with pytest.raises(InvalidError, match="listed already"):
                await supervisor.start(stage.child("a"))
            assert stage.take() == "start a"

    run(main())


def test_children_without_an_id_are_numbered():
    async def main():
        async def work():
            await asyncio.Event().wait()

        async with Supervisor("s", children=[work, work]) as supervisor:
            third = await supervisor.start(work)
            assert third.path == "s/work-3"
            assert list(await states(supervisor)) == ["work", "work-2", "work-3"]

    run(main())


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "foo"},
        {"max_restarts": -1},
        {"max_restarts": 1.5},
        {"window": 0},
        {"window": math.inf},
        {"auto_shutdown": "x"},
        {"scope": "x"},
        {"on_exhausted": "x"},
        {"name": ""},
        {"strategy": "simple_one_for_one"},
        {"strategy": "simple_one_for_one", "auto_shutdown": "any_significant", "children": [asyncio.sleep]},
        {"children": [Child(asyncio.sleep, 1, significant=True, restart="transient")]},
        {"children": [42]},
    ],
)
def test_A6_A38_wrong_options_are_rejected(options):
    with pytest.raises(ValueError):
        Supervisor(**options)


def test_A7_stopping_twice_and_from_two_tasks_stops_once():
    async def main():
        stage = Stage()
        async with Supervisor("s", children=[stage.child("a")]) as supervisor:
            await asyncio.gather(supervisor.stop(), supervisor.stop())
            await supervisor.stop()
            assert not supervisor.is_running
        assert stage.take() == "start a, stop a"

    run(main())


@pytest.mark.parametrize("obeys", [True, False])
def test_A9_a_child_may_stop_its_own_supervisor(obeys):
    async def main():
        stage = Stage()

        async def ends_it():
            try:
                await supervisor.stop()
            except asyncio.CancelledError:
                if obeys:
                    raise
                await supervisor.stop()

        supervisor = Supervisor("s", children=[stage.child("a"), Child(ends_it, shutdown=2)])
        loop = asyncio.get_running_loop()
        began = loop.time()
        async with supervisor:
            assert await supervisor.wait() == Shutdown("stopped")
        assert loop.time() - began == pytest.approx(0 if obeys else 2)
        assert stage.take() == "start a, stop a"

    run(main())


# Restart types


def test_A10_a_permanent_child_is_restarted_after_a_normal_end_and_that_counts():
    async def main():
        stage = Stage()
        with pytest.raises(GaveUpError) as caught:
            async with Supervisor("s", max_restarts=1, children=[stage.child("a")]) as supervisor:
                await stage.end("a")
                assert await incarnations(supervisor) == {"a": 2}
                await stage.end("a")
                await asyncio.sleep(1)
        assert caught.value.__cause__ is None
        assert stage.take() == "start a, end a, start a, end a"

    run(main())


@pytest.mark.parametrize("how", ["normal", "stopped"])
def test_A11_a_transient_child_that_ended_well_is_kept_and_can_be_started_again(how):
    async def main():
        stage = Stage()
        async with Supervisor("s", children=[stage.child("a", restart="transient")]) as supervisor:
            await (stage.end("a") if how == "normal" else supervisor.terminate_child("a"))
            assert await states(supervisor) == {"a": "stopped"}
            await supervisor.restart_child("a")
            assert await states(supervisor) == {"a": "running"}
            await stage.crash("a")
            assert await incarnations(supervisor) == {"a": 3}

    run(main())


def test_A13_a_temporary_child_is_never_restarted_and_costs_nothing():
    async def main():
        stage = Stage()
        temporary = stage.child("t", restart="temporary")
        async with Supervisor("s", max_restarts=0, children=[temporary, stage.child("a")]) as supervisor:
            await stage.crash("t")
            assert await states(supervisor) == {"a": "running"}

    run(main())


@pytest.mark.parametrize("strategy", ["one_for_all", "rest_for_one"])
def test_A14_a_temporary_bystander_of_a_group_restart_is_gone(strategy):
    async def main():
        stage = Stage()
        temporary = stage.child("t", restart="temporary")
        async with Supervisor("s", strategy=strategy, children=[stage.child("a"), temporary]) as supervisor:
            stage.take()
            await stage.crash("a")
            assert stage.take() == "crash a, stop t, start a"
            assert await states(supervisor) == {"a": "running"}

    run(main())


# Strategies


def test_A15_one_for_one_restarts_only_the_child_that_ended():
    async def main():
        stage = Stage()
        async with Supervisor("s", children=[stage.child(name) for name in "abc"]) as supervisor:
            stage.take()
            await stage.crash("b")
            assert stage.take() == "crash b, start b"
            assert await incarnations(supervisor) == {"a": 1, "b": 2, "c": 1}

    run(main())


def test_A17_rest_for_one_restarts_the_child_and_those_after_it():
    async def main():
        stage = Stage()
        async with Supervisor("s", strategy="rest_for_one", children=[stage.child(name) for name in "abcd"]):
            stage.take()
            await stage.crash("b")
            assert stage.take() == "crash b, stop d, stop c, start b, start c, start d"

    run(main())


def test_A18_a_group_restart_counts_once():
    async def main():
        stage = Stage()
        children = [stage.child(name) for name in "abc"]
        async with Supervisor("s", strategy="one_for_all", max_restarts=1, children=children) as supervisor:
            stage.take()
            await stage.crash("b")
            assert stage.take() == "crash b, stop c, stop a, start a, start b, start c"
            assert supervisor.is_running

    run(main())


@pytest.mark.parametrize(("strategy", "revives"), [("one_for_all", True), ("one_for_one", False)])
@pytest.mark.parametrize("how", ["terminated", "finished"])
def test_A19_a_group_restart_revives_children_that_had_stopped(strategy, revives, how):
    async def main():
        stage = Stage()
        children = [stage.child("a"), stage.child("t", restart="transient")]
        async with Supervisor("s", strategy=strategy, children=children) as supervisor:
            await (supervisor.terminate_child("t") if how == "terminated" else stage.end("t"))
            await stage.crash("a")
            assert (await states(supervisor))["t"] == ("running" if revives else "stopped")

    run(main())


def test_A21_a_restart_that_fails_in_the_middle_of_a_group_goes_on_from_there():
    async def main():
        stage = Stage()
        children = [stage.child(name) for name in "abc"]
        async with Supervisor("s", strategy="rest_for_one", children=children) as supervisor:
            stage.take()
            stage.failing["b"] = 1
            await stage.crash("a")
            assert stage.take() == "crash a, stop c, stop b, start a, fail b, start b, start c"
            assert await incarnations(supervisor) == {"a": 2, "b": 3, "c": 2}

    run(main())


@pytest.mark.parametrize("strategy", ["one_for_all", "rest_for_one", "one_for_one"])
def test_A22_two_crashes_at_once_start_nothing_twice(strategy):
    async def main():
        stage = Stage()
        children = [stage.child(name) for name in "abc"]
        async with Supervisor("s", strategy=strategy, children=children) as supervisor:
            stage.take()
            await stage.crash("a", "b")
            assert set((await states(supervisor)).values()) == {"running"}
            happened = stage.take().split(", ")
            for name in "abc":
                ends = sum(f"{how} {name}" in happened for how in ("crash", "stop"))
                assert happened.count(f"start {name}") == ends

    run(main())


# Intensity


def test_A23_the_crash_after_the_last_allowed_restart_ends_the_supervisor():
    async def main():
        stage = Stage()
        with pytest.raises(GaveUpError):
            async with Supervisor("s", max_restarts=2, window=60, children=[stage.child("a")]) as supervisor:
                await stage.crash("a")
                await stage.crash("a")
                assert supervisor.is_running
                await stage.crash("a")
                await asyncio.sleep(1)
        assert stage.take().count("start a") == 3

    run(main())


def test_A25_crashes_that_are_far_apart_never_end_it():
    async def main():
        stage = Stage()
        async with Supervisor("s", max_restarts=1, window=1, children=[stage.child("a")]) as supervisor:
            for _ in range(5):
                await stage.crash("a")
                await asyncio.sleep(2.1)
            assert await incarnations(supervisor) == {"a": 6}

    run(main())


def test_A26_the_window_slides():
    async def main():
        stage = Stage()
        loop = asyncio.get_running_loop()
        with pytest.raises(GaveUpError):
            async with Supervisor("s", max_restarts=2, window=10, children=[stage.child("a")]):
                began = loop.time()
                for at in (0, 9, 11, 12):
                    await asyncio.sleep(began + at - loop.time())
                    await stage.crash("a")
                await asyncio.sleep(1)
        assert loop.time() == pytest.approx(began + 12)

    run(main())


@pytest.mark.parametrize("scope", ["supervisor", "child"])
def test_A27_the_budget_is_shared_unless_each_child_has_its_own(scope):
    async def main():
        stage = Stage()
        supervisor = Supervisor("s", max_restarts=1, scope=scope, children=[stage.child("a"), stage.child("b")])
        try:
            async with supervisor:
                await stage.crash("a")
                await stage.crash("b")
                await asyncio.sleep(1)
                return "lives"
        except GaveUpError:
            return "gave up"

    assert run(main()) == ("gave up" if scope == "supervisor" else "lives")


def test_A27_a_child_with_its_own_budget_is_removed_alone():
    async def main():
        stage = Stage()
        options = {"max_restarts": 1, "scope": "child"}
        async with Supervisor("s", **options, children=[stage.child("a"), stage.child("b")]) as supervisor:
            await stage.crash("a")
            await stage.crash("a")
            assert await states(supervisor) == {"b": "running"}

    run(main())


@pytest.mark.parametrize("backoff", [None, Backoff(initial=5, cap=60, jitter=0)])
def test_A29_a_supervisor_whose_restarts_fail_still_answers(backoff):
    async def main():
        stage = Stage()
        child = stage.child("a", backoff=backoff)
        async with Supervisor("s", max_restarts=10_000, children=[child, stage.child("b")]) as supervisor:
            stage.failing["a"] = 1_000_000
            stage.orders["a"].set_result("crash")
            # Between two attempts the queue is served: a call waits for one attempt at most.
            for _ in range(5):
                await asyncio.sleep(0)
            assert (await states(supervisor))["a"] == "restarting"
            with pytest.raises(InvalidError, match="restarting"):
                await supervisor.restart_child("a")
            with pytest.raises(InvalidError, match="restarting"):
                await supervisor.delete_child("a")
            await supervisor.terminate_child("a")
            assert await states(supervisor) == {"a": "stopped", "b": "running"}
            stage.take()
            await asyncio.sleep(100)
            assert stage.take() == ""

    run(main())


def test_A29_stop_returns_promptly_while_restarts_fail():
    async def main():
        stage = Stage()
        async with Supervisor("s", max_restarts=10_000_000, children=[stage.child("a")]):
            stage.failing["a"] = 1_000_000
            stage.orders["a"].set_result("crash")
            await settled()
        assert stage.failing["a"] > 0

    run(main())


def test_A29_stop_breaks_off_a_start_that_hangs():
    async def main():
        starts = []

        async def hangs_later():
            starts.append(1)
            if len(starts) > 1:
                await asyncio.Event().wait()
            ready()
            raise CrashError

        loop = asyncio.get_running_loop()
        async with Supervisor("s", children=[Child(hangs_later, ready=True)]):
            await settled()
            assert len(starts) == 2
            began = loop.time()
        assert loop.time() == began

    run(main())


def test_a_start_that_takes_too_long_has_failed():
    async def main():
        async def hangs():
            await asyncio.Event().wait()

        async with Supervisor("s") as supervisor:
            with pytest.raises(StartError, match="start_timeout of 3 s"):
                await supervisor.start(hangs, ready=True, start_timeout=3)
            assert await states(supervisor) == {}

    run(main())


def test_a_start_whose_caller_was_cancelled_ends_and_keeps_nobody_waiting():
    async def main():
        async def hangs():
            await asyncio.Event().wait()

        async def works():
            await asyncio.Event().wait()

        async with Supervisor("s") as supervisor:
            began = asyncio.get_running_loop().time()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(supervisor.start(hangs, ready=True), 2)
            await supervisor.start(works)
            assert asyncio.get_running_loop().time() == began + 2
            assert await states(supervisor) == {"works": "running"}

    run(main())


def test_A30_the_wall_clock_does_not_matter(monkeypatch):
    async def main():
        stage = Stage()
        async with Supervisor("s", max_restarts=1, window=1, children=[stage.child("a")]) as supervisor:
            for jump in (-1e6, 1e6, 0.0):
                monkeypatch.setattr(time, "time", lambda jump=jump: 1e9 + jump)
                await stage.crash("a")
                await asyncio.sleep(1.5)
            assert supervisor.is_running

    run(main())


# Nesting


def test_A31_a_nested_supervisor_multiplies_the_starts():
    async def main():
        stage = Stage()
        starts = []

        async def leaf():
            starts.append(1)
            raise CrashError

        inner = Supervisor("inner", max_restarts=2, children=[leaf])
        with pytest.raises(GaveUpError) as caught:
            async with Supervisor("outer", max_restarts=1, children=[stage.child("a"), inner]):
                await asyncio.sleep(1)
        assert len(starts) == (2 + 1) * (1 + 1)
        assert caught.value.fault.context["actor"] == "outer/inner"
        within = caught.value.__cause__
        assert isinstance(within, GaveUpError)
        assert isinstance(within.__cause__, CrashError)
        assert stage.take() == "start a, stop a"

    run(main())


def test_A33_a_transient_supervisor_that_gives_up_has_failed_and_is_restarted():
    """Erlang/OTP leaves it: there its exit reason is a normal one. Ours is an error, and this is documented."""

    async def main():
        stage = Stage()
        inner = Child(Supervisor("inner", max_restarts=0, children=[stage.child("leaf")]), restart="transient")
        async with Supervisor("outer", children=[inner]) as outer:
            await stage.crash("leaf")
            assert await incarnations(outer) == {"inner": 2}
            assert stage.take() == "start leaf, crash leaf, start leaf"

    run(main())


def test_A34_the_owner_gets_the_error_with_its_cause_after_all_children_have_stopped():
    async def main():
        stage = Stage()
        with pytest.raises(GaveUpError) as caught:
            async with Supervisor("s", max_restarts=0, children=[stage.child("a"), stage.child("b")]):
                await stage.crash("b")
                await asyncio.sleep(1000)
        assert caught.value.fault.code == "ACTOR_MAX_RESTARTS"
        assert isinstance(caught.value.__cause__, CrashError)
        assert stage.take() == "start a, start b, crash b, stop a"
        assert asyncio.get_running_loop().time() < 1

    run(main())


def test_A34_a_child_that_raises_SystemExit_ends_neither_the_program_nor_its_supervisor():
    async def main():
        async def leave():
            raise SystemExit(3)

        with pytest.raises(GaveUpError) as caught:
            async with Supervisor("s", children=[leave]):
                await asyncio.sleep(1)
        assert isinstance(caught.value.__cause__, SystemExit)

    run(main())


def test_a_keyboard_interrupt_in_a_child_stops_everything_and_is_raised():
    async def main():
        stage = Stage()

        async def interrupted():
            raise KeyboardInterrupt

        inner = Supervisor("inner", children=[stage.child("b"), interrupted])
        with pytest.raises(KeyboardInterrupt):
            async with Supervisor("s", children=[stage.child("a"), inner]):
                await asyncio.sleep(1)
        assert stage.take() == "start a, start b, stop b, stop a"

    run(main())


def test_A55_an_escalated_failure_is_the_supervisors_own():
    class Escalating:
        def __init__(self, child, place):
            self.ref = None

        async def start(self, incarnation, cause):
            return self

        @property
        def exited(self):
            future = asyncio.get_running_loop().create_future()
            future.set_result(Error(CrashError("wrong key"), "escalate"))
            return future

        async def stop(self, reason, grace):
            return reason

        def kill(self):
            pass

        def close(self, how):
            pass

    async def main():
        stage = Stage()
        inner = Supervisor("inner", children=[Child(print, host=Escalating, id="e"), stage.child("a")])
        with pytest.raises(GaveUpError) as caught:
            async with Supervisor("outer", max_restarts=1, children=[inner]):
                await asyncio.sleep(1)
        # The outer supervisor restarted the inner one within its own budget.
        assert stage.take() == "start a, stop a, start a, stop a"
        assert caught.value.fault.code == "ACTOR_MAX_RESTARTS"
        escalated = caught.value.__cause__
        assert escalated.fault.code == "ACTOR_CRASHED"
        assert isinstance(escalated.__cause__, CrashError)

    run(main())


# Significant children


def test_A35_any_significant_ends_the_supervisor_when_it_ends_well():
    async def main():
        stage = Stage()
        children = [stage.child("a"), stage.child("s", restart="transient", significant=True), stage.child("b")]
        async with Supervisor("s", auto_shutdown="any_significant", children=children) as supervisor:
            stage.take()
            await stage.crash("s")
            assert supervisor.is_running
            await stage.end("s")
            assert isinstance(await supervisor.wait(), Shutdown)
        assert stage.take() == "crash s, start s, end s, stop b, stop a"

    run(main())


def test_A35_all_significant_waits_for_the_last_one():
    async def main():
        stage = Stage()
        children = [stage.child(name, restart="transient", significant=True) for name in "ab"]
        async with Supervisor("s", auto_shutdown="all_significant", children=children) as supervisor:
            await stage.end("a")
            assert supervisor.is_running
            await stage.end("b")
            assert not supervisor.is_running

    run(main())


def test_A37_a_significant_child_that_was_stopped_ends_nothing():
    async def main():
        stage = Stage()
        children = [stage.child("a"), stage.child("s", restart="transient", significant=True)]
        options = {"strategy": "one_for_all", "auto_shutdown": "any_significant"}
        async with Supervisor("s", **options, children=children) as supervisor:
            await supervisor.terminate_child("s")
            await stage.crash("a")
            await stage.crash("a")
            assert await states(supervisor) == {"a": "running", "s": "running"}

    run(main())


# Shutdown


def test_A39_a_child_that_ignores_its_cancellation_is_left_behind_and_reported():
    async def main():
        release = asyncio.Event()
        leaked = []
        loop = asyncio.get_running_loop()
        runtime = Runtime(clock=VirtualClock())
        runtime.on(leaked.append, ChildLeaked)
        async with Supervisor("s", children=[Child(stubborn, release, shutdown=0.3)], runtime=runtime):
            await settled()
            began = loop.time()
        assert 0.3 <= loop.time() - began < 1
        (event,) = leaked
        assert (event.supervisor, event.child) == ("s", "stubborn")
        assert len(runtime.leaked_tasks) == 1
        release.set()
        await settled()
        assert not runtime.leaked_tasks

    run(main())


def test_A39_a_program_with_a_child_that_ignores_cancellation_still_ends():
    async def main():
        async with Supervisor("s", children=[Child(stubborn, asyncio.Event(), shutdown="brutal")]):
            await settled()

    run(main())


def test_A41_shutdown_infinity_waits_for_the_cleanup():
    async def main():
        cleaned = []

        async def careful():
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(1000)
                cleaned.append(True)

        async with Supervisor("s", children=[Child(careful, shutdown=math.inf)]):
            await settled()
        assert cleaned == [True]

    run(main())


def test_a_cancellation_while_it_stops_kills_what_still_runs():
    async def main():
        stage = Stage()
        loop = asyncio.get_running_loop()

        async def endless_cleanup():
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(1e9)

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(10):
                inner = Supervisor("inner", children=[Child(endless_cleanup, shutdown=math.inf)])
                async with Supervisor("s", children=[stage.child("a"), inner]):
                    await settled()
        assert loop.time() < 12
        assert stage.take() == "start a, stop a"

    run(main())


@pytest.mark.parametrize("how", ["crash", "end"])
def test_A42_children_that_end_while_it_stops_are_not_restarted(how):
    async def main():
        stage = Stage()

        async def slow():
            try:
                await asyncio.Event().wait()
            finally:
                stage.orders["a"].set_result(how)
                await asyncio.sleep(1)

        async with Supervisor("s", children=[stage.child("a"), slow]):
            await settled()
            stage.take()
        assert stage.take() == f"{how} a"

    run(main())


def test_A43_copies_of_a_template_stop_together():
    async def main():
        async def slow():
            ready()
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.2)

        loop = asyncio.get_running_loop()
        template = Child(slow, ready=True)
        async with Supervisor("s", strategy="simple_one_for_one", children=[template]) as pool:
            for _ in range(50):
                await pool.spawn()
            began = loop.time()
        assert loop.time() - began == pytest.approx(0.2)
        async with Supervisor("s", children=[template.replace(id=str(n)) for n in range(5)]):
            began = loop.time()
        assert loop.time() - began == pytest.approx(1.0)

    run(main())


# Administrative calls


def test_A45_refusals_say_what_is_wrong():
    async def main():
        stage = Stage()
        async with Supervisor("s", children=[stage.child("a")]) as supervisor:
            with pytest.raises(InvalidError, match="running"):
                await supervisor.delete_child("a")
            with pytest.raises(InvalidError, match="running"):
                await supervisor.restart_child("a")
            for call in (supervisor.terminate_child, supervisor.restart_child, supervisor.delete_child):
                with pytest.raises(ChildNotFoundError, match="s/nope"):
                    await call("nope")
            await supervisor.terminate_child("a")
            await supervisor.delete_child("a")
            assert await states(supervisor) == {}

    run(main())


def test_A46_counts():
    async def main():
        stage = Stage()
        async with Supervisor("s", children=[stage.child("a"), stage.child("b")]) as supervisor:
            await supervisor.terminate_child("b")
            assert await supervisor.count_children() == Counts(specs=2, active=1, supervisors=0, workers=2)

    run(main())


def test_A47_each_copy_restarts_with_its_own_arguments_and_they_share_one_budget():
    async def main():
        starts = []
        orders = {}

        async def work(kind, number):
            starts.append((kind, number))
            orders[number] = asyncio.Event()
            await orders[number].wait()
            raise CrashError

        template = Child(work, "job")
        with pytest.raises(GaveUpError):
            async with Supervisor("s", strategy="simple_one_for_one", max_restarts=1, children=[template]) as pool:
                await pool.spawn(1)
                await pool.spawn(2)
                await settled()
                orders[1].set()
                await settled()
                assert starts == [("job", 1), ("job", 2), ("job", 1)]
                orders[2].set()
                await asyncio.sleep(1)

    run(main())


def test_A49_a_copy_that_is_not_needed_any_more_is_dropped():
    async def main():
        stage = Stage()
        template = stage.child("t", id=None)
        async with Supervisor("s", strategy="simple_one_for_one", children=[template]) as pool:
            await pool.spawn()
            stage.unneeded.add("t")
            await stage.crash("t")
            assert await states(pool) == {}
            with pytest.raises(InvalidError, match="spawn"):
                await pool.start(stage.child("x"))

    run(main())


def test_a_listed_child_that_is_not_needed_does_not_run():
    async def main():
        stage = Stage()
        stage.unneeded.add("a")
        async with Supervisor("s", children=[stage.child("a"), stage.child("b")]) as supervisor:
            assert await states(supervisor) == {"a": "stopped", "b": "running"}

    run(main())


def test_a_call_that_waits_when_the_supervisor_ends_is_refused():
    async def main():
        stage = Stage()
        async with Supervisor("s", children=[stage.child("a")]) as supervisor:
            pass
        with pytest.raises(ChildStoppedError):
            await supervisor.start(stage.child("b"))
        with pytest.raises(ChildStoppedError, match="async with"):
            await Supervisor("never").which_children()

    run(main())


def test_a_start_whose_caller_is_cancelled_leaves_no_child_that_nobody_knows():
    async def main():
        stage = Stage()

        async def slow():
            try:
                await asyncio.sleep(1)
            finally:
                stage.log.append("broken off")
            ready()

        async with Supervisor("s") as supervisor:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await supervisor.start(slow, ready=True)
            await asyncio.sleep(2)
            assert stage.take() == "broken off"
            assert await states(supervisor) == {}

    run(main())


# Backoff


def test_A61_the_delays_grow_and_begin_again_after_a_quiet_time():
    async def main():
        delays = []
        runtime = Runtime(clock=VirtualClock())
        runtime.on(lambda event: delays.append(event.delay), ChildRestarting)
        stage = Stage()
        child = stage.child("a", backoff=Backoff(initial=1, cap=9, jitter=0))
        async with Supervisor("s", max_restarts=None, children=[child], runtime=runtime):
            for quiet in (0.1, 0.1, 4.9, 5.0, 0.1):
                await asyncio.sleep(quiet)
                await stage.crash("a")
                await asyncio.sleep(delays[-1] + 0.01)
        # It ran (1 + 9) / 2 seconds before the fourth crash.
        assert delays == [1, 2, 4, 1, 2]

    run(main())


def test_a_group_with_a_delay_stops_at_once_and_starts_after_it():
    async def main():
        stage = Stage()
        children = [stage.child("a", backoff=Backoff(initial=5, jitter=0)), stage.child("b")]
        async with Supervisor("s", strategy="one_for_all", children=children) as supervisor:
            stage.take()
            await stage.crash("a")
            assert stage.take() == "crash a, stop b"
            assert await states(supervisor) == {"a": "restarting", "b": "stopped"}
            await asyncio.sleep(5.1)
            assert stage.take() == "start a, start b"

    run(main())


def test_A63_without_any_limit_a_restart_that_fails_stops_the_child_instead_of_looping():
    async def main():
        stage = Stage()
        async with Supervisor("s", max_restarts=None, children=[stage.child("a"), stage.child("b")]) as supervisor:
            stage.failing["a"] = 1_000_000
            await stage.crash("a")
            assert await states(supervisor) == {"a": "stopped", "b": "running"}
            assert stage.take() == "start a, start b, crash a, fail a"

    run(main())


# The block


def test_an_outer_cancellation_comes_before_giving_up():
    async def main():
        stage = Stage()

        async def owner():
            async with Supervisor("s", max_restarts=0, children=[stage.child("a")]):
                await asyncio.sleep(1000)

        task = asyncio.ensure_future(owner())
        await settled()
        stage.orders["a"].set_result("crash")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())


def test_a_block_may_run_inside_a_task_group_and_a_time_limit():
    async def main():
        stage = Stage()

        async def owner():
            async with Supervisor("s", max_restarts=0, children=[stage.child("a")]):
                await asyncio.sleep(1000)

        async with asyncio.timeout(100):
            with pytest.raises(BaseExceptionGroup) as caught:
                async with asyncio.TaskGroup() as group:
                    task = group.create_task(owner())
                    await settled()
                    stage.orders["a"].set_result("crash")
            assert [type(error) for error in caught.value.exceptions] == [GaveUpError]
        assert not task.cancelled()

    run(main())


def test_what_the_block_raises_passes_through_after_an_orderly_stop():
    async def main():
        stage = Stage()
        with pytest.raises(KeyError):
            async with Supervisor("s", children=[stage.child("a")]):
                raise KeyError("mine")
        assert stage.take() == "start a, stop a"

    run(main())


def test_a_supervisor_can_be_opened_again_but_not_twice_at_once():
    async def main():
        stage = Stage()
        supervisor = Supervisor("s", children=[stage.child("a")])
        async with supervisor:
            await supervisor.start(stage.child("b"))
            with pytest.raises(InvalidError, match="open already"):
                async with supervisor:
                    pass
        async with supervisor:
            assert await states(supervisor) == {"a": "running"}

    run(main())


def test_a_handle_says_how_a_child_ended_for_good():
    async def main():
        async def work():
            return 42

        async with Supervisor("s") as supervisor:
            handle = await supervisor.start(work, restart="transient")
            assert await handle.wait() == Normal(42)

    run(main())


@pytest.mark.usefixtures("leaves_tasks")
def test_the_event_loop_may_end_around_a_supervisor():
    stage = Stage()

    async def main():
        async def owner():
            async with Supervisor("s", children=[stage.child("a"), Supervisor("inner", children=[stage.child("b")])]):
                await asyncio.Event().wait()

        stage.task = asyncio.ensure_future(owner())
        await settled()

    run(main())
    assert sorted(stage.take().split(", ")) == ["start a", "start b", "stop a", "stop b"]


# Events


def test_the_events_of_a_tree():
    async def main():
        stage = Stage()
        inner = Supervisor("inner", max_restarts=1, children=[stage.child("leaf")])
        seen = []

        async def read(events):
            seen.extend([event async for event in events])

        other = Supervisor("other", children=[stage.child("x")])
        async with Supervisor("root", children=[inner]) as root, other, root.events() as events:
            reader = asyncio.ensure_future(read(events))
            await stage.crash("leaf")
            await stage.crash("leaf")
            await stage.crash("x")
            await events.aclose()
            await reader
        lines = [(type(event).__name__, event.supervisor, event.child) for event in seen]
        assert lines == [
            ("ChildExited", "root/inner", "leaf"),
            ("ChildRestarting", "root/inner", "leaf"),
            ("ChildStarted", "root/inner", "leaf"),
            ("ChildExited", "root/inner", "leaf"),
            ("GaveUp", "root/inner", "leaf"),
            ("ChildExited", "root", "inner"),
            ("ChildRestarting", "root", "inner"),
            ("ChildStarted", "root/inner", "leaf"),
            ("ChildStarted", "root", "inner"),
        ]
        gave_up = next(event for event in seen if isinstance(event, GaveUp))
        assert gave_up.fault is not None
        assert gave_up.restarts == 1

    run(main())


def test_a_reader_that_raises_changes_nothing():
    async def main():
        stage = Stage()
        runtime = Runtime(clock=VirtualClock())
        runtime.on(lambda event: 1 / 0, ChildStarted)
        with use_runtime(runtime):
            async with Supervisor("s", children=[stage.child("a")]) as supervisor:
                await stage.crash("a")
                assert await incarnations(supervisor) == {"a": 2}

    run(main())


# Calls that would never end


def test_a_child_that_calls_its_supervisor_while_it_starts_gets_an_error_soon():
    async def main():
        async def early():
            await supervisor.which_children()
            ready()

        async with Supervisor("s") as supervisor:
            with pytest.raises(StartError, match="while early starts"):
                await supervisor.start(early, ready=True)
            assert asyncio.get_running_loop().time() == pytest.approx(1)

    run(main())


def test_a_child_of_a_nested_supervisor_that_calls_the_root_while_the_tree_starts_gets_an_error_too():
    async def main():
        async def early():
            await root.which_children()
            ready()

        inner = Supervisor("inner", children=[Child(early, ready=True)])
        async with Supervisor("root") as root:
            with pytest.raises(StartError, match="while inner starts"):
                await root.start(inner)

    run(main())


def test_a_child_may_call_its_supervisor_once_it_has_started():
    async def main():
        seen = []

        async def later():
            ready()
            await asyncio.sleep(0)
            seen.append(await states(supervisor))
            await asyncio.Event().wait()

        async with Supervisor("s", children=[Child(later, ready=True)]) as supervisor:
            await settled()
        assert seen == [{"later": "running"}]

    run(main())


def test_a_call_from_another_loop_is_rejected_and_a_thread_can_hand_it_over():
    stage = Stage()

    async def main():
        loop = asyncio.get_running_loop()
        async with Supervisor("s", children=[stage.child("a")]) as supervisor:

            def elsewhere():
                with pytest.raises(InvalidError, match="run_coroutine_threadsafe"):
                    asyncio.run(supervisor.terminate_child("a"))
                asyncio.run_coroutine_threadsafe(supervisor.terminate_child("a"), loop).result(timeout=10)

            await asyncio.to_thread(elsewhere)
            assert await states(supervisor) == {"a": "stopped"}

    asyncio.run(main())


def test_A48_one_child_more_than_allowed_is_rejected_and_the_others_stay():
    async def forever(_number=0):
        await asyncio.Event().wait()

    async def main():
        async with Supervisor("s", strategy="simple_one_for_one", max_children=2, children=[Child(forever)]) as pool:
            await pool.spawn(1)
            await pool.spawn(2)
            with pytest.raises(HoldfastError) as raised:
                await pool.spawn(3)
            assert raised.value.fault.code == "SYS_BULKHEAD_FULL"
            assert not raised.value.fault.maybe_executed
            assert (await pool.count_children()).active == 2
            (first, _) = await pool.which_children()
            await pool.terminate_child(first.id)
            await pool.spawn(4)
            assert (await pool.count_children()).active == 2
        async with Supervisor("s", max_children=1) as team:
            await team.start(forever)
            with pytest.raises(HoldfastError, match="SYS_BULKHEAD_FULL"):
                await team.start(forever)
            assert (await team.count_children()).active == 1
        for wrong in (0, -1, "x"):
            with pytest.raises(InvalidError):
                Supervisor("s", max_children=wrong)
        with pytest.raises(InvalidError, match="at most 1"):
            Supervisor("s", max_children=1, children=[forever, forever])

    run(main())


@pytest.mark.parametrize("jitter", [0.2, 1.0, 0.0])
def test_A60_jitter_only_lengthens_the_delay_of_a_restart(jitter):
    rng = random.Random(7)
    backoff = Backoff(initial=1, cap=100, jitter=jitter)
    for retry in range(1, 9):
        delays = [backoff.at_least(retry, rng) for _ in range(200)]
        assert min(delays) >= backoff.wait(retry)
        assert max(delays) <= min(100, backoff.wait(retry) * (1 + jitter))
        if jitter and backoff.wait(retry) < 100:
            assert len(set(delays)) > 100
