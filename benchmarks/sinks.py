"""What each sink adds to a call that works: `python -m benchmarks.sinks`.

CPU time of one recovered async call, the best of several rounds, sinks in turn. Beside it what the OpenTelemetry SDK takes for
two bare spans, which is the least a span per operation and per attempt can cost.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import time

import prometheus_client
from opentelemetry import trace as otel
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from holdfast import Runtime, recover
from holdfast.sinks import count_events, log_events, trace_recoveries

CALLS, ROUNDS = 2_000, 15

SINKS = {
    "no sink": lambda _: None,
    "log_events, INFO": log_events,
    "count_events": lambda runtime: count_events(prometheus_client.CollectorRegistry(), runtime),
    "trace_recoveries, no SDK": lambda runtime: trace_recoveries(otel.NoOpTracerProvider(), runtime),
    "trace_recoveries, not sampled": lambda runtime: trace_recoveries(TracerProvider(sampler=ALWAYS_OFF), runtime),
    "trace_recoveries, first_attempts=False": lambda runtime: trace_recoveries(TracerProvider(), runtime, first_attempts=False),
    "trace_recoveries": lambda runtime: trace_recoveries(TracerProvider(), runtime),
}  # fmt: skip


async def work() -> None:
    pass


def round_of(call) -> float:
    async def main() -> float:
        began = time.process_time()
        for _ in range(CALLS):
            await call()
        return time.process_time() - began

    return asyncio.run(main()) / CALLS * 1e6


def recovered(sink):
    runtime = Runtime()
    sink(runtime)
    return recover("claude", runtime=runtime)(work)


async def asyncio_timeout() -> None:
    async with asyncio.timeout(60):
        await work()


def two_spans(tracer):
    async def call() -> None:
        outer = tracer.start_span("outer")
        tracer.start_span("inner", otel.set_span_in_context(outer)).end()
        outer.end()

    return call


def main() -> None:
    logging.getLogger("holdfast").setLevel(logging.INFO)
    calls = {
        "asyncio.timeout alone": asyncio_timeout,
        "two bare spans of the SDK": two_spans(TracerProvider().get_tracer("bench")),
    }
    calls |= {name: recovered(sink) for name, sink in SINKS.items()}
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):
        for name, call in calls.items():
            best[name] = min(best[name], round_of(call))
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; µs per call")
    for name, took in best.items():
        print(f"{name:40} {took:7.2f}")


if __name__ == "__main__":
    main()
