"""A disabled runtime: every form of a recovery is a plain call."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from recover_kit import Always, Flaky, World, reset

from holdfast import (
    Circuit,
    Err,
    Ok,
    Policy,
)


@pytest.mark.parametrize("name", ["HOLDFAST_ENABLED", "RESILIENCE_ENABLED"])
@pytest.mark.parametrize("word", ["false", "0", "no", "OFF"])
def test_R3_S1_25_a_disabled_recovery_is_a_plain_call(name: str, word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, word)
    world = World()
    error = reset()
    work = Flaky(error)
    with pytest.raises(ConnectionResetError) as failed:
        world.recover("a").call(work)
    assert failed.value is error
    assert not hasattr(error, "__notes__")
    assert (work.calls, len(world.events)) == (1, 0)


def test_S1_25_every_form_of_a_disabled_recovery_is_a_plain_call() -> None:
    world = World(enabled=False)
    policy = Policy(timeout=1, concurrency=1, circuit=Circuit(failures=1))
    recovery = world.recover("a", policy, accept=lambda _: False)

    async def main() -> None:
        decorated = recovery(Always(reset, takes=5).acall)
        decorated.fallback(Flaky(value="other").acall)
        with pytest.raises(ConnectionResetError):
            await decorated()
        outcome = await decorated.outcome()
        assert isinstance(outcome, Err)
        assert isinstance(await recovery(Flaky(takes=5).acall).outcome(), Ok)
        attempts = 0
        with pytest.raises(ConnectionResetError):
            async for attempt in recovery:
                async with attempt:
                    attempts += 1
                    await asyncio.sleep(5)
                    raise reset()
        assert attempts == 1

        async def numbers() -> Any:
            await asyncio.sleep(5)
            yield 1
            raise reset()

        got = []
        with pytest.raises(ConnectionResetError):
            async with recovery.stream(numbers, first=1, idle=1, total=1)() as stream:
                async for number in stream:
                    got.append(number)  # noqa: PERF401 - it must be there when the rest fails
        assert got == [1]

    world.run(main())
    with pytest.raises(ConnectionResetError):
        for attempt in recovery:
            with attempt:
                raise reset()
    assert recovery.outcome(Flaky(value=3)).unwrap() == 3
    assert len(world.events) == 0


def test_S1_25_a_recovery_that_is_enabled_again_recovers() -> None:
    world = World(enabled=False)
    decorated = world.recover("a")(Flaky(reset()))
    with pytest.raises(ConnectionResetError):
        decorated()
    world.runtime.enabled = True
    assert decorated() == "ok"
