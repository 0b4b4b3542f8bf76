"""DESIGN section 6: what steps take and return, as JSON and back."""

from __future__ import annotations

import dataclasses
from collections import deque
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import anthropic.types
import msgspec
import pydantic
import pytest

from holdfast.faults import InvalidError
from holdfast.sessions import codec


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Plan(msgspec.Struct):
    steps: list[str]


class Person(pydantic.BaseModel):
    name: str
    born: int


class Part(NamedTuple):
    name: str


class Celsius(float):
    pass


def points() -> list[Point]: ...
def plan() -> Plan | None: ...
def person() -> Person: ...
def people() -> dict[str, list[Person]]: ...
def usage() -> anthropic.types.Usage: ...
def nothing() -> None: ...
def text() -> bytes: ...
def undeclared(): ...


@pytest.mark.parametrize(
    ("fn", "value"),
    [
        (points, [Point(1, 2), Point(3, 4)]),
        (plan, Plan(["a"])),
        (plan, None),
        (person, Person(name="Ada", born=1815)),
        (people, {"x": [Person(name="Ada", born=1815)]}),
        (usage, anthropic.types.Usage(input_tokens=3, output_tokens=4)),
        (nothing, None),
        (text, b"\x00\xff"),
        (undeclared, {"a": [1, 2.5, None, "ü"]}),
    ],
)
def test_what_is_stored_comes_back_as_declared(fn: Any, value: Any) -> None:
    type_ = codec.result_type(fn)
    back = codec.decode(codec.encode_result(value, type_, "step"), type_, "step")
    assert back == value
    assert type(back) is type(value)


def test_a_value_that_is_not_json_is_rejected_by_name() -> None:
    with pytest.raises(
        InvalidError, match=r"step#1: expected something that can be stored as JSON, got a builtins.object"
    ):
        codec.encode(object(), "step#1")
    with pytest.raises(
        InvalidError,
        match="step#1: expected arguments that can be compared after a restart, got object: pass plain values",
    ):
        codec.arguments_hash((object(),), {}, "step#1")


def test_a_stored_value_of_another_type_is_rejected() -> None:
    with pytest.raises(InvalidError, match="step#1: expected the stored value to be Person"):
        codec.decode(b'{"name": 3}', Person, "step#1")


def test_arguments_are_compared_by_value() -> None:
    same = codec.arguments_hash((Point(1, 2),), {"b": 1, "a": {"y": 1, "x": 2}}, "s")
    assert codec.arguments_hash((Point(1, 2),), {"a": {"x": 2, "y": 1}, "b": 1}, "s") == same
    assert codec.arguments_hash((Point(1, 3),), {"a": {"x": 2, "y": 1}, "b": 1}, "s") != same


def test_a_model_with_a_function_in_it_is_compared_without_where_that_lies_in_memory() -> None:
    """A tool of LangChain is one. A task that runs it is told by it from others, in the next run of the program too."""

    class Wrapped(pydantic.BaseModel):
        name: str
        work: Any

        @pydantic.field_serializer("work")
        def shown(self, work: Any) -> str:
            return repr(work)

    def made() -> Any:
        def work() -> None: ...

        return work

    one, again = Wrapped(name="pay", work=made()), Wrapped(name="pay", work=made())
    assert repr(one.work) != repr(again.work)
    assert codec.arguments_hash((one,), {}, "s") == codec.arguments_hash((again,), {}, "s")
    assert codec.arguments_hash((Wrapped(name="book", work=one.work),), {}, "s") != codec.arguments_hash(
        (one,), {}, "s"
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Path("a"), Path("b")),
        ({(1, 2): 3}, {(1, 2): 4}),
        ([{"a": Part("x")}], [{"a": Part("y")}]),
        (deque([1]), deque([2])),
        (Celsius(1.5), Celsius(2.5)),
    ],
)
def test_arguments_of_any_known_class_are_compared(one: Any, other: Any) -> None:
    assert codec.arguments_hash((copy(one),), {"a": one}, "s") == codec.arguments_hash((one,), {"a": one}, "s")
    assert codec.arguments_hash((one,), {}, "s") != codec.arguments_hash((other,), {}, "s")


def test_arguments_have_the_hashes_of_version_1() -> None:
    assert codec.arguments_hash((Point(1, 2), Person(name="Ada", born=1815)), {"a": [1.5, None]}, "s") == (
        "b2fdaaed4785ee1236dd2a2d0abfb456"
    )


class Aliased(pydantic.BaseModel):
    wanted: int = pydantic.Field(alias="Wanted")
    unset: int = 0


def test_messages_and_inputs_have_the_form_of_version_1() -> None:
    # Their hashes tell a message that is sent again, and a turn that was cut off.
    assert codec.plain(Aliased(Wanted=1), "message") == {"wanted": 1, "unset": 0}


def test_a_partial_declares_what_its_function_does() -> None:
    assert codec.result_type(partial(person)) is Person


@pytest.mark.parametrize("nested", [lambda inner: inner, lambda inner: (1, inner), lambda inner: frozenset([inner])])
def test_equal_sets_of_sets_have_equal_bytes(nested: Any) -> None:
    """Found by chance: a set that was read back iterates in another order, and so did its text."""
    # In a table of eight slots 8 and 16 collide, so the order in which they were added is the order in which they come out.
    one, other = (frozenset([nested(frozenset(items)), nested(frozenset({1}))]) for items in ([8, 16], [16, 8]))
    assert one == other
    assert codec.encode_result(one, Any, "step") == codec.encode_result(other, Any, "step")
