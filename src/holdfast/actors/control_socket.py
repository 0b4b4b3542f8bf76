"""The control socket of a process: another process of the same user may look at its supervisors and actors.

    async with Supervisor("team") as team, control(team):
        ...                                # meanwhile, in a shell: holdfast actors tree

Invariants: only the user who owns the process is answered, and only while the block runs. The socket can show the tree and nothing
else. A request is one line of at most `_REQUEST_BYTES`; an answer is one line of at most `ANSWER_BYTES`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import stat
import struct
import sys
import tempfile
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from holdfast._platform import need_posix
from holdfast.actors.supervisor import Supervisor
from holdfast.actors.tree import Tree, tree_of
from holdfast.faults import HoldfastError, InvalidError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

__all__ = ["ANSWER_BYTES", "REQUEST", "TreeReply", "check_folder", "control", "folders", "peer_uid"]

REQUEST = b'{"show":"tree"}\n'
ANSWER_BYTES = 4 * 1024 * 1024
_REQUEST_BYTES = 1024
_ANSWER_S = 5.0
"""Seconds that a connection may take. A client that is silent, or does not read, is cut off."""
_CONNECTIONS = 8
"""The most connections at a time; further ones are closed at once."""
_LONGEST_PATH = 103
"""The most bytes of a socket's path on every system; Linux allows four more."""


class _Request(msgspec.Struct, forbid_unknown_fields=True):
    show: str


class TreeReply(msgspec.Struct, omit_defaults=True):
    """What the socket sends: a tree, or why there is none."""

    tree: Tree | None = None
    error: str = ""
    is_denied: bool = False


@asynccontextmanager
async def control(*supervisors: Supervisor) -> AsyncIterator[Path]:
    """Let `holdfast actors tree` show these supervisors while the block runs.

        async with Supervisor("team") as team, control(team):
            ...

    Only your own user can look, nothing can be changed, and the block yields the path of the socket. The folder of sockets is
    `$XDG_RUNTIME_DIR/holdfast`, or else `holdfast-UID` among the temporary files. Raises `InvalidError` if that folder does not
    belong to you alone.
    """
    need_posix("a control socket")
    if not supervisors or not all(isinstance(one, Supervisor) for one in supervisors):
        raise InvalidError.saying("control", "one or more supervisors: control(team)", _what(supervisors))
    server = _Server(supervisors)
    path = await server.open()
    try:
        yield path
    finally:
        await server.close()


class _Server:
    """Answers on one socket."""

    def __init__(self, supervisors: tuple[Supervisor, ...]) -> None:
        self._supervisors = supervisors
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self._path: Path | None = None
        self._inode = 0
        self._is_closed = False
        self._pid = os.getpid()

    async def open(self) -> Path:
        folder = folders()[0]
        with suppress(FileExistsError):  # `check_folder` judges the one that is there
            folder.mkdir(mode=0o700)
        check_folder(folder)
        listener, path = _listen(folder)
        try:
            self._path, self._inode = path, path.lstat().st_ino
            self._server = await asyncio.start_unix_server(self._accept, sock=listener, limit=_REQUEST_BYTES)
        except BaseException:
            listener.close()
            path.unlink(missing_ok=True)
            raise
        return path

    async def close(self) -> None:
        self._is_closed = True
        # A forked child leaves its parent's socket alone, and nobody removes a socket that another process has put there.
        if self._path is not None and self._pid == os.getpid():
            with suppress(OSError):  # it is gone already
                if self._path.lstat().st_ino == self._inode:
                    self._path.unlink()
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        if self._server is not None:
            await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_closed or len(self._tasks) >= _CONNECTIONS:
            writer.transport.abort()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer), name="holdfast control")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_ANSWER_S):
                writer.write(_encode(await self._answer(reader, peer_uid(writer.get_extra_info("socket")))))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, TimeoutError):
            # The client closed its side, or sent nothing in time. The tree is only looked at, so nothing is lost, and the client
            # sees the end of the connection.
            pass
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, uid: int | None) -> TreeReply:
        expected = TreeReply(
            error=f"expected one line of JSON of at most {_REQUEST_BYTES} bytes: {REQUEST.decode().strip()}"
        )
        try:
            # Read in any case: a client whose request is not read may lose the answer.
            line = await reader.readline()
        except ValueError:  # asyncio's word for a line that is too long
            line = b""
        if uid != os.geteuid():
            owner = f"the process belongs to user {os.geteuid()}, and only that user may look"
            return TreeReply(error=owner, is_denied=True)
        try:
            request = msgspec.json.decode(line, type=_Request)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return expected
        if request.show != "tree":
            return expected
        try:
            return TreeReply(tree=await tree_of(self._supervisors))
        except HoldfastError as error:
            return TreeReply(error=str(error))


def folders() -> list[Path]:
    """Return where sockets may be: a program uses the first, and whoever looks for programs tries all."""
    temporary = Path(tempfile.gettempdir()) / f"holdfast-{os.geteuid()}"
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    # `su` and `sudo` may leave the variable of another user.
    if given and os.path.isabs(given) and _owner(given) == os.geteuid():  # noqa: PTH117
        return [Path(given) / "holdfast", temporary]
    return [temporary]


def check_folder(folder: Path) -> None:
    """Raise `InvalidError` unless this is a folder, not a link, that nobody but its owner can enter, and we own it."""
    found = folder.lstat()
    wanted = f"a folder of user {os.geteuid()} with mode 0700, and no link; remove it or repair it"
    if stat.S_ISLNK(found.st_mode) or not stat.S_ISDIR(found.st_mode):
        raise InvalidError.saying(
            f"control folder {folder}", wanted, "a link" if stat.S_ISLNK(found.st_mode) else "a file"
        )
    if found.st_uid != os.geteuid():
        raise InvalidError.saying(f"control folder {folder}", wanted, f"a folder of user {found.st_uid}")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise InvalidError.saying(f"control folder {folder}", wanted, f"mode {stat.S_IMODE(found.st_mode):04o}")


def peer_uid(connection: socket.socket) -> int | None:
    """Return the user of the process at the other end; None if the system does not say."""
    with suppress(OSError, struct.error):  # a system that does not say leaves the answer None
        if sys.platform == "linux":
            return struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]  # type: ignore[no-any-return]
        # LOCAL_PEERCRED of macOS and the BSDs: a version, then the user.
        return struct.unpack("2I", connection.getsockopt(0, 1, 76)[:8])[1]  # type: ignore[no-any-return,unused-ignore]
    return None


def _listen(folder: Path) -> tuple[socket.socket, Path]:
    """Return a socket that listens, and its path: the process's number, and a number for each socket of the process."""
    number = 1
    while _is_served(path := folder / f"{os.getpid()}-{number}.sock"):
        number += 1
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise InvalidError.saying(
            "control folder", f"a path of at most {_LONGEST_PATH} bytes; set XDG_RUNTIME_DIR or TMPDIR", str(path)
        )
    # Under another name until it listens: whoever looks takes a socket that rejects connections for a dead one.
    early = folder / f".{os.getpid()}-{number}"
    early.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.settimeout(0)
        listener.bind(str(early))
        early.chmod(0o600)
        listener.listen(_CONNECTIONS)
        early.rename(path)
    except BaseException:
        listener.close()
        early.unlink(missing_ok=True)
        raise
    return listener, path


def _is_served(path: Path) -> bool:
    """Whether somebody listens there: this process, or one with the same number in another container."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(0)
        try:
            probe.connect(str(path))
        except BlockingIOError:
            return True
        except OSError:
            return False
    return True


def _encode(answer: TreeReply) -> bytes:
    line = msgspec.json.encode(answer) + b"\n"
    if len(line) <= ANSWER_BYTES:
        return line
    return msgspec.json.encode(TreeReply(error=f"the tree takes more than {ANSWER_BYTES} bytes")) + b"\n"


def _owner(folder: str) -> int | None:
    try:
        return os.lstat(folder).st_uid
    except OSError:
        return None


def _what(values: tuple[object, ...]) -> str:
    return ", ".join(type(one).__name__ for one in values) or "none"
