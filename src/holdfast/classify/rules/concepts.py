"""Rules for word groups: a short text names a thing and what happened to it. They run after every exact rule."""

from __future__ import annotations

import re

import msgspec

from holdfast.classify.concepts import FORBIDS_A_RETRY, LONGEST, UNACCEPTED, meant, passing
from holdfast.classify.evidence import Evidence, Source, Verdict, applies_when, fold
from holdfast.classify.phrases import find_late, find_phrases, late_phrases
from holdfast.classify.words import Words
from holdfast.faults import Scope

_LISTED = Words("concepts")

_CALL = frozenset(
    {"AUTH_FAILED", "AUTH_FORBIDDEN", "PROVIDER_BILLING", "PROVIDER_QUOTA_EXHAUSTED", "PROVIDER_ENTITLEMENT_MISSING"}
)
"""Which key and which account is meant is a guess, so the verdict is about this call: a circuit for the key must not open."""


def by_word_groups(evidence: Evidence) -> Verdict | None:
    """A short text without a status names a thing and what happened to it, in whatever words."""
    if (
        evidence.source is Source.GRPC
        or evidence.exit_code is not None
        or evidence.rpc_code is not None
        or (evidence.status or 0) >= 400
    ):
        return None
    if evidence.named("TypeError", "AttributeError", "KeyError", "ValueError"):
        return None
    code = meant(evidence)
    if code is None:
        return None
    return Verdict(
        code=code,
        scope=Scope.REQUEST if code in _CALL else None,
        only_with_delay=code == "PROVIDER_QUOTA_EXHAUSTED",
        weak=True,
    )


_JOINT = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|_|(?<=[a-z])-(?=[a-z])")


def by_parts_of_words(evidence: Evidence) -> Verdict | None:
    """A code or a class that no table lists is made of words: `credits_exhausted`, `text-too-long`, `SeatSuspendedError`."""
    written = evidence.message if evidence.raised is None else f"{evidence.raised.type} {evidence.message}"
    if len(written) > LONGEST or not _JOINT.search(written):
        return None
    text = fold(_JOINT.sub(" ", written))
    verdict = by_word_groups(msgspec.structs.replace(evidence, text=text, matched=find_phrases(text)))
    # `NoSuchCityError` does not say that a file is missing.
    return None if verdict is None or verdict.code == "TOOL_FILE_NOT_FOUND" else verdict


# In the output of a program, "token", "account" and "root" have other meanings.
_LOGIN = late_phrases(_LISTED["login-in-stderr"])


_ASKS = late_phrases(_LISTED["asks"])


@applies_when(local=True)
def login_in_stderr(evidence: Evidence) -> Verdict | None:
    """A program printed a short text about a login that failed."""
    process = evidence.source is Source.PROCESS and evidence.exit_code and (evidence.status or 0) < 400
    if not process or len(evidence.text) > LONGEST:
        return None
    late = find_late(evidence.text)
    return Verdict(code="AUTH_FAILED", scope=Scope.REQUEST) if late & _LOGIN and late & (UNACCEPTED | _ASKS) else None


_LINE = late_phrases(_LISTED["line-in-stderr"])
_BROKEN = late_phrases(_LISTED["broken-in-stderr"])


@applies_when(local=True)
def line_in_stderr(evidence: Evidence) -> Verdict | None:
    """A program printed a short text about a connection that broke."""
    process = evidence.source is Source.PROCESS and evidence.exit_code and (evidence.status or 0) < 400
    if not process or len(evidence.text) > LONGEST:
        return None
    late = find_late(evidence.text)
    return Verdict(code="ACTOR_CLI_NETWORK") if late & _LINE and late & _BROKEN else None


# In the output of a program a limit may be one of the machine. "Your plan" belongs to a service.
_YOUR_PLAN = late_phrases(_LISTED["your_plan"])
_FULL = late_phrases(_LISTED["full-in-stderr"])


@applies_when(local=True)
def plan_in_stderr(evidence: Evidence) -> Verdict | None:
    """A program printed a short text about a limit of the user's plan or account."""
    process = evidence.source is Source.PROCESS and evidence.exit_code and (evidence.status or 0) < 400
    if not process or len(evidence.text) > LONGEST:
        return None
    late = find_late(evidence.text)
    return Verdict(code="TOOL_QUOTA_EXHAUSTED") if late & _YOUR_PLAN and late & _FULL else None


@applies_when(local=True)
def passing_in_stderr(evidence: Evidence) -> Verdict | None:
    """A program printed a short text about something that was not ready in time, or about a server that is not well."""
    process = evidence.source is Source.PROCESS and evidence.exit_code and evidence.status is None
    if not process or len(evidence.text) > LONGEST or evidence.matches(FORBIDS_A_RETRY):
        return None
    code = passing(evidence)
    return None if code is None else Verdict(code=code)


IN_STDERR = (login_in_stderr, plan_in_stderr, line_in_stderr, passing_in_stderr)
RULES = (by_word_groups, by_parts_of_words)
