"""The results of a batch are lines, not events: they are read through a recovering client as through a plain one."""

from __future__ import annotations

import gc
import json
from operator import attrgetter

import anthropic
import httpx2
import pytest
from clients_kit import CUT, OVERLOADED, Body, Wire, anthropic_on, async_anthropic_on, in_time, world

from holdfast import StreamCutError
from holdfast.anthropic import recovering
from holdfast.events import AttemptStarted, Cancelled, Recovered

URL = "https://api.anthropic.com/v1/messages/batches/msgbatch_1/results"
BATCH = {
    "id": "msgbatch_1", "type": "message_batch", "processing_status": "ended", "results_url": URL,
    "created_at": "2026-01-01T00:00:00Z", "expires_at": "2026-01-02T00:00:00Z",
    "request_counts": {"processing": 0, "succeeded": 0, "errored": 2, "canceled": 0, "expired": 0},
}  # fmt: skip
LINES = [{"custom_id": f"line-{number}", "result": {"type": "expired"}} for number in (1, 2, 3)]
DOORS = pytest.mark.parametrize("door", ["messages.batches", "beta.messages.batches"])


def batch():
    return httpx2.Response(200, json=BATCH)


def lines(count=3, error=None):
    pieces = [json.dumps(line).encode() + b"\n" for line in LINES[:count]]
    return lambda: httpx2.Response(200, headers={"content-type": "application/x-jsonl"}, stream=Body(pieces, error))


def ids(results):
    return [result.custom_id for result in results]


@DOORS
def test_FI4_the_results_of_a_batch_are_read(door):
    wire, (runtime, heard) = Wire(OVERLOADED, batch, OVERLOADED, lines()), world()
    results = attrgetter(door)(recovering(anthropic_on(wire), runtime=runtime)).results("msgbatch_1")
    assert type(results).__name__ == "JSONLDecoder"
    assert ids(results) == ["line-1", "line-2", "line-3"]
    assert (len(wire.requests), len(heard.of(Recovered))) == (4, 2)
    assert results.http_response.is_closed


@DOORS
def test_FI4_the_results_of_a_batch_are_read_in_a_task(door):
    wire, (runtime, _) = Wire(OVERLOADED, batch, OVERLOADED, lines()), world()
    client = recovering(async_anthropic_on(wire), runtime=runtime)

    async def read():
        return [result async for result in await attrgetter(door)(client).results("msgbatch_1")]

    assert ids(in_time(runtime, read())) == ["line-1", "line-2", "line-3"]


def test_FI4_a_connection_that_is_lost_in_the_middle_cuts_the_results():
    wire, (runtime, _) = Wire(batch, lines(2, CUT)), world()
    got = []
    with pytest.raises(anthropic.APIConnectionError) as caught:
        got.extend(recovering(anthropic_on(wire), runtime=runtime).messages.batches.results("msgbatch_1"))
    assert isinstance(caught.value, StreamCutError)
    # The SDK takes 64 bytes at a time, so it never sees the end of the second line.
    assert ids(got) == ids(caught.value.partial.payload) == ["line-1"]


def test_FI4_a_connection_that_is_lost_before_the_first_line_is_made_again():
    wire, (runtime, heard) = Wire(batch, lines(0, CUT), lines()), world()
    results = recovering(anthropic_on(wire), runtime=runtime).messages.batches.results("msgbatch_1")
    assert len(ids(results)) == 3
    assert len(heard.of(AttemptStarted)) == 3


def test_FI4_a_batch_without_results_is_complete():
    wire, (runtime, heard) = Wire(batch, lines(0)), world()
    assert list(recovering(anthropic_on(wire), runtime=runtime).messages.batches.results("msgbatch_1")) == []
    assert len(heard.of(AttemptStarted)) == 2


def test_FI4_results_that_are_left_early_say_nothing_about_the_provider():
    wire, (runtime, heard) = Wire(batch, lines()), world()
    results = recovering(anthropic_on(wire), runtime=runtime).messages.batches.results("msgbatch_1")
    assert next(results).custom_id == "line-1"
    results.close()
    del results
    gc.collect()
    assert len(heard.of(Cancelled)) == 1
