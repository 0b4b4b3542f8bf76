"""Prices of many models, kept up to date by the package genai-prices (extra `prices`).

from holdfast import Budget
from holdfast.genai_prices import with_genai_prices

with Budget(usd=1, prices=with_genai_prices()):
...
"""

from __future__ import annotations

from holdfast.extras import needs_extra

with needs_extra("holdfast.genai_prices", "genai-prices", "prices"):
    from holdfast.integrations.genai_prices import with_genai_prices

__all__ = ["with_genai_prices"]
