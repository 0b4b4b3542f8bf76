"""What the contenders are given: failures as `Failure`, the corpus as a list of them.

Invariant: a timed case is a pool of different texts, so that no contender can answer from a cache.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from benchmarks.peers import ROOT

POOL = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    kind: str = "http"
    """`http`, `live` (an exception of the provider's SDK for the same answer) or a kind of the corpus."""
    provider: str = ""
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: str = ""
    line: dict[str, Any] = field(default_factory=dict)
    """The corpus line it came from, and its file."""
    file: str = ""


def read_corpus() -> list[tuple[str, dict[str, Any]]]:
    """Return every line of the corpus with the name of its file; `met/` holds the parts with lines put aside."""
    home = ROOT / "tests" / "corpus"
    paths = sorted([*home.glob("*.jsonl"), *home.glob("met/*.jsonl")])
    return [
        (path.relative_to(home).as_posix(), json.loads(raw))
        for path in paths
        for raw in path.read_text().split("\n")
        if raw.strip()
    ]


def failures(lines: list[tuple[str, dict[str, Any]]]) -> list[Failure]:
    same = ("kind", "provider", "status", "headers", "body")
    return [Failure(**{key: line[key] for key in same}, line=line, file=file) for file, line in lines]


def timed() -> dict[str, list[Failure]]:
    """The timed cases by name. All bodies are within a few bytes of 1 KB, all answers carry ten or more headers."""
    limited = [_openai_429(i) for i in range(POOL)]
    claude = [_anthropic_429(i) for i in range(POOL)]
    return {
        "429 rate limit, OpenAI JSON": limited,
        "429 rate limit, Anthropic JSON": claude,
        "529 overloaded, Anthropic JSON": [_anthropic_529(i) for i in range(POOL)],
        "400 context overflow, OpenAI JSON": [_openai_400(i) for i in range(POOL)],
        "502 HTML page of a gateway": [_html_502(i) for i in range(POOL)],
        "live openai.RateLimitError": [_as_live(f) for f in limited],
        "live anthropic.RateLimitError": [_as_live(f) for f in claude],
        "every http line of the corpus": [f for f in failures(read_corpus()) if f.kind == "http"],
    }


def _as_live(failure: Failure) -> Failure:
    return Failure(
        kind="live", provider=failure.provider, status=failure.status, headers=failure.headers, body=failure.body
    )


def _openai_429(i: int) -> Failure:
    message = (
        f"Rate limit reached for gpt-4o in organization org-{i:024d} on tokens per min (TPM): Limit 30000, Used 28{i:03d}, "
        f"Requested 6{i:03d}. Please try again in {8 + i / 100:.2f}s. Visit https://platform.openai.com/account/rate-limits to learn more. "
    )
    body = {"error": {"message": message, "type": "tokens", "param": None, "code": "rate_limit_exceeded"}}
    headers = {
        "date": "Wed, 14 Oct 2026 09:31:07 GMT",
        "content-type": "application/json; charset=utf-8",
        "retry-after": "9",
        "x-ratelimit-limit-requests": "500",
        "x-ratelimit-limit-tokens": "30000",
        "x-ratelimit-remaining-requests": "499",
        "x-ratelimit-remaining-tokens": "0",
        "x-ratelimit-reset-requests": "120ms",
        "x-ratelimit-reset-tokens": f"{8 + i / 100:.2f}s",
        "x-request-id": f"req_{i:032x}",
    }
    return Failure(provider="openai", status=429, headers=headers, body=_padded(body))


def _anthropic_429(i: int) -> Failure:
    message = (
        f"This request would exceed your organization's rate limit of 30,000 input tokens per minute (org: "
        f"00000000-0000-0000-0000-{i:012d}, model: claude-sonnet-4-20250514). For details, refer to: "
        "https://docs.claude.com/en/api/rate-limits. You can see the response headers for current usage. Please reduce "
        "the prompt length or the maximum tokens requested, or try again later. You may also contact sales at "
        "https://claude.com/contact-sales to discuss your options for a rate limit increase."
    )
    body = {"type": "error", "error": {"type": "rate_limit_error", "message": message}, "request_id": f"req_{i:024d}"}
    return Failure(provider="anthropic", status=429, headers=_anthropic_headers(i, "16"), body=_padded(body))


def _anthropic_529(i: int) -> Failure:
    body = {
        "type": "error",
        "error": {"details": None, "type": "overloaded_error", "message": "Overloaded"},
        "request_id": f"req_{i:024d}",
    }
    return Failure(provider="anthropic", status=529, headers=_anthropic_headers(i, ""), body=_padded(body))


def _anthropic_headers(i: int, retry_after: str) -> dict[str, str]:
    headers = {
        "date": "Wed, 14 Oct 2026 09:31:07 GMT",
        "content-type": "application/json",
        "anthropic-ratelimit-input-tokens-limit": "30000",
        "anthropic-ratelimit-input-tokens-remaining": "0" if retry_after else "29000",
        "anthropic-ratelimit-input-tokens-reset": "2026-10-14T09:31:23Z",
        "anthropic-ratelimit-requests-limit": "50",
        "anthropic-ratelimit-requests-remaining": "49",
        "anthropic-ratelimit-requests-reset": "2026-10-14T09:31:08Z",
        "request-id": f"req_{i:024d}",
        "x-should-retry": "true",
    }
    return headers | ({"retry-after": retry_after} if retry_after else {})


def _openai_400(i: int) -> Failure:
    message = (
        f"This model's maximum context length is 128000 tokens. However, your messages resulted in {130000 + i} tokens "
        f"({129000 + i} in the messages, 1000 in the functions). Please reduce the length of the messages or functions."
    )
    error = {
        "message": message,
        "type": "invalid_request_error",
        "param": "messages",
        "code": "context_length_exceeded",
    }
    headers = _openai_429(i).headers | {"x-ratelimit-remaining-tokens": "29000"}
    del headers["retry-after"]
    return Failure(
        provider="openai", status=400, headers=headers | {"cf-ray": f"{i:016x}-FRA"}, body=_padded({"error": error})
    )


def _html_502(i: int) -> Failure:
    style = "body{width:35em;margin:0 auto;font-family:Tahoma,Verdana,Arial,sans-serif}" * 8
    body = (
        "<!DOCTYPE html>\r\n<html>\r\n<head><title>502 Bad Gateway</title>\r\n<style>"
        f"{style}</style></head>\r\n<body>\r\n<center><h1>502 Bad Gateway</h1></center>\r\n<hr><center>nginx/1.24.0</center>\r\n"
        f"<p>Request id: {i:032x}. If you are the owner of this website, please check the upstream server and its log.</p>\r\n"
    )
    headers = {
        "date": "Wed, 14 Oct 2026 09:31:07 GMT",
        "content-type": "text/html; charset=utf-8",
        "content-length": "1024",
        "connection": "keep-alive",
        "server": "nginx/1.24.0",
        "cache-control": "no-store",
        "strict-transport-security": "max-age=31536000",
        "vary": "Accept-Encoding",
        "via": "1.1 google",
        "x-request-id": f"{i:032x}",
    }
    return Failure(provider="openai", status=502, headers=headers, body=f"{body:<1006}</body>\r\n</html>\r\n")


def _padded(body: dict[str, Any]) -> str:
    """JSON of about 1 KB: gateways echo ids and routes, which is what makes real bodies that long."""
    room = 1024 - len(json.dumps(body)) - len(', "trace": ""')
    return json.dumps({**body, "trace": ("edge=fra1 route=/v1/chat pool=b " * 40)[: max(0, room)]})
