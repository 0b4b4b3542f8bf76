"""The fault of anything: exceptions, responses, processes, texts, and objects whose attributes raise."""

from __future__ import annotations

import asyncio
import http.client
import io
import math
import subprocess
import sys
import traceback
from types import SimpleNamespace
from unittest.mock import MagicMock

import httpx
import pytest
import requests
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.classify import CLASSIFIER, Verdict
from holdfast.faults import Attempt, CircuitOpenError, Err, Fault, HoldfastError
from holdfast.runtime import FAULT_ATTRIBUTE, fault_of

NOW = 1_700_000_000.0
OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}


# Faults, and errors that carry one


def test_a_fault_stays_the_same_object():
    fault = Fault.of("SESS_CLOSED")
    assert fault_of(fault) is fault
    assert fault_of(Err(fault)) is fault
    assert fault_of(Err(fault, ValueError("original"))) is fault
    assert fault_of(HoldfastError(fault)) is fault


def test_an_error_of_ours_inside_a_foreign_wrapper_is_found():
    ours = CircuitOpenError.because(circuit="claude")
    wrapper = RuntimeError("the framework failed")
    wrapper.__cause__ = ours
    assert fault_of(wrapper) is ours.fault


# Exceptions


def test_R26_the_history_a_recovery_left_on_the_exception_is_kept():
    history = (Attempt(number=1, code="PROVIDER_OVERLOADED"), Attempt(number=2, code="PROVIDER_TIMEOUT"))
    kept = Fault.of("PROVIDER_TIMEOUT").with_attempts(history)
    error = TimeoutError("slow")
    setattr(error, FAULT_ATTRIBUTE, kept)
    assert fault_of(error) is kept


@pytest.mark.parametrize("left", [None, "PROVIDER_TIMEOUT", {"code": "PROVIDER_TIMEOUT"}, Fault])
def test_another_value_under_the_fault_attribute_is_ignored(left):
    error = KeyError("plan")
    setattr(error, FAULT_ATTRIBUTE, left)
    assert fault_of(error).code == "SYS_PROGRAMMING_ERROR"


def test_a_fault_attribute_on_the_class_is_ignored():
    class Carrier(KeyError):
        __holdfast_fault__ = Fault.of("AUTH_FAILED")

    assert fault_of(Carrier("plan")).code == "SYS_PROGRAMMING_ERROR"


def _raised() -> BaseException:
    try:
        try:
            raise ConnectionResetError(104, "Connection reset by peer")
        except OSError as inner:
            raise RuntimeError("call failed") from inner
    except RuntimeError as error:
        error.add_note("while planning")
        return error


def test_classifying_does_not_change_the_exception():
    error = _raised()
    before = (
        dict(error.__dict__),
        error.args,
        error.__cause__,
        error.__context__,
        error.__suppress_context__,
        error.__traceback__,
    )
    shown = traceback.format_exception(error)
    assert fault_of(error).code == "CONN_RESET"
    after = (
        dict(error.__dict__),
        error.args,
        error.__cause__,
        error.__context__,
        error.__suppress_context__,
        error.__traceback__,
    )
    assert after == before
    assert traceback.format_exception(error) == shown


def test_the_cause_is_kept_as_a_value():
    cause = fault_of(_raised()).cause
    assert cause.type == "RuntimeError"
    assert [link.type for link in cause.chain] == ["ConnectionResetError"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (KeyError("plan"), "SYS_PROGRAMMING_ERROR"),
        (TimeoutError(), "SYS_TIMEOUT"),
        (asyncio.CancelledError(), "SYS_CANCELLED"),
        (KeyboardInterrupt(), "SYS_CANCELLED"),
        (SystemExit(1), "SYS_PROCESS_EXIT"),
        (ConnectionRefusedError(111, "Connection refused"), "CONN_REFUSED"),
        (ExceptionGroup("both", [TimeoutError(), ValueError("no")]), "SYS_PROGRAMMING_ERROR"),
        (BaseExceptionGroup("stop", [KeyboardInterrupt(), TimeoutError()]), "SYS_CANCELLED"),
        (subprocess.CalledProcessError(127, "rg", stderr="rg: command not found"), "TOOL_COMMAND_NOT_FOUND"),
        (Exception(), "SYS_UNKNOWN"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_an_exception_gives_its_code(error, code):
    assert fault_of(error).code == code


# Responses


def _requests_response(status: int, body: bytes) -> requests.Response:
    response = requests.Response()
    response.status_code = status
    response._content = body
    response.headers["Retry-After"] = "7"
    return response


@pytest.mark.parametrize(
    "response",
    [
        httpx.Response(529, json=OVERLOADED, headers={"retry-after": "7"}),
        _requests_response(529, b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'),
        SimpleNamespace(status_code=529, headers={"Retry-After": "7"}, body=OVERLOADED),
        SimpleNamespace(status=529, headers={b"retry-after": b"7"}, body=b'{"error":{"type":"overloaded_error"}}'),
        SimpleNamespace(statusCode=529, headers={"retry-after": "7"}, body=OVERLOADED),
        SimpleNamespace(status="failed", statusCode=529, headers={"retry-after": "7"}, body=OVERLOADED),
    ],
    ids=["httpx", "requests", "status_code", "status", "statusCode", "a word and a number"],
)
def test_a_response_gives_its_code_and_its_wait(response):
    fault = fault_of(response, provider="anthropic", now=NOW)
    assert (fault.code, fault.retry_after) == ("PROVIDER_OVERLOADED", 7.0)
    assert fault.context["provider"] == "anthropic"
    assert fault.context["status"] == 529


def test_a_body_that_was_not_read_stays_unread():
    stream = io.BytesIO(b'{"error":{"code":"insufficient_quota"}}')
    response = requests.Response()
    response.status_code = 429
    response.raw = stream
    assert fault_of(response).code == "PROVIDER_RATE_LIMITED"
    assert stream.tell() == 0


def test_an_httpx_response_that_streams_is_judged_by_its_status():
    class Untouched(httpx.SyncByteStream):
        def __iter__(self):
            pytest.fail("the body was read")

    assert fault_of(httpx.Response(503, stream=Untouched())).code == "PROVIDER_UNAVAILABLE"


def test_the_standard_librarys_response_has_a_status_too():
    class Wire:
        def makefile(self, *_):
            return io.BytesIO(b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 3\r\n\r\n")

    response = http.client.HTTPResponse(Wire())
    response.begin()
    fault = fault_of(response, now=NOW)
    assert (fault.code, fault.retry_after) == ("PROVIDER_RATE_LIMITED", 3.0)


def test_R30_dates_are_compared_with_now():
    response = httpx.Response(429, headers={"retry-after": "Tue, 14 Nov 2023 22:13:50 GMT"})
    assert fault_of(response, now=NOW).retry_after == 30.0
    assert fault_of(response).retry_after is None, "by today's clock it has passed"


# Processes


@pytest.mark.parametrize(
    ("process", "code"),
    [
        (subprocess.CompletedProcess(["rg"], 127, stderr="rg: command not found"), "TOOL_COMMAND_NOT_FOUND"),
        (subprocess.CompletedProcess(["make"], 2, stderr=b"make: *** Error 1"), "TOOL_EXECUTION_FAILED"),
        (subprocess.CompletedProcess(["x"], -9), "TOOL_KILLED"),
        (subprocess.CompletedProcess(["x"], -11, stderr=None), "TOOL_CRASHED"),
        (subprocess.CompletedProcess(["x"], 1, stderr=b"\xff\xfe no space left on device"), "SYS_RESOURCE_EXHAUSTED"),
    ],
    ids=["text", "bytes", "none", "signal", "not utf-8"],
)
def test_a_finished_process_gives_its_code(process, code):
    assert fault_of(process).code == code


def test_a_process_that_still_runs_has_not_failed():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        fault = fault_of(process)
        process.communicate(b"\n", timeout=10)
    assert (fault.code, fault.rule) == ("SYS_UNKNOWN", "not-a-failure")


# Texts and documents


@pytest.mark.parametrize(
    "kind", [str, str.encode, lambda text: bytearray(text, "utf-8")], ids=["str", "bytes", "bytearray"]
)
def test_a_text_gives_its_code(kind):
    text = (
        "Traceback (most recent call last):\n  File 'x'\nanthropic.RateLimitError: Error code: 429 - rate_limit_error"
    )
    assert fault_of(kind(text)).code == "PROVIDER_RATE_LIMITED"


@pytest.mark.parametrize("document", [OVERLOADED, [OVERLOADED]], ids=["dict", "list"])
def test_a_decoded_error_gives_its_code(document):
    assert fault_of(document).code == "PROVIDER_OVERLOADED"


# Added rules


def test_a_given_classifier_is_used():
    def grip(evidence):
        return Verdict(code="TOOL_RESOURCE_BUSY") if "gripper" in evidence.text else None

    mine = CLASSIFIER.with_rules(grip)
    for failure in ("gripper jammed", RuntimeError("gripper jammed"), {"error": {"message": "gripper jammed"}}):
        assert fault_of(failure, classifier=mine).code == "TOOL_RESOURCE_BUSY"


def test_a_rule_that_raises_does_no_harm():
    def broken(_):
        raise ZeroDivisionError

    fault = fault_of(RuntimeError("x"), classifier=CLASSIFIER.with_rules(broken))
    assert (fault.code, fault.retryable) == ("SYS_UNKNOWN", False)
    assert "ZeroDivisionError" in fault.rule


# Any object


class Raises:
    def __getattribute__(self, name):
        raise RuntimeError(name)


class RaisesOnHeaders:
    status_code = 500

    @property
    def headers(self):
        raise RuntimeError("closed")


class LyingHeaders:
    status_code = 500
    headers = SimpleNamespace(items=lambda: [("a",), 5])


class BrokenText(Exception):
    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


class BrokenDict(Exception):
    @property
    def __dict__(self):
        raise RuntimeError("no dict")


class BrokenArgs(Exception):
    args = property(lambda self: (_ for _ in ()).throw(RuntimeError("no args")))
    response = property(lambda self: (_ for _ in ()).throw(RuntimeError("no response")))


def _ring() -> Exception:
    one, two = RuntimeError("one"), RuntimeError("two")
    one.__cause__, two.__cause__ = two, one
    return one


def _tall() -> BaseException:
    error: BaseException = RuntimeError("0")
    for n in range(5_000):
        above = RuntimeError(str(n))
        above.__cause__ = error
        error = above
    return error


def _nested_groups() -> BaseException:
    group: Exception = ValueError("leaf")
    for _ in range(2_000):
        group = ExceptionGroup("g", [group])
    return group


HOSTILE = {
    "none": None,
    "object": object(),
    "class": ValueError,
    "number": 500,
    "nan": math.nan,
    "bool": True,
    "function": len,
    "module": math,
    "mock": MagicMock(),
    "raises on everything": Raises(),
    "raises on headers": RaisesOnHeaders(),
    "lies about headers": LyingHeaders(),
    "exception without text": BrokenText(),
    "exception without dict": BrokenDict("x"),
    "exception without args": BrokenArgs("x"),
    "ring of causes": _ring(),
    "tall chain": _tall(),
    "nested groups": _nested_groups(),
    "empty text": "",
    "surrogates": "\ud800",
    "long text": "x" * 5_000_000,
    "nested lists": [[[[[]]]]],
    "empty dict": {},
    "odd keys": {1: {None: 2}},
    "status of the wrong kind": SimpleNamespace(status_code="500", headers=None),
    "impossible status": SimpleNamespace(status_code=10**30, headers={"a": None}),
    "exit code of the wrong kind": SimpleNamespace(returncode="1"),
    "impossible exit code": SimpleNamespace(returncode=-(10**30), stderr=object()),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_it_never_raises(name):
    fault = fault_of(HOSTILE[name])
    assert isinstance(fault, Fault)
    assert fault.for_user()
    assert fault.for_model(NOW)
    assert fault.for_audit(NOW)


@pytest.mark.parametrize("name", ["raises on headers", "lies about headers"])
def test_headers_that_cannot_be_read_do_not_hide_the_status(name):
    assert fault_of(HOSTILE[name]).code == "PROVIDER_INTERNAL_ERROR"


@pytest.mark.parametrize("name", ["none", "object", "class", "number", "function", "mock", "raises on everything"])
def test_an_object_that_is_no_failure_has_its_own_fault_and_is_never_retried(name):
    fault = fault_of(HOSTILE[name])
    assert (fault.code, fault.retryable) == ("SYS_UNKNOWN", False)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(anything, anything, anything)
@settings(max_examples=200, deadline=None)
def test_every_object_gives_a_fault(one, two, three):
    for failure in (
        one,
        Exception(one, two),
        OSError(one, two),
        SimpleNamespace(status_code=one, headers=two, body=three),
        SimpleNamespace(status=429, headers={"retry-after": one}, body=two),
        SimpleNamespace(returncode=1, stderr=one),
    ):
        assert isinstance(fault_of(failure, now=NOW), Fault)
