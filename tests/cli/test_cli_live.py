"""The live line: on a real terminal with its keys, and in a pipe one line per transition (UX.md)."""

from __future__ import annotations

import asyncio
import io
import os
import pty
import re
import select
import termios
import threading
import time
from datetime import UTC

import pytest
from rich.console import Console

from holdfast import Backoff, Policy, Runtime, recover
from holdfast.cli.live import MOST_LINES, LiveView, live
from holdfast.events import Commanded, Recovered, Retry
from holdfast.faults import AbortedError, Fault
from holdfast.testing import Capture, Midpoint, VirtualClock, run, script

LONG = Policy(attempts=3, patience=None, circuit=None, backoff=Backoff(initial=50, cap=50))


SCREEN = Console(file=io.StringIO(), width=60)


class Terminal:
    """A pseudo terminal: the program's end, and what a person sees and types."""

    def __init__(self) -> None:
        self._person, self._program = pty.openpty()
        self.stream = open(self._program, "r+b", buffering=0, closefd=False)  # noqa: SIM115
        self.out = io.TextIOWrapper(self.stream, encoding="utf-8", write_through=True)
        self.seen = ""

    def fileno_is_raw(self) -> bool:
        return not termios.tcgetattr(self._program)[3] & termios.ICANON

    def type(self, keys: str) -> None:
        os.write(self._person, keys.encode())

    def sees(self, text: str) -> bool:
        return self.sees_until(lambda: text in self.plain())

    def sees_until(self, satisfied, seconds: float = 5.0) -> bool:
        until = time.monotonic() + seconds
        while not satisfied() and time.monotonic() < until:
            if select.select([self._person], [], [], 0.05)[0]:
                self.seen += os.read(self._person, 65536).decode("utf-8", "replace")
        return satisfied()

    def plain(self) -> str:
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.seen)

    def screen(self) -> str:
        """What is left of what was seen: lines that were erased are gone."""
        lines, row = [""], 0
        for part in re.findall(r"\x1b\[[0-9;?]*[A-Za-z]|\n|[^\x1b\r\n]+", self.seen):
            if part == "\n":
                row += 1
                lines += [""] * (row + 1 - len(lines))
            elif up := re.fullmatch(r"\x1b\[(\d*)A", part):
                row -= int(up[1] or 1)
            elif part == "\x1b[2K":
                lines[row] = ""
            elif not part.startswith("\x1b"):
                lines[row] += part
        return "\n".join(lines)

    def close(self) -> None:
        self.out.detach()
        os.close(self._program)
        os.close(self._person)


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    made = Terminal()
    yield made
    made.close()


@pytest.fixture
def runtime():
    made = Runtime(rng=Midpoint())
    made.seen = Capture()
    made.on(made.seen)
    return made


class Call:
    """A call in a thread of its own."""

    def __init__(self, fn) -> None:
        self.result = None
        self._thread = threading.Thread(target=self._run, args=(fn,))
        self._thread.start()

    def _run(self, fn) -> None:
        try:
            self.result = fn()
        except Exception as error:
            self.result = error

    def over(self):
        self._thread.join(5)
        assert not self._thread.is_alive()
        return self.result


def test_r_retries_now(runtime, terminal):
    with live(runtime, stream=terminal.out, keys=terminal.out, zone=UTC):
        call = Call(lambda: recover("claude", LONG, runtime=runtime).call(script("529, ok:hello")))
        assert terminal.sees("⟳ Retrying... (2/3) in ")
        assert terminal.sees("claude · PROVIDER_OVERLOADED (529)  [r] now  [c] cancel")
        assert terminal.fileno_is_raw()
        terminal.type("xr")
        assert call.over() == "hello"
        assert terminal.sees("✓ recovered after 2 attempts")
    assert [(event.command, event.by) for event in runtime.seen.of(Commanded)] == [("retry-now", "terminal")]
    assert not terminal.fileno_is_raw()
    assert not [thread for thread in threading.enumerate() if thread.name == "holdfast keys"]


def test_f_falls_back_and_is_only_offered_where_there_is_something(runtime, terminal):
    calls = script("529, ok:hello")

    @recover("claude", LONG, runtime=runtime)
    def ask():
        return calls()

    @ask.fallback
    def other():
        return "other"

    with live(runtime, stream=terminal.out, keys=terminal.out):
        call = Call(ask)
        assert terminal.sees("[r] now  [f] fall back  [c] cancel")
        terminal.type("f")
        assert call.over() == "other"
        assert terminal.sees("via other")


def test_c_cancels(runtime, terminal):
    with live(runtime, stream=terminal.out, keys=terminal.out):
        call = Call(lambda: recover("claude", LONG, runtime=runtime).call(script("529, ok")))
        assert terminal.sees("[c] cancel")
        terminal.type("C")
        assert isinstance(call.over(), AbortedError)
        assert terminal.sees("✖ cancelled after 1 attempt · claude")


def test_the_countdown_runs(runtime, terminal):
    with live(runtime, stream=terminal.out, keys=terminal.out):
        call = Call(lambda: recover("claude", LONG, runtime=runtime).call(script("529, ok")))
        assert terminal.sees("in 49.")
        assert terminal.sees_until(lambda: len(set(re.findall(r"in (49\.\d)s", terminal.plain()))) > 1)
        terminal.type("r")
        call.over()


def test_without_a_keyboard_there_are_lines_and_no_keys(runtime, terminal):
    with live(runtime, stream=terminal.out, keys=io.StringIO()) as view:
        call = Call(lambda: recover("claude", LONG, runtime=runtime).call(script("529, ok")))
        assert terminal.sees("⟳ Retrying... (2/3)")
        assert not view.has_keys
        assert "[r]" not in terminal.plain()
        assert view.pressed("r")
        call.over()


class _Slow:
    """A part of printing that takes its time, so that the screen would be drawn anew meanwhile."""

    def process_renderables(self, renderables):
        if threading.current_thread() is threading.main_thread():
            time.sleep(0.1)
        return renderables


def test_a_line_that_is_over_stays_though_the_screen_is_drawn_meanwhile(runtime, terminal, monkeypatch):
    monkeypatch.setattr("holdfast.cli.live._PER_SECOND", 100)
    first, second = (
        Retry(
            at=time.time(), run=name, operation=name, attempt=1, max_attempts=2, delay=9, fault=Fault.of("CONN_RESET")
        )
        for name in ("first", "second")
    )
    with live(runtime, stream=terminal.out, keys=io.StringIO()) as view:
        view.say("written before")
        runtime.bus.emit(first)
        runtime.bus.emit(second)
        assert terminal.sees("second")
        view.console.push_render_hook(_Slow())
        runtime.bus.emit(Recovered(at=time.time(), run="first", operation="first", after=0, attempts=2))
        view.console.pop_render_hook()
        assert terminal.sees("✓ recovered after 2 attempts, 0.0s · first")
    terminal.sees_until(lambda: False, 0.1)
    kept = terminal.screen()
    assert "written before\n✓ recovered after 2 attempts, 0.0s · first\n⟳ Retrying... (2/2) in " in kept
    assert kept.count("first") == 1


# --- pipes ---


def test_in_a_pipe_one_line_per_transition(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # colour only, never live lines
    clock = VirtualClock()
    runtime = Runtime(clock=clock, rng=Midpoint())
    pipe = io.StringIO()
    with live(runtime, stream=pipe, zone=UTC):
        run(recover("claude", runtime=runtime).call(script("529;retry-after=4, 503, ok").acall), clock=clock)
    assert pipe.getvalue().splitlines() == [
        "00:00:00 retry 2 in 4.0s claude PROVIDER_OVERLOADED (529)",
        "00:00:04 retry 3 in 0.9s claude PROVIDER_UNAVAILABLE (503)",
        "00:00:04 recovered after 3 attempts, 4.9s claude",
    ]


def test_in_a_pipe_a_line_shows_how_many_attempts_there_are():
    clock = VirtualClock()
    runtime = Runtime(clock=clock, rng=Midpoint())
    pipe = io.StringIO()
    with live(runtime, stream=pipe, zone=UTC):
        three = recover("claude", Policy(attempts=3), runtime=runtime)
        run(three.call(script("529;retry-after=4, ok").acall), clock=clock)
    assert pipe.getvalue().splitlines()[0] == "00:00:00 retry 2/3 in 4.0s claude PROVIDER_OVERLOADED (529)"


def test_a_dumb_terminal_is_a_pipe(runtime, terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    clock = VirtualClock()
    runtime.clock = clock
    with live(runtime, stream=terminal.out, keys=terminal.out, zone=UTC):
        run(recover("claude", runtime=runtime).call(script("503, ok").acall), clock=clock)
        assert not terminal.fileno_is_raw()
    assert terminal.sees("00:00:00 recovered after 2 attempts, 0.4s claude")
    assert "\x1b" not in terminal.seen


def test_a_pipe_that_is_closed_breaks_no_call():
    runtime = Runtime(waits=False)
    pipe = io.StringIO()
    with live(runtime, stream=pipe):
        pipe.close()
        assert recover("claude", runtime=runtime).call(script("503, ok:fine")) == "fine"


def test_names_cannot_steer_the_terminal():
    view = LiveView(Runtime(), SCREEN)
    event = Retry(
        at=0.0, run="a", operation="evil\x1b[2J", attempt=1, max_attempts=2, delay=1, fault=Fault.of("CONN_RESET")
    )
    assert "\x1b" not in view.logged(event)
    assert "\x1b" not in view.drawn().plain


def test_more_lines_than_fit_are_counted():
    view = LiveView(Runtime(), SCREEN)
    for n in range(MOST_LINES + 3):
        view.logged(Retry(at=0.0, run=str(n), operation="claude", attempt=1, max_attempts=2, delay=1, fault=Fault.of("CONN_RESET")))  # fmt: skip
    drawn = view.drawn().plain.splitlines()
    assert len(drawn) == MOST_LINES + 1
    assert drawn[-1] == "… and 3 more"


def test_a_narrow_terminal_keeps_one_line_per_operation_and_the_keys(runtime):
    view = LiveView(runtime, SCREEN)
    view.has_keys = True
    runtime.on(view.logged, Retry)

    async def scenario():
        call = asyncio.ensure_future(recover("claude", LONG, runtime=runtime).call(script("503, ok").acall))
        while not runtime.commands.waiting():  # noqa: ASYNC110 - that is what is waited for
            await asyncio.sleep(0)
        drawn = view.drawn().plain
        assert view.pressed("r")
        await call
        return drawn

    drawn = asyncio.run(scenario())
    assert len(drawn) == 60
    assert drawn.startswith("⟳ retry 2/3 in ")
    assert drawn.endswith("…  [r] now  [c] cancel")


def test_beside_three_keys_a_narrow_terminal_still_shows_the_whole_countdown(runtime):
    view = LiveView(runtime, SCREEN)
    view.has_keys = True
    runtime.on(view.logged, Retry)
    calls = script("503, ok")

    @recover("claude", LONG, runtime=runtime)
    async def answer():
        return await calls.acall()

    @answer.fallback
    async def other():
        return "from the other"

    async def scenario():
        call = asyncio.ensure_future(answer())
        while not runtime.commands.waiting():  # noqa: ASYNC110 - that is what is waited for
            await asyncio.sleep(0)
        drawn = view.drawn().plain
        assert view.pressed("r")
        await call
        return drawn

    drawn = asyncio.run(scenario())
    assert len(drawn) <= 60
    assert re.fullmatch(r"⟳ retry 2/3 in \d+\.\ds  \[r\] now  \[f\] fall back  \[c\] cancel", drawn)


def test_a_key_is_for_the_first_line_that_waits_and_does_nothing_otherwise(runtime):
    view = LiveView(runtime, SCREEN)
    runtime.on(view.logged, Retry)
    assert not view.pressed("r")

    async def scenario():
        calls = [
            asyncio.ensure_future(recover(name, LONG, runtime=runtime).call(script("503, ok").acall)) for name in "ab"
        ]
        while len(runtime.commands.waiting()) < 2:  # noqa: ASYNC110 - that is what is waited for
            await asyncio.sleep(0)
        assert not view.pressed("x")
        assert view.pressed("c")
        assert view.pressed("r")
        return await asyncio.gather(*calls, return_exceptions=True)

    first, second = asyncio.run(scenario())
    assert isinstance(first, AbortedError)
    assert second is None
