#!/usr/bin/env python3
"""Run the test suite on every supported Python that this machine has.

    python scripts/every_python.py              each of them; the arguments go to pytest
    python scripts/every_python.py --list       only print which are here

Each interpreter has an environment of its own, `.venv-3.12` and so on, built from the same constraints. The one that runs this
script is left out: `make test` runs the suite on it. A version that is not installed is named and is not a failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSIONS = ("3.11", "3.12", "3.13", "3.14")


def main(arguments: list[str]) -> int:
    found = {
        version: find(version) for version in VERSIONS if version != f"{sys.version_info[0]}.{sys.version_info[1]}"
    }
    for version, python in found.items():
        print(f"Python {version}: {python or 'not found here, left out'}", flush=True)
    if arguments == ["--list"]:
        return 0
    results = {version: run(version, python, arguments) for version, python in found.items() if python}
    for version, status in results.items():
        print(f"Python {version}: {'passed' if status == 0 else f'failed (exit code {status})'}")
    return 1 if any(results.values()) else 0


def find(version: str) -> str | None:
    """Return the path of an interpreter of `version`, or None."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    # pyenv's newest patch release first: its shims on the PATH may exist and still refuse to start.
    installed = sorted(pyenv.glob(f"{version}.*/bin/python{version}"), key=_patch, reverse=True)
    candidates = [*map(str, installed), shutil.which(f"python{version}")]
    return next((python for python in candidates if python and _starts(python, version)), None)


def _patch(python: Path) -> int:
    return int("".join(digit for digit in python.parts[-3].rpartition(".")[2] if digit.isdigit()) or 0)


def _starts(python: str, version: str) -> bool:
    program = "import sys; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    return done.returncode == 0 and done.stdout.strip() == version


def run(version: str, python: str, arguments: list[str]) -> int:
    """Build the environment of `version` if its pins have changed, run the suite there, return its exit code."""
    venv = ROOT / f".venv-{version}"
    stamp = venv / ".ready"
    sources = [ROOT / "pyproject.toml", ROOT / "constraints.txt"]
    if not stamp.exists() or stamp.stat().st_mtime < max(path.stat().st_mtime for path in sources):
        subprocess.run([ROOT / "scripts" / "make-venv", python, venv], check=True)
        pip = [venv / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run(
            [*pip, "-c", "constraints.txt", "--no-binary", "claude-agent-sdk", "-e", ".[dev]"], cwd=ROOT, check=True
        )
        stamp.touch()
    print(f"Python {version}: the suite", flush=True)
    return subprocess.run(
        [venv / "bin" / "python", "-m", "pytest", "-m", "not soak", *arguments], cwd=ROOT, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
