"""`holdfast completion SHELL`: the script is read by a shell, and completes what the command knows."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from cli_runs import SCRIPT, environment, holdfast


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_each_shell_gets_its_script(shell):
    result = holdfast("completion", shell)
    assert result.exit_code == 0
    # In a pipe there is only the script, because a shell reads it.
    assert result.stderr == ""
    assert "_HOLDFAST_COMPLETE" in result.stdout
    document = json.loads(holdfast("completion", shell, "--json").stdout)
    assert document["script"] == result.stdout.rstrip("\n")
    assert f"completion {shell}" in document["use"]


def test_an_unknown_shell_is_named_with_the_known_ones():
    result = holdfast("completion", "tcsh")
    assert result.exit_code == 2
    assert "'shell': 'tcsh' is not one of 'bash', 'zsh', 'fish', 'powershell'." in result.stderr


def test_there_is_one_way_to_switch_completion_on():
    shown = holdfast("--help").stdout
    assert "completion  " in shown
    assert "--install-completion" not in shown
    assert "--show-completion" not in shown


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("holdfast exp", ["explain"]),
        ("holdfast sessions sh", ["show"]),
        ("holdfast explain PROVIDER_OVERL", ["PROVIDER_OVERLOADED"]),
        ("holdfast completion fi", ["fish"]),
    ],
)
def test_bash_completes_commands_and_codes(line, completed):
    program = f"""
        eval "$({SCRIPT} completion bash)"
        COMP_WORDS=({line}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
        _holdfast_completion holdfast
        printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    env = environment()
    env["PATH"] = f"{Path(SCRIPT).parent}:{env['PATH']}"
    done = subprocess.run(["bash", "-c", program], env=env, capture_output=True, timeout=60, check=True)
    assert done.stdout.decode().split() == completed
