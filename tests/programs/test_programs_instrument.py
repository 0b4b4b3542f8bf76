"""The generator draws every kind of program, its programs are Python, and the oracle sees what is wrong with one."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.programs.part import ELEMENTS, ODD
from tests.programs.program import EDITS, KNOWN, SWITCHES, Program, draw

ROOT = Path(__file__).parents[2]
SEEDS = range(1, 601)
RARE = 3
"""Each switch occurs in so many of the programs at least."""


@pytest.fixture(scope="module")
def drawn() -> list[Program]:
    return [draw(seed) for seed in SEEDS]


def switches_of(program: Program) -> set[str]:
    starts = program.starts
    on = {
        f"edit:{program.edit}": program.edit != "",
        "event:clock": any(start.clock for start in starts),
        "event:disk": any(start.slow for start in starts),
        "event:restore": any(start.restore for start in starts),
        "event:prune": any(start.prune for start in starts),
        "event:behind": any(start.behind for start in starts),
        "event:reopen": program.reopen,
        "event:nobody": not program.attended,
    }
    parts = program.parts
    return {part.kind for part in parts} | {f"odd:{part.odd}" for part in parts if part.odd} | {k for k in on if on[k]}


def test_every_switch_is_drawn(drawn: list[Program]):
    seen = Counter(switch for program in drawn for switch in switches_of(program))
    assert {switch: seen[switch] for switch in SWITCHES if seen[switch] < RARE} == {}


def test_what_is_switched_off_is_not_drawn():
    for off in SWITCHES:
        on = [switch for switch in SWITCHES if switch != off]
        assert not any(off in switches_of(draw(seed, on)) for seed in range(1, 30))


def test_the_same_seed_draws_the_same_program(drawn: list[Program]):
    assert [draw(seed) for seed in SEEDS] == drawn


def test_every_program_is_python_before_and_after_its_edit(drawn: list[Program]):
    for program in drawn:
        for edited in (False, True):
            compile(program.source(edited=edited, whole=True), f"program-{program.seed}", "exec", dont_inherit=True)


def test_no_part_pays_the_people_of_another(drawn: list[Program]):
    for program in drawn:
        who = [name for part in program.parts for name in part.who]
        assert len(who) == len(set(who))


def test_known_findings_name_switches():
    assert set(KNOWN) <= set(SWITCHES)
    assert all(KNOWN.values())
    assert {*ELEMENTS, *(f"odd:{odd}" for odd in ODD), *(f"edit:{edit}" for edit in EDITS)} <= set(SWITCHES)


# What a program does that must be seen: a bug of Holdfast's would look the same.
PLANTED = {
    "doubled": """receipt = await pay("ada")""",
    "changed": """say("text ada", uuid4().hex)""",
    "invented": """say("paid ada", "pay-ada-7")""",
    "hung": """await asyncio.Event().wait()""",
    "untyped": """raise RuntimeError("a raw error")""",
    "stuck": """from holdfast import Fault, HoldfastError; raise HoldfastError(Fault.of("SESS_TURN_CONCURRENT"))""",
}

PLAY = """
import sys
from tests.programs import starts
from tests.programs.part import ELEMENTS, Element, Part
from tests.programs.play import play
from tests.programs.program import Kill, Program, Start
from tests.programs.shrink import shrink

starts.LIMIT_S = 2.0
ELEMENTS["planted"] = Element(lambda part, style: iter([sys.argv[1]]), ("pay",), ("pay",))
parts = (Part("step", ("bob",)), Part("planted", ("ada",)), Part("draft", ("cy",)))
story = play(Program(1, parts, (Start(Kill("mark", 30)), Start(Kill("mark", 3)))))
kind = story.wrong[0].kind
smallest = shrink(story.program, lambda each: bool(wrong := play(each).wrong) and wrong[0].kind == kind, seconds=10)
print(kind, *(part.kind for part in smallest.parts), len(smallest.starts))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="programs are forked")
@pytest.mark.parametrize("kind", PLANTED)
def test_a_planted_bug_is_found_and_shrunk(kind: str):
    done = subprocess.run(
        [sys.executable, "-c", PLAY, PLANTED[kind]], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == [kind, "planted", "0"], done.stderr


BUGS = (
    "xd1 xd2 xd3 xd4_tasks xd4_modules xd5 xd6 xd8 xd9 xd14 xd16 xd17 xd19 xk1 xk2 xk4 xk5 xt1 xw1 xw2 xw3 xw4 xw5 xw6".split()  # noqa: SIM905 - one line
)
"""By name: the module that puts them back loads every room that had a bug."""


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="programs are forked")
@pytest.mark.parametrize("seed", ["1", "9001"])
@pytest.mark.parametrize("bug", BUGS)
def test_a_bug_that_is_put_back_is_found_within_200_programs_of_the_general_draw(bug: str, seed: str):
    hunt = [sys.executable, "-m", "tests.programs", "--programs", "200", "--seed", seed, "--put-back", bug]
    done = subprocess.run(hunt, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
