"""Guesses: what single words say about a short text or an exception that no other rule knows.

A person who reads "replica lag too high, read rejected" has never seen the sentence and still knows that it passes. The
rows here do the same with two groups of words each: what the text is about, and what happened to it. They are wrong more often
than the exact rules, so they run last, they are weak, and what a person must change stands before what passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from holdfast.classify.concepts import FORBIDS_A_RETRY, SETTING_OF_TIME
from holdfast.classify.phrases import late_phrases, phrases
from holdfast.classify.words import Words

if TYPE_CHECKING:
    from holdfast.classify.phrases import Phrases
    from holdfast.faults import Code

_LISTED = Words("guesses")

SENTENCE: Final = 300
"""A longer text is not one sentence, and its words belong to different things."""
_ABSENT = phrases("does not exist", "not found", "no such")
_Row = tuple["Code", "Phrases", "Phrases"]


def _rows(table: str) -> tuple[_Row, ...]:
    """Read rows of two groups each: what a text is about, and what happened to it."""
    happened = _LISTED.table(f"{table}.happened", late_phrases)
    return tuple(
        (code, about, end)
        for (code, about), (_, end) in zip(_LISTED.table(f"{table}.about", late_phrases), happened, strict=True)
    )


# What a person must change.
_STAYING: tuple[_Row, ...] = _rows("staying")
# What passes.
_HEALING: tuple[_Row, ...] = _rows("healing")
_PASSING: tuple[tuple[Code, Phrases], ...] = _LISTED.table("passing", late_phrases)
"""Single words for what passes: a time that ran out, a server that is not well, a line that broke."""
_BREAKS = late_phrases(_LISTED["breaks"])
_STAYS = late_phrases(_LISTED["stays"])
"""Words for what a person must change."""


def _row(late: Phrases, rows: tuple[_Row, ...]) -> Code | None:
    return next((code for code, about, happened in rows if late & about and late & happened), None)


def staying(text: str, late: Phrases) -> Code | None:
    """Return what a short text names that a person must change; None if it names nothing."""
    return None if len(text) > SENTENCE else _row(late, _STAYING)


def healing(text: str, matched: Phrases, late: Phrases) -> Code | None:
    """Return what a text names that passes; None if it names nothing, or something that would stay."""
    if matched & (FORBIDS_A_RETRY | _ABSENT | SETTING_OF_TIME):
        return None
    if len(text) <= SENTENCE and (code := _row(late, _HEALING)) is not None:
        return code
    if late & _STAYS:
        return None
    for code, group in _PASSING:
        if late & group and (code != "CONN_RESET" or late & _BREAKS):
            return code
    return None
