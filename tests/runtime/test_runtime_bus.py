"""The event bus: hooks, and readers that iterate over events."""

from __future__ import annotations

import asyncio
import gc

import pytest

from holdfast import Runtime, recover
from holdfast.events import Recovered, Retry
from holdfast.testing import VirtualClock, run, script


@pytest.fixture
def runtime():
    return Runtime(clock=VirtualClock())


def test_a_reader_gets_the_events_that_follow_its_creation(runtime):
    async def main():
        events = runtime.events(Retry, Recovered)
        recover("claude", runtime=runtime).call(script("503, ok"))
        return [await anext(events), await anext(events)]

    assert [type(event) for event in run(main(), clock=runtime.clock)] == [Retry, Recovered]


def test_a_reader_waits_for_the_next_event_and_ends_when_closed(runtime):
    heard = []

    async def read(events):
        heard.extend([type(event) async for event in events])

    async def main():
        async with runtime.events(Recovered) as events:
            reading = asyncio.ensure_future(read(events))
            await asyncio.sleep(1)
            await recover("claude", runtime=runtime).call(script("503, ok").acall)
            await asyncio.sleep(1)
        await reading

    run(main(), clock=runtime.clock)
    assert heard == [Recovered]
    assert not runtime.bus.wants(Recovered)


def test_a_reader_without_references_is_unsubscribed(runtime):
    events = runtime.events(Recovered)
    assert runtime.bus.wants(Recovered)
    del events
    gc.collect()
    recover("claude", runtime=runtime).call(script("503, ok"))
    assert not runtime.bus.wants(Recovered)


def test_a_slow_reader_loses_the_oldest_events_and_counts_them(runtime):
    async def main():
        async with runtime.events(Retry) as events:
            for number in range(1_003):
                recover(f"provider-{number}", runtime=runtime).call(script("503, ok"))
            return events.dropped, (await anext(events)).operation

    assert run(main(), clock=runtime.clock) == (3, "provider-3")


def test_R25_each_raising_hook_is_logged_once_even_if_it_reuses_an_address(runtime, caplog):
    def failing():
        def handler(_):
            raise LookupError("a reader's own defect")

        return handler

    for _ in range(3):
        with runtime.on(failing()):
            recover("claude", runtime=runtime).call(script("503, ok"))
        gc.collect()
    assert caplog.text.count("a reader's own defect") == 3
