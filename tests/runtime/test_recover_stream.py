"""Streams: invisible recovery before the first item, the caller's choice after it, and every way of leaving early."""

from __future__ import annotations

import asyncio
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from recover_kit import LOOSE, World, assert_places_free, reset, settled

from holdfast import (
    Circuit,
    CircuitOpenError,
    DeadlineError,
    HoldfastError,
    InvalidError,
    Policy,
    StreamCutError,
    fault_of,
    recover,
)
from holdfast.events import (
    AttemptStarted,
    Cancelled,
    CircuitState,
    Failed,
    Recovered,
    Retry,
    StreamResumed,
    SuppressedError,
)
from holdfast.runtime.ambient import AMBIENT
from holdfast.runtime.operation.plan import Plan
from holdfast.runtime.streams.stream import ALIVE, BlockingStream, StreamOf

STEADY = Policy(circuit=LOOSE)


class Source:
    """A source of streams. It is given what each of its streams does, and records how each ended."""

    def __init__(self, *scripts: list[Any]) -> None:
        self.scripts = list(scripts)
        self.opened = self.closed = self.handed = 0
        self.resumed_with: list[Any] = []

    def stream(self, *args: Any, **kwargs: Any) -> Any:
        script = self.scripts[min(self.opened, len(self.scripts) - 1)]
        self.opened += 1
        return self._play(script)

    def resume(self, partial: Any, *args: Any) -> Any:
        self.resumed_with.append((partial.payload, args))
        return self.stream()

    async def opened_later(self, *args: Any, **kwargs: Any) -> Any:
        await asyncio.sleep(1)
        return self.stream()

    async def _play(self, script: list[Any]) -> Any:
        try:
            for step in script:
                if isinstance(step, float):
                    await asyncio.sleep(step)
                elif isinstance(step, BaseException):
                    raise step
                else:
                    self.handed += 1
                    yield step
        finally:
            self.closed += 1


def collect(world: World, source: Source, policy: Policy = STEADY, **options: Any) -> tuple[list[Any], Any]:
    """Read a stream to its end; return the items and what was raised."""
    got: list[Any] = []

    async def main() -> Any:
        try:
            async with world.recover("a", policy).stream(source.stream, **options)("hi") as stream:
                async for item in stream:
                    got.append(item)  # noqa: PERF401 - what came before a failure matters
        except Exception as error:
            return error
        return None

    error = world.run(main())
    assert AMBIENT.get() is None
    assert source.opened == source.closed
    state = world.runtime.registry.known("provider:a")
    if state is not None:
        assert settled(state) == len(world.of(AttemptStarted))
        assert_places_free(state)
    return got, error


def test_R75_before_the_first_item_recovery_is_invisible() -> None:
    world = World()
    source = Source([reset()], [0.5, reset()], ["a", "b"])
    assert collect(world, source) == (["a", "b"], None)
    assert source.opened == 3
    assert world.waits() == [1, 2]
    assert [event.attempts for event in world.of(Recovered)] == [3]


def test_R75_after_the_first_item_a_typed_error_carries_the_partial() -> None:
    world = World()
    source = Source(["a", "b", reset()])
    got, error = collect(world, source)
    assert got == ["a", "b"]
    assert isinstance(error, StreamCutError)
    assert isinstance(error.__cause__, ConnectionResetError)
    assert error.fault.code == "CONN_RESET"
    assert error.fault.partial.payload == "ab"
    assert error.fault.partial.complete == 2
    assert [attempt.then for attempt in error.fault.attempts] == ["partial"]
    assert source.opened == 1
    assert len(world.of(Failed)) == 1
    assert world.state("provider:a")._breaker.failures == 1


def test_R75_items_that_are_not_text_are_kept_as_a_list() -> None:
    _, error = collect(World(), Source([{"n": 1}, {"n": 2}, reset()]))
    assert error.fault.partial.payload == [{"n": 1}, {"n": 2}]


def test_R75_a_permanent_failure_before_the_first_item_is_the_original_exception() -> None:
    error = ValueError("a mistake of the caller")
    got, raised = collect(World(), Source([error]))
    assert (got, raised) == ([], error)


def test_R75_a_defect_of_the_source_stays_what_it_is_even_in_the_middle() -> None:
    _, error = collect(World(), Source(["a", KeyError("a defect")]))
    assert isinstance(error, KeyError)


def test_R75_attempts_used_up_before_the_first_item_surface_the_last_exception() -> None:
    world = World()
    last = reset()
    _, error = collect(world, Source([reset()], [reset()], [last]))
    assert error is last
    assert len(fault_of(error).attempts) == 3


def test_R75_restart_begins_again_with_an_event() -> None:
    world = World()
    source = Source(["a", "b", reset()], ["a", "b", "c"])
    assert collect(world, source, after_first="restart") == (["a", "b", "a", "b", "c"], None)
    (resumed,) = world.of(StreamResumed)
    assert (resumed.how, resumed.items) == ("restart", 2)


def test_R75_after_a_restart_the_void_items_are_not_part_of_the_partial() -> None:
    _, error = collect(World(), Source(["a", reset()], ["x", reset()], ["y", reset()]), after_first="restart")
    assert isinstance(error, StreamCutError)
    assert error.fault.partial.payload == "y"


def test_R75_continue_hands_the_partial_to_resume_and_keeps_adding() -> None:
    world = World()
    source = Source(["a", "b", reset()], ["c", reset()], ["d"])
    got, error = collect(world, source, after_first="continue", resume=source.resume)
    assert (got, error) == (["a", "b", "c", "d"], None)
    assert source.resumed_with == [("ab", ("hi",)), ("abc", ("hi",))]
    assert [event.how for event in world.of(StreamResumed)] == ["continue", "continue"]


def test_R75_continue_that_fails_for_good_carries_all_that_came() -> None:
    source = Source(["a", reset()], ["b", reset()], ["c", reset()])
    got, error = collect(World(), source, after_first="continue", resume=source.resume)
    assert isinstance(error, StreamCutError)
    assert error.fault.partial.payload == "abc" == "".join(got)


def test_R75_an_item_is_delivered_before_the_next_is_read() -> None:
    world = World()
    source = Source(["a", "b", "c"])
    lead: list[int] = []

    async def main() -> None:
        got = 0
        async with world.recover("a").stream(source.stream)() as stream:
            async for _ in stream:
                got += 1
                lead.append(source.handed - got)

    world.run(main())
    assert lead == [0, 0, 0]


@pytest.mark.parametrize(
    ("script", "options", "code", "at"),
    [
        ([61.0, "a"], {"first": 60}, "PROVIDER_TIMEOUT", 60),
        (["a", 31.0, "b"], {"idle": 30}, "PROVIDER_STREAM_STALLED", 30),
        (["a", 20.0, "b", 20.0, "c"], {"idle": 30, "total": 35}, "SYS_DEADLINE_EXCEEDED", 35),
        ([61.0], {"total": 60, "first": 100}, "SYS_DEADLINE_EXCEEDED", 60),
    ],
)
def test_R77_each_limit_has_its_own_kind_of_error(script: list[Any], options: Any, code: str, at: float) -> None:
    world = World()
    _, error = collect(world, Source(script), Policy(attempts=1, timeout=None, patience=None), **options)
    assert isinstance(error, HoldfastError)
    assert error.fault.code == code
    assert world.now == at
    assert isinstance(error, DeadlineError | StreamCutError)


def test_R77_idle_starts_anew_with_each_item_and_no_total_kills_a_healthy_stream() -> None:
    world = World()
    script = [part for number in range(100) for part in (29.0, str(number))]
    got, error = collect(world, Source(script), Policy(patience=60), first=60, idle=30)
    assert error is None
    assert len(got) == 100
    assert world.now == 2900


def test_R77_the_consumers_own_time_is_not_the_sources() -> None:
    world = World()
    source = Source(["a", "b", "c"])

    async def main() -> list[str]:
        got = []
        async with world.recover("a", Policy(timeout=5, patience=60)).stream(source.stream, idle=5)() as stream:
            async for item in stream:
                got.append(item)
                await asyncio.sleep(50)
        return got

    assert world.run(main()) == ["a", "b", "c"]


def test_R77_opening_the_stream_is_under_the_first_items_limit() -> None:
    """`await client.messages.create(stream=True)` may hang as well as its first item."""
    world = World()

    async def hangs() -> Any:
        await asyncio.sleep(1000)

    async def main() -> None:
        stream_of = world.recover("a", Policy(timeout=None, patience=None, attempts=2)).stream(hangs, first=5)
        async with stream_of() as stream:
            async for _ in stream:
                pass

    with pytest.raises(DeadlineError) as failed:
        world.run(main())
    assert failed.value.fault.code == "PROVIDER_TIMEOUT"
    assert world.now == 11


def test_R77_a_function_that_returns_the_stream_later_is_awaited() -> None:
    world = World()
    source = Source([reset()], ["a"])

    async def main() -> list[Any]:
        async with world.recover("a").stream(source.opened_later)() as stream:
            return [item async for item in stream]

    assert world.run(main()) == ["a"]
    assert source.closed == 2


@pytest.mark.parametrize("after", [0, 1])
def test_R78_leaving_early_closes_the_source_and_counts_nothing(after: int) -> None:
    world = World()
    source = Source(["a", "b", "c"])
    policy = Policy(circuit=LOOSE, concurrency=1)

    async def main() -> None:
        async with world.recover("a", policy).stream(source.stream)() as stream:
            seen = 0
            async for _ in stream:
                seen += 1
                if seen > after:
                    break
        assert source.closed == 1
        assert_places_free(world.state("provider:a"))

    world.run(main())
    breaker = world.state("provider:a")._breaker
    assert (breaker.successes, breaker.failures, breaker.ignored) == (0, 0, 1)
    assert [type(event) for event in world.events] == [AttemptStarted, Cancelled]
    assert world.of(Cancelled)[0].reason == "left early"


def test_R78_a_stream_that_is_entered_and_never_read_holds_nothing() -> None:
    world = World()

    async def main() -> None:
        async with world.recover("a").stream(Source(["a"]).stream)():
            pass

    world.run(main())
    assert len(world.events) == 0
    assert settled(world.state("provider:a")) == 0


def test_R78_leaving_early_while_half_open_frees_the_probe() -> None:
    world = World()
    policy = Policy(attempts=1, circuit=Circuit(failures=1))
    source = Source([reset()], ["a", "b"], ["c"])

    async def read(most: int) -> list[Any]:
        got = []
        async with world.recover("a", policy).stream(source.stream)() as stream:
            async for item in stream:
                got.append(item)
                if len(got) == most:
                    break
        return got

    async def main() -> None:
        with pytest.raises(ConnectionResetError):
            await read(1)
        with pytest.raises(CircuitOpenError):
            await read(1)
        await asyncio.sleep(30)
        assert await read(1) == ["a"]
        assert world.circuit_state("provider:a") is CircuitState.HALF_OPEN
        assert await read(9) == ["c"]
        assert world.circuit_state("provider:a") is CircuitState.CLOSED

    world.run(main())


@pytest.mark.parametrize("error", [reset(), LookupError("the consumer's own"), KeyboardInterrupt()])
def test_R79_an_error_of_the_consumer_does_not_restart_the_source(error: BaseException) -> None:
    world = World()
    source = Source(["a", "b"])

    async def main() -> None:
        async with world.recover("a").stream(source.stream, after_first="restart")() as stream:
            async for _ in stream:
                raise error

    with pytest.raises(type(error)) as failed:
        world.run(main())
    assert failed.value is error
    assert (source.opened, source.closed) == (1, 1)
    assert not world.of(Retry)
    assert not world.of(Failed)
    assert world.state("provider:a")._breaker.ignored == 1
    assert [event.reason for event in world.of(Cancelled)] == [type(error).__name__]


def test_a_source_that_fails_to_close_does_not_hide_the_failure() -> None:
    class Stuck:
        def __aiter__(self) -> Any:
            return self

        async def __anext__(self) -> Any:
            raise ValueError("the failure")

        async def aclose(self) -> None:
            raise OSError("cannot close")

    world = World()

    async def main() -> None:
        async with world.recover("a").stream(Stuck)() as stream:
            async for _ in stream:
                pass

    with pytest.raises(ValueError, match="the failure") as failed:
        world.run(main())
    assert not isinstance(failed.value, HoldfastError)
    assert [event.cause for event in world.of(SuppressedError)] == ["cannot close"]


def test_two_streams_of_one_source_are_independent() -> None:
    world = World()
    source = Source(["a", 1.0, "b"])
    live = world.recover("a").stream(source.stream)

    async def read() -> list[Any]:
        async with live() as stream:
            return [item async for item in stream]

    async def main() -> Any:
        return await asyncio.gather(read(), read())

    assert world.run(main()) == [["a", "b"], ["a", "b"]]


def test_the_deadline_starts_when_the_stream_is_entered_not_when_it_is_made() -> None:
    world = World()
    source = Source([5.0, "a"])

    async def main() -> list[Any]:
        made = world.recover("a", Policy(timeout=None, deadline=10)).stream(source.stream)()
        await asyncio.sleep(60)
        async with made as stream:
            return [item async for item in stream]

    assert world.run(main()) == ["a"]


def test_a_stream_holds_its_place_until_it_is_left() -> None:
    world = World()
    live = world.recover("a", Policy(concurrency=1, patience=None)).stream(Source(["a", 5.0, "b"]).stream)
    starts: list[float] = []

    async def read() -> None:
        async with live() as stream:
            async for item in stream:
                if item == "a":
                    starts.append(world.now)  # noqa: PERF401 - the time it came is the point

    async def main() -> None:
        await asyncio.gather(read(), read(), read())

    world.run(main())
    assert starts == [0, 5, 10]


def test_misuse_raises_an_error_that_names_it() -> None:
    world = World()

    async def not_entered() -> None:
        async for _ in world.recover("a").stream(Source(["a"]).stream)():
            pass

    async def entered_twice() -> None:
        stream = world.recover("a").stream(Source(["a"]).stream)()
        async with stream:
            pass
        async with stream:
            pass

    for misuse in (not_entered, entered_twice):
        with pytest.raises(InvalidError, match="async with"):
            world.run(misuse())


@pytest.mark.parametrize(
    "options",
    [
        {"first": 0},
        {"idle": -1},
        {"total": float("nan")},
        {"first": "5"},
        {"idle": True},
        {"total": float("inf")},
        {"after_first": "again"},
        {"resume": len},
        {"resume": 5, "after_first": "continue"},
        {"resume": None, "after_first": "continue"},
    ],
)
def test_R71_bad_options_of_a_stream_fail_where_they_are_written(options: Any) -> None:
    with pytest.raises(InvalidError, match=f"stream.{next(iter(options))}"):
        recover("a").stream(Source(["a"]).stream, **options)


def test_R71_a_source_must_be_a_function() -> None:
    with pytest.raises(InvalidError, match="stream"):
        recover("a").stream(5)  # type: ignore[arg-type]


def test_R77_a_sign_of_life_resets_the_idle_limit_and_is_not_delivered() -> None:
    world = World()
    script = [ALIVE, 20.0, ALIVE, 20.0, ALIVE, 20.0, "a", 20.0, ALIVE, 20.0, "b"]
    got, error = collect(world, Source(script), STEADY, first=25, idle=25)
    assert (got, error) == (["a", "b"], None)


def test_R75_a_stream_that_breaks_after_signs_of_life_only_is_retried_invisibly() -> None:
    world = World()
    source = Source([ALIVE, ALIVE, reset()], ["a"])
    got, error = collect(world, source, STEADY)
    assert (got, error, source.opened) == (["a"], None, 2)


# --- memory ---


class Picture:
    """An item of a megabyte that can be watched."""

    def __init__(self) -> None:
        self.data = bytearray(1024 * 1024)


@pytest.mark.parametrize(
    "wrap",
    [lambda item: item, lambda item: {"images": [item]}, lambda item: SimpleNamespace(part=(item,))],
    ids=["itself", "in a document", "in an object"],
)
def test_FR15_large_items_are_not_all_kept(wrap: Any) -> None:
    alive: weakref.WeakSet[Picture] = weakref.WeakSet()
    most = 0

    async def pictures() -> Any:
        nonlocal most
        for _ in range(100):
            picture = Picture()
            alive.add(picture)
            yield wrap(picture)
            del picture
            most = max(most, len(alive))
        raise reset()

    world = World()

    async def main() -> Any:
        async with world.recover("a", STEADY).stream(pictures)() as stream:
            async for _ in stream:
                pass

    with pytest.raises(StreamCutError) as cut:
        world.run(main())
    partial = cut.value.partial
    assert (partial.complete, partial.truncated) == (100, True)
    assert 10 < len(partial.payload) < 20
    assert most < 20


def test_FR15_one_huge_item_is_not_kept_and_no_later_one_hides_the_gap() -> None:
    huge = b"x" * 64 * 1024 * 1024
    _, error = collect(World(), Source([{"n": 1}, huge, {"n": 3}, reset()]))
    assert error.fault.partial.payload == [{"n": 1}]
    assert (error.fault.partial.complete, error.fault.partial.truncated) == (3, True)


def test_FR15_thousands_of_small_events_are_kept() -> None:
    events = [{"id": f"chunk-{n}", "choices": [{"index": 0, "delta": {"content": f"word {n} "}}]} for n in range(5_000)]
    _, error = collect(World(), Source([*events, reset()]))
    assert error.fault.partial.payload == events
    assert not error.fault.partial.truncated


# --- two consumers ---


@pytest.mark.parametrize("recovers", [False, True])
def test_FR15_a_second_consumer_gets_a_typed_error_and_the_first_all_items(recovers: bool) -> None:
    world = World()
    source = Source(*([[1.0, reset()]] if recovers else []), [1.0, "a", 1.0, "b", 1.0, "c"])

    async def main() -> list[Any]:
        async with world.recover("a", STEADY).stream(source.stream)("hi") as stream:

            async def read(after: float) -> list[Any]:
                await asyncio.sleep(after)
                return [item async for item in stream]

            return await asyncio.gather(read(0), read(0.5), read(1.5), return_exceptions=True)

    first, *others = world.run(main())
    assert first == ["a", "b", "c"]
    for error in others:
        assert isinstance(error, InvalidError)
        assert "one consumer at a time" in str(error)
    assert source.closed == source.opened


def test_FR15_one_consumer_after_the_other_may_read() -> None:
    world = World()

    async def main() -> list[Any]:
        async with world.recover("a").stream(Source(["a", "b", "c"]).stream)("hi") as stream:
            first = await asyncio.create_task(anext(stream))  # type: ignore[arg-type]
            return [first, *[item async for item in stream]]

    assert world.run(main()) == ["a", "b", "c"]


def test_FR15_a_second_thread_gets_a_typed_error() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def items() -> Any:
        yield "a"
        begun.set()
        assert go_on.wait(10)
        yield "b"

    stream: BlockingStream[str] = BlockingStream(StreamOf(Plan("a", STEADY, runtime=World().runtime), items))
    with stream, ThreadPoolExecutor() as pool:
        first = pool.submit(list, stream)
        assert begun.wait(10)
        with pytest.raises(InvalidError, match="one consumer at a time"):
            next(stream)
        go_on.set()
        assert first.result() == ["a", "b"]
