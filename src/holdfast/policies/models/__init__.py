"""What is known about models and their responses: `usage` (tokens), `prices`, `capabilities`, `prompt_cache`, `tool_calls`.

Names are imported when they are first used. A runtime that only counts tokens does not load the table of prices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._lazy import loader

if TYPE_CHECKING:
    from holdfast.policies.models.prices import LIST_PRICES, Price, Prices
    from holdfast.policies.models.prompt_cache import Weighed, weigh
    from holdfast.policies.models.usage import Usage, model_of, usage_of

__all__ = ["LIST_PRICES", "Price", "Prices", "Usage", "Weighed", "model_of", "usage_of", "weigh"]

_HOMES = {
    "LIST_PRICES": "holdfast.policies.models.prices",
    "Price": "holdfast.policies.models.prices",
    "Prices": "holdfast.policies.models.prices",
    "Weighed": "holdfast.policies.models.prompt_cache",
    "weigh": "holdfast.policies.models.prompt_cache",
    "Usage": "holdfast.policies.models.usage",
    "model_of": "holdfast.policies.models.usage",
    "usage_of": "holdfast.policies.models.usage",
}
__getattr__ = loader(__name__, globals(), _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
