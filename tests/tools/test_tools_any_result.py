"""Any value that a tool can return or raise is answered, as a text that can be sent and holds no secret."""

from __future__ import annotations

import asyncio
import base64
import json
import time

import msgspec
import pytest

from holdfast import InvalidError, recover, tool
from holdfast.runtime import secrets
from holdfast.runtime.failures.tool_fault import fault_of_tool
from holdfast.tools import Toolbox, ToolError
from holdfast.tools.environment import filtered_environment
from holdfast.tools.results import structured
from holdfast.tools.toolbox import structured_result

KEY = 'pa"ss\\word-ü-0123456789'


def nested(depth):
    made = []
    for _ in range(depth):
        made = [made]
    return made


def circle():
    made = {}
    made["again"] = [made]
    return made


class Silent:
    """Cannot be shown at all."""

    def __str__(self) -> str:
        raise SystemExit(2)

    def __repr__(self) -> str:
        raise RuntimeError("no")


class Model:
    def model_dump_json(self) -> str:
        raise ValueError("no")


class Anything:
    """Has every attribute, like a mock."""

    def __getattr__(self, name: str) -> Anything:
        return self

    def __call__(self, *_: object, **__: object) -> Anything:
        return self


class Node(msgspec.Struct):
    inner: object


class OddError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("again")


class PanicException(BaseException):
    """What PyO3 raises for a panic."""


class KilledError(BaseException):
    """A program's own way to end itself at once."""


def raising(error):
    def make():
        raise error

    return make


RETURNED = {
    "a lone surrogate": lambda: "a\ud800b",
    "lone surrogates inside": lambda: {"k\udfff": ["\ud800"]},
    "a cycle": circle,
    "too deep": lambda: nested(100_000),
    "too deep in a struct": lambda: Node(nested(5_000)),
    "cannot be shown": Silent,
    "a model that fails": Model,
    "has everything": Anything,
    "100 MB": lambda: "x" * 100_000_000,
    "100 MB of bytes": lambda: b"x" * 100_000_000,
    "a long list": lambda: list(range(300_000)),
    "not a number": lambda: float("nan"),
    "a huge integer": lambda: 10**5_000,
    "odd names": lambda: {(1, 2): 3, None: 4},
    "a class": lambda: Silent,
    "an iterator": lambda: iter([1]),
}
RAISED = {
    "SystemExit": SystemExit(3),
    "a group": BaseExceptionGroup("two", [SystemExit(1), ValueError("x")]),
    "a cancellation that nobody asked for": asyncio.CancelledError(),
    "a panic": PanicException("called `Option::unwrap()` on a `None` value"),
    "a group with a panic": BaseExceptionGroup("two", [PanicException(), ValueError("x"), asyncio.CancelledError()]),
    "RecursionError": RecursionError("x"),
    "MemoryError": MemoryError(),
    "StopIteration": StopIteration(3),
    "GeneratorExit": GeneratorExit(),
    "an error without a text": OddError(),
    "an error with a lone surrogate": ValueError("\ud800"),
    "an error of 20 MB": ValueError("x" * 20_000_000),
    "an error of 20 MB of words": ValueError("no " * 7_000_000),
    "an error with a line of dashes": ValueError("-" * 60_000),
    "an error with many backslashes": ValueError("\\a" * 30_000),
}


def answered(made, arguments=None):
    async def main():
        box = Toolbox([made])
        return await box.answer(next(iter(box)).name, {} if arguments is None else arguments)

    answer = asyncio.run(main())
    assert len(answer.content.encode()) < 70_000
    return answer


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("name", RETURNED)
def test_any_value_is_answered_as_a_text_that_can_be_sent(name, is_async):
    async def later():
        return RETURNED[name]()

    def at_once():
        return RETURNED[name]()

    answer = answered(tool(effect="unsafe", name="make")(later if is_async else at_once))
    assert not answer.is_error
    assert answer.content


@pytest.mark.parametrize("is_async", [True, False])
@pytest.mark.parametrize("name", RAISED)
def test_any_exception_is_a_failed_call_and_ends_nothing_else(name, is_async):
    async def later():
        raise RAISED[name]

    def at_once():
        raise RAISED[name]

    answer = answered(tool(effect="unsafe", name="make")(later if is_async else at_once))
    assert answer.is_error
    assert answer.fault.maybe_executed
    json.loads(answer.content)


LONG = {
    "a slug": "-".join(["how", "to", "bake", "bread"] * 60_000),
    "base64 of URLs": "Zm9v-YmFy_MTIzNDU2Nzg5MA" * 42_000,
    "joined UUIDs": "-".join(["123e4567-e89b-12d3-a456-426614174000"] * 27_000),
    "what begins keys": "sk-" * 330_000,
    "a genome": "-".join("ACGT" * 125_000),
    "tildes": "~-" * 500_000,
    "parts of paths": "a/b-c." * 160_000,
    "half a URL again and again": "://a:" * 200_000,
    "empty lines": "\n" * 1_000_000,
    "50 MB of one letter": "y" * 50_000_000,
}


@pytest.mark.parametrize(
    "name", ["an error of 20 MB of words", "an error with a line of dashes", "an error with many backslashes", *LONG]
)
def test_XT3_a_long_text_of_an_error_takes_no_long_time(name):
    error = RAISED[name] if name in RAISED else ValueError(f"unexpected answer: {LONG[name]}")
    began = time.thread_time()
    fault = fault_of_tool(error)
    assert time.thread_time() - began < 1.0
    assert fault.code == "TOOL_EXECUTION_FAILED"


def test_XT3_a_path_is_masked_wherever_a_word_begins():
    text = str(
        fault_of_tool(
            ValueError(r"no a/b.txt, ./c.py, -o/d.txt, C:\e\f.txt, \\g\h.md, ~/i, /etc/passwd; 1/2 is kept")
        ).message
    )
    assert [word for word in ("a/b", "c.py", "d.txt", "f.txt", "h.md", "~/i", "passwd") if word in text] == []
    assert "1/2 is kept" in text


@pytest.mark.parametrize(
    "error", [KilledError(), KeyboardInterrupt(), BaseExceptionGroup("two", [SystemExit(1), KilledError()])]
)
def test_what_ends_the_program_passes_the_tool(error):
    with pytest.raises(type(error)):
        answered(tool(effect="unsafe", name="make")(raising(error)))


def test_a_tool_that_waits_for_a_task_that_was_cancelled_elsewhere_is_answered():
    async def main():
        shared = asyncio.ensure_future(asyncio.Event().wait())

        @tool(effect="read")
        async def wait() -> str:
            return await shared

        call = asyncio.ensure_future(Toolbox([wait]).answer("wait", {}))
        await asyncio.sleep(0.01)
        shared.cancel()
        return await call

    answer = asyncio.run(main())
    assert answer.fault.code == "TOOL_CANCELLED"


def test_the_callers_cancellation_passes_the_tool():
    async def main():
        @tool(effect="read")
        async def wait() -> str:
            await asyncio.Event().wait()

        call = asyncio.ensure_future(Toolbox([wait]).answer("wait", {}))
        await asyncio.sleep(0.01)
        call.cancel()
        await asyncio.wait([call])
        return call.cancelled()

    assert asyncio.run(main())


@pytest.mark.parametrize(
    "arguments",
    ["[" * 200_000, '{"a":' * 100_000, '{"a":"\\ud800"}', {"a": "\ud800"}, {"a": circle()}, {"a": nested(100_000)}, {"\ud800": 1},
     b"\xff", {1: 2}, 5, {"zz\ud800": 1}],
    ids=range(11),
)  # fmt: skip
def test_arguments_that_are_no_json_are_the_callers_mistake(arguments):
    @tool(effect="unsafe", input={"type": "object"})
    async def put(**given):
        raise AssertionError("it is not called")

    answer = answered(put, arguments)
    assert answer.fault.code == "TOOL_INPUT_INVALID"


@pytest.mark.parametrize(
    "part",
    [{"$ref": "#/$defs/gone"}, {"$ref": "http://127.0.0.1:9/schema.json"}, {"pattern": "("}, {"type": "nonsense"}],
    ids=str,
)
@pytest.mark.parametrize("where", ["input", "output"])
def test_a_schema_that_cannot_be_used_keeps_no_call_from_its_answer(part, where):
    schema = {"type": "object", "properties": {"a": part}, "required": ["a"]}

    async def echo(a):
        return {"a": a}

    given = {"input": schema} if where == "input" else {"input": {"type": "object"}, "output": schema}
    made = tool(effect="read", **given)(echo)
    assert answered(made, {"a": "x"}).content == '{"a":"x"}'
    if where == "input":
        assert answered(made, {}).fault.code == "TOOL_INPUT_INVALID"


def test_a_result_that_refers_to_itself_in_its_schema_is_malformed():
    @tool(effect="unsafe", output={"$ref": "#"})
    async def make():
        return {"a": 1}

    assert answered(make).fault.code == "TOOL_OUTPUT_MALFORMED"


@pytest.mark.parametrize(
    "value",
    [
        "postgres://me:hunter2secret@db.example/x",
        "redis://:s3cretpassword@cache.example",
        "sk_live_" + "abcdefghijklmnop123456",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abcdefghijklmnop",
    ],
)
def test_a_variable_that_is_a_secret_by_its_value_reaches_neither_a_program_nor_the_model(monkeypatch, value):
    monkeypatch.setenv("SHOP_SERVICE", value)
    secrets.process_redactor.cache_clear()
    assert "SHOP_SERVICE" not in filtered_environment()
    for make in (lambda: f"connected to {value}", lambda: {"at": value}, raising(ToolError(f"the account is {value}"))):
        answer = answered(tool(effect="read", name="connect")(make))
        assert value not in answer.content
        assert "[redacted]" in answer.content
    monkeypatch.undo()
    secrets.process_redactor.cache_clear()


@pytest.fixture
def _key(monkeypatch):
    monkeypatch.setenv("SHOP_API_KEY", KEY)
    secrets.process_redactor.cache_clear()
    yield
    monkeypatch.undo()
    secrets.process_redactor.cache_clear()


@pytest.mark.parametrize(
    "make",
    [lambda: KEY, lambda: {"key": KEY}, lambda: {KEY: 1}, lambda: [circle(), KEY], lambda: {"a": f"\ud800 {KEY}"},
     raising(ValueError(KEY))],
    ids=range(6),
)  # fmt: skip
@pytest.mark.usefixtures("_key")
def test_no_form_of_a_secret_is_in_an_answer(make):
    async def tell():
        return make()

    content = answered(tool(effect="read")(tell)).content
    forms = (KEY, json.dumps(KEY)[1:-1], json.dumps(KEY, ensure_ascii=False)[1:-1], repr(KEY)[1:-1])
    assert not any(form in content for form in forms)


@pytest.mark.parametrize("before", [b"", b"A", b"AB", b"KEY="])
@pytest.mark.parametrize("shape", [lambda data: {"b": data}, lambda data: [bytearray(data)], base64.b64encode, repr])
@pytest.mark.usefixtures("_key")
def test_a_secret_within_bytes_is_in_no_answer(before, shape):
    async def tell():
        return shape(before + KEY.encode() + b"\n")

    content = answered(tool(effect="read")(tell)).content
    encoded = base64.b64encode(before + KEY.encode()).decode().rstrip("=")
    assert "[redacted]" in content
    # What is left tells at most one character at each end of the secret.
    assert encoded[len(before) * 8 // 6 + 1 :][:4] not in content
    assert encoded[-6:-2] not in content
    assert "0123456789" not in content


@pytest.mark.parametrize("style", ["anthropic", "openai", "openai-responses", "mcp"])
@pytest.mark.usefixtures("_key")
def test_no_secret_is_in_a_schema(style):
    @tool(effect="read", description=f"Calls with {KEY}")
    async def fetch(url: str, token: str = KEY) -> str:
        return url

    shown = json.dumps(Toolbox([fetch]).schemas(style), ensure_ascii=False)
    assert "url" in shown
    assert json.dumps(KEY, ensure_ascii=False)[1:-1] not in shown


def test_a_structured_result_keeps_its_shape_within_its_limit():
    rows = {"rows": [{"id": n, "text": "y" * 200} for n in range(5_000)], "name": "n" * 100_000}
    shown = structured(rows, 8_192)
    assert len(msgspec.json.encode(shown)) <= 8_192
    assert shown["rows"][0]["id"] == 0
    assert shown["name"].startswith("nnn")
    assert structured({"a": [1, 2.5, None, True, "x"]}, 8_192) == {"a": [1, 2.5, None, True, "x"]}
    for wrong in (circle(), {str(n): n for n in range(10_000)}):
        with pytest.raises(ValueError, match=r"bytes|Error"):
            structured(wrong, 8_192)


def test_a_result_that_does_not_fit_its_schema_is_malformed():
    @tool(effect="read")
    async def make() -> dict[str, int]:
        return {}

    made = Toolbox([make])["make"]
    assert structured_result(made, {"a": 1}) == {"a": 1}
    with pytest.raises(InvalidError):
        structured_result(made, {"a": "x"})


@pytest.mark.parametrize("error", [ValueError("no"), ExceptionGroup("two", [ValueError("no")]), LookupError("no")])
@pytest.mark.parametrize(("effect", "advised"), [("unsafe", True), ("read", False)])
def test_a_model_of_any_framework_learns_that_an_unsafe_tool_may_have_taken_effect(effect, advised, error):
    @recover("tool:charge")
    @tool(effect=effect)
    def charge():
        raise error

    with pytest.raises(type(error)) as raised:
        charge()
    for_model = fault_of_tool(raised.value).for_model()["context"]
    assert for_model["message"] == "Tool failed: no"
    assert ("The effect may have happened" in for_model["advice"]) is advised


def test_a_model_reads_the_words_of_the_failures_in_a_group():
    @tool(effect="read")
    async def compare(first: str, second: str) -> str:
        async with asyncio.TaskGroup() as group:
            for city in (first, second):
                group.create_task(temperature(city))
        return "the same"

    async def temperature(city):
        if city == "Atlantis":
            raise ToolError("no city Atlantis; known are Oslo and Bergen")
        if city == "Utopia":
            raise KeyError(KEY)
        raise ValueError(f"no figures of {city} in /var/lib/figures.csv")

    text = answered(compare, {"first": "Atlantis", "second": "Oslo"}).content
    assert "Tool failed: no city Atlantis; known are Oslo and Bergen; no figures of Oslo in [path]" in text
    assert (
        "Tool failed: no figures of Oslo in [path]" in answered(compare, {"first": "Utopia", "second": "Oslo"}).content
    )


@pytest.mark.parametrize("is_async", [True, False])
def test_a_generator_is_no_tool(is_async):
    async def later(city: str):
        yield city

    def at_once(city: str):
        yield city

    with pytest.raises(InvalidError, match="collect what it yields in a list"):
        Toolbox([tool(effect="read")(later if is_async else at_once)])
