"""`codes_for`: a word from somebody else's failure gives the codes it can mean."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from holdfast.classify import from_record, read_record
from holdfast.classify.phrases import _classes, _coded
from holdfast.classify.vocabulary import codes_for
from holdfast.faults import CATALOG

CORPUS = Path(__file__).parents[1] / "corpus"


@pytest.mark.parametrize(
    ("word", "first"),
    [
        ("429", "PROVIDER_RATE_LIMITED"),
        ("529", "PROVIDER_OVERLOADED"),
        ("401", "AUTH_FAILED"),
        ("http 503", "PROVIDER_UNAVAILABLE"),
        ("rate_limit_error", "PROVIDER_RATE_LIMITED"),
        ("insufficient_quota", "PROVIDER_BILLING"),
        ("overloaded_error", "PROVIDER_OVERLOADED"),
        ("invalid_request_error", "PROVIDER_BAD_REQUEST"),
        ("context_length_exceeded", "PROVIDER_CONTEXT_OVERFLOW"),
        ("ThrottlingException", "PROVIDER_RATE_LIMITED"),
        ("RESOURCE_EXHAUSTED", "PROVIDER_RATE_LIMITED"),
        ("UNAVAILABLE", "PROVIDER_UNAVAILABLE"),
        ("ECONNRESET", "CONN_RESET"),
        ("ENOENT", "TOOL_FILE_NOT_FOUND"),
        ("EAI_AGAIN", "CONN_DNS_FAILED"),
        ("RateLimitError", "PROVIDER_RATE_LIMITED"),
        ("openai.RateLimitError", "PROVIDER_RATE_LIMITED"),
        ("APITimeoutError", "PROVIDER_TIMEOUT"),
        ("APIConnectionError", "CONN_RESET"),
        ("ReadTimeout", "PROVIDER_TIMEOUT"),
        ("ConnectionResetError", "CONN_RESET"),
        ("CalledProcessError", "TOOL_EXECUTION_FAILED"),
        ("KeyError", "SYS_PROGRAMMING_ERROR"),
        ("MyOwnRateLimitError", "PROVIDER_RATE_LIMITED"),
        ("137", "TOOL_KILLED"),
        ("-32601", "TOOL_NOT_FOUND"),
        ("SIGSEGV", "TOOL_CRASHED"),
        ("1113", "PROVIDER_BILLING"),
        ("1006", "CONN_WEBSOCKET_CLOSED"),
        ("close 1012", "CONN_WEBSOCKET_CLOSED"),
        ("4401", "AUTH_FORBIDDEN"),
        ("google.api_core.exceptions.ResourceExhausted", "PROVIDER_RATE_LIMITED"),
        ("DeadlineExceeded", "PROVIDER_TIMEOUT"),
        ("pydantic_ai.exceptions.ModelHTTPError", "PROVIDER_INTERNAL_ERROR"),
    ],
)
def test_FU9_words_that_users_have(word: str, first: str) -> None:
    assert codes_for(word)[0] == first
    assert codes_for(word.lower()) == codes_for(word.upper()) == codes_for(f" {word} ") == codes_for(word)


@pytest.mark.parametrize(
    "word", ["", " ", "banana", "200", "302", "1024", "4096", "PROVIDER_RATE_LIMITD", "CONN_TIMEOUTT", "x" * 10_000]
)
def test_FU9_other_words_give_nothing(word: str) -> None:
    assert codes_for(word) == ()


def test_FU9_a_vague_word_gives_the_alternatives_and_an_exact_one_does_not() -> None:
    assert {"PROVIDER_QUOTA_EXHAUSTED", "PROVIDER_DAILY_LIMIT", "PROVIDER_BILLING"} <= set(codes_for("429"))
    assert "PROVIDER_CONTEXT_OVERFLOW" in codes_for("BadRequestError")
    assert codes_for("insufficient_quota") == ("PROVIDER_BILLING",)


def test_FU9_every_status_of_the_corpus_lists_what_it_meant_there() -> None:
    meant: Counter[tuple[int, str]] = Counter()
    for path in sorted(CORPUS.glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            record = read_record(line)
            if record.kind == "http" and record.status is not None and record.status >= 400:
                meant[record.status, from_record(record, now=json.loads(line).get("now_epoch")).code] += 1
    listed = sum(count for (status, code), count in meant.items() if code in codes_for(str(status)))
    assert listed / meant.total() > 0.9, {
        pair: count for pair, count in meant.items() if pair[1] not in codes_for(str(pair[0]))
    }


def test_FU9_nearly_every_declared_word_is_known() -> None:
    words = [*_classes.values(), *(code for code in _coded if not code.startswith("base_resp"))]
    unknown = [word for word in words if not codes_for(word)]
    # Words that mean something only together with a text: an MCP server's own classes, a closed web socket.
    assert len(unknown) < len(words) * 0.05, unknown
    assert all(code in CATALOG for word in words for code in codes_for(word))
