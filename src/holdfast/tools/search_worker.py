"""The process behind the tool `search`. It reads a request as JSON and prints the lines that match.

It runs without our package and without the site's packages, so that it starts fast. Its exit code is 2 for a wrong pattern, and for one
that takes too long for one line. When its time is over, it says so after the matches that it has found.

Python looks for signals while it matches an expression, so a timer ends any pattern.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import signal
import stat
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO, Any

_LINE_S = 2.0
"""The most processor time for one line. An ordinary pattern takes microseconds."""
_TICKS = 8
_PIECE_BYTES = 4_194_304
_BINARY_BYTES = 8_192
_SHOWN_CHARS = 300
_LEFT_OUT = {".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv"}
# Windows lacks them. The tool says so before it starts this worker, and the module can still be imported.
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)
_FILE = os.O_RDONLY | _NO_LINKS | getattr(os, "O_NONBLOCK", 0)
_DIRECTORY = os.O_RDONLY | _NO_LINKS | getattr(os, "O_DIRECTORY", 0)


class SlowPatternError(Exception):
    """The pattern took too long for one line."""


class TimeOverError(Exception):
    """The time of the search is over."""


class LineClock:
    """Raises an error when a line takes too much processor time, or all of it too much time."""

    def __init__(self, seconds: float, until: float) -> None:
        self.line = 0
        """How many lines were begun."""
        self.place = ""
        self._seen, self._ticks = 0, 0
        self._most = seconds / 4
        self._since = time.monotonic()
        """When the line was seen first that is being looked at."""
        if hasattr(signal, "setitimer"):
            signal.signal(signal.SIGVTALRM, self._tick)
            signal.signal(signal.SIGALRM, self._is_over)
            tick = min(_LINE_S, self._most) / _TICKS
            signal.setitimer(signal.ITIMER_VIRTUAL, tick, tick)
            signal.setitimer(signal.ITIMER_REAL, max(0.001, until - self._since))

    def _tick(self, *_: object) -> None:
        if self.line != self._seen:
            self._seen, self._ticks, self._since = self.line, 0, time.monotonic()
            return
        self._ticks += 1
        if self._ticks > _TICKS and self.line:
            raise SlowPatternError

    def _is_over(self, *_: object) -> None:
        # On a busy machine the time is over before the line has had its share of the processor.
        is_stuck = self.line and self.line == self._seen and time.monotonic() - self._since > self._most
        raise SlowPatternError if is_stuck else TimeOverError


def main() -> int:
    """Answer one request."""
    request = json.load(sys.stdin)
    # The name of a file may be no UTF-8.
    written: dict[str, Any] = {"mode": "w", "encoding": "utf-8", "errors": "backslashreplace"}
    with open(1, **written) as out, open(2, **written) as complaint:
        return answer(request, out, complaint)


def answer(request: dict[str, Any], out: IO[str], complaint: IO[str]) -> int:
    """Write the lines that match, and return the exit code."""
    try:
        pattern = re.compile(request["pattern"], re.IGNORECASE if request["ignore_case"] else 0)
    except (re.error, RecursionError, OverflowError, MemoryError) as error:
        complaint.write(f"the pattern is not a regular expression: {error}\n")
        return 2
    clock = LineClock(request["seconds"], request["until"])
    try:
        search(request, pattern, clock, out)
    except SlowPatternError:
        complaint.write(
            f"the pattern takes too long for one line ({clock.place}); repeat nothing inside of what is repeated\n"
        )
        return 2
    except TimeOverError:
        out.write(f"…[stopped after {request['seconds']:g} s in {clock.place or '.'}; search a smaller part]\n")
    return 0


def search(request: dict[str, Any], pattern: re.Pattern[str], clock: LineClock, out: IO[str]) -> None:
    """Write the lines that match."""
    left = request["limit"]
    for shown, name, directory in files(request["inside"], request["glob"]):
        clock.place = shown
        for number, line in matches(pattern, name, directory, clock):
            out.write(f"{shown}:{number}: {line[:_SHOWN_CHARS]}\n")
            left -= 1
            if not left:
                out.write(f"…[cut at {request['limit']} lines]\n")
                return


def files(inside: list[str], glob: str) -> Iterator[tuple[str, str, int]]:
    """Yield the files below a path: the path to show, the name, and the descriptor of their directory."""
    directory = os.open(".", _DIRECTORY)
    for index, part in enumerate(inside):
        try:
            directory = os.open(part, _DIRECTORY, dir_fd=directory)
        except NotADirectoryError:
            if index == len(inside) - 1:
                yield "/".join(inside), part, directory
            return
        except OSError:
            return
    for folder, folders, names, opened in os.fwalk(".", dir_fd=directory, follow_symlinks=False):
        folders[:] = sorted(each for each in folders if each not in _LEFT_OUT)
        for each in sorted(names):
            if fnmatch.fnmatch(each, glob):
                yield os.path.normpath("/".join([*inside, folder, each])), each, opened


def matches(pattern: re.Pattern[str], name: str, directory: int, clock: LineClock) -> Iterator[tuple[int, str]]:
    """Yield number and text of the lines of one file that match."""
    try:
        descriptor = os.open(name, _FILE, dir_fd=directory)
    except OSError:
        return
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode) or b"\0" in file.read(_BINARY_BYTES):
            return
        file.seek(0)
        number = 1
        # A line ends at a line feed, as `read_file` counts. A longer one than this is looked at in pieces.
        for piece in iter(lambda: file.readline(_PIECE_BYTES), b""):
            clock.line += 1
            line = piece.decode("utf-8", "replace").removesuffix("\n").removesuffix("\r")
            if pattern.search(line):
                yield number, line
            number += piece.endswith(b"\n")


if __name__ == "__main__":
    sys.exit(main())
