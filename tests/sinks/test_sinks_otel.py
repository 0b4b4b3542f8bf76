"""OpenTelemetry: a span per operation, a child per attempt, an error only where the operation failed."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import gc
import logging

import pytest
from opentelemetry import trace as otel
from opentelemetry.context import get_current
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes
from opentelemetry.semconv.schemas import Schemas
from opentelemetry.trace import StatusCode
from sinks_scenes import CANARY, PROMPT, STEADY

import holdfast
from holdfast import Circuit, Fault, HoldfastError, Runtime
from holdfast.events import (
    AgentFallback,
    AttemptEnded,
    AttemptStarted,
    BudgetWarning,
    CircuitState,
    CircuitStateChange,
    Recovered,
)
from holdfast.events.tracker import Tracker
from holdfast.policies.repair import Changed
from holdfast.runtime.recover import recover
from holdfast.sinks import conventions, trace_recoveries
from holdfast.sinks import otel as sink
from holdfast.testing import script


class Traced:
    """Spans as they were exported."""

    def __init__(self):
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")

    @property
    def spans(self):
        return {span.name: span for span in self.exporter.get_finished_spans()}

    @property
    def names(self):
        return [span.name for span in self.exporter.get_finished_spans()]

    def parent(self, name):
        """The name of a span's parent."""
        parent = self.spans[name].parent
        return None if parent is None else next(n for n, s in self.spans.items() if s.context.span_id == parent.span_id)

    def inner(self, name="inner"):
        """Trace something, as the instrumentation of a client would."""
        self.tracer.start_span(name).end()


@pytest.fixture
def traced(stage):
    return Traced()


@pytest.fixture
def tracing(stage, traced):
    with trace_recoveries(traced.provider, stage.runtime) as subscription:
        yield subscription


@pytest.fixture(autouse=True)
def _nothing_stays_attached():
    before = get_current()
    yield
    assert get_current() is before


# One operation


def test_a_call_that_works_is_a_span_with_one_child(stage, traced, tracing):
    stage.play("ok")
    assert traced.names == ["attempt 1", "recover claude"]
    assert (traced.parent("attempt 1"), traced.parent("recover claude")) == ("recover claude", None)
    assert dict(traced.spans["recover claude"].attributes) == {
        "holdfast.operation": "claude",
        "gen_ai.provider.name": "anthropic",
        "holdfast.outcome": "ok",
        "holdfast.attempts": 1,
    }
    assert traced.spans["recover claude"].status.status_code is StatusCode.UNSET


def test_one_that_recovered_has_a_child_per_attempt_and_no_error(stage, traced, tracing):
    stage.play("429;retry-after=7, 529, ok")
    whole = traced.spans["recover claude"]
    assert [traced.parent(f"attempt {n}") for n in (1, 2, 3)] == ["recover claude"] * 3
    assert {span.status.status_code for span in traced.spans.values()} == {StatusCode.UNSET}
    assert "error.type" not in whole.attributes
    assert [traced.spans[f"attempt {n}"].attributes.get("error.type") for n in (1, 2, 3)] == [
        "PROVIDER_RATE_LIMITED",
        "PROVIDER_OVERLOADED",
        None,
    ]
    assert (whole.attributes["holdfast.outcome"], whole.attributes["holdfast.attempts"]) == ("recovered", 3)


def test_waits_are_events_and_their_sum_an_attribute(stage, traced, tracing):
    stage.play("429;retry-after=7, 529, ok")
    whole = traced.spans["recover claude"]
    assert [(event.name, event.attributes["holdfast.delay"], event.attributes["error.type"]) for event in whole.events] == [
        ("retry", 7.0, "PROVIDER_RATE_LIMITED"),
        ("retry", 1.0, "PROVIDER_OVERLOADED"),
    ]  # fmt: skip
    assert whole.events[0].attributes["holdfast.asked"] is True
    assert whole.attributes["holdfast.waited_s"] == 8.0


def test_one_that_failed_is_an_error_and_its_attempts_are_not(stage, traced, tracing):
    stage.play("529*3")
    whole = traced.spans["recover claude"]
    assert (whole.status.status_code, whole.status.description) == (StatusCode.ERROR, "PROVIDER_OVERLOADED")
    assert (whole.attributes["error.type"], whole.attributes["holdfast.outcome"]) == ("PROVIDER_OVERLOADED", "failed")
    assert traced.spans["attempt 3"].status.status_code is StatusCode.UNSET


def test_a_fallback_is_an_attempt_that_says_via(stage, traced, tracing):
    @stage.recovery()
    async def answer():
        raise PermissionError("no")

    @answer.fallback
    async def by_openai():
        traced.inner()
        return "hello"

    assert stage.run(answer()) == "hello"
    assert traced.spans["attempt 2"].attributes["holdfast.via"] == "by_openai"
    assert traced.parent("inner") == "attempt 2"
    whole = traced.spans["recover claude"]
    assert [event.name for event in whole.events] == ["fallback"]
    assert (whole.attributes["holdfast.outcome"], whole.attributes["holdfast.via"]) == ("recovered", "by_openai")


def test_a_repair_is_an_event_between_two_attempts(stage, traced, tracing):
    @stage.recovery()
    async def ask(question):
        if len(question) > 3:
            raise HoldfastError(Fault.of("PROVIDER_CONTEXT_OVERFLOW"))
        return question

    ask.repair("compact")(lambda fault, question: Changed(question[:3]))
    assert stage.run(ask(PROMPT)) == PROMPT[:3]
    whole = traced.spans["recover claude"]
    assert [event.name for event in whole.events] == ["repaired"]
    assert whole.attributes["holdfast.outcome"] == "recovered"
    assert traced.names == ["attempt 1", "attempt 2", "recover claude"]


def test_a_lesser_answer_is_no_error(stage, traced, tracing):
    @stage.recovery()
    async def answer():
        raise PermissionError("no")

    answer.degraded(lambda fault: "sorry")
    assert stage.run(answer()) == "sorry"
    whole = traced.spans["recover claude"]
    assert (whole.attributes["holdfast.outcome"], whole.attributes["holdfast.degraded"]) == ("degraded", "degraded")
    assert whole.status.status_code is StatusCode.UNSET


def test_an_open_circuit_is_an_operation_without_attempts(stage, traced, tracing):
    policy = STEADY.replace(attempts=1, circuit=Circuit(failures=1, open_for=60), wait_for_circuit=False)
    stage.play("529", policy=policy)
    opened = traced.spans["recover claude"]
    assert [(e.name, e.attributes["holdfast.to"]) for e in opened.events] == [("circuit-state-change", "open")]
    traced.exporter.clear()
    stage.play("ok", policy=policy)
    assert traced.names == ["recover claude"]
    assert traced.spans["recover claude"].attributes["error.type"] == "CIRCUIT_OPEN"


def test_an_operation_that_waited_for_a_circuit_has_recovered(stage, traced, tracing):
    policy = STEADY.replace(attempts=1, circuit=Circuit(failures=1, open_for=60), wait_for_circuit=True)
    stage.play("529", policy=policy)
    traced.exporter.clear()
    assert stage.play("ok:hello", policy=policy) == "hello"
    assert traced.names == ["attempt 1", "recover claude"]
    whole = traced.spans["recover claude"].attributes
    assert (whole["holdfast.outcome"], whole["holdfast.attempts"], whole["holdfast.waited_s"]) == ("recovered", 1, 60.0)


def test_a_fallback_behind_an_open_circuit_ends_the_operation_once(stage, traced, tracing):
    policy = STEADY.replace(attempts=1, circuit=Circuit(failures=1, open_for=60))
    stage.play("529", policy=policy)
    traced.exporter.clear()

    @stage.recovery(policy=policy)
    async def answer():
        return "primary"

    @answer.fallback
    async def other():
        return "other"

    assert stage.run(answer()) == "other"
    assert traced.names == ["attempt 1", "recover claude"]
    assert traced.spans["recover claude"].attributes["holdfast.outcome"] == "recovered"


def test_an_agent_that_takes_over_first_of_all_ends_the_operation_once(stage, traced, tracing):
    common = {"at": 1.0, "run": "r", "operation": "agent:opus"}
    for event in (
        AgentFallback(**common, from_="opus", to="haiku"),
        AttemptStarted(**common, attempt=1, via="haiku"),
        AttemptEnded(**common, attempt=1, took=1.0, via="haiku"),
        Recovered(**common, after=1.0, attempts=1, via="haiku"),
    ):
        stage.runtime.bus.emit(event)
    assert traced.names == ["attempt 1", "recover agent:opus"]
    assert [event.name for event in traced.spans["recover agent:opus"].events] == ["agent-fallback"]


def test_a_circuit_that_closes_during_a_good_call_does_not_keep_its_span(stage, traced, tracing):
    policy = STEADY.replace(attempts=1, circuit=Circuit(failures=1, open_for=5))
    stage.play("529", policy=policy)
    stage.clock.advance(6)
    traced.exporter.clear()
    stage.play("ok", policy=policy)
    assert traced.names == ["attempt 1", "recover claude"]


def test_what_belongs_to_no_operation_makes_no_span(stage, traced, tracing):
    stage.runtime.bus.emit(BudgetWarning(at=1.0, unit="usd", used=4.0, limit=5.0))
    change = CircuitStateChange(at=1.0, circuit="c", from_=CircuitState.CLOSED, to=CircuitState.OPEN)
    stage.runtime.bus.emit(change)
    stage.runtime.bus.emit(AttemptEnded(at=1.0, run="gone", attempt=1, took=1.0))
    tracing.cancel()
    assert traced.names == []


# What the call itself traces


def test_what_an_async_call_traces_hangs_below_its_attempt(stage, traced, tracing):
    calls = script("529, ok")

    async def call():
        await asyncio.sleep(0.1)
        traced.inner(f"inner {calls.calls + 1}")
        return calls()

    stage.play(call)
    assert [traced.parent(f"inner {n}") for n in (1, 2)] == ["attempt 1", "attempt 2"]


def test_what_a_sync_call_traces_hangs_below_its_attempt(stage, traced, tracing):
    stage.recovery().call(traced.inner)
    assert traced.parent("inner") == "attempt 1"


def test_what_a_thread_of_ours_traces_hangs_below_its_attempt(traced):
    runtime = Runtime()
    with trace_recoveries(traced.provider, runtime):
        recover("claude", STEADY.replace(timeout=5), threads=True, runtime=runtime).call(traced.inner)
    assert traced.parent("inner") == "attempt 1"


def test_an_operation_hangs_below_the_span_around_it_and_nested_ones_below_its_attempt(stage, traced, tracing):
    @stage.recovery("tool:search")
    def search():
        return "found"

    with traced.tracer.start_as_current_span("request"):
        stage.recovery().call(search)
    names = [(span.name, span.attributes.get("holdfast.operation")) for span in traced.exporter.get_finished_spans()]
    assert names == [
        ("attempt 1", None),
        ("recover tool:search", "tool:search"),
        ("attempt 1", None),
        ("recover claude", "claude"),
        ("request", None),
    ]
    inner, nested, outer, whole, request = traced.exporter.get_finished_spans()
    ids = [span.parent and span.parent.span_id for span in (inner, nested, outer, whole)]
    assert ids == [nested.context.span_id, outer.context.span_id, whole.context.span_id, request.context.span_id]


def test_a_streams_source_hangs_below_its_attempt_and_its_consumer_does_not(stage, traced, tracing):
    async def source():
        traced.inner("opened")
        yield 1
        traced.inner("went on")

    async def main():
        with traced.tracer.start_as_current_span("request"):
            async with stage.recovery().stream(source)() as stream:
                async for _ in stream:
                    traced.inner("consumer")

    stage.run(main())
    assert [traced.parent(name) for name in ("opened", "went on", "consumer")] == ["attempt 1", "attempt 1", "request"]


def test_a_block_is_an_attempt(stage, traced, tracing):
    for attempt in stage.recovery():
        with attempt:
            traced.inner(f"inner {attempt.number}")
            if attempt.number == 1:
                raise ConnectionResetError("once")
    assert [traced.parent(f"inner {n}") for n in (1, 2)] == ["attempt 1", "attempt 2"]


def test_calls_at_once_do_not_mix(stage, traced, tracing):
    async def call(name):
        await asyncio.sleep(0.1)
        traced.inner(name)
        await asyncio.sleep(0.1)

    async def main():
        await asyncio.gather(*(stage.recovery(f"tool:{n}").call(call, f"inner {n}") for n in range(20)))

    stage.run(main())
    spans = traced.exporter.get_finished_spans()
    by_id = {span.context.span_id: span for span in spans}
    for span in spans:
        if span.name.startswith("inner"):
            whole = by_id[by_id[span.parent.span_id].parent.span_id]
            assert whole.name == f"recover tool:{span.name.removeprefix('inner ')}"


# Ends that are no ends


@pytest.mark.parametrize("steps", ["hang", "529, hang", "429;retry-after=60"])
def test_cancellation_ends_every_span_and_is_no_error(stage, traced, tracing, steps):
    async def main():
        task = asyncio.create_task(stage.recovery().call(script(steps).acall))
        await asyncio.sleep(5)
        task.cancel()
        await asyncio.wait([task])

    stage.run(main())
    whole = traced.spans["recover claude"]
    assert whole.attributes["holdfast.outcome"] == "cancelled"
    assert whole.status.status_code is StatusCode.UNSET
    assert len(traced.names) == 1 + whole.attributes["holdfast.attempts"]


def test_a_stream_that_is_left_early_ends_its_spans(stage, traced, tracing):
    async def source():
        yield 1
        yield 2

    async def main():
        async with stage.recovery().stream(source)() as stream:
            async for _ in stream:
                break

    stage.run(main())
    assert traced.names == ["attempt 1", "recover claude"]


def test_a_call_that_the_collector_closes_ends_its_spans_and_complains_to_nobody(stage, traced, tracing, caplog):
    async def wait():
        await asyncio.get_running_loop().create_future()

    async def main():
        call = stage.recovery("claude", STEADY.replace(timeout=None, patience=None)).call(wait)
        contextvars.copy_context().run(call.send, None)
        del call
        gc.collect()

    with caplog.at_level(logging.WARNING):
        stage.run(main())
    assert traced.spans["recover claude"].attributes["holdfast.outcome"] == "cancelled"
    assert [record for record in caplog.records if record.name.startswith("opentelemetry")] == []


def test_operations_whose_end_is_never_reported_are_ended_as_unknown(traced, monkeypatch):
    monkeypatch.setattr(sink, "Tracker", functools.partial(Tracker, 3))
    tracing = sink._Tracing(traced.tracer, first_attempts=True)

    def begin_five():
        for number in range(5):
            tracing.attempt_started(AttemptStarted(at=1.0, run=str(number), attempt=1))

    contextvars.copy_context().run(begin_five)
    assert len(tracing._traces) == 3
    lost = [span for span in traced.exporter.get_finished_spans() if span.name == "recover"]
    assert [span.attributes["holdfast.outcome"] for span in lost] == ["unknown"] * 2
    tracing.stop()
    assert len(traced.exporter.get_finished_spans()) == 10


# Less of it


def test_without_first_attempts_a_call_that_works_is_one_span(stage, traced):
    with trace_recoveries(traced.provider, stage.runtime, first_attempts=False):
        stage.recovery().call(traced.inner)
    assert traced.names == ["inner", "recover claude"]
    assert traced.parent("inner") == "recover claude"


def test_without_first_attempts_one_that_failed_still_has_its_span(stage, traced):
    with trace_recoveries(traced.provider, stage.runtime, first_attempts=False):
        stage.play("529, ok")
    assert traced.names == ["attempt 1", "attempt 2", "recover claude"]
    first = traced.spans["attempt 1"]
    assert first.attributes["error.type"] == "PROVIDER_OVERLOADED"
    assert traced.parent("attempt 1") == "recover claude"


def test_what_is_not_sampled_costs_no_children_and_passes_the_verdict_on(stage):
    seen = []
    with trace_recoveries(TracerProvider(sampler=ALWAYS_OFF), stage.runtime):
        stage.recovery().call(lambda: seen.append(otel.get_current_span()))
        stage.play("529, 529, ok")
        stage.play("401")
    (inside,) = seen
    assert inside.get_span_context().is_valid
    assert not inside.get_span_context().trace_flags.sampled


def test_without_an_sdk_nothing_happens(stage):
    with trace_recoveries(otel.NoOpTracerProvider(), stage.runtime):
        assert stage.play("529, ok:hello") == "hello"


# Names and secrets


def test_the_attribute_names_are_the_conventions_own_at_the_stated_version():
    ours = {
        value for name, value in vars(conventions).items() if isinstance(value, str) and value.startswith("gen_ai.")
    }
    assert ours <= {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    assert set(conventions._PROVIDERS.values()) <= {name.value for name in gen_ai_attributes.GenAiProviderNameValues}
    assert conventions.ERROR_TYPE == error_attributes.ERROR_TYPE
    assert Schemas.V1_41_0.value == conventions.SCHEMA_URL


@pytest.mark.parametrize(
    ("operation", "attributes"),
    [
        ("tool:bash", {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "bash"}),
        ("agent:builder", {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "builder"}),
        ("model:opus", {"gen_ai.request.model": "opus"}),
        ("OpenAI", {"gen_ai.provider.name": "openai"}),
        ("claude/opus", {"gen_ai.provider.name": "anthropic", "gen_ai.request.model": "opus"}),
        ("my_function", {}),
        ("", {}),
    ],
)
def test_a_target_has_the_attributes_of_the_conventions(operation, attributes):
    named = {"holdfast.operation": operation} if operation else {}
    assert conventions.attributes_of(operation) == {**named, **attributes}


def test_the_spans_say_which_version_names_them(stage, traced, tracing):
    stage.play("ok")
    scope = traced.spans["recover claude"].instrumentation_scope
    assert (scope.name, scope.schema_url) == ("holdfast", "https://opentelemetry.io/schemas/1.41.0")


def test_names_made_up_per_call_do_not_fill_the_memory(stage, traced):
    tracing = sink._Tracing(traced.tracer, first_attempts=True)
    for number in range(sink._MOST_NAMES + 10):
        tracing._learn(f"call {number}")
    assert len(tracing._known) <= sink._MOST_NAMES


def test_B105_no_key_and_no_content_is_in_a_span(stage, traced, tracing):
    failures = [ConnectionResetError(f"key {CANARY} in {PROMPT}"), PermissionError(f"key {CANARY} in {PROMPT}")]
    stage.play(script(failures).acall)
    whole = "".join(span.to_json() for span in traced.exporter.get_finished_spans())
    assert "TOOL_FORBIDDEN" in whole
    assert [secret for secret in (CANARY, PROMPT) if secret in whole] == []


def test_R25_a_tracer_that_raises_changes_nothing(stage, caplog):
    class Broken(otel.NoOpTracerProvider):
        def get_tracer(self, *args, **kwargs):
            class Tracer(otel.NoOpTracer):
                def start_span(self, *args, **kwargs):
                    raise RuntimeError("collector gone")

            return Tracer()

    with trace_recoveries(Broken(), stage.runtime):
        assert stage.play("529, ok:hello") == "hello"
        assert stage.play("ok:again") == "again"
    assert "collector gone" in caplog.text


def test_the_span_of_an_operation_says_what_its_answer_used_and_for_which_request(stage, traced, tracing):
    answer = {
        "model": "claude-opus-4-1",
        "usage": {"input_tokens": 100, "output_tokens": 20, "cache_read_input_tokens": 50},
    }
    calls = []

    async def call():
        calls.append(1)
        if len(calls) == 1:
            raise ConnectionResetError
        return answer

    with holdfast.request("req-1"):
        stage.play(call)
    told = traced.spans["recover claude"].attributes
    assert told[gen_ai_attributes.GEN_AI_RESPONSE_MODEL] == "claude-opus-4-1"
    assert told[gen_ai_attributes.GEN_AI_USAGE_INPUT_TOKENS] == 150
    assert told[gen_ai_attributes.GEN_AI_USAGE_OUTPUT_TOKENS] == 20
    assert told["holdfast.cost_usd"] == pytest.approx(100 * 15e-6 + 20 * 75e-6 + 50 * 1.5e-6)
    assert told["holdfast.request"] == "req-1"
    # They stand on the span, and not once more on each of its events.
    assert set(traced.spans["recover claude"].events[0].attributes).isdisjoint({"holdfast.request", "holdfast.began"})
