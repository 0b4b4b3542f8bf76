"""`holdfast doctor`"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sqlite3
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path

import pytest
from cli_runs import KEY, holdfast, script

import holdfast as holdfast_package
from holdfast import __version__
from holdfast.bridge.access.tls import TlsFiles
from holdfast.bridge.access.tokens import Tokens
from holdfast.faults import CODES
from holdfast.stores import SqliteStore
from holdfast.stores.sqlite import files


@pytest.fixture(autouse=True)
def somewhere_quiet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("HOLDFAST_BRIDGE_HOME", raising=False)
    monkeypatch.setattr(files, "is_affected", lambda _: False)
    for name in (
        "HOLDFAST_STORE",
        "HOLDFAST_ENABLED",
        "RESILIENCE_ENABLED",
        "ANTHROPIC_API_KEY",
        "OPENAI_API_KEY",
        "XAI_API_KEY",
    ):
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
    assert result.stderr.startswith("nothing is broken")
    found = findings()
    assert found["holdfast"]["found"] == __version__
    assert found["msgspec"]["found"] == metadata.version("msgspec")
    assert found["catalog"]["found"] == f"{len(CODES)} of {len(CODES)} pages"
    assert found["holdfast.toml"]["state"] == "info"
    assert {finding["state"] for finding in found.values()} <= {"ok", "info"}


def test_the_retries_of_an_sdk_are_told_without_importing_it(somewhere_quiet, monkeypatch):
    fake = somewhere_quiet / "packages" / "anthropic"
    fake.mkdir(parents=True)
    (fake / "__init__.py").write_text("raise SystemExit('imported')")
    (fake / "_constants.py").write_text("x = 1\nDEFAULT_MAX_RETRIES = 5\n")
    paths = os.pathsep.join((str(fake.parent), str(Path(holdfast_package.__file__).parents[1])))
    result = script("doctor", "--json", PYTHONPATH=paths, AWS_MAX_ATTEMPTS="4", XDG_STATE_HOME=str(somewhere_quiet))
    (found,) = [each for each in json.loads(result.stdout)["findings"] if each["what"] == "sdk retries"]
    assert found["state"] == "info"
    assert "clients of anthropic retry 5 times by themselves" in found["found"]
    assert "AWS_MAX_ATTEMPTS=4 lets botocore retry" in found["found"]
    assert "recovering(client)" in found["fix"]


@pytest.mark.parametrize(
    ("installed", "needed"),
    [("1.65.2", "1.66"), ("0.9", "1.66"), ("1.66", ""), ("1.66.0rc1", ""), ("1.100.3", ""), ("2", "")],
)
def test_an_sdk_that_is_too_old_is_a_warning_with_the_command_to_upgrade(monkeypatch, installed, needed):
    versions = {"openai": installed}
    real = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: versions.get(name) or real(name))
    monkeypatch.setattr(metadata, "requires", lambda _: ["msgspec>=0.18", "openai>=1.66; extra == 'openai'"])
    found = findings()["openai"]
    assert found["state"] == ("warning" if needed else "ok")
    assert found["fix"] == ("pip install --upgrade '.[openai]' in a clone" if needed else "")


def test_the_tables_hold_what_json_holds():
    found, _, fixes = holdfast("doctor").stdout.partition("\n\n")
    shown = [re.split(r"\s{2,}", line) for line in found.splitlines()[1:]]
    expected = list(findings().values())
    # The clock moves between the two runs.
    facts = [[each["what"], each["state"], each["found"]] for each in expected if each["what"] != "clock"]
    assert [row for row in shown if row[0] != "clock"] == facts
    assert [row[0] for row in shown] == [each["what"] for each in expected]
    assert [re.split(r"\s{2,}", line) for line in fixes.splitlines()[1:]] == [
        [each["what"], each["fix"]] for each in expected if each["fix"]
    ]


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
    assert findings()["holdfast.toml"]["found"].endswith("holdfast.toml, 1 target")


def test_every_mistake_in_the_settings_is_listed(somewhere_quiet, monkeypatch):
    (somewhere_quiet / "holdfast.toml").write_text("[policy]\nattempts = 0\nx = 1\n", encoding="utf-8")
    monkeypatch.setenv("HOLDFAST_ATEMPTS", "3")
    found = findings(status=1)
    assert "policy.x" in found["holdfast.toml"]["found"]
    assert "policy.attempts" in found["holdfast.toml"]["found"]
    assert "HOLDFAST_ATTEMPTS" in found["ignored"]["found"]


@pytest.mark.parametrize("name", ["HOLDFAST_ENABLED", "RESILIENCE_ENABLED"])
@pytest.mark.parametrize(
    ("value", "state"), [("maybe", "failed"), ("2", "failed"), ("false", "ok"), (" TRUE ", "ok"), ("0", "ok")]
)
def test_S1_25_the_switch_must_be_a_switch(monkeypatch, name, value, state):
    monkeypatch.setenv(name, value)
    finding = findings(status=1 if state == "failed" else 0)[name]
    assert (finding["state"], finding["found"]) == (state, value)
    assert bool(finding["fix"]) is (state == "failed")


def test_keys_are_shown_by_name_and_never_by_value(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    monkeypatch.setenv("XAI_API_KEY", "")
    assert findings()["keys"]["found"] == "ANTHROPIC_API_KEY is set"
    assert KEY not in holdfast("doctor").output
    assert KEY not in holdfast("doctor", "--json").output


def test_a_missing_part_is_no_defect_and_nothing_to_do(monkeypatch):
    installed = metadata.version

    def without_openai(name: str) -> str:
        if name == "openai":
            raise metadata.PackageNotFoundError(name)
        return installed(name)

    monkeypatch.setattr(metadata, "version", without_openai)
    finding = findings()["openai"]
    assert finding["state"] == "info"
    assert finding["found"] == "not installed; only needed for OpenAI and xAI with OpenAI's SDK (the extra `openai`)"
    assert finding["fix"] == ""
    _, _, fixes = holdfast("doctor").stdout.partition("\n\n")
    assert not any(line.startswith("openai ") for line in fixes.splitlines())


def test_what_is_broken_comes_first_then_the_warnings_in_both_tables(somewhere_quiet, monkeypatch):
    monkeypatch.setattr(files, "is_affected", lambda _: True)
    (somewhere_quiet / "holdfast.toml").write_text("[policy\n")
    found = list(findings(status=1).values())
    assert [each["state"] for each in found][:3] == ["failed", "warning", "ok"]
    assert [each["what"] for each in found][:3] == ["holdfast.toml", "sqlite", "holdfast"]
    assert found[0]["found"].startswith("expected TOML, got a syntax error")
    tables = holdfast("doctor").stdout.split("\n\n")
    assert [table.splitlines()[1].split()[0] for table in tables] == ["holdfast.toml", "holdfast.toml"]


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


# --- the store ---


def open_once(path) -> None:
    async def opened():
        async with SqliteStore(path):
            pass

    asyncio.run(opened())


@pytest.mark.parametrize("affected", [True, False])
def test_FU11_the_wal_reset_bug_of_sqlite_is_reported(monkeypatch, affected):
    monkeypatch.setattr(files, "is_affected", lambda _: affected)
    finding = findings()["sqlite"]
    assert finding["found"].startswith(sqlite3.sqlite_version)
    assert finding["state"] == ("warning" if affected else "ok")
    assert ("WAL-reset bug" in finding["found"]) is affected
    assert ("3.51.3" in finding["fix"]) is affected


def test_FU11_a_store_that_nobody_used_yet_is_not_made(somewhere_quiet):
    finding = findings()["store"]
    assert finding["state"] == "info"
    assert "holdfast.db" in finding["found"]
    assert not (somewhere_quiet / "state").exists()


def test_FU11_a_store_is_opened_and_its_version_shown(somewhere_quiet, monkeypatch):
    path = somewhere_quiet / "work.db"
    open_once(path)
    monkeypatch.setenv("HOLDFAST_STORE", str(path))
    finding = findings()["store"]
    assert finding["state"] == "ok"
    assert finding["found"] == f"{path}: opens for writing, schema version 3"


def test_FU11_a_named_store_that_is_not_there_yet_can_be_made(somewhere_quiet, monkeypatch):
    monkeypatch.setenv("HOLDFAST_STORE", str(somewhere_quiet / "new" / "work.db"))
    assert findings()["store"]["state"] == "info"


@pytest.mark.parametrize("case", ["foreign", "newer", "folder", "address", "no folder"])
def test_FU11_a_store_that_cannot_be_used_is_found_with_the_reason(somewhere_quiet, monkeypatch, case):
    path = somewhere_quiet / "work.db"
    match case:
        case "foreign":
            path.write_bytes(b"not a database, but long enough to look at" * 100)
        case "newer":
            open_once(path)
            with sqlite3.connect(path) as connection:
                connection.execute("PRAGMA user_version = 99")
            connection.close()
        case "folder":
            path.mkdir()
        case "no folder":
            (somewhere_quiet / "file").write_text("x", encoding="utf-8")
            path = somewhere_quiet / "file" / "work.db"
        case "address":
            path = "mysql://example/db"
    monkeypatch.setenv("HOLDFAST_STORE", str(path))
    finding = findings(status=1)["store"]
    assert finding["state"] == "failed"
    assert finding["found"]
    assert finding["fix"]


def test_FU11_a_password_in_the_address_is_not_shown(monkeypatch):
    monkeypatch.setenv("HOLDFAST_STORE", "postgresql://me:hunter22@127.0.0.1:1/db")
    result = holdfast("doctor")
    assert result.exit_code == 1
    assert "127.0.0.1:1/db" in result.stdout
    assert "hunter22" not in result.output


def bridge_home(tmp_path):
    return tmp_path / "state" / "holdfast" / "bridge"


def test_a_bridge_is_checked_only_where_there_is_one(tmp_path):
    assert not {"tokens", "certificate"} & set(findings())
    Tokens(bridge_home(tmp_path) / "tokens.json").create("phone")
    TlsFiles(bridge_home(tmp_path) / "tls").create()
    found = findings()
    assert (found["tokens"]["state"], found["certificate"]["state"]) == ("ok", "ok")
    assert "1 of 1 token valid" in found["tokens"]["found"]


def test_tokens_that_others_can_read_are_broken_and_those_that_end_soon_are_named(tmp_path):
    path = bridge_home(tmp_path) / "tokens.json"
    tokens = Tokens(path)
    tokens.create("phone", expires_in=86_400)
    tokens.create("laptop", expires_in=90 * 86_400)
    found = findings()["tokens"]
    assert found["state"] == "warning"
    assert "phone until" in found["found"]
    assert "laptop" not in found["found"]
    path.chmod(0o644)
    found = findings(status=1)["tokens"]
    assert found["state"] == "failed"
    assert "chmod 600" in found["found"]


@pytest.mark.parametrize(
    ("days", "state", "status"),
    [(400, "ok", 0), (10, "warning", 0), (1, "failed", 1)],
    ids=["valid", "soon", "expired"],
)
def test_a_certificate_that_has_expired_or_will_soon(tmp_path, days, state, status):
    made = datetime.now(UTC) - timedelta(days=2 if state == "failed" else 0)
    TlsFiles(bridge_home(tmp_path) / "tls").create(days=days, now=made)
    found = findings(status)["certificate"]
    assert found["state"] == state
    assert found["fix"] == ("" if state == "ok" else "holdfast tls rotate")


def test_a_key_that_others_can_read_is_broken(tmp_path):
    files_ = TlsFiles(bridge_home(tmp_path) / "tls")
    files_.create()
    files_.key.chmod(0o640)
    assert "chmod 600" in findings(status=1)["certificate"]["found"]
