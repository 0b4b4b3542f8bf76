"""Keep secrets and bulk out of everything that leaves the process.

Invariant: `Redactor.value` returns only JSON values, never raises, never returns a string over the cap, and never
returns a value that stood under a secret's name.
"""

from __future__ import annotations

import re
from math import isfinite
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["CAP_BYTES", "MASK", "REDACTOR", "Redactor", "cap"]

CAP_BYTES = 65_536
"""The longest string that is stored or sent, in UTF-8 bytes, its marker included (N2-16)."""

MASK = "[redacted]"

_MAX_DEPTH = 24
_MAX_ITEMS = 2_000
_SHORTEST_SECRET = 8
"""A shorter 'secret' would mask ordinary words."""

# The vendors' published key prefixes; what follows must be long enough not to be a word or a model name.
_KEYS = (
    r"\b(?:sk|pk|rk|xai|gsk|hf|pplx|nvapi|tgp|csk|fw|r8)[-_][A-Za-z0-9_-]{12,}(?:\*+[A-Za-z0-9]*)?"
    r"|\b(?:gh[oprsu]_|github_pat_|glpat-|xox[abeoprs]-|ya29\.)[A-Za-z0-9_-]{10,}"
    r"|\bAIza[A-Za-z0-9_-]{20,}|\b(?:AKIA|ASIA)[A-Z0-9]{12,}"
    r"|\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]*"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
)
_SENSITIVE = (
    r"(?:[a-z0-9_.-]*(?:api[-_ ]?key|apikey|secret|passw(?:or)?d|passwd|private[-_]?key|access[-_]?key|credential)"
    r"|(?:[a-z0-9]+[-_])*token|authorization|proxy-authorization|cookie|set-cookie|pwd)"
)
_ASSIGNED = rf"(?P<name>\b{_SENSITIVE}[\"']?\s*[:=]\s*)(?P<quote>[\"']?)(?!\[redacted\])(?:(?:bearer|basic)\s+)?[^\s\"',;&}}\])]{{6,}}"
_SCHEME = r"(?P<scheme>\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}"
_USERINFO = r"(?P<url>://)[^/\s:@]+:[^/\s@]+(?=@)"

_ANY_SECRET = re.compile(f"(?P<key>{_KEYS})|{_SCHEME}|{_ASSIGNED}|{_USERINFO}", re.IGNORECASE | re.DOTALL)
_SECRET_FIELD = re.compile(_SENSITIVE, re.IGNORECASE)
# Cheap marks of which at least one stands in any text the pattern can match; most error texts hold none.
_MARKS = (
    "sk-", "sk_", "pk-", "pk_", "rk-", "rk_", "xai-", "gsk_", "hf_", "pplx-", "nvapi-", "tgp_", "csk-", "fw_", "r8_", "gho_", "ghp_",
    "ghr_", "ghs_", "ghu_", "github_pat_", "glpat-", "xox", "ya29.", "aiza", "akia", "asia", "eyj", "private", "bearer", "basic ",
    "secret", "passw", "pwd", "credential", "authorization", "cookie",
    "key=", "key:", "key'", 'key"', "key =", "key :", "token=", "token:", "token'", 'token"', "token =", "token :",
)  # fmt: skip


class Redactor(msgspec.Struct, frozen=True):
    """Masks secrets by shape and by name, and the given ones wherever they stand."""

    secrets: tuple[str, ...] = ()

    @classmethod
    def knowing(cls, secrets: Iterable[str]) -> Redactor:
        """Return a redactor that also masks these very strings; the longest first, so none shows through."""
        usable = {s.strip() for s in secrets if len(s.strip()) >= _SHORTEST_SECRET}
        return cls(tuple(sorted(usable, key=lambda s: (-len(s), s))))

    def text(self, text: str) -> str:
        """Return `text` with secrets masked and its size capped."""
        # Capped first: the pattern must not run over megabytes, and what is cut cannot leak.
        text = cap(_encodable(text))
        for secret in self.secrets:
            if secret in text:
                text = text.replace(secret, MASK)
        return _ANY_SECRET.sub(_mask, text) if _marked(text) else text

    def value(self, value: Any) -> Any:
        """Return `value` as JSON values with secrets masked, however it was built."""
        return self._value(value, _MAX_DEPTH)

    def _value(self, value: Any, depth: int) -> Any:
        match value:
            case str():
                return self.text(str(value))
            case None | bool() | int():
                return value
            case float():
                return value if isfinite(value) else str(value)
            case _ if depth == 0:
                return "[too deep]"
            case dict():
                return self._mapping(value, depth)
            case list() | tuple() | set() | frozenset():
                return self._items(value, depth)
            case bytes() | bytearray():
                return f"[{len(value)} bytes]"
        return self._foreign(value, depth)

    def _mapping(self, mapping: Mapping[Any, Any], depth: int) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        for count, (key, value) in enumerate(mapping.items()):
            if count == _MAX_ITEMS:
                shown["…"] = f"[{len(mapping) - count} more]"
                break
            name = self.text(key if isinstance(key, str) else _plain(key))
            hidden = _SECRET_FIELD.fullmatch(name) is not None and value is not None
            shown[name] = MASK if hidden else self._value(value, depth - 1)
        return shown

    def _items(self, items: Iterable[Any], depth: int) -> list[Any]:
        shown: list[Any] = []
        for count, item in enumerate(items):
            if count == _MAX_ITEMS:
                shown.append("[more]")
                break
            shown.append(self._value(item, depth - 1))
        return shown

    def _foreign(self, value: Any, depth: int) -> Any:
        try:
            built = msgspec.to_builtins(value)
        except Exception:  # noqa: BLE001 - whatever a foreign object does, an audit record must not fail on it
            return self.text(_plain(value))
        return self._value(built, depth - 1)


REDACTOR = Redactor()
"""Knows secrets by their shape and name only; the runtime builds one that knows the configured ones."""


def cap(text: str, limit: int = CAP_BYTES) -> str:
    """Return `text` cut to `limit` UTF-8 bytes, a marker at its end saying how much is gone."""
    if len(text) * 4 <= limit:
        return text
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit:
        return text
    marker = f"…[{len(raw) - limit} bytes truncated]"
    room = max(limit - len(marker.encode()), 0)
    return raw[:room].decode("utf-8", "ignore") + marker


def _encodable(text: str) -> str:
    """Replace lone surrogates (undecodable file names in stderr bring them): no JSON encoder takes them."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


def _marked(text: str) -> bool:
    folded = text.lower()
    for mark in _MARKS:
        if mark in folded:
            return True
    return "@" in folded and "://" in folded


def _mask(match: re.Match[str]) -> str:
    kept = match["name"] or match["scheme"] or match["url"] or ""
    return kept + (match["quote"] or "") + MASK


def _plain(value: Any) -> str:
    """Return a name for an object whose own `repr` may hold anything or fail."""
    return f"<{type(value).__module__}.{type(value).__qualname__}>"
