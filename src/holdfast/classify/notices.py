"""The lines of a program's output that are not about the failure: warnings, hints, help, and where to report a bug.

Their words mean nothing for a retry. "Using a password on the command line can be insecure" is no login that failed, and "help:
provide the --frozen flag" nothing that a person must do first. So rules read the output without them.
"""

from __future__ import annotations

import re

_MARK = r"^[ \t│║›>|]*(?:[\w./-]+: )?"
"""What stands before a notice: the side of a box, the name of the program."""
_NOTICE = re.compile(
    # A warning that says "retrying" names the reason of a failure that the program met more than once.
    _MARK
    + r"(?:\[(?:warning|notice|warn|hint)\]|(?:npm|yarn|pnpm) warn\b|(?:warning|warn|help|hint|tip|notice|deprecated):)"
    r"(?![^\n]*\b(?:retry(?:ing)?|error|failed)\b)[^\n]*\n?"
    r"|"
    + _MARK
    + r"(?:n: be aware|info visit|get more help at|for more (?:details|help|information)\b|to see the full stack ?trace|re-run [\w-]+ with|run with --"
    r"|to (?:update|upgrade|search|retrieve)[ ,]|ask for help|see (?:also )?(?:<|file:|https?:|the docs|the documentation)|use '?[\w -]+'? to (?:see|view)\b"
    r"|if you (?:want|wish|intend|need|think|believe|would like|are (?:behind|looking|using)|have updated)\b|with preprocessed source"
    r"|(?:please )?(?:file|open|report|submit)\b[^\n]{0,40}\b(?:bug|issue)\b|please make sure you have the correct access rights|and the repository exists"
    r"|the following exception probably|in most cases you\b|a complete log of this run|errors logged to)[^\n]*\n?",
    re.IGNORECASE | re.MULTILINE,
)
_PERSISTS = re.compile(
    r"\bif (?:the|this) (?:error|failure|issue|problem) (?:continues|persists)\b[^.\n]*\.?", re.IGNORECASE
)
_GUESSES = re.compile(
    r"^[^\n]*\b(?:common|likely|possible|potential|probable) (?:causes?|fix(?:es)?|reasons?|solutions?)\b[^\n]*:[ \t]*\n\s*"
    r"(?:[ \t]*(?:[*•-]|\d+[.)])[^\n]*(?:\n|\Z))+",
    re.IGNORECASE | re.MULTILINE,
)
"""A list of what the reason might be. It names everything, and nothing of it is known."""
_FAILURE = re.compile(
    r"\b(?:aborted|can't|cannot|closed|could not|couldn't|denied|e:|err!?|error|exception|fail(?:ed|ure)?|fatal|killed|lost|refused|reset|terminated|timed? ?out|unable|unexpected)\b"
    r"|[a-z](?:Error|Exception)\b",
    re.IGNORECASE,
)


def failing_lines(text: str) -> str:
    """Return the lines of an output that name a failure, or all of it if none does."""
    lines = [line for line in text.splitlines() if _FAILURE.search(line)]
    return "\n".join(lines) or text


def without_notices(text: str) -> str:
    r"""Return the output of a program without its notices, or all of it if nothing else in it names a failure.

    >>> without_notices("warning: the database is locked down\nerror: no space left\n")
    'error: no space left\n'
    """
    rest = _PERSISTS.sub("", text) if " persists" in text or " continues" in text else text
    if "\n" in rest:
        rest = _NOTICE.sub("", _GUESSES.sub("", rest) if ":\n" in rest else rest)
    says = len(rest.split(maxsplit=3)) > 2 and _FAILURE.search(rest)
    return rest if says else text
