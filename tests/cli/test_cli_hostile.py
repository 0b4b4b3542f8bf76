"""Whatever a shell hands over: never a traceback, and the exit code the contract says."""

from __future__ import annotations

import json
import os
import subprocess
from io import BytesIO
from pathlib import Path

import pytest
from cli_runs import SCRIPT, environment, holdfast, script

from holdfast.cli.output import one_line, tail

CANARY = "correct horse battery staple"
BINARY = bytes(range(256)) * 64
needs_full_device = pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")


def shell(line: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run a line in which `holdfast` is the command."""
    done = subprocess.run(
        ["bash", "-c", f'holdfast() {{ "{SCRIPT}" "$@"; }}; {line}'],
        input=given,
        env=environment(),
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr
    return done


# Streams that are closed, or full


@pytest.mark.parametrize(("line", "status"), [("holdfast explain -", 2), ("holdfast classify --jsonl -", 0)])
def test_a_closed_stdin_is_an_empty_one(line, status):
    done = shell(f"{line} <&-")
    assert (done.returncode, done.stdout) == (status, b"")


@pytest.mark.parametrize("line", ["codes", "codes --json", "explain AUTH_FAILED", "classify --status 429", "doctor"])
def test_a_closed_stdout_fails_and_says_so(line):
    done = shell(f"holdfast {line} >&-")
    assert (done.returncode, done.stderr) == (1, b"holdfast: cannot write the result: standard output is closed\n")


@needs_full_device
@pytest.mark.parametrize(
    "line", ["codes", "codes --json", "explain AUTH_FAILED", "classify --status 429", "doctor", "--version"]
)
def test_a_full_disk_fails_and_says_so(line):
    done = shell(f"holdfast {line} >/dev/full")
    assert done.returncode == 1
    assert done.stderr.endswith(b"holdfast: cannot read the input or write the result: No space left on device\n")


@needs_full_device
@pytest.mark.parametrize("gone", ["2>&-", "2>/dev/full"])
@pytest.mark.parametrize(
    ("line", "status"), [("codes", 0), ("explain NO_SUCH_CODE", 3), ("classify", 2), ("classify --jsonl - --strict", 8)]
)
def test_narration_that_nobody_can_read_changes_nothing(line, status, gone):
    assert shell(f"holdfast {line} {gone}", given=b"no json\n").returncode == status


def test_a_reader_that_takes_one_line_of_many_is_no_failure():
    many = b'{"status": 529}\n' * 20_000
    done = shell("holdfast classify --jsonl - | head -1; echo ${PIPESTATUS[0]}", given=many)
    assert json.loads(done.stdout.splitlines()[0])["code"] == "PROVIDER_OVERLOADED"
    assert done.stdout.splitlines()[1] == b"0"


# Input that is no text, or too much of it


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["table", "json"])
def test_binary_on_stdin_is_an_unknown_failure_and_no_more(form):
    done = script("explain", "-", *form, given=BINARY)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"SYS_UNKNOWN" in done.stdout
    done.stdout.decode()


def test_binary_lines_are_bad_lines():
    done = script("classify", "--jsonl", "-", given=BINARY)
    assert done.returncode == 0
    assert all("error" in json.loads(line) for line in done.stdout.splitlines())
    assert b"0 classified, " in done.stderr


def test_of_a_huge_log_the_end_decides():
    log = b"2026-03-20 all is well\n" * 2_300_000 + b"httpx.ConnectError: [Errno 111] Connection refused\n"
    assert len(log) > 50_000_000
    done = script("explain", "-", given=log)
    assert done.returncode == 0
    assert done.stdout.startswith(b"CONN_REFUSED")


def test_a_huge_line_is_one_line():
    done = script("classify", "--jsonl", "-", given=b"x" * 50_000_000 + b'\n{"status": 529}\n')
    bad, good = map(json.loads, done.stdout.splitlines())
    assert (bad["line"], good["code"]) == (1, "PROVIDER_OVERLOADED")
    assert len(done.stdout) < 1_000


@pytest.mark.parametrize("size", range(1, 12))
def test_the_end_of_a_stream_is_kept(size):
    assert tail(BytesIO(b"0123456789"), size) == b"0123456789"[-size:]


@pytest.mark.parametrize(
    "name", ["", "x" * 100_000, b"\xff\xfe", "\x1b[31mred", "-"], ids=["no", "long", "bytes", "escape", "dash"]
)
def test_a_name_of_any_kind_is_not_found(name):
    done = script("explain", "--", name, given=b"\n") if name == "-" else script("explain", name)
    assert done.returncode == (2 if name == "-" else 3)
    assert done.stdout == b""
    assert len(done.stderr) < 400
    assert b"\x1b" not in done.stderr


# Foreign text may try to steer the terminal


ESCAPES = "\x1b]0;owned\x07\x1b[2J\x9b31m\x08\x7f\x00 connection refused"


@pytest.mark.parametrize(
    "run",
    [
        lambda: holdfast("classify", "--text", ESCAPES),
        lambda: holdfast("explain", "-", given=ESCAPES),
        lambda: holdfast("explain", ESCAPES),
        lambda: holdfast("classify", "--status", "429", "--header", ESCAPES),
        lambda: holdfast("classify", "--jsonl", f"/nowhere/{ESCAPES.replace(chr(0), '')}"),
    ],
    ids=["classify", "explain", "code", "header", "file"],
)
def test_no_line_holds_what_steers_a_terminal(run):
    assert not set(run().output) & (set(map(chr, range(32))) | set(map(chr, range(0x7F, 0xA0)))) - {"\n", "\t"}


def test_text_is_left_alone():
    assert one_line("caf\u00e9 — 漢字\t🙂") == "caf\u00e9 — 漢字\t🙂"


# Configured secrets

WAYS = {
    "body": (("classify", "--status", "401", "--body", f"bad key {CANARY}"), ""),
    "long body": (("classify", "--status", "401", "--body", "x" * 175 + CANARY + "y" * 600), ""),
    "message": (("classify", "--exception", "a.Error", "--message", CANARY), ""),
    "stderr": (("classify", "--exit-code", "1", "--stderr", CANARY), ""),
    "jsonrpc": (("classify", "--jsonrpc", json.dumps({"error": {"code": 1, "message": CANARY}})), ""),
    "text": (("classify", "--text", f"E {CANARY}"), ""),
    "header": (("classify", "--status", "401", "--header", CANARY), ""),
    "now": (("classify", "--status", "401", "--now", CANARY), ""),
    "file": (("classify", "--jsonl", f"/nowhere/{CANARY}"), ""),
    "id": (("classify", "--jsonl", "-"), json.dumps({"id": CANARY, "status": 500})),
    "bad line": (("classify", "--jsonl", "-"), json.dumps({"id": 1, "kind": CANARY})),
    "name": (("explain", CANARY), ""),
    "stdin": (("explain", "-"), f"RuntimeError: {CANARY}\n"),
    "setting": (("doctor",), ""),
}


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["table", "json"])
@pytest.mark.parametrize(("arguments", "given"), WAYS.values(), ids=WAYS)
def test_a_configured_secret_is_not_repeated(arguments, given, form):
    result = holdfast(
        *arguments, *form, given=given, env={"HOLDFAST_TOKEN": CANARY, "HOLDFAST_ENABLED": CANARY, "COLUMNS": "300"}
    )
    assert result.output
    assert CANARY[:12] not in result.output


# `doctor` and what lies around


@pytest.mark.parametrize("kind", ["folder", "pipe", "binary", "deep"])
def test_a_configuration_of_any_kind_is_a_finding(tmp_path, kind):
    file = tmp_path / "holdfast.toml"
    match kind:
        case "folder":
            file.mkdir()
        case "pipe":
            os.mkfifo(file)
        case "binary":
            file.write_bytes(BINARY)
        case "deep":
            file.write_text("a = " + "[" * 100_000)
    done = shell(f"cd {tmp_path}; holdfast doctor")
    assert done.returncode == 1
    assert [b"holdfast.toml", b"failed"] in [line.split()[:2] for line in done.stdout.splitlines()]


def test_a_folder_that_is_gone_has_no_configuration(tmp_path):
    done = shell(f"cd {tmp_path}; rmdir {tmp_path}; holdfast doctor")
    assert done.returncode == 0
    assert b"none here" in done.stdout
