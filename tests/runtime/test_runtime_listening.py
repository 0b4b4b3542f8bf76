"""Events to iterate over, and small promises of `recover` around them."""

from __future__ import annotations

import asyncio
import gc
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from holdfast import InvalidError, Runtime, recover
from holdfast.events import Recovered, Retry
from holdfast.runtime.cache import key_of
from holdfast.testing import VirtualClock, run, script


@pytest.fixture
def runtime():
    return Runtime(clock=VirtualClock())


def test_a_reader_hears_what_happens_from_the_moment_it_was_made(runtime):
    async def main():
        events = runtime.events(Retry, Recovered)
        recover("claude", runtime=runtime).call(script("503, ok"))
        return [await anext(events), await anext(events)]

    assert [type(event) for event in run(main(), clock=runtime.clock)] == [Retry, Recovered]


def test_it_waits_for_the_next_and_ends_when_it_is_closed(runtime):
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


def test_a_reader_that_nobody_holds_hears_nothing_more(runtime):
    events = runtime.events(Recovered)
    assert runtime.bus.wants(Recovered)
    del events
    gc.collect()
    recover("claude", runtime=runtime).call(script("503, ok"))
    assert not runtime.bus.wants(Recovered)


def test_a_slow_reader_loses_the_oldest_and_knows_how_many(runtime):
    async def main():
        async with runtime.events(Retry) as events:
            for number in range(1_003):
                recover(f"provider-{number}", runtime=runtime).call(script("503, ok"))
            return events.dropped, (await anext(events)).operation

    assert run(main(), clock=runtime.clock) == (3, "provider-3")


def test_R25_a_hook_is_told_once_and_another_with_its_address_is_told_too(runtime, caplog):
    def failing():
        def handler(_):
            raise LookupError("a reader's own defect")

        return handler

    for _ in range(3):
        with runtime.on(failing()):
            recover("claude", runtime=runtime).call(script("503, ok"))
        gc.collect()
    assert caplog.text.count("a reader's own defect") == 3


@pytest.mark.parametrize(
    "value", [b"aGk=", Decimal("1.5"), datetime(2026, 1, 1, tzinfo=UTC), float("nan"), {1: 2}, {3}, object()]
)
def test_what_json_would_confuse_with_a_text_is_no_key(value):
    assert key_of(None, "ask", (value,), {}) is None
    assert key_of(None, "ask", (), {"q": [value]}) is None


def test_plain_arguments_are_told_apart():
    calls = [("1",), (1,), (1.0,), (True,), (None,), ([1],), ({"a": 1},)]
    assert len({key_of(None, "ask", args, {}) for args in calls}) == len(calls)


@pytest.mark.parametrize("slip", ["tols:bash", "agnt:builder", "modle:opus"])
def test_a_slip_in_a_targets_kind_is_told(slip):
    with pytest.raises(InvalidError, match=r"recover\.target: expected a name such as"):
        recover(slip)


def test_a_provider_may_have_a_colon_in_its_name():
    assert recover("ollama:llama3").call(lambda: 1) == 1


def test_a_block_gives_no_answer_to_accept():
    with pytest.raises(InvalidError, match="a block, which gives none"):
        iter(recover("claude", accept=bool))
    with pytest.raises(InvalidError, match="a block, which gives none"):
        aiter(recover("claude", accept=bool))
