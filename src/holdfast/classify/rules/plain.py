"""The last rules: words that any program may use, then the words that forbid a retry of an unknown failure."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from holdfast.classify.evidence import Evidence, Verdict, applies_when
from holdfast.classify.phrases import phrases

if TYPE_CHECKING:
    from holdfast.classify.phrases import Phrases
    from holdfast.faults import Code

# These verdicts are weak: any program may use these words, so a cause or a status is always preferred.
_WORDS: tuple[tuple[Code, Phrases], ...] = (
    (
        "SYS_CANCELLED",
        phrases("""
        request was aborted | operation was aborted | user aborted | aborted by user | cancelled by user
        canceled by user | user interrupted | context canceled | operation was canceled
    """),
    ),
    (
        "TOOL_COMMAND_NOT_FOUND",
        phrases("""
        command not found | spawn npx enoent | executable file not found | is not recognized as an internal
        failed to create unified exec process | exec format error
    """),
    ),
    (
        "TOOL_FILE_NOT_FOUND",
        phrases("enoent", "no such file or directory", "cannot find the file", "cannot find the path"),
    ),
    (
        "TOOL_FORBIDDEN",
        phrases("""
        eacces | eperm | permission denied | operation not permitted | read-only file system
    """),
    ),
    ("SYS_RESOURCE_EXHAUSTED", phrases("enospc", "emfile", "no space left on device", "too many open files")),
    ("TOOL_OUT_OF_MEMORY", phrases("out of memory", "oomkilled")),
    (
        "PROVIDER_BAD_REQUEST",
        phrases("""
        invalid value for | bad request | invalid request | badly formatted | builder error | badscheme
        relative url without a base | invalid url | unsupported protocol | invalid argument | expected a string, got
        missing required | validation error | validation failed | could not process image | invalid input | invalid parameter | invalid params
    """),
    ),
    # The limits that a user set for an agent. They stand before the words of tools.
    (
        "TASK_LOOP_BOUND",
        phrases("iteration limit", "maximum iterations", "max iterations", "number of iterations", "number of steps"),
    ),
    ("TASK_TURNS_EXHAUSTED", phrases("max turns", "maximum turns", "number of turns")),
    ("TOOL_NOT_FOUND", phrases("transport not found", "unknown transport")),
    (
        "TOOL_EXECUTION_FAILED",
        phrases("""
        wrongtype operation | execution failed | tool failed | tool error | exited with code | exit status | non-zero exit
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
    not valid | must be | must not | is required | missing | mismatch | incompatible | cannot be used | bad value
    unexpected argument | does not exist | not found
""")


@applies_when(_LIMIT | _LOGIN | _INVALID)
def cautious(_: Evidence) -> Verdict | None:
    """The failure is unknown, but its text names a limit, a login or an invalidity: it is not retried."""
    return Verdict(code="SYS_UNKNOWN", retryable=False, weak=True)


RULES = (by_words, cautious)
