"""The prompt cache of the provider: requests that want it report which part of their prompt was read, and which was stored.

It follows Anthropic's rules for automatic caching (`cache_control` at the top of a request): the longest stored beginning is
read, the whole prompt is stored for five minutes, short prompts are not stored, and each key and model has its own cache.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from holdfast.testing.provider.dialect import as_json
from holdfast.testing.provider.replies import Cached

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.testing.provider.http import Request

_LIFETIME_S = 300.0
# The smallest prompt that Anthropic stores for most models.
_LEAST_TOKENS = 1024
_BYTES_PER_TOKEN = 4


class PromptCache:
    """The prompts that were sent in the last five minutes, as digests."""

    def __init__(self) -> None:
        self._stored: dict[bytes, float] = {}

    def use(self, request: Request, now: float) -> Cached:
        """Read and store the prompt of a request. A request without `cache_control` uses no cache."""
        if not request.dict_of("cache_control"):
            return Cached()
        self._stored = {digest: until for digest, until in self._stored.items() if until > now}
        prefixes = list(_prefixes(request))
        whole = prefixes[-1][1]
        if whole < _LEAST_TOKENS:
            return Cached()
        read = max((tokens for digest, tokens in prefixes if digest in self._stored), default=0)
        for digest, tokens in prefixes:
            # Every use keeps the entry for another five minutes.
            if digest in self._stored or tokens == whole:
                self._stored[digest] = now + _LIFETIME_S
        return Cached(read, whole - read)


def _prefixes(request: Request) -> Iterator[tuple[bytes, int]]:
    """Yield the beginnings of a prompt: tools and system, then one message more each time."""
    document = request.document
    head = [request.key, request.model, document.get("tools"), document.get("system")]
    size, digest = 0, b""
    for part in (head, *request.list_of("messages")):
        written = as_json(part)
        size += len(written)
        digest = hashlib.sha256(digest + written).digest()
        yield digest, size // _BYTES_PER_TOKEN
