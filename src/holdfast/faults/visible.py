"""What a person is shown who decides: every character that cannot be seen, or that moves others, becomes one that can be seen.

Invariant: two texts that differ are shown differently, and no character changes where another one stands. The page has the same function
in `log_view.js`, and a test compares them for every character.
"""

from __future__ import annotations

import re
import unicodedata

# Those that Unicode calls default ignorable and whose category does not say so, and the Braille blank.
_BLANK = (
    *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, *range(0x180B, 0x1810), 0x2065, 0x2800, 0x3164, *range(0xFE00, 0xFE10), 0xFFA0),
    *(*range(0xFFF0, 0xFFF9), *range(0xE0000, 0xE1000)),
)  # fmt: skip
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp", "Zs"})
_BLANKS = frozenset(map(chr, _BLANK))
_PLAIN = re.compile(r"[ -~\n\t]*+\Z")


def visible(text: str) -> str:
    """Return a text as a person reads it who decides about it. Line breaks and tabs stay.

    >>> visible("ls \u202egpj.x")
    'ls ⟨U+202E⟩gpj.x'
    """
    if _PLAIN.match(text):
        return text
    return "".join(_shown(each) for each in text)


def _shown(character: str) -> str:
    if character in " \n\t":
        return character
    # The brackets of the marks themselves: nobody can write a mark that stands for nothing.
    if character in "⟨⟩" or character in _BLANKS or unicodedata.category(character) in _HIDDEN:
        return f"⟨U+{ord(character):04X}⟩"
    return character
