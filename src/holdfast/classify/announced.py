"""What an answer says about the limit of the key it was asked with: how many calls are left, and until when.

Invariant: what is not told, or makes no sense, is None; nothing raises, for headers are written by strangers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.classify.durations import parse_duration, parse_http_date, parse_number, parse_rfc3339

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Announced", "announced"]

_REQUESTS = (
    "anthropic-ratelimit-requests-{}",
    "x-ratelimit-{}-requests",
    "x-ratelimit-{}",
    "ratelimit-{}",
)
_TOKENS = (
    "anthropic-ratelimit-tokens-{}",
    "anthropic-ratelimit-input-tokens-{}",
    "anthropic-ratelimit-output-tokens-{}",
    "x-ratelimit-{}-tokens",
)
_EPOCH_SECONDS = 1e9


class Announced(msgspec.Struct, frozen=True):
    """`remaining` of `limit` calls until `reset` seconds from now."""

    limit: float | None
    remaining: float
    reset: float


def announced(headers: Mapping[str, str], wall: float) -> Announced | None:
    """Return the limit that stands in `headers` (names in lower case), read at `wall` time; None where there is none.

    Tokens are told as well, but a call's share of them is not known before: they count only when none are left.
    """
    date = headers.get("date")
    now = (parse_http_date(date) if date else None) or wall
    for names in _TOKENS:
        told = _told(names, headers, now)
        if told is not None and told.remaining <= 0:
            return Announced(None, 0, told.reset)
    return next((told for names in _REQUESTS if (told := _told(names, headers, now)) is not None), None)


def _told(names: str, headers: Mapping[str, str], now: float) -> Announced | None:
    remaining = parse_number(headers.get(names.format("remaining"), ""))
    reset = _seconds(headers.get(names.format("reset"), ""), now)
    if remaining is None or remaining < 0 or reset is None or reset <= 0:
        return None
    return Announced(parse_number(headers.get(names.format("limit"), "")), remaining, reset)


def _seconds(value: str, now: float) -> float | None:
    """Read a reset: seconds, a duration, an instant as a date or since the epoch."""
    number = parse_number(value)
    if number is not None:
        return number if number < _EPOCH_SECONDS else number - now
    duration = parse_duration(value)
    if duration is not None:
        return duration
    instant = parse_rfc3339(value) or parse_http_date(value)
    return None if instant is None else instant - now
