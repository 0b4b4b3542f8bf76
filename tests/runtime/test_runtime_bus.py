"""The event bus: hooks, and readers that iterate over events."""

from __future__ import annotations

import asyncio
import gc
import logging

import pytest

from holdfast import Runtime, recover
from holdfast.events import CircuitState, CircuitStateChange, Recovered, Retry
from holdfast.manager import ResilienceManager
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


def test_a_handler_of_the_log_that_raises_breaks_no_call():
    class Broken(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError(record)

    runtime = Runtime(clock=VirtualClock(), log=True)
    log, broken = logging.getLogger("holdfast"), Broken()
    log.addHandler(broken)
    try:
        assert recover("claude", runtime=runtime).call(script("503, ok:hi")) == "hi"
    finally:
        log.removeHandler(broken)


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


def test_FR12_a_listener_that_resets_a_circuit_does_not_change_the_order_for_the_next(runtime):
    manager = ResilienceManager(runtime=runtime)
    heard = []

    def reset(event):
        if event.to is CircuitState.OPEN:
            manager.get_circuit("claude").reset()

    runtime.on(reset, CircuitStateChange)
    runtime.on(lambda event: heard.append((event.from_, event.to)), CircuitStateChange)
    manager.get_circuit("claude").force_open()
    manager.get_circuit("claude").force_open()
    change, back = (CircuitState.CLOSED, CircuitState.OPEN), (CircuitState.OPEN, CircuitState.CLOSED)
    assert heard == [change, back, change, back]


def test_FR12_events_go_on_after_a_listener_was_interrupted(runtime):
    heard = []

    def interrupted(_):
        if not heard:
            heard.append("interrupted")
            recover("other", runtime=runtime).call(script("503, ok"))
            raise KeyboardInterrupt

    runtime.on(interrupted, Recovered)
    runtime.on(lambda event: heard.append(event.operation), Recovered)
    with pytest.raises(KeyboardInterrupt):
        recover("first", runtime=runtime).call(script("503, ok"))
    recover("second", runtime=runtime).call(script("503, ok"))
    assert heard[0] == "interrupted"
    assert heard[-1].startswith("second")
