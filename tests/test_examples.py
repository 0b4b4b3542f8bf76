"""Every example runs as it stands: no keys, no network, nothing to set up."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
# `holdfast demo` is the first part of the whole. It has tests of its own: tests/cli/test_cli_demo.py.
PARTS = sorted(
    path.stem for path in (ROOT / "examples" / "whole").glob("*.py") if path.stem not in {"__main__", "count"}
)


@cache
def output_of(*arguments: str | Path) -> str:
    # Without the log of retries, which is what examples are made of, stderr shows only mistakes.
    quiet = {**os.environ, "HOLDFAST_LOG": "off"}
    command = [sys.executable, "-W", "error", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=quiet)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


def test_there_is_one_for_each_job():
    jobs = ["sdk_client", "fallback", "stream", "team", "durable_work", "agent", "task", "remote_client"]
    assert [path.stem for path in EXAMPLES] == sorted(jobs)
    page = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"\]\((\w+)\.py\)", page) == jobs


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_it_is_short_and_runs(example: Path):
    assert len(example.read_text(encoding="utf-8").splitlines()) < 40
    assert output_of(example)


def test_the_second_run_of_durable_work_repeats_nothing():
    first, second = output_of(ROOT / "examples" / "durable_work.py").split("first run: deployed")
    assert [line.split()[0] for line in first.splitlines()] == ["plans", "asks", "deploys"]
    assert second.strip() == "second run: deployed"


@pytest.mark.parametrize("part", PARTS)
def test_in_each_part_of_the_whole_both_sides_count_the_same(part: str):
    shown = output_of(ROOT / "examples" / "whole", part)
    counts = re.findall(r"  (\d+)  +(\d+)  ", shown)
    assert counts
    assert all(ours == theirs != "0" for ours, theirs in counts)
    assert "Every count agrees" in shown


def test_the_whole_has_every_part():
    assert re.findall(r'^    "(\w+)": "', (ROOT / "examples" / "whole" / "__main__.py").read_text(), re.MULTILINE) == [
        "demo",
        "killed_session",
        "team_under_kills",
        "lost_network",
        "split_task",
    ]


def test_what_is_too_large_is_split_and_merged_as_the_page_shows():
    shown = output_of(ROOT / "examples" / "whole", "split_task").splitlines()
    page = (ROOT / "docs" / "how-to" / "tasks.md").read_text(encoding="utf-8")
    expected = page.partition("```text\n")[2].partition("```")[0].replace("…\n", "").splitlines()
    assert [line.strip() for line in shown if line.strip() in expected] == expected
