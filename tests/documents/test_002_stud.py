"""Document 002, the error model of an agent: classes, codes, who acts next, retries, prompts and partial results. In its order."""

from __future__ import annotations

import ast
import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import msgspec
import pytest
from documents_kit import Person, Refusing, World, code_of, failing, http, installed

import holdfast
from holdfast import Agent, Fault, HoldfastError, Policy, Session, Target, fault_of, recover, tool
from holdfast.agents import Hooks
from holdfast.agents.approval import Approval
from holdfast.anthropic import recovering as recovering_sdk
from holdfast.config import ConfigError, read
from holdfast.documents.stud import (
    Answer,
    Backoff,
    DeviceCode,
    Partial,
    RetryPolicy,
    SessionActive,
    SessionClosed,
    SessionPersisted,
    SessionResumed,
    SessionTurnEnd,
    Stage,
    StageMachine,
    SuppressedError,
    audit_shape,
    read_typed_error,
    suppress,
    typed_error,
    write_envelope,
)
from holdfast.events import (
    Failed,
    MCPReconnectAttempt,
    MCPServerDisconnected,
    MCPServerReconnected,
    Retry,
    StagePostFired,
    StagePreFired,
)
from holdfast.extensions import Extensions
from holdfast.faults import AbortedError, resolve
from holdfast.manager import ExecutionOptions
from holdfast.mcp import recovering
from holdfast.policies.models.capabilities import CAPABILITIES, Needs, Offers, negotiate
from holdfast.providers import CachedModel, ModelChain, RecoveringModel, Reply, ToolCall, choose
from holdfast.sessions.machine import STUD_EDGES
from holdfast.sessions.manifest import decode_manifest
from holdfast.sessions.parked_runs import ParkedError
from holdfast.sinks import audit_to
from holdfast.sinks.audit_records import CLASSES
from holdfast.stores import Commit, MemoryStore, NewSession
from holdfast.tasks.stages import END, Go, StageError
from holdfast.testing import FaultProvider, run
from holdfast.testing.provider.script import read_script
from holdfast.tools import Toolbox, collect

PROVIDER = ExecutionOptions(provider="claude")
ONCE = RetryPolicy(attempts=1)


@pytest.fixture
def world() -> World:
    return World("stud")


async def echo(work: Any) -> str:
    return f"{work.stage}({work.prompt})"


class Edge:
    """Chance that is always at one end of its range."""

    def __init__(self, value: float) -> None:
        self.value = value

    def random(self) -> float:
        return self.value


def widest(error: Exception) -> list[tuple[float, float]]:
    """The shortest and the longest delay before each retry of a call that fails with this error."""
    found = []
    for chance in (0.0, 1.0):
        world = World("stud", rng=Edge(chance))
        with pytest.raises(type(error)):
            world.manager.execute(failing(error), PROVIDER)
        found.append([round(event.delay, 6) for event in world.of(Retry)])
    return list(zip(*found, strict=True))


async def broken(work: Any) -> None:
    raise ConnectionError(f"{work.stage} is down")


# --- how failures propagate ---


def test_S2_1_S2_2_a_validation_failure_does_not_start(tmp_path):
    """Validation: the session refuses to start, and the operator fixes the configuration."""
    with pytest.raises(ConfigError) as raised:
        read({"profile": "studd", "policy": {"attempts": 0}})
    assert raised.value.fault.entry.class_and_code[0] == "Validation"
    assert "stud" in str(raised.value)
    (tmp_path / "holdfast.toml").write_text("[policy]\nattempts = 0\n")
    program = "from holdfast import recover; recover('x').call(print, 'started')"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode != 0) == ("", True)
    assert "policy.attempts" in done.stderr


def test_S2_1_S2_2_each_other_class_has_its_handler(world):
    """Provider transient: retried; capability: another choice; tool: its policy, else the model; cancellation is no error."""
    blip = failing(http(502), None)
    assert world.manager.execute(blip, PROVIDER) == "answer"
    assert blip.calls == 2
    missing = Fault.of("PROVIDER_MISSING_STREAMING")
    assert (missing.retryable, missing.kind) == (False, "permanent")
    call = failing(HoldfastError(missing))
    with pytest.raises(HoldfastError):
        world.manager.execute(call, PROVIDER)
    assert call.calls == 1
    left = fault_of(asyncio.CancelledError())
    assert (left.kind, left.retryable) == ("cancelled", False)


FORMS = {
    "model": lambda model, _: model,
    "list": lambda model, _: [model],
    "chain": lambda model, world: ModelChain([model], runtime=world.runtime),
    "cached": lambda model, world: CachedModel(model, ttl=60, runtime=world.runtime),
}
"""How an agent may be given one model."""


def helper(world: World, model: Any, **options: Any) -> Agent:
    return Agent("helper", model, [tool(name="look", effect="read")(lambda: "x")], runtime=world.runtime, **options)


@pytest.mark.parametrize("way", ["run", "stream"])
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_S2_1_after_a_capability_rejection_the_user_picks_another_model(world, form, way):
    """Provider capability: negotiation rejects the choice before anything is sent, and the user picks another."""
    person = Person("own/able")
    bare = world.model("own/bare", offers=Offers(tool_calling=False))
    able = world.model("own/able", offers=Offers(streaming=False, tool_calling=True))
    agent = helper(world, form(bare, world), alternatives=[able])

    async def main() -> str:
        async with Session.open("s", store=MemoryStore(), runtime=world.runtime, interactors=[person]) as session:
            if way == "run":
                return (await agent.run("hi", session=session)).text
            async with agent.stream("hi", session=session) as parts:
                return [part async for part in parts][-1].reply.text

    assert run(main(), clock=world.clock) == "by own/able"
    assert [(question.kind, list(question.choices)) for question in person.shown] == [("Select", ["own/able"])]
    assert (bare.calls, able.calls) == (0, 1)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_S2_1_a_capability_that_is_missing_fails_fast_where_nobody_can_pick(world, form):
    """Provider capability: not recoverable, fail fast. Without tools, or where nothing is known, the request is sent."""
    bare = world.model("own/bare", offers=Offers(tool_calling=False))
    with pytest.raises(HoldfastError) as raised:
        run(helper(world, form(bare, world)).run("hi"), clock=world.clock)
    assert (code_of(raised.value), bare.calls) == ("PROVIDER_MISSING_TOOL_CALLING", 0)
    assert typed_error(raised.value.fault)["code"] == "MissingToolCalling"
    plain = Agent("plain", form(bare, world), runtime=world.runtime)
    assert run(plain.run("hi"), clock=world.clock).text == "by own/bare"
    unknown = world.model("own/unknown")
    assert run(helper(world, form(unknown, world)).run("hi"), clock=world.clock).text == "by own/unknown"


def test_S2_1_a_model_that_stands_for_several_compares_each_request_itself(world):
    """Negotiation asks each model of a chain, also behind a cache: the second one can do what the first one lacks."""
    bare = world.model("own/bare", offers=Offers(tool_calling=False))
    able = world.model("own/able", offers=Offers(tool_calling=True))
    chain = CachedModel(ModelChain([bare, able], runtime=world.runtime), ttl=60, runtime=world.runtime)
    assert run(helper(world, chain).run("hi"), clock=world.clock).text == "by own/able"
    assert (bare.calls, able.calls) == (0, 1)


def test_S2_1_a_crash_closes_the_session_and_a_resume_is_possible(tmp_path):
    """Crash: the session closes, and resume is possible: another process goes on where it was killed."""
    program = f"""
import asyncio, os, sys
from holdfast import Session
async def one(): print("one", flush=True)
async def two():
    if "die" in sys.argv: os._exit(9)
    print("two", flush=True)
async def main():
    async with Session.open("s", store={str(tmp_path / "s.db")!r}) as session:
        async with session.turn("go"):
            await session.step(one)
            await session.step(two)
asyncio.run(main())
"""
    done = [
        subprocess.run([sys.executable, "-c", program, *more], capture_output=True, text=True, check=False)
        for more in (["die"], [])
    ]
    assert [(each.returncode, each.stdout.split()) for each in done] == [(9, ["one"]), (0, ["two"])]


def test_S2_1_a_cancelled_turn_is_audited_and_is_no_error(world):
    """Cancellation: a cooperative exit, not an error, landed into the audit trail: by its scope, or by its task."""

    async def main() -> list[Any]:
        store = MemoryStore()
        async with Session.open("s", store=store, runtime=world.runtime) as session:
            with pytest.raises(AbortedError):
                async with session.turn("a") as turn:
                    asyncio.get_running_loop().call_later(1, turn.cancel)
                    await asyncio.sleep(100)
            began = asyncio.Event()

            async def work() -> None:
                async with session.turn("b"):
                    began.set()
                    await asyncio.sleep(100)

            task = asyncio.ensure_future(work())
            # A turn that fails before it has begun would be waited for without an end: the lease keeps virtual time going.
            async with asyncio.timeout(60):
                await began.wait()
            task.cancel()
            await asyncio.wait((task,))
        return await store.audit("session:s")

    trail = run(main(), clock=world.clock)
    assert [event.outcome for event in world.of(SessionTurnEnd)] == ["cancelled", "cancelled"]
    cancelled = [json.loads(bytes(record.payload)) for record in trail if record.kind == "Cancellation"]
    assert [(each["operation"], each["turn"], each["reason"]) for each in cancelled] == [
        ("turn", 1, "user"),
        ("turn", 2, "the task was cancelled"),
    ]
    assert "Fault" not in [record.kind for record in trail]


# --- with a state machine ---


def test_S2_3_a_failed_tool_call_surfaces_typed_and_next_routes_to_a_repair_stage():
    """A failed tool call surfaces into Act as a typed error; Assert may fail the attempt, and Next routes to a repair stage."""
    seen: list[Any] = []

    @tool(effect="read")
    def compile_it() -> str:
        raise FileNotFoundError("a.c")

    async def build(work: Any) -> str:
        if "repaired" in work.prompt:
            return "green"
        answer = await work.call("compile_it")
        seen.append(typed_error(answer.fault)["class"])
        return "red"

    stages = [
        Stage(
            "build",
            build,
            init=lambda ctx: "repaired" if "repair" in ctx.results else "",
            assert_=lambda ctx: "fail" if ctx.act.failures else "ok",
            next=lambda ctx: "repair" if ctx.outcome == "fail" else END,
        ),
        Stage("repair", echo, next="build"),
    ]
    ended = run(StageMachine(stages, tools=[compile_it]).run())
    assert (ended.value, seen) == ("green", ["ToolTerminal"])
    assert [(each.stage, each.outcome) for each in ended.executions] == [
        ("build", "fail"),
        ("repair", "ok"),
        ("build", "ok"),
    ]


def test_S2_4_a_request_that_fails_inside_a_stage_fails_the_attempt_which_begins_again_with_setup():
    """A failed request inside a stage fails the attempt; its retryPolicy decides whether to begin again from Setup."""
    phases: list[tuple[str, int]] = []

    async def act(work: Any) -> None:
        raise ConnectionError("down")

    def setup(ctx: Any) -> None:
        phases.append(("Setup", ctx.attempt))

    stage = Stage("a", act, setup=setup, retry=RetryPolicy(attempts=3, backoff=Backoff(initial=1)))
    with pytest.raises(StageError) as raised:
        run(StageMachine([stage]).run())
    assert phases == [("Setup", 1), ("Setup", 2), ("Setup", 3)]
    assert raised.value.fault.context["attempts"] == 3


def test_S2_5_an_unrecoverable_stage_is_skipped_retried_later_or_ends_the_workflow():
    """An unrecoverable stage resolves by its policy: skip, retry-later or abort-workflow."""
    after = Stage("b", echo)
    assert run(StageMachine([Stage("a", broken, resolution="skip", retry=ONCE), after]).run()).value == "b()"
    with pytest.raises(StageError):
        run(StageMachine([Stage("a", broken, resolution="abort-workflow", retry=ONCE), after]).run())
    world = World("stud")
    waits = RetryPolicy(attempts=2, backoff=Backoff(initial=100, cap=100, jitter="none"))
    stage = Stage("a", broken, resolution="retry-later", retry=ONCE, later=waits)

    async def main() -> None:
        async with Session.open("s", store=MemoryStore(), runtime=world.runtime) as session:
            await StageMachine([stage], runtime=world.runtime).run(session)

    with pytest.raises(ParkedError) as raised:
        run(main(), clock=world.clock)
    assert raised.value.until == world.clock.wall() + 100


@pytest.mark.parametrize("way", ["returns", "raises"])
def test_S2_5_an_unrecoverable_stage_returns_a_terminal_failure_from_exit(way):
    """An unrecoverable stage returns a terminal failure from Exit: no further attempt, and Next resolves by the policy."""
    attempts = []

    def left(ctx: Any) -> str:
        attempts.append(ctx.attempt)
        if way == "raises":
            raise RuntimeError("the build server is gone")
        return "fail"

    routed = [Stage("a", echo, exit=left, next=lambda ctx: "b" if ctx.outcome == "fail" else END), Stage("b", echo)]
    assert run(StageMachine(routed).run()).value == "b()"
    skipped = [Stage("a", echo, exit=left, resolution="skip"), Stage("b", echo)]
    assert run(StageMachine(skipped).run()).value == "b()"
    with pytest.raises(StageError) as raised:
        run(StageMachine([Stage("a", echo, exit=left, retry=RetryPolicy(attempts=3)), Stage("b", echo)]).run())
    assert (raised.value.fault.code, attempts) == ("TASK_STAGE_FAILED", [1, 1, 1])
    assert run(StageMachine([Stage("a", echo, exit=lambda _: "cleaned up")]).run()).value == "a()"


# --- without one ---


def test_S2_6_without_a_machine_provider_errors_are_retried_tools_go_to_the_model_and_the_turn_ends_readable(world):
    """Without a state machine: provider transient is retried; tool terminal goes to the model; what persists ends the turn for the user."""

    @tool(effect="read")
    def read_it(path: str) -> str:
        raise FileNotFoundError(path)

    calls = Reply(calls=(ToolCall(id="1", name="read_it", arguments={"path": "a"}),))
    model = world.model("own/m", calls, Reply(text="there is no a"))
    reply = run(Agent("helper", model, [read_it], runtime=world.runtime).run("read a"), clock=world.clock)
    assert reply.text == "there is no a"
    shown = json.loads(model.requests[1].messages[-1].text)
    assert (shown["class"], set(shown)) == ("ToolTerminal", {"class", "code", "context"})
    blip = failing(http(503), http(503), None)

    class Wire:
        async def exchange(self, model: str, request: Any) -> Reply:
            return Reply(text=blip())

        async def parts(self, model: str, request: Any) -> AsyncIterator[Any]:
            yield await self.exchange(model, request)

    recovering = RecoveringModel(Wire(), Target(provider="own", model="m"), runtime=world.runtime)
    assert run(Agent("helper", recovering, runtime=world.runtime).run("hi"), clock=world.clock).text == "answer"
    assert (blip.calls, [event.delay for event in world.of(Retry)]) == (3, [1.0, 2.0])
    down = world.model("own/down", http(401))
    with pytest.raises(httpx2.HTTPStatusError) as raised:
        run(Agent("helper", down, runtime=world.runtime).run("hi"), clock=world.clock)
    user = fault_of(raised.value).for_user()
    assert user
    assert "Traceback" not in user


# --- classes and codes ---

CLASSES_AND_CODES = {
    "Validation": ["ShapeInvalid", "ContractVersionMismatch", "ConfigSchemaViolation"],
    "ProviderTransient": ["NetworkTimeout", "Provider5xx", "RateLimited"],
    "ProviderCapability": ["MissingStreaming", "MissingToolCalling", "ContextWindowTooSmall"],
    "ToolTransient": ["ExecutionTimeout", "ResourceBusy"],
    "ToolTerminal": ["InputInvalid", "OutputMalformed", "Forbidden", "NotFound"],
    "Session": ["ManifestDrift", "StoreUnavailable", "ResumeMismatch"],
    "Cancellation": ["SessionCancelled", "TurnCancelled", "ToolCancelled"],
    "ExtensionHost": ["LifecycleFailure", "DependencyCycle", "DependencyMissing"],
}


@pytest.mark.parametrize(
    ("failure", "code"), [(name, code) for name, codes in CLASSES_AND_CODES.items() for code in codes]
)
def test_S2_7_every_error_has_a_class_and_a_code(failure, code):
    """Errors carry a class and a code."""
    entry = resolve(f"{failure}/{code}")
    assert entry is not None
    shape = typed_error(Fault.of(entry.code))
    assert (shape["class"], shape["code"]) == (failure, code)
    assert typed_error(read_typed_error(shape)) == shape


def test_S2_8_callers_match_on_class_and_code_whatever_the_message_says(world):
    """Callers match on class and code, never on substrings of the message."""
    told = Fault.of("PROVIDER_RATE_LIMITED", "not found, forbidden, permission denied, 404")
    ask = failing(HoldfastError(told), None)
    assert world.manager.execute(ask, PROVIDER) == "answer"
    assert typed_error(told)["code"] == "RateLimited"
    assert [event.delay for event in world.of(Retry)] == [5.0]


def test_S2_8_an_extension_emits_a_typed_error_for_what_only_it_knows(world, tmp_path, monkeypatch):
    """Extensions emit typed errors through the host's interface, and callers match on their class and code."""
    source = """
from holdfast.classify import Verdict

def draining(evidence):
    return Verdict(code="PROVIDER_UNAVAILABLE") if evidence.status == 470 else None

class Gateway:
    id = "gateway"
    contract = 1
    requires = ()
    def start(self, runtime):
        return [draining]

extension = Gateway()
"""
    installed(tmp_path, monkeypatch, "gateway", source, "extension")
    assert typed_error(world.runtime.fault_of(http(470)))["code"] != "Provider5xx"
    with Extensions(runtime=world.runtime):
        shape = typed_error(world.runtime.fault_of(http(470)))
        assert (shape["class"], shape["code"]) == ("ProviderTransient", "Provider5xx")
        ask = failing(http(470), None)
        assert world.manager.execute(ask, PROVIDER) == "answer"
    assert [event.delay for event in world.of(Retry)] == [1.0]


def test_S2_9_wrapping_keeps_class_and_code_and_messages_accumulate():
    """Wrapping preserves the original class and code; the wrapper's message is additive."""
    fault = Fault.of("TOOL_RESOURCE_BUSY", "the index is locked")
    wrapped = fault.wrapped("saving the file").wrapped("running the hook")
    before, after = typed_error(fault), typed_error(wrapped)
    assert (after["class"], after["code"]) == (before["class"], before["code"])
    assert [part in after["message"] for part in ("the index is locked", "saving the file", "running the hook")] == [
        True
    ] * 3


@pytest.mark.parametrize("inner", [HoldfastError(Fault.of("TOOL_RESOURCE_BUSY", "the index is locked")), http(503)])
def test_S2_9_raise_from_keeps_class_and_code_and_adds_its_words_for_the_audit(inner):
    """Wrapping by an exception of the program preserves class and code; what it says is added, where the audit reads it."""
    try:
        raise RuntimeError("saving the file") from inner
    except RuntimeError as error:
        before, after = typed_error(fault_of(inner)), typed_error(fault_of(error))
        shape = audit_shape(error)
    assert (after["class"], after["code"], after["message"]) == (before["class"], before["code"], before["message"])
    assert shape["cause"]["message"] == "saving the file"


def test_S2_10_what_is_ignored_on_purpose_is_an_event_with_its_reason(world):
    """An error that is ignored on purpose emits SuppressedError with the reason."""
    with suppress(OSError, reason="the cache is optional", runtime=world.runtime):
        raise OSError("disk full")
    (event,) = world.of(SuppressedError)
    assert event.reason == "the cache is optional"
    assert "disk full" in event.cause


def test_S2_10_no_code_of_ours_swallows_every_error_without_saying_why():
    """No silent swallow: an empty catch is not allowed without a reason."""
    folder = Path(holdfast.__file__).parent
    sources = {path: path.read_text(encoding="utf-8") for path in folder.rglob("*.py")}
    # Parsing every module would take seconds.
    catching = {path: source for path, source in sources.items() if DROPPING.search(source)}
    found = {str(path.relative_to(folder)): unexplained(source) for path, source in catching.items()}
    assert {path: places for path, places in found.items() if places} == {}
    assert len(catching) > 50


@pytest.mark.parametrize(
    ("source", "places"),
    [
        ("try:\n    f()\nexcept OSError:\n    pass", [3]),
        ("try:\n    f()\nexcept OSError:\n    ...", [3]),
        ("try:\n    f()\nexcept OSError:  # it is gone already\n    pass", []),
        ("try:\n    f()\nexcept OSError:  # noqa: S110\n    pass", [3]),
        ("with suppress(OSError):\n    f()", [1]),
        ("with open(x), contextlib.suppress(OSError):\n    f()", [1]),
        ("# it is gone already\nwith suppress(OSError):\n    f()", []),
        ("with suppress(OSError):\n    # It is gone already.\n    f()", []),
        ("with suppress(OSError, reason='optional'):\n    f()", []),
        ("for x in y:\n    try:\n        f()\n    except OSError:\n        continue", [4]),
        ("try:\n    f()\nexcept OSError:\n    return None", []),
    ],
)
def test_S2_10_what_counts_as_swallowing_without_a_reason(source, places):
    """An empty catch, or a suppress, without a word of why."""
    assert unexplained(source) == places


def unexplained(source: str) -> list[int]:
    """The lines where exceptions are dropped with no comment at them and no `reason=`: an empty `except`, and `suppress`."""
    lines = source.splitlines()

    def drops(node: ast.AST) -> bool:
        if isinstance(node, ast.With | ast.AsyncWith):
            calls = [item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)]
            return any(
                ast.unparse(call.func).endswith("suppress") and all(each.arg != "reason" for each in call.keywords)
                for call in calls
            )
        return isinstance(node, ast.ExceptHandler) and all(
            isinstance(each, ast.Pass | ast.Continue)
            or (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))
            for each in node.body
        )

    return [
        node.lineno
        for node in ast.walk(ast.parse(source))
        if drops(node) and not any(map(COMMENT.search, lines[max(node.lineno - 2, 0) : node.body[0].lineno]))
    ]


DROPPING = re.compile(r"""suppress\(|except\b[^\n]*\n(\s*#[^\n]*\n)*\s*(pass|continue|\.\.\.|"|')""")
COMMENT = re.compile(r"#(?! ?(noqa|type|pragma)\b)|# ?noqa: [\w, ]+ - ")
"""A comment that tells a person something."""


def test_S2_11_user_audit_and_model_see_what_is_for_them(tmp_path):
    """The UI gets a sentence, the audit everything, the model a typed shape without internals."""
    fault = Fault.of(
        "TOOL_OUTPUT_MALFORMED", context={"tool": "x", "reason": "Traceback (most recent call last): secret.py"}
    )
    model, audit = fault.for_model(), fault.for_audit()
    assert set(model) == {"class", "code", "context"}
    assert "secret.py" not in json.dumps(model)
    assert "secret.py" not in fault.for_user()
    assert audit["fault"]["context"]["tool"] == "x"
    assert (audit["class"], audit["code"]) == ("ToolTerminal", "OutputMalformed")


def test_S2_11_a_stage_may_allow_the_model_more_for_debugging(world):
    """A state machine may allow richer messages for the model, for debugging."""

    @tool(effect="read")
    def look() -> str:
        raise ConnectionRefusedError(111, "no server at port 7")

    def texts(detail: str) -> str:
        model = world.model("own/m", Reply(calls=(ToolCall(id="1", name="look", arguments={}),)), Reply(text="done"))
        agent = Agent("helper", model, [look], runtime=world.runtime)
        run(StageMachine([Stage("a", agent, body="go", detail=detail)], runtime=world.runtime).run(), clock=world.clock)
        return model.requests[1].messages[-1].text

    assert "no server at port 7" not in texts("typed")
    assert "no server at port 7" in texts("full")


# --- retry policies ---


def test_S2_12_a_retry_policy_says_how_often_how_far_apart_and_for_which_codes():
    """A retry policy has retryable, maxAttempts, backoff (fixed, linear or exponential with jitter) and a classifier of codes."""
    curves = {curve: Backoff(initial=2, curve=curve, jitter="none") for curve in ("fixed", "linear", "exponential")}
    assert {curve: [backoff.wait(retry) for retry in (1, 2, 3)] for curve, backoff in curves.items()} == {
        "fixed": [2, 2, 2],
        "linear": [2, 4, 6],
        "exponential": [2, 4, 8],
    }
    errors = [HoldfastError(Fault.of("TOOL_EXECUTION_FAILED")), HoldfastError(Fault.of("TOOL_RESOURCE_BUSY"))]
    calls: list[int] = []

    @tool(
        effect="idempotent",
        retry=RetryPolicy(attempts=3, backoff=Backoff(initial=0)),
        codes={"TOOL_EXECUTION_FAILED": True, "TOOL_RESOURCE_BUSY": False},
    )
    async def lock() -> None:
        calls.append(1)
        raise errors[len(calls) - 1]

    outcome = run(Toolbox([lock]).outcome("lock"))
    assert (outcome.fault.code, len(calls)) == ("TOOL_RESOURCE_BUSY", 2)


@pytest.mark.parametrize(
    ("code", "policy", "attempts"),
    [
        ("PROVIDER_INTERNAL_ERROR", None, 3),
        ("PROVIDER_INTERNAL_ERROR", ONCE, 1),
        ("AUTH_FAILED", None, 1),
        ("AUTH_FAILED", RetryPolicy(attempts=3), 3),
    ],
)
def test_S2_12_a_code_is_retryable_by_its_class_or_by_the_policy_that_names_it(world, code, policy, attempts):
    """retryable: whether it is retried; a policy for a code decides it, otherwise the code itself."""
    ask = failing(HoldfastError(Fault.of(code)))
    own = Policy(profile="stud", per_code={} if policy is None else {code: policy})
    with pytest.raises(HoldfastError):
        recover("claude", own, runtime=world.runtime).call(ask)
    assert ask.calls == attempts


def test_S2_14_the_retry_policy_of_an_adapter_overrides_the_default(world):
    """An adapter of a provider may declare its own retry policy, which overrides the default; without one it has the default."""
    provider = FaultProvider(read_script("429*20"), clock=world.clock)
    transport = httpx2.AsyncClient(transport=provider.transport())
    client = anthropic.AsyncAnthropic(base_url="http://provider.test", api_key="k", http_client=transport)
    own = Policy(per_code={"PROVIDER_RATE_LIMITED": RetryPolicy(attempts=2, backoff=Backoff(initial=3))})

    async def ask(policy: Policy | None) -> tuple[int, float]:
        asked, began = provider.counters.received, world.now
        adapter: Any = recovering_sdk(client, policy=policy, runtime=world.runtime)
        with pytest.raises(anthropic.RateLimitError):
            await adapter.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}])
        return provider.counters.received - asked, world.now - began

    assert run(ask(own), clock=world.clock) == (2, 3.0)
    assert run(ask(None), clock=world.clock) == (6, 155.0)


def test_S2_14_callers_beside_each_other_have_six_attempts_each(world):
    """Six attempts total, then RateLimited is terminal: a caller's failures take none of another's attempts."""
    calls: list[float] = []

    async def limited() -> None:
        calls.append(world.now)
        raise http(429)

    async def caller() -> str:
        with pytest.raises(httpx2.HTTPStatusError) as raised:
            await recover("claude", runtime=world.runtime).call(limited)
        return fault_of(raised.value).code

    async def main() -> list[str]:
        return await asyncio.gather(*(caller() for _ in range(3)))

    assert run(main(), clock=world.clock) == ["PROVIDER_RATE_LIMITED"] * 3
    assert sorted(calls) == sorted([0.0, 5.0, 15.0, 35.0, 75.0, 155.0] * 3)


def test_S2_13_a_retried_tool_call_is_in_the_audit_trail_with_the_attempt_count(world):
    """Retries are audited: the trail has the attempt count."""
    errors: list[Exception] = [
        HoldfastError(Fault.of("TOOL_RESOURCE_BUSY")),
        HoldfastError(Fault.of("TOOL_RESOURCE_BUSY")),
    ]

    @tool(effect="read", retry=RetryPolicy(attempts=3, backoff=Backoff(initial=1)))
    async def lock() -> str:
        if errors:
            raise errors.pop()
        return "done"

    async def main() -> list[Any]:
        store = MemoryStore()
        async with audit_to(store, runtime=world.runtime) as trail:
            await Toolbox([lock], runtime=world.runtime).call("lock")
            await trail.flush()
        return [
            json.loads(bytes(record.payload))
            for record in await store.audit(trail.chain)
            if record.kind in ("Retry", "ToolInvocation")
        ]

    found = [payload["attempt"] for payload in run(main(), clock=world.clock) if payload["event"] == "retry"]
    assert found == [1, 2]


@pytest.mark.parametrize("way", ["runtime", "policy", "manager"])
def test_S2_14_a_rate_limit_without_a_header_is_asked_six_times_in_155_seconds(way):
    """RateLimited without a Retry-After: 5, 10, 20, 40, 80 s ± 20 %, six attempts, then RateLimited is terminal."""
    world = World("stud" if way == "runtime" else "holdfast")
    ask = failing(http(429))
    with pytest.raises(httpx2.HTTPStatusError) as raised:
        if way == "manager":
            world.manager.execute(ask, PROVIDER)
        else:
            policy = Policy(profile="stud") if way == "policy" else None
            recover("claude", policy, runtime=world.runtime).call(ask)
    assert (ask.calls, world.now) == (6, 155.0)
    assert (fault_of(raised.value).code, fault_of(raised.value).retryable) == ("PROVIDER_RATE_LIMITED", False)
    assert widest(http(429)) == [(4, 6), (8, 12), (16, 24), (32, 48), (64, 96)]


@pytest.mark.parametrize("seconds", [1, 300, 900])
def test_S2_14_a_retry_after_is_honored_exactly(seconds):
    """RateLimited with a Retry-After: sleep exactly that, then retry."""
    world = World("stud", rng=Edge(1.0))
    ask = failing(http(429, **{"retry-after": str(seconds)}), None)
    assert world.manager.execute(ask, PROVIDER) == "answer"
    assert world.now == seconds


def test_S2_14_more_than_900_s_are_not_slept_unless_the_policy_allows_it():
    """A Retry-After beyond what the policy allows, 900 s by default, ends the call at once."""
    world, ask = World("stud"), failing(http(429, **{"retry-after": "901"}), None)
    with pytest.raises(httpx2.HTTPStatusError):
        world.manager.execute(ask, PROVIDER)
    assert (ask.calls, world.now) == (1, 0.0)
    ask = failing(http(429, **{"retry-after": "901"}), None)
    patient = Policy(profile="stud", max_retry_after=3600)
    assert recover("claude", patient, runtime=world.runtime).call(ask) == "answer"
    assert world.now == 901.0


@pytest.mark.parametrize("way", ["runtime", "policy", "manager"])
@pytest.mark.parametrize(("seconds", "allowed"), [(720, 900.0), (900, 900.0), (1000, 3600.0), (3000, 3600.0)])
def test_S2_14_no_time_limit_cuts_the_six_attempts(way, seconds, allowed):
    """Six attempts in total, each after exactly the Retry-After, however long all of them take."""
    world = World("stud" if way == "runtime" else "holdfast")
    ask = failing(http(429, **{"retry-after": str(seconds)}))
    if allowed > 900.0 or way == "policy":
        recover("claude", Policy(profile="stud", max_retry_after=allowed), runtime=world.runtime).outcome(ask)
    elif way == "manager":
        with pytest.raises(httpx2.HTTPStatusError):
            world.manager.execute(ask, PROVIDER)
    else:
        recover("claude", runtime=world.runtime).outcome(ask)
    assert (ask.calls, world.now) == (6, 5.0 * seconds)
    assert [event.reason for event in world.of(Failed)] == ["attempts"]


@pytest.mark.parametrize("error", [http(500), TimeoutError()], ids=["Provider5xx", "NetworkTimeout"])
def test_S2_15_network_timeouts_and_5xx_have_three_attempts(world, error):
    """NetworkTimeout and Provider5xx: three attempts, 1 → 2 → 4 s with jitter."""
    ask = failing(error)
    with pytest.raises(type(error)):
        world.manager.execute(ask, PROVIDER)
    assert (ask.calls, [event.delay for event in world.of(Retry)]) == (3, [1.0, 2.0])
    assert widest(error) == [(0.8, 1.2), (1.6, 2.4)]
    # Escalated after N: alerts, logs and the audit trail hear of it, and the caller has the error.
    assert [(event.exhausted, event.attempts) for event in world.of(Failed)] == [(True, 3)]


def test_S2_16_the_core_has_no_default_for_tools(world):
    """ExecutionTimeout and ResourceBusy: the tool's own contract decides; the core does not retry."""
    calls: list[int] = []

    def busy() -> None:
        calls.append(1)
        raise HoldfastError(Fault.of("TOOL_RESOURCE_BUSY"))

    bare = tool(name="bare", effect="read")(lambda: busy())  # noqa: PLW0108
    answer = run(Toolbox([bare], runtime=world.runtime).answer("bare", {}), clock=world.clock)
    assert (len(calls), json.loads(answer.content)["class"]) == (1, "ToolTransient")
    contract = tool(name="own", effect="read", retry=RetryPolicy(attempts=4, backoff=Backoff(initial=1)))(busy)
    calls.clear()
    run(Toolbox([contract], runtime=world.runtime).answer("own", {}), clock=world.clock)
    assert len(calls) == 4


def test_S2_17_a_store_that_is_down_is_written_three_times_and_then_the_session_errors(world):
    """StoreUnavailable: three attempts, 2 → 4 s, linear; then the session errors."""

    class Down(MemoryStore):
        tried: list[float]

        async def commit(self, commit: Any) -> Any:
            if not hasattr(self, "tried"):
                return await super().commit(commit)
            self.tried.append(world.now)
            raise HoldfastError(Fault.of("SESS_STORE_UNAVAILABLE"))

    async def main() -> list[float]:
        store = Down()
        with pytest.raises(HoldfastError) as raised:
            async with Session.open("s", store=store, runtime=world.runtime) as session:
                store.tried = []
                await session.checkpoint()
        assert code_of(raised.value) == "SESS_STORE_UNAVAILABLE"
        assert session.state == "error"
        return [at - store.tried[0] for at in store.tried]

    assert run(main(), clock=world.clock) == [0.0, 2.0, 6.0]
    # Escalated: only the operator can act.
    (failed,) = world.of(Failed)
    assert (failed.fault.code, failed.fault.next_actor) == ("SESS_STORE_UNAVAILABLE", "operator")


def test_S2_18_the_retries_of_a_stage_sit_on_top_of_those_of_a_class(world):
    """The class-level retry is transport-level redo; the stage's retryPolicy is workflow-level redo on top of it."""
    ask = failing(http(503))

    async def act(work: Any) -> str:
        return recover("claude", Policy(profile="stud", circuit=None), runtime=world.runtime).call(ask)

    stage = Stage("a", act, retry=RetryPolicy(attempts=2, backoff=Backoff(initial=1)))
    with pytest.raises(StageError):
        run(StageMachine([stage], runtime=world.runtime).run(), clock=world.clock)
    assert ask.calls == 2 * 3


# --- prompts ---


@pytest.mark.parametrize(
    ("code", "answer", "kind", "given"),
    [
        ("PROVIDER_UNAVAILABLE", True, "Approve", ["here", "here"]),
        ("TOOL_INPUT_INVALID", "there", "Ask", ["here", "there"]),
        ("AUTH_FAILED", True, "Auth.DeviceCode", ["here", "here"]),
    ],
)
def test_S2_19_a_user_chooses_the_way_out_and_it_is_audited(world, code, answer, kind, given):
    """Retry the call? Approve. A replacement input? Ask. Authenticate again? Auth.DeviceCode. Every exchange is audited."""
    person, calls = Person(answer), []

    @tool(effect="read", retry=ONCE)
    async def fetch(place: str) -> str:
        calls.append(place)
        if len(calls) == 1:
            raise HoldfastError(Fault.of(code))
        return place.upper()

    async def sign_in(fault: Fault) -> DeviceCode:
        return DeviceCode("https://id.example/device", "WDJB-MJHT")

    async def main() -> list[Any]:
        store = MemoryStore()
        async with Session.open("s", store=store, runtime=world.runtime, interactors=[person]) as session:
            session.sign_in = sign_in
            assert await session.step_or_ask(fetch, "here") == given[-1].upper()
        return [record.kind for record in await store.audit("session:s")]

    assert run(main(), clock=world.clock).count("Approval") == 2
    assert ([question.kind for question in person.shown], calls) == ([kind], given)


# --- partial results ---


def test_S2_20_three_of_five_urls_keep_the_shape_and_list_two_errors():
    """A partial result has the payload in its declared shape and errors[] with a typed error for each item."""

    async def fetch(url: str) -> str:
        if url in ("b", "d"):
            raise ConnectionRefusedError(111, "refused")
        return f"page {url}"

    @tool(effect="read", output=list[str], retry=ONCE)
    async def fetch_all(urls: list[str]) -> Any:
        return await collect(fetch, urls)

    box = Toolbox([fetch_all])
    value = run(box.call("fetch_all", {"urls": list("abcde")}))
    assert isinstance(value, Partial)
    assert (value.payload, len(value.errors)) == (["page a", "page c", "page e"], 2)
    shown = json.loads(run(box.answer("fetch_all", {"urls": list("abcde")})).content)
    assert shown["result"] == ["page a", "page c", "page e"]
    assert [(error["class"], error["code"], error["context"]["item"]) for error in shown["errors"]] == [
        ("ProviderTransient", "NetworkTimeout", "b"),
        ("ProviderTransient", "NetworkTimeout", "d"),
    ]
    assert shown["errors"][0]["context"]["retryable"]
    assert "refused" not in json.dumps(shown["result"])
    # The same form where the whole call fails with a part of its result, and in the typed error for callers.
    fault = Fault.of("TOOL_EXECUTION_FAILED", partial=value)
    seen = fault.for_model()["context"]["partial"]
    assert (seen["payload"], seen["errors"]) == (shown["result"], shown["errors"])
    assert [(each["class"], each["code"]) for each in typed_error(fault)["errors"]] == [
        (each["class"], each["code"]) for each in shown["errors"]
    ]


# --- what the project of the document adds ---


def test_N2_1_the_shapes_for_a_model_and_for_the_audit_with_cause_and_stack(world):
    """toModelShape is class, code and context; toAuditShape adds cause and stack; a SuppressedError has type, reason, cause and time."""
    try:
        try:
            raise ConnectionResetError("gone")
        except ConnectionResetError as inner:
            raise TimeoutError("no answer") from inner
    except TimeoutError as error:
        shape, model = audit_shape(error), fault_of(error).for_model()
    assert set(model) == {"class", "code", "context"}
    assert shape["cause"]["chain"][0]["type"] == "ConnectionResetError"
    assert shape["stack"][-1].endswith("in test_N2_1_the_shapes_for_a_model_and_for_the_audit_with_cause_and_stack")
    world.runtime.on(lambda event: 1 / 0, SuppressedError)
    with suppress(OSError, reason="optional", runtime=world.runtime):
        raise OSError("x")
    # A reader of suppressed errors that raises is reported once, and does not go round.
    assert next(event.reason for event in world.of(SuppressedError)) == "optional"
    assert len(world.of(SuppressedError)) == 2


def test_N2_2_the_further_codes_resolve_to_their_class_and_code():
    """Further codes of sessions, validation, tools, extensions and cancellation."""
    further = [
        "Session/NoSnapshot",
        "Session/IllegalTransition",
        "Session/NoInteractorAttached",
        "Session/InteractionAlreadyAnswered",
        "Validation/ManifestShapeInvalid",
        "Validation/InteractionKindUnknown",
        "Validation/InteractionPayloadMismatch",
        "Validation/TimeoutMsInvalid",
        "Validation/NoInteractorsAttached",
        "Validation/ContextMutationForbidden",
        "Validation/StageCtxUnresolved",
        "Validation/StageTurnCapTooLow",
        "Validation/StageCompletionSchemaInvalid",
        "Validation/StageJoinDangling",
        "Validation/GrantNotFound",
        "Validation/GrantAlreadyConsumed",
        "Validation/GrantStageExpired",
        "Validation/UnknownAuditClass",
        "Validation/AuditWithoutCorrelation",
        "Validation/MCPServerNotRegistered",
        "ProviderCapability/MissingCapability",
        "ProviderTransient/MCPConnectionLost",
        "ToolTerminal/ApprovalDenied",
        "ToolTerminal/ToolExecutionFailed",
        "ExtensionHost/ParallelSiblingFailure",
        "ExtensionHost/InvalidParallelPlan",
        "ExtensionHost/JoinPreconditionViolated",
        "ExtensionHost/LoopBoundExceeded",
        "ExtensionHost/StackInvariantViolated",
        "ExtensionHost/ConcurrentTurnForbidden",
        "ExtensionHost/NotImplemented",
        "Cancellation/StageCancelled",
    ]
    for name in further:
        failure, code = name.split("/")
        shape = typed_error(read_typed_error({"class": failure, "code": code, "message": "m", "context": {}}))
        assert (shape["class"], shape["code"]) == (failure, code)
        entry = resolve(name)
        assert entry is not None
        # One of them has two names: a question with nobody to answer it is `Session/NoInteractorAttached` where we write it.
        ours = "Session/NoInteractorAttached" if code == "NoInteractorsAttached" else name
        assert "/".join(entry.class_and_code) == ours


def test_N2_3_a_lost_mcp_server_is_reached_at_once_and_then_after_250_ms_that_double(world):
    """MCP: the first attempt at once, then 250 ms doubling to 4 s, five attempts, with events."""
    server = Refusing(4)

    async def work() -> Any:
        async with recovering(
            server.connect, name="atlas", effects={"search": "read"}, runtime=world.runtime
        ) as session:
            return await session.call_tool("search", {})

    run(work(), clock=world.clock)
    attempts = world.of(MCPReconnectAttempt)
    assert [event.attempt for event in attempts] == [1, 2, 3, 4, 5]
    assert [event.delay for event in attempts] == pytest.approx([0, 0.25, 0.5, 1.0, 2.0])
    assert (len(world.of(MCPServerDisconnected)), world.of(MCPServerReconnected)[0].attempts) == (1, 5)


def test_N2_4_hooks_stand_around_the_request_and_an_act_at_its_turn_cap_is_no_error(world):
    """Hooks transform, observe and guard a turn; a stage that exceeds its turnCap ends Act with capHit, which is no error."""
    parts: list[str] = []
    hooks = Hooks(
        transform=lambda request: msgspec.structs.replace(request, system="be brief"),
        observer=lambda part: parts.append(type(part).__name__),
        guard=lambda call: "not now",
    )
    ran: list[int] = []
    pay = tool(name="pay", effect="read")(lambda: ran.append(1))
    model = world.model("own/m", Reply(calls=(ToolCall(id="1", name="pay", arguments={}),)), Reply(text="ok"))
    run(Agent("helper", model, [pay], hooks=hooks, runtime=world.runtime).run("hi"), clock=world.clock)
    assert (model.requests[0].system, ran) == ("be brief", [])
    assert parts[0] == "ToolCalled"
    seen: list[Any] = []

    async def act(work: Any) -> str:
        while work.attempt == 1:
            work.turn()
        return "done"

    ended = run(StageMachine([Stage("a", act, turn_cap=3, assert_=lambda ctx: seen.append(ctx.act.cap_hit))]).run())
    assert (seen, ended.value, ended.executions[0].outcome) == ([True, False], "done", "ok")


def test_N2_5_a_stage_goes_through_seven_phases_with_events():
    """Setup → Init → CheckGate → Act → Assert → Exit → Next, each with StagePreFired and StagePostFired."""
    world = World("stud")
    run(StageMachine([Stage("plan", echo)], runtime=world.runtime).run(), clock=world.clock)
    phases = ["Setup", "Init", "CheckGate", "Act", "Assert", "Exit", "Next"]
    assert [event.phase for event in world.of(StagePreFired)] == phases
    assert [event.phase for event in world.of(StagePostFired)] == phases
    skipped = StageMachine([Stage("plan", broken, check_gate=lambda ctx: "skip"), Stage("b", echo)])
    assert run(skipped.run()).value == "b()"


def test_N2_6_a_stage_declares_its_parts_and_wrong_ones_are_named():
    """A stage definition: id, body, allowedTools, completion, retryPolicy, turnCap of at least 1, resolution."""
    stage = Stage(
        "a",
        echo,
        body="go",
        allowed_tools={"read"},
        turn_cap=20,
        retry=RetryPolicy(attempts=2),
        resolution="retry-later",
    )
    assert (stage.turn_cap, stage.resolution) == (20, "retry-later")
    for options, code in (
        ({"turn_cap": 0}, "TASK_TURN_CAP_TOO_LOW"),
        ({"completion": {"type": "array"}}, "TASK_COMPLETION_SCHEMA_INVALID"),
    ):
        with pytest.raises(HoldfastError) as raised:
            Stage("a", echo, **options)
        assert code_of(raised.value) == code


def test_N2_7_the_first_failure_of_parallel_stages_ends_the_others_and_the_join_does_not_run():
    """Parallel siblings fail fast: the first failure aborts the others, and the error names it."""
    ended: list[str] = []

    async def slow(work: Any) -> None:
        try:
            await asyncio.sleep(100)
        finally:
            ended.append(work.stage)

    async def fails(work: Any) -> None:
        await asyncio.sleep(1)
        raise ConnectionError("red")

    split = Stage("split", echo, next=Go(stages=("a", "b"), execution="parallel", join="merge"))
    stages = [split, Stage("a", slow), Stage("b", fails, retry=ONCE), Stage("merge", echo)]
    with pytest.raises(StageError) as raised:
        run(StageMachine(stages).run())
    assert (code_of(raised.value), raised.value.fault.context["stage"]) == ("TASK_SIBLING_FAILED", "b")
    assert typed_error(raised.value.fault)["code"] == "ParallelSiblingFailure"
    assert (ended, "merge" in raised.value.ended.results) == (["a"], False)


def test_N2_8_a_grant_is_for_one_call_with_its_arguments_and_is_used_once():
    """grantStageTool: a token for one call with exactly its arguments, single use; defer denies."""
    ran: list[str] = []

    @tool(effect="unsafe")
    def deploy(version: str) -> str:
        ran.append(version)
        return "ok"

    async def act(work: Any) -> list[str | None]:
        token = await work.propose("deploy", version="1")
        answers = [await work.call("deploy", grant=token, version=version) for version in ("2", "1", "1")]
        deferred = await work.propose("deploy", version="3")
        return [None if each.fault is None else each.fault.code for each in answers] + [deferred]

    stage = Stage("a", act, grant=lambda proposal: "defer" if proposal.arguments["version"] == "3" else "approve")
    ended = run(StageMachine([stage], tools=[deploy]).run())
    assert ended.value == ["TASK_GRANT_INVALID", None, "TASK_GRANT_CONSUMED", None]
    assert ran == ["1"]


def test_N2_9_failed_and_denied_calls_do_not_fail_the_turn_and_results_are_in_order(world):
    """A tool error does not fail the turn; approved calls run at the same time; a denial is ToolTerminal/ApprovalDenied."""
    person = Person(False)
    at: list[float] = []

    @tool(effect="read")
    async def slow(n: int) -> int:
        at.append(world.now)
        await asyncio.sleep(5 - n)
        if n == 2:
            raise ValueError("odd")
        return n

    @tool(effect="unsafe")
    async def pay() -> str:
        return "paid"

    calls = (
        *(ToolCall(id=str(n), name="slow", arguments={"n": n}) for n in range(3)),
        ToolCall(id="p", name="pay", arguments={}),
    )
    model = world.model("own/m", Reply(calls=calls), Reply(text="done"))

    async def main() -> str:
        agent = Agent("helper", model, [slow, pay], runtime=world.runtime)
        async with Session.open(
            "s", store=MemoryStore(), runtime=world.runtime, mode="ask", interactors=[person]
        ) as session:
            return (await agent.run("go", session=session)).text

    assert run(main(), clock=world.clock) == "done"
    results = model.requests[1].messages[-4:]
    assert [result.failed for result in results] == [False, False, True, True]
    assert len(set(at)) == 1
    assert json.loads(results[3].text)["code"] == "ApprovalDenied"


def test_N2_10_cancelling_a_scope_cancels_what_is_inside_and_the_next_turn_goes_on(world):
    """Scopes: session > turn > tool; cancelling cancels descendants, children first, never the parent; turns are served in order."""
    order: list[str] = []

    async def main() -> None:
        async with Session.open("s", store=MemoryStore(), runtime=world.runtime) as session:

            async def inside() -> None:
                try:
                    await asyncio.sleep(100)
                finally:
                    order.append("tool")

            with pytest.raises(AbortedError) as raised:
                async with session.turn("a") as turn:
                    asyncio.get_running_loop().call_later(1, turn.cancel)
                    try:
                        await session.step(inside)
                    finally:
                        order.append("turn")
            assert typed_error(raised.value.fault)["code"] == "TurnCancelled"
            async with session.turn("b"):
                order.append("next")

    run(main(), clock=world.clock)
    assert order == ["tool", "turn", "next"]


def test_N2_10_cancelling_a_turn_reaches_tools_in_other_tasks_and_cancelling_a_tool_not_its_turn(world):
    """Cancelling a scope cancels its descendants, whichever task they are in; cancelling a descendant never cancels its parent."""
    order: list[str] = []

    async def beside() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            order.append("tool")

    async def main() -> Any:
        async with Session.open("s", store=MemoryStore(), runtime=world.runtime) as session:
            async with session.turn("a"):
                one = asyncio.ensure_future(session.step(beside))
                await asyncio.sleep(1)
                one.cancel()
                await asyncio.wait((one,))
                order.append("turn goes on")
            with pytest.raises(AbortedError):
                async with session.turn("b") as turn:
                    other = asyncio.ensure_future(session.step(beside))
                    asyncio.get_running_loop().call_later(1, turn.cancel)
                    try:
                        await asyncio.sleep(100)
                    finally:
                        order.append("turn")
            await asyncio.wait((other,), timeout=1)
            return typed_error(fault_of(other.exception()))["code"]

    assert run(main(), clock=world.clock) == "ToolCancelled"
    assert order == ["tool", "turn goes on", "tool", "turn"]


def test_N2_11_the_edges_of_a_session_are_events_after_the_store_has_them(world):
    """States Idle, Active, Persisted, Closed, Resumed; each edge is an event, and SessionPersisted comes after the store's acknowledgement."""
    store = MemoryStore()

    async def once(last: bool) -> None:
        async with Session.open("s", store=store, runtime=world.runtime) as session:
            async with session.turn("a"):
                pass
            if last:
                await session.close()

    run(once(last=False), clock=world.clock)
    run(once(last=True), clock=world.clock)
    seen = [
        event
        for event in world.heard.events
        if isinstance(event, SessionActive | SessionPersisted | SessionResumed | SessionClosed)
    ]
    assert [type(event).__name__ for event in seen] == [
        "SessionActive", "SessionPersisted", "SessionResumed", "SessionActive", "SessionClosed",
    ]  # fmt: skip
    assert [(event.before, event.edge) for event in seen[1:3]] == [("Active", "Snapshot"), ("Closed", "Resume")]
    named = [(event.before, event.edge, type(event).__name__.removeprefix("Session")) for event in seen[:4]]
    assert {(before, edge): after for before, edge, after in named}.items() <= {
        (before.value, edge): after.value for (before, edge), after in STUD_EDGES.items()
    }.items()
    with pytest.raises(HoldfastError) as raised:
        run(once(last=False), clock=world.clock)
    assert code_of(raised.value) == "SESS_CLOSED"


def test_N2_12_the_manifest_is_slim_sorted_and_without_secrets():
    """The manifest has stable sorted keys and no secrets; a blank storeId is ManifestDrift, and another store is ResumeMismatch."""
    store = MemoryStore()

    async def main(store: Any, **options: Any) -> None:
        async with (
            Session.open(
                "s", store=store, model="opus", config={"b": 1, "a": "sk-ant-api03-" + "x" * 40}, **options
            ) as session,
            session.turn("hi"),
        ):
            pass

    run(main(store))
    raw = bytes(run(store.session("s")).manifest)
    assert list(json.loads(raw)) == sorted(json.loads(raw))
    assert b"sk-ant-api03-xxxx" not in raw
    assert decode_manifest("s", raw).session_id == "s"

    for written, code in (
        (b'{"sessionId":"s","storeId":"another"}', "ResumeMismatch"),
        (b'{"sessionId":"s","storeId":""}', "ManifestDrift"),
    ):
        store = MemoryStore()
        run(store.commit(Commit(session="s", create=NewSession(manifest=written))))
        with pytest.raises(HoldfastError) as raised:
            run(main(store))
        assert typed_error(raised.value.fault)["code"] == code
        assert bytes(run(store.session("s")).manifest) == written


def test_N2_13_one_owner_per_session_and_the_log_replays_from_the_last_snapshot(tmp_path):
    """Exactly one active session per store entry; a process holds a lock; recovery replays the journal from the last snapshot."""
    path = str(tmp_path / "s.db")
    ran: list[int] = []

    async def double(n: int) -> int:
        ran.append(n)
        return 2 * n

    async def main() -> None:
        async with Session.open("s", store=path) as session:
            await session.step(double, 1)
            await session.checkpoint()
            await session.step(double, 2)
            with pytest.raises(HoldfastError) as raised:
                async with Session.open("s", store=path):
                    pass
            assert code_of(raised.value) == "SESS_LEASE_LOST"
        async with Session.open("s", store=path) as session:
            assert [await session.step(double, n) for n in (1, 2)] == [2, 4]

    asyncio.run(main())
    assert ran == [1, 2]


def test_N2_14_a_missing_extension_is_skipped_and_reported_on_resume(tmp_path, monkeypatch):
    """A resume never fails because of a missing or changed extension: it is skipped and reported in skippedExtensions."""
    installed(tmp_path, monkeypatch, "gateway", "raise RuntimeError('changed')")
    world, store = World("stud"), MemoryStore()

    async def once() -> None:
        async with Session.open("s", store=store, runtime=world.runtime) as session, session.turn("a"):
            pass

    with Extensions(runtime=world.runtime) as extensions:
        assert [one.id for one in extensions.skipped] == ["gateway"]
        run(once(), clock=world.clock)
        run(once(), clock=world.clock)
    (resumed,) = world.of(SessionResumed)
    assert [(each["extId"], bool(each["reason"])) for each in resumed.skipped_extensions] == [("gateway", True)]


def test_N2_15_one_prompt_at_a_time_and_the_first_answer_wins(world):
    """Kinds Ask, Approve, Select, Auth, Confirm; one prompt at a time; several people race, the first answer wins, late ones are rejected."""

    async def main() -> None:
        slow, quick = Person("slow", after=60), Person("quick", True, "b", Answer.no("mine"), after=2)
        async with Session.open("s", store=MemoryStore(), runtime=world.runtime, interactors=[slow, quick]) as session:
            assert await session.ask("Who?") == "quick"
            with pytest.raises(HoldfastError) as raised:
                await session.answer(slow.shown[0].id, "slow")
            assert code_of(raised.value) == "SESS_ALREADY_ANSWERED"
            assert await session.confirm("Sure?") is True
            assert await session.select("Which?", ["a", "b"]) == "b"
            assert await session.approve("Deploy?") is False
        assert [question.kind for question in quick.shown] == ["Ask", "Confirm", "Select", "Approve"]
        assert slow.dismissed

    run(main(), clock=world.clock)

    async def headless() -> None:
        async with Session.open("s", store=MemoryStore(), runtime=world.runtime) as session:
            await session.approve("Deploy?")

    with pytest.raises(HoldfastError) as raised:
        run(headless(), clock=world.clock)
    assert code_of(raised.value) == "SESS_NO_INTERACTOR"


def test_N2_16_audit_records_have_a_class_a_correlation_masked_secrets_and_a_cap():
    """Audit records: class, correlationId, timestamp, payload; secrets are redacted, long strings are cut with a marker."""
    documented = {
        "Approval",
        "StageExecution",
        "SessionLifecycle",
        "Turn",
        "ProviderExchange",
        "ToolInvocation",
        "SuppressedError",
    }
    assert documented - {"Approval"} <= set(CLASSES.values())
    world = World("stud")
    key = "sk-ant-api03-" + "x" * 40

    async def main() -> list[Any]:
        store = MemoryStore()
        async with audit_to(store, runtime=world.runtime) as trail:
            with suppress(OSError, reason="r" * 100_000, runtime=world.runtime):
                raise OSError(f"{key} is wrong")
            with pytest.raises(httpx2.HTTPStatusError):
                recover("claude", runtime=world.runtime).call(failing(http(401)))
            await trail.flush()
        return await store.audit(trail.chain)

    records = run(main(), clock=world.clock)
    assert {"Fault", "SuppressedError"} <= {record.kind for record in records}
    assert all(record.correlation for record in records)
    (suppressed,) = (bytes(record.payload).decode() for record in records if record.kind == "SuppressedError")
    assert key not in suppressed
    reason = json.loads(suppressed)["reason"]
    assert reason.startswith("rrr")
    assert reason.endswith(" bytes truncated]")
    assert 65_000 < len(reason.encode()) <= 65_536


def test_N2_17_events_come_in_an_envelope_in_order_and_decide_nothing(world):
    """The envelope of an event: name, correlationId, monotonicTs, payload; the bus only projects, in order."""
    heard: list[dict[str, Any]] = []
    world.manager.on("retry", heard.append)
    world.manager.on("recovered", heard.append)
    world.manager.execute(failing(http(503), http(503), None), PROVIDER)
    assert [event["name"] for event in heard] == ["Retry", "Retry", "Recovered"]
    assert [set(event) for event in heard] == [{"name", "correlationId", "monotonicTs", "payload"}] * 3
    assert len({event["correlationId"] for event in heard}) == 1
    assert [event["monotonicTs"] for event in heard] == [0.0, 1000.0, 3000.0]
    assert heard[0]["payload"]["attempt"] == 1
    assert write_envelope(world.of(Retry)[0], 1.5)["monotonicTs"] == 1500.0
    # A reader that raises changes nothing.
    world.manager.on("retry", lambda event: 1 / 0)
    assert world.manager.execute(failing(http(503), None), PROVIDER) == "answer"


def test_N2_18_capabilities_are_hard_preferred_probed_or_absent(world):
    """Capability levels: hard is rejected, preferred warns, probed is done without, absent is not needed."""
    assert {
        "streaming",
        "toolCalling",
        "structuredOutput",
        "multimodal",
        "reasoning",
        "contextWindow",
        "promptCaching",
    } == set(CAPABILITIES)
    bare = Offers(streaming=False)
    found = {
        level: negotiate(Needs(levels={"streaming": level}), bare)
        for level in ("hard", "preferred", "probed", "absent")
    }
    assert {level: each.agreed for level, each in found.items()} == {
        "hard": False,
        "preferred": True,
        "probed": True,
        "absent": True,
    }
    assert found["preferred"].preferred == ("streaming",)
    assert found["probed"].probed == ("streaming",)
    # What is not known is not missing.
    assert negotiate(Needs(levels={"streaming": "hard"}), Offers()).agreed
    model = world.model("own/bare", offers=bare)
    with pytest.raises(HoldfastError) as raised:
        choose("own/bare", [model], Needs(levels={"streaming": "hard"}), runtime=world.runtime)
    assert code_of(raised.value) == "PROVIDER_MISSING_STREAMING"
    assert world.of(SuppressedError) == []
    for level in ("probed", "preferred"):
        assert choose("own/bare", [model], Needs(levels={"streaming": level}), runtime=world.runtime) is model
    (warned,) = world.of(SuppressedError)
    assert warned.reason == "the model lacks a preferred capability"


def test_N2_19_the_envelope_comes_before_the_grant_and_the_grant_before_the_mode():
    """Approval precedence: the stage's envelope, then a grant, then the mode."""
    envelope = Approval(mode="yolo", envelope={"read"})
    assert envelope.decide("pay", "unsafe", "approve").by == "envelope"
    assert [Approval(mode="yolo").decide("pay", "unsafe", grant).verdict for grant in ("approve", "deny", "defer")] == [
        "run",
        "deny",
        "deny",
    ]
    assert [Approval(mode=mode).decide("pay", "unsafe", None).verdict for mode in ("yolo", "ask")] == ["run", "ask"]


@pytest.mark.parametrize(
    ("error", "pair", "retryable"),
    [
        (http(401), "ToolTerminal/Forbidden", False),
        (http(429), "ProviderTransient/RateLimited", True),
        (http(500), "ProviderTransient/Provider5xx", True),
        (TimeoutError(), "ProviderTransient/NetworkTimeout", True),
    ],
)
def test_N2_20_an_adapter_maps_by_status_and_retryability_is_decided_by_code(error, pair, retryable):
    """401, 404, 429, 5xx and timeouts map to class and code; what is not recognised is unknown, and a class alone allows no retry."""
    fault = fault_of(error)
    assert fault.retryable is retryable
    if pair != "ToolTerminal/Forbidden":
        assert "/".join(fault.entry.class_and_code) == pair
    for name in ("ProviderTransient/Unauthorized", "ProviderTransient/EndpointNotFound"):
        entry = resolve(name)
        assert entry is not None
        assert not entry.retryable
    odd = fault_of(RuntimeError("a thing that nobody knows happened"))
    assert (odd.code, odd.entry.class_and_code[1] != "MissingStreaming") == ("SYS_UNKNOWN", True)
