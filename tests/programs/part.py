"""What a part of a program is: it is rendered as a person would type it, and knows how often its effects may happen.

Nothing in a part looks whether it was done before: a program with such a guard would be no test.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["ELEMENTS", "ODD", "Element", "Part", "Style", "element", "indented", "listed", "literal", "outcome", "paid"]

ODD = {
    "no id": "KeyError",
    "reset": "ConnectionResetError",
    "refused": "ConnectionRefusedError",
    "slow": "",
    "late": "",
}
"""What may be odd about a name at the bank, and the error that the program sees."""


@dataclass(frozen=True)
class Style:
    """How the same program is typed: an edit between two runs is another style."""

    variable: str = "receipt"
    keyword: bool = False
    spelled: bool = False
    insert: bool = False
    wrap: bool = False
    reorder: bool = False
    moved: bool = False
    """A function has another name in the code, and the same one for Holdfast."""
    typed: tuple[tuple[str, str], ...] = ()
    """What stands in its functions, and what stands there instead."""

    def functions(self, text: str) -> str:
        """Return the functions of a program as this style types them."""
        if self.moved:
            text = text.replace("settle_invoice", "close_invoice")
        for before, after in self.typed:
            text = text.replace(before, after)
        return text

    def arguments(self, who: str) -> str:
        """Return the arguments of a call of `pay`, as this style types them."""
        return f"{'who=' if self.keyword else ''}{who}{', amount=5' if self.spelled else ''}"


@dataclass(frozen=True)
class Part:
    """One part of a program. The names are its own: no other part pays the same people."""

    kind: str
    who: tuple[str, ...]
    odd: str = ""
    """What is odd about its first name."""
    variant: int = 0

    @property
    def element(self) -> Element:
        return ELEMENTS[self.kind]

    def lines(self, style: Style) -> list[str]:
        return list(self.element.render(self, style))

    def calls(self) -> Counter[tuple[str, str]]:
        """Return how often each effect may happen at most."""
        times = self.element.times
        return Counter({(what, who): times for what in self.element.whats for who in self.who})

    def names(self, style: Style) -> list[str]:
        """Return its names, after an edit with a new one before them."""
        return [*(["new " + self.who[0]] if style.insert else []), *self.who]


@dataclass(frozen=True)
class Element:
    """A kind of part."""

    render: Callable[[Part, Style], Iterator[str]]
    whats: tuple[str, ...]
    functions: tuple[str, ...]
    names: int = 1
    times: int = 1
    may_refuse: str = ""
    """When it may end with a typed refusal that says how to go on (`key=`). "first": before anything has happened, because its calls
    cannot be told apart. "later": when it is run again, because a turn without a key is new each time."""
    odd: tuple[str, ...] = tuple(ODD)
    """What may be odd about its first name."""
    oddly: float = 0.4
    """How often something is."""
    inserts: bool = False
    """Whether an edit may put a further name before its own."""
    alone: bool = False
    """A program has nothing beside it."""
    weight: int = 1
    """How often it is drawn, beside the others."""


ELEMENTS: dict[str, Element] = {}


def literal(text: str) -> str:
    return f'"{text}"'


def indented(lines: list[str], by: int = 1) -> list[str]:
    return [f"{'    ' * by}{line}" for line in lines]


def element(
    *functions: str,
    whats: str = "pay",
    names: int = 1,
    times: int = 1,
    may_refuse: str = "",
    odd: tuple[str, ...] = tuple(ODD),
    oddly: float = 0.4,
    inserts: bool = False,
    alone: bool = False,
    weight: int = 1,
) -> Callable[[Callable[[Part, Style], Iterator[str]]], Callable[[Part, Style], Iterator[str]]]:
    """Make a function that renders a part an element: with the functions it needs, and the effects it has for each of its names."""

    def keep(render: Callable[[Part, Style], Iterator[str]]) -> Callable[[Part, Style], Iterator[str]]:
        ELEMENTS[render.__name__] = Element(
            render, tuple(whats.split()), functions, names, times, may_refuse, odd, oddly, inserts, alone, weight
        )
        return render

    return keep


def listed(names: Iterable[str]) -> str:
    """Return a list of names as Python."""
    return f"[{', '.join(map(literal, names))}]"


def paid(who: str, style: Style, call: str = "session.step", function: str = "pay") -> str:
    """Return a payment as Python; `who` is Python, too."""
    return f"await {call}({function}, {style.arguments(who) if function == 'pay' else who})"


def outcome(label: str) -> list[str]:
    """Return the lines that show the outcome of an item of a map."""
    return ["if isinstance(outcome, Err):", "    raise outcome.error", f"say({label}, outcome.value)"]
