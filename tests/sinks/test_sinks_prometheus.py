"""Prometheus: what its names say is what is counted, and the number of series is bounded."""

from __future__ import annotations

import asyncio

import msgspec
import prometheus_client
import pytest
from sinks_scenes import CANARY, STEADY

from holdfast import Circuit, Fault, InvalidError
from holdfast.events import AgentFallback, AttemptEnded, CircuitState, CircuitStateChange, Recovered
from holdfast.sinks import count_events
from holdfast.testing import script


class Counted:
    def __init__(self, runtime, **options):
        self.registry = prometheus_client.CollectorRegistry()
        self.subscription = count_events(self.registry, runtime, **options)

    def __call__(self, name, **labels):
        return self.registry.get_sample_value(f"holdfast_{name}", labels)

    def text(self):
        return prometheus_client.generate_latest(self.registry).decode()

    def labels(self, metric, label):
        families = {family.name: family for family in self.registry.collect()}
        return {sample.labels[label] for sample in families[f"holdfast_{metric}"].samples}


@pytest.fixture
def counted(stage):
    return Counted(stage.runtime)


def test_operations_are_counted_once_by_how_they_ended(stage, counted):
    for steps in ("ok", "ok", "529, ok", "529*3", "401"):
        stage.play(steps)
    outcomes = {o: counted("operations_total", target="claude", outcome=o) for o in ("ok", "recovered", "failed", "cancelled")}  # fmt: skip
    assert outcomes == {"ok": 2, "recovered": 1, "failed": 2, "cancelled": None}
    assert counted("give_ups_total", target="claude", code="AUTH_FAILED") == 1
    assert counted("give_ups_total", target="claude", code="PROVIDER_OVERLOADED") == 1


def test_attempts_are_counted_by_what_they_failed_with(stage, counted):
    stage.play("529, 503, ok")
    codes = {code: counted("attempts_total", target="claude", code=code) for code in ("OK", "PROVIDER_OVERLOADED", "PROVIDER_UNAVAILABLE")}  # fmt: skip
    assert codes == {"OK": 1, "PROVIDER_OVERLOADED": 1, "PROVIDER_UNAVAILABLE": 1}


def test_recovery_takes_its_time(stage, counted):
    stage.play("529, 529, ok")
    assert counted("recovery_seconds_sum", target="claude") == 3.0
    assert counted("recovery_seconds_bucket", target="claude", le="2.5") == 0
    assert counted("recovery_seconds_bucket", target="claude", le="5.0") == 1
    assert counted("retry_wait_seconds_total", target="claude") == 3.0


def test_fallbacks_and_lesser_answers(stage, counted):
    @stage.recovery()
    async def answer():
        raise PermissionError("no")

    answer.fallback(script("503, ok").acall)
    answer.degraded(lambda fault: "sorry")
    assert stage.run(answer()) == "sorry"
    stage.run(answer())
    assert counted("fallbacks_total", target="claude") == 2
    assert counted("operations_total", target="claude", outcome="degraded") == 1
    assert counted("operations_total", target="claude", outcome="recovered") == 1
    assert counted("operations_total", target="claude", outcome="ok") is None


def test_an_agent_that_takes_over_is_a_fallback(stage, counted):
    common = {"at": 1.0, "run": "r", "operation": "agent:opus"}
    for event in (
        AgentFallback(**common, from_="opus", to="haiku"),
        AttemptEnded(**common, attempt=1, took=1.0, via="haiku"),
        Recovered(**common, after=1.0, attempts=1, via="haiku"),
    ):
        stage.runtime.bus.emit(event)
    assert counted("fallbacks_total", target="agent:opus") == 1
    assert counted("operations_total", target="agent:opus", outcome="recovered") == 1
    assert counted("operations_total", target="agent:opus", outcome="ok") is None


ANSWER = {
    "model": "claude-opus-4-1",
    "usage": {"input_tokens": 1000, "output_tokens": 200, "cache_read_input_tokens": 50},
}


def test_a_dead_target_gets_no_credit_for_the_answers_of_its_fallback(stage, counted):
    @stage.recovery()
    async def answer():
        raise PermissionError("no")

    @answer.fallback
    async def other():
        return ANSWER

    stage.run(answer())
    stage.play("ok")
    stage.play("529, ok")
    answers = {by: counted("answers_total", target="claude", by=by) for by in ("own", "retry", "fallback", "lesser")}
    assert answers == {"own": 1, "retry": 1, "fallback": 1, "lesser": None}


def test_what_recovery_costs_stands_beside_what_the_answers_cost(stage, counted):
    calls = []

    async def answer():
        calls.append(1)
        if len(calls) == 2:
            raise ConnectionResetError
        return ANSWER

    stage.run(stage.recovery().call(answer))
    stage.run(stage.recovery().call(answer))
    dollars = 1000 * 15e-6 + 200 * 75e-6 + 50 * 1.5e-6
    assert counted("cost_usd_total", target="claude", why="first") == pytest.approx(dollars)
    assert counted("cost_usd_total", target="claude", why="retry") == pytest.approx(dollars)
    assert counted("cost_usd_total", target="claude", why="fallback") is None
    kinds = {kind: counted("tokens_total", target="claude", kind=kind) for kind in ("in", "out", "cached")}
    assert kinds == {"in": 2000, "out": 400, "cached": 100}


def test_waits_are_counted_by_what_they_are_for(stage, counted):
    async def answer():
        await asyncio.sleep(3)

    async def both():
        call = stage.recovery(policy=STEADY.replace(concurrency=1)).call
        await asyncio.gather(call(answer), call(answer))

    stage.run(both())
    assert counted("wait_seconds_total", target="claude", reason="place") == 3.0


def test_R45_a_cancelled_operation_is_no_failure(stage, counted):
    async def main():
        task = asyncio.create_task(stage.recovery().call(script("hang").acall))
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait([task])

    stage.run(main())
    assert counted("operations_total", target="claude", outcome="cancelled") == 1
    assert counted("operations_total", target="claude", outcome="failed") is None


def test_R35_a_retry_that_was_not_allowed_is_counted(stage, counted):
    stage.play("429;retry-after=600", policy=STEADY.replace(deadline=60))
    assert counted("retries_denied_total", target="claude", because="SYS_DEADLINE_EXCEEDED") == 1


def test_circuits_show_their_state(stage, counted):
    policy = STEADY.replace(attempts=1, circuit=Circuit(failures=1, open_for=5))
    stage.play("529", policy=policy)
    assert counted("circuit_state", circuit="provider:claude") == 2
    stage.clock.advance(6)
    stage.play("ok", policy=policy)
    assert counted("circuit_state", circuit="provider:claude") == 0
    assert counted("circuit_changes_total", circuit="provider:claude", to="half-open") == 1


# Bounds


def test_B107_targets_beyond_the_cap_are_counted_together(stage):
    counted = Counted(stage.runtime, most_targets=3)
    for number in range(50):
        stage.play("ok", target=f"tool:{number}")
        change = CircuitStateChange(at=1.0, circuit=f"c{number}", from_=CircuitState.CLOSED, to=CircuitState.OPEN)
        stage.runtime.bus.emit(change)
    assert counted.labels("operations", "target") == {"tool:0", "tool:1", "tool:2", "other"}
    assert counted("operations_total", target="other", outcome="ok") == 47
    assert counted.labels("circuit_changes", "circuit") == {"c0", "c1", "c2", "other"}
    assert counted.labels("circuit_state", "circuit") == {"c0", "c1", "c2"}


def test_B107_no_run_and_no_text_is_a_label(stage, counted):
    seen = []
    stage.runtime.on(lambda event: seen.append(event.run))
    stage.play(script([ConnectionResetError(f"key {CANARY}"), PermissionError(f"key {CANARY}")]).acall)
    text = counted.text()
    assert 'code="TOOL_FORBIDDEN"' in text
    assert [word for word in (CANARY, seen[0]) if word in text] == []


def test_B107_a_code_that_only_a_newer_catalog_knows_is_counted_as_other(stage, counted):
    newer = msgspec.structs.replace(Fault.of("PROVIDER_OVERLOADED"), code="PROVIDER_OF_TOMORROW")
    stage.runtime.bus.emit(AttemptEnded(at=1.0, attempt=1, took=1.0, fault=newer, operation="claude"))
    assert counted.labels("attempts", "code") == {"other"}


def test_operations_whose_end_is_never_reported_are_forgotten(stage, counted):
    failed = AttemptEnded(at=1.0, attempt=1, took=1.0, fault=Fault.of("PROVIDER_OVERLOADED"), operation="claude")
    for number in range(10_001):
        stage.runtime.bus.emit(msgspec.structs.replace(failed, run=str(number)))
    ended = AttemptEnded(at=2.0, attempt=2, took=1.0, operation="claude", run="10000")
    stage.runtime.bus.emit(ended)
    stage.runtime.bus.emit(Recovered(at=2.0, after=1.0, attempts=2, operation="claude", run="10000"))
    assert counted("operations_total", target="claude", outcome="ok") is None
    assert counted("operations_total", target="claude", outcome="recovered") == 1


# Coming and going


def test_cancelling_frees_the_names_for_another(stage, counted):
    counted.subscription.cancel()
    assert list(counted.registry.collect()) == []
    with count_events(counted.registry, stage.runtime):
        stage.play("ok")
        assert counted("operations_total", target="claude", outcome="ok") == 1


def test_the_registry_is_the_processes_own_unless_one_is_given(stage):
    with count_events(runtime=stage.runtime):
        stage.play("ok")
        labels = {"target": "claude", "outcome": "ok"}
        assert prometheus_client.REGISTRY.get_sample_value("holdfast_operations_total", labels) == 1


@pytest.mark.parametrize("most", [0, -1, True, 1.5])
def test_a_wrong_cap_is_rejected_by_name(stage, most):
    with pytest.raises(InvalidError, match="most_targets"):
        count_events(prometheus_client.CollectorRegistry(), stage.runtime, most_targets=most)


def test_R25_a_registry_that_raises_changes_nothing(stage, counted, monkeypatch, caplog):
    def broken(*_):
        raise RuntimeError("disk full")

    monkeypatch.setattr(prometheus_client.Counter, "inc", broken)
    assert stage.play("529, ok:hello") == "hello"
    assert "disk full" in caplog.text
