"""`holdfast doctor`"""

from __future__ import annotations

import json
import re
from importlib import metadata

import pytest
from cli_runs import KEY, holdfast

from holdfast import __version__
from holdfast.faults import CODES


@pytest.fixture(autouse=True)
def somewhere_quiet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("HOLDFAST_ENABLED", "RESILIENCE_ENABLED", "ANTHROPIC_API_KEY", "OPENAI_API_KEY", "XAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def findings(status: int = 0) -> dict[str, dict[str, str]]:
    result = holdfast("doctor", "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == status
    assert document["schema"] == "holdfast.doctor/1"
    assert document["healthy"] is (status == 0)
    return {finding["what"]: finding for finding in document["findings"]}


def test_a_healthy_machine():
    result = holdfast("doctor")
    assert result.exit_code == 0
    assert result.stderr == "nothing is broken\n"
    found = findings()
    assert found["holdfast"]["found"] == __version__
    assert found["msgspec"]["found"] == metadata.version("msgspec")
    assert found["catalog"]["found"] == f"{len(CODES)} of {len(CODES)} pages"
    assert found["holdfast.toml"]["state"] == "info"
    assert {finding["state"] for finding in found.values()} <= {"ok", "info"}


def test_the_table_holds_what_json_holds():
    lines = holdfast("doctor").stdout.splitlines()[1:]
    shown = [re.split(r"\s{2,}", line)[:3] for line in lines]
    told = [[finding["what"], finding["state"], finding["found"]] for finding in findings().values()]
    # The clock moved between the two.
    assert [row[:2] for row in shown] == [row[:2] for row in told]
    assert [row for row in shown if row[0] != "clock"] == [row for row in told if row[0] != "clock"]


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (b"[sessions\ngrace_s = 5\n", "line 1"),
        (b"a = 1\na = 2\n", "line 2"),
        (b"x = '\xff'\n", "decode"),
    ],
    ids=["syntax", "twice", "not utf-8"],
)
def test_a_broken_configuration_is_found_with_its_place(somewhere_quiet, text, named):
    (somewhere_quiet / "holdfast.toml").write_bytes(text)
    finding = findings(status=1)["holdfast.toml"]
    assert finding["state"] == "failed"
    assert named in finding["found"]
    assert finding["fix"]
    result = holdfast("doctor")
    assert result.exit_code == 1
    assert result.stderr == "something is broken: see `failed` above\n"


def test_a_configuration_that_cannot_be_opened_is_found(somewhere_quiet):
    (somewhere_quiet / "holdfast.toml").mkdir()
    assert findings(status=1)["holdfast.toml"]["state"] == "failed"


def test_a_good_configuration_is_counted(somewhere_quiet):
    (somewhere_quiet / "holdfast.toml").write_text("[policy]\nattempts = 5\n[targets.claude]\n", encoding="utf-8")
    assert findings()["holdfast.toml"]["found"].endswith("holdfast.toml, 1 targets")


def test_every_mistake_in_the_settings_is_told(somewhere_quiet, monkeypatch):
    (somewhere_quiet / "holdfast.toml").write_text("[policy]\nattempts = 0\nx = 1\n", encoding="utf-8")
    monkeypatch.setenv("HOLDFAST_ATEMPTS", "3")
    found = findings(status=1)
    assert "policy.x" in found["holdfast.toml"]["found"]
    assert "policy.attempts" in found["holdfast.toml"]["found"]
    assert "HOLDFAST_ATTEMPTS" in found["HOLDFAST_*"]["found"]


@pytest.mark.parametrize("name", ["HOLDFAST_ENABLED", "RESILIENCE_ENABLED"])
@pytest.mark.parametrize(
    ("value", "state"), [("maybe", "failed"), ("2", "failed"), ("false", "ok"), (" TRUE ", "ok"), ("0", "ok")]
)
def test_S1_25_the_switch_must_be_a_switch(monkeypatch, name, value, state):
    monkeypatch.setenv(name, value)
    finding = findings(status=1 if state == "failed" else 0)[name]
    assert (finding["state"], finding["found"]) == (state, value)
    assert bool(finding["fix"]) is (state == "failed")


def test_keys_are_told_by_name_and_never_by_value(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("XAI_API_KEY", "")
    assert findings()["keys"]["found"] == "ANTHROPIC_API_KEY is set"
    assert KEY not in holdfast("doctor").output
    assert KEY not in holdfast("doctor", "--json").output


def test_a_missing_part_is_no_defect_and_says_how_to_get_it(monkeypatch):
    installed = metadata.version

    def without_openai(name: str) -> str:
        if name == "openai":
            raise metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr(metadata, "version", without_openai)
    finding = findings()["openai"]
    assert finding["state"] == "info"
    assert finding["found"].startswith("not installed; only needed for ")
    assert finding["fix"] == f"pip install {finding['what']}"


def test_N2_14_extensions_are_listed_and_those_left_out_with_the_reason(somewhere_quiet, monkeypatch):
    info = somewhere_quiet / "guests-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: guests\nVersion: 1.0\n", encoding="utf-8")
    points = "[holdfast.rules]\nfine = doctors_guest\nlost = doctors_lost_guest\n"
    (info / "entry_points.txt").write_text(points, encoding="utf-8")
    source = "id, contract = 'fine', 1\ndef start(runtime): return lambda evidence: None\n"
    (somewhere_quiet / "doctors_guest.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(somewhere_quiet)
    found = findings()
    assert found["extension fine"] == {
        "what": "extension fine",
        "state": "ok",
        "found": "holdfast.rules, contract 1",
        "fix": "",
    }
    lost = found["extension lost"]
    assert lost["state"] == "warning"
    assert "No module named 'doctors_lost_guest'" in lost["found"]
    assert lost["fix"] == "Fix or disable the extension"
