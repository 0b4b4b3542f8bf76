"""The virtual loop: waiting takes no time, events from the real world still arrive, and nothing hangs.

Real time is read here only to show that it did not pass; the bounds are far above what a slow machine needs.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import math
import multiprocessing
import socket
import threading
import time

import anyio
import pytest

from holdfast import InvalidError
from holdfast.testing import StuckError, VirtualClock, VirtualLoop, loop_factory, run

NO_TIME = 20.0
"""Real seconds, with a large margin: without virtual time these tests would take minutes."""


def a_real_while():
    """A thread works in real time while the loop has nothing to do."""
    threading.Event().wait(0.02)


@pytest.fixture(autouse=True)
def in_no_real_time():
    began = time.perf_counter()
    yield
    assert time.perf_counter() - began < NO_TIME


async def slept(seconds, log, name):
    await asyncio.sleep(seconds)
    log.append((name, asyncio.get_running_loop().time()))


# Time


def test_a_backoff_of_160_seconds_takes_no_real_time():
    clock = VirtualClock(monotonic=40)
    run(asyncio.sleep(160), clock=clock)
    assert clock.monotonic() == 200


def test_the_result_and_the_exception_of_the_coroutine_come_back():
    async def fail():
        await asyncio.sleep(1)
        raise KeyError("x")

    assert run(asyncio.sleep(3600, "late")) == "late"
    with pytest.raises(KeyError):
        run(fail())


def test_timers_fire_in_the_order_of_their_times():
    log = []

    async def main():
        await asyncio.gather(slept(3, log, "c"), slept(1, log, "a"), slept(2, log, "b"), slept(1, log, "a2"))

    run(main())
    assert log == [("a", 1), ("a2", 1), ("b", 2), ("c", 3)]


def test_a_timer_longer_than_a_day_and_one_far_from_zero_fire_on_time():
    """asyncio cuts a select at a day; and far from zero the steps between floats are coarser than its idea of "due"."""
    clock = VirtualClock(monotonic=1e12)

    async def main():
        due = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.call_at(loop.time(), due.set)
        await due.wait()
        await asyncio.sleep(30 * 86_400)

    run(main(), clock=clock)
    assert clock.monotonic() == 1e12 + 30 * 86_400


def test_ready_work_runs_before_the_clock_moves():
    async def main():
        timer = asyncio.create_task(asyncio.sleep(0.001))
        for _ in range(1000):
            await asyncio.sleep(0)
        assert asyncio.get_running_loop().time() == 0
        await timer

    run(main())


def test_ten_thousand_sleeps_together_end_at_the_longest():
    clock = VirtualClock()

    async def main():
        return await asyncio.gather(*(asyncio.sleep(n, n) for n in range(10_000)))

    assert run(main(), clock=clock) == list(range(10_000))
    assert clock.monotonic() == 9_999


def test_two_loops_one_after_the_other_share_a_clock_or_have_their_own():
    clock = VirtualClock()
    run(asyncio.sleep(10), clock=clock)
    run(asyncio.sleep(10), clock=clock)
    assert clock.monotonic() == 20

    async def now():
        return asyncio.get_running_loop().time()

    assert run(now()) == 0


def test_R58_a_wall_clock_that_jumps_moves_no_timer():
    clock = VirtualClock()

    async def main():
        asyncio.get_running_loop().call_later(1, clock.jump, -3600)
        await asyncio.sleep(10)

    run(main(), clock=clock)
    assert clock.monotonic() == 10
    assert clock.wall() == VirtualClock().wall() + 10 - 3600


# Cancellation and timeouts


def test_R17_cancellation_ends_a_sleep_at_once():
    clock = VirtualClock()

    async def main():
        sleeper = asyncio.create_task(asyncio.sleep(1000))
        await asyncio.sleep(5)
        sleeper.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sleeper

    run(main(), clock=clock)
    assert clock.monotonic() == 5


def test_a_timeout_fires_at_its_virtual_time():
    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.Event().wait()
        assert asyncio.get_running_loop().time() == 30
        async with asyncio.timeout(30):
            await asyncio.sleep(29)

    run(main())


def test_tasks_left_over_are_cancelled_at_the_end():
    ended = []

    async def endless():
        try:
            await asyncio.sleep(1e6)
        finally:
            ended.append(asyncio.get_running_loop().time())

    async def main():
        left = asyncio.create_task(endless())
        await asyncio.sleep(1)
        assert not left.done()

    run(main())
    assert ended == [1]


# Threads and sockets


def test_another_thread_wakes_the_loop():
    async def main():
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def wake():
            a_real_while()
            loop.call_soon_threadsafe(woken.set)

        thread = threading.Thread(target=wake)
        thread.start()
        await woken.wait()
        thread.join()
        return loop.time()

    assert run(main()) == 0


def test_the_clock_stands_still_for_a_thread_of_the_executor():
    """The timer is virtually due at once; the thread takes real time and still comes first."""

    async def main():
        async with asyncio.timeout(0.001):
            await asyncio.to_thread(a_real_while)
        return asyncio.get_running_loop().time()

    assert run(main()) == 0


def test_a_thread_that_never_ends_is_timed_out_and_left_behind():
    release = threading.Event()
    clock = VirtualClock()

    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(60):
                await asyncio.to_thread(release.wait)

    try:
        run(main(), clock=clock, patience=0.05)
    finally:
        release.set()
    assert clock.monotonic() == 60


def test_a_slow_thread_is_waited_for_once_and_not_at_every_timer():
    release = threading.Event()

    async def main():
        job = asyncio.ensure_future(asyncio.to_thread(release.wait))
        for _ in range(1000):  # at 0.1 real seconds each, this would be 100
            await asyncio.sleep(1)
        release.set()
        assert await job

    run(main(), patience=0.1)


def test_the_result_of_a_custom_executor_arrives():
    async def main(executor):
        async with asyncio.timeout(0.001):
            return await asyncio.get_running_loop().run_in_executor(executor, math.factorial, 5)

    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        assert run(main(threads)) == 120
    fresh = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=fresh) as processes:
        assert run(main(processes)) == 120


def test_a_thread_the_loop_cannot_see_is_announced_with_hold():
    async def main():
        loop, woken = asyncio.get_running_loop(), asyncio.Event()

        def work():
            a_real_while()
            loop.call_soon_threadsafe(woken.set)

        thread = threading.Thread(target=work)
        thread.start()
        with loop.hold():
            async with asyncio.timeout(0.001):
                await woken.wait()
        thread.join()
        await asyncio.sleep(7)  # no longer held: time passes again, without a real wait
        return loop.time()

    assert run(main(), patience=2 * NO_TIME) == 7


def test_after_a_slow_thread_the_next_one_is_waited_for_again():
    release = threading.Event()

    async def main():
        late = asyncio.ensure_future(asyncio.to_thread(release.wait))
        await asyncio.sleep(1)
        async with asyncio.timeout(0.001):
            await asyncio.to_thread(a_real_while)
        release.set()
        return await late

    assert run(main(), patience=0.5)


def test_an_echo_over_a_socket_pair_works():
    async def echo(reader, writer):
        writer.write((await reader.readline()).upper())
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def main():
        ours, theirs = socket.socketpair()
        server = asyncio.create_task(echo(*await asyncio.open_connection(sock=theirs)))
        reader, writer = await asyncio.open_connection(sock=ours)
        async with asyncio.timeout(5):
            writer.write(b"hello\n")
            answer = await reader.readline()
        writer.close()
        await writer.wait_closed()
        await server
        return answer, asyncio.get_running_loop().time()

    assert run(main()) == (b"HELLO\n", 0)


def test_a_peer_in_another_thread_has_real_time_to_answer():
    """The timeout is virtually due at once; the loop still waits for the socket in real time before it moves the clock."""
    ours, theirs = socket.socketpair()

    def answer():
        a_real_while()
        theirs.sendall(theirs.recv(10).upper())

    async def main():
        reader, writer = await asyncio.open_connection(sock=ours)
        peer = threading.Thread(target=answer)
        peer.start()
        async with asyncio.timeout(0.001):
            writer.write(b"hello")
            got = await reader.readexactly(5)
        writer.close()
        await writer.wait_closed()
        peer.join()
        return got

    with theirs:
        assert run(main(), io_wait=5) == b"HELLO"


def test_a_silent_socket_does_not_stop_the_clock():
    ours, theirs = socket.socketpair()

    async def main():
        reader, writer = await asyncio.open_connection(sock=ours)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(300):
                await reader.read(1)
        writer.close()
        await writer.wait_closed()
        return asyncio.get_running_loop().time()

    with theirs:
        assert run(main()) == 300


# Nothing hangs


def test_a_deadlock_raises_and_names_the_waiting_tasks():
    async def waits_for_a_message():
        await asyncio.Queue().get()

    async def main():
        await asyncio.sleep(3)
        other = asyncio.create_task(waits_for_a_message(), name="reader")
        await other

    with pytest.raises(StuckError) as stuck:
        run(main(), patience=0.05)
    message = str(stuck.value)
    assert "nothing happened for 0.05 real seconds at virtual time 3 s" in message
    assert "reader (" in message
    assert f"waits_for_a_message) at {__file__}:" in message
    assert message.count("\n") == 2


def test_a_deadlock_with_a_thread_raises_too():
    release = threading.Event()

    async def main():
        await asyncio.to_thread(release.wait)

    try:
        with pytest.raises(StuckError, match="1 jobs under way outside the loop"):
            run(main(), patience=0.05)
    finally:
        release.set()
        gc.collect()


def test_a_stuck_loop_without_tasks_raises():
    loop = VirtualLoop(patience=0.05)
    try:
        with pytest.raises(StuckError, match="no task at all"):
            loop.run_forever()
    finally:
        loop.close()


def test_after_a_deadlock_the_tasks_are_cancelled_and_the_next_loop_runs():
    cleaned = []

    async def main():
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append("up")

    with pytest.raises(StuckError):
        run(main(), patience=0.05)
    assert cleaned == ["up"]
    assert run(asyncio.sleep(1, "fine")) == "fine"


# Loop factories


@pytest.mark.parametrize("option", [{"patience": 0}, {"patience": math.inf}, {"io_wait": -1}])
def test_an_invalid_limit_raises(option):
    with pytest.raises(InvalidError, match=next(iter(option))):
        VirtualLoop(**option)


def test_the_class_and_the_factory_serve_as_a_loop_factory():
    clock = VirtualClock()
    for factory in (VirtualLoop, loop_factory(clock)):
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(asyncio.sleep(60))
    assert clock.monotonic() == 60


def test_anyio_runs_on_it():
    clock = VirtualClock()

    async def main():
        with anyio.move_on_after(30) as scope:
            await anyio.sleep_forever()
        assert scope.cancelled_caught
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.sleep, 5)
            group.start_soon(anyio.sleep, 7)

    anyio.run(main, backend_options={"loop_factory": loop_factory(clock)})
    assert clock.monotonic() == 37


def test_it_does_not_run_inside_a_running_loop():
    async def main():
        inner = asyncio.sleep(1)
        with pytest.raises(RuntimeError, match="running event loop"):
            run(inner)
        inner.close()

    run(main())
