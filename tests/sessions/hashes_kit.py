"""Values whose hash must be the same in every process, and a program that uses them; run with another PYTHONHASHSEED each time.

`python hashes_kit.py s.db` runs two steps in a session, one of them in a turn. It prints the hash of each value and the steps that really
ran, and dies inside of the turn.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter, OrderedDict, defaultdict
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Any, NamedTuple

import attrs
import msgspec
import pydantic

from holdfast.sessions import Session, codec

TEXTS = list("abcdefgh")


@dataclass(frozen=True)
class Point:
    name: str
    tags: frozenset[Any] = frozenset()


@dataclass(frozen=True, order=True)
class Ordered:
    name: str
    tags: frozenset[str] = frozenset()


@dataclass(frozen=True, repr=False)
class Unnamed:
    name: str


@attrs.frozen
class Attrs:
    tags: frozenset[str]


@dataclass
class Holder:
    zeta: str
    tags: set[Any]


class Packed(msgspec.Struct, frozen=True, order=True, rename="upper"):
    tags: frozenset[str]


class Named(NamedTuple):
    name: str
    tags: frozenset[str]


class Color(Enum):
    RED = "r"
    GREEN = "g"
    BLUE = "b"


class Tags(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(frozen=True, extra="allow")
    tags: frozenset[str]


class Rooted(pydantic.RootModel[set[str]]):
    pass


class Computing(pydantic.BaseModel):
    inside: list[Tags]
    named: set[frozenset[str]] = pydantic.Field(serialization_alias="Named")

    @pydantic.computed_field
    def both(self) -> set[str]:
        return {name + "!" for one in self.inside for name in one.tags}


class Sorting(pydantic.BaseModel):
    tags: set[str]

    @pydantic.field_serializer("tags")
    def in_reverse(self, tags: set[str]) -> list[str]:
        return sorted(tags, reverse=True)


def pairs() -> set[frozenset[str]]:
    return {frozenset({text, text + "1"}) for text in TEXTS}


class Counted(pydantic.BaseModel):
    numbers: set[int]


def values() -> dict[str, Any]:
    """Return values by what is odd about them."""
    texts = {*TEXTS}
    return {
        "texts": texts,
        "numbers": {8, 1, 3},
        "tuples": {(text, text) for text in TEXTS},
        "subsets": {frozenset[str](), frozenset({"a"}), frozenset({"a", "b"})},
        "sets of numbers": {frozenset({1, 2}), frozenset({3}), frozenset({Decimal(8), 16})},
        "several types": {1, "a", "b", None, 2.5, (1, "a")},
        "sets of several types": {frozenset({1, text}) for text in TEXTS},
        "enums": {*Color},
        "dates": {date(2026, 1, day) for day in range(1, 9)},
        "bytes": {text.encode() for text in TEXTS},
        "points": {Point(text) for text in TEXTS},
        "points, the first field decides": {Point(text, frozenset(TEXTS)) for text in TEXTS},
        "dataclass": Holder("z", texts),
        "keys that are sets": {frozenset({text, "z"}): 1 for text in TEXTS},
        "keys that are tuples": {(text, frozenset({text, "z"})): 1 for text in TEXTS},
        "counter": Counter(TEXTS),
        "defaultdict": defaultdict(set, {"a": texts}),
        "model of numbers": Counted(numbers={8, 1, 3}),
        "model that sorts": Sorting(tags=texts),
        # Before the sets inside were ordered, all the following had another hash in each process.
        "sets": pairs(),
        "sets of sets": {frozenset({frozenset({text, "z"}), frozenset({text + "2"})}) for text in TEXTS},
        "tuples with sets": {("a", frozenset({text, "z"})) for text in TEXTS},
        "sets in a dict": OrderedDict(b=[{"a": pairs()}]),
        "sets in a dataclass": Holder("z", pairs()),
        "points with sets": {Point("p", frozenset({text, "y", "z"})) for text in TEXTS},
        "points with sets of sets": {Point("p", frozenset({frozenset({text, "z"}), text})) for text in TEXTS},
        "objects that can be ordered": {Ordered("p", frozenset({text, "z"})) for text in TEXTS},
        "objects without a text": {Unnamed(text) for text in TEXTS},
        "attrs": {Attrs(frozenset({text, "y", "z"})) for text in TEXTS},
        "structs": {Packed(frozenset({text, "z"})) for text in TEXTS},
        "named tuples": {Named("a", frozenset({text, "z"})) for text in TEXTS},
        "model": Tags(tags=frozenset(TEXTS)),
        "model with more": Tags.model_validate({"tags": [], "other": texts}),
        "model that is a set": Rooted(texts),
        "models": {Tags(tags=frozenset({text, "y", "z"})) for text in TEXTS},
        "models inside": Computing(inside=[Tags(tags=frozenset({text, "y", "z"})) for text in TEXTS], named=pairs()),
        "keys that are objects": {Point("p", frozenset({text, "b"})): texts for text in TEXTS},
    }


def hashes() -> dict[str, str]:
    found = {}
    for name, value in values().items():
        found[name] = codec.arguments_hash((value,), {}, "step")
        if not name.startswith("keys"):
            # What is stored as plain JSON, such as the input of a turn.
            found[f"{name}, plain"] = codec.arguments_hash((codec.plain(value, "given"),), {}, "turn")
    return found


async def perform(path: str) -> None:
    ran: list[str] = []

    def count(name: str, given: Any) -> int:
        ran.append(name)
        return len(str(given))

    session = Session.open("s", store=path)
    await session.__aenter__()
    await session.step(count, "outside", pairs())
    async with session.turn({"tags": set(TEXTS)}):
        await session.step(count, "inside", Tags(tags=frozenset(TEXTS)))
        os.write(1, json.dumps({"hashes": hashes(), "ran": ran}).encode())
        # The turn is open, and the session has its lease.
        os._exit(9)


if __name__ == "__main__":
    asyncio.run(perform(sys.argv[1]))
