"""What `holdfast doctor` says about the SDKs: versions that are too old, and retries that they make by themselves.

No SDK is imported: that takes seconds, and a broken one would break the doctor. Which clients a program makes is not known here;
a `RecoveryWarning` names them when one of them retries inside an attempt.
"""

from __future__ import annotations

import re
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_NEEDED = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?>=([0-9.]+)")
_DEFAULT = re.compile(r"^DEFAULT_MAX_RETRIES\s*(?::[^=\n]+)?=\s*(\d+)", re.MULTILINE)
_WITH_RETRIES = ("anthropic", "openai")
"""The SDKs whose clients retry by default, with the number in `_constants.py`."""


def needed_version(package: str, installed: str) -> str:
    """Return the version that Holdfast needs, if the installed one is older; else an empty text."""
    for requirement in metadata.requires("holdfast") or ():
        found = _NEEDED.match(requirement)
        if found is not None and found[1].lower() == package and _numbers(installed) < _numbers(found[2]):
            return found[2]
    return ""


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: `2.0rc1` is (2, 0)."""
    return tuple(int(number) for number in re.findall(r"\d+", re.split(r"[a-z+]", version.lower())[0]))


def own_retries(environment: Mapping[str, str]) -> list[str]:
    """Return a sentence for each SDK that retries by itself unless an option turns that off."""
    sentences = [
        f"clients of {name} retry {times} times by themselves" for name in _WITH_RETRIES if (times := _default(name))
    ]
    attempts = environment.get("AWS_MAX_ATTEMPTS", "")
    if attempts.isdigit() and int(attempts) > 1:
        sentences.append(f"AWS_MAX_ATTEMPTS={attempts} lets botocore retry inside each attempt")
    return sentences


def _default(package: str) -> int:
    """Return how often the clients of an installed SDK retry by default; 0 if that is not known."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        return 0
    try:
        found = _DEFAULT.search(Path(spec.origin).with_name("_constants.py").read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return 0
    return 0 if found is None else int(found[1])
