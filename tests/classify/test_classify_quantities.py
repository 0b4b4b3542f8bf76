"""One reader of quantities: sign, `~`, thousands separators, decimals and units, for delays and for limits (XC1)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast.classify
from holdfast.classify import from_exception, from_http, from_process, from_stream, from_text
from holdfast.classify.times import QUANTITY, parse_delay, parse_duration, parse_number

quick = settings(max_examples=200, deadline=None, derandomize=True)
UNITS = {
    "ns": 1e-9,
    "µs": 1e-6,
    "μs": 1e-6,
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86_400.0,
}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7000", 7000),
        ("~12903", 12_903),
        ("≈ 12,903", 12_903),
        ("1,048,576", 1_048_576),
        ("+5", 5),
        ("-5", -5),
        ("12,903.25", 12_903.25),
        ("1e3", 1000),
    ],
)
def test_XC1_a_number_is_read_with_its_sign_and_its_separators(text: str, number: float):
    assert parse_number(text) == number


@pytest.mark.parametrize("text", ["1,2", "12,34", "1,0000", ",100", "1 000", "~", "~~5", "5~", "1.2.3", "0x10"])
def test_XC1_a_number_that_is_written_wrongly_is_none(text: str):
    assert parse_number(text) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("985.86µs", 0.00098586),
        ("985.86μs", 0.00098586),
        ("985.86us", 0.00098586),
        # The same bytes, decoded as Latin-1 like every header.
        ("985.86µs".encode().decode("latin-1"), 0.00098586),
        ("985.86μs".encode().decode("latin-1"), 0.00098586),
        ("750ns", 7.5e-7),
        ("250 microseconds", 0.00025),
        ("3 nanoseconds", 3e-9),
        ("~5s", 5),
        ("≈ 5 s", 5),
        ("1m2.5s", 62.5),
        ("1,200ms", 1.2),
        ("1,200 seconds", 1200),
        ("1h0m0.5s", 3600.5),
        ("PT30S", 30),
        ("PT1M2.5S", 62.5),
        ("P1DT2H", 93_600),
    ],
)
def test_XC1_a_duration_keeps_its_decimals_and_its_unit(text: str, seconds: float):
    assert parse_duration(text) == pytest.approx(seconds, rel=1e-12)
    assert parse_delay(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize("text", ["P1M", "P", "PT", "-5s", "~", "5 µ", "1m2.5"])
def test_XC1_what_is_no_duration_is_none(text: str):
    assert parse_duration(text) is None


def test_XC1_a_bare_number_has_the_unit_of_its_field():
    assert parse_delay("30") == 30
    assert parse_delay("250", unit=0.001) == 0.25
    assert parse_delay("1.5s", unit=0.001) == 1.5
    assert parse_delay("soon") is None


def test_XC1_microseconds_after_retry_after_are_retried_at_once():
    for fault in (
        from_http(429, {"retry-after": "985.86µs"}),
        from_http(429, {"retry-after": "985.86µs".encode().decode("latin-1")}),
        from_http(429, {}, '{"error":{"message":"rate limited","retry_after":"985.86µs"}}'),
        from_http(429, {}, "Rate limit exceeded, retry-after: 985.86µs"),
        from_http(429, {}, "Rate limit exceeded. Please try again in 985.86µs."),
        from_text("429 Too Many Requests (retry-after: 985.86µs)"),
        from_exception(RuntimeError("rate limit exceeded, retry_after=985.86µs")),
        from_process(1, "error: rate limit exceeded; retry-after: 985.86µs"),
        from_stream('data: {"error":{"type":"rate_limit_error","message":"slow down, retry in 985.86µs"}}'),
    ):
        assert fault.retry_after == pytest.approx(0.00098586), fault
        assert fault.retryable, fault


@pytest.mark.parametrize(
    "text",
    [
        "Request too large for model on tokens per minute (TPM): Limit 7000, Requested ~12903, please reduce your message size.",
        "tokens per minute (TPM): requested ~12903, limit 7000",
        "Rate limit exceeded: requested ~12,903 tokens, the limit is 7,000 per minute",
        "rate limit: this request requires ~12.9k tokens, but the limit is 7k tokens per minute",
    ],
)
def test_XC1_a_request_above_the_limit_is_an_overflow_that_no_retry_helps(text: str):
    for fault in (from_http(429, {"retry-after": "2"}, text), from_text(text), from_process(1, text)):
        assert fault.category.value == "overflow", (text, fault)
        assert not fault.retryable


@pytest.mark.parametrize(
    "text",
    [
        "Rate limit reached on tokens per min (TPM): Limit 30,000, Used 29,500, Requested 1,222.5. Try again in 1.5s.",
        "Rate limit reached on tokens per min (TPM): Limit 7000, Requested 6999. Please try again in 1m2.5s.",
    ],
)
def test_XC1_a_request_below_the_limit_is_retried(text: str):
    fault = from_http(429, {}, text)
    assert fault.code == "PROVIDER_RATE_LIMITED"
    assert fault.retryable
    assert fault.retry_after in (1.5, 62.5)


def test_XC1_milliseconds_with_a_unit_of_their_own_keep_it():
    assert from_http(429, {"retry-after-ms": "1.5s"}).retry_after == 1.5
    assert from_http(429, {}, '{"error":{"retry_after_ms":"1.5s"}}').retry_after == 1.5
    assert from_http(429, {"retry-after-ms": "1,500"}).retry_after == 1.5


@quick
@given(
    st.decimals(0, 900, places=3, allow_nan=False),
    st.sampled_from(sorted(UNITS)),
    st.sampled_from(["", "~", "≈ ", "+"]),
    st.sampled_from(["", " "]),
)
def test_law_XC1_the_carrier_of_a_delay_changes_nothing(number, unit: str, about: str, between: str):
    written = f"{about}{number}{between}{unit}"
    seconds = float(number) * UNITS[unit]
    assert parse_duration(written) == pytest.approx(seconds)
    for fault in (
        from_http(429, {"retry-after": written}),
        from_http(429, {}, {"error": {"type": "rate_limit_error", "retry_after": written}}),
        from_http(429, {}, f"rate limited, retry-after: {written}"),
        from_text(f"rate limit exceeded, try again in {written}"),
        from_exception(RuntimeError(f"rate limit exceeded: please wait {written}")),
    ):
        assert fault.retry_after == pytest.approx(seconds), (written, fault)
        assert fault.retryable is (seconds <= 900), (written, fault)


@quick
@given(st.integers(1, 10**7), st.integers(1, 10**7), st.booleans(), st.sampled_from(["", "~"]))
def test_law_XC1_limits_are_compared_as_numbers(limit: int, requested: int, separated: bool, about: str):
    write = "{:,}".format if separated else str
    fault = from_http(
        429, {}, f"Rate limit reached (TPM): Limit {write(limit)}, Used 0, Requested {about}{write(requested)}."
    )
    assert fault.retryable is (requested <= limit)


def test_XC1_no_rule_has_a_pattern_of_units_of_its_own():
    """The units stand in one file. A second list would forget one of them."""
    home = Path(holdfast.classify.__file__).parent
    listed = re.compile(r"seconds\?|\bms\||ec(?:ond)?s\?")
    assert [path.name for path in home.rglob("*.py") if listed.search(path.read_text())] == ["times.py"]
    assert re.fullmatch(QUANTITY, "~1,200.5", re.IGNORECASE)
