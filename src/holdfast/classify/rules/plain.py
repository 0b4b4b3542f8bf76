"""The last rules: words that any program may use, then the words that forbid a retry of an unknown failure."""

from __future__ import annotations

import re
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from holdfast.classify.concepts import FORBIDS_A_RETRY, INVALID, LIMIT, LOGIN, SUBSCRIPTION, turned_away
from holdfast.classify.evidence import Evidence, Source, Verdict, applies_when
from holdfast.classify.phrases import find_late, late_phrases, phrases
from holdfast.classify.sentences import LATER, LONGEST, NO_ANSWER, meaning
from holdfast.faults import Scope

if TYPE_CHECKING:
    from holdfast.classify.phrases import Phrases
    from holdfast.faults import Code


def by_meaning(evidence: Evidence) -> Verdict | None:
    """A sentence without a status says that a login, a connection or a lock is the reason, in whatever words."""
    if evidence.status is not None or evidence.source in _ANSWERS or len(evidence.text) > LONGEST:
        return None
    raised = evidence.raised
    if raised is not None and evidence.named("TypeError", "AttributeError", "KeyError", "InterfaceError"):
        return None
    code = meaning(evidence.text)
    if code == "CONN_RESET" and (turned_away(evidence) or evidence.matches(_USAGE)):
        code = None
    elif code == "CONN_RESET" and evidence.matches(_BY_HAND):
        code = "PROVIDER_BAD_REQUEST"
    elif code == "CONN_RESET" and evidence.matches(_ABSENT):
        # The connection failed because what was asked for does not exist: psql reports a missing database in this way.
        code = "TOOL_FILE_NOT_FOUND"
    elif code == "TOOL_RESOURCE_BUSY" and evidence.matches(_SERVING):
        code = "PROVIDER_UNAVAILABLE"
    if code is not None:
        return Verdict(code=code, weak=raised is not None)
    if evidence.exit_code is None and evidence.rpc_code is None and NO_ANSWER.search(evidence.text):
        return Verdict(code="PROVIDER_MALFORMED_RESPONSE", weak=raised is not None)
    # "In subscription x … please retry later": a subscription of Azure is a place and no plan.
    forbids = FORBIDS_A_RETRY & ~SUBSCRIPTION if evidence.matches(_ASKED) else FORBIDS_A_RETRY
    if not evidence.matches(forbids) and not evidence.named("ValueError") and LATER.search(evidence.text):
        return Verdict(code="PROVIDER_UNAVAILABLE", weak=raised is not None)
    return None


_ASKED = phrases(
    "please retry later | please try again later | please retry the operation | please retry the request\n"
)
_USAGE = phrases(
    "unknown option | unknown argument | unrecognized option | invalid option | unexpected argument | no such option\n"
)
_BY_HAND = phrases("you need to close", "you must close", "close all existing", "you need to stop")
"""A person must do something before the next attempt."""
_SERVING = phrases("server | service | provider | providers | model | backend | api | engine | database system\n")
_ANSWERS = frozenset({Source.HTTP, Source.SSE, Source.GRPC, Source.JSONRPC})


# These verdicts are weak: any program may use these words, so a cause or a status is always preferred.
_WORDS: tuple[tuple[Code, Phrases], ...] = (
    (
        "SYS_CANCELLED",
        phrases("""
        request was aborted | operation was aborted | user aborted | aborted by user | cancelled by user
        canceled by user | user interrupted | context canceled | operation was canceled | request cancelled | request canceled
        was cancelled | was canceled | turn aborted | invocation was aborted | call was aborted | run was aborted | command was aborted | request aborted
    """),
    ),
    (
        "TOOL_COMMAND_NOT_FOUND",
        phrases("""
        command not found | spawn npx enoent | executable file not found | executable doesn't exist
        is not recognized as an internal
        failed to create unified exec process
    """),
    ),
    (
        "TOOL_FILE_NOT_FOUND",
        phrases("""
        enoent | no such file or directory | cannot find the file | cannot find the path | cannot find context | no such element
        unable to locate element
    """),
    ),
    (
        "SYS_PROGRAMMING_ERROR",
        phrases("""
        cannot read properties of undefined | cannot read properties of null | object must be str | not nonetype
        is not a function
        object is not subscriptable | object is not iterable | object is not callable | object has no attribute | is not defined
        unsupported operand type | required positional argument | cannot read property | undefined is not | null pointer
        nil pointer
        nullpointerexception | index out of range | index out of bounds | list index out | not json serializable
        is not serializable | panicked at | write after end | after a stream was destroyed | headers after they are sent
        callback was already called | callback already called
        """),
    ),
    (
        "TOOL_FORBIDDEN",
        phrases("""
        eacces | eperm | permission denied | operation not permitted | no write permission | no read permission | no permission
        lacks permission | missing permission | insufficient permission | insufficient permissions | notcapable
    """),
    ),
    (
        "SYS_RESOURCE_EXHAUSTED",
        phrases("enospc", "emfile", "no space left on device", "too many open files", "space exceeded"),
    ),
    (
        "PROVIDER_OUT_OF_MEMORY",
        phrases("""
        cuda out of memory | cuda error: out of memory | cudamalloc | insufficient system resources | requires more system memory
        insufficient vram | not enough vram | out of gpu memory
    """),
    ),
    (
        "TOOL_EXECUTION_FAILED",
        phrases("""
        device-side assert | no kernel image | compiled with cuda | no nvidia driver | driver version is insufficient | no cuda gpus
        shared libraries | missing dependencies to run | library not loaded | is corrupt | is corrupted | are corrupted
    """),
    ),
    # A page that moves on while a program drives it stands still a moment later.
    (
        "TOOL_RESOURCE_BUSY",
        phrases("""
        page is navigating | execution context was destroyed | frame was detached | not attached to the page | stale element
        detached frame | element was detached | not attached to the dom | inspected target navigated
    """),
    ),
    (
        "TOOL_OUT_OF_MEMORY",
        phrases("out of memory", "oomkilled", "low on memory", "java heap space", "outofmemoryerror"),
    ),
    # This stands before the invalid requests: here the response is invalid.
    (
        "PROVIDER_MALFORMED_RESPONSE",
        phrases("""
        unexpected line format | empty response | empty or unparsable | empty or malformed | malformed response
        malformed_response | unparsable response
        no output generated | no object generated | unexpected api response | invalid api response | invalid response body
        not provide any assistant | no assistant messages | returned no content | returned an empty | could not parse llm
        failed to parse llm | parse the response | did not match schema | not valid json | invalid json response
        no response generated
        without valid content | stream was invalid | failed to generate valid | returned invalid json | 'choices' is not set
        incorrect header check | unexpected end of file | invalid block type | incorrect data check
        error: 'choices' | could not parse response | empty completion | returned invalid response | returned an invalid response
        choices=none | invalid error response | error response format
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
        missing required | validation error | validation failed | could not process image | invalid input
        invalid parameter | invalid params | unknown command | unknown slash command | unknown subcommand | no such command
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
        phrases(
            "max turns",
            "maximum turns",
            "number of turns",
            "number of actions",
            "session turns",
            "max_turns",
            "reflections allowed",
        ),
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
        string to replace not found | occurrences found for | has not been read yet | no match found for
        invalid arguments for tool
        old_string | oldstring | search block | failed to edit | string to replace | replace_all
        """),
    ),
    (
        "TOOL_CONNECTION_LOST",
        phrases("""
        client closed | not connected | transport closed | browser has been closed | target closed | browser closed
        page closed
        session closed | context closed
        """),
    ),
    (
        "TOOL_EXECUTION_FAILED",
        phrases("""
        read-only file system | refusing to | exec format error | transport not found | unknown transport | sandbox error | start sandbox
        sandbox failed | wrongtype operation | execution failed | tool failed | tool error | not locked | exited with code
        failed with exit code | not interactable | not clickable | click intercepted | strict mode violation | exit status | non-zero exit | session not created | failed to launch
    """),
    ),
    (
        "TOOL_CRASHED",
        phrases("""
        page crashed | tab crashed | renderer crashed | segmentation fault | core dumped | process crashed | process died | sigsegv | sigabrt | terminated unexpectedly
        exited unexpectedly | crashed unexpectedly
    """),
    ),
    ("TOOL_KILLED", phrases("sigkill", "sigterm", "process was killed", "process killed", "killed by signal")),
)


_EXITED = re.compile(r"\bexit(?:ed)?(?: with)? (?:status|code)[: ]+(-?\d{1,3})\b")


@applies_when(phrases("exit code", "exited with", "exit status"))
def exited_in_text(evidence: Evidence) -> Verdict | None:
    """A text quotes the exit code of a process that a signal ended."""
    found = _EXITED.search(evidence.text) if evidence.exit_code is None and evidence.status is None else None
    number = 0 if found is None else int(found[1])
    if number in (137, 143, -9, -15):
        return Verdict(code="TOOL_KILLED", weak=True)
    return Verdict(code="TOOL_CRASHED", weak=True) if number in (134, 139, -6, -11) else None


@applies_when(phrases("validation error", "validation failed", "validation hook failed"))
def of_validator(evidence: Evidence) -> Verdict | None:
    """A sentence that no service sent says that a check failed: what was checked is wrong, and stays so."""
    if evidence.status is not None or evidence.source in _ANSWERS or evidence.provider:
        return None
    return Verdict(code="TOOL_INPUT_INVALID", weak=True)


@applies_when(reduce(or_, (group for _, group in _WORDS)))
def by_words(evidence: Evidence) -> Verdict | None:
    """The text has words that many programs use for the same failure."""
    code = evidence.first_match(_WORDS)
    return None if code is None else Verdict(code=code, weak=True)


_ABSENT = phrases("does not exist", "not found", "no such")


def absent(evidence: Evidence) -> Verdict | None:
    """The code of a web service says what is missing: `channel_not_found`."""
    coded = evidence.status is None and any(code.endswith("_not_found") for code in evidence.codes)
    return Verdict(code="TOOL_FILE_NOT_FOUND", weak=True) if coded else None


_FAILED = late_phrases("""
    failed to | unable to | cannot | could not | couldn't | can't | error while | error reading | error writing
    error creating | failed
    error executing | error parsing | error opening | error loading | error | fail | fails | failure | exception | crash
    panic | aborting
""")


def failed_here(evidence: Evidence) -> Verdict | None:
    """A short text says that something could not be done, and names no reason to expect better next time."""
    plain = evidence.source is Source.TEXT and evidence.status is None and evidence.rpc_code is None
    unspecific = plain and not evidence.matches(FORBIDS_A_RETRY | _ABSENT) and len(evidence.text) < LONGEST
    named = unspecific and find_late(evidence.text) & _FAILED
    return Verdict(code="TOOL_EXECUTION_FAILED", weak=True) if named else None


_WRITTEN = frozenset({Source.TEXT, Source.EXCEPTION})
_DENIES = late_phrases("""
    no | not | none | nothing | never | cannot | can't | couldn't | isn't | aren't | doesn't | don't | wasn't | won't | unable
    must | should | only | already | without | but | instead | expected | wrong | requires | failed to | could not
""")


_MISTAKEN = late_phrases("""
    unexpected | expected | mutually exclusive | out of range | outside the | not both | conflicts with | conflicting | without a value | unknown
    unhandled | ambiguous | not a valid | is not a | is not an | is not one | not set | not specified | unset | unsupported | reserved | too small | too few
     at least | too late | need to | needs to | out of order | called with | disagree | more than once | does not match | doesn't match | do not match
     mismatch | complexity | redirects | duplicate | unresolved | has to be | restricted to
""")
_WITHOUT_SUCCESS = late_phrases("""
    uncommitted | not initialized | not initialised | not enabled | disappeared | superseded | cancelled | canceled | exists | already | conflict
    conflicts | violated | violation | unmerged | dirty | stale | incompatible | inconsistent | corrupted | broken | bad | wrong | refused | rejected
    lost | nothing | insufficient | deprecated | obsolete | unable
""")


def told(evidence: Evidence) -> Verdict | None:
    """A sentence says what is not so, must be so or is wrong, and names nothing that passes: it is not retried."""
    plain = evidence.source is Source.TEXT and evidence.status is None and evidence.rpc_code is None
    if not plain or len(evidence.text) > LONGEST or len(evidence.text.split(maxsplit=2)) <= 2:
        return None
    late = find_late(evidence.text)
    if late & _MISTAKEN or evidence.matches(LIMIT):
        return Verdict(code="PROVIDER_BAD_REQUEST", weak=True)
    return Verdict(code="TOOL_EXECUTION_FAILED", weak=True) if late & (_DENIES | _WITHOUT_SUCCESS) else None


def explained(evidence: Evidence) -> Verdict | None:
    """An exception says what is not so or must be so, and names nothing that passes: it is not retried.

    "The gripper lost item 7" only says what happened. That may go well the next time.
    """
    if evidence.raised is None or evidence.source not in _WRITTEN or len(evidence.text.split(maxsplit=2)) <= 2:
        return None
    return (
        Verdict(code="TOOL_EXECUTION_FAILED", weak=True)
        if find_late(evidence.text) & (_DENIES | _FAILED | _MISTAKEN)
        else None
    )


_ANSWERED_NO = re.compile(r"['\"]ok['\"]: ?false\b")


@applies_when(local=True)
def answered_no(evidence: Evidence) -> Verdict | None:
    """A web service answered `{"ok": false, "error": …}` with a code that no table lists. It did not accept the call."""
    return Verdict(code="PROVIDER_BAD_REQUEST", weak=True) if _ANSWERED_NO.search(evidence.text) else None


@applies_when(FORBIDS_A_RETRY | _ABSENT)
def cautious(evidence: Evidence) -> Verdict | None:
    """The text names a limit, a login or an invalidity, and no rule knows more: it is not retried."""
    if evidence.matches(INVALID) and not evidence.matches(LIMIT | LOGIN) and evidence.raised is None:
        return Verdict(code="PROVIDER_BAD_REQUEST", weak=True)
    if evidence.matches(_ABSENT) and not evidence.matches(FORBIDS_A_RETRY):
        return Verdict(code="TOOL_FILE_NOT_FOUND", weak=True)
    if evidence.raised is not None:
        return Verdict(code="TOOL_EXECUTION_FAILED", weak=True)
    if evidence.matches(LOGIN) and not evidence.matches(LIMIT):
        # Which login is not known. The verdict is about this call, so that it stops no other call with the same key.
        return Verdict(code="AUTH_FORBIDDEN", scope=Scope.REQUEST, weak=True)
    if evidence.matches(_OF_A_PLAN):
        return Verdict(code="PROVIDER_ENTITLEMENT_MISSING", scope=Scope.REQUEST, retryable=False, weak=True)
    if evidence.matches(_OF_A_QUOTA):
        return Verdict(code="PROVIDER_QUOTA_EXHAUSTED", scope=Scope.REQUEST, retryable=False, weak=True)
    # A size or a number that is too large is one of the request.
    return Verdict(
        code="PROVIDER_BAD_REQUEST" if evidence.matches(_OF_A_SIZE) else "SYS_UNKNOWN", retryable=False, weak=True
    )


_OF_A_SIZE = phrases("too long | too large | too big | too many | at most | no more than | exceeds | maximum\n")
_OF_A_QUOTA = phrases("quota", "allowance", "tomorrow")
_OF_A_PLAN = phrases("""
    upgrade | subscription | credit | billing | payment | free tier | paid plan | purchase | not eligible | ineligible | eligibility
    free plan
""")

_FILE_WORDS = phrases(
    "mkdir | unlink | rmdir | scandir | copyfile | lstat | symlink | rename | fsync | ftruncate | readlink | utime\n"
)
_FILE_CALL = re.compile(r"\b(e[a-z0-9]{3,}): [^\n]{0,80}, [a-z]+\b")
_PASSING_ERRNOS = frozenset({"ebusy", "eagain", "emfile", "enfile", "etxtbsy", "eintr", "estale", "etimedout"})


@applies_when(_FILE_WORDS)
def file_call(evidence: Evidence) -> Verdict | None:
    """Node prints the call of the operating system that failed: `EUCLEAN: unknown error, mkdir '/srv'`. Few of them pass."""
    call = _FILE_CALL.search(evidence.text) if evidence.status is None else None
    if call is None or call[1] in _PASSING_ERRNOS:
        return None
    return Verdict(code="TOOL_EXECUTION_FAILED")


EARLY = (file_call, by_meaning)
WORDS = (absent, exited_in_text, of_validator, by_words)
BEFORE = (answered_no,)
LAST = (failed_here, cautious, told, explained)
