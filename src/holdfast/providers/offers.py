"""What well-known models can do. The table grows old, so the `offers` that you give a model win. Other models are unknown.

The context windows of Claude are from Anthropic's pages. The windows of other models were only checked against the lists of
third parties. If models with one prefix differ, the table has the largest window. A window rejects only a request that says
how much it needs (`Needs.window`).

Invariant: no window here is smaller than the model's own window. So no request is rejected that the model could take.
"""

from __future__ import annotations

import msgspec

from holdfast.policies.models.capabilities import Offers

_ALL = Offers(streaming=True, tool_calling=True, structured_output=True, multimodal=True, prompt_caching=True)
_THINKS = msgspec.structs.replace(_ALL, reasoning=True)
_ANSWERS = msgspec.structs.replace(_ALL, reasoning=False)
_EARLIER_CLAUDE = Offers(streaming=True, tool_calling=True, structured_output=False, multimodal=True)


def _with_window(tokens: int, offers: Offers) -> Offers:
    return msgspec.structs.replace(offers, context_window=tokens)


_KNOWN: dict[str, Offers] = {
    # No windows here: the models behind these prefixes differ, and new ones appear.
    "claude-": _THINKS,
    "claude-3-": _EARLIER_CLAUDE,
    "claude-haiku-4-5": _with_window(200_000, _THINKS),
    "claude-opus-4-5": _with_window(200_000, _THINKS),
    "gpt-4.1": _with_window(1_047_576, _ANSWERS),
    "gpt-4o": _with_window(128_000, _ANSWERS),
    "gpt-5": _with_window(400_000, _THINKS),
    "gpt-5.": _THINKS,
    "o3": _with_window(200_000, _THINKS),
    "grok-": Offers(streaming=True, tool_calling=True),
    "grok-4": _with_window(
        2_000_000, Offers(streaming=True, tool_calling=True, structured_output=True, reasoning=True)
    ),
}


def offers_of(model: str) -> Offers:
    """Return the offers for the longest listed prefix of a model's name. Without such a prefix the offers are empty."""
    fitting = [prefix for prefix in _KNOWN if model.startswith(prefix)]
    return _KNOWN[max(fitting, key=len)] if fitting else Offers()
