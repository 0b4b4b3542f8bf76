"""How many requests the fault provider answers in a second on one core: it must never be the bottleneck of a test.

The server is a process of its own, pinned to one core where the system can; this process sends requests over several connections and
parses only the ends of the answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.table import show

TARGET = 1_000
CONNECTIONS = 16
SECONDS, QUICK = 3.0, 0.5

_ASKED = {"model": "claude-haiku-4-5", "max_tokens": 99, "messages": [{"role": "user", "content": "hello there " * 20}]}
_CASES = {
    "messages": ("ok, loop", "/v1/messages", _ASKED, b"}}"),
    "messages, streamed": ("ok, loop", "/v1/messages", {**_ASKED, "stream": True}, b"\r\n0\r\n\r\n"),
    "chat completions": ("ok, loop", "/v1/chat/completions", _ASKED, b"}}"),
    "responses, streamed": ("ok, loop", "/v1/responses", {**_ASKED, "stream": True}, b"\r\n0\r\n\r\n"),
    "429": ("429;retry-after=7, loop", "/v1/messages", _ASKED, b"}}"),
}


def request_bytes(path, document, method=b"POST"):
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    head = b"%b %b HTTP/1.1\r\nhost: x\r\nx-api-key: k\r\ncontent-length: %d\r\n\r\n"
    return head % (method, path.encode(), len(body)) + body


@contextlib.contextmanager
def serving():
    """Serve from another process; yield the port and the process."""
    command = [sys.executable, "-m", "holdfast", "faults", "serve", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        try:
            url = server.stdout.readline().strip()
            if hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(server.pid, {max(os.sched_getaffinity(0))})
            yield int(url.rpartition(":")[2]), server.pid
        finally:
            server.send_signal(signal.SIGINT)


async def ask_until(port, request, ending, stop):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answered = 0
    while time.perf_counter() < stop:
        writer.write(request)
        await reader.readuntil(ending)
        answered += 1
    writer.close()
    return answered


async def measure(port, case, seconds):
    script, path, document, ending = case
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request_bytes("/_holdfast/script", script.encode()))
    await reader.readuntil(b"}")
    writer.close()
    request = request_bytes(path, document)
    began = time.perf_counter()
    asking = [ask_until(port, request, ending, began + seconds) for _ in range(CONNECTIONS)]
    return sum(await asyncio.gather(*asking)) / (time.perf_counter() - began)


def cpu_seconds(pid):
    """CPU time of a process, if the system provides it."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run(*, quick: bool) -> dict[str, float]:
    seconds = QUICK if quick else SECONDS
    rates, rows = {}, []
    with serving() as (port, pid):
        for name, case in _CASES.items():
            before = cpu_seconds(pid)
            rates[name] = rate = asyncio.run(measure(port, case, seconds))
            used = None if before is None else cpu_seconds(pid) - before
            cost = "-" if used is None else f"{used / (rate * seconds) * 1e6:.0f}"
            rows.append([name, f"{rate:,.0f}", cost])
    slowest = min(rates.values())
    notes = [f"target {TARGET:,} requests/s on one core: {'met' if slowest >= TARGET else 'missed'}"]
    show(f"The fault provider, {CONNECTIONS} connections", ["answer", "requests/s", "server µs"], rows, notes)
    return rates
