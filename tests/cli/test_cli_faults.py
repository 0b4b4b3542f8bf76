"""`holdfast faults serve|list|proxy`"""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

import msgspec
import pytest
from cli_runs import SCRIPT, environment, holdfast, holdfast_json, running

import holdfast as package
from holdfast.cli.programs import faults
from holdfast.testing.provider import Limit
from holdfast.testing.provider.faults import ERRORS, FAULTS


def test_list_shows_every_fault_with_its_options():
    listed = holdfast_json("faults", "list")
    assert listed["schema"] == "holdfast.faults/1"
    assert {each["fault"] for each in listed["faults"]} == {"ok", "300 … 599", *FAULTS, *ERRORS}
    shown = holdfast("faults", "list").stdout
    assert "sse-error" in shown
    assert "after=1, error=overloaded" in shown


def test_list_shows_the_options_of_limits_and_the_paths():
    listed = holdfast_json("faults", "list")
    options = {each["option"]: each["default"] for each in listed["limits"]}
    assert set(options) == {field.encode_name for field in msgspec.structs.fields(Limit)}
    assert (options["headers"], options["lie"], options["models"], options["burst"]) == ("yes", "1", "*", "")
    assert {"method": "POST", "path": "/v1/messages", "protocol": "anthropic"} in listed["paths"]
    shown = holdfast("faults", "list").stdout
    assert "charge_rejected" in shown
    assert ":streamGenerateContent" in shown


def test_serve_prints_its_address_and_its_counters(tmp_path):
    script = tmp_path / "script.toml"
    script.write_text('[[rules]]\nsteps = "529"\n', encoding="utf-8")
    (tmp_path / "holdfast.toml").write_text("nonsense = 1\n", encoding="utf-8")  # none of its business
    with running(
        [sys.executable, "-m", "holdfast", "faults", "serve", "--script", str(script), "--port", "0", "--json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(PYTHONPATH=str(Path(package.__file__).parents[1])),
        text=True,
    ) as serving:
        try:
            lines = iter(serving.stdout.readline, "")
            document = json.loads("".join(itertools.takewhile(lambda line: line != "}\n", lines)) + "}")
            with urllib.request.urlopen(f"{document['url']}/_holdfast/script", timeout=5) as answer:
                assert json.load(answer)["rules"][0]["steps"] == "529"
            models = urllib.request.Request(f"{document['url']}/v1/models", headers={"x-api-key": "k"})
            with pytest.raises(urllib.error.HTTPError) as failed:
                urllib.request.urlopen(models, timeout=5)
            failed.value.close()
            assert failed.value.code == 529
            assert document["openai_url"] == f"{document['url']}/v1"
        finally:
            serving.send_signal(signal.SIGINT)
        _, narrated = serving.communicate(timeout=20)
    assert serving.returncode == 130
    assert "Counters(received=1, injected={'529': 1}, connections=2)" in narrated


@pytest.mark.parametrize(
    ("arguments", "given", "code", "message"),
    [
        (["--script", "none.toml"], None, 3, "cannot read none.toml: No such file"),
        (["--script", "."], None, 2, "cannot read .: Is a directory"),
        (["--script", "-"], "[[rules]]\nsteps = 3\n", 2, "script:2: rules[0].steps: expected str, got int"),
        (["--steps", "banana"], None, 2, "expected ok, a status"),
        (["--steps", "ok", "--script", "x"], None, 2, "expected --script or --steps, got both"),
        (["--limit", "requests=0"], None, 2, "limit.requests: expected a finite number ≥ 1, got 0.0"),
        (["--port", "70000"], None, 2, "65535"),
    ],
)
def test_serve_refuses_what_makes_no_sense(tmp_path, monkeypatch, arguments, given, code, message):
    monkeypatch.chdir(tmp_path)
    result = holdfast("faults", "serve", *arguments, given=given)
    assert result.exit_code == code, result.output
    assert message in result.output


def test_serve_says_when_the_port_is_taken():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        result = holdfast("faults", "serve", "--port", str(taken.getsockname()[1]))
    assert result.exit_code == 1
    assert "cannot listen on port" in result.output
    assert "--port 0 takes a free one" in result.output


def test_serve_prints_lines_to_copy(monkeypatch):
    async def at_once(provider, **_):
        async with provider:
            faults._announce(provider, as_json=False)

    monkeypatch.setattr(faults, "_serve", at_once)
    url, *exports = holdfast("faults", "serve", "--port", "0").stdout.splitlines()
    assert exports == [
        f"export ANTHROPIC_BASE_URL={url}",
        "export ANTHROPIC_API_KEY=test",
        f"export OPENAI_BASE_URL={url}/v1",
        "export OPENAI_API_KEY=test",
        f"export GOOGLE_GEMINI_BASE_URL={url}",
        "export GEMINI_API_KEY=test",
    ]


def test_serve_enforces_limits(monkeypatch):
    seen = {}

    async def at_once(provider, **_):
        async with provider:
            seen["limits"] = [limit.kind for limit in provider._limits.limits]

    monkeypatch.setattr(faults, "_serve", at_once)
    limits = ["--limit", "requests=60;burst=5", "--limit", "concurrency=4;shared"]
    assert holdfast("faults", "serve", "--port", "0", *limits).exit_code == 0
    assert seen["limits"] == ["requests", "concurrency"]


# --- proxy ---


@pytest.fixture
def server():
    """Answers every connection with what it was sent first, and closes."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(connection.recv(100))

        threading.Thread(target=serve, daemon=True).start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        listening.shutdown(socket.SHUT_RDWR)


def test_it_says_where_it_listens_and_what_is_wrong_there():
    result = holdfast("faults", "proxy", "--to", "127.0.0.1:9", "--toxic", "latency=0.05", "--seconds", "0.01")
    assert result.exit_code == 0
    assert "passes to 127.0.0.1:9; toxics: Latency(seconds=0.05); Ctrl-C ends it" in result.stderr
    assert "connections  0" in result.stdout


def test_it_is_the_same_in_json():
    result = holdfast("faults", "proxy", "--to", "h:9", "--toxic", "reset=5", "--seconds", "0.01", "--json")
    shown = json.loads(result.stdout)
    assert (shown["schema"], shown["to"]) == ("holdfast.faults.proxy/1", "h:9")
    assert shown["toxics"] == [{"toxic": "reset", "after": 5}]
    assert shown["counters"]["connections"] == 0


def test_the_real_command_proxies_until_ctrl_c_and_counts(server):
    command = [SCRIPT, "faults", "proxy", "--to", server, "--toxic", "limit=3;direction=down", "--json"]
    with running(
        command, env=environment(PYTHONPATH=os.pathsep.join(sys.path)), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        address = process.stderr.readline().split()[0].decode()
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), timeout=5) as client:
            client.sendall(b"hello")
            assert client.makefile("rb").read() == b"hel"
        process.send_signal(signal.SIGINT)
        shown = json.loads(process.stdout.read())
        assert process.wait(10) == 130
    assert shown["counters"]["connections"] == 1
    assert (shown["counters"]["bytes_up"], shown["counters"]["bytes_down"]) == (5, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--to", "nowhere"), "upstream: expected HOST:PORT"),
        (("--to", "h:1", "--listen", "x"), "listen: expected HOST:PORT"),
        (("--to", "h:1", "--toxic", "latncy=1"), "toxic: expected one of bandwidth, black-hole"),
        (("--to", "h:1", "--seconds", "-1"), "--seconds: expected a finite number of seconds > 0 or None, got -1"),
        (("--to", "h:1", "--seed", "-1"), "seed: expected a whole number"),
    ],
)
def test_a_bad_option_is_a_usage_error_that_says_where(arguments, message):
    result = holdfast("faults", "proxy", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
