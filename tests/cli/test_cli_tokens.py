"""`holdfast tokens create|list|revoke` and `holdfast pair`"""

from __future__ import annotations

import json
import os
import pty
import stat
import subprocess

import pytest
from cli_runs import SCRIPT, environment, holdfast

from holdfast.bridge.access.pairing import Pairing, read_pair_link
from holdfast.bridge.access.tls import TlsFiles
from holdfast.bridge.access.tokens import Tokens
from holdfast.cli.store.access import time_of


@pytest.fixture
def home(tmp_path, monkeypatch):
    home = tmp_path / "bridge"
    monkeypatch.setenv("HOLDFAST_BRIDGE_HOME", str(home))
    for name in ("PORT", "HOST", "BRIDGE_TOKEN", "HOOK_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    return home


def test_a_token_is_printed_once_and_alone_on_stdout(home):
    done = holdfast("tokens", "create", "Ada's phone")
    token = done.stdout.strip()
    assert Tokens(home / "tokens.json").identify(token, peer="192.0.2.7").name == "Ada's phone"
    assert "shown only now" in done.stderr
    assert token not in done.stderr
    assert stat.S_IMODE((home / "tokens.json").stat().st_mode) == 0o600

    listed = holdfast("tokens", "list")
    assert "Ada's phone" in listed.stdout
    assert token[-43:] not in listed.stdout


def test_it_says_when_a_token_expires(home):
    done = holdfast("tokens", "create", "x", "--expires", "90")
    record = Tokens(home / "tokens.json").all()[0]
    assert record.expires_at == record.created_at + 90
    assert f"It expires at {time_of(record.expires_at)}" in done.stderr
    assert "expires" not in holdfast("tokens", "create", "y").stderr


def test_options_of_a_token_are_kept(home):
    done = holdfast(
        *("tokens", "create", "CI", "--kind", "hook", "--role", "observer", "--session", "a", "--session", "b"),
        *("--expires", "12h", "--json"),
    )
    made = json.loads(done.stdout)
    record = Tokens(home / "tokens.json").all()[0]
    assert made["token"].startswith(f"hf_hook_{record.id}_")
    assert (record.kind, record.role, record.sessions) == ("hook", "observer", ("a", "b"))
    assert record.expires_at == record.created_at + 12 * 3600
    assert json.loads(holdfast("tokens", "list", "--json").stdout)["tokens"][0]["state"] == "valid"


@pytest.mark.parametrize("wrong", [("--kind", "root"), ("--role", "king"), ("--expires", "soon"), ("--expires", "0s")])
def test_a_wrong_option_is_named_and_nothing_is_made(home, wrong):
    done = holdfast("tokens", "create", "x", *wrong)
    assert done.exit_code == 2
    assert wrong[0].strip("-") in done.stderr
    assert Tokens(home / "tokens.json").all() == []


def test_revoking_by_name_or_id(home):
    holdfast("tokens", "create", "phone")
    holdfast("tokens", "create", "tablet")
    record = Tokens(home / "tokens.json").all()[1]
    assert holdfast("tokens", "revoke", "phone").stdout.startswith("revoked ")
    assert json.loads(holdfast("tokens", "revoke", record.id, "--json").stdout)["state"] == "revoked"
    gone = holdfast("tokens", "revoke", "nobody")
    assert (gone.exit_code, "holdfast tokens list" in gone.stderr) == (3, True)


def test_a_name_that_several_have_does_not_revoke_any(home):
    holdfast("tokens", "create", "phone")
    holdfast("tokens", "create", "phone")
    done = holdfast("tokens", "revoke", "phone")
    assert done.exit_code == 2
    assert "names 2" in done.stderr
    assert all(record.id in done.stderr for record in Tokens(home / "tokens.json").all())
    assert [record.revoked_at for record in Tokens(home / "tokens.json").all()] == [None, None]


def test_a_name_cannot_write_on_the_terminal(home):
    holdfast("tokens", "create", "evil\x1b[2Jname")
    assert "\x1b" not in holdfast("tokens", "list").stdout


def test_a_file_that_others_can_read_is_refused(home):
    holdfast("tokens", "create", "phone")
    (home / "tokens.json").chmod(0o644)
    done = holdfast("tokens", "list")
    assert done.exit_code == 2
    assert "chmod 600" in done.stderr


def test_a_pairing_code_is_shown_as_a_link_that_a_server_redeems(home):
    TlsFiles(home / "tls").create(["192.168.1.5"])
    done = holdfast("pair", "--role", "observer", "--session", "release-42")
    link = read_pair_link(done.stdout.strip().splitlines()[-1])
    assert link.url == "https://192.168.1.5:3000"
    assert list(link.pins) == TlsFiles(home / "tls").pins()
    assert link.code in done.stderr
    assert "▄" in done.stdout

    tokens = Tokens(home / "tokens.json")
    made = Pairing(tokens).redeem(link.code, "Ada's phone", peer="192.168.1.9")
    assert (made.record.role, made.record.sessions) == ("observer", ("release-42",))


def test_the_address_can_be_named_and_a_wrong_one_makes_no_code(home):
    named = json.loads(holdfast("pair", "--url", "https://bridge.example", "--json").stdout)
    assert named["link"].startswith(f"https://bridge.example/#pair={named['code']}")
    assert named["pins"] == []
    assert json.loads(holdfast("pair", "--json").stdout)["url"] == "http://127.0.0.1:3000"
    wrong = holdfast("pair", "--url", "bridge.example")
    assert wrong.exit_code == 2
    assert len(json.loads((home / "pairings.json").read_text())["waiting"]) == 2


def test_on_a_terminal_it_waits_until_the_code_is_used(home):
    main, terminal = pty.openpty()
    with subprocess.Popen(
        [SCRIPT, "pair"],
        env=environment(HOLDFAST_BRIDGE_HOME=str(home), TERM="xterm", COLUMNS="200"),
        stdout=terminal,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        os.close(terminal)
        assert process.stderr is not None
        code = process.stderr.readline().rpartition("type ")[2].partition(".")[0]
        assert process.poll() is None
        Pairing(Tokens(home / "tokens.json")).redeem(code, "phone", peer="192.0.2.7")
        assert "Paired" in process.stderr.read()
        assert process.wait(30) == 0
    os.close(main)
