"""Rules for the network: httpx, httpx2, requests, urllib3, aiohttp, websockets, ssl, sockets.

Class names and errno decide first. The text decides only if a library hides the number in it.
"""

from __future__ import annotations

import errno
import re
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from holdfast.classify.concepts import SETTING_OF_TIME, turned_away
from holdfast.classify.evidence import Evidence, Source, Verdict, applies_when, contains_any
from holdfast.classify.phrases import class_names, phrases
from holdfast.classify.sentences import NOT_STARTED, OTHER_NAME
from holdfast.classify.times import DURATION
from holdfast.faults import Scope

if TYPE_CHECKING:
    from holdfast.classify.phrases import Phrases
    from holdfast.faults import Code

_CLASSES: tuple[tuple[Code, frozenset[str]], ...] = (
    # This stands first: httpx derives PoolTimeout from its general timeout, but the provider is not the cause.
    ("PROVIDER_POOL_TIMEOUT", class_names("PoolTimeout")),
    (
        "CONN_TIMEOUT",
        class_names("""
        ConnectTimeout ConnectTimeoutError ConnectionTimeoutError NewConnectionTimeout
    """),
    ),
    ("CONN_DNS_FAILED", class_names("gaierror herror NameResolutionError ClientConnectorDNSError")),
    ("CONN_REFUSED", class_names("ConnectionRefusedError")),
    (
        "CONN_RESET",
        class_names("""
        ConnectionResetError ConnectionAbortedError BrokenPipeError RemoteDisconnected ServerDisconnectedError
        ClientConnectionResetError BrokenResourceError
    """),
    ),
    # This stands after the resets: http.client derives RemoteDisconnected from classes of both groups.
    ("PROVIDER_MALFORMED_RESPONSE", class_names("BadStatusLine InvalidMessage")),
    (
        "PROVIDER_STREAM_CUT",
        class_names("""
        IncompleteRead IncompleteReadError ChunkedEncodingError ClientPayloadError RemoteProtocolError
        MidStreamFallbackError EndOfStream StreamError IncompleteBody ConnectionClosedOK EOFError
        ResponseStreamingError
    """),
    ),
    (
        "PROVIDER_TIMEOUT",
        class_names("""
        ReadTimeout WriteTimeout ReadTimeoutError ServerTimeoutError SocketTimeoutError ConnectionReadTimeout
    """),
    ),
)
_KNOWN = frozenset[str]().union(*(classes for _, classes in _CLASSES))
"""Every class that names one failure. Most exceptions are not in this set, so one test skips the whole rule."""
# These classes are wrappers. They count only if neither their text nor their cause is more exact.
_WEAK: tuple[tuple[Code, frozenset[str]], ...] = (
    ("PROVIDER_TIMEOUT", class_names("APITimeoutError Timeout TimeoutException")),
    (
        "CONN_RESET",
        class_names("""
        APIConnectionError ConnectError ReadError WriteError CloseError NetworkError ProtocolError ConnectionError
        ClientConnectorError ClientOSError ClientConnectionError MaxRetryError NewConnectionError
        EndpointConnectionError ConnectionClosedError HTTPClientError ProxyError TransportError ModelAPIError
        URLError ProxyConnectionError ClientProxyConnectionError ClosedResourceError ConnectionClosed
        ClientHttpProxyError
    """),
    ),
)
_ERRNOS: dict[int, Code] = {
    errno.ECONNREFUSED: "CONN_REFUSED",
    errno.ECONNRESET: "CONN_RESET",
    errno.ECONNABORTED: "CONN_RESET",
    errno.EPIPE: "CONN_RESET",
    errno.ENETUNREACH: "CONN_UNREACHABLE",
    errno.EHOSTUNREACH: "CONN_UNREACHABLE",
    errno.ENETDOWN: "CONN_UNREACHABLE",
    errno.EHOSTDOWN: "CONN_UNREACHABLE",
    errno.ENETRESET: "CONN_RESET",
    errno.ENOTCONN: "CONN_RESET",
    errno.ESHUTDOWN: "CONN_RESET",
    errno.ETIMEDOUT: "CONN_TIMEOUT",
    # These are numbers of macOS and Windows. They occur in logs from other machines.
    54: "CONN_RESET",
    60: "CONN_TIMEOUT",
    61: "CONN_REFUSED",
    51: "CONN_UNREACHABLE",
    65: "CONN_UNREACHABLE",
    10051: "CONN_UNREACHABLE",
    10053: "CONN_RESET",
    10054: "CONN_RESET",
    10060: "CONN_TIMEOUT",
    10061: "CONN_REFUSED",
    10065: "CONN_UNREACHABLE",
    121: "CONN_TIMEOUT",
    64: "CONN_RESET",
    1225: "CONN_REFUSED",
    1236: "CONN_RESET",
    -2: "CONN_DNS_FAILED",
    -3: "CONN_DNS_FAILED",
    -5: "CONN_DNS_FAILED",
    8: "CONN_DNS_FAILED",
    11001: "CONN_DNS_FAILED",
    11002: "CONN_DNS_FAILED",
    11004: "CONN_DNS_FAILED",
}
_AMBIGUOUS_ERRNOS = frozenset({8, 51, 54, 60, 61, 64, 65, 121})
"""Numbers that mean something else on Linux. They count only if the text agrees."""
_WORDS: tuple[tuple[Code, Phrases], ...] = (
    (
        "CONN_DNS_FAILED",
        phrases("""
        name resolution | getaddrinfo failed | name or service not known | getaddrinfo() thread failed | eai_again
        nodename nor servname | failed to resolve | no address associated | could not resolve host | dns lookup
        enotfound | could not contact dns | no such host | dns error | failed to lookup address | dns resolution
        unable to resolve | resolve host | couldn't resolve | specified hostname could not be found | hostname could not be
        cannot resolve host | nxdomain | servfail | unknownhostexception
        err_name_not_resolved | unknown host | or service not provided | name could not be resolved | address could not be resolved
    bad hostname | host resolution failure | server misbehaving | 0x80072ee7 | 0x80072af9 | code=-1003 | error -1003
    """),
    ),
    (
        "CONN_REFUSED",
        phrases("""
        connection refused | econnrefused | actively refused | verbindung verweigert | connect call failed | connection was refused | connect was refused
        connect enoent | dial unix | err_connection_refused | refused the connection | refused to connect
        failed to connect to ollama | 0x8007274d
    """),
    ),
    (
        "CONN_UNREACHABLE",
        phrases("""
        network is unreachable | no route to host | enetunreach | ehostunreach | host is unreachable | ehostdown | host is down
        network is down | enetdown | err_address_unreachable | network unreachable | host unreachable | machine is not on the network
    communication error on send | link has been severed | network location cannot be reached | code=-1009 | error -1009
    """),
    ),
    (
        "CONN_TIMEOUT",
        phrases("""
        connection timed out | connect timeout | connect timed out | etimedout | connection attempt failed because
        und_err_connect_timeout | err_connection_timed_out | i/o timeout | connection timeout
    semaphore timeout period | execution expired | 0x80072ee2 | 0x8007274c | code=-1001 | error -1001
    """),
    ),
    (
        "PROVIDER_STREAM_CUT",
        phrases("""
        incomplete chunked read | incompleteread | peer closed connection | response ended prematurely
        response payload is not completed | invalidchunklength | stream disconnected | socket closed before
        didn't receive a 'response.completed' event | incompletemessage | end of file before message length
        error reading a body | request or response body error | error decoding response body | response body closed
    """),
    ),
    (
        "CONN_RESET",
        phrases("""
        connection reset | econnreset | connection aborted | socket error | tried to reconnect | socket hang up | broken pipe | server disconnected
        forcibly closed | remote end closed | closed the connection | 强迫关闭 | 连接被重置 | closed connection
        connection closed | unexpectedly closed | fetch failed | connection error | connection lost | epipe
        connection was closed | network error | connection broken | und_err_socket | no close frame
        error sending request | closed by the remote | connection terminated | terminated by other side | goaway
        all connection attempts failed | cannot connect to host | unable to connect | failed to connect
        connection dropped | could not connect | failed to establish a new connection | network connection
        err_network_changed | err_internet_disconnected | err_network_io_suspended | networkerror when attempting
        gone away | unexpected end of stream | end of file reached | end-of-file on communication | channel closed
        socket closed
        software caused connection abort | no responders | no listener | failed_connect | secure connection to the server cannot be made
        prematurely closed | stream reset | appears to be offline | closed unexpectedly | framing layer | send failure
        recv failure | tunnel error | network_error
        tunnel connection failed | non-properly terminated | cannot connect | can't connect | couldn't connect | lost connection
        could not reach | unable to reach | cannot reach | failed to reach | couldn't reach | err_connection_reset
        err_connection_closed | err_connection_aborted | err_empty_response | err_http2_protocol_error
        unexpected disconnect | terminating connection | connection failed | connection failure | mongonetworkerror
        protocol banner | failed to reconnect | failed, reason: | closed idle connection | eof detected | other side closed
        websocket connection to | connection has been closed | failed to open a connection | read error: connection
        network failure | network problem | max retries exceeded | stream has been aborted | ssl_error_syscall | ssl syscall error | connection unexpectedly closed
        transport endpoint shutdown | transport endpoint is not connected | terminated the handshake | server aborted pending | expected http/ | during handshake | fail to fetch
        fail to connect | connection interrupted | connection was interrupted | connection was lost | connection was aborted
        retries per request | network name is no longer available | returned nothing (no headers | failed sending data to the peer
    transferred a partial file | client error (connect) | end of file from server | parser received no bytes | peer shut down incorrectly
    refused_stream | while sending the request | ssl_connect syscall | noresponsedatareceived | reason: :closed | 0x80072efd | 0x80072efe
    0x80072eff | 0x80072746 | code=-1005 | error -1005 | code=-1004 | error -1004 | 443 failed to respond | stream ended unexpectedly
    """),
    ),
    (
        "PROVIDER_TIMEOUT",
        phrases("""
        read timed out | request timed out | 超时 | interruptedioexception | timed out | timeout | deadline exceeded
        headers timeout | body timeout
    """),
    ),
)
_IN_STDERR: tuple[tuple[Code, Phrases], ...] = (
    *_WORDS[:-1],
    # A program may print "timeout" for an option or a test. So its stderr must say that a time ran out.
    (
        "TOOL_TIMEOUT",
        phrases("""
        exceeded the deadline | exceeded its deadline | gave up waiting
        timed out | timeout reached | timeout while | timeout waiting | due to a timeout | timeout in | timeout exceeded
        timeout expired | timeout was exceeded | execution time exceeded | idle timeout | timeout error | gateway timeout | eidletimeout | deadline exceeded | took too long
        timeoutexception | timeout after | ms exceeded | timeout occurred | timeout of | opentimeout | readtimeout
        esockettimedout | connecttimeout | read timeout | pool timeout | worker timeout | login timeout | ping timeout
    """),
    ),
)
_TLS = phrases(
    """
    certificate verify failed | certificate_verify_failed | sslerror | sslv3_alert_handshake_failure
    wrong_version_number | tls handshake | self-signed certificate | self signed certificate
    certificate has expired | hostname mismatch | unable to get local issuer | handshake failure
    unable_to_verify_leaf_signature | ssl handshake | certificate is not valid | signed by unknown authority
    x509: certificate | invalid peer certificate | unknownissuer | certificateunknown | ssl certificate problem
    unable to verify the first certificate | depth_zero_self_signed_cert | self_signed_cert_in_chain
    unable_to_get_issuer_cert_locally | cert_has_expired | err_tls_cert_altname_invalid | certificate is not trusted
    failed to verify certificate | certificate verification failed | before secure tls connection | pkix path building failed
    server gave http response to https | malformed http response | look like a tls handshake | wrong version number
    record layer failure | plain http request was sent to https | http request to an https server | tls: unrecognized name | remote certificate is invalid
    certificate chain | issuer's authority | untrustedroot | alert certificate required | alert bad certificate | alert unknown ca
    certificate's altnames | certificate is untrusted | certificate is self | host key is known | cannot verify | no peer certificate | bad certificate
    alternative certificate subject | certificate subject | subject alternative name | legitimacy of the server | ssl peer certificate
    certificate verify locations | certificate check failed | sec_e_untrusted_root | sec_e_wrong_principal | sec_e_cert_expired
    does not match target host name | matches requested host name | certificate has been revoked | certificate is revoked
    certificate signed by | certificate is valid for | not in the cert's | certificate does not match | certificate doesn't match
    valid certification path | certificate for this server is invalid | err_cert_authority_invalid | err_cert_date_invalid | err_cert_common_name_invalid
""",
    "ssl: ",
)
_TLS_CUT = phrases("""
    ssl: connection reset | errno=104
    bad record mac | unexpected_eof_while_reading | eof occurred in violation | unexpected eof
    broke off | handshake was interrupted | decryption_failed_or_bad_record_mac | sslzeroreturnerror | handshake eof | before secure tls connection
""")
_TLS_SLOW = phrases("handshake timeout", "handshake timed out", "handshake operation timed out")

_DEFECTS = class_names("""
    KeyError AttributeError NameError IndexError ImportError AssertionError SyntaxError ZeroDivisionError
""")
_TLS_CLASSES = class_names("""
    SSLError SSLCertVerificationError SSLEOFError SSLZeroReturnError CertificateError ClientConnectorSSLError
    ClientConnectorCertificateError
""")
_WEBSOCKET = phrases("websocket")
_WEBSOCKET_CLASSES = class_names("ConnectionClosedError ConnectionClosed WebSocketDisconnect")
# Close codes of RFC 6455. They are phrases because libraries put them into the text only.
_WS_POLICY = phrases("1008", "policy violation")
_WS_INVALID = phrases("1007", "1003", "invalid frame payload data")
_WS_LOGIN = phrases("4001", "4003", "4004", "4401", "4403")
_WS_TOO_BIG = phrases("1009", "message too big")
_WS_CLOSED = phrases("1005", "1006", "1011", "1012", "1013", "1001", "no close frame", "closed", "abnormal")


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


_NO_ADDRESS = phrases("""
    unparseable host | unparsable host | unparseable address | invalid host:port | no host supplied | no host specified | invalid port number
    missing port in address | too many colons in address | unsupported protocol scheme | missing protocol scheme
    request url is missing | missing an 'http://' | no scheme supplied
    bad port | unknown scheme | navigate to invalid url | unexpected redirect | redirect count exceeded
""")


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


_USAGE = phrases("""
    no such option | unknown option | unrecognized option | unknown parameter | unexpected keyword | invalid option | unknown field
    unknown argument
""")
"""An option that does not exist may be called timeout."""


# Package managers and compilers "resolve" names too, but not those of hosts.
_HOST = re.compile(
    r"resolv\w*\W{1,3}(?:the )?(?:remote |proxy )?(?:host|proxy|address|name|dns|domain)|resolv\w*\W{1,3}[\w-]+(?:\.[\w-]+)+|\bhosts?\b"
    r"|\bdns\b|hostname"
)
_NOT_A_HOST = phrases("""
    module | dependency | dependencies | package | reference | plugin | import | symbol | artifact | configuration | class
    component
    variable | template
""")
_A_HOST = phrases("""
    name resolution | getaddrinfo failed | name or service not known | eai_again | nodename nor servname | no address associated
    resolve host | dns lookup | enotfound | no such host | dns error | failed to lookup address | dns resolution | nxdomain
    servfail
    unknownhostexception | getaddrinfo | temporary failure | nameresolutionerror | hostname | host resolution failure | server misbehaving | 0x80072ee7 | 0x80072af9
    or service not provided | address could not be resolved | code=-1003 | error -1003
""")


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


@applies_when(
    phrases("terminated", "failed to fetch", "load failed", "network error", "networkerror when attempting", "aborted")
)
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


_DEFECT = phrases("""
    unexpected keyword argument | object has no attribute | object is not subscriptable | object is not iterable | is not a function
    required positional argument | no module named | not json serializable | referenced before assignment
""")


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
