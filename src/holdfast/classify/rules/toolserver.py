"""Rules for JSON-RPC and MCP. The number decides for protocol errors, the text for tool results."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.classify.concepts import FORBIDS_A_RETRY, meant
from holdfast.classify.evidence import Evidence, Source, Verdict, applies_when
from holdfast.classify.guesses import healing
from holdfast.classify.identifiers import identified
from holdfast.classify.phrases import class_names, codes, find_late, phrases
from holdfast.classify.sentences import LATER, NOT_STARTED, meaning
from holdfast.faults import Scope

if TYPE_CHECKING:
    from holdfast.classify.phrases import Phrases
    from holdfast.faults import Code

_RPC: dict[int, Code] = {
    # The message itself is wrong, not the arguments of the tool.
    -32700: "PROVIDER_BAD_REQUEST",
    -32600: "PROVIDER_BAD_REQUEST",
    -32601: "TOOL_NOT_FOUND",
    -32602: "TOOL_INPUT_INVALID",
    -32603: "TOOL_EXECUTION_FAILED",
    # MCP's clients use it for a time that ran out, which the text says. Others use it for anything.
    -32001: "TOOL_EXECUTION_FAILED",
    -32002: "TOOL_NOT_FOUND",
    -32042: "AUTH_REQUIRED",
    -32000: "TOOL_EXECUTION_FAILED",
    # Language servers: the request was cancelled, and the text or the server's state changed under the request.
    -32800: "SYS_CANCELLED",
    -32801: "TOOL_RESOURCE_BUSY",
    -32802: "TOOL_RESOURCE_BUSY",
    # Wallets (EIP-1193): the person said no, the site may not, the method is unknown, the wallet is away.
    4001: "TOOL_APPROVAL_DENIED",
    4100: "TOOL_FORBIDDEN",
    4200: "PROVIDER_CAPABILITY_MISSING",
    4900: "TOOL_CONNECTION_LOST",
    4901: "TOOL_CONNECTION_LOST",
    # Bitcoin's node: it is warming up, its wallet is locked.
    -28: "PROVIDER_UNAVAILABLE",
    -13: "AUTH_REQUIRED",
}
_TASKS: dict[str, Code] = {
    "task:auth-required": "AUTH_REQUIRED",
    "task:canceled": "SYS_CANCELLED",
    "task:cancelled": "SYS_CANCELLED",
    "task:rejected": "PROVIDER_BAD_REQUEST",
}
"""States of a task that another agent reports (A2A). What `failed` means is in its text."""
_CLASSES = class_names("McpError MCPError McpException ToolError JSONRPCError JsonRpcError ToolException")
_SESSION = phrases("""
    session not found | session terminated | session expired | unknown session | invalid session | no valid session
    session has expired | expired session
""")
_BARE = re.compile(
    r"(?:\w*error: |mcp\b[^:\n]{0,40}: |bad request: )?(?:unknown (?:or expired )?session|session (?:not found|terminated))(?: id)?\W*"
)
# The identifier is not written as one. No session was looked up, and a new one does not mend it.
_MISSHAPEN = phrases("""
    invalid length | expected length | invalid character | invalid format | malformed | uuid | urn:uuid | parse | wrong length
""")
_OF_A_LOGIN = phrases(
    "sso | re-authenticate | reauthenticate | log in | login | sign in | credentials | refresh token\n"
)
_OTHERS = phrases("""
    agent session | browser session | chat session | debug session | editor session | game session | source session | subagent session
    terminal session | test session | tmux session | user session
""")
_OF_A_SESSION = frozenset({None, 200, 400, 404, 500})
_NONE_SENT = phrases("bad request: no valid session", "bad request: no session")
# Transports of MCP clients. The tool's process is gone, so the call may be sent again after a restart.
_DEAD = phrases("""
    connection closed | transport closed | server disconnected | stream closed | process exited | server exited
    connection lost | broken pipe | not connected | stdio transport | subprocess exited | connection terminated
    server process
""")
# The process never ran, so a restart ends in the same way.
_NOT_STARTED = phrases("""
    program not found | failed to spawn | command not found | is not recognized | cannot find module | no module named
    executable file not found | executable doesn't exist
""")
_WORDS: tuple[tuple[Code, Phrases], ...] = (
    (
        "SYS_RESOURCE_EXHAUSTED",
        phrases("disk quota exceeded", "no space left on device", "too many open files", "enospc"),
    ),
    # A node of a blockchain has not seen the block yet, and a wallet that lacks money is not the caller's account here.
    ("TOOL_RESOURCE_BUSY", phrases("header not found", "blockhash not found")),
    ("TOOL_INPUT_INVALID", phrases("insufficient funds for gas")),
    ("TOOL_EXECUTION_FAILED", phrases("cannot be canceled", "cannot be cancelled")),
    ("TASK_TURNS_EXHAUSTED", phrases("max turns", "maximum turns", "number of turns", "max_turns")),
    # The request that failed may have been for the limits themselves.
    ("CONN_RESET", phrases("error sending request for url")),
    ("TOOL_EXECUTION_FAILED", phrases("needs to be open", "must be open", "is not open in")),
    ("PROVIDER_REQUEST_TOO_LARGE", phrases("query returned more than", "response size exceeded", "too many results")),
    ("TOOL_EXECUTION_FAILED", phrases("maximum call stack size", "maximum recursion depth")),
    ("TOOL_INPUT_INVALID", phrases("cannot query", "more than the allowed", "range is too large", "block range")),
    (
        "TOOL_QUOTA_EXHAUSTED",
        phrases("""
        monthly limit | daily limit | daily request | per day | request count exceeded | exceeded your monthly | monthly quota | monthly capacity | out of credits
        search quota | insufficient credit | usage limit | payment required
        """),
    ),
    (
        "TOOL_RATE_LIMITED",
        phrases("""
        rate limit | rate-limit | too many requests | throttle | throttled | throttling | secondary rate | per minute
        per second | slow down | ratelimited | http 429 | status code 429 | error 429
    """),
    ),
    ("TOOL_QUOTA_EXHAUSTED", phrases("quota exceeded", "quota has been")),
    (
        "TOOL_TIMEOUT",
        phrases("""
        timed out | request timeout | operation timeout | gateway timeout | timeout exceeded | timeout error
        deadline exceeded | took too long | in time | navigation timeout | ms exceeded | etimedout | timeout expired
        err_connection_timed_out | connection timeout
    """),
    ),
    (
        "TOOL_RESOURCE_BUSY",
        phrases("""
        service unavailable | temporarily unavailable | bad gateway | overloaded | http 502 | http 503 | internal server error
        upstream connect error | no healthy upstream | browser is already in use | status code 502 | status code 503 | database is locked | resource busy | locked by
        inspected target navigated | execution context was destroyed
        only one sse stream | in use by | circuit breaker is open | pool exhausted | pool is exhausted | ebusy | already pending | not finished loading | loading block index
    """),
    ),
    # This stands before the permissions: a schema says "not permitted" and "not allowed" too.
    (
        "TOOL_INPUT_INVALID",
        phrases("""
        input validation | invalid_type | extra inputs are not permitted | additional properties | required property
        cannot be empty | can't be empty | must not be empty | cannot be blank | can't be blank | should be defined | exact match
        string to replace | oldstring | old_string
        schema validation
        invalid arguments for | invalid arguments | validation error for | validation errors for | does not match schema
    """),
    ),
    (
        "TOOL_APPROVAL_DENIED",
        phrases("""
        user rejected | user denied | not approved | declined by the user | permission to use | user declined
    """),
    ),
    (
        "TOOL_FORBIDDEN",
        phrases("""
        permission denied | access restriction | eacces | eperm | access denied | forbidden | not allowed | outside allowed
        unauthorized | not authorized | not authorised | authentication | http 401 | http 403 | not permitted | bad credentials | status code 401
        status code 403 | invalid api key | token expired | not logged in | invalid token | missing scope | 401 client error
    """),
    ),
    (
        "TOOL_NOT_FOUND",
        phrases("""
        unknown tool | tool not found | no such tool | method not found | unknown method | not a known tool
        unknown resource | unknown prompt | resource not found
    """),
    ),
    ("TOOL_CRASHED", phrases("page crashed", "browser has been closed", "target closed", "segmentation fault")),
    (
        "TOOL_FILE_NOT_FOUND",
        phrases(
            "enoent",
            "status code 404",
            "no such file",
            "file not found",
            "does not exist",
            "not found",
            "cannot find context",
        ),
    ),
    ("CONN_REFUSED", phrases("econnrefused", "connection refused", "err_connection_refused")),
    ("CONN_DNS_FAILED", phrases("enotfound", "err_name_not_resolved", "could not resolve host", "name resolution")),
    (
        "CONN_RESET",
        phrases("""
        econnreset | connection reset | fetch failed | network error | socket hang up | net::err_… | connection error
    """),
    ),
    (
        "TOOL_INPUT_INVALID",
        phrases("""
        invalid argument | validation error | invalid params | invalid parameter | missing required
        input validation | is required | invalid input | unexpected argument | invalid_type | must be a
    """),
    ),
    (
        "TOOL_OUTPUT_TOO_LARGE",
        phrases("""
        exceeds maximum allowed tokens | response too large | output too large | exceeds the limit
    """),
    ),
)


@applies_when(_SESSION)
def session_gone(evidence: Evidence) -> Verdict | None:
    """The server no longer knows the session. The client must initialise again, then resend (MCP)."""
    # Clients of MCP over HTTP print the body behind these words.
    over_http = evidence.status == 404 and "posting to endpoint" in evidence.text
    # The bare sentence is the protocol's own. Elsewhere a session is one of a login or of a browser.
    bare = _BARE.fullmatch(evidence.text.strip()) is not None and evidence.status in _OF_A_SESSION
    if (not over_http and not bare and not _speaks_rpc(evidence)) or evidence.matches(_MISSHAPEN | _OF_A_LOGIN):
        return None
    if (
        evidence.rpc_code is None
        and evidence.status is None
        and not bare
        and evidence.source is Source.JSONRPC
        and evidence.matches(_OTHERS)
    ):
        # A tool answered, so the protocol's session is there. The tool's own session is not.
        return None
    # "Bad Request: No valid session ID provided": the client sent none, and sends none again.
    return Verdict(code="TOOL_SESSION_EXPIRED", retryable=False if evidence.matches(_NONE_SENT) else None)


@applies_when(_DEAD, local=True)
def server_gone(evidence: Evidence) -> Verdict | None:
    """The server's process or connection is gone. The client must restart it, then resend."""
    if not _speaks_rpc(evidence):
        return None
    if evidence.matches(_NOT_STARTED) or NOT_STARTED.search(evidence.text):
        return Verdict(code="TOOL_COMMAND_NOT_FOUND")
    return Verdict(code="TOOL_CONNECTION_LOST")


@applies_when(codes(" ".join(_TASKS)))
def task_state(evidence: Evidence) -> Verdict | None:
    """Another agent reports that its task needs a login, was cancelled, or was not taken."""
    return next((Verdict(code=_TASKS[code]) for code in evidence.codes if code in _TASKS), None)


@applies_when(local=True)
def by_number(evidence: Evidence) -> Verdict | None:
    """The number of the protocol decides. A number that the server invented means little, so its text decides."""
    number = evidence.rpc_code
    if number is None:
        return _of_exception(evidence) if _speaks_rpc(evidence) else None
    # Servers use these numbers for every failure, so the text is more exact.
    if number == 0 or number not in _RPC or number in (-32000, -32001, -32002, -32603):
        if evidence.matches(_HEADER) and not evidence.matches(_EARLY) and evidence.status is None and number:
            # The handshake is wrong or missing. No tool was asked.
            return Verdict(code="PROVIDER_BAD_REQUEST")
        spoken = evidence.status in _NOT_THE_PROTOCOL or (evidence.status == 400 and evidence.matches(_HEADER))
        if spoken and evidence.source is Source.JSONRPC:
            return Verdict(code="PROVIDER_BAD_REQUEST")
        code = _meant(evidence) if (known := _by_words(evidence)) is None else None
        if (
            (evidence.status or 0) >= 500
            and evidence.status != 504
            and known is not None
            and known.code == "TOOL_RESOURCE_BUSY"
        ):
            # The tool passed on what a service answered, with its status. The service is not well, and the tool is.
            return Verdict(code="PROVIDER_UNAVAILABLE", scope=Scope.TOOL)
        by_status = _STATUSES.get(str(evidence.status)) if evidence.status else None
        said = code or by_status
        return known or Verdict(code=said or _RPC.get(number, "TOOL_EXECUTION_FAILED"), carrier=said is None)
    if evidence.matches(_EARLY):
        # The call came before the handshake was over, which takes a moment.
        return Verdict(code="TOOL_RESOURCE_BUSY")
    if number == -32600 and (code := _refused(evidence)) is not None:
        return Verdict(code=code)
    if number == -32600 and evidence.matches(_OUTSIDE):
        # Servers call everything that they do not do an invalid request.
        return Verdict(code="TOOL_FORBIDDEN")
    if number in (-32600, -32602) and evidence.matches(_HEADER):
        # The two sides do not speak the same version. No tool was asked.
        return Verdict(code="PROVIDER_BAD_REQUEST")
    return Verdict(code="TOOL_NOT_FOUND" if _NO_TOOL.search(evidence.text) else _RPC[number])


def _refused(evidence: Evidence) -> Code | None:
    """Return the login or the limit for which a server calls a request invalid; None if it names neither."""
    code = evidence.first_match(_WORDS)
    if code in ("TOOL_QUOTA_EXHAUSTED", "TOOL_RATE_LIMITED"):
        return code
    return "TOOL_FORBIDDEN" if meaning(evidence.text) == "AUTH_FAILED" else None


_NOT_THE_PROTOCOL = frozenset({405, 406, 411, 415, 426})
"""The server of a tool speaks HTTP and does not accept how the client speaks it. No tool was asked."""
_EARLY = phrases("before initialization was complete", "initialization not complete", "still initializing")
_OUTSIDE = phrases(
    "outside allowed | outside the allowed | not in the allowed | access denied | permission denied | not allowed\n"
)
_HEADER = phrases(
    "protocol version",
    "protocol-version",
    "session-id header",
    "not initialized",
    "accept header",
    "content-type",
    "not acceptable",
)
_NO_TOOL = re.compile(
    r"\b(?:tool|prompt|resource) \S+ (?:was )?not found\b|\b(?:unknown|no such) (?:tool|prompt|resource)\b"
)
_UNNAMED = Verdict(code="TOOL_EXECUTION_FAILED", weak=True, carrier=True)


_STATUS = re.compile(
    r"\b(?:error|status|code|http|returned|got|responded with)\W{1,3}(?:an? error\W{1,2})?([45]\d\d)\b"
)
_STATUSES: dict[str, Code] = {
    "401": "TOOL_FORBIDDEN",
    "403": "TOOL_FORBIDDEN",
    "404": "TOOL_FILE_NOT_FOUND",
    "408": "TOOL_TIMEOUT",
    "429": "TOOL_RATE_LIMITED",
    "504": "TOOL_TIMEOUT",
}
_OF_A_TOOL: dict[Code, Code] = {
    "AUTH_FAILED": "TOOL_FORBIDDEN",
    "AUTH_FORBIDDEN": "TOOL_FORBIDDEN",
    "AUTH_TOKEN_EXPIRED": "TOOL_FORBIDDEN",
    "PROVIDER_BILLING": "TOOL_QUOTA_EXHAUSTED",
    "PROVIDER_ENTITLEMENT_MISSING": "TOOL_QUOTA_EXHAUSTED",
    "PROVIDER_QUOTA_EXHAUSTED": "TOOL_QUOTA_EXHAUSTED",
    "PROVIDER_RATE_LIMITED": "TOOL_RATE_LIMITED",
    "PROVIDER_TIMEOUT": "TOOL_TIMEOUT",
    "PROVIDER_UNAVAILABLE": "TOOL_RESOURCE_BUSY",
    "PROVIDER_OVERLOADED": "TOOL_RESOURCE_BUSY",
    "PROVIDER_BAD_REQUEST": "TOOL_INPUT_INVALID",
    "PROVIDER_MALFORMED_RESPONSE": "TOOL_EXECUTION_FAILED",
    "PROVIDER_MODEL_NOT_FOUND": "TOOL_FILE_NOT_FOUND",
}
"""What a failure of a provider is called when a tool reports it."""
_OF_A_NODE = frozenset(range(-32099, -32003))
"""Numbers that servers choose. MCP uses none of them, so the server is a service of its own, such as a blockchain's node."""


_LESS_EXACT = frozenset({None, "CONN_RESET", "TOOL_RESOURCE_BUSY"})


def _meant(evidence: Evidence) -> Code | None:
    """Return what a tool's own words mean: a sentence, a status, an identifier, word groups."""
    code = meaning(evidence.text)
    if code in _LESS_EXACT and (status := _STATUS.search(evidence.text)) is not None:
        # The server answered, so the line is well. Its status is more exact than "failed to fetch".
        return _STATUSES.get(status[1]) or ("TOOL_RESOURCE_BUSY" if status[1] > "499" else None)
    code = code or identified(evidence) or meant(evidence)
    if code is None and LATER.search(evidence.text) and not evidence.matches(FORBIDS_A_RETRY):
        return "TOOL_RESOURCE_BUSY"
    if code is None and "internal error" not in evidence.text:
        code = healing(evidence.text, evidence.matched, find_late(evidence.text))
    if code is None:
        return None
    if code == "PROVIDER_UNAVAILABLE" and (evidence.rpc_code or 0) in _OF_A_NODE:
        return code
    return _OF_A_TOOL.get(code, code)


def _of_exception(evidence: Evidence) -> Verdict:
    """Return the verdict for the exception of a client, which has no number."""
    if (known := _by_words(evidence)) is not None:
        return known
    code = _meant(evidence)
    # Only what passes is worth a guess. Everything else is a failed tool, whatever it is about.
    return Verdict(code=code, weak=True) if code in _PASSES else _UNNAMED


_PASSES = frozenset({"CONN_RESET", "CONN_DNS_FAILED", "TOOL_RESOURCE_BUSY", "TOOL_TIMEOUT", "TOOL_CRASHED"})


def _by_words(evidence: Evidence) -> Verdict | None:
    code = evidence.first_match(_WORDS)
    return None if code is None else Verdict(code=code)


def carried_by(evidence: Evidence, code: Code) -> Code:
    """Return what a failure is called in this carrier: a tool's login or limit is the tool's and not the provider's."""
    if code == "PROVIDER_BAD_REQUEST" or not _speaks_rpc(evidence):
        # A message that the server does not accept need not be the arguments of a tool.
        return code
    return _OF_A_TOOL.get(code, code)


def _speaks_rpc(evidence: Evidence) -> bool:
    return evidence.source is Source.JSONRPC or evidence.rpc_code is not None or evidence.named_in(_CLASSES)


RULES = (task_state, session_gone, server_gone, by_number)
