"""A warm prompt cache, weighed by price and time: whether it is cheaper to wait for a model or to ask another one.

A conversation of an agent is one long prompt, most of which the provider reads from its cache at a fraction of the price.
Another model must read all of it at its full price. A short wait may cost less than that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast import options

if TYPE_CHECKING:
    from holdfast.policies.models.prices import Price
    from holdfast.policies.models.usage import Usage

__all__ = ["CACHE_LIFETIME_S", "USD_PER_SECOND", "Weighed", "is_warm", "weigh"]

CACHE_LIFETIME_S = 300.0
"""Seconds without a request after which a prompt is no longer in the cache: five minutes with Anthropic, five to ten with
OpenAI. An entry that is wrongly taken as expired costs money; one that is wrongly taken as warm costs a wait and money."""

USD_PER_SECOND = 0.01
"""What a second of waiting is worth by default: 36 US dollars an hour, about what a person's time costs."""

_MILLION = 1_000_000


class Weighed(msgspec.Struct, frozen=True, kw_only=True):
    """A wait beside a cold prompt, both in US dollars."""

    usd: float
    """What the prompt costs more with the other model than here with the warm cache. It may be negative."""
    wait: float | None = None
    """Seconds until this model may answer; None: unknown."""
    wait_usd: float = 0.0
    """What this wait and those before it are worth."""

    @property
    def stays(self) -> bool:
        """Whether waiting is cheaper than a cold prompt."""
        return self.wait is not None and self.wait_usd < self.usd

    @property
    def why(self) -> str:
        """The choice in words."""
        more = "more" if self.usd >= 0 else "less"
        cold = f"a cold prompt costs {abs(self.usd):.4f} USD {more} than the warm cache"
        if self.wait is None:
            return cold
        return f"{cold}, and a wait of {self.wait:.1f} s is worth {self.wait_usd:.4f} USD"


def is_warm(usage: Usage, age: float) -> bool:
    """Whether a prompt is still in the provider's cache, `age` seconds after a reply that reported `usage`."""
    return bool(usage.cached or usage.written or usage.written_hour) and 0 <= age < CACHE_LIFETIME_S


def weigh(
    usage: Usage,
    *,
    here: Price,
    there: Price,
    wait: float | None,
    waited: float = 0.0,
    usd_per_second: float = USD_PER_SECOND,
    writes: bool = True,
) -> Weighed:
    """Compare waiting `wait` seconds for a model with asking another one at once.

    `usage` is that of the last reply, whose prompt is in the cache. `waited` are the seconds of earlier waits for the same
    answer, so that many short waits do not add up to a long one. `writes`: the other model stores the prompt in its cache too.
    Only the prompt is compared: nobody knows how long the answers will be.
    """
    options.at_least("weigh.usd_per_second", usd_per_second, 0)
    in_cache = usage.cached + usage.written + usage.written_hour
    # The answer is a part of the next prompt, and it is in no cache yet.
    beside = usage.input + usage.output
    here, there = here.at(in_cache + beside), there.at(in_cache + beside)
    cached = here.input if here.cached is None else here.cached
    written = there.written if writes and there.written is not None else there.input
    warm = in_cache * cached + beside * here.input
    cold = (in_cache + beside) * written
    usd = (cold - warm) / _MILLION
    if wait is None:
        return Weighed(usd=usd)
    return Weighed(usd=usd, wait=wait, wait_usd=(waited + wait) * usd_per_second)
