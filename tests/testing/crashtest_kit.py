"""Programs to crash, and the payment service that they call."""

from __future__ import annotations

import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.testing.crashtest import CrashTest, Report

EXAMPLES = Path(__file__).parents[2] / "examples" / "crashtest"
sys.path.insert(0, str(EXAMPLES))

from payments import Payments  # noqa: E402 - the example's own service

__all__ = ["EXAMPLES", "HEAD", "Payments", "crash", "serving", "verdicts"]

HEAD = """
import json, os, sqlite3, sys, urllib.request

def post(path, body, **headers):
    headers["Content-Type"] = "application/json"
    request = urllib.request.Request(os.environ["PAY"] + path, json.dumps(body).encode(), headers)
    return urllib.request.urlopen(request).read()
"""


@contextmanager
def serving() -> Iterator[Payments]:
    with Payments(0) as payments:
        thread = threading.Thread(target=payments.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield payments
        payments.shutdown()
        thread.join()


def crash(folder: Path, program: str, payments: Payments | None = None, **options: Any) -> Report:
    """Make a crash test of a program in a folder."""
    (folder / "agent.py").write_text(HEAD + textwrap.dedent(program))
    environment = {**options.pop("environment", {}), **({} if payments is None else {"PAY": payments.url})}
    return CrashTest([sys.executable, "agent.py"], folder=folder, environment=environment, **options).run()


def verdicts(report: Report) -> dict[str, str]:
    return {row.killed: row.verdict for row in report.rows}
