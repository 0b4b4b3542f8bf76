"""A full mailbox and senders that wait: deadlines, cancellations, restarts and ends, and the order of what is left."""

from __future__ import annotations

import asyncio
import threading

import pytest
from actors_kit import Stage

from holdfast import Actor, Budget, DeadlineError, HoldfastError, Supervisor
from holdfast.actors import AskTimeoutError, Health
from holdfast.events import ChildRestarting, MailboxPressure


class Slow(Actor, mailbox=10, timeout=None):
    def __init__(self) -> None:
        self.done: list[int] = []

    async def work(self, seconds: float, number: int = 0) -> int:
        await asyncio.sleep(seconds)
        self.done.append(number)
        return number

    async def crash(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        raise RuntimeError("the state is lost")

    async def hold(self, gate: asyncio.Event) -> None:
        await gate.wait()

    async def seen(self) -> list[int]:
        return self.done


def on_stage(main, **options):
    stage = Stage()

    async def play():
        async with stage.actor(Slow, **options) as slow:
            return await main(slow)

    return stage, stage.run(play())


async def fill(slow, count: int, **using):
    """Have it work for a minute, and let so many senders wait behind that."""
    busy = asyncio.ensure_future(slow.ask(Slow.work, 60))
    await asyncio.sleep(0)
    waiting = [asyncio.ensure_future(slow.using(**using).ask(Slow.work, 0, number)) for number in range(1, count + 1)]
    for one in (busy, *waiting):
        one.add_done_callback(lambda done: done.cancelled() or done.exception())  # not every test reads them
    await asyncio.sleep(0.001)
    return busy, waiting


# --- senders that no longer wait take no room ---


def test_messages_whose_time_is_over_make_room_for_others():
    async def main(slow):
        busy, waiting = await fill(slow, 10, timeout=1)
        with pytest.raises(HoldfastError, match="ACTOR_MAILBOX_FULL"):
            await slow.ask(Slow.work, 0)
        late = await asyncio.gather(*waiting, return_exceptions=True)
        sizes = slow.waiting, slow.pressure
        later = [asyncio.ensure_future(slow.ask(Slow.work, 0, number)) for number in range(20, 30)]
        await busy
        await asyncio.gather(*later)
        return late, sizes, await slow.ask(Slow.seen)

    _, (late, sizes, seen) = on_stage(main)
    assert {type(error) for error in late} == {AskTimeoutError}
    assert not any(error.fault.maybe_executed for error in late)
    assert sizes == (0, "none")
    assert seen == [0, *range(20, 30)]


def test_messages_of_cancelled_senders_make_room_for_others_and_the_order_is_kept():
    async def main(slow):
        busy, waiting = await fill(slow, 10)
        for number in (2, 5, 9):
            waiting[number - 1].cancel()
        await asyncio.sleep(0)
        later = [asyncio.ensure_future(slow.ask(Slow.work, 0, number)) for number in (11, 12, 13)]
        await asyncio.sleep(0)
        with pytest.raises(HoldfastError, match="ACTOR_MAILBOX_FULL"):
            slow.tell(Slow.work, 0, 14)
        await asyncio.gather(busy, *waiting, *later, return_exceptions=True)
        return await slow.ask(Slow.seen)

    assert on_stage(main)[1] == [0, 1, 3, 4, 6, 7, 8, 10, 11, 12, 13]


def test_room_for_a_tell_where_the_senders_before_have_left():
    async def main(slow):
        _, waiting = await fill(slow, 10, timeout=1)
        await asyncio.wait(waiting)
        for number in range(10):
            slow.tell(Slow.work, 0, number)
        with pytest.raises(HoldfastError, match="ACTOR_MAILBOX_FULL"):
            slow.tell(Slow.work, 0, 10)
        return slow.waiting

    assert on_stage(main)[1] == 10


def test_each_priority_keeps_its_order_when_senders_leave():
    async def main(slow):
        busy, _ = await fill(slow, 0)
        asks = [
            asyncio.ensure_future(slow.using(priority=priority).ask(Slow.work, 0, number))
            for number, priority in enumerate((1, 1, 5, 5, 5, 10, 10, 1, 5, 10), start=1)
        ]
        await asyncio.sleep(0)
        for number in (1, 4, 6):
            asks[number - 1].cancel()
        await asyncio.sleep(0)
        slow.using(priority=10).tell(Slow.work, 0, 11)
        await asyncio.gather(busy, *asks, return_exceptions=True)
        return await slow.ask(Slow.seen)

    assert on_stage(main)[1] == [0, 7, 10, 11, 3, 5, 9, 2, 8]


# --- senders that wait for relief ---


def test_relief_comes_when_the_senders_before_have_left():
    async def main(slow):
        busy, waiting = await fill(slow, 10, timeout=1)
        await asyncio.wait_for(slow.relieved(), 2)
        return busy.done(), [one.done() for one in waiting]

    stage, (busy, waiting) = on_stage(main)
    assert not busy
    assert all(waiting)
    assert [event.level for event in stage.of(MailboxPressure)] == ["high", "none"]


def test_the_budget_of_a_sender_that_waits_for_relief_holds():
    async def main(slow):
        await fill(slow, 10)
        now = asyncio.get_running_loop().time
        began = now()
        with pytest.raises(DeadlineError) as caught:
            async with Budget(seconds=3, runtime=slow._cell.runtime):
                await slow.relieved()
        return now() - began, caught.value

    _, (took, error) = on_stage(main)
    assert took == pytest.approx(3)
    assert (error.fault.maybe_executed, error.fault.context["actor"]) == (False, "team/one")


def test_senders_that_stop_waiting_for_relief_leave_nothing_behind():
    async def main(slow):
        await fill(slow, 10)
        for _ in range(100):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(slow.relieved(), 0.1)
        return len(slow._cell.mailbox._relieved or ())

    assert on_stage(main)[1] == 0


def test_a_sender_in_another_thread_can_wait_for_relief():
    waits, is_relieved = threading.Event(), threading.Event()

    async def from_elsewhere(slow):
        relief = asyncio.ensure_future(slow.relieved())
        await asyncio.sleep(0)
        waits.set()
        await relief
        is_relieved.set()

    async def play():
        async with Supervisor("team") as team:
            slow = await team.start(Slow)
            gate = asyncio.Event()
            slow.tell(Slow.hold, gate)
            await asyncio.sleep(0)
            for number in range(10):
                slow.tell(Slow.work, 0, number)
            thread = threading.Thread(target=lambda: asyncio.run(from_elsewhere(slow)), daemon=True)
            thread.start()
            await asyncio.to_thread(waits.wait, 5)
            gate.set()
            return await asyncio.to_thread(is_relieved.wait, 5)

    assert asyncio.run(play())


def test_relief_comes_with_the_end_of_the_actor():
    async def main(slow):
        _, waiting = await fill(slow, 10)
        relief = asyncio.ensure_future(slow.relieved())
        await asyncio.sleep(1)
        return waiting, relief, slow

    _, (waiting, relief, slow) = on_stage(main)
    assert relief.done()
    assert not relief.cancelled()
    assert {one.exception().fault.code for one in waiting} == {"ACTOR_STOPPED"}
    assert not slow.alive


# --- restarts ---


def in_a_team(main, **options):
    stage = Stage()

    async def play():
        async with Supervisor("team", runtime=stage.runtime) as team:
            return await main(await team.start(Slow, **options), team)

    return stage, stage.run(play())


def test_a_restart_keeps_the_order_of_a_full_mailbox_and_the_limits_of_its_senders():
    async def main(slow, _team):
        crash = asyncio.ensure_future(slow.outcome(Slow.crash, 30))
        await asyncio.sleep(0)
        asks = [
            asyncio.ensure_future(slow.using(timeout=10 if number % 3 == 0 else None).outcome(Slow.work, 0, number))
            for number in range(1, 11)
        ]
        answers = await asyncio.gather(*asks)
        return (await crash).fault, [answer.ok for answer in answers], await slow.ask(Slow.seen), slow.restarts

    _, (fault, ok, seen, restarts) = in_a_team(main)
    assert (fault.code, restarts) == ("ACTOR_CRASHED", 1)
    assert ok == [number % 3 != 0 for number in range(1, 11)]
    assert seen == [1, 2, 4, 5, 7, 8, 10]


def test_senders_that_wait_when_an_actor_is_stopped_for_good_all_end():
    async def main(slow, team):
        busy, waiting = await fill(slow, 10, timeout=100)
        await team.terminate_child("Slow")
        answers = await asyncio.gather(busy, *waiting, return_exceptions=True)
        again = await team.restart_child("Slow")
        return answers, await again.ask(Slow.work, 0, 7), await slow.ask(Slow.seen)

    _, (answers, number, seen) = in_a_team(main)
    assert {error.fault.code for error in answers} == {"ACTOR_STOPPED"}
    assert [error.fault.maybe_executed for error in answers] == [True] + [False] * 10
    assert (number, seen) == (7, [7])


# --- pings ---


class Flooded(Actor, mailbox=2, timeout=None, health=Health(every=1, timeout=30, failures=3)):
    async def work(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


def test_an_actor_that_is_flooded_but_works_is_not_taken_for_one_that_hangs():
    stage = Stage()

    async def play():
        async with Supervisor("team", runtime=stage.runtime) as team:
            flooded = await team.start(Flooded)
            for _ in range(200):
                await asyncio.sleep(0.05)
                with pytest.raises(HoldfastError, match="ACTOR_MAILBOX_FULL"):
                    while True:
                        flooded.tell(Flooded.work, 0.7)
            return flooded.restarts, flooded.health

    assert stage.run(play()) == (0, "healthy")
    assert not stage.of(ChildRestarting)
