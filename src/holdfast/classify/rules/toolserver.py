"""JSON-RPC and MCP: protocol errors by number, tool results by what they say."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.classify.evidence import Evidence, Source, Verdict, says

if TYPE_CHECKING:
    from holdfast.faults import Code

_RPC: dict[int, Code] = {
    -32700: "TOOL_INPUT_INVALID",
    -32600: "TOOL_INPUT_INVALID",
    -32601: "TOOL_NOT_FOUND",
    -32602: "TOOL_INPUT_INVALID",
    -32603: "TOOL_EXECUTION_FAILED",
    -32001: "TOOL_TIMEOUT",
    -32002: "TOOL_NOT_FOUND",
    -32042: "AUTH_REQUIRED",
    -32000: "TOOL_EXECUTION_FAILED",
}
_SESSION = ("session not found", "session terminated", "session expired", "unknown session", "invalid session", "no valid session", "session has expired")
_DEAD = ("connection closed", "transport closed", "server disconnected", "stream closed", "process exited", "server exited", "connection lost", "broken pipe",
         "not connected", "stdio transport", "subprocess exited", "connection terminated", "server process")  # fmt: skip
_WORDS: tuple[tuple[Code, tuple[str, ...]], ...] = (
    ("TOOL_QUOTA_EXHAUSTED", ("api rate limit exceeded for", "quota exceeded", "quota has been", "monthly limit", "daily limit")),
    ("TOOL_RATE_LIMITED", ("rate limit", "rate-limit", "too many requests", "429", "throttl", "secondary rate")),
    ("TOOL_TIMEOUT", ("timed out", "timeout", "deadline exceeded", "took too long")),
    ("TOOL_APPROVAL_DENIED", ("user rejected", "user denied", "not approved", "declined by the user", "permission to use", "user declined")),
    ("TOOL_FORBIDDEN", ("permission denied", "eacces", "eperm", "access denied", "forbidden", "not allowed", "outside allowed", "unauthorized",
                        "authentication", "401", "403", "not permitted", "bad credentials")),
    ("TOOL_NOT_FOUND", ("unknown tool", "tool not found", "no such tool", "method not found", "unknown method", "not a known tool", "unknown resource",
                        "unknown prompt", "resource not found")),
    ("TOOL_FILE_NOT_FOUND", ("enoent", "no such file", "file not found", "does not exist", "not found")),
    ("CONN_REFUSED", ("econnrefused", "connection refused", "err_connection_refused")),
    ("CONN_DNS_FAILED", (" enotfound", "err_name_not_resolved", "could not resolve", "name resolution")),
    ("CONN_RESET", ("econnreset", "connection reset", "fetch failed", "network error", "socket hang up", "net::err_", "connection error")),
    ("TOOL_RESOURCE_BUSY", ("database is locked", "resource busy", "locked by", "in use by", "temporarily unavailable", "ebusy")),
    ("TOOL_INPUT_INVALID", ("invalid argument", "validation error", "invalid params", "invalid parameter", "missing required", "input validation",
                            "is required", "invalid input", "unexpected argument", "invalid_type", "must be a")),
    ("TOOL_OUTPUT_TOO_LARGE", ("exceeds maximum allowed tokens", "response too large", "output too large", "exceeds the limit")),
)  # fmt: skip


def session_gone(evidence: Evidence) -> Verdict | None:
    """The server forgot the session: initialise again, then resend (MCP)."""
    if not _speaks_rpc(evidence):
        return None
    if says(evidence.text, _SESSION):
        return Verdict(code="TOOL_SESSION_EXPIRED")
    return None


def server_gone(evidence: Evidence) -> Verdict | None:
    """The server's process or connection is gone: restart it, then resend."""
    if _speaks_rpc(evidence) and says(evidence.text, _DEAD):
        return Verdict(code="TOOL_CONNECTION_LOST")
    return None


def by_number(evidence: Evidence) -> Verdict | None:
    """The protocol's numbers; a server's own number is read by its text."""
    number = evidence.rpc_code
    if number is None:
        return _by_words(evidence) if _speaks_rpc(evidence) else None
    if number == 0 or number not in _RPC or number in (-32000, -32603):
        return _by_words(evidence) or Verdict(code="TOOL_EXECUTION_FAILED")
    return Verdict(code=_RPC[number])


def _by_words(evidence: Evidence) -> Verdict | None:
    for code, words in _WORDS:
        if says(evidence.text, words):
            return Verdict(code=code)
    return None


def _speaks_rpc(evidence: Evidence) -> bool:
    return evidence.source is Source.JSONRPC or evidence.named("McpError", "MCPError", "ToolError", "JSONRPCError", "JsonRpcError", "ToolException")


RULES = (session_gone, server_gone, by_number)
