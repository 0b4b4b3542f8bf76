"""Tools: what a model sees of them, how its calls are checked and recovered, and what it gets back."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

import anthropic
import jsonschema
import msgspec
import openai
import pydantic
import pytest

from holdfast import (
    NOT_HAPPENED,
    Backoff,
    Err,
    Fault,
    Happened,
    HoldfastError,
    InvalidError,
    ItemError,
    Kind,
    Ok,
    OutcomeUnknownError,
    Partial,
    Policy,
    Runtime,
    Tries,
    call_key,
    fault_of,
    tool,
)
from holdfast.events import Failed, Retry
from holdfast.runtime import secrets
from holdfast.runtime.runtime import default_runtime
from holdfast.testing import Capture, VirtualClock
from holdfast.testing import run as run_virtual
from holdfast.tools import ProcessError, Toolbox, ToolError, bash, collect, process_tool

AT_ONCE = Backoff(initial=0)


def finish(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 20))


@tool(effect="read")
async def search(
    pattern: Annotated[str, msgspec.Meta(description="A regular expression.")],
    limit: int = 10,
    kind: Literal["text", "code"] = "text",
) -> list[str]:
    """Search the project.

    This part is for people.
    """
    return [f"{pattern}/{limit}/{kind}"]


@dataclass
class Point:
    x: int
    y: int = 0


# --- what a model sees ---


def test_a_schema_is_made_from_the_signature():
    (shown,) = Toolbox([search]).schemas()
    assert shown == {
        "name": "search",
        "description": "Search the project.",
        "input_schema": {
            "type": "object",
            "properties": {
                "pattern": {"type": "string", "description": "A regular expression."},
                "limit": {"type": "integer", "default": 10},
                "kind": {"enum": ["code", "text"], "default": "text"},
            },
            "required": ["pattern"],
            "additionalProperties": False,
        },
    }


def test_schemas_have_the_form_of_each_SDK():
    box = Toolbox([search])
    (chat,), (responses,), (mcp,) = box.schemas("openai"), box.schemas("openai-responses"), box.schemas("mcp")
    assert (chat["type"], chat["function"]["name"], responses["name"], mcp["name"]) == ("function", *["search"] * 3)
    assert chat["function"]["parameters"] == responses["parameters"] == mcp["inputSchema"]
    jsonschema.Draft202012Validator.check_schema(mcp["inputSchema"])
    # The SDKs' own types accept them.
    pydantic.TypeAdapter(anthropic.types.ToolParam).validate_python(box.schemas()[0])
    pydantic.TypeAdapter(openai.types.chat.ChatCompletionToolParam).validate_python(chat)
    with pytest.raises(InvalidError, match=r"toolbox\.style"):
        box.schemas("gemini")


def test_nested_types_keep_their_definitions():
    @tool(effect="read", name="move_to", description="Move.")
    def move(points: list[Point]) -> None: ...

    (shown,) = Toolbox([move]).schemas()
    assert (shown["name"], shown["description"]) == ("move_to", "Move.")
    jsonschema.validate({"points": [{"x": 1}]}, shown["input_schema"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"points": [{"y": 1}]}, shown["input_schema"])


@pytest.mark.parametrize("kind", ["struct", "pydantic"])
def test_a_declared_input_type_is_the_schema_and_the_one_argument(kind):
    class Struct(msgspec.Struct):
        name: str
        size: int = 1

    class Model(pydantic.BaseModel):
        name: str
        size: int = 1

    @tool(effect="read", input=Struct if kind == "struct" else Model)
    def make(arguments: Any) -> str:
        return f"{arguments.name}×{arguments.size}"

    box = Toolbox([make])
    assert box.schemas()[0]["input_schema"]["required"] == ["name"]
    assert finish(box.call("make", {"name": "box", "size": 3})) == "box×3"
    with pytest.raises(InvalidError) as raised:
        finish(box.call("make", {"name": "box", "size": "big"}))
    assert "size" in raised.value.fault.message


def test_a_declared_schema_is_kept_as_it_is():
    given = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"]}

    @tool(effect="read", input=given)
    def double(**arguments: Any) -> int:
        return 2 * arguments["n"]

    box = Toolbox([double])
    assert box.schemas()[0]["input_schema"] == given
    assert finish(box.call("double", '{"n": 4}')) == 8
    with pytest.raises(InvalidError, match="argument `n`"):
        finish(box.call("double", {"n": 0}))


def test_what_cannot_be_a_tool_is_named():
    with pytest.raises(InvalidError, match="named parameters only"):
        Toolbox([tool(effect="read")(lambda *words: words)])
    with pytest.raises(InvalidError, match="two tools named 'search'"):
        Toolbox([search, search])
    with pytest.raises(InvalidError, match="functions with @tool"):
        Toolbox(["search"])
    with pytest.raises(InvalidError, match=r"tool.codes.*TOOL_TIMEOUT"):
        tool(effect="read", codes={"TOOL_TIMEOU": True})


# --- arguments ---


@pytest.mark.parametrize(
    ("arguments", "field", "said"),
    [
        ({"pattern": 3}, "pattern", "argument `pattern`: expected str, got int"),
        ({}, "pattern", "argument `pattern`: expected a value, got nothing"),
        ({"pattern": "x", "limits": 3}, "limits", "did you mean `limit`?"),
        ({"pattern": "x", "kind": "prose"}, "kind", "argument `kind`: expected one of 'code', 'text', got 'prose'"),
        ("{not json", "", "malformed"),
        ([1], "", "expected an object, got list"),
    ],
)
def test_arguments_that_do_not_fit_are_a_fault_that_names_the_field(arguments, field, said):
    ended = finish(Toolbox([search]).outcome("search", arguments))
    assert isinstance(ended, Err)
    fault = ended.fault
    assert (fault.code, fault.retryable, fault.context["tool"], fault.context["field"]) == (
        "TOOL_INPUT_INVALID",
        False,
        "search",
        field,
    )
    assert said in fault.message
    shown = fault.for_model()
    assert (shown["class"], shown["code"]) == ("ToolTerminal", "InputInvalid")
    assert said in shown["context"]["message"]


def test_arguments_come_as_an_object_as_JSON_or_not_at_all():
    @tool(effect="read")
    def now() -> str:
        return "noon"

    box = Toolbox([search, now])
    assert finish(box.call("search", '{"pattern": "a", "limit": 2}')) == ["a/2/text"]
    assert finish(box.call("search", {"pattern": "a"})) == ["a/10/text"]
    assert {finish(box.call("now", nothing)) for nothing in (None, "", {}, "{}")} == {"noon"}


def test_an_unknown_tool_lists_the_known_ones():
    ended = finish(Toolbox([search]).outcome("serch", {}))
    assert (ended.fault.code, ended.fault.context["supported"]) == ("TOOL_NOT_FOUND", ["search"])
    assert "did you mean `search`?" in ended.fault.message
    assert ended.fault.for_model()["context"]["supported"] == ["search"]


# --- results ---


def test_a_result_that_does_not_have_its_declared_shape_is_a_fault():
    calls = []

    @tool(effect="unsafe", output=list[int])
    def numbers() -> Any:
        calls.append(1)
        return ["one"]

    ended = finish(Toolbox([numbers]).outcome("numbers"))
    assert (ended.fault.code, len(calls)) == ("TOOL_OUTPUT_MALFORMED", 1)
    assert "int" in ended.fault.message


def test_S2_20_three_of_five_keep_their_shape_and_the_others_are_listed():
    async def fetch(url: str) -> str:
        if url in ("b", "d"):
            raise ConnectionRefusedError(111, f"refused by {url}")
        return f"page {url}"

    @tool(effect="read", output=list[str])
    async def fetch_all(urls: list[str]) -> Any:
        return await collect(fetch, urls)

    box = Toolbox([fetch_all], policy=Policy(attempts=1))
    value = finish(box.call("fetch_all", {"urls": ["a", "b", "c", "d", "e"]}))
    assert isinstance(value, Partial)
    assert value.payload == ["page a", "page c", "page e"]
    assert [(error.item, error.code, error.retryable) for error in value.errors] == [
        ("b", "CONN_REFUSED", True),
        ("d", "CONN_REFUSED", True),
    ]
    assert (value.complete, value.expected) == (3, 5)
    answer = finish(box.answer("fetch_all", {"urls": ["a", "b"]}))
    shown = json.loads(answer.content)
    assert (shown["result"], shown["errors"][0]["context"]["item"], answer.is_error) == (["page a"], "b", False)
    assert finish(box.call("fetch_all", {"urls": ["a"]})) == ["page a"]
    with pytest.raises(ConnectionRefusedError):
        finish(box.call("fetch_all", {"urls": ["b", "d"]}))


def test_a_tool_may_report_its_own_partial_result():
    @tool(effect="read", output=list[int])
    def some() -> Any:
        return Partial(payload=[1], errors=(ItemError(item=2, code="TOOL_TIMEOUT", message="late"),))

    assert finish(Toolbox([some]).call("some")).payload == [1]


def test_the_model_gets_text_and_no_more_than_the_cap():
    @tool(effect="read", output_cap=1_000)
    def much() -> str:
        return "a" * 5_000 + "z"

    answer = finish(Toolbox([much]).answer("much"))
    assert len(answer.content) < 1_100
    assert answer.content.endswith("z")
    assert "bytes cut" in answer.content
    assert len(answer.value) == 5_001


def test_a_result_hides_our_secrets_and_nothing_else(monkeypatch):
    monkeypatch.setenv("BILLING_API_KEY", "our-own-key-of-this-process")
    secrets.process_redactor.cache_clear()

    @tool(effect="read", output_cap=200_000)
    def read() -> str:
        return 'password = "hunter2hunter2"\nkey = "our-own-key-of-this-process"\n' + "x" * 100_000

    answer = finish(Toolbox([read]).answer("read"))
    secrets.process_redactor.cache_clear()
    assert answer.content.startswith('password = "hunter2hunter2"\nkey = "[redacted]"\n')
    assert len(answer.content) > 100_000


def test_S2_11_a_failure_reaches_the_model_as_a_typed_shape_without_a_stack():
    @tool(effect="read")
    def broken() -> str:
        raise KeyError("secret internals")

    answer = finish(Toolbox([broken]).answer("broken"))
    shown = json.loads(answer.content)
    assert answer.is_error
    assert set(shown) == {"class", "code", "context"}
    assert "Traceback" not in answer.content
    assert "secret internals" not in answer.content
    assert answer.fault.code == "SYS_PROGRAMMING_ERROR"


# --- recovery by contract ---


class Flaky:
    """Raises these in turn, then returns."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    async def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


def busy() -> HoldfastError:
    return HoldfastError(Fault.of("TOOL_RESOURCE_BUSY"))


def test_S2_16_a_tool_without_a_contract_is_called_once_and_the_model_is_told():
    flaky = Flaky(busy())

    @tool(effect="read")
    async def lock() -> str:
        return await flaky()

    answer = finish(Toolbox([lock]).answer("lock"))
    assert (flaky.calls, answer.is_error, json.loads(answer.content)["class"]) == (1, True, "ToolTransient")


def test_S2_16_the_contract_of_a_tool_says_how_often_it_is_tried():
    flaky = Flaky(busy(), busy())

    @tool(effect="read", retry=Tries(attempts=3, backoff=AT_ONCE))
    async def lock() -> str:
        return await flaky()

    assert finish(Toolbox([lock]).call("lock")) == "done"
    assert flaky.calls == 3


def test_S2_12_the_contract_says_which_codes_are_retried():
    def failing(code: Any) -> HoldfastError:
        return HoldfastError(Fault.of(code))

    flaky = Flaky(failing("TOOL_EXECUTION_FAILED"), failing("TOOL_RESOURCE_BUSY"))

    @tool(
        effect="idempotent",
        retry=Tries(attempts=3, backoff=AT_ONCE),
        codes={"TOOL_EXECUTION_FAILED": True, "TOOL_RESOURCE_BUSY": False},
    )
    async def lock() -> str:
        return await flaky()

    ended = finish(Toolbox([lock]).outcome("lock"))
    assert (ended.fault.code, flaky.calls) == ("TOOL_RESOURCE_BUSY", 2)


def test_S2_13_retries_are_reported_with_the_attempt_count():
    runtime, seen = Runtime(), Capture()
    runtime.on(seen)
    flaky = Flaky(busy())

    @tool(effect="read", retry=Tries(attempts=2, backoff=AT_ONCE))
    async def lock() -> str:
        return await flaky()

    finish(Toolbox([lock], runtime=runtime).call("lock"))
    (retry,) = [event for event in seen if isinstance(event, Retry)]
    assert (retry.operation, retry.attempt, retry.max_attempts) == ("tool:lock", 1, 2)


def test_a_tool_without_an_effect_is_unsafe_and_never_repeated():
    calls = []

    async def pay() -> None:
        calls.append(call_key())
        raise ConnectionResetError(104, "reset")

    with pytest.raises(OutcomeUnknownError) as raised:
        finish(Toolbox([pay]).call("pay"))
    assert len(calls) == 1
    assert raised.value.key == calls[0] != ""


def test_S2_16_the_key_of_a_call_is_the_same_over_its_attempts():
    keys: list[str] = []

    @tool(effect="keyed", retry=Tries(attempts=3, backoff=AT_ONCE))
    async def pay() -> str:
        keys.append(call_key())
        if len(keys) < 3:
            raise ConnectionResetError(104, "reset")
        return "paid"

    box = Toolbox([pay])
    assert finish(box.call("pay")) == "paid"
    assert len(keys) == 3
    assert len(set(keys)) == 1
    finish(box.call("pay"))
    assert keys[3] != keys[0]


@pytest.mark.parametrize("kind", ["async", "sync", "process"])
def test_verify_finds_out_what_became_of_a_call_of_every_kind(kind, tmp_path: Path):
    asked: list[tuple[str, dict[str, Any]]] = []

    def look_up(key: str, **arguments: Any) -> Any:
        asked.append((key, arguments))
        return Happened("order 7") if arguments["plan"] == "v1" else NOT_HAPPENED

    def deploy(plan: str) -> str:
        raise ConnectionResetError(104, plan)

    async def deploy_async(plan: str) -> str:
        raise ConnectionResetError(104, plan)

    match kind:
        case "async":
            made: Any = tool(effect="unsafe", name="deploy", verify=look_up)(deploy_async)
        case "sync":
            made = tool(effect="unsafe", verify=look_up)(deploy)
        case _:
            made = process_tool("deploy", ["bash", "-c", "kill -KILL $$", "{plan}"], effect="unsafe", verify=look_up)
    box = Toolbox([made])
    assert finish(box.call("deploy", {"plan": "v1"})) == "order 7"
    assert asked[0][1] == {"plan": "v1"}
    assert asked[0][0]


@pytest.mark.parametrize("kind", ["async", "sync", "process"])
def test_check_looks_at_the_result_of_every_kind(kind):
    def is_long(result: str, word: str) -> str | None:
        return None if len(result.strip()) > 3 else f"{word} is too short"

    def echo(word: str) -> str:
        return word

    async def echo_async(word: str) -> str:
        return word

    match kind:
        case "async":
            made: Any = tool(effect="read", name="echo", check=is_long)(echo_async)
        case "sync":
            made = tool(effect="read", check=is_long)(echo)
        case _:
            made = process_tool("echo", ["echo", "{word}"], effect="read", check=is_long)
    box = Toolbox([made])
    assert finish(box.call("echo", {"word": "long enough"})).strip() == "long enough"
    ended = finish(box.outcome("echo", {"word": "no"}))
    assert (ended.fault.code, "no is too short" in ended.fault.message) == ("TOOL_EXECUTION_FAILED", True)


# --- time limits ---


@pytest.mark.parametrize(
    ("name", "options", "limit"),
    [
        ("bash", {}, 300),
        ("read_file", {}, 10),
        ("edit_file", {}, 30),
        ("search", {}, 60),
        ("anything", {}, 120),
        ("anything", {"profile": "actor"}, 30),
        ("anything", {"profile": "actor", "actor": "claude"}, 120),
        ("bash", {"profile": "actor"}, 30),
        ("anything", {"profile": "task"}, 300),
    ],
)
def test_C8_the_limit_is_that_of_the_name_then_the_operation_then_the_actor_then_the_default(name, options, limit):
    clock = VirtualClock()

    @tool(effect="read", name=name)
    async def hang() -> None:
        await asyncio.sleep(10_000)

    async def main():
        return await Toolbox([hang], policy=Policy(attempts=1), **options).outcome(name)

    ended = run_virtual(main(), clock=clock)
    assert (ended.fault.code, clock.monotonic()) == ("TOOL_TIMEOUT", limit)


def test_S1_32_a_call_over_120_s_is_cancelled_with_a_timeout_that_is_retryable():
    clock, cancelled = VirtualClock(), []

    @tool(effect="read")
    async def hang() -> None:
        try:
            await asyncio.sleep(10_000)
        except asyncio.CancelledError:
            cancelled.append(clock.monotonic())
            raise

    async def main():
        with pytest.raises(TimeoutError) as raised:
            await Toolbox([hang]).call("hang")
        return raised.value

    error = run_virtual(main(), clock=clock)
    assert cancelled == [120.0]
    fault = fault_of(error)
    assert (fault.code, fault.kind, fault.entry.retryable) == ("TOOL_TIMEOUT", Kind.TRANSIENT, True)


@pytest.mark.parametrize(
    ("profile", "attempts"), [("holdfast", 1), ("stud", 1), ("spec016", 3), ("actor", 3), ("task", 1)]
)
def test_C7_a_tool_over_its_time_is_tried_again_only_if_the_profile_says_so(profile, attempts):
    calls = []

    @tool(effect="read", timeout=5)
    async def hang() -> None:
        calls.append(1)
        await asyncio.sleep(100)

    async def main():
        return await Toolbox([hang], profile=profile).outcome("hang")

    assert run_virtual(main(), clock=VirtualClock()).fault.code == "TOOL_TIMEOUT"
    assert len(calls) == attempts


def test_what_passes_by_itself_is_tried_three_times():
    calls = []

    @tool(effect="read")
    async def fetch() -> None:
        calls.append(1)
        raise ConnectionRefusedError(111, "refused")

    async def main():
        return await Toolbox([fetch]).outcome("fetch")

    assert run_virtual(main(), clock=VirtualClock()).fault.code == "CONN_REFUSED"
    assert len(calls) == 3


def test_a_plain_function_does_not_block_the_loop_and_is_counted_when_it_is_left():
    release = threading.Event()

    @tool(effect="read", timeout=0.2)
    def hang() -> None:
        release.wait(10)

    async def main():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.01)

        ticking = asyncio.create_task(tick())
        ended = await Toolbox([hang]).outcome("hang")
        counted = default_runtime().abandoned_threads.count
        release.set()
        for _ in range(500):
            await asyncio.sleep(0.01)
            if not default_runtime().abandoned_threads.count:
                break
        ticking.cancel()
        return ended, ticks, counted, default_runtime().abandoned_threads.count

    ended, ticks, counted, after = finish(main())
    assert (ended.fault.code, counted, after) == ("TOOL_TIMEOUT", 1, 0)
    assert ticks > 5


def test_a_tool_whose_calls_hang_keeps_no_other_tool_from_being_called():
    release = threading.Event()

    @tool(effect="read", timeout=0.05)
    def hang() -> None:
        release.wait(60)

    @tool(effect="read")
    def fine() -> str:
        return "fine"

    async def main():
        policy = Policy(attempts=1, circuit=None)
        hanging = Toolbox([hang], policy=policy)
        try:
            await asyncio.gather(*(hanging.outcome("hang") for _ in range(70)))
            more = await hanging.outcome("hang")
            return (
                more,
                await Toolbox([fine]).outcome("fine"),
                await Toolbox([hang, fine], policy=policy).outcome("fine"),
            )
        finally:
            release.set()
            for _ in range(1_000):
                if not default_runtime().abandoned_threads.count:
                    break
                await asyncio.sleep(0.01)

    more, *others = finish(main())
    assert more.fault.code == "SYS_BULKHEAD_FULL"
    assert others == [Ok(value="fine")] * 2


def test_a_plain_function_sees_the_context_of_its_caller():
    @tool(effect="keyed")
    def key() -> str:
        return call_key()

    assert finish(Toolbox([key]).call("key"))


# --- programs as tools ---


def test_an_argument_of_a_program_cannot_become_a_second_command():
    box = Toolbox([process_tool("say", ["echo", "-n", "<{word}>"], effect="read")])
    assert finish(box.call("say", {"word": "a; rm -rf $HOME `id`"})) == "<a; rm -rf $HOME `id`>"
    assert box.schemas()[0]["input_schema"]["required"] == ["word"]


@pytest.mark.parametrize(("name", "arguments"), [("say", {"word": "a\0b"}), ("bash", {"command": "echo a\0b"})])
def test_a_nul_in_an_argument_is_the_models_to_fix(name, arguments):
    box = Toolbox([process_tool("say", ["echo", "{word}"], effect="read"), bash()])
    answer = finish(box.answer(name, arguments))
    assert answer.fault.code == "TOOL_INPUT_INVALID"
    assert not answer.fault.maybe_executed
    assert "NUL" in answer.content
    assert "cannot fix" not in answer.content


def test_a_function_may_build_the_command_from_typed_arguments():
    def head(path: str, lines: int = 2) -> list[str]:
        """Show the first lines of a file."""
        return ["head", "-n", str(lines), path]

    box = Toolbox([process_tool("head", head, effect="read")])
    shown = box.schemas()[0]
    assert (shown["description"], shown["input_schema"]["properties"]["lines"]["type"]) == (
        "Show the first lines of a file.",
        "integer",
    )
    assert finish(box.call("head", {"path": "/etc/passwd", "lines": 1})).count("\n") == 1
    assert finish(box.outcome("head", {"path": "/no/such"})).fault.code == "TOOL_FILE_NOT_FOUND"


def test_wrong_templates_are_named():
    for command in ("echo {x}", [], ["echo {0}"], ["echo {x.y}"], ["echo {"]):
        with pytest.raises(InvalidError, match=r"process_tool say\.command"):
            process_tool("say", command, effect="read")


def test_the_time_limit_of_a_program_keeps_what_it_printed():
    box = Toolbox([process_tool("slow", ["bash", "-c", "echo part; sleep 30"], effect="read", timeout=0.3)])
    ended = finish(box.outcome("slow"))
    assert (ended.fault.code, ended.fault.partial.payload) == ("TOOL_TIMEOUT", {"stdout": "part\n"})
    assert isinstance(ended.error, ProcessError)


def test_an_unsafe_program_over_its_time_is_outcome_unknown_with_its_output(tmp_path: Path):
    script = f"echo x >> {tmp_path}/calls; echo part; sleep 30"
    box = Toolbox([process_tool("deploy", ["bash", "-c", script], effect="unsafe", timeout=0.3)])
    ended = finish(box.outcome("deploy"))
    assert (ended.fault.code, ended.fault.context["failed_with"]) == ("TOOL_OUTCOME_UNKNOWN", "TOOL_TIMEOUT")
    assert ended.fault.partial.payload == {"stdout": "part\n"}
    assert (tmp_path / "calls").read_text() == "x\n"


def test_an_unsafe_program_that_failed_by_itself_is_not_repeated_although_its_failure_would_pass(tmp_path: Path):
    script = f"echo x >> {tmp_path}/calls; echo 'Connection refused' >&2; exit 7"
    box = Toolbox([process_tool("post", ["bash", "-c", script], effect="unsafe")])
    ended = finish(box.outcome("post"))
    assert (ended.fault.code, ended.fault.retryable) == ("CONN_REFUSED", False)
    assert (tmp_path / "calls").read_text() == "x\n"


def test_a_keyed_program_gets_the_same_key_with_every_attempt(tmp_path: Path):
    script = f"echo $HOLDFAST_CALL_KEY >> {tmp_path}/keys; [ $(wc -l < {tmp_path}/keys) = 2 ] || (echo busy: index.lock >&2; exit 1)"
    retry = Tries(attempts=3, backoff=AT_ONCE)
    finish(Toolbox([process_tool("pay", ["bash", "-c", script], effect="keyed", retry=retry)]).call("pay"))
    first, second = (tmp_path / "keys").read_text().split()
    assert first == second


def test_S0_21_FM1_the_tool_error_message_of_the_bridge():
    retry = Tries(attempts=4, backoff=AT_ONCE)
    box = Toolbox(
        [
            process_tool("bash", ["bash", "-c", "{command}"], effect="unsafe"),
            process_tool(
                "test", ["bash", "-c", "exit 1"], effect="read", retry=retry, codes={"TOOL_EXECUTION_FAILED": True}
            ),
        ]
    )
    ended = finish(box.outcome("bash", {"command": "echo out; echo err >&2; exit 1"}))
    payload = box.tool_error(ended.fault, tool="bash", tool_call_id="call-1")["payload"]
    assert payload["message"] == "Command exited with code 1"
    assert (payload["tool"], payload["tool_call_id"], payload["code"]) == ("bash", "call-1", "TOOL_EXECUTION_FAILED")
    assert (payload["retryable"], payload["max_retries"]) == (False, 0)
    assert {"exit_code": 1, "stderr": "err\n", "stdout": "out\n"}.items() <= payload["details"].items()
    assert payload["details"]["execution_time_ms"] >= 0
    ended = finish(box.outcome("test"))
    payload = box.tool_error(ended.fault, tool="test")["payload"]
    assert (payload["retryable"], payload["max_retries"]) == (True, 3)


def test_a_toolbox_is_a_collection():
    box = Toolbox([search], policy=Policy())
    assert (len(box), "search" in box, [each.name for each in box]) == (1, True, ["search"])
    assert repr(box["search"]) == "<tool search (read)>"
    assert isinstance(finish(box.outcome("search", {"pattern": "x"})), Ok)


class NoSuchCityError(Exception):
    """An exception as the author of a tool may write one."""


@pytest.mark.parametrize("kind", [ValueError, RuntimeError, LookupError, NoSuchCityError])
def test_FI7_a_tools_own_words_reach_the_model(kind):
    @tool(effect="read")
    async def forecast(city: str) -> str:
        raise kind(f"unknown city {city}; known are Oslo and Bergen")

    answer = finish(Toolbox([forecast], policy=Policy(attempts=1)).answer("forecast", {"city": "Atlantis"}))
    shown = json.loads(answer.content)["context"]
    assert answer.is_error
    assert shown["fault"] == "TOOL_EXECUTION_FAILED"
    assert "known are Oslo and Bergen" in shown["message"]


def test_FI7_a_defect_of_a_tool_is_not_shown_to_the_model():
    @tool(effect="read")
    async def forecast(city: str) -> str:
        return {"Oslo": "rain"}[city]

    answer = finish(Toolbox([forecast], policy=Policy(attempts=1)).answer("forecast", {"city": "Atlantis"}))
    assert answer.fault.code == "SYS_PROGRAMMING_ERROR"
    assert "Atlantis" not in answer.content


def test_the_code_of_a_failed_tool_is_the_same_in_its_outcome_and_in_the_answer():
    @tool(effect="read")
    async def forecast(city: str) -> str:
        raise ValueError(f"unknown city {city}; known are Oslo and Bergen")

    box = Toolbox([forecast])
    ended, answer = (finish(call("forecast", {"city": "Atlantis"})) for call in (box.outcome, box.answer))
    assert ended.fault.code == answer.fault.code == "TOOL_EXECUTION_FAILED"
    assert isinstance(ended.error, ValueError)


@pytest.mark.parametrize("mode", ["recover", "observe", "off"])
@pytest.mark.parametrize(("effect", "advised"), [("unsafe", True), ("read", False), ("idempotent", False)])
def test_an_unsafe_tool_that_raised_may_have_happened_and_the_model_learns_that(effect, advised, mode):
    @tool(effect=effect)
    async def deploy(plan: str) -> str:
        raise ValueError(f"the cluster rejected {plan} halfway")

    box = Toolbox([deploy], runtime=Runtime(mode=mode))
    answer = finish(box.answer("deploy", {"plan": "v2"}))
    assert finish(box.outcome("deploy", {"plan": "v2"})).fault.maybe_executed is advised
    assert ("The effect may have happened: check before calling again." in answer.content) is advised
    assert "the cluster rejected v2 halfway" in answer.content


class Job(msgspec.Struct):
    level: Literal["low", "high"]


def test_a_value_outside_of_a_closed_list_is_answered_with_the_list_also_further_down():
    @tool(effect="read")
    async def plan(jobs: list[Job], number: Literal[1, 2] = 1) -> str:
        return "done"

    box = Toolbox([plan])
    nested = finish(box.outcome("plan", {"jobs": [{"level": "low"}, {"level": "mid"}]})).fault
    assert "expected one of 'high', 'low', got 'mid'" in nested.message
    number = finish(box.outcome("plan", {"jobs": [], "number": 3})).fault
    assert "expected one of 1, 2, got 3" in number.message


def test_the_sections_of_a_docstring_describe_the_parameters():
    @tool(effect="read")
    async def book(
        city: str, nights: int = 1, *, room: Annotated[str, msgspec.Meta(description="The kind of room.")] = "any"
    ) -> str:
        """Book a room.

        In any city.

        Args:
            city: Where to stay;
                the English name.
            nights (int, optional): How long: one night by default.
            room: Not this one, the annotation wins.
            other: Nothing has this name.

        Returns:
            city: not a parameter.
        """

    @tool(effect="read")
    async def leave(city: str, nights: int = 1) -> str:
        """Leave a room.

        :param city: Where it was.
        :param int nights: How long
            it was.
        :returns: nothing
        """

    booked, left = (schema["input_schema"]["properties"] for schema in Toolbox([book, leave]).schemas())
    assert {name: shown.get("description") for name, shown in booked.items()} == {
        "city": "Where to stay; the English name.",
        "nights": "How long: one night by default.",
        "room": "The kind of room.",
    }
    assert [left[name]["description"] for name in ("city", "nights")] == ["Where it was.", "How long it was."]
    assert Toolbox([book]).schemas()[0]["description"] == "Book a room."


@pytest.mark.parametrize("name", ["my tool", "<lambda>", "a" * 65, "größe", "a.b", "a\n"])
def test_a_name_that_providers_reject_is_named_when_the_toolbox_is_made(name):
    def work(x: int) -> int:
        return x

    with pytest.raises(InvalidError) as caught:
        Toolbox([tool(effect="read", name=name)(work)])
    assert "tool.name: expected 1 to 64 ASCII letters, digits, `_` or `-`" in str(caught.value)


def test_a_lambda_needs_a_name():
    with pytest.raises(InvalidError, match="1 to 64 ASCII letters"):
        Toolbox([lambda x: x])


def test_one_function_is_not_a_list_of_tools():
    def delete(path: str) -> None: ...

    with pytest.raises(InvalidError) as caught:
        Toolbox(delete)
    assert "toolbox: expected a list of functions with @tool(effect=…), or tools, got function" in str(caught.value)


# What a tool tells the model


@tool(effect="read")
async def product_name(sku: str) -> str:
    """Return the name of a product."""
    raise {"missing": LookupError, "closed": ToolError}[sku](f"no product {sku}")


@pytest.mark.parametrize("sku", ["missing", "closed"])
def test_events_and_the_exception_have_the_code_that_the_model_gets(sku):
    runtime, failed = Runtime(), []
    runtime.on(failed.append, Failed)
    box = Toolbox([product_name], runtime=runtime)
    answer = asyncio.run(box.answer("product_name", {"sku": sku}))
    assert "no product" in answer.content
    assert failed[0].fault.code == answer.fault.code == "TOOL_EXECUTION_FAILED"
    assert (failed[0].fault.next_actor, failed[0].attempts) == ("model", 1)
    with pytest.raises((LookupError, ToolError)) as caught:
        asyncio.run(box.call("product_name", {"sku": sku}))
    assert fault_of(caught.value).code == "TOOL_EXECUTION_FAILED"


def test_a_defect_of_a_tool_stays_the_developers():
    @tool(effect="read")
    async def broken(sku: str) -> str:
        """Look it up."""
        return {}[sku]

    runtime, failed = Runtime(), []
    runtime.on(failed.append, Failed)
    answer = asyncio.run(Toolbox([broken], runtime=runtime).answer("broken", {"sku": "Z-9"}))
    assert failed[0].fault.code == answer.fault.code == "SYS_PROGRAMMING_ERROR"
    assert "Z-9" not in answer.content


def test_the_text_of_a_tool_error_reaches_the_model_as_it_is_also_from_an_unsafe_tool():
    @tool(effect="unsafe")
    async def order(sku: str) -> str:
        """Order it."""
        raise ToolError(f"no product {sku}; see /products/list")

    answer = asyncio.run(Toolbox([order]).answer("order", {"sku": "Z-9"}))
    assert (answer.fault.code, answer.fault.maybe_executed) == ("TOOL_EXECUTION_FAILED", False)
    assert json.loads(answer.content)["context"]["message"] == "Tool failed: no product Z-9; see /products/list"


def test_the_answer_for_wrong_arguments_says_each_thing_once():
    context = json.loads(asyncio.run(Toolbox([product_name]).answer("product_name", {"colour": "red"})).content)[
        "context"
    ]
    assert context["message"] == "product_name: unknown argument `colour`; use sku"
    assert context["expected"] == "sku"
    assert "reason" not in context
    assert "again" not in context["advice"]


@pytest.mark.parametrize("what", ["verify", "check"])
def test_a_verify_or_check_that_hangs_ends_with_a_limit_of_its_own(what):
    async def hangs(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    @tool(effect="unsafe", timeout=1, **{what: hangs})
    async def pay() -> str:
        """Pay somebody."""
        await asyncio.sleep(5 if what == "verify" else 0)
        return "paid"

    async def main() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        answer = await Toolbox([pay]).answer("pay", {})
        assert answer.fault is not None
        assert answer.fault.code == "TOOL_OUTCOME_UNKNOWN"
        return loop.time() - began

    assert 30 <= run_virtual(main()) < 120


def test_the_verify_of_a_plain_tool_blocks_no_other_call():
    is_free, is_looking = threading.Event(), threading.Event()

    def look_up(key: str) -> Happened:
        is_looking.set()
        return Happened("found beside others" if is_free.wait(3) else "found while all others waited")

    @tool(effect="unsafe", verify=look_up)
    def pay() -> str:
        """Pay somebody."""
        raise ConnectionResetError("lost")

    async def beside() -> None:
        await asyncio.to_thread(is_looking.wait, 10)
        is_free.set()

    async def main() -> Any:
        return (await asyncio.gather(Toolbox([pay]).call("pay", {}), beside()))[0]

    assert finish(main()) == "found beside others"


@pytest.mark.parametrize(
    ("arguments", "taken"),
    [
        ({"n": 5.0}, (5, [], 0.5)),
        ({"n": 1e3, "each": [1.0, 2], "share": 2.0}, (1000, [1, 2], 2.0)),
        ('{"n": 5.0, "each": [-3.0]}', (5, [-3], 0.5)),
    ],
)
def test_an_integer_that_is_written_with_a_point_is_an_integer(arguments, taken):
    """Gemini and others write every number like that."""
    seen = []

    @tool(effect="read")
    def count(n: int, each: list[int] | None = None, share: float = 0.5) -> None:
        seen.append((n, each or [], share))

    assert not finish(Toolbox([count]).answer("count", arguments)).is_error
    assert seen == [taken]
    assert all(type(number) is int for number in (seen[0][0], *seen[0][1]))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"n": 5.5}, "argument `n`: expected int, got float"),
        ({"n": float("nan")}, "argument `n`: expected int, got float"),
        ({"n": 1, "pair": [1]}, "argument `pair`: expected array of length 2, got 1"),
        ({"n": 1, "day": "2024-02-30"}, "argument `day`: expected a valid RFC3339 encoded date, got something else"),
    ],
)
def test_what_is_wrong_with_an_argument_is_one_sentence(arguments, said):
    @tool(effect="read")
    def count(n: int, pair: tuple[int, str] | None = None, day: date | None = None) -> None: ...

    answer = finish(Toolbox([count]).answer("count", arguments))
    assert f'"message":"count: {said}"' in answer.content
