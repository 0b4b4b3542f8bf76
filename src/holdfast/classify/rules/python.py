"""Rules for Python's own exceptions, and for exceptions of validation libraries and agent frameworks."""

from __future__ import annotations

import errno
import re
from typing import TYPE_CHECKING

from holdfast.classify.concepts import meant
from holdfast.classify.evidence import Evidence, Source, Verdict, applies_when, contains_any
from holdfast.classify.identifiers import IDENTIFIERS, identified
from holdfast.classify.names import code_of_name
from holdfast.classify.phrases import class_names, names, phrases
from holdfast.classify.words import Words
from holdfast.faults import Scope

if TYPE_CHECKING:
    from holdfast.faults import Code

_LISTED = Words("python")

_CLASSES: tuple[tuple[Code, frozenset[str]], ...] = _LISTED.table("classes", class_names)
_CUT_SHORT = class_names("LengthFinishReasonError IncompleteOutputException")
_KNOWN = _CUT_SHORT.union(class_names("JSONDecodeError"), *(classes for _, classes in _CLASSES))
"""Every class that `by_class` recognises. Most exceptions are not in this set, so one test skips the whole rule."""
# Several SDKs use the same names. Their verdicts are weak: a status or a body is more exact.
_SDK: tuple[tuple[Code, frozenset[str]], ...] = _LISTED.table("sdk", class_names)
_GENERAL = frozenset({"PROVIDER_UNAVAILABLE", "PROVIDER_INTERNAL_ERROR"})
_NEVER_HEALS = frozenset({
    "AUTH_FAILED", "AUTH_FORBIDDEN", "AUTH_REGION_BLOCKED", "PROVIDER_BILLING", "PROVIDER_ENTITLEMENT_MISSING",
    "PROVIDER_CONTEXT_OVERFLOW", "PROVIDER_MODEL_NOT_FOUND", "PROVIDER_CONTENT_POLICY",
})  # fmt: skip
_DEFECTS = class_names(_LISTED["defects"])
# Python raises RuntimeError for many reasons. These texts mean that the calling code is wrong.
_MISUSE = phrases(_LISTED["misuse"])
_INNER = re.compile(r"\braised (\w{3,80})>")
"""tenacity's RetryError prints the class of the last failure: `RetryError[<Future … raised RateLimitError>]`."""
_ERRNOS: dict[int, Code] = _LISTED.numbers("errnos")
# On macOS this number is one of the resolver's.
_RESOLVER = phrases("nodename nor servname", "getaddrinfo", "failed to establish a new connection")
_SOCKET = phrases("trying to connect", "unix socket")
_OS_CLASSES: tuple[tuple[Code, frozenset[str]], ...] = _LISTED.table("os_classes", class_names)
_TIMEOUTS = class_names("TimeoutError TooSlowError FunctionTimedOut TimeLimitExceeded SoftTimeLimitExceeded")
_DATABASE = class_names("DatabaseError OperationalError IntegrityError ProgrammingError InterfaceError DataError")
_DRIVERS = (
    "psycopg",
    "asyncpg",
    "sqlite3",
    "sqlalchemy",
    "pymysql",
    "mysql",
    "aiomysql",
    "pymongo",
    "redis",
    "oracledb",
)
"""Modules of database drivers. Their classes are named after SQLSTATEs: UndefinedColumn, UniqueViolation."""
_BAD_ARGUMENTS = phrases(_LISTED["bad_arguments"])
# Reading one of these keys from a response that lacks it raises KeyError: the response is broken, not the code. Only keys
# that no other data has: 'content' and 'message' are in every program's own dictionaries, where a KeyError is a defect.
_ANSWER_KEYS = ("'choices'", "'candidates'")

_LOCKED = phrases(_LISTED["locked"])
_NO_SLOT = phrases(_LISTED["no_slot"])
# The server itself is not there yet, or not any more.
_BETWEEN = phrases(_LISTED["between"])
_NO_ANSWER = phrases(_LISTED["no_answer"])
# Gemini's SDK names the reason by number: 2 the output limit, 3 safety, 4 recitation, 8 and above further filters.
_FINISHED_FOR_SAFETY = re.compile(r"finish_reason\W.{0,120}?\bis ([34]|8|9|1\d)\b", re.DOTALL)
_SAFETY = phrases("quick accessor")
_NO_MODEL = phrases(_LISTED["no_model"])
_EMPTY_REQUEST = phrases(_LISTED["empty_request"])
_CHOICE = phrases(_LISTED["choice"])
_LOGIN = phrases(_LISTED["login"])
# JavaScript reports an address or a header that it cannot send as a TypeError.
_ADDRESS = phrases("failed to parse url", "invalid url", "invalid header value", "only absolute urls")
_UNSET = phrases(_LISTED["unset"])
_VARIABLE = re.compile(r"\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b")
_VARIABLE_OF_A_KEY = re.compile(r"_(?:KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS)\b")
_LONG_LINE = phrases("chunk is longer than limit", "separator is not found")


@applies_when(local=True)
def defects(evidence: Evidence) -> Verdict | None:
    """These classes mean a defect, whatever their text quotes.

    A missing key of a provider's response is not a defect.
    """
    if evidence.named_in(_DEFECTS):
        if evidence.named("KeyError") and (
            evidence.text.strip() in _ANSWER_KEYS or "response missing" in evidence.text
        ):
            return Verdict(code="PROVIDER_MALFORMED_RESPONSE")
        if evidence.named("SyntaxError") and "json" in evidence.text:
            # JavaScript's JSON.parse raises a SyntaxError: the body was cut or is a web page.
            return Verdict(code="PROVIDER_MALFORMED_RESPONSE")
        # xml's ParseError is about a foreign document, although Python derives it from SyntaxError.
        return None if evidence.named("ParseError") else Verdict(code="SYS_PROGRAMMING_ERROR")
    if evidence.matches(_MISUSE) and evidence.named("RuntimeError"):
        return Verdict(code="SYS_PROGRAMMING_ERROR")
    return None


@applies_when(local=True)
def own_words(evidence: Evidence) -> Verdict | None:
    """The failure is one of pydantic-ai itself. Its text may quote limits that are not a provider's."""
    raised = evidence.raised
    if raised is None or not raised.module.startswith("pydantic_ai"):
        return None
    if raised.type == "UsageLimitExceeded":
        return Verdict(code="SYS_BUDGET_EXHAUSTED")
    return Verdict(code="TOOL_EXECUTION_FAILED") if raised.type in {"ToolFailed", "ToolFailedError"} else None


@applies_when(local=True)
def plain_timeout(evidence: Evidence) -> Verdict | None:
    """A TimeoutError without an errno may come from asyncio, a socket or anything else. Its text adds nothing."""
    raised = evidence.raised
    plain = raised is not None and raised.type == "TimeoutError" and raised.errno is None
    return Verdict(code="SYS_TIMEOUT") if plain and evidence.status is None else None


_NOT_THE_CLASS = phrases(_LISTED["not_the_class"])


@applies_when(local=True)
def by_class(evidence: Evidence) -> Verdict | None:
    """The class names one failure, in the standard library or in a framework."""
    raised = evidence.raised
    if raised is None or not evidence.named_in(_KNOWN):
        return None
    if raised.type == "APIResponseValidationError":
        return Verdict(code="PROVIDER_MALFORMED_RESPONSE")
    if evidence.named_in(_CUT_SHORT):
        # The output limit was reached. The same request would reach it again.
        return Verdict(code="PROVIDER_OUTPUT_INVALID", retryable=False)
    if evidence.named("JSONDecodeError"):
        return _undecodable(evidence)
    if evidence.matches(_NOT_THE_CLASS):
        # A class for everything that a user or a model did wrong. The text names another reason.
        return None
    for code, classes in _CLASSES:
        if not classes.isdisjoint(raised.names):
            return Verdict(code="TOOL_INPUT_INVALID", weak=True) if _of_another(evidence, code) else Verdict(code=code)
    return None


_OF_MODELS = names("""
    pydantic pydantic_core pydantic_ai msgspec jsonschema json simplejson orjson ujson langchain langchain_core langchain_openai
    langchain_anthropic langgraph llama_index instructor openai anthropic google vertexai litellm outlines guidance guardrails dspy marvin
    magentic smolagents autogen autogen_core crewai agno haystack semantic_kernel agents com requests httpx httpx2 xml aiohttp urllib3 botocore mistralai
    cohere groq ollama builtins __main__ attrs attr cattrs
""")
_SAMPLED = (
    "output",
    "response",
    "completion",
    "answer",
    "model",
    "llm",
    "tool",
    "agent",
    "generat",
    "jsonerror",
    "jsondecode",
)


def _of_another(evidence: Evidence, code: Code) -> bool:
    """Whether a class for invalid data is one of a package that does not read what a model or a service wrote.

    A model's output is sampled again. What a parser of SQL, a form or a token could not take stays as it is.
    """
    raised = evidence.raised
    if raised is None or code not in ("PROVIDER_OUTPUT_INVALID", "PROVIDER_MALFORMED_RESPONSE"):
        return False
    root = raised.module.partition(".")[0]
    return (
        root not in _OF_MODELS and root != "" and not contains_any(f"{raised.type.lower()} {evidence.text}", _SAMPLED)
    )


@applies_when(local=True)
def client_side(evidence: Evidence) -> Verdict | None:
    """The call failed before anything was sent: a plain ValueError or TypeError with a known text."""
    if not evidence.named("ValueError", "TypeError", "RuntimeError", "Exception"):
        return None
    if evidence.matches(_LONG_LINE):
        return Verdict(code="TOOL_OUTPUT_TOO_LARGE")
    if evidence.matches(_SAFETY) and _FINISHED_FOR_SAFETY.search(evidence.text):
        return Verdict(code="PROVIDER_CONTENT_POLICY")
    if evidence.named("ValueError") and (wrong := _wrong_value(evidence)) is not None:
        return wrong
    if evidence.named("TypeError") and evidence.matches(_ADDRESS):
        return Verdict(code="PROVIDER_BAD_REQUEST")
    if evidence.named("ValueError", "RuntimeError") and evidence.matches(_NO_ANSWER):
        # Frameworks report a response that they cannot use in this way. Another sample may be usable. It is not called
        # empty: an empty stream means that the context is full.
        return Verdict(code="PROVIDER_MALFORMED_RESPONSE")
    if evidence.named("TypeError") and evidence.matches(_BAD_ARGUMENTS):
        # The model invented an argument. The model can correct its call when it sees the error.
        return Verdict(code="TOOL_INPUT_INVALID")
    return None


def _wrong_value(evidence: Evidence) -> Verdict | None:
    """Return the verdict for a ValueError that says which value a library or a provider does not take."""
    if evidence.matches(_NO_MODEL):
        return Verdict(code="PROVIDER_MODEL_NOT_FOUND")
    if evidence.matches(_EMPTY_REQUEST):
        return Verdict(code="PROVIDER_BAD_REQUEST")
    if evidence.matches(_LOGIN):
        return Verdict(code="AUTH_FAILED", weak=True)
    if evidence.matches(_CHOICE):
        # The caller chose something that this library or model does not have. The code is not wrong, the choice is.
        return Verdict(code="PROVIDER_BAD_REQUEST", weak=True)
    if evidence.matches(_UNSET) and _VARIABLE.search(evidence.message):
        secret = _VARIABLE_OF_A_KEY.search(evidence.message)
        return Verdict(code="AUTH_FAILED" if secret else "PROVIDER_BAD_REQUEST", weak=True)
    return None


_FILE_READERS = names("""
    feedparser pandas polars numpy scipy pyarrow tomllib tomli toml yaml ruamel configparser csv lxml pypdf PyPDF2 pdfplumber pdfminer docx
    openpyxl zipfile tarfile gzip PIL cv2 h5py
""")
"""Packages that read files and compute. What they cannot read stays as it is; only a model's output is sampled again."""


@applies_when(local=True)
def of_a_file(evidence: Evidence) -> Verdict | None:
    """A package that reads files could not read one."""
    raised = evidence.raised
    of_them = (
        raised is not None
        and raised.module.partition(".")[0] in _FILE_READERS
        and evidence.source is not Source.PROCESS
    )
    return Verdict(code="TOOL_EXECUTION_FAILED", weak=True) if of_them else None


# The lock could not be taken for a reason that the text names.
_LOCK_FAILED = phrases(_LISTED["lock_failed"])


@applies_when(_BETWEEN)
def between(evidence: Evidence) -> Verdict | None:
    """A server starts, stops or elects its leader."""
    return None if evidence.status is not None and evidence.status >= 400 else Verdict(code="PROVIDER_UNAVAILABLE")


@applies_when(_NO_SLOT)
def no_slot(evidence: Evidence) -> Verdict | None:
    """A database server has no connection left for this client."""
    return None if evidence.status in (409, 429, 500, 503) else Verdict(code="PROVIDER_OVERLOADED")


@applies_when(_LOCKED)
def locked(evidence: Evidence) -> Verdict | None:
    """Another process has locked a database or a file, or changed an object at the same time."""
    # A server reports its own locks with a status, and the status decides. An InterfaceError means that two tasks share one connection.
    if (
        evidence.named("InterfaceError")
        or evidence.status in (409, 500, 503)
        or (evidence.exit_code and evidence.matches(_LOCK_FAILED))
    ):
        return None
    return Verdict(code="TOOL_RESOURCE_BUSY")


@applies_when(local=True)
def by_errno(evidence: Evidence) -> Verdict | None:
    """The errno of the exception decides. If the table does not list it, the exception's class decides."""
    raised = evidence.raised
    if raised is None or evidence.named("SSLError"):
        # ssl uses its own error numbers.
        return None
    if raised.errno == errno.ENOEXEC and evidence.matches(_RESOLVER):
        return None
    if raised.errno == errno.ENOENT and evidence.matches(_SOCKET):
        # The file that is missing is the socket of a server that does not run.
        return Verdict(code="CONN_REFUSED")
    code = None if raised.errno is None else _ERRNOS.get(raised.errno)
    if code is None:
        code = next((c for c, classes in _OS_CLASSES if not classes.isdisjoint(raised.names)), None)
    if code is None:
        return None
    # File handles become free again when other work ends.
    heals = raised.errno in (errno.EMFILE, errno.ENFILE)
    return Verdict(code=code, retryable=True if heals else None, scope=Scope.PROCESS if heals else None)


@applies_when(local=True)
def other_errno(evidence: Evidence) -> Verdict | None:
    """The operating system gave a number that is in no table. The numbers of what passes are all in one."""
    raised = evidence.raised
    listed = raised is not None and raised.type == "OSError" and raised.errno in errno.errorcode
    return Verdict(code="TOOL_EXECUTION_FAILED") if listed else None


@applies_when(local=True)
def timeouts(evidence: Evidence) -> Verdict | None:
    """The exception is a TimeoutError or derives from it. Since Python 3.10 a socket's timeout is one too."""
    if evidence.named_in(_TIMEOUTS):
        return Verdict(code="SYS_TIMEOUT")
    return None


@applies_when(local=True)
def sdk_class(evidence: Evidence) -> Verdict | None:
    """The class of an SDK decides if neither status nor body is more exact.

    The verdict is weak: a cause may be clearer.
    """
    if evidence.raised is None:
        return None
    for code, classes in _SDK:
        # Only the class and its first base are compared: further up, every SDK class derives from APIError.
        if evidence.raised.type in classes or not classes.isdisjoint(evidence.raised.names[:2]):
            # Wrappers call everything a server error. A text that says why it never heals is more exact.
            reason = meant(evidence) if code in _GENERAL else None
            return Verdict(code=reason if reason in _NEVER_HEALS else code, weak=True)
    return None


@applies_when(local=True)
def database(evidence: Evidence) -> Verdict | None:
    """The exception is a DB-API error: the statement or the data is wrong."""
    raised = evidence.raised
    if raised is not None and (evidence.named_in(_DATABASE) or raised.module.startswith(_DRIVERS)):
        named = code_of_name(raised.type.lower())
        if named is None and evidence.matches(IDENTIFIERS):
            # MongoDB has one class for all failures, and names the failure in its text.
            named = identified(evidence)
        return Verdict(code=named if named in _OF_A_SERVER else "TOOL_EXECUTION_FAILED")
    return None


_OBLIGED = phrases(_LISTED["obliged"])


@applies_when(local=True)
def programming(evidence: Evidence) -> Verdict | None:
    """The exception means a defect: the same call would fail in the same way."""
    if evidence.named("ValueError") and evidence.matches(_OBLIGED) and not evidence.named("UnicodeError"):
        # A library says what it takes. The code is not wrong, the value is.
        return Verdict(code="PROVIDER_BAD_REQUEST", weak=True)
    if evidence.named("TypeError", "ValueError"):
        # A ValueError often wraps the real failure.
        return Verdict(code="SYS_PROGRAMMING_ERROR", weak=evidence.named("ValueError"))
    return None


@applies_when(local=True)
def by_name(evidence: Evidence) -> Verdict | None:
    """No table lists the class, so the words in its name decide."""
    if evidence.raised is None:
        return None
    inner = _INNER.search(evidence.message) if evidence.raised.type == "RetryError" else None
    name = (inner[1] if inner else evidence.raised.type).lower()
    code = code_of_name(name)
    if code is not None and _of_another(evidence, code):
        code = "TOOL_INPUT_INVALID"
    return None if code is None else Verdict(code=code, weak=True)


_OF_A_SERVER = frozenset(
    {
        "SYS_TIMEOUT", "PROVIDER_TIMEOUT", "CONN_RESET", "CONN_REFUSED", "CONN_DNS_FAILED", "PROVIDER_UNAVAILABLE", "TOOL_RESOURCE_BUSY", "AUTH_FAILED"
    }
)  # fmt: skip
"""What the name of a driver's class may say about the server. Every other class is about the statement or the data."""


_NAME_IN_TEXT = re.compile(
    r"\b(?:[A-Z][a-zA-Z0-9]{2,60}(?:Error|Exception|Timeout|Refused|Denied|Unavailable|Exceeded|Closed)|FailedTo[A-Z]\w{3,40})\b"
)


def named_in_text(evidence: Evidence) -> Verdict | None:
    """A text or stderr names the class of a failure: "Error type: APIConnectionError"."""
    process = evidence.source is Source.PROCESS and evidence.exit_code
    plain = evidence.source is Source.TEXT or process or evidence.named("RuntimeError", "Exception")
    if not plain or evidence.status is not None or evidence.rpc_code is not None:
        return None
    own = [evidence.raised.type] if process and evidence.raised is not None else []
    vague = _TOO_VAGUE_IN_STDERR if process else _TOO_VAGUE
    for name in [*own, *_NAME_IN_TEXT.findall(evidence.message[:2_048])[:4]]:
        code = None if name.endswith("ServerError") and not name.startswith("Internal") else code_of_name(name.lower())
        if code is not None and code not in vague:
            return Verdict(code=code, weak=evidence.raised is not None)
    return None


_TOO_VAGUE = frozenset({"PROVIDER_BAD_REQUEST", "TOOL_NOT_FOUND", "PROVIDER_CAPABILITY_MISSING"})
"""Such a name in a text may belong to anything that the program prints."""
_TOO_VAGUE_IN_STDERR = _TOO_VAGUE | {"PROVIDER_OUTPUT_INVALID"}
"""What a tool validates is its own input. Only a model's output is worth another sample."""


def _undecodable(evidence: Evidence) -> Verdict:
    """Decoding an empty or HTML body fails at the first character; a model's broken JSON fails later."""
    at_start = "line 1 column 1 (char 0)" in evidence.text and "expecting value" in evidence.text
    return Verdict(code="PROVIDER_MALFORMED_RESPONSE" if at_start else "PROVIDER_OUTPUT_INVALID")


FIRST = (defects, own_words)
EARLY = (plain_timeout, of_a_file, by_class, client_side, between, no_slot, locked, by_errno)
NAMES = (named_in_text,)
LATE = (other_errno, timeouts, sdk_class, database, by_name, programming)
