"""`holdfast faults serve|list`"""

from __future__ import annotations

import itertools
import json
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from cli_runs import environment, holdfast, holdfast_json

import holdfast as package
from holdfast.cli import faults
from holdfast.testing.provider.faults import ERRORS, FAULTS


def test_list_shows_every_fault_with_its_options():
    listed = holdfast_json("faults", "list")
    assert listed["schema"] == "holdfast.faults/1"
    assert {each["fault"] for each in listed["faults"]} == {"ok", "300 … 599", *FAULTS, *ERRORS}
    shown = holdfast("faults", "list").stdout
    assert "sse-error" in shown
    assert "after=1, error=overloaded" in shown


def test_serve_tells_where_it_is_and_what_came(tmp_path):
    script = tmp_path / "script.toml"
    script.write_text('[[rules]]\nsteps = "529"\n', encoding="utf-8")
    (tmp_path / "holdfast.toml").write_text("nonsense = 1\n", encoding="utf-8")  # none of its business
    with subprocess.Popen(
        [sys.executable, "-m", "holdfast", "faults", "serve", "--script", str(script), "--port", "0", "--json"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(PYTHONPATH=str(Path(package.__file__).parents[1])),
        text=True,
    ) as serving:
        try:
            lines = iter(serving.stdout.readline, "")
            told = json.loads("".join(itertools.takewhile(lambda line: line != "}\n", lines)) + "}")
            with urllib.request.urlopen(f"{told['url']}/_holdfast/script", timeout=5) as answer:
                assert json.load(answer)["rules"][0]["steps"] == "529"
            models = urllib.request.Request(f"{told['url']}/v1/models", headers={"x-api-key": "k"})
            with pytest.raises(urllib.error.HTTPError) as failed:
                urllib.request.urlopen(models, timeout=5)
            failed.value.close()
            assert failed.value.code == 529
            assert told["openai_url"] == f"{told['url']}/v1"
        finally:
            serving.send_signal(signal.SIGINT)
        _, narrated = serving.communicate(timeout=20)
    assert serving.returncode == 130
    assert "Counters(received=1, injected={'529': 1}, connections=2)" in narrated


@pytest.mark.parametrize(
    ("arguments", "given", "code", "said"),
    [
        (["--script", "none.toml"], None, 3, "cannot read none.toml: No such file"),
        (["--script", "-"], "[[rules]]\nsteps = 3\n", 2, "script:2: rules[0].steps: expected str, got int"),
        (["--steps", "banana"], None, 2, "expected ok, a status"),
        (["--steps", "ok", "--script", "x"], None, 2, "expected --script or --steps, got both"),
        (["--port", "70000"], None, 2, "65535"),
    ],
)
def test_serve_refuses_what_makes_no_sense(tmp_path, monkeypatch, arguments, given, code, said):
    monkeypatch.chdir(tmp_path)
    result = holdfast("faults", "serve", *arguments, given=given)
    assert result.exit_code == code, result.output
    assert said in result.output


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
    ]
