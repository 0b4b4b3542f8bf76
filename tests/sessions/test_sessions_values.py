"""FD5, FD6: what a step returned is what the next start of the program gets, or it is rejected the first time."""

from __future__ import annotations

import asyncio
import dataclasses
import sys
import warnings
from collections import UserDict, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any, Optional

import anthropic.types
import msgspec
import openai.types.chat
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.chat.parsed_chat_completion import ParsedChatCompletion
from openai.types.responses import ParsedResponse, Response
from values_kit import (
    BERLIN,
    LEAVES,
    OBJECTS,
    Aliased,
    Colour,
    Derived,
    Employee,
    Extra,
    Page,
    Pair,
    Person,
    Point,
    Rights,
    Word,
    resumed,
    returning,
)

from holdfast import OutcomeUnknownError, tool
from holdfast.faults import InvalidError
from holdfast.sessions import Session, codec, storable
from holdfast.sessions.codec import is_same
from holdfast.stores import MemoryStore, SqliteStore
from holdfast.testing import run

BUILTINS: list[tuple[str, Any, Any]] = [
    shape
    for n, (value, declared) in enumerate(LEAVES)
    for shape in (
        (f"undeclared-{n}", value, ...),
        (f"any-{n}", value, Any),
        (f"declared-{n}", value, declared),
        (f"optional-{n}", value, Optional[declared]),  # noqa: UP045 - the old spelling
        (f"list-{n}", [value, {"a": [value]}], list[Any]),
        (f"table-{n}", {"a": value, "b": [value]}, dict[str, Any]),
        (f"tuple-{n}", (value, [value]), ...),
        (f"point-{n}", Point(value), Point),
        (f"named-{n}", Pair(1, value), Pair),
        (f"extra-{n}", Extra(a=1, b=value), Extra),
    )
]
DECLARED: list[tuple[str, Any, Any]] = [
    shape
    for n, (value, declared) in enumerate(OBJECTS)
    for shape in (
        (f"declared-{n}", value, declared),
        (f"optional-{n}", value, Optional[declared]),  # noqa: UP045 - the old spelling
        (f"list-{n}", [value, value], list[declared]),
        (f"table-{n}", {"a": value}, dict[str, declared]),
        (f"keys-{n}", {1: [value]}, dict[int, list[declared]]),
        (f"tuple-{n}", (value, 1), tuple[declared, int]),
    )
]


@pytest.mark.parametrize(("shapes", "least"), [(BUILTINS, 500), (DECLARED, 300)], ids=["builtins", "declared"])
def test_FD5_what_a_step_returned_comes_back_after_a_restart(
    tmp_path: Path, shapes: list[tuple[str, Any, Any]], least: int
) -> None:
    assert len(shapes) > least
    fns = [returning(value, declared, name) for name, value, declared in shapes]
    back = asyncio.run(resumed(tmp_path / "s.db", fns))
    changed = [name for (name, value, _), one in zip(shapes, back, strict=True) if not is_same(one, value)]
    assert changed == []
    # `same` is ours. Python's own comparison agrees wherever a class has one.
    unequal = [name for (name, value, _), one in zip(shapes, back, strict=True) if not (one == value or value != value)]
    assert [name for name in unequal if not name.endswith("-30")] == []  # Decimal("NaN") in a container


def message(**more: Any) -> anthropic.types.Message:
    content = [
        {"type": "text", "text": "hi", "citations": None},
        {"type": "tool_use", "id": "t", "name": "n", "input": {"a": [1]}},
    ]
    usage = {"input_tokens": 3, "output_tokens": 4, "not_yet_known": {"a": 1}}
    return anthropic.types.Message.construct(
        id="m",
        content=content,
        model="claude",
        role="assistant",
        type="message",
        stop_reason="end_turn",
        usage=usage,
        **more,
    )


def completion() -> openai.types.chat.ChatCompletion:
    choice = {
        "index": 0,
        "finish_reason": "not known yet",
        "message": {"role": "assistant", "content": "hi", "refusal": None},
    }
    return openai.types.chat.ChatCompletion.construct(
        id="c", choices=[choice], created=1, model="gpt", object="chat.completion", odd=[1, {"a": None}]
    )


def with_request_id(value: Any) -> Any:
    value._request_id = "req_1"
    return value


def response(cls: Any = Response) -> Any:
    return cls.model_validate(
        {
            "id": "r",
            "created_at": 1.5,
            "model": "gpt",
            "object": "response",
            "output": [
                {
                    "id": "o",
                    "type": "message",
                    "role": "assistant",
                    "status": "completed",
                    "content": [
                        {"type": "output_text", "text": '{"name": "Ada"}', "annotations": [], "parsed": {"name": "Ada"}}
                    ],
                }
            ],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "text": {"format": {"type": "json_schema", "name": "p", "schema": {"type": "object"}}},
        }
    )


def parsed() -> ParsedChatCompletion[Person]:
    message = {"role": "assistant", "content": "{}", "parsed": {"name": "Ada"}}
    return ParsedChatCompletion[Person].model_validate(
        {
            "id": "c",
            "created": 1,
            "model": "gpt",
            "object": "chat.completion",
            "choices": [{"index": 0, "finish_reason": "stop", "message": message}],
        }
    )


SDK: list[tuple[str, Any, Any]] = [
    ("message", message(), anthropic.types.Message),
    ("message-extra", with_request_id(message(odd={"a": 1})), anthropic.types.Message),
    ("usage", anthropic.types.Usage(input_tokens=3, output_tokens=4), anthropic.types.Usage),
    ("completion", completion(), openai.types.chat.ChatCompletion),
    ("completion-id", with_request_id(completion()), openai.types.chat.ChatCompletion),
    ("response", response(), Response),
    ("response-id", with_request_id(response()), Response | None),
    ("parsed-response", response(ParsedResponse[Person]), ParsedResponse[Person]),
    ("parsed", parsed(), ParsedChatCompletion[Person]),
    (
        "messages",
        {"a": [message(), completion()]},
        dict[str, list[anthropic.types.Message | openai.types.chat.ChatCompletion]],
    ),
]


def test_FD6_objects_of_sdks_come_back_after_a_restart(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        back = asyncio.run(
            resumed(tmp_path / "s.db", [returning(value, declared, name) for name, value, declared in SDK])
        )
    for (name, value, _), one in zip(SDK, back, strict=True):
        assert is_same(one, value), name
        if isinstance(value, pydantic.BaseModel):
            # What the SDK sends when the object is passed on to the next request.
            assert one.model_dump(exclude_unset=True) == value.model_dump(exclude_unset=True), name
            assert getattr(one, "_request_id", None) == getattr(value, "_request_id", None)


@dataclasses.dataclass
class Money:
    amount: int


@storable
@dataclasses.dataclass
class Invoice:
    total: Money
    due: datetime | None = None


@dataclasses.dataclass
class Alone:
    """Neither declared nor registered."""

    amount: int


class Celsius(float):
    """A class of which the codec knows nothing."""


class Vector:
    def __init__(self, *items: float) -> None:
        self.items = items


storable(Vector, to_json=lambda vector: list(vector.items), from_json=lambda items: Vector(*items))
storable(Celsius, name="celsius", to_json=float, from_json=Celsius)


def test_FD5_registered_classes_come_back_where_nothing_is_declared(tmp_path: Path) -> None:
    value = {"a": [Invoice(Money(3), datetime(2026, 1, 1)), {1: Vector(1, 2)}], "t": Celsius(3.5)}
    (back,) = asyncio.run(resumed(tmp_path / "s.db", [returning(value, dict[str, Any], "f")]))
    assert is_same(back, value)
    assert isinstance(back["t"], Celsius)


def test_FD5_the_context_comes_back(tmp_path: Path) -> None:
    kept = {"when": datetime(2026, 1, 1, tzinfo=BERLIN), "seen": {1, 2}, 3: (4,), "due": Invoice(Money(1))}

    async def main() -> None:
        for turn in (1, 2):
            async with SqliteStore(tmp_path / "s.db") as store, Session.open("s", store=store) as session:
                if turn == 2:
                    assert is_same(session.context, kept)
                session.context = dict(kept)
                async with session.turn(turn):
                    pass

    asyncio.run(main())


class Zone(tzinfo):
    def utcoffset(self, _: datetime | None) -> timedelta:
        return timedelta(hours=1)


class Api(pydantic.BaseModel):
    key: pydantic.SecretStr


SELF: list[Any] = []
SELF.append(SELF)


@pytest.mark.parametrize(
    ("value", "declared", "message"),
    [
        (
            Alone(1),
            ...,
            r"got \S+Alone: declare it in the return annotation.* or register it with holdfast.sessions.storable\(Alone\)",
        ),
        ({"a": [Alone(1)]}, dict[str, Any], r"Alone in result\['a'\]\[0\]: declare it"),
        (Point(Alone(1)), Point, r"Alone in result\.x: declare it"),
        (Derived(1, label="x"), Point, r"Derived: declare it"),
        (Employee(name="Bob"), Person, r"Employee: declare it"),
        ([Colour.RED, Word.YES], ..., r"Colour in result\[0\]: declare it"),
        (Rights.READ, Any, r"Rights: declare it"),
        (object(), Any, r"got object: return plain values, or register it with .*to_json=…, from_json=…"),
        ({"a": UserDict()}, Any, r"collections.UserDict in result\['a'\]"),
        (defaultdict(lambda: 3), Any, r"a defaultdict with a factory of its own: return dict"),
        (datetime(2026, 1, 1, tzinfo=Zone()), Any, r"a zone of \S+Zone: use zoneinfo"),
        (float("nan"), float, r"got nan: a finite number"),
        ({"a": [1.0, None, float("inf")]}, Any, r"got inf in result\['a'\]\[2\]"),
        (SELF, Any, r"a list that cannot be stored: maximum recursion"),
        ("\ud800", str, r"str that cannot be stored"),
        (Api(key="sk-1"), Api, r"pydantic\.types\.SecretStr in result\.key: a secret is not stored; return its name"),
    ],
)
def test_FD5_a_result_that_would_come_back_changed_is_rejected_with_what_to_do(
    value: Any, declared: Any, message: str
) -> None:
    async def main() -> None:
        async with Session.open("s", store=MemoryStore()) as session:
            with pytest.raises(InvalidError, match=message) as raised:
                await session.step(returning(value, declared, "f"))
            assert "f: expected a value that is the same when the session is resumed" in str(raised.value)
            assert any("runs again" in note for note in raised.value.__notes__)

    run(main())


def tasks() -> asyncio.Task[int]: ...
def numbers() -> Iterator[int]: ...
async def pages() -> AsyncIterator[int]: ...
def functions() -> list[Callable[[], int]]: ...
def either() -> asyncio.Event | asyncio.Lock | None: ...


@pytest.mark.parametrize("fn", [tasks, numbers, functions, either])
def test_FD5_a_declared_type_that_can_never_be_stored_is_rejected_before_the_step_runs(fn: Any) -> None:
    ran = []

    @tool(effect="unsafe")
    def step() -> Any:
        ran.append(1)

    step.__annotations__ = fn.__annotations__

    async def main() -> None:
        async with Session.open("s", store=MemoryStore()) as session:
            with pytest.raises(InvalidError, match="a declared result that can be stored"):
                await session.step(step)
            assert session.unknown == ()

    run(main())
    assert ran == []


def test_FD5_an_unsafe_step_whose_result_is_rejected_is_an_open_doubt_and_the_error_says_so() -> None:
    ran = []

    @tool(effect="unsafe")
    def deploy() -> Any:
        ran.append(1)
        return Alone(3)

    async def main() -> None:
        store = MemoryStore()
        with pytest.raises(InvalidError) as raised:
            async with Session.open("s", store=store) as session:
                await session.step(deploy)
        (note,) = (note for note in raised.value.__notes__ if "resolve" in note)
        assert "is not repeated" in note
        with pytest.raises(OutcomeUnknownError):
            async with Session.open("s", store=store) as session:
                assert session.unknown[0] in note
                await session.step(deploy)
        assert ran == [1]

    run(main())


def test_FD5_nothing_that_only_the_store_names_is_imported_or_made() -> None:
    for name in ("antigravity:fly", "os.system", "subprocess.Popen", "Alone"):
        stored = msgspec.json.encode({"$hf": 2, "v": {"$hf": f"type:{name}", "v": {}}})
        with pytest.raises(InvalidError, match="neither declared nor registered"):
            codec.decode(stored, Any, "step")
    with pytest.raises(InvalidError, match="the tag 'eval' is not known"):
        codec.decode(b'{"$hf":2,"v":{"$hf":"eval","v":"1"}}', Any, "step")
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize(
    ("stored", "declared", "value"),
    [
        (b'{"name":"Ada","born":null}', Person, Person(name="Ada", born=None)),
        (b'{"wanted":1,"schema_":{"a":1}}', Aliased, Aliased(Wanted=1, schema={"a": 1})),
        (b'{"x":1,"y":2.0}', Point, Point(1, 2.0)),
        (b'"2026-01-01T00:00:00"', datetime, datetime(2026, 1, 1)),
        (b'"AP8="', bytes, b"\x00\xff"),
        (b'{"$hf":"datetime","v":"x"}', Any, {"$hf": "datetime", "v": "x"}),
        (b'{"$hf":1,"v":"x"}', dict[str, Any], {"$hf": 1, "v": "x"}),
        (b'[[1,{"a":null}]]', Any, [[1, {"a": None}]]),
    ],
)
def test_FD5_values_of_version_1_are_read_as_before(stored: bytes, declared: Any, value: Any) -> None:
    assert is_same(codec.decode(stored, declared, "step"), value)


def test_a_class_that_got_a_field_since_then_reads_what_was_stored() -> None:
    @dataclasses.dataclass
    class Old:
        a: Any

    @dataclasses.dataclass
    class New:
        a: Any
        b: int = 3
        c: list[int] = dataclasses.field(default_factory=list)

    storable(Old, name="grows")
    stored = codec.encode_result({"v": Old((1,))}, Any, "s")
    with pytest.raises(InvalidError, match="a name= that no other class has"):
        storable(New, name="grows")
    tagged = stored.replace(b"grows", b"grown")
    storable(New, name="grown")
    assert codec.decode(tagged, Any, "s") == {"v": New((1,), 3, [])}


def test_a_person_reads_a_stored_value_without_tags() -> None:
    value = {1: (Point(1), datetime(2026, 1, 1)), "a": {Path("b")}}
    stored = msgspec.json.decode(codec.encode_result(value, dict[Any, Any] | Point, "s"))
    assert codec.readable(stored) == {"1": [{"x": 1, "y": 0.0}, "2026-01-01T00:00:00"], "a": ["b"]}
    assert codec.readable({"a": [1]}) == {"a": [1]}


def test_a_class_without_a_known_content_needs_functions() -> None:
    with pytest.raises(InvalidError, match="to_json and from_json for this class"):
        storable(UserDict)
    with pytest.raises(InvalidError, match="both to_json and from_json"):
        storable(UserDict, to_json=dict)

    @storable(name="another name")
    @dataclasses.dataclass
    class Decorated:
        a: int

    assert b"another name" in codec.encode_result(Decorated(1), Any, "s")


# Random values

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.sampled_from(["$hf", "v", "type:Point"]),
    st.binary(max_size=8),
    st.datetimes(timezones=st.none() | st.timezones(no_cache=False), allow_imaginary=True),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.decimals(allow_nan=False),
    st.uuids(),
    st.sampled_from([Path("a"), Colour.BLUE, Word.YES, Rights.READ, BERLIN]),
)
HASHABLE = st.recursive(SCALARS, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=4)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"]), max_size=4) | st.just("$hf"), inner, max_size=4
        ),
        st.dictionaries(HASHABLE, inner, max_size=3),
        st.sets(HASHABLE, max_size=3),
        inner.map(Point),
        inner.map(lambda one: Extra(a=1, b=one)),
        inner.map(lambda one: Pair(1, one)),
        inner.map(lambda one: Page[Any](items=[one])),
    ),
    max_leaves=12,
)
DECLARATIONS = st.sampled_from(
    [
        Point | Extra | Pair | Colour | Word | Rights | Page[Any],
        Any | Point | Extra | Pair | Colour | Word | Rights | Page[Any],
        dict[str, Point | Extra | Pair | Colour | Word | Rights | Page[Any]],
    ]
)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(VALUES, DECLARATIONS)
def test_FD5_random_values_come_back(value: Any, declared: Any) -> None:
    stored = codec.encode_result(value, declared, "step")
    msgspec.json.decode(stored)
    back = codec.decode(stored, declared, "step")
    assert is_same(back, value)
    assert codec.encode_result(back, declared, "step") == stored


@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(VALUES, min_size=30, max_size=30), DECLARATIONS)
def test_FD5_random_values_come_back_after_a_restart(tmp_path_factory: Any, drawn: list[Any], declared: Any) -> None:
    place = tmp_path_factory.mktemp("s") / "s.db"
    fns = [returning(value, declared, f"f{n}") for n, value in enumerate(drawn)]
    assert is_same(asyncio.run(resumed(place, fns)), drawn)
