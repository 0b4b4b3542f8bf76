"""A role does what the specification's own function does, for any sequence of failures (S1-19); and it survives real kills."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from typing import Any

import pytest
from agents_roles_kit import World, refused
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import Backoff, Circuit, CircuitOpenError, Tries
from holdfast.agents import FunctionAgent, Role
from holdfast.events import AgentFallback, CircuitState, UserNotified

NAMES = ("builder", "simple", "manual")


class Member:
    """An agent whose calls end as the bits say, one after the other."""

    def __init__(self, name: str, bits: list[bool], log: list[str]) -> None:
        self.name, self.bits, self.log = name, list(bits), log

    async def __call__(self, prompt: str) -> str:
        self.log.append(self.name)
        if not self.bits or not self.bits.pop(0):
            raise refused(self.name)
        return self.name


def reference(world: World, members: list[Member], attempts: int) -> tuple[str, list[str]]:
    """Return how a run must end and whom it calls: `executeWithRecovery` of document 001, with the circuits as they are now."""
    calls: list[str] = []
    bits = {member.name: list(member.bits) for member in members}

    def answers(name: str) -> bool:
        calls.append(name)
        return bool(bits[name]) and bits[name].pop(0)

    def is_open(name: str) -> bool:
        return world.manager.get_circuit(f"agent:{name}").state is CircuitState.OPEN

    first, *others = [member.name for member in members]
    end = "open" if is_open(first) else first
    if end != "open" and any(answers(first) for _ in range(attempts)):
        return first, calls
    for name in others:
        # An understudy whose own circuit is open is not called.
        if not is_open(name) and answers(name):
            return name, calls
    return "CircuitOpenError" if end == "open" else f"error of {first}", calls


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(1, 3),
    attempts=st.integers(1, 3),
    failures=st.integers(1, 3),
    bits=st.lists(st.lists(st.booleans(), max_size=12), min_size=3, max_size=3),
    pauses=st.lists(st.sampled_from([0.0, 10.0, 40.0]), min_size=1, max_size=6),
)
def test_S1_19_a_role_does_what_the_documents_function_does(size, attempts, failures, bits, pauses):
    world, log = World(), []
    members = [Member(name, own, log) for name, own in zip(NAMES[:size], bits, strict=False)]
    first, *others = (FunctionAgent(member.name, member) for member in members)
    role = Role(
        "builder",
        first,
        understudies=others,
        circuit=Circuit(failures=failures, rate=None),
        retry=Tries(attempts=attempts, backoff=Backoff(initial=0)),
        runtime=world.runtime,
    )
    for pause in pauses:
        world.clock.advance(pause)
        expected, calls = reference(world, members, attempts)
        log.clear()
        world.events.clear()
        try:
            end = world.run(role.run("x")).agent
        except CircuitOpenError:
            end = "CircuitOpenError"
        except ConnectionResetError as error:
            end = f"error of {str(error).partition(chr(10))[0]}"
        assert (end, log) == (expected, calls)
        # One event for each understudy that was called, from the role; one notification if all failed.
        assert [(event.from_, event.to) for event in world.events.of(AgentFallback)] == [
            ("builder", name) for name in calls if name != "builder"
        ]
        assert len(world.events.of(UserNotified)) == (end not in NAMES)


PROGRAM = """
    import asyncio, os, sys, time
    from pathlib import Path
    from holdfast import Session, Tries, tool
    from holdfast.agents import FunctionAgent, Role

    folder = Path(sys.argv[1])

    def note(line):
        with open(folder / "calls", "a") as file:
            file.write(line + "\\n")

    async def build(prompt):
        note("builder")
        raise ConnectionResetError

    @tool(effect="unsafe")
    def deploy():
        note("deploy")
        return "deployed"

    async def simple(prompt, session):
        note("simple")
        done = await session.step(deploy)
        if not (folder / "go").exists():
            note("waits")
            time.sleep(60)
        return done

    async def main():
        role = Role("builder", FunctionAgent("builder", build), understudies=[FunctionAgent("simple", simple)], retry=Tries(attempts=1))
        async with Session.open("s", store=f"sqlite:{folder}/work.db", lease=1) as session:
            print((await role.run("a house", session=session)).text)

    asyncio.run(main())
"""


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_process_that_is_killed_while_an_understudy_works_leaves_it_in_charge(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(PROGRAM))
    environment = {**os.environ, "HOLDFAST_CONFIG": "none"}
    command = [sys.executable, str(program), str(tmp_path)]
    calls = tmp_path / "calls"

    def lines() -> list[str]:
        return calls.read_text().split() if calls.exists() else []

    first = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    try:
        _until(lambda: "waits" in lines())
    finally:
        first.kill()
        first.wait()
    assert lines() == ["builder", "simple", "deploy", "waits"]
    (tmp_path / "go").touch()
    second = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert second.stdout.strip() == "deployed"
    # The builder is not called again, and what must not happen twice has happened once.
    assert lines() == ["builder", "simple", "deploy", "waits", "simple"]


def _until(ready: Any) -> None:
    ends = time.monotonic() + 30
    while not ready():
        assert time.monotonic() < ends
        time.sleep(0.02)
