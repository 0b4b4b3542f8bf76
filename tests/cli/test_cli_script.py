"""The installed command as shells and schedulers meet it: pipes, terminals, signals, locales, missing parts."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys

import pytest
from cli_runs import KEY, SCRIPT, environment, running, script

from holdfast import __version__
from holdfast.faults import CATALOG, CODES, Fault

ESCAPE = b"\x1b"
COLOUR = re.compile(rb"\x1b\[[0-9;]*(?:3[0-8]|4[0-8]|9[0-7]|10[0-7])[0-9;]*m")


def test_it_runs():
    done = script("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"holdfast {__version__}\n".encode(), b"")


@pytest.mark.parametrize("arguments", [("--version",), ("explain", "NO_SUCH_CODE"), ("classify",), ("codes", "--json")])
def test_python_m_holdfast_is_the_same_command(arguments):
    by_name = script(*arguments)
    by_module = subprocess.run(
        [sys.executable, "-m", "holdfast", *arguments], env=environment(), capture_output=True, timeout=60, check=False
    )
    assert (by_module.returncode, by_module.stdout, by_module.stderr) == (
        by_name.returncode,
        by_name.stdout,
        by_name.stderr,
    )


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (("classify", "--status", "529"), 0),
        (("classify", "--jsonl", "/"), 2),
        (("classify",), 2),
        (("explain", "NO_SUCH_CODE"), 3),
        (("classify", "--jsonl", "-", "--strict"), 8),
    ],
)
def test_UX_the_exit_status_reaches_the_shell(arguments, status):
    assert script(*arguments, given=b"not json\n").returncode == status


def test_UX_stdout_is_the_result_and_stderr_the_narration():
    done = script("codes", "--kind", "cancelled")
    assert done.stdout.startswith(b"code ")
    assert b" codes; a page for each: " in done.stderr
    assert b" codes; a page for each: " not in done.stdout


# Pipes


@pytest.mark.parametrize(
    "arguments",
    [
        ("codes",),
        ("codes", "--json"),
        ("explain", "PROVIDER_OVERLOADED"),
        ("classify", "--status", "429"),
        ("classify", "--jsonl", "-"),
        ("doctor",),
        ("help", "exit-codes"),
        ("--help",),
        ("--version",),
    ],
    ids=" ".join,
)
def test_a_reader_that_went_away_is_no_failure(arguments):
    process = subprocess.Popen(
        [SCRIPT, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()
    )
    process.stdout.close()
    process.stdout = None
    _, stderr = process.communicate(b'{"status": 529}\n', timeout=60)
    assert b"Traceback" not in stderr
    assert b"BrokenPipe" not in stderr
    # Typer answers --help itself and leaves with 1.
    assert process.returncode == (1 if arguments == ("--help",) else 0)


def test_head_gets_its_line():
    done = subprocess.run(
        ["sh", "-c", f"'{SCRIPT}' codes | head -1"], env=environment(), capture_output=True, timeout=60, check=False
    )
    assert done.stdout.startswith(b"code ")
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    "env", [{}, {"NO_COLOR": "1"}, {"TERM": "dumb"}, {"TERM": "xterm-256color", "COLORTERM": "truecolor"}]
)
@pytest.mark.parametrize(
    "arguments", [("codes", "--kind", "cancelled"), ("explain", "AUTH_FAILED"), ("doctor",), ("--help",)]
)
def test_UX_no_escape_codes_in_a_pipe(arguments, env):
    done = script(*arguments, **env)
    assert done.stdout
    assert ESCAPE not in done.stdout + done.stderr


def test_UX_forced_colour_is_colour_only_and_cuts_nothing():
    done = script("codes", FORCE_COLOR="1")
    plain = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout.decode())
    whole = [line for line in plain.splitlines() if line.split()[:1] and line.split()[0] in CATALOG]
    assert [line.split()[0] for line in whole] == list(CODES)
    assert all(Fault.of(line.split()[0]).message in line for line in whole)


@pytest.mark.parametrize("arguments", [("codes", "--json"), ("explain", "AUTH_FAILED", "--json"), ("doctor", "--json")])
def test_UX_json_stays_json_when_colour_is_forced(arguments):
    assert "schema" in json.loads(script(*arguments, FORCE_COLOR="1").stdout)


# Terminals


def on_a_terminal(*arguments: str, **env: str) -> bytes:
    """What the command writes to a terminal of 200 columns."""
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [SCRIPT, *arguments],
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        env=environment(COLUMNS="200", TERM="xterm-256color", **env),
        close_fds=True,
    ) as process:
        os.close(theirs)
        written = b""
        try:
            while part := os.read(ours, 65_536):
                written += part
        except OSError:  # Linux: the other end is closed
            pass
        process.wait(60)
    os.close(ours)
    return written


def test_UX_a_terminal_gets_a_styled_table_with_the_same_codes():
    written = on_a_terminal("codes", "--kind", "cancelled")
    plain = re.sub(rb"\x1b\[[0-9;]*m", b"", written).decode()
    assert ESCAPE in written
    for code, entry in CATALOG.items():
        assert (code in plain) is (entry.kind == "cancelled")


def test_UX_a_terminal_gets_a_rendered_page():
    written = on_a_terminal("explain", "PROVIDER_OVERLOADED").decode()
    assert "## What happened" not in written
    assert "What happened" in written


@pytest.mark.parametrize("arguments", [("codes", "--kind", "cancelled"), ("explain", "PROVIDER_OVERLOADED")])
def test_UX_NO_COLOR_means_no_colour_on_a_terminal_too(arguments):
    assert not COLOUR.search(on_a_terminal(*arguments, NO_COLOR="1"))


# Signals and locales


def test_UX_ctrl_c_exits_130_without_a_traceback():
    with running(
        [SCRIPT, "classify", "--jsonl", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(PYTHONUNBUFFERED="1"),
    ) as process:
        process.stdin.write(b'{"status": 529}\n')
        process.stdin.flush()
        assert b"PROVIDER_OVERLOADED" in process.stdout.readline(), "it is at work"
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"Traceback" not in stderr


@pytest.mark.parametrize(
    "arguments", [("explain", "PROVIDER_OVERLOADED"), ("codes",), ("codes", "--json"), ("doctor",)], ids=" ".join
)
def test_a_terminal_that_knows_only_ascii_is_no_failure(arguments):
    done = script(*arguments, PYTHONIOENCODING="ascii")
    assert b"Traceback" not in done.stderr
    assert done.returncode == 0


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["table", "json"])
def test_bytes_that_are_no_text_on_the_command_line_are_no_failure(form):
    done = script("classify", "--text", b"caf\xe9: connection refused", *form, PYTHONIOENCODING="utf-8:strict")
    assert b"Traceback" not in done.stderr
    assert done.returncode == 0
    assert b"CONN_REFUSED" in done.stdout


def test_a_secret_of_the_environment_is_not_repeated_by_any_form():
    hidden = "correct-horse-battery"
    for arguments in (
        ("classify", "--text", f"login {hidden} failed"),
        ("classify", "--text", f"login {hidden} failed", "--json"),
    ):
        done = script(*arguments, DB_PASSWORD=hidden)
        assert done.stdout
        assert hidden.encode() not in done.stdout + done.stderr
    assert KEY.encode() not in script("explain", "-", given=f"invalid x-api-key {KEY}".encode()).stdout


# Without the extra

HIDE = """
import sys

class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hide())
from holdfast.cli import main
main()
"""


@pytest.mark.parametrize("hidden", [("typer", "rich"), ("typer",)], ids=" and ".join)
def test_without_the_cli_extra_one_line_says_what_to_install(hidden):
    done = subprocess.run(
        [sys.executable, "-c", HIDE.format(hidden=hidden), "codes"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    assert (
        done.stderr == "holdfast: the holdfast command needs the typer and rich packages: "
        "pip install '.[cli]' in a clone\n"
    )


def test_a_part_of_our_own_that_is_missing_is_not_blamed_on_the_extra():
    done = subprocess.run(
        [sys.executable, "-c", HIDE.format(hidden=("msgspec",)), "codes"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "No module named 'msgspec'" in done.stderr
    assert "[cli]" not in done.stderr
