"""The live line on a terminal, with its keys; in a pipe, one line per transition.

    with live(runtime):
        …                   # ⟳ Retrying… (2/3) in 3.4s · claude · PROVIDER_OVERLOADED  [r] now  [f] fall back  [c] cancel

Invariant: it reads events and sends commands, and decides nothing. Whatever happens to the terminal, calls go on, and when the
block ends the terminal is as it was.
"""

from __future__ import annotations

import os
import select
import sys
import threading
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Self, TextIO, cast

from rich.console import Console
from rich.live import Live
from rich.text import Text

from holdfast.cli.output import discard, one_line
from holdfast.runtime.runtime import Runtime, default_runtime
from holdfast.sinks.live import LiveLine, LiveState, LiveWord, watch_events

try:
    import termios
    import tty
except ModuleNotFoundError:  # Windows has neither: the lines are shown, without keys
    termios = tty = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import tzinfo

    from holdfast.events import Event
    from holdfast.runtime.commands import Waiting

__all__ = ["LiveView", "live"]

MOST_LINES = 10
"""What a terminal shows at once; of the rest, how many there are."""
_PER_SECOND = 8
BY = "terminal"
"""Whom the audit names for a key."""

_STYLES = {
    LiveWord.OK: "green",
    LiveWord.FAILED: "red",
    LiveWord.CIRCUIT_OPEN: "yellow",
    LiveWord.DEGRADED: "yellow",
    LiveWord.CANCELLED: "dim",
}


@contextmanager
def live(
    runtime: Runtime | None = None,
    *,
    stream: TextIO | None = None,
    keys: TextIO | None = None,
    zone: tzinfo | None = None,
) -> Iterator[LiveView]:
    """Show what goes on in `runtime` for as long as the block runs: on `stream` (stderr), with keys from `keys` (stdin).

    Live lines need a terminal to write to, keys one to read from; FORCE_COLOR asks for colour, never for these.
    """
    stream = sys.stderr if stream is None else stream
    keys = sys.stdin if keys is None else keys
    view = LiveView(runtime or default_runtime(), Console(file=stream, highlight=False), zone)
    with ExitStack() as stack:
        if stream.isatty() and not view.console.is_dumb_terminal:
            stack.enter_context(view.on_screen())
            if keys.isatty():
                view.has_keys = True
                stack.enter_context(Keys(keys, view.pressed))
            stack.enter_context(watch_events(view.changed, view.runtime))
        else:
            stack.enter_context(watch_events(_logger(view), view.runtime))
        yield view


class LiveView:
    """The lines of a runtime, and what a key does to the first of them that waits."""

    def __init__(self, runtime: Runtime, console: Console, zone: tzinfo | None = None) -> None:
        self.runtime = runtime
        self.console = console
        self.has_keys = False
        self._zone = zone
        self._state = LiveState()
        self._screen: Live | None = None
        self._drawing = threading.RLock()

    def changed(self, event: Event) -> LiveLine | None:
        """Take in what happened. A line that is over stays above those that go on."""
        line = self._state.apply(event)
        if line is not None and line.over:
            self._write(self._text(line))
        return line

    def say(self, text: str, style: str = "") -> None:
        """Write a line of the program's own, above those that go on. Where nobody can read it any more, nothing happens."""
        if self.console.file.isatty():
            self._write(Text(one_line(text), style=style))
        else:
            self.write_plain(one_line(text))

    def logged(self, event: Event) -> str | None:
        """Take in what happened, and return its line for a pipe."""
        line = self._state.apply(event)
        return None if line is None else one_line(line.logged(self._zone))

    def write_plain(self, line: str) -> None:
        """Write a line to a pipe; one that nobody reads any more takes nothing further."""
        stream = cast("TextIO", self.console.file)
        try:
            stream.write(line + "\n")
            stream.flush()
        except OSError:
            discard(stream)

    def drawn(self) -> Text:
        """Return the lines of what goes on, with the keys on the one they are for."""
        lines = self._state.lines
        aimed = self._aimed(lines) if self.has_keys else None
        shown = [self._row(line, aimed) for line in lines[:MOST_LINES]]
        if len(lines) > MOST_LINES:
            shown.append(Text(f"… and {len(lines) - MOST_LINES} more", style="dim"))
        return Text("\n").join(shown)

    def pressed(self, key: str) -> bool:
        """Do what a key says to the operation that is shown with the keys; return whether there was something to do."""
        commands = self.runtime.commands
        does: dict[str, Callable[..., bool]] = {"r": commands.retry_now, "f": commands.fall_back, "c": commands.cancel}
        command = does.get(key.lower())
        aimed = self._aimed(self._state.lines)
        return command is not None and aimed is not None and command(aimed.run, by=BY)

    @contextmanager
    def on_screen(self) -> Iterator[None]:
        """Draw the lines that go on, again and again, for as long as the block runs."""
        over = threading.Event()
        # Not by Rich's own thread: it draws between another's working out what to erase and its writing, and a line is lost.
        with Live(console=self.console, get_renderable=self.drawn, auto_refresh=False) as screen:
            self._screen = screen
            thread = threading.Thread(target=self._redraw_until, args=(over,), name="holdfast live", daemon=True)
            thread.start()
            try:
                yield
            finally:
                over.set()
                thread.join()
                self._screen = None

    def _redraw_until(self, over: threading.Event) -> None:
        try:
            while not over.wait(1 / _PER_SECOND):
                self._redraw()
        except OSError:  # the terminal is gone
            return

    def _redraw(self) -> None:
        with self._drawing:
            if self._screen is not None:
                self._screen.refresh()

    def _write(self, text: Text) -> None:
        """Write a line above those that go on."""
        with self._drawing:
            self.console.print(text, soft_wrap=True)
            self._redraw()

    def _aimed(self, lines: tuple[LiveLine, ...]) -> Waiting | None:
        """The first line on the screen whose operation waits: what keys are for must be seen."""
        waiting = {wait.run: wait for wait in self.runtime.commands.waiting()}
        return next((waiting[line.key] for line in lines[:MOST_LINES] if line.key in waiting), None)

    def _row(self, line: LiveLine, aimed: Waiting | None) -> Text:
        """One line on the screen, however narrow that is: the end of the text gives way, the keys do not."""
        keys = _keys_of(aimed) if aimed is not None and aimed.run == line.key else ""
        text = self._text(line)
        text.truncate(max(1, self.console.width - len(keys)), overflow="ellipsis")
        return text.append(keys, style="bold")

    def _text(self, line: LiveLine) -> Text:
        now = self.runtime.clock.wall()
        return Text(one_line(line.shown(now, self._zone)), style=_STYLES.get(line.state, ""))


def _keys_of(wait: Waiting) -> str:
    return f"  [r] now{'  [f] fall back' if wait.can_fall_back else ''}  [c] cancel"


def _logger(view: LiveView) -> Callable[[Event], None]:
    def log(event: Event) -> None:
        line = view.logged(event)
        if line is not None:
            view.write_plain(line)

    return log


class Keys:
    """Calls `pressed` with each key typed at `terminal`."""

    def __init__(self, terminal: TextIO, pressed: Callable[[str], object]) -> None:
        self._file = terminal.fileno()
        self._pressed = pressed
        self._before: list[Any] | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if termios is None:
            return self
        self._before = termios.tcgetattr(self._file)
        tty.setcbreak(self._file)
        # Its other end is closed to say that it is over: a thread in `select` cannot be told otherwise.
        over, self._over = os.pipe()
        self._thread = threading.Thread(target=self._read, args=(over,), name="holdfast keys", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is None:
            return
        os.close(self._over)
        self._thread.join()
        assert self._before is not None
        termios.tcsetattr(self._file, termios.TCSADRAIN, self._before)

    def _read(self, over: int) -> None:
        try:
            while over not in (ready := select.select([self._file, over], [], [])[0]):
                typed = os.read(self._file, 1) if ready else b""
                if not typed:  # the terminal is gone
                    return
                self._pressed(typed.decode("latin-1"))
        except OSError:  # ditto
            return
        finally:
            os.close(over)
