"""Rules for processes: exit codes, signals, and the text on stderr."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from holdfast.classify.evidence import Evidence, Source, Verdict, applies_when
from holdfast.classify.guesses import healing
from holdfast.classify.phrases import class_names, codes, find_late, find_phrases, late_phrases, names, phrases
from holdfast.classify.sentences import OTHER_NAME
from holdfast.classify.words import Words

if TYPE_CHECKING:
    from holdfast.classify.phrases import Phrases
    from holdfast.faults import Code

_LISTED = Words("process")

_CRASHES = frozenset({4, 5, 6, 7, 8, 11, 31})
"""SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGSYS."""


def _printed(text: str) -> Phrases:
    """Declare what a program prints: phrases, and the codes of gRPC that it names."""
    lines = text.split("\n")
    codes_of_grpc = " ".join(line for line in lines if line.startswith("grpc:"))
    return codes(codes_of_grpc, phrases("\n".join(line for line in lines if not line.startswith("grpc:"))))


_STDERR: tuple[tuple[Code, Phrases], ...] = _LISTED.table("stderr", _printed)

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
_REPORT = phrases(_LISTED["report"]) | codes("cypresserror assertionerror comparisonfailure")
_FAILED_TESTS = re.compile(
    r"\b\d+ (?:failed|failing|failures?)\b.{0,60}\b(?:passed|total|tests?|run)\b|--- fail: |^\s*\d+ failed\s*$|^failed \S+::|\bfailures: \d|\b\d+ examples?, \d+ failures?\b"
    r"|\bfailed examples:|\bthere (?:was|were) \d+ (?:errors?|failures?):"
    # A place in a source: file, line, column.
    r"|^[\w./@+\\-]+\.[a-z]\w{0,6}[:(]\d+[:,]\d+\)?: ",
    re.MULTILINE,
)
_SERVER = phrases(_LISTED["server"])
_BUSY = phrases("text file busy")
_TOO_LONG = phrases("argument list too long", "arg list too long")
# The file may be run, but it is no program of this machine.
_NOT_A_PROGRAM = phrases("exec format error", "cannot execute binary", "bad interpreter", "is a directory")
_DEFECTS = class_names(_LISTED["defects"])
_PROCESS_CLASSES = class_names("CalledProcessError SubprocessError ProcessError")
_MEMORY = phrases("out of memory", "heap limit", "bad_alloc")
_USAGE = phrases("usage:", "unknown option", "unknown switch", "is not a git command")
# A model or a batch does not fit this graphics card, however often it is tried.
_GPU = phrases(_LISTED["gpu"])


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
_CURLS: dict[str, Code] = _LISTED.lookup("curls")  # fmt: skip
"""What curl's numbers mean that mean one thing. 22 is a status, 35 and 56 are whatever the text says."""


@applies_when(phrases(_LISTED["curl_number"]))
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
_IN_THE_WAY = phrases(_LISTED["in_the_way"])


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


_DOWNLOAD = late_phrases(_LISTED["download"])
_ITS_OWN_REASON = late_phrases(_LISTED["its_own_reason"])


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


_NO_GUESS = late_phrases(_LISTED["no_guess"])


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
