"""Every example runs as it stands: no keys, no network, nothing to set up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# LiteLLM's example runs in LiteLLM's environment: tests/integrations/test_litellm.py.
EXAMPLES = sorted(
    path
    for path in (Path(__file__).parent.parent / "examples").glob("*.py")
    if not path.stem.startswith("litellm_") and path.stem not in {"recovering", "too_large"}
)
"""Those without a test of their own below."""


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs(example: Path):
    # Without the log of retries, which is what examples are made of, stderr shows only mistakes.
    quiet = {**os.environ, "HOLDFAST_LOG": "off"}
    done = subprocess.run(
        [sys.executable, example], capture_output=True, text=True, timeout=120, check=False, env=quiet
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_what_is_too_large_is_split_and_merged_as_the_page_shows():
    done = subprocess.run(
        [sys.executable, EXAMPLES[0].with_name("too_large.py")], capture_output=True, text=True, timeout=120, check=True
    )
    page = (EXAMPLES[0].parent.parent / "docs" / "how-to" / "tasks.md").read_text(encoding="utf-8")
    shown = page.partition("```text\n")[2].partition("```")[0].replace("…\n", "").splitlines()
    assert [line for line in done.stdout.splitlines() if line in shown] == shown


def test_a_bad_day_ends_as_it_says():
    done = subprocess.run(
        [sys.executable, EXAMPLES[0].with_name("recovering.py")],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    for line in (
        "Retrying… attempt 2 · 120 s left in 7.0 s · PROVIDER_RATE_LIMITED · by Retry-After",
        "circuit provider:openai: closed → open",
        "fall back to local model · CIRCUIT_OPEN",
        "circuit provider:openai: half-open → closed",
        "partial: Kelp holds",
        "an answer to 4 messages",
        "TOOL_OUTCOME_UNKNOWN",
        "The budget of 4 attempts is spent",
    ):
        assert line in done.stdout
