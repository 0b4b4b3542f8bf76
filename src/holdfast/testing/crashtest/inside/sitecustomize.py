"""Runs inside the program under test: reports its writes, and the tool calls of Holdfast, before and after they are performed.

Python imports a module of this name at its start, because `CrashTest` puts this folder on PYTHONPATH. It may run under any Python 3.8
or newer, in an environment without Holdfast, so it imports nothing but the standard library.

Each report waits for an answer. A program that is to be killed gets none.
"""

from __future__ import annotations

import atexit
import builtins
import io
import json
import os
import socket
import sqlite3
import sqlite3.dbapi2
import sys
import threading
import weakref
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable

_HERE = os.path.dirname(os.path.abspath(__file__))
_ADDRESS = os.environ.get("_HOLDFAST_CRASHTEST", "")
_STATE = os.path.join(os.path.realpath(os.environ.get("_HOLDFAST_CRASHTEST_STATE", os.getcwd())), "")
_WRITES = ("INSERT", "UPDATE", "DELETE", "REPLACE", "CREATE", "DROP", "ALTER", "WITH", "VACUUM", "REINDEX")


class _Wire(threading.local):
    """A connection to the crash test for each thread, so that a thread that waits does not hold up the others."""

    def __init__(self) -> None:
        self.owner = 0
        self.file: Any = None
        self.broken = False

    def send(self, **report: str) -> None:
        if self.broken:
            return
        try:
            if self.owner != os.getpid():
                # A fork has a copy of the parent's connection, and must not talk on it.
                link = socket.socket(socket.AF_UNIX)
                link.connect(_ADDRESS)
                self.file, self.owner = link.makefile("rwb"), os.getpid()
            self.file.write(json.dumps(report).encode() + b"\n")
            self.file.flush()
            self.file.readline()
        except OSError:
            # The crash test is gone. The program must not fail because of that.
            self.broken = True


_wire = _Wire()


def reach(kind: str, name: str, side: str) -> None:
    """Report one side of a point, and wait until the program may go on."""
    _wire.send(kind=kind, name=name, side=side)


def failpoint(name: str) -> None:
    """Report a point of Holdfast itself. SQLite's commits are seen in `sqlite3` already."""
    verb, _, rest = name.partition(" ")
    if verb in ("calling", "called"):
        reach("tool", rest, "before" if verb == "calling" else "after")
    elif name in ("written", "committed"):
        caller = sys._getframe(2).f_globals.get("__name__", "")
        if caller.startswith("holdfast.stores.postgres"):
            reach("commit", "PostgreSQL", "before" if name == "written" else "after")


def _shown(path: Any) -> str:
    """Return the name of a file in a report; an empty one for a file that is not state. Reports writes to state elsewhere."""
    if isinstance(path, int):
        return ""
    whole = os.path.realpath(os.path.abspath(os.fsdecode(path)))
    if whole.startswith(_STATE):
        return os.path.relpath(whole, _STATE)
    if not whole.startswith("/dev/") and not whole.startswith("/proc/"):
        _wire.send(outside=whole)
    return ""


def _database_file(database: Any) -> str:
    text = os.fsdecode(database) if isinstance(database, (str, bytes, os.PathLike)) else ""
    if text.startswith("file:"):
        parts = urlsplit(text)
        if "mode=memory" in parts.query or "mode=ro" in parts.query or "immutable=1" in parts.query:
            return ""
        text = unquote(parts.path)
    return "" if not text or text == ":memory:" else text


class _Commits:
    """What one connection to a database writes: its commits are points."""

    def __init__(self, connection: Any, name: str) -> None:
        self._connection = weakref.ref(connection)
        self._name = name
        self._wrote = False
        self._open = False

    def before(self, sql: str) -> None:
        """SQLite is about to run a statement."""
        words = sql.lstrip().split(None, 1)
        verb = words[0].rstrip(";").upper() if words else ""
        connection = self._connection()
        if connection is None:
            return
        if connection.in_transaction:
            if verb in _WRITES:
                self._wrote = True
            elif verb in ("COMMIT", "END"):
                self._mark(self._wrote)
            elif verb == "ROLLBACK" and " TO " not in sql.upper():
                self._wrote = False
        elif verb in _WRITES:
            self._mark(wrote=True)

    def after(self) -> None:
        """A method of the connection or of its cursors has returned."""
        if self._open:
            self._open = False
            reach("commit", self._name, "after")

    def _mark(self, wrote: bool) -> None:  # noqa: FBT001 - a private helper with one argument
        self._wrote = False
        if wrote:
            self.after()
            self._open = True
            reach("commit", self._name, "before")


def _reported(name: str) -> Any:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return getattr(super(self._holdfast_reports, self), name)(*args, **kwargs)
        finally:
            self._holdfast_commits.after()

    method.__name__ = name
    return method


_classes: dict[type, Any] = {}


def _reporting(base: type, methods: tuple[str, ...]) -> Any:
    """Return a subclass that reports commits after these methods."""
    if base not in _classes:
        made: Any = type(base.__name__, (base,), {name: _reported(name) for name in methods})
        made._holdfast_reports = made
        _classes[base] = made
    return _classes[base]


_ON_CURSOR = ("execute", "executemany", "executescript")


def _cursor_method(base: Any) -> Any:
    def cursor(self: Any, factory: Any = sqlite3.Cursor) -> Any:
        if not isinstance(factory, type):
            return base.cursor(self, factory)
        made = base.cursor(self, _reporting(factory, _ON_CURSOR))
        made._holdfast_commits = self._holdfast_commits
        return made

    return cursor


_connect = sqlite3.connect
_FACTORY = 5
"""The place of `factory` among the arguments of `sqlite3.connect`."""


def connect(*args: Any, **kwargs: Any) -> Any:
    """Connect to a database whose commits are reported."""
    database = args[0] if args else kwargs.get("database")
    name = _shown(_database_file(database)) if _database_file(database) else ""
    factory = args[_FACTORY] if len(args) > _FACTORY else kwargs.get("factory", sqlite3.Connection)
    if not name or not isinstance(factory, type):
        return _connect(*args, **kwargs)
    made = _reporting(factory, (*_ON_CURSOR, "commit", "__exit__"))
    if "cursor" not in made.__dict__:
        made.cursor = _cursor_method(factory)
    if len(args) > _FACTORY:
        args = (*args[:_FACTORY], made, *args[_FACTORY + 1 :])
    else:
        kwargs["factory"] = made
    connection: Any = _connect(*args, **kwargs)
    connection._holdfast_commits = _Commits(connection, name)
    connection.set_trace_callback(connection._holdfast_commits.before)
    return connection


_open = io.open


def open_(file: Any, mode: Any = "r", *args: Any, **kwargs: Any) -> Any:
    """Open a file; if it is opened for writing, this is reported."""
    writes = isinstance(mode, str) and any(letter in mode for letter in "wax+")
    name = _shown(file) if writes else ""
    if not name:
        return _open(file, mode, *args, **kwargs)
    reach("open", name, "before")
    opened = _open(file, mode, *args, **kwargs)
    # The file is empty now: a kill here leaves nothing of what it held, nor of what the program is about to write.
    reach("open", name, "after")
    return opened


def _moving(move: Callable[..., None]) -> Any:
    def moved(source: Any, target: Any, *args: Any, **kwargs: Any) -> None:
        name = _shown(target)
        if not name:
            move(source, target, *args, **kwargs)
            return
        reach("rename", name, "before")
        move(source, target, *args, **kwargs)
        reach("rename", name, "after")

    return moved


def _note_modules() -> None:
    """Write down the modules that were imported from elsewhere than the program's folder, in the order of their imports."""
    note = _ADDRESS + ".modules"
    if os.path.exists(note):
        return
    names = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if name not in ("__main__", "sitecustomize", "_holdfast_crashtest") and not os.path.realpath(file).startswith(
            _STATE
        ):
            names.append(name)
    with _open(note, "w") as opened:
        opened.write("\n".join(names))


def _next_sitecustomize() -> None:
    """Import the module of this name that Python would have imported without us."""
    spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if os.path.abspath(path or ".") != _HERE])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(module_from_spec(spec))


if _ADDRESS:
    # Holdfast looks for this module when its failpoints are imported.
    sys.modules["_holdfast_crashtest"] = sys.modules[__name__]
    sqlite3.connect = sqlite3.dbapi2.connect = connect
    builtins.open = io.open = open_
    os.replace, os.rename = _moving(os.replace), _moving(os.rename)
    _wire.send(hello=sys.version)
    atexit.register(_note_modules)
_next_sitecustomize()
