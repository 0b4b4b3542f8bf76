"""A payment service on this machine, which the agents of this folder call. It keeps what it did in memory.

    python examples/crashtest/payments.py        # http://127.0.0.1:8426

A request with an `Idempotency-Key` that it has seen gets the first answer again, as Stripe's and many others do.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PORT = 8426


class Payments(ThreadingHTTPServer):
    """Counts what it receives and what it performs, by path."""

    daemon_threads = True

    def __init__(self, port: int = PORT) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.received: list[tuple[str, str]] = []
        """The path and the key of each request, also of one that was answered before."""
        self.performed: Counter[str] = Counter()
        self.answers: dict[str, bytes] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def perform(self, path: str, key: str) -> bytes:
        self.received.append((path, key))
        if key in self.answers:
            return self.answers[key]
        self.performed[path] += 1
        answer = json.dumps({"id": f"{path.strip('/')}-{self.performed[path]}", "status": "done"}).encode()
        if key:
            self.answers[key] = answer
        return answer


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        assert isinstance(self.server, Payments)
        answer = self.server.perform(self.path, self.headers.get("idempotency-key", ""))
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names them
        """Say nothing."""


if __name__ == "__main__":
    with Payments(int(sys.argv[1]) if len(sys.argv) > 1 else PORT) as payments:
        print(payments.url, flush=True)
        payments.serve_forever()
