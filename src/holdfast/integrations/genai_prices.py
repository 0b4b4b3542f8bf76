"""Prices of the package genai-prices, which its maintainers keep up to date, for models that a table lacks.

Invariant: a table's own prices win. Nothing is fetched: the package's data of the installed version is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from genai_prices import Usage as TheirUsage
from genai_prices import calc_price

from holdfast.policies.models.prices import LIST_PRICES, Price, Prices
from holdfast.policies.models.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["with_genai_prices"]

_ONE = Usage(input=1, output=1)


def with_genai_prices(prices: Prices = LIST_PRICES) -> Prices:
    """Return `prices` with those of the package genai-prices for all other models.

    from holdfast import Budget
    from holdfast.genai_prices import with_genai_prices

    with Budget(usd=1, prices=with_genai_prices()):
        ...
    """
    return _WithGenaiPrices(prices.table)


class _WithGenaiPrices(Prices):
    """A table of prices, then those of the package."""

    __slots__ = ()

    def cost(self, model: str | None, usage: Usage | None) -> float | None:
        """Return the dollars for `usage` of `model`; None: the usage or the price is unknown."""
        own = super().cost(model, usage)
        return _cost(model, usage) if own is None and model is not None and usage is not None else own

    def knows(self, model: str) -> bool:
        """Return whether the cost of `model` is known."""
        return super().knows(model) or _cost(model, _ONE) is not None

    def with_prices(self, table: Mapping[str, Price]) -> Prices:
        """Return a copy in which the prices of `table` are added or replaced."""
        return _WithGenaiPrices(super().with_prices(table).table)


def _cost(model: str, usage: Usage) -> float | None:
    # The package counts cached tokens as a part of the input tokens.
    theirs = TheirUsage(
        input_tokens=usage.input + usage.cached + usage.written + usage.written_hour,
        output_tokens=usage.output,
        cache_read_tokens=usage.cached,
        cache_write_tokens=usage.written + usage.written_hour,
    )
    # Routers put the name of a provider before the name of the model: `openai/gpt-4o`.
    for name in dict.fromkeys((model, model.rpartition("/")[2])):
        try:
            return float(calc_price(theirs, name).total_price)
        except LookupError:  # not a name that it knows: try the next one, or say nothing
            continue
    return None
