"""An exception known only by name and text, as a log or a traceback shows it."""

from __future__ import annotations

import builtins
import re

from holdfast.classify.body import MAX_CHARS, read_body
from holdfast.classify.evidence import Evidence, Raised, Source, fold
from holdfast.classify.phrases import PAGE, codes_in, listen
from holdfast.classify.readers.grpc import GRPC_NAMES

__all__ = ["read_named", "read_text", "split_traceback"]

# Only where a word says that the number is a status: bare digits in a text mean anything (litellm#34954).
_STATUS = re.compile(
    r"(?:\b(?:error|error code|status[ _]?code|http status|http error|status|http(?:/\d(?:\.\d)?)?|api error|client error|server error)"
    r"[\s:='\"(-]{1,4}|\()([45]\d\d)\b(?!\s*(?:tokens|bytes|ms|s\b|seconds|\.\d))"
    r"|^\s*([45]\d\d)\s+(?=[A-Z])|\btoo many ([45]\d\d) error responses"
    r"|\b([45]\d\d) (?:status code|bad |unauthori|forbidden|not found|too many|internal server|service unav|gateway time|payment req)",
    re.IGNORECASE | re.MULTILINE,
)
_AWS = re.compile(r"an error occurred \((\w+)\) when calling", re.IGNORECASE)
_GRPC = re.compile(r"(?:statuscode\.|status[ =]+|grpc_status:\s*)(" + "|".join(GRPC_NAMES[1:]) + r"|\d{1,2}\b)", re.IGNORECASE)  # fmt: skip
_ERRNO = re.compile(r"[\[(](?:errno|winerror|os error) (-?\d{1,5})[\])]", re.IGNORECASE)
_RPC = re.compile(r"(?:mcp error|code:?|error)\s*[:(]?\s*(-32\d{3})\b", re.IGNORECASE)
_RAISED = re.compile(r"^(?:\s*[|+-]*\s*)?(?P<name>[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Timeout|Expired|Warning|Cancelled|Group|Fault|Disconnected|Refused|Exhausted|Unavailable|Exceeded|Denied|NotFound|Read|[A-Z]\w+))(?::\s?(?P<text>.*))?$", re.DOTALL)  # fmt: skip


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
    codes = [*reversed(found.codes)]
    # A class name is a machine code too: AWS and gRPC name their failures so.
    codes += [match[1].lower() for match in (_AWS.search(message),) if match]
    codes += _grpc_codes(message)
    codes.append(type_name.lower())
    text = _text_of(message, found.messages)
    number = errno if errno is not None else _errno_in(message)
    return Evidence(
        source=source,
        provider=provider.lower(),
        status=status if status is not None else found.status or _status_in(message),
        headers=headers or {},
        codes=tuple(codes),
        message=text,
        text=(folded := fold(text)),
        heard=listen(folded) | codes_in(codes) | (PAGE if found.html else 0),
        waits=tuple(found.waits),
        resets=tuple(found.resets),
        html=found.html,
        raised=Raised(module, type_name, names or _bases(module, type_name), number) if type_name or number else None,
        exit_code=exit_code,
        rpc_code=_rpc_code_in(message),
        now=now,
    )


def read_text(text: str, *, provider: str = "", now: float | None = None, source: Source = Source.TEXT) -> Evidence:
    """Return the evidence of a log line, a traceback or a JSON error, whichever `text` is."""
    module, name, message = split_traceback(text[-MAX_CHARS:])
    return read_named(module, name, message, provider=provider, now=now, source=source)


def split_traceback(text: str) -> tuple[str, str, str]:
    """Return module, class and message of the exception that a traceback ends with; empty names for other text."""
    stripped = text.strip()
    lines = stripped.splitlines()
    if "Traceback (most recent call last)" in stripped:
        for index in range(len(lines) - 1, -1, -1):
            line = lines[index]
            if line[:1] not in (" ", "\t", "") and (match := _RAISED.match(line)):
                return _named(match["name"], "\n".join([match["text"] or "", *lines[index + 1 :]]))
    elif lines and (match := _RAISED.match(lines[0])) and (":" in lines[0] or len(lines) == 1):
        return _named(match["name"], "\n".join([match["text"] or "", *lines[1:]]))
    return "", "", stripped


def _named(qualified: str, message: str) -> tuple[str, str, str]:
    module, _, name = qualified.rpartition(".")
    return module or "builtins", name, message.strip()


def _bases(module: str, type_name: str) -> tuple[str, ...]:
    """The class and, for Python's own exceptions, its bases."""
    known = getattr(builtins, type_name, None) if module in ("", "builtins", "exceptions") else None
    if isinstance(known, type) and issubclass(known, BaseException):
        return tuple(cls.__name__ for cls in known.__mro__ if cls is not object)
    return (type_name,)


def _text_of(message: str, parts: list[str]) -> str:
    """The innermost message first; the whole after it, so that phrases around it still count."""
    inner = [part for part in reversed(parts) if part is not message and part != message]
    return "\n".join([*inner, message])[:4_096]


def _grpc_codes(message: str) -> list[str]:
    match = _GRPC.search(message)
    if match is None:
        return []
    word = match[1]
    if word.isdigit():
        return [GRPC_NAMES[int(word)].lower()] if int(word) < len(GRPC_NAMES) else []
    return [word.lower()]


def _status_in(message: str) -> int | None:
    match = _STATUS.search(message[:2_048])
    return int(match[1] or match[2] or match[3] or match[4]) if match else None


def _rpc_code_in(message: str) -> int | None:
    match = _RPC.search(message[:2_048]) if "-32" in message else None
    return int(match[1]) if match else None


def _errno_in(message: str) -> int | None:
    match = _ERRNO.search(message[:2_048])
    return int(match[1]) if match else None
