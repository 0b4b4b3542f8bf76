"""How long the other side asks us to wait, in every form it has been said.

Order: fields of the body, milliseconds header, Retry-After, reset headers of exhausted limits, text. Where several
limits are exhausted the latest reset counts (R33).
Invariant: a hint is finite and not negative; a date in the past, a sentinel or nonsense is no hint (R30).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from holdfast.classify.durations import (
    DURATION,
    parse_clock_time,
    parse_duration,
    parse_http_date,
    parse_number,
    parse_rfc3339,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.classify.evidence import Evidence

__all__ = ["exhausted_window", "stated_delay"]

_EPOCH_SECONDS = 1e9
_EPOCH_MILLISECONDS = 1e12
_ANTHROPIC = "anthropic-ratelimit-"
_UNIFIED = "anthropic-ratelimit-unified-"


def stated_delay(evidence: Evidence) -> float | None:
    """Return the seconds to wait before the same request is worth sending again, or None where nothing says so."""
    headers = evidence.headers
    now = server_now(evidence)
    wait = _from_body(evidence, now)
    if wait is None and headers:
        wait = _from_retry_after(headers, now)
        if wait is None:
            wait = max(_exhausted_resets(headers, now), default=None)
    if wait is None and evidence.text:
        wait = _from_text(evidence.text, evidence.message, now)
    return wait


def server_now(evidence: Evidence) -> float | None:
    """Return the time to read dates by: the response's own clock where it tells it, else ours."""
    date = evidence.headers.get("date")
    told = parse_http_date(date) if date else None
    return evidence.now if told is None else told


def exhausted_window(headers: dict[str, str]) -> bool:
    """Whether the headers say that a subscription window is used up (Anthropic unified, Codex)."""
    if headers.get(_UNIFIED + "status") == "rejected":
        return True
    return any(_at_least(headers.get(f"x-codex-{window}-used-percent"), 100) for window in ("primary", "secondary"))


def _from_body(evidence: Evidence, now: float | None) -> float | None:
    waits = [wait for wait in evidence.waits if wait >= 0]
    if now is not None:
        waits += [at - now for at in evidence.resets if at > now]
    return max(waits, default=None)


def _from_retry_after(headers: dict[str, str], now: float | None) -> float | None:
    for name in ("retry-after-ms", "x-ms-retry-after-ms"):
        milliseconds = parse_number(headers.get(name, ""))
        if milliseconds is not None and milliseconds >= 0:
            return milliseconds / 1000
    value = headers.get("retry-after", "").strip()
    if not value:
        return None
    seconds = parse_number(value)
    if seconds is None:
        seconds = parse_duration(value)
    if seconds is None:
        return _until(parse_http_date(value) or _date(value), now)
    if seconds >= _EPOCH_SECONDS:
        # A server bug met in the wild: an instant where a delay belongs.
        return _until(seconds, now)
    return seconds if seconds >= 0 else None


def _exhausted_resets(headers: dict[str, str], now: float | None) -> Iterator[float]:
    """Yield the wait of every limit that has nothing left."""
    for name, value in headers.items():
        if "reset" in name or "renewalperiod" in name or name == "ratelimit":
            wait = _reset(name, value, headers, now)
            if wait is not None and wait > 0:
                yield wait


def _reset(name: str, value: str, headers: dict[str, str], now: float | None) -> float | None:
    if name.startswith(_UNIFIED):
        return _unified_reset(name, value, headers, now)
    if name.startswith("x-codex-"):
        return _codex_reset(name, value, headers, now)
    if name == "ratelimit":
        return _ietf_ratelimit(value)
    if _has_some_left(name, headers):
        return None
    if name.startswith(_ANTHROPIC):
        # Sent on every answer; only a bucket that is known to be empty tells anything.
        return _until(_date(value), now) if _remaining(name, headers) is not None else None
    if name.startswith(("x-ratelimit", "x-rate-limit", "ratelimit")):
        return _delta_or_instant(value, now)
    return None


def _delta_or_instant(value: str, now: float | None) -> float | None:
    number = parse_number(value)
    if number is None:
        wait = parse_duration(value)
        return wait if wait is not None else _until(_date(value), now)
    if number >= _EPOCH_MILLISECONDS:
        return _until(number / 1000, now)
    return _until(number, now) if number >= _EPOCH_SECONDS else number


def _unified_reset(name: str, value: str, headers: dict[str, str], now: float | None) -> float | None:
    """A subscription window: only the ones that are rejected hold us up; -unified-reset speaks for all of them."""
    window = name.removesuffix("reset")
    status = headers.get(window + "status")
    if status is not None and status != "rejected":
        return None
    if status is None and window != _UNIFIED:
        return None
    return _until(_instant(value), now)


def _codex_reset(name: str, value: str, headers: dict[str, str], now: float | None) -> float | None:
    window = "primary" if "-primary-" in name else "secondary"
    if not _at_least(headers.get(f"x-codex-{window}-used-percent"), 100):
        return None
    if name.endswith("-reset-after-seconds"):
        return parse_number(value)
    # The instant says the same as the delay, less exactly; it counts where it is alone.
    return None if f"x-codex-{window}-reset-after-seconds" in headers else _until(_instant(value), now)


def _ietf_ratelimit(value: str) -> float | None:
    """`"default";r=0;t=30` (IETF draft): the remaining quota and the seconds until it resets."""
    fields = dict(part.strip().split("=", 1) for part in value.split(";") if "=" in part)
    return parse_number(fields.get("t", "")) if parse_number(fields.get("r", "")) == 0 else None


def _has_some_left(name: str, headers: dict[str, str]) -> bool:
    left = _remaining(name, headers)
    return left is not None and left > 0


def _remaining(reset_name: str, headers: dict[str, str]) -> float | None:
    name = reset_name.replace("renewalperiod", "remaining").replace("reset-after", "remaining")
    value = headers.get(name.replace("reset", "remaining"))
    return None if value is None else parse_number(value)


def _at_least(value: str | None, least: float) -> bool:
    number = parse_number(value or "")
    return number is not None and number >= least


def _instant(value: str) -> float | None:
    number = parse_number(value)
    if number is None:
        return _date(value)
    return number / 1000 if number >= _EPOCH_MILLISECONDS else number


def _date(value: str) -> float | None:
    # Only what looks like a date: `fromisoformat` reads bare digits too.
    return parse_rfc3339(value) if value.count("-") >= 2 and ":" in value else None


def _until(at: float | None, now: float | None) -> float | None:
    if at is None or now is None or at <= now:
        return None
    return at - now


_AGAIN = r"(?:try(?:ing)?\s+again|retry(?:\s+(?:your|the)\s+request)?|resets?|wait(?:ing)?|available|recover\w*)"
_TEXT_WAIT = re.compile(
    rf"\b{_AGAIN}\b[^\d.;\n]{{0,30}}?\b(?:in|after|for|wait|within)\b\s*(?:about|around|approximately|at least|another|~|≈)?\s*"
    rf"({DURATION})|\bwait\s+(?:about|at least|another)?\s*({DURATION})",
    re.IGNORECASE,
)
_TEXT_DATE = re.compile(
    r"\b(?:reset\w*|regain\w*|again|until|available|renew\w*|retry)\b[^\d\n]{0,30}"
    r"(\d{4}-\d{2}-\d{2})(?:[t ]|\s+at\s+)(\d{1,2}:\d{2}(?::\d{2})?(?:\.\d+)?)\s*(z\b|utc|gmt|[+-]\d{2}:?\d{2})",
    re.IGNORECASE,
)
_TEXT_CLOCK = re.compile(r"\breset\w*\s+(?:at\s+)?(\d{1,2}(?::\d{2})?\s*(?:[ap]m)?)\s*\(([A-Za-z_]+(?:/[A-Za-z_+-]+)*)\)", re.IGNORECASE)  # fmt: skip
_TEXT_EPOCH = re.compile(r"\|\s*(\d{10}|\d{13})\b")
_TEXT_CUES = ("again", "retry", "reset", "wait", "regain", "until", "available", "recover", "|")


def _from_text(folded: str, message: str, now: float | None) -> float | None:
    """Read prose. Units are mandatory: bare digits in a message mean anything."""
    if not any(cue in folded for cue in _TEXT_CUES):
        return None
    match = _TEXT_WAIT.search(folded)
    if match is not None:
        return parse_duration(match[1] or match[2])
    if now is None:
        return None
    match = _TEXT_DATE.search(folded)
    if match is not None:
        zone = match[3].upper().replace("UTC", "Z").replace("GMT", "Z")
        return _until(parse_rfc3339(f"{match[1]}T{match[2].zfill(5)}{zone}"), now)
    match = _TEXT_CLOCK.search(message)
    if match is not None:
        return _until(parse_clock_time(match[1], match[2], now), now)
    match = _TEXT_EPOCH.search(folded)
    return None if match is None else _until(_instant(match[1]), now)
