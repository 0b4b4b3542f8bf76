"""The bundled file tools: `read_file`, `edit_file` and `search`, each confined to one directory.

Invariant: an edit happens as a whole or not at all, and a search that takes too long can be ended, whatever its pattern is.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from holdfast import options
from holdfast.faults import Fault, HoldfastError
from holdfast.runtime.tool import CANNOT_TELL, NOT_HAPPENED, Happened, ToolContract
from holdfast.tools.confined import Root, file_faults
from holdfast.tools.program_tool import run_for_tool
from holdfast.tools.threads import begin_effect
from holdfast.tools.toolbox import TIME_LIMIT, Tool

try:
    import fcntl
except ModuleNotFoundError:  # Windows has no flock; the file tools need Linux or macOS
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.runtime.tool import Verdict

__all__ = ["edit_file", "read_file", "search"]

_READ_BYTES = 262_144
_EDIT_BYTES = 16_777_216
_BINARY_BYTES = 8_192
_PIECE_BYTES = 65_536
_SEARCH_S = 60.0
_SEARCH_GRACE_S = 1.0
_WORKER = os.path.join(os.path.dirname(__file__), "search_worker.py")  # noqa: PTH118, PTH120 - without pathlib's parts


@options.suggests
def read_file(root: str | os.PathLike[str] = ".", *, timeout: float | None = None) -> Tool:
    """Return the tool `read_file`: it reads text files below `root`, whole or some of their lines.

        from holdfast.tools import Toolbox, read_file

        toolbox = Toolbox([read_file("project")])
        text = await toolbox.call("read_file", {"path": "README.md", "limit": 20})

    Links are followed only as long as they stay below `root`. A call returns at most 256 KiB, and says how to go on after them, in the
    middle of a long line too. It may take 10 s; where the program keeps to a profile, as long as that gives `read_file` or `file-read`.
    """
    confined = Root(root)

    def read(
        path: Annotated[str, msgspec.Meta(description="The path of the file, relative to the project.")],
        offset: Annotated[int, msgspec.Meta(ge=1, description="The first line to read, counted from 1.")] = 1,
        limit: Annotated[
            Annotated[int, msgspec.Meta(ge=1)] | None,
            msgspec.Meta(description="How many lines to read; all by default."),
        ] = None,
        skip: Annotated[int, msgspec.Meta(ge=0, description="How many bytes of the first line to leave out.")] = 0,
    ) -> str:
        """Read a text file, whole or some of its lines."""
        with confined.place(path) as place:
            descriptor = place.open()
        with file_faults(path), os.fdopen(descriptor, "rb") as file:
            return _lines(file, path, offset, limit, skip)

    return Tool(
        read, ToolContract(effect="read", name="read_file", timeout=timeout, operation="file-read"), place=confined.name
    )


def _lines(file: Any, path: str, offset: int, limit: int | None, skip: int) -> str:
    if b"\0" in file.read(_BINARY_BYTES):
        raise _invalid("path", f"{path} is not a text file")
    file.seek(0)
    kept: list[bytes] = []
    number, before, room = 1, 0, _READ_BYTES
    # A line comes in pieces: it may be as long as the file. `before` counts its bytes in the pieces before.
    for piece in iter(lambda: file.readline(_PIECE_BYTES), b""):
        if limit is not None and number >= offset + limit:
            break
        if number >= offset:
            part = piece[max(0, skip - before) :] if number == offset else piece
            if len(part) > room:
                if before or not kept:
                    taken = len(piece) - len(part) + room
                    joined = b"".join([*kept, part[:room]])
                    kept = [_whole_characters(joined)]
                    before += taken - (len(joined) - len(kept[0]))
                more = f", skip={before}" if before else ""
                return f"{_text(kept)}…[cut at {_READ_BYTES} bytes; go on with offset={number}{more}]"
            kept.append(part)
            room -= len(part)
        number, before = (number + 1, 0) if piece.endswith(b"\n") else (number, before + len(piece))
    return _text(kept)


def _text(kept: list[bytes]) -> str:
    return b"".join(kept).decode("utf-8", "replace")


def _whole_characters(data: bytes) -> bytes:
    """Return bytes without the part of a character at their end."""
    for back in range(1, min(4, len(data)) + 1):
        lead = data[-back]
        if lead & 0xC0 != 0x80:
            length = 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            return data[:-back] if length > back else data
    return data


@options.suggests
def edit_file(root: str | os.PathLike[str] = ".", *, timeout: float | None = None) -> Tool:
    """Return the tool `edit_file`: it replaces a text in a file below `root`, or creates a file.

        from holdfast.tools import Toolbox, edit_file

        toolbox = Toolbox([edit_file("project")])
        await toolbox.call("edit_file", {"path": "a.py", "old": "x = 1", "new": "x = 2"})

    The new content is written beside the file and takes its place at once. A call that was cut is verified by looking at the file. It
    may take 30 s.
    """
    confined = Root(root)

    def edit(
        path: Annotated[str, msgspec.Meta(description="The path of the file, relative to the project.")],
        old: Annotated[
            str,
            msgspec.Meta(
                description="The text to replace, which must occur once. Empty: create the file, and its directory."
            ),
        ],
        new: Annotated[str, msgspec.Meta(description="The text to put in its place.")],
        replace_all: Annotated[bool, msgspec.Meta(description="Replace every occurrence.")] = False,  # noqa: FBT002
    ) -> str:
        """Replace a text in a file, or create a file."""
        with confined.place(path, makes=not old) as place:
            # An empty file holds no text to replace, so it is written as a new one is.
            if not old and not _is_empty(place):
                begin_effect()
                return _create(place, path, new)
            # Models send several edits at once. Until the block ends, no other edit in this directory reads the old content.
            if fcntl is not None:
                fcntl.flock(place.directory, fcntl.LOCK_EX)
            before, mode = _content(place)
            after, count = _replaced(before, path, old, new, replace_all=replace_all)
            begin_effect()
            _write(place, after, mode)
        return f"{path}: replaced {count} occurrence{'s' if count > 1 else ''}"

    def verify(_key: str, path: str, old: str, new: str, **_: Any) -> Verdict:
        """Look at the file. It holds the old content or the new one, never a part."""
        try:
            with confined.place(path) as place:
                text = _content(place)[0].decode("utf-8", "replace")
        except HoldfastError as error:
            return NOT_HAPPENED if error.fault.code == "TOOL_FILE_NOT_FOUND" and not old else CANNOT_TELL
        if not old:
            return Happened(f"{path}: created") if text == new else CANNOT_TELL
        if old in text and (new not in text or new in old):
            return NOT_HAPPENED
        return Happened(f"{path}: replaced") if new and new in text and old not in text else CANNOT_TELL

    contract = ToolContract(effect="unsafe", name="edit_file", timeout=timeout, verify=verify)
    return Tool(edit, contract, place=confined.name)


def _is_empty(place: Any) -> bool:
    # A file that is not there, or cannot be seen, is not an empty one.
    with suppress(HoldfastError):
        status = place.look()
        return stat.S_ISREG(status.st_mode) and not status.st_size
    return False


def _content(place: Any) -> tuple[bytes, int]:
    with file_faults(place.shown), os.fdopen(place.open(), "rb") as file:
        status = os.fstat(file.fileno())
        if status.st_size > _EDIT_BYTES:
            raise _invalid("path", f"{place.shown} has {status.st_size} bytes; at most {_EDIT_BYTES} can be edited")
        return file.read(), status.st_mode & 0o7777


def _replaced(before: bytes, path: str, old: str, new: str, *, replace_all: bool) -> tuple[bytes, int]:
    wanted, given = old.encode(), new.encode()
    if wanted not in before and b"\r\n" in before and b"\r\n" not in wanted:
        # A model does not see the line ends of Windows.
        wanted, given = wanted.replace(b"\n", b"\r\n"), given.replace(b"\n", b"\r\n")
    count = before.count(wanted)
    if not count:
        raise _invalid("old", f"{path} does not contain the text to replace; read the file again")
    if count > 1 and not replace_all:
        raise _invalid("old", f"{path} contains the text {count} times; give more lines around it, or set replace_all")
    return before.replace(wanted, given), count


def _create(place: Any, path: str, new: str) -> str:
    with file_faults(path), _beside(place, new.encode(), 0o666) as beside:
        try:
            os.link(beside, place.name, src_dir_fd=place.directory, dst_dir_fd=place.directory, follow_symlinks=False)
        except FileExistsError:
            raise _invalid("old", f"{path} exists already; give the text to replace") from None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            # The file system has no links. Between the look and the change another program may create the file.
            with suppress(FileNotFoundError):
                os.stat(place.name, dir_fd=place.directory, follow_symlinks=False)
                raise _invalid("old", f"{path} exists already; give the text to replace") from None
            os.rename(beside, place.name, src_dir_fd=place.directory, dst_dir_fd=place.directory)
    return f"{path}: created"


_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


def _write(place: Any, content: bytes, mode: int) -> None:
    """Put the content in the place of the file, at once."""
    with file_faults(place.shown), _beside(place, content, 0o600, mode) as beside:
        os.replace(beside, place.name, src_dir_fd=place.directory, dst_dir_fd=place.directory)


@contextmanager
def _beside(place: Any, content: bytes, created: int, mode: int | None = None) -> Iterator[str]:
    """Write the content to a file beside the place, and yield its name. It is removed if it still has that name afterwards."""
    beside = f".{place.name[:200]}.{os.urandom(4).hex()}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(beside, flags, created, dir_fd=place.directory)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        yield beside
    finally:
        with suppress(OSError):  # it has been renamed to its place
            os.unlink(beside, dir_fd=place.directory)


@options.suggests
def search(root: str | os.PathLike[str] = ".", *, timeout: float | None = None) -> Tool:
    """Return the tool `search`: it finds lines that match a regular expression in the text files below `root`.

        from holdfast.tools import Toolbox, search

        toolbox = Toolbox([search("project")])
        found = await toolbox.call("search", {"pattern": "TODO", "glob": "*.py"})

    Links are not followed, and `.git` is left out. The search runs in a process of its own, which ends an expression that takes more than
    2 s for one line: the caller has to write a simpler one. A call may take 60 s; then it returns what it has found, and says so.
    """
    confined = Root(root)

    async def find(
        pattern: Annotated[str, msgspec.Meta(description="A regular expression, as Python has them.")],
        path: Annotated[
            str, msgspec.Meta(description="The directory or file to search, relative to the project.")
        ] = ".",
        glob: Annotated[str, msgspec.Meta(description="Only files with names like this: *.py")] = "*",
        limit: Annotated[int, msgspec.Meta(ge=1, le=5_000, description="The most lines to return.")] = 200,
        ignore_case: Annotated[bool, msgspec.Meta(description="Upper and lower case are the same.")] = False,  # noqa: FBT002
    ) -> str:
        """Find lines that match a regular expression in the files of the project. Each is shown as path:line: text."""
        # Links are followed here. The worker opens the components again and follows none.
        with confined.place(path) as place:
            inside = place.inside
            place.look()
        seconds = TIME_LIMIT.get() or timeout or _SEARCH_S
        # The worker ends by itself a little before its time, to tell what it has found.
        until = time.monotonic() + 0.9 * seconds
        request = {"pattern": pattern, "inside": inside, "glob": glob, "limit": limit, "ignore_case": ignore_case}
        finished = await run_for_tool(
            [sys.executable, "-I", "-S", _WORKER],
            contract,
            {
                "input": msgspec.json.encode({**request, "seconds": seconds, "until": until}),
                "cwd": confined.path,
                "inherit_env": False,
                "check": False,
                "grace": 0.2,
            },
        )
        if finished.exit_code == 2:
            raise _invalid("pattern", finished.stderr.strip())
        if finished.exit_code != 0:
            raise HoldfastError(Fault.of("TOOL_EXECUTION_FAILED", context={"reason": finished.stderr.strip()[-500:]}))
        return finished.stdout or "no match"

    contract = ToolContract(effect="read", name="search", timeout=timeout)
    return Tool(find, contract, ends_itself=_SEARCH_GRACE_S, place=confined.name)


def _invalid(field: str, reason: str) -> HoldfastError:
    context = {"field": field, "reason": reason}
    return HoldfastError(Fault.of("TOOL_INPUT_INVALID", reason, context=context, maybe_executed=False))
