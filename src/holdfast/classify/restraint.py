"""What a sentence must not say if it is to be retried: words for what a person has to change.

Rules for prose recognise a broken line, a busy server or a lock by a few words, and the rest of the text may say that
the reason stays: a push that a policy declined "failed to push", a download without credentials "failed to fetch". Of
2,000 labelled failures that pass, next to none has one of these words. So one of them is enough to hold a retry back.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.classify.evidence import Evidence, Source, Verdict
from holdfast.classify.notices import failing_lines
from holdfast.classify.phrases import find_phrases, names, phrases
from holdfast.classify.words import Words
from holdfast.faults import CATALOG

if TYPE_CHECKING:
    from holdfast.classify.phrases import Phrases
    from holdfast.faults import Code

_LISTED = Words("restraint")

_LONGEST: Final = 1_000
"""A longer text is a log, which has such words for many reasons."""
_PROSE = names("""
    network.by_words network.in_stderr network.span_over network.by_wrapper process.stderr process.server_words process.download process.passes
    plain.by_meaning plain.by_words toolserver.by_number toolserver.server_gone python.locked python.between python.by_name
    python.named_in_text concepts.by_word_groups concepts.by_parts_of_words concepts.line_in_stderr concepts.passing_in_stderr
    aws.by_parts_of_name server.own_words server.full guesses.heals browser.driver
""")
"""Rules that read sentences. A number, an errno or a class that means one failure is more exact than any word."""
_OF_ITSELF = frozenset({
    "PROVIDER_MALFORMED_RESPONSE", "PROVIDER_OUTPUT_INVALID", "PROVIDER_EMPTY_RESPONSE", "PROVIDER_RATE_LIMITED", "TOOL_RATE_LIMITED",
    "CONN_DNS_FAILED", "TOOL_CRASHED", "TOOL_KILLED", "TOOL_OUT_OF_MEMORY", "TOOL_SESSION_EXPIRED",
})  # fmt: skip
"""What a model wrote is sampled again, a rate comes back, and a process that died quotes what it did. Words around them say little."""
_ANSWERS = frozenset({Source.HTTP, Source.SSE, Source.GRPC})
# A person did not answer in time. The next attempt would ask again and wait as long.
_PERSON = phrases(_LISTED["person"])
_UNANSWERED = phrases("response from user", "response from the user", "answer from the user", "reply from the user")
_STAYS: tuple[tuple[Code, Phrases], ...] = (("TOOL_FORBIDDEN", _PERSON), *_LISTED.table("stays", phrases))
_ADVICE: Final = "TOOL_EXECUTION_FAILED"
_ALL = 0
for _, _group in _STAYS:
    _ALL |= _group

_FOR_NOW = phrases(_LISTED["for_now"])
_SHAPES: tuple[tuple[Code, re.Pattern[str]], ...] = (
    # Somebody has to do something first. "Check your connection" and "wait" are no such thing.
    (
        "TOOL_EXECUTION_FAILED",
        re.compile(
            r"\b(?:abort|add|adjust|approve|change|check (?!.{0,60}(?:connect|network|internet|status|vpn))|choose|clear|close|configure|correct|create|delete|disable|edit|enable|ensure|exit|fix"
            r"|free up|grant|include|install|lower|make sure|move|open|pass|pause|provide|quit|remove|rename|replace|reset|resolve|resume|select|set|shorten|specify|split|start|stop|switch|unlock|unset|update"
            r"|upgrade|use|verify)\b(?!(?: \w+)? (?:exponential|backoff))(?:[^.\n]|\.(?=\w)){1,140}?\b(?:and|then|before|to) (?:please )?(?:try(?:ing)? (?:it )?again|retry(?:ing)?|re-?run(?:ning)?|run (?:it |this )?again)\b"
        ),
    ),
    # What is missing here is missing in the next attempt.
    (
        "TOOL_EXECUTION_FAILED",
        re.compile(
            r"\b(?:unavailable|not available|disabled) (?:in|inside|on|under|while|with|without) (?:an? |any |non-|redirect|the (?:current|given|selected)|this|that|these|your|\w+ (?:mode|platforms?|environments?|sessions?|builds?|versions?|editions?)\b)"
        ),
    ),
    (
        "TOOL_INPUT_INVALID",
        re.compile(
            r"\b(?:must|should|cannot|can't|may not|has to|needs to|can only) be (?:an? |at (?:least|most)|between|called|empty|equal|greater|higher|in the|larger|less|longer|lower|negative"
            r"|non-|one of|positive|provided|set|shorter|smaller|specified|used|zero|[<>]=? ?\d)|\bout of range\b|\bis negative\b"
        ),
    ),
    ("TOOL_INPUT_INVALID", re.compile(r"\bcan only be \w+ (?:as|by|from|in|on|with)\b")),
    ("TOOL_EXECUTION_FAILED", re.compile(r"\bthis is a bug\b|\bbug in\b")),
    (
        "TOOL_EXECUTION_FAILED",
        re.compile(
            r"\b(?:call|connect|create|initialize|install|launch|log in|open|run|sign in|start|use) (?:[\w().`'-]+ ){0,3}?[\w().`'-]+ first\b"
        ),
    ),
    # What lets a caller in has expired. A timeout that has expired is only over.
    ("TOOL_FORBIDDEN", re.compile(r"(?<!timeout )(?<!period )(?<!interval )(?<!time )(?<!wait )\bhas expired\b")),
    ("TOOL_FORBIDDEN", re.compile(r"\bacquire (?:an? |the )?(?:\w+ ){0,2}(?:assertion|token)\b")),
    # A merge waits for a person, and a name stays taken.
    (
        "TOOL_EXECUTION_FAILED",
        re.compile(
            r"\b(?:bisect|cherry-pick|merge|rebase|revert)(?:'|\b)(?: \w+){0,3} in progress\b|\b(?:no|not) (?:[\w-]+ ){0,4}?(?:in progress|locked)\b|\bunlock\b|\b(?:cannot|can't|not) be (?:un)?locked\b"
            r"|\b(?:no|non)[ -]locked\b|\b(?:address|port) (?:\S+ )?(?:is )?(?:already |currently |being )*(?:allocated|in use|occupied|taken|used)\b|\b(?:alias|domain|email|id|identifier|name|oid|slug|subdomain|title|username)\b[^.\n]{0,60}\b(?:is|already|still) (?:in use|taken|used)\b"
        ),
    ),
)
"""What a person has to change, in whatever words."""
_OTHERS_WORK = re.compile(
    r"\banother (?:[\w()-]+ ){1,6}?(?:is |are )?(?:already |still |currently )?in progress\b[^.]{0,40}\bwait (?:for|until)\b"
)
"""The text itself says for what to wait. That it calls the call "not allowed" until then is no matter."""
_ANOTHER = re.compile(
    r"\b(?:another|other) (?:\w+ ){0,2}?(?:client|command|copies|copy|instance|process|program|run|user)\b|\bpid\b|\bwait (?:for|until) (?:\w+ ){1,6}?(?:complete|end|finish|release)\b"
)
"""Somebody else holds the lock and will release it, whatever the text advises to do in the meantime."""
_OF_A_FILE = re.compile(
    r"\bjson (?:\w+ )?(?:config\w*|credentials?|document|files?|format for|manifest|parameter|policy|schema|settings|template)\b|\.(?:json|toml|ya?ml)\b|json_file"
    r"|\b(?:config\w*|credentials?|env|environment|manifest|policy|provided|schema|settings|state file|template)\b(?: \w+){0,3} json\b"
    r"|\bin (?:the |your )?(?:\S+ )?(?:config\w*|file|manifest|parameter|policy|schema|settings|template)\b"
)
"""The text that could not be read is a file of the caller's. What a model or a server sent is read again."""


def held_back(evidence: Evidence, verdict: Verdict) -> Verdict:
    """Return the verdict, or one that is not retried if the text also names what a person has to change."""
    if evidence.source in _ANSWERS or verdict.rule not in _PROSE:
        return verdict
    retryable = CATALOG[verdict.code].retryable if verdict.retryable is None else verdict.retryable
    if not retryable or verdict.only_with_delay or (evidence.status or 0) >= 400 or len(evidence.text) > _LONGEST:
        return verdict
    code = _what_stays(evidence, verdict.code)
    if code is None:
        return verdict
    return Verdict(code=code, rule=f"restraint.{verdict.rule.rpartition('.')[2]}", weak=verdict.weak)


def _what_stays(evidence: Evidence, code: Code) -> Code | None:
    """Return what the sentence names that a person has to change; None if it names nothing."""
    if code == "PROVIDER_MALFORMED_RESPONSE" and _OF_A_FILE.search(evidence.text):
        return "PROVIDER_BAD_REQUEST"
    if code in _OF_ITSELF and not evidence.matches(_UNANSWERED):
        return None
    if code == "TOOL_RESOURCE_BUSY" and _OTHERS_WORK.search(evidence.text):
        return None
    if evidence.matches(_ALL):
        stays = evidence.first_match(_STAYS)
        if stays != _ADVICE or evidence.source is not Source.PROCESS:
            return stays
        # What a program prints beside its failure may say what else is wrong. Here only the lines that name a failure count.
        lines = failing_lines(evidence.text)
        if find_phrases(lines) & _ALL:
            return stays
        evidence = msgspec.structs.replace(evidence, text=lines)
    if evidence.matches(_FOR_NOW) or (code == "TOOL_RESOURCE_BUSY" and _ANOTHER.search(evidence.text)):
        return None
    return next((code for code, shape in _SHAPES if shape.search(evidence.text)), None)


_REASON = re.compile(
    r"\b(?:connect|connecting|reach|reaching|contact|fetch|fetching|download|downloading|communicate)\b(?P<what>[^:\n]{0,100}?)"
    r"(?::| because| as) (?P<why>[a-z][^\n]{7,200})"
)
_OF_A_LINE = frozenset({"CONN_RESET", "ACTOR_CLI_NETWORK"})


_INTRODUCED = re.compile(
    r"(?:error: )?(?:failed|failure|could not|couldn't|unable|cannot|can't|error) (?:to |while |when |in )?[^:\n]{1,80}: (?P<why>[^\n]{8,300})\s*"
)


def introduced_reason(evidence: Evidence) -> str | None:
    """Return what stands behind the colon of "failed to sync the workspace: …"; None if the text has another form.

    The words before it name what was tried, and a guess must not read them as what is wrong.
    """
    found = _INTRODUCED.fullmatch(evidence.text)
    return None if found is None else found["why"]


def given_reason(evidence: Evidence, verdict: Verdict) -> str | None:
    """Return why something could not be reached, in the words of the same sentence; None if they do not say.

    "Failed to connect to the device: not paired" is about the pairing. The line is only where it was noticed.
    """
    if verdict.code not in _OF_A_LINE or evidence.status is not None or len(evidence.text) > _LONGEST:
        return None
    found = _REASON.search(evidence.text)
    return None if found is None else found["why"]
