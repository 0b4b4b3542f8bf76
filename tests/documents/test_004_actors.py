"""Document 004, the error model of actors: section by section, in its order."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import time
from pathlib import Path

import pytest

from holdfast import Ok, Policy, Runtime, documents, recover
from holdfast.actors import (
    BY_KIND,
    Child,
    GaveUpError,
    Group,
    Health,
    MessageActor,
    MessageSupervisor,
    VirtualActor,
    VirtualActors,
)
from holdfast.actors import Actor as StatefulActor
from holdfast.actors import Supervisor as Tree
from holdfast.agents import CommandActor, CommandAgent
from holdfast.config import read
from holdfast.documents.actor import (
    AKKA_SAMPLE,
    Actor,
    ActorError,
    ActorInitializationError,
    ActorKilledError,
    BashActor,
    CancellableOperation,
    CircuitBreaker,
    CircuitBreakerConfig,
    ClaudeActor,
    Errors,
    Message,
    OperationCancelledError,
    OperationTimeoutError,
    Response,
    RetryConfig,
    Strategy,
    Supervisor,
    SupervisorConfig,
    UnexpectedFailure,
    ValidationError,
    create_bash_actor,
    create_message,
    decide,
    with_retry,
    with_timeout,
)
from holdfast.documents.task import TaskSystem
from holdfast.events import ActorResumed, ChildExited, ChildRestarting, GaveUp, Retry, TaskState, TaskStateChange
from holdfast.faults import CATALOG, CircuitOpenError, Err, Fault, HoldfastError, InvalidError, Kind
from holdfast.policies.profiles import ACTOR
from holdfast.profiles import phase, policy_of
from holdfast.stores import MemoryStore
from holdfast.supervision.directive import directive_for
from holdfast.tasks import Task, TaskResult
from holdfast.tasks.state import changed
from holdfast.testing import VirtualClock, forget_targets, run
from holdfast.views import response as view

SUPPORTED = ["get", "observe", "update", "start", "spawn", "eval", "complete", "block"]


class TaskActor(Actor):
    """The actor of the document's examples."""

    def __init__(self, id="task-1"):  # noqa: A002
        super().__init__(id)
        self.notes = []

    def on_get(self, payload):
        return payload

    def on_update(self, payload):
        self.notes.append(payload)
        return list(self.notes)

    async def on_eval(self, payload):
        raise payload

    async def on_block(self, payload):
        await asyncio.sleep(payload)

    on_observe = on_start = on_spawn = on_complete = on_get


class Scene:
    """Virtual time, a runtime, and its events."""

    def __init__(self):
        self.clock = VirtualClock()
        self.runtime = Runtime(clock=self.clock)
        self.events = []
        self.runtime.on(self.events.append)

    def of(self, kind):
        return [event for event in self.events if isinstance(event, kind)]

    def play(self, main):
        return run(main, clock=self.clock)


@pytest.fixture
def scene():
    forget_targets()
    return Scene()


def failed(error: ActorError) -> Response:
    return view.failed(error)


# 1. The taxonomy


@pytest.mark.parametrize(
    ("code", "kind", "error_type"),
    [
        ("CONN_TIMEOUT", Kind.TRANSIENT, "transient"),
        ("PROVIDER_RATE_LIMITED", Kind.TRANSIENT, "transient"),
        ("PROTO_INVALID_MESSAGE", Kind.RECOVERABLE, "validation"),
        ("TOOL_EXECUTION_FAILED", Kind.RECOVERABLE, "validation"),
        ("SYS_INTERNAL_ERROR", Kind.FATAL, "fatal"),
        ("SYS_PROGRAMMING_ERROR", Kind.FATAL, "fatal"),
        ("AUTH_FAILED", Kind.PERMANENT, "permanent"),
        ("CONFIG_OPTION_INVALID", Kind.PERMANENT, "permanent"),
    ],
)
def test_S4_1_four_categories_of_errors(code, kind, error_type):
    """Transient, recoverable, fatal and permanent errors, each with the document's examples."""
    assert CATALOG[code].kind is kind
    assert view.write(Fault.of(code))["error"]["type"] == error_type


def test_S4_1_each_category_has_its_recovery(scene):
    """Transient errors are retried, recoverable ones returned, fatal ones restart the actor, permanent ones escalate."""
    assert [directive_for(Fault.of(code), on=BY_KIND) for code in ("CONN_TIMEOUT", "PROTO_INVALID_MESSAGE")] == [
        "resume"
    ] * 2
    assert directive_for(Fault.of("SYS_INTERNAL_ERROR"), on=BY_KIND) == "restart"
    assert directive_for(Fault.of("AUTH_FAILED"), on=BY_KIND) == "escalate"
    calls = []

    async def call(code):
        calls.append(code)
        raise HoldfastError(Fault.of(code))

    async def main():
        for code in ("CONN_TIMEOUT", "AUTH_FAILED"):
            with pytest.raises(HoldfastError):
                await recover("service:net", policy_of(ACTOR), effect="read", runtime=scene.runtime).call(call, code)

    scene.play(main())
    assert calls == ["CONN_TIMEOUT"] * 3 + ["AUTH_FAILED"]


@pytest.mark.parametrize(
    ("answers", "strategy"),
    [
        ({"expected": True, "temporary": True}, Strategy.RETURN),
        ({"temporary": True, "can_continue": True}, Strategy.RETRY),
        ({"can_continue": True, "restart_helps": True}, Strategy.CONTINUE),
        ({"restart_helps": True}, Strategy.RESTART),
        ({}, Strategy.ESCALATE),
    ],
)
def test_S4_2_the_decision_tree_asks_in_its_order(answers, strategy):
    """Expected? temporary? can we continue? can a restart help? The first yes decides, else escalate."""
    assert decide(**answers) is strategy


# 2. Patterns of actor systems


@pytest.mark.parametrize(
    ("strategy", "again"),
    [("one_for_one", ["b"]), ("one_for_all", ["a", "b", "c"]), ("rest_for_one", ["b", "c"])],
)
def test_S4_3_erlangs_strategies_restart_who_they_should(strategy, again, scene):
    """A crash is isolated, supervisors restart automatically: only the child, all of them, or it and those after it."""
    starts = []

    async def child(name):
        starts.append(name)
        if name == "b" and starts.count("b") == 1:
            await asyncio.sleep(1)
            raise RuntimeError("crash")
        await asyncio.Event().wait()

    async def main():
        children = [Child(child, name, id=name) for name in "abc"]
        async with Tree("team", strategy=strategy, children=children, runtime=scene.runtime):
            await asyncio.sleep(2)

    scene.play(main())
    assert starts == ["a", "b", "c", *again]


def test_S4_3_a_template_makes_dynamic_children(scene):
    """simple_one_for_one has dynamic children with one restart strategy."""
    starts = []

    async def fetch(name):
        starts.append(name)
        if starts.count(name) == 1:
            raise RuntimeError("crash")
        await asyncio.Event().wait()

    async def main():
        async with Tree("pool", strategy="simple_one_for_one", children=[Child(fetch)], runtime=scene.runtime) as pool:
            for name in ("x", "y"):
                await pool.spawn(name)
            await asyncio.sleep(1)
            return (await pool.count_children()).active

    assert scene.play(main()) == 2
    assert sorted(starts) == ["x", "x", "y", "y"]


class Counter(StatefulActor):
    def __init__(self):
        self.count = 0

    async def add(self, error=None):
        self.count += 1
        if error is not None:
            raise error
        return self.count


@pytest.mark.parametrize(
    ("error", "directive"),
    [
        (ZeroDivisionError(), "resume"),
        (AttributeError(), "restart"),
        (ValueError(), "stop"),
        (ActorKilledError(), "stop"),
        (ImportError(), "escalate"),
        (OSError(), "escalate"),
    ],
)
def test_S4_4_akkas_directives_do_what_the_sample_says(error, directive, scene):
    """Resume keeps the state, restart makes it anew, stop ends the actor, escalate fails the supervisor."""
    seen = []

    async def main():
        async with Tree("team", runtime=scene.runtime) as team:
            ref = await team.start(Counter, on=AKKA_SAMPLE)
            await ref.ask(Counter.add)
            await ref.outcome(Counter.add, error)
            outcome = await ref.outcome(Counter.add)
            seen.append(outcome.value if isinstance(outcome, Ok) else outcome.fault.code)

    if directive == "escalate":
        with pytest.raises(GaveUpError):
            scene.play(main())
        return
    scene.play(main())
    assert seen == {"resume": [3], "restart": [1], "stop": ["ACTOR_STOPPED"]}[directive]
    assert bool(scene.of(ActorResumed)) is (directive == "resume")


def test_S4_4_validation_is_protocol_and_the_unexpected_is_the_supervisors():
    """ValidationError is part of the protocol; UnexpectedFailure with its cause is supervision territory."""

    class Checked(TaskActor):
        def on_start(self, payload):
            return ValidationError(field="goal", message="is missing")

    async def main():
        async with Supervisor() as supervisor:
            await supervisor.supervise(Checked)
            first = supervisor.get("task-1")
            wrong = await supervisor.send("task-1", create_message("start"))
            kept = supervisor.get("task-1") is first
            failure = UnexpectedFailure("database", "connection lost")
            crash = await supervisor.send("task-1", create_message("eval", failure))
            return wrong["error"], kept, failure.document, crash["error"], supervisor.get("task-1") is first

    error, kept, document, crash, is_same = asyncio.run(main())
    assert (error["type"], error["context"], kept) == ("validation", {"field": "goal"}, True)
    assert document == {"type": "failure", "cause": "database", "message": "connection lost"}
    assert (crash["code"], is_same) == ("ACTOR_CRASHED", False)


def test_S4_4_an_actor_that_cannot_be_made_is_tried_again_within_the_budget():
    """A failed initialisation always restarts, within the restart budget."""
    made = []

    def factory():
        made.append(1)
        if len(made) in (2, 3):
            raise RuntimeError("no memory yet")
        return TaskActor()

    async def main():
        async with Supervisor(max_restarts=3) as supervisor:
            await supervisor.supervise(factory)
            return await supervisor.send("task-1", create_message("eval", RuntimeError("x")))

    assert asyncio.run(main())["error"]["context"] == {"restartCount": 3}
    assert len(made) == 4


@pytest.mark.parametrize("strategy", ["one-for-one", "one-for-all"])
def test_S4_4_an_actor_that_is_killed_stops_and_is_not_restarted(strategy, scene):
    """ActorKilledException: stop the actor. It is removed at once, its hook runs, and no other actor is touched."""
    stopped = []

    class Hooked(TaskActor):
        async def stop(self):
            stopped.append(self.id)

    async def main():
        async with Supervisor(strategy=strategy, runtime=scene.runtime) as supervisor:
            await supervisor.supervise(Hooked)
            await supervisor.supervise(lambda: Hooked("other"))
            other = supervisor.get("other")
            killed = await supervisor.send("task-1", create_message("eval", ActorKilledError("enough")))
            gone = await supervisor.send("task-1", create_message("get"))
            return killed["error"], gone["error"]["code"], supervisor.get("other") is other, supervisor.ids, [*stopped]

    killed, gone, is_same, ids, ended = scene.play(main())
    assert (killed["type"], killed["code"], killed["context"]) == ("fatal", "ACTOR_CRASHED", {"restartCount": 0})
    assert "enough" in killed["message"]
    assert (gone, is_same, ids, ended) == ("ACTOR_NOT_FOUND", True, ["other"], ["task-1"])
    assert [event.child for event in scene.of(ChildExited)] == ["task-1"]
    assert not scene.of(ChildRestarting)
    assert not scene.of(GaveUp)


def test_S4_4_a_factory_that_kills_its_actor_ends_the_restarts(scene):
    """ActorKilledException: stop, also where it is raised while a successor is made."""
    scene.runtime = Runtime(clock=scene.clock, profile="actor")
    made = []

    def factory():
        made.append(1)
        if len(made) != 1:
            raise ActorKilledError("enough")
        return TaskActor()

    async def main():
        async with Supervisor(runtime=scene.runtime) as supervisor:
            await supervisor.supervise(factory)
            await supervisor.send("task-1", create_message("eval", RuntimeError("x")))
            with pytest.raises(ActorKilledError):
                await supervisor.supervise(factory)
            return supervisor.ids

    assert scene.play(main()) == []
    assert len(made) == 3


@pytest.mark.parametrize(("failures", "starts"), [(2, 3), (3, 4), (99, 4)])
def test_S4_4_with_the_profile_the_first_start_is_tried_again_within_the_budget(failures, starts, scene):
    """ActorInitializationException: always restart; when the budget is used up, the caller gets the typed error."""
    scene.runtime = Runtime(clock=scene.clock, profile="actor")
    scene.runtime.on(scene.events.append)
    made = []

    def factory():
        made.append(1)
        if len(made) <= failures:
            raise ConnectionError("no database yet")
        return TaskActor()

    async def main():
        async with Supervisor(max_restarts=3, runtime=scene.runtime) as supervisor:
            if failures < 4:
                await supervisor.supervise(factory)
                return await supervisor.send("task-1", create_message("get", 1))
            with pytest.raises(ActorInitializationError, match="no database yet") as caught:
                await supervisor.supervise(factory)
            assert isinstance(caught.value.__cause__, ConnectionError)
            assert supervisor.ids == []
            return caught.value.fault

    answer = scene.play(main())
    assert (len(made), len(scene.of(ChildRestarting))) == (starts, starts - 1)
    if failures < 4:
        assert answer["data"] == 1
    else:
        assert (answer.code, len(scene.of(GaveUp))) == ("ACTOR_START_FAILED", 1)


def test_S4_4_without_the_profile_and_in_early_phases_the_first_start_fails_at_once():
    """As in Erlang: a program that cannot start its actor learns that from the first attempt, unless it plays the document."""
    for tables in ({}, {"phase": 2}):
        runtime, made = Runtime(), []
        read(tables).apply(runtime)

        def factory(made=made):
            made.append(1)
            raise ConnectionError("no database yet")

        async def main(runtime=runtime, factory=factory):
            async with Supervisor(runtime=runtime) as supervisor:
                with pytest.raises(ConnectionError):
                    await supervisor.supervise(factory)

        asyncio.run(main())
        assert len(made) == 1


class Room(VirtualActor):
    state: dict

    async def join(self, name):
        self.state[name] = True
        return sorted(self.state)


def test_S4_5_a_virtual_actor_always_exists_with_its_state():
    """Orleans: no explicit creation, automatic instantiation, state that is persisted and restored."""

    async def main():
        async with MemoryStore() as store:
            async with VirtualActors(store) as first:
                await first.get(Room, "lobby").ask(Room.join, "ann")
            async with VirtualActors(store) as second:
                return await second.get(Room, "lobby").ask(Room.join, "bob")

    assert asyncio.run(main()) == ["ann", "bob"]


# 3.1 Result types


def test_S4_6_a_response_is_a_success_with_data_or_a_typed_error():
    """Response: success, data, error with type, code, message, retryable, context, and metadata."""

    class Claude(TaskActor):
        def on_get(self, payload):
            return {"success": True, "data": 1, "metadata": {"costUsd": 0.25, "sessionId": "s-1"}}

        def on_update(self, payload):
            return Errors.transient("NETWORK_TIMEOUT", "no answer", {"host": "a"})

    async def main():
        async with Supervisor() as supervisor:
            await supervisor.supervise(Claude)
            return [await supervisor.send("task-1", create_message(kind)) for kind in ("get", "update", "observe")]

    done, error, crash = asyncio.run(main())
    assert (done["success"], done["data"], done["metadata"]["costUsd"]) == (True, 1, 0.25)
    assert done["metadata"]["durationMs"] >= 0
    assert error["error"] == {
        "type": "transient",
        "code": "NETWORK_TIMEOUT",
        "message": "no answer",
        "retryable": True,
        "context": {"host": "a"},
    }
    assert crash["metadata"]["durationMs"] >= 0


def test_S4_6_S4_17_the_literal_of_the_samples_is_a_response_in_json():
    """`{"success": False, "error": Errors.validation(…)}`, as the samples return it, is a Response like any other."""

    class Literal(TaskActor):
        def on_get(self, payload):
            return {"success": False, "error": Errors.validation("INVALID_MESSAGE", "no payload", {"field": "payload"})}

    class Own(Actor):
        async def send(self, message: Message) -> Response:
            return {"success": False, "error": Errors.permanent("NOT_FOUND", "no node"), "metadata": {"costUsd": 1}}

    async def main():
        async with Supervisor() as supervisor:
            await supervisor.supervise(Literal)
            await supervisor.supervise(lambda: Own("own"))
            message = create_message("get")
            return [
                await Literal().send(message),
                *[await supervisor.send(name, message) for name in ("task-1", "own")],
            ]

    direct, passed_on, own = json.loads(json.dumps(asyncio.run(main())))
    assert (direct["error"], passed_on["error"]["context"]) == (passed_on["error"], {"field": "payload"})
    assert (own["error"]["type"], own["metadata"]["costUsd"]) == ("permanent", 1)


def test_S4_6_a_crash_says_how_long_it_took(scene):
    """Metadata with durationMs is there for a crash and for a timeout, too."""

    async def main():
        async with Supervisor(timeout_ms=100, runtime=scene.runtime) as supervisor:
            await supervisor.supervise(TaskActor)
            crash = await supervisor.send("task-1", create_message("eval", RuntimeError("x")))
            late = await supervisor.send("task-1", create_message("block", 60))
            return crash, late

    crash, late = scene.play(main())
    assert (crash["error"]["code"], late["error"]["code"]) == ("ACTOR_CRASHED", "TIMEOUT")
    assert crash["metadata"]["durationMs"] >= 0
    assert late["metadata"]["durationMs"] >= 0


@pytest.mark.parametrize(
    ("code", "error_type", "retryable"),
    [
        ("INVALID_MESSAGE", "validation", False),
        ("NETWORK_TIMEOUT", "transient", True),
        ("CIRCUIT_OPEN", "transient", False),
        ("TIMEOUT", "transient", True),
        ("STREAM_TIMEOUT", "transient", True),
        ("ACTOR_NOT_FOUND", "permanent", False),
        ("MAX_RESTARTS_EXCEEDED", "fatal", False),
        ("ACTOR_CRASHED", "fatal", False),
        ("UNKNOWN_MESSAGE_TYPE", "validation", False),
        ("CLAUDE_CLI_NETWORK", "transient", True),
        ("CLAUDE_CLI_ERROR", "permanent", False),
    ],
)
def test_S4_7_every_code_of_the_document_is_one_of_ours_and_comes_back(code, error_type, retryable):
    """The eleven codes, each with its type and its verdict."""
    error = {"type": error_type, "code": code, "message": "m", "retryable": retryable}
    fault = view.read({"success": False, "error": error})
    assert fault.code != "SYS_UNKNOWN"
    own = view.write(Fault.of(fault.code))["error"]
    assert (own["code"], own["type"], own["retryable"]) == (code, error_type, retryable)


def test_S4_8_what_is_expected_is_returned_and_what_is_not_is_thrown_for_the_supervisor():
    """An actor returns expected errors and throws unexpected ones."""

    class Sender(Actor):
        async def send(self, message: Message) -> Response:
            if message.payload is None:
                return failed(Errors.validation("INVALID_MESSAGE", "Message payload is invalid"))
            if message.payload == "late":
                return Err(Fault.of("CONN_TIMEOUT"))
            raise RuntimeError("unexpected")

    async def main():
        actor = Sender("a")
        returned = await actor.send(create_message("x"))
        with pytest.raises(RuntimeError, match="unexpected"):
            await actor.send(create_message("x", 1))
        async with Supervisor() as supervisor:
            await supervisor.supervise(lambda: Sender("a"))
            late = await supervisor.send("a", create_message("x", "late"))
            assert (late["error"]["code"], late["error"]["retryable"]) == ("NETWORK_TIMEOUT", True)
            return returned, await supervisor.send("a", create_message("x", 1))

    returned, crash = asyncio.run(main())
    assert returned["error"]["code"] == "INVALID_MESSAGE"
    assert crash["error"]["code"] == "ACTOR_CRASHED"


# 3.2 Retry


def flaky(times, error=None):
    """An operation that fails so many times, then answers."""

    async def call():
        call.count += 1
        return (
            failed(error or Errors.transient("NETWORK", "timeout"))
            if call.count <= times
            else {"success": True, "data": "ok"}
        )

    call.count = 0
    return call


def test_S4_9_with_retry_retries_what_is_retryable_with_growing_delays(scene):
    """Attempts, delays that double up to a cap, no sleep after the last, and the last response with the count."""
    exact = RetryConfig(max_attempts=5, initial_delay_ms=1_000, max_delay_ms=3_000, jitter=False)

    async def main():
        began = scene.clock.monotonic()
        call = flaky(9)
        response = await with_retry(call, exact, runtime=scene.runtime)
        return response, call.count, scene.clock.monotonic() - began

    response, count, took = scene.play(main())
    assert (count, took) == (5, 1 + 2 + 3 + 3)
    assert response["error"]["message"] == "Failed after 5 attempts: timeout"
    assert response["error"]["type"] == "transient"


def test_S4_9_what_is_not_retryable_is_returned_at_once_and_what_is_thrown_passes(scene):
    """A permanent error is returned unchanged after one call; a thrown one is not retried."""

    async def boom():
        boom.count += 1
        raise ConnectionError("thrown")

    boom.count = 0

    async def main():
        call = flaky(9, Errors.permanent("AUTH", "no"))
        returned = await with_retry(call, runtime=scene.runtime)
        by_type = flaky(9, Errors.transient("X", "m"))
        kept = await with_retry(by_type, is_retryable=lambda error: error["type"] != "transient", runtime=scene.runtime)
        with pytest.raises(ConnectionError, match="thrown"):
            await with_retry(boom, runtime=scene.runtime)
        return returned, call.count, kept["error"]["message"], by_type.count

    returned, count, kept, once = scene.play(main())
    assert (returned["error"]["message"], count) == ("no", 1)
    assert (kept, once, boom.count) == ("m", 1, 1)


def test_S4_9_the_literal_of_the_samples_is_retried_and_an_error_without_a_type_is_not(scene):
    """`isRetryable(error)` gets the error of the sample's literal; a text as it was before, or none, is no transient error."""

    async def main(response, *predicate):
        calls = []

        async def execute_claude():
            calls.append(1)
            return response

        return await with_retry(execute_claude, None, *predicate, runtime=scene.runtime), len(calls)

    literal = {"success": False, "error": Errors.transient("CLAUDE_CLI_NETWORK", "ECONNREFUSED"), "data": "half"}
    for predicate in ((), (lambda error: error["type"] == "transient",), (lambda error: error["retryable"] is True,)):
        response, calls = scene.play(main(literal, *predicate))
        assert (response["error"]["message"], calls) == ("Failed after 3 attempts: ECONNREFUSED", 3)
        assert (response["data"], json.loads(json.dumps(response))) == ("half", response)
        for untyped in ({"success": False, "error": "Node not found: task_123"}, {"success": False}):
            assert scene.play(main(untyped, *predicate)) == (untyped, 1)


def test_S4_9_a_retry_within_a_retry_is_counted_once_in_the_message(scene):
    """The count stands in front of the message once."""
    fast = RetryConfig(max_attempts=2, initial_delay_ms=1, jitter=False)

    async def main():
        call = flaky(99)
        return await with_retry(lambda: with_retry(call, fast, runtime=scene.runtime), fast, runtime=scene.runtime)

    assert scene.play(main())["error"]["message"] == "Failed after 2 attempts: timeout"


def test_S4_9_max_attempts_holds_whatever_the_code_is(scene):
    """fn is called maxAttempts times, as often as the caller's predicate says; only CIRCUIT_OPEN is never retried."""
    config = RetryConfig(max_attempts=4, jitter=False)
    calls = {}

    async def main():
        for code in CATALOG:
            call = flaky(99, Errors.transient(code, "m"))
            await with_retry(call, config, lambda error: True, runtime=scene.runtime)
            calls[code] = call.count

    scene.play(main())
    assert {code: count for code, count in calls.items() if count != 4} == {"CIRCUIT_OPEN": 1}


@pytest.mark.parametrize(("chance", "factor"), [(0.0, 0.5), (0.5, 1.0), (0.999999, 1.5)])
def test_S4_9_jitter_multiplies_by_half_to_one_and_a_half_and_then_comes_the_cap(chance, factor):
    """actual = min(delay x (0.5 + random), maxDelay)."""

    class Chance:
        def random(self):
            return chance

    backoff = RetryConfig(initial_delay_ms=4_000, max_delay_ms=10_000).tries.backoff
    assert backoff.delay(1, Chance()) == pytest.approx(4 * factor, rel=1e-4)
    assert backoff.delay(2, Chance()) == pytest.approx(min(10, 8 * factor), rel=1e-4)


def test_S4_10_the_documents_configurations_are_those_of_the_profile():
    """3 attempts 1 s to 10 s x2 with jitter; Claude 2 / 5 s / 10 s, its send 2 / 2 s / 5 s."""
    assert RetryConfig() == RetryConfig(
        max_attempts=3, initial_delay_ms=1_000, max_delay_ms=10_000, backoff_multiplier=2, jitter=True
    )
    claude, send = (RetryConfig.of(ACTOR.tries[name]) for name in ("claude", "claude-send"))
    assert (claude.max_attempts, claude.initial_delay_ms, claude.max_delay_ms) == (2, 5_000, 10_000)
    assert (send.max_attempts, send.initial_delay_ms, send.max_delay_ms) == (2, 2_000, 5_000)
    assert (CommandAgent(["claude"]).policy.attempts, CommandAgent(["claude"]).policy.backoff) == (
        2,
        send.tries.backoff,
    )
    assert ClaudeActor("c")._agent.policy.backoff == claude.tries.backoff


def test_S4_10_S4_13_a_command_line_agent_follows_the_profile(tmp_path):
    """With the profile actor a Claude call has two attempts and 120 s, a stream 300 s."""
    runtime = Runtime()
    read({"profile": "actor"}).apply(runtime)
    agent = CommandAgent(["claude", "-p"], runtime=runtime)
    assert (agent.policy.attempts, agent.policy.timeout) == (2, None)
    assert (agent.total(is_stream=False), agent.total(is_stream=True)) == (120, 300)
    named = CommandAgent(["claude", "-p"], total=10, runtime=runtime)
    assert (named.total(is_stream=False), named.total(is_stream=True)) == (10, 10)
    assert CommandAgent(["claude", "-p"], runtime=Runtime()).total(is_stream=True) == 3_600


# 3.3 The circuit breaker


def test_S4_11_five_failures_open_the_breaker_and_two_successes_close_it(scene):
    """Closed, open after 5 failures, half-open after 60 s, closed after 2 successes; any half-open failure reopens it."""
    breaker = CircuitBreaker(runtime=scene.runtime)
    calls = []

    async def bad():
        calls.append("bad")
        raise ConnectionError("down")

    async def good():
        calls.append("good")
        return "row"

    async def main():
        states = [breaker.state]
        for _ in range(4):
            with pytest.raises(ConnectionError):
                await breaker.execute(bad)
        assert await breaker.execute(good) == "row"
        for _ in range(5):
            assert breaker.state == "closed"
            with pytest.raises(ConnectionError):
                await breaker.execute(bad)
        states.append(breaker.state)
        before = len(calls)
        scene.clock.advance(59.9)
        with pytest.raises(CircuitOpenError, match="Circuit breaker is OPEN"):
            await breaker.execute(good)
        assert len(calls) == before
        scene.clock.advance(0.1)
        states.append(breaker.state)
        await breaker.execute(good)
        with pytest.raises(ConnectionError):
            await breaker.execute(bad)
        states.append(breaker.state)
        scene.clock.advance(59.9)
        assert breaker.state == "open"
        scene.clock.advance(0.1)
        for _ in range(2):
            await breaker.execute(good)
        # A success sets the count back: failures that are not in a row never open it.
        for _ in range(10):
            await breaker.execute(good)
            with pytest.raises(ConnectionError):
                await breaker.execute(bad)
        return [*states, breaker.state]

    assert scene.play(main()) == ["closed", "open", "half-open", "open", "closed"]
    config = CircuitBreakerConfig()
    assert (config.failure_threshold, config.success_threshold, config.timeout) == (5, 2, 60_000)


def test_S4_11_an_open_circuit_is_transient_and_not_retryable(scene):
    """An open circuit surfaces as CIRCUIT_OPEN with the document's words, and nobody retries it, whatever the predicate says."""
    breaker = CircuitBreaker(CircuitBreakerConfig(failure_threshold=1), runtime=scene.runtime)

    class Guarded(TaskActor):
        async def send(self, message):
            try:
                return {"success": True, "data": await breaker.execute(self.work)}
            except CircuitOpenError as error:
                return view.write(error.fault, literal=True)

        async def work(self):
            self.notes.append(1)
            raise ConnectionError("down")

    async def main():
        actor = Guarded()
        with pytest.raises(ConnectionError):
            await actor.send(create_message("get"))
        began = scene.clock.monotonic()
        responses = []
        for jitter in (True, False):
            for predicate in (None, lambda error: error["type"] == "transient"):

                async def send():
                    sends.append(1)
                    return await actor.send(create_message("get"))

                config = RetryConfig(max_attempts=3, jitter=jitter)
                responses.append(await with_retry(send, config, predicate, runtime=scene.runtime))
        return responses, len(actor.notes), scene.clock.monotonic() - began

    sends = []
    responses, calls, took = scene.play(main())
    expected = {
        "type": "transient",
        "code": "CIRCUIT_OPEN",
        "message": "Service temporarily unavailable",
        "retryable": False,
    }
    assert [response["error"] for response in responses] == [expected] * 4
    assert (calls, len(sends), took) == (1, 4, 0)


# 3.4 Time limits


def test_S4_12_a_timeout_names_its_operation_and_really_cancels(scene):
    """withTimeout: the text names the operation and the milliseconds, and the work has ended."""
    ended = []

    async def work():
        try:
            await asyncio.sleep(600)
        finally:
            ended.append(scene.clock.monotonic())

    async def main():
        with pytest.raises(OperationTimeoutError) as caught:
            await with_timeout(work(), 120_000, "Claude API call")
        assert ended == [120]
        assert await with_timeout(asyncio.sleep(1, "done"), 5_000, "x") == "done"

        async def slow_disk():
            raise TimeoutError("the disk")

        with pytest.raises(TimeoutError, match="the disk"):
            await with_timeout(slow_disk(), 5_000, "x")
        return caught.value.fault

    fault = scene.play(main())
    assert view.write(fault, literal=True) == {
        "success": False,
        "error": {
            "type": "transient",
            "code": "TIMEOUT",
            "message": 'Operation "Claude API call" timed out after 120000ms',
            "retryable": True,
        },
    }


def test_S4_12_a_time_limit_of_a_recovery_reads_the_same(scene):
    """The code and the text are the document's for the limit of a policy, too."""

    async def main():
        policy = Policy(timeout=0.1, attempts=1)
        with pytest.raises(TimeoutError) as caught:
            await recover("claude", policy, runtime=scene.runtime).call(asyncio.sleep, 60)
        return view.write(scene.runtime.fault_of(caught.value), literal=True)["error"]

    error = scene.play(main())
    assert (error["code"], error["message"]) == ("TIMEOUT", 'Operation "claude" timed out after 100ms')


def test_S4_12_an_operation_can_be_cancelled_and_gets_a_signal(scene):
    """CancellableOperation: the work sees the signal and ends, by its limit or by cancel()."""
    seen = []

    async def work(cancelled):
        try:
            await asyncio.sleep(600)
        finally:
            seen.append(cancelled.is_set())

    async def main():
        with pytest.raises(OperationTimeoutError, match="Operation cancelled after 100ms"):
            await CancellableOperation().execute(work, 100)
        operation = CancellableOperation()
        running = asyncio.ensure_future(operation.execute(work, 60_000))
        await asyncio.sleep(1)
        operation.cancel()
        with pytest.raises(OperationCancelledError):
            await running
        with pytest.raises(OperationCancelledError):
            await operation.execute(work, 60_000)
        fresh: CancellableOperation = CancellableOperation()
        assert await fresh.execute(lambda _: asyncio.sleep(0, "first"), 100) == "first"
        await asyncio.sleep(1)  # its timer was cleared
        return await fresh.execute(lambda _: asyncio.sleep(0, "done"), 100)

    assert scene.play(main()) == "done"
    assert seen == [True, True]


@pytest.mark.parametrize(
    ("kind", "seconds"), [("claude", 120), ("stream", 300), ("bash", 30), ("network", 30), ("db", 10), ("internal", 5)]
)
def test_S4_13_the_guidelines_are_the_limits_of_operations_that_name_none(kind, seconds, scene):
    """Claude 2 to 5 minutes, Bash 30 s, network 10 to 30 s, databases 5 to 10 s, internal operations 1 to 5 s."""

    async def main():
        with pytest.raises(OperationTimeoutError):
            await with_timeout(asyncio.sleep(9_999), operation=kind)
        return scene.clock.monotonic()

    assert scene.play(main()) == seconds


def test_S4_13_a_bash_command_has_30_seconds_and_may_have_a_limit_of_its_own():
    """BashActor: 30 seconds default, configurable per command, shorter or longer."""

    async def main():
        usual, short = BashActor("bash"), BashActor("short", timeout=0.1)
        own = {"command": "sleep 61.0430", "timeoutMs": 100}
        late = await usual.send(create_message("exec", own))
        longer = await short.send(create_message("exec", {"command": "sleep 0.3; echo done", "timeoutMs": 20_000}))
        wrong = await usual.send(create_message("exec", own | {"timeoutMs": -1}))
        return usual._timeout, late, longer, wrong

    seconds, late, longer, wrong = asyncio.run(main())
    assert seconds == ACTOR.timeout("bash") == 30
    assert (late["error"]["type"], late["error"]["code"]) == ("transient", "TIMEOUT")
    assert not living("sleep 61.0430")
    assert (longer["success"], longer["data"]["stdout"]) == (True, "done\n")
    assert wrong["error"]["code"] == "INVALID_MESSAGE"
    for none in (None, 0, -1, "100"):
        with pytest.raises(InvalidError, match=r"bash\.timeout"):
            create_bash_actor("bash", timeout=none)


def test_S4_13_a_limit_under_another_name_is_rejected_and_nothing_runs(tmp_path):
    """Configurable per command: a key that is not known is a validation error, and is not read past."""

    async def main():
        bash = BashActor("bash")
        exec_ = create_message("exec", {"command": f"touch {tmp_path}/ran", "timeout": 100})
        rejected = [await bash.send(exec_)]
        async with bash.stream(exec_) as events:
            rejected += [event["data"]["response"] async for event in events]
        claude = ClaudeActor("c", command=program(tmp_path, f"touch {tmp_path}/ran"))
        return [*rejected, await claude.send(create_message("prompt", {"prompt": "hi", "timeout": 100}))]

    for response, known in zip(asyncio.run(main()), ["command, timeoutMs"] * 2 + ["prompt"], strict=True):
        assert response["error"] == {
            "type": "validation",
            "code": "INVALID_MESSAGE",
            "message": f"Message payload is invalid: unknown key 'timeout' (it may have {known})",
            "retryable": False,
        }
    assert not (tmp_path / "ran").exists()


# 3.5 The supervisor


@pytest.mark.parametrize(("strategy", "others"), [("one-for-one", [True, False]), ("one-for-all", [False, False])])
def test_S4_14_the_strategy_says_whether_the_others_are_restarted_too(strategy, others, scene):
    """strategy: "one-for-one" makes the crashed actor anew, "one-for-all" all of them."""

    async def main():
        async with Supervisor(strategy=strategy, runtime=scene.runtime) as supervisor:
            for name in ("a", "b"):
                await supervisor.supervise(lambda name=name: TaskActor(name))
            await supervisor.send("a", create_message("update", "kept"))
            before = [supervisor.get(name) for name in ("a", "b")]
            await supervisor.send("b", create_message("eval", RuntimeError("x")))
            same = [supervisor.get(name) is was for name, was in zip("ab", before, strict=True)]
            notes = await supervisor.send("a", create_message("update", "new"))
            return same, notes["data"]

    assert scene.play(main()) == (others, ["kept", "new"] if others[0] else ["new"])


def test_S4_14_the_sample_of_a_supervisor_restarts_three_times_in_a_minute_and_then_removes(scene, caplog):
    """Crashes restart the actor and return ACTOR_CRASHED; the fourth within the window removes it; older ones are forgotten."""
    config: SupervisorConfig = {"max_restarts": 3, "window_ms": 60_000, "strategy": "one-for-one"}
    scene.runtime.log = True

    async def main():
        supervisor = Supervisor(**config, runtime=scene.runtime)
        await supervisor.supervise(lambda: TaskActor("claude-1"))
        responses = []
        for _ in range(4):
            actor = supervisor.get("claude-1")
            responses.append(await supervisor.send("claude-1", create_message("eval", RuntimeError("state is lost"))))
            assert supervisor.get("claude-1") is not actor
        gone = await supervisor.send("claude-1", create_message("get"))
        await supervisor.stop()
        return [each["error"] for each in responses], gone["error"]

    errors, gone = scene.play(main())
    assert errors[0] == {
        "type": "fatal",
        "code": "ACTOR_CRASHED",
        "message": "Actor claude-1 crashed: state is lost",
        "retryable": False,
        "context": {"restartCount": 1},
    }
    assert [each["context"] for each in errors[:3]] == [{"restartCount": number} for number in (1, 2, 3)]
    assert errors[3] == {
        "type": "fatal",
        "code": "MAX_RESTARTS_EXCEEDED",
        "message": "Actor claude-1 failed 3 times in 60000ms",
        "retryable": False,
        "context": {"originalError": "state is lost"},
    }
    assert gone == {
        "type": "permanent", "code": "ACTOR_NOT_FOUND", "message": "Actor claude-1 not found", "retryable": False
    }  # fmt: skip
    assert [event.attempt for event in scene.of(ChildRestarting)] == [1, 2, 3]
    assert [event.child for event in scene.of(GaveUp)] == ["claude-1"]
    assert sum("claude-1" in record.message for record in caplog.records) >= 4


def test_S4_14_restarts_outside_of_the_window_are_forgotten(scene):
    """Only restarts within the window count."""

    async def main():
        async with Supervisor(runtime=scene.runtime) as supervisor:
            await supervisor.supervise(TaskActor)
            counts = []
            for seconds in (0, 30, 29.9, 0.1, 100):
                scene.clock.advance(seconds)
                response = await supervisor.send("task-1", create_message("eval", RuntimeError("x")))
                counts.append(response["error"]["context"]["restartCount"])
            return counts

    assert scene.play(main()) == [1, 2, 3, 3, 1]


def test_S4_14_stop_ends_what_the_actors_work_on(scene):
    """Stopping a supervisor ends the messages that its actors work on, and their senders get an error."""

    async def main():
        supervisor = Supervisor(runtime=scene.runtime)
        await supervisor.supervise(TaskActor)
        sending = asyncio.ensure_future(supervisor.send("task-1", create_message("block", 9_999)))
        await asyncio.sleep(1)
        await supervisor.stop()
        response = await sending
        return response["error"]["code"], scene.clock.monotonic()

    code, at = scene.play(main())
    assert (code, at) == ("ACTOR_STOPPED", 1)


def living(marker: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if marker in line:
                found.append(line)
    return found


def program(tmp_path: Path, script: str) -> list[str]:
    file = tmp_path / "claude.sh"
    file.write_text(script)
    return ["bash", str(file)]


INIT = json.dumps({"type": "system", "subtype": "init", "session_id": "s-1"})
RESULT = json.dumps(
    {
        "type": "result", "subtype": "success", "is_error": False, "result": "Hello.",
        "session_id": "s-1", "total_cost_usd": 0.5, "num_turns": 1,
    }
)  # fmt: skip


async def started(marker: str) -> None:
    def wait() -> None:
        while not living(marker):
            time.sleep(0.005)

    await asyncio.to_thread(wait)


def test_S4_14_S4_15_stop_and_cancel_end_the_programs_of_an_agent(tmp_path):
    """A hung session can be cancelled, and stopping the supervisor leaves no process."""
    script = f"echo '{INIT}'; sleep 61.0414"

    async def main():
        actor = ClaudeActor("claude-1", command=program(tmp_path, script), runtime=Runtime(waits=False))
        sending = asyncio.ensure_future(actor.send(create_message("prompt", "hi")))
        await started("sleep 61.0414")
        count = await actor.cancel()
        cancelled = await sending
        left = living("sleep 61.0414")

        async def events():
            async with actor.stream(create_message("prompt", "hi")) as parts:
                return [event async for event in parts]

        streaming = asyncio.ensure_future(events())
        await started("sleep 61.0414")
        await actor.cancel()
        last = (await streaming)[-1]
        supervisor = Supervisor()
        await supervisor.supervise(lambda: actor)
        sending = asyncio.ensure_future(supervisor.send("claude-1", create_message("prompt", "hi")))
        await started("sleep 61.0414")
        await supervisor.stop()
        return count, cancelled, left, last, await sending

    count, cancelled, left, last, stopped = asyncio.run(main())
    assert (count, left, living("sleep 61.0414")) == (1, [], [])
    assert [cancelled["error"]["code"], stopped["error"]["code"]] == ["SYS_CANCELLED"] * 2
    assert (last["type"], last["data"]["error"]["code"]) == ("error", "SYS_CANCELLED")
    assert not cancelled["error"]["retryable"]


# 4. The audit of the present code


def test_S4_15_what_is_good_stays_and_what_was_an_issue_is_solved(tmp_path):
    """Exit codes and streams are in data; strings are typed errors; a payload is checked; a single-shot call is retried."""

    async def main():
        bash = BashActor("bash")
        done = await bash.send(create_message("exec", "echo out; echo err >&2"))
        broken = await bash.send(create_message("exec", "echo out; echo err >&2; exit 3"))
        silent = await bash.send(create_message("exec", "exit 3"))
        wrong = await bash.send(create_message("exec", 5))
        unknown = await bash.send(create_message("dance"))
        return done, broken, silent, wrong, unknown

    done, broken, silent, wrong, unknown = asyncio.run(main())
    assert done["data"] == {"stdout": "out\n", "stderr": "err\n", "exitCode": 0}
    assert broken["data"] == {"stdout": "out\n", "stderr": "err\n", "exitCode": 3}
    assert (broken["error"]["message"], silent["error"]["message"]) == ("err", "Exit code 3")
    assert (broken["success"], set(broken["error"]) >= {"type", "code", "message", "retryable"}) == (False, True)
    assert broken["metadata"]["durationMs"] >= 0
    assert [wrong["error"]["code"], unknown["error"]["code"]] == ["INVALID_MESSAGE", "UNKNOWN_MESSAGE_TYPE"]


# 5. The phases


def test_S4_16_each_phase_adds_a_pattern(scene):
    """1 classifies, 2 adds limits and retries, 3 supervision, 4 circuits."""
    shown = [
        (
            phase(number).policy.attempts,
            phase(number).policy.timeout,
            phase(number).supervision,
            phase(number).policy.circuit,
        )
        for number in (1, 2, 3, 4)
    ]
    assert shown == [
        (1, None, False, None),
        (None, 30.0, False, None),
        (None, 30.0, True, None),
        (None, 30.0, True, ACTOR.circuit),
    ]


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_S4_16_without_supervision_nothing_is_restarted(number, scene):
    """Supervision comes with phase 3: before, a crash is returned, and the actor stays as it is."""
    read({"phase": number}).apply(scene.runtime)
    starts = []

    async def child():
        starts.append(1)
        raise RuntimeError("crash")

    async def main():
        async with Supervisor(runtime=scene.runtime) as supervisor:
            await supervisor.supervise(TaskActor)
            first = supervisor.get("task-1")
            response = await supervisor.send("task-1", create_message("eval", RuntimeError("x")))
            async with Tree("t", scope="child", runtime=scene.runtime) as tree:
                await tree.start(child, restart="transient")
                await asyncio.sleep(1)
            return supervisor.get("task-1") is first, response["error"]["code"]

    is_same, code = scene.play(main())
    assert code == "ACTOR_CRASHED"
    assert (is_same, len(starts)) == ((True, 1) if number < 3 else (False, 4))


# 7. Examples


@pytest.mark.parametrize(("number", "total"), [(1, 3_600), (2, 120), (4, 120)])
def test_S4_16_time_limits_come_with_phase_2(number, total, scene):
    """Phase 1 only classifies: a Claude call gets its two minutes with phase 2."""
    read({"phase": number}).apply(scene.runtime)
    claude = ClaudeActor("c", runtime=scene.runtime)
    for agent in (CommandAgent(["claude", "-p"], runtime=scene.runtime), claude._agent):
        assert (agent.total(is_stream=False), agent.policy.attempts) == (total, 1 if number == 1 else 2)
    assert claude._streaming.total(is_stream=True) == (3_600 if number == 1 else 300)
    named = ClaudeActor("c", timeout_ms=7_000, runtime=scene.runtime)
    assert named._agent.total(is_stream=False) == 7


@pytest.mark.parametrize(("tables", "starts"), [({"phase": 1}, 7), ({"phase": 3}, 14), ({"phase": 4}, 5), ({}, 5)])
def test_S4_16_claude_is_retried_from_phase_2_and_has_a_circuit_in_phase_4(tables, starts, tmp_path):
    """Phase 1 only classifies, 2 adds retries, 4 circuits: seven prompts over a lost network start as many programs."""
    forget_targets()
    runtime = Runtime(waits=False)
    read(tables).apply(runtime)
    delays = []
    runtime.on(lambda event: delays.append(event.delay), Retry)
    command = program(tmp_path, f"echo x >> {tmp_path}/starts; echo 'network down' >&2; exit 1")

    async def main():
        claude = ClaudeActor("c", command=command, runtime=runtime)
        return [(await claude.send(create_message("prompt", "hi")))["error"] for _ in range(7)]

    errors = asyncio.run(main())
    assert len((tmp_path / "starts").read_text().split()) == starts
    assert errors[0]["message"] == ("network down" if starts == 7 else "Failed after 2 attempts: network down")
    assert errors[-1]["code"] == ("CIRCUIT_OPEN" if starts == 5 else "CLAUDE_CLI_NETWORK")
    assert all(2.5 <= delay <= 7.5 for delay in delays)
    assert bool(delays) is (starts != 7)


def test_S4_17_the_unknown_message_lists_what_is_supported():
    """Example 1: the response names the supported types and the received one, and restarts nothing."""
    named = type("Task", (TaskActor,), {})

    async def main():
        async with Supervisor() as supervisor:
            await supervisor.supervise(named)
            return await supervisor.send("task-1", create_message("juggle"))

    assert asyncio.run(main())["error"] == {
        "type": "validation",
        "code": "UNKNOWN_MESSAGE_TYPE",
        "message": "Task does not support message type: juggle",
        "retryable": False,
        "context": {"supportedTypes": sorted(SUPPORTED), "receivedType": "juggle"},
    }


@pytest.mark.parametrize("printed", [f"echo '{INIT}'; ", ""])
def test_S4_18_a_stream_that_hangs_is_killed_and_yields_an_error_event(printed, tmp_path):
    """Example 2: beyond its limit the process is killed, and an error event with STREAM_TIMEOUT and durationMs is yielded."""
    script = f"{printed}sleep 61.0418"

    async def main():
        actor = ClaudeActor("c", command=program(tmp_path, script), stream_timeout_ms=400)
        async with actor.stream(create_message("prompt", "hi")) as events:
            return [event async for event in events]

    began = time.time()
    last = asyncio.run(main())[-1]
    error = last["data"]["error"]
    assert last["type"] == "error"
    assert last["timestamp"] >= began
    assert (error["type"], error["code"], error["retryable"]) == ("transient", "STREAM_TIMEOUT", True)
    assert error["message"] == "Stream exceeded timeout of 400ms"
    assert error["context"]["durationMs"] >= 400
    assert not living("sleep 61.0418")


def test_S4_12_S4_13_a_claude_call_that_hangs_is_a_timeout_with_the_documents_words(tmp_path):
    """Phase 2: a call has 2 minutes by default, and its timeout is called Claude CLI call."""

    async def main():
        actor = ClaudeActor("c", command=program(tmp_path, "sleep 61.0413"), timeout_ms=300)
        return await actor.send(create_message("prompt", "hi"))

    response = asyncio.run(main())
    assert response["error"] == {
        "type": "transient",
        "code": "TIMEOUT",
        "message": 'Operation "Claude CLI call" timed out after 300ms',
        "retryable": True,
    }
    usual = ClaudeActor("c")
    assert (usual._agent.total(is_stream=False), usual._streaming.total(is_stream=True)) == (120, 300)
    assert not living("sleep 61.0413")


@pytest.mark.parametrize(
    ("stderr", "error_type", "code", "starts"),
    [
        ("network is unreachable", "transient", "CLAUDE_CLI_NETWORK", 2),
        ("request timeout", "transient", "CLAUDE_CLI_NETWORK", 2),
        ("connect ECONNREFUSED 127.0.0.1", "transient", "CLAUDE_CLI_NETWORK", 2),
        ("it is odd", "permanent", "CLAUDE_CLI_ERROR", 1),
    ],
)
def test_S4_19_stderr_says_whether_a_call_is_retried(stderr, error_type, code, starts, tmp_path):
    """Example 3: network, timeout and ECONNREFUSED are transient and tried once more, the rest is permanent."""
    forget_targets()
    log = tmp_path / "starts"
    command = program(tmp_path, f"echo x >> {log}; echo '{stderr}' >&2; exit 1")

    async def main():
        actor = ClaudeActor("claude-1", model="haiku", command=command, runtime=Runtime(waits=False))
        return await actor.send(create_message("prompt", "hi"))

    error = asyncio.run(main())["error"]
    assert (error["type"], error["code"], error["retryable"]) == (error_type, code, code == "CLAUDE_CLI_NETWORK")
    assert error["message"] == (f"Failed after 2 attempts: {stderr}" if starts == 2 else stderr)
    assert log.read_text().split() == ["x"] * starts


def test_S4_19_a_call_that_ends_well_returns_what_the_program_said(tmp_path):
    """The reply is data, and metadata has duration, cost and session."""
    command = program(tmp_path, f"echo \"$@\" > {tmp_path}/arguments; echo '{INIT}'; echo '{RESULT}'")

    async def main():
        async with Supervisor() as supervisor:
            await supervisor.supervise(lambda: ClaudeActor("claude-1", model="haiku", command=command))
            return await supervisor.send("claude-1", create_message("prompt", "hello"))

    response = asyncio.run(main())
    assert (response["success"], response["data"]["text"]) == (True, "Hello.")
    assert (response["metadata"]["costUsd"], response["metadata"]["sessionId"]) == (0.5, "s-1")
    assert "--model haiku" in (tmp_path / "arguments").read_text()


# 8. Tests


def test_S4_20_the_factories_make_what_they_say():
    """Unit test: Errors.validation creates the correct error."""
    err = Errors.validation("TEST", "test message", {"field": "foo"})
    assert (err.type, err.retryable, err.context) == ("validation", False, {"field": "foo"})
    assert [getattr(Errors, name)("C", "m").retryable for name in ("transient", "fatal", "permanent")] == [
        True,
        False,
        False,
    ]


def test_S4_20_claude_is_retried_on_a_network_error(scene):
    """Integration test: the second attempt succeeds after a network error."""

    class Mock(Actor):
        attempts = 0

        async def send(self, message):
            self.attempts += 1
            if self.attempts < 2:
                return failed(Errors.transient("NETWORK", "timeout"))
            return {"success": True, "data": "ok"}

    async def main():
        mock = Mock("claude")
        response = await with_retry(
            lambda: mock.send(create_message("test", "hello")), RetryConfig(max_attempts=2), runtime=scene.runtime
        )
        return mock.attempts, response["success"]

    assert scene.play(main()) == (2, True)


def test_S4_20_a_bash_timeout_kills_the_process():
    """Failure mode test: sleep 10 with a limit of 100 ms is a transient TIMEOUT, and the process is gone."""
    began = time.monotonic()
    response = asyncio.run(create_bash_actor("bash", timeout=100).send(create_message("exec", "sleep 10.0420")))
    assert time.monotonic() - began < 5
    assert (response["success"], response["error"]["type"], response["error"]["code"]) == (
        False,
        "transient",
        "TIMEOUT",
    )
    assert not living("sleep 10.0420")


def test_S4_21_errors_are_explicit_typed_and_traceable(scene):
    """Principles: return errors and do not throw, categorise them, keep them traceable, and test them."""

    async def main():
        async with Supervisor(runtime=scene.runtime) as supervisor:
            await supervisor.supervise(TaskActor)
            sent = [create_message("juggle"), create_message("eval", KeyError("plan")), "nothing"]
            return [await supervisor.send("task-1", message) for message in sent]

    for response in scene.play(main()):
        error = response["error"]
        assert error["type"] in {"validation", "transient", "fatal", "permanent"}
        assert error["code"]
        assert error["message"]
        assert isinstance(error["retryable"], bool)
    (restart,) = scene.of(ChildRestarting)
    assert (restart.child, restart.fault.cause.type.rpartition(".")[2]) == ("task-1", "KeyError")


# What the project around the document adds


def test_N4_1_an_actor_has_an_id_a_type_and_hooks_and_is_found_by_its_id():
    """Actor: id, type, send, start, stop; messages have id, type, payload, correlationId; an id is taken once."""
    hooks = []

    class Hooked(TaskActor):
        async def start(self):
            hooks.append("start")

        async def stop(self):
            hooks.append("stop")

    async def main():
        async with Supervisor() as supervisor:
            await supervisor.supervise(Hooked)
            with pytest.raises(InvalidError, match="an id that no other actor has"):
                await supervisor.supervise(Hooked)
            return supervisor.get("task-1").type, supervisor.ids

    assert asyncio.run(main()) == ("deterministic", ["task-1"])
    assert hooks[0] == "start"
    assert hooks[-1] == "stop"
    assert ClaudeActor.type == "agent"
    assert Message(id="m-1", type="get", correlation_id="c").correlation_id == "c"


@pytest.mark.parametrize(("restart", "starts"), [("permanent", 3), ("transient", 2), ("temporary", 1)])
def test_N4_2_a_child_is_restarted_as_its_spec_says(restart, starts, scene):
    """ChildSpec: permanent is always restarted, transient after a failure, temporary never."""
    made = []

    async def child():
        made.append(1)
        if len(made) == 1:
            raise RuntimeError("crash")
        if len(made) == 2:
            return
        await asyncio.Event().wait()

    async def main():
        async with Tree("inner", runtime=scene.runtime) as tree:
            await tree.start(child, restart=restart, shutdown=1)
            await asyncio.sleep(1)

    scene.play(main())
    assert len(made) == starts


@pytest.mark.parametrize(("every", "starts"), [(5, 11), (6.5, 20)])
def test_N4_2_more_than_10_restarts_in_60_s_end_the_supervisor(every, starts, scene):
    """The intensity is 10 restarts in 60 s: the next crash within the window escalates, and older ones are forgotten."""
    made = []

    async def child():
        made.append(1)
        if len(made) == 20:
            await asyncio.Event().wait()
        await asyncio.sleep(every)
        raise RuntimeError("crash")

    async def main():
        children = [Child(child, backoff=None)]
        async with Tree("t", max_restarts=10, window=60, children=children, runtime=scene.runtime):
            await asyncio.sleep(200)

    if starts == 11:
        with pytest.raises(GaveUpError):
            scene.play(main())
    else:
        scene.play(main())
    assert len(made) == starts


def test_N4_2_a_nested_supervisor_that_gives_up_escalates(scene):
    """More restarts than the intensity allows end the supervisor, and its parent decides."""
    made = []

    async def child():
        made.append(1)
        raise RuntimeError("crash")

    async def main():
        inner = Tree("inner", max_restarts=1, window=60, children=[Child(child)])
        async with Tree("outer", max_restarts=1, window=60, children=[inner], runtime=scene.runtime):
            await asyncio.sleep(5)

    with pytest.raises(GaveUpError):
        scene.play(main())
    assert len(made) == 4


@pytest.mark.parametrize(
    ("supervision", "is_same", "ids"),
    [("ignore", True, ["task-1", "other"]), ("restart", False, ["task-1", "other"]), ("fail_parent", False, [])],
)
def test_N4_3_the_crash_of_a_child_is_ignored_restarts_it_or_fails_its_parent(supervision, is_same, ids, scene):
    """Child supervision is ignore, restart or fail_parent."""

    async def main():
        supervisor = Supervisor(runtime=scene.runtime)
        await supervisor.supervise(TaskActor, supervision)
        await supervisor.supervise(lambda: TaskActor("other"))
        first = supervisor.get("task-1")
        response = await supervisor.send("task-1", create_message("eval", RuntimeError("x")))
        return response["error"]["code"], supervisor.get("task-1") is first, supervisor.ids, scene.clock.monotonic()

    assert scene.play(main()) == ("ACTOR_CRASHED", is_same, ids, 0)


@pytest.mark.parametrize(
    ("supervision", "attempts", "status"),
    [("ignore", 1, "COMPLETE"), ("restart", 2, "FAILED"), ("fail_parent", 1, "FAILED")],
)
def test_N4_3_the_failure_of_a_subtask_is_ignored_tried_again_or_fails_its_parent(supervision, attempts, status):
    """A task says what its failure does to the task that asked for it."""
    tried = []

    def perform(assignment):
        if assignment.task.prompt == "parent":
            request = {"type": "atomic", "description": "part", "supervision": supervision}
            if not assignment.results:
                return TaskResult(status="CONTINUATION", notes={"subtask_request": request})
            return f"without it: {assignment.results[0].status}"
        tried.append(assignment.prompt)
        raise HoldfastError(Fault.of("TASK_HALTED"))

    result = run(TaskSystem(perform).execute_task(Task("parent")))
    assert (len(tried), str(result.status)) == (attempts, status)
    assert (result.content == "without it: FAILED") is (supervision == "ignore")


class Pinged(Counter, timeout=None, health=Health(every=1, timeout=1, then="reject")):
    async def hang(self, seconds):
        await asyncio.sleep(seconds)


def test_N4_3_health_monitors_and_groups(scene):
    """Five missed pings open an actor for 30 s, then one ping decides; watchers hear of an end; groups are sent to together."""
    downs = []

    class Watcher(Counter):
        async def look(self, ref):
            self.watch(ref)

        async def down(self, path, how):
            downs.append(path)

    async def main():
        async with Tree("team", runtime=scene.runtime) as team:
            pinged = await team.start(Pinged)
            hanging = asyncio.ensure_future(pinged.outcome(Pinged.hang, 20))
            # A ping each second, and another second without its answer: the fifth is missed after 10 s.
            await asyncio.sleep(9.5)
            states = [pinged.health]
            await asyncio.sleep(1)
            states.append(pinged.health)
            rejected = [await pinged.outcome(Counter.add)]
            await asyncio.sleep(29)
            rejected.append(await pinged.outcome(Counter.add))
            await asyncio.sleep(1)
            back = await pinged.ask(Counter.add)
            await hanging
            watcher = await team.start(Watcher)
            other = await team.start(Counter, restart="temporary")
            await watcher.ask(Watcher.look, other)
            group = Group("all")
            for ref in (other, pinged):
                group.join(ref)
            together = [outcome.value for outcome in await group.ask_all(Counter.add)]
            await team.terminate_child("Counter")
            await asyncio.sleep(1)
            return states, [each.fault.code for each in rejected], back, together, len(group)

    assert scene.play(main()) == (["failing", "open"], ["CIRCUIT_OPEN"] * 2, 1, [1, 2], 1)
    assert len(downs) == 1


def test_N4_4_mailboxes_are_bounded_and_urgent_messages_come_first(scene):
    """1,000 messages, pressure at 80 %, priorities; an ask waits 30 s by default and can be given another time."""
    order = []

    class Slow(Counter, mailbox=10):
        async def note(self, name, seconds=0.0):
            order.append(name)
            await asyncio.sleep(seconds)

    async def main():
        async with Tree("team", runtime=scene.runtime) as team:
            slow = await team.start(Slow)
            slow.tell(Slow.note, "first", 60.0)
            await asyncio.sleep(0.1)
            slow.using(priority=4).tell(Slow.note, "low")
            for name in "abcdefg":
                slow.tell(Slow.note, name)
            pressure = slow.pressure
            slow.using(priority=10).tell(Slow.note, "urgent")
            began = scene.clock.monotonic()
            late = await slow.outcome(Counter.add)
            waited = scene.clock.monotonic() - began
            short = await slow.using(timeout=5).outcome(Counter.add)
            await asyncio.sleep(60)
            return pressure, late.fault.code, waited, short.fault.code

    pressure, late, waited, short = scene.play(main())
    assert (pressure, waited, late == short) == ("high", 30, True)
    assert order == ["first", "urgent", *"abcdefg", "low"]


def test_N4_4_a_full_mailbox_rejects_and_loses_nothing_older(scene):
    """A mailbox holds 1,000 messages by default, and warns above 100 and at 80 %; one more is rejected, and those that wait are kept."""

    class Slow(Counter):
        async def wait(self):
            await asyncio.sleep(1)

    async def main():
        async with Tree("team", runtime=scene.runtime) as team:
            slow = await team.start(Slow)
            slow.tell(Slow.wait)
            await asyncio.sleep(0.1)
            pressures = {}
            for number in range(1, 1_001):
                slow.tell(Counter.add)
                pressures.setdefault(slow.pressure, number)
            rejected = await slow.outcome(Counter.add)
            await asyncio.sleep(5)
            return pressures, rejected.fault.code, await slow.ask(Counter.add)

    pressures = {"none": 1, "long": 101, "high": 800}
    assert scene.play(main()) == (pressures, "ACTOR_MAILBOX_FULL", 1_001)


def test_N4_5_a_task_goes_through_its_states_in_valid_transitions():
    """created, ready, active, blocked, completed, failed; a failed task is created again by its restart. Others are rejected."""
    valid = ["created active", "created ready", "ready active", "active blocked", "active completed", "active failed"]
    valid += ["blocked active", "blocked failed", "failed created"]
    for before, after in itertools.product(TaskState, repeat=2):
        if f"{before} {after}" in valid:
            assert changed(before, after) is after
        else:
            with pytest.raises(InvalidError, match=r"task\.state"):
                changed(before, after)
    runtime = Runtime(clock=VirtualClock())
    changes = []
    runtime.on(lambda event: changes.append((event.operation, str(event.from_), str(event.to))), TaskStateChange)

    def perform(assignment):
        if assignment.task.name == "parent":
            asked = {"type": "atomic", "name": "part", "description": "part"}
            return (
                "whole" if assignment.results else TaskResult(status="CONTINUATION", notes={"subtask_request": asked})
            )
        if assignment.task.name == "part":
            raise HoldfastError(Fault.of("TASK_HALTED"))
        return "done"

    run(TaskSystem(perform, runtime=runtime).execute_task(Task("parent", name="parent")))
    assert changes == [
        ("parent", "created", "active"),
        ("parent", "active", "blocked"),
        ("part", "created", "active"),
        ("part", "active", "failed"),
        ("Retry: part", "failed", "created"),
        ("Retry: part", "created", "active"),
        ("Retry: part", "active", "completed"),
        ("parent", "blocked", "active"),
        ("parent", "active", "completed"),
    ]


IMPORTED = (
    *("ActorInitializationError", "ActorKilledError", "ValidationError", "UnexpectedFailure", "Response"),
    *("EnhancedResponse", "Message", "RetryConfig", "with_retry", "CircuitState", "CircuitBreakerConfig"),
    *("CircuitBreaker", "with_timeout", "CancellableOperation", "SupervisorConfig", "Supervisor", "ClaudeActor"),
    *("Actor", "BashActor", "ErrorType", "ActorError", "Errors", "StreamEvent", "create_bash_actor", "create_message"),
)
JAVAS = ("ArithmeticException", "NullPointerException", "IllegalArgumentException", "NoClassDefFoundError")
INSIDE = (
    *("NetworkError", "OneForOneStrategy", "supervisorStrategy", "ActorKilledException", "ClaudeActorConfig"),
    *("ActorInitializationException", "handleFailure", "restartCounts", "createMockClaude"),
)


def test_the_names_of_the_document_can_be_imported_or_the_page_says_what_does_it():
    """What a user imports has the document's name; for what its samples do inside, the page names ours."""
    assert [name for name in IMPORTED if not hasattr(documents.actor, name)] == []
    page = (Path(__file__).parents[2] / "docs/explanation/documents/004-actors.md").read_text()
    assert [name for name in JAVAS if f"`{name}` |" not in page] == []
    assert [name for name in INSIDE if f"`{name}`" not in page.partition("## Names")[2]] == []


def test_the_names_of_the_document_are_those_of_the_rooms():
    """The facade gives the rooms' own classes."""
    assert (Actor, Supervisor, issubclass(ClaudeActor, CommandActor)) == (MessageActor, MessageSupervisor, True)
