"""Live exceptions of plain Python: groups, chains of causes, cancellation, and objects that fight back."""

from __future__ import annotations

import asyncio
import contextlib
import http
import sys
import urllib.error
from email.message import Message
from typing import Any

import msgspec
import pytest

from holdfast.classify import from_exception
from holdfast.classify.readers.exceptions import cause_of, causes, leaves, read_exception
from holdfast.faults import CircuitOpenError, DeadlineError, Fault, HoldfastError, InvalidError, Scope


def raised(error: BaseException, *, cause: BaseException | None = None, context: BaseException | None = None) -> Any:
    """The exception, really raised: from a cause, or inside the handling of another."""
    try:
        if context is not None:
            try:
                raise context
            except BaseException:
                raise error  # noqa: B904 - the implicit context is the point
        if cause is not None:
            raise error from cause
        raise error
    except BaseException as caught:
        return caught


def in_module(name: str, class_name: str, base: type[BaseException] = Exception) -> type[Any]:
    """An exception class as a library would define it."""
    return type(class_name, (base,), {"__module__": name})


# Python's own


@pytest.mark.parametrize(
    ("error", "code", "retryable"),
    [
        (TypeError("unsupported operand"), "SYS_PROGRAMMING_ERROR", False),
        (KeyError("timeout"), "SYS_PROGRAMMING_ERROR", False),
        (KeyError("choices"), "PROVIDER_MALFORMED_RESPONSE", True),
        (AttributeError("connection reset"), "SYS_PROGRAMMING_ERROR", False),
        (ZeroDivisionError(), "SYS_PROGRAMMING_ERROR", False),
        (NotImplementedError(), "SYS_PROGRAMMING_ERROR", False),
        (AssertionError("rate limit"), "SYS_PROGRAMMING_ERROR", False),
        (ImportError("no module"), "SYS_PROGRAMMING_ERROR", False),
        (RuntimeError("Event loop is closed"), "SYS_PROGRAMMING_ERROR", False),
        (TypeError("f() got an unexpected keyword argument 'x'"), "TOOL_INPUT_INVALID", None),
        (TypeError("f() takes 1 positional argument but 2 were given"), "TOOL_INPUT_INVALID", None),
        (RecursionError(), "SYS_RECURSION", None),
        (MemoryError(), "SYS_OUT_OF_MEMORY", None),
        (TimeoutError("took too long"), "SYS_TIMEOUT", True),
        (ConnectionRefusedError(111, "Connection refused"), "CONN_REFUSED", True),
        (ConnectionResetError(104, "Connection reset by peer"), "CONN_RESET", True),
        (BrokenPipeError(32, "Broken pipe"), "CONN_RESET", True),
        (OSError(101, "Network is unreachable"), "CONN_UNREACHABLE", True),
        (OSError(28, "No space left on device"), "SYS_RESOURCE_EXHAUSTED", None),
        (OSError(24, "Too many open files"), "SYS_RESOURCE_EXHAUSTED", True),
        (FileNotFoundError(2, "No such file"), "TOOL_FILE_NOT_FOUND", False),
        (PermissionError(13, "Permission denied"), "TOOL_FORBIDDEN", False),
        (EOFError(), "PROVIDER_STREAM_CUT", True),
        (asyncio.CancelledError(), "SYS_CANCELLED", False),
        (KeyboardInterrupt(), "SYS_CANCELLED", False),
        (GeneratorExit(), "SYS_CANCELLED", False),
        (SystemExit(1), "SYS_PROCESS_EXIT", False),
        (Exception("xyzzy"), "SYS_UNKNOWN", None),
    ],
)
def test_pythons_own_exceptions(error: BaseException, code: str, retryable: bool | None):
    fault = from_exception(raised(error))
    assert fault.code == code, fault.rule
    assert retryable is None or fault.retryable is retryable
    assert fault.cause is not None
    assert fault.cause.type.endswith(type(error).__qualname__)


def test_an_error_of_ours_already_has_its_fault():
    ours = CircuitOpenError.because(circuit="claude")
    assert from_exception(ours) is ours.fault
    assert from_exception(raised(RuntimeError("wrapped"), cause=ours)) is ours.fault


def test_our_deadline_is_not_the_callees_timeout():
    assert from_exception(DeadlineError.because(limit_s=3)).code == "SYS_DEADLINE_EXCEEDED"
    assert from_exception(InvalidError.at("$", "a", "b")).code == "CONFIG_OPTION_INVALID"


# Chains


def test_R21_a_context_of_an_unrelated_error_is_not_followed():
    """A transient error raised while handling a bad key has nothing to do with the key."""
    fault = from_exception(raised(Exception("xyzzy"), context=ConnectionResetError(104, "reset")))
    assert fault.code == "SYS_UNKNOWN"
    assert fault.cause is not None
    assert fault.cause.chain == ()


@pytest.mark.parametrize(
    "context",
    [
        ConnectionResetError(104, "Connection reset by peer"),
        TimeoutError("timed out"),
        CircuitOpenError.because(circuit="claude"),
        HoldfastError(Fault.of("PROVIDER_OVERLOADED")),
    ],
    ids=lambda context: type(context).__name__,
)
@pytest.mark.parametrize("error", [KeyError("id"), ValueError("a mistake"), Exception("xyzzy")], ids=repr)
def test_R21_a_context_never_classifies_an_error_of_the_caller(error: Exception, context: Exception):
    """Not even our own give-up: the runtime looks for it in the context, but the verdict is about the error itself."""
    alone = from_exception(error)
    inside = from_exception(raised(error, context=context))
    assert (inside.code, inside.retryable, inside.cause.chain) == (alone.code, alone.retryable, ())


def test_R21_a_context_under_an_sdk_that_wraps_without_from_is_followed():
    wrapper = in_module("openai", "APIConnectionError")("Connection error.")
    fault = from_exception(raised(wrapper, context=ConnectionRefusedError(111, "Connection refused")))
    assert fault.code == "CONN_REFUSED"


def test_R21_a_suppressed_context_is_not_followed():
    wrapper = in_module("openai", "APIConnectionError")("Connection error.")
    with pytest.raises(type(wrapper)) as caught:
        try:
            raise ConnectionRefusedError(111, "Connection refused")
        except ConnectionRefusedError:
            raise wrapper from None
    assert from_exception(caught.value).code == "CONN_RESET"


def test_R22_an_sdk_wrapper_chain_is_network_and_stops_at_the_exception_that_names_the_failure():
    os_error = ConnectionRefusedError(111, "Connection refused")
    httpx = raised(in_module("httpx", "ConnectError")("All connection attempts failed"), cause=os_error)
    sdk = raised(in_module("openai", "APIConnectionError")("Connection error."), cause=httpx)
    error = raised(
        in_module("pydantic_ai.exceptions", "ModelAPIError")("model_name: gpt, Connection error."), cause=sdk
    )
    fault = from_exception(error)
    assert (fault.code, fault.category.value, fault.retryable) == ("CONN_REFUSED", "network", True)
    assert fault.cause is not None
    assert [one.type for one in fault.cause.chain] == [
        "openai.APIConnectionError",
        "httpx.ConnectError",
        "ConnectionRefusedError",
    ]


def test_R22_the_outermost_exception_that_names_the_failure_decides():
    error = raised(TimeoutError("tool took too long"), cause=ConnectionResetError(104, "reset"))
    assert from_exception(error).code == "SYS_TIMEOUT"
    error = raised(KeyError("x"), cause=ConnectionResetError(104, "reset"))
    assert from_exception(error).code == "SYS_PROGRAMMING_ERROR"


def test_R22_a_named_wrapper_around_a_group_decides_too():
    """What a task group left behind does not overrule the exception that was raised from it on purpose."""
    group = BaseExceptionGroup("tasks", [asyncio.CancelledError()])
    assert from_exception(raised(TimeoutError("the step took too long"), cause=group)).code == "SYS_TIMEOUT"


@pytest.mark.parametrize("cause", [KeyError("x"), ExceptionGroup("g", [KeyError("x")]), TypeError("x")], ids=repr)
def test_R22_a_status_that_was_answered_is_not_overruled_by_a_cause(cause: Exception):
    limited = in_module("anthropic", "RateLimitError")("Error code: 429")
    assert from_exception(raised(limited, cause=cause)).code == "PROVIDER_RATE_LIMITED"


def test_a_wrapper_that_names_nothing_leaves_the_word_to_the_group_below():
    group = ExceptionGroup("tasks", [ConnectionRefusedError(111, "Connection refused")])
    assert from_exception(raised(RuntimeError("step 3 failed"), cause=group)).code == "CONN_REFUSED"


def test_a_reason_held_as_data_is_a_cause():
    error = urllib.error.URLError(ConnectionRefusedError(111, "Connection refused"))
    assert from_exception(raised(error)).code == "CONN_REFUSED"
    assert from_exception(raised(RuntimeError(ConnectionResetError(104, "reset")))).code == "CONN_RESET"


def test_a_timeout_carried_out_by_a_cancellation_is_a_timeout():
    async def slow() -> None:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError) as caught:
        asyncio.run(slow())
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    assert from_exception(caught.value).code == "SYS_TIMEOUT"


def test_wait_for_is_a_timeout_and_a_cancelled_task_is_a_cancellation():
    async def both() -> list[BaseException]:
        found: list[BaseException] = []
        try:
            await asyncio.wait_for(asyncio.Event().wait(), 0.001)
        except TimeoutError as error:
            found.append(error)
        task = asyncio.create_task(asyncio.Event().wait())
        await asyncio.sleep(0)
        task.cancel("shutting down")
        try:
            await task
        except asyncio.CancelledError as error:
            found.append(error)
        return found

    timeout, cancelled = asyncio.run(both())
    assert from_exception(timeout).code == "SYS_TIMEOUT"
    fault = from_exception(cancelled)
    assert (fault.code, fault.retryable, fault.kind.value) == ("SYS_CANCELLED", False, "cancelled")


@pytest.mark.parametrize("length", [2, 3])
def test_a_cycle_of_causes_ends(length: int):
    ring = [RuntimeError(f"{number}") for number in range(length)]
    for index, one in enumerate(ring):
        one.__cause__ = ring[(index + 1) % length]
    assert list(causes(ring[0])) == ring
    assert from_exception(ring[0]).code == "SYS_UNKNOWN"


def test_an_exception_that_is_its_own_cause_or_argument_ends():
    error = RuntimeError("round")
    error.__cause__ = error
    assert from_exception(error).code == "SYS_UNKNOWN"
    error = RuntimeError()
    error.args = (error,)
    assert from_exception(error).code == "SYS_UNKNOWN"


def test_a_very_long_chain_is_cut():
    error: BaseException = ConnectionResetError(104, "reset")
    for number in range(10_000):
        error = raised(RuntimeError(f"layer {number}"), cause=error)
    fault = from_exception(error)
    assert fault.cause is not None
    assert len(fault.cause.chain) < 50


# Groups


@pytest.mark.parametrize(
    ("inner", "code", "retryable"),
    [
        ([ConnectionResetError(104, "reset"), TimeoutError()], None, True),
        ([ConnectionResetError(104, "reset"), PermissionError(13, "no")], "TOOL_FORBIDDEN", False),
        ([asyncio.CancelledError(), ConnectionResetError(104, "reset")], "CONN_RESET", True),
        ([asyncio.CancelledError(), asyncio.CancelledError()], "SYS_CANCELLED", False),
        ([ConnectionResetError(104, "reset"), KeyboardInterrupt()], "SYS_CANCELLED", False),
        ([KeyError("x"), KeyboardInterrupt()], "SYS_CANCELLED", False),
        ([TimeoutError(), TypeError("x")], "SYS_PROGRAMMING_ERROR", False),
    ],
)
@pytest.mark.parametrize("nested", [False, True])
def test_a_group_is_as_limited_as_its_most_limiting_leaf(
    inner: list[BaseException], code: str | None, retryable: bool, nested: bool
):
    group = BaseExceptionGroup("g", inner)
    if nested:
        group = BaseExceptionGroup(
            "outer", [BaseExceptionGroup("middle", [group]), BaseExceptionGroup("side", inner[:1])]
        )
    fault = from_exception(raised(group))
    assert fault.retryable is retryable
    assert code is None or fault.code == code
    assert fault.cause is not None
    assert fault.cause.type.endswith("ExceptionGroup")


def test_a_keyboard_interrupt_in_a_group_stops_the_process():
    fault = from_exception(BaseExceptionGroup("g", [ConnectionResetError(), KeyboardInterrupt()]))
    assert fault.scope is Scope.PROCESS


def test_the_longest_wait_of_retryable_leaves_counts():
    def limited(seconds: str) -> Exception:
        error = urllib.error.HTTPError("http://x", 429, "Too Many Requests", Message(), None)
        error.headers["Retry-After"] = seconds
        return error

    errors = [limited("3"), limited("8"), limited("5")]
    fault = from_exception(ExceptionGroup("g", errors))
    for error in errors:
        error.close()
    assert (fault.code, fault.retry_after) == ("PROVIDER_RATE_LIMITED", 8)


@pytest.mark.parametrize("count", [63, 64, 65, 1000])
def test_the_leaf_that_limits_most_counts_wherever_it_stands(count: int):
    """A thousand resets and one Ctrl-C at the end: still a Ctrl-C."""
    group = BaseExceptionGroup("g", [*(ConnectionResetError() for _ in range(count)), KeyboardInterrupt()])
    assert from_exception(group).code == "SYS_CANCELLED"


def test_a_deeply_nested_group_is_read():
    group: Any = ExceptionGroup("g", [ConnectionRefusedError(111, "Connection refused")])
    for _ in range(300):
        group = ExceptionGroup("g", [group])
    assert [type(leaf) for leaf in leaves(group)] == [ConnectionRefusedError]
    assert from_exception(group).code == "CONN_REFUSED"


def test_a_real_task_group_is_classified_by_the_child_that_failed():
    async def fails() -> None:
        raise ConnectionResetError(104, "reset")

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())
            group.create_task(asyncio.Event().wait())

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(run())
    assert from_exception(caught.value).code == "CONN_RESET"


# Causes as values


def test_a_cause_is_a_value_with_secrets_masked_and_texts_capped():
    inner = RuntimeError("password=hunter2hunter2")
    cause = cause_of(raised(ValueError("x" * 1_000_000), cause=inner))
    assert cause.type == "ValueError"
    assert len(cause.message) < 70_000
    assert "hunter2" not in cause.chain[0].message


def test_the_exception_is_left_as_it_was():
    error = raised(ValueError("x"), cause=KeyError("y"))
    before = (error.args, error.__cause__, error.__context__, dict(error.__dict__), error.__traceback__)
    from_exception(error)
    assert (error.args, error.__cause__, error.__context__, dict(error.__dict__), error.__traceback__) == before


# Answers on exceptions


def test_the_headers_that_litellm_keeps_beside_its_made_up_response_are_read():
    error = in_module("litellm.exceptions", "RateLimitError")("litellm.RateLimitError: slow down")
    error.status_code = 429
    error.response = type("Response", (), {"status_code": 429, "headers": {}})()
    error.litellm_response_headers = {"Retry-After": "7"}
    fault = from_exception(raised(error), now=0.0)
    assert (fault.code, fault.retry_after) == ("PROVIDER_RATE_LIMITED", 7.0)


@pytest.mark.parametrize("status", [http.HTTPStatus.TOO_MANY_REQUESTS, 429])
def test_a_status_may_be_an_enum(status: int):
    """`HTTPStatus` members have upper-case names like gRPC's codes, and are no gRPC codes."""
    headers = Message()
    headers["Retry-After"] = "7"
    error = urllib.error.HTTPError("http://x", status, "Too Many Requests", headers, None)
    fault = from_exception(error)
    error.close()
    assert (fault.code, fault.retry_after, fault.context["status"]) == ("PROVIDER_RATE_LIMITED", 7, 429)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (http.HTTPStatus.UNPROCESSABLE_ENTITY, "PROVIDER_BAD_REQUEST"),
        (http.HTTPStatus.PAYMENT_REQUIRED, "PROVIDER_BILLING"),
        (http.HTTPStatus.NOT_FOUND, "PROVIDER_ENDPOINT_NOT_FOUND"),
        (http.HTTPStatus.NOT_IMPLEMENTED, "PROVIDER_CAPABILITY_MISSING"),
    ],
)
def test_a_refusal_given_as_an_enum_is_not_a_broken_connection(status: http.HTTPStatus, code: str):
    error = urllib.error.HTTPError("http://x", status, status.phrase, Message(), None)
    fault = from_exception(error)
    error.close()
    assert (fault.code, fault.retryable) == (code, False)


class SdkError(Exception):
    """The shape most SDKs' errors have."""

    def __init__(self, message: str, **attributes: Any) -> None:
        super().__init__(message)
        self.__dict__.update(attributes)


@pytest.mark.parametrize(
    ("attributes", "code", "wait"),
    [
        ({"status_code": 429, "headers": {"Retry-After": "4"}}, "PROVIDER_RATE_LIMITED", 4),
        ({"status": 529}, "PROVIDER_OVERLOADED", None),
        ({"code": 503}, "PROVIDER_UNAVAILABLE", None),
        ({"status_code": 429, "body": {"error": {"code": "insufficient_quota"}}}, "PROVIDER_BILLING", None),
        ({"body": b'{"error": {"code": "context_length_exceeded"}}'}, "PROVIDER_CONTEXT_OVERFLOW", None),
        ({"response": {"Error": {"Code": "x", "code": "ThrottlingException"}}}, "PROVIDER_RATE_LIMITED", None),
        ({"status_code": True}, "SYS_UNKNOWN", None),
        ({"status_code": "429"}, "PROVIDER_RATE_LIMITED", None),
        ({"status_code": 99999}, "SYS_UNKNOWN", None),
        ({"headers": 7, "status_code": 429}, "PROVIDER_RATE_LIMITED", None),
        ({"returncode": -9}, "TOOL_KILLED", None),
    ],
)
def test_what_an_sdk_attached_to_its_exception_is_read(attributes: dict[str, Any], code: str, wait: float | None):
    fault = from_exception(SdkError("xyzzy", **attributes))
    assert (fault.code, fault.retry_after) == (code, wait)


def test_the_provider_is_known_by_the_sdk():
    assert read_exception(in_module("anthropic", "APIError")("x")).provider == "anthropic"
    assert read_exception(in_module("anthropic", "APIError")("x"), provider="vertex").provider == "vertex"


# Objects that fight back


class BrokenStr(ConnectionResetError):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class BrokenRepr(KeyError):
    def __repr__(self) -> str:
        raise RuntimeError("no words")


class BrokenGetattr(ConnectionResetError):
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)


class BrokenProperties(ConnectionResetError):
    @property
    def response(self) -> Any:
        raise RuntimeError("not read yet")

    body = status_code = status = code = headers = details = reason = os_error = returncode = response  # type: ignore[assignment]


class LyingAttributes(ConnectionResetError):
    response = body = status_code = status = code = headers = details = reason = property(lambda _: object())


class RecursiveAttributes(ConnectionResetError):
    def __getattr__(self, name: str) -> Any:
        return self


class CallsEverything(ConnectionResetError):
    def code(self) -> Any:
        raise SdkError("not now")

    details = code


class EndlessStr(ConnectionResetError):
    def __str__(self) -> str:
        return "x" * 10_000_000


@pytest.mark.parametrize(
    "kind",
    [BrokenStr, BrokenGetattr, BrokenProperties, LyingAttributes, RecursiveAttributes, CallsEverything, EndlessStr],
)
def test_a_hostile_exception_is_still_known_by_its_class(kind: type[BaseException]):
    fault = from_exception(raised(kind()))
    assert fault.code == "CONN_RESET", fault.rule
    assert msgspec.json.encode(fault)
    assert len(fault.message) < 5_000


def test_a_broken_repr_does_not_hide_the_class():
    assert from_exception(BrokenRepr("x")).code == "SYS_PROGRAMMING_ERROR"


class EverythingRaises(Exception):
    """Every look at it raises something, for each of three ways to be nasty."""

    throws: Any = RuntimeError

    def __getattribute__(self, name: str) -> Any:
        thrown = type(self).throws
        raise self if thrown is None else thrown(name)


class RaisesItself(EverythingRaises):
    throws = None


class RaisesAnother(EverythingRaises):
    throws = RaisesItself


@pytest.mark.parametrize("kind", [EverythingRaises, RaisesItself, RaisesAnother])
@pytest.mark.parametrize("inside", [False, True], ids=["alone", "in a group"])
def test_an_exception_that_cannot_be_looked_at_at_all_still_gives_a_fault(kind: type[Exception], inside: bool):
    error: Exception = kind("x")
    code = "it raised"
    with contextlib.suppress(Exception):  # let out, it would take pytest down with it
        code = from_exception(ExceptionGroup("g", [error]) if inside else error).code
    assert code in ("SYS_UNKNOWN", "SYS_PROGRAMMING_ERROR")


def test_lone_surrogates_in_a_message_can_be_stored():
    fault = from_exception(RuntimeError("cannot read caf\udce9"))
    assert msgspec.json.decode(msgspec.json.encode(fault), type=Fault).code == fault.code


def test_a_class_without_a_module_and_with_an_odd_name_is_read():
    odd = type("", (Exception,), {"__module__": None})
    assert from_exception(odd("x")).code == "SYS_UNKNOWN"


def test_a_stack_that_is_almost_used_up_is_no_reason_to_raise():
    """Classifying a RecursionError often happens near the top of the stack."""

    def deep(left: int) -> Fault:
        return deep(left - 1) if left else from_exception(RecursionError("maximum recursion depth exceeded"))

    faults = []
    for spare in range(60, 200, 20):
        try:
            faults.append(deep(sys.getrecursionlimit() - _stack_depth() - spare))
        except RecursionError:  # the call of the door itself found no room: nothing we could do
            continue
    assert faults
    assert {fault.code for fault in faults} <= {"SYS_RECURSION", "SYS_UNKNOWN"}


def _stack_depth() -> int:
    frame, depth = sys._getframe(), 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1  # type: ignore[assignment]
    return depth


@pytest.mark.parametrize(
    "first", [HoldfastError(Fault.of("CIRCUIT_OPEN", retry_after=0.05)), PermissionError("no such key")]
)
def test_an_error_that_is_handled_around_the_call_is_no_cause_of_its_failure(first: Exception):
    """As in a fallback: the failure of the first model is being handled while the second one is called and recovered."""
    lost = in_module("httpx2", "RemoteProtocolError")

    def second_model() -> str:
        try:
            raise lost("peer closed connection without sending complete message body")
        except lost as error:
            return from_exception(error).code

    try:
        raise first
    except type(first):
        assert second_model() == "PROVIDER_STREAM_CUT"
