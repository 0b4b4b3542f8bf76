"""`holdfast init`: a holdfast.toml in which every option is explained and commented out."""

from __future__ import annotations

import json
import re
import tomllib

import jsonschema
import pytest
from cli_runs import holdfast

from holdfast.cli.init import TEMPLATE
from holdfast.config import json_schema, load, read

OPTION = re.compile(r"#(?=\S)")
LINES = TEMPLATE.splitlines()
COMMENTED = [number for number, line in enumerate(LINES) if OPTION.match(line)]


def with_options(*numbers: int) -> str:
    """The file with the comment signs of these lines removed."""
    return "\n".join(OPTION.sub("", line) if number in numbers else line for number, line in enumerate(LINES))


def check(text: str) -> None:
    tables = tomllib.loads(text)
    read(tables)
    jsonschema.validate(tables, json_schema())


def test_the_file_as_written_changes_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = holdfast("init")
    assert (result.exit_code, result.stdout) == (0, "holdfast.toml\n")
    written = load(environ={}, folder=tmp_path)
    assert (written.policy, written.targets, written.roles) == (read({}).policy, {}, {})
    assert holdfast("policy", "check", "--strict").exit_code == 0


@pytest.mark.parametrize("number", COMMENTED, ids=lambda number: LINES[number].lstrip("#"))
def test_each_line_is_valid_when_it_is_switched_on_alone(number):
    check(with_options(number))


def test_all_lines_are_valid_together_and_each_has_an_effect():
    check(with_options(*COMMENTED))
    assert len(COMMENTED) >= 18
    everything = read(tomllib.loads(with_options(*COMMENTED)))
    assert set(everything.targets) == {"provider:claude", "tool:bash"}
    assert everything.roles["builder"].understudies == ("coder-simple",)


def test_every_top_table_of_the_schema_is_in_the_file():
    text = with_options(*COMMENTED)
    # They exclude `base`, which is there.
    others = {"profile", "phase"}
    assert {name for name in json_schema()["properties"] if name not in others} <= set(tomllib.loads(text))


def test_it_reads_well_in_a_narrow_editor():
    assert max(map(len, LINES)) <= 80


@pytest.mark.parametrize("flags", [(), ("--json",)], ids=["text", "json"])
def test_a_file_that_is_there_is_left_as_it_is(tmp_path, flags):
    (tmp_path / "holdfast.toml").write_text("# mine\n")
    result = holdfast("init", "--folder", str(tmp_path), *flags)
    assert result.exit_code == 7
    assert "exists already and is left as it is" in result.stderr
    assert (tmp_path / "holdfast.toml").read_text() == "# mine\n"
    if flags:
        assert json.loads(result.stdout)["written"] is False


def test_a_folder_that_does_not_exist_is_an_error_and_not_a_traceback(tmp_path):
    result = holdfast("init", "--folder", str(tmp_path / "none"))
    assert result.exit_code == 1
    assert "cannot be written" in result.stderr


def test_json_names_the_file(tmp_path):
    result = holdfast("init", "--folder", str(tmp_path), "--json")
    assert json.loads(result.stdout) == {
        "schema": "holdfast.init/1",
        "file": str(tmp_path / "holdfast.toml"),
        "written": True,
    }
