"""The settings of a bridge: what it refuses to start with, and what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.bridge.settings import PROFILE_BRIDGE, BridgeSettings, is_loopback
from holdfast.config import read
from holdfast.faults import HoldfastError, InvalidError

PAIR = {"tls_cert": Path("cert.pem"), "tls_key": Path("key.pem")}
LONG = "0123456789abcdef0123456789abcdef"


def problems(settings: BridgeSettings, tokens=()) -> list[str]:
    with pytest.raises(HoldfastError) as caught:
        settings.check_start(tokens)
    assert caught.value.fault.code == "CONFIG_INVALID"
    assert str(caught.value).startswith("CONFIG_INVALID  The bridge does not start: ")
    return caught.value.fault.context["problems"]


def test_on_loopback_nothing_is_required():
    assert BridgeSettings().check_start() == []


@pytest.mark.parametrize(
    "host", ["0.0.0.0", "::", "", "192.168.1.5", "bridge.example", "localhost.evil.com", "100.64.0.1"]
)
def test_B90_another_bind_without_TLS_and_tokens_refuses_to_start(tmp_path, host):
    found = problems(BridgeSettings(host=host))
    assert [text.partition(", and ")[2].partition(":")[0] for text in found] == [
        "there is no TLS",
        "there is no device token",
        "there is no hook token",
        "ALLOWED_PROJECT_ROOT is not set",
    ]
    assert all("can be reached by others" in text for text in found)

    whole = BridgeSettings(host=host, **PAIR, project_root=tmp_path)
    assert whole.check_start({"device", "hook"}) == []
    assert whole.replace(bridge_token=LONG, hook_token=LONG).check_start() == []
    assert problems(whole, {"hook"}) != []


def test_B90_the_insecure_flag_starts_and_warns(tmp_path):
    warnings = BridgeSettings(host="0.0.0.0", insecure=True).check_start()
    assert len(warnings) == 4
    assert all(text.startswith("INSECURE, as you asked: 0.0.0.0 can be reached by others") for text in warnings)
    # An empty token is a mistake that nobody asks for.
    assert problems(BridgeSettings(insecure=True, bridge_token=" ")) == [
        "the device token is set, but empty: give it a value, or leave it out"
    ]


def test_a_short_token_guards_no_server_that_others_can_reach(tmp_path):
    settings = BridgeSettings(host="0.0.0.0", **PAIR, project_root=tmp_path, bridge_token="dev", hook_token=LONG)
    assert "is short" in problems(settings)[0]
    assert BridgeSettings(bridge_token="dev").check_start() == []


def test_N0_18_the_environment_is_read_and_an_empty_value_refuses_to_start(tmp_path):
    environ = {"PORT": "3100", "BRIDGE_TOKEN": LONG, "HOOK_TOKEN": LONG, "ALLOWED_PROJECT_ROOT": str(tmp_path)}
    settings = BridgeSettings.from_env(environ)
    assert (settings.port, settings.given_tokens, settings.project_root) == (
        3100,
        {"device": LONG, "hook": LONG},
        tmp_path,
    )
    assert BridgeSettings.from_env({}).port == 3000

    for variable in environ:
        with pytest.raises(HoldfastError, match=f"{variable} is set, but empty") as caught:
            BridgeSettings.from_env({**environ, variable: " "})
        assert caught.value.fault.code == "CONFIG_INVALID"
    with pytest.raises(HoldfastError) as caught:
        BridgeSettings.from_env(dict.fromkeys(environ, ""))
    assert len(caught.value.fault.context["problems"]) == 4


def test_our_own_variables_and_arguments_come_first():
    environ = {"PORT": "1", "HOLDFAST_PORT": "2"}
    assert BridgeSettings.from_env(environ).port == 2
    assert BridgeSettings.from_env({**environ, "HOLDFAST_PORT": ""}, port=3).port == 3
    with pytest.raises(InvalidError, match="HOLDFAST_PORT: expected a whole number, got 'many'"):
        BridgeSettings.from_env({"HOLDFAST_PORT": "many"})


def test_a_project_root_that_is_missing_refuses_to_start(tmp_path):
    assert "there is no folder" in problems(BridgeSettings(project_root=tmp_path / "gone"))[0]
    assert BridgeSettings(project_root=tmp_path).served_root == tmp_path
    assert BridgeSettings().served_root == Path.cwd()
    assert BridgeSettings(host="0.0.0.0").served_root is None


def test_no_token_is_in_the_repr():
    settings = BridgeSettings(port=4000, bridge_token=LONG, admin_token=LONG)
    assert repr(settings) == "BridgeSettings(port=4000, bridge_token='[redacted]', admin_token='[redacted]')"


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": -1},
        {"port": 65_536},
        {"port": "3000"},
        {"host": None},
        {"grace": -1},
        {"max_body": 0},
        {"send_timeout": 0},
        {"insecure": "yes"},
        {"on_grace_expiry": "kill"},
        {"tls_cert": Path("cert.pem")},
        {"tls_key": Path("key.pem")},
        {"allowed_hosts": "example.org"},
        {"trusted_proxies": ("everyone",)},
        {"allowed_origins": ("*",)},
        {"allowed_origins": ("https://*.example.org",)},
        {"allowed_origins": ("https://example.org/",)},
        {"allowed_origins": ("null",)},
        {"prot": 1},
    ],
)
def test_wrong_options_are_named(wrong):
    with pytest.raises(InvalidError, match="tls_" if "tls" in next(iter(wrong)) else next(iter(wrong))):
        BridgeSettings(**wrong)


def test_N0_13_the_profile_bridge_has_the_documents_numbers():
    settings = BridgeSettings(**PROFILE_BRIDGE)
    assert (settings.max_sessions, settings.max_connections, settings.connection.max_frame) == (10, 5, 10 * 1024 * 1024)
    assert (settings.info_per_minute, settings.hooks_per_minute, settings.batches_per_minute) == (60, 120, 10)
    assert (settings.sessions_per_minute, settings.files_per_minute, settings.hook_timeout) == (30, 60, 30)


def test_the_hosts_that_are_known():
    assert BridgeSettings().known_hosts == {"localhost", "127.0.0.1", "::1"}
    assert BridgeSettings(host="0.0.0.0", allowed_hosts=("Bridge.Example",)).known_hosts == {
        "localhost",
        "127.0.0.1",
        "::1",
        "bridge.example",
    }
    assert "192.168.1.5" in BridgeSettings(host="192.168.1.5").known_hosts


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::ffff:127.0.0.1", True),
        ("[::1]", True),
        ("LOCALHOST", True),
        ("localhost.", False),
    ],
)
def test_what_is_loopback(host, expected):
    assert is_loopback(host) is expected


def test_flags_win_over_variables_and_variables_over_the_file():
    file = read({"bridge": {"port": 4000, "grace": 60, "max_sessions": 7, "connection": {"max_frame": 5000}}}).bridge
    settings = BridgeSettings.from_env({"PORT": "5000"}, file=file, grace=10)
    assert (settings.port, settings.grace, settings.max_sessions, settings.connection.max_frame) == (5000, 10, 7, 5000)
    assert settings.connection.heartbeat == BridgeSettings().connection.heartbeat
