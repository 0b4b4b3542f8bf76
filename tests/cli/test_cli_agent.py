"""`holdfast agent run`: a real command, real SDKs over a socket, a pseudo terminal, kills and interrupts."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress

import pytest
from cli_runs import SCRIPT, environment, heed_interrupts, holdfast

from holdfast.testing import serve_in_thread
from holdfast.testing.provider import Rule, Script, ToolCall, Turn

PROGRAM = textwrap.dedent(
    """
    import os, sys, time
    from pathlib import Path
    from holdfast import Agent, tool

    @tool(effect="unsafe")
    def pay(to: str, hangs: bool = False) -> str:
        "Pay somebody."
        with open("paid.txt", "a") as file:
            file.write(to + "\\n")
        return "paid " + to

    @tool(effect="read")
    def look(at: str) -> str:
        "Look at something."
        with open("looked.txt", "a") as file:
            file.write(at + "\\n")
        while os.path.exists("hang"):
            time.sleep(0.05)
        return "seen " + at

    @tool(effect="unsafe")
    def lose(to: str) -> str:
        "Pay somebody over a bad line."
        with open("paid.txt", "a") as file:
            file.write(to + "\\n")
        raise ConnectionResetError(104, "Connection reset by peer")

    agent = Agent("payer", "claude-haiku-4-5", [pay, look])
    loser = Agent("loser", "claude-haiku-4-5", [lose])

    def make():
        return Agent("made", "claude-haiku-4-5", [look])

    number = 5
    """
)
ONE = """
@tool(effect="read")
def one() -> str:
    "Return one letter."
    return "x"

counts = Agent("counts", "claude-haiku-4-5", [one])
"""
PAY = Turn(text="I pay.", tool="pay", arguments={"to": "ann"})
LOOK = Turn(tool="look", arguments={"at": "x"})


@pytest.fixture(scope="module")
def shared():
    with serve_in_thread() as provider:
        yield provider


@pytest.fixture
def world(shared, tmp_path):
    return World(shared, tmp_path)


@pytest.fixture
def here(world, monkeypatch):
    """Run the command in this process, in the folder of the program. Use it where nobody is asked."""
    monkeypatch.chdir(world.folder)
    monkeypatch.syspath_prepend(str(world.folder))
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    yield lambda *arguments: holdfast("agent", "run", *arguments, env=world.environment)
    sys.modules.pop("shop", None)


class World:
    """A folder with a program, a store, and a provider that plays turns."""

    def __init__(self, provider, folder) -> None:
        self.provider = provider
        self.folder = folder
        (folder / "shop.py").write_text(PROGRAM)

    def plays(self, *turns, steps="") -> None:
        rules = (Rule(steps=steps),) if steps else ()
        self.provider.set_script(Script(replies=turns, rules=rules))

    @property
    def environment(self):
        store = f"sqlite:{self.folder}/work.db"
        return environment(HOLDFAST_STORE=store, **self.provider.environment)

    def start(self, *arguments, **options):
        """Start the command in the folder, without a terminal."""
        return subprocess.Popen(
            [SCRIPT, *arguments],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=heed_interrupts,  # noqa: PLW1509 - no other thread forks
            **options,
        )

    def run(self, *arguments):
        with self.start(*arguments) as process:
            out, err = process.communicate(timeout=60)
            return process.returncode, out, err

    def file(self, name):
        path = self.folder / name
        return path.read_text().split() if path.exists() else []


def test_XD15_a_run_that_ends_in_doubt_does_not_end_well(world):
    world.plays(Turn(tool="lose", arguments={"to": "ann"}), "Paid.")
    status, out, err = world.run(
        "agent", "run", "Pay ann.", "--agent", "shop:loser", "--mode", "yolo", "--session", "s"
    )
    assert (status, out.strip()) == (7, "Paid.")
    assert "1 unsafe step may have happened, and nobody knows" in err
    assert "holdfast sessions show s" in err
    assert world.file("paid.txt") == ["ann"]


def without_keys(**more):
    return dict.fromkeys(("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "OPENAI_API_KEY", "XAI_API_KEY"), "") | more


def test_without_keys_the_fault_provider_answers_and_the_command_says_so(tmp_path):
    env = without_keys(HOLDFAST_STORE=f"sqlite:{tmp_path}/work.db")
    result = holdfast("agent", "run", "hello there", "--session", "s", env=env)
    assert result.exit_code == 0
    assert result.stdout.startswith("The tool says: ")
    assert "No key is set, so the fault provider answers" in result.stderr
    assert "retry 2 in" in result.stderr
    assert re.search(r"done: 2 turns, 1 tool call, \d+ tokens, nothing was paid", result.stderr)
    assert "ANTHROPIC_BASE_URL" not in os.environ
    document = json.loads(holdfast("agent", "run", "once more", "--session", "s", "--json", env=env).stdout)
    assert document.pop("usage")["output"] > 0
    assert document.pop("usd") > 0
    assert [message["role"] for message in document.pop("messages")] == ["user", "assistant", "tool", "assistant"]
    assert document.pop("text").startswith("The tool says: ")
    assert document == {
        "schema": "holdfast.agent-run/1",
        "ok": True,
        "provider": "fault provider",
        "turns": 2,
        "tool_calls": 1,
        "model": "claude-sonnet-5-5",
        "session": "s",
        "agent": "agent",
    }


def test_the_commands_that_answer_name_the_store_of_the_run(world):
    world.plays(Turn(calls=(ToolCall("pay", {"to": "ann"}), ToolCall("pay", {"to": "bob"}))), "All is paid.")
    store = f"sqlite:{world.folder / 'other.db'}"
    status, out, err = world.run(
        "agent", "run", "pay", "--agent", "shop:agent", "--session", "s", "--store", store, "--json"
    )
    assert status == 7
    for question in json.loads(out)["pending"]:
        assert f"holdfast sessions answer s {question['id']} --yes --store {store}" in err
    assert err.count("holdfast sessions answer") >= 2


def test_an_agent_of_a_program_asks_before_an_unsafe_call_and_goes_on_after_the_answer(world):
    """Nobody is at a terminal: the question is kept, somebody answers it, and the run goes on where it was."""
    world.plays(Turn(calls=(ToolCall("look", {"at": "x"}), ToolCall("pay", {"to": "ann"}))), "All is paid.")
    status, out, err = world.run("agent", "run", "pay ann", "--agent", "shop:agent", "--session", "s", "--json")
    document = json.loads(out)
    assert (status, document["ok"], document["fault"]["code"]) == (7, False, "SESS_NO_INTERACTOR")
    (question,) = document["pending"]
    assert question["prompt"] == 'Run pay({"to":"ann"})?'
    assert "go on with: holdfast agent run --session s --agent shop:agent" in err
    assert f"holdfast sessions answer s {question['id']} --yes\n" in err
    assert (world.file("paid.txt"), world.file("looked.txt")) == ([], ["x"])
    assert world.run("sessions", "answer", "s", question["id"], "--yes")[0] == 0
    status, out, err = world.run("agent", "run", "--agent", "shop:agent", "--session", "s")
    assert (status, out) == (0, "All is paid.\n")
    assert (world.file("paid.txt"), world.file("looked.txt")) == (["ann"], ["x"])
    assert world.provider.counters.received == 2
    status, out, err = world.run("agent", "run", "--agent", "shop:agent", "--session", "s")
    assert status == 2
    assert "nothing was cut in session s" in err


@pytest.mark.parametrize(
    ("flags", "paid"), [(("--mode", "yolo"), ["ann"]), (("--allow", "pay"), ["ann"]), (("--allow", "look"), [])]
)
def test_the_mode_decides(world, here, flags, paid):
    world.plays(PAY, "Done.")
    result = here("pay ann", "--agent", "shop:agent", *flags)
    assert (result.exit_code, result.stdout) == (0, "Done.\n")
    assert world.file("paid.txt") == paid


def on_terminal(world, *arguments, typed):
    """Run the command at a terminal; type each text when the question before it was shown, and the hint that an answer is awaited."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(world.folder)
        os.execve(SCRIPT, [SCRIPT, *arguments], {**world.environment, "TERM": "xterm", "COLUMNS": "100"})
    shown, left = "", list(typed)
    with suppress(OSError):  # the terminal is gone when the process is
        while data := os.read(terminal, 65_536):
            shown += data.decode("utf-8", "replace")
            # What is typed before the hint is dropped: it cannot be an answer to this question.
            if left and "[y/n] " in shown[shown.find(left[0][0]) :] and left[0][0] in shown:
                os.write(terminal, left.pop(0)[1].encode())
    os.close(terminal)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", shown)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), plain


def test_at_a_terminal_the_person_is_asked_there_and_the_model_learns_the_reason(world):
    world.plays(PAY, Turn(tool="pay", arguments={"to": "bob"}), "Bob is paid.\nAnn is not.", steps="529")
    status, shown = on_terminal(
        world,
        *("agent", "run", "pay them", "--agent", "shop:agent", "--session", "s"),
        typed=[('Run pay({"to":"ann"})?', "n too risky\n"), ('Run pay({"to":"bob"})?', "y\n")],
    )
    assert status == 0
    assert world.file("paid.txt") == ["bob"]
    assert "too risky" in world.provider.requests[-1].body.decode()
    for text in ("Retrying", "I pay.", "→ pay(", "Bob is paid.\nAnn is not.", "done: 3 turns, 2 tool calls"):
        assert text in shown
    assert re.search(r"\d USD", shown)


def test_a_killed_run_goes_on_and_pays_for_no_answer_again(world):
    world.plays(LOOK, "I have seen x.")
    (world.folder / "hang").touch()
    with world.start("agent", "run", "look at x", "--agent", "shop:agent", "--session", "s") as process:
        wait_for(world, process)
        process.kill()
    (world.folder / "hang").unlink()
    status, out, err = world.run("agent", "run", "--agent", "shop:agent", "--session", "s")
    assert (status, out) == (0, "I have seen x.\n")
    assert "goes on with turn 1" in err
    assert world.provider.counters.received == 2


@pytest.mark.soak
@pytest.mark.skipif("HOLDFAST_SOAK" not in os.environ, reason="three processes for each signal: make soak")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_G21_an_interrupted_run_leaves_its_session_in_order_and_says_how_to_go_on(world, number, status):
    world.plays(LOOK, "I have seen x.")
    (world.folder / "hang").touch()
    with world.start("agent", "run", "look at x", "--agent", "shop:agent", "--session", "s") as process:
        wait_for(world, process)
        process.send_signal(number)
        (world.folder / "hang").unlink()
        _, err = process.communicate(timeout=30)
    assert process.returncode == status
    assert "interrupted; go on with: holdfast agent run --session s --agent shop:agent" in err
    assert json.loads(world.run("sessions", "show", "s", "--json")[1])["state"] == "paused"
    assert world.run("agent", "run", "--agent", "shop:agent", "--session", "s")[1] == "I have seen x.\n"


def wait_for(world, process):
    """Wait until the tool runs."""
    assert process.stderr is not None
    while "look" not in process.stderr.readline():
        assert process.poll() is None
    while not world.file("looked.txt"):
        os.sched_yield()


def test_a_run_that_fails_says_what_it_is_and_how_to_go_on(world, here):
    world.plays("never", steps="overflow")
    result = here("hello", "--agent", "shop:make", "--session", "s")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "PROVIDER_CONTEXT_OVERFLOW" in result.stderr
    assert "go on with: holdfast agent run --session s --agent shop:make" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--agent", "shop"), "expected MODULE:NAME"),
        (("--agent", "shp:agent"), "there is no shp"),
        (("--agent", "shop:agnt"), "--agent: expected an agent in shop, got 'agnt'; did you mean `agent`?"),
        (("--agent", "shop:number"), "an agent, or a function that returns one"),
        (("--agent", "shop:agent", "--model", "gpt-5"), "no --model beside --agent"),
        (("--model", "claude-sonet"), "did you mean"),
        (("--mode", "maybe"), "allowlist, ask, yolo"),
        (("--mode", "ask", "--allow", "pay"), "mode="),
    ],
)
def test_a_wrong_command_line_says_what_was_expected(here, arguments, message):
    result = here("hello", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert message in result.stderr


def test_a_prompt_or_a_session_is_needed():
    result = holdfast("agent", "run")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "a prompt, or --session" in result.stderr


def test_a_session_that_does_not_exist_is_not_made_without_a_prompt(here, world):
    world.plays("Hello.")
    assert "There is no store at" in here("--agent", "shop:agent", "--session", "release-42").stderr
    assert not (world.folder / "work.db").exists()
    assert here("hello", "--agent", "shop:agent", "--session", "release-42").exit_code == 0
    result = here("--agent", "shop:agent", "--session", "relaese-42")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "SESS_NOT_FOUND" in result.stderr
    assert "Session 'relaese-42' not found. Did you mean release-42?" in result.stderr
    listed = json.loads(holdfast("sessions", "ls", "--json", env=world.environment).stdout)
    assert len(listed["sessions"]) == 1


def test_without_keys_the_tools_of_the_agent_are_called(here, world, monkeypatch):
    for name in without_keys():
        monkeypatch.delenv(name, raising=False)
    env = without_keys(HOLDFAST_STORE=f"sqlite:{world.folder}/work.db")
    result = holdfast("agent", "run", "look around", "--agent", "shop:make", "--session", "s", env=env)
    assert result.exit_code == 0
    assert result.stdout.startswith("The tool says: seen ")
    assert "→ look(" in result.stderr
    assert len(world.file("looked.txt")) == 1
    assert "holdfast faults serve --script" in result.stderr


def test_a_result_of_one_byte_is_counted_as_one(here, world):
    world.plays(Turn(tool="one"), "Done.")
    (world.folder / "shop.py").write_text(PROGRAM + ONE)
    assert "← one: 1 byte\n" in here("count", "--agent", "shop:counts", "--session", "s").stderr
