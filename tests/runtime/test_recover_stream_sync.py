"""Streams of plain iterators: `recover(…).stream(generator)` with `with` and `for`, read in the caller's thread."""

from __future__ import annotations

from typing import Any

import pytest
from recover_kit import LOOSE, World, reset

from holdfast import InvalidError, Policy, StreamCutError, recover
from holdfast.events import Fallback, Recovered
from holdfast.runtime.operation.plan import Plan
from holdfast.runtime.recover import Recovery

STEADY = Policy(circuit=LOOSE)


class Play:
    """A generator function that plays one script at each call, and counts how many were closed."""

    def __init__(self, *scripts: list[Any]) -> None:
        self.scripts = list(scripts)
        self.opened = self.closed = 0

    def tokens(self, *args: Any) -> Any:
        script = self.scripts[min(self.opened, len(self.scripts) - 1)]
        self.opened += 1
        try:
            for step in script:
                if isinstance(step, BaseException):
                    raise step
                yield step
        finally:
            self.closed += 1


def recovery(world: World) -> Recovery:
    return Recovery(Plan("a", STEADY, runtime=world.runtime))


def read(live: Any, *args: Any) -> list[Any]:
    with live(*args) as stream:
        return list(stream)


def test_FI9_a_generator_recovers_before_its_first_item() -> None:
    world, play = World(), Play([reset()], [reset()], ["a", "b"])
    assert read(recovery(world).stream(play.tokens), "hi") == ["a", "b"]
    assert (play.opened, play.closed, len(world.of(Recovered))) == (3, 3, 1)


def test_FI9_a_failure_after_it_is_a_cut_with_what_arrived() -> None:
    world, play = World(), Play(["a", reset()])
    with pytest.raises(StreamCutError) as cut:
        read(recovery(world).stream(play.tokens))
    assert cut.value.partial is not None
    assert cut.value.partial.payload == "a"


def test_FI9_reading_without_with_says_to_write_with() -> None:
    world, play = World(), Play(["a"])
    with pytest.raises(InvalidError, match=r"stream of .*tokens: expected `with` around it, then `for`"):
        list(recovery(world).stream(play.tokens)())
    assert play.opened == 0


def test_FI9_a_function_that_returns_an_iterator_works_too() -> None:
    world, lines = World(), [["a"], ["b"]]
    assert read(recovery(world).stream(lambda: iter(lines))) == [["a"], ["b"]]


def test_FI9_another_generator_answers_when_the_first_has_failed() -> None:
    world, down, up = World(), Play([reset()]), Play(["c"])
    assert read(recovery(world).stream(down.tokens).fallback(up.tokens), "hi") == ["c"]
    assert (down.opened, up.opened, len(world.of(Fallback))) == (3, 1, 1)


def test_FI9_restart_and_continue_work_in_a_thread() -> None:
    world, again = World(), Play(["a", reset()], ["a", "b"])
    with recovery(world).stream(again.tokens, after_first="restart")() as stream:
        assert (list(stream), stream.restarts) == (["a", "a", "b"], 1)
    rest = Play(["a", reset()], ["b"])
    live = recovery(world).stream(rest.tokens, after_first="continue", resume=lambda partial: rest.tokens())
    assert read(live) == ["a", "b"]


def test_FI9_leaving_early_closes_the_generator_and_counts_nothing() -> None:
    world, play = World(), Play(["a", "b"])
    with recovery(world).stream(play.tokens)() as stream:
        assert next(stream) == "a"
    assert play.closed == 1
    metrics = world.state("provider:a").metrics(world.now)
    assert (metrics.successes, metrics.failures, metrics.ignored) == (0, 0, 1)


async def letters() -> Any:
    yield "a"


def test_FI9_what_cannot_work_is_refused_with_words() -> None:
    world, play = World(), Play(["a"])
    live = recovery(world).stream(play.tokens)

    async def in_a_task(stream: Any) -> None:
        async with stream as items:
            async for _ in items:
                pass

    with pytest.raises(InvalidError, match="`with` around a stream of a generator"):
        world.run(in_a_task(live()))
    with pytest.raises(InvalidError, match="`async with` around a stream of an async function"):
        recovery(world).stream(letters)().__enter__()
    with pytest.raises(InvalidError, match="write `with` instead"):
        world.run(in_a_task(recovery(world).stream(lambda: iter("ab"))()))
    with pytest.raises(InvalidError, match="write `async with` instead"):
        read(recovery(world).stream(lambda: letters()))  # noqa: PLW0108 - a plain function is the case
    for limits in ({"first": 1}, {"idle": 1}, {"total": 1}):
        with pytest.raises(InvalidError, match="nothing can interrupt a thread"):
            recovery(world).stream(play.tokens, **limits)  # type: ignore[call-overload]
        with pytest.raises(InvalidError, match="nothing can interrupt a thread"):
            recovery(world).stream(lambda: iter("ab"), **limits)().__enter__()  # type: ignore[call-overload]
    with pytest.raises(InvalidError, match="of the same kind"):
        recover("a").stream(play.tokens).fallback(letters)
    assert play.opened == 0
