"""Runs that are forked from a process that has imported the same: where that is safe, they are as those of an interpreter of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from crashtest_kit import crash

from holdfast.testing.crashtest import CrashTest, Report

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="runs are forked on Linux only")

PROGRAM = """
import atexit, threading
import decimal
atexit.register(lambda: open("exits.txt", "a").close())
threading.Thread(target=lambda: open("thread.txt", "w").close()).start()
print(__name__, __file__ == os.path.abspath("agent.py"), sys.argv, os.path.basename(sys.path[0]), sys.modules["__main__"].__dict__ is globals())
"""


def crash_with(folder: Path, imports: str, **options: Any) -> Report:
    """Make a crash test of a program that imports this, from elsewhere than its folder."""
    library = folder / "library"
    library.mkdir()
    (library / "imported_by_agent.py").write_text(textwrap.dedent(imports))
    work = folder / "work"
    work.mkdir()
    program = "import imported_by_agent\nopen('done', 'w').close()\n"
    return crash(work, program, environment={"PYTHONPATH": f"{library}:{os.environ.get('PYTHONPATH', '')}"}, **options)


def test_XA13_a_forked_run_is_as_one_of_an_interpreter(tmp_path: Path):
    ends: dict[bool, list[object]] = {True: [], False: []}
    for fork in (True, False):
        folder = tmp_path / str(fork)
        folder.mkdir()

        def check(end: Path, fork: bool = fork) -> None:
            ends[fork].append(sorted(path.name for path in end.iterdir()))

        expect = "__main__ True ['agent.py'] work True"
        report = crash(folder, PROGRAM, fork=fork, expect=expect, check=check)
        assert report.started == ("forked" if fork else "interpreter: that was asked for")
        assert (report.damage, report.notes) == ((), ())
    assert ends[True] == ends[False]
    assert ["agent.py", "exits.txt", "thread.txt"] in ends[True]


@pytest.mark.parametrize(
    ("imports", "started"),
    [
        ("", "forked"),
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
            "interpreter: its imports start threads",
        ),
        ("open('cache.txt', 'w').close()", "interpreter: its imports write files"),
        ("import os, sys\nif 'agent.py' not in sys.argv[0]: os._exit(3)", "interpreter: its imports did not end well"),
    ],
)
def test_XA13_a_program_is_forked_only_where_that_is_safe(tmp_path: Path, imports: str, started: str):
    report = crash_with(tmp_path, imports)
    assert report.started.startswith(started)
    assert not report.damage


def test_a_program_that_is_not_python_starts_as_it_is(tmp_path: Path):
    report = CrashTest([sys.executable, "-c", "open('done', 'w').close()"], folder=tmp_path).run()
    assert report.started == "interpreter: Python gets options"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_XA13_a_test_that_is_ended_shows_what_it_has_and_leaves_nothing_behind(tmp_path: Path, number: signal.Signals):
    work, temporary = tmp_path / "work", tmp_path / "tmp"
    work.mkdir()
    temporary.mkdir()
    (work / "agent.py").write_text("for number in range(40):\n    open(f'{number}.txt', 'w').close()\n")
    command = [sys.executable, "-m", "holdfast", "crashtest", "--", sys.executable, "agent.py"]
    with subprocess.Popen(
        command,
        cwd=work,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        next(line for line in process.stderr if line.startswith("2/"))
        process.send_signal(number)
        shown, said = process.communicate(timeout=60)
    assert "killed" in shown.splitlines()[0]
    assert f"{number.name} ended the test after" in said
    assert process.returncode == 130
    assert list(temporary.iterdir()) == []


def test_XA13_a_test_that_is_ended_before_its_first_kill_says_so_and_leaves_nothing_behind(tmp_path: Path):
    work, temporary = tmp_path / "work", tmp_path / "tmp"
    work.mkdir()
    temporary.mkdir()
    (work / "agent.py").write_text(f"import time\nopen({str(tmp_path / 'begun')!r}, 'w').close()\ntime.sleep(600)\n")
    command = [sys.executable, "-m", "holdfast", "crashtest", "--", sys.executable, "agent.py"]
    with subprocess.Popen(
        command,
        cwd=work,
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while not (tmp_path / "begun").exists():
            assert process.poll() is None
            time.sleep(0.005)
        process.send_signal(signal.SIGTERM)
        shown, said = process.communicate(timeout=60)
    assert shown == "nothing was killed\n"
    assert said == "note: SIGTERM ended the test before the first kill\n"
    assert process.returncode == 130
    assert list(temporary.iterdir()) == []
