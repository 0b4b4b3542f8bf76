"""An outage behind a fallback is visible: reported once when the fallbacks take over, and once when they no longer do."""

from __future__ import annotations

import asyncio
import logging

from holdfast import Runtime, recover
from holdfast.events import CircuitState, CircuitStateChange
from holdfast.testing import Capture, Midpoint, VirtualClock, run


def test_XR5_an_outage_behind_a_fallback_is_reported_with_its_end(caplog):
    caplog.set_level(logging.WARNING, "holdfast")
    runtime, heard = Runtime(clock=VirtualClock(), rng=Midpoint()), Capture()
    runtime.log = True
    runtime.on(heard)
    began = runtime.clock.monotonic()

    @recover("claude", runtime=runtime)
    async def call():
        await asyncio.sleep(0.05)
        if runtime.clock.monotonic() - began < 60:
            raise ConnectionRefusedError(111, "Connection refused")
        return "claude"

    @call.fallback
    async def other():
        return "other"

    async def main():
        answers = []
        while runtime.clock.monotonic() - began < 120:
            answers.append(await call())
            await asyncio.sleep(1.0)
        return answers

    answers = run(main(), clock=runtime.clock)
    assert answers[-1] == "claude"
    changes = [event for event in heard.events if isinstance(event, CircuitStateChange) and event.rule == "fallback"]
    assert [event.to for event in changes] == [CircuitState.OPEN, CircuitState.CLOSED]
    assert changes[0].reason == "CONN_REFUSED"
    lines = [record.message for record in caplog.records]
    assert len([line for line in lines if "claude fails, so its fallbacks answer (CONN_REFUSED)" in line]) == 1
    assert len([line for line in lines if "claude answers again in place of its fallbacks" in line]) == 1


def test_XR5_a_long_outage_behind_a_fallback_is_reported_once_also_when_its_circuit_opens(caplog):
    caplog.set_level(logging.WARNING, "holdfast")
    runtime, heard = Runtime(clock=VirtualClock(), rng=Midpoint()), Capture()
    runtime.log = True
    runtime.on(heard)
    began = runtime.clock.monotonic()

    @recover("claude", runtime=runtime)
    async def call():
        await asyncio.sleep(0.05)
        if runtime.clock.monotonic() - began < 600:
            raise ConnectionRefusedError(111, "Connection refused")
        return "claude"

    @call.fallback
    async def other():
        return "other"

    async def caller(number):
        await asyncio.sleep(number * 0.3)
        while runtime.clock.monotonic() - began < 700:
            await call()
            await asyncio.sleep(5.0)

    async def main():
        await asyncio.gather(*(caller(number) for number in range(20)))

    run(main(), clock=runtime.clock)
    changes = [event for event in heard.events if isinstance(event, CircuitStateChange)]
    assert any(event.to is CircuitState.OPEN and event.rule != "fallback" for event in changes), (
        "its circuit opened too"
    )
    diversions = [event.to for event in changes if event.rule == "fallback"]
    assert diversions == [CircuitState.OPEN, CircuitState.CLOSED]
    lines = [record.message for record in caplog.records]
    assert len([line for line in lines if "claude fails, so its fallbacks answer (CONN_REFUSED)" in line]) == 1
    assert len([line for line in lines if "claude answers again in place of its fallbacks" in line]) == 1
