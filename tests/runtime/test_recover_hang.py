"""Streams that hang: a silence far longer than the gaps of the streams before is noticed long before the client's own limit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from recover_kit import World

from holdfast import PATIENT, Policy, Quota, StreamCutError
from holdfast.events import Retry, StreamResumed
from holdfast.policies.hang import ENOUGH, LEAST_S

FOREVER = 10_000.0


class Tokens:
    """Streams of tokens. Each stream is given the seconds before each of its tokens."""

    def __init__(self, *streams: list[float]) -> None:
        self.streams = list(streams)
        self.opened = 0

    async def read(self) -> AsyncIterator[str]:
        gaps = self.streams[min(self.opened, len(self.streams) - 1)]
        self.opened += 1
        for number, gap in enumerate(gaps):
            await asyncio.sleep(gap)
            yield str(number)


USUAL = [[0.5, 0.1, 0.2]] * ENOUGH


def play(
    tokens: Tokens, policy: Policy | None = None, *, after: int = ENOUGH, **options: Any
) -> tuple[World, Any, Any]:
    """Read `after` usual streams and one more; return the world, what the last one yielded, and its error."""
    world = World(defaults=True)
    effect = options.pop("effect", None)
    live = world.recover("claude", policy, effect=effect).stream(tokens.read, **options)

    async def read() -> list[str]:
        async with live() as stream:
            return [item async for item in stream]

    async def all_of_them() -> tuple[Any, Any, float]:
        for _ in range(after):
            await read()
        began = world.now
        try:
            return await read(), None, world.now - began
        except Exception as error:
            return None, error, world.now - began

    got, error, world.took = world.run(all_of_them())  # type: ignore[attr-defined]
    return world, got, error


def test_a_stream_that_falls_silent_ends_long_before_60_s_with_what_arrived() -> None:
    world, _, error = play(Tokens(*USUAL, [0.5, 0.1, FOREVER]))
    assert isinstance(error, StreamCutError)
    assert error.fault.code == "PROVIDER_STREAM_STALLED"
    assert error.fault.message == "claude sent nothing for 10 s, far longer than its earlier streams"
    assert error.partial.payload == "01"
    assert world.took == pytest.approx(0.6 + LEAST_S)


def test_it_begins_again_where_the_caller_allows_it() -> None:
    tokens = Tokens(*USUAL, [0.5, 0.1, FOREVER], [0.5, 0.1, 0.2])
    world, got, error = play(tokens, after_first="restart")
    assert error is None
    assert got == ["0", "1", "0", "1", "2"]
    assert [event.how for event in world.of(StreamResumed)] == ["restart"]
    assert world.took < 15


def test_the_new_start_is_charged_to_the_retry_share() -> None:
    tokens = Tokens(*USUAL, [0.5, 0.1, FOREVER], [0.5, 0.1, 0.2])
    none_left = Policy(retry_quota=Quota(share=0.001, floor=0))
    world, _, error = play(tokens, none_left, after_first="restart")
    assert isinstance(error, StreamCutError)
    assert not world.of(Retry)


def test_nothing_is_stopped_before_enough_streams_are_known() -> None:
    _, got, error = play(Tokens(*USUAL[1:], [0.5, 0.1, 59.0]), after=ENOUGH - 1)
    assert error is None
    assert got == ["0", "1", "2"]


def test_the_longest_gap_of_the_streams_before_counts() -> None:
    _, got, _ = play(Tokens(*USUAL[1:], [0.5, 14.0, 0.1], [0.5, 0.1, 50.0]))
    assert got == ["0", "1", "2"], "four times 14 s is 56 s"


def test_a_hundred_gaps_of_one_stream_are_one_sample() -> None:
    _, got, _ = play(Tokens([0.1] * 100, [0.1, 50.0]), after=1)
    assert got == ["0", "1"]


@pytest.mark.parametrize("given", [{"idle": 30.0}, {"policy": Policy(timeout=30.0)}])
def test_a_limit_that_somebody_gave_holds_exactly(given: dict[str, Any]) -> None:
    world, _, error = play(Tokens(*USUAL, [0.5, 0.1, FOREVER]), **given)
    assert isinstance(error, StreamCutError)
    assert error.fault.message == "claude sent nothing for 30 s"
    assert world.took == pytest.approx(30.6)


def test_no_limit_means_no_limit() -> None:
    _, got, error = play(Tokens(*USUAL, [0.5, 0.1, 900.0]), Policy(timeout=None))
    assert error is None
    assert got == ["0", "1", "2"]


def test_what_must_not_be_stopped_is_not() -> None:
    _, got, error = play(Tokens(*USUAL, [0.5, 0.1, 59.0]), effect="unsafe")
    assert error is None
    assert got == ["0", "1", "2"]


def test_the_first_item_is_watched_too_and_comes_from_another_attempt() -> None:
    world, got, error = play(Tokens(*USUAL, [FOREVER], [0.5, 0.1]), PATIENT)
    assert error is None
    assert got == ["0", "1"]
    assert world.took < 15


def test_the_consumers_own_time_is_no_gap() -> None:
    """A consumer that takes a minute for each item teaches nothing about the source, and is never stopped."""
    world = World(defaults=True)
    live = world.recover("claude").stream(Tokens([0.5, 0.1, 0.2]).read)

    async def read(pause: float) -> int:
        count = 0
        async with live() as stream:
            async for _ in stream:
                count += 1
                await asyncio.sleep(pause)
        return count

    async def all_of_them() -> list[int]:
        return [await read(60.0) for _ in range(ENOUGH + 5)]

    assert set(world.run(all_of_them())) == {3}
    assert world.state("provider:claude").hangs_after("gap") == LEAST_S


def test_silences_in_a_row_double_the_limit() -> None:
    tokens = Tokens(*USUAL, [0.5, 0.1, FOREVER], [0.5, 0.1, 15.0, 0.1])
    _, got, error = play(tokens, after_first="restart")
    assert error is None
    assert got == ["0", "1", "0", "1", "2", "3"], "the service may have become slower"
