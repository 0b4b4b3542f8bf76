"""Every door of the classifier is total: whatever comes in, a Fault that can be stored and shown comes out.

200 derandomised examples a door in the normal run; HOLDFAST_SOAK=1 makes it 50,000 random ones.
"""

from __future__ import annotations

import asyncio
import json
import os
from math import isfinite
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from holdfast.classify import (
    PATIENCE_S,
    from_exception,
    from_grpc,
    from_http,
    from_jsonrpc,
    from_process,
    from_record,
    from_stream,
    from_text,
    read_record,
)
from holdfast.classify.phrases import BEGINNING
from holdfast.faults import CODES, Fault, InvalidError

SOAK = os.environ.get("HOLDFAST_SOAK") == "1"
BATCHES = 20
"""A soak runs in batches: hypothesis slows down with every example it remembers, and workers share batches out evenly."""
total = settings(
    max_examples=50_000 // BATCHES if SOAK else 200,
    derandomize=not SOAK,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(autouse=True)
def batch() -> int:
    """Which batch of a soak this is; there is one in the normal run."""
    return 0


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if SOAK and hasattr(metafunc.function, "hypothesis"):
        metafunc.parametrize("batch", range(BATCHES))


MESSAGE_CAP = 2 * BEGINNING
"""What a message shows of a text, with room for the masks that may be longer than the secrets they hide."""

MARK = "canary"[::-1] * 2
"""Stands in every secret below and nowhere else: hypothesis mines a module's literals, and this is none."""
CANARIES = (
    f"sk-ant-api03-{MARK}0123456789",
    f"Bearer {MARK}0123456789",
    f"password={MARK}",
    f"https://user:{MARK}@host.example/x",
)


def check(fault: Fault) -> None:
    """What holds for every fault of every door."""
    assert isinstance(fault, Fault)
    assert fault.code in CODES
    assert not fault.rule.startswith("classifier-failed"), f"the classifier itself failed: {fault.rule}: {fault.cause}"
    assert fault.rule
    if fault.retry_after is not None:
        assert isfinite(fault.retry_after)
        assert fault.retry_after >= 0
        assert fault.retry_after <= PATIENCE_S or not fault.retryable
    assert fault.message
    assert len(fault.message) <= MESSAGE_CAP
    assert MARK not in fault.message
    assert MARK not in str(fault.cause)
    assert msgspec.json.decode(msgspec.json.encode(fault), type=Fault) == fault


# What failures are made of: ordinary words and numbers of error bodies, and everything else there is.

CUES = (
    "rate limit", "try again in 5s", "retry after 24 seconds", "reset at 3pm (UTC)", "resets 2026-04-01 at 00:00 UTC", "limit reached|1753441200",
    'Traceback (most recent call last):\n  File "x"\nValueError: y', "insufficient_quota", "Error code: 429 - {'error': {'code': 1}}", "HTTP 503",
    "[Errno 104] reset", "StatusCode.UNAVAILABLE", "MCP error -32602", "<html><title>x</title>", 'data: {"error": {"message": "x"}}\n\n', "[DONE]",
    "\\ud800", "\ud800", "\x00", "é", "气球", "…", "{", "}", "[", "'", '"', "\n", "nan", "inf", "1e999", "-1", "9" * 30, "٣", "A" * 700,
)  # fmt: skip


def unmarked(text: str) -> bool:
    """Hypothesis tries strings it met in an earlier failure: the mark alone is no secret."""
    return MARK not in text


texts = st.lists(
    st.sampled_from(CUES) | st.sampled_from(CANARIES) | st.text(max_size=12).filter(unmarked), max_size=6
).map(" ".join)
any_text = texts | st.text(st.characters(exclude_categories=()), max_size=80).filter(unmarked)

NAMES = (
    "error", "errors", "message", "code", "type", "status", "status_code", "details", "detail", "metadata", "raw", "headers", "retryDelay",
    "retry_after", "retry_after_ms", "resets_at", "estimated_time", "base_resp", "quotaId", "response", "choices", "candidates", "finish_reason",
    "delta", "result", "isError", "content", "text", "incomplete_details", "promptFeedback", "body", "cause", "throttlingException", "id", "jsonrpc",
)  # fmt: skip
numbers = st.integers() | st.sampled_from(
    [0, 1, 4, 200, 400, 402, 429, 500, 529, 599, 1113, -32601, -32000, 2**63, 2**70]
)
scalars = st.none() | st.booleans() | numbers | st.floats() | any_text
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=10,
)
objects = st.recursive(
    scalars | st.binary(max_size=20) | st.just(object()),
    lambda inner: st.lists(inner, max_size=3)
    | st.tuples(inner, inner)
    | st.dictionaries(st.sampled_from(NAMES) | st.integers() | st.none() | st.binary(max_size=3), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


def as_text(value: Any) -> str:
    """The value as a body on the wire; what is no JSON, as its repr."""
    try:
        return json.dumps(value)
    except (TypeError, ValueError):
        return repr(value)[:2000]


bodies = (
    json_values
    | objects
    | any_text
    | json_values.map(as_text)
    | st.binary(max_size=60)
    | st.binary(max_size=30).map(bytearray)
)
statuses = st.none() | st.integers(0, 700) | st.integers()
HEADERS = (
    "retry-after", "retry-after-ms", "x-ratelimit-reset", "x-ratelimit-remaining", "x-ratelimit-reset-tokens", "x-ratelimit-remaining-tokens", "date",
    "anthropic-ratelimit-unified-reset", "anthropic-ratelimit-unified-status", "anthropic-ratelimit-tokens-reset", "anthropic-ratelimit-tokens-remaining",
    "x-codex-primary-used-percent", "x-codex-primary-reset-at", "ratelimit", "x-should-retry", "x-amzn-errortype", "request-id", "cf-ray",
)  # fmt: skip
header_values = st.sampled_from(
    [
        "0",
        "1",
        "30",
        "901",
        "100",
        "true",
        "false",
        "rejected",
        "7m12s",
        "2026-03-10T12:00:17Z",
        "Tue, 10 Mar 2026 12:00:00 GMT",
        '"d";r=0;t=9',
    ]
)
headers = st.none() | st.dictionaries(
    st.sampled_from(HEADERS) | st.text(max_size=8) | st.binary(max_size=8),
    header_values | any_text | numbers | st.floats() | st.none() | st.binary(max_size=8),
    max_size=5,
)
nows = st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.just(1_773_144_000.0)


@total
@example(status=429, headers=None, body={1: 2}, now=None)
@example(status=200, headers={b"\xff": b"\xff"}, body=b"\xff", now=1e300)
@example(status=500, headers={"request-id": "\ud800"}, body="\ud800", now=None)
@given(status=statuses, headers=headers, body=bodies, now=nows)
def test_from_http_is_total(status: int | None, headers: Any, body: Any, now: float | None):
    check(from_http(status, headers, body, now=now))


@total
@example(text='data: {"choices": true}\n\ndata: [DONE]\n\n', now=None)
@given(
    st.lists(any_text | json_values.map(lambda value: f"data: {as_text(value)}\n\n"), max_size=4).map("\n".join), nows
)
def test_from_stream_is_total(text: str, now: float | None):
    check(from_stream(text, now=now))


@total
@given(json_values | objects | any_text | st.binary(max_size=40), statuses, nows)
def test_from_jsonrpc_is_total(message: Any, status: int | None, now: float | None):
    check(from_jsonrpc(message, status=status, now=now))


@total
@example(exit_code=1, stderr="caf\udce9: not found", now=None)
@given(exit_code=st.none() | st.integers(-70, 300) | st.integers(), stderr=any_text, now=nows)
def test_from_process_is_total(exit_code: int | None, stderr: str, now: float | None):
    check(from_process(exit_code, stderr, now=now))


@total
@given(
    st.integers(-3, 20) | st.integers() | st.sampled_from(["UNAVAILABLE", "StatusCode.RESOURCE_EXHAUSTED"]) | any_text,
    any_text,
    nows,
)
def test_from_grpc_is_total(status: int | str, details: str, now: float | None):
    check(from_grpc(status, details, now=now))


@total
@given(any_text | json_values.map(as_text), nows)
def test_from_text_is_total(text: str, now: float | None):
    check(from_text(text, now=now))


# Exceptions: trees of causes, contexts and groups, with whatever SDKs attach to them.

ATTRIBUTES = (
    "status_code",
    "status",
    "code",
    "body",
    "response",
    "headers",
    "details",
    "reason",
    "os_error",
    "returncode",
    "errno",
    "args",
)
PLAIN = (
    ValueError, TypeError, KeyError, RuntimeError, OSError, ConnectionResetError, TimeoutError, asyncio.CancelledError, KeyboardInterrupt, MemoryError,
)  # fmt: skip
MODULES = ("openai", "httpx", "requests.exceptions", "grpc", "botocore.exceptions", "mylib", "builtins")
CLASS_NAMES = ("APIError", "RateLimitError", "ConnectError", "Timeout", "Error", "ValidationError", "Élan", "x")


# What an SDK hangs on an exception: mostly plain, sometimes a small structure. Deep ones have doors of their own above.
attached = (
    scalars
    | st.binary(max_size=20)
    | st.dictionaries(st.sampled_from(NAMES), scalars, max_size=3)
    | st.lists(scalars, max_size=2)
    | objects
)


# Built once: a strategy made anew in every draw costs as much as the draw.
yes_or_no = st.booleans()
plain_classes = st.sampled_from(PLAIN)
class_names = st.sampled_from(CLASS_NAMES)
modules = st.sampled_from(MODULES)
arguments = st.lists(scalars, max_size=2)
attributes = st.dictionaries(st.sampled_from(ATTRIBUTES), attached, max_size=2)


@st.composite
def simple_exceptions(draw: st.DrawFn) -> BaseException:
    kind = draw(plain_classes)
    if draw(yes_or_no):
        kind = type(draw(class_names), (kind,), {"__module__": draw(modules)})
    error = kind(*draw(arguments))
    for name, value in draw(attributes).items():
        try:
            setattr(error, name, value)
        except (TypeError, ValueError, AttributeError):
            continue
    return error


@st.composite
def linked(draw: st.DrawFn, inner: st.SearchStrategy[BaseException]) -> BaseException:
    if draw(yes_or_no):
        return BaseExceptionGroup(draw(any_text), [draw(inner) for _ in range(draw(st.integers(1, 3)))])
    error = draw(simple_exceptions())
    other = draw(inner)
    if draw(yes_or_no):
        error.__cause__ = other
    else:
        error.__context__ = other
    if draw(yes_or_no):
        other.__cause__ = error
    return error


exceptions = st.recursive(simple_exceptions(), linked, max_leaves=4)


@total
@given(exceptions, nows)
def test_from_exception_is_total(error: BaseException, now: float | None):
    check(from_exception(error, now=now))


# Records

named_exceptions = st.recursive(
    st.fixed_dictionaries({}, optional={"module": st.none() | st.sampled_from(MODULES), "type": st.none() | st.sampled_from(CLASS_NAMES), "message": any_text}),
    lambda inner: st.fixed_dictionaries({}, optional={"message": any_text, "cause": inner | st.lists(inner, max_size=3), "exceptions": st.lists(inner, max_size=3)}),
    max_leaves=4,
)  # fmt: skip
records = st.fixed_dictionaries(
    {},
    optional={
        "id": any_text | st.integers(),
        "provider": st.none() | any_text,
        "kind": st.sampled_from(["http", "sse", "exception", "jsonrpc", "subprocess", "grpc", "text"]),
        "status": statuses,
        "headers": st.none() | st.dictionaries(st.sampled_from(HEADERS) | any_text, scalars, max_size=3),
        "body": json_values,
        "exception": st.none() | named_exceptions,
        "returncode": st.none() | st.integers(-70, 300),
        "now": st.none() | st.just("2026-03-10T12:00:00Z") | st.floats(allow_nan=False, allow_infinity=False),
    },
)


def read_or_refused(raw: bytes | str) -> Fault | None:
    """The fault of a record; None where it is refused as it should be."""
    rejected: InvalidError | None = None
    try:
        return from_record(read_record(raw))
    except InvalidError as error:
        rejected = error
    assert {"path", "expected", "received"} <= rejected.fault.context.keys()
    assert MARK not in str(rejected)
    assert msgspec.json.encode(rejected.fault)
    return None


@total
@given(records.map(as_text))
def test_from_record_is_total(raw: str):
    fault = read_or_refused(raw)
    if fault is not None:
        check(fault)


@total
@given(st.binary(max_size=120) | any_text | json_values.map(as_text))
def test_read_record_of_anything_is_a_record_or_an_invalid_error(raw: bytes | str):
    fault = read_or_refused(raw)
    if fault is not None:
        check(fault)


# Secrets, in every place a failure has for a text.


@pytest.mark.parametrize("secret", CANARIES)
@pytest.mark.parametrize("cut", range(1, 41, 3))
def test_a_secret_that_the_end_of_the_message_would_cut_in_two_is_masked(secret: str, cut: int):
    """Found by the soak: the first half of a secret looks like none."""
    for end in (BEGINNING, 4_096):
        text = f"{('all is lost ' * 400)[: end - cut - 1]} {secret}"
        for fault in (from_http(500, {}, text), from_text(text), from_exception(RuntimeError(text))):
            assert MARK[:6] not in fault.message, fault.message[-60:]
            assert MARK[:6] not in str(fault.cause)


@pytest.mark.parametrize("secret", CANARIES)
@pytest.mark.parametrize(
    "around", ["{}", "failed: {}", "x" * 590 + " {}", '{{"error": {{"message": "{}"}}}}', "a\n{}\nb", "é {} é"]
)
def test_no_secret_survives_any_door(secret: str, around: str):
    text = around.format(secret)
    for fault in (
        from_http(401, {}, text),
        from_http(401, {"x-request-id": "r"}, {"error": {"message": text, "code": text[:70]}}),
        from_stream(f"data: {json.dumps({'error': {'message': text}})}\n\n"),
        from_jsonrpc({"error": {"code": -32603, "message": text}}),
        from_jsonrpc({"isError": True, "content": [{"text": text}]}),
        from_process(1, text),
        from_grpc("UNAUTHENTICATED", text),
        from_text(text),
        from_exception(RuntimeError(text)),
        from_exception(ExceptionGroup("g", [RuntimeError(text), KeyError(text)])),
        from_record(read_record(json.dumps({"kind": "exception", "exception": {"type": "E", "message": text}}))),
    ):
        assert MARK not in fault.message, fault.rule
        assert MARK not in str(fault.cause), fault.rule
