"""FR30: an exception of a known shape gets the fault of the earlier one. No difference may be missed."""

from __future__ import annotations

import json
import socket
import sys
from typing import Any

import pytest

from holdfast.classify import CLASSIFIER, Classifier, Evidence, Verdict, from_exception
from holdfast.classify.classifier import _MOST_REMEMBERED
from holdfast.classify.readers.exceptions import shape_of
from holdfast.classify.rules import RULES
from holdfast.faults import Fault

FORGETFUL = Classifier(list(RULES))
"""The same rules, in a classifier that remembers nothing."""


class Plain(Exception):
    """An exception as most programs define it."""

    def __init__(self, message: str, code: Any = None) -> None:
        super().__init__(message)
        self.code = code


class Bare(Exception):
    """An exception with nothing of its own."""


def attributed(error: BaseException, **attributes: Any) -> BaseException:
    vars(error).update(attributes)
    return error


def noted(error: BaseException) -> BaseException:
    error.add_note("seen at noon")
    return error


def chained(outer: BaseException, *inner: BaseException) -> BaseException:
    link = outer
    for one in inner:
        link.__cause__ = one
        link = one
    return outer


def samples() -> list[BaseException]:
    return [
        ConnectionRefusedError(111, "Connection refused"),
        ConnectionRefusedError(),
        ConnectionError("Connection refused"),
        OSError(28, "No space left on device"),
        OSError(28, "No space left on device", "/tmp/a"),
        OSError("errno"),
        FileNotFoundError(2, "No such file or directory", "a", None, "b"),
        TimeoutError("The read operation timed out"),
        socket.gaierror(-2, "Name or service not known"),
        KeyError("x"),
        KeyError(1),
        ValueError("429 Too Many Requests"),
        RuntimeError("status code 503"),
        RuntimeError("status code 500"),
        RuntimeError('{"error": {"type": "overloaded_error", "message": "Overloaded"}}'),
        RuntimeError("api_key=sk-ant-api03-abcdefghijklmnopqrstuvwxyz012345"),
        Plain("no", 503),
        Plain("no", "503"),
        Plain("no", 404),
        Plain("no"),
        Bare("no", "code", 503),
        attributed(Bare("no"), code=503),
        attributed(Bare("known"), __holdfast_gave_up_in__="", __holdfast_fault__=object()),
        json.JSONDecodeError("Expecting value", "{", 1),
        chained(Plain("no"), ConnectionResetError(104, "Connection reset by peer")),
        chained(Plain("no"), RuntimeError("no"), TimeoutError()),
        chained(RuntimeError("no"), ValueError("401 Unauthorized")),
    ]


@pytest.mark.parametrize("provider", ["", "anthropic"])
def test_FR30_a_remembered_fault_is_the_fault_that_reading_again_would_give(provider: str) -> None:
    fresh = [from_exception(one, provider=provider, now=1e9, classifier=FORGETFUL) for one in samples()]
    for _ in range(2):
        assert [from_exception(one, provider=provider, now=1e9) for one in samples()] == fresh
    shapes = [shape_of(one) for one in samples()]
    assert None not in shapes
    assert len(set(shapes)) == len(shapes)


def test_FR30_a_known_shape_is_not_read_again() -> None:
    error = ConnectionRefusedError(111, "Connection refused")
    first = from_exception(error)
    calls = 0

    def count(_frame: Any, event: str, _arg: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        again = from_exception(ConnectionRefusedError(111, "Connection refused"))
    finally:
        sys.setprofile(None)
    assert again == first
    assert calls <= 5  # reading it takes more than a hundred


def test_FR30_remembered_faults_have_contexts_of_their_own() -> None:
    first = from_exception(Plain("no", 503))
    first.context["mine"] = True
    second = from_exception(Plain("no", 503))
    second.context["mine"] = True
    assert "mine" not in from_exception(Plain("no", 503)).context


def test_FR30_what_changes_on_the_exception_changes_its_shape() -> None:
    error: Any = OSError(111, "Connection refused")
    assert from_exception(error).code == "CONN_REFUSED"
    error.errno = 28
    error.strerror = "No space left on device"
    error.args = (28, "No space left on device")
    assert from_exception(error) == from_exception(error, classifier=FORGETFUL)
    plain: Any = Plain("no")
    unknown = from_exception(plain).code
    plain.status_code = 429
    assert from_exception(plain).code == "PROVIDER_RATE_LIMITED" != unknown
    plain.status_code = True  # equals 1
    assert shape_of(plain) is None
    caused = Plain("no")
    assert from_exception(caused).code == unknown
    caused.__cause__ = ConnectionRefusedError(111, "Connection refused")
    assert from_exception(caused).code == "CONN_REFUSED"


class WithProperty(Exception):
    @property
    def status_code(self) -> int:
        return STATUS[0]


class WithText(Exception):
    def __str__(self) -> str:
        return TEXT[0]


class WithSlot(Exception):
    __slots__ = ("status_code",)


class WithGetattr(Exception):
    def __getattr__(self, name: str) -> Any:
        if name == "status_code":
            return STATUS[0]
        raise AttributeError(name)


STATUS = [503]
TEXT = ["Connection refused"]


@pytest.mark.parametrize("kind", [WithProperty, WithGetattr])
def test_FR30_a_class_whose_attributes_are_computed_is_read_every_time(kind: type[Exception]) -> None:
    STATUS[0] = 503
    assert from_exception(kind("no")).context["status"] == 503
    STATUS[0] = 401
    assert from_exception(kind("no")).context["status"] == 401


def test_FR30_a_class_with_a_text_or_slots_of_its_own_is_read_every_time() -> None:
    before = from_exception(WithText())
    TEXT[0] = "429 Too Many Requests"
    assert from_exception(WithText()).code != before.code
    slotted: Any = WithSlot("no")
    slotted.status_code = 503
    first = from_exception(slotted).context["status"]
    slotted.status_code = 401
    assert (first, from_exception(slotted).context["status"]) == (503, 401)


@pytest.mark.parametrize(
    "error",
    [
        ExceptionGroup("two", [ValueError("a")]),
        UnicodeDecodeError("utf-8", b"x", 0, 1, "bad"),
        RuntimeError(ConnectionRefusedError()),
        RuntimeError("x" * 501),
        RuntimeError(1.5),
        noted(RuntimeError("no")),
        OSError(2, "No such file", b"bytes"),
        type("Wrapped", (Exception,), {"__module__": "openai._exceptions"})("no"),
        type("Reasoned", (Exception,), {"__module__": "aiohttp"})("no"),
        type("Rpc", (Exception,), {"__module__": "grpc", "code": lambda _: None})("no"),
        chained(*(RuntimeError(str(number)) for number in range(5))),
    ],
)
def test_FR30_what_is_not_plain_has_no_shape(error: BaseException) -> None:
    assert shape_of(error) is None


def test_FR30_a_circle_of_causes_has_no_shape() -> None:
    first, second = RuntimeError("a"), RuntimeError("b")
    first.__cause__, second.__cause__ = second, first
    assert shape_of(first) is None


def test_FR30_a_text_that_names_a_time_is_read_every_time() -> None:
    error = RuntimeError("429: limit resets at 2026-01-01T00:01:00Z")
    reset = 1767225660.0
    delays = [from_exception(error, now=reset - before).retry_after for before in (60.0, 20.0)]
    assert delays == [60.0, 20.0]


@pytest.mark.parametrize(
    "error", [ConnectionResetError(104, "Connection reset by peer"), RuntimeError("connection reset")]
)
def test_FR30_a_connection_that_was_reset_names_no_time(error: BaseException) -> None:
    from_exception(error, now=1e9)
    shape = shape_of(error)
    assert shape is not None
    assert CLASSIFIER.recall("", shape) == from_exception(error, classifier=FORGETFUL)


def test_FR30_rules_of_others_are_asked_every_time_and_win() -> None:
    answers = ["PROVIDER_OVERLOADED", None, "TOOL_TIMEOUT"]

    def rule(_: Evidence) -> Verdict | None:
        code: Any = answers.pop(0)
        return None if code is None else Verdict(code=code)

    error = ConnectionRefusedError(111, "Connection refused")
    assert from_exception(error).code == "CONN_REFUSED"
    mine = CLASSIFIER.with_rules(rule)
    codes = [from_exception(error, classifier=mine).code for _ in range(3)]
    assert codes == ["PROVIDER_OVERLOADED", "CONN_REFUSED", "TOOL_TIMEOUT"]
    assert from_exception(error).code == "CONN_REFUSED"


def test_FR30_the_memory_is_bounded() -> None:
    classifier = Classifier()
    for number in range(_MOST_REMEMBERED + 10):
        classifier.remember("", ("shape", number), Fault.of("SYS_UNKNOWN"))
    kept = [number for number in range(_MOST_REMEMBERED + 10) if classifier.recall("", ("shape", number))]
    assert kept == list(range(_MOST_REMEMBERED, _MOST_REMEMBERED + 10))
