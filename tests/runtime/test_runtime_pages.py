"""The pages are read from the installed package."""

from __future__ import annotations

import subprocess
import sys

import pytest

from holdfast.faults import CODES
from holdfast.runtime import page_of


@pytest.mark.parametrize("code", CODES)
def test_every_code_has_its_page(code):
    assert page_of(code).startswith(f"# {code}: ")


def test_a_page_is_read_as_utf8_wherever_the_program_runs():
    program = (
        "from holdfast.runtime import page_of; from holdfast.faults import CODES; [page_of(code) for code in CODES]"
    )
    done = subprocess.run(
        [sys.executable, "-X", "warn_default_encoding", "-W", "error", "-c", program],
        env={"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["NO_SUCH_CODE", "../codes", ""])
def test_an_unknown_code_has_no_page(name):
    with pytest.raises(FileNotFoundError):
        page_of(name)
