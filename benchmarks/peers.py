"""The peers' environment, `.venv-bench`, and the processes that run in it.

Invariant: the network is used to install, never to measure.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv-bench"
PYTHON = VENV / "bin" / "python"
PINS = Path(__file__).with_name("peers.txt")

ENV = {
    **os.environ,
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # otherwise `import litellm` fetches a price list
    "LITELLM_TELEMETRY": "False",
    "LITELLM_LOG": "ERROR",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "OTEL_SDK_DISABLED": "true",
}


def ready() -> dict[str, str]:
    """Build the environment if it is not there; return the packages that could not be installed, with the reason."""
    stamp = VENV / ".ready"
    want = hashlib.sha256(PINS.read_bytes()).hexdigest()
    if stamp.exists():
        kept = json.loads(stamp.read_text())
        if kept["pins"] == want:
            return kept["missing"]
    print(f"building {VENV.name} (first use, about a minute) ...", file=sys.stderr, flush=True)
    # Not cleared, and at its real place: it may be a link to an environment that other work trees use at this moment.
    subprocess.run([sys.executable, "-m", "venv", str(VENV.resolve())], check=True)
    missing = _install()
    stamp.write_text(json.dumps({"pins": want, "missing": missing}))
    return missing


def versions(*names: str) -> str:
    pins = dict(line.split("==") for line in PINS.read_text().splitlines() if "==" in line and not line.startswith("#"))
    return ", ".join(f"{name} {pins[name]}" for name in names)


def _install() -> dict[str, str]:
    missing: dict[str, str] = {}
    if _pip("-r", str(PINS)):
        # A package that cannot be installed must not prevent the others.
        for pin in PINS.read_text().splitlines():
            if pin and not pin.startswith("#") and (problem := _pip(pin)):
                missing[pin.partition("==")[0]] = problem
    if problem := _pip("-e", str(ROOT)):
        raise SystemExit(f"holdfast itself could not be installed in {VENV.name}: {problem}")
    return missing


def _pip(*what: str) -> str:
    command = [str(PYTHON), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", *what]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["pip failed"])[-1]


class Worker:
    """One contender in a process of its own, so that no peer's heap or collector weighs on another."""

    def __init__(self, part: str, name: str) -> None:
        self.name = name
        self.broken = ""
        self._process = subprocess.Popen(
            [str(PYTHON), "-m", "benchmarks.worker", part, name],
            cwd=ROOT,
            env=ENV,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, do: str, **arguments: Any) -> Any:
        """Return the worker's answer, or None if it is broken; `broken` then says how."""
        if self.broken:
            return None
        assert self._process.stdin
        assert self._process.stdout
        try:
            self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        answer = json.loads(line) if line else {"error": "the process ended"}
        self.broken = answer.get("error", "")
        return answer.get("ok")

    def close(self) -> None:
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            # Its answers are here. A busy machine must not lose them with the process.
            self._process.kill()
            self._process.wait()
