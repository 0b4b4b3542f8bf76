"""The live line on a terminal, with its keys; in a pipe, one line per transition.

    with live(runtime):
        …                   # ⟳ Retrying... (2/3) in 3.4s · claude · PROVIDER_OVERLOADED  [r] now  [f] fall back  [c] cancel

Invariant: it reads events and sends commands, and decides nothing. Calls continue even if the terminal fails. When the
block ends, the terminal is restored and no thread is left.
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

from holdfast import options
from holdfast.cli.output import discard, one_line, wrapped
from holdfast.runtime.runtime import Runtime, default_runtime
from holdfast.sinks.live import LiveLine, LiveState, LiveWord, watch_events

try:
    import termios
    import tty
except ModuleNotFoundError:  # Windows has neither module, so the lines are shown without keys
    termios = tty = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from datetime import tzinfo

    from holdfast.events import Event
    from holdfast.runtime.commands import Waiting

__all__ = ["LiveView", "live"]

MOST_LINES = 10
"""How many lines a terminal shows at once. For further lines it shows only their number."""
_PER_SECOND = 8
BY = "terminal"
"""The audit trail names this actor for a pressed key."""

_STYLES = {
    LiveWord.OK: "green",
    LiveWord.FAILED: "red",
    LiveWord.CIRCUIT_OPEN: "yellow",
    LiveWord.DEGRADED: "yellow",
    LiveWord.CANCELLED: "dim",
}


@options.suggests
@contextmanager
def live(
    runtime: Runtime | None = None,
    *,
    stream: TextIO | None = None,
    keys: TextIO | None = None,
    zone: tzinfo | None = None,
) -> Iterator[LiveView]:
    """Show the operations of `runtime` while the block runs: on `stream` (stderr), with keys from `keys` (stdin).

    Live lines need a terminal to write to, and keys a terminal to read from. FORCE_COLOR turns on colour, never live lines.

        with live():
            answer = ask("…")       # ⟳ Retrying... (2/3) in 3.4s · claude · PROVIDER_OVERLOADED  [r] now  [c] cancel
    """
    stream = sys.stderr if stream is None else stream
    keys = sys.stdin if keys is None else keys
    # No highlighting: Rich would colour numbers and words that mean nothing here.
    view = LiveView(runtime or default_runtime(), Console(file=stream, highlight=False), zone)
    with ExitStack() as stack:
        if stream.isatty() and not view.console.is_dumb_terminal:
            stack.enter_context(view.on_screen())
            # Keys are offered only if they can be read: stdin may be a pipe while stderr is a terminal.
            if keys.isatty():
                view.has_keys = True
                stack.enter_context(KeyPresses(keys, view.pressed))
            stack.enter_context(watch_events(view.changed, view.runtime))
        else:
            stack.enter_context(watch_events(_logger(view), view.runtime))
        yield view


class LiveView:
    """The lines of a runtime. Keys act on the first line that waits."""

    def __init__(self, runtime: Runtime, console: Console, zone: tzinfo | None = None) -> None:
        self.runtime = runtime
        self.console = console
        self.has_keys = False
        self._zone = zone
        self._state = LiveState()
        self._screen: Live | None = None
        self._held: list[Text] | None = None
        """Lines that wait while something else uses the terminal; None if nothing does."""
        # Events come from any thread and one thread draws. All of them write to the same terminal, so they need a lock.
        self._drawing = threading.RLock()

    def changed(self, event: Event) -> LiveLine | None:
        """Apply an event. A finished line is printed once and stays above the live lines."""
        line = self._state.apply(event)
        if line is not None and line.over:
            text = self._text(line)
            text.plain = wrapped(text.plain, self.console.width)
            self._write(text)
        return line

    def say(self, text: str, style: str = "") -> None:
        """Write a line of the program above the live lines. Does nothing if the stream is closed."""
        if self.console.file.isatty():
            self._write(Text(wrapped(one_line(text), self.console.width), style=style))
        else:
            self.write_plain(one_line(text))

    def logged(self, event: Event) -> str | None:
        """Apply an event, and return its line for a pipe."""
        line = self._state.apply(event)
        return None if line is None else one_line(line.logged(self._zone))

    def write_plain(self, line: str) -> None:
        """Write a line to a pipe. If nobody reads the pipe any more, this line and all later lines are dropped."""
        # The line is not written with Rich, which wraps lines at 80 columns if it does not know the width.
        stream = cast("TextIO", self.console.file)
        try:
            stream.write(line + "\n")
            stream.flush()
        except OSError:
            discard(stream)

    def drawn(self) -> Text:
        """Return the live lines. The line that keys act on shows the keys."""
        if self._held is not None:
            return Text()
        lines = self._state.lines
        chosen = self._chosen(lines) if self.has_keys else None
        shown = [self._row(line, chosen) for line in lines[:MOST_LINES]]
        # A terminal cannot redraw lines that have scrolled off the screen, so the number of lines is limited.
        if len(lines) > MOST_LINES:
            shown.append(Text(f"… and {len(lines) - MOST_LINES} more", style="dim"))
        return Text("\n").join(shown)

    def pressed(self, key: str) -> bool:
        """Send the command of a key to the operation that shows the keys.

        Returns whether there was such an operation.
        """
        commands = self.runtime.commands
        by_key: dict[str, Callable[..., bool]] = {
            "r": commands.retry_now,
            "f": commands.fall_back,
            "c": commands.cancel,
        }
        command = by_key.get(key.lower())
        chosen = self._chosen(self._state.lines)
        return command is not None and chosen is not None and command(chosen.run, by=BY)

    @contextmanager
    def on_screen(self) -> Iterator[None]:
        """Redraw the live lines while the block runs."""
        over = threading.Event()
        # Rich's own thread is not used: it could draw while `_write` is between erasing and printing, and a line would
        # be lost.
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

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Take the live lines off the terminal while the block uses it: to ask a question, or to print."""
        with self._drawing:
            nested, self._held = self._held is not None, self._held or []
            if self._screen is not None and not nested:
                self._screen.refresh()
        try:
            yield
        finally:
            if not nested:
                with self._drawing:
                    held, self._held = self._held or [], None
                    for text in held:
                        self._write(text)

    def _redraw_until(self, over: threading.Event) -> None:
        try:
            while not over.wait(1 / _PER_SECOND):
                self._redraw()
        except OSError:  # the terminal is gone
            return

    def _redraw(self) -> None:
        with self._drawing:
            if self._screen is not None and self._held is None:
                self._screen.refresh()

    def _write(self, text: Text) -> None:
        """Write a line above the live lines."""
        with self._drawing:
            if self._held is not None:
                self._held.append(text)
                return
            # Rich would break long words. The line is already wrapped, or the terminal wraps it.
            self.console.print(text, soft_wrap=True)
            self._redraw()

    def _chosen(self, lines: tuple[LiveLine, ...]) -> Waiting | None:
        """Return the operation that keys act on: the first that waits among the lines on the screen."""
        waiting = {wait.run: wait for wait in self.runtime.commands.waiting()}
        return next((waiting[line.key] for line in lines[:MOST_LINES] if line.key in waiting), None)

    def _row(self, line: LiveLine, chosen: Waiting | None) -> Text:
        """Return one line that fits the screen. The end of the text is cut, never the keys, and the countdown last."""
        keys = _keys_of(chosen) if chosen is not None and chosen.run == line.key else ""
        room = max(1, self.console.width - len(keys))
        text = self._text(line, room)
        text.truncate(room, overflow="ellipsis")
        return text.append(keys, style="bold")

    def _text(self, line: LiveLine, room: int | None = None) -> Text:
        now = self.runtime.clock.wall()
        return Text(one_line(line.shown(now, self._zone, room)), style=_STYLES.get(line.state, ""))


def _keys_of(wait: Waiting) -> str:
    return f"  [r] now{'  [f] fall back' if wait.can_fall_back else ''}  [c] cancel"


def _logger(view: LiveView) -> Callable[[Event], None]:
    def log(event: Event) -> None:
        line = view.logged(event)
        if line is not None:
            view.write_plain(line)

    return log


class KeyPresses:
    """Calls `pressed` from a thread with each key typed at `terminal`, while the block runs.

    Ctrl-C still interrupts.
    """

    def __init__(self, terminal: TextIO, pressed: Callable[[str], object]) -> None:
        self._file = terminal.fileno()
        self._pressed = pressed
        self._before: list[Any] | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        if termios is None:
            return self
        self._before = termios.tcgetattr(self._file)
        # The terminal is not in raw mode, because Ctrl-C must still interrupt the program.
        tty.setcbreak(self._file)
        # Closing the writing end of this pipe wakes the thread. Nothing else interrupts its `select`.
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
        # The terminal is reset after the join, so that the thread never reads from a terminal that is already reset.
        termios.tcsetattr(self._file, termios.TCSADRAIN, self._before)

    def _read(self, over: int) -> None:
        try:
            while over not in (ready := select.select([self._file, over], [], [])[0]):
                typed = os.read(self._file, 1) if ready else b""
                if not typed:  # the terminal is gone
                    return
                self._pressed(typed.decode("latin-1"))
        except OSError:  # the terminal is gone
            return
        finally:
            os.close(over)
