"""Durations and dates as servers write them: a finite number or None, units never guessed, nothing raises."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import format_datetime
from math import isfinite

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.classify.times import (
    parse_clock_time,
    parse_duration,
    parse_http_date,
    parse_number,
    parse_rfc3339,
)

quick = settings(max_examples=200, deadline=None, derandomize=True)
NOON = datetime(2026, 3, 10, 12, 0, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("6ms", 0.006),
        ("900ms", 0.9),
        ("1s", 1),
        ("0.539477544s", 0.539477544),
        ("26s", 26),
        ("35 seconds", 35),
        ("1 second", 1),
        ("7m12s", 432),
        ("2m59.56s", 179.56),
        ("9m38.016s", 578.016),
        ("1h2m", 3720),
        ("12h34m16s", 45_256),
        ("5 days 22 hours 11 minutes", 511_860),
        ("1 hour, 5 minutes and 3 seconds", 3903),
        ("2 weeks", 1_209_600),
        ("3 hrs 20 mins", 12_000),
        ("250 msecs", 0.25),
        ("  4S  ", 4),
        ("1.5H", 5400),
    ],
)
def test_a_duration_is_the_sum_of_its_parts(text: str, seconds: float):
    assert parse_duration(text) == pytest.approx(seconds, abs=1e-9)


@pytest.mark.parametrize(
    "text", ["", " ", "30", "1.5", "s", "5 parsecs", "3 monkeys", "-5s", "5s later", "in 5s", "1e3s"]
)
def test_units_are_mandatory_and_nothing_may_stand_around_them(text: str):
    assert parse_duration(text) is None


@quick
@given(
    st.lists(
        st.tuples(
            st.integers(0, 999), st.sampled_from([("d", 86_400), ("h", 3600), ("m", 60), ("s", 1), ("ms", 0.001)])
        ),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from(["", " ", ", ", " and "]),
)
def test_law_a_written_duration_reads_back(parts: list[tuple[int, tuple[str, float]]], between: str):
    text = between.join(f"{number}{unit}" for number, (unit, _) in parts)
    assert parse_duration(text) == pytest.approx(sum(number * size for number, (_, size) in parts))


@pytest.mark.parametrize(
    ("text", "number"), [("0", 0), ("30", 30), ("1.5", 1.5), (" 7 ", 7), ("-3", -3), ("1e3", 1000)]
)
def test_a_plain_number_is_read(text: str, number: float):
    assert parse_number(text) == number


@pytest.mark.parametrize(
    "text", ["", "nan", "inf", "-inf", "Infinity", "1e400", "1_000", "٣", "0x10", "30s", "3 0", "--3"]
)
def test_R30_nonsense_is_no_number(text: str):
    assert parse_number(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "Sun, 06 Nov 1994 08:49:37 GMT",
        "Sunday, 06-Nov-94 08:49:37 GMT",
        "Sun Nov  6 08:49:37 1994",
        "sun, 6 nov 1994 08:49:37 gmt",
        "  Sun, 06 Nov 1994 08:49:37 UTC ",
    ],
)
def test_an_http_date_is_read_in_its_three_forms(text: str):
    assert parse_http_date(text) == datetime(1994, 11, 6, 8, 49, 37, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1994-11-06T08:49:37Z",
        "Sun, 31 Feb 1994 08:49:37 GMT",
        "Sun, 06 Foo 1994 08:49:37 GMT",
        "Sun, 06 Nov 1994 25:49:37 GMT",
        "Sun, 06 Nov 0000 08:49:37 GMT",
        "120",
        "tomorrow",
    ],
)
def test_what_is_no_http_date_is_none(text: str):
    assert parse_http_date(text) is None


def test_a_two_digit_year_lies_within_the_century_that_is_near():
    assert parse_http_date("Wednesday, 01-Apr-26 00:00:00 GMT") == datetime(2026, 4, 1, tzinfo=UTC).timestamp()
    assert parse_http_date("Friday, 01-Jan-99 00:00:00 GMT") == datetime(1999, 1, 1, tzinfo=UTC).timestamp()


def test_a_leap_second_is_read_as_the_second_before_it():
    assert (
        parse_http_date("Sat, 31 Dec 2016 23:59:60 GMT") == datetime(2016, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()
    )


@quick
@given(st.datetimes(datetime(1971, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC)))
def test_law_a_formatted_instant_reads_back(at: datetime):
    whole = at.replace(microsecond=0)
    assert parse_http_date(format_datetime(whole, usegmt=True)) == whole.timestamp()
    assert parse_rfc3339(at.isoformat()) == at.timestamp()
    assert parse_rfc3339(at.isoformat().replace("+00:00", "Z")) == at.timestamp()


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("2026-03-10T12:00:00Z", NOON),
        ("2026-03-10T14:00:00+02:00", NOON),
        ("2026-03-10 12:00:00", NOON),
        ("2026-03-10T12:00:00.250Z", NOON + 0.25),
        (" 2026-03-10T12:00:00Z ", NOON),
    ],
)
def test_an_rfc_3339_instant_is_read_and_no_zone_means_utc(text: str, at: float):
    assert parse_rfc3339(text) == at


@pytest.mark.parametrize("text", ["", "now", "2026-13-01T00:00:00Z", "2026-03-10T25:00:00Z", "soon: 2026-03-10"])
def test_what_is_no_instant_is_none(text: str):
    assert parse_rfc3339(text) is None


@pytest.mark.parametrize(
    ("text", "zone", "day", "hours"),
    [
        ("3pm", "UTC", None, 3),
        ("3 pm", "GMT", None, 3),
        ("12pm", "UTC", None, 24),  # this very minute has begun: the next noon
        ("12am", "UTC", None, 12),
        ("15:30", "UTC", None, 3.5),
        ("11am", "UTC", None, 23),
        ("3:30pm", "America/Bogota", None, 8.5),
        ("9am", "Asia/Tokyo", None, 12),
        ("3pm", "UTC", "Mar 12", 51),
        ("3pm", "UTC", "March 12", 51),
        ("11am", "UTC", "Mar 10", 365 * 24 - 1),
    ],
)
def test_a_clock_time_is_its_next_occurrence(text: str, zone: str, day: str | None, hours: float):
    assert parse_clock_time(text, zone, NOON, day) == NOON + hours * 3600


@pytest.mark.parametrize(
    ("text", "zone", "day"),
    [
        ("3", "UTC", None),  # a bare hour is no time of day
        ("25:00", "UTC", None),
        ("3pm", "Mars/Olympus", None),
        ("3pm", "../../etc/passwd", None),
        ("3pm", "America", None),
        ("3pm", "", None),
        ("3pm", "UTC", "Foo 3"),
        ("3pm", "UTC", "Feb 30"),
        ("later", "UTC", None),
    ],
)
def test_what_is_no_clock_time_is_none(text: str, zone: str, day: str | None):
    assert parse_clock_time(text, zone, NOON, day) is None


@pytest.mark.parametrize("now", [253_402_297_199.0, 1e18, -1e18])
def test_a_clock_at_the_end_of_time_gives_none(now: float):
    """9999-12-31T23:00Z: the next 3am is past what a date can say."""
    assert parse_clock_time("3am", "UTC", now) is None


@quick
@given(
    st.text(max_size=60), st.text(max_size=20), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=12)
)
def test_law_nothing_raises_and_every_number_is_finite(text: str, zone: str, now: float, day: str):
    for found in (
        parse_number(text),
        parse_duration(text),
        parse_http_date(text),
        parse_rfc3339(text),
        parse_clock_time("3pm", zone, now),
        parse_clock_time(text, "UTC", now, day),
    ):
        assert found is None or isfinite(found)
