"""A message is a finished sentence, whatever of its facts is known."""

from __future__ import annotations

import builtins
import re

import pytest

from holdfast.classify import from_exception, from_grpc, from_http, from_jsonrpc, from_process, from_stream, from_text
from holdfast.faults import CATALOG, CODES, Fault
from holdfast.faults.surfaces import fill

LEFTOVER = re.compile(r"[{}\[\]|]|\(\s*\)|''|\"\"|  | [,:;.)]|\( |\bunknown\b|\bNone\b|[,:;(]\s*$|^\W|^$")
FIELD = re.compile(r"\{(\w+)\}")


def unfinished(message: str) -> bool:
    return LEFTOVER.search(message) is not None or not message[0].isupper()


@pytest.mark.parametrize(
    "message", ["Tool failed: unknown", "Tool's process was killed ()", "Tool failed: ", "Session '' not found", "x"]
)
def test_an_unfinished_sentence_is_seen(message):
    assert unfinished(message)


@pytest.mark.parametrize("code", CODES)
def test_a_fault_of_which_nothing_is_known_reads_as_a_finished_sentence(code):
    assert not unfinished(Fault.of(code).message)


def test_every_fact_stands_in_a_clause_that_can_be_left_out():
    def outside(template: str) -> str:
        return re.sub(r"\[[^]]*\]", "", template)

    assert [code for code, entry in CATALOG.items() if re.search(r"[{}\[\]|]", outside(entry.message))] == []


@pytest.mark.parametrize("code", [code for code in CODES if FIELD.search(CATALOG[code].message)])
def test_whichever_of_its_facts_is_known_alone_the_sentence_is_finished(code):
    for name in FIELD.findall(CATALOG[code].message):
        message = Fault.of(code, context={name: "Seven"}).message
        assert not unfinished(message), message


@pytest.mark.parametrize(
    ("template", "facts", "text"),
    [
        ("Tool failed[: {reason}]", {"reason": "disk"}, "Tool failed: disk"),
        ("Tool failed[: {reason}]", {"reason": None}, "Tool failed"),
        ("Tool failed[: {reason}]", {"reason": " "}, "Tool failed"),
        ("Used [{used} of {limit}|all its] turns", {"used": 3, "limit": 3}, "Used 3 of 3 turns"),
        ("Used [{used} of {limit}|all its] turns", {"used": 3}, "Used all its turns"),
        ("Used [{used}|all] turns", {"used": 0}, "Used 0 turns"),
        ("Got[ {a}]", {"a": "[{b}|c]", "b": "no"}, "Got [{b}|c]"),
    ],
)
def test_a_clause_is_shown_when_all_its_facts_are_known(template, facts, text):
    assert fill(template, facts) == text


def test_a_fact_that_cannot_be_compared_does_no_harm():
    class Array:
        def __eq__(self, other):
            raise ValueError("ambiguous")

        __hash__ = None

    assert "Array" in Fault.of("TOOL_EXECUTION_FAILED", context={"reason": Array()}).message


# What comes through the doors of the classifier without a word of its own

EXCEPTIONS = [
    kind
    for kind in vars(builtins).values()
    if isinstance(kind, type) and issubclass(kind, Exception) and not issubclass(kind, (UnicodeError, ExceptionGroup))
    if not str(kind())  # a SyntaxError without a word says `None`
]
SILENT = {
    "http": (from_http(status) for status in range(100, 600)),
    "process": (from_process(code) for code in range(-64, 256)),
    "grpc": (from_grpc(status) for status in range(20)),
    "jsonrpc": (from_jsonrpc({"error": {"code": code}}) for code in (*range(-32_800, -31_990), 0, 1, 404)),
    "exception": (from_exception(kind()) for kind in EXCEPTIONS),
    "stream": (from_stream(text) for text in ("", "data: {}\n\n", "event: error\n\n", "data: [DONE]\n\n")),
    "text": (from_text(text) for text in ("", " ", "\n")),
}


@pytest.mark.parametrize("door", SILENT)
def test_a_failure_that_says_nothing_is_told_in_a_finished_sentence(door):
    messages = {fault.message for fault in SILENT[door]}
    assert messages
    assert {message for message in messages if unfinished(message)} == set()


def test_a_process_that_says_nothing_is_told_with_its_exit_code():
    assert from_process(-9).message == "Tool's process was killed (exit code -9)"
    assert from_process(1).message == "Tool failed (exit code 1)"
