"""`holdfast actors tree`: real programs in processes of their own, and what happens if there are none, several or strange ones."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree

import pytest
from cli_runs import environment, holdfast, running, script

from holdfast.cli import output
from holdfast.cli.programs import actors as module

NOBODY = 65534
PROGRAM = """
import asyncio, sys
from holdfast import Actor, Backoff, Supervisor
from holdfast.actors import Child, control

class Coder(Actor, mailbox=20):
    async def think(self): await asyncio.Event().wait()

async def poll(): raise ConnectionResetError("gone")

async def main():
    inner = Supervisor("workers", children=[Child(poll, backoff=Backoff(initial=100, cap=200))])
    async with Supervisor(sys.argv[1], children=[Coder, inner], max_restarts=7) as team, control(team):
        ref = (await team.which_children())[0].ref
        for _ in range(4): ref.tell(Coder.think)
        await asyncio.sleep(0.05)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


@pytest.fixture
def sockets(monkeypatch):
    # The path of a socket must be short, so it is not in pytest's own folder.
    folder = Path(tempfile.mkdtemp(prefix="hf-"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder / "holdfast"
    rmtree(folder)


@contextmanager
def program(name: str, sockets: Path):
    env = environment(XDG_RUNTIME_DIR=str(sockets.parent), HOLDFAST_LOG="off")
    with running(
        [sys.executable, "-c", PROGRAM, name], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        yield process


def test_the_tree_of_a_running_program(sockets):
    with program("team", sockets) as process:
        done = script("actors", "tree", XDG_RUNTIME_DIR=str(sockets.parent))
        assert (done.returncode, done.stderr) == (0, b"")
        shown = re.sub(r"running for \d+ s", "running for N s", done.stdout.decode())
        document = json.loads(holdfast("actors", "tree", "--json").stdout)
        process.stdin.close()
        assert process.wait(30) == 0
    assert shown.splitlines() == [
        f"process {process.pid}  -c",
        "  team  supervisor · running for N s · incarnation 1 · 7 of 7 restarts left in 60 s",
        "    Coder  actor · running for N s · incarnation 1 · 3 of 20 waiting",
        "    workers  supervisor · running for N s · incarnation 1 · 2 of 3 restarts left in 60 s",
        "      poll  task · restarting · incarnation 1 · last failure CONN_RESET",
    ]
    assert document["schema"] == "holdfast.actors-tree/1"
    (shown_process,) = document["processes"]
    (root,) = shown_process["roots"]
    assert (shown_process["pid"], root["name"], root["restarts_left"]) == (process.pid, "team", 7)
    assert root["children"][1]["children"][0]["last_failure"] == "CONN_RESET"
    # The program has ended, so its socket is gone.
    assert list(sockets.iterdir()) == []


def test_several_programs_are_told_apart_by_their_process(sockets):
    with program("one", sockets) as one, program("two", sockets) as two:
        both = holdfast("actors", "tree")
        only = holdfast("actors", "tree", "--pid", str(two.pid))
    assert both.exit_code == only.exit_code == 0
    assert {f"process {one.pid}  -c", f"process {two.pid}  -c"} <= set(both.stdout.splitlines())
    assert both.stderr == "2 processes; --pid N shows one of them\n"
    assert "two  supervisor" in only.stdout
    assert "one  supervisor" not in only.stdout


def test_a_killed_program_is_not_shown_and_its_socket_is_removed(sockets):
    with program("team", sockets) as process:
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    assert len(list(sockets.iterdir())) == 1
    result = holdfast("actors", "tree")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith("holdfast: no program of yours offers a control socket\n  help: ")
    assert list(sockets.iterdir()) == []


@pytest.mark.parametrize(
    ("pid", "says"),
    [(str(os.getpid()), f"process {os.getpid()} offers no control socket"), ("4194305", "there is no process 4194305")],
    # The workers of a parallel run must collect equal names.
    ids=["our own", "none of this number"],
)
def test_a_process_without_a_socket(sockets, pid, says):
    result = holdfast("actors", "tree", "--pid", pid)
    assert (result.exit_code, result.stdout) == (3, "")
    assert says in result.stderr
    assert json.loads(holdfast("actors", "tree", "--pid", pid, "--json").stdout)["processes"] == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_the_process_of_another_user(sockets):
    child = os.fork()
    if child == 0:
        os.setuid(NOBODY)
        signal.pause()
        os._exit(0)
    try:
        while Path(f"/proc/{child}").stat().st_uid != NOBODY:
            pass
        result = holdfast("actors", "tree", "--pid", str(child))
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"process {child} belongs to user {NOBODY}, and only that user may look" in result.stderr


def test_a_folder_that_others_may_enter_is_rejected(sockets):
    sockets.mkdir()
    sockets.chmod(0o755)
    result = holdfast("actors", "tree")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "expected a folder of user" in result.stderr
    assert "got mode 0755" in result.stderr


# Strange processes


@contextmanager
def strange(sockets: Path, answers: bytes | None):
    """A process that accepts and sends these bytes; None: it is silent."""
    sockets.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(sockets / "77-1.sock"))
        listener.listen(1)
        child = os.fork()
        if child == 0:
            connection, _ = listener.accept()
            connection.recv(1000)
            while answers:
                try:
                    connection.sendall(answers)
                except OSError:
                    break
                if len(answers) < 1000:
                    connection.shutdown(socket.SHUT_WR)
                    break
            signal.pause()
        try:
            yield
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


@pytest.mark.parametrize(
    ("answers", "status", "says"),
    [
        (b"\xff\xfe\n", 1, "did not answer as expected"),
        (b'{"tree":{"pid":1}}\n', 1, "did not answer as expected"),
        (b'{"tree":', 1, "did not answer as expected"),
        (b"x" * 65536, 1, "did not answer as expected"),
        (b'{"error":"not today \\u001b[2J"}\n', 1, "rejected the request: not today"),
        (None, 6, "did not answer within 0.2 s"),
    ],
    ids=["bytes", "shape", "cut", "endless", "error", "silent"],
)
def test_what_a_process_answers_is_not_trusted(sockets, monkeypatch, answers, status, says):
    monkeypatch.setattr(module, "_ANSWER_S", 0.2 if answers is None else 10.0)
    with strange(sockets, answers):
        result = holdfast("actors", "tree")
    assert (result.exit_code, result.stdout) == (status, "")
    assert f"process 77 {says}" in result.stderr
    assert "\x1b" not in result.stderr


def test_other_files_in_the_folder_are_left_alone(sockets):
    sockets.mkdir(mode=0o700)
    for name in ("notes.txt", "77-1.sock.bak", "0-1.sock", "x-1.sock"):
        (sockets / name).touch()
    assert holdfast("actors", "tree").exit_code == 3
    assert len(list(sockets.iterdir())) == 4


# On a terminal


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_it_fits_the_terminal_and_a_fact_stays_on_one_line(sockets, monkeypatch, capsys, columns):
    with program("a-team-with-quite-a-long-name", sockets):
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(output, "_on_terminal", lambda: True)
        assert module.actors_tree(pid=None, as_json=False) == 0
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert max(map(len, lines)) <= columns
    assert "\x1b" not in shown
    for fact in ("7 of 7 restarts left in 60 s", "3 of 20 waiting", "last failure CONN_RESET"):
        assert any(fact in line for line in lines)
    # The continuation of a line is indented more than the children below it.
    starts = [line for line in lines if re.match(r" *[\w-]+  ", line)]
    assert [len(line) - len(line.lstrip()) for line in starts] == [2, 4, 4, 6]
