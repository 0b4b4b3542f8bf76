"""The stream machine with a dialect: what is held back, when a stream is complete, and which failures surface how."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from recover_kit import LOOSE, World, assert_places_free, reset

from holdfast import Budget, Fault, HoldfastError, Policy, StreamCutError, fault_of
from holdfast.events import AttemptStarted, Cancelled, Failed, Recovered
from holdfast.runtime.operation.adapter import Adapter
from holdfast.runtime.operation.plan import Plan
from holdfast.runtime.streams.flow import Ending, Opening, StreamDialect, Used
from holdfast.runtime.streams.stream import BlockingStream, Stream, StreamOf

STEADY = Policy(circuit=LOOSE, concurrency=1)


class Steers(Exception):
    """An exception that steers a framework."""


class Framework(Adapter):
    passing = (Steers,)


def reported(item: Any, source: Any) -> Exception | None:
    return item if isinstance(item, Exception) else None


WORDS = StreamDialect(
    opens=lambda item: item in ("begin", "role"),
    fragment=lambda item: item == "call",
    ends=lambda item: item == "end",
    failure=reported,
    used=lambda item: Used("m", {"input_tokens": 1, "output_tokens": item}) if isinstance(item, int) else None,
    timeout_is_silence=True,
)


class Scripts:
    """Plays one script for each source; an exception with `raises` is raised, any other item is yielded."""

    def __init__(self, *scripts: list[Any]) -> None:
        self.scripts = list(scripts)
        self.opened = self.closed = 0

    def play(self, *_: Any) -> Any:
        script = self.scripts[min(self.opened, len(self.scripts) - 1)]
        self.opened += 1
        try:
            for step in script:
                if isinstance(step, Raise):
                    raise step.error
                yield step
        finally:
            self.closed += 1

    async def play_async(self, *args: Any) -> Any:
        for item in self.play(*args):
            yield item


class Raise:
    def __init__(self, error: BaseException) -> None:
        self.error = error


class Read:
    """A stream that is read to its end, in a thread or in a task."""

    def __init__(self, is_async: bool, *scripts: list[Any], dialect: StreamDialect = WORDS, **options: Any) -> None:
        self.world, self.scripts, self.items = World(), Scripts(*scripts), []
        self.error: BaseException | None = None
        plan = Plan("a", options.pop("policy", STEADY), runtime=self.world.runtime)
        fn = self.scripts.play_async if is_async else self.scripts.play
        if options.get("after_first") == "continue":
            options["resume"] = fn
        of: StreamOf[Any, Any] = StreamOf(plan, fn, dialect=dialect, adapter=Framework(), **options)
        try:
            if is_async:
                self.world.run(self._read_async(of))
            else:
                with BlockingStream[Any](of) as stream:
                    self.items.extend(stream)
        except Exception as error:
            self.error = error
        assert self.scripts.opened == self.scripts.closed
        assert_places_free(self.world.state("provider:a"))

    async def _read_async(self, of: StreamOf[Any, Any]) -> None:
        async with Stream[Any](of) as stream:
            async for item in stream:
                self.items.append(item)

    @property
    def counts(self) -> tuple[int, int, int]:
        metrics = self.world.state("provider:a").metrics(self.world.now)
        return metrics.successes, metrics.failures, metrics.ignored


both = pytest.mark.parametrize("is_async", [False, True], ids=["thread", "task"])


@both
@pytest.mark.parametrize(
    "early",
    [["begin", "role", Raise(reset())], ["begin", reset()], ["begin"], []],
    ids=["raised", "reported", "ended", "empty"],
)
def test_a_failure_before_the_first_content_stays_unseen(is_async: bool, early: list[Any]) -> None:
    read = Read(is_async, early, ["begin", "a", "end"])
    assert (read.items, read.error) == (["begin", "a", "end"], None)
    assert read.counts == (1, 1, 0)
    assert len(read.world.of(AttemptStarted)) == 2
    assert len(read.world.of(Recovered)) == 1


@both
@pytest.mark.parametrize("late", [["begin", "a", Raise(reset())], ["begin", "a"]], ids=["raised", "ended"])
def test_a_failure_after_the_first_content_is_a_cut_with_the_items(is_async: bool, late: list[Any]) -> None:
    read = Read(is_async, late)
    assert isinstance(read.error, StreamCutError)
    assert read.error.partial.payload == "begina"
    assert read.counts == (0, 1, 0)
    assert len(read.world.of(Failed)) == 1


@both
def test_a_timeout_in_the_middle_is_silence(is_async: bool) -> None:
    read = Read(is_async, ["a", Raise(HoldfastError(Fault.of("PROVIDER_TIMEOUT")))])
    assert read.error is not None
    assert fault_of(read.error).code == "PROVIDER_STREAM_STALLED"


@both
def test_a_reported_failure_after_the_first_content_is_handed_on_and_counts_at_the_end(is_async: bool) -> None:
    failure = reset()
    read = Read(is_async, ["a", failure, "end"])
    assert (read.items, read.error) == (["a", failure, "end"], None)
    assert read.counts == (0, 1, 0)


@both
def test_a_dialect_may_raise_reported_failures_also_after_the_first_content(is_async: bool) -> None:
    dialect = StreamDialect(failure=reported, raises_failures=True)
    read = Read(is_async, ["a", reset()], dialect=dialect)
    assert (read.items, type(read.error)) == (["a"], StreamCutError)


@both
@pytest.mark.parametrize("mode", ["restart", "continue"])
def test_after_a_part_of_a_tool_call_nothing_is_resumed(is_async: bool, mode: Any) -> None:
    read = Read(is_async, ["call", Raise(reset())], ["b", "end"], after_first=mode)
    assert (read.items, type(read.error), read.scripts.opened) == (["call"], StreamCutError, 1)
    resumed = Read(is_async, ["a", Raise(reset())], ["b", "end"], after_first=mode)
    assert (resumed.items, resumed.error) == (["a", "b", "end"], None)


@both
def test_an_exception_that_steers_a_framework_is_no_failure(is_async: bool) -> None:
    steers = Steers()
    before = Read(is_async, ["begin", Raise(steers)])
    assert (before.error, before.counts, before.scripts.opened) == (steers, (0, 0, 1), 1)
    after = Read(is_async, ["a", Raise(steers)])
    assert (after.error, after.counts) == (steers, (1, 0, 0))
    assert not after.world.of(Failed)


@both
def test_the_usage_that_items_report_is_charged(is_async: bool) -> None:
    with Budget(tokens=100) as budget:
        Read(is_async, ["a", 5, 9, "end"])
    assert budget.left().tokens == 90


# --- streams that an SDK's own object reads ---


def started(script: list[Any], *more: list[Any]) -> tuple[World, Scripts, BlockingStream[Any]]:
    world, scripts = World(), Scripts(script, *more)
    live: BlockingStream[Any] = BlockingStream(
        StreamOf(Plan("a", STEADY, runtime=world.runtime), scripts.play, dialect=WORDS)
    )
    live.start()
    return world, scripts, live


def test_start_reads_up_to_the_first_content() -> None:
    world, scripts, live = started([Raise(reset())], ["begin", "a", "b", "end"])
    assert scripts.opened == 2
    assert list(live) == ["begin", "a", "b", "end"]
    assert world.state("provider:a").metrics(world.now).successes == 1
    assert_places_free(world.state("provider:a"))


# --- the place of a started stream ---


def running(world: World) -> int:
    limiter = world.state("provider:a").limiter
    assert limiter is not None
    assert limiter._places is not None
    return limiter._places.running


@pytest.mark.parametrize("leave", ["read", "last item", "abandon", "source_closed", "drop", "cycle", "break"])
def test_a_started_stream_holds_its_place_until_it_is_over(leave: str) -> None:
    world, _, live = started(["a", "b", Raise(reset()) if leave == "break" else "end"])
    assert running(world) == 1
    assert next(live) == "a"
    assert running(world) == 1
    if leave == "read":
        list(live)
    elif leave == "last item":
        # Many consumers stop here and keep the stream.
        assert [next(live), next(live)] == ["b", "end"]
    elif leave == "break":
        with pytest.raises(StreamCutError):
            list(live)
    elif leave == "cycle":
        live.myself = live  # type: ignore[attr-defined]
        del live
        gc.collect()
    elif leave == "drop":
        del live
    else:
        getattr(live, leave)()
    assert_places_free(world.state("provider:a"))


def test_a_stream_that_ended_while_it_started_holds_no_place() -> None:
    world, _, _live = started(["end"])
    assert_places_free(world.state("provider:a"))


def test_the_garbage_collector_frees_a_place_while_this_thread_holds_the_lock() -> None:
    world, _, live = started(["a", "b", "end"])
    limiter = world.state("provider:a").limiter
    assert limiter is not None
    with limiter._after, limiter._lock:
        del live
    assert_places_free(world.state("provider:a"))


class Lines:
    """A source of three items, one a second."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.running = self.most = 0

    async def items(self) -> AsyncIterator[str]:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            for item in ("a", "b", "end"):
                await asyncio.sleep(1)
                yield item
        finally:
            self.running -= 1

    async def answer(self) -> str:
        await asyncio.sleep(1)
        return "ok"

    def stream(self, policy: Policy) -> Stream[str]:
        plan = Plan("a", policy, runtime=self.world.runtime)
        return Stream(StreamOf(plan, self.items, dialect=WORDS))


TWO = Policy(circuit=LOOSE, concurrency=2)


def test_no_more_started_streams_run_than_there_are_places() -> None:
    world = World()
    lines = Lines(world)

    async def read() -> list[str]:
        live = lines.stream(TWO)
        await live.start()
        return [item async for item in live]

    async def main() -> Any:
        return await asyncio.gather(*(read() for _ in range(6)))

    assert world.run(main()) == [["a", "b", "end"]] * 6
    assert (lines.most, world.now) == (2, 9)
    assert_places_free(world.state("provider:a"))


@pytest.mark.parametrize("form", ["started", "own"])
@pytest.mark.parametrize("inner", ["call", "stream", "block"])
def test_a_reader_does_not_wait_for_the_place_of_its_own_stream(form: str, inner: str) -> None:
    world = World()
    lines = Lines(world)
    recovery = world.recover("a", STEADY)

    async def ask() -> None:
        if inner == "call":
            assert await recovery.call(lines.answer) == "ok"
        elif inner == "block":
            async for attempt in recovery:
                async with attempt:
                    await lines.answer()
        else:
            async with recovery.stream(lines.items)() as stream:
                assert [item async for item in stream]

    async def main() -> list[str]:
        got = []
        if form == "own":
            async with recovery.stream(lines.items)() as stream:
                async for item in stream:
                    await ask()
                    got.append(item)
        else:
            live = lines.stream(STEADY)
            await live.start()
            async for item in live:
                await ask()
                got.append(item)
        return got

    async def other() -> float:
        await asyncio.sleep(0.5)
        await recovery.call(lines.answer)
        return world.now

    async def both() -> Any:
        return await asyncio.gather(main(), other())

    got, at = world.run(both())
    assert got == ["a", "b", "end"]
    assert at > 4, "a call of another task waits until the stream has ended"
    assert_places_free(world.state("provider:a"))


def test_a_task_that_only_reads_a_stream_does_not_wait_for_it_either() -> None:
    """A web framework opens a stream in one task and reads it in another."""
    world = World()
    lines = Lines(world)
    recovery = world.recover("a", STEADY)

    async def read(live: Stream[str]) -> list[str]:
        return [item + await recovery.call(lines.answer) async for item in live]

    async def main() -> list[str]:
        live = lines.stream(STEADY)
        await live.start()
        return await asyncio.create_task(read(live))

    assert world.run(main()) == ["aok", "bok", "endok"]
    assert_places_free(world.state("provider:a"))


@pytest.mark.parametrize("in_threads", [False, True])
@pytest.mark.parametrize(("places", "most"), [(1, 1), (4, 3)])
def test_tasks_that_a_reader_waits_for_go_on_although_its_stream_holds_the_place(
    places: int, most: int, *, in_threads: bool
) -> None:
    """Frameworks make calls in tasks of their own. With one place only, one of them at a time goes beyond it."""
    world = World()
    lines = Lines(world)
    recovery = world.recover("a", Policy(circuit=LOOSE, concurrency=places))
    running_now = most_seen = 0

    async def answer() -> str:
        nonlocal running_now, most_seen
        running_now += 1
        most_seen = max(most_seen, running_now)
        await asyncio.sleep(1)
        running_now -= 1
        return "ok"

    async def ask() -> str:
        if in_threads:
            return await asyncio.to_thread(recovery.call, lambda: "ok")
        return str(await recovery.call(answer))

    async def main() -> Any:
        live = lines.stream(Policy(circuit=LOOSE, concurrency=places))
        await live.start()
        return [await asyncio.gather(*(ask() for _ in range(6))) async for _ in live]

    assert world.run(main()) == [["ok"] * 6] * 3
    assert in_threads or most_seen in (most, most + 1)  # after its last item the stream holds no place
    assert_places_free(world.state("provider:a"))


def test_a_call_that_waits_goes_on_when_streams_come_to_hold_all_places() -> None:
    world = World()
    lines = Lines(world)
    recovery = world.recover("a", TWO)

    async def other() -> None:
        """Holds the second place with a call, and then with a stream that is read for long."""
        await recovery.call(lines.answer)
        live = lines.stream(TWO)
        await live.start()
        async for _ in live:
            await asyncio.sleep(50)

    async def main() -> float:
        live = lines.stream(TWO)
        await live.start()
        beside = asyncio.create_task(other())
        await asyncio.sleep(0.1)
        await asyncio.gather(*(recovery.call(lines.answer) for _ in range(3)))
        at = world.now
        await beside
        return at

    assert world.run(main()) < 15
    assert_places_free(world.state("provider:a"))


def test_a_thread_does_not_wait_for_the_place_of_its_own_stream() -> None:
    world, _, live = started(["a", "b", "end"])
    recovery = world.recover("a", STEADY)
    assert [(item, recovery.call(lambda: "ok")) for item in live] == [("a", "ok"), ("b", "ok"), ("end", "ok")]
    assert_places_free(world.state("provider:a"))


def test_a_reader_that_is_cancelled_frees_the_place() -> None:
    world = World()
    lines = Lines(world)

    async def read() -> None:
        live = lines.stream(STEADY)
        await live.start()
        async for _ in live:
            await asyncio.sleep(100)

    async def main() -> None:
        task = asyncio.create_task(read())
        await asyncio.sleep(5)
        assert running(world) == 1
        task.cancel()
        await asyncio.wait([task])
        del task
        gc.collect()
        assert await world.recover("a", STEADY).call(lines.answer) == "ok"

    world.run(main())
    assert_places_free(world.state("provider:a"))


def test_a_reader_that_nobody_holds_any_more_frees_the_place() -> None:
    """A task that waits for what only it holds is collected, with its stream."""
    world = World()
    lines = Lines(world)

    async def read() -> None:
        live = lines.stream(STEADY)
        await live.start()
        never = asyncio.get_running_loop().create_future()
        async for _ in live:
            await never

    async def main() -> None:
        task = asyncio.create_task(read())
        await asyncio.sleep(5)
        task._log_destroy_pending = False  # type: ignore[attr-defined] # the warning is not the point
        del task
        gc.collect()
        assert await world.recover("a", STEADY).call(lines.answer) == "ok"

    world.run(main())
    assert_places_free(world.state("provider:a"))


def test_a_stream_whose_source_ends_while_it_starts_is_complete() -> None:
    world, _, live = started(["end"])
    assert list(live) == ["end"]
    assert world.state("provider:a").metrics(world.now).successes == 1


@pytest.mark.parametrize("leave", ["abandon", "source_closed", "drop"])
def test_a_started_stream_that_is_left_is_settled_once_and_counts_nothing(leave: str) -> None:
    world, _, live = started(["a", "b", "end"])
    assert next(live) == "a"
    if leave == "drop":
        del live
        gc.collect()
    else:
        getattr(live, leave)()
        getattr(live, leave)()
        assert list(live) == []
    metrics = world.state("provider:a").metrics(world.now)
    assert (metrics.successes, metrics.failures, metrics.ignored) == (0, 0, 1)
    assert len(world.of(Cancelled)) == 1


@pytest.mark.parametrize("script", [["a", "end"], ["end"]], ids=["later", "at once"])
def test_a_started_stream_counts_as_good_at_its_last_item(script: list[Any]) -> None:
    """Many consumers stop there, and some libraries keep the stream alive. Nothing waits for the garbage collector."""
    world, _, live = started(script)
    assert next(item for item in live if item == "end") == "end"
    metrics = world.state("provider:a").metrics(world.now)
    assert (metrics.successes, metrics.failures, metrics.ignored) == (1, 0, 0)
    live.abandon()
    assert world.state("provider:a").metrics(world.now).successes == 1
    assert not world.of(Cancelled)


def test_a_failure_after_the_last_item_surfaces_and_is_not_counted() -> None:
    world, _, live = started(["a", "end", Raise(reset())])
    items: list[Any] = []
    with pytest.raises(StreamCutError) as cut:
        items.extend(live)
    assert cut.value.partial is not None
    assert cut.value.partial.complete == 2
    metrics = world.state("provider:a").metrics(world.now)
    assert (metrics.successes, metrics.failures) == (1, 0)


def test_a_budget_waits_for_the_usage_that_comes_after_the_last_item() -> None:
    with Budget(tokens=100) as budget:
        _, _, live = started(["a", "end", 9])
        assert list(live) == ["a", "end", 9]
    assert budget.left().tokens < 100


@both
def test_leaving_a_complete_stream_counts_as_good(is_async: bool) -> None:
    world, scripts = World(), Scripts(["a", "end", "more"])
    plan = Plan("a", STEADY, runtime=world.runtime)

    async def read() -> None:
        async with Stream[Any](StreamOf(plan, scripts.play_async, dialect=WORDS)) as stream:
            async for item in stream:
                if item == "end":
                    break

    if is_async:
        world.run(read())
    else:
        with BlockingStream[Any](StreamOf(plan, scripts.play, dialect=WORDS)) as stream:
            next(item for item in stream if item == "end")
    assert world.state("provider:a").metrics(world.now).successes == 1


def test_a_start_that_fails_for_good_raises_the_last_error() -> None:
    last = reset()
    with pytest.raises(ConnectionResetError) as failed:
        started([Raise(reset())], [Raise(reset())], [Raise(last)])
    assert failed.value is last


SHOWN = msgspec.structs.replace(WORDS, announces=lambda item: Opening(item, binds=item == "role"))


def opened(*scripts: list[Any]) -> tuple[World, Scripts, BlockingStream[Any]]:
    world, script = World(), Scripts(*scripts)
    of = StreamOf(Plan("a", STEADY, runtime=world.runtime), script.play, dialect=SHOWN)
    live = BlockingStream[Any](of)
    live.open()
    return world, script, live


def test_open_reads_nothing_and_each_item_is_handed_on_when_it_comes() -> None:
    read: list[str] = []

    def note() -> Any:
        for item in ("begin", "role", "a", "end"):
            read.append(item)
            yield item

    live = BlockingStream[Any](StreamOf(Plan("a", STEADY, runtime=World().runtime), note, dialect=SHOWN))
    live.open()
    assert read == []
    for number, item in enumerate(live, 1):
        assert (read[-1], len(read)) == (item, number)


@pytest.mark.parametrize(
    "early",
    [["begin"], ["begin", "role"], ["begin", Raise(reset())], ["begin", "role", reset()], []],
    ids=["begun", "more", "raised", "reported", "nothing"],
)
def test_an_opened_stream_hands_its_opening_on_once(early: list[Any]) -> None:
    world, scripts, live = opened(early, early, ["begin", "role", "a", "end"])
    assert list(live) == ["begin", "role", "a", "end"]
    assert (scripts.opened, len(world.of(Recovered))) == (3, 1)


def test_an_answer_may_leave_out_what_binds_nothing() -> None:
    _, scripts, live = opened(["begin", "begin"], ["role", "begin", "a", "end"])
    assert list(live) == ["begin", "begin", "role", "a", "end"]
    assert scripts.opened == 2


@pytest.mark.parametrize("later", [["begin", "a", "end"], ["a", "end"]])
def test_an_answer_without_what_was_announced_is_a_cut(later: list[Any]) -> None:
    world, scripts, live = opened(["begin", "role", Raise(reset())], later)
    items: list[Any] = []
    with pytest.raises(StreamCutError, match="begins otherwise") as cut:
        for item in live:
            items.append(item)  # noqa: PERF402 - the items before a failure matter
    assert items == ["begin", "role"]
    assert cut.value.partial is not None
    assert cut.value.partial.complete == 2
    assert (scripts.opened, len(world.of(Failed))) == (2, 1)


def test_an_end_is_complete_only_with_its_last_item() -> None:
    for items in ([], ["a"]):
        ending = Ending(WORDS)
        for item in items:
            ending.note(item)
        with pytest.raises(HoldfastError, match="ended before its last event"):
            ending.check()
    complete = Ending(WORDS)
    complete.note("end")
    complete.check()
    Ending(StreamDialect()).check()


def test_a_later_report_of_usage_replaces_the_counts_that_it_has() -> None:
    first = Used("m", {"input_tokens": 3, "output_tokens": 1})
    assert first.then(Used(None, {"input_tokens": None, "output_tokens": 9})) == Used(
        "m", {"input_tokens": 3, "output_tokens": 9}
    )


@pytest.mark.parametrize("is_async", [False, True], ids=["thread", "task"])
@pytest.mark.parametrize(
    "items", [["begin", "a"], ["begin", ConnectionResetError("reported")], []], ids=["no end", "a failure", "no item"]
)
def test_while_recovery_is_off_items_pass_untouched(is_async: bool, items: list[Any]) -> None:
    world, scripts = World(enabled=False), Scripts(items)
    plan = Plan("provider:x", STEADY, runtime=world.runtime)

    async def read() -> list[Any]:
        async with Stream[Any](StreamOf(plan, scripts.play_async, dialect=WORDS)) as stream:
            return [item async for item in stream]

    if is_async:
        assert world.run(read()) == items
    else:
        with BlockingStream[Any](StreamOf(plan, scripts.play, dialect=WORDS)) as stream:
            assert list(stream) == items
    assert len(world.events) == 0


def test_while_recovery_is_off_no_item_is_held_back() -> None:
    world = World(enabled=False)
    plan = Plan("provider:x", STEADY, runtime=world.runtime)
    with BlockingStream[Any](StreamOf(plan, Scripts(["begin", Raise(reset())]).play, dialect=WORDS)) as stream:
        assert next(stream) == "begin"
        with pytest.raises(ConnectionResetError):
            next(stream)
