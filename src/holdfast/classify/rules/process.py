"""Rules for processes: exit codes, signals, and the text on stderr."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from holdfast.classify.evidence import Evidence, Source, Verdict, applies_when
from holdfast.classify.guesses import healing
from holdfast.classify.phrases import class_names, codes, find_late, find_phrases, late_phrases, names, phrases
from holdfast.classify.sentences import OTHER_NAME

if TYPE_CHECKING:
    from holdfast.classify.phrases import Phrases
    from holdfast.faults import Code

_CRASHES = frozenset({4, 5, 6, 7, 8, 11, 31})
"""SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGSYS."""
_STDERR: tuple[tuple[Code, Phrases], ...] = (
    (
        "TOOL_OUT_OF_MEMORY",
        phrases("""
        heap out of memory | out of memory | outofmemoryerror | heap space | cannot allocate memory | memoryerror
        oom-kill… | oomkilled | bad_alloc
        allowed memory size | exceeding memory limits
    """),
    ),
    ("SYS_RESOURCE_EXHAUSTED", phrases("no space left on device", "disk quota exceeded", "too many open files")),
    (
        "TOOL_CRASHED",
        phrases("""
            segmentation fault | core dumped | illegal instruction | bus error | abort trap | fatal python error
            java runtime environment
            stack smashing | double free | heap corruption | free(): invalid | 0xc0000005 | exc_bad_access
            access violation | signal: killed
            signal: sigkill | killed signal | process was killed | disappeared unexpectedly | stopped unexpectedly
            exited unexpectedly | may have been killed | may have crashed
            interrupted by sigkill | signal=sigkill | signal: sigkill | worker was lost | worker process was
            receive message from renderer
        """)
        | phrases(
            "browser has been closed",
            "target closed",
            "page crashed",
            "page crash",
            "chrome not reachable",
            "connected to devtools",
        )
        | phrases("terminated abruptly"),
    ),
    ("PROVIDER_CONTEXT_OVERFLOW", phrases("output token maximum", "has hit a token limit")),
    # This stands before the file errors: the shell reports E2BIG with the name of the program.
    ("TOOL_INPUT_TOO_LARGE", phrases("argument list too long")),
    (
        "TOOL_COMMAND_NOT_FOUND",
        phrases("""
        command not found | is not recognized as an internal | executable file not found
        : not found | cannot execute: | cannot execute binary | cannot execute required
    """),
    ),
    (
        "TOOL_FORBIDDEN",
        phrases("""
        permission denied | operation not permitted | eacces | eperm | access is denied
    """),
    ),
    # Windows names the pipe of a program that does not run as a missing file.
    # Elsewhere its socket is the file that is missing.
    (
        "CONN_REFUSED",
        phrases(
            "pipe/docker_engine",
            "dial unix",
            "connect enoent",
            "on that socket",
            ".sock: connect",
            "is the server running",
        ),
    ),
    ("CONN_DNS_FAILED", phrases("getaddrinfo enoent")),
    (
        "TOOL_FILE_NOT_FOUND",
        phrases(
            "no such file or directory",
            "enoent",
            "cannot find the path",
            "cannot find the file",
            "could not resolve to a",
            "from server (notfound)",
            "repository not found",
        )
        | codes("grpc:not_found"),
    ),
    (
        "TOOL_RESOURCE_BUSY",
        phrases("""
        resource busy | text file busy | index.lock | unable to lock | could not get lock | database is locked
        currently holding | failed to lock | could not lock | unable to lock | is updating it | being updated by
        rehashing of slot | tryagain | execution context was destroyed | frame was detached | page is navigating | stale element
        resource temporarily unavailable | currently unable to handle the request
        0x80070020
        interrupted system call | resource deadlock avoided | did not receive an exit event | disruption budget | cannot be upgraded while
        waiting for file lock | exit handler never called | error with npm itself | mount point busy | device offline | hash sum mismatch | file has unexpected size | mirror sync in progress | target is busy | device is busy
    """),
    ),
    # gRPC's codes stand before the words, because the words after them are any text of the server.
    ("PROVIDER_UNAVAILABLE", codes("grpc:unavailable grpc:aborted grpc:internal")),
    (
        "TOOL_TIMEOUT",
        codes("grpc:deadline_exceeded")
        | phrases("""
        unable to return a response in the time allotted | context deadline exceeded | client.timeout exceeded
        did not complete within | operation timed out | request timed out | network timeout | read timed out | statement timeout
        sending signal term to | lock timeout | exceeded time limit | time limit exceeded | in the allotted time | in time | watch closed before
        """),
    ),
    ("CONN_REFUSED", phrases("econnrefused", "connection refused")),
    (
        "CONN_DNS_FAILED",
        phrases("""
        getaddrinfo() thread failed | could not resolve host | name resolution | eai_again
        name or service not known | enotfound | server misbehaving | temporary failure resolving
    """),
    ),
    ("CONN_TIMEOUT", phrases("etimedout", "connection timed out", "i/o timeout", "timeout was reached")),
    (
        # This stands last: command line agents print network words for many reasons. Such a failure is retried only
        # once.
        "ACTOR_CLI_NETWORK",
        phrases("""
        econnreset | socket hang up | fetch failed | network is unreachable | connection reset | connection error
        network error | unable to access 'http | failed to connect | early eof
        remote end hung up | closed by remote host | kex_exchange_identification | send disconnect | empty reply from server
        transfer closed with | connection was reset | ssl_error_syscall | not closed cleanly | client connection lost
        all mirrors were tried | fetch some archives | too many connection resets | failed to open tcp connection
        premature end of content-length | premature end of chunk… | premature eof | premature close | unexpected eof while reading
        goaway | transport is closing | connection broken by | must be downloaded again | expected flush | index-pack failed | terminated the handshake
        failure when receiving data | recv failure | error in the pull function | error in the push function | will reconnect
        'content-length' header
        unable to access index for | cannot open url
        unable to load the service index | bad response from
    """),
    ),
)

_EOF = re.compile(
    r"(?:\b(?:get|post|put|head|patch|delete|dial\w*|backend|upstream|connect\w*|transport|handshake)\b[^\n]{0,200}|\b(?:unexpected|early|read))[: ]+eof\s*$",
    re.MULTILINE,
)
"""Go prints `Get "https://…": EOF` if the server closed the connection without an answer. A shell that lacks a quote
prints "unexpected EOF while looking for…", so the line must end there."""
_SHORT = 1_500
"""A longer output is a log, which misses things for many reasons."""
_SIGNALLED = re.compile(
    r"\bsig(?:kill|segv|abrt|bus|ill|term)\b|\bsignal:? (?:4|6|7|9|11|15)\b"
    r"|\b\d{2,7} killed\b|^killed\s*$"
    r"|\bexit(?:ed)?\W{1,2}(?:with )?(?:status|code)?\W{0,2}(?:134|137|139|143)\b"
)
"""A program reports that a signal ended the program that it ran."""
_KILLED = re.compile(
    r"\bkilled \(program \w+\)|\bkilled signal terminated program\b|\bterminated (?:with|by) signal 9\b|\bfailed due to signal 9\b|\] killed\s*$"
    r"|\(signal: 9, sigkill|\bmemory exhausted\b",
    re.MULTILINE,
)
"""A compiler, a linker or make reports that one of its own programs was killed. What else they report follows from that."""
_WARNINGS = re.compile(r"^warning: [^\n]*\n", re.MULTILINE)
_WARNED_ABOUT = names("TOOL_FORBIDDEN TOOL_FILE_NOT_FOUND TOOL_COMMAND_NOT_FOUND")
_GONE = re.compile(r"\b404 +not found\b")
"""What a program wanted to download is not there. The network words around it are advice."""
_LESS_EXACT = names("""
    CONN_REFUSED CONN_DNS_FAILED CONN_TIMEOUT ACTOR_CLI_NETWORK TOOL_FORBIDDEN TOOL_COMMAND_NOT_FOUND TOOL_FILE_NOT_FOUND
""")
# The tool did its work and found a defect. Its report may quote any word, also those of a network.
_REPORT = phrases("""
    failed to launch the browser | assertionerror | tests failed | test failed | failing tests | short test summary | could not compile
    compilation failed | syntax error | syntaxerror | lint errors | expect(received) | assertion failed | assertion error
    test suites: | test files
    cypresserror | failed to resolve import | can't resolve '. | cannot find name | undefined name | arguments are required
    unrecognized arguments | unexpected argument | unknown option
    lockfile would have been | lockfile is frozen | unknown flag | invalid option | unrecognized option | unknown shorthand flag | test results: | failing test
    illegal option | expected old/new/ref | cannot find symbol | undeclared identifier | is not assignable to | undefined reference to
""") | codes("cypresserror assertionerror comparisonfailure")
_FAILED_TESTS = re.compile(
    r"\b\d+ (?:failed|failing|failures?)\b.{0,60}\b(?:passed|total|tests?|run)\b|--- fail: |^\s*\d+ failed\s*$|^failed \S+::|\bfailures: \d|\b\d+ examples?, \d+ failures?\b"
    r"|\bfailed examples:|\bthere (?:was|were) \d+ (?:errors?|failures?):"
    # A place in a source: file, line, column.
    r"|^[\w./@+\\-]+\.[a-z]\w{0,6}[:(]\d+[:,]\d+\)?: ",
    re.MULTILINE,
)
_SERVER = phrases("""
    service is not ready | server not ready | server is not ready | cluster is not ready | not ready yet | still provisioning
    could not reserve resource | to fulfill request | to fulfill the request | insufficient cpu | no nodes available | no nodes are available | nodes are available:
    is not responding | not healthy | unhealthy node | no healthy | runtime is down | internal error encountered
    service is down | outage | inaccessible | congested | degraded | unresponsive | scheduled maintenance
    not master | low on resource | server is down | backend is down
    upstream connect error | no healthy upstream | service unavailable | bad gateway | temporarily unavailable | may be down | internal server error | server error
    server is busy | server busy | service is unavailable | temporarily down | overloaded | server is overloaded
    waiting to start | containercreating | podinitializing | while executing your query | went wrong on our | due to maintenance | under maintenance | for maintenance | unavailable: io | brokers are down | _all_brokers_down | an error on the server | internal error has occurred | internal error occurred
""")
_BUSY = phrases("text file busy")
_TOO_LONG = phrases("argument list too long", "arg list too long")
# The file may be run, but it is no program of this machine.
_NOT_A_PROGRAM = phrases("exec format error", "cannot execute binary", "bad interpreter", "is a directory")
_DEFECTS = class_names("""
    LookupError AttributeError NameError ImportError AssertionError SyntaxError ArithmeticError ReferenceError RecursionError
    UnicodeError UnicodeDecodeError UnicodeEncodeError
""")
_PROCESS_CLASSES = class_names("CalledProcessError SubprocessError ProcessError")
_MEMORY = phrases("out of memory", "heap limit", "bad_alloc")
_USAGE = phrases("usage:", "unknown option", "unknown switch", "is not a git command")
# A model or a batch does not fit this graphics card, however often it is tried.
_GPU = phrases(
    "cuda out of memory", "cuda error: out of memory", "cudamalloc", "hip out of memory", "insufficient vram"
)


@applies_when(local=True)
def missing_program(evidence: Evidence) -> Verdict | None:
    """The program itself could not be started."""
    if evidence.source is Source.PROCESS and evidence.named("FileNotFoundError"):
        return Verdict(code="TOOL_COMMAND_NOT_FOUND")
    return None


@applies_when(local=True)
def signals(evidence: Evidence) -> Verdict | None:
    """The process was killed or crashed: the exit code is negative, or 128 + n from a shell."""
    code = evidence.exit_code
    if code is None:
        return None
    signal = -code if code < 0 else code - 128 if 128 < code < 166 else None
    if signal is None or signal in (2, 127) or (code == 129 and evidence.matches(_USAGE)):
        # Ctrl-C is a cancellation. Many programs return 255 (128 + 127) for any error, so it is not a signal, and git 129 for
        # a wrong option.
        return None
    if evidence.matches(_GPU):
        return Verdict(code="PROVIDER_OUT_OF_MEMORY")
    if evidence.matches(_MEMORY):
        return Verdict(code="TOOL_OUT_OF_MEMORY")
    return Verdict(code="TOOL_CRASHED" if signal in _CRASHES else "TOOL_KILLED")


@applies_when(local=True)
def shell_codes(evidence: Evidence) -> Verdict | None:
    """The exit code is one of the shell's own: 124 timeout, 126 cannot execute, 127 not found."""
    match evidence.exit_code:
        case 124:
            return Verdict(code="TOOL_TIMEOUT")
        case 126 if evidence.matches(_TOO_LONG):
            return Verdict(code="TOOL_INPUT_TOO_LARGE")
        case 126 if evidence.matches(_NOT_A_PROGRAM):
            return Verdict(code="TOOL_EXECUTION_FAILED")
        case 126 if not evidence.matches(_BUSY):
            return Verdict(code="TOOL_FORBIDDEN")
        case 127:
            return Verdict(code="TOOL_COMMAND_NOT_FOUND")
    return None


@applies_when(phrases("killed | signal 9 | sigkill | memory exhausted\n"), local=True)
def killed_program(evidence: Evidence) -> Verdict | None:
    """A build tool reports that a program it ran was killed, nearly always for its memory."""
    process = evidence.source is Source.PROCESS and evidence.exit_code
    if not process or not _KILLED.search(evidence.text):
        return None
    return Verdict(code="TOOL_OUT_OF_MEMORY" if "memory" in evidence.text else "TOOL_KILLED")


@applies_when(local=True)
def report(evidence: Evidence) -> Verdict | None:
    """A tool did its work and reports what it found: tests that fail, code that does not compile."""
    if evidence.source is not Source.PROCESS or evidence.exit_code in (None, 0) or evidence.matches(_GPU):
        return None
    found = evidence.matches(_REPORT) or _FAILED_TESTS.search(evidence.text)
    return Verdict(code="TOOL_EXECUTION_FAILED") if found else None


_CURL = re.compile(
    r"(?:\bcurl: \(|\bcurl (?:error(?: code)?|code):? \(?|; curl |\bcurl\b[^\n]{0,200} exited with code )(\d{1,2})\b"
)
_CURLS: dict[str, Code] = {
    **dict.fromkeys(("1", "2", "3", "4", "19", "21", "23", "26", "27", "33", "37", "43", "45", "47", "48", "53", "54", "63"), "TOOL_EXECUTION_FAILED"),
    **dict.fromkeys(("66", "70", "73", "82", "83", "90", "91", "94", "98"), "TOOL_EXECUTION_FAILED"),
    **dict.fromkeys(("9", "67"), "AUTH_FAILED"),
    **dict.fromkeys(("51", "58", "59", "60", "77"), "CONN_TLS_HANDSHAKE_FAILED"),
    **dict.fromkeys(("5", "6"), "CONN_DNS_FAILED"),
    "7": "CONN_REFUSED",
    "12": "CONN_TIMEOUT",
    "28": "CONN_TIMEOUT",
    "78": "TOOL_FILE_NOT_FOUND",
    **dict.fromkeys(("8", "16", "18", "52", "55", "92", "95", "96"), "ACTOR_CLI_NETWORK"),
}  # fmt: skip
"""What curl's numbers mean that mean one thing. 22 is a status, 35 and 56 are whatever the text says."""


@applies_when(phrases("curl: (", "curl error", "curl code", "; curl", "curl failed", "bin/curl"))
def curl_number(evidence: Evidence) -> Verdict | None:
    """The number that curl printed, or a program that uses it. It says more than the sentence behind it, which differs from version to version."""
    found = _CURL.search(evidence.text) if evidence.status is None else None
    code = None if found is None else _CURLS.get(found[1])
    return None if code is None else Verdict(code=code)


_RSYNC = re.compile(r"^rsync (?:error|warning): [^\n]*\(code (\d{1,2})\)", re.MULTILINE)
_RSYNCS: dict[str, Code] = {
    **dict.fromkeys(("10", "12"), "ACTOR_CLI_NETWORK"),
    **dict.fromkeys(("30", "35"), "CONN_TIMEOUT"),
    "22": "TOOL_OUT_OF_MEMORY",
}
_IN_THE_WAY = phrases(
    "permission denied | no such file | no space left | command not found | not found | quota exceeded | unknown module | auth failed | publickey\n"
)


@applies_when(phrases("(code"), local=True)
def rsync_number(evidence: Evidence) -> Verdict | None:
    """The number that rsync ends with means what passes, unless a line before it names a reason that stays."""
    found = None if evidence.status or evidence.matches(_IN_THE_WAY) else _RSYNC.search(evidence.text)
    code = None if found is None else _RSYNCS.get(found[1])
    return None if code is None else Verdict(code=code)


@applies_when(local=True)
def stderr(evidence: Evidence) -> Verdict | None:
    """The text on stderr decides."""
    if evidence.source is not Source.PROCESS or evidence.exit_code in (None, 0):
        return None
    if evidence.matches(_GPU):
        return Verdict(code="PROVIDER_OUT_OF_MEMORY")
    code = evidence.first_match(_STDERR)
    if code in _WARNED_ABOUT and (warned := _WARNINGS.sub("", evidence.text)) != evidence.text:
        # The program went on after its warning. What it printed then is why it ended.
        code = msgspec.structs.replace(evidence, matched=find_phrases(warned)).first_match(_STDERR) or code
    if code is None and _SIGNALLED.search(evidence.text) and "panic:" not in evidence.text:
        # A panic of Go names the signal too, but it is a defect of the program.
        code = "TOOL_CRASHED"
    if code is None and _EOF.search(evidence.text):
        code = "ACTOR_CLI_NETWORK"
    if code == "CONN_DNS_FAILED" and OTHER_NAME.search(evidence.text):
        code = None
    if code == "ACTOR_CLI_NETWORK" and _GONE.search(evidence.text):
        return Verdict(code="TOOL_FILE_NOT_FOUND")
    if code in _LESS_EXACT and evidence.status is not None and evidence.status >= 400:
        # The server answered. Its status is more exact than what the program prints around it.
        return None
    return None if code is None else Verdict(code=code)


@applies_when(_SERVER, local=True)
def server_words(evidence: Evidence) -> Verdict | None:
    """A program printed that the server behind it is down or busy."""
    process = evidence.source is Source.PROCESS and evidence.exit_code and evidence.status is None
    return Verdict(code="PROVIDER_UNAVAILABLE") if process else None


_DOWNLOAD = late_phrases("""
    upload aborted | download aborted | transfer aborted | could not be downloaded | could not download | unknown blob
    failed to download | download failed | failed to fetch | error downloading | failed retrieving | blob upload unknown
    downloads failed | could not fetch | couldn't fetch
""")
_ITS_OWN_REASON = late_phrases("""
    not found | does not exist | no such | 404 | unsupported | not supported | invalid | checksum | signature | permission
    denied
    unauthorized | forbidden | no space | certificate | hash mismatch | not available for | is disabled | resource
""")


@applies_when(local=True)
def download(evidence: Evidence) -> Verdict | None:
    """A program could not download something and names no reason that would stay."""
    process = evidence.source is Source.PROCESS and evidence.exit_code and evidence.status is None
    late = find_late(evidence.text) if process else 0
    return Verdict(code="ACTOR_CLI_NETWORK") if late & _DOWNLOAD and not late & _ITS_OWN_REASON else None


@applies_when(phrases("manifest unknown | failed to find\n"), local=True)
def absent(evidence: Evidence) -> Verdict | None:
    """A program printed that what it was asked for is not there."""
    process = evidence.source is Source.PROCESS and evidence.exit_code and evidence.status is None
    return Verdict(code="TOOL_FILE_NOT_FOUND") if process and len(evidence.text) <= _SHORT else None


_NO_GUESS = late_phrases("usage | looking for matching | offline | archive | private | pipe | dependency failed\n")


@applies_when(local=True)
def passes(evidence: Evidence) -> Verdict | None:
    """A program printed a short text with a word for what passes, and none for what would stay."""
    process = evidence.source is Source.PROCESS and evidence.exit_code and evidence.status is None
    if not process or len(evidence.text) > _SHORT:
        return None
    late = find_late(evidence.text)
    code = None if late & _NO_GUESS else healing(evidence.text, evidence.matched, late)
    return None if code is None else Verdict(code=code)


@applies_when(local=True)
def exited(evidence: Evidence) -> Verdict | None:
    """Any other exit code means that the tool failed."""
    if evidence.status is not None:
        # The process printed a server's response, so the rules for the status decide.
        return None
    if evidence.exit_code is not None or evidence.named_in(_PROCESS_CLASSES):
        return Verdict(code="TOOL_EXECUTION_FAILED", carrier=evidence.source is Source.PROCESS)
    return None


@applies_when(local=True)
def defect_of_a_child(evidence: Evidence) -> Verdict | None:
    """A traceback on a child's stderr means a failed tool, not a defect in this program."""
    if evidence.source is not Source.PROCESS or evidence.raised is None:
        return None
    if evidence.named("MemoryError"):
        return Verdict(code="TOOL_OUT_OF_MEMORY")
    return Verdict(code="TOOL_EXECUTION_FAILED") if evidence.named_in(_DEFECTS) else None


# EARLY runs before the rules for Python classes, because a child's traceback is not ours.
EARLY = (defect_of_a_child, missing_program, signals, shell_codes, killed_program)
REPORT = (report,)
STDERR = (curl_number, rsync_number, stderr)
LATE = (server_words, download, absent, passes, exited)
