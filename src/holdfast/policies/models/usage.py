"""The tokens that a response reports, read from the well-known SDKs' shapes, as objects or as JSON.

Invariant: reading never raises. Usage that cannot be read is None, which means unknown and not zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Usage", "answer_id_of", "cost_of", "is_unfinished", "model_of", "tier_of", "usage_of"]


_STANDARD = frozenset({"", "standard", "standard_only", "default", "auto", "scale", "batch"})
"""The names of tiers that cost the usual price, or are paid for in another way."""


class Usage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, repr_omit_defaults=True):
    """Tokens and web searches of one call. The kinds of tokens do not overlap, although some providers count them together."""

    input: int = 0
    """Input at the full price."""
    output: int = 0
    """Output, including reasoning."""
    cached: int = 0
    """Input that came from the provider's cache."""
    written: int = 0
    """Input that was stored in the provider's cache."""
    written_hour: int = 0
    """Input that was stored there for an hour, which costs more."""
    searches: int = 0
    """Web searches that the provider made. They are no tokens, and are paid for one by one."""
    tier: str = ""
    """What the provider calls the speed or priority that it served the call with; empty: the standard one."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input=self.input + other.input,
            output=self.output + other.output,
            cached=self.cached + other.cached,
            written=self.written + other.written,
            written_hour=self.written_hour + other.written_hour,
            searches=self.searches + other.searches,
            tier=self.tier or other.tier,
        )

    @property
    def total(self) -> int:
        """The sum of all tokens."""
        return self.input + self.output + self.cached + self.written + self.written_hour


_BARE = frozenset({str, int, float, bool, bytes, list, tuple, type(None)})
"""Results of functions and tools, which report nothing."""


def usage_of(result: Any) -> Usage | None:
    """Return the usage that `result` reports; None: unknown.

    `result` is a response of Anthropic, OpenAI (chat, responses), Gemini or one of our own providers.
    """
    if type(result) in _BARE:
        return None
    if isinstance(own := _get(result, "usage"), Usage):
        # It has its tier already.
        return own
    for place, readers in _PLACES:
        reported = _get(result, place)
        if reported is None:
            continue
        for read in readers:
            usage = read(reported)
            if usage is not None:
                tier = tier_of(reported, result)
                return msgspec.structs.replace(usage, tier=tier) if tier else usage
    return None


def tier_of(*reports: Any) -> str:
    """Return the tier that a request asks for, or an answer or its usage reports; empty: the standard one, or none is named."""
    named = (_get(report, name) for report in reports for name in ("speed", "service_tier"))
    return next((name for name in named if isinstance(name, str) and name not in _STANDARD), "")


def model_of(result: Any) -> str | None:
    """Return the name of the model that answered, as the response gives it; None: unknown."""
    names = (_get(result, name) for name in ("model", "model_version", "modelVersion"))
    return next((name for name in names if isinstance(name, str) and name), None)


def answer_id_of(result: Any) -> str:
    """Return the id by which an answer can be read again; empty if it has none."""
    name = _get(result, "id")
    return name if isinstance(name, str) else ""


def is_unfinished(result: Any) -> bool:
    """Return whether a provider still works on an answer in the background, so that its usage comes later."""
    return _get(result, "status") in ("queued", "in_progress") and bool(answer_id_of(result))


def cost_of(result: Any) -> float | None:
    """Return the dollars that `result` itself says it cost, as the reply of a command-line agent does; None: it does not say."""
    usd = _get(result, "usd")
    return float(usd) if isinstance(usd, (int, float)) and not isinstance(usd, bool) and usd >= 0 else None


def _ours(reported: Any) -> Usage | None:
    """Read a response of our own providers, which holds a `Usage`."""
    return reported if isinstance(reported, Usage) else None


def _anthropic(reported: Any) -> Usage | None:
    """Read Anthropic's usage. `input_tokens` does not include tokens that came from or went to the cache."""
    cached, written = _get(reported, "cache_read_input_tokens"), _get(reported, "cache_creation_input_tokens")
    usage = _usage(_get(reported, "input_tokens"), _get(reported, "output_tokens"), cached, written)
    hour = _get(_get(reported, "cache_creation"), "ephemeral_1h_input_tokens")
    searches = _get(_get(reported, "server_tool_use"), "web_search_requests")
    if usage is None or not (hour or searches):
        return usage
    # Details that cannot be read do not make the counts above unknown.
    hour = min(hour, usage.written) if _is_count(hour) else 0
    searches = searches if _is_count(searches) else 0
    return msgspec.structs.replace(usage, written=usage.written - hour, written_hour=hour, searches=searches)


def _responses(reported: Any) -> Usage | None:
    """Read the usage of OpenAI's Responses API. `input_tokens` includes tokens that came from the cache."""
    details = _get(reported, "input_tokens_details")
    if details is None:
        return None
    return _inclusive(_get(reported, "input_tokens"), _get(reported, "output_tokens"), _get(details, "cached_tokens"))


def _chat(reported: Any) -> Usage | None:
    """Read the usage of Chat Completions. `prompt_tokens` includes cached ones; embeddings have no output."""
    cached = _get(_get(reported, "prompt_tokens_details"), "cached_tokens")
    return _inclusive(_get(reported, "prompt_tokens"), _get(reported, "completion_tokens"), cached)


def _gemini(reported: Any) -> Usage | None:
    """Read Gemini's usage. The prompt includes cached tokens. Thoughts cost like output and are counted beside it."""

    def field(snake: str) -> Any:
        # The SDK's objects have snake_case fields, the JSON of the API has camelCase.
        head, *rest = snake.split("_")
        value = _get(reported, snake)
        return value if value is not None else _get(reported, head + "".join(word.title() for word in rest))

    prompt = _sum(field("prompt_token_count"), field("tool_use_prompt_token_count"))
    answer = _sum(field("candidates_token_count"), field("thoughts_token_count"))
    return _inclusive(prompt, answer, field("cached_content_token_count"))


# `_responses` comes before `_anthropic`: both have `input_tokens`, but only the former has `input_tokens_details`.
_PLACES: tuple[tuple[str, tuple[Callable[[Any], Usage | None], ...]], ...] = (
    ("usage", (_ours, _responses, _anthropic, _chat)),
    ("usage_metadata", (_gemini,)),
    ("usageMetadata", (_gemini,)),
)


def _inclusive(prompt: Any, answer: Any, cached: Any) -> Usage | None:
    """Return the usage if the count of the prompt includes cached tokens; None: the counts contradict each other."""
    whole = _usage(prompt, answer, cached, None)
    if whole is None or whole.cached > whole.input:
        return None
    return msgspec.structs.replace(whole, input=whole.input - whole.cached)


def _usage(prompt: Any, answer: Any, cached: Any, written: Any) -> Usage | None:
    """Return the usage if the prompt has a count and every other value is a count or absent."""
    counts = [0 if count is None else count for count in (answer, cached, written)]
    if not all(_is_count(count) for count in (prompt, *counts)):
        return None
    return Usage(input=prompt, output=counts[0], cached=counts[1], written=counts[2])


def _sum(first: Any, second: Any) -> Any:
    """Return the sum of two counts, or the first value if either is not a count."""
    return first + second if _is_count(first) and _is_count(second) else first


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _get(target: Any, name: str) -> Any:
    """Return a field of an object or of a JSON object; None: there is none."""
    try:
        return target.get(name) if isinstance(target, dict) else getattr(target, name, None)
    except Exception:  # noqa: BLE001 - a foreign property may raise anything; its value is then unknown
        return None
