"""`holdfast demo`: the storm, its counts, and how it is shown."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest
from cli_runs import environment, heed_interrupts, holdfast, holdfast_json

import holdfast as package
from holdfast.cli.demo import show
from holdfast.cli.demo.storm import ANTHROPIC, CAST, OPENAI, Act, storm
from holdfast.cli.demo.tally import ENDS, DemoTally
from holdfast.cli.demo.workers import DemoStage, on_loopback, perform
from holdfast.events import AttemptEnded, Retry
from holdfast.faults import Fault
from holdfast.runtime.runtime import Runtime, SystemClock, use_runtime
from holdfast.testing.provider.script import Playback, Rule, Script

SOURCE = str(Path(package.__file__).parents[1])
COMMAND = [sys.executable, "-m", "holdfast", "demo"]
ENVIRONMENT = environment(PYTHONPATH=SOURCE, TERM="xterm", COLUMNS="100")


@pytest.fixture(scope="module")
def result():
    """The storm of seed 1, once for all tests that only read it."""
    return holdfast("demo", "--fast")


@pytest.fixture(scope="module")
def found():
    return holdfast_json("demo", "--fast")


def act_of(found, name):
    return next(act for act in found["acts"] if act["act"] == name)


# --- what comes of it ---


def test_every_call_is_counted_once_and_every_attempt_is_a_request(found):
    assert found["schema"] == "holdfast.demo/1"
    assert found["matches"] is True
    for act in found["acts"]:
        assert act["calls"] == len(CAST) == sum(act[end] for end in ENDS)
    for server in found["servers"]:
        assert server["attempts"] == server["requests"] == server["answered"] + server["faults"]
        assert server["faults"] == sum(found["injected"][server["server"]].values())


def test_what_can_be_recovered_is(found):
    for name in ("rate limits", "overload", "hang"):
        act = act_of(found, name)
        assert act["recovered"] > 0
        assert act["answered"] + act["recovered"] == act["calls"]
    assert act_of(found, "cut streams")["degraded"] == 1  # who keeps what came
    assert act_of(found, "wrong key")["given_up"] == 1
    assert found["injected"][OPENAI]["401"] == 1  # not asked again


def test_an_outage_ends_in_fallbacks_then_nothing_is_sent_and_then_all_is_well(found):
    down, shut, back = (act_of(found, name) for name in ("outage", "circuit open", "return"))
    claudes = sum(worker.provider == ANTHROPIC for worker in CAST)
    assert (down["fell_back"], down["answered"]) == (claudes, 1)
    assert (shut["fell_back"], shut["degraded"]) == (claudes - 1, 1)
    assert back["answered"] == len(CAST)
    anthropic, openai = found["servers"]
    assert (anthropic["not_sent"], openai["not_sent"]) == (claudes, 0)
    assert found["injected"][ANTHROPIC]["503"] == 3 * claudes  # those while it was open never came


def test_the_same_seed_gives_the_same_counts_and_another_one_others(found):
    assert holdfast_json("demo", "--fast", "--seed", "1") == found
    other = holdfast_json("demo", "--fast", "--seed", "4")
    assert {**other, "seed": 1} != found
    assert other["injected"] != found["injected"]
    assert other["matches"]


@pytest.mark.parametrize("seed", range(6))
def test_every_seed_is_a_script_that_holds_and_proves_itself(seed):
    assert storm(seed) == storm(seed)
    for act in storm(seed):
        Playback(Script(rules=tuple(Rule(steps=steps, models=(model,)) for model, steps in act.steps.items())))
    assert holdfast("demo", "--fast", "--seed", str(seed)).exit_code == 0


def test_on_loopback_the_counts_are_the_same():
    """The acts that need no wait, over sockets: what is counted there is what was result."""
    tally, runtime = DemoTally(), Runtime(waits=False)
    acts = [
        act for act in storm(1) if act.name in {"rate limits", "cut streams", "wrong key", "outage", "circuit open"}
    ]

    async def play(servers):
        stage = DemoStage(servers, memory=False)
        for act in acts:
            stage.set(act)
            await perform(act, CAST, stage, tally, lambda _: None)
            tally.take_counters(act.name, servers)
        await stage.close()

    with use_runtime(runtime), on_loopback(SystemClock()) as servers, tally.listen(runtime):
        asyncio.run(play(servers))
    assert tally.mismatches() == []
    in_memory = holdfast_json("demo", "--fast")
    assert [tally.ends(act.name) for act in acts] == [
        {name: count for name, count in act_of(in_memory, act.name).items() if name != "act"} for act in acts
    ]


# --- how it is shown ---


def test_results_are_on_stdout_and_the_storm_on_stderr(result, found):
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert re.split(r"\s{2,}", lines[0]) == [
        "act",
        "calls",
        "answered",
        "recovered",
        "fell back",
        "degraded",
        "given up",
    ]
    shown = {
        line[:12].strip(): [int(number) for number in line[12:].split()] for line in lines[1 : 1 + len(found["acts"])]
    }
    assert shown == {act["act"]: [act["calls"], *(act[end] for end in ENDS)] for act in found["acts"]}
    for server in found["servers"]:
        counts = [server[name] for name in ("attempts", "requests", "answered", "faults", "not_sent")]
        assert [server["server"], *map(str, counts)] in [line.split() for line in lines]
        for fault, times in found["injected"][server["server"]].items():
            assert f"{fault} ×{times}" in result.stdout
    requests = sum(server["requests"] for server in found["servers"])
    assert lines[-1] == f"Checked: Holdfast reported {requests} attempts, and the servers counted {requests} requests."


def test_the_page_shows_what_really_comes(result):
    page = (Path(__file__).parents[2] / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")
    assert result.stdout in page


def test_in_a_pipe_it_is_shown_line_by_line(result):
    assert "\x1b" not in result.stderr
    for act in storm(1):
        assert act.title in result.stderr
    for line in (
        r"^\d\d:\d\d:\d\d retry 2 in \d\.\ds anthropic/claude-opus PROVIDER_RATE_LIMITED \(429\)$",
        r"^\d\d:\d\d:\d\d recovered after 2 attempts, \d\.\ds openai/gpt-4.1$",
        r"^\d\d:\d\d:\d\d stream restarts anthropic/claude-sonnet$",
        r"^  reviewer keeps the first \d+ events of the answer \(counted as degraded\)$",
        r"^\d\d:\d\d:\d\d retry 2 in \d\.\ds anthropic/\S+ PROVIDER_TIMEOUT$",
        r"^\d\d:\d\d:\d\d retry 2/3 in \d\.\ds anthropic/\S+ PROVIDER_UNAVAILABLE \(503\)$",
        r"^  writer gets the SDK's own AuthenticationError; next to act: operator$",
        r"^\d\d:\d\d:\d\d fallback → openai/gpt-5 anthropic/claude-opus PROVIDER_UNAVAILABLE \(503\)$",
        r"^\d\d:\d\d:\d\d circuit open until \d\d:\d\d:\d\d anthropic PROVIDER_UNAVAILABLE$",
        r"^\d\d:\d\d:\d\d fallback → openai/gpt-5 anthropic/claude-opus CIRCUIT_OPEN$",
        r"^  tester shows its user: ",
        r"^\d\d:\d\d:\d\d circuit closed anthropic$",
        r"^  ✖ attempt 1 +0\.0 s → 0\.0 s  PROVIDER_UNAVAILABLE \(503\)$",
        r"^next: holdfast explain PROVIDER_OVERLOADED ",
    ):
        assert re.search(line, result.stderr, re.MULTILINE), line


def test_a_mismatch_is_reported_and_is_exit_1(monkeypatch):
    monkeypatch.setattr(show, "perform", _perform_and_ask_once_more)
    result = holdfast("demo", "--fast")
    assert result.exit_code == 1
    assert "Holdfast's events do not agree with the servers' counters" in result.stderr
    assert "rate limits: " in result.stderr
    assert "Checked" not in result.stdout


async def _perform_and_ask_once_more(act, cast, stage, tally, say):
    await perform(act, cast, stage, tally, say)
    await stage.claude.messages.create(model="unseen", max_tokens=9, messages=[{"role": "user", "content": "hello"}])


def test_nothing_around_it_changes_the_storm(found, monkeypatch, tmp_path):
    (tmp_path / "holdfast.toml").write_text("nonsense = 1\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "ANTHROPIC_AUTH_TOKEN": "elsewhere",
        "ANTHROPIC_BASE_URL": "http://192.0.2.1",
        "OPENAI_BASE_URL": "http://192.0.2.1",
        "HTTP_PROXY": "http://192.0.2.1:1",
        "ALL_PROXY": "http://192.0.2.1:1",
        "HOLDFAST_ENABLED": "false",
    }.items():
        monkeypatch.setenv(name, value)
    assert holdfast_json("demo", "--fast") == found


def test_a_closeup_shows_one_operation_only():
    fault = Fault.of("CONN_RESET")
    events = [
        Retry(at=5.0, run="a", operation="claude", attempt=1, max_attempts=3, delay=2.0, fault=fault, requested=True),
        AttemptEnded(at=7.5, run="b", operation="gpt", attempt=1, took=0.5),
        AttemptEnded(at=8.0, run="a", operation="claude", attempt=2, took=1.0),
    ]
    lines = show.closeup(events)
    assert [" ".join(line.split()) for line in lines] == [
        "claude, run a",
        "⟳ wait 2.0 s Retry-After of the server",
        "✓ attempt 2 2.0 s → 3.0 s answered",
    ]
    assert show.closeup([]) == []


# --- as a program ---


@pytest.mark.parametrize("missing", ["anthropic", "openai", "httpx2"])
def test_FU6_without_the_sdks_one_line_says_what_to_install(missing):
    program = (
        f"import sys; sys.modules['{missing}'] = None; sys.argv = ['holdfast', 'demo', '--fast']\n"
        "from holdfast.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, env=ENVIRONMENT, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        "holdfast: SYS_DEPENDENCY_MISSING  holdfast demo needs the anthropic and openai packages: "
        "pip install '.[demo]' in a clone\n"
        "  help: holdfast explain SYS_DEPENDENCY_MISSING\n"
    )


def test_a_reader_that_goes_away_is_no_failure():
    with subprocess.Popen(
        [*COMMAND, "--fast"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=ENVIRONMENT
    ) as demo:
        demo.stdout.readline()
        demo.stdout.close()
    assert demo.returncode == 0


class Screen:
    """The demo on a terminal of its own."""

    def __init__(self) -> None:
        self._person, program = pty.openpty()
        self._before = termios.tcgetattr(program)
        self._program = program
        self.demo = subprocess.Popen(
            COMMAND,
            stdin=program,
            stdout=program,
            stderr=program,
            env=ENVIRONMENT,
            start_new_session=True,
            preexec_fn=heed_interrupts,  # noqa: PLW1509 - no other thread forks
        )
        self.seen = ""

    def sees(self, pattern: str, seconds: float = 30.0) -> bool:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if re.search(pattern, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.seen)):
                return True
            if select.select([self._person], [], [], 0.05)[0]:
                self.seen += os.read(self._person, 65536).decode("utf-8", "replace")
        return False

    def press(self, key: str) -> None:
        os.write(self._person, key.encode())

    def presses_until_it_sees(self, key: str, pattern: str) -> bool:
        """A person presses again while nothing happens: on a busy machine no call may wait at the first press."""
        for _ in range(30):
            self.press(key)
            if self.sees(pattern, 1.0):
                return True
        return False

    def interrupt(self) -> int:
        self.demo.send_signal(signal.SIGINT)
        self.sees("(?!)", 0.2)  # what it still writes must go somewhere
        return self.demo.wait(20)

    def is_as_before(self) -> bool:
        return termios.tcgetattr(self._program) == self._before

    def close(self) -> None:
        self.demo.kill()
        self.demo.wait()
        os.close(self._program)
        os.close(self._person)


def test_keys_act_on_a_terminal_and_ctrl_c_leaves_it_as_it_was():
    screen = Screen()
    try:
        assert screen.sees(r"⟳ Retrying… attempt 2 · 120 s left in .*\[r\] now  \[c\] cancel")
        assert not screen.is_as_before()
        screen.press("r")
        assert screen.sees(r"✓ recovered after 2 attempts")
        assert screen.presses_until_it_sees("c", r"✖ cancelled after \d attempt")
        assert screen.interrupt() == 130
        assert screen.is_as_before()
    finally:
        screen.close()


def test_FU10_a_closeup_has_no_negative_times():
    events = [AttemptEnded(at=7.5, run="b", operation="gpt", attempt=1, took=0.004)]
    assert "  ✓ attempt 1 0.0 s → 0.0 s  answered" in show.closeup(events)


@pytest.mark.parametrize("columns", [60, 80])
def test_FU10_a_narrow_terminal_breaks_no_word(monkeypatch, columns):
    monkeypatch.setattr("holdfast.cli.output._on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    shown = holdfast("demo", "--fast").stdout
    assert {"answered", "recovered", "degraded", "streams"} <= set(shown.split())
    assert max(map(len, shown.splitlines())) <= columns


def test_a_narrow_terminal_loses_no_figure(monkeypatch, found):
    monkeypatch.setattr("holdfast.cli.output._on_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "60")
    shown = holdfast("demo", "--fast").stdout
    assert max(len(line.rstrip()) for line in shown.partition("\n\n")[0].splitlines()) <= 60
    totals = [sum(act[name] for act in found["acts"]) for name in ("calls", *ENDS)]
    assert ["in", "all", *map(str, totals)] in [line.split() for line in shown.splitlines()]


def test_the_title_of_an_act_is_short():
    for act in storm(1):
        assert isinstance(act, Act)
        assert act.title.endswith(".")
        assert len(act.title) < 120
