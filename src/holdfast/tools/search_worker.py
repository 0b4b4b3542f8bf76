"""The process behind the tool `search`. It reads a request as JSON and prints the lines that match.

It runs without our package and without the site's packages, so that it starts fast. Its exit code is 2 for a wrong pattern.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import stat
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import IO, Any

_MOST_BYTES = 4_194_304
_SHOWN_CHARS = 300
_LEFT_OUT = {".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv"}
# Windows lacks them. The tool says so before it starts this worker, and the module can still be imported.
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0)
_FILE = os.O_RDONLY | _NO_LINKS | getattr(os, "O_NONBLOCK", 0)
_DIRECTORY = os.O_RDONLY | _NO_LINKS | getattr(os, "O_DIRECTORY", 0)


def main() -> int:
    """Answer one request."""
    with open(1, "w", encoding="utf-8") as out, open(2, "w", encoding="utf-8") as complaint:
        return answer(json.load(sys.stdin), out, complaint)


def answer(request: dict[str, Any], out: IO[str], complaint: IO[str]) -> int:
    """Write the lines that match, and return the exit code."""
    try:
        pattern = re.compile(request["pattern"], re.IGNORECASE if request["ignore_case"] else 0)
    except re.error as error:
        complaint.write(f"the pattern is not a regular expression: {error}\n")
        return 2
    left = request["limit"]
    for shown, name, directory in files(request["inside"], request["glob"]):
        for number, line in matches(pattern, name, directory):
            out.write(f"{shown}:{number}: {line[:_SHOWN_CHARS]}\n")
            left -= 1
            if not left:
                out.write(f"…[cut at {request['limit']} lines]\n")
                return 0
    return 0


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


def matches(pattern: re.Pattern[str], name: str, directory: int) -> Iterator[tuple[int, str]]:
    """Yield number and text of the lines of one file that match."""
    try:
        descriptor = os.open(name, _FILE, dir_fd=directory)
    except OSError:
        return
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MOST_BYTES:
            return
        content = file.read()
    if b"\0" in content[:8192]:
        return
    for number, line in enumerate(content.decode("utf-8", "replace").splitlines(), start=1):
        if pattern.search(line):
            yield number, line


if __name__ == "__main__":
    sys.exit(main())
