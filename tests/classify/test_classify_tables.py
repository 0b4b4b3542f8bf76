"""Whole tables of specifications: for every name and number, whether it passes."""

from __future__ import annotations

import errno
import os

import pytest

from holdfast.classify import from_exception, from_process, from_text

KAFKA_PASSES = [
    "LEADER_NOT_AVAILABLE",
    "NOT_LEADER_FOR_PARTITION",
    "NOT_LEADER_OR_FOLLOWER",
    "REQUEST_TIMED_OUT",
    "BROKER_NOT_AVAILABLE",
    "REPLICA_NOT_AVAILABLE",
    "NETWORK_EXCEPTION",
    "COORDINATOR_LOAD_IN_PROGRESS",
    "COORDINATOR_NOT_AVAILABLE",
    "NOT_COORDINATOR",
    "NOT_ENOUGH_REPLICAS",
    "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
    "NOT_CONTROLLER",
    "CONCURRENT_TRANSACTIONS",
    "REBALANCE_IN_PROGRESS",
    "OFFSET_NOT_AVAILABLE",
    "PREFERRED_LEADER_NOT_AVAILABLE",
    "THROTTLING_QUOTA_EXCEEDED",
    "ELIGIBLE_LEADERS_NOT_AVAILABLE",
]
KAFKA_STAYS = [
    "OFFSET_OUT_OF_RANGE",
    "MESSAGE_TOO_LARGE",
    "INVALID_TOPIC_EXCEPTION",
    "RECORD_LIST_TOO_LARGE",
    "INVALID_REQUIRED_ACKS",
    "ILLEGAL_GENERATION",
    "INVALID_GROUP_ID",
    "UNKNOWN_MEMBER_ID",
    "INVALID_SESSION_TIMEOUT",
    "TOPIC_AUTHORIZATION_FAILED",
    "UNSUPPORTED_SASL_MECHANISM",
    "UNSUPPORTED_VERSION",
    "INVALID_PARTITIONS",
    "INVALID_REPLICATION_FACTOR",
    "INVALID_CONFIG",
    "POLICY_VIOLATION",
    "INVALID_PRODUCER_EPOCH",
    "PRODUCER_FENCED",
    "SASL_AUTHENTICATION_FAILED",
    "SECURITY_DISABLED",
    "NON_EMPTY_GROUP",
    "GROUP_ID_NOT_FOUND",
]
MONGO_PASSES = [
    "HostUnreachable",
    "HostNotFound",
    "NetworkTimeout",
    "ShutdownInProgress",
    "PrimarySteppedDown",
    "ExceededTimeLimit",
    "NotWritablePrimary",
    "InterruptedAtShutdown",
    "InterruptedDueToReplStateChange",
    "NotPrimaryNoSecondaryOk",
    "NotPrimaryOrSecondary",
    "StaleShardVersion",
    "WriteConflict",
    "LockTimeout",
    "MaxTimeMSExpired",
    "ReadConcernMajorityNotAvailableYet",
    "NoSuchTransaction",
    "ConflictingOperationInProgress",
    "PooledConnectionsDropped",
    "StaleConfig",
    "ElectionInProgress",
]
MONGO_STAYS = [
    "BadValue",
    "FailedToParse",
    "UserNotFound",
    "Unauthorized",
    "TypeMismatch",
    "AuthenticationFailed",
    "IllegalOperation",
    "NamespaceNotFound",
    "IndexNotFound",
    "CommandNotFound",
    "ImmutableField",
    "CannotCreateIndex",
    "IndexAlreadyExists",
    "InvalidNamespace",
    "DocumentValidationFailure",
    "CommandNotSupported",
    "DuplicateKey",
    "BSONObjectTooLarge",
]
BROWSER_PASSES = [
    "TIMED_OUT",
    "NETWORK_CHANGED",
    "CONNECTION_CLOSED",
    "CONNECTION_RESET",
    "CONNECTION_REFUSED",
    "CONNECTION_FAILED",
    "NAME_NOT_RESOLVED",
    "INTERNET_DISCONNECTED",
    "ADDRESS_UNREACHABLE",
    "TUNNEL_CONNECTION_FAILED",
    "SOCKET_NOT_CONNECTED",
    "PROXY_CONNECTION_FAILED",
    "TEMPORARILY_THROTTLED",
    "EMPTY_RESPONSE",
    "HTTP2_PROTOCOL_ERROR",
    "QUIC_PROTOCOL_ERROR",
    "INCOMPLETE_CHUNKED_ENCODING",
    "CONTENT_LENGTH_MISMATCH",
    "DNS_TIMED_OUT",
    "CONTEXT_SHUT_DOWN",
    "RESPONSE_HEADERS_TRUNCATED",
    "SSL_BAD_RECORD_MAC_ALERT",
    "SSL_HANDSHAKE_NOT_COMPLETED",
    "HOST_RESOLVER_QUEUE_TOO_LARGE",
]
BROWSER_STAYS = [
    "INVALID_ARGUMENT",
    "FILE_NOT_FOUND",
    "ACCESS_DENIED",
    "FILE_NO_SPACE",
    "BLOCKED_BY_CLIENT",
    "BLOCKED_BY_CSP",
    "SSL_PROTOCOL_ERROR",
    "ADDRESS_INVALID",
    "ADDRESS_IN_USE",
    "PROXY_AUTH_UNSUPPORTED",
    "PROXY_AUTH_REQUESTED",
    "UNEXPECTED_PROXY_AUTH",
    "NETWORK_ACCESS_DENIED",
    "MANDATORY_PROXY_CONFIGURATION_FAILED",
    "CERT_COMMON_NAME_INVALID",
    "CERT_AUTHORITY_INVALID",
    "INVALID_URL",
    "TOO_MANY_REDIRECTS",
    "INVALID_AUTH_CREDENTIALS",
    "MSG_TOO_BIG",
]
MYSQL_PASSES = {
    1040: "Too many connections",
    1053: "Server shutdown in progress",
    1158: "Got an error reading communication packets",
    1159: "Got timeout reading communication packets",
    1160: "Got an error writing communication packets",
    1161: "Got timeout writing communication packets",
    1205: "Lock wait timeout exceeded; try restarting transaction",
    1213: "Deadlock found when trying to get lock; try restarting transaction",
    1927: "Connection was killed",
    2003: "Can't connect to MySQL server on 'db' (111)",
    2006: "MySQL server has gone away",
    2013: "Lost connection to MySQL server during query",
    3024: "Query execution was interrupted, maximum statement execution time exceeded",
    3572: "Statement aborted because lock(s) could not be acquired immediately and NOWAIT is set.",
}
MYSQL_STAYS = {
    1045: "Access denied for user 'a'@'h' (using password: YES)",
    1062: "Duplicate entry 'a' for key 'PRIMARY'",
    1064: "You have an error in your SQL syntax",
    1114: "The table 'x' is full",
    1146: "Table 'd.x' doesn't exist",
    1153: "Got a packet bigger than 'max_allowed_packet' bytes",
    1264: "Out of range value for column 'a' at row 1",
    1452: "Cannot add or update a child row: a foreign key constraint fails",
}


def _joined(name: str) -> str:
    return "".join(part.capitalize() for part in name.removesuffix("_EXCEPTION").split("_"))


@pytest.mark.parametrize("name", [*KAFKA_PASSES, *KAFKA_STAYS])
def test_every_name_of_kafka_in_every_spelling(name: str):
    passes = name in KAFKA_PASSES
    raised = type(f"{_joined(name)}Error", (Exception,), {"__module__": "kafka.errors"})
    assert from_exception(raised("[Error 7] it failed")).retryable is passes
    assert from_text(f"org.apache.kafka.common.errors.{_joined(name)}Exception: it failed").retryable is passes
    assert from_process(1, f"[error] {name}: it failed\n").retryable is passes


@pytest.mark.parametrize("name", [*MONGO_PASSES, *MONGO_STAYS])
def test_every_name_of_mongodb_in_every_client(name: str):
    passes = name in MONGO_PASSES
    raised = type("OperationFailure", (Exception,), {"__module__": "pymongo.errors"})
    assert from_exception(raised(f"it failed, full error: {{'code': 9, 'codeName': '{name}'}}")).retryable is passes
    assert from_text(f"MongoServerError[{name}]: it failed").retryable is passes
    assert from_process(1, f"MongoServerError: it failed\n  code: 9,\n  codeName: '{name}'\n").retryable is passes


@pytest.mark.parametrize("name", [*BROWSER_PASSES, *BROWSER_STAYS])
def test_every_name_of_a_browser(name: str):
    passes = name in BROWSER_PASSES
    assert from_text(f"page.goto: net::ERR_{name} at https://example.com/").retryable is passes
    assert from_process(1, f"Error: net::ERR_{name}\n").retryable is passes


@pytest.mark.parametrize("number", [*MYSQL_PASSES, *MYSQL_STAYS])
def test_every_number_of_mysql_in_every_client(number: int):
    passes = number in MYSQL_PASSES
    text = (MYSQL_PASSES | MYSQL_STAYS)[number]
    raised = type("OperationalError", (Exception,), {"__module__": "pymysql.err"})
    assert from_exception(raised(number, text)).retryable is passes
    assert from_process(1, f"ERROR {number} (HY000): {text}\n").retryable is passes


UNDECIDED = {
    "EIO",
    "ENOMEM",
    "EMFILE",
    "ENFILE",
    "ECANCELED",
    "ESTALE",
    "ENOBUFS",
    "ENOLCK",
    "ETIME",
    "EINPROGRESS",
    "EALREADY",
    "EUSERS",
}
UNDECIDED |= {
    "ENOTCONN",
    "ENOLINK",
    "ECOMM",
    "ENONET",
    "ERESTART",
    "ESTRPIPE",
    "EREMOTEIO",
    "ENOSR",
    "EXFULL",
    "EOWNERDEAD",
    "ENODATA",
}
PASSING = {
    "EAGAIN",
    "EBUSY",
    "EINTR",
    "ETXTBSY",
    "EDEADLK",
    "EDEADLOCK",
    "EPIPE",
    "ESHUTDOWN",
    "ETIMEDOUT",
    "ECONNREFUSED",
    "ECONNRESET",
}
PASSING |= {"ECONNABORTED", "ENETUNREACH", "ENETDOWN", "ENETRESET", "EHOSTUNREACH", "EHOSTDOWN"}


@pytest.mark.parametrize("number", [number for number, name in errno.errorcode.items() if name not in UNDECIDED])
def test_every_errno_by_its_number_and_in_words(number: int):
    passes = errno.errorcode[number] in PASSING
    assert from_exception(OSError(number, os.strerror(number))).retryable is passes
    assert from_process(1, f"tool: cannot open /srv/x: {os.strerror(number)}\n").retryable is passes


@pytest.mark.parametrize(
    ("code", "passes"),
    [
        ("SubnetNotFound", False),
        ("StorageAccountAlreadyTaken", False),
        ("InvalidResourceReference", False),
        ("ShardLimitExceeded", False),
        ("CLUSTER_NOT_READY", True),
        ("RegionTemporarilyUnavailable", True),
        ("NodeResizeInProgress", True),
    ],
)
def test_a_code_that_no_table_lists_is_read_by_its_end(code: str, passes: bool):
    assert from_process(1, f"ERROR: ({code}) It did not work.\n").retryable is passes
    assert from_text(f"({code}) It did not work.").retryable is passes


@pytest.mark.parametrize(
    "text",
    [
        "cannot write to temporary file /tmp/x-1",
        "temporary tables cannot specify a schema name",
        "npx command not found. Install Node.js and npm, then try again.",
        "Fix the errors above before retrying",
        "Response body is unavailable in this mode",
        "server-side apply not available on this cluster",
        "could not resolve 'v9' to a commit",
        "no rebase in progress",
        "cannot remove a locked working tree; unlock first",
        "LocalState not locked",
        "Invalid JSON in assume-role policy document config.json",
        "timeout is out of range",
        "timed out waiting for the OAuth callback",
        "SSO session expired. Log in again.",
    ],
)
def test_a_sentence_about_what_somebody_must_change_is_not_retried(text: str):
    assert not from_text(text).retryable
    assert not from_process(1, f"error: {text}\n").retryable


@pytest.mark.parametrize(
    "text",
    [
        "a temporary failure of the upstream",
        "the outage is temporary",
        "Check your internet connection and try again.",
        "Please wait a moment and try again.",
        "Stack web is in UPDATE_IN_PROGRESS state and can not be updated",
        "removal of container web-1 is already in progress",
    ],
)
def test_a_sentence_about_what_passes_is_retried(text: str):
    assert from_text(text).retryable
    assert from_process(1, f"error: {text}\n").retryable


@pytest.mark.parametrize(
    ("exit_code", "text"),
    [
        (1, "./server.go:41:19: undefined: connectTimeout"),
        (1, "5 examples, 1 failure\n\nFailed examples:\n\nrspec ./net_spec.rb:12 # reconnects after connection reset"),
        (129, "error: unknown option `alow-empty'\nusage: git commit [<options>]"),
    ],
)
def test_a_report_and_a_wrong_option_are_no_failure_of_a_network_or_a_signal(exit_code: int, text: str):
    assert from_process(exit_code, text).code == "TOOL_EXECUTION_FAILED"


@pytest.mark.parametrize(
    "text",
    [
        "the `start` date must precede the `end` date",
        "Query has complexity of 1200, which exceeds max complexity of 1000",
        "The working directory has uncommitted changes",
        "checksum of the archive does not match the manifest",
        "PRECONDITION_FAILED - inequivalent arg 'durable' for queue 'jobs' in vhost '/'",
    ],
)
def test_a_sentence_that_says_what_is_wrong_has_a_code(text: str):
    fault = from_text(text)
    assert fault.code != "SYS_UNKNOWN"
    assert not fault.retryable


def test_a_sentence_that_only_says_what_happened_stays_unknown():
    assert from_text("The gripper let item 7 fall").code == "SYS_UNKNOWN"
