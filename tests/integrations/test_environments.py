"""Libraries and versions that the tests' own environment does not have: each list gets an environment of its own.

They take minutes and a package index, so `make soak` runs them. Where an environment cannot be built, the test is skipped
with the reason, and nothing was tested.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HERE = ROOT / "tests" / "environments"
OLDEST = ["anthropic==0.49.0", "openai==1.66.0", "msgspec", "pytest"]
OLDEST_LITELLM = "litellm==1.100.0"
NEWEST = ["anthropic", "openai", "msgspec", "pytest"]

ENVIRONMENTS = {
    "the oldest SDKs": (OLDEST, "sdks"),
    "the newest SDKs": (NEWEST, "sdks"),
    "the oldest LiteLLM": ([OLDEST_LITELLM, "msgspec", "pytest"], "litellm"),
    "other libraries": (["-r", str(HERE / "frameworks.txt")], "frameworks"),
}


def build(venv: Path, packages: list[str]) -> Path:
    """Build an environment; skip loudly where that is not possible."""
    subprocess.run([sys.executable, "-m", "venv", venv], check=True, timeout=300)
    python = venv / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
    # The index is signed by a public authority; tests/conftest.py sets one that signs nothing.
    env = {name: value for name, value in os.environ.items() if name != "SSL_CERT_FILE"}
    done = subprocess.run(install, capture_output=True, text=True, timeout=1200, check=False, env=env)
    if done.returncode:
        reason = f"NOT TESTED: {' '.join(packages)} cannot be installed here: {done.stderr.strip()[-300:]}"
        warnings.warn(reason, pytest.PytestWarning, stacklevel=2)
        pytest.skip(reason)
    return python


@pytest.mark.soak
@pytest.mark.filterwarnings("default::pytest.PytestWarning")
@pytest.mark.parametrize("named", ENVIRONMENTS)
def test_FI8_in_an_environment_of_its_own(named: str, tmp_path: Path):
    packages, tests = ENVIRONMENTS[named]
    python = build(tmp_path / "venv", packages)
    environment = {**os.environ, "HOLDFAST_LOG": "off", "PYTHONPATH": str(ROOT / "src")}
    command = [python, "-m", "pytest", "-q", "-c", HERE / "pytest.ini", HERE / tests]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_FI8_the_extras_allow_what_is_tested():
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    for pinned in (*OLDEST[:2], OLDEST_LITELLM):
        name, _, version = pinned.partition("==")
        assert f'{name} = ["{name}>={version.removesuffix(".0")}"]' in project
