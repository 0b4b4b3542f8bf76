"""A tour of the error model, without keys and without a network: real failures on this machine, and how they are recognised.

Run it with `.venv/bin/python examples/tour.py`. Everything below really happens: connections are refused, processes are killed, and the
official SDKs talk to a small server on loopback that fails as providers do.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anthropic
import httpx
import openai

from holdfast import Fault, fault_of
from holdfast.classify import from_jsonrpc, from_record, from_stream, read_record
from holdfast.views import category, classed, response, task, wire

if TYPE_CHECKING:
    from collections.abc import Callable

ANSWERS: dict[str, tuple[int, dict[str, str], str]] = {
    "rate limit": (
        429,
        {"retry-after": "7"},
        '{"type":"error","error":{"type":"rate_limit_error","message":"This request would exceed your rate limit."}}',
    ),
    "empty account": (
        429,
        {},
        '{"error":{"message":"You exceeded your current quota, please check your plan.","code":"insufficient_quota"}}',
    ),
    "overloaded": (529, {}, '{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}'),
    "too long": (
        400,
        {},
        '{"type":"error","error":{"message":"prompt is too long: 201928 tokens > 200000 maximum"}}',
    ),
    "gateway page": (502, {"content-type": "text/html"}, "<html><head><title>502 Bad Gateway</title></head></html>"),
    "wrong key": (
        401,
        {},
        '{"error":{"message":"Incorrect API key provided: sk-canary-0123456789abcdef.","code":"invalid_api_key"}}',
    ),
}


class Misbehaving(BaseHTTPRequestHandler):
    """Answers every request with the failure that its API key names."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        wanted = self.headers.get("x-api-key") or self.headers.get("authorization", "").removeprefix("Bearer ")
        status, headers, body = ANSWERS[wanted]
        self.send_response(status)
        for name, value in ({"content-type": "application/json"} | headers).items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name http.server gives it
        """Log nothing: the tour prints its own lines."""


def ask_claude(url: str, key: str) -> object:
    client = anthropic.Anthropic(api_key=key, base_url=url, max_retries=0)
    return client.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}])


def ask_gpt(url: str, key: str) -> object:
    client = openai.OpenAI(api_key=key, base_url=url, max_retries=0)
    return client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def shell(script: str, timeout: float | None = None) -> object:
    return subprocess.run(["sh", "-c", script], check=True, timeout=timeout, capture_output=True)


def failure_of(attempt: Callable[[], object]) -> Fault:
    """Run an action that fails, and return its fault. A result that is already a fault is returned as it is."""
    try:
        result = attempt()
    except Exception as error:
        return fault_of(error)
    if isinstance(result, Fault):
        return result
    message = "this was supposed to fail"
    raise AssertionError(message)


def scenes(url: str) -> dict[str, Callable[[], object]]:
    return {
        "Claude, 429 with Retry-After": lambda: ask_claude(url, "rate limit"),
        "GPT, 429 that is an empty account": lambda: ask_gpt(url, "empty account"),
        "Claude, 529": lambda: ask_claude(url, "overloaded"),
        "Claude, 400 that is a full context": lambda: ask_claude(url, "too long"),
        "GPT, a proxy's HTML page": lambda: ask_gpt(url, "gateway page"),
        "GPT, a key that was revoked": lambda: ask_gpt(url, "wrong key"),
        "httpx, nobody listens": lambda: httpx.get(f"http://127.0.0.1:{closed_port()}"),
        "an error event inside a 200 stream": lambda: from_stream(
            'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}\n\n'
        ),
        "an MCP tool that timed out": lambda: from_jsonrpc(
            {"jsonrpc": "2.0", "id": 1, "error": {"code": -32001, "message": "Request timed out"}}
        ),
        "a tool that exits with 1": lambda: shell("echo 'error: file not found' >&2; exit 1"),
        "a tool killed with SIGKILL": lambda: shell("kill -9 $$"),
        "a tool that hangs": lambda: shell("sleep 5", timeout=0.05),
        "a program that is not installed": lambda: subprocess.run(["no-such-agent-cli"], check=True),
        "a model's broken JSON": lambda: json.loads('{"city": "Par'),
        "a defect": lambda: list[int]()[0],
    }


def show(title: str) -> None:
    print(f"\n\033[1m{title}\033[0m" if sys.stdout.isatty() else f"\n{title}\n{'-' * len(title)}")


def show_verdicts(url: str) -> None:
    show("What failed, and what it means")
    for name, attempt in scenes(url).items():
        fault = failure_of(attempt)
        again = (
            f"again in {fault.retry_after:g} s" if fault.retry_after else "again" if fault.retryable else "not again"
        )
        print(f"  {name:<36} {fault.code:<28} {again:<14} {fault.next_actor:<9} {fault.rule}")


def show_audiences(url: str) -> None:
    fault = failure_of(lambda: ask_gpt(url, "wrong key"))
    show("One failure, three audiences (the key is never shown)")
    print("  user   ", fault.for_user())
    print("  model  ", json.dumps(fault.for_model(), ensure_ascii=False))
    print("  audit  ", json.dumps(fault.for_audit(), ensure_ascii=False)[:220], "…")


def show_views(url: str) -> None:
    fault = failure_of(lambda: ask_claude(url, "rate limit"))
    show("One failure, five documents' shapes")
    for name, document in (
        ("000", wire.http_body(fault)),
        ("001", category.write(fault)),
        ("002", classed.write(fault)),
        ("003", task.write(fault)),
        ("004", response.write(fault)),
    ):
        print(f"  {name}  {json.dumps(document, ensure_ascii=False)[:150]}")


def show_corpus() -> None:
    path = Path(__file__).parent.parent / "tests" / "corpus" / "provider_errors.jsonl"
    rows = [(json.loads(line)["expect"], from_record(read_record(line))) for line in path.read_text().splitlines()]
    right = sum(
        (fault.category == expect["category"] or fault.category in expect.get("alt_categories", []))
        and fault.retryable == expect["retryable"]
        for expect, fault in rows
    )
    show("The corpus of real failures")
    print(f"  {right} of {len(rows)} recognised: category and verdict as labelled")
    print("  read about any code: .venv/bin/holdfast explain PROVIDER_RATE_LIMITED")


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Misbehaving)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        show_verdicts(url)
        show_audiences(url)
        show_views(url)
        show_corpus()
    finally:
        server.shutdown()


if __name__ == "__main__":
    main()
