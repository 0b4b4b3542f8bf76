"""Rules for the network: httpx, httpx2, requests, urllib3, aiohttp, websockets, ssl, sockets.

Class names and errno decide first. The text decides only if a library hides the number in it.
"""

from __future__ import annotations

import re
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from holdfast.classify.concepts import SETTING_OF_TIME, turned_away
from holdfast.classify.evidence import Evidence, Source, Verdict, applies_when, contains_any
from holdfast.classify.phrases import class_names, phrases
from holdfast.classify.sentences import NOT_STARTED, OTHER_NAME
from holdfast.classify.times import DURATION
from holdfast.classify.words import Words
from holdfast.faults import Scope

if TYPE_CHECKING:
    from holdfast.classify.phrases import Phrases
    from holdfast.faults import Code

_LISTED = Words("network")

_CLASSES: tuple[tuple[Code, frozenset[str]], ...] = _LISTED.table("classes", class_names)
_KNOWN = frozenset[str]().union(*(classes for _, classes in _CLASSES))
"""Every class that names one failure. Most exceptions are not in this set, so one test skips the whole rule."""
# These classes are wrappers. They count only if neither their text nor their cause is more exact.
_WEAK: tuple[tuple[Code, frozenset[str]], ...] = _LISTED.table("weak", class_names)
_ERRNOS: dict[int, Code] = _LISTED.numbers("errnos")
_AMBIGUOUS_ERRNOS = frozenset({8, 51, 54, 60, 61, 64, 65, 121})
"""Numbers that mean something else on Linux. They count only if the text agrees."""
_WORDS: tuple[tuple[Code, Phrases], ...] = _LISTED.table("words", phrases)
_IN_STDERR: tuple[tuple[Code, Phrases], ...] = (
    *_WORDS[:-1],
    # A program may print "timeout" for an option or a test. So its stderr must say that a time ran out.
    (
        "TOOL_TIMEOUT",
        phrases(_LISTED["in_stderr"]),
    ),
)
_TLS = phrases(_LISTED["tls"], "ssl: ")
_TLS_CUT = phrases(_LISTED["tls_cut"])
_TLS_SLOW = phrases("handshake timeout", "handshake timed out", "handshake operation timed out")

_DEFECTS = class_names(_LISTED["defects"])
_TLS_CLASSES = class_names(_LISTED["tls_classes"])
_WEBSOCKET = phrases("websocket")
_WEBSOCKET_CLASSES = class_names("ConnectionClosedError ConnectionClosed WebSocketDisconnect")
# Close codes of RFC 6455. They are phrases because libraries put them into the text only.
_WS_POLICY = phrases("1008", "policy violation")
_WS_INVALID = phrases("1007", "1003", "invalid frame payload data")
_WS_LOGIN = phrases(_LISTED["ws_login"])
_WS_TOO_BIG = phrases("1009", "message too big")
_WS_CLOSED = phrases(_LISTED["ws_closed"])


@applies_when(local=True)
def tls_class(evidence: Evidence) -> Verdict | None:
    """The exception is a TLS failure of ssl or aiohttp."""
    return _tls(evidence) if evidence.named_in(_TLS_CLASSES) else None


@applies_when(_TLS)
def tls_words(evidence: Evidence) -> Verdict | None:
    """A wrapper or a text contains the words of a TLS failure."""
    return _tls(evidence)


@applies_when(local=True)
def by_class(evidence: Evidence) -> Verdict | None:
    """The class of the exception names one failure."""
    raised = evidence.raised
    if raised is None or not evidence.named_in(_KNOWN) or evidence.named("NewConnectionError"):
        # urllib3 derives NewConnectionError from its timeout class. Its text and its cause are more exact.
        return None
    for code, classes in _CLASSES:
        if not classes.isdisjoint(raised.names):
            # anyio reports only that the stream broke; the cause is more exact.
            return _placed(code, weak=evidence.named("BrokenResourceError"))
    return None


@applies_when(local=True)
def websocket_class(evidence: Evidence) -> Verdict | None:
    """The exception is one of websockets or starlette."""
    return _websocket_close(evidence) if evidence.named_in(_WEBSOCKET_CLASSES) else None


@applies_when(_WEBSOCKET)
def websocket_words(evidence: Evidence) -> Verdict | None:
    """Only the text shows that a WebSocket was closed."""
    if turned_away(evidence):
        return Verdict(code="AUTH_FORBIDDEN")
    return _websocket_close(evidence)


@applies_when(local=True)
def by_errno(evidence: Evidence) -> Verdict | None:
    """The operating system's error number decides. It is the same in every language."""
    if evidence.raised is None or evidence.raised.errno is None:
        return None
    code = _ERRNOS.get(evidence.raised.errno)
    if code is None or (evidence.raised.errno in _AMBIGUOUS_ERRNOS and evidence.first_match(_WORDS) is None):
        return None
    return _placed(code)


_NO_ADDRESS = phrases(_LISTED["no_address"])


@applies_when(_NO_ADDRESS)
def no_address(evidence: Evidence) -> Verdict | None:
    """The address itself is wrong, so nothing was looked up and nothing was sent."""
    return Verdict(code="PROVIDER_BAD_REQUEST") if evidence.status is None else None


@applies_when(reduce(or_, (group for _, group in _WORDS)))
def by_words(evidence: Evidence) -> Verdict | None:
    """The words of a library's wrapper or of a bare text decide."""
    # An HTTP status is more exact than the words of a connection error.
    if evidence.status is not None and evidence.status >= 400:
        return None
    if (
        evidence.source is Source.JSONRPC
        or evidence.exit_code
        or (evidence.raised is not None and not _may_wrap(evidence))
    ):
        return None
    code = _unless_other(evidence, evidence.first_match(_WORDS))
    if code == "CONN_RESET" and NOT_STARTED.search(evidence.text):
        # The program never ran, so its connection closed.
        return None
    if code == "CONN_RESET" and evidence.raised is None and (evidence.matches(_USAGE) or turned_away(evidence)):
        # The connection was not made, because of who asked for it.
        return None
    setting = evidence.matches(SETTING_OF_TIME) and not evidence.matches(_RAN_OUT)
    if code == "PROVIDER_TIMEOUT" and (setting or evidence.matches(_USAGE) or NOT_STARTED.search(evidence.text)):
        return None
    # A wrapper's "connection error" is less exact than its cause.
    vague = code in ("CONN_RESET", "PROVIDER_TIMEOUT") and evidence.raised is not None
    return None if code is None else _placed(code, weak=vague)


@applies_when(reduce(or_, (group for _, group in _IN_STDERR)), local=True)
def in_stderr(evidence: Evidence) -> Verdict | None:
    """A program printed a network word and ended with an error. The words of tools were checked before."""
    if evidence.source is not Source.PROCESS or not evidence.exit_code:
        return None
    if evidence.status is not None and evidence.status >= 400:
        return None
    code = _unless_other(evidence, evidence.first_match(_IN_STDERR))
    return None if code is None else _placed(code)


_RAN_OUT = phrases("timed out. timeout value")
"""A time ran out, and the text names the setting too."""
_SPAN_OVER = re.compile(
    rf"\btimeout:? (?:of )?{DURATION}\s*(?:was )?exceeded\b|\bexceeded (?:the )?(?:timeout of )?{DURATION}"
)


@applies_when(phrases("timeout", "exceeded"), local=True)
def span_over(evidence: Evidence) -> Verdict | None:
    """A program printed how long it waited: "Timeout 30000ms exceeded"."""
    process = evidence.source is Source.PROCESS and evidence.exit_code and evidence.status is None
    return Verdict(code="TOOL_TIMEOUT") if process and _SPAN_OVER.search(evidence.text) else None


_USAGE = phrases(_LISTED["usage"])
"""An option that does not exist may be called timeout."""


# Package managers and compilers "resolve" names too, but not those of hosts.
_HOST = re.compile(
    r"resolv\w*\W{1,3}(?:the )?(?:remote |proxy )?(?:host|proxy|address|name|dns|domain)|resolv\w*\W{1,3}[\w-]+(?:\.[\w-]+)+|\bhosts?\b"
    r"|\bdns\b|hostname"
)
_NOT_A_HOST = phrases(_LISTED["not_a_host"])
_A_HOST = phrases(_LISTED["a_host"])


def _unless_other(evidence: Evidence, code: Code | None) -> Code | None:
    """Return the code, unless the text resolves something that is not a host."""
    if code == "CONN_DNS_FAILED" and OTHER_NAME.search(evidence.text):
        return None
    if code != "CONN_DNS_FAILED" or evidence.matches(_A_HOST):
        return code
    return None if evidence.matches(_NOT_A_HOST) or not _HOST.search(evidence.text) else code


# The whole text of the TypeError that fetch raises in Node.js, Chrome, Safari and Firefox.
_FETCH_TEXTS = frozenset({
    "terminated", "failed to fetch", "load failed", "network error", "networkerror when attempting to fetch resource."
})  # fmt: skip


@applies_when(phrases(_LISTED["javascript_fetch"]))
def javascript_fetch(evidence: Evidence) -> Verdict | None:
    """JavaScript's fetch raises a TypeError if the connection is cut. The text is always the same short sentence."""
    # The lines after the first are the stack.
    text = evidence.text.strip().partition("\n")[0].rstrip()
    if text == "aborted" and evidence.named("AxiosError", "Error", "NodeError"):
        # Node's `aborted` means that the other side closed the response. Who cancels gets an AbortError.
        return Verdict(code="PROVIDER_STREAM_CUT")
    if text not in _FETCH_TEXTS or not (evidence.raised is None or evidence.named("TypeError")):
        return None
    return Verdict(code="PROVIDER_STREAM_CUT" if "terminated" in evidence.text else "CONN_RESET")


_EOF = re.compile(r"(?:: |\b(?:unexpected|early) )eof\s*$")


@applies_when(phrases("eof"))
def ended_early(evidence: Evidence) -> Verdict | None:
    """A text of a Go program ends with "EOF": the server closed the connection without an answer."""
    plain = (
        evidence.status is None
        and evidence.exit_code is None
        and evidence.rpc_code is None
        and not evidence.named("EOFError", "SyntaxError", "ValueError", "TypeError")
    )
    # The address before the word is left out of the text.
    ended = plain and (_EOF.search(evidence.text) or evidence.message.rstrip().endswith(": EOF"))
    return Verdict(code="CONN_RESET") if ended else None


_DEFECT = phrases(_LISTED["defect"])


@applies_when(local=True)
def by_wrapper(evidence: Evidence) -> Verdict | None:
    """The wrapper says only "connection" or "timeout". Its cause may be more exact (R22)."""
    if evidence.raised is None or (evidence.status is not None and evidence.status >= 400):
        return None
    for code, classes in _WEAK:
        if not classes.isdisjoint(evidence.raised.names):
            # Connect's ConnectError has its gRPC status in the text, and the status is more exact than the class.
            in_text = any(word.startswith("grpc:") for word in evidence.codes)
            if evidence.matches(_DEFECT):
                # LiteLLM calls every exception that it does not know a connection error.
                return Verdict(code="SYS_PROGRAMMING_ERROR")
            return None if in_text else Verdict(code=code, weak=True)
    return None


def _tls(evidence: Evidence) -> Verdict | None:
    """A bad certificate or handshake fails the same way again; a connection that was cut during TLS does not."""
    if evidence.status is not None and evidence.status >= 400:
        return None
    if evidence.matches(_TLS_SLOW):
        return Verdict(code="CONN_TIMEOUT")
    cut = evidence.matches(_TLS_CUT) or evidence.named("SSLEOFError", "SSLZeroReturnError")
    return Verdict(code="CONN_RESET" if cut else "CONN_TLS_HANDSHAKE_FAILED")


def _websocket_close(evidence: Evidence) -> Verdict | None:
    """Return the code for a closed WebSocket. The close code decides whether reconnecting helps."""
    if evidence.matches(_WS_POLICY):
        return Verdict(
            code="AUTH_FORBIDDEN" if contains_any(evidence.text, ("auth", "token", "key")) else "PROVIDER_BAD_REQUEST"
        )
    if evidence.matches(_WS_INVALID):
        return Verdict(code="PROVIDER_BAD_REQUEST")
    if evidence.matches(_WS_LOGIN):
        # Applications choose these numbers after 401 and 403.
        return Verdict(code="AUTH_FORBIDDEN")
    if evidence.matches(_WS_TOO_BIG):
        return Verdict(code="PROVIDER_REQUEST_TOO_LARGE")
    return Verdict(code="CONN_WEBSOCKET_CLOSED") if evidence.matches(_WS_CLOSED) else None


def _may_wrap(evidence: Evidence) -> bool:
    """Whether the text may decide. It may not for programming errors, because their text may quote a network word."""
    assert evidence.raised is not None
    if evidence.named_in(_DEFECTS):
        return False
    return not evidence.named("TypeError", "ValueError") or contains_any(evidence.text, _WRAPPED)


# Frameworks wrap a network failure in a ValueError. These are whole sentences: "timeout" alone may name a wrong value.
_WRAPPED = (
    "fetch failed", "econn", "socket hang up", "timed out", "connection refused", "connection reset", "connection error",
    "dns resolution", "name resolution", "failed to connect", "could not connect", "unable to connect", "network error",
    "max retries exceeded", "unreachable",
)  # fmt: skip


def _placed(code: Code, *, weak: bool = False) -> Verdict:
    # The resolver and the routes belong to this machine, so the provider's circuit must not count these failures.
    scope = Scope.PROCESS if code in ("CONN_DNS_FAILED", "CONN_UNREACHABLE") else None
    return Verdict(code=code, scope=scope, weak=weak)


RULES = (
    no_address,
    tls_class,
    tls_words,
    by_class,
    websocket_class,
    websocket_words,
    by_errno,
    javascript_fetch,
    by_words,
    ended_early,
    by_wrapper,
)
IN_STDERR = (in_stderr, span_over)
