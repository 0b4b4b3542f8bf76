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
from holdfast.classify.words import Words
from holdfast.faults import Scope

if TYPE_CHECKING:
    from holdfast.classify.phrases import Phrases
    from holdfast.faults import Code

_LISTED = Words("toolserver")

_RPC: dict[int, Code] = _LISTED.numbers("rpc")
_TASKS: dict[str, Code] = {
    "task:auth-required": "AUTH_REQUIRED",
    "task:canceled": "SYS_CANCELLED",
    "task:cancelled": "SYS_CANCELLED",
    "task:rejected": "PROVIDER_BAD_REQUEST",
}
"""States of a task that another agent reports (A2A). What `failed` means is in its text."""
_CLASSES = class_names("McpError MCPError McpException ToolError JSONRPCError JsonRpcError ToolException")
_SESSION = phrases(_LISTED["session"])
_BARE = re.compile(
    r"(?:\w*error: |mcp\b[^:\n]{0,40}: |bad request: )?(?:unknown (?:or expired )?session|session (?:not found|terminated))(?: id)?\W*"
)
# The identifier is not written as one. No session was looked up, and a new one does not mend it.
_MISSHAPEN = phrases(_LISTED["misshapen"])
_OF_A_LOGIN = phrases(_LISTED["of_a_login"])
_OTHERS = phrases(_LISTED["others"])
_OF_A_SESSION = frozenset({None, 200, 400, 404, 500})
_NONE_SENT = phrases("bad request: no valid session", "bad request: no session")
# Transports of MCP clients. The tool's process is gone, so the call may be sent again after a restart.
_DEAD = phrases(_LISTED["dead"])
# The process never ran, so a restart ends in the same way.
_NOT_STARTED = phrases(_LISTED["not_started"])
_WORDS: tuple[tuple[Code, Phrases], ...] = _LISTED.table("words", phrases)


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
_OUTSIDE = phrases(_LISTED["outside"])
_HEADER = phrases(_LISTED["header"])
_NO_TOOL = re.compile(
    r"\b(?:tool|prompt|resource) \S+ (?:was )?not found\b|\b(?:unknown|no such) (?:tool|prompt|resource)\b"
)
_UNNAMED = Verdict(code="TOOL_EXECUTION_FAILED", weak=True, carrier=True)


_STATUS = re.compile(
    r"\b(?:error|status|code|http|returned|got|responded with)\W{1,3}(?:an? error\W{1,2})?([45]\d\d)\b"
)
_STATUSES: dict[str, Code] = _LISTED.lookup("statuses")
_OF_A_TOOL = _LISTED.lookup("of_a_tool")
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
