"""Guesses: what a short text or an exception means that no other rule knows."""

from __future__ import annotations

import pytest

from holdfast.classify import from_jsonrpc, from_text
from holdfast.classify.records import Record, RecordedException, from_record


def raised(name: str, message: str = ""):
    return from_record(Record(kind="exception", exception=RecordedException(module="", type=name, message=message)))


@pytest.mark.parametrize(
    ("text", "category"),
    [
        ("replica lag too high, read rejected", "unavailable"),
        ("leader not elected yet", "unavailable"),
        ("Assistant turn ended without output", "validation"),
        ("sandbox container went away", "agent_crash"),
        ("Page did not finish loading in 30 s", "timeout"),
        ("Netris controller is inaccessible due to maintenance", "unavailable"),
    ],
)
def test_what_passes_is_retried(text: str, category: str):
    fault = from_text(text)
    assert (fault.category.value, fault.retryable, fault.rule) == (category, True, "guesses.heals")


@pytest.mark.parametrize(
    ("text", "category"),
    [
        ("License seat not assigned to this user", "rate_limit"),
        ("Your organization admin has turned off this model", "auth"),
        ("Input is 212,004 tokens; the window is 200,000", "overflow"),
        ("that model was shut off on 2025-06-01", "not_found"),
        ("GPU driver too old for this build", "tool_error"),
    ],
)
def test_what_a_person_must_change_is_not_retried(text: str, category: str):
    fault = from_text(text)
    assert (fault.category.value, fault.retryable, fault.rule) == (category, False, "guesses.stays")


@pytest.mark.parametrize(
    "words", ["the quota is used up", "sign in again", "the option is invalid", "upgrade your plan", "not found"]
)
def test_a_limit_a_login_an_invalidity_or_an_absence_beside_it_forbids_the_retry(words: str):
    assert from_text("leader not elected yet").retryable
    assert not from_text(f"leader not elected yet: {words}").retryable


def test_words_far_apart_in_a_long_text_are_no_guess():
    padding = " ".join(["lorem ipsum dolor sit amet"] * 20)
    assert from_text("sandbox container went away").rule == "guesses.heals"
    assert not from_text(f"the container {padding} went away").rule.startswith("guesses.")


def test_the_words_of_a_class_count_but_those_of_a_defect_do_not():
    assert raised("ShardNotice", "all shards failed").rule == "guesses.heals"
    assert not raised("AssertionError", "all shards failed").retryable


@pytest.mark.parametrize(
    ("text", "retryable"), [("index is rebuilding, search is paused", True), ("branch already exists", False)]
)
def test_the_text_of_a_tool_is_guessed_too(text: str, retryable: bool):
    result = {"result": {"isError": True, "content": [{"type": "text", "text": text}]}}
    assert from_jsonrpc(result).retryable is retryable
