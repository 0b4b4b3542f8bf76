"""`holdfast crashtest`: the table, the document, the exit codes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from cli_runs import holdfast

IN_PLACE = """
import json, os
if os.path.exists("state.json"):
    json.loads(open("state.json").read())
with open("state.json", "w") as file:
    file.write('{"step": 1}')
"""
REPLACED = IN_PLACE.replace('open("state.json", "w")', 'open("new.json", "w")') + 'os.replace("new.json", "state.json")'


def test_it_shows_the_exact_points_and_exits_1_for_damage(tmp_path: Path):
    (tmp_path / "agent.py").write_text(IN_PLACE)
    result = holdfast("crashtest", "--folder", str(tmp_path), "--", sys.executable, "agent.py")
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["killed", "runs", "doubled", "lost", "paid", "again", "verdict", "detail"]
    assert lines[1].split() == ["before", "open", "state.json", "2", "ok"]
    assert lines[2].split()[:5] == ["after", "open", "state.json", "3", "fails"]
    assert lines[3] == "killed 2 times: 1 of them did damage; 0 effects doubled, 0 lost; 0 model requests paid again"
    assert "2/2 killed after open state.json: fails" in result.stderr


def test_its_document_holds_the_same_and_a_check_decides_about_the_end(tmp_path: Path):
    (tmp_path / "agent.py").write_text(REPLACED)
    flags = ("--quiet", "--json", "--kills", "1", "--check", "test -s state.json", "--folder", str(tmp_path))
    result = holdfast("crashtest", *flags, "--", sys.executable, "agent.py")
    document = json.loads(result.stdout)
    assert (result.exit_code, document["schema"], document["damage"]) == (0, "holdfast.crashtest/1", 0)
    assert [row["verdict"] for row in document["rows"]] == ["ok"]
    assert (document["points"], document["doubled"], document["lost"]) == (2, 0, 0)
    assert result.stderr == ""


def test_a_program_without_points_cannot_be_tested(tmp_path: Path):
    result = holdfast("crashtest", "--folder", str(tmp_path), "--", "true")
    assert result.exit_code == 3
    assert "no request and no write was seen" in result.stderr
    assert "help: say --target NAME=URL" in result.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--target", "http://x"), "--target: expected NAME=URL"),
        (("--effects", "x"), "expected an address with http:// or https://"),
        (("--timeout", "soon"), "--timeout: expected seconds"),
        (("--check", ""), "--check: expected a command"),
        (("--kills", "0"), "Invalid value"),
        ((), "expected a program that works when it is not killed, got it exited with 1"),
    ],
)
def test_what_cannot_be_is_said_and_exits_2(tmp_path: Path, flags: tuple[str, ...], words: str):
    result = holdfast("crashtest", "--folder", str(tmp_path), *flags, "--", "false")
    assert result.exit_code == 2
    assert words in result.stderr
