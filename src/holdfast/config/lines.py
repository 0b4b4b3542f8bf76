"""In which line of a `holdfast.toml` a mistake is. The TOML reader keeps no lines, so the text is searched for the option."""

from __future__ import annotations

import re

__all__ = ["line_of"]

# A key is bare or quoted, and several with dots between them are a path.
_KEY = r"""(?:[A-Za-z0-9_-]+|"[^"\n]*"|'[^'\n]*')"""
_PATH = rf"{_KEY}(?:\s*\.\s*{_KEY})*"
_TABLE = re.compile(rf"\s*\[\[?\s*({_PATH})\s*\]")
_OPTION = re.compile(rf"\s*({_PATH})\s*=")


def line_of(text: str, path: str) -> int:
    r"""Return the line in which an option is set, counted from 1; 0 if it is not found.

    An option inside `{ … }`, or one that is missing, has the line of its table. Every line that looks like an option counts,
    also in a text of several lines: the number helps a person to find the place and decides nothing.

    >>> line_of("[policy]\ntimeout = 5\ncircuit = { failures = 0 }", "policy.circuit.failures")
    3
    """
    best, length, table = 0, 0, ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _TABLE.match(line):
            here = table = _plain(header[1])
        elif option := _OPTION.match(line):
            here = f"{table}.{_plain(option[1])}" if table else _plain(option[1])
        else:
            continue
        if len(here) > length and (path == here or path.startswith((f"{here}.", f"{here}["))):
            best, length = number, len(here)
    return best


def _plain(path: str) -> str:
    return ".".join(key.strip().strip("\"'") for key in re.findall(_KEY, path))
