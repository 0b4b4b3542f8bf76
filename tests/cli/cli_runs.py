"""The command in this process, and as a real one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from holdfast.cli.app import app

__all__ = ["KEY", "SCRIPT", "environment", "holdfast", "holdfast_json", "script"]

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
