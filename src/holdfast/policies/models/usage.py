"""What an answer says it used, read from the shapes of the well-known SDKs, as objects or as JSON.

Invariant: reading never raises, and what cannot be read is None: unknown, not zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Usage", "model_of", "usage_of"]


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """Tokens of one call. The four kinds do not overlap, whatever the provider's own counting."""

    input: int = 0
    """Read for the full price."""
    output: int = 0
    """Written, reasoning included."""
    cached: int = 0
    """Read from the provider's cache."""
    written: int = 0
    """Read, and stored in the provider's cache."""

    @property
    def total(self) -> int:
        """All of them."""
        return self.input + self.output + self.cached + self.written


def usage_of(result: Any) -> Usage | None:
    """Return what `result` says it used, or None: an answer of Anthropic, OpenAI (chat, responses) or Gemini."""
    for place, readers in _PLACES:
        told = _get(result, place)
        if told is None:
            continue
        for read in readers:
            usage = read(told)
            if usage is not None:
                return usage
    return None


def model_of(result: Any) -> str | None:
    """Return the model that answered, as the answer names it, or None."""
    names = (_get(result, name) for name in ("model", "model_version", "modelVersion"))
    return next((name for name in names if isinstance(name, str) and name), None)


def _ours(told: Any) -> Usage | None:
    """An answer of our own providers tells it in our words."""
    return told if isinstance(told, Usage) else None


def _anthropic(told: Any) -> Usage | None:
    """`input_tokens` leaves out what came from or went to the cache."""
    cached, written = _get(told, "cache_read_input_tokens"), _get(told, "cache_creation_input_tokens")
    return _usage(_get(told, "input_tokens"), _get(told, "output_tokens"), cached, written)


def _responses(told: Any) -> Usage | None:
    """`input_tokens` includes what came from the cache."""
    details = _get(told, "input_tokens_details")
    if details is None:
        return None
    return _inclusive(_get(told, "input_tokens"), _get(told, "output_tokens"), _get(details, "cached_tokens"))


def _chat(told: Any) -> Usage | None:
    """`prompt_tokens` includes what came from the cache; embeddings have no `completion_tokens`."""
    cached = _get(_get(told, "prompt_tokens_details"), "cached_tokens")
    return _inclusive(_get(told, "prompt_tokens"), _get(told, "completion_tokens"), cached)


def _gemini(told: Any) -> Usage | None:
    """The prompt includes what came from the cache; thoughts are paid like the answer and counted beside it."""

    def field(snake: str) -> Any:
        head, *rest = snake.split("_")
        value = _get(told, snake)
        return value if value is not None else _get(told, head + "".join(word.title() for word in rest))

    prompt = _sum(field("prompt_token_count"), field("tool_use_prompt_token_count"))
    answer = _sum(field("candidates_token_count"), field("thoughts_token_count"))
    return _inclusive(prompt, answer, field("cached_content_token_count"))


_PLACES: tuple[tuple[str, tuple[Callable[[Any], Usage | None], ...]], ...] = (
    ("usage", (_ours, _responses, _anthropic, _chat)),
    ("usage_metadata", (_gemini,)),
    ("usageMetadata", (_gemini,)),
)


def _inclusive(prompt: Any, answer: Any, cached: Any) -> Usage | None:
    """Return the usage where the prompt's count holds what came from the cache."""
    whole = _usage(prompt, answer, cached, None)
    if whole is None or whole.cached > whole.input:
        return None
    return msgspec.structs.replace(whole, input=whole.input - whole.cached)


def _usage(prompt: Any, answer: Any, cached: Any, written: Any) -> Usage | None:
    """Return the usage if the prompt's count is told and every other is a count or absent."""
    counts = [0 if count is None else count for count in (answer, cached, written)]
    if not all(_is_count(count) for count in (prompt, *counts)):
        return None
    return Usage(input=prompt, output=counts[0], cached=counts[1], written=counts[2])


def _sum(first: Any, second: Any) -> Any:
    """Return the sum of two counts, or the first as it is where there is no second."""
    return first + second if _is_count(first) and _is_count(second) else first


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _get(target: Any, name: str) -> Any:
    """Return a field of an object or of a JSON object, None where there is none."""
    try:
        return target.get(name) if isinstance(target, dict) else getattr(target, name, None)
    except Exception:  # noqa: BLE001 - a foreign property may raise anything; then it tells us nothing
        return None
