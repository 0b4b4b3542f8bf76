"""The identifiers that runtimes, clouds, databases and tools print: `ECONNRESET`, `ImagePullBackOff`, `57P03`.

An identifier is one word that a program gives to one failure. It means the same in a sentence, in a log and in a field of a
body. The tables are sorted by meaning; the first code that matches decides, so the failures that never heal stand first.
"""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from holdfast.classify.phrases import codes, phrases
from holdfast.classify.words import Words

if TYPE_CHECKING:
    from holdfast.classify.evidence import Evidence
    from holdfast.classify.phrases import Phrases
    from holdfast.faults import Code

_LISTED = Words("identifiers")


def _identifiers(text: str) -> Phrases:
    """Declare identifiers, as words of a text and as codes of a body."""
    return codes(text, phrases(" | ".join(text.split()) + "\n"))


def _spelled(text: str) -> Phrases:
    """Declare names in every spelling: `not_controller`, `NotController`, `NotControllerException`, `NotControllerError`."""
    joined = [name.replace("_", "") for name in text.split()]
    return _identifiers(f"{text} {' '.join(f'{name} {name}exception {name}error' for name in joined)}")


_TABLE: tuple[tuple[Code, Phrases], ...] = (
    *_LISTED.table("spelled", _spelled),
    *_LISTED.table("identifiers", _identifiers),
)
IDENTIFIERS = reduce(or_, (group for _, group in _TABLE))
"""Every identifier, as one group."""


def identified(evidence: Evidence) -> Code | None:
    """Return the code of the first identifier in the text; None if it has none."""
    return evidence.first_match(_TABLE)
