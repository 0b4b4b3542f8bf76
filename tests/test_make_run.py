"""`make run` builds an environment with what it runs and no more."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LIMIT_MB = 120


def test_the_small_environment_installs_the_demo_and_the_server_and_not_the_tools_of_developers():
    recipe = (ROOT / "Makefile").read_text(encoding="utf-8").partition("$(RUN)/.ready:")[2].partition("\n\n")[0]
    assert "'.[demo,server]'" in recipe
    assert "-c constraints.txt" in recipe
    assert "dev" not in recipe


def test_the_extra_demo_brings_the_two_sdks_and_the_command():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert extras["demo"] == ["holdfast[anthropic,cli,openai]"]


@pytest.mark.soak
def test_it_is_small_and_runs_the_demo(tmp_path: Path):
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", ROOT, clone], check=True)
    done = subprocess.run(["make", "run"], cwd=clone, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    # Compiled files count: the program has just written those it uses.
    files = [path for path in (clone / ".venv-run").rglob("*") if path.is_file() and not path.is_symlink()]
    assert sum(path.stat().st_size for path in files) < LIMIT_MB * 1024 * 1024
