"""`holdfast run`: what passes through, what is repeated, and how everything ends. All of it with real processes."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from cli_runs import SCRIPT, environment, heed_interrupts, holdfast, running, script

from holdfast.testing import forget_targets, no_waiting

QUICK = "[policy.backoff]\ninitial = 0.01\ncap = 0.02\n"
PYTHON = sys.executable


@pytest.fixture
def quick(tmp_path) -> dict[str, str]:
    """Settings with short delays, since these runs take place in real time."""
    settings = tmp_path / "holdfast.toml"
    settings.write_text(QUICK)
    return {"HOLDFAST_CONFIG": str(settings)}


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch):
    """After every test, no process lives that the command has started."""
    forget_targets()
    token = f"leak-check-{os.urandom(6).hex()}"
    monkeypatch.setenv("TMPDIR", token)  # `environment` passes this variable on
    yield
    until = time.monotonic() + 3
    while (left := _living(token)) and time.monotonic() < until:
        time.sleep(0.02)  # a killed process needs a moment; the bound makes a leak fail
    assert left == []


def _living(token: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if token.encode() in (entry / "environ").read_bytes():
                    found.append(f"{entry.name} {(entry / 'cmdline').read_bytes()!r}")
            except OSError:
                continue
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows marks in /proc")
def test_nothing_of_the_command_is_left_when_the_runner_is_killed(tmp_path):
    up = tmp_path / "up"
    command = f"setsid sleep 60 & (env -i TMPDIR=$TMPDIR setsid sleep 60 &) ; sleep 60 & touch {up}; wait"
    with running([SCRIPT, "run", "--", "bash", "-c", command], env=environment()) as runner:
        until = time.monotonic() + 60
        while not up.exists():
            assert time.monotonic() < until
            time.sleep(0.02)  # a real process starts
        runner.kill()
    until = time.monotonic() + 20
    while _living(os.environ["TMPDIR"]) and time.monotonic() < until:
        time.sleep(0.05)
    assert _living(os.environ["TMPDIR"]) == []


def counted(file: Path, *then: str) -> str:
    """A shell script that runs one of `then` each time it is started, the last one for ever."""
    branches = "".join(f"{number}) {each};; " for number, each in enumerate(then[:-1], 1))
    return f"echo x >> {file}; case $(wc -l < {file}) in {branches}*) {then[-1]};; esac"


def runs(file: Path) -> int:
    return len(file.read_text().splitlines())


class Done(NamedTuple):
    """How the command ended, and what came out."""

    returncode: int
    stdout: bytes
    stderr: bytes


def shell(text: str, *flags: str) -> Done:
    """Run the command in this process, without the delays between attempts."""
    with no_waiting():
        result = holdfast("run", *flags, "--", "bash", "-c", text)
    return Done(result.exit_code, result.stdout_bytes, result.stderr_bytes)


def outside(text: str, *flags: str, given: bytes = b"", **env: str) -> subprocess.CompletedProcess[bytes]:
    """Run the installed command."""
    return script("run", *flags, "--", "bash", "-c", text, given=given, **env)


# --- what passes through ---


def test_bytes_pass_unchanged_on_both_streams():
    noise = bytes(range(256)) * 1000 + b"\xff\r\n no line end"
    program = "import sys,os; d=sys.stdin.buffer.read(); os.write(1,d); os.write(2,d[::-1])"
    done = script(
        "run", "--", PYTHON, "-c", program.replace("os.write(1,d)", "sys.stdout.buffer.write(d)"), given=noise
    )
    assert (done.returncode, done.stdout) == (0, noise)
    assert noise[::-1].startswith(done.stderr)
    assert done.stderr


@pytest.mark.parametrize("status", [1, 2, 42, 255])
def test_the_commands_own_exit_code_is_ours(status):
    done = shell(f"exit {status}")
    assert done.returncode == status
    assert b"TOOL_EXECUTION_FAILED" in done.stderr
    assert done.stdout == b""


def test_a_command_that_works_adds_nothing():
    done = shell("echo out; echo err >&2")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"out\n", b"err\n")


def test_a_signal_that_ended_it_is_shown_as_shells_show_it():
    done = shell("kill -KILL $$")
    assert done.returncode == 128 + signal.SIGKILL
    assert b"killed by SIGKILL" in done.stderr


def test_quiet_prints_only_what_the_command_prints():
    done = shell("echo err >&2; exit 3", "-q")
    assert (done.returncode, done.stdout, done.stderr) == (3, b"", b"err\n")


def test_a_command_that_does_not_exist_exits_127():
    done = holdfast("run", "no-such-program-here", "--its-own-flag")
    assert done.exit_code == 127
    assert "not installed here" in done.stderr


def test_a_command_that_cannot_be_started_exits_126(tmp_path):
    program = tmp_path / "program"
    program.write_text("not a program")
    assert holdfast("run", "--", str(program)).exit_code == 126


@pytest.mark.parametrize("code", [1, 2, 3, 4, 5, 6, 7, 8])
def test_a_low_exit_code_is_the_commands_own(code):
    assert shell(f"exit {code}").returncode == code


@pytest.mark.parametrize("flags", [("--timeout", "0.3"), ("--idle", "300ms"), ("--timeout", "0.3s")])
def test_a_command_that_takes_too_long_exits_124_and_its_output_so_far_was_passed(flags):
    done = shell("echo begun; sleep 60", *flags)
    assert (done.returncode, done.stdout) == (124, b"begun\n")
    assert b"TOOL_TIMEOUT" in done.stderr


def test_output_comes_while_the_command_runs():
    with running(
        [SCRIPT, "run", "--", "bash", "-c", "echo first; read line; echo $line"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
    ) as process:
        assert process.stdout.readline() == b"first\n"
        process.stdin.write(b"second\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"second\n"
        assert process.wait(10) == 0


def test_the_whole_environment_is_passed_on(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
    done = shell('echo "$AWS_SECRET_ACCESS_KEY"')
    assert done.stdout == b"wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has it")
def test_output_that_cannot_be_written_is_a_failure_with_a_message():
    with open("/dev/full", "wb") as full:  # noqa: PTH123
        shown = subprocess.run(
            [SCRIPT, "run", "--", "echo", "hi"],
            env=environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=30,
            check=False,
        )
    assert shown.returncode == 1
    assert b"cannot write the output of the command: [Errno 28] No space left on device" in shown.stderr


def test_a_reader_that_has_read_enough_ends_the_command_as_sigpipe_would():
    shown = subprocess.run(
        ["bash", "-c", f'set -o pipefail; "{SCRIPT}" run -- yes | head -1'],
        env=environment(),
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert (shown.returncode, shown.stdout) == (128 + signal.SIGPIPE, b"y\n")


def test_the_whole_output_is_there_even_if_its_reader_is_slow():
    done = subprocess.run(
        ["bash", "-c", f'"{SCRIPT}" run -- head -c 5000000 /dev/zero | (sleep 0.5; wc -c)'],
        env=environment(),
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert done.stdout.strip() == b"5000000"


# --- what is repeated ---


def test_retries_repeat_what_may_pass_until_it_works(tmp_path):
    file = tmp_path / "runs"
    refused = "echo 'curl: (7) Failed to connect: Connection refused' >&2; exit 7"
    done = shell(counted(file, refused, refused, "echo done"), "--retries", "3")
    assert (done.returncode, done.stdout, runs(file)) == (0, b"done\n", 3)
    lines = done.stderr.decode().splitlines()
    assert any("retry 2/4" in line and "CONN_REFUSED" in line for line in lines)
    assert any("retry 3/4" in line for line in lines)
    assert any("recovered after 3 attempts" in line for line in lines)


def test_retries_repeat_a_plain_exit_code_because_the_caller_asked(tmp_path):
    file = tmp_path / "runs"
    done = shell(counted(file, "exit 1", "exit 9"), "--retries", "2")
    assert (done.returncode, runs(file)) == (9, 3)
    assert b"exited with 9 after 3 attempts" in done.stderr


@pytest.mark.parametrize(
    "failure",
    ["exit 127", "echo 'bash: x: Permission denied' >&2; exit 1", "exit 130"],
    ids=["not found", "denied", "interrupted"],
)
def test_retries_do_not_repeat_what_cannot_pass(tmp_path, failure):
    file = tmp_path / "runs"
    shell(counted(file, failure), "--retries", "3")
    assert runs(file) == 1


def test_a_timeout_is_repeated_too(tmp_path):
    file = tmp_path / "runs"
    done = shell(counted(file, "sleep 60", "echo quick"), "--retries", "1", "--timeout", "0.5")
    assert (done.returncode, done.stdout, runs(file)) == (0, b"quick\n", 2)


@pytest.mark.parametrize(
    "flags", [(), ("--retries", "0"), ("--effect", "unsafe"), ("--effect", "unsafe", "--retries", "3")]
)
def test_without_leave_a_command_that_has_started_is_never_repeated(tmp_path, flags):
    """What it printed last does not say what it did before."""
    file = tmp_path / "runs"
    done = shell(counted(file, "echo 'Connection refused' >&2; exit 7"), *flags)
    assert (done.returncode, runs(file)) == (7, 1)


def test_a_declared_effect_repeats_failures_that_may_pass_and_no_others(tmp_path):
    passing, plain = tmp_path / "passing", tmp_path / "plain"
    shell(counted(passing, "echo 'Connection refused' >&2; exit 7"), "--effect", "read")
    shell(counted(plain, "exit 1"), "--effect", "idempotent")
    assert (runs(passing), runs(plain)) == (3, 1)


def test_the_settings_of_a_command_hold_for_it_and_those_of_calls_do_not(tmp_path):
    settings, file = tmp_path / "holdfast.toml", tmp_path / "runs"
    settings.write_text(f'{QUICK}\n[targets."tool:slow"]\nattempts = 2\ntimeout = 0.2\n')
    env = {"HOLDFAST_CONFIG": str(settings)}
    done = outside(counted(file, "sleep 60"), "--effect", "read", "--target", "tool:slow", **env)
    assert (done.returncode, runs(file)) == (124, 2)
    settings.write_text("[policy]\ntimeout = 0.2\ndeadline = 0.3\n")
    assert outside("sleep 0.5; echo whole", **env).stdout == b"whole\n"


def test_recovery_that_is_switched_off_runs_the_command_once(tmp_path):
    file = tmp_path / "runs"
    done = outside(counted(file, "exit 4"), "--retries", "3", HOLDFAST_ENABLED="false")
    assert (done.returncode, runs(file)) == (4, 1)


# --- input ---


def test_every_attempt_gets_the_whole_piped_input(tmp_path, quick):
    text = b"line\n" * 50_000
    done = outside(counted(tmp_path / "runs", "head -c 7; exit 1", "wc -c"), "--retries", "1", given=text, **quick)
    assert (done.returncode, done.stdout.split()) == (0, [b"line", b"li250000"])


def test_every_attempt_reads_a_file_from_where_it_was(tmp_path, quick):
    file = tmp_path / "input"
    file.write_bytes(b"skipped\none\ntwo\n")
    with file.open("rb", buffering=0) as given:
        given.seek(8)
        done = subprocess.run(
            [SCRIPT, "run", "--retries", "1", "--", "bash", "-c", counted(tmp_path / "runs", "cat; exit 1", "cat")],
            stdin=given,
            env=environment(**quick),
            capture_output=True,
            timeout=30,
            check=False,
        )
    assert done.stdout == b"one\ntwo\n" * 2


def test_input_that_the_command_does_not_read_is_left_for_the_next_one():
    done = subprocess.run(
        ["bash", "-c", f'"{SCRIPT}" run -- true; cat'],
        input=b"for cat\n",
        env=environment(),
        capture_output=True,
        timeout=30,
        check=False,
    )
    assert done.stdout == b"for cat\n"


# --- signals ---


def started(text: str, *flags: str) -> list[str]:
    return [SCRIPT, "run", *flags, "--", "bash", "-c", text]


def test_ctrl_c_reaches_the_whole_tree_and_the_command_may_answer_it():
    text = "trap 'echo bye; exit 9' INT; (trap 'echo child >&2; exit' INT; while :; do sleep 0.05; done) & echo up; wait; wait"
    with running(started(text), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
        assert process.stdout.readline() == b"up\n"
        time.sleep(0.2)  # the traps of a real shell are set soon after
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=15)
    assert (process.returncode, out) == (9, b"bye\n")
    assert b"child" in err


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_command_and_its_number_is_in_the_exit_code(number, status):
    with running(started("echo up; sleep 100 & sleep 100"), stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdout.readline() == b"up\n"
        process.send_signal(number)
        assert process.wait(15) == status


def test_a_command_that_ignores_the_signal_is_killed_after_the_grace():
    text = "trap '' TERM INT; echo up; while :; do sleep 0.1; done"
    with running(started(text, "--grace", "0.3"), stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 143


def test_a_second_signal_kills_at_once():
    text = "trap '' TERM INT; echo up; while :; do sleep 0.1; done"
    with running(started(text, "--grace", "600"), stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGINT)
        time.sleep(0.3)  # two signals of one moment would be one
        process.send_signal(signal.SIGINT)
        assert process.wait(15) == 130


def test_a_signal_between_two_attempts_ends_the_wait(tmp_path):
    settings = tmp_path / "holdfast.toml"
    settings.write_text("[policy.backoff]\ninitial = 600\ncap = 600\n")
    env = environment(HOLDFAST_CONFIG=str(settings))
    with running(started("exit 1", "--retries", "3"), stderr=subprocess.PIPE, env=env) as process:
        assert b"retry 2/4" in process.stderr.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 143


def test_a_signal_is_not_held_up_by_a_reader_that_does_not_read():
    with running(started("yes", "--grace", "0.5"), stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdout.read(2) == b"y\n"
        time.sleep(0.5)  # until the pipe is full
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 143


def test_other_signals_pass_to_the_command():
    text = "trap 'echo again' USR1; echo up; for i in 1 2 3 4 5 6 7 8; do sleep 0.1; done; exit 5"
    with running(started(text), stdout=subprocess.PIPE, env=environment()) as process:
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGUSR1)
        assert process.stdout.readline() == b"again\n"
        assert process.wait(15) == 5


def test_a_signal_that_is_ignored_stays_ignored_as_under_nohup():
    def ignore_hangups() -> None:
        heed_interrupts()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with subprocess.Popen(
        started("echo up; read line; echo $line"),
        preexec_fn=ignore_hangups,  # noqa: PLW1509 - no other thread forks
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
    ) as process:
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGHUP)
        assert process.communicate(b"on\n", timeout=15)[0] == b"on\n"
        assert process.returncode == 0


def on_terminal(text: str, *steps: tuple[bytes, Callable[[int, int], object]]) -> tuple[bytes, int]:
    """Run the command on a terminal; each step does `act(process, terminal)` when its marker was printed."""
    process, terminal = pty.fork()
    if process == 0:
        os.execve(SCRIPT, started(text), environment())
    shown, left = b"", list(steps)
    with suppress(OSError):  # the terminal is gone when the process is
        while data := os.read(terminal, 65_536):
            shown += data
            if left and left[0][0] in shown:
                left.pop(0)[1](process, terminal)
    os.close(terminal)
    return shown, os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def test_on_a_terminal_input_and_ctrl_c_reach_the_command():
    # A trap: between two commands bash may miss a signal, and then the end of the first one is what it reports.
    shown, status = on_terminal(
        "trap 'exit 42' INT; echo up; read line; echo got $line; sleep 100 & wait",
        (b"up", lambda _, terminal: os.write(terminal, b"hi\n")),
        (b"got hi", lambda _, terminal: os.write(terminal, b"\x03")),
    )
    assert (shown.endswith(b"got hi\r\n^C"), status) == (True, 42)


def test_a_command_is_suspended_and_continued_with_us():
    states = []

    def suspend(process: int, _terminal: int) -> None:
        os.kill(process, signal.SIGTSTP)
        until = time.monotonic() + 10
        while len(states) < 2 and time.monotonic() < until:
            # Both are stopped: the command, which is our child, and we.
            children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
            states[:] = [pid for pid in (str(process), *children) if _state(pid) == "T"]
            time.sleep(0.02)  # stopping takes a moment
        os.kill(process, signal.SIGCONT)

    shown, status = on_terminal("echo up; sleep 0.5; echo end", (b"up", suspend))
    assert (len(states), status) == (2, 0)
    assert shown.endswith(b"end\r\n")


def _state(pid: str) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


# --- records ---


def test_json_is_one_document_and_the_commands_output_goes_to_stderr(tmp_path):
    done = shell(counted(tmp_path / "runs", "echo one; exit 7", "echo two"), "--retries", "1", "--json")
    document = json.loads(done.stdout)
    assert (document["schema"], document["exit"], document["code"]) == ("holdfast.run/1", 0, None)
    assert [(each["exit_code"], each["code"]) for each in document["attempts"]] == [
        (7, "TOOL_EXECUTION_FAILED"),
        (0, None),
    ]
    assert document["attempts"][0]["delay_s"] > 0
    assert b"one\n" in done.stderr
    assert b"two\n" in done.stderr


def test_the_audit_trail_has_every_attempt(tmp_path):
    store = str(tmp_path / "work.db")
    done = shell(counted(tmp_path / "runs", "exit 7", "exit 0"), "--retries", "1", "--store", store)
    assert done.returncode == 0
    told = holdfast("audit", "query", "--store", store, "--jsonl").stdout.splitlines()
    assert any("TOOL_EXECUTION_FAILED" in line for line in told)
    assert holdfast("audit", "verify", "--store", store).exit_code == 0


def test_a_wrong_flag_is_named_and_nothing_runs(tmp_path):
    for flags in (("--timeout", "soon"), ("--effect", "harmless"), ("--retries", "-1"), ("--target", "tol:x")):
        done = shell(f"touch {tmp_path}/ran", *flags)
        assert done.returncode == 2
        assert flags[0].encode() in done.stderr
    assert holdfast("run").exit_code == 2
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--idle", "0"), b"--idle: expected more than 0 seconds, such as 90, 90s or 5m, got '0'"),
        (("--timeout", "0s"), b"--timeout: expected more than 0 seconds, such as 90, 90s or 5m, got '0s'"),
        (("--grace", "soon"), b"--grace: expected seconds, or a duration such as 90s or 5m, got 'soon'"),
        (("--retries", "x"), b"--retries: expected a whole number from 0, such as 3, got 'x'"),
        (("--retries", "-1"), b"--retries: expected a whole number from 0, such as 3, got '-1'"),
    ],
)
def test_a_wrong_number_is_answered_with_what_to_write(flags, message):
    done = shell("true", *flags)
    assert done.returncode == 2
    assert message in done.stderr


def test_a_program_inside_is_not_warned_about_our_own_variable():
    done = holdfast("run", "--", SCRIPT, "policy", "check")
    assert "HOLDFAST_PROCESS" not in done.stderr
