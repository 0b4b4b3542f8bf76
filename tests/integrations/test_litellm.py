"""LiteLLM pins other versions than the tests' own: its tests run in an environment of their own, which `make test` builds."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-litellm" / "bin" / "python"
TESTS = ROOT / "tests" / "environments" / "litellm"
QUIET = {
    **os.environ,
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # otherwise `import litellm` fetches a price list
    "LITELLM_TELEMETRY": "False",
    "DO_NOT_TRACK": "1",
    "HOLDFAST_LOG": "off",  # the log of retries is not what stderr is checked for
    "PYTHONPATH": str(ROOT / "src"),
}


def in_litellms_environment(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    if not PYTHON.exists():
        pytest.fail("LiteLLM's environment is missing; run: make .venv-litellm/.ready", pytrace=False)
    command = [PYTHON, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=QUIET, cwd=ROOT)


def test_in_the_environment_of_litellm():
    # All files in one process: importing LiteLLM takes longer than the tests of a file.
    done = in_litellms_environment("-m", "pytest", "-q", "-c", TESTS.parent / "pytest.ini", TESTS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_litellm_is_not_imported_to_recover_it():
    program = "import sys, holdfast.litellm; assert 'litellm' not in sys.modules"
    assert in_litellms_environment("-c", program).returncode == 0
