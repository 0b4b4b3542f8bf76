"""The command in this process, and as a real one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from holdfast.cli.app import app

__all__ = ["KEY", "SCRIPT", "environment", "heed_interrupts", "holdfast", "holdfast_json", "running", "script"]

SCRIPT = str(Path(sys.executable).with_name("holdfast"))
KEY = "sk-ant-api03-AbCdEfGhIjKlMnOpQrStUv"


def holdfast(*arguments: str, given: str | bytes | None = None, env: dict[str, str] | None = None) -> Result:
    """Run the command in this process."""
    result = CliRunner().invoke(app, list(arguments), input=given, env=env)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def holdfast_json(*arguments: str, given: str | None = None) -> dict[str, Any]:
    """The one JSON document on stdout."""
    return json.loads(holdfast(*arguments, "--json", given=given).stdout)


def environment(**more: str) -> dict[str, str]:
    """An environment without the tester's own settings."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR", "PYTHONPATH") if name in os.environ}
    return {**kept, "LC_ALL": "C.UTF-8", **more}


def script(*arguments: str | bytes, given: bytes = b"", **env: str) -> subprocess.CompletedProcess[bytes]:
    """Run the installed command."""
    return subprocess.run(
        [SCRIPT, *arguments], input=given, env=environment(**env), capture_output=True, timeout=60, check=False
    )


def heed_interrupts() -> None:
    """For `preexec_fn`: a shell starts background jobs with SIGINT ignored, and a child inherits that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def running(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process that an interrupt reaches; it is killed when the block is left."""
    with subprocess.Popen(command, preexec_fn=heed_interrupts, **options) as process:  # noqa: PLW1509 - no other thread forks
        try:
            yield process
        finally:
            # Leaving the block waits for the process: one that goes on would block the whole run.
            process.kill()
