"""Keep secrets and oversized texts out of everything that leaves the process, and out of the output of `repr`.

Keys of vendors are recognised by their shape, other secrets by the name of their field. Every pattern takes linear
time, because a server may send any text.
Invariant: `Redactor.value` returns only JSON values, never raises, never returns a string over the cap or more than a
bounded number of values, and never returns the value of a field with a secret's name.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import cache
from math import isfinite
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MASK = "[redacted]"

LONGEST_SECRET = 1_500
"""How many characters after a cut are searched too. Otherwise a secret at the cut would not be recognised, and its
beginning would be shown."""

CAP_BYTES = 65_536
"""The longest string that is stored or sent, in UTF-8 bytes, its truncation marker included."""

_MARGIN = 4_096
"""How much text beyond the cap is searched for secrets. Otherwise a secret at the cap would not be recognised, and its
beginning would be shown."""
_MAX_DEPTH = 24
_MAX_ITEMS = 2_000
_MAX_VALUES = 50_000
"""The most values of one document. Without it, a graph with shared nodes would grow without end."""
_UNCUT_BYTES, _UNCUT_DEPTH, _UNCUT_VALUES = 16_777_216, 64, 200_000
"""The same limits for what was checked already, and must come out whole."""
_PLAIN_MODULES = frozenset({"datetime", "uuid", "decimal", "fractions", "pathlib", "ipaddress"})
"""Standard library modules whose values are fully described by their text."""
_SHORTEST_SECRET = 8
"""A shorter "secret" would mask ordinary words."""


class Redactor(msgspec.Struct, frozen=True):
    """Masks secrets by their shape and by their field name, and the given secrets in every text.

    For example:
        redactor = Redactor.knowing([os.environ["DB_PASSWORD"]])
        log.error(redactor.text(str(error)))
    """

    secrets: tuple[str, ...] = ()
    limit: int = CAP_BYTES
    """The most bytes of a text. Longer ones are cut, with a mark at the end."""

    def uncut(self) -> Redactor:
        """Return a redactor that masks the same and cuts nothing: for messages whose size is limited where they come in."""
        return Redactor(self.secrets, _UNCUT_BYTES)

    @property
    def is_uncut(self) -> bool:
        """Whether it cuts nothing."""
        return self.limit > CAP_BYTES

    @classmethod
    def knowing(cls, secrets: Iterable[str]) -> Redactor:
        """Return a redactor that also masks these strings; strings shorter than 8 characters are ignored."""
        # The longest secret comes first: a secret that contains a shorter secret must be masked whole.
        usable = {s.strip() for s in secrets if len(s.strip()) >= _SHORTEST_SECRET}
        return cls(tuple(sorted(usable, key=lambda s: (-len(s), s))))

    def text(self, text: str) -> str:
        """Return `text` with secrets masked and its size capped."""
        # This comes first, because replacing and searching need a real string, not a subclass.
        text = encodable(text)
        for secret in self.secrets:
            text = text.replace(secret, MASK)
        if self.is_uncut and len(text) > _LONG:
            masked = _masked_long(text)
            if masked is not None:
                return cap(masked, self.limit)
            # A text of nothing but such places, which somebody may have made for the time that it takes.
            return Redactor(self.secrets).text(text)
        searched = self.limit + _MARGIN
        if len(text) <= searched:
            return cap(mask_secrets(text), self.limit)
        # The text is masked before it is cut. Text far beyond the cap is dropped first, so that megabytes are not
        # searched.
        return cap(mask_secrets(text[:searched]), self.limit, dropped=len(text[searched:].encode()))

    def value(self, value: Any) -> Any:
        """Return `value` as JSON values with secrets masked; any object is accepted and nothing is raised."""
        return _Walk(self).value(value, _UNCUT_DEPTH if self.is_uncut else _MAX_DEPTH)

    def keeps(self, written: bytes) -> bool:
        """Whether `value` would change nothing in the value that msgspec has written as this JSON. If in doubt, False.

        It takes a tenth of the time of `value`, and most messages hold nothing that looks like a secret.
        """
        if len(written) > self.limit or (not self.is_uncut and written.count(b",") >= _MAX_ITEMS):
            return False
        if written.count(b"{") + written.count(b"[") > (_UNCUT_DEPTH if self.is_uncut else _MAX_DEPTH):
            return False
        if self.secrets and any(form in written for form in _written_forms(self.secrets)):
            return False
        return not _may_hold_any(written.decode())


class PieceMask:
    """Masks known secrets in a text that comes in pieces, also one that is cut over several pieces.

        mask = PieceMask(["sk-secret-1"])
        mask.add("The key is sk-sec"), mask.add("ret-1."), mask.end()       # 'The key is ', '[redacted].', ''

    Only what may be the beginning of a secret is held back, so the text is hardly delayed. All pieces together are the masked text.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets = tuple(secrets)
        self._held = ""

    def add(self, piece: str) -> str:
        """Take a piece; return what can be shown now."""
        if not self._secrets:
            return piece
        text = self._held + piece
        cut = self._safe_end(text)
        self._held = text[cut:]
        return self._masked(text[:cut])

    def end(self) -> str:
        """Return what was held back: the text is complete."""
        held, self._held = self._held, ""
        return self._masked(held)

    def drop(self) -> None:
        """Forget what was held back: the text begins anew."""
        self._held = ""

    def _masked(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, MASK)
        return text

    def _safe_end(self, text: str) -> int:
        """Return the place up to which no later piece can change what is masked."""
        cut = min((_beginning_at_end(text, secret) for secret in self._secrets), default=len(text))
        while True:
            # A whole secret that reaches over the cut stays together: its end may be the beginning of a longer one.
            over = [
                start
                for secret in self._secrets
                if 0 <= (start := text.find(secret, max(0, cut - len(secret) + 1))) < cut
            ]
            if not over:
                return cut
            cut = min(over)


def _beginning_at_end(text: str, secret: str) -> int:
    """Return where the longest end of `text` that is the beginning of a longer `secret` starts; the length if there is none."""
    size = min(len(secret) - 1, len(text))
    while size > 0:
        # Only a beginning whose last character is that of the text can be it.
        size = secret.rfind(text[-1], 0, size) + 1
        if size and text.endswith(secret[:size]):
            return len(text) - size
        size -= 1
    return len(text)


REDACTOR = Redactor()
"""This redactor knows secrets only by shape and field name. The runtime builds one that also knows configured
secrets."""


def cap(text: str, limit: int = CAP_BYTES, *, dropped: int = 0) -> str:
    """Return `text` cut to `limit` UTF-8 bytes, with a marker at its end that counts the removed bytes.

    `dropped` bytes were removed before.

    >>> cap("x" * 100, 40)
    'xxxxxxxxxxxxxxxx…[84 bytes truncated]'
    """
    # A character has at most 4 bytes, so most texts need no encoding.
    if len(text) * 4 <= limit and not dropped:
        return text
    raw = text.encode("utf-8", "replace")
    if len(raw) <= limit and not dropped:
        return text
    room = max(limit - len(_marker(len(raw) + dropped)), 0)
    kept = raw[:room].decode("utf-8", "ignore")
    return kept + _marker(len(raw) - len(kept.encode()) + dropped).decode()


def _marker(gone: int) -> bytes:
    return f"…[{gone} bytes truncated]".encode()


def encodable(text: str) -> str:
    """Return a plain string without lone surrogates, which no JSON encoder accepts. They come from file names."""
    text = str.__str__(text)
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def whole_characters(text: str) -> str:
    """Return a text without halves of characters, which some JSON holds and no store takes; two halves are a character."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


_HALF_ESCAPES = re.compile(
    r"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(?P<half>\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)


def whole_escapes(text: str) -> str:
    """Return a JSON text without escapes of halves of characters. Node writes them where a text was cut in an emoji; strict readers take none."""
    return _HALF_ESCAPES.sub(lambda found: r"\ufffd" if found["half"] else found[0], text)


class _Walk:
    """Copies one value with its secrets masked, and counts how many values it may still write."""

    __slots__ = ("_left", "_most_items", "_redactor")

    def __init__(self, redactor: Redactor) -> None:
        self._redactor = redactor
        self._left = _UNCUT_VALUES if redactor.is_uncut else _MAX_VALUES
        self._most_items = self._left if redactor.is_uncut else _MAX_ITEMS

    def value(self, value: Any, depth: int) -> Any:
        self._left -= 1
        # A subclass may override anything, so only the methods of the base classes are called below.
        match value:
            case None | True | False:
                return value
            case str():
                return self._redactor.text(value)
            case int():
                return int.__int__(value)
            case float():
                number = float.__float__(value)
                return number if isfinite(number) else str(number)
            case bytes() | bytearray() | memoryview():
                return f"[{memoryview(value).nbytes} bytes]"
            case _ if depth == 0:
                return "[too deep]"
            case dict():
                return self._mapping(value, depth)
            case list() | tuple() | set() | frozenset():
                return self._items(value, depth)
        return self._foreign(value, depth)

    def _mapping(self, mapping: dict[Any, Any], depth: int) -> dict[str, Any]:
        shown: dict[str, Any] = {}
        for count, (key, value) in enumerate(dict.items(mapping)):
            if count == self._most_items or self._left <= 0:
                shown["…"] = f"[{len(mapping) - count} more]"
                break
            name = self._name(key, shown)
            # None is shown: it means that the secret is missing, and reveals nothing.
            hidden = value is not None and is_secret_name(name)
            shown[name] = MASK if hidden else self.value(value, depth - 1)
        return shown

    def _name(self, key: Any, taken: dict[str, Any]) -> str:
        plain = isinstance(key, (str, int, float)) or key is None
        name = self._redactor.text(key if isinstance(key, str) else str(key) if plain else _kind(key))
        unique, count = name, 1
        # Two keys may become equal when they are masked. Both must be kept.
        while unique in taken:
            count += 1
            unique = f"{name}#{count}"
        return unique

    def _items(self, items: list[Any] | tuple[Any, ...] | set[Any] | frozenset[Any], depth: int) -> list[Any]:
        base: Any = next(kind for kind in (list, tuple, set, frozenset) if isinstance(items, kind))
        shown: list[Any] = []
        for count, item in enumerate(base.__iter__(items)):
            if count == self._most_items or self._left <= 0:
                shown.append("[more]")
                break
            shown.append(self.value(item, depth - 1))
        return shown

    def _foreign(self, value: Any, depth: int) -> Any:
        """Show values of this package and of the standard library. For any other object, show only its class."""
        match value:
            case msgspec.Struct():
                return self._mapping(_fields(value), depth)
            case Enum():
                return self.value(value.value, depth - 1)
        # The type is compared by its module name, without an import, because most processes never show such a value.
        return self._redactor.text(str(value)) if type(value).__module__ in _PLAIN_MODULES else _kind(value)


def _fields(struct: msgspec.Struct) -> dict[str, Any]:
    """Return a struct's fields as msgspec encodes them: without defaults if the struct omits them."""
    pairs = zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True)
    named = {encoded: getattr(struct, name) for name, encoded in pairs}
    if not struct.__struct_config__.omit_defaults:
        return named
    defaults = struct.__struct_defaults__
    required = len(named) - len(defaults)
    own = zip(list(named.items())[required:], defaults, strict=True)
    same = {name for (name, value), default in own if value is default or value == default or value in ({}, ())}
    return {name: value for name, value in named.items() if name not in same}


def _kind(value: Any) -> str:
    """Return a name for an object. Its own `repr` is not used: it may contain anything or fail."""
    return f"<{type(value).__module__}.{type(value).__qualname__}>"


class Printing:
    """The redactor of `str` and `repr`.

    These functions take no redactor as an argument, so the runtime sets it here.
    """

    __slots__ = ("redactor",)

    redactor: Callable[[], Redactor]

    def __init__(self) -> None:
        self.redactor = lambda: REDACTOR


PRINTING = Printing()


def shown(value: msgspec.Struct) -> str:
    """Return the `repr` of a value that may contain foreign text, with secrets masked: logs and test reports print it."""
    fields = PRINTING.redactor().value(value).items()
    return f"{type(value).__name__}({', '.join(f'{name}={field!r}' for name, field in fields)})"


# How secrets look

# A key has digits or mixed case. Names such as `hf_hub_download` and `pk_orders` have neither, and are shorter. The
# lookahead is bounded, because a long run of prefixes would otherwise take quadratic time.
_DIGIT_AHEAD = r"(?=[A-Za-z_*-]{0,120}?(?:\d|[a-z][A-Z]))"
_START = r"(?:\b|(?<=\\[nrt]))"
"""The beginning of a word, also after an escape in a repr."""
_KEYS = (
    rf"{_START}(?:sk|pk|rk|xai|gsk|hf|pplx|nvapi|tgp|csk|fw|r8)[-_](?:{_DIGIT_AHEAD}[A-Za-z0-9_-]{{12,}}|[A-Za-z0-9_-]{{32,}})(?:\*+[A-Za-z0-9]*)?"
    rf"|{_START}(?:gh[oprsu]_|github_pat_|glpat-|xox[a-eoprs]-|xapp-|ya29\.)[A-Za-z0-9_-]{{10,}}"
    rf"|{_START}(?:npm_|pypi-|tvly-|lsv2_|pcsk_|sbp_|ntn_|lin_api_|dckr_pat_|hvs\.){_DIGIT_AHEAD}[A-Za-z0-9_.-]{{20,}}"
    # A bot of Telegram has its token in the path of each request.
    r"|(?<!\d)\d{6,12}:AA[A-Za-z0-9_-]{30,}"
    rf"|{_START}AIza[A-Za-z0-9_-]{{20,}}|{_START}(?:AKIA|ASIA)[A-Z0-9]{{12,}}[A-Za-z0-9_-]*"
    rf"|{_START}eyJ[A-Za-z0-9_-]{{8,400}}+\.[A-Za-z0-9_-]{{4,8000}}+\.[A-Za-z0-9_-]*"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?s:.)*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)"
)
# The token of a page of results is no secret, and the next request needs it.
_NOT_OF_A_PAGE = r"(?<!page)(?<!page[-_])(?<!next[-_])(?<!continuation)(?<!continuation[-_])(?<!sync[-_])"
_NAMES = (
    r"(?:api[-_ ]?key|secret(?:[-_]?key)?|(?<!/etc/)passw(?:or)?d|passphrase|pwd|(?:private|access|account|signing|master)[-_]?key"
    rf"|credentials?|{_NOT_OF_A_PAGE}token|authorization)"
)
_IS = r"\\{0,4}[\"']?\s{0,4}[:=]\s{0,4}"
_UNMASKED = r"(?!\[redacted\])"
_VALUE = r"[^\s\"',;&}\])\\]{6,}"
# Source code that reads a secret holds none: `password = getpass()`, `token = os.environ["TOKEN"]`.
_CALL = r"(?!(?-i:[a-z_][a-z_.]{0,60}+[(\[]))"
_ITEM = r"\s{0,4}\\{0,4}[\"'][^\"'\\]{0,4096}+\\{0,4}[\"']\s{0,4}"
_LISTED = rf"(?P<list>{_NAMES}{_IS}\[)(?=\s{{0,4}}\\{{0,4}}[\"'][^\"'\\]{{6}}){_ITEM}(?:,{_ITEM}){{0,50}}"
_ASSIGNED = rf"(?P<name>{_NAMES}{_IS}){_CALL}(?P<quote>\\{{0,4}}[\"']?){_UNMASKED}(?:(?:bearer|basic)\s{{1,4}})?{_UNMASKED}{_VALUE}"
_PAIR = r"[^\s=;,\"')]{1,200}=[^\s;,\"')]{1,4096}"
_COOKIES = rf"(?P<cookie>cookie{_IS}\\{{0,4}}[\"']?){_UNMASKED}(?:{_PAIR}(?:;\s?{_PAIR})*|{_VALUE})"
# Credentials after a scheme have digits, inner capitals or padding. "Bearer authentication is required" has none of
# these.
_SCHEME = r"(?P<scheme>(?:\b|(?<=\\[nrt]))(?:bearer|basic)\s{1,4})(?=(?-i:[A-Za-z._~+/-]{0,200}?(?:\d|[a-z][A-Z]|=)))[A-Za-z0-9._~+/=-]{8,}"
# A password may hold an `@` of its own. A user without a password is masked if it looks like a key.
# Any other scheme: `Authorization: Splunk 0123…`, `Authorization: ApiKey abc=`.
_AUTHORIZED = (
    rf"(?P<auth>authorization{_IS}\\{{0,4}}[\"']?){_UNMASKED}[a-z][a-z0-9-]{{1,20}}\s{{1,4}}"
    r"(?=(?-i:[A-Za-z._~+/-]{0,200}?(?:\d|[a-z][A-Z]|=)))[a-z0-9._~+/=-]{8,}"
)
# Who knows such an address may post to it: https://hooks.slack.com/services/T0/B0/…, https://discord.com/api/webhooks/1/…
_PLACE = r"[^\s/\"'<>]"
_RANDOM = r"(?:[0-9a-f]{8}-[0-9a-f]{4}-|(?=[A-Za-z_]{0,15}\d)[A-Za-z0-9_]{16})"
_HOOK = (
    r"(?P<hook>://(?:[\w.-]{0,60}\b(?:web)?hooks?\.[\w.-]{1,60}(?::\d+)?/"
    r"|(?:maker\.ifttt|events\.pagerduty|alert\.victorops|hc-ping)\.com/"
    rf"|{_PLACE}{{1,100}}+/(?:(?!(?:web)?hooks?(?:b2)?/){_PLACE}{{0,60}}+/){{0,6}}+(?:web)?hooks?(?:b2)?/"
    rf"(?=[^\s\"'<>]{{0,100}}?{_RANDOM})))"
    r"(?!\[redacted\])[^\s\"'<>)\]}\\]{8,2000}"
)
_SIGNED = r"(?P<signed>(?:\b|(?<=-))[Ss]ig(?:nature)?=)(?=[A-Za-z%+/_-]{0,60}\d)[A-Za-z0-9%+/=_-]{16,}"
_USERINFO = r"(?P<url>://)(?:[^/\s:@]{0,200}:[^/\s]{1,1000}(?=@)|(?=[^/\s@]{0,200}?\d)[A-Za-z0-9_%.~-]{20,400}(?=@))"


@cache
def _any_secret() -> re.Pattern[str]:
    # The pattern is compiled when a text may hold a secret. Compiling takes longer than importing ten modules, and few
    # texts
    # need it.
    return re.compile(
        rf"(?-i:{_KEYS}|{_HOOK}|{_SIGNED})|{_AUTHORIZED}|{_SCHEME}|{_COOKIES}|{_LISTED}|{_ASSIGNED}|{_USERINFO}",
        re.IGNORECASE,
    )


# Every alternative begins with a fixed letter and there is no word boundary, so `re` skips quickly to possible beginnings.
_KEY_START = re.compile(
    "sk[-_]|pk[-_]|rk[-_]|xai[-_]|gsk[-_]|hf[-_]|pplx[-_]|nvapi[-_]|tgp[-_]|csk[-_]|fw[-_]|r8[-_]|gh[oprsu]_|github_pat_|glpat-|npm_|pypi-"
    "|xox[a-eoprs]-|xapp-|tvly-|lsv2_|pcsk_|sbp_|ntn_|lin_api_|dckr_pat_|aiza|akia|asia"
)
_UNJOINTED = ("aiza", "akia", "asia")
"""Keys without a hyphen or underscore after their first letters."""
_UNSHAPED = ("ya29.", "-----begin", "hvs.", ":aa")
"""Beginnings of keys that other characters follow or stand before."""
_HEXADECIMAL = "0123456789abcdef-"
_KEY_CHARACTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-"
_SHAPE = bytes(ord("k") if code in _KEY_CHARACTERS else ord(" ") for code in range(256))
_SHORTEST_KEY = b"k" * 14
_NAME_ENDINGS = (
    "key", "secret", "password", "passwd", "passphrase", "pwd", "credential", "credentials", "token", "authorization", "cookie",
)  # fmt: skip
_TELLING = (
    "bearer",
    "basic",
    "key",
    "secret",
    "passw",
    "passphrase",
    "pwd",
    "credential",
    "token",
    "authorization",
    "cookie",
)
"""Whatever `_NAME_ENDINGS` has, and what stands before credentials: each name contains one of these."""
_IN_ADDRESSES = ("@", "hook", "ifttt", "pagerduty", "victorops", "hc-ping")
"""Parts of an address that work like a password."""
_ASSIGNS = re.compile(_IS)
_MANY = 100
"""How many names are tested. A text with more names is searched whole."""

_MOST_SEARCHES = 10
"""How often a text is searched until nothing is found."""

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SECRET_NAME = re.compile(
    r"(?:.*[-_. ])?(?:api[-_ ]?key|secret(?:[-_]key)?|passw(?:or)?d|passwd|passphrase|pwd"
    r"|(?:private|access|account|signing|master)[-_]?key|credentials?|token|authorization|cookie)",
    re.IGNORECASE | re.DOTALL,
)
_PAGE_TOKEN = re.compile(r"(?:.*[-_. ])?(?:page|next|continuation|sync)[-_. ]token", re.IGNORECASE | re.DOTALL)


def mask_secrets(text: str) -> str:
    """Return `text` with everything masked that looks like a secret or follows a secret's name.

    A masked text is not changed by masking it again.
    """
    # A mask can join two parts of a text that look like a secret together, so the result is searched again. Of random texts
    # one in 40,000 needs a second search that finds something; the bound is for texts that are made to need many.
    for _ in range(_MOST_SEARCHES):
        if not _may_hold_one(text):
            break
        masked = _any_secret().sub(_mask, text)
        if masked == text:
            break
        text = masked
    return text


_LONG, _SEGMENT, _OVERLAP, _MOST_SEARCHED = 65_536, 8_192, 512, 262_144
"""A text that is longer is searched by segments: only around those that may hold a secret, and so many characters at most."""
_PEM, _PEM_END = "-----BEGIN", "-----END"


def _masked_long(text: str) -> str | None:
    """Return what `mask_secrets` returns, in a tenth of the time for most long texts; None if too much of it must be searched.

    A search takes a second for a megabyte, and a program that serves others has not got that.
    """
    starts = range(0, len(text), _SEGMENT)
    may_hold = [_may_hold_one(text[max(0, at - _OVERLAP) : at + _SEGMENT + _OVERLAP]) for at in starts]
    # A secret may begin in one segment and end in the next. A private key has any length.
    searched = {near for place, holds in enumerate(may_hold) if holds for near in (place - 1, place, place + 1)}
    begin = text.find(_PEM)
    while begin >= 0:
        end = text.find(_PEM_END, begin)
        end = len(text) if end < 0 else end
        searched.update(range(begin // _SEGMENT, end // _SEGMENT + 2))
        begin = text.find(_PEM, end)
    places = sorted(place for place in searched if 0 <= place < len(may_hold))
    if len(places) * _SEGMENT > _MOST_SEARCHED:
        return None
    parts, at = list[str](), 0
    while places:
        first = last = places.pop(0)
        while places and places[0] == last + 1:
            last = places.pop(0)
        parts += (text[at : first * _SEGMENT], mask_secrets(text[first * _SEGMENT : (last + 1) * _SEGMENT]))
        at = (last + 1) * _SEGMENT
    return "".join((*parts, text[at:]))


def begins_a_key(folded: str) -> bool:
    """Whether a long word begins like a key; `folded` is in lower case. If in doubt, True."""
    if ("j" in folded and "eyj" in folded) or any(start in folded for start in _UNSHAPED):
        return True
    shape = folded.encode("ascii", "replace").translate(_SHAPE)
    start = shape.find(_SHORTEST_KEY)
    while start >= 0:
        end = shape.find(b" ", start)
        if end < 0:
            end = len(folded)
        word = folded[start:end]
        # Most long words are not keys. A key without a hyphen or underscore begins in one of these few ways, which is
        # fast to test.
        # A UUID has none of the letters that keys begin with.
        if word.strip(_HEXADECIMAL) and (
            _KEY_START.search(word) if "-" in word or "_" in word else any(key in word for key in _UNJOINTED)
        ):
            return True
        start = shape.find(_SHORTEST_KEY, end)
    return False


def is_secret_name(name: str) -> bool:
    """Whether a field of this name holds a secret: `apiKey`, `DB_PASSWORD`, `id-token`; not `max_tokens`, not `key`."""
    if len(name) > 200:
        return False
    words = _HUMP.sub("_", name)
    return _SECRET_NAME.fullmatch(words) is not None and _PAGE_TOKEN.fullmatch(words) is None


def _mask(match: re.Match[str]) -> str:
    if match["list"]:
        return f'{match["list"]}"{MASK}"'
    kept = (
        match["name"]
        or match["scheme"]
        or match["cookie"]
        or match["url"]
        or match["hook"]
        or match["signed"]
        or match["auth"]
        or ""
    )
    return kept + (match["quote"] or "") + MASK


def _may_hold_one(text: str) -> bool:
    """Whether the text may contain a secret. It is True for every text in which the pattern matches.

    Most texts hold no secret. This test takes a twentieth of the time of the search, which tries its patterns at every
    character.
    """
    folded = text.casefold()
    if "bearer" in folded or "basic" in folded or _lets_in(folded):
        return True
    for ending in _NAME_ENDINGS:
        if ending in folded and _is_assigned(ending, folded):
            return True
    return begins_a_key(folded)


def _may_hold_any(written: str) -> bool:
    """Whether JSON may hold a secret in any of its texts, or a field with a secret's name. If in doubt, True.

    An escape may stand between a name and its value, so every name counts, whether or not it is assigned.
    """
    # A pattern that ignores case takes these two for an `i`, and `casefold` does not.
    if not written.isascii() and ("\u0130" in written or "\u0131" in written):
        return True
    folded = written.casefold()
    if _lets_in(folded):
        return True
    for word in _TELLING:
        if word in folded:
            return True
    return begins_a_key(folded)


def _lets_in(folded: str) -> bool:
    """Whether an address in the text may hold a secret, or a signature."""
    if "://" in folded and any(word in folded for word in _IN_ADDRESSES):
        return True
    return "sig=" in folded or "signature=" in folded


@cache
def _written_forms(secrets: tuple[str, ...]) -> tuple[bytes, ...]:
    """Return secrets as msgspec writes them within a text."""
    # A text that can be written has no lone surrogates, so it holds no secret that has some.
    return tuple(msgspec.json.encode(each)[1:-1] for each in secrets if encodable(each) == each)


def _is_assigned(name: str, folded: str) -> bool:
    """Whether a name is followed by a colon or an equals sign anywhere."""
    at = folded.find(name)
    for _ in range(_MANY):
        if at < 0:
            return False
        at += len(name)
        if _ASSIGNS.match(folded, at):
            return True
        at = folded.find(name, at)
    return True
