"""Sentences that say why something failed, in whatever words, as patterns.

`phrases` finds fixed words fast. These patterns are for sentences in which any name may stand between the words: "could not
connect to the Docker daemon", "another Homebrew update is in progress". They are slow, so rules try them last.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from holdfast.faults import Code

LONGEST: Final = 2_000
"""A longer text is a log or a document. It may contain such a sentence for many reasons."""

_UNREACHED = re.compile(
    r"\b(?:could not|couldn't|cannot|can't|can not|unable to|failed to|failure to|failed|failure|error|errors|problem) (?:while |when )?(?:\w+ ){0,2}?"
    r"(?:connect(?:ing)?|reach(?:ing)?|contact(?:ing)?|communicat(?:e|ing))\b"
    r"|\berror (?:in|on|reading|while reading) (?:the |an )?(?:\w+ )?stream\b"
    r"|\b(?:connection|connect|request) to \S{1,80} (?:has |was |is )?(?:failed|lost|dropped|broken|interrupted)\b"
    r"|\bconnection (?:\S+ ){0,3}?(?:closed|lost|dropped|broken|interrupted|aborted)\b|\b(?:connection|connectivity|network(?:ing)?) (?:issue|problem|failure)s?\b"
    r"|\bcheck your (?:internet|network)?\s?connection\b|\bno internet\b|\bfailed to fetch\b(?!.{0,200}\b404\b)|\bare you (?:online|connected)\b"
    r"|\blost (?:communication|connection|contact) (?:with|to)\b|\b(?:establish|open|create|make) (?:an? |the )?(?:\w+ )?connection\b"
)
_UNRESOLVED = re.compile(
    r"\b(?:could not|couldn't|cannot|can't|unable to|failed to|error) resolv\w+ (?:the )?(?:remote )?(?:host|hostname|address|domain|name\b|dns|proxy)"
    r"|\bhost(?:name)? (?:\S{1,80} )?(?:not found|lookup failed)\b|\btranslate host name\b|\bunknown (?:\w+ ){0,2}host\b(?! key)"
)
_LOCKED_OUT = re.compile(
    r"\b(?:could not|couldn't|cannot|unable to|failed to|not|must|need to|have to|please|required to) (?:be )?(?:re-?)?"
    r"(?:authenticat\w*|log(?:ged)?[ -]?in(?:to)?|sign(?:ed)?[ -]?in)\b|\bto be (?:logged|signed) in\b|\bfailed to auth\b"
    r"|\b(?:invalid|incorrect|wrong|bad|missing|expired|revoked|unknown|no valid|no) (?:(?!or\b|unexpected\b|json\b)[\w'\"]+ ){0,2}?"
    r"(?:api[ _-]?keys?|api[ _-]?tokens?|access[ _-]?tokens?|auth[ _-]?tokens?|passwords?|passphrase|credentials?|username|secret|license key)\b"
    r"|\b(?:credentials?|api[ _-]?key|access token|auth token|password|session|login|license|subscription key) "
    r"(?:\w+ ){0,2}?(?:is |are |was |were |has |have )?(?:been )?(?:not valid|invalid|incorrect|wrong|expired|revoked|missing|required|rejected|not accepted|not correct)\b"
)
_HELD = re.compile(
    r"\b(?:is|are|was|still|already|currently|be) (?:currently |already |still |being )?"
    r"(?:locked|busy|starting up|restarting|initiali[sz]ing|shutting down|updated by|modified by|held by"
    r"|being (?:updated|upgraded|migrated|modified|provisioned|rebalanced|restarted|restored|resized))\b"
    # A merge or a rebase in progress waits for a person, so only another's work counts.
    r"|\b(?:another|concurrent|previous) (?:[\w'-]+ ){1,5}?(?:is |are )?(?:already |still |currently )?(?:in progress|running)\b"
    r"|\b(?:another|concurrent) (?:instance|process|command|job|client|session|task)\b(?: \w+){0,2} (?:is|holds|has|performing|to release)\b"
    r"|\b(?:backup|build|change|creation|deletion|deployment|download|failover|import|install|migration|operation|provisioning|rebalance|removal|resize|restart|restore|rollout"
    r"|snapshot|sync|update|upgrade|upload) (?:\S+ ){0,4}?(?<!\bno )(?<!\bnot )in progress\b|\b(?:already|still|currently) in progress\b"
    r"|\.lock'?: file exists"
    # Clouds name the state of a thing that they are changing.
    r"|\b(?:is|was) (?:currently )?in (?:an? |the )?[\"'`]?(?:\w*_in_progress|\w*(?:creating|deleting|modifying|pending|provisioning|rebooting|resizing|starting|stopping|updating|upgrading))[\"'`]? (?:state|status|phase)"
    r"|\bwait (?:until|for) (?:\w+ ){1,6}?(?:to )?(?:finish(?:ed)?|complete[sd]?|end|release)\b"
    r"|\b(?:acquire|obtain|get|take|waiting (?:for|on)) (?:the |a |an )?(?:\w+ ){0,3}lock\b|\block (?:is |was )?(?:held|timeout|not available)\b"
    r"|\bmax(?:imum)? (?:number of )?(?:clients|connections|sessions) (?:is |was |has been )?(?:reached|exceeded)\b"
    r"|\bstatus ?[=:] ?(?:pending|starting|containercreating)\b"
)
# Whose limit it is says "your". A limit of the request is found before, by its own words.
_USED_UP = re.compile(
    r"\b(?:hit|reached|exceeded|used up|used all|used 100%|exhausted) (?:all )?(?:of )?(?:your|the included|included) (?:[\w-]+ ){0,3}?(?:limits?|allowance|quota|credits|minutes|hours)\b"
)
LATER = re.compile(
    r"\b(?:try|retry) (?:\w+ ){0,3}?(?:again|later|shortly|in a (?:moment|minute|few))\b|\bplease (?:retry|try (?:again|later|once))\b|\btemporarily\b"
    # A temporary file is no failure that passes.
    r"|\btemporary (?:\w+ )?(?:condition|disruption|error|failure|fault|glitch|interruption|issue|network|outage|overload|problem|server|service)s?\b"
    r"|\b(?:is|are|be) (?:\w+ )?temporary\b"
    r"|\b(?:finish|stop)[ _]reason\W{1,4}(?:error|failed|unknown)\b|\bdown for (?:\w+ )?maintenance\b|\bcome back (?:later|in)\b"
    r"|\b(?:server|service|backend|registry|api|host|provider) (?:\w+ ){0,2}?(?:is |are |may be |might be )(?:\w+ )?(?:down|offline|unavailable|busy|overloaded)\b"
)
NO_ANSWER = re.compile(
    r"\b(?:no|empty|blank|null|malformed|unparsable|unparseable|unusable|incomplete|garbled) (?:or \w+ )?(?:\w+ ){0,2}?"
    r"(?:response|answer|completion|reply|generation|choices|candidates|embeddings?)\b"
    r"|\b(?:response|answer|completion|reply|model output|llm output) (?:\w+ ){0,2}?(?:is |was |were )?(?:empty|blank|malformed|truncated|not valid json|null)\b"
    r"|\b(?:produced|returned|generated|gave|sent|emitted) (?:an? )?(?:no|empty|invalid|malformed|incomplete|unusable) (?:\w+ ){0,2}?(?:output|response|answer|text|content|tool calls?|function calls?|json|message)\b"
    r"|\b(?:unknown|unexpected|invalid|missing|malformed|no) (?:finish|stop)[ _]reason\b"
    r"|\b(?:did not|didn't|failed to|does not|doesn't) (?:use|call|invoke) (?:a|any|an|the)? ?(?:\w+ )?tools?\b"
    r"|\b(?:did not|didn't|failed to) (?:produce|return|generate) (?:a|any|an|valid|well-formed) (?:\w+ )?(?:response|answer|output|reply|completion|message|json)\b"
    r"|\b(?:could not|couldn't|cannot|unable to|failed to) (?:process|handle|convert|deserialize|validate|interpret) (?:\w+ ){0,3}?(?:response|answer|completion)\b"
    r"|\b(?:could not|couldn't|cannot|unable to|failed to) (?:parse|decode|extract|read) (?:\w+ ){0,3}?(?:response|answer|output|json|completion)\b"
)
NOT_STARTED = re.compile(r"\bspawn \S+ enoent\b|\b(?:env:|execvp|exec) \S+: no such file\b")
"""Node and `env` print a program that is missing in this way. A timeout in such a text is a setting."""
_DIED = re.compile(
    r"\b(?:process|worker|server|thread|supervisor|engine|runner|daemon|renderer|browser|kernel|actor|task|job|subprocess)\b.{0,40}?"
    r"\b(?:died|crashed|exited (?:before|unexpectedly|prematurely|during)|terminated unexpectedly|is dead|quit unexpectedly)\b"
    r"|\b\w+ exited before startup\b"
)
NONE_FOUND = re.compile(
    r"\bno (?:[\w-]+ ){1,4}?(?:(?:was|were|is|are|has been|have been|could be) )?(?:found|matched|matching|matches|exists?)\b"
    r"|\b(?:unexpected|unknown|unrecognized|no such|invalid) (?:endpoint|route|path|method)\b|\bcannot (?:get|post|put|delete|patch) /"
    r"|\bno (?:route|handler) (?:found |matched )?for\b|\bmissing \w+ for \w+ #?\d"
)
"""Something was looked for and is not there, in whatever words."""
UNSET = re.compile(
    r"\bno (?:[\w-]+ ){1,5}?(?:(?:is|are|was|were|has been|have been) )?(?:configured|selected|specified|chosen|set up|defined|registered|enabled)\b"
    r"|\b(?:requires?|needs?) (?:setting|you to set|configuring|to be (?:set|configured|enabled|installed))\b"
)
OTHER_NAME = re.compile(r"(?:[a-z]-|\b(?:class|image|method|module|package|symbol|type|variable) )name resolution\b")
"""A name that is resolved and is not the name of a host."""
_MEANINGS: tuple[tuple[Code, re.Pattern[str]], ...] = (
    ("TOOL_COMMAND_NOT_FOUND", NOT_STARTED),
    ("PROVIDER_QUOTA_EXHAUSTED", _USED_UP),
    ("AUTH_FAILED", _LOCKED_OUT),
    ("CONN_DNS_FAILED", _UNRESOLVED),
    ("CONN_RESET", _UNREACHED),
    ("TOOL_RESOURCE_BUSY", _HELD),
    ("TOOL_CRASHED", _DIED),
)


def meaning(text: str) -> Code | None:
    """Return the code of a sentence that says why something failed, in whatever words; None if it does not."""
    if len(text) > LONGEST:
        return None
    for code, pattern in _MEANINGS:
        if pattern.search(text):
            return code
    return None
