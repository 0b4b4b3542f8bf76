"""What tokens cost: a small table of list prices that is meant to be overridden.

Invariant: a model without a price costs None: unknown, never zero.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from holdfast import options
from holdfast.faults import InvalidError

if TYPE_CHECKING:
    from holdfast.policies.models.usage import Usage

__all__ = ["LIST_PRICES", "Price", "Prices"]

_MILLION = 1_000_000
_REMEMBERED = 256


class Price(options.Options, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """US dollars per million tokens. 0 is free, as of a model on your own machine."""

    input: float
    output: float
    cached: float | None = None
    """Input that came from the provider's cache. None: like other input, which is never too little."""
    written: float | None = None
    """Input that was stored in the provider's cache. None: like other input."""

    def __post_init__(self) -> None:
        options.at_least("price.input", self.input, 0)
        options.at_least("price.output", self.output, 0)
        options.at_least("price.cached", self.cached, 0, optional=True)
        options.at_least("price.written", self.written, 0, optional=True)

    def cost(self, usage: Usage) -> float:
        """Return the dollars for `usage`."""
        cached = self.input if self.cached is None else self.cached
        written = self.input if self.written is None else self.written
        whole = usage.input * self.input + usage.output * self.output + usage.cached * cached + usage.written * written
        return whole / _MILLION


class Prices:
    """A price for each model, by name or pattern; the most specific that fits holds.

    A name fits the model and its dated versions (`gpt-4o` fits `gpt-4o-2024-08-06`, not `gpt-4o-mini`). In a pattern `*`
    stands for anything (`openrouter/*`, `*claude-haiku-4-5*`).
    """

    __slots__ = ("_found", "table")

    def __init__(self, table: Mapping[str, Price] | None = None) -> None:
        self.table: Mapping[str, Price] = _checked({} if table is None else table)
        self._found: dict[str, Price | None] = {}

    def cost(self, model: str | None, usage: Usage | None) -> float | None:
        """Return the dollars for `usage` of `model`; None where either is unknown."""
        if model is None or usage is None:
            return None
        price = self.price(model)
        return None if price is None else price.cost(usage)

    def price(self, model: str) -> Price | None:
        """Return the price of `model`; None where nobody told."""
        try:
            return self._found[model]
        except KeyError:
            pass
        fitting = [pattern for pattern in self.table if _fits(pattern).fullmatch(model)]
        best = max(fitting, key=_literal_length, default=None)
        if len(self._found) >= _REMEMBERED:
            # Model names come from answers, that is from strangers.
            self._found.clear()
        found = self._found[model] = None if best is None else self.table[best]
        return found

    def with_prices(self, table: Mapping[str, Price]) -> Prices:
        """Return these prices with others added or put in their place."""
        return Prices({**self.table, **_checked(table)})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Prices) and self.table == other.table

    def __hash__(self) -> int:
        return hash(frozenset(self.table.items()))

    def __repr__(self) -> str:
        return f"Prices({dict(self.table)!r})"


def _checked(table: Any) -> dict[str, Price]:
    if not isinstance(table, Mapping):
        raise InvalidError.at("prices", "a mapping of model names to Price", table)
    for pattern, price in table.items():
        if not isinstance(pattern, str) or not pattern:
            raise InvalidError.at("prices", "the name of a model or a pattern with *", pattern)
        if not isinstance(price, Price):
            raise InvalidError.at(f"prices[{pattern}]", "a Price", price)
    return dict(table)


@lru_cache(maxsize=1024)
def _fits(pattern: str) -> re.Pattern[str]:
    if "*" in pattern:
        return re.compile(".*".join(re.escape(part) for part in pattern.split("*")), re.DOTALL)
    # A prefix alone would give a smaller sibling the price of the larger: only a date may follow.
    return re.compile(re.escape(pattern) + r"(?:-latest|[-@]\d{8}|-\d{4}-\d\d-\d\d)?")


def _literal_length(pattern: str) -> tuple[int, bool]:
    """How specific a pattern is: by the characters it fixes, then a name before a pattern."""
    return len(pattern.replace("*", "")), "*" not in pattern


def _claude(input_: float, output: float) -> Price:
    """For these models reading the cache costs a tenth of input, and storing in it for five minutes a quarter more."""
    return Price(input=input_, output=output, cached=input_ / 10, written=input_ * 1.25)


LIST_PRICES = Prices({
    "claude-fable-5": _claude(10, 50),
    "claude-haiku-4-5": _claude(1, 5),
    "claude-opus-4-1": _claude(15, 75),
    "claude-opus-4-5": _claude(5, 25),
    "claude-opus-4-6": _claude(5, 25),
    "claude-opus-4-7": _claude(5, 25),
    "claude-opus-4-8": _claude(5, 25),
    "claude-opus-5": _claude(5, 25),
    "claude-sonnet-4": _claude(3, 15),
    "claude-sonnet-4-5": _claude(3, 15),
    "claude-sonnet-4-6": _claude(3, 15),
    "claude-sonnet-5": _claude(2, 10),
    "gpt-4.1": Price(input=2, output=8, cached=0.5),
    "gpt-4.1-mini": Price(input=0.4, output=1.6, cached=0.1),
    "gpt-4.1-nano": Price(input=0.1, output=0.4, cached=0.025),
    "gpt-4o": Price(input=2.5, output=10, cached=1.25),
    "gpt-4o-2024-05-13": Price(input=5, output=15),
    "gpt-4o-mini": Price(input=0.15, output=0.6, cached=0.075),
    "gpt-5": Price(input=1.25, output=10, cached=0.125),
    "gpt-5-mini": Price(input=0.25, output=2, cached=0.025),
    "gpt-5-nano": Price(input=0.05, output=0.4, cached=0.005),
    "o3": Price(input=2, output=8, cached=0.5),
    "o4-mini": Price(input=1.1, output=4.4, cached=0.275),
})  # fmt: skip
"""Public list prices, standard tier, as known on 15 November 2026: Claude's from Anthropic's pricing page, OpenAI's as last
published when we looked. Prices move and contracts differ: give a `Budget` your own with `LIST_PRICES.with_prices`.

Left out are models whose price depends on the length of the prompt, and whatever could not be looked up.
"""
