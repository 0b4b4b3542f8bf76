"""The words in the names of exception classes: `ModelOverloadedException`, `KeyRevokedError`, `StreamEndedPrematurely`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.classify.evidence import contains_any
from holdfast.classify.phrases import names
from holdfast.classify.words import Words

if TYPE_CHECKING:
    from holdfast.faults import Code

_LISTED = Words("names")

_HINTS: tuple[tuple[Code, frozenset[str]], ...] = _LISTED.table("hints", names)
"""Words in the names of classes that no table lists. Most libraries use similar names for similar failures."""


def code_of_name(name: str) -> Code | None:
    """Return the code for the words in the name of a class, in lower case; None if it has none of them."""
    for code, words in _HINTS:
        if contains_any(name, words):
            return code
    return None
