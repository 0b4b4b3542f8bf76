"""Commands to an operation that waits: retry now, fall back, cancel. Async in virtual time, sync woken for real."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

import pytest
from recover_kit import LOOSE, Always, Flaky, World, assert_places_free, reset, settled

from holdfast import Backoff, Policy, Runtime, recover
from holdfast.events import Cancelled, Commanded, Failed, Fallback, Recovered, Retry
from holdfast.faults import AbortedError
from holdfast.runtime import commands as room
from holdfast.runtime.operation.drivers import drive_async
from holdfast.runtime.operation.operation import Operation
from holdfast.testing import Capture, Midpoint, VirtualClock

SLOW = Policy(attempts=3, circuit=LOOSE)


async def first_wait(world: World):
    """Let others run until a run waits."""
    while not (waiting := world.runtime.commands.waiting()):  # noqa: ASYNC110 - it is what is tested
        await asyncio.sleep(0)
    return waiting[0]


async def both(call, act):
    """Run a call and `act` beside it."""
    task = asyncio.ensure_future(call)
    await act
    return await task


def kinds(world: World) -> list[type]:
    return [type(event) for event in world.events]


# --- retry now ---


def test_retry_now_starts_the_next_attempt_at_once():
    world = World()
    flaky = Flaky(reset(), reset())

    async def act():
        wait = await first_wait(world)
        assert (wait.operation, wait.attempts, wait.can_fall_back) == ("claude", 1, False)
        assert wait.until == world.clock.wall() + 1
        await asyncio.sleep(0.25)
        assert world.runtime.commands.retry_now(wait.run, by="terminal")

    assert world.run(both(world.recover("claude").call(flaky.acall), act())) == "ok"
    assert flaky.calls == 3
    assert world.now == pytest.approx(0.25 + 2)  # the second wait is the curve's own
    (commanded,) = world.of(Commanded)
    assert (commanded.command, commanded.by, commanded.operation, commanded.run) == (
        "retry-now",
        "terminal",
        "claude",
        world.of(Retry)[0].run,
    )
    assert world.runtime.commands.waiting() == ()


def test_the_timeline_says_how_long_the_wait_really_was():
    world = World()

    async def act():
        wait = await first_wait(world)
        await asyncio.sleep(0.25)
        world.runtime.commands.retry_now(wait.run)

    outcome = world.run(both(world.recover("claude").outcome(Flaky(reset()).acall), act()))
    assert [attempt.waited for attempt in outcome.attempts] == [0, pytest.approx(0.25)]


def test_a_command_is_reported_before_its_effect():
    world = World()

    async def act():
        world.runtime.commands.retry_now((await first_wait(world)).run)

    world.run(both(world.recover("claude").call(Flaky(reset()).acall), act()))
    order = [kind for kind in kinds(world) if kind in {Retry, Commanded, Recovered}]
    assert order == [Retry, Commanded, Recovered]


def test_a_block_and_a_stream_obey_too():
    world = World()
    tries = []

    async def block():
        async for attempt in world.recover("claude"):
            async with attempt:
                tries.append(attempt.number)
                if len(tries) < 2:
                    raise reset()

    async def items():
        tries.append("stream")
        if tries.count("stream") < 2:
            raise reset()
        yield 1

    async def stream():
        async with world.recover("claude").stream(items)() as live:
            return [item async for item in live]

    async def act():
        world.runtime.commands.retry_now((await first_wait(world)).run)

    world.run(both(block(), act()))
    assert world.run(both(stream(), act())) == [1]
    assert tries == [1, 2, "stream", "stream"]
    assert world.now == 0


# --- fall back ---


def test_fall_back_skips_the_rest_of_the_retries():
    world = World()
    primary = Always(reset)

    @world.recover("claude", SLOW)
    async def ask():
        return await primary.acall()

    @ask.fallback
    async def other():
        return "other"

    async def act():
        wait = await first_wait(world)
        assert wait.can_fall_back
        assert world.runtime.commands.fall_back(wait.run)

    outcome = world.run(both(ask.outcome(), act()))
    assert (outcome.value, outcome.via) == ("other", "other")
    assert primary.calls == 1
    assert world.now == 0
    assert outcome.attempts[0].then == "commanded"
    (fallback,) = world.of(Fallback)
    assert fallback.fault.code == "CONN_RESET"
    assert world.of(Recovered)[0].via == "other"


def test_if_the_fallbacks_fail_too_the_primarys_error_surfaces():
    world = World()
    primary = Always(reset)

    @world.recover("claude", SLOW)
    async def ask():
        return await primary.acall()

    @ask.fallback
    async def other():
        raise TimeoutError

    async def act():
        world.runtime.commands.fall_back((await first_wait(world)).run)

    with pytest.raises(ConnectionResetError) as caught:
        world.run(both(ask(), act()))
    assert caught.value is primary.raised[0]
    assert any("a person chose the fallbacks" in note for note in caught.value.__notes__)
    assert len(world.of(Failed)) == 1


def test_without_fallbacks_the_command_fall_back_is_not_taken():
    world = World()

    async def act():
        run = (await first_wait(world)).run
        assert not world.runtime.commands.fall_back(run)

    assert world.run(both(world.recover("claude").call(Flaky(reset()).acall), act())) == "ok"
    assert world.now == 1  # it waited as if there had been no command
    assert world.of(Commanded) == []


@pytest.mark.parametrize("command", ["retry_now", "fall_back", None])
def test_the_error_of_a_wait_does_not_keep_itself_alive(command):
    world = World()
    kept = []

    class Own(ConnectionResetError):
        pass

    @world.recover("claude", SLOW)
    async def ask():
        if kept:
            return "ok"
        error = Own(104, "reset")
        kept.append(weakref.ref(error))
        try:
            raise error
        finally:
            del error

    @ask.fallback
    async def other():
        return "other"

    async def act():
        run = (await first_wait(world)).run
        if command:
            assert getattr(world.runtime.commands, command)(run)

    gc.collect()
    gc.disable()
    try:
        assert world.run(both(ask(), act())) in {"ok", "other"}
        world.events.clear()
        assert kept[0]() is None
    finally:
        gc.enable()


# --- cancel ---


def test_cancel_ends_the_operation_and_counts_nothing():
    world = World()
    primary = Always(reset)

    async def act():
        assert world.runtime.commands.cancel((await first_wait(world)).run)

    with pytest.raises(AbortedError, match="claude was cancelled by a command after 1 attempts"):
        world.run(both(world.recover("claude", SLOW).call(primary.acall), act()))
    state = world.state("provider:claude")
    assert (settled(state), state._breaker.failures) == (1, 1)  # the attempt that failed before, and no more
    assert_places_free(state)
    assert [kind for kind in kinds(world) if kind in {Commanded, Cancelled, Failed}] == [Commanded, Cancelled]
    assert world.now == 0


def test_cancel_wins_over_fallbacks():
    world = World()

    @world.recover("claude", SLOW)
    async def ask():
        raise reset()

    @ask.fallback
    async def other():
        return "other"

    async def act():
        world.runtime.commands.cancel((await first_wait(world)).run)

    with pytest.raises(AbortedError):
        world.run(both(ask(), act()))
    assert world.of(Fallback) == []


# --- the runs that wait ---


def test_a_run_that_does_not_wait_takes_no_command():
    commands = Runtime().commands
    assert not commands.retry_now("nobody")
    assert not commands.fall_back("nobody")
    assert not commands.cancel("nobody")


def test_only_the_first_command_takes_effect():
    world = World()

    async def act():
        run = (await first_wait(world)).run
        assert world.runtime.commands.retry_now(run)
        assert not world.runtime.commands.cancel(run)

    assert world.run(both(world.recover("claude").call(Flaky(reset()).acall), act())) == "ok"
    assert len(world.of(Commanded)) == 1


def test_a_cancelled_wait_is_no_longer_listed():
    world = World()

    async def scenario():
        task = asyncio.ensure_future(world.recover("claude").call(Always(reset).acall))
        await first_wait(world)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    world.run(scenario())
    assert world.runtime.commands.waiting() == ()
    assert len(world.of(Cancelled)) == 1


def test_a_wait_with_an_abort_signal_obeys_commands_too():
    world = World()
    flaky = Flaky(reset())
    plan = world.recover("claude")._fresh()

    async def act():
        wait = await first_wait(world)
        await asyncio.sleep(0.12)
        world.runtime.commands.retry_now(wait.run)

    op = Operation(plan, abort=threading.Event())
    assert world.run(both(drive_async(op, flaky.acall, (), {}), act())) == "ok"
    assert world.now == pytest.approx(0.12)


def test_the_number_of_registered_waits_is_bounded(monkeypatch):
    monkeypatch.setattr(room, "MOST_WAITING", 2)
    world = World()

    async def scenario():
        calls = [asyncio.ensure_future(world.recover("claude", SLOW).call(Flaky(reset()).acall)) for _ in range(3)]
        await asyncio.sleep(0.5)
        assert len(world.runtime.commands.waiting()) == 2
        return await asyncio.gather(*calls)

    assert world.run(scenario()) == ["ok"] * 3
    assert world.runtime.commands.waiting() == ()


def test_a_call_that_works_never_touches_the_commands():
    world = World()

    class Untouchable:
        def __getattr__(self, name):
            raise AssertionError(name)

    world.runtime.commands = Untouchable()
    assert world.recover("claude").call(lambda: 1) == 1
    assert world.run(world.recover("claude").call(Flaky().acall)) == "ok"


def test_a_runtime_without_waits_has_no_waiting_runs():
    runtime = Runtime(waits=False)
    runtime.on(lambda event: seen.append(runtime.commands.waiting()), Recovered)
    seen: list = []
    assert recover("claude", runtime=runtime).call(Flaky(reset(), reset())) == "ok"
    assert seen == [()]


# --- threads ---


class Thread:
    """A blocking call in a thread of its own, on the real clock, that would wait far longer than any test."""

    def __init__(self, call):
        self.result: list = []
        self._thread = threading.Thread(target=self._run, args=(call,))
        self._thread.start()

    def _run(self, call):
        try:
            self.result.append(call())
        except Exception as error:
            self.result.append(error)

    def over(self):
        self._thread.join(5)
        assert not self._thread.is_alive(), "nothing woke it"
        return self.result[0]


LONG = Policy(attempts=3, patience=None, circuit=LOOSE, backoff=Backoff(initial=500, cap=500))


@pytest.fixture
def real():
    runtime = Runtime(rng=Midpoint())
    runtime.events_seen = Capture()
    runtime.on(runtime.events_seen)
    return runtime


def waiting_run(runtime: Runtime, began: threading.Event) -> str:
    assert began.wait(5)
    while not (waiting := runtime.commands.waiting()):
        pass
    return waiting[0].run


def test_a_thread_is_woken_to_retry_now(real):
    began = threading.Event()
    real.on(lambda _: began.set(), Retry)
    thread = Thread(lambda: recover("claude", LONG, runtime=real).call(Flaky(reset())))
    assert real.commands.retry_now(waiting_run(real, began))
    assert thread.over() == "ok"


def test_a_thread_is_woken_to_fall_back(real):
    began = threading.Event()
    real.on(lambda _: began.set(), Retry)

    @recover("claude", LONG, runtime=real)
    def ask():
        raise reset()

    @ask.fallback
    def other():
        return "other"

    thread = Thread(ask)
    assert real.commands.fall_back(waiting_run(real, began))
    assert thread.over() == "other"


def test_a_thread_is_woken_to_be_cancelled(real):
    began = threading.Event()
    real.on(lambda _: began.set(), Retry)
    thread = Thread(lambda: recover("claude", LONG, runtime=real).call(Always(reset)))
    assert real.commands.cancel(waiting_run(real, began))
    assert isinstance(thread.over(), AbortedError)
    assert len(real.events_seen.of(Cancelled)) == 1


def test_a_task_is_woken_from_another_thread(real):
    began = threading.Event()
    real.on(lambda _: began.set(), Retry)
    thread = Thread(lambda: asyncio.run(recover("claude", LONG, runtime=real).call(Flaky(reset()).acall)))
    assert real.commands.retry_now(waiting_run(real, began))
    assert thread.over() == "ok"


class _CallingBack(VirtualClock):
    __slots__ = ("after_sleep",)

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        self.after_sleep()


def test_on_another_clock_a_thread_obeys_when_its_sleep_ends():
    world = World()
    world.clock = world.runtime.clock = clock = _CallingBack()
    clock.after_sleep = lambda: world.runtime.commands.cancel(world.runtime.commands.waiting()[0].run)
    with pytest.raises(AbortedError):
        world.recover("claude", SLOW).call(Always(reset))
    assert world.runtime.commands.waiting() == ()
