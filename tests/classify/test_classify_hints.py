"""Requested delays and announced limits: every row of the corpus README's tables, and values that are no hint."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from math import isfinite
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.classify import PATIENCE_S, from_http, from_text
from holdfast.classify.hints import (
    AnnouncedLimit,
    AnnouncedLimits,
    announced_limit,
    announced_limits,
    exhausted_window,
    limit_headers,
)

AT = datetime(2026, 3, 10, 12, 0, tzinfo=UTC)
NOW = AT.timestamp()


def http_date(seconds: float) -> str:
    return format_datetime(AT + timedelta(seconds=seconds), usegmt=True)


def rfc3339(seconds: float) -> str:
    return (AT + timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


def waits(headers: dict[str, Any] | None = None, body: Any = "", now: float | None = NOW) -> float | None:
    return from_http(429, headers, body, now=now).retry_after


# Headers, by the row of the README's table.
HEADERS: list[tuple[str, dict[str, str], float | None]] = [
    ("1 ms", {"retry-after-ms": "1500"}, 1.5),
    ("1 ms float", {"retry-after-ms": "250.5"}, 0.2505),
    ("1 azure ms", {"x-ms-retry-after-ms": "900"}, 0.9),
    ("2 seconds", {"retry-after": "30"}, 30),
    ("2 float", {"retry-after": "0.75"}, 0.75),
    ("2 zero", {"retry-after": "0"}, 0),
    ("2 with its unit", {"retry-after": "24s"}, 24),
    ("2 epoch seconds", {"retry-after": f"{NOW + 42:.0f}"}, 42),
    ("2 epoch in the past", {"retry-after": f"{NOW - 42:.0f}"}, None),
    ("3 date", {"retry-after": http_date(90)}, 90),
    ("3 rfc 3339", {"retry-after": rfc3339(90)}, 90),
    ("3 past date", {"retry-after": http_date(-1)}, None),
    ("4 is no delay", {"x-should-retry": "true"}, None),
    ("5 requests", {"anthropic-ratelimit-requests-reset": rfc3339(17), "anthropic-ratelimit-requests-remaining": "0"}, 17),
    ("5 tokens", {"anthropic-ratelimit-tokens-reset": rfc3339(17), "anthropic-ratelimit-tokens-remaining": "0"}, 17),
    (
        "5 input",
        {"anthropic-ratelimit-input-tokens-reset": rfc3339(17), "anthropic-ratelimit-input-tokens-remaining": "0"},
        17,
    ),
    (
        "5 output, with an offset",
        {
            "anthropic-ratelimit-output-tokens-reset": "2026-03-10T14:00:17+02:00",
            "anthropic-ratelimit-output-tokens-remaining": "0",
        },
        17,
    ),
    ("5 some left", {"anthropic-ratelimit-tokens-reset": rfc3339(17), "anthropic-ratelimit-tokens-remaining": "5"}, None),
    ("5 nobody says what is left", {"anthropic-ratelimit-tokens-reset": rfc3339(17)}, None),
    (
        "6 unified",
        {"anthropic-ratelimit-unified-reset": f"{NOW + 600:.0f}", "anthropic-ratelimit-unified-status": "rejected"},
        600,
    ),
    (
        "6 five hours",
        {"anthropic-ratelimit-unified-5h-reset": f"{NOW + 300:.0f}", "anthropic-ratelimit-unified-5h-status": "rejected"},
        300,
    ),
    (
        "6 seven days",
        {
            "anthropic-ratelimit-unified-status": "rejected",
            "anthropic-ratelimit-unified-5h-reset": f"{NOW + 300:.0f}",
            "anthropic-ratelimit-unified-5h-status": "allowed",
            "anthropic-ratelimit-unified-7d-reset": f"{NOW + 800:.0f}",
            "anthropic-ratelimit-unified-7d-status": "rejected",
        },
        800,
    ),
    (
        "6 a window that is open",
        {"anthropic-ratelimit-unified-5h-reset": f"{NOW + 300:.0f}", "anthropic-ratelimit-unified-5h-status": "allowed"},
        None,
    ),
    ("7 go ms", {"x-ratelimit-reset-requests": "6ms", "x-ratelimit-remaining-requests": "0"}, 0.006),
    ("7 go seconds", {"x-ratelimit-reset-tokens": "1s", "x-ratelimit-remaining-tokens": "0"}, 1),
    ("7 go minutes", {"x-ratelimit-reset-tokens": "7m12s", "x-ratelimit-remaining-tokens": "0"}, 432),
    ("7 go fraction", {"x-ratelimit-reset-tokens": "2m59.56s", "x-ratelimit-remaining-tokens": "0"}, 179.56),
    ("7 go hours", {"x-ratelimit-reset-tokens": "1h2m", "x-ratelimit-remaining-tokens": "0"}, 3720),
    ("7 some left", {"x-ratelimit-reset-tokens": "7m12s", "x-ratelimit-remaining-tokens": "149"}, None),
    ("8 azure seconds", {"x-ratelimit-reset-tokens": "46", "x-ratelimit-remaining-tokens": "0"}, 46),
    ("8 sentinel 0", {"x-ratelimit-reset-tokens": "0", "x-ratelimit-remaining-tokens": "0"}, None),
    ("8 sentinel -1", {"x-ratelimit-reset-requests": "-1", "x-ratelimit-remaining-requests": "-1"}, None),
    ("9 extra hyphen", {"x-rate-limit-reset-tokens": "12"}, 12),
    ("10 epoch s", {"x-ratelimit-reset": f"{NOW + 60:.0f}"}, 60),
    ("10 epoch ms", {"x-ratelimit-reset": f"{(NOW + 60) * 1000:.0f}"}, 60),
    ("10 delta", {"x-ratelimit-reset": "60"}, 60),
    ("10 epoch s past", {"x-ratelimit-reset": f"{NOW - 60:.0f}"}, None),
    ("10 some left", {"x-ratelimit-reset": "60", "x-ratelimit-remaining": "3"}, None),
    ("11 reset after", {"x-ratelimit-reset-after": "1.337"}, 1.337),
    ("11 some left", {"x-ratelimit-reset-after": "1.337", "x-ratelimit-remaining": "1"}, None),
    ("11 ietf", {"ratelimit-reset": "50", "ratelimit-remaining": "0"}, 50),
    ("11 ietf some left", {"ratelimit-reset": "50", "ratelimit-remaining": "10"}, None),
    ("11 ietf one field", {"ratelimit": '"default";r=0;t=30'}, 30),
    ("11 ietf one field some left", {"ratelimit": '"default";r=4;t=30'}, None),
    ("11 ietf one field of an earlier draft", {"ratelimit": "limit=100, remaining=0, reset=50"}, 50),
    ("11 ietf one field of an earlier draft some left", {"ratelimit": "limit=100, remaining=7, reset=50"}, None),
    (
        "11 renewal period",
        {"x-ratelimit-renewalperiod-tokens": "60", "x-ratelimit-remaining-tokens": "0"},
        60,
    ),
    (
        "11 renewal period some left",
        {"x-ratelimit-renewalperiod-requests": "10", "x-ratelimit-remaining-requests": "99"},
        None,
    ),
    (
        "12 primary window",
        {"x-codex-primary-used-percent": "100", "x-codex-primary-reset-after-seconds": "340"},
        340,
    ),
    (
        "12 secondary window, as an instant",
        {"x-codex-secondary-used-percent": "100.0", "x-codex-secondary-reset-at": f"{NOW + 120:.0f}"},
        120,
    ),
    (
        "12 the delay is more exact than the instant",
        {
            "x-codex-primary-used-percent": "100",
            "x-codex-primary-reset-after-seconds": "340",
            "x-codex-primary-reset-at": f"{NOW + 399:.0f}",
        },
        340,
    ),
    (
        "12 a window that is not full",
        {"x-codex-primary-used-percent": "99", "x-codex-primary-reset-after-seconds": "340"},
        None,
    ),
    ("13 a cause is no delay", {"policy-id": "DeploymentRatelimit-Token", "x-amzn-errortype": "ThrottlingException:http:"}, None),
]  # fmt: skip


@pytest.mark.parametrize(("headers", "seconds"), [row[1:] for row in HEADERS], ids=[row[0] for row in HEADERS])
def test_every_header_form_met(headers: dict[str, str], seconds: float | None):
    assert waits(headers) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(("headers", "seconds"), [row[1:] for row in HEADERS], ids=[row[0] for row in HEADERS])
def test_R30_header_names_are_case_insensitive_and_may_be_bytes(headers: dict[str, str], seconds: float | None):
    expected = None if seconds is None else pytest.approx(seconds)
    assert waits({name.title(): value for name, value in headers.items()}) == expected
    assert waits({name.upper().encode(): value.encode() for name, value in headers.items()}) == expected


@pytest.mark.parametrize("name", ["retry-after", "retry-after-ms", "x-ratelimit-reset", "x-ratelimit-reset-after"])
@pytest.mark.parametrize(
    "value", ["", " ", "soon", "-5", "nan", "inf", "-inf", "1e999", "1_000", "٣", "5 6", "0x1F", "None"]
)
def test_R30_malformed_negative_and_infinite_values_are_no_hint(name: str, value: str):
    assert waits({name: value}) is None


def test_R30_a_huge_value_is_told_and_never_slept():
    fault = from_http(429, {"retry-after": "999999999"}, now=NOW)
    assert (fault.retry_after, fault.retryable) == (999_999_999, False)


def test_R30_a_bad_value_gives_way_to_the_next_form():
    assert waits({"retry-after-ms": "nan", "retry-after": "7"}) == 7
    assert waits({"retry-after": http_date(-5), "x-ratelimit-reset": "9"}) == 9


def test_R33_latest_reset_among_exhausted_limits():
    headers = {
        "anthropic-ratelimit-requests-remaining": "0",
        "anthropic-ratelimit-requests-reset": rfc3339(5),
        "anthropic-ratelimit-input-tokens-remaining": "0",
        "anthropic-ratelimit-input-tokens-reset": rfc3339(48),
        "anthropic-ratelimit-output-tokens-remaining": "8000",
        "anthropic-ratelimit-output-tokens-reset": rfc3339(500),
    }
    assert waits(headers) == pytest.approx(48)


def test_R33_of_two_vendors_names_the_latest_that_is_exhausted():
    headers = {
        "x-ratelimit-remaining-requests": "0",
        "x-ratelimit-reset-requests": "20s",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-tokens": "6ms",
    }
    assert waits(headers) == 20


@pytest.mark.parametrize("status", [500, 503, 529])
def test_R33_in_an_outage_only_a_limit_known_to_be_empty_holds_us_up(status: int):
    resets = {"x-ratelimit-reset-tokens": "7m12s"}
    assert from_http(status, resets, "").retry_after is None
    assert from_http(status, resets | {"x-ratelimit-remaining-tokens": "0"}, "").retry_after == 432
    assert from_http(429, resets, "").retry_after == 432


def test_a_retry_after_is_earlier_than_a_full_refill_and_wins():
    headers = {
        "retry-after": "3",
        "anthropic-ratelimit-tokens-remaining": "0",
        "anthropic-ratelimit-tokens-reset": rfc3339(60),
    }
    assert waits(headers) == 3


def test_order_body_then_milliseconds_then_retry_after_then_resets_then_text():
    body = '{"error": {"message": "Please try again in 50s", "retry_after": 10}}'
    only_text = '{"error": {"message": "Please try again in 50s"}}'
    headers = {"retry-after-ms": "20000", "retry-after": "30", "x-ratelimit-reset": "40"}
    assert waits(headers, body) == 10
    assert waits(headers, only_text) == 20
    del headers["retry-after-ms"]
    assert waits(headers, only_text) == 30
    del headers["retry-after"]
    assert waits(headers, only_text) == 40
    assert waits({}, only_text) == 50


DETAIL = "type.googleapis.com/google.rpc."
BODIES: list[tuple[str, Any, float | None]] = [
    ("google RetryInfo", {"error": {"details": [{"@type": DETAIL + "RetryInfo", "retryDelay": "26s"}]}}, 26),
    ("google fraction", {"error": {"details": [{"retryDelay": "0.539477544s"}]}}, 0.539477544),
    ("google ms", {"error": {"details": [{"retryDelay": "900ms"}]}}, 0.9),
    ("protobuf duration", {"error": {"details": [{"retryDelay": {"seconds": 26}}]}}, 26),
    ("protobuf duration with nanos", {"error": {"details": [{"retryDelay": {"seconds": 26, "nanos": 500_000_000}}]}}, 26.5),
    ("protobuf duration of nanos alone", {"error": {"details": [{"retryDelay": {"nanos": 250_000_000}}]}}, 0.25),
    ("protobuf duration of text", {"error": {"details": [{"retryDelay": {"seconds": "26"}}]}}, 26),
    ("protobuf duration of nothing", {"error": {"details": [{"retryDelay": {}}]}}, None),
    ("google in an array", [{"error": {"details": [{"retryDelay": "26s"}]}}], 26),
    ("quotaResetDelay", {"error": {"details": [{"metadata": {"quotaResetDelay": "2m3s"}}]}}, 123),
    ("quotaResetTimeStamp", {"error": {"details": [{"metadata": {"quotaResetTimeStamp": rfc3339(77)}}]}}, 77),
    ("resets_in_seconds", {"error": {"type": "usage_limit_reached", "resets_in_seconds": 250}}, 250),
    ("resets_at", {"error": {"resets_at": NOW + 120}}, 120),
    ("resets_at past", {"error": {"resets_at": NOW - 120}}, None),
    ("reset_at in ms", {"error": {"reset_at": (NOW + 120) * 1000}}, 120),
    (
        "openrouter headers inside",
        {"error": {"metadata": {"headers": {"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": f"{(NOW + 33) * 1000:.0f}"}}}},
        33,
    ),
    ("hugging face", {"error": "Model is currently loading", "estimated_time": 20.5}, 20.5),
    ("retry_after_ms", {"error": {"retry_after_ms": 1500}}, 1.5),
    ("websocket headers", {"type": "error", "status_code": 429, "headers": {"Retry-After": "8"}}, 8),
    ("negative", {"error": {"retry_after": -3}}, None),
    ("a word", {"error": {"retry_after": "soon"}}, None),
    ("a truth value", {"error": {"retry_after": True}}, None),
    ("the longest of several", {"error": {"retry_after": 3, "details": [{"retryDelay": "9s"}]}}, 9),
]  # fmt: skip


@pytest.mark.parametrize(("body", "seconds"), [row[1:] for row in BODIES], ids=[row[0] for row in BODIES])
def test_every_body_field_met(body: Any, seconds: float | None):
    expected = None if seconds is None else pytest.approx(seconds, abs=1e-3)
    assert waits({}, body) == expected
    assert waits({}, json.dumps(body)) == expected


TEXTS: list[tuple[str, float | None]] = [
    ("Rate limit reached. Please try again in 6.596s.", 6.596),
    ("Please try again in 174ms. Visit https://example.com", 0.174),
    ("Please try again in 7m12s.", 432),
    ("try again in 9m38.016s", 578.016),
    ("Too many requests, try again in 35 seconds", 35),
    ("You can try again in 5 days 22 hours 11 minutes", 511_860),
    ("Please retry in 44.097740004s.", 44.097740004),
    ("retry after 24 seconds", 24),
    ("Please try again after 1 seconds.", 1),
    ("Your quota will reset after 12h34m16s.", 45_256),
    ("You will regain access on 2026-04-01 at 00:00 UTC.", 1_857_600),
    ("Claude AI usage limit reached|" + str(int(NOW + 500)), 500),
    ("Your limit will reset at 3pm (America/Bogota).", 8 * 3600),
    ("Limit reached. Resets Mar 12, 3pm (UTC)", 51 * 3600),
    ("Please wait 20 seconds", 20),
    ("The limit resets at 2026-03-10T12:05:00Z", 300),
    ("rate limited, headers {'retry-after': '13'}", 13),
    # no hint
    ("Please try again later.", None),
    ("Retry-After was missing; 5 of 60 requests used", None),
    ("Please try again in 30", None),
    ("try again; code 18.403470473", None),
    ("You sent 500 requests in 60s", None),
    ("usage limit reached|1234", None),
    ("Claude AI usage limit reached|" + str(int(NOW - 500)), None),
    ("Access regained on 2020-04-01 at 00:00 UTC.", None),
]


@pytest.mark.parametrize(("text", "seconds"), TEXTS)
def test_every_text_form_met_and_bare_digits_never(text: str, seconds: float | None):
    expected = None if seconds is None else pytest.approx(seconds)
    assert waits({}, json.dumps({"error": {"message": text}})) == expected
    assert from_text(f"Error 429: {text}", now=NOW).retry_after == expected


def test_a_text_that_the_user_wrote_is_not_searched():
    body = {
        "error": {"message": "Too many requests"},
        "input": "please try again in 55s",
        "messages": ["wait 70 seconds"],
    }
    assert waits({}, body) is None


DATED: list[tuple[str, dict[str, str], Any]] = [
    ("retry-after date", {"retry-after": http_date(60)}, ""),
    ("retry-after epoch", {"retry-after": f"{NOW + 60:.0f}"}, ""),
    ("anthropic", {"anthropic-ratelimit-tokens-reset": rfc3339(60), "anthropic-ratelimit-tokens-remaining": "0"}, ""),
    ("x-ratelimit-reset", {"x-ratelimit-reset": f"{NOW + 60:.0f}"}, ""),
    ("body instant", {}, {"error": {"resets_at": NOW + 60}}),
    ("date in text", {}, {"error": {"message": f"Limit resets at {rfc3339(60)}"}}),
    ("epoch in text", {}, {"error": {"message": f"usage limit reached|{NOW + 60:.0f}"}}),
    ("clock in text", {}, {"error": {"message": "Your limit will reset at 12:01 (UTC)"}}),
]


@pytest.mark.parametrize(("headers", "body"), [row[1:] for row in DATED], ids=[row[0] for row in DATED])
@pytest.mark.parametrize("skew", [-7200.0, 7200.0, None])
def test_the_Date_header_beats_now(headers: dict[str, str], body: Any, skew: float | None):
    """Our clock may be wrong, or not given: the answer brings its own."""
    now = None if skew is None else NOW + skew
    assert waits({**headers, "date": http_date(0)}, body, now=now) == pytest.approx(60)


@pytest.mark.parametrize(("headers", "body"), [row[1:] for row in DATED], ids=[row[0] for row in DATED])
def test_a_date_without_any_clock_is_no_hint(headers: dict[str, str], body: Any):
    assert waits(headers, body, now=None) is None


def test_only_failures_that_waiting_answers_state_a_delay():
    """Reset headers come on every answer; a bad request and an empty account are not cured by them."""
    assert from_http(400, {"retry-after": "5"}, now=NOW).retry_after is None
    assert from_http(401, {"retry-after": "5"}, now=NOW).retry_after is None
    assert from_http(402, {"retry-after": "5"}, now=NOW).retry_after is None
    assert from_http(503, {"retry-after": "5"}, now=NOW).retry_after == 5


@pytest.mark.parametrize(
    ("headers", "exhausted"),
    [
        ({"anthropic-ratelimit-unified-status": "rejected"}, True),
        ({"anthropic-ratelimit-unified-status": "allowed"}, False),
        ({"x-codex-primary-used-percent": "100"}, True),
        ({"x-codex-secondary-used-percent": "100.0"}, True),
        ({"x-codex-primary-used-percent": "99.9", "x-codex-secondary-used-percent": "inf"}, False),
        ({}, False),
    ],
)
def test_a_used_up_subscription_window_is_known_by_its_headers(headers: dict[str, str], exhausted: bool):
    assert exhausted_window(headers) is exhausted


header_names = st.sampled_from(sorted({name for _, headers, _ in HEADERS for name in headers} | {"date", "ratelimit"}))
header_values = (
    st.sampled_from(sorted({value for _, headers, _ in HEADERS for value in headers.values()}))
    | st.floats().map(str)
    | st.integers().map(str)
    | st.text(max_size=30)
)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.dictionaries(header_names, header_values, max_size=6),
    st.none() | st.floats(allow_nan=False, allow_infinity=False),
)
def test_law_a_hint_is_finite_and_not_negative_and_beyond_our_patience_nothing_is_retried(
    headers: dict[str, str], now: float | None
):
    fault = from_http(429, headers, now=now)
    assert not fault.rule.startswith("classifier-failed")
    if fault.retry_after is not None:
        assert isfinite(fault.retry_after)
        assert fault.retry_after >= 0
        assert fault.retryable is False or fault.retry_after <= PATIENCE_S


# Limits that providers announce in headers

NEW_YEAR = 1_735_689_600.0  # 2025-01-01T00:00:00Z
ANTHROPIC = {
    "anthropic-ratelimit-requests-limit": "50",
    "anthropic-ratelimit-requests-remaining": "49",
    "anthropic-ratelimit-requests-reset": "2025-01-01T00:00:30Z",
    "anthropic-ratelimit-tokens-remaining": "9000",
    "anthropic-ratelimit-tokens-reset": "2025-01-01T00:01:00Z",
}
OPENAI = {
    "x-ratelimit-limit-requests": "60",
    "x-ratelimit-remaining-requests": "0",
    "x-ratelimit-reset-requests": "1m30s",
    "x-ratelimit-remaining-tokens": "149984",
    "x-ratelimit-reset-tokens": "6m0s",
}


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (ANTHROPIC, AnnouncedLimit(50, 49, 30)),
        (ANTHROPIC | {"date": "Wed, 01 Jan 2025 00:00:20 GMT"}, AnnouncedLimit(50, 49, 10)),
        (ANTHROPIC | {"anthropic-ratelimit-tokens-remaining": "0"}, AnnouncedLimit(None, 0, 60)),
        (OPENAI, AnnouncedLimit(60, 0, 90)),
        (OPENAI | {"x-ratelimit-remaining-tokens": "0"}, AnnouncedLimit(None, 0, 360)),
        ({"x-ratelimit-remaining": "3", "x-ratelimit-reset": str(int(NEW_YEAR) + 9)}, AnnouncedLimit(None, 3, 9)),
        ({"ratelimit-remaining": "3", "ratelimit-reset": "4"}, AnnouncedLimit(None, 3, 4)),
        ({}, None),
        ({"x-ratelimit-remaining": "3"}, None),
        ({"x-ratelimit-remaining": "-1", "x-ratelimit-reset": "4"}, None),
        ({"x-ratelimit-remaining": "3", "x-ratelimit-reset": "2020-01-01T00:00:00Z"}, AnnouncedLimit(None, 3, 0)),
        ({"x-ratelimit-remaining": "nan", "x-ratelimit-reset": "soon"}, None),
    ],
)
def test_announced_limits_are_read_in_each_providers_form(headers, expected):
    assert announced_limit(headers, NEW_YEAR) == expected


def test_limits_of_requests_and_of_tokens_are_read_together_and_the_tightest_of_tokens_counts():
    limits = announced_limits({**OPENAI, **ANTHROPIC}, NEW_YEAR)
    assert limits == AnnouncedLimits(AnnouncedLimit(50, 49, 30), AnnouncedLimit(None, 9000, 60))
    assert announced_limits({"content-type": "text/html"}, NEW_YEAR) is None


def test_the_headers_of_limits_are_found_among_all_as_they_came():
    raw = [(b"Content-Type", b"text/html"), (b"X-RateLimit-Remaining", b"3"), (b"Date", b"now")]
    assert limit_headers(raw) == {"x-ratelimit-remaining": "3", "date": "now"}
    assert limit_headers([(b"Date", b"now"), (b"server", b"\xff")]) == {}


@given(st.dictionaries(st.sampled_from([*ANTHROPIC, *OPENAI, "date"]), st.text(max_size=12)))
@example({"x-ratelimit-remaining-requests": "1", "x-ratelimit-reset-requests": "0"})
def test_headers_of_strangers_never_raise(headers):
    announced_limits(headers, NEW_YEAR)
    limit = announced_limit(headers, NEW_YEAR)
    # Where something remains, all of it may be back already.
    assert limit is None or (limit.remaining >= 0 and limit.reset >= 0 and limit.remaining + limit.reset > 0)
