"""The bundled file tools and `bash`: what they do, and what they cannot be made to do."""

from __future__ import annotations

import asyncio
import os
import resource
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast import CircuitOpenError, Fault, HoldfastError, InvalidError, Policy, Runtime, Scope
from holdfast.policies.circuit import BRIDGE
from holdfast.tools import Toolbox, bash, edit_file, process_tool, read_file, search
from holdfast.tools import files as files_module


def finish(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 20))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "src" / "main.py").write_text("one\ntwo  # TODO\nthree\n")
    (root / "README.md").write_text("TODO: write\n")
    (root / "inside").symlink_to("src")
    (root / "absolute").symlink_to(root / "README.md")
    (tmp_path / "secret.txt").write_text("secret TODO\n")
    (root / "out").symlink_to("../secret.txt")
    (root / "outdir").symlink_to(tmp_path)
    (root / "loop").symlink_to("loop")
    return root


@pytest.fixture
def box(project: Path) -> Toolbox:
    return Toolbox([read_file(project), edit_file(project), search(project), bash(project)])


def code_of(box: Toolbox, name: str, **arguments) -> str:
    return finish(box.outcome(name, arguments)).fault.code


# --- confinement ---


@pytest.mark.parametrize(
    "path", ["src/main.py", "./src/../src/main.py", "inside/main.py", "src//main.py", "inside/../src/main.py"]
)
def test_paths_and_links_inside_are_followed(box, path):
    assert finish(box.call("read_file", {"path": path})).startswith("one\n")


def test_an_absolute_path_inside_is_understood(box, project):
    assert finish(box.call("read_file", {"path": str(project / "README.md")})) == "TODO: write\n"
    assert finish(box.call("read_file", {"path": "absolute"})) == "TODO: write\n"


@pytest.mark.parametrize(
    "path",
    ["../secret.txt", "src/../../secret.txt", "out", "outdir/secret.txt", "/etc/passwd", "loop", "/proc/self/environ"],
)
@pytest.mark.parametrize("tool", ["read_file", "edit_file", "search"])
def test_nothing_outside_is_reached(box, project, tool, path):
    arguments = {"path": path, "old": "secret", "new": "gone", "pattern": "secret"}
    wanted = {"read_file": ("path",), "edit_file": ("path", "old", "new"), "search": ("path", "pattern")}[tool]
    ended = finish(box.outcome(tool, {name: arguments[name] for name in wanted}))
    assert ended.fault.code == "TOOL_FORBIDDEN"
    assert (project.parent / "secret.txt").read_text() == "secret TODO\n"


def test_a_directory_that_becomes_a_link_at_the_last_moment_is_not_followed(box, project, monkeypatch):
    """Between the look at a component and its opening, somebody replaces it."""
    real = os.open

    def swapped(path, flags, *args, **kwargs):
        if path == "src":
            (project / "src").rename(project / "src2")
            (project / "src").symlink_to(project.parent)
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", swapped)
    assert code_of(box, "read_file", path="src/secret.txt") in ("TOOL_FORBIDDEN", "TOOL_FILE_NOT_FOUND")


def test_only_regular_files_are_read_and_a_pipe_does_not_hang(box, project):
    os.mkfifo(project / "pipe")
    assert code_of(box, "read_file", path="pipe") == "TOOL_INPUT_INVALID"
    assert code_of(box, "read_file", path="src") == "TOOL_INPUT_INVALID"
    assert code_of(box, "read_file", path=".") == "TOOL_INPUT_INVALID"
    assert code_of(box, "read_file", path="a\0b") == "TOOL_INPUT_INVALID"


def test_a_root_that_is_no_directory_is_named(tmp_path):
    with pytest.raises(InvalidError, match="a directory that exists"):
        read_file(tmp_path / "gone")


# --- read_file ---


def test_S0_22_a_missing_file_is_not_retried_and_the_model_is_told_its_path(box):
    ended = finish(box.outcome("read_file", {"path": "nope.txt"}))
    assert (ended.fault.code, ended.fault.retryable, len(ended.attempts)) == ("TOOL_FILE_NOT_FOUND", False, 1)
    assert ended.fault.for_model()["context"]["path"] == "nope.txt"


def test_some_lines_of_a_file(box):
    assert finish(box.call("read_file", {"path": "src/main.py", "offset": 2, "limit": 1})) == "two  # TODO\n"
    assert code_of(box, "read_file", path="src/main.py", offset=0) == "TOOL_INPUT_INVALID"


def test_a_long_file_is_cut_and_says_where_to_go_on(box, project):
    (project / "long.txt").write_text("".join(f"line {n} {'x' * 90}\n" for n in range(5_000)))
    text = finish(box.call("read_file", {"path": "long.txt"}))
    assert len(text) < 300_000
    offset = int(text.rpartition("offset=")[2].rstrip("]"))
    assert finish(box.call("read_file", {"path": "long.txt", "offset": offset, "limit": 1})).startswith(
        f"line {offset - 1} "
    )


def test_a_binary_file_is_named(box, project):
    (project / "picture").write_bytes(b"\x89PNG\0\0")
    assert "not a text file" in finish(box.outcome("read_file", {"path": "picture"})).fault.message


# --- edit_file ---


def test_an_edit_replaces_one_text_and_keeps_the_mode(box, project):
    (project / "src" / "main.py").chmod(0o750)
    finish(box.call("edit_file", {"path": "inside/main.py", "old": "two", "new": "2"}))
    assert (project / "src" / "main.py").read_text() == "one\n2  # TODO\nthree\n"
    assert (project / "src" / "main.py").stat().st_mode & 0o777 == 0o750
    assert [each.name for each in (project / "src").iterdir()] == ["main.py"]


def test_a_text_that_is_missing_or_not_alone_is_a_fault_for_the_model(box, project):
    (project / "two").write_text("a a")
    missing = finish(box.outcome("edit_file", {"path": "two", "old": "b", "new": "c"}))
    twice = finish(box.outcome("edit_file", {"path": "two", "old": "a", "new": "c"}))
    assert (missing.fault.code, missing.fault.context["field"]) == ("TOOL_INPUT_INVALID", "old")
    assert "2 times" in twice.fault.message
    finish(box.call("edit_file", {"path": "two", "old": "a", "new": "c", "replace_all": True}))
    assert (project / "two").read_text() == "c c"


def test_a_file_is_created_once(box, project):
    finish(box.call("edit_file", {"path": "src/new.py", "old": "", "new": "x = 1\n"}))
    assert (project / "src" / "new.py").read_text() == "x = 1\n"
    assert (
        "exists already"
        in finish(box.outcome("edit_file", {"path": "src/new.py", "old": "", "new": "y"})).fault.message
    )


def test_line_ends_of_windows_are_kept(box, project):
    (project / "dos").write_bytes(b"a\r\nb\r\n")
    finish(box.call("edit_file", {"path": "dos", "old": "a\nb", "new": "a\nc"}))
    assert (project / "dos").read_bytes() == b"a\r\nc\r\n"


@pytest.mark.parametrize("happened", [True, False])
def test_an_edit_that_was_cut_is_verified_by_looking_at_the_file(box, project, monkeypatch, happened):
    real = files_module._write

    def cut(*args):
        if happened:
            real(*args)
        raise HoldfastError(Fault.of("TOOL_CRASHED"))

    monkeypatch.setattr(files_module, "_write", cut)
    ended = finish(box.outcome("edit_file", {"path": "README.md", "old": "TODO", "new": "DONE"}))
    assert ended.ok is happened
    assert (project / "README.md").read_text() == ("DONE: write\n" if happened else "TODO: write\n")


# --- search ---


def test_lines_that_match_are_found_without_leaving_the_root(box):
    found = finish(box.call("search", {"pattern": "T.DO"}))
    assert found == "README.md:1: TODO: write\nsrc/main.py:2: two  # TODO\n"
    assert finish(box.call("search", {"pattern": "todo", "ignore_case": True, "glob": "*.py"})).count("\n") == 1
    assert finish(box.call("search", {"pattern": "todo"})) == "no match"
    assert finish(box.call("search", {"pattern": "one", "path": "inside"})) == "src/main.py:1: one\n"
    assert finish(box.call("search", {"pattern": "TODO", "path": "README.md"})) == "README.md:1: TODO: write\n"
    assert "cut at 1 lines" in finish(box.call("search", {"pattern": "TODO", "limit": 1}))


def test_a_wrong_pattern_is_the_models_to_fix(box):
    ended = finish(box.outcome("search", {"pattern": "("}))
    assert (ended.fault.code, ended.fault.context["field"]) == ("TOOL_INPUT_INVALID", "pattern")


def test_a_pattern_that_takes_for_ever_is_ended_and_the_models_to_fix(project):
    (project / "bad").write_text("fine\n" + "a" * 60 + "!\n")
    began = time.monotonic()
    box = Toolbox([search(project, timeout=4)])
    ended = finish(box.outcome("search", {"pattern": "(a+)+$", "path": "bad"}))
    assert (ended.fault.code, ended.fault.context["field"]) == ("TOOL_INPUT_INVALID", "pattern")
    assert "bad" in ended.fault.message
    assert time.monotonic() - began < 10


@pytest.mark.parametrize("pattern", ["(", "(?P<a", "x" * 10 + "{1", "(" * 5_000, "a{99999999999999}", "[" * 100])
def test_a_wrong_pattern_is_never_a_failure_of_the_tool(box, pattern):
    ended = finish(box.outcome("search", {"pattern": pattern}))
    assert ended.ok or ended.fault.code == "TOOL_INPUT_INVALID"


def test_wrong_and_slow_patterns_and_paths_open_nobodys_circuit(project):
    (project / "bad").write_text("a" * 60 + "!\n")
    runtime = Runtime()
    box = Toolbox([search(project, timeout=5), read_file(project), edit_file(project)], runtime=runtime)
    other = Toolbox([search(project / "src"), read_file(project)], runtime=runtime)

    async def main():
        slow = [box.outcome("search", {"pattern": "(a+)+$", "path": "bad"}) for _ in range(5)]
        wrong = [box.outcome("search", {"pattern": "("}) for _ in range(6)]
        paths = ["../x", "no", "x" * 300, "a\0b", "", "loop", "README.md/x", "src"] * 2
        lost = [box.outcome("read_file", {"path": path}) for path in paths]
        failed = await asyncio.gather(*slow, *wrong, *lost)
        good = [
            await each.outcome(name, arguments)
            for each in (box, other)
            for name, arguments in (("search", {"pattern": "TODO"}), ("read_file", {"path": "README.md"}))
        ]
        return failed, good

    failed, good = finish(main())
    assert not any(outcome.ok for outcome in failed)
    assert [outcome.ok for outcome in good] == [True] * 4


def test_a_search_whose_time_is_over_returns_what_it_has_found(project):
    (project / "aaa").write_text("TODO: first\n")
    (project / "many").mkdir()
    for n in range(40):
        (project / "many" / f"{n:02}").write_text("x y z\n" * 400_000)
    found = finish(Toolbox([search(project, timeout=3)]).call("search", {"pattern": "TODO|(x.*)*q"}))
    assert found.startswith(("README.md:1: TODO: write\n", "aaa:1: TODO: first\n"))
    assert "search a smaller part" in found


def test_names_of_files_that_are_no_utf_8_keep_no_other_from_being_found(project):
    name = os.fsencode(project) + b"/caf\xe9.txt"
    with open(name, "w") as file:  # noqa: PTH123 - pathlib takes no bytes
        file.write("TODO: taste\n")
    box = Toolbox([search(project)])
    found = finish(box.call("search", {"pattern": "TODO"}))
    assert "caf\\udce9.txt:1: TODO: taste" in found
    assert "README.md:1: TODO: write" in found


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_that_leaves_nothing_is_a_mistake_and_no_empty_file(box, limit):
    assert code_of(box, "read_file", path="src/main.py", limit=limit) == "TOOL_INPUT_INVALID"


def test_search_and_read_file_count_lines_alike(box, project):
    text = "one\u2028still one\x0cand\x0bone\x85\x1c\rx\ntwo\r\nthree TODO\n"
    (project / "odd").write_bytes(text.encode())
    assert finish(box.call("search", {"pattern": "TODO", "path": "odd"})) == "odd:3: three TODO\n"
    assert finish(box.call("read_file", {"path": "odd", "offset": 3})) == "three TODO\n"
    (project / "long").write_bytes(b"x" * 3_000_000 + b"\nTODO\n")
    assert finish(box.call("search", {"pattern": "TODO", "path": "long"})) == "long:2: TODO\n"
    assert finish(box.call("read_file", {"path": "long", "offset": 2})) == "TODO\n"


@pytest.mark.parametrize(
    "sizes", [(700_000,), (10, 262_144, 5), (262_145,), (200_000, 200_000), (65_536, 300_000, 0, 7), (1, 1)]
)
@pytest.mark.parametrize("sign", ["x", "ü", "€", "🦋"])
def test_a_file_can_be_read_to_its_end_however_long_its_lines_are(box, project, sizes, sign):
    whole = "".join(f"{n}{sign * (size // len(sign.encode()))}\n" for n, size in enumerate(sizes))
    (project / "long").write_text(whole)
    read, arguments = "", {}
    for _ in range(10):
        shown = finish(box.call("read_file", {"path": "long", **arguments}))
        part, cut, more = shown.partition("…[cut at 262144 bytes; go on with ")
        assert len(part.encode()) <= 262_144
        read += part
        if not cut:
            break
        arguments = {key: int(value) for key, _, value in (one.partition("=") for one in more.rstrip("]").split(", "))}
    assert read == whole


def test_a_file_is_created_as_a_whole_or_not_at_all(box, project):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        ended = finish(box.outcome("edit_file", {"path": "new", "old": "", "new": "x" * 3_000_000}))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not ended.ok
    assert not (project / "new").exists()
    assert not [path for path in project.iterdir() if path.name.endswith(".tmp")]


def test_of_many_that_create_a_file_one_does_and_nobody_sees_a_part_of_it(box, project):
    parts = set()

    def look(stop):
        while not stop.is_set():
            with suppress(FileNotFoundError):
                parts.add((project / "new").stat().st_size)

    async def main():
        given = [{"path": "new", "old": "", "new": f"{n}" * 2_000_000} for n in range(6)]
        return await asyncio.gather(*(box.outcome("edit_file", each) for each in given))

    stop = threading.Event()
    thread = threading.Thread(target=look, args=(stop,))
    thread.start()
    try:
        ended = finish(main())
    finally:
        stop.set()
        thread.join()
    assert [outcome.ok for outcome in ended].count(True) == 1
    assert {outcome.fault.code for outcome in ended if not outcome.ok} == {"TOOL_INPUT_INVALID"}
    assert parts <= {2_000_000}
    assert len(set((project / "new").read_text())) == 1


def test_a_created_file_has_the_usual_mode_and_follows_no_link(box, project):
    finish(box.call("edit_file", {"path": "new", "old": "", "new": "x"}))
    (project / "plain").write_text("x")
    assert (project / "new").stat().st_mode == (project / "plain").stat().st_mode
    assert (project / "new").stat().st_nlink == 1
    assert code_of(box, "edit_file", path="README.md", old="", new="x") == "TOOL_INPUT_INVALID"


# --- bash ---


def test_a_command_runs_in_the_root(box, project):
    assert finish(box.call("bash", {"command": "pwd"})).strip() == str(project)
    assert finish(box.call("bash", {"command": "echo a; echo b >&2"})) == "a\n\n[stderr]\nb\n"


def test_the_model_sees_how_a_command_failed(box):
    answer = finish(box.answer("bash", {"command": "echo out; echo 'no such thing' >&2; exit 3"}))
    assert answer.is_error
    assert '"exit_code":3' in answer.content
    assert "no such thing" in answer.content
    assert '"stdout":"out\\n"' in answer.content


def test_S0_23_bash_may_take_300_s_and_is_unsafe(box):
    assert box["bash"].contract.effect == "unsafe"
    assert "not a sandbox" in bash.__doc__


@pytest.mark.parametrize(
    "command",
    [
        "rm x",
        "echo a; rm x",
        "echo $(rm x)",
        "echo `rm x`",
        "echo a | sh",
        "echo a > x",
        "/bin/echo a",
        "ls &",
        'echo "$(id)"',
        "",
        "echo 'a",
    ],
)
def test_an_allow_list_leaves_no_way_around(project, command):
    (project / "x").write_text("still here")
    box = Toolbox([bash(project, allow=["echo", "ls"])])
    assert finish(box.outcome("bash", {"command": command})).fault.code in ("TOOL_FORBIDDEN", "TOOL_INPUT_INVALID")
    assert (project / "x").read_text() == "still here"


def test_what_is_allowed_runs_without_a_shell(project):
    box = Toolbox([bash(project, allow=["echo"])])
    assert finish(box.call("bash", {"command": "echo 'a; b' HEAD~1"})) == "a; b HEAD~1\n"
    assert "echo" in box.schemas()[0]["description"]


# --- the circuit of the file system ---


def test_S0_27_a_file_system_that_fails_five_times_has_the_circuit_of_this_tool_and_root_opened(project, monkeypatch):
    runtime = Runtime()
    box = Toolbox([read_file(project), search(project)], runtime=runtime)
    other = Toolbox([read_file(project / "src")], runtime=runtime)
    lines = files_module._lines

    def broken(*_):
        raise HoldfastError(Fault.of("TOOL_RESOURCE_BUSY", "input/output error", scope=Scope.CONNECTION))

    monkeypatch.setattr(files_module, "_lines", broken)
    for _ in range(5):
        assert code_of(box, "read_file", path="README.md") == "TOOL_RESOURCE_BUSY"
    with pytest.raises(CircuitOpenError) as raised:
        finish(box.call("read_file", {"path": "README.md"}))
    assert raised.value.circuit.startswith("tool:read_file@project-")
    assert runtime.registry.get(raised.value.circuit).circuit == BRIDGE
    monkeypatch.setattr(files_module, "_lines", lines)
    assert finish(box.call("search", {"pattern": "write"})) == "README.md:1: TODO: write\n"
    assert finish(other.call("read_file", {"path": "main.py"})).startswith("one")


def test_a_policy_for_a_file_tool_holds_in_every_directory(project):
    runtime = Runtime()
    runtime.configure(Policy(), {"tool:read_file": Policy(circuit=None)})
    box = Toolbox([read_file(project)], runtime=runtime)
    finish(box.call("read_file", {"path": "README.md"}))
    assert not [state.name for state in runtime.registry if state.circuit == BRIDGE]


def test_S0_27_agents_of_one_service_share_its_circuit():
    def agent(name: str) -> Any:
        return process_tool(
            name, ["bash", "-c", "echo 'fetch failed' >&2; exit 1"], effect="unsafe", service="agent-sdk"
        )

    box = Toolbox([agent("coder"), agent("reviewer")], runtime=Runtime())
    codes = [finish(box.outcome(name)).fault.code for name in ("coder", "reviewer", "coder", "reviewer", "coder")]
    assert set(codes) == {"ACTOR_CLI_NETWORK"}
    ended = finish(box.outcome("reviewer"))
    assert (ended.fault.code, ended.fault.context["circuit"]) == ("CIRCUIT_OPEN", "service:agent-sdk")


def test_edits_of_one_file_at_the_same_time_are_all_in_it(box, project):
    (project / "settings").write_text("".join(f"k{n}=old\n" for n in range(8)))

    async def main():
        edits = ({"path": "settings", "old": f"k{n}=old", "new": f"k{n}=new"} for n in range(8))
        return await asyncio.gather(*(box.outcome("edit_file", edit) for edit in edits))

    assert all(outcome.ok for outcome in finish(main()))
    assert (project / "settings").read_text() == "".join(f"k{n}=new\n" for n in range(8))


@pytest.mark.parametrize("line", ["x\n", "x" * 5_000_000 + "\n"], ids=["many lines", "a long line"])
def test_a_large_file_is_searched_whole(box, project, line):
    (project / "large.log").write_text(line * (5_000_000 // len(line) + 1) + "the end\n")
    number = (project / "large.log").read_text().count("\n")
    assert finish(box.call("search", {"pattern": "the end"})) == f"large.log:{number}: the end\n"


@pytest.mark.parametrize("path", ["missing", "src/missing", "src/main.py/missing"])
def test_a_search_in_what_is_not_there_says_so(box, path):
    assert code_of(box, "search", pattern="x", path=path) == "TOOL_FILE_NOT_FOUND"


def test_an_empty_file_is_written_and_one_with_content_is_not(box, project):
    (project / "src" / "__init__.py").touch(0o640)
    finish(box.call("edit_file", {"path": "src/__init__.py", "old": "", "new": "x = 1\n"}))
    made = project / "src" / "__init__.py"
    assert (made.read_text(), made.stat().st_mode & 0o777) == ("x = 1\n", 0o640)
    assert code_of(box, "edit_file", path="src/__init__.py", old="", new="y") == "TOOL_INPUT_INVALID"


def test_a_file_is_created_with_its_directories_and_never_outside(box, project):
    finish(box.call("edit_file", {"path": "inside/a/b/new.py", "old": "", "new": "x\n"}))
    assert (project / "src" / "a" / "b" / "new.py").read_text() == "x\n"
    for path in ("outdir/a/b.py", "../a/b.py", "a/../../b/c.py"):
        assert code_of(box, "edit_file", path=path, old="", new="x") == "TOOL_FORBIDDEN"
    assert code_of(box, "edit_file", path="missing/b.py", old="x", new="y") == "TOOL_FILE_NOT_FOUND"
    assert sorted(each.name for each in project.parent.iterdir()) == ["project", "secret.txt"]
    assert not (project / "missing").exists()
