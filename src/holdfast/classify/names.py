"""The words in the names of exception classes: `ModelOverloadedException`, `KeyRevokedError`, `StreamEndedPrematurely`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.classify.evidence import contains_any

if TYPE_CHECKING:
    from holdfast.faults import Code

__all__ = ["code_of_name"]

_NAME_HINTS: tuple[tuple[Code, tuple[str, ...]], ...] = (
    ("PROVIDER_RATE_LIMITED", ("ratelimit", "toomanyrequests", "throttl")),
    (
        "PROVIDER_MALFORMED_RESPONSE",
        ("malformedresponse", "invalidresponse", "unexpectedresponse", "badresponse", "emptyresponse"),
    ),
    ("PROVIDER_QUOTA_EXHAUSTED", ("quotaexceeded", "quotaexhausted")),
    ("PROVIDER_OVERLOADED", ("overloaded",)),
    ("TOOL_INPUT_INVALID", ("inputvalidation", "requestvalidation", "paramvalidation", "argumentvalidation")),
    ("PROVIDER_BAD_REQUEST", ("invalidtimeout", "invalidsessiontimeout", "invalidtxntimeout")),
    ("AUTH_TOKEN_EXPIRED", ("expiredsignature", "tokenexpired", "expiredtoken", "sessionexpired")),
    # A server or a library says itself that the call may be repeated.
    ("PROVIDER_UNAVAILABLE", ("tryagain", "transienterror", "temporaryerror", "temporarilyunavail")),
    ("CONN_DNS_FAILED", ("nxdomain", "nonameservers")),
    ("SYS_TIMEOUT", ("timeout", "timedout", "deadlineexceeded")),
    (
        "CONN_RESET",
        (
            "disconnect",
            "connectionreset",
            "connectionclosed",
            "connectionlost",
            "connectionabort",
            "connectionerror",
            "networkerror",
            "brokenpipe",
        ),
    ),
    ("CONN_REFUSED", ("connectionrefused",)),
    ("CONN_DNS_FAILED", ("unknownhost", "nameresolution", "dnserror")),
    ("PROVIDER_RATE_LIMITED", ("retryafter", "floodwait", "slowdown")),
    ("CONN_RESET", ("opensocket", "socketerror", "sockettimeout")),
    ("TOOL_CONNECTION_LOST", ("targetclose", "browserclosed", "sessionclosed")),
    ("PROVIDER_UNAVAILABLE", ("notleader", "notprimary", "notcontroller", "brokernotavailable")),
    (
        "AUTH_FAILED",
        (
            "authentication",
            "unauthorized",
            "invalidcredential",
            "unauthenticated",
            "invalidapikey",
            "autherror",
            "loginfail",
            "revoked",
            "notauthenticated",
            "credential",
            "authfail",
            "badhostkey",
        ),
    ),
    ("AUTH_FORBIDDEN", ("permissiondenied", "accessdenied", "forbidden")),
    ("PROVIDER_UNAVAILABLE", ("serviceunavailable", "unavailable", "badgateway")),
    ("PROVIDER_CONTEXT_OVERFLOW", ("contextwindow", "contextlength")),
    ("PROVIDER_CONTENT_POLICY", ("contentfilter", "contentpolicy")),
    ("PROVIDER_MODEL_NOT_FOUND", ("nosuchmodel", "modelnotfound")),
    ("PROVIDER_CONTEXT_OVERFLOW", ("maxtokens", "contextoverflow", "prompttoolong", "inputtoolong")),
    ("PROVIDER_REQUEST_TOO_LARGE", ("toolarge", "toobig", "toolong")),
    (
        "PROVIDER_BILLING",
        ("billing", "paymentrequired", "insufficientfund", "insufficientbalance", "insufficientcredit"),
    ),
    ("PROVIDER_ENTITLEMENT_MISSING", ("license", "entitlement", "subscription")),
    ("AUTH_ACCOUNT_DISABLED", ("accountlocked", "accountsuspended", "accountdisabled", "userlocked")),
    ("AUTH_REQUIRED", ("captcha", "mfarequired", "loginrequired", "reauth", "verificationrequired", "consentrequired")),
    ("PROVIDER_CONTENT_POLICY", ("safety", "refusal")),
    ("PROVIDER_BAD_REQUEST", ("redirect", "messageconversion", "hfvalidation")),
    ("CONN_TLS_HANDSHAKE_FAILED", ("certificate", "certerror")),
    ("PROVIDER_POOL_TIMEOUT", ("poolexhausted", "pooltimeout")),
    (
        "PROVIDER_UNAVAILABLE",
        (
            "maintenance",
            "circuitopen",
            "circuitbreaker",
            "maxretries",
            "retriesexceeded",
            "retryexhausted",
            "retrylimit",
        ),
    ),
    (
        "TOOL_RESOURCE_BUSY",
        (
            "leaselost",
            "leaseexpired",
            "transactionaborted",
            "writeconflict",
            "optimisticlock",
            "watcherror",
            "concurrentmodification",
        ),
    ),
    ("PROVIDER_OUTPUT_INVALID", ("toolargument", "toolinput", "responseformat", "outputformat")),
    ("PROVIDER_STREAM_CUT", ("premature", "endedearly", "streamended", "streaminterrupt", "cutoff")),
    ("PROVIDER_MALFORMED_RESPONSE", ("noanswer", "noresponse", "emptycompletion", "nooutput")),
    ("PROVIDER_OVERLOADED", ("serverbusy", "serverisbusy", "toobusy")),
    ("TOOL_COMMAND_NOT_FOUND", ("notinstalled",)),
    ("SYS_CANCELLED", ("userinterrupt", "userabort", "usercancel", "interruptedbyuser")),
    ("TOOL_FORBIDDEN", ("escape", "outsideworkspace", "approvalrequired")),
    ("TOOL_EXECUTION_FAILED", ("checksum", "alreadyexists", "duplicate", "destroyed")),
    ("TOOL_RESOURCE_BUSY", ("staleelement",)),
    ("TOOL_NOT_FOUND", ("notfound", "nosuch", "notregistered", "doesnotexist")),
    ("TASK_LOOP_BOUND", ("maxsteps", "maxiteration", "recursionlimit", "maxturns")),
    ("PROVIDER_CONTENT_POLICY", ("guardrail", "moderation")),
    ("PROVIDER_CAPABILITY_MISSING", ("unsupported", "notsupported")),
    ("PROVIDER_UNAVAILABLE", ("enginedead", "internalservererror", "servererror")),
    ("PROVIDER_BAD_REQUEST", ("invalidprompt", "invalidargument", "badrequest", "invalidrequest")),
    (
        "PROVIDER_OUTPUT_INVALID",
        (
            "validationerror",
            "parseerror",
            "parsererror",
            "decodeerror",
            "outputpars",
            "noobjectgenerated",
            "invaliddata",
            "parsingerror",
        ),
    ),
    (
        "PROVIDER_MALFORMED_RESPONSE",
        ("jsonparse", "jsonmapping", "jsonexception", "jsondecode", "emptyresponse", "emptystream"),
    ),
    ("TOOL_CRASHED", ("crashed", "diederror", "deaderror", "killed")),
    # "Blocked" contains "locked".
    ("AUTH_FORBIDDEN", ("blocked", "banned", "notallowed")),
    (
        "TOOL_RESOURCE_BUSY",
        ("locked", "busy", "acquirelock", "lockacquisition", "deadlock", "notready", "serializationfail"),
    ),
    ("SYS_CANCELLED", ("cancelled", "canceled", "aborterror")),
    # These stand last: they say least.
    (
        "PROVIDER_BAD_REQUEST",
        (
            "invalid",
            "misconfigur",
            "configurationerror",
            "configerror",
            "settingserror",
            "usageerror",
            "mismatch",
            "malformed",
        ),
    ),
)
"""Words in the names of classes that no table lists. Most libraries use similar names for similar failures."""


def code_of_name(name: str) -> Code | None:
    """Return the code for the words in the name of a class, in lower case; None if it has none of them."""
    for code, words in _NAME_HINTS:
        if contains_any(name, words):
            return code
    return None
