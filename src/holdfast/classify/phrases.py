"""Listening: a failure's text and codes are read once, and every rule can ask what was heard in them.

Hundreds of phrases tried one after another would cost more than the call that failed. So each declared phrase is filed
under one whole word of it, the text is split into words once, and only phrases filed under a word that occurs are
looked for. Machine codes are looked up whole. A group of phrases or codes is one bit, so asking whether any of it was
heard is one `&`.
Invariant: a phrase is heard when it stands in the folded text as whole words. Its last word may have an ending: "rate
limit" is heard in "rate limits" and "rate limited"; with `…` it may go on in any way: "tokens per min…" in "per minute".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

from holdfast.faults.secrets import begins_a_key

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "BEGINNING",
    "ENDED",
    "PAGE",
    "SECRETS",
    "Phrases",
    "class_names",
    "codes",
    "codes_in",
    "known_class",
    "listen",
    "names",
    "overhear",
    "phrases",
]

Phrases: TypeAlias = int
"""One group, or several joined with `|`, of phrases or codes to ask about."""

_WORD = re.compile(r"\w+")
# Accents belong to a word; letters of scripts without spaces do not belong to ours.
_LATIN_WORD = re.compile(r"[a-z0-9_\u00c0-\u024f]+")
_ASCII_WORD = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"
# Tables for bytes: str.translate looks every character up in a dict and costs four times as much.
_SPACED = bytes(code if code in _ASCII_WORD else ord(" ") for code in range(256))

_coded: dict[str, Phrases] = {}
"""Every declared machine code with the groups it belongs to."""
_classes: dict[str, str] = {}
"""Every declared exception class: its name in lower case, and as it is spelled."""
_unspaced: dict[str, Phrases] = {}
"""Phrases of languages written without spaces; tried only in texts that hold such characters."""
_filed: dict[str, list[tuple[str, str, Phrases]]] = {}
"""Under each filing word its phrases: a second word that must occur (cheaper to miss than the phrase; the same where there
is none), the phrase (empty where the word is all of it), its groups. Grows while rule families are imported."""
_telling: set[str] = set()
"""The words of `_filed`, filing words and second ones: of a text, no other word matters."""
_declared = 0


def names(text: str) -> frozenset[str]:
    """Return the words of `text`: class names and machine codes, written without quotes and commas."""
    return frozenset(text.split())


def class_names(text: str) -> frozenset[str]:
    """Declare the names of exception classes that a rule recognises and return them as a set."""
    declared = names(text)
    _classes.update((name.lower(), name) for name in declared)
    return declared


def known_class(name: str) -> str | None:
    """Return a declared class name in its own spelling, whatever the case of `name`; None if no rule declares it."""
    return _classes.get(name.lower())


_COMMON = names("""
    a access account again an and api at be been can com content context current does error exceeded exceeds for has have in
    input is key length limit limits maximum message model more no not of on or per please prompt rate reached request
    requests service that the this to token tokens too try usage with you your
""")
"""Words that stand in most error texts (counted over the corpus): phrases are filed under rarer ones where they can be."""

BEGINNING = 500
"""How many characters of a text are listened to at first, and how many of it a fault's message shows."""


def phrases(*blocks: str) -> Phrases:
    """Declare phrases to listen for and return them as one group to ask about.

    Phrases are folded: lower case, plain quotes. A block holds several, separated by ` | ` and line ends; one alone is
    taken as it is, spaces included.
    """
    group = _next_group()
    for text in _split(blocks):
        if not text.removesuffix("…").isascii() and " " not in text:
            _unspaced[text] = _unspaced.get(text, 0) | group
            continue
        words, second = _filing_words(text)
        phrase = "" if _WORD.fullmatch(text) else text.removesuffix("…")
        for word in words:
            _file(word, second or word, phrase, group)
    return group


def codes(text: str) -> Phrases:
    """Declare machine codes (lower case, separated by spaces) and return them as one group to ask about."""
    group = _next_group()
    for code in text.split():
        _coded[code] = _coded.get(code, 0) | group
    return group


def codes_in(said: Iterable[str]) -> Phrases:
    """Return the groups of which a code was said."""
    heard = 0
    for code in said:
        heard |= _coded.get(code, 0)
    return heard


def overhear(text: str) -> Phrases:
    """Listen to the beginning of a long text: it holds the failure, the rest is advice and links.

    What a rule does not recognise there is worth a second look with `listen`.
    """
    return listen(text[:BEGINNING])


def listen(text: str) -> Phrases:
    """Return the groups of which a phrase stands in `text`; also SECRETS where it may hold one."""
    ascii_only = text.isascii()
    # Other scripts have punctuation of their own, or none at all between their words and ours.
    spaced = text.encode().translate(_SPACED).decode() if ascii_only else " ".join(_LATIN_WORD.findall(text))
    words = _telling.intersection(spaced.split())
    heard = 0
    for word in words:
        for second, phrase, groups in _filed[word]:
            if second in words and phrase in text:
                heard |= groups
    if not ascii_only:
        for phrase, groups in _unspaced.items():
            if phrase in text:
                heard |= groups
    return heard if heard & SECRETS or not _may_hold_a_secret(text, f"{spaced} ") else heard | SECRETS


def _next_group() -> Phrases:
    global _declared  # noqa: PLW0603 - the one counter that hands out the bits
    _declared += 1
    return 1 << _declared


def _file(word: str, second: str, phrase: str, group: Phrases) -> None:
    """File a phrase once under a word, however many groups declare it: it is looked for once, too."""
    _filed.setdefault(second, [])
    shelf = _filed.setdefault(word, [])
    _telling.update((word, second))
    for place, (other, same, groups) in enumerate(shelf):
        if same == phrase and other == second:
            shelf[place] = (second, phrase, groups | group)
            return
    shelf.append((second, phrase, group))


def _may_hold_a_secret(text: str, spaced: str) -> bool:
    """Whether a word ends like a secret's name, a URL may carry a password, or a word begins like a key."""
    if "\\" in text or ("@" in text and "://" in text):
        # In a repr, an escape stands before a word as if it belonged to it.
        return True
    for piece in _SECRET_PIECES:
        if piece in spaced:
            return True
    return begins_a_key(text)


def _split(blocks: tuple[str, ...]) -> list[str]:
    parted = [re.split(r"\s+\|\s+|\n", block) if "\n" in block else [block] for block in blocks]
    return [part if len(parts) == 1 else part.strip() for parts in parted for part in parts if part.strip()]


_ENDINGS = ("", "s", "es", "d", "ed", "ing")


def _filing_words(phrase: str) -> tuple[list[str], str]:
    """Return the words to file a phrase under (its rarest, with endings if it is the last) and one that must occur too."""
    words: list[str] = _WORD.findall(phrase)
    if not words or phrase != phrase.lower():
        message = f"a phrase is lower case and holds a word, got {phrase!r}"
        raise ValueError(message)
    last = words[-1]
    whole = words[:-1] if phrase.endswith("…") else words
    by_rarity = sorted(whole, key=lambda word: (word in _COMMON, -len(word)))
    rarest = by_rarity[0]
    if len(words) == 2 and rarest in _COMMON:
        # Two words that stand in most texts: filed under the last, both must occur.
        rarest = words[-1]
    second = next((word for word in by_rarity if word not in (rarest, last)), "")
    if rarest == last and phrase.endswith(last):
        return [last + ending for ending in _ENDINGS], second
    return [rarest], second


ENDED: Phrases = _next_group()
"""A stream or an answer without an error, whose ending tells."""
PAGE: Phrases = _next_group()
"""A web page where an answer belongs."""
SECRETS: Phrases = _next_group()
"""The text may hold a secret; only such a text has to be searched for one."""
for _word in names("""
    authorization bearer basic cookie credential credentials
"""):
    # Words a secret stands next to: filed as they are, without endings.
    _file(_word, _word, "", SECRETS)
_SECRET_PIECES = ("key ", "token ", "secret ", "pwd ", "pass")
"""How longer names of secrets end: `anthropic_api_key`, `accesskey`, `db_password`. The last stands for several: one look is cheaper
than three, and the search itself is exact."""
