"""The phrases and machine codes that rules look for, and one fast search for all of them.

Searching for hundreds of phrases one after another would be too slow. So each phrase is indexed under one of its
words. The text is split into words once, and only the phrases of words that occur are searched for. Machine codes are
looked up whole. A group of phrases or codes is one bit, so one `&` checks whether any of them matched.

Invariant: a phrase matches when it is in the folded text as whole words. Its last word may have an ending: "rate limit"
matches "rate limits" and "rate limited". With `…` it may go on in any way: "tokens per min…" matches "per minute".
"""

from __future__ import annotations

import re
from itertools import count
from typing import TYPE_CHECKING, TypeAlias

from holdfast.faults.redaction import begins_a_key

if TYPE_CHECKING:
    from collections.abc import Iterable

Phrases: TypeAlias = int
"""One group of phrases or codes, or several joined with `|`."""

_WORD = re.compile(r"\w+")
# Letters with accents are part of a word. Characters of scripts without spaces are not part of the English word beside
# them.
_LATIN_WORD = re.compile(r"[a-z0-9_\u00c0-\u024f]+")
_ASCII_WORD = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"
# The table is for bytes. str.translate looks up every character in a dict and takes four times as long.
_SPACED = bytes(code if code in _ASCII_WORD else ord(" ") for code in range(256))

_coded: dict[str, Phrases] = {}
"""Every declared machine code with the groups it belongs to."""
_patterns: list[tuple[re.Pattern[str], Phrases]] = []
"""Every declared pattern of machine codes with its group."""
_met: dict[str, Phrases] = {}
"""Machine codes that were met, with their groups."""
_classes: dict[str, str] = {}
"""Every declared exception class: its name in lower case, and as it is spelled."""
_unspaced: dict[str, Phrases] = {}
"""Phrases of languages written without spaces. They are tried only in texts that contain such characters."""
_groups = count(1)
# Late groups have high bits, so that the numbers that every rule compares stay short.
_late_groups = count(1_025)
_MOST_REMEMBERED = 1_000


class _Index:
    """The phrases of the rules. It grows while the rule families are imported."""

    def __init__(self) -> None:
        self.words: set[str] = set()
        """The indexing words and second words. Other words of a text are ignored."""
        self._entries: dict[str, dict[tuple[str, str], Phrases]] = {}
        """The phrases under each indexing word, as (second word, phrase), with their groups. The second word must occur in the text
        too; this is faster to check than the phrase. If the phrase has no second word, the indexing word stands there. If it has
        only one word, `phrase` is empty."""
        self._possible: dict[frozenset[str], tuple[Phrases, tuple[tuple[str, Phrases], ...]]] = {}
        """For indexed words that occurred together: the groups that they alone match, and the phrases that they make possible.
        Failures repeat with other numbers and names, but with the same words, so most texts find theirs here."""

    def add(self, word: str, second: str, phrase: str, group: Phrases) -> None:
        """Index a phrase under a word. If several groups declare the phrase, it is still indexed and searched for once."""
        for each in (word, second):
            if each not in self._entries:
                self._entries[each] = {}
                self.words.add(each)
        entries = self._entries[word]
        entries[second, phrase] = entries.get((second, phrase), 0) | group

    def declare(self, blocks: tuple[str, ...], group: Phrases) -> Phrases:
        """Index the phrases of these blocks as one group, and return it."""
        # A rule of another package may declare phrases after the first search.
        self._possible.clear()
        for text in _split(blocks):
            if not text.removesuffix("…").isascii() and " " not in text:
                _unspaced[text] = _unspaced.get(text, 0) | group
                continue
            words, second = _indexing_words(text)
            phrase = "" if words[0] == text else text.removesuffix("…")
            for word in words:
                self.add(word, second or word, phrase, group)
        return group

    def find(self, text: str, spaced: str) -> Phrases:
        """Return the groups that have a phrase in `text`; `spaced` is the text with spaces in place of punctuation."""
        words = frozenset(self.words.intersection(spaced.split()))
        matched, possible = self._possible.get(words) or self._remember(words)
        for phrase, groups in possible:
            if phrase in text:
                matched |= groups
        return matched

    def _remember(self, words: frozenset[str]) -> tuple[Phrases, tuple[tuple[str, Phrases], ...]]:
        alone = 0
        possible: list[tuple[str, Phrases]] = []
        for word in words:
            for (second, phrase), groups in self._entries[word].items():
                if not phrase:
                    alone |= groups
                elif second in words:
                    possible.append((phrase, groups))
        if len(self._possible) >= _MOST_REMEMBERED:
            self._possible.clear()
        self._possible[words] = found = (alone, tuple(possible))
        return found


_index = _Index()
_late_index = _Index()
"""Phrases that are searched for only if no exact rule knows a text. Most failures never need them."""


def names(text: str) -> frozenset[str]:
    """Return the words of `text` as a set, so that long lists need no quotes and commas."""
    return frozenset(text.split())


def class_names(text: str) -> frozenset[str]:
    """Declare the names of exception classes that a rule recognises and return them as a set."""
    declared = names(text)
    # In the order of the text: of two spellings the later one counts in every run.
    _classes.update((name.lower(), name) for name in text.split())
    return declared


def known_class(name: str) -> str | None:
    """Return a declared class name in its own spelling, whatever the case of `name`; None if no rule declares it."""
    return _classes.get(name.lower())


_COMMON = names("""
    a access account again an and api at be been can com content context current does error exceeded exceeds for has have in
    input is key length limit limits maximum message model more no not of on or per please prompt rate reached request
    requests service that the this to token tokens too try usage with you your
""")
"""Words that are in most error texts (counted over the corpus). Phrases are indexed under rarer words if they have one."""
_FREQUENT = names("""
    after allowed are available balance before billing by call cannot check code connection contact credits currently expired
    failed found free from id insufficient invalid messages models must number organization plan provided provider quota
    requested required resource response retry returned server settings size support supported tier timeout tool upgrade
    use used user value was
""")
"""Words that are in some error texts. They index a phrase only if its other words are in most texts."""

BEGINNING = 500
"""How many characters of a response are searched first. A fault's message shows the same number.

The beginning describes the failure; the rest is advice and links. The classifier searches the whole text only if no rule
recognises the beginning."""


def phrases(*blocks: str) -> Phrases:
    """Declare phrases to search for and return them as one group.

    Phrases are written in lower case with plain quotes. A block holds several phrases, separated by ` | ` and line
    ends. A block with one phrase is used as it is, with its spaces.
    """
    return _index.declare(blocks, _next_group())


def late_phrases(*blocks: str) -> Phrases:
    """Do the same as `phrases`, for words that only `find_late` searches for."""
    return _late_index.declare(blocks, 1 << next(_late_groups))


def codes(text: str, group: Phrases = 0) -> Phrases:
    """Declare machine codes (lower case, separated by spaces) and return them as one group, a new one or the given one."""
    group = group or _next_group()
    for code in text.split():
        _coded[code] = _coded.get(code, 0) | group
    _met.clear()
    return group


def codes_like(pattern: str) -> Phrases:
    """Declare a pattern that machine codes are searched for, and return it as one group.

    It is for words that every service puts together in its own way: `budget_exceeded`, `MonthlySpendCapReached`.
    """
    group = _next_group()
    _patterns.append((re.compile(pattern), group))
    _met.clear()
    return group


def codes_in(words: Iterable[str]) -> Phrases:
    """Return the groups that any of these machine codes belongs to."""
    matched = 0
    for word in words:
        groups = _met.get(word)
        matched |= _meet(word) if groups is None else groups
    return matched


def _meet(word: str) -> Phrases:
    """Look a code up that was not met before. A service sends the same few codes again and again."""
    groups = _coded.get(word, 0)
    for pattern, group in _patterns:
        if pattern.search(word):
            groups |= group
    if len(_met) >= _MOST_REMEMBERED:
        _met.clear()
    _met[word] = groups
    return groups


def find_phrases(text: str) -> Phrases:
    """Return the groups that have a phrase in `text`. SECRETS is among them if the text may contain a secret."""
    spaced = _spaced(text)
    matched = _index.find(text, spaced)
    if not text.isascii():
        for phrase, groups in _unspaced.items():
            if phrase in text:
                matched |= groups
    return matched if matched & SECRETS or not _may_hold_a_secret(text, f"{spaced} ") else matched | SECRETS


def find_late(text: str) -> Phrases:
    """Return the groups of `late_phrases` that have a phrase in `text`."""
    return _late_index.find(text, _spaced(text))


def _spaced(text: str) -> str:
    # Other scripts have punctuation of their own, or nothing between their words and English words.
    return text.encode().translate(_SPACED).decode() if text.isascii() else " ".join(_LATIN_WORD.findall(text))


def _next_group() -> Phrases:
    return 1 << next(_groups)


def _may_hold_a_secret(text: str, spaced: str) -> bool:
    """Whether a word ends like the name of a secret, a URL may contain a password, or a word begins like a key."""
    if "\\" in text or ("@" in text and "://" in text):
        # In a repr, an escape for a line end or a tab may stand directly before a word.
        return True
    # How longer names of secrets end: `anthropic_api_key`, `accesskey`, `db_password`. "pass" covers several names, and a loop
    # over the pieces takes twice as long. The later search for the secret itself is exact.
    if "key " in spaced or "token " in spaced or "pass" in spaced or "secret " in spaced or "pwd " in spaced:
        return True
    return begins_a_key(text)


def _split(blocks: tuple[str, ...]) -> list[str]:
    parted = [re.split(r"\s+\|\s+|\n", block) if "\n" in block else [block] for block in blocks]
    return [part if len(parts) == 1 else part.strip() for parts in parted for part in parts if part.strip()]


_ENDINGS = ("", "s", "es", "d", "ed", "ing")


def _indexing_words(phrase: str) -> tuple[list[str], str]:
    """Return the indexing words of a phrase and its second word.

    The rarest word is the index, with endings if it is last.
    """
    words: list[str] = _WORD.findall(phrase)
    if not words or phrase != phrase.lower():
        message = f"a phrase is lower case and contains a word, got {phrase!r}"
        raise ValueError(message)
    last = words[-1]
    whole = words[:-1] if phrase.endswith("…") else words
    by_rarity = sorted(whole, key=lambda word: (word in _COMMON, word in _FREQUENT, -len(word)))
    rarest = by_rarity[0]
    if len(words) == 2 and rarest in _COMMON:
        # Both words are frequent. The phrase is indexed under its last word, and its first word must occur too.
        rarest = words[-1]
    second = next((word for word in by_rarity if word not in (rarest, last)), "")
    if rarest == last and phrase.endswith(last):
        return [last + ending for ending in _ENDINGS], second
    return [rarest], second


ENDED: Phrases = _next_group()
"""A stream or response without an error; the way it ended decides."""
PAGE: Phrases = _next_group()
"""A web page was sent instead of JSON."""
SECRETS: Phrases = _next_group()
"""The text may contain a secret. Only such a text is searched for one, because that search is slow."""
for _word in names("""
    authorization bearer basic cookie credential credentials
"""):
    # A secret often follows these words. They are indexed as they are, without endings.
    _index.add(_word, _word, "", SECRETS)
