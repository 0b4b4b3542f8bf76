"""Read times from a response: the delay that it requests (`requested_delay`) and its limit (`announced_limit`).

These places are searched in this order: fields of the body, a header in milliseconds, Retry-After, reset headers of
exhausted limits, the text. If several limits are exhausted, the latest reset counts (R33).
Invariant: a hint is finite and not negative. A date in the past, a sentinel or nonsense is not a hint (R30). Nothing
raises, because headers may contain anything.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from holdfast.classify.phrases import names, phrases
from holdfast.classify.times import (
    DURATION,
    QUANTITY,
    UNIT,
    parse_clock_time,
    parse_delay,
    parse_duration,
    parse_http_date,
    parse_number,
    parse_rfc3339,
)
from holdfast.faults import PATIENCE_S

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from holdfast.classify.evidence import Evidence

_EPOCH_SECONDS = 1e9
_EPOCH_MILLISECONDS = 1e12
_ANTHROPIC = "anthropic-ratelimit-"
_UNIFIED = "anthropic-ratelimit-unified-"
_RESETS_WITHOUT_THE_WORD = names("ratelimit x-ratelimit-renewalperiod-requests x-ratelimit-renewalperiod-tokens")
_REQUEST_LIMITS = (
    "anthropic-ratelimit-requests-{}",
    "x-ratelimit-{}-requests",
    "x-ratelimit-{}",
    "ratelimit-{}",
)
_TOKEN_LIMITS = (
    "anthropic-ratelimit-tokens-{}",
    "anthropic-ratelimit-input-tokens-{}",
    "anthropic-ratelimit-output-tokens-{}",
    "x-ratelimit-{}-tokens",
)


class AnnouncedLimit(msgspec.Struct, frozen=True):
    """A rate limit from response headers: `remaining` of `limit` calls until `reset` seconds from now."""

    limit: float | None
    remaining: float
    reset: float


class AnnouncedLimits(msgspec.Struct, frozen=True):
    """The rate limits from response headers: of requests, and of tokens. Of several limits of tokens, the one with the least left."""

    requests: AnnouncedLimit | None = None
    tokens: AnnouncedLimit | None = None


def limit_headers(raw: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    """Return the headers that may announce a limit, and the date, out of all headers as they came; empty if there are none."""
    # Every answer comes here. Reading all headers through an HTTP library's own class takes several times as long.
    found = {name.lower(): value for name, value in raw if b"ratelimit" in name.lower() or name.lower() == b"date"}
    if not found or (len(found) == 1 and b"date" in found):
        return {}
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in found.items()}


def announced_limits(headers: Mapping[str, str], wall: float) -> AnnouncedLimits | None:
    """Return the limits in `headers` (names in lower case), read at `wall` time; None if they contain no usable limit."""
    date = headers.get("date")
    now = (parse_http_date(date) if date else None) or wall
    requests = next(
        (limit for pattern in _REQUEST_LIMITS if (limit := _limit(pattern, headers, now)) is not None), None
    )
    of_tokens = [limit for pattern in _TOKEN_LIMITS if (limit := _limit(pattern, headers, now)) is not None]
    if requests is None and not of_tokens:
        return None
    return AnnouncedLimits(requests, min(of_tokens, key=_left, default=None))


def _left(limit: AnnouncedLimit) -> float:
    return limit.remaining


def announced_limit(headers: Mapping[str, str], wall: float) -> AnnouncedLimit | None:
    """Return the limit in `headers` (names in lower case), read at `wall` time; None if they contain no usable limit.

    Headers also announce limits of tokens. Nobody knows before a call how many tokens it takes, so such a limit counts
    only when no tokens are left.
    """
    date = headers.get("date")
    now = (parse_http_date(date) if date else None) or wall
    for pattern in _TOKEN_LIMITS:
        limit = _limit(pattern, headers, now)
        if limit is not None and limit.remaining <= 0:
            return AnnouncedLimit(None, 0, limit.reset)
    return next((limit for pattern in _REQUEST_LIMITS if (limit := _limit(pattern, headers, now)) is not None), None)


def requested_delay(evidence: Evidence) -> float | None:
    """Return the delay in seconds that the response requests before a retry; None if it requests no delay."""
    delay = field_delay(evidence)
    if delay is None and evidence.headers:
        delay = _latest_reset(evidence)
    if delay is None and evidence.matches(_TIME_WORDS):
        delay = _from_text(evidence)
    return delay


def field_delay(evidence: Evidence) -> float | None:
    """Return the delay that fields for machines request: fields of the body, or Retry-After. Sentences are not read."""
    delay = _from_body(evidence)
    return _from_retry_after(evidence) if delay is None and evidence.headers else delay


def may_name_a_time(evidence: Evidence) -> bool:
    """Whether the evidence may name a date, a time or a delay: then its fault depends on when it is made."""
    if evidence.delays or evidence.resets or evidence.headers:
        return True
    # A date has digits. The number of "[Errno 104] Connection reset by peer" is none, and "reset" is one of the words.
    text = evidence.text
    begin = text.find("]") if text.startswith("[errno ") else 0
    return evidence.matches(_TIME_WORDS) and _DIGIT.search(text, begin) is not None


def server_now(evidence: Evidence) -> float | None:
    """Return the current time for comparing dates: the server's time from the Date header, otherwise ours."""
    # A server computes its resets with its own clock, which may differ from this machine's clock by minutes.
    date = evidence.headers.get("date")
    parsed = parse_http_date(date) if date else None
    return evidence.now if parsed is None else parsed


def exhausted_window(headers: dict[str, str]) -> bool:
    """Whether the headers show a used-up subscription window (Anthropic unified, Codex)."""
    if headers.get(_UNIFIED + "status") == "rejected":
        return True
    return _used_up("primary", headers) or _used_up("secondary", headers)


def _from_body(evidence: Evidence) -> float | None:
    if not evidence.delays and not evidence.resets:
        return None
    delays = [delay for delay in evidence.delays if delay >= 0]
    now = server_now(evidence)
    if now is not None:
        delays += [at - now for at in evidence.resets if at > now]
    return max(delays, default=None)


def _from_retry_after(evidence: Evidence) -> float | None:
    headers = evidence.headers
    for name in ("retry-after-ms", "x-ms-retry-after-ms"):
        delay = parse_delay(headers[name], unit=0.001) if name in headers else None
        # Azure sends 0 milliseconds beside the real seconds.
        if delay is not None and (delay > 0 or (delay == 0 and "retry-after" not in headers)):
            return delay
    value = headers.get("retry-after", "").strip()
    if not value:
        return None
    seconds = parse_delay(value)
    if seconds is None:
        return _until(parse_http_date(value) or _date(value), server_now(evidence))
    if seconds >= _EPOCH_SECONDS:
        # Some servers send a point in time where a delay belongs. This bug was seen in production.
        return _until(_instant(value), server_now(evidence))
    return seconds if seconds >= 0 else None


def _latest_reset(evidence: Evidence) -> float | None:
    """Return the longest delay of the limits that have nothing left."""
    latest = 0.0
    for name, value in evidence.headers.items():
        if "reset" in name or name in _RESETS_WITHOUT_THE_WORD:
            latest = max(latest, _reset(name, value, evidence) or 0.0)
    return latest or None


def _reset(name: str, value: str, evidence: Evidence) -> float | None:
    headers = evidence.headers
    if name.startswith(_UNIFIED):
        return _unified_reset(name, value, evidence)
    if name.startswith("x-codex-"):
        return _codex_reset(name, value, evidence)
    if name == "ratelimit":
        return _ietf_ratelimit(value)
    # A reset header is a hint only if nothing is left of its own limit.
    left = _remaining(name, headers)
    if left is not None and left > 0:
        return None
    if left is None and evidence.status is not None and evidence.status >= 500:
        # This is an outage. A limit is its reason only if the limit is known to be empty.
        return None
    if name.startswith(_ANTHROPIC):
        # This header is sent with every response. It means something only if the limit is known to be empty.
        return _until(_date(value), server_now(evidence)) if left is not None else None
    if name.startswith(("x-ratelimit", "x-rate-limit", "ratelimit")):
        return _delta_or_instant(value, evidence)
    return None


def _delta_or_instant(value: str, evidence: Evidence) -> float | None:
    seconds = parse_delay(value)
    if seconds is None:
        return _until(_date(value), server_now(evidence))
    return seconds if seconds < _EPOCH_SECONDS else _until(_instant(value), server_now(evidence))


def _limit(pattern: str, headers: Mapping[str, str], now: float) -> AnnouncedLimit | None:
    left = headers.get(pattern.format("remaining"))
    if left is None:
        return None
    remaining = parse_number(left)
    reset = _seconds_until(headers.get(pattern.format("reset"), ""), now)
    # Where all of it is back by now, what remains still counts.
    if remaining is None or remaining < 0 or reset is None or (reset <= 0 and not remaining):
        return None
    return AnnouncedLimit(parse_number(headers.get(pattern.format("limit"), "")), remaining, max(reset, 0.0))


def _seconds_until(value: str, now: float) -> float | None:
    """Read a reset: seconds, a duration, a date, or seconds since the epoch."""
    seconds = parse_delay(value)
    if seconds is not None:
        return seconds if seconds < _EPOCH_SECONDS else seconds - now
    instant = parse_rfc3339(value) or parse_http_date(value)
    return None if instant is None else instant - now


def _unified_reset(name: str, value: str, evidence: Evidence) -> float | None:
    """Read the reset of a subscription window. Only rejected windows count. The header `-unified-reset` is for all windows together."""
    window = name.removesuffix("reset")
    status = evidence.headers.get(window + "status")
    if status is not None and status != "rejected":
        return None
    if status is None and window != _UNIFIED:
        return None
    return _until(_instant(value), server_now(evidence))


def _codex_reset(name: str, value: str, evidence: Evidence) -> float | None:
    headers = evidence.headers
    window = "primary" if "-primary-" in name else "secondary"
    if not _used_up(window, headers):
        return None
    if name.endswith("-reset-after-seconds"):
        return parse_delay(value)
    # The date repeats the delay less exactly. It counts only if no delay is sent.
    alone = f"x-codex-{window}-reset-after-seconds" not in headers
    return _until(_instant(value), server_now(evidence)) if alone else None


def _ietf_ratelimit(value: str) -> float | None:
    """Read `"default";r=0;t=30`, or `limit=100, remaining=0, reset=50` of earlier IETF drafts."""
    fields = dict(part.strip().split("=", 1) for part in value.replace(",", ";").split(";") if "=" in part)
    left, seconds = fields.get("r", fields.get("remaining", "")), fields.get("t", fields.get("reset", ""))
    return parse_delay(seconds) if parse_number(left) == 0 else None


def _remaining(reset_name: str, headers: dict[str, str]) -> float | None:
    name = reset_name.replace("renewalperiod", "remaining").replace("reset-after", "remaining")
    value = headers.get(name.replace("reset", "remaining"))
    return None if value is None else parse_number(value)


def _used_up(window: str, headers: dict[str, str]) -> bool:
    """Whether all of a Codex window is used. Only Codex sends this header."""
    percent = headers.get(f"x-codex-{window}-used-percent")
    return percent is not None and (parse_number(percent) or 0.0) >= 100


def _instant(value: str) -> float | None:
    number = parse_number(value)
    if number is None:
        return _date(value)
    return number / 1000 if number >= _EPOCH_MILLISECONDS else number


def _date(value: str) -> float | None:
    # The text must look like a date, because `fromisoformat` also accepts bare digits.
    return parse_rfc3339(value) if value.count("-") >= 2 and ":" in value else None


def _until(at: float | None, now: float | None) -> float | None:
    if at is None or now is None or at <= now:
        return None
    return at - now


# Each pattern is tried only after one of its words, not at every character. Finding a word is much faster.
_TIME_WORDS = phrases("""
    retrydelay | retry_delay | available in | again | request allowed | retry | retrying | reset | resets | resetting | wait
    waits | available | recover | recovers | regain | until | renew
    renews | limit reached | retry_after | retry-after
""")
_DIGIT = re.compile(r"\d")
_WAIT_CUES = ("again", "retry", "reset", "wait", "recover", "request allowed", "available in")
_WAIT_AFTER_CUE = re.compile(
    r"s?\b(?:(?!fail|plan)[^\d.;:\n]){0,30}?\s(?:(?:in|after|for|wait|within)\s+)?(?:about|around|approximately|at least|another)?\s*"
    rf"({DURATION})",
    re.IGNORECASE,
)
_DATE_CUES = ("reset", "regain", "again", "until", "available", "renew", "retry")
_DATE_AFTER_CUE = re.compile(
    r"[a-z]*\b[^\d\n]{0,30}(\d{4}-\d{2}-\d{2})(?:[t ]|\s+at\s+)(\d{1,2}:\d{2}(?::\d{2})?(?:\.\d+)?)\s*(z\b|utc|gmt|[+-]\d{2}:?\d{2})",
    re.IGNORECASE,
)
_CLOCK_AFTER_CUE = re.compile(r"[a-z]*\s+(?:at\s+)?(?:(?P<day>[A-Z][a-z]{2,8} \d{1,2}),?\s+(?:at\s+)?)?(?P<time>\d{1,2}(?::\d{2})?\s*(?:[ap]m)?)\s*\((?P<zone>[A-Za-z_]+(?:/[A-Za-z_+-]+)*)\)", re.IGNORECASE)  # fmt: skip
_LENGTH = re.compile(rf"\s*({DURATION})", re.IGNORECASE)
_HEADER_IN_TEXT = re.compile(
    rf"(?P<ms>[-_]ms)?['\"]?\s*[:=]\s*['\"]?(?P<delay>{DURATION}|{QUANTITY})(?![\w.]*\w)", re.IGNORECASE
)
_BARE_SECONDS = re.compile(rf"\s+({QUANTITY})\s*(?:[)\]}}\"',]|\.?$)", re.MULTILINE)
"""Telegram's "retry after 40": the words of the header, so it counts seconds like the header."""
_DELAY_IN_TEXT = re.compile(rf"['\"]?\s*[:=]\s*['\"]?({DURATION})", re.IGNORECASE)
_RETRIED = re.compile(rf"\bafter \d+ (?:retry|retries|attempts?) in \S+|\btrying again in {QUANTITY} ?{UNIT}")
"""How long the program took or waits by itself: "failed after 3 retries in 2.1s", "trying again in 5 seconds". It is no delay that
a server requests."""
_WRAPPED = re.compile(r"\n {2,}")
"""Where a terminal program has broken a sentence to fit the screen: the next line is indented."""
_EPOCH = re.compile(r"\|\s*(\d{10}|\d{13})\b")
# A text may repeat a word hundreds of times. The number of matches is limited, so that it stays fast.
_MAX_CUES = 6


def _from_text(evidence: Evidence) -> float | None:
    """Read prose. Units are required, except after "retry after": elsewhere a bare number can mean anything."""
    text = evidence.text
    if "\n  " in text:
        text = _WRAPPED.sub(" ", text)
    if "after " in text or "trying again" in text:
        text = _RETRIED.sub(" ", text)
    match = _after_cue(text, ("retry-after", "retry_after"), _HEADER_IN_TEXT)
    if match is not None:
        return parse_delay(match["delay"], unit=0.001 if match["ms"] else 1.0)
    match = (
        _after_cue(text, ("retrydelay", "retry_delay"), _DELAY_IN_TEXT)
        or _after_cue(text, _WAIT_CUES, _WAIT_AFTER_CUE)
        or _after_cue(text, ("retry after",), _BARE_SECONDS)
    )
    if match is not None:
        return parse_delay(match[1])
    match = _after_cue(text, _DATE_CUES, _DATE_AFTER_CUE)
    if match is not None:
        zone = match[3].upper().replace("UTC", "Z").replace("GMT", "Z")
        return _until(parse_rfc3339(f"{match[1]}T{match[2].zfill(5)}{zone}"), server_now(evidence))
    now = server_now(evidence)
    match = _after_cue(evidence.message, ("reset", "Reset"), _CLOCK_AFTER_CUE) if now is not None else None
    if match is not None and now is not None:
        return _until(parse_clock_time(match["time"], match["zone"], now, match["day"]), now)
    match = _EPOCH.search(text) if "|" in text else None
    if match is not None:
        return _until(_instant(match[1]), now)
    return _from_client_message(text)


def _from_client_message(text: str) -> float | None:
    """Return a long delay of a text such as "Retrying in 5 hours".

    A short delay is the client's own backoff, not a hint.
    """
    match = _after_cue(text, ("retrying in",), _LENGTH)
    delay = parse_duration(match[1]) if match is not None else None
    return delay if delay is not None and delay > PATIENCE_S else None


def _after_cue(text: str, cues: tuple[str, ...], pattern: re.Pattern[str]) -> re.Match[str] | None:
    """Return the first match of `pattern` that follows one of the words."""
    for cue in cues:
        at = text.find(cue)
        for _ in range(_MAX_CUES):
            if at < 0:
                break
            match = pattern.match(text, at + len(cue))
            if match is not None:
                return match
            at = text.find(cue, at + 1)
    return None
