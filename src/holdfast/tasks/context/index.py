"""`ContextIndex`: finds the files that a task should know about. A full-text index of SQLite, rebuilt when it is damaged.

Invariant: a match names a file that was read, with its relevance from 0 to 1, the best first. An index that cannot be used is a typed fault,
never an empty answer.
"""

from __future__ import annotations

import asyncio
import re
import sqlite3
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from holdfast import options
from holdfast.faults import Fault, HoldfastError, InvalidError, Partial

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from os import PathLike

__all__ = ["ContextIndex", "Match", "Matches"]

Strategy: TypeAlias = Literal["content", "metadata"]
"""Whether words are looked for in the files, or in their names."""

MAX_RESULTS = 20
_MOST_BYTES = 1_000_000
"""Of a file. A larger one is indexed up to here."""
_WORD = re.compile(r"\w{3,}")
_COMMON = frozenset(
    ["and", "are", "for", "from", "into", "that", "the", "this", "what", "which", "with", "you", "your"]
)
_DAMAGED = (sqlite3.DatabaseError,)


class Match(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file that fits: `path` below the index's root."""

    path: str
    relevance: float
    """0 to 1, of the best match 1."""
    excerpt: str = ""


class Matches(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What fits a task."""

    context_summary: str
    matches: tuple[Match, ...] = ()
    strategy: Strategy = "content"
    retried: bool = False
    """Whether nothing fitted at first, and words that only begin alike were taken too."""


class ContextIndex:
    """The files below a folder, by their words and names.

        index = ContextIndex("docs", "index.db")
        found = await index.match("how are tokens revoked?")
        tasks = TaskSystem(agent, context=index)

    root: the folder. Hidden files and folders, and files that are no text, are left out.
    database: where the index is kept, so that it need not be built anew; None: in memory.
    pattern: which files.
    """

    def __init__(
        self, root: str | PathLike[str], database: str | PathLike[str] | None = None, *, pattern: str = "**/*"
    ) -> None:
        self.root = Path(root)
        self._pattern = pattern
        self._place = ":memory:" if database is None else str(database)
        self._lock = threading.Lock()
        self._open: sqlite3.Connection | None = None
        if not self.root.is_dir():
            raise InvalidError.at("context index root", "a folder", str(root))

    async def match(self, query: str, *, max_results: int = MAX_RESULTS, strategy: Strategy = "content") -> Matches:
        """Return the files that fit a text. Raises TASK_CONTEXT_MATCHING_FAILED if none does.

        A failure is tried once more: a damaged index is rebuilt, and words that only begin alike are taken if nothing fits. Raises
        TASK_CONTEXT_RETRIEVAL_FAILED if the index cannot be used even then.
        """
        options.count("max_results", max_results)
        options.one_of("strategy", strategy, ("content", "metadata"))
        return await asyncio.to_thread(self._guarded, lambda: self._match(query, max_results, strategy))

    async def files(self, *, max_results: int = MAX_RESULTS) -> Matches:
        """Return the files by their names, without a search: their relevance is 0. A damaged index is rebuilt.

        Raises TASK_CONTEXT_RETRIEVAL_FAILED if the index cannot be used, and TASK_CONTEXT_MATCHING_FAILED if there is no file.
        """
        options.count("max_results", max_results)
        return await asyncio.to_thread(self._guarded, lambda: self._listed(max_results))

    async def refresh(self) -> int:
        """Read the files that were changed since the last time; return how many. `match` does it before its first search."""
        return await asyncio.to_thread(self._guarded, self._refresh)

    def close(self) -> None:
        """Close the database."""
        with self._lock:
            self._forget()

    def __del__(self) -> None:
        # An index that nobody closed loses nothing. Without this, Python 3.13 warns of a database that was left open.
        self._forget()

    # --- in a thread, one at a time ---

    def _guarded(self, work: Callable[[], Any]) -> Any:
        with self._lock:
            try:
                return work()
            except _DAMAGED as error:
                damage = str(error)
            # A damaged index holds nothing that the files do not hold.
            self._remove()
            try:
                return work()
            except _DAMAGED as error:
                reason = f"the index could not be read ({damage}), nor built anew ({error})"
                context = {"reason": reason, "error": damage}
                raise HoldfastError(Fault.of("TASK_CONTEXT_RETRIEVAL_FAILED", context=context)) from error

    def _connection(self) -> sqlite3.Connection:
        if self._open is None:
            self._open = sqlite3.connect(self._place, check_same_thread=False, isolation_level=None)
            self._open.executescript(
                "CREATE TABLE IF NOT EXISTS file (id INTEGER PRIMARY KEY, path TEXT UNIQUE, stamp TEXT);"
                "CREATE VIRTUAL TABLE IF NOT EXISTS word USING fts5(name, content, tokenize = 'porter unicode61');"
            )
            self._refresh()
        return self._open

    def _refresh(self) -> int:
        connection = self._connection()
        known = {
            path: (number, stamp) for number, path, stamp in connection.execute("SELECT id, path, stamp FROM file")
        }
        changed = 0
        connection.execute("BEGIN IMMEDIATE")
        try:
            for path, stamp in self._files():
                number, had = known.pop(path, (None, None))
                if had != stamp:
                    changed += 1
                    self._take(connection, number, path, stamp)
            for number, _ in known.values():
                changed += 1
                _drop(connection, number)
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # the failure that led here is raised
                connection.execute("ROLLBACK")
            raise
        return changed

    def _files(self) -> Iterator[tuple[str, str]]:
        for path in sorted(self.root.glob(self._pattern)):
            inside = path.relative_to(self.root)
            if any(part.startswith(".") for part in inside.parts) or path.is_symlink() or not path.is_file():
                continue
            with suppress(OSError):  # a file that has just been removed is not listed
                status = path.stat()
                yield inside.as_posix(), f"{status.st_mtime_ns}:{status.st_size}"

    def _take(self, connection: sqlite3.Connection, number: int | None, path: str, stamp: str) -> None:
        if number is not None:
            _drop(connection, number)
        try:
            with (self.root / path).open("rb") as file:
                text = file.read(_MOST_BYTES)
        except OSError:
            return
        content = "" if b"\0" in text[:8192] else text.decode("utf-8", "replace")
        row = connection.execute("INSERT INTO file (path, stamp) VALUES (?, ?)", (path, stamp)).lastrowid
        name = " ".join(re.split(r"[\W_]+", path))
        connection.execute("INSERT INTO word (rowid, name, content) VALUES (?, ?, ?)", (row, name, content))

    def _match(self, query: str, most: int, strategy: Strategy) -> Matches:
        words = [word for word in dict.fromkeys(_WORD.findall(query.casefold())) if word not in _COMMON][:64]
        for is_again in (False, True):
            found = self._search(words, most, strategy, begins=is_again)
            if found:
                summary = (
                    f"{len(found)} of the files below {self.root.name or self.root} fit, the best is {found[0].path}"
                )
                return Matches(context_summary=summary, matches=tuple(found), strategy=strategy, retried=is_again)
        metrics = {"words": len(words), "matches": 0}
        context = {
            "words": words,
            "strategy": strategy,
            "success_score": 0.0,
            "context_metrics": metrics,
            "query": query,
        }
        raise HoldfastError(Fault.of("TASK_CONTEXT_MATCHING_FAILED", context=context, partial=Partial(payload=[])))

    def _listed(self, most: int) -> Matches:
        rows = self._connection().execute("SELECT path FROM file ORDER BY path LIMIT ?", (most,)).fetchall()
        if not rows:
            context = {"strategy": "metadata", "success_score": 0.0, "context_metrics": {"matches": 0}}
            raise HoldfastError(Fault.of("TASK_CONTEXT_MATCHING_FAILED", context=context))
        summary = f"{len(rows)} files below {self.root.name or self.root}"
        matches = tuple(Match(path=path, relevance=0.0) for (path,) in rows)
        return Matches(context_summary=summary, matches=matches, strategy="metadata")

    def _search(self, words: list[str], most: int, strategy: Strategy, *, begins: bool) -> list[Match]:
        connection = self._connection()
        if not words:
            return []
        # Quoted: a word of a prompt is never taken for an operator of the search.
        wanted = " OR ".join(f'"{word[: max(3, len(word) * 2 // 3)]}"*' if begins else f'"{word}"' for word in words)
        column = "content" if strategy == "content" else "name"
        rows = connection.execute(
            "SELECT file.path, bm25(word, 2.0, 1.0), snippet(word, 1, '', '', '…', 24) FROM word JOIN file ON file.id = word.rowid "
            "WHERE word MATCH ? ORDER BY 2, file.path LIMIT ?",
            (f"{{{'name content' if strategy == 'content' else column}}} : ({wanted})", most),
        ).fetchall()
        # The engine's scores are negative, the best the lowest, and their size says nothing.
        best = min((score for _, score, _ in rows), default=0.0) or -1.0
        return [
            Match(path=path, relevance=max(0.0001, round(score / best, 4)), excerpt=excerpt or "")
            for path, score, excerpt in rows
        ]

    def _remove(self) -> None:
        self._forget()
        if self._place != ":memory:":
            for suffix in ("", "-journal", "-wal", "-shm"):
                with suppress(OSError):  # it is gone already, or sqlite rewrites it
                    Path(self._place + suffix).unlink()

    def _forget(self) -> None:
        if self._open is not None:
            with suppress(sqlite3.Error):  # it may be damaged, and is not used again
                self._open.close()
            self._open = None


def _drop(connection: sqlite3.Connection, number: int) -> None:
    connection.execute("DELETE FROM word WHERE rowid = ?", (number,))
    connection.execute("DELETE FROM file WHERE id = ?", (number,))
