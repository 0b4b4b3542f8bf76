"""Listening: a failure's text and codes are read once, and every rule can ask what was heard in them.

Hundreds of phrases tried one after another would cost more than the call that failed. So each declared phrase is filed
under one whole word of it, the text is split into words once, and only phrases filed under a word that occurs are
looked for. Machine codes are looked up whole. A group of phrases or codes is one bit, so asking whether any of it was
heard is one `&`.
Invariant: a phrase is heard when it stands in the folded text and the word it is filed under stands there whole: every
word of it but the last, so "tokens per min" is heard in "tokens per minute", while a single word must be whole.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "BEGINNING",
    "ENDED",
    "PAGE",
    "SECRETS",
    "Phrases",
    "codes",
    "codes_in",
    "listen",
    "names",
    "overhear",
    "phrases",
]

Phrases: TypeAlias = int
"""One group, or several joined with `|`, of phrases or codes to ask about."""

_WORD = re.compile(r"\w+")
_SEPARATORS = str.maketrans({chr(c): " " for c in range(128) if not (chr(c).isalnum() or chr(c) == "_")})

_coded: dict[str, Phrases] = {}
"""Every declared machine code with the groups it belongs to."""
_unspaced: dict[str, Phrases] = {}
"""Phrases of languages written without spaces; tried only in texts that hold such characters."""
_filed: dict[str, dict[str, tuple[str, Phrases]]] = {}
"""Under each filing word its phrases, with a second whole word of each (cheaper to miss than the phrase) and its groups.
Grows while rule families are imported."""
_declared = 0


def names(text: str) -> frozenset[str]:
    """Return the words of `text`: class names and machine codes, written without quotes and commas."""
    return frozenset(text.split())


_COMMON = names("""
    a access account again an and api at be been can com content context current does error exceeded exceeds for has have in
    input is key length limit limits maximum message model more no not of on or per please prompt rate reached request
    requests service that the this to token tokens too try usage with you your
""")
"""Words that stand in most error texts (counted over the corpus): phrases are filed under rarer ones where they can be."""

BEGINNING = 600
"""How many characters of a text are listened to at first, and how many of it a fault's message shows."""
_LONG_WORD = 20
"""No word of a language, but the length of a key."""


def phrases(*blocks: str) -> Phrases:
    """Declare phrases to listen for and return them as one group to ask about.

    Phrases are folded: lower case, plain quotes. A block holds several, separated by ` | ` and line ends; one alone is
    taken as it is, spaces included.
    """
    group = _next_group()
    for text in _split(blocks):
        if not text.isascii() and " " not in text:
            _unspaced[text] = _unspaced.get(text, 0) | group
            continue
        word, second = _filing_words(text)
        shelf = _filed.setdefault(word, {})
        shelf[text] = (second, shelf.get(text, ("", 0))[1] | group)
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
    words = {*text.translate(_SEPARATORS).split()}
    heard = 0
    for word in _filed.keys() & words:
        for phrase, (second, groups) in _filed[word].items():
            if second in words and (phrase == word or phrase in text):
                heard |= groups
    if not text.isascii():
        for phrase, groups in _unspaced.items():
            if phrase in text:
                heard |= groups
    if words and not heard & SECRETS and _may_hold_a_key(words, text):
        heard |= SECRETS
    return heard


def _next_group() -> Phrases:
    global _declared  # noqa: PLW0603 - the one counter that hands out the bits
    _declared += 1
    return 1 << _declared


def _may_hold_a_key(words: set[str], text: str) -> bool:
    """Whether a word is as long as a key and has digits like one, or a URL may carry a password."""
    if "@" in text and "://" in text:
        return True
    # Asked of the longest first: most texts hold no word of that length.
    return max(map(len, words)) >= _LONG_WORD and any(
        len(word) >= _LONG_WORD and not word.replace("_", "").isalpha() for word in words
    )


def _split(blocks: tuple[str, ...]) -> list[str]:
    parted = [re.split(r"\s+\|\s+|\n", block) if "\n" in block else [block] for block in blocks]
    return [part if len(parts) == 1 else part.strip() for parts in parted for part in parts if part.strip()]


def _filing_words(phrase: str) -> tuple[str, str]:
    """Return the word to file a phrase under and a second one that must occur too (the same, where there is no other)."""
    words: list[str] = _WORD.findall(phrase)
    if not words or phrase != phrase.lower():
        message = f"a phrase is lower case and holds a word, got {phrase!r}"
        raise ValueError(message)
    # The last word may be the beginning of a longer one. Of the others the rarest serves best.
    whole = sorted(words[:-1] or words, key=lambda word: (word in _COMMON, -len(word)))
    return whole[0], whole[1] if len(whole) > 1 else whole[0]


ENDED: Phrases = _next_group()
"""A stream or an answer without an error, whose ending tells."""
PAGE: Phrases = _next_group()
"""A web page where an answer belongs."""
SECRETS: Phrases = phrases("""
    password | passwd | pwd | secret | token | key | api_key | apikey | access_token | refresh_token | client_secret
    authorization | bearer | basic | cookie | credential | private
    sk | pk | rk | xai | pplx | nvapi | csk | glpat | xoxb | xoxp | xoxa | xoxe | ya29
""")
"""Words a secret stands next to or begins with. Only a text in which one is heard has to be searched for secrets."""
