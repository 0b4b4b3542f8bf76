"""The log during an outage: the first warnings of a target, then one a minute; who chose a delay; a wrong host name."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket

import httpx
import pytest

from holdfast import Policy, Runtime, recover
from holdfast.policies.decide import Retry
from holdfast.testing import Capture, Midpoint, VirtualClock, run


def down_for_an_hour(runtime, *, callers=20, fallback=False):
    @recover("claude", runtime=runtime)
    async def call():
        await asyncio.sleep(0.05)
        raise ConnectionRefusedError(111, "Connection refused")

    if fallback:

        @call.fallback
        async def other():
            return "other"

    async def caller():
        while runtime.clock.monotonic() - began < 3600:
            with contextlib.suppress(Exception):
                await call()
            await asyncio.sleep(5.0)

    async def main():
        await asyncio.gather(*(caller() for _ in range(callers)))

    began = runtime.clock.monotonic()
    run(main(), clock=runtime.clock)


@pytest.mark.parametrize("fallback", [False, True])
def test_XR10_an_hour_down_with_twenty_callers_is_about_a_line_a_minute(caplog, fallback):
    caplog.set_level(logging.WARNING, "holdfast")
    runtime = Runtime(clock=VirtualClock(), rng=Midpoint())
    runtime.log = True
    down_for_an_hour(runtime, fallback=fallback)
    assert 50 <= len(caplog.records) <= 80
    assert any("more warnings since the last line" in record.message for record in caplog.records)


def test_XR10_the_end_of_an_outage_is_logged_whatever_was_left_out(caplog):
    caplog.set_level(logging.INFO, "holdfast")
    runtime = Runtime(clock=VirtualClock(), rng=Midpoint())
    runtime.log = True

    @recover("claude", runtime=runtime)
    async def call():
        await asyncio.sleep(0.05)
        if runtime.clock.monotonic() - began < 330:
            raise ConnectionRefusedError(111, "Connection refused")

    async def caller():
        while runtime.clock.monotonic() - began < 500:
            with contextlib.suppress(Exception):
                await call()
            await asyncio.sleep(5.0)

    async def main():
        await asyncio.gather(*(caller() for _ in range(5)))

    began = runtime.clock.monotonic()
    run(main(), clock=runtime.clock)
    states = [record.message for record in caplog.records if record.message.startswith("circuit")]
    assert states[0] == "circuit claude closed → open (CONN_REFUSED)"
    assert states[-1].startswith("circuit claude half-open → closed")


def test_XR10_single_failures_are_all_logged(caplog):
    caplog.set_level(logging.WARNING, "holdfast")
    runtime = Runtime(clock=VirtualClock(), rng=Midpoint())
    runtime.log = True
    calls = []

    @recover("claude", Policy(circuit=None), runtime=runtime)
    def call():
        calls.append(1)
        if len(calls) % 4:
            raise ConnectionResetError(104, "reset")

    for _ in range(3):
        call()
        runtime.sleep(300.0)
    assert len([r for r in caplog.records if "attempt" in r.message and "failed" in r.message]) == 9


def test_XR10_only_a_delay_that_the_server_requested_is_called_so():
    assert Retry(1.0, None, "requested").requested
    assert not Retry(1.0, None, "circuit").requested
    runtime, heard = Runtime(clock=VirtualClock(), rng=Midpoint()), Capture()
    runtime.on(heard)
    down_for_an_hour(runtime, callers=2)
    retries = [event for event in heard.events if type(event).__name__ == "Retry"]
    assert retries
    assert not any(event.requested for event in retries)


def unknown_name(number=-2, text="Name or service not known"):
    error = httpx.ConnectError(f"[Errno {number}] {text}")
    error.__cause__ = socket.gaierror(number, text)
    return error


@pytest.mark.parametrize(
    ("error", "policy", "made"),
    [
        (unknown_name(), Policy(), 3),
        (socket.gaierror(-5, "No address associated with hostname"), Policy(), 3),
        (unknown_name(), Policy(attempts=5), 5),
        (unknown_name(-3, "Temporary failure in name resolution"), Policy(), 10),
    ],
    ids=["unknown", "no address", "a number that somebody chose", "the resolver does not answer"],
)
def test_XR10_a_wrong_host_name_is_retried_twice(error, policy, made):
    runtime, calls = Runtime(clock=VirtualClock(), rng=Midpoint()), []

    @recover("claude", policy, runtime=runtime)
    def call():
        calls.append(1)
        if len(calls) < 10:
            raise error

    with contextlib.suppress(OSError, httpx.ConnectError):
        call()
    assert len(calls) == made
