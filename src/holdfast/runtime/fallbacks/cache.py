"""The cached step of a fallback chain: the last good answer to the same call.

Invariant: an answer is served only for exactly the same arguments, and never after its `ttl`. It is served as it came: what a caller
does to an answer changes no other, unless the answer cannot be copied.
"""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from holdfast import options

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["CacheStore", "MemoryCache", "Missing", "key_of"]


# Subclasses are excluded, because they may differ in something that JSON does not show.
_EXACT = frozenset({str, int, float, bool, type(None)})
# Arguments that are nested more deeply have no key. Without a limit, a list that contains itself would never end.
_DEPTH = 20


class Missing:
    """Means that no answer is kept for the call. None cannot mean that, because None may be an answer."""


class CacheStore(Protocol):
    """Where answers are kept. `now` is monotonic seconds."""

    def get(self, key: str, now: float) -> Any | type[Missing]:
        """Return the answer of this key if it has not expired, else `Missing`."""
        ...

    def put(self, key: str, value: Any, now: float, ttl: float) -> None:
        """Keep an answer for `ttl` seconds."""
        ...


class MemoryCache:
    """Keeps the most recently used answers in the memory of this process."""

    def __init__(self, most: int = 1000) -> None:
        options.count("MemoryCache.most", most)
        self._most = most
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[float, Any]] = OrderedDict()

    def get(self, key: str, now: float) -> Any | type[Missing]:
        with self._lock:
            expires, value = self._kept.get(key, (now, Missing))
            if now >= expires:
                self._kept.pop(key, None)
                return Missing
            self._kept.move_to_end(key)
        return _own_copy(value)

    def put(self, key: str, value: Any, now: float, ttl: float) -> None:
        value = _own_copy(value)
        with self._lock:
            self._kept[key] = (now + ttl, value)
            self._kept.move_to_end(key)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)


def _own_copy(value: Any) -> Any:
    """Return a deep copy of an answer, or the answer itself if it cannot be copied, such as one that holds a connection."""
    if type(value) in _EXACT:
        return value
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001 - a foreign object may raise anything, and the call has been answered
        return value


def key_of(own: Callable[..., str] | None, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """Return the key that a call's answer is kept under; None if other arguments could have the same JSON."""
    if own is not None:
        return f"{name}:{own(*args, **kwargs)}"
    if not _is_plain(args) or not _is_plain(dict(kwargs)):
        return None
    written = msgspec.json.encode((args, sorted(kwargs.items())))
    return f"{name}:{written.decode()}"


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Whether no other value has the same JSON. Bytes, decimals and dates are written like texts, so they are not plain."""
    if value is None or isinstance(value, (str, int, float)):
        return type(value) in _EXACT and value == value  # noqa: PLR0124 - only a NaN differs from itself, and it can be no key
    if depth >= _DEPTH:
        return False
    if type(value) is dict:
        return all(type(name) is str and _is_plain(one, depth + 1) for name, one in value.items())
    return type(value) in {list, tuple} and all(_is_plain(one, depth + 1) for one in value)
