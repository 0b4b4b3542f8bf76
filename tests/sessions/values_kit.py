"""What the tests of stored values share: classes of every kind, and a run that is resumed from a real file."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from ipaddress import IPv4Address, IPv6Network
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypedDict, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import msgspec
import pydantic

from holdfast.sessions import Session
from holdfast.stores import SqliteStore

T = TypeVar("T")


class Ends(Exception):
    """The first run ends here."""


def returning(value: Any, declared: Any, name: str) -> Callable[[], Any]:
    """Return a function that returns the value and declares this type; with `...` it declares none."""

    def step() -> Any:
        return value

    step.__qualname__ = step.__name__ = name
    step.__annotations__ = {} if declared is ... else {"return": declared}
    return step


async def resumed(path: Path, fns: list[Callable[[], Any]]) -> list[Any]:
    """Run each function as a step, end the program, and return what the steps return to the next one."""
    for _ in range(2):
        back = []
        try:
            async with SqliteStore(path) as store, Session.open("s", store=store) as session:
                back = [await session.step(fn) for fn in fns]
                raise Ends
        except Ends:
            pass
    return back


class Colour(enum.Enum):
    RED = "red"
    BLUE = (1, 2)


class Word(enum.StrEnum):
    YES = "yes"


class Level(enum.IntEnum):
    LOW = 1


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Bits(enum.IntFlag):
    A = 1
    B = 4


class Pair(NamedTuple):
    left: int
    right: Any


class Table(TypedDict, total=False):
    name: str
    rows: list[int]


@dataclasses.dataclass
class Point:
    x: Any
    y: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    at: datetime
    inner: Any = None


@dataclasses.dataclass
class Derived(Point):
    label: str = ""


@dataclasses.dataclass
class Computed:
    given: int
    twice: int = dataclasses.field(init=False)
    seed: dataclasses.InitVar[int] = 3
    log: list[str] = dataclasses.field(default_factory=list, compare=False, repr=False)

    def __post_init__(self, seed: int) -> None:
        self.twice = self.given * 2
        self.seeded = seed  # no field at all

    @functools.cached_property
    def expensive(self) -> object:
        return object()


@dataclasses.dataclass
class Box(Generic[T]):
    item: T


@dataclasses.dataclass
class Node:
    name: str
    children: list[Node] = dataclasses.field(default_factory=list)


@attrs.define
class Attrs:
    a: int
    b: Any = attrs.field(default=None, alias="bee")


class Plan(msgspec.Struct):
    steps: list[str]
    meta: Any = None


class Renamed(msgspec.Struct, rename="camel", frozen=True, kw_only=True, omit_defaults=True):
    long_name: int
    other: int | msgspec.UnsetType = msgspec.UNSET


class Cat(msgspec.Struct, tag="cat"):
    lives: int


class Dog(msgspec.Struct, tag="dog"):
    name: str


class Counts(msgspec.Struct):
    n: int

    def __post_init__(self) -> None:
        self.n += 1


class Loose(msgspec.Struct, dict=True):
    a: int


class Person(pydantic.BaseModel):
    name: str
    born: int | None = None


class Employee(Person):
    salary: Decimal = Decimal(0)


class Aliased(pydantic.BaseModel):
    wanted: int = pydantic.Field(alias="Wanted")
    schema_: dict[str, Any] | None = pydantic.Field(default=None, alias="schema")


class TwoAliases(pydantic.BaseModel):
    a: int = pydantic.Field(validation_alias=pydantic.AliasChoices("x", "y"), serialization_alias="z")


class Excluded(pydantic.BaseModel):
    shown: int
    hidden: str = pydantic.Field(default="", exclude=True)


class Extra(pydantic.BaseModel, extra="allow"):
    a: int


class Private(pydantic.BaseModel):
    a: int
    _cache: dict[str, int] = pydantic.PrivateAttr(default_factory=dict)
    _unset: int = pydantic.PrivateAttr()


class Strict(pydantic.BaseModel, extra="forbid", frozen=True):
    a: int

    @pydantic.computed_field
    def twice(self) -> int:
        return self.a * 2


class Normal(pydantic.BaseModel):
    text: str

    @pydantic.field_validator("text")
    @classmethod
    def shout(cls, text: str) -> str:
        return text + "!"


class Page(pydantic.BaseModel, Generic[T]):
    items: list[T]


class Circle(pydantic.BaseModel):
    kind: Literal["circle"] = "circle"
    r: float


class Square(pydantic.BaseModel):
    kind: Literal["square"] = "square"
    side: float


class Drawing(pydantic.BaseModel):
    shapes: list[Annotated[Circle | Square, pydantic.Field(discriminator="kind")]]
    when: datetime | None = None
    where: pydantic.AnyUrl | None = None


class Names(pydantic.RootModel[list[str]]):
    pass


class Fresh(pydantic.BaseModel):
    id: UUID = pydantic.Field(default_factory=lambda: UUID(int=7))
    n: int = 0


class Settings(pydantic.BaseModel, str_strip_whitespace=True):
    size: pydantic.ByteSize
    host: IPv4Address
    more: dict[int, set[str]] = {}
    raw: pydantic.Json | None = None


class Team(pydantic.BaseModel):
    lead: Person
    others: dict[str, Any] = {}


class Holder(pydantic.BaseModel):
    word: Word
    level: Level | None = None
    raw: bytes = b""
    path: Path | None = None
    point: Point | None = None
    span: timedelta | None = None
    tags: set[str] = set()
    pair: Pair | None = None


def private(**cache: int) -> Private:
    made = Private(a=1)
    made._cache.update(cache)
    return made


def loose() -> Loose:
    made = Loose(1)
    made.other = (1, 2)  # type: ignore[attr-defined]
    return made


def computed() -> Computed:
    made = Computed(4, log=["x"])
    assert made.expensive is made.expensive
    return made


BERLIN = ZoneInfo("Europe/Berlin")
LEAVES: list[tuple[Any, Any]] = [
    (None, type(None)),
    (True, bool),
    (0, int),
    (1, int),
    (-(2**63), int),
    (2**80, int),
    (0.0, float),
    (-0.0, float),
    (1.5, float),
    (1e300, float),
    ("", str),
    ("ü€😀\u2028", str),
    ("$hf", str),
    (b"", bytes),
    (b"\x00\xff", bytes),
    (bytearray(b"ab"), bytearray),
    (datetime(2026, 1, 2, 3, 4, 5, 678), datetime),
    (datetime(2026, 1, 2, tzinfo=UTC), datetime),
    (datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=-5, minutes=-30))), datetime),
    (datetime(2026, 1, 2, tzinfo=timezone(timedelta(hours=1), "CET")), datetime),
    (datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN), datetime),
    (datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN), datetime),
    (datetime.min, datetime),
    (date(2026, 2, 28), date),
    (time(1, 2, 3, 4), time),
    (time(1, 2, tzinfo=UTC, fold=1), time),
    (timedelta(days=-1, microseconds=1), timedelta),
    (timedelta.max, timedelta),
    (Decimal("1.00"), Decimal),
    (Decimal("-0"), Decimal),
    (Decimal("NaN"), Decimal),
    (UUID(int=5), UUID),
    (Path("a/b.txt"), Path),
    (PurePosixPath("/x"), PurePosixPath),
    (PureWindowsPath("C:/x"), PureWindowsPath),
    (complex(1, -0.0), complex),
    (range(1, 9, 2), range),
    (Fraction(1, 3), Fraction),
    (IPv4Address("1.2.3.4"), IPv4Address),
    (IPv6Network("2001:db8::/32"), IPv6Network),
    (BERLIN, ZoneInfo),
    (UTC, timezone),
    ((), tuple),
    ((1, "a", None), tuple),
    ((1, (2, [3])), tuple[int, tuple[int, list[int]]]),
    (set(), set),
    ({1, 2}, set[int]),
    ({(1, 2), "a", frozenset({3})}, set),
    (frozenset({b"x"}), frozenset[bytes]),
    ([], list),
    ({}, dict),
    ({1: "a", 2: "b"}, dict[int, str]),
    ({(1, 2): "a", None: 1, True: 2}, dict),
    ({"$hf": 2, "v": 1}, dict),
    ({"b": 1, "a": 2}, dict[str, int]),
    ({"a": 1}, dict[str, float]),
    (deque([1, (2,)], maxlen=4), deque),
    (OrderedDict(b=1, a=(2,)), OrderedDict),
    (Counter("abracadabra"), Counter),
    (defaultdict(list, {"a": [1]}), defaultdict),
    (defaultdict(None, {1: 2}), defaultdict),
]
OBJECTS: list[tuple[Any, Any]] = [
    (Colour.RED, Colour),
    (Colour.BLUE, Colour),
    (Word.YES, Word),
    (Level.LOW, Level),
    (Rights.READ | Rights.WRITE, Rights),
    (Rights(0), Rights),
    (Bits.A | Bits.B, Bits),
    (Pair(1, (2,)), Pair),
    (Pair("no int", None), Pair),
    (Point(1, 2), Point),
    (Point({1: (2,)}, 2.0), Point),
    (Frozen(datetime(2026, 1, 1, tzinfo=BERLIN)), Frozen),
    (Frozen(datetime(2026, 1, 1), inner=Decimal(1)), Frozen),
    (Derived(1, label="x"), Derived),
    (Computed(4), Computed),
    (computed(), Computed),
    (Box(Point(1)), Box[Point]),
    (Box((1,)), Box),
    (Node("a", [Node("b"), Node("c", [Node("d")])]), Node),
    (Attrs(1, (2,)), Attrs),
    (Plan(["a"]), Plan),
    (Plan(["a"], meta={1, 2}), Plan),
    (Renamed(long_name=3), Renamed),
    (Renamed(long_name=3, other=4), Renamed),
    (Cat(9), Cat | Dog),
    (Dog("Rex"), Cat | Dog),
    (Plan([]), Plan | Cat),
    (loose(), Loose),
    (Counts(1), Counts),
    (Counts(1), Counts | Plan),
    (Bits(8), Bits),
    (Settings(size="1kB", host="1.2.3.4", more={1: {"a"}}, raw='{"a": 1}'), Settings),
    (Person(name="Ada", born=1815), Person),
    (Person(name="Ada"), Person),
    (Person(name="Ada", born=None), Person),
    (Person.model_construct(name=3), Person),
    (Employee(name="Bob", salary=Decimal("1.10")), Employee),
    (Aliased(Wanted=1, schema={"a": 1}), Aliased),
    (TwoAliases(x=1), TwoAliases),
    (Excluded(shown=1, hidden="kept"), Excluded),
    (Extra(a=1, b=2, c={"d": None}), Extra),
    (Extra(a=1, when=datetime(2026, 1, 1), pair=(1, 2)), Extra),
    (private(), Private),
    (private(x=1), Private),
    (Strict(a=1), Strict),
    (Normal(text="hey"), Normal),
    (Page[Person](items=[Person(name="Ada")]), Page[Person]),
    (Page[int](items=[1]), Page[int]),
    (Drawing(shapes=[Circle(r=1), Square(side=2)], when=datetime(2026, 1, 1, tzinfo=UTC)), Drawing),
    (Drawing(shapes=[], where=pydantic.AnyUrl("https://a.b/c")), Drawing),
    (Circle(r=1), Circle | Square),
    (Square(side=1), Annotated[Circle | Square, pydantic.Field(discriminator="kind")]),
    (Names(["a", "b"]), Names),
    (Fresh(), Fresh),
    (Fresh(n=1), Fresh),
    (Team(lead=Person(name="Ada"), others={"when": date(2026, 1, 1)}), Team),
    (Holder(word=Word.YES, level=Level.LOW, raw=b"\xff", path=Path("a"), span=timedelta(1), pair=Pair(1, 2)), Holder),
    (Holder(word=Word.YES, point=Point(1), tags={"a", "b"}), Holder),
    (pydantic.AnyUrl("https://a.b/?c=d"), pydantic.AnyUrl),
    (Table(name="a", rows=[1]), Table),
    ({"name": "a", "more": 1}, Table),
]
