"""`holdfast workflow`: run, resume, check, fmt and repl, in this process and as real ones that are killed."""

from __future__ import annotations

import json
import signal
import sys

import pytest
from cli_runs import environment, holdfast, running, script

TASKS = """
import os, pathlib, signal

def note(name):
    with open("notes", "a") as file:
        file.write(name + "\\n")

async def plan(goal):
    note("plan")
    return [goal, goal + "!"]

async def review(text):
    note("review " + text)
    if pathlib.Path("kill").exists():
        pathlib.Path("kill").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    if pathlib.Path("fail").exists():
        raise ConnectionError("the reviewer is down")
    return "fine: " + text

tasks = [plan, review]
"""
SOURCE = """\
(bind parts (plan goal))
(bind reviews (map review parts :limit 1))
(join reviews ", ")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    (tmp_path / "workflow_tasks.py").write_text(TASKS)
    (tmp_path / "review.sexp").write_text(SOURCE)
    yield tmp_path
    sys.modules.pop("workflow_tasks", None)


OPTIONS = ("--tasks", "workflow_tasks:tasks", "--store", "sqlite:work.db")


def run(*more):
    return holdfast("workflow", "run", "review.sexp", *OPTIONS, "--input", "goal=x", "--session", "s", *more)


def test_a_run_prints_its_value_and_shows_what_is_evaluated(folder):
    result = run()
    assert result.exit_code == 0, result.stderr
    assert result.stdout == "fine: x, fine: x!\n"
    assert "1:13 → (plan goal)" in result.stderr
    assert '1:13 ← plan: ("x" "x!")' in result.stderr
    assert '1:7 parts = ("x" "x!")' in result.stderr
    assert "[0.1] ← review" in result.stderr
    assert "done: 3 calls · session s" in result.stderr
    again = run("--json")
    assert json.loads(again.stdout)["value"] == "fine: x, fine: x!"
    assert "3 of them stored before" in again.stderr
    assert (folder / "notes").read_text().split("\n")[:-1] == ["plan", "review x", "review x!"]


def test_a_failure_shows_its_place_and_its_environment_and_goes_on_with_resume(folder):
    (folder / "fail").touch()
    result = run("-q")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert "2 | (bind reviews (map review parts :limit 1))\n" in result.stderr
    assert '  parts = ["x","x!"]' in result.stderr
    assert "go on with: holdfast workflow resume review.sexp --session s" in result.stderr
    (folder / "fail").unlink()
    resumed = holdfast("workflow", "resume", "review.sexp", *OPTIONS, "--session", "s")
    assert resumed.stdout == "fine: x, fine: x!\n"
    assert (folder / "notes").read_text().count("plan") == 1


def test_resume_begins_anew_after_a_binding_in_a_fork(folder):
    run("-q")
    given = ("--session", "s", "--from", "parts", "--as", "fork")
    result = holdfast("workflow", "resume", "review.sexp", *OPTIONS, *given)
    assert result.stdout == "fine: x, fine: x!\n"
    notes = (folder / "notes").read_text()
    assert (notes.count("plan"), notes.count("review x\n")) == (1, 2)
    assert holdfast("workflow", "resume", "review.sexp", *OPTIONS, "--session", "s", "--from", "parts").exit_code == 2
    assert holdfast("workflow", "resume", "review.sexp", *OPTIONS, "--session", "nobody").exit_code == 3


def test_a_killed_run_goes_on_where_it_was(folder):
    (folder / "kill").touch()
    command = ("workflow", "run", "review.sexp", *OPTIONS, "--input", "goal=x", "--session", "s")
    with running([str(sys.executable), "-m", "holdfast", *command], cwd=folder, env=environment()) as process:
        assert process.wait(30) == -signal.SIGKILL
    resumed = script("workflow", "resume", "review.sexp", *OPTIONS, "--session", "s", "-q", HOME=str(folder))
    assert resumed.stdout == b"fine: x, fine: x!\n", resumed.stderr
    assert (folder / "notes").read_text().split("\n")[:-1] == ["plan", "review x", "review x", "review x!"]


def test_due_goes_on_with_what_waits_and_says_what_failed(folder):
    (folder / "later.sexp").write_text("(retry-later ((after 0)) (review goal))")
    (folder / "hour.sexp").write_text("(retry-later ((after 3600)) (review goal))")
    (folder / "fail").touch()
    for name in ("later", "hour"):
        given = ("--input", "goal=x", "--session", name, "-q")
        ended = holdfast("workflow", "run", f"{name}.sexp", *OPTIONS, *given)
        assert ended.exit_code != 0
    assert "is parked until" in ended.stderr
    nothing = holdfast("workflow", "due", "later.sexp", "hour.sexp", *OPTIONS)
    assert (nothing.exit_code, nothing.stderr) == (0, "")
    (folder / "fail").unlink()
    assert holdfast("sessions", "unpark", "hour", "--store", "sqlite:work.db").exit_code == 0
    done = holdfast("workflow", "due", "later.sexp", "hour.sexp", *OPTIONS, "--json")
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    assert (document["session"], document["program"], document["value"]) == ("hour", "workflow hour", "fine: x")


def test_check_names_every_mistake(folder):
    (folder / "bad.sexp").write_text("(bind x 1)\n(list y\n  (if x))\n")
    (folder / "worse.sexp").write_text("(list (")
    result = holdfast("workflow", "check", "bad.sexp", "worse.sexp")
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        "bad.sexp:2:7: the symbol y is not bound",
        "bad.sexp:3:3: if takes 3 arguments, got 1",
        "worse.sexp:1:7: expected a ) that closes this list, got the end of the source",
    ]
    good = holdfast("workflow", "check", "review.sexp", "--input", "goal=1")
    assert good.exit_code == 0
    assert "calls that must be registered: plan, review" in good.stderr
    assert holdfast("workflow", "check", "review.sexp", "--input", "goal=1", *OPTIONS[:2]).exit_code == 0
    shown = json.loads(holdfast("workflow", "check", "bad.sexp", "--json").stdout)
    assert [finding["line"] for finding in shown["findings"]] == [2, 3]


def test_fmt_writes_the_standard_layout(folder):
    (folder / "x.sexp").write_text("(list   1\n 2) ; two")
    assert holdfast("workflow", "fmt", "--check", "x.sexp").exit_code == 1
    assert holdfast("workflow", "fmt", "x.sexp").exit_code == 0
    assert (folder / "x.sexp").read_text() == "(list 1 2)  ; two\n"
    assert holdfast("workflow", "fmt", "--check", "x.sexp").exit_code == 0
    assert holdfast("workflow", "fmt", "-", given="(a\n b)").stdout == "(a b)\n"
    assert holdfast("workflow", "fmt", "missing.sexp").exit_code == 3
    assert holdfast("workflow", "fmt", "-", given="(a").exit_code == 1


def test_repl_evaluates_line_by_line_and_goes_on_after_a_failure(folder):
    given = '(bind x 1)\n(bind f\n  (lambda (n) (+ n x)))\n(f 2)\nnobody\n(set! x 10) (f 2)\n(plan "z")\n:env\n:quit\n(f 3)\n'
    result = holdfast("workflow", "repl", "--tasks", "workflow_tasks:tasks", given=given)
    lines = result.stdout.splitlines()
    assert lines[:5] == ["1", "<lambda (n)>", "3", "12", '("z" "z!")']
    assert lines[5:] == ["x = 10", "f = <lambda (n)>"]
    assert "the symbol nobody is not bound" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (
            ("run", "review.sexp", "--input", "document=@missing.txt"),
            2,
            "--input document: expected a file that can be read, got missing.txt: No such file or directory",
        ),
        (("run", "missing.sexp"), 3, "missing.sexp: No such file or directory"),
        (("run", "review.sexp", "--tasks", "nobody:x"), 2, "there is no nobody"),
        (("run", "review.sexp", "--input", "goal"), 2, "NAME=VALUE"),
        (("run", "review.sexp", "--tasks", "workflow_tasks:TASKS"), 2, "TASKS"),
    ],
)
def test_a_wrong_command_line_is_named(folder, arguments, code, text):
    result = holdfast("workflow", *arguments)
    assert (result.exit_code, text in result.stderr) == (code, True), result.stderr
