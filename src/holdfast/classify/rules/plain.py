"""The last rules: words that any program may use, then the words that forbid a retry of an unknown failure."""

from __future__ import annotations

import re
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from holdfast.classify.evidence import Evidence, Source, Verdict, applies_when
from holdfast.classify.phrases import phrases

if TYPE_CHECKING:
    from holdfast.classify.phrases import Phrases
    from holdfast.faults import Code

# Sentences that every program builds in the same way. They are patterns, because any name may stand between the words.
_UNREACHED = re.compile(
    r"\b(?:could not|couldn't|cannot|can't|can not|unable to|failed to|failure to|error|errors|problem) (?:while |when )?(?:\w+ ){0,2}?"
    r"(?:connect(?:ing)?|reach(?:ing)?|contact(?:ing)?|communicat(?:e|ing))\b"
    r"|\b(?:connection|connect|request) to \S{1,80} (?:has |was |is )?(?:failed|lost|dropped|broken|interrupted)\b"
    r"|\bconnection (?:\S+ ){0,3}?(?:closed|lost|dropped|broken|interrupted|aborted)\b|\b(?:connection|network) (?:issue|problem|failure)s?\b"
    r"|\bcheck your (?:internet|network)?\s?connection\b|\bno internet\b|\bfailed to fetch\b|\bare you (?:online|connected)\b"
)
_UNRESOLVED = re.compile(
    r"\b(?:could not|couldn't|cannot|can't|unable to|failed to|error) resolv\w+ (?:the )?(?:remote )?(?:host|hostname|address|domain|name\b|dns)"
    r"|\bhost(?:name)? (?:\S{1,80} )?(?:not found|lookup failed)\b|\btranslate host name\b"
)
_LOCKED_OUT = re.compile(
    r"\b(?:could not|couldn't|cannot|unable to|failed to|not|must|need to|have to|please|required to) (?:be )?(?:re-?)?"
    r"(?:authenticat\w*|log(?:ged)?[ -]?in(?:to)?|sign(?:ed)?[ -]?in)\b"
    r"|\b(?:invalid|incorrect|wrong|bad|missing|expired|revoked|unknown|no valid|no) (?:(?!or\b|unexpected\b|json\b)[\w'\"]+ ){0,2}?"
    r"(?:api[ _-]?keys?|api[ _-]?tokens?|access[ _-]?tokens?|auth[ _-]?tokens?|passwords?|passphrase|credentials?|username|secret|license key)\b"
    r"|\b(?:credentials?|api[ _-]?key|access token|auth token|password|session|login|license|subscription key) "
    r"(?:\w+ ){0,2}?(?:is |are |was |were |has |have )?(?:been )?(?:not valid|invalid|incorrect|wrong|expired|revoked|missing|required|rejected|not accepted|not correct)\b"
)
_HELD = re.compile(
    r"\b(?:is|are|was|still|already|currently|be) (?:currently |already |still |being )?"
    r"(?:locked|busy|starting up|restarting|initiali[sz]ing|shutting down|updated by|modified by|held by)\b"
    # A merge or a rebase in progress waits for a person, so only another's work counts.
    r"|\b(?:another|concurrent|previous) (?:\w+ ){1,5}?(?:is |are )?(?:already |still |currently )?(?:in progress|running)\b"
    r"|\b(?:update|operation|deployment|upgrade|install|rollout|migration|backup|snapshot|deletion) (?:\w+ ){0,3}?in progress\b"
    r"|\.lock'?: file exists"
    r"|\bwait (?:until|for) (?:\w+ ){1,6}?(?:to )?(?:finish(?:ed)?|complete[sd]?|end|release)\b"
    r"|\b(?:acquire|obtain|get|take) (?:the |a |an )?(?:\w+ ){0,2}lock\b|\block (?:is |was )?(?:held|timeout|not available)\b"
)
_LATER = re.compile(
    r"\b(?:try|retry) (?:\w+ ){0,3}?(?:again|later|shortly|in a (?:moment|minute|few))\b|\bplease (?:try|retry)\b|\btemporar(?:y|ily)\b"
    r"|\b(?:server|service|backend|registry|api|host|provider) (?:\w+ ){0,2}?(?:is |are |may be |might be )(?:\w+ )?(?:down|offline|unavailable|busy|overloaded)\b"
)
_NO_ANSWER = re.compile(
    r"\b(?:no|empty|blank|null|malformed|unparsable|unparseable|unusable|incomplete|garbled) (?:or \w+ )?(?:\w+ ){0,2}?"
    r"(?:response|answer|completion|reply|generation|choices|candidates|embeddings?)\b"
    r"|\b(?:response|answer|completion|reply|model output|llm output) (?:\w+ ){0,2}?(?:is |was |were )?(?:empty|blank|malformed|truncated|not valid json|null)\b"
    r"|\b(?:could not|couldn't|cannot|unable to|failed to) (?:parse|decode|extract|read) (?:\w+ ){0,3}?(?:response|answer|output|json|completion)\b"
)
_DIED = re.compile(
    r"\b(?:process|worker|server|thread|supervisor|engine|runner|daemon|renderer|browser|kernel)\b.{0,40}?"
    r"\b(?:died|crashed|exited (?:before|unexpectedly|prematurely|during)|terminated unexpectedly|is dead|quit unexpectedly)\b"
    r"|\b\w+ exited before startup\b"
)
_MEANINGS: tuple[tuple[Code, re.Pattern[str]], ...] = (
    ("AUTH_FAILED", _LOCKED_OUT),
    ("CONN_DNS_FAILED", _UNRESOLVED),
    ("CONN_RESET", _UNREACHED),
    ("TOOL_RESOURCE_BUSY", _HELD),
    ("TOOL_CRASHED", _DIED),
)


def meaning(text: str) -> Code | None:
    """Return the code of a sentence that says why something failed, in whatever words; None if it does not."""
    if len(text) > _LONGEST:
        return None
    for code, pattern in _MEANINGS:
        if pattern.search(text):
            return code
    return None


def by_meaning(evidence: Evidence) -> Verdict | None:
    """A sentence without a status says that a login, a connection or a lock is the reason, in whatever words."""
    if evidence.status is not None or evidence.source in _ANSWERS or len(evidence.text) > _LONGEST:
        return None
    raised = evidence.raised
    if raised is not None and evidence.named("TypeError", "AttributeError", "KeyError"):
        return None
    code = meaning(evidence.text)
    if code is not None:
        return Verdict(code=code, weak=raised is not None)
    if evidence.exit_code is None and evidence.rpc_code is None and _NO_ANSWER.search(evidence.text):
        return Verdict(code="PROVIDER_MALFORMED_RESPONSE", weak=raised is not None)
    if (
        not evidence.matches(_LIMIT | _LOGIN | _INVALID)
        and not evidence.named("ValueError")
        and _LATER.search(evidence.text)
    ):
        return Verdict(code="PROVIDER_UNAVAILABLE", weak=raised is not None)
    return None


_ANSWERS = frozenset({Source.HTTP, Source.SSE, Source.GRPC, Source.JSONRPC})
_LONGEST = 2_000
"""A longer text is a log or a document. It may contain such a sentence for many reasons."""

# These verdicts are weak: any program may use these words, so a cause or a status is always preferred.
_WORDS: tuple[tuple[Code, Phrases], ...] = (
    (
        "SYS_CANCELLED",
        phrases("""
        request was aborted | operation was aborted | user aborted | aborted by user | cancelled by user
        canceled by user | user interrupted | context canceled | operation was canceled | request cancelled | request canceled
        was cancelled | was canceled | turn aborted | command was aborted | request aborted
    """),
    ),
    (
        "TOOL_COMMAND_NOT_FOUND",
        phrases("""
        command not found | spawn npx enoent | executable file not found | is not recognized as an internal
        failed to create unified exec process
    """),
    ),
    (
        "TOOL_FILE_NOT_FOUND",
        phrases("enoent", "no such file or directory", "cannot find the file", "cannot find the path"),
    ),
    (
        "TOOL_FORBIDDEN",
        phrases("""
        eacces | eperm | permission denied | operation not permitted
    """),
    ),
    ("SYS_RESOURCE_EXHAUSTED", phrases("enospc", "emfile", "no space left on device", "too many open files")),
    ("PROVIDER_OUT_OF_MEMORY", phrases("cuda out of memory", "cuda error: out of memory", "cudamalloc")),
    ("TOOL_OUT_OF_MEMORY", phrases("out of memory", "oomkilled")),
    # This stands before the invalid requests: here the response is invalid.
    (
        "PROVIDER_MALFORMED_RESPONSE",
        phrases("""
        empty response | empty or unparsable | empty or malformed | malformed response | malformed_response | unparsable response
        no output generated | no object generated | unexpected api response | invalid api response | invalid response body
        not provide any assistant | no assistant messages | returned no content | returned an empty | could not parse llm
        failed to parse llm | parse the response | did not match schema | not valid json | invalid json response | no response generated
        without valid content | stream was invalid | failed to generate valid | returned invalid json | 'choices' is not set | could not parse response | empty completion
    """),
    ),
    (
        "TOOL_OUTPUT_TOO_LARGE",
        phrases("maxbuffer length", "output too large", "output exceeded", "output limit exceeded", "maxcontentlength"),
    ),
    (
        "PROVIDER_BAD_REQUEST",
        phrases("""
        invalid value for | bad request | invalid request | badly formatted | builder error | badscheme
        relative url without a base | invalid url | unsupported protocol | invalid argument | expected a string, got
        invalid_request_error | badrequesterror | invalid_argument | cannot be empty | must not be empty | must be a string
        missing required | validation error | validation failed | could not process image | invalid input | invalid parameter | invalid params
    """),
    ),
    # The limits that a user set for an agent. They stand before the words of tools.
    (
        "TASK_LOOP_BOUND",
        phrases("""
        iteration limit | maximum iterations | max iterations | number of iterations | number of steps | recursion limit
        recursion_limit
        """),
    ),
    (
        "TASK_TURNS_EXHAUSTED",
        phrases("max turns", "maximum turns", "number of turns", "session turns", "max_turns", "reflections allowed"),
    ),
    ("TASK_LOOP_BOUND", phrases("loop detected", "stuck in a loop", "potential loop")),
    (
        "TOOL_APPROVAL_DENIED",
        phrases("""
        denied by user | denied by the user | rejected by user | rejected by the user | tool use was rejected | user rejected
        user denied | doesn't want to proceed | permission to use | approval denied | user declined | declined by the user
        """),
    ),
    ("TOOL_NOT_FOUND", phrases("not found in registry", "unknown tool")),
    (
        "TOOL_INPUT_INVALID",
        phrases("""
        string to replace not found | occurrences found for | has not been read yet | no match found for | invalid arguments for tool
        old_string | search block | failed to edit
        """),
    ),
    (
        "TOOL_CONNECTION_LOST",
        phrases("""
        client closed | not connected | transport closed | browser has been closed | target closed | browser closed | page closed
        session closed | context closed
        """),
    ),
    (
        "TOOL_EXECUTION_FAILED",
        phrases("""
        read-only file system | exec format error | transport not found | unknown transport | sandbox error | start sandbox | sandbox failed | wrongtype operation | execution failed | tool failed | tool error | exited with code | exit status | non-zero exit
    """),
    ),
    (
        "TOOL_CRASHED",
        phrases("""
        segmentation fault | core dumped | process crashed | process died | sigsegv | sigabrt
    """),
    ),
    ("TOOL_KILLED", phrases("sigkill", "sigterm", "process was killed", "process killed")),
)


@applies_when(reduce(or_, (group for _, group in _WORDS)))
def by_words(evidence: Evidence) -> Verdict | None:
    """The text has words that many programs use for the same failure."""
    code = evidence.first_match(_WORDS)
    return None if code is None else Verdict(code=code, weak=True)


# A failure with one of these words is not known, but it names a limit, a login or an invalidity. The same call would
# meet it again, and a retry could lock an account.
_LIMIT = phrases("""
    limit | quota | maximum | exceeded | exceeds | exhausted | too many | too long | too large | too big | allowance
    upgrade | subscription | credit | billing | payment | tomorrow | not eligible | ineligible | eligibility
""")
_LOGIN = phrases("""
    login | log in | logged in | sign in | signed in | signed out | logged out | authenticate | authentication
    authorize | authorization | reauthenticate | re-authenticate | credential | password | passphrase | access token
    api key | api token | inactive | not active | deactivated | blocked | banned | suspended | denied | prohibited
    not allowed | not permitted
""")
_INVALID = phrases("""
    invalid | illegal | malformed | unsupported | not supported | unrecognized | unrecognised | unknown option
    cannot use both | incorrect | not valid | must be | must not | is required | missing | mismatch | incompatible | cannot be used | bad value
    unexpected argument
""")
_ABSENT = phrases("does not exist", "not found", "no such")


def absent(evidence: Evidence) -> Verdict | None:
    """The code of a web service says what is missing: `channel_not_found`."""
    coded = evidence.status is None and any(code.endswith("_not_found") for code in evidence.codes)
    return Verdict(code="TOOL_FILE_NOT_FOUND", weak=True) if coded else None


@applies_when(_LIMIT | _LOGIN | _INVALID | _ABSENT)
def cautious(evidence: Evidence) -> Verdict | None:
    """The text names a limit, a login or an invalidity, and no rule knows more: it is not retried."""
    if evidence.matches(_INVALID) and not evidence.matches(_LIMIT | _LOGIN) and evidence.raised is None:
        return Verdict(code="PROVIDER_BAD_REQUEST", weak=True)
    if evidence.matches(_ABSENT) and not evidence.matches(_LIMIT | _LOGIN | _INVALID):
        return Verdict(code="TOOL_FILE_NOT_FOUND", weak=True)
    # Which limit and which login is not known, and a wrong guess would stop other calls with the same key.
    return Verdict(code="SYS_UNKNOWN", retryable=False, weak=True)


EARLY = (by_meaning,)
RULES = (absent, by_words, cautious)
