"""The types of the shipped test tools: read by mypy and basedpyright, never run."""

from __future__ import annotations

import asyncio
from typing import Any, assert_type

from holdfast import Outcome, recover
from holdfast.clock import Clock, Rng
from holdfast.events import Event, Failed, Recovered, Retry
from holdfast.testing import (
    Capture,
    FaultProvider,
    Midpoint,
    Scripted,
    VirtualClock,
    VirtualLoop,
    loop_factory,
    run,
    script,
    seeded,
    serve_in_thread,
)


def what_a_coroutine_returns_comes_back() -> None:
    assert_type(run(asyncio.sleep(160, "late")), str)


def factories_make_loops() -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(asyncio.sleep(1))
    assert_type(loop_factory(VirtualClock())(), VirtualLoop)


def a_capture_is_a_handler_and_sorts_by_kind(event: Event) -> None:
    capture = Capture()
    capture(event)
    assert_type(capture.of(Retry), list[Retry])
    assert_type(capture.assert_recovered(attempts=3), Recovered)
    assert_type(capture.assert_gave_up(code="PROVIDER_OVERLOADED"), Failed)
    capture.assert_gave_up(code="PROVIDER_OVERLODED")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def time_and_chance_fit_their_protocols() -> tuple[Clock, list[Rng]]:
    return VirtualClock(), [Midpoint(), Scripted(0.5), seeded(1)]


async def a_script_is_called_both_ways() -> None:
    calls = script(["429;retry-after=7", KeyError("x"), {"text": "hi"}], seed=1)
    assert_type(calls("q"), Any)
    assert_type(await calls.acall("q"), Any)


def _anything(question: str) -> Any:
    return question


async def a_script_and_a_function_that_returns_any_are_not_async() -> None:
    calls = script("503, ok:hi")
    recover("claude").call(calls)
    recover("claude").call(calls, "q").strip()
    recover("claude").call(_anything, "q").strip()
    assert_type(await recover("claude").call(calls.acall, "q"), Any)
    assert_type(recover("claude").outcome(calls), Any)
    recover("claude")(_anything)("q").strip()
    recover(_anything)("q").strip()
    assert_type(await recover("claude")(calls.acall).outcome("q"), Outcome[Any])
    recover("claude").call(_anything, 5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]


async def a_provider_is_served_both_ways() -> None:
    async with FaultProvider("429, ok", seed=1) as provider:
        assert_type(provider, FaultProvider)
        assert_type(provider.url, str)
    with serve_in_thread("429, ok") as served:
        assert_type(served.counters.received, int)
