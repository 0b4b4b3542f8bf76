"""A directory that a tool cannot leave: every path is opened component by component, below the directory's own descriptor.

A check of the path's text would not do: a link may point anywhere, and may be put in place between the check and the use. Links
are read and followed by hand, and only as long as they stay inside.

Invariant: no file outside of the root is opened, and nothing but regular files and directories.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from contextlib import contextmanager, suppress
from hashlib import sha256
from typing import TYPE_CHECKING

from holdfast._platform import need_posix
from holdfast.faults import Fault, HoldfastError, InvalidError, Scope

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.faults import Code

__all__ = ["ConfinedPath", "Root"]

_MOST_LINKS = 40
_DIRECTORY = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
# Without O_NONBLOCK, opening a named pipe waits until somebody writes to it.
_FILE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)


class ConfinedPath:
    """A name in a directory inside the root. The directory is open."""

    __slots__ = ("directory", "inside", "name", "shown")

    def __init__(self, directory: int, inside: list[str], shown: str) -> None:
        self.directory = directory
        self.name = inside[-1] if inside else "."
        self.inside = inside
        """The components below the root, without links."""
        self.shown = shown
        """The path as it was given, for messages."""

    def open(self, flags: int = os.O_RDONLY, mode: int = 0o666) -> int:
        """Open the file and return its descriptor. Raises `HoldfastError` if it is missing or no regular file."""
        with file_faults(self.shown):
            descriptor = os.open(self.name, flags | _FILE, mode, dir_fd=self.directory)
            kind = os.fstat(descriptor).st_mode
            if stat.S_ISREG(kind):
                return descriptor
            os.close(descriptor)
        what = "a directory" if stat.S_ISDIR(kind) else "not a regular file"
        raise _error("TOOL_INPUT_INVALID", f"{self.shown} is {what}", self.shown)

    def look(self) -> os.stat_result:
        """Return what stands here. Raises `HoldfastError` if it is missing, or may not be read."""
        with file_faults(self.shown):
            descriptor = os.open(self.name, os.O_RDONLY | _FILE, dir_fd=self.directory)
            try:
                return os.fstat(descriptor)
            finally:
                os.close(descriptor)


class Root:
    """A directory that a tool may use.

    root = Root("project")
    with root.place("src/main.py") as place:
        descriptor = place.open()
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        need_posix("a confined directory")
        self.path = os.path.realpath(path)
        if not os.path.isdir(self.path):  # noqa: PTH112 - the text is needed
            raise InvalidError.saying("root", "a directory that exists", os.fspath(path))
        digest = sha256(os.fsencode(self.path)).hexdigest()[:6]
        base = os.path.basename(self.path).encode("ascii", "replace").decode()  # noqa: PTH119 - the text is needed
        self.name = f"{base}-{digest}"
        """A short name for the directory: its own, and what tells it apart from others of that name."""

    @contextmanager
    def place(self, path: str, *, makes: bool = False) -> Iterator[ConfinedPath]:
        """Yield the place that a path names. Raises `HoldfastError` (TOOL_FORBIDDEN) if it leads out of the root.

        `makes`: directories on the way that are missing are made.
        """
        if not path or "\0" in path:
            raise _error("TOOL_INPUT_INVALID", f"the path {path!r} is not valid", str(path))
        opened: list[int] = []
        try:
            with file_faults(path):
                opened.append(os.open(self.path, _DIRECTORY))
                inside = self._walk(path, opened, makes=makes)
            yield ConfinedPath(opened[-1], inside, path)
        finally:
            for descriptor in reversed(opened):
                os.close(descriptor)

    def _walk(self, path: str, opened: list[int], *, makes: bool) -> list[str]:
        """Open the directories on the way to the last component, and return all components, without links."""
        left = deque(self._parts(path, path))
        inside: list[str] = []
        links = 0
        while left:
            part = left.popleft()
            if part == "..":
                if len(opened) == 1:
                    raise self._leads_out(path)
                os.close(opened.pop())
                inside.pop()
                continue
            target = _link(part, opened[-1])
            if target is not None:
                links += 1
                if links > _MOST_LINKS:
                    raise _error("TOOL_FORBIDDEN", f"{path} leads through too many links", path)
                if target.startswith("/"):
                    inside.clear()
                    while len(opened) > 1:
                        os.close(opened.pop())
                left.extendleft(reversed(self._parts(target, path)))
                continue
            inside.append(part)
            if left:
                if makes:
                    # It may be there already.
                    with suppress(FileExistsError):
                        os.mkdir(part, dir_fd=opened[-1])
                opened.append(os.open(part, _DIRECTORY, dir_fd=opened[-1]))
        return inside

    def _parts(self, text: str, path: str) -> list[str]:
        """Return the components of a path below the root."""
        if text.startswith("/"):
            # A model often repeats the absolute path that it has seen.
            if text != self.path and not text.startswith(self.path.rstrip("/") + "/"):
                raise self._leads_out(path)
            text = text[len(self.path) :]
        return [part for part in text.split("/") if part not in ("", ".")]

    def _leads_out(self, path: str) -> HoldfastError:
        return _error("TOOL_FORBIDDEN", f"{path} is outside of the directory that this tool may use", path)


def _link(name: str, directory: int) -> str | None:
    try:
        return os.readlink(name, dir_fd=directory)
    except OSError:
        # It is no link, or it does not exist: opening it tells which.
        return None


_CODES: dict[int, Code] = {
    errno.ENOENT: "TOOL_FILE_NOT_FOUND",
    errno.ENOTDIR: "TOOL_FILE_NOT_FOUND",
    errno.EACCES: "TOOL_FORBIDDEN",
    errno.EPERM: "TOOL_FORBIDDEN",
    errno.EROFS: "TOOL_FORBIDDEN",
    errno.ELOOP: "TOOL_FORBIDDEN",
    errno.ENXIO: "TOOL_INPUT_INVALID",
    errno.EISDIR: "TOOL_INPUT_INVALID",
    errno.ENAMETOOLONG: "TOOL_INPUT_INVALID",
    errno.EEXIST: "TOOL_RESOURCE_BUSY",
    errno.EBUSY: "TOOL_RESOURCE_BUSY",
    getattr(errno, "ETXTBSY", -1): "TOOL_RESOURCE_BUSY",
}


@contextmanager
def file_faults(path: str) -> Iterator[None]:
    """Raise the failures of the file system in this block as faults that name the path."""
    try:
        yield
    except OSError as error:
        code = _CODES.get(error.errno or 0)
        if code is not None:
            raise _error(code, f"{path}: {error.strerror}", path) from error
        # The disk is full, broken or gone: that is not about this file.
        fault = Fault.of(
            "TOOL_RESOURCE_BUSY"
            if error.errno in (errno.EIO, errno.EAGAIN, getattr(errno, "ESTALE", -1))
            else "SYS_RESOURCE_EXHAUSTED",
            f"{path}: the file system failed: {error.strerror}",
            scope=Scope.CONNECTION,
            context={"path": path},
        )
        raise HoldfastError(fault) from error


def _error(code: Code, message: str, path: str) -> HoldfastError:
    return HoldfastError(Fault.of(code, message, maybe_executed=False, context={"path": path, "reason": message}))
