"""Hedges: a second call when the first is late."""

from __future__ import annotations

import asyncio
import gc
import threading
from contextlib import suppress
from typing import Any

import pytest
from recover_kit import LOOSE, Always, World, assert_places_free, reset, settled

from holdfast import DeadlineError, Hedge, InvalidError, Policy, Quota, Runtime, recover
from holdfast.events import SuppressedError
from holdfast.policies.hedge import ENOUGH
from holdfast.runtime.operation.recovery_warnings import RecoveryWarning


class Race:
    """A function whose n-th call takes the n-th given time, then answers or fails; it counts the calls that run."""

    def __init__(self, *calls: tuple[float, Any]) -> None:
        self.calls = calls
        self.started: list[float] = []
        self.running = 0
        self.stopped = 0

    async def __call__(self) -> Any:
        number = len(self.started)
        self.started.append(asyncio.get_running_loop().time())
        takes, answer = self.calls[number]
        self.running += 1
        try:
            await asyncio.sleep(takes)
        except asyncio.CancelledError:
            self.stopped += 1
            raise
        finally:
            self.running -= 1
        if isinstance(answer, BaseException):
            raise answer
        return answer


def hedged(world: World, race: Race, hedge: Hedge, **options: Any) -> Any:
    policy = Policy(circuit=LOOSE, hedge=hedge, **options)

    async def main() -> Any:
        try:
            return await world.recover("a", policy, effect="read").call(race)
        finally:
            assert race.running == 0
            assert asyncio.all_tasks() == {asyncio.current_task()}

    return world.run(main())


def test_the_quicker_of_two_answers_wins_and_the_other_is_stopped() -> None:
    world = World()
    race = Race((10, "slow"), (2, "quick"))
    assert hedged(world, race, Hedge(after=3)) == "quick"
    assert race.started == [0, 3]
    assert race.stopped == 1
    assert world.now == 5
    assert settled(world.state("provider:a")) == 1


def test_a_call_in_time_is_not_hedged() -> None:
    race = Race((2, "in time"))
    assert hedged(World(), race, Hedge(after=3)) == "in time"
    assert race.started == [0]


def test_at_most_hedge_most_calls_are_added_one_after_the_other() -> None:
    race = Race(*((50, number) for number in range(5)))
    assert hedged(World(), race, Hedge(after=3, most=2)) == 0
    assert race.started == [0, 3, 6]


def test_a_failed_call_leaves_the_other_to_answer() -> None:
    race = Race((4, reset()), (4, "other"))
    assert hedged(World(), race, Hedge(after=1)) == "other"


def test_when_all_fail_the_attempt_failed_once() -> None:
    world = World()
    race = Race((4, reset()), (4, reset()), (1, "second attempt"))
    assert hedged(world, race, Hedge(after=1)) == "second attempt"
    state = world.state("provider:a")
    assert (state._breaker.failures, state._breaker.successes) == (1, 1)


def test_a_good_and_a_bad_end_in_one_turn_leave_no_unread_exception() -> None:
    """An exception that nobody retrieves is logged by asyncio when the task is collected."""
    logged: list[Any] = []
    world = World()
    race = Race((5, reset()), (4, "good"), (3, reset()))

    async def main() -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
        policy = Policy(circuit=LOOSE, hedge=Hedge(after=1, most=2))
        return await world.recover("a", policy, effect="read").call(race)

    assert world.run(main()) == "good"
    gc.collect()
    assert logged == []


@pytest.mark.parametrize("effect", ["unsafe", None])
def test_a_call_that_may_not_be_repeated_is_not_hedged(effect: Any) -> None:
    world = World()
    race = Race((10, "only"))
    policy = Policy(circuit=LOOSE, hedge=Hedge(after=1))
    with pytest.warns(RecoveryWarning, match="`hedge` has no effect without effect="):
        call = world.recover("a", policy, effect=effect).call(race)
    assert world.run(call) == "only"
    assert race.started == [0]


def test_the_limit_of_the_attempt_ends_all_its_calls() -> None:
    world = World()
    race = Race((100, 1), (100, 2), (100, 3))
    with pytest.raises(DeadlineError):
        hedged(world, race, Hedge(after=2, most=2), timeout=5, attempts=1)
    assert (race.stopped, world.now) == (3, 5)


def test_R37_a_spent_quota_suppresses_only_the_new_hedge() -> None:
    race = Race((10, "first"), (10, "hedge"), (10, "never"))
    quota = Quota(share=0, floor=1, window=1000)
    assert hedged(World(), race, Hedge(after=1, most=2), retry_quota=quota) == "first"
    assert race.started == [0, 1]


def test_with_a_percentile_nothing_is_hedged_until_enough_is_known() -> None:
    world = World()
    policy = Policy(circuit=LOOSE, hedge=Hedge(after=0.5, percentile=0.9))

    async def call(race: Race) -> Any:
        return await world.recover("a", policy, effect="read").call(race)

    async def main() -> None:
        for _ in range(ENOUGH):
            assert await call(Race((2, "usual"))) == "usual"
        late = Race((60, "late"), (1, "hedge"))
        began = world.now
        assert await call(late) == "hedge"
        assert world.now == pytest.approx(began + 3)

    world.run(main())


def test_R14_two_loops_in_two_threads_share_the_latencies_of_a_name() -> None:
    runtime = Runtime(waits=False)
    policy = Policy(circuit=LOOSE, hedge=Hedge(after=10, percentile=0.5))
    recovery = recover("a", policy, effect="read", runtime=runtime)
    ends: list[int] = []
    ready = threading.Barrier(4)

    async def quick() -> int:
        return 1

    async def main() -> None:
        ends.append(sum([await recovery.call(quick) for _ in range(200)]))

    def thread() -> None:
        ready.wait()
        asyncio.run(main())

    threads = [threading.Thread(target=thread) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert ends == [200] * 4


def test_sync_code_is_never_hedged() -> None:
    world = World()
    policy = Policy(circuit=LOOSE, hedge=Hedge(after=0), attempts=1)
    work = Always(reset)
    with pytest.raises(ConnectionResetError), pytest.warns(RecoveryWarning, match="only async functions are hedged"):
        world.recover("a", policy, effect="read").call(work)
    assert work.calls == 1


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"after": -1}, "hedge.after"),
        ({"after": float("nan")}, "hedge.after"),
        ({"after": 1, "most": 0}, "hedge.most"),
        ({"after": 1, "most": 1.5}, "hedge.most"),
        ({"after": 1, "percentile": 0}, "hedge.percentile"),
        ({"after": 1, "percentile": 95}, "hedge.percentile"),
    ],
)
def test_R71_bad_options_fail_where_they_are_written(options: Any, where: str) -> None:
    with pytest.raises(InvalidError, match=where):
        Hedge(**options)


@pytest.mark.parametrize(
    ("limit", "most"), [({"concurrency": 2}, 2), ({"concurrency": 1}, 1), ({"per_second": 0.001}, 1)]
)
def test_hedges_are_added_only_where_a_place_and_a_start_are_free(limit: Any, most: int) -> None:
    """A hedge that waits for a place comes too late, and one without a place would break the limit."""
    world = World()
    running: list[int] = []
    now = 0

    async def slow() -> None:
        nonlocal now
        now += 1
        running.append(now)
        try:
            await asyncio.sleep(50)
        finally:
            now -= 1

    policy = Policy(hedge=Hedge(after=1, most=5), circuit=LOOSE, **limit)
    world.run(world.recover("a", policy, effect="read").call(slow))
    assert max(running) == most
    assert_places_free(world.state("provider:a"))


@pytest.mark.parametrize("late", ["in the same turn", "although it was cancelled"])
def test_R27_the_losing_answer_is_closed(late: str) -> None:
    world = World()
    answers: list[Any] = []

    class Answer:
        closed = False

        def close(self) -> None:
            self.closed = True

    begun = iter([10, 10] if late == "in the same turn" else [10, 60])

    async def call() -> Answer:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(next(begun))
        answers.append(Answer())
        return answers[-1]

    policy = Policy(circuit=LOOSE, hedge=Hedge(after=0))
    kept = world.run(world.recover("a", policy, effect="read").call(call))
    assert len(answers) == 2
    assert [answer.closed for answer in answers] == [answer is not kept for answer in answers]


@pytest.mark.parametrize("times", [(4, 4), (9, 2), (4, 9)])
def test_FR11_when_all_fail_the_error_of_the_first_call_surfaces(times: tuple[float, float]) -> None:
    race = Race((times[0], ValueError("first")), (times[1], ValueError("hedge")))
    with pytest.raises(ValueError, match="first"):
        hedged(World(), race, Hedge(after=1), attempts=1)
    assert len(race.started) == 2


def test_FR11_a_loser_that_ignores_its_cancellation_does_not_block_the_winner(
    caplog: pytest.LogCaptureFixture,
) -> None:
    world = World()
    calls = iter(["stubborn", "quick"])

    async def call() -> str:
        if next(calls) == "quick":
            return "quick"
        while True:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(10)

    policy = Policy(circuit=LOOSE, hedge=Hedge(after=3))
    # `run` returns: a call that was left behind does not keep the loop from ending either.
    assert world.run(world.recover("a", policy, effect="read").call(call)) == "quick"
    assert world.now == 4
    assert [event.reason for event in world.of(SuppressedError)] == ["leaked"]
    assert "leaked: a ignored its cancellation and was left running" in caplog.text


def test_FR11_the_late_answer_of_a_call_left_behind_is_closed(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    calls = iter([60, 0])
    closed: list[float] = []

    class Answer:
        def close(self) -> None:
            closed.append(world.now)

    async def call() -> Answer:
        ends = world.now + next(calls)
        while world.now < ends:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(ends - world.now)
        return Answer()

    async def main() -> None:
        policy = Policy(circuit=LOOSE, hedge=Hedge(after=3))
        await world.recover("a", policy, effect="read").call(call)
        assert (world.now, closed) == (4, [])
        await asyncio.sleep(100)

    world.run(main())
    assert closed == [60]
    assert "leaked" in caplog.text
