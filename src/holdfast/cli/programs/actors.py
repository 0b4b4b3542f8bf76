"""`holdfast actors tree`: the supervisors and actors of running programs, over their control sockets."""

from __future__ import annotations

import os
import re
import socket
import sys
import textwrap
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from holdfast._platform import need_posix
from holdfast.actors.control_socket import ANSWER_BYTES, REQUEST, TreeReply, check_folder, folders, peer_uid
from holdfast.cli.exits import Exit
from holdfast.cli.output import counted, fail, narrate, one_line, show_json, stdout_width
from holdfast.faults import HoldfastError
from holdfast.runtime import redactor_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast.actors.tree import Node, Tree

_ANSWER_S = 5.0
_SOCKET = re.compile(r"(?P<pid>[1-9][0-9]{0,9})-[1-9][0-9]{0,9}\.sock")
_HARD_BLANK = "\N{NO-BREAK SPACE}"
_HOW_TO_OFFER = "a program offers one while it runs: async with Supervisor(…) as team, control(team): …"


class _Failure(NamedTuple):
    """Why a process that has a socket showed no tree."""

    pid: int
    why: str
    exit: Exit


def actors_tree(*, pid: int | None, as_json: bool) -> Exit:
    """Show the trees of all processes that offer them, or of one."""
    need_posix("a control socket")
    trees: dict[int, list[Tree]] = {}
    failures: list[_Failure] = []
    for number, path in _sockets(pid):
        answer = _ask(number, path)
        if isinstance(answer, _Failure):
            failures.append(answer)
        elif answer is not None:
            trees.setdefault(number, []).append(answer)
    if as_json:
        show_json(
            {"schema": "holdfast.actors-tree/1", "processes": [_document(trees[number]) for number in sorted(trees)]}
        )
    else:
        for number in sorted(trees):
            _show(trees[number])
        if len(trees) > 1:
            narrate(f"{len(trees)} processes; --pid N shows one of them")
    for failure in failures:
        fail(f"process {failure.pid} {failure.why}")
    if trees or failures:
        return max((failure.exit for failure in failures), default=Exit.OK)
    return _nothing_found(pid)


def _sockets(pid: int | None) -> Iterator[tuple[int, Path]]:
    """Yield the sockets of this user's processes. Raises `InvalidError` for a folder that is not safe, after the others."""
    unsafe: HoldfastError | None = None
    for folder in folders():
        try:
            check_folder(folder)
            paths = sorted(folder.iterdir())
        except FileNotFoundError:
            # No program of this user has opened a control socket in this folder.
            continue
        except HoldfastError as error:
            unsafe = error
            continue
        for path in paths:
            named = _SOCKET.fullmatch(path.name)
            if named and pid in (None, int(named["pid"])):
                yield int(named["pid"]), path
    if unsafe is not None:
        raise unsafe


def _ask(pid: int, path: Path) -> Tree | _Failure | None:
    """Return the tree of one socket, or the failure that kept it away; None if its process has died."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_ANSWER_S)
        try:
            connection.connect(str(path))
            if peer_uid(connection) != os.geteuid():
                return _Failure(pid, "is not yours: another user listens on its socket", Exit.FAILED)
            # A process that rejects us may have answered and closed before.
            with suppress(BrokenPipeError):
                connection.sendall(REQUEST)
            answer = msgspec.json.decode(_read_line(connection), type=TreeReply)
        except ConnectionRefusedError:
            # Nobody listens any more: the process was killed before it could remove its socket.
            with suppress(OSError):
                path.unlink()
            return None
        except FileNotFoundError:
            return None
        except TimeoutError:
            return _Failure(
                pid, f"did not answer within {_ANSWER_S:g} s: its event loop is busy or stopped", Exit.TIMEOUT
            )
        except PermissionError:
            return _Failure(pid, "has a socket that you may not use", Exit.FAILED)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return _Failure(pid, "did not answer as expected; is it of another version of Holdfast?", Exit.FAILED)
    if answer.tree is None:
        return _Failure(pid, f"rejected the request: {answer.error}", Exit.FAILED)
    return answer.tree


def _read_line(connection: socket.socket) -> bytes:
    """Return the answer. A process that sends without end, or drop by drop, is cut off."""
    ends, received = time.monotonic() + _ANSWER_S, bytearray()
    while not received.endswith(b"\n"):
        chunk = connection.recv(65536)
        received += chunk
        if not chunk or len(received) > ANSWER_BYTES:
            break
        if time.monotonic() > ends:
            raise TimeoutError
    return bytes(received)


def _nothing_found(pid: int | None) -> Exit:
    if pid is None:
        fail("no program of yours offers a control socket", _HOW_TO_OFFER)
        return Exit.NOT_FOUND
    owner = _owner(pid)
    if owner is None:
        fail(f"there is no process {pid}", "holdfast actors tree shows all that offer a control socket")
        return Exit.NOT_FOUND
    if owner != os.geteuid():
        fail(
            f"process {pid} belongs to user {owner}, and only that user may look",
            f"sudo -u '#{owner}' holdfast actors tree --pid {pid}",
        )
        return Exit.FAILED
    fail(f"process {pid} offers no control socket", _HOW_TO_OFFER)
    return Exit.NOT_FOUND


def _owner(pid: int) -> int | None:
    """Return the user of a process, or None if the process is gone."""
    try:
        return os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116 - systems without /proc come below
    except OSError:
        # There is no /proc here, or no such process. A signal without effect tells them apart.
        pass
    try:
        os.kill(pid, 0)
    except PermissionError:
        return -1
    except (OSError, OverflowError):
        return None
    return os.geteuid()


def _document(trees: list[Tree]) -> dict[str, Any]:
    roots = [msgspec.to_builtins(root) for tree in trees for root in tree.roots]
    return {"pid": trees[0].pid, "program": trees[0].program, "roots": roots}


def _show(trees: list[Tree]) -> None:
    _line(0, f"process {trees[0].pid}", trees[0].program)
    for tree in trees:
        for root in tree.roots:
            _show_node(root, 1)


def _show_node(node: Node, depth: int) -> None:
    _line(depth, node.name, *_facts(node))
    for child in node.children:
        _show_node(child, depth + 1)
    if node.left_out:
        _line(depth + 1, f"… {node.left_out} more")


def _facts(node: Node) -> Iterator[str]:
    yield node.kind
    yield node.state if node.uptime is None else f"{node.state} for {_duration(node.uptime)}"
    yield f"incarnation {node.incarnation}"
    if node.max_restarts is not None:
        yield f"{node.restarts_left} of {counted(node.max_restarts, 'restart')} left in {node.window:g} s"
    if node.waiting is not None:
        yield f"{node.waiting} of {node.capacity} waiting"
    if node.last_failure is not None:
        yield f"last failure {node.last_failure}"


def _duration(seconds: float) -> str:
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if not hours:
        return f"{minutes} min {whole % 60} s"
    return f"{hours} h {minutes % 60} min" if not days else f"{days} d {hours % 24} h"


def _line(depth: int, name: str, *facts: str) -> None:
    """Print a node. On a terminal it wraps between facts, and the following lines are indented more than its children."""
    redactor, indent, width = redactor_for(), "  " * depth, stdout_width()
    # A fact stays on one line: its blanks do not break until it is printed.
    name, *facts_shown = [one_line(redactor.text(part)).replace(" ", _HARD_BLANK) for part in (name, *facts)]
    text = f"{name}  {f'{_HARD_BLANK}· '.join(facts_shown)}"
    if width is not None:
        text = textwrap.fill(
            text,
            width,
            initial_indent=indent,
            subsequent_indent=f"{indent}      ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    else:
        text = indent + text
    sys.stdout.write(text.replace(_HARD_BLANK, " ").rstrip() + "\n")
