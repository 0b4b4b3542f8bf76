"""What a request may cost at most, read from the request before it is sent.

Text counts a token for four characters, or for each character beyond ASCII. Pictures and files count a fixed high number, because
their size in tokens is not in the request. The answer counts as long as the request or the model allows.

Invariant: reading never raises. A request that names no model has no quote.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from holdfast.policies.models.usage import Usage, tier_of

DEFAULT_OUTPUT = 8_192
"""Tokens of an answer that neither its request nor our table of models limits."""

BATCH = 0.5
"""What a batch costs, as a share of the price of its requests: Anthropic and OpenAI take half."""

FASTEST = 150
"""Tokens of an answer that a provider generates in a second, at most."""

_LONGEST = {
    "claude-3-": 8_192,
    "claude-haiku-4-5": 64_000,
    "claude-opus-4-1": 32_000,
    "claude-opus-4-5": 64_000,
    "claude-sonnet-4": 64_000,
    "gpt-4.1": 32_768,
    "gpt-4o": 16_384,
    "gpt-4o-2024-05-13": 4_096,
    "gpt-5": 128_000,
    "o3": 100_000,
    "o4-mini": 100_000,
}
"""Tokens of the longest answer, by the beginning of a model's name, as the providers' pages have it. The longest beginning counts."""

_LIMITS = ("max_completion_tokens", "max_output_tokens", "max_tokens")
_CHARS = 4
_TOOLS = 500
"""Tokens of the text about tools that a provider adds to a prompt."""
_IMAGE = 5_000
_FILE = 50_000
"""Tokens of a file that the request only refers to."""
_FILE_LEAST, _FILE_MOST = 2_000, 300_000
"""Tokens of a file that is in the request: a quarter of its characters, within these bounds."""
_IMAGES = frozenset({"image", "image_url", "input_image", "image-url"})
_FILES = frozenset(
    {"document", "file", "input_file", "input_audio", "audio", "video", "document-url", "audio-url", "video-url"}
)
_MEDIA = ("media_type", "mime_type")
_SEARCH = re.compile(r"web_search_\d{8}")
"""The type of Anthropic's tool for web searches."""
_SEARCHES = 10
"""Web searches of a request that does not limit them."""
_ABSENT = frozenset({"NoneType", "NotGiven", "Omit"})
"""The types of the values that SDKs leave out of a request."""
_MOST_PARTS = 1_000_000
"""The most parts of a request that are looked at."""


class Quote(msgspec.Struct, frozen=True, kw_only=True):
    """The most that one request uses, as far as the request shows it."""

    model: str
    input: int
    output: int
    writes_cache: bool = False
    """Its prompt may be stored in the provider's cache, which can cost more than plain input."""

    writes_hour: bool = False
    """Its prompt may be stored there for an hour."""

    searches: int = 0
    """Web searches that the provider may make for it."""

    tier: str = ""
    """The tier that it asks for; empty: the standard one."""

    parts: tuple[Quote, ...] = ()
    """The requests of a batch; empty if this is one request."""

    names_output: bool = True
    """The request itself limits its output. Otherwise `output` is the longest answer of its model, which hardly any has."""

    @property
    def tokens(self) -> int:
        """What a limit of tokens is sure to need: both, or only the input if the request does not limit its output."""
        if self.parts:
            return sum(part.tokens for part in self.parts)
        return self.input + (self.output if self.names_output else 0)

    def usages(self) -> tuple[Usage, ...]:
        """Return what it may use. The dearest of these counts."""
        more: dict[str, Any] = {"output": self.output, "searches": self.searches, "tier": self.tier}
        found = [Usage(input=self.input, **more)]
        if self.writes_cache:
            found.append(Usage(written=self.input, **more))
        if self.writes_hour:
            found.append(Usage(written_hour=self.input, **more))
        return tuple(found)

    def price(self, cost: Callable[[str, Usage], float | None]) -> float | None:
        """Return what it may cost at most; None if that of its model, or of one model of a batch, is unknown."""
        if self.parts:
            prices = [part.price(cost) for part in self.parts]
            known = [price for price in prices if price is not None]
            return BATCH * sum(known) if len(known) == len(prices) else None
        found = (cost(self.model, usage) for usage in self.usages())
        return max((price for price in found if price is not None), default=None)

    def seen(self, output: int, searches: int = 0) -> Usage:
        """Return what it used if its answer was left after so many tokens and searches."""
        kind = "written_hour" if self.writes_hour else "written" if self.writes_cache else "input"
        return Usage(output=output, searches=searches, tier=self.tier, **{kind: self.input})

    def until(self, seconds: float, seen: int) -> int:
        """Return the tokens of its answer that may have been generated after so many seconds, if so many were seen."""
        most = self.output if seconds == math.inf else math.ceil(round(seconds * FASTEST, 6))
        return max(seen, min(self.output, most))


def quote_of(request: Any, *, model: str = "", max_output: int | None = None) -> Quote | None:
    """Return the quote of a request: the JSON of an API call, or the arguments of a function that makes one.

    `model` and `max_output` are for requests that have these elsewhere. Returns None if no model is named.
    """
    body = request if isinstance(request, Mapping) else {}
    named = model or body.get("model")
    if not isinstance(named, str) or not named:
        return None
    try:
        parts = _Parts()
        parts.add(request)
    except Exception:  # noqa: BLE001 - a foreign object may raise anything; then nobody can say what it costs
        return None
    given = max_output if max_output is not None else _named_output(body)
    output = given or _longest(named) * (_count(body.get("n")) or 1)
    return Quote(
        model=named,
        input=parts.tokens,
        output=output,
        writes_cache=parts.writes_cache,
        writes_hour=parts.writes_hour,
        searches=parts.searches,
        tier=tier_of(body),
        names_output=bool(given),
    )


def quote_of_batch(request: Any) -> Quote:
    """Return the quote of a batch: the sum of its requests. One that is in a file, or names no model, has no price."""
    body = request if isinstance(request, Mapping) else {}
    requests = body.get("requests")
    given = [one.get("params") if isinstance(one, Mapping) else None for one in _listed(requests)]
    nobody = Quote(model="", input=0, output=0)
    parts = tuple(quote_of(params) or nobody for params in given) or (nobody,)
    unknown = next((part.model for part in parts if not part.model), parts[0].model)
    return Quote(model=unknown, input=0, output=0, parts=parts)


def _listed(requests: Any) -> list[Any]:
    # An iterator can be read only once, and the request needs it.
    return list(requests) if isinstance(requests, (list, tuple)) else []


def tokens_of(value: Any) -> int:
    """Return about how many tokens a value has as a part of a request."""
    parts = _Parts()
    parts.add(value)
    return parts.tokens


def text_tokens(text: str) -> int:
    """Return about how many tokens a text has."""
    plain = len(text) if text.isascii() else len(text.encode("ascii", "ignore"))
    return -(-plain // _CHARS) + len(text) - plain


def _named_output(body: Mapping[str, Any]) -> int:
    """Return the limit of output that a request names; 0: it names none."""
    given = (_count(body.get(name)) for name in _LIMITS)
    return next((most for most in given if most), 0) * (_count(body.get("n")) or 1)


def _longest(model: str) -> int:
    name = model.rpartition("/")[2]
    known = max((start for start in _LONGEST if name.startswith(start)), key=len, default=None)
    return DEFAULT_OUTPUT if known is None else _LONGEST[known]


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


class _Parts:
    """Adds up the tokens of a request."""

    def __init__(self) -> None:
        self._plain = 0
        """Characters of ASCII."""
        self._others = 0
        """Tokens of everything else."""
        self.writes_cache = self.writes_hour = False
        self.searches = 0

    @property
    def tokens(self) -> int:
        return -(-self._plain // _CHARS) + self._others

    def add(self, whole: Any) -> None:
        left, todo, objects = _MOST_PARTS, [whole], set[int]()
        while todo and left:
            left -= 1
            part = todo.pop()
            if isinstance(part, str):
                plain = len(part) if part.isascii() else len(part.encode("ascii", "ignore"))
                self._plain += plain
                self._others += len(part) - plain
            elif isinstance(part, (bytes, bytearray)):
                self._others += _file_tokens(len(part))
            elif isinstance(part, Mapping):
                todo += self._fields(part)
            elif isinstance(part, (list, tuple, set, frozenset)):
                todo += part
            elif isinstance(part, (int, float)) and not isinstance(part, bool):
                self._plain += len(str(part))
            elif part is not None and not isinstance(part, type) and not callable(part) and id(part) not in objects:
                objects.add(id(part))
                todo += self._fields(_attributes(part))

    def _fields(self, whole: Mapping[Any, Any]) -> Iterable[Any]:
        part = {name: value for name, value in whole.items() if type(value).__name__ not in _ABSENT}
        kind = part.get("type") or part.get("kind")
        media = next((part[name] for name in _MEDIA if isinstance(part.get(name), str)), "")
        if "cache_control" in part:
            self.writes_cache = True
            self.writes_hour |= isinstance(kept := part["cache_control"], Mapping) and kept.get("ttl") == "1h"
        if isinstance(kind, str) and _SEARCH.fullmatch(kind):
            self.searches += _count(part.get("max_uses")) or _SEARCHES
        if media.startswith("image/") or (isinstance(kind, str) and kind in _IMAGES):
            self._others += _IMAGE
            return ()
        if media == "application/pdf" or (isinstance(kind, str) and kind in _FILES):
            self._others += _file_tokens(_largest(part))
            return ()
        if part.get("tools"):
            self._others += _TOOLS
        return [*(name for name in part if isinstance(name, str)), *part.values()]


def _attributes(part: Any) -> Mapping[str, Any]:
    fields = getattr(part, "__struct_fields__", None)
    if fields is not None:
        return {name: getattr(part, name) for name in fields}
    return dict(getattr(part, "__dict__", {}))


def _largest(part: Any) -> int:
    """Return the length of the longest text or data in a part of a request."""
    if isinstance(part, (str, bytes, bytearray)):
        return len(part)
    if isinstance(part, Mapping):
        return max((_largest(value) for value in part.values()), default=0)
    if isinstance(part, (list, tuple)):
        return max((_largest(value) for value in part), default=0)
    return 0


def _file_tokens(length: int) -> int:
    if length < _FILE_LEAST:
        return _FILE
    return min(max(length // _CHARS, _FILE_LEAST), _FILE_MOST)
