"""Listening for phrases: a text is read once, and every rule can ask what was heard in it.

Hundreds of phrases tried one after another would cost more than the call that failed. So each declared phrase is filed
under one whole word of it, the text is split into words once, and only phrases filed under a word that occurs are
looked for. A group of phrases is one bit, so asking whether any of its phrases was heard is one `&`.
Invariant: a phrase is heard when it stands in the folded text and the word it is filed under stands there whole: every
word of it but the last, so "tokens per min" is heard in "tokens per minute", while a single word must be whole.
"""

from __future__ import annotations

import re
from typing import TypeAlias

__all__ = ["SECRETS", "Phrases", "listen", "names", "phrases"]

Phrases: TypeAlias = int
"""One group, or several joined with `|`, of phrases to ask about."""

_WORD = re.compile(r"\w+")
_SEPARATORS = str.maketrans({chr(c): " " for c in range(128) if not (chr(c).isalnum() or chr(c) == "_")})

_unspaced: dict[str, Phrases] = {}
"""Phrases of languages written without spaces; tried only in texts that hold such characters."""
_filed: dict[str, dict[str, Phrases]] = {}
"""Every declared phrase with the groups it belongs to, under its word. Grows while rule families are imported."""
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

_LONG_WORD = 20
"""No word of a language, but the length of a key."""


def phrases(*blocks: str) -> Phrases:
    """Declare phrases to listen for and return them as one group to ask about.

    Phrases are folded: lower case, plain quotes. A block holds several, separated by ` | ` and line ends; one alone is
    taken as it is, spaces included.
    """
    global _declared  # noqa: PLW0603 - the one counter that hands out the bits
    group = 1 << _declared
    _declared += 1
    for text in _split(blocks):
        if not text.isascii() and " " not in text:
            _unspaced[text] = _unspaced.get(text, 0) | group
            continue
        shelf = _filed.setdefault(_filing_word(text), {})
        shelf[text] = shelf.get(text, 0) | group
    return group


def listen(text: str) -> Phrases:
    """Return the groups of which a phrase stands in `text`; also SECRETS where it may hold one."""
    words = text.translate(_SEPARATORS).split()
    heard = 0
    for word in _filed.keys() & words:
        for phrase, groups in _filed[word].items():
            if phrase in text:
                heard |= groups
    if not text.isascii():
        for phrase, groups in _unspaced.items():
            if phrase in text:
                heard |= groups
    if words and (max(map(len, words)) >= _LONG_WORD or ("@" in text and "://" in text)):
        heard |= SECRETS
    return heard


def _split(blocks: tuple[str, ...]) -> list[str]:
    parted = [re.split(r"\s+\|\s+|\n", block) if "\n" in block else [block] for block in blocks]
    return [part if len(parts) == 1 else part.strip() for parts in parted for part in parts if part.strip()]


def _filing_word(phrase: str) -> str:
    words: list[str] = _WORD.findall(phrase)
    if not words or phrase != phrase.lower():
        message = f"a phrase is lower case and holds a word, got {phrase!r}"
        raise ValueError(message)
    # The last word may be the beginning of a longer one. Of the others the rarest serves best.
    return min(words[:-1] or words, key=lambda word: (word in _COMMON, -len(word)))


SECRETS: Phrases = phrases("""
    password | passwd | pwd | secret | token | key | api_key | apikey | access_token | refresh_token | client_secret
    authorization | bearer | basic | cookie | credential | private
    sk | pk | rk | xai | pplx | nvapi | csk | glpat | xoxb | xoxp | xoxa | xoxe | ya29
""")
"""Words a secret stands next to or begins with. Only a text in which one is heard has to be searched for secrets."""
