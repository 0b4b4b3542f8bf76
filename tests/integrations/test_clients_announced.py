"""Limits that a service announces: one client keeps to them without being rejected, per key and model, by requests and tokens."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import httpx2
import pytest
from anthropic import AsyncAnthropic
from clients_forms import STREAMED, WHOLE, client_for, collect, collect_async, recovering
from clients_kit import REQUEST, Wire, anthropic_on, failing, message

import holdfast.anthropic
from holdfast import Policy, Runtime
from holdfast.httpx import AsyncRecoveringTransport, RecoveringTransport
from holdfast.policies.circuit import PROVIDER
from holdfast.testing import FaultProvider, Midpoint, VirtualClock, run

EACH = pytest.mark.parametrize("form", [*WHOLE.values(), *STREAMED.values()], ids=[*WHOLE, *STREAMED])
LIMITS = ["requests=60;burst=10", "tokens=6000;burst=1000"]
CALLS = 60
LAST = message(
    anthropic_ratelimit_requests_limit="100",
    anthropic_ratelimit_requests_remaining="1",
    anthropic_ratelimit_requests_reset="2025-01-01T00:00:40Z",
)
"""An announcement that counts down is believed. One that begins with nothing is not."""
EMPTY = message(
    anthropic_ratelimit_requests_limit="100",
    anthropic_ratelimit_requests_remaining="0",
    anthropic_ratelimit_requests_reset="2025-01-01T00:00:40Z",
)


def runtime_of():
    return Runtime(clock=VirtualClock(), rng=Midpoint())


def play(form, limit, *, is_async=True):
    """Make calls one after the other as fast as they go; return the provider and the seconds."""
    runtime = runtime_of()
    provider = FaultProvider(clock=runtime.clock, limits=[limit])
    client = recovering(form, client_for(form, provider.transport(), is_async=is_async), runtime=runtime)

    async def several():
        await asyncio.gather(*(one(turn) for turn in range(3)))

    async def one(turn):
        await asyncio.sleep(turn / 10)
        for _ in range(CALLS // 3):
            await collect_async(form, client, [])

    if is_async:
        run(several(), clock=runtime.clock)
    else:
        for _ in range(CALLS):
            collect(form, client, [])
    return provider, runtime.clock.monotonic()


@pytest.mark.parametrize("limit", LIMITS, ids=["requests", "tokens"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
@EACH
def test_a_single_client_keeps_to_the_limits_that_it_is_told(form, limit, is_async):
    provider, seconds = play(form, limit, is_async=is_async)
    limited = sum(provider.counters.limited.values())
    assert provider.counters.received - limited == CALLS
    assert limited <= 6, (
        "while nothing is known about the size of a call, and when it is tried whether the announcement is true"
    )
    if limit == LIMITS[0]:
        assert limited == 0
        assert CALLS - 10 - 1 <= seconds <= CALLS + 5, "the limit is used up"


def test_what_is_announced_holds_for_one_key_and_one_model():
    wire, runtime = Wire(LAST, EMPTY), runtime_of()
    claude = holdfast.anthropic.recovering(anthropic_on(wire), runtime=runtime)
    claude.messages.create(**REQUEST)
    claude.messages.create(**REQUEST)
    claude.messages.create(**{**REQUEST, "model": "claude-other"})
    other = holdfast.anthropic.recovering(anthropic_on(wire, "key-b"), runtime=runtime)
    other.messages.create(**REQUEST)
    assert runtime.clock.monotonic() == 0.0
    claude.messages.create(**REQUEST)
    assert runtime.clock.monotonic() == pytest.approx(40.0)


def test_XR16_a_call_whose_turn_would_come_too_late_is_made_at_the_end_of_its_time():
    wire, runtime = Wire(LAST, EMPTY), runtime_of()
    claude = holdfast.anthropic.recovering(anthropic_on(wire), runtime=runtime, policy=Policy(patience=30))
    for _ in range(3):
        claude.messages.create(**REQUEST)
    assert len(wire.requests) == 3
    assert 25 < runtime.clock.monotonic() < 30


def test_it_is_tried_whether_an_announcement_is_true():
    """A server that announces that it accepts no more, and accepts all the same, makes calls wait only a few times."""
    wire, runtime = Wire(LAST, EMPTY), runtime_of()
    claude = holdfast.anthropic.recovering(anthropic_on(wire), runtime=runtime, policy=Policy(patience=15))
    for _ in range(10):
        claude.messages.create(**REQUEST)
    assert len(wire.requests) == 10
    assert runtime.clock.monotonic() < 3 * 15


@pytest.mark.parametrize("keys", [1, 2], ids=["one key", "a pool"])
@pytest.mark.parametrize("counts_down", [False, True])
def test_no_call_is_refused_for_an_announcement_that_is_not_so(keys, counts_down):
    """A healthy service, such as one behind a gateway, that announces for minutes that nothing remains and accepts all the same."""
    runtime, asked = runtime_of(), 0

    async def answer(_):
        nonlocal asked
        asked += 1
        remaining = max(0, 5 - asked) if counts_down else 0 if asked % 10 == 0 else 49
        reset = 3600 if counts_down else runtime.clock.monotonic() + 600
        await asyncio.sleep(0.2)
        moment = datetime.fromtimestamp(runtime.clock.wall() - runtime.clock.monotonic() + reset, tz=UTC).strftime(
            "%Y-%m-%dT%H:%M:%SZ"
        )
        answered = message(
            anthropic_ratelimit_requests_limit="50",
            anthropic_ratelimit_requests_remaining=str(remaining),
            anthropic_ratelimit_requests_reset=moment,
        )
        return answered()

    async def main():
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
        given = [AsyncAnthropic(api_key=f"key-{number}", http_client=http) for number in range(keys)]
        claude = holdfast.anthropic.recovering(*given, runtime=runtime)

        async def ask(number):
            await asyncio.sleep(number)
            await claude.messages.create(**REQUEST)

        await asyncio.gather(*map(ask, range(100)))

    run(main(), clock=runtime.clock)
    assert asked == 100
    assert runtime.clock.monotonic() < 101


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry_after": "300"}, 300.0),  # the SDK waits as long
        ({}, 0.5),  # the SDK reads no reset
    ],
)
def test_a_retry_waits_for_a_reset_of_minutes_no_longer_than_the_sdk(headers, seconds):
    reset = {
        "anthropic_ratelimit_requests_remaining": "0",
        "anthropic_ratelimit_requests_reset": "2025-01-01T00:05:00Z",
    }
    wire, runtime = Wire(failing(429, "rate_limit_error", **reset, **headers), message()), runtime_of()
    claude = holdfast.anthropic.recovering(anthropic_on(wire), runtime=runtime)
    claude.messages.create(**REQUEST)
    assert runtime.clock.monotonic() == pytest.approx(seconds, abs=0.6)


def test_a_reset_of_minutes_is_waited_for_after_the_attempts_of_the_sdk():
    reset = {
        "anthropic_ratelimit_requests_remaining": "0",
        "anthropic_ratelimit_requests_reset": "2025-01-01T00:05:00Z",
    }
    limited = failing(429, "rate_limit_error", **reset)
    wire, runtime = Wire(limited, limited, limited, message()), runtime_of()
    claude = holdfast.anthropic.recovering(anthropic_on(wire), runtime=runtime)
    claude.messages.create(**REQUEST)
    assert len(wire.requests) == 4
    assert runtime.clock.monotonic() == pytest.approx(300.0, abs=6.0)


def test_the_documents_circuits_do_not_pace():
    wire, runtime = Wire(EMPTY), runtime_of()
    claude = holdfast.anthropic.recovering(anthropic_on(wire), runtime=runtime, policy=Policy(circuit=PROVIDER))
    for _ in range(3):
        claude.messages.create(**REQUEST)
    assert runtime.clock.monotonic() == 0.0


@pytest.mark.parametrize("is_async", [False, True], ids=["threads", "tasks"])
def test_a_transport_keeps_to_them_too_by_key_and_model(is_async):
    runtime = runtime_of()
    provider = FaultProvider(clock=runtime.clock, limits=[LIMITS[0]])
    kind = AsyncRecoveringTransport if is_async else RecoveringTransport
    transport = kind(provider.transport(), runtime=runtime, methods=frozenset({"POST"}))
    clients = {key: (httpx2.AsyncClient if is_async else httpx2.Client)(transport=transport) for key in "ab"}

    def send(key, model="gpt-5-mini"):
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
        headers = {"authorization": f"Bearer {key}"}
        return clients[key].post("http://provider.test/v1/chat/completions", json=body, headers=headers)

    async def in_tasks():
        for _ in range(CALLS):
            assert (await send("a")).status_code == 200

    if is_async:
        run(in_tasks(), clock=runtime.clock)
    else:
        for _ in range(CALLS):
            assert send("a").status_code == 200
    assert sum(provider.counters.limited.values()) == 0
    assert CALLS - 10 - 1 <= runtime.clock.monotonic() <= CALLS + 5
    began = runtime.clock.monotonic()
    if is_async:
        run(send("b"), clock=runtime.clock)
    else:
        send("b")
    assert runtime.clock.monotonic() == began, "another key has its own"
