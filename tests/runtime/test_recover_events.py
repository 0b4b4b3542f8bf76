"""Every operation that began emits one final event; context variables that a reader sets in an attempt stay in it."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from functools import partial

import pytest

from holdfast import Fault, HoldfastError, Runtime
from holdfast.events import AttemptStarted, Cancelled, Degraded, Failed
from holdfast.runtime.recover import recover
from holdfast.testing import Capture, run, script

MARK: ContextVar[str] = ContextVar("mark", default="outside")


@pytest.fixture
def runtime():
    return Runtime(waits=False)


@pytest.fixture
def events(runtime):
    capture = Capture()
    runtime.on(capture)
    return capture


async def tokens(count=3):
    for number in range(count):
        yield number


# --- the final event ---


def test_R45_a_cancelled_fallback_emits_cancelled(runtime, events):
    async def main():
        begun = asyncio.Event()

        @recover("claude", runtime=runtime)
        async def answer():
            raise PermissionError("no")

        @answer.fallback
        async def other():
            begun.set()
            await asyncio.sleep(60)

        task = asyncio.create_task(answer())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())
    (cancelled,) = events.of(Cancelled)
    assert (cancelled.reason, cancelled.attempts) == ("CancelledError", 2)
    assert events.of(Failed) == []


def test_R45_an_interrupted_fallback_emits_cancelled(runtime, events):
    @recover("claude", runtime=runtime)
    def answer():
        raise PermissionError("no")

    @answer.fallback
    def other():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        answer()
    assert [event.reason for event in events.of(Cancelled)] == ["KeyboardInterrupt"]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_R45_an_interrupted_repair_emits_cancelled(runtime, events, kind):
    def overflow():
        raise HoldfastError(Fault.of("PROVIDER_CONTEXT_OVERFLOW"))

    async def overflow_async():
        overflow()

    def interrupted(fault):
        raise KeyboardInterrupt

    ask = recover("claude", runtime=runtime)(overflow if kind == "sync" else overflow_async)
    ask.repair("compact")(interrupted)
    call = ask if kind == "sync" else partial(_step_through, ask)
    with pytest.raises(KeyboardInterrupt):
        call()
    assert [event.reason for event in events.of(Cancelled)] == ["KeyboardInterrupt"]


def _step_through(fn):
    """Run a coroutine that an interrupt will leave: an event loop would be stopped by it as well."""
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(fn())
    finally:
        loop.close()


def test_R78_a_stream_that_is_left_early_emits_cancelled_and_is_no_failure(runtime, events):
    async def main():
        async with recover("claude", runtime=runtime).stream(tokens)() as stream:
            async for _ in stream:
                break

    run(main())
    assert [event.reason for event in events.of(Cancelled)] == ["left early"]
    assert events.of(Failed) == []


def test_R79_a_consumer_that_raises_ends_the_stream_under_its_own_name(runtime, events):
    async def main():
        async with recover("claude", runtime=runtime).stream(tokens)() as stream:
            async for _ in stream:
                raise LookupError("mine")

    with pytest.raises(LookupError):
        run(main())
    assert [event.reason for event in events.of(Cancelled)] == ["LookupError"]


def test_a_stream_that_was_never_begun_emits_nothing(runtime, events):
    async def main():
        async with recover("claude", runtime=runtime).stream(tokens)():
            pass

    run(main())
    assert events.types == []


@pytest.mark.parametrize(("degraded", "kinds"), [("ok:less", [Degraded]), ("503", [Failed])])
def test_a_degraded_answer_is_reported_only_if_it_was_given(runtime, events, degraded, kinds):
    @recover("claude", runtime=runtime)
    def answer():
        raise PermissionError("no")

    answer.degraded(script(degraded))
    try:
        answer()
    except PermissionError:
        assert kinds == [Failed]
    assert [type(event) for event in events if isinstance(event, (Degraded, Failed))] == kinds


# --- the context of an attempt ---


@pytest.fixture
def marked(runtime):
    """A reader that marks the context of every attempt."""
    runtime.on(lambda event: MARK.set(f"attempt {event.attempt}"), AttemptStarted)


def test_a_stream_runs_in_its_attempts_context_and_its_consumer_does_not(runtime, marked):
    seen, between, failures = [], [], iter([True, False])

    async def source():
        seen.append(MARK.get())
        if next(failures):
            raise ConnectionResetError("once")
        for number in range(2):
            yield number
            seen.append(MARK.get())

    async def main():
        async with recover("claude", runtime=runtime).stream(source)() as stream:
            async for _ in stream:
                between.append(MARK.get())  # noqa: PERF401 - what the body of a loop sees is the point
        between.append(MARK.get())

    run(main())
    assert seen == ["attempt 1", "attempt 2", "attempt 2", "attempt 2"]
    assert between == ["outside"] * 3


def test_a_block_runs_in_its_attempts_context(runtime, marked):
    inside = []

    async def main():
        async for attempt in recover("claude", runtime=runtime):
            async with attempt:
                inside.append(MARK.get())
                if len(inside) == 1:
                    raise ConnectionResetError("once")

    run(main())
    assert inside == ["attempt 1", "attempt 2"]


def test_a_block_that_was_never_entered_leaves_no_context_behind(runtime, marked):
    for _ in recover("claude", runtime=runtime):
        break
    assert MARK.get() == "outside"
