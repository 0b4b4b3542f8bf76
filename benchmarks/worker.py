"""One contender in a process of its own: reads a JSON command a line, answers a JSON line.

Invariant: standard output carries answers only, and Python opens no connection. libpq and Ray's core do not go through Python; they
get a private server's socket and this machine's own address.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
from typing import Any


def _offline() -> None:
    def block_network(*_: Any, **__: Any) -> Any:
        raise OSError("the benchmark opens no connections")

    socket.socket.connect = socket.socket.connect_ex = block_network  # type: ignore[method-assign]
    socket.getaddrinfo = socket.create_connection = block_network  # type: ignore[assignment]


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _offline()
    part, name = sys.argv[1:]
    bench: Any = None
    for line in sys.stdin:
        command = json.loads(line)
        try:
            bench = bench or importlib.import_module(f"benchmarks.inside.{part}").Bench(name)
            answer = {"ok": getattr(bench, command.pop("do"))(**command)}
        except Exception as problem:
            answer = {"error": f"{type(problem).__name__}: {problem}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
