"""Python's own exceptions, validation libraries, and what agents' frameworks raise."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from holdfast.classify.evidence import Evidence, Verdict, says
from holdfast.faults import Scope

if TYPE_CHECKING:
    from holdfast.faults import Code

_CLASSES: tuple[tuple[Code, frozenset[str]], ...] = (
    ("SYS_PROCESS_EXIT", frozenset({"SystemExit"})),
    ("SYS_RECURSION", frozenset({"RecursionError"})),
    ("SYS_OUT_OF_MEMORY", frozenset({"MemoryError"})),
    ("PROVIDER_CONTENT_POLICY", frozenset({"ContentFilterFinishReasonError", "ContentPolicyViolationError", "ContentFilterError",
                                           "BlockedPromptException", "StopCandidateException", "ResponsibleAIError"})),
    ("PROVIDER_CONTEXT_OVERFLOW", frozenset({"ContextWindowExceededError", "ContextOverflowError"})),
    ("PROVIDER_REQUEST_TOO_LARGE", frozenset({"ContentTooLargeError", "RequestTooLargeError"})),
    ("PROVIDER_BILLING", frozenset({"BudgetExceededError", "PaymentRequiredError", "InsufficientQuotaError"})),
    ("PROVIDER_OVERLOADED", frozenset({"OverloadedError"})),
    ("PROVIDER_MALFORMED_RESPONSE", frozenset({"APIResponseValidationError", "ContentTypeError", "DecodingError", "ContentDecodingError",
                                               "UnicodeDecodeError", "BadGzipFile", "DecodeError", "JSONSchemaValidationError",
                                               "InvalidChunkLength"})),
    ("PROVIDER_OUTPUT_INVALID", frozenset({"OutputParserException", "UnexpectedModelBehavior", "InstructorRetryException", "ModelRetry",
                                           "ModelBehaviorError", "ToolRetryError",
                                           "ValidationError", "SchemaError", "InvalidToolCall"})),
    ("SYS_BUDGET_EXHAUSTED", frozenset({"UsageLimitExceeded"})),
    ("TASK_TURNS_EXHAUSTED", frozenset({"MaxTurnsExceeded"})),
    ("TASK_LOOP_BOUND", frozenset({"GraphRecursionError", "MaxStepsError"})),
    ("TOOL_OUTPUT_TOO_LARGE", frozenset({"LimitOverrunError", "LineTooLong"})),
    ("TOOL_CRASHED", frozenset({"BrokenProcessPool", "BrokenExecutor", "BrokenThreadPool", "WorkerCrashedError", "ActorDiedError", "WorkerLostError"})),
    ("TOOL_TIMEOUT", frozenset({"TimeoutExpired"})),
    ("PROVIDER_CAPABILITY_MISSING", frozenset({"UnsupportedParamsError", "NotSupportedError", "UnsupportedOperation"})),
    ("PROVIDER_BAD_REQUEST", frozenset({"UnsupportedProtocol", "InvalidURL", "LocalProtocolError", "TooManyRedirects", "InvalidSchema", "MissingSchema",
                                        "ParamValidationError", "InvalidHeader", "CookieConflict", "InvalidRegionError", "UnprocessableEntityError",
                                        "NonHttpUrlClientError", "InvalidUrlClientError", "UserError", "ProxySchemeUnknown", "LocationParseError",
                                        "UnknownServiceError"})),
)  # fmt: skip
_SDK: tuple[tuple[Code, frozenset[str]], ...] = (
    ("PROVIDER_RATE_LIMITED", frozenset({"RateLimitError", "TooManyRequestsError", "TooManyRequests", "RateLimitExceeded"})),
    ("AUTH_FAILED", frozenset({"AuthenticationError", "NoCredentialsError", "CredentialRetrievalError", "PartialCredentialsError", "Unauthorized",
                               "Unauthenticated", "UnauthorizedError", "DefaultCredentialsError", "RefreshError", "TokenRetrievalError",
                               "UnauthorizedSSOTokenError", "OpenAIError", "InvalidToken"})),
    ("AUTH_FORBIDDEN", frozenset({"PermissionDeniedError", "PermissionDenied", "Forbidden", "ForbiddenError"})),
    ("PROVIDER_MODEL_NOT_FOUND", frozenset({"NotFoundError", "NotFound"})),
    ("PROVIDER_TIMEOUT", frozenset({"DeadlineExceeded", "RequestTimeout", "APITimeoutError"})),
    ("PROVIDER_GATEWAY_TIMEOUT", frozenset({"GatewayTimeout", "GatewayTimeoutError"})),
    ("PROVIDER_UNAVAILABLE", frozenset({"ServiceUnavailableError", "ServiceUnavailable", "BadGatewayError", "BadGateway", "TryAgain", "Aborted",
                                        "FallbackExceptionGroup", "ServerError"})),
    ("PROVIDER_INTERNAL_ERROR", frozenset({"InternalServerError", "InternalError", "APIError", "Unknown"})),
    ("PROVIDER_BAD_REQUEST", frozenset({"BadRequestError", "InvalidArgument", "InvalidRequestError", "BadRequest", "FailedPrecondition", "ConflictError",
                                        "OutOfRange", "ClientError"})),
)  # fmt: skip
_PROGRAMMING = ("TypeError", "NameError", "UnboundLocalError", "AttributeError", "IndexError", "KeyError", "LookupError", "ZeroDivisionError", "ArithmeticError",
                "AssertionError", "NotImplementedError", "ImportError", "ModuleNotFoundError", "SyntaxError", "StopIteration", "StopAsyncIteration",
                "ReferenceError", "BufferError", "ValueError", "InvalidStateError", "UndefinedError", "PicklingError", "FrozenInstanceError",
                "UnpicklingError", "DeprecationWarning", "StreamConsumed", "StreamClosed", "RequestNotRead", "ResponseNotRead")  # fmt: skip
_ERRNOS: dict[int, Code] = {
    errno.ENOENT: "TOOL_FILE_NOT_FOUND",
    errno.EACCES: "TOOL_FORBIDDEN",
    errno.EPERM: "TOOL_FORBIDDEN",
    errno.EROFS: "TOOL_FORBIDDEN",
    errno.E2BIG: "TOOL_INPUT_TOO_LARGE",
    errno.ENAMETOOLONG: "TOOL_INPUT_INVALID",
    errno.ENOEXEC: "TOOL_COMMAND_NOT_FOUND",
    errno.EEXIST: "TOOL_EXECUTION_FAILED",
    errno.EISDIR: "TOOL_EXECUTION_FAILED",
    errno.ENOTDIR: "TOOL_EXECUTION_FAILED",
    errno.ENOTEMPTY: "TOOL_EXECUTION_FAILED",
    errno.EINVAL: "TOOL_EXECUTION_FAILED",
    errno.EBADF: "TOOL_EXECUTION_FAILED",
    errno.EADDRINUSE: "TOOL_EXECUTION_FAILED",
    errno.ECHILD: "TOOL_EXECUTION_FAILED",
    errno.ESRCH: "TOOL_EXECUTION_FAILED",
    errno.EXDEV: "TOOL_EXECUTION_FAILED",
    errno.ELOOP: "TOOL_EXECUTION_FAILED",
    errno.EIO: "TOOL_EXECUTION_FAILED",
    errno.EAGAIN: "TOOL_RESOURCE_BUSY",
    errno.EBUSY: "TOOL_RESOURCE_BUSY",
    errno.ETXTBSY: "TOOL_RESOURCE_BUSY",
    errno.EDEADLK: "TOOL_RESOURCE_BUSY",
    errno.EINTR: "TOOL_RESOURCE_BUSY",
    errno.ENOSPC: "SYS_RESOURCE_EXHAUSTED",
    errno.EDQUOT: "SYS_RESOURCE_EXHAUSTED",
    errno.EMFILE: "SYS_RESOURCE_EXHAUSTED",
    errno.ENFILE: "SYS_RESOURCE_EXHAUSTED",
    errno.ENOMEM: "SYS_OUT_OF_MEMORY",
}
_OS_CLASSES: tuple[tuple[Code, frozenset[str]], ...] = (
    ("TOOL_FILE_NOT_FOUND", frozenset({"FileNotFoundError"})),
    ("TOOL_FORBIDDEN", frozenset({"PermissionError"})),
    ("TOOL_EXECUTION_FAILED", frozenset({"IsADirectoryError", "NotADirectoryError", "FileExistsError", "ChildProcessError", "ProcessLookupError"})),
    ("TOOL_RESOURCE_BUSY", frozenset({"BlockingIOError", "InterruptedError"})),
)  # fmt: skip
_BAD_ARGUMENTS = ("unexpected keyword argument", "missing 1 required", "required positional argument", "required keyword-only", "positional arguments but",
                  "got multiple values for")  # fmt: skip
_ANSWER_KEYS = ("'choices'", "'candidates'", "'completion'", "'content'", "'message'", "'output'", "'delta'")


def by_class(evidence: Evidence) -> Verdict | None:
    """Classes that name one failure, in the standard library and the frameworks."""
    if evidence.raised is None:
        return None
    if evidence.named("LengthFinishReasonError", "IncompleteOutputException"):
        # Cut at the output limit: the same request is cut at the same place.
        return Verdict(code="PROVIDER_OUTPUT_INVALID", retryable=False)
    if evidence.named("JSONDecodeError"):
        return _undecodable(evidence)
    for code, classes in _CLASSES:
        if not classes.isdisjoint(evidence.raised.names):
            return Verdict(code=code)
    return None


def client_side(evidence: Evidence) -> Verdict | None:
    """Failures raised before anything was sent, as plain ValueError or TypeError with a telling text."""
    if not evidence.named("ValueError", "TypeError", "RuntimeError", "Exception"):
        return None
    if "chunk is longer than limit" in evidence.text or "separator is not found" in evidence.text:
        return Verdict(code="TOOL_OUTPUT_TOO_LARGE")
    if evidence.named("TypeError") and says(evidence.text, _BAD_ARGUMENTS):
        # The model invented an argument: it can do better when told.
        return Verdict(code="TOOL_INPUT_INVALID")
    if evidence.named("KeyError") and evidence.text.strip() in _ANSWER_KEYS:
        return Verdict(code="PROVIDER_MALFORMED_RESPONSE")
    return None


def locked(evidence: Evidence) -> Verdict | None:
    """A database or file that somebody else holds."""
    if says(evidence.text, ("database is locked", "database table is locked", "resource temporarily unavailable", "lock timeout", "deadlock detected",
                            "could not obtain lock", "resource busy", "text file busy")):  # fmt: skip
        return Verdict(code="TOOL_RESOURCE_BUSY")
    return None


def by_errno(evidence: Evidence) -> Verdict | None:
    """The operating system's number, then its classes."""
    raised = evidence.raised
    if raised is None:
        return None
    code = _ERRNOS.get(raised.errno) if raised.errno is not None and _is_os_error(raised.names) else None
    if code is None:
        code = next((c for c, classes in _OS_CLASSES if not classes.isdisjoint(raised.names)), None)
    if code is None:
        return None
    heals = raised.errno in (errno.EMFILE, errno.ENFILE)
    return Verdict(code=code, retryable=True if heals else None, scope=Scope.PROCESS if heals else None)


def timeouts(evidence: Evidence) -> Verdict | None:
    """TimeoutError, wherever it was raised: since 3.10 it is also the socket's."""
    if evidence.named("TimeoutError", "TooSlowError", "FunctionTimedOut", "TimeLimitExceeded", "SoftTimeLimitExceeded"):
        return Verdict(code="SYS_TIMEOUT")
    return None


def sdk_class(evidence: Evidence) -> Verdict | None:
    """The SDKs' classes, when neither status nor body says more; a cause may."""
    if evidence.raised is None:
        return None
    for code, classes in _SDK:
        if evidence.raised.type in classes or not classes.isdisjoint(evidence.raised.names[:2]):
            return Verdict(code=code, weak=True)
    return None


def database(evidence: Evidence) -> Verdict | None:
    """DB-API errors: the statement or the data is wrong."""
    if evidence.named("DatabaseError", "OperationalError", "IntegrityError", "ProgrammingError", "InterfaceError", "DataError"):
        return Verdict(code="TOOL_EXECUTION_FAILED")
    return None


def programming(evidence: Evidence) -> Verdict | None:
    """Defects: the same call fails the same way."""
    if evidence.named(*_PROGRAMMING):
        # A ValueError is often raised from what really failed.
        return Verdict(code="SYS_PROGRAMMING_ERROR", weak=evidence.named("ValueError"))
    return None


def _is_os_error(names: tuple[str, ...]) -> bool:
    return any(name in ("OSError", "IOError", "EnvironmentError", "WindowsError", "error") or name.endswith("Error") for name in names)


def _undecodable(evidence: Evidence) -> Verdict:
    """An empty or HTML body fails at its first character; a model's broken JSON fails later."""
    at_start = "line 1 column 1 (char 0)" in evidence.text and "expecting value" in evidence.text
    return Verdict(code="PROVIDER_MALFORMED_RESPONSE" if at_start else "PROVIDER_OUTPUT_INVALID")


EARLY = (by_class, client_side, locked)
LATE = (by_errno, timeouts, sdk_class, database, programming)
