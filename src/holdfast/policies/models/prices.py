"""What tokens cost: a small table of list prices, which users override with their own.

Invariant: the cost of a model without a price is None, which means unknown and never zero.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import options
from holdfast.faults import InvalidError

if TYPE_CHECKING:
    from holdfast.policies.models.usage import Usage

__all__ = ["LIST_PRICES", "Price", "Prices"]

_MILLION = 1_000_000
# Model names whose price is remembered.
_REMEMBERED = 256


class Price(options.Options, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """US dollars per million tokens, and for a web search. 0 is free, such as a model on your own machine.

    Wrong options raise `InvalidError`.

        from holdfast.policies.models import LIST_PRICES, Price

        prices = LIST_PRICES.with_prices({"my-model": Price(input=2, output=8)})
    """

    input: float
    output: float
    cached: float | None = None
    """Input that came from the provider's cache. None: like other input, so that the cost is never too low."""
    written: float | None = None
    """Input that was stored in the provider's cache. None: like other input."""
    written_hour: float | None = None
    """Input that was stored there for an hour. None: twice the price of other input, as Anthropic has it."""
    web_search: float = 0.01
    """US dollars for one web search that the provider makes and reports, as Anthropic does."""
    long: Price | None = None
    """The price of a request whose prompt is long, its answer included. None: all prompts cost the same."""
    long_from: int | None = None
    """How many tokens a long prompt has at least, those of the cache included."""
    tiers: dict[str, float] = msgspec.field(default_factory=dict)
    """By how much the price is multiplied in other tiers than the standard one, by the provider's names: `{"priority": 2, "flex": 0.5}`."""

    def __post_init__(self) -> None:
        options.at_least("price.input", self.input, 0)
        options.at_least("price.output", self.output, 0)
        options.at_least("price.cached", self.cached, 0, optional=True)
        options.at_least("price.written", self.written, 0, optional=True)
        options.at_least("price.written_hour", self.written_hour, 0, optional=True)
        options.at_least("price.web_search", self.web_search, 0)
        options.count("price.long_from", self.long_from, optional=True)
        for tier, factor in self.tiers.items():
            options.at_least(f"price.tiers[{tier}]", factor, 0)
        long: Any = self.long
        if long is not None and (not isinstance(long, Price) or long.long is not None):
            raise InvalidError.at("price.long", "a Price without a `long` of its own, or None", long)
        if (self.long is None) != (self.long_from is None):
            raise InvalidError.saying("price.long", "`long` and `long_from` together", "only one of them")

    def __hash__(self) -> int:
        return hash((self.input, self.output))

    def at(self, prompt: int) -> Price:
        """Return the price of a request with so many tokens of prompt."""
        return self if self.long is None or self.long_from is None or prompt < self.long_from else self.long

    def cost(self, usage: Usage) -> float:
        """Return the dollars for `usage` of one request."""
        price = self.at(usage.input + usage.cached + usage.written + usage.written_hour)
        # A tier without a known price counts as the standard one, and as unknown: see `Prices.knows_tier`.
        return price._cost(usage) * self.tiers.get(usage.tier, 1.0)  # noqa: SLF001 - a price of the same kind

    def _cost(self, usage: Usage) -> float:
        cached = self.input if self.cached is None else self.cached
        written = self.input if self.written is None else self.written
        whole = usage.input * self.input + usage.output * self.output + usage.cached * cached + usage.written * written
        if usage.written_hour or usage.searches:
            hour = 2 * self.input if self.written_hour is None else self.written_hour
            return (whole + usage.written_hour * hour) / _MILLION + usage.searches * self.web_search
        return whole / _MILLION


class Prices:
    """A price for each model, by name or pattern. The most specific one that matches counts.

    A name matches the model and its dated versions: `gpt-4o` matches `gpt-4o-2024-08-06` but not `gpt-4o-mini`. In a pattern
    `*` matches any text: `openrouter/*`, `*claude-haiku-4-5*`. A wrong table raises `InvalidError`.
    """

    __slots__ = ("_found", "table")

    def __init__(self, table: Mapping[str, Price] | None = None) -> None:
        self.table: Mapping[str, Price] = _checked({} if table is None else table)
        self._found: dict[str, Price | None] = {}

    def cost(self, model: str | None, usage: Usage | None) -> float | None:
        """Return the dollars for `usage` of `model`; None: the usage or the price is unknown."""
        if model is None or usage is None:
            return None
        price = self.price(model)
        return None if price is None else price.cost(usage)

    def price(self, model: str) -> Price | None:
        """Return the price of `model`; None: unknown."""
        try:
            return self._found[model]
        # It is looked up for the first time.
        except KeyError:
            pass
        fitting = [pattern for pattern in self.table if _fits(pattern).fullmatch(model)]
        # The most specific wins, so that an exact name beats `*` whatever the order of the table.
        best = max(fitting, key=_literal_length, default=None)
        if len(self._found) >= _REMEMBERED:
            # Model names come from responses, so there may be any number of them.
            self._found.clear()
        found = self._found[model] = None if best is None else self.table[best]
        return found

    def knows(self, model: str) -> bool:
        """Return whether the cost of `model` is known."""
        return self.price(model) is not None

    def knows_tier(self, model: str, tier: str) -> bool:
        """Return whether the cost of `model` in this tier is known. The standard tier has no name."""
        price = self.price(model)
        return not tier or (price is not None and tier in price.tiers)

    def with_prices(self, table: Mapping[str, Price]) -> Prices:
        """Return a copy in which the prices of `table` are added or replaced."""
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
    # The table is copied, because its owner may change it later, and remembered prices would not follow.
    return dict(table)


@lru_cache(maxsize=1024)
def _fits(pattern: str) -> re.Pattern[str]:
    if "*" in pattern:
        return re.compile(".*".join(re.escape(part) for part in pattern.split("*")), re.DOTALL)
    # Only a date may follow the name. Any suffix would give `gpt-4o-mini` the price of `gpt-4o`.
    return re.compile(re.escape(pattern) + r"(?:-latest|[-@]\d{8}|-\d{4}-\d\d-\d\d)?")


def _literal_length(pattern: str) -> tuple[int, bool]:
    """How specific a pattern is: first by its characters other than `*`; then a name before a pattern."""
    return len(pattern.replace("*", "")), "*" not in pattern


_PRIORITY = {"priority": 2.0}
_FLEX = {"priority": 2.0, "flex": 0.5}


def _claude(input_: float, output: float, **tiers: float) -> Price:
    """Anthropic's cache: reading costs a tenth of input, storing for five minutes a quarter more than input, for an hour twice as much."""
    return Price(input=input_, output=output, cached=input_ / 10, written=input_ * 1.25, tiers=tiers)


LIST_PRICES = Prices({
    "claude-fable-5": _claude(10, 50),
    "claude-haiku-4-5": _claude(1, 5),
    # Prompts of more than 100,000 tokens cost five times as much.
    "claude-haiku-5-5": Price(
        input=0.1, output=0.5, cached=0.01, written=0.125,
        long=Price(input=0.5, output=2.5, cached=0.05, written=0.625), long_from=100_001,
    ),
    "claude-opus-4-1": _claude(15, 75),
    "claude-opus-4-5": _claude(5, 25),
    "claude-opus-4-6": _claude(5, 25, fast=6),
    "claude-opus-4-7": _claude(5, 25),
    "claude-opus-4-8": _claude(5, 25),
    "claude-opus-5": _claude(5, 25),
    "claude-opus-5-5": Price(input=4, output=20, cached=0.2, written=5),
    "claude-sonnet-4": _claude(3, 15),
    "claude-sonnet-4-5": _claude(3, 15),
    "claude-sonnet-4-6": _claude(3, 15),
    "claude-sonnet-5": _claude(2, 10),
    "claude-sonnet-5-5": _claude(2, 10),
    "gpt-4.1": Price(input=2, output=8, cached=0.5, tiers=_PRIORITY),
    "gpt-4.1-mini": Price(input=0.4, output=1.6, cached=0.1, tiers=_PRIORITY),
    "gpt-4.1-nano": Price(input=0.1, output=0.4, cached=0.025, tiers=_PRIORITY),
    "gpt-4o": Price(input=2.5, output=10, cached=1.25, tiers=_PRIORITY),
    "gpt-4o-2024-05-13": Price(input=5, output=15),
    "gpt-4o-mini": Price(input=0.15, output=0.6, cached=0.075, tiers=_PRIORITY),
    "gpt-5": Price(input=1.25, output=10, cached=0.125, tiers=_FLEX),
    "gpt-5-mini": Price(input=0.25, output=2, cached=0.025, tiers=_FLEX),
    "gpt-5-nano": Price(input=0.05, output=0.4, cached=0.005, tiers=_FLEX),
    "grok-4.7": Price(input=2, output=6, cached=0.5, long=Price(input=4, output=12, cached=1), long_from=200_000),
    "o3": Price(input=2, output=8, cached=0.5, tiers=_FLEX),
    "o4-mini": Price(input=1.1, output=4.4, cached=0.275, tiers=_FLEX),
})  # fmt: skip
"""Public list prices of the standard tier, as of 15 November 2026, from the pricing pages of Anthropic and OpenAI. Those of
claude-haiku-5-5 (platform.claude.com/docs, page of the model) and grok-4.7 (docs.x.ai, page of the model; long and cached
prompts as the package genai-prices 0.2.1 has them) are of 16 November 2026. Prices change and contracts differ: give a
`Budget` your own prices with `LIST_PRICES.with_prices`.

Other tiers are factors on these: OpenAI's priority counts twice, which is the price of gpt-5 and no less than that of the others, and flex half; the
fast mode of claude-opus-4-6 six times.

The table leaves out models without a public price.
"""
