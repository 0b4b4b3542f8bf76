"""Find the codes for a word of a foreign failure: `429`, `insufficient_quota`, `RateLimitError`, `ECONNRESET`.

There is no second table of words. A word is turned into possible failures (a status, an error number, a class name, a
machine code, a sentence), and the classifier judges each of them.
Invariant: a word that no rule recognises gives no codes, never `SYS_UNKNOWN`.
"""

from __future__ import annotations

import builtins
import errno
import re
from typing import TYPE_CHECKING

from holdfast.classify.classifier import CLASSIFIER
from holdfast.classify.evidence import Evidence, Source
from holdfast.classify.phrases import codes_in, known_class
from holdfast.classify.readers.responses import GRPC_NAMES, read_grpc, read_http, read_jsonrpc
from holdfast.classify.readers.text import read_named, read_process

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.faults import Code

__all__ = ["codes_for"]

_LONGEST_WORD = 200
_NUMBER = re.compile(r"(?:http|status|error|code|exit|rpc)?[\s:/_-]*?(-32\d{3}|\d{3})", re.IGNORECASE)
_CLOSE = re.compile(
    r"(?:close|closed|websocket|ws|code|[\s:/_-])*?(10(?:0[1689]|1[123])|4(?:00[134]|40[13]))", re.IGNORECASE
)
"""The close code of a WebSocket that a rule knows. 1000, an orderly end, is no failure."""
_CLASS = re.compile(r"[a-z0-9]+(?:error|exception|timeout|exceeded)", re.IGNORECASE)
"""The name of a class that no rule declares. It has no underscores: with them it is a misspelt code of ours."""
_GRPC = {name.replace("_", ""): name for name in GRPC_NAMES[1:]}
"""Google's exceptions are the gRPC statuses in another spelling: `ResourceExhausted`."""
_EXITS = frozenset({124, 126, 127, *range(129, 160)})
"""Exit codes with a fixed meaning: those of the shell, and 128 plus a signal. No HTTP error has such a number."""

# These types repeat the status they are sent with, so no rule reads them.
_STATUS_OF_TYPE = {
    "invalid_request_error": 400,
    "validationexception": 400,
    "apistatuserror": 400,
    "not_found_error": 404,
    "unprocessable_entity": 422,
    "httpstatuserror": 500,
    "modelhttperror": 500,
}

# For these vague words the message of the failure decides. The table lists the other meanings that the corpus shows.
_ALTERNATIVES: dict[Code, tuple[Code, ...]] = {
    "PROVIDER_RATE_LIMITED": (
        "PROVIDER_QUOTA_EXHAUSTED", "PROVIDER_DAILY_LIMIT", "PROVIDER_BILLING", "PROVIDER_OVERLOADED",
        "PROVIDER_REQUEST_TOO_LARGE", "PROVIDER_ENTITLEMENT_MISSING",
    ),
    "PROVIDER_BAD_REQUEST": (
        "PROVIDER_CONTEXT_OVERFLOW", "PROVIDER_CAPABILITY_MISSING", "PROVIDER_HISTORY_INVALID", "PROVIDER_CONTENT_POLICY",
        "PROVIDER_MODEL_NOT_FOUND", "PROVIDER_TOOL_SCHEMA_INVALID", "AUTH_REGION_BLOCKED", "PROVIDER_BILLING",
    ),
    "AUTH_FAILED": ("AUTH_TOKEN_EXPIRED", "AUTH_TOKEN_REVOKED", "AUTH_CLOCK_SKEW"),
    "AUTH_FORBIDDEN": ("PROVIDER_BILLING", "AUTH_REGION_BLOCKED", "PROVIDER_CONTENT_POLICY"),
    "PROVIDER_BILLING": ("PROVIDER_QUOTA_EXHAUSTED",),
    "PROVIDER_ENDPOINT_NOT_FOUND": ("PROVIDER_MODEL_NOT_FOUND",),
    "PROVIDER_MODEL_NOT_FOUND": ("PROVIDER_ENDPOINT_NOT_FOUND",),
    "PROVIDER_REQUEST_TOO_LARGE": ("PROVIDER_CONTEXT_OVERFLOW",),
    "PROVIDER_UNAVAILABLE": ("PROVIDER_OVERLOADED", "PROVIDER_MODEL_LOADING"),
    "PROVIDER_INTERNAL_ERROR": ("PROVIDER_UNAVAILABLE", "PROVIDER_CONTEXT_OVERFLOW", "PROVIDER_OUT_OF_MEMORY"),
    "PROVIDER_TIMEOUT": ("CONN_TIMEOUT", "PROVIDER_POOL_TIMEOUT"),
    "CONN_RESET": (
        "CONN_REFUSED", "CONN_TIMEOUT", "CONN_DNS_FAILED", "CONN_TLS_HANDSHAKE_FAILED", "CONN_UNREACHABLE",
        "PROVIDER_STREAM_CUT",
    ),
}  # fmt: skip


def codes_for(word: str) -> tuple[Code, ...]:
    """Return the codes that `word` can mean, most likely first; an empty tuple for an unknown word.

    A word is an HTTP status, an exit code, a JSON-RPC number, a provider's error type or code, a gRPC status, an errno
    name or the name of an exception class, with or without its module; upper and lower case are the same.

        >>> codes_for("insufficient_quota")
        ('PROVIDER_BILLING',)
        >>> codes_for("429")[:2]
        ('PROVIDER_RATE_LIMITED', 'PROVIDER_QUOTA_EXHAUSTED')
    """
    word = word.strip().strip("'\"`:,")
    if not word or len(word) > _LONGEST_WORD:
        return ()
    found: dict[Code, None] = {}
    for evidence in _readings(word):
        verdict = CLASSIFIER.judge(evidence)
        # What a word group guesses of an unlisted name is no meaning of that word: a misspelt code would get another's page.
        if verdict.code == "SYS_UNKNOWN" or verdict.rule.startswith(("concepts.", "plain.told")):
            continue
        found[verdict.code] = None
        if verdict.weak or verdict.code == "PROVIDER_RATE_LIMITED":
            # A rate limit is never recognised with certainty: providers send the same word for an empty quota and an empty
            # account.
            found |= dict.fromkeys(_ALTERNATIVES.get(verdict.code, ()))
        # The first meaning that is recognised decides: `TimeoutError` is a class, although it could also be a word in
        # a text.
        break
    return tuple(found)


def _readings(word: str) -> Iterator[Evidence]:
    """Yield the failures that a word may mean, the most exact first."""
    number = _NUMBER.fullmatch(word)
    if number is not None:
        yield from _by_number(int(number[1]))
    # `openai.RateLimitError` is looked up by its last part.
    name = word.rpartition(".")[2]
    errno_value = getattr(errno, name.upper(), None)
    if isinstance(errno_value, int):
        error = OSError(errno_value, "")
        yield read_named("builtins", type(error).__name__, "", errno=errno_value)
    if (status := _GRPC.get(name.upper().replace("_", ""))) is not None:
        yield read_grpc(status)
    yield from _by_class(name)
    yield Evidence(source=Source.HTTP, codes=(word.lower(),), matched=codes_in((word.lower(),)))
    # After the codes of providers, some of which are such numbers too.
    if (close := _CLOSE.fullmatch(word)) is not None:
        yield read_named("websockets.exceptions", "ConnectionClosedError", f"received {close[1]}")
    if (status_of := _STATUS_OF_TYPE.get(name.lower())) is not None:
        yield read_http(status_of)
    # The last attempt is a sentence. It does not begin with the word, because `WORD:` would be taken for a class.
    yield read_named("", "", f"reported: {word.lower()}", source=Source.TEXT)


def _by_number(number: int) -> Iterator[Evidence]:
    if number < 0:
        yield read_jsonrpc({"error": {"code": number}})
    elif 400 <= number < 600:
        yield read_http(number)
    elif number in _EXITS:
        yield read_process(number)


def _by_class(name: str) -> Iterator[Evidence]:
    known = known_class(name) or _builtin(name)
    if known is not None or _CLASS.fullmatch(name):
        # No SDK is imported here, so the bases of its classes are not known. Only the class's own name counts.
        yield read_named("", known or name, "")


def _builtin(name: str) -> str | None:
    """Return a built-in exception's name in its own spelling."""
    return next((known for known in vars(builtins) if known.lower() == name.lower() and known[0].isupper()), None)
