"""Worlds drawn at random: a named limit is kept to 0.1 s, and without one every answer that the bare SDK gets is got.

Each world is a service with delays, failures, hangs and gaps, a door (call, stream, helper, nested in a function, in a block or in
another stream), sync or async, and limits that somebody named or not. The twin plays the same script with the bare SDK.
"""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

import pytest
from clients_forms import FORMS
from clients_kit import REQUEST, message
from test_clients_named_limits import HOURS, World, event, words

from holdfast import Budget, DeadlineError, Policy, recover

WORLDS = int(os.environ.get("HOLDFAST_LIMIT_WORLDS", "100"))
DOORS = ("plain", "nested", "block", "twice")
CALL, STREAM = FORMS["messages"], FORMS["messages, streamed"]


def seconds(rng: random.Random) -> float:
    """Seconds with a heavy tail: mostly short, sometimes minutes."""
    return round(rng.choice((rng.uniform(0.1, 3), rng.uniform(3, 70), rng.uniform(60, 590))), 1)


class Drawn:
    """One world."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.is_async = rng.random() < 0.5
        self.is_stream = rng.random() < 0.6
        self.helper = self.is_stream and rng.random() < 0.4
        self.door = rng.choice(DOORS)
        self.limit = rng.choice((None, None, "deadline", "budget", "outer"))
        if self.door == "plain" and self.limit == "outer":
            self.limit = "budget"
        self.named = round(rng.uniform(5, 200), 1)
        self.reader = rng.choice((0.0, 0.0, 0.0, round(rng.uniform(1, 30), 1)))
        self.script = [self._failure(rng) for _ in range(rng.choice((0, 0, 1, 1, 2)))] + [self._answer(rng)]

    def _failure(self, rng: random.Random) -> tuple[float, Any]:
        kind = rng.choice(("status", "hang", "late status"))
        if kind == "hang":
            return HOURS, 200
        return (seconds(rng) if kind == "late status" else 0.5), rng.choice((500, 503, 529))

    def _answer(self, rng: random.Random) -> tuple[float, Any]:
        if not self.is_stream:
            return seconds(rng), message()
        gaps = [seconds(rng) for _ in range(rng.randint(1, 6))]
        pieces = [(0.2, event(STREAM, "start")), *[(gap, event(STREAM, "word")) for gap in gaps]]
        return seconds(rng), [*pieces, *words(STREAM, 0, 0.0)[1:]]

    @property
    def form(self) -> Any:
        return STREAM if self.is_stream else CALL

    def __repr__(self) -> str:
        return f"Drawn({vars(self)})"


class Player(World):
    """Plays a world through its door."""

    def __init__(self, drawn: Drawn) -> None:
        policy = {"policy": Policy(deadline=drawn.named)} if drawn.limit == "deadline" else {}
        super().__init__(drawn.form, *drawn.script, is_async=drawn.is_async, **policy)
        self.drawn = drawn
        self.reader = drawn.reader

    async def _once(self, client: Any) -> str:
        if not self.drawn.is_stream:
            return str((await self.form.begin(client)).content[0].text)
        opened = client.messages.stream(**REQUEST) if self.drawn.helper else await self.form.begin(client)
        count = 0
        async with opened as stream:
            async for _ in stream:
                count += 1
                await asyncio.sleep(self.reader)
        return "streamed"

    def _once_sync(self, client: Any) -> str:
        if not self.drawn.is_stream:
            return str(self.form.begin(client).content[0].text)
        opened = client.messages.stream(**REQUEST) if self.drawn.helper else self.form.begin(client)
        with opened as stream:
            for _ in stream:
                self.clock.sleep(self.reader)
        return "streamed"

    async def _through_door(self) -> str:
        door, outer = self.drawn.door, self._outer()

        async def once() -> str:
            return await self._once(self.client)

        if door == "plain":
            return await once()
        if door == "block":
            got = ""
            async for attempt in recover("outer", outer, runtime=self.runtime):
                async with attempt:
                    got = await once()
            return got
        recovered = recover("outer", outer, runtime=self.runtime)
        if door == "nested":
            return await recovered.call(once)
        return await recovered.call(lambda: recover("middle", runtime=self.runtime).call(once))

    def _through_door_sync(self) -> str:
        door, outer = self.drawn.door, self._outer()

        def once() -> str:
            return self._once_sync(self.client)

        if door == "plain":
            return once()
        if door == "block":
            got = ""
            for attempt in recover("outer", outer, runtime=self.runtime):
                with attempt:
                    got = once()
            return got
        recovered = recover("outer", outer, runtime=self.runtime)
        if door == "nested":
            return recovered.call(once)
        return recovered.call(lambda: recover("middle", runtime=self.runtime).call(once))

    def _outer(self) -> Policy | None:
        return Policy(timeout=None, deadline=self.drawn.named) if self.drawn.limit == "outer" else None

    def with_holdfast(self) -> Any:
        async def doing() -> str:
            if self.drawn.limit == "budget":
                with Budget(seconds=self.drawn.named, runtime=self.runtime):
                    return await self._through_door()
            return await self._through_door()

        def blocking() -> str:
            if self.drawn.limit == "budget":
                with Budget(seconds=self.drawn.named, runtime=self.runtime):
                    return self._through_door_sync()
            return self._through_door_sync()

        return self.play(doing if self.is_async else blocking)

    def with_bare_sdk(self) -> Any:
        client = self.bare()
        return self.play((lambda: self._once(client)) if self.is_async else (lambda: self._once_sync(client)))


def check(seed: int) -> str:
    """Play one world and its twin; return what it showed."""
    drawn = Drawn(seed)
    ours, twin = Player(drawn), Player(drawn)
    got = ours.with_holdfast()
    if drawn.limit is not None:
        # A slow reader learns of the end when it reads again. An answer that was complete in time, with its last two events, is
        # handed on to it.
        late = ours.clock.monotonic() - drawn.named
        # The SDK's helper makes two events of a word, and asks us for the next one after both.
        allowed = drawn.reader * (2 if got == "streamed" or drawn.helper else 1)
        assert late <= allowed + 0.1, f"seed {seed}: {late:g} s after the limit: {drawn} {got!r}"
        if isinstance(got, Exception) and late >= -0.1:
            assert isinstance(got, DeadlineError | TimeoutError) or type(got).__name__ == "APITimeoutError", (seed, got)
            return "cut"
        return "in time"
    bare = twin.with_bare_sdk()
    if not isinstance(bare, Exception):
        assert got == bare, f"seed {seed}: the bare SDK answers {bare!r}, Holdfast {got!r}: {drawn}"
        return "both answer"
    return "bare fails"


@pytest.mark.parametrize("part", range(4))
def test_named_limits_are_kept_and_others_lose_nothing(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # The bare SDK sleeps between its attempts; in the twin that takes no time.
    monkeypatch.setattr("anthropic._base_client.SyncAPIClient._sleep_for_retry", lambda *_, **__: None)

    async def at_once(*_: Any, **__: Any) -> None: ...

    monkeypatch.setattr("anthropic._base_client.AsyncAPIClient._sleep_for_retry", at_once)
    shown = [check(seed) for seed in range(part * WORLDS, (part + 1) * WORLDS)]
    assert {"cut", "in time", "both answer"} <= set(shown)
