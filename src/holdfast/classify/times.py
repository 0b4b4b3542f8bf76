"""Quantities, durations and dates as servers write them: `~12,903`, `7m12s`, `985.86µs`, HTTP-dates, RFC 3339.

This is the only place of the room that reads a number, a limit or a delay. Rules and hints build their patterns from
`QUANTITY`, `DURATION` and `UNIT`, and hand what they match to the functions here.
Invariant: every function returns a finite number or None. Nothing raises, and a missing unit is never guessed.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from math import isfinite

_UNITS = {
    "ns": 1e-9, "nsec": 1e-9, "nanosecond": 1e-9,
    "us": 1e-6, "usec": 1e-6, "microsecond": 1e-6,
    "ms": 0.001, "msec": 0.001, "millisecond": 0.001,
    "s": 1.0, "sec": 1.0, "second": 1.0,
    "m": 60.0, "min": 60.0, "minute": 60.0,
    "h": 3600.0, "hr": 3600.0, "hour": 3600.0,
    "d": 86_400.0, "day": 86_400.0,
    "w": 604_800.0, "week": 604_800.0,
}  # fmt: skip
_THOUSANDS = {"": 1.0, "k": 1e3, "m": 1e6}
# Two characters look like the Greek letter. A header is decoded as Latin-1, in which each of them becomes two others.
_MICRO = "(?:\u00b5|\u03bc|\u00c2\u00b5|\u00ce\u00bc)"
_MICRO_SIGN = re.compile(_MICRO, re.IGNORECASE)
_ABOUT = r"(?:[~≈+]\s*)?"
_DIGITS = r"\d{1,15}(?:,\d{3}(?!\d))*(?:\.\d{1,15})?"
# The first character decides between the units, so that few of them are tried.
UNIT = (
    r"(?:m(?:s(?:ecs?)?|in(?:ute)?s?|illiseconds?|icroseconds?)?|s(?:ec(?:ond)?s?)?|h(?:(?:ou)?rs?)?|d(?:ays?)?|w(?:eeks?)?"
    rf"|n(?:s(?:ecs?)?|anoseconds?)|us(?:ecs?)?|{_MICRO}s)(?![a-z])"
)
"""A pattern for one unit of time. Like the other patterns it is used inside larger ones that ignore case."""
QUANTITY = rf"{_ABOUT}{_DIGITS}(?:[km](?![a-z]))?"
"""A pattern for one number in a sentence: `~12,903`, `12.9k`. `parse_amount` reads it."""
DURATION = rf"{_ABOUT}(?:{_DIGITS}\s*{UNIT}[\s,]*(?:and\s+)?)+"
"""A pattern for one duration with its units. `parse_duration` reads it."""

_NUMBER = re.compile(rf"[~≈]?\s*([+-]?{_DIGITS})")
_AMOUNT = re.compile(rf"{_ABOUT}({_DIGITS})([km]?)", re.IGNORECASE)
_PARTS = re.compile(rf"({_DIGITS})\s*({UNIT})", re.IGNORECASE)
_WHOLE = re.compile(DURATION, re.IGNORECASE)
_ISO = re.compile(r"P(?=\d|T\d)(\d+[DW])?(?:T((?:\d+(?:\.\d+)?[HMS])+))?")

_MONTHS = {
    name: number
    for number, name in enumerate(
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), 1
    )
}
# The pattern covers the three forms of RFC 9110. email.utils accepts far more and is slower to import.
_HTTP_DATE = re.compile(
    r"[a-z]+,?\s+(?:(?P<d1>\d{1,2})[ -](?P<m1>[a-z]{3})[ -](?P<y1>\d{4}|\d{2})\s+(?P<t1>\d\d:\d\d:\d\d)\s*(?:gmt|utc|z)?"
    r"|(?P<m2>[a-z]{3})\s+(?P<d2>\d{1,2})\s+(?P<t2>\d\d:\d\d:\d\d)\s+(?P<y2>\d{4}))",
    re.IGNORECASE,
)
_CLOCK_TIME = re.compile(r"(\d{1,2})(?::(\d{2}))?\s*([ap]\.?m)?\.?", re.IGNORECASE)


def parse_number(text: str) -> float | None:
    """Return the value of a plain number: `30`, `-1`, `~12,903`, `1e3`.

    Return None for anything else, also for `nan`, `inf` or a number before text.
    """
    try:
        number = float(text)
    except (ValueError, OverflowError):
        match = _NUMBER.fullmatch(text.strip())
        return None if match is None else float(match[1].replace(",", ""))
    # Python accepts `1_000` and `٣` as numbers. No server sends them.
    return number if isfinite(number) and text.isascii() and "_" not in text else None


def parse_amount(text: str) -> float | None:
    """Return the value of a number in a sentence, which may count in thousands: `12.9k`, `~12,903`, `1M`."""
    match = _AMOUNT.fullmatch(text.strip())
    return None if match is None else float(match[1].replace(",", "")) * _THOUSANDS[match[2].lower()]


def parse_duration(text: str) -> float | None:
    """Return the seconds of a duration with units: `2m59.56s`, `985.86µs`, `5 days 22 hours 11 minutes`, `PT30S`."""
    text = text.strip()
    if _WHOLE.fullmatch(text) is None:
        iso = _ISO.fullmatch(text)
        return None if iso is None else sum(_seconds(part) for part in iso.groups() if part)
    return _seconds(text)


def parse_delay(text: str, *, unit: float = 1.0) -> float | None:
    """Return the seconds of a field or header that holds a delay: a number in its `unit`, or a duration with units."""
    number = parse_number(text)
    return parse_duration(text) if number is None else number * unit


def parse_http_date(text: str) -> float | None:
    """Return the instant of an HTTP-date in any of its three forms (RFC 9110 section 5.6.7)."""
    match = _HTTP_DATE.fullmatch(text.strip())
    if match is None:
        return None
    day, month, year = match["d1"] or match["d2"], match["m1"] or match["m2"], match["y1"] or match["y2"]
    hour, minute, second = (int(part) for part in (match["t1"] or match["t2"]).split(":"))
    # The oldest form has two-digit years: 70 to 99 mean 1970 to 1999.
    full_year = int(year) if len(year) == 4 else 2000 + int(year) if int(year) < 70 else 1900 + int(year)
    try:
        at = datetime(full_year, _MONTHS[month.lower()], int(day), hour, minute, min(second, 59), tzinfo=UTC)
    except (KeyError, ValueError):
        return None
    return at.timestamp()


def parse_rfc3339(text: str) -> float | None:
    """Return the instant of an RFC 3339 date and time; a time without a zone is read as UTC."""
    try:
        at = datetime.fromisoformat(text.strip())
        return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return None


def parse_clock_time(text: str, zone: str, now: float, day: str | None = None) -> float | None:
    """Return the next time after `now` when a clock in `zone` shows `text` (`3pm`, `15:30`), on `day` if given."""
    match = _CLOCK_TIME.fullmatch(text.strip())
    place = _zone(zone)
    if match is None or place is None or (match[3] is None and match[2] is None):
        return None
    hour, minute = int(match[1]), int(match[2] or 0)
    if match[3] is not None:
        hour = hour % 12 + (12 if match[3].lower().startswith("p") else 0)
    try:
        today = datetime.fromtimestamp(now, place)
        at = today.replace(hour=hour, minute=minute, second=0, microsecond=0)
        if day is not None:
            month, _, number = day.partition(" ")
            at = at.replace(month=_MONTHS[month[:3].lower()], day=int(number))
            return (at if at > today else at.replace(year=at.year + 1)).timestamp()
        return (at if at > today else at + timedelta(days=1)).timestamp()
    except (ValueError, OverflowError, OSError, KeyError):
        return None


def _seconds(text: str) -> float:
    return sum(float(number.replace(",", "")) * _seconds_of(unit.lower()) for number, unit in _PARTS.findall(text))


def _seconds_of(unit: str) -> float:
    unit = _MICRO_SIGN.sub("u", unit)
    return _UNITS[unit] if unit in _UNITS else _UNITS[unit.removesuffix("s")]


def _zone(name: str) -> tzinfo | None:
    if name.upper() in ("UTC", "GMT", "Z"):
        return UTC
    from zoneinfo import ZoneInfo  # noqa: PLC0415 - it reads the zone database; few texts name a zone

    try:
        return ZoneInfo(name)
    except (ValueError, OSError, LookupError):
        return None
