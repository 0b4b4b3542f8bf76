"""The README's durable program as a reader runs it, in processes of its own: run twice, killed twice, from two terminals at once."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.sessions.admin import resolve_step
from holdfast.stores import SqliteStore

README = Path(__file__).parents[2] / "README.md"
DONE = "'done: release 42, carefully'"

HARNESS = """
import os, signal, sys
def at(point):
    if os.environ.get("DIE_AT") == point:
        os.kill(os.getpid(), signal.SIGKILL)
def world(what):
    with open(os.environ["WORLD"], "a") as file:
        file.write(what + "\\n")
"""


def program() -> str:
    """The README's code, with a store on disk, effects that can be counted, and points where it can be killed."""
    section = README.read_text().partition("## Work that survives a kill")[2]
    code = section.partition("```python\n")[2].partition("```")[0]
    for was, now in (
        ('store="memory:"', 'store=os.environ["STORE"]'),
        (
            '    return f"{goal}, carefully"',
            '    at("before plan"); world("plan"); at("in plan")\n    return f"{goal}, carefully"',
        ),
        (
            '    return f"done: {plan}"',
            '    at("before deploy"); world("deploy"); at("in deploy")\n    return f"done: {plan}"',
        ),
        (
            "        return await session.step(deploy, plan)",
            "        at('between')\n        done = await session.step(deploy, plan)\n        at('after')\n        return done",
        ),
        ("assert asyncio.run(main()) ==", "print(repr(asyncio.run(main()))) #"),
    ):
        assert was in code, was
        code = code.replace(was, now)
    return HARNESS + code


class Terminal:
    """Runs the program on one store."""

    def __init__(self, folder: Path) -> None:
        self.store = folder / "work.db"
        self.world = folder / "world"
        self._script = folder / "release.py"
        self._script.write_text(program())
        self.world.touch()

    def start(self, die_at: str = "") -> subprocess.Popen[str]:
        settings = {"STORE": str(self.store), "WORLD": str(self.world), "DIE_AT": die_at}
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **settings}
        return subprocess.Popen(
            [sys.executable, str(self._script)], env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )

    def run(self, die_at: str = "") -> tuple[int, str, str]:
        process = self.start(die_at)
        out, err = process.communicate(timeout=60)
        return process.returncode, out.strip(), err

    def deployed(self) -> int:
        return self.world.read_text().count("deploy")


@pytest.mark.parametrize("kills", [("before plan", "in plan"), ("between", "after"), ("in plan", "between")])
def test_FD1_the_readmes_program_killed_twice_and_run_twice_deploys_once(
    tmp_path: Path, kills: tuple[str, ...]
) -> None:
    terminal = Terminal(tmp_path)
    for point in kills:
        assert terminal.run(point)[0] == -9
    for _ in range(2):
        code, out, err = terminal.run()
        assert (code, out) == (0, DONE), err
    assert terminal.deployed() == 1


@pytest.mark.parametrize("point", ["before deploy", "in deploy"])
def test_FD1_killed_inside_of_deploy_it_is_not_repeated_until_somebody_looked(tmp_path: Path, point: str) -> None:
    terminal = Terminal(tmp_path)
    assert terminal.run(point)[0] == -9
    for _ in range(2):
        code, _, err = terminal.run()
        assert code != 0
        assert "holdfast sessions resolve release-42 deploy@" in err
        # The program of the README names its own file, which is not where the command line looks.
        assert re.search(rf"--store sqlite:{re.escape(str(terminal.store))} --not-happened", err), err

    async def look() -> None:
        async with SqliteStore(terminal.store) as store:
            happened = terminal.deployed() == 1
            result = "done: release 42, carefully" if happened else None
            await resolve_step(store, "release-42", "deploy", happened=happened, result=result)

    asyncio.run(look())
    for _ in range(2):
        code, out, err = terminal.run()
        assert (code, out) == (0, DONE), err
    assert terminal.deployed() == 1


def test_FD1_two_terminals_at_once_deploy_once(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    both = [terminal.start(), terminal.start()]
    ended = [(process.communicate(timeout=60), process.returncode) for process in both]
    for (out, err), code in ended:
        # The second one finds the session in use, or comes after the first and gets the stored result.
        assert (code, out.strip()) == (0, DONE) or "SESS_LEASE_LOST" in err, err
    assert any(code == 0 for _, code in ended)
    assert terminal.run()[1] == DONE
    assert terminal.deployed() == 1
