"""Logging: quiet while all is well, one line when something recovered or was given up, the event's JSON beside it."""

from __future__ import annotations

import asyncio
import logging

import msgspec
import pytest
from sinks_scenes import CANARY, PROMPT, STEADY

from holdfast import Circuit, Fault, InvalidError, Partial
from holdfast.events import (
    KINDS,
    ActorResumed,
    AgentFallback,
    BudgetWarning,
    ChildExited,
    ChildLeaked,
    ChildRestarting,
    ChildStarted,
    ChildStopped,
    CircuitState,
    CircuitStateChange,
    Degraded,
    Failed,
    GaveUp,
    OperatorAsked,
    Recovered,
    Repaired,
    Retry,
    RetryDenied,
    SessionTurnEnd,
    SessionTurnStart,
    StagePostFired,
    StagePreFired,
    StepNotReplayed,
    StreamResumed,
    SubtaskFailed,
    SuppressedError,
    TaskDecomposed,
    TaskFinished,
    TaskHalted,
    TaskOutputRejected,
    TaskStarted,
    TaskState,
    TaskStateChange,
    UserNotified,
)
from holdfast.faults import HoldfastError
from holdfast.runtime.secrets import process_redactor
from holdfast.sinks import Levels, log_events
from holdfast.testing import Capture, script


@pytest.fixture
def logged(caplog, stage):
    """What is logged at INFO and above; DEBUG is for tests that ask for it."""
    caplog.set_level(logging.INFO, logger="holdfast")
    return lambda: [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "holdfast"]


def test_an_operation_that_recovered_is_one_line_at_info(stage, logged):
    log_events(stage.runtime)
    assert stage.play("529, 529, ok:hello") == "hello"
    assert logged() == [("INFO", "claude recovered after 3 attempts in 3.0 s (PROVIDER_OVERLOADED ×2)")]


def test_an_operation_that_was_given_up_is_one_warning(stage, logged):
    log_events(stage.runtime)
    stage.play("503, 529, 529")
    ((level, line),) = logged()
    assert level == "WARNING"
    assert line.startswith("claude failed after 3 attempts in 3.0 s (PROVIDER_OVERLOADED, 529); next to act: ")
    assert line.endswith("holdfast explain PROVIDER_OVERLOADED")


def test_a_call_that_works_logs_nothing_and_its_attempts_are_not_even_reported(stage, logged):
    log_events(stage.runtime)
    stage.play("ok")
    assert logged() == []
    assert not stage.runtime.bus.wants_attempts


def test_a_fallback_is_named_and_its_failures_counted(stage, logged):
    log_events(stage.runtime)

    @stage.recovery()
    async def answer():
        raise PermissionError("no")

    @answer.fallback
    async def by_openai():
        return "hello"

    assert stage.run(answer()) == "hello"
    assert logged() == [("INFO", "claude recovered via by_openai after 2 attempts in 0.0 s (TOOL_FORBIDDEN)")]


def test_a_lesser_answer_is_a_warning(stage, logged):
    log_events(stage.runtime)

    @stage.recovery()
    async def answer():
        raise PermissionError("no")

    answer.degraded(lambda fault: "sorry")
    assert stage.run(answer()) == "sorry"
    assert logged() == [("WARNING", "claude gave a lesser answer: degraded (TOOL_FORBIDDEN)")]


def test_circuits_warn_when_they_open_and_inform_when_they_close(stage, logged):
    log_events(stage.runtime)
    policy = STEADY.replace(attempts=1, circuit=Circuit(failures=2, open_for=5))
    for step in ("529", "529"):
        stage.play(step, policy=policy)
    stage.clock.advance(6)
    stage.play("ok", policy=policy)
    circuits = [(level, line) for level, line in logged() if line.startswith("circuit")]
    assert circuits == [
        ("WARNING", "circuit claude closed → open (PROVIDER_OVERLOADED)"),
        ("INFO", "circuit claude open → half-open"),
        ("INFO", "circuit claude half-open → closed"),
    ]


def test_at_debug_every_attempt_and_retry_has_its_line(stage, caplog):
    caplog.set_level(logging.DEBUG, logger="holdfast")
    log_events(stage.runtime)
    stage.play("429;retry-after=7, ok")
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.DEBUG and record.name == "holdfast"] == [
        "claude attempt 1 begins",
        "claude attempt 1 failed with PROVIDER_RATE_LIMITED after 0.000 s",
        "claude: attempt 1 of 3 failed (PROVIDER_RATE_LIMITED, 429); next attempt in 7.0 s, as the server requested",
        "claude attempt 2 begins",
        "claude attempt 2 ended well after 0.000 s",
    ]  # fmt: skip


def test_attempts_are_logged_on_request(stage, logged):
    log_events(stage.runtime, attempts=True, levels=Levels(attempt=logging.INFO))
    stage.play("ok")
    assert [line for _, line in logged()] == ["claude attempt 1 begins", "claude attempt 1 ended well after 0.000 s"]


def test_levels_are_the_users(stage, logged):
    log_events(stage.runtime, levels=Levels(recovered=logging.ERROR, step=logging.INFO, failed=None))
    stage.play("529, ok")
    stage.play("401")
    assert [level for level, _ in logged()] == ["INFO", "ERROR"]


def test_the_name_of_the_logger_is_the_users(stage, caplog):
    caplog.set_level(logging.INFO)
    log_events(stage.runtime, "my.app")
    log_events(stage.runtime, logging.getLogger("my.other"))
    stage.play("529, ok")
    assert [record.name for record in caplog.records] == ["my.app", "my.other"]


def test_a_percent_sign_in_a_name_is_no_format(stage, logged):
    log_events(stage.runtime)
    stage.play("529, ok", target="100%s")
    assert logged() == [("INFO", "100%s recovered after 2 attempts in 1.0 s (PROVIDER_OVERLOADED)")]


def test_a_cancelled_operation_is_forgotten(stage, caplog):
    caplog.set_level(logging.DEBUG, logger="holdfast")
    log_events(stage.runtime, attempts=False)

    async def main():
        task = asyncio.create_task(stage.recovery().call(script("529, hang").acall))
        await asyncio.sleep(2)
        task.cancel()
        await asyncio.wait([task])

    stage.run(main())
    assert [record.getMessage() for record in caplog.records if record.name == "holdfast"] == [
        "claude: attempt 1 of 3 failed (PROVIDER_OVERLOADED, 529); next attempt in 1.0 s",
        "claude was stopped in attempt 2 (CancelledError)",
    ]


def test_cancelling_the_subscription_ends_it(stage, logged):
    with log_events(stage.runtime):
        pass
    stage.play("529, ok")
    assert logged() == []


# The facts


def test_the_fields_are_those_of_the_events_json(stage, caplog):
    caplog.set_level(logging.DEBUG, logger="holdfast")
    heard = Capture()
    stage.runtime.on(heard)
    log_events(stage.runtime)
    stage.play("529, ok")
    facts = [record.holdfast for record in caplog.records if record.name == "holdfast"]
    assert facts == [msgspec.to_builtins(event) for event in heard]


def leaky(text):
    """A failure whose text quotes a key and whose partial quotes an answer."""
    fault = Fault.of("PROVIDER_OVERLOADED", f"overloaded, key {text}", partial=Partial(payload=PROMPT))
    return HoldfastError(fault)


def test_B105_no_key_and_no_content_is_in_a_record(stage, caplog, monkeypatch):
    plain = "hunter2-hunter2-hunter2"
    monkeypatch.setenv("MY_API_KEY", plain)
    process_redactor.cache_clear()
    caplog.set_level(logging.DEBUG, logger="holdfast")
    log_events(stage.runtime)
    stage.play(script([leaky(CANARY), leaky(plain), leaky(CANARY)]).acall)
    whole = str([vars(record) for record in caplog.records if record.name == "holdfast"])
    assert "failed after 3 attempts" in whole
    assert [secret for secret in (CANARY, plain, PROMPT) if secret in whole] == []
    process_redactor.cache_clear()


FAULT = Fault.of("PROVIDER_OVERLOADED")


@pytest.mark.parametrize(
    ("event", "line"),
    [
        (Recovered(at=1.0, after=0.5, attempts=2), "the call recovered after 2 attempts in 0.5 s"),
        (Failed(at=1.0, fault=FAULT, exhausted=False, attempts=0), "the call failed after 0 attempts (PROVIDER_OVERLOADED)"),
        (Recovered(at=1.0, after=0.0, took=2.8, attempts=2, via="openai"), "the call recovered via openai after 2 attempts in 2.8 s"),
        (Degraded(at=1.0, reason="529", via="cached"), "the call gave a lesser answer: cached"),
        (RetryDenied(at=1.0, attempt=1, because="SYS_BUDGET_EXHAUSTED", fault=FAULT), "the call may not retry after attempt 1: SYS_BUDGET_EXHAUSTED"),
        (AgentFallback(at=1.0, from_="opus", to="haiku", fault=FAULT), "the call falls back from opus to haiku (PROVIDER_OVERLOADED)"),
        (UserNotified(at=1.0, agent="builder", tried=("simple", "manual"), fault=FAULT), "the user was notified: builder and its understudies simple, manual failed (PROVIDER_OVERLOADED)"),
        (TaskStarted(at=1.0, operation="summary", agent="writer", depth=1), "summary begins by writer at depth 1"),
        (TaskOutputRejected(at=1.0, operation="summary", number=1, max_reasks=2, fault=FAULT), "summary: output rejected, asked again (1 of 2) (PROVIDER_OVERLOADED)"),
        (TaskOutputRejected(at=1.0, operation="summary", number=3, max_reasks=2, fault=FAULT), "summary: output rejected, given up (PROVIDER_OVERLOADED)"),
        (TaskDecomposed(at=1.0, operation="summary", parts=3, depth=1, fault=FAULT), "summary is split into 3 parts (PROVIDER_OVERLOADED)"),
        (SubtaskFailed(at=1.0, operation="part 2", depth=1, fault=FAULT, again=True), "part 2 at depth 1 failed, tried once more (PROVIDER_OVERLOADED)"),
        (TaskHalted(at=1.0, operation="summary", fault=FAULT, again=True), "summary gets nowhere, another approach is tried (PROVIDER_OVERLOADED)"),
        (
            TaskStateChange(at=1.0, operation="summary", from_=TaskState.ACTIVE, to=TaskState.BLOCKED),
            "summary is blocked, was active",
        ),
        (TaskFinished(at=1.0, operation="summary", took=2.5), "summary ended well after 2.500 s"),
        (OperatorAsked(at=1.0, operation="pay(5)", attempts=1, fault=Fault.of("TOOL_OUTCOME_UNKNOWN")), "pay(5) may have happened, and somebody has to find out (TOOL_OUTCOME_UNKNOWN)"),
        (OperatorAsked(at=1.0, operation="workflow review", attempts=3, fault=FAULT), "workflow review failed 3 times, and the operator is asked (PROVIDER_OVERLOADED)"),
        (UserNotified(at=1.0, agent="builder"), "the user was notified: builder failed"),
        (SessionTurnStart(at=1.0, number=3), "turn 3 begins"),
        (SessionTurnEnd(at=1.0, number=2, outcome="fail", stages=("a", "b"), fault=FAULT), "turn 2 (a, b) ended: fail (PROVIDER_OVERLOADED)"),
        (StepNotReplayed(at=1.0, operation="pay(5)", key="s/pay@5f1c"), "pay(5) was done in an earlier run, and the program ended without calling it: was it renamed or moved?"),
        (StagePreFired(at=1.0, stage="plan", phase="Act", attempt=2), "stage plan enters Act, attempt 2"),
        (StagePostFired(at=1.0, stage="plan", phase="Assert", attempt=2, outcome="retry"), "stage plan leaves Assert, attempt 2: retry"),
        (Repaired(at=1.0, attempt=1, action="compact", fault=FAULT), "the call retries after compact (PROVIDER_OVERLOADED)"),
        (StreamResumed(at=1.0, how="restart", items=3, operation="claude"), "claude stream begins again after 3 items"),
        (StreamResumed(at=1.0, how="continue", items=3, operation="claude"), "claude stream goes on after 3 items"),
        (BudgetWarning(at=1.0, unit="usd", used=0.41, limit=0.5), "budget nearly spent: $0.41 of $0.50"),
        (BudgetWarning(at=1.0, unit="usd", used=0.001286, limit=0.0005), "budget overspent: $0.0013 used, the limit is $0.0005"),
        (BudgetWarning(at=1.0, unit="tokens", used=12_000, limit=15_000), "budget nearly spent: 12,000 tokens of 15,000 tokens"),
        (BudgetWarning(at=1.0, unit="attempts", used=1, limit=1), "budget spent: all of 1 attempt"),
        (BudgetWarning(at=1.0, unit="seconds", used=41.52, limit=50), "budget nearly spent: 41.5 s of 50.0 s"),
        (SuppressedError(at=1.0, reason="the cache failed", cause=PROMPT, code="SYS_UNKNOWN"), "a failure was ignored: the cache failed (SYS_UNKNOWN)"),
        (CircuitStateChange(at=1.0, circuit="c", from_=CircuitState.OPEN, to=CircuitState.CLOSED), "circuit c open → closed"),
        (ActorResumed(at=1.0, actor="team/coder", message="Coder.review", fault=FAULT), "team/coder goes on after a failure in Coder.review (PROVIDER_OVERLOADED)"),
        (ChildStarted(at=1.0, supervisor="team", child="coder", incarnation=1), "team/coder started"),
        (ChildStarted(at=1.0, supervisor="team", child="coder", incarnation=2), "team/coder started again (incarnation 2)"),
        (ChildExited(at=1.0, supervisor="team", child="coder", incarnation=1, reason="raised E", fault=FAULT), "team/coder raised E (PROVIDER_OVERLOADED)"),
        (ChildRestarting(at=1.0, supervisor="team", child="coder", attempt=2, delay=1.5), "team restarts coder in 1.5 s, attempt 2"),
        (ChildStopped(at=1.0, supervisor="team", child="coder", incarnation=1), "team/coder stopped"),
        (ChildLeaked(at=1.0, supervisor="team", child="coder", incarnation=1), "team/coder ignored its cancellation"),
        (GaveUp(at=1.0, supervisor="team", child="coder", restarts=1, window=60, fault=FAULT), "team gave up: coder ended after 1 restart in 60 s (PROVIDER_OVERLOADED)"),
        (GaveUp(at=1.0, supervisor="team", child="coder", restarts=3, window=60, child_only=True), "team gave coder up after 3 restarts in 60 s"),
    ],
)  # fmt: skip
def test_every_kind_has_its_line(stage, caplog, event, line):
    caplog.set_level(logging.DEBUG, logger="holdfast")
    log_events(stage.runtime)
    stage.runtime.bus.emit(event)
    (record,) = caplog.records
    assert record.getMessage().startswith(line)


def test_no_kind_of_event_is_forgotten(stage):
    log_events(stage.runtime, attempts=True)
    assert [kind for kind in KINDS if not stage.runtime.bus.wants(kind)] == []


# Bad input and bad readers


def test_R25_a_logger_that_raises_changes_nothing(stage, caplog):
    class Broken(logging.Logger):
        def log(self, *args, **kwargs):
            raise RuntimeError(f"disk full {CANARY}")

    log_events(stage.runtime, Broken("broken"))
    assert stage.play("529, ok:hello") == "hello"
    (report,) = [record.getMessage() for record in caplog.records]
    assert "disk full" in report
    assert CANARY not in report


@pytest.mark.parametrize(
    "options",
    [{"logger": 7}, {"levels": {"failed": 10}}, {"runtime": "mine"}],
    ids=["logger", "levels", "runtime"],
)
def test_wrong_options_are_rejected_by_name(options):
    with pytest.raises(InvalidError, match=next(iter(options))):
        log_events(**options)


@pytest.mark.parametrize("level", ["INFO", True, -1, 1.5])
def test_a_wrong_level_is_rejected_by_name(level):
    with pytest.raises(InvalidError, match=r"levels\.failed"):
        Levels(failed=level)


def test_the_summary_survives_an_operation_that_never_ends(stage, caplog):
    """An operation whose end is never reported must not be remembered for ever."""
    caplog.set_level(logging.INFO, logger="holdfast")
    log_events(stage.runtime)
    retry = Retry(at=1.0, attempt=1, max_attempts=3, delay=1.0, fault=FAULT)
    for number in range(10_001):
        stage.runtime.bus.emit(msgspec.structs.replace(retry, run=str(number)))
    for run in ("0", "10000"):
        stage.runtime.bus.emit(Recovered(at=2.0, run=run, after=1.0, attempts=2))
    assert [record.getMessage().endswith("(PROVIDER_OVERLOADED)") for record in caplog.records] == [False, True]
