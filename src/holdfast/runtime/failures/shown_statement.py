"""The SQL statement that a failure shows: a write whose connection was lost in the middle may have happened.

The errors of SQLAlchemy and asyncpg carry their statement. Those of other drivers carry none, but the frames of these libraries hold it. No
library is imported.

Invariant: an answer of the database is no doubt. It rolls back the statement that it rejects.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from holdfast.runtime.failures.request_search import frames_of, is_of, module_of, read

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["write_in_doubt"]

_DRIVERS = (
    "sqlalchemy",
    "psycopg",
    "psycopg2",
    "asyncpg",
    "pg8000",
    "pymysql",
    "MySQLdb",
    "mysql",
    "aiomysql",
    "asyncmy",
    "oracledb",
    "pyodbc",
)
_LOCAL = ("sqlite3", "aiosqlite")
"""There is no connection to lose."""
_NAMES = ("statement", "query", "operation", "sql")
_WRITES = ("INSERT", "UPDATE", "DELETE", "MERGE", "REPLACE", "UPSERT", "CALL")
_WRITE = re.compile(rf"\b({'|'.join(_WRITES)})\b", re.IGNORECASE)
_BEGINNING = re.compile(r"(?:\s|\(|--[^\n]*\n|/\*.*?\*/)*(\w+)", re.DOTALL)
_LOST_STATES = ("08", "57")
"""The beginnings of SQLSTATEs of connections that were lost, and of servers that were shut down."""
_LOST_NUMBERS = frozenset({2006, 2013, 2055})
"""MySQL's numbers for the same."""


def write_in_doubt(error: BaseException) -> str | None:
    """Return the verb of the statement that a lost connection left in doubt: `INSERT`; None: the error shows none."""
    original = read(error, "orig")
    cause = original if isinstance(original, BaseException) else error
    if is_of(type(cause).__module__, _LOCAL) or _was_answered(cause):
        return None
    return next((verb for text in _statements(error) if (verb := _verb(text))), None)


def _statements(error: BaseException) -> Iterator[str]:
    if is_of(type(error).__module__, _DRIVERS):
        yield from _texts(read(error, name) for name in ("statement", "query"))
    for frame in frames_of(error):
        if is_of(module_of(frame), _DRIVERS):
            yield from _texts(frame.f_locals.get(name) for name in _NAMES)


def _texts(values: Iterator[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, bytes):
            yield value.decode("utf-8", "replace")
        elif isinstance(value, str):
            yield value


def _verb(statement: str) -> str | None:
    found = _BEGINNING.match(statement)
    first = "" if found is None else found[1].upper()
    if first == "WITH":
        # A common table expression may write, also in front of a SELECT.
        inside = _WRITE.search(statement)
        return None if inside is None else inside[1].upper()
    return first if first in _WRITES else None


def _was_answered(cause: BaseException) -> bool:
    state = read(cause, "sqlstate") or read(cause, "pgcode")
    if isinstance(state, str) and state:
        return not state.startswith(_LOST_STATES)
    number = cause.args[0] if cause.args else None
    is_mysql = is_of(type(cause).__module__, ("pymysql", "MySQLdb", "mysql", "aiomysql", "asyncmy"))
    return is_mysql and isinstance(number, int) and number not in _LOST_NUMBERS
