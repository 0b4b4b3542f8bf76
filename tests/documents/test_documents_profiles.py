"""A profile is a document: a whole program keeps to its numbers, and each of its constants is read where it acts."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path

import pytest

import holdfast
from holdfast import Fault, InvalidError, Policy, Runtime, recover, tool
from holdfast.config import read
from holdfast.faults import CATALOG
from holdfast.policies.profiles import PROFILES
from holdfast.policies.target import Target
from holdfast.testing import Midpoint, VirtualClock
from holdfast.tools import Toolbox
from holdfast.tools.toolbox import TIME_LIMIT

SOURCE = Path(holdfast.__file__).parent
HOME = {"policies/profiles.py", "profiles.py", "policies/__init__.py"}
each_profile = pytest.mark.parametrize("name", PROFILES)


@pytest.fixture(scope="module")
def read_names():
    """The keys of `limits` and `tries` that the source reads, and the names that it imports and uses."""
    keys, names = set(), set()
    for path in SOURCE.rglob("*.py"):
        if path.relative_to(SOURCE).as_posix() in HOME or "documents" in path.parts:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                if ast.unparse(node.value).rpartition(".")[2].lower() in ("limits", "tries"):
                    keys.add(node.slice.value)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                names.add(node.id)
    return keys, names


def test_XL1_every_limit_of_every_profile_is_read(read_names):
    keys, _ = read_names
    constants = {name for profile in PROFILES.values() for name in (*profile.limits, *profile.tries)}
    assert constants - keys == set()


def test_XL1_every_table_of_the_documents_is_read(read_names):
    _, names = read_names
    tables = {"AGENTS", "AGENT_CHAINS", "PROVIDERS", "PROVIDER_CHAINS", "STUD_EDGES", "PROFILES"}
    assert tables - names == set()


@each_profile
def test_XL1_every_schedule_of_every_profile_is_the_one_of_some_failure(name):
    by_schedule = {entry.schedule: code for code, entry in CATALOG.items()}
    assert set(PROFILES[name].schedules) == set(by_schedule)
    for schedule, code in by_schedule.items():
        tries = Runtime(profile=name).policy_for(Target(provider="claude")).tries(Fault.of(code))
        assert tries == PROFILES[name].schedules[schedule]


@each_profile
def test_XL1_every_time_limit_of_every_document_holds_where_it_is_named(name):
    profile, runtime = PROFILES[name], Runtime(profile=name)
    if name == "holdfast":
        assert runtime.policy_for(Target(tool="bash")).timeout is None
        assert limit_of("bash", runtime=runtime) == 300
        return
    kinds = {"llm-call": Target(provider="p"), "tool-execution": Target(tool="t"), "agent-spawn": Target(agent="a")}
    for operation, seconds in profile.timeouts.items():
        target = kinds.get(operation, Target(tool=operation))
        assert runtime.policy_for(target).timeout == seconds


@each_profile
def test_a_runtime_and_a_file_with_a_profile_have_its_circuit_and_its_attempts(name):
    configured = Runtime()
    read({"profile": name}).apply(configured)
    for runtime in (Runtime(profile=name), configured, configured.fresh()):
        assert runtime.profile is PROFILES[name]
        assert runtime.policy_for(Target(provider="claude")).circuit == PROFILES[name].circuit
        calls = []
        runtime.clock, runtime.rng = VirtualClock(), Midpoint()

        def overloaded(calls=calls):
            calls.append(1)
            raise ConnectionResetError

        with pytest.raises(ConnectionResetError):
            recover("claude", runtime=runtime, effect="read").call(overloaded)
        attempts = PROFILES[name].schedules[Fault.of("CONN_RESET").schedule].attempts
        assert attempts is None or len(calls) == attempts


def test_an_option_that_somebody_sets_wins_over_the_profile():
    runtime = Runtime()
    read({"profile": "spec016", "policy": {"timeout": 7}, "targets": {"claude": {"attempts": 9}}}).apply(runtime)
    assert runtime.profile.name == "spec016"
    assert runtime.policy_for(Target(tool="bash")).timeout == 7
    assert runtime.policy_for(Target(provider="claude")).attempts == 9


def limit_of(name, **options):
    """The seconds that a tool of this name finds as its limit while it runs."""
    found = []
    look = tool(name=name, effect="read")(lambda: found.append(TIME_LIMIT.get()))
    asyncio.run(Toolbox([look], **options).answer(name, {}))
    return found[0]


def test_a_tool_has_the_limit_of_the_runtimes_profile():
    assert limit_of("look", runtime=Runtime(profile="actor")) == 30
    assert limit_of("look", runtime=Runtime(profile="spec016")) == 120
    assert limit_of("look", profile="bridge", runtime=Runtime(profile="spec016")) == 120
    assert limit_of("read_file", profile="bridge", runtime=Runtime(profile="spec016")) == 10


def test_a_profile_that_does_not_exist_is_an_error():
    with pytest.raises(InvalidError, match=r"runtime\.profile"):
        Runtime(profile="spec17")


def test_a_policy_of_a_program_wins_over_the_profile_for_its_target():
    runtime = Runtime(profile="stud")
    runtime.configure(Policy(attempts=2), {})
    assert runtime.profile is PROFILES["holdfast"]
