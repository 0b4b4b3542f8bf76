"""`holdfast tls create|show|rotate`"""

from __future__ import annotations

import json

import pytest
from cli_runs import holdfast

from holdfast.bridge.access.tls import TlsFiles
from holdfast.bridge.settings import BridgeSettings


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOLDFAST_BRIDGE_HOME", str(tmp_path / "bridge"))
    return tmp_path / "bridge"


def shown(*arguments: str):
    return json.loads(holdfast("tls", *arguments, "--json").stdout)


def test_a_certificate_is_made_shown_and_rotated(home):
    made = shown("create", "bridge.local", "192.168.1.5", "--days", "90")
    assert made["names"][3:] == ["bridge.local", "192.168.1.5"]
    assert made["self_signed"]
    assert made["problems"] == []
    assert shown("show") == made

    rotated = shown("rotate")
    # The pin that clients have as a backup is the one in use now.
    assert rotated["pins"][0] == made["pins"][1]
    assert rotated["pins"][1] not in made["pins"]
    assert rotated["names"] == made["names"]
    assert shown("rotate", "other.local")["names"][3:] == ["other.local"]


def test_a_rotation_for_later_is_shown_and_changes_nothing_yet(home):
    made = shown("create")
    later = shown("rotate", "--in", "24h")
    assert later["pins"] == made["pins"]
    assert (made["rotates"], later["rotates"] is None) == (None, False)
    assert "rotates" in holdfast("tls", "show").stdout
    assert shown("rotate")["rotates"] is None
    assert holdfast("tls", "rotate", "--in", "soon").exit_code == 2


def test_a_table_shows_the_same(home):
    pins = shown("create")["pins"]
    done = holdfast("tls", "show")
    assert done.exit_code == 0
    assert all(pin in done.stdout for pin in pins)


def test_a_name_that_is_missing_fails_with_what_clients_would_say(home):
    shown("create", "bridge.local")
    assert holdfast("tls", "show", "bridge.local").exit_code == 0
    done = holdfast("tls", "show", "other.local")
    assert done.exit_code == 1
    assert "does not name other.local" in done.stdout


def test_an_existing_key_is_not_replaced_and_a_missing_one_is_named(home):
    assert "holdfast tls create" in holdfast("tls", "show").stderr
    assert holdfast("tls", "rotate").exit_code == 2
    pins = shown("create")["pins"]
    again = holdfast("tls", "create")
    assert (again.exit_code, "holdfast tls rotate" in again.stderr) == (2, True)
    assert TlsFiles(home / "tls").pins() == pins


def test_a_server_that_others_can_reach_takes_it_by_itself(home):
    environ = {"HOLDFAST_BRIDGE_HOME": str(home)}
    assert not BridgeSettings.from_env(environ, host="0.0.0.0").has_tls
    shown("create")
    settings = BridgeSettings.from_env(environ, host="0.0.0.0")
    assert (settings.tls_cert, settings.tls_key) == (home / "tls" / "cert.pem", home / "tls" / "key.pem")
    assert not BridgeSettings.from_env(environ).has_tls
