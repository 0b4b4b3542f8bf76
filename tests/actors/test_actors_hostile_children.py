"""Children that do their worst: none of them takes its supervisor, or a sibling, with it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys

import pytest
from supervision_kit import CrashError, Stage, settled, stubborn

from holdfast import Budget, Runtime, recover
from holdfast.actors import (
    Actor,
    Child,
    GaveUpError,
    Health,
    StartError,
    Supervisor,
    VirtualActor,
    VirtualActors,
    ready,
)
from holdfast.events import ChildLeaked
from holdfast.stores import MemoryStore
from holdfast.testing import VirtualClock, run


class OddError(BaseException):
    """Not an Exception, so `except Exception` does not see it."""


class UnprintableError(Exception):
    """Raises when anybody wants to know what it says."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


async def hang_forever():
    await asyncio.Event().wait()


ERRORS = [OddError(), SystemExit(0), GeneratorExit(), asyncio.CancelledError(), UnprintableError(), RecursionError()]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("when", ["start", "run", "restart", "stop"])
def test_whatever_a_child_raises_and_whenever_its_sibling_lives(error, when):
    async def main():
        stage = Stage()
        starts = []

        async def odd():
            starts.append(1)
            if when == "start" or (when == "restart" and len(starts) > 1):
                raise error
            ready()
            if when == "stop":
                try:
                    await hang_forever()
                finally:
                    raise error
            raise error if when == "run" else CrashError

        async with Supervisor("outer", children=[stage.child("a")]) as outer:
            if when == "start":
                with pytest.raises(StartError):
                    await outer.start(Supervisor("inner", children=[Child(odd, ready=True)]))
            else:
                await outer.start(
                    Supervisor("inner", children=[Child(odd, ready=True)]), restart="temporary", shutdown=5
                )
                await asyncio.sleep(1)
                assert (await outer.count_children()).active == (2 if when == "stop" else 1)
            stage.take()
        assert stage.take() == "stop a"

    run(main())


def test_a_child_that_ignores_its_cancellation_does_not_delay_its_siblings_restart():
    async def main():
        release = asyncio.Event()
        stage = Stage()
        leaks = []
        runtime = Runtime(clock=VirtualClock())
        runtime.on(leaks.append, ChildLeaked)
        children = [stage.child("a"), Child(stubborn, release, shutdown=1)]
        loop = asyncio.get_running_loop()
        async with Supervisor("s", strategy="one_for_all", children=children, runtime=runtime) as supervisor:
            await settled()
            began = loop.time()
            stage.orders["a"].set_result("crash")
            await asyncio.sleep(2)
            assert stage.take() == "start a, crash a, start a"
            assert (await supervisor.count_children()).active == 2
            assert loop.time() - began < 3
        # The one that leaked at the restart, and its successor that leaked at the end.
        assert [event.incarnation for event in leaks] == [1, 2]
        release.set()
        await settled()
        assert runtime.leaked_tasks == set()

    run(main())


def test_the_late_end_of_a_child_that_leaked_changes_nothing():
    async def main():
        stage = Stage()
        releases = []

        async def late():
            release = asyncio.Event()
            releases.append(release)
            await stubborn(release)
            raise CrashError("late")

        children = [stage.child("a"), Child(late, shutdown=0.1)]
        async with Supervisor("s", strategy="one_for_all", max_restarts=1, children=children) as supervisor:
            await settled()
            stage.orders["a"].set_result("crash")
            await asyncio.sleep(1)
            assert len(releases) == 2
            releases[0].set()
            await asyncio.sleep(1)
            # The budget is spent: had the late crash counted, the supervisor would have given up.
            assert (await supervisor.count_children()).active == 2
            assert stage.take() == "start a, crash a, start a"
        releases[1].set()
        await settled()

    run(main())


def test_a_child_that_leaks_tasks_ends_and_is_restarted_like_any_other():
    async def main():
        stage = Stage()
        left = []

        async def leaky():
            left.extend(asyncio.ensure_future(hang_forever()) for _ in range(100))
            await asyncio.sleep(0)
            raise CrashError

        async with Supervisor("s", max_restarts=2, children=[stage.child("a")]) as supervisor:
            await supervisor.start(leaky, restart="temporary")
            await settled()
            assert (await supervisor.count_children()).active == 1
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    run(main())


def test_a_child_that_crashes_as_fast_as_it_can_spends_its_budget_and_the_loop_goes_on():
    async def main():
        ticks = []

        async def tick():
            while True:
                ticks.append(1)
                await asyncio.sleep(0)

        async def crash():
            raise CrashError

        ticking = asyncio.ensure_future(tick())
        with pytest.raises(GaveUpError):
            async with Supervisor("s", max_restarts=1_000, children=[crash]):
                await hang_forever()
        assert len(ticks) > 1_000
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)

    run(main())


def test_a_flooded_actor_answers_its_supervisor():
    class Slow(Actor, mailbox=10):
        async def work(self) -> None:
            await asyncio.sleep(1000)

    async def main():
        stage = Stage()
        loop = asyncio.get_running_loop()
        async with Supervisor("s", children=[stage.child("a")]) as supervisor:
            slow = await supervisor.start(Slow, shutdown=1)
            asks = [asyncio.ensure_future(slow.outcome(Slow.work)) for _ in range(100)]
            await settled()
            await supervisor.terminate_child("Slow")
            assert loop.time() < 2
            assert (await supervisor.count_children()).active == 1
            # Every one of them got an answer.
            outcomes = await asyncio.gather(*asks)
            assert {outcome.fault.code for outcome in outcomes} <= {"ACTOR_STOPPED", "ACTOR_MAILBOX_FULL"}

    run(main())


def test_a_host_that_raises_everywhere_is_only_that_childs_trouble():
    class Broken:
        ref = None

        def __init__(self, child, place):
            pass

        async def start(self, incarnation, cause):
            self.exited = asyncio.get_running_loop().create_future()
            return self

        async def stop(self, reason, grace):
            raise OSError("cannot stop")

        def kill(self):
            pass

        def close(self, how):
            raise OSError("cannot close")

    async def main():
        stage = Stage()
        leaks = []
        runtime = Runtime(clock=VirtualClock())
        runtime.on(leaks.append, ChildLeaked)
        children = [stage.child("a"), Child(print, host=Broken, id="broken")]
        async with Supervisor("s", children=children, runtime=runtime):
            pass
        assert stage.take() == "start a, stop a"
        assert [event.child for event in leaks] == ["broken"]

    run(main())


# Combinations


def test_children_keep_to_the_budget_around_their_supervisor():
    async def main():
        calls = []

        @recover("target")
        async def call():
            calls.append(1)

        async def spend():
            while True:
                await call()
                await asyncio.sleep(1)

        with Budget(attempts=3), pytest.raises(GaveUpError) as caught:
            async with Supervisor("s", max_restarts=0, children=[spend]):
                await asyncio.sleep(100)
        assert len(calls) == 3
        assert caught.value.__cause__.fault.code == "SYS_BUDGET_EXHAUSTED"

    run(main())


def test_a_thousand_children_start_and_stop_and_leave_nothing():
    async def main():
        async with Supervisor("s", strategy="simple_one_for_one", children=[Child(hang_forever)]) as pool:
            for _ in range(1_000):
                await pool.spawn()
            assert (await pool.count_children()).active == 1_000
        assert len(asyncio.all_tasks()) == 1

    run(main())


def test_three_thousand_restarts_leave_nothing_behind():
    async def main():
        left = 3_000
        done = asyncio.Event()

        async def crash():
            nonlocal left
            left -= 1
            if left > 0:
                raise CrashError
            done.set()
            await hang_forever()

        async with Supervisor("s", max_restarts=None, children=[crash]):
            await settled()
            gc.collect()
            before = sys.getallocatedblocks()
            await done.wait()
            gc.collect()
            assert sys.getallocatedblocks() - before < 2_000
            assert len(asyncio.all_tasks()) == 3

    run(main())


async def deaf():
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()


class Deaf(Actor):
    async def work(self) -> None:
        await deaf()


class Watched(Deaf, timeout=None, health=Health(every=1, timeout=1, failures=1)): ...


class NeverStarts(Actor):
    async def started(self) -> None:
        await deaf()


class DeafRoom(VirtualActor):
    async def work(self) -> None:
        await deaf()


async def stopped_in_a_message(runtime):
    async with Supervisor("s", runtime=runtime) as team:
        ref = await team.start(Deaf)
        assert not (await ref.using(timeout=0.2).outcome(Deaf.work)).ok


async def given_up_by_its_health(runtime):
    async with Supervisor("s", runtime=runtime) as team:
        ref = await team.start(Watched)
        assert not (await ref.using(timeout=3).outcome(Deaf.work)).ok
        await asyncio.sleep(10)
        assert ref.restarts == 1


async def too_slow_to_start(runtime):
    async with Supervisor("s", runtime=runtime) as team:
        with pytest.raises(StartError):
            await team.start(NeverStarts, start_timeout=0.2)


async def a_virtual_actor(runtime):
    async with VirtualActors(MemoryStore(), runtime=runtime) as rooms:
        assert not (await rooms.get(DeafRoom, "a").using(timeout=0.2).outcome(DeafRoom.work)).ok


@pytest.mark.parametrize("work", [stopped_in_a_message, given_up_by_its_health, too_slow_to_start, a_virtual_actor])
def test_a_program_with_an_actor_that_ignores_its_cancellation_still_ends(work):
    async def main():
        runtime = Runtime(clock=VirtualClock())
        before = asyncio.all_tasks()
        await work(runtime)
        await settled()
        left = asyncio.all_tasks() - before
        for task in left:
            # The test must end, too, whatever it finds.
            asyncio.tasks._unregister_task(task)
        # `asyncio.run` would wait for these for ever.
        assert left == set()
        assert len(runtime.leaked_tasks) == 1

    run(main())
