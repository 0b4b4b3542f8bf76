"""The families of rules, one file each, and the order in which they run.

The first rule that matches decides, so the order matters. Cancellation comes first. Exact machine codes come before
prose, and codes that name money before everything that a status or a sentence says. The more serious meaning comes before the milder one (no money before rate limit, overflow before bad request).
Words come before a bare status. Wrapper classes come last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.classify.rules import (
    access,
    aws,
    browser,
    cancelled,
    codes,
    concepts,
    google,
    guesses,
    identifiers,
    limits,
    network,
    overflow,
    plain,
    process,
    python,
    request,
    server,
    status,
    toolserver,
)

if TYPE_CHECKING:
    from holdfast.classify.evidence import Rule

__all__ = ["RULES"]

RULES: tuple[Rule, ...] = (
    *cancelled.RULES,
    *process.EARLY,
    *python.FIRST,
    *process.REPORT,
    *browser.EARLY,
    *limits.MONEY,
    *toolserver.RULES,
    *request.FIRST,
    *google.RULES,
    *limits.EARLY,
    *codes.RULES,
    *limits.QUOTAS,
    *aws.RULES,
    *python.EARLY,
    *request.EARLY,
    *overflow.RULES,
    *server.EARLY,
    *limits.LATE,
    *access.RULES,
    *request.MODELS,
    *request.LATE,
    *identifiers.RULES,
    *network.RULES,
    *identifiers.LATE,
    *process.STDERR,
    *network.IN_STDERR,
    *plain.EARLY,
    *python.NAMES,
    *concepts.IN_STDERR,
    *identifiers.ENDINGS,
    *process.LATE,
    *status.EARLY,
    *aws.LATE,
    *server.LATE,
    *status.LATE,
    *python.LATE,
    *plain.WORDS,
    *browser.LATE,
    *concepts.RULES,
    *plain.BEFORE,
    *guesses.RULES,
    *plain.LAST,
    *server.LAST,
)
