"""Turn text into evidence: a named exception, a log line, a traceback, the output of a process."""

from __future__ import annotations

import builtins
import re

from holdfast.classify.body import MAX_CHARS, read_body, without_frame
from holdfast.classify.evidence import UNKNOWN_EXIT, Evidence, Raised, Source, fold
from holdfast.classify.notices import without_notices
from holdfast.classify.phrases import PAGE, SECRETS, codes_in, find_phrases
from holdfast.classify.readers.responses import GRPC_NAMES
from holdfast.classify.times import UNIT

_TEXT_CHARS = 4_096
_HEAD_CHARS = 1_024
_STDERR_CHARS = 4_096
"""The end of stderr describes the failure; its beginning is often a banner."""

_NOT_COUNTED = (
    rf"(?!\s*(?:tokens|bytes|records|items|rows|results|files|lines|entries|objects|tests|errors|{UNIT}|\.\d))"
)
"""A number that counts something, or that has a unit, is no status."""
# A number is a status only next to a word such as "status": a bare number can mean anything (litellm#34954).
_STATUS = re.compile(
    r"(?:\b(?:(?<!\] )error|error code|status[ _]?code|http status|http error|(?<!exit )status|(?<!exit )code|http(?:/\d(?:\.\d)?)?|api error|client error|server error)"
    r"[\s:='\"(-]{1,4}|(?<!\.c)(?<!\.go)(?<!\.py)(?<!\.rs)\()([45]\d\d)\b"
    + _NOT_COUNTED
    + r"|\b(?:manifest|failed|request|upload|download|fetch): ([45]\d\d)\s*$|^([45]\d\d)(?:, message=| \{['\"])|(?:\b(?:server|api|request|response)\b[^\n:]{0,40}|error|exception): ([45]\d\d) (?=[A-Z][a-z]+ )|^\s*([45]\d\d)(?:\s+(?=[A-Z])|\s?[:-]\s(?=[\w{<\"]))|\btoo many ([45]\d\d) error responses"
    r"|\b(?:got|returned|received|respon(?:se|ded)(?: with)?|answered)(?: an?)?(?: http)?(?: status)?(?: code)?(?: error)?[ :=]{1,2}"
    r"([45]\d\d)\b"
    + _NOT_COUNTED
    + r"|\b(?:https?_?(?:status_?)?code|response_?code|status is|replied|failed with|rejected with)(?: an?)?(?: http)?['\"]?[\s:=]{1,3}"
    r"([45]\d\d)\b" + _NOT_COUNTED + r"|\bresponse from \S{1,80}?: ([45]\d\d)\b(?![\w.])"
    # Package managers put it behind the address, or into the name of the failure: `ERR_PNPM_FETCH_502`.
    r"|https?://\S+ - ([45]\d\d)\b|\b(?:delete|get|head|patch|post|put) \"?https?://\S+: ([45]\d\d)\b|\berr_\w*(?:fetch|http)\w*_([45]\d\d)\b"
    r"|\b([45]\d\d) (?:status code|bad |unauthori|forbidden|not found|too many|internal server|service unav|gateway time|payment req)",
    re.IGNORECASE | re.MULTILINE,
)
_THREE_DIGITS = re.compile(r"(?<!\d)[45]\d\d(?!\d)")
_ADDRESS = re.compile(r"https?://\S+|with url: \S+")
_COMMAND = re.compile(r"Command .{0,4000}? (?=returned non-zero exit status|died with )", re.DOTALL)
_AWS = re.compile(r"an error occurred \((\w+)\) when calling", re.IGNORECASE)
# A number is a gRPC status only if the text says "grpc": "exit status 7" is the exit code of a program.
_GRPC = re.compile(
    r"(?:statuscode\.|status[ =]+)(" + "|".join(GRPC_NAMES[1:]) + r")\b|grpc[-_ ]status[:= ]+(\d{1,2}\b|\w+)",
    re.IGNORECASE,
)
_GRPC_WORDS = {name.replace("_", "").lower(): name.lower() for name in GRPC_NAMES[1:]} | {"canceled": "cancelled"}
# Go prints "code = Unavailable desc = …", Node.js "14 UNAVAILABLE: …", Connect "[unavailable] …".
_GRPC_CODE = re.compile(
    r"\bcode = (\w+) desc|^ERROR: \([\w.-]+\) ([A-Z_]{5,20}): |^(?:Error: )?\d{1,2} ([A-Z_]{5,20}): |^\[([a-z_]{5,20})\] "
)
_NAMED_EXCEPTION = re.compile(r"\b([A-Za-z]\w{3,60}Exception)\b")
_ERRNO = re.compile(r"[\[(](?:errno|winerror|os error) (-?\d{1,5})[\])]", re.IGNORECASE)
_RPC = re.compile(r"(?:mcp error|code:?|error)\s*[:(]?\s*(-32\d{3})\b", re.IGNORECASE)
# The prefix allows the pipes and arrows that exception groups print.
_RAISED = re.compile(r"[\s|+-]{0,20}(?P<name>[A-Za-z_][\w.]{1,199})(?::\s?(?P<text>.*))?", re.DOTALL)
_LOG_PREFIX = re.compile(
    r"\A\s*(?:\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d\S*\]?|\[?\d\d:\d\d:\d\d\S*\]?)[\s|-]+"
    r"(?:\[?(?:trace|debug|info|notice|warn|warning|error|err|fatal|critical|severe|panic)\b\]?[\s:|-]*)?"
    r"(?:\[[\w.:/ -]{1,60}\][\s:|-]*|(?!\S+\.(?:lock|json|toml|ya?ml|txt|py|js|ts|go|rs|sh): )"
    r"(?-i:[a-z_][a-z0-9_]*(?:\.[a-z_][a-z0-9_]*)+)(?<!error)(?<!exception): )?",
    re.IGNORECASE,
)
"""The time, the level and the logger that a log puts before a message. They say nothing about the failure."""
_CAUSE = re.compile(
    r"\b(?:caused by|root cause|underlying error|nested exception is)\b:?\s*|\[cause\]:\s*", re.IGNORECASE
)
_CAUSE_CHARS = 500
_LEAF = re.compile(r"[╰└]─+▶ (.*?)(?=\n *\n|\n *help: |\Z)", re.DOTALL)
"""The innermost cause of the tree that miette prints, for uv, pixi and other programs in Rust."""
_TRACEBACK = "Traceback (most recent call last)"
_CAUSED = "The above exception was the direct cause of the following exception:"
_MAX_CHAIN = 12
_NOT_RAISED = ("error", "warning", "info", "debug", "fatal", "http", "https")
"""Log lines begin with these words and a colon. They look like the name of an exception class, but are not."""


def read_named(
    module: str,
    type_name: str,
    message: str,
    *,
    names: tuple[str, ...] = (),
    errno: int | None = None,
    status: int | None = None,
    headers: dict[str, str] | None = None,
    exit_code: int | None = None,
    provider: str = "",
    now: float | None = None,
    source: Source = Source.EXCEPTION,
) -> Evidence:
    """Return the evidence of an exception whose class is `module.type_name`."""
    message = message[:MAX_CHARS]
    found = read_body(message)
    # A class name is a machine code too: AWS and gRPC name their classes after their codes.
    codes = [*reversed(found.codes), *_codes_in(message), type_name.lower()]
    text = _text_of(message, found.messages)
    if text.isidentifier():
        # The whole message is one word, such as `overloaded_error`: it is a code.
        codes.append(text.lower())
    # Addresses and command lines are removed. `/v1/moderations` in an address does not mean a content policy, and a
    # command line shows what was run, not what failed.
    prose = _ADDRESS.sub(" ", _COMMAND.sub("", text, count=1) if type_name == "CalledProcessError" else text)
    # Libraries often keep the errno only in their text: "[Errno 111] Connection refused".
    number = errno if errno is not None else _errno_in(message)
    folded = fold(prose)
    matched = find_phrases(folded) | codes_in(codes) | (PAGE if found.html else 0) | (SECRETS if "://" in text else 0)
    return Evidence(
        source=source,
        provider=provider.lower(),
        status=status if status is not None else found.status or _status_in(message),
        headers=headers or {},
        codes=tuple(codes),
        message=text,
        text=folded,
        matched=matched,
        delays=tuple(found.delays),
        resets=tuple(found.resets),
        html=found.html,
        raised=Raised(module, type_name, names or _bases(module, type_name), number) if type_name or number else None,
        exit_code=exit_code,
        rpc_code=_rpc_code_in(message),
        now=now,
    )


def read_text(
    text: str, *, provider: str = "", now: float | None = None, source: Source = Source.TEXT
) -> list[Evidence]:
    """Return the evidence of a log line, a traceback or a JSON error.

    A chained traceback gives one item per exception, outermost first.
    """
    text = without_frame(_LOG_PREFIX.sub("", text[-MAX_CHARS:], count=1))
    parts = text.split(_CAUSED)
    inside = [] if len(parts) > 1 or _TRACEBACK in text else named_causes(text)
    return [
        *(read_named(*split_traceback(cause), provider=provider, now=now, source=source) for cause in inside),
    ] + [
        read_named(*split_traceback(part), provider=provider, now=now, source=source)
        for part in reversed(parts[-_MAX_CHAIN:])
    ]


def read_process(exit_code: int | None, stderr: str = "", *, provider: str = "", now: float | None = None) -> Evidence:
    """Return the evidence of a process that ended with `exit_code` (negative: killed by that signal)."""
    # A program prints a log before it ends: a traceback, a status, a JSON error, or plain words.
    module, name, message = split_traceback(without_notices(stderr[-_STDERR_CHARS:]))
    if exit_code is None and stderr.strip():
        # What a program printed means the same whether or not somebody kept its exit code.
        exit_code = UNKNOWN_EXIT
    return read_named(module, name, message, exit_code=exit_code, provider=provider, now=now, source=Source.PROCESS)


def read_output(
    exit_code: int | None, stderr: str = "", *, provider: str = "", now: float | None = None
) -> list[Evidence]:
    """Return the evidence of a process: of the cause that its output names, if any, then of the whole output."""
    inside = [] if _TRACEBACK in stderr else named_causes(stderr[-_STDERR_CHARS:])
    return [read_process(exit_code, text, provider=provider, now=now) for text in (*inside, stderr)]


def named_causes(text: str) -> list[str]:
    """Return the causes that a text names after "caused by" and the like, innermost first. Java, Node.js and Rust print them."""
    if "─▶" in text:
        return [leaf[:_CAUSE_CHARS].strip() for leaf in _LEAF.findall(text)[-1:]]
    if (
        "cause" not in text
        and "Caused" not in text
        and "underlying error" not in text
        and "nested exception" not in text
    ):
        # Most texts name none, and the pattern is slow.
        return []
    *_, last = _CAUSE.split(text) if _CAUSE.search(text) else [""]
    # Rust numbers its causes; the last one is the innermost.
    *_, innermost = re.split(r"^\s+\d+: ", last, flags=re.MULTILINE)
    cause = innermost.strip()[:_CAUSE_CHARS].strip("\"'()[]{} ")
    return [cause] if cause else []


def split_traceback(text: str) -> tuple[str, str, str]:
    """Return module, class and message of the exception that a traceback ends with; empty names for other text."""
    stripped = text.strip()
    _, traceback, after = stripped.rpartition(_TRACEBACK)
    lines = after.splitlines() if traceback else stripped.splitlines()
    for index, line in enumerate(lines):
        # The frames are indented. The first line that is not indented names the exception, whatever is logged after it.
        if traceback and (index == 0 or line[:1] in (" ", "\t", "")):
            continue
        raised = _raised(line) if traceback or ":" in line or len(lines) == 1 else None
        if raised is not None:
            return (*raised[:2], "\n".join([raised[2], *lines[index + 1 :]]).strip())
        if not traceback:
            break
    return "", "", stripped


def _raised(line: str) -> tuple[str, str, str] | None:
    """Return module, class and text of a line that names an exception, `httpx.ConnectError: refused`."""
    match = _RAISED.fullmatch(line)
    if match is None or match["name"].lower() in _NOT_RAISED:
        return None
    module, _, name = match["name"].rpartition(".")
    # Python's classes begin with a capital letter. `socket.gaierror` and a few others are known by their ending.
    if not name[:1].isupper() and not name.endswith(("error", "exception")):
        return None
    if name.isupper():
        # This is a variable such as `OPENAI_API_KEY: …`, not a class.
        return None
    return module or "builtins", name, match["text"] or ""


def _bases(module: str, type_name: str) -> tuple[str, ...]:
    """Return the class and, for Python's own exceptions, its bases."""
    known = getattr(builtins, type_name, None) if module in ("", "builtins", "exceptions") else None
    if isinstance(known, type) and issubclass(known, BaseException):
        return tuple(cls.__name__ for cls in known.__mro__ if cls is not object)
    return (type_name,)


def _text_of(message: str, parts: list[str]) -> str:
    """Return the innermost message, then the whole text, so that phrases around the message still count."""
    inner = [part for part in reversed(parts) if part is not message and part != message]
    # A line that is nothing but JSON has no words around its message, only the names of its other fields.
    whole = [] if inner and message[:1] == "{" and message.rstrip()[-1:] == "}" else [message]
    text = "\n".join([*inner, *whole])
    # The beginning of a long log shows what the program tried. The end shows how it failed.
    return text if len(text) <= _TEXT_CHARS else f"{text[:_HEAD_CHARS]}\n{text[_HEAD_CHARS - _TEXT_CHARS :]}"


def _codes_in(message: str) -> list[str]:
    """Return the codes that botocore and gRPC write into their text."""
    aws, grpc = _AWS.search(message), _GRPC.search(message)
    codes = [] if aws is None else [aws[1].lower()]
    if "Exception" in message:
        # The SDKs of AWS in Go and Rust put the name of the exception anywhere into a sentence.
        codes += [name.lower() for name in _NAMED_EXCEPTION.findall(message[:2_048])[:4]]
    coded = _GRPC_CODE.search(message[:2_048])
    if coded is not None:
        # `grpc:` marks a status that the text itself calls one: the plain word may come from any JSON body.
        word = _GRPC_WORDS.get(next(filter(None, coded.groups())).replace("_", "").lower())
        codes += [word, f"grpc:{word}"] if word is not None else []
    if grpc is not None:
        word = (grpc[1] or grpc[2]).lower()
        if not word.isdigit():
            codes.append(word)
        elif int(word) < len(GRPC_NAMES):
            codes.append(GRPC_NAMES[int(word)].lower())
    return codes


def _status_in(message: str) -> int | None:
    """Return the last status that a text names: in a chain of causes the innermost stands last."""
    if _THREE_DIGITS.search(message, 0, 2_048) is None:
        # Most texts have none, and the pattern is slow.
        return None
    found = [next(group for group in match.groups() if group) for match in _STATUS.finditer(message[:2_048])]
    return int(found[-1]) if found else None


def _rpc_code_in(message: str) -> int | None:
    match = _RPC.search(message[:2_048]) if "-32" in message else None
    return int(match[1]) if match else None


def _errno_in(message: str) -> int | None:
    match = _ERRNO.search(message[:2_048])
    return int(match[1]) if match else None
