"""R75: a stream that fails before its first item is replaced by another source without the consumer noticing."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import pytest

from holdfast import Backoff, Budget, Circuit, InvalidError, Policy, Runtime, StreamCutError, fault_of, recover
from holdfast.events import AttemptStarted, Failed, Fallback, Recovered, SuppressedError
from holdfast.runtime.operation.plan import Plan
from holdfast.runtime.streams.stream import BlockingStream, StreamOf
from holdfast.testing import Capture, VirtualClock, run
from holdfast.testing import use_runtime as using

ONCE = Policy(attempts=1)
PATIENT = Policy(attempts=3, backoff=Backoff(initial=30), patience=None)


@pytest.fixture
def capture():
    capture = Capture()
    runtime = Runtime(clock=VirtualClock())
    runtime.on(capture)
    with using(runtime):
        yield capture


def source(*plays):
    """A generator function that gives the plays, or raises the one that is an error; it counts its openings."""

    async def stream(*args):
        stream.opened += 1
        for play in plays:
            if isinstance(play, BaseException):
                raise play
            yield play

    stream.opened = 0
    return stream


def reset():
    return ConnectionResetError(104, "Connection reset by peer")


async def read(live, *args):
    async with live(*args) as stream:
        return [item async for item in stream]


def go(live, *args):
    return run(read(live, *args))


async def command(runtime):
    """Command the fallback for whatever waits; return what was offered, and whether it is obeyed."""
    while not (waiting := runtime.commands.waiting()):  # noqa: ASYNC110 - a wait that begins sets no event
        await asyncio.sleep(0.01)
    return [(wait.can_fall_back, runtime.commands.fall_back(wait.run)) for wait in waiting]


def test_R75_another_source_takes_over_before_the_first_item(capture):
    primary, other = source(reset()), source("a", "b")
    live = recover("claude", ONCE).stream(primary).fallback(other, name="openai")
    assert go(live, "hi") == ["a", "b"]
    assert (primary.opened, other.opened) == (1, 1)
    assert [(event.from_, event.to) for event in capture.of(Fallback)] == [("primary", "openai")]
    assert [event.via for event in capture.of(Recovered)] == ["openai"]
    assert capture.of(Failed) == []
    assert len({event.run for event in capture.of(AttemptStarted)}) == 1


def test_the_primary_retries_first(capture):
    primary, other = source(reset()), source("a")
    live = recover("claude", Policy(attempts=3)).stream(primary).fallback(other)
    assert go(live) == ["a"]
    assert primary.opened == 3


def test_R75_after_the_first_item_no_other_source_is_spliced_in(capture):
    other = source("x")
    live = recover("claude", ONCE).stream(source("a", reset())).fallback(other)
    with pytest.raises(StreamCutError) as cut:
        go(live)
    assert cut.value.partial.payload == "a"
    assert other.opened == 0


def test_R73_when_all_fail_the_primarys_error_surfaces_and_the_others_are_on_it(capture):
    first, second = reset(), ConnectionRefusedError(111, "refused")
    live = recover("claude", ONCE).stream(source(first)).fallback(source(second), name="openai")
    with pytest.raises(ConnectionResetError) as failed:
        go(live)
    assert failed.value is first
    assert any("fallback openai: CONN_REFUSED" in note for note in failed.value.__notes__)
    assert fault_of(first).code == "CONN_RESET"
    assert [event.fault.code for event in capture.of(Failed)] == ["CONN_RESET"]


def test_R73_a_condition_that_is_not_met_skips_its_source(capture):
    skipped, taken = source("no"), source("yes")
    live = recover("claude", ONCE).stream(source(reset()))
    live.fallback(skipped, when="rate_limit").fallback(taken, when="CONN_RESET")
    assert go(live) == ["yes"]
    assert skipped.opened == 0


def test_a_source_with_a_circuit_of_its_own_is_skipped_while_that_is_open(capture):
    broken = recover("openai", Policy(attempts=1, circuit=Circuit(failures=1))).stream(source(reset()))
    with pytest.raises(ConnectionResetError):
        go(broken)
    live = recover("claude", ONCE).stream(source(reset())).fallback(broken).fallback(source("local"), name="local")
    assert go(live) == ["local"]
    assert [event.to for event in capture.of(Fallback)] == ["local"]


def test_S1_29_an_open_circuit_goes_to_the_other_source_at_once(capture):
    primary, other = source(reset()), source("a")
    live = recover("claude", Policy(attempts=1, circuit=Circuit(failures=1))).stream(primary).fallback(other)
    assert go(live) == ["a"]
    assert go(live) == ["a"]
    assert (primary.opened, other.opened) == (1, 2)


def test_R74_a_mistake_in_the_source_is_not_answered_by_another(capture):
    other = source("a")
    live = recover("claude", ONCE).stream(source(TypeError("a defect"))).fallback(other)
    with pytest.raises(TypeError):
        go(live)
    assert other.opened == 0


def test_cancelling_while_the_other_source_opens_leaves_nothing_behind(capture):
    async def slow():
        await asyncio.sleep(50)
        yield "late"

    live = recover("claude", ONCE).stream(source(reset())).fallback(slow)

    async def main():
        task = asyncio.ensure_future(read(live))
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())
    assert capture.of(Failed) == []


def test_a_fallback_source_that_is_no_source_is_an_error():
    with pytest.raises(InvalidError, match="a function that gives an iterator"):
        recover("claude").stream(source("a")).fallback(3)
    with pytest.raises(InvalidError, match="when"):
        recover("claude").stream(source("a")).fallback(source("b"), when="NO_SUCH_CODE")


def test_a_fallback_stream_begins_again_as_it_chose_itself(capture):
    plays = iter([("a1", reset()), ("a2", "b2")])

    async def other():
        for play in next(plays):
            if isinstance(play, BaseException):
                raise play
            yield play

    restarting = recover("openai", Policy(attempts=3)).stream(other, after_first="restart")
    live = recover("claude", ONCE).stream(source(reset())).fallback(restarting)
    assert go(live) == ["a1", "a2", "b2"]


def test_a_fallback_stream_does_not_go_on_as_the_primary_chose(capture):
    other = source("x", reset())
    plain = recover("openai", Policy(attempts=3)).stream(other)
    live = recover("claude", ONCE).stream(source(reset()), after_first="continue", resume=source("rest"))
    with pytest.raises(StreamCutError) as cut:
        go(live.fallback(plain))
    assert cut.value.partial.payload == "x"
    assert other.opened == 1, "the consumer has an item, and nobody allowed this stream to begin again"


def test_a_condition_that_raises_is_reported_and_skips_its_source(capture):
    def broken(latest, primary):
        raise KeyError("mine")

    skipped, other = source("x"), source("a")
    live = recover("claude", ONCE).stream(source(reset())).fallback(skipped, when=broken, name="spare").fallback(other)
    assert go(live) == ["a"]
    assert skipped.opened == 0
    assert [event.reason for event in capture.of(SuppressedError)] == ["the condition of fallback spare raised"]


def test_no_fallback_begins_on_a_spent_budget(capture):
    other = source("x")
    live = recover("claude", ONCE).stream(source(reset())).fallback(other)
    with Budget(attempts=1), pytest.raises(ConnectionResetError):
        go(live)
    assert other.opened == 0
    assert capture.of(Fallback) == []


def test_the_total_of_a_fallback_counts_from_its_own_start(capture):
    async def hanging():
        await asyncio.sleep(5)
        raise reset()
        yield

    async def slow():
        await asyncio.sleep(2)
        yield "a"

    other = recover("openai", ONCE).stream(slow, total=4)
    assert go(recover("claude", ONCE).stream(hanging).fallback(other)) == ["a"]


def test_a_fallback_has_no_fallbacks_of_its_own(capture):
    """They would never be used: only those of the first stream are."""
    primary = recover("claude", ONCE).stream(source(reset()))
    nested = recover("openai", ONCE).stream(source("a")).fallback(source("b"))
    with pytest.raises(InvalidError, match="without fallbacks of its own"):
        primary.fallback(nested)
    other = recover("openai", ONCE).stream(source("a"))
    primary.fallback(other)
    with pytest.raises(InvalidError, match="without fallbacks of its own"):
        other.fallback(source("b"))


def test_a_person_can_choose_the_fallback_while_a_stream_waits():
    runtime = Runtime()
    primary, other = source(reset()), source("a")
    live = recover("claude", PATIENT, runtime=runtime).stream(primary).fallback(other)

    async def main():
        reading = asyncio.ensure_future(read(live))
        assert await command(runtime) == [(True, True)]
        return await asyncio.wait_for(reading, 5)

    assert asyncio.run(main()) == ["a"]
    assert primary.opened == other.opened == 1


def test_a_person_can_choose_the_fallback_while_a_blocking_stream_waits():
    runtime = Runtime()
    plays = iter([reset(), "a"])

    def opened():
        play = next(plays)
        if isinstance(play, Exception):
            raise play
        return iter([play])

    first, other = (StreamOf(Plan(name, PATIENT, runtime=runtime), opened) for name in ("claude", "openai"))
    commands = ThreadPoolExecutor(1)
    commanded = commands.submit(lambda: asyncio.run(command(runtime)))
    with BlockingStream(first.fallback(other)) as stream:
        assert list(stream) == ["a"]
    assert commanded.result() == [(True, True)]


@pytest.mark.parametrize("plays", [("a", reset()), (reset(),)], ids=["after an item", "in the last source"])
def test_a_wait_without_a_fallback_to_come_offers_none(plays):
    runtime = Runtime()
    waiting = recover("openai", PATIENT, runtime=runtime).stream(source(*plays), after_first="restart")
    live = (
        waiting.fallback(source("x")) if "a" in plays else recover("c", ONCE, runtime=runtime).stream(source(reset()))
    )
    if live is not waiting:
        live.fallback(waiting)

    async def main():
        reading = asyncio.ensure_future(read(live))
        assert await command(runtime) == [(False, False)]
        reading.cancel()

    asyncio.run(main())
