"""A program from its first start to its end, and what was wrong: the oracle.

Every unsafe effect happens at most once per logical call. A result that was shown stays what it was, and is one that the bank gave. A
program ends, or stops with a typed error that names the way on; after a truthful answer it goes on. Nothing hangs, and no error of ours
is untyped.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.programs.program import Start
from tests.programs.starts import End, prune, run, settle, warm
from tests.programs.world import EFFECTS, SAID, written

if TYPE_CHECKING:
    from tests.programs.program import Program

__all__ = ["MOST_STARTS", "Story", "Wrong", "effects_of", "play"]

MOST_STARTS = 14
"""Starts without a kill, after those that are drawn, until a program must have ended."""
_PARKED_S = 0.02
"""Longer than the drawn programs wait when they try something again later."""
_TRANSIENT = frozenset({"SESS_LEASE_LOST", "SESS_STORE_UNAVAILABLE"})
_NAMES_A_WAY = ("key", "resolve", "accept", "unfinished=", "holdfast sessions")
_MISTAKES = ("waits for its own end", "got an equal call of", "a function that is declared once")
"""What is said of a program that cannot be right. It says so at its first run, or when it first comes to the call."""
_numbers = count(1)


@dataclass(frozen=True)
class Wrong:
    """One thing that must not be: doubled, changed, swapped, invented, lost, denied, shared, stuck, untyped, mistaken, drifted, hung, unsettled."""

    kind: str
    what: str


@dataclass
class Story:
    """What happened to a program."""

    program: Program
    wrong: list[Wrong] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)
    """How each start ended."""
    end: str = ""
    """How the program ended: ended, refused, or failed as it is written."""
    trace: str = ""

    @property
    def kills(self) -> int:
        return sum(end.startswith("killed") for end in self.ends)

    def add(self, kind: str, what: str) -> None:
        if (kind, what) not in {(each.kind, each.what) for each in self.wrong}:
            self.wrong.append(Wrong(kind, what))


def play(program: Program, place: Path | None = None, store: str = "sqlite:work.db") -> Story:
    """Start a program as its schedule says, then until it has ended twice, and look at everything it did."""
    folder = Path(tempfile.mkdtemp(prefix="program-", dir=place))
    story = Story(program)
    try:
        for name, text in program.modules().items():
            (folder / name).write_text(text)
        _Play(program, folder, store, story).perform()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return story


class _Play:
    def __init__(self, program: Program, folder: Path, store: str, story: Story) -> None:
        self._program = program
        self._folder = folder
        self._store = store
        self._story = story
        # A server keeps the sessions of all programs.
        self._session = "work" if store.startswith("sqlite:") else f"work-{folder.name}-{next(_numbers)}"

    def perform(self) -> None:
        for start in self._program.starts:
            end = self._start(start)
            if self._story.wrong:
                return
            if end.asks:
                self._settle()
        self._to_the_end()

    def _to_the_end(self) -> None:
        """Start it without a kill until it has ended twice, or nothing changes any more."""
        edited = any(start.edited for start in self._program.starts)
        good, before = 0, End("")
        for _ in range(MOST_STARTS):
            end = self._start(Start(edited=edited))
            if self._story.wrong:
                return
            good += end.how == "ended"
            if good == 2:
                self._story.end = "ended"
                return
            if end.asks:
                self._settle()
            elif end.error == "ParkedError" and any(each.clock for each in self._program.starts):
                # The clock that said when it goes on was wrong by days.
                self._story.end = "parked"
                return
            elif end.error == "ParkedError":
                time.sleep(_PARKED_S)
            elif end.how == "raised" and (end.error, end.code, end.message) == (
                before.error,
                before.code,
                before.message,
            ):
                self._judge_error(end)
                return
            before = end
        self._story.trace = before.trace
        self._story.add(
            "stuck", f"no end after {MOST_STARTS} starts without a kill: {before.error} {before.message[:300]}"
        )

    def _judge_error(self, end: End) -> None:
        """The same error twice: is it an end that is allowed?"""
        story = self._story
        if not end.ours:
            # An error of the program's own; with Holdfast's help it is the same in each run.
            story.end = "failed"
            return
        is_mistaken = self._may_be_mistaken() and self._is_mistake(end)
        if is_mistaken or (
            self._program.may_refuse(end.message, self._done()) and any(word in end.message for word in _NAMES_A_WAY)
        ):
            story.end = "refused"
            return
        if self._cause_is_the_programs(end):
            story.end = "failed"
            return
        story.trace = end.trace
        story.add("stuck", f"{end.code}: {end.message[:400]}")

    def _done(self) -> set[tuple[str, str]]:
        return set(_times(written(EFFECTS, str(self._folder))))

    def _may_be_mistaken(self) -> bool:
        """Whether the program has a part that cannot be right."""
        return any(part.element.may_refuse == "first" for part in self._program.parts)

    @staticmethod
    def _is_mistake(end: End) -> bool:
        return any(words in end.message for words in _MISTAKES)

    def _cause_is_the_programs(self, end: End) -> bool:
        """Whether a task or workflow says that a function of the program failed."""
        odd = any(part.odd in ("no id", "reset", "refused") for part in self._program.parts)
        if end.code.startswith("TASK_OUTPUT") and any(part.kind == "tasks_unsafe" for part in self._program.parts):
            # It asks for a number, and the bank gives none.
            return True
        if self._program.edit == "renamed parameter" and end.code in ("TASK_EVALUATION_FAILED", "TOOL_INPUT_INVALID"):
            # A program of the workflow language, or a call of a tool by name, gives the parameter by its name.
            return True
        return odd and end.code.startswith(("TASK_", "TOOL_EXECUTION", "SYS_PROGRAMMING", "CONN_"))

    def _start(self, start: Start) -> End:
        self._keep_or_restore(start)
        # A server keeps the sessions of all programs.
        if start.prune and self._session == "work":
            prune(self._folder, self._store)
        source = self._program.source(edited=start.edited, store=self._store, session=self._session)
        end = run(source, self._folder, start)
        warm(self._folder)
        self._story.ends.append(f"{end.how} {end.error} {end.code}".strip() if end.how == "raised" else end.how)
        if end.how == "hung":
            self._story.add("hung", end.message[-300:])
        if end.how == "raised" and not end.ours and end.error not in _OF_THE_PROGRAM:
            self._story.trace = end.trace
            self._story.add("untyped", f"{end.error}: {end.message[:300]}")
        if end.how == "raised" and self._is_mistake(end) and not self._may_be_mistaken():
            self._story.trace = end.trace
            self._story.add("mistaken", f"{end.error}: {end.message[:300]}")
        if end.code == "SESS_STEP_DRIFT" and not self._program.may_refuse(end.message, self._done()):
            self._story.trace = end.trace
            self._story.add("drifted", end.message[:300])
        self._look()
        return end

    def _keep_or_restore(self, start: Start) -> None:
        kept = self._folder / ".kept"
        # What a person copies: the file and its newest data. The locks beside them stay as they are.
        files = [file for name in ("work.db", "work.db-wal") if (file := self._folder / name).exists()]
        if start.back_up:
            kept.mkdir(exist_ok=True)
            for file in files:
                shutil.copy(file, kept)
            if not _has_sessions(kept / "work.db"):
                shutil.rmtree(kept)
        # A store that is deleted is no store that is set back. And a session that the backup does not have yet is simply a new one.
        if start.restore and (kept / "work.db").exists():
            for file in (*files, self._folder / "work.db-shm"):
                file.unlink(missing_ok=True)
            for file in kept.iterdir():
                shutil.copy(file, self._folder)

    def _settle(self) -> None:
        try:
            settle(self._folder, self._store, self._session)
        except RuntimeError as error:
            self._story.add("unsettled", str(error))

    def _look(self) -> None:
        """Compare what happened outside with what the program may do."""
        story, may = self._story, self._program.calls()
        effects = written(EFFECTS, str(self._folder))
        for call, times in _times(effects).items():
            if times > may[call]:
                story.add("doubled", f"{call[0]} {call[1]} happened {times} times, {may[call]} at most")
        for key, calls in _by_key(effects).items():
            if len(calls) > 1:
                story.add("shared", f"the key {key} belongs to {sorted(calls)}")
        shown: dict[str, Any] = {}
        paid = {each["who"] for each in effects}
        ids = {each["id"] for each in effects}
        for each in written(SAID, str(self._folder)):
            first = shown.setdefault(each["label"], each["value"])
            if first != each["value"]:
                story.add("changed", f"{each['label']} was {first!r}, and is {each['value']!r}")
            if each["label"].startswith("about ") and each["label"].removeprefix("about ") not in str(each["value"]):
                story.add("swapped", f"{each['label']} is {each['value']!r}")
            if each["value"] == "nothing" and each["label"].rpartition(" ")[2] in paid:
                story.add("denied", f"{each['label']} is {each['value']!r}, and the bank has it")
            if each["label"].startswith("paid ") and each["value"] not in ids:
                story.add("invented", f"{each['label']} is {each['value']!r}, which the bank never gave")
        receipts: dict[Any, str] = {}
        for label, value in shown.items():
            if label.startswith("paid ") and (other := receipts.setdefault(value, label)) != label:
                story.add("lost", f"{label} is {value!r}, the receipt of {other}")


_OF_THE_PROGRAM = frozenset({"KeyError", "ConnectionResetError", "ConnectionRefusedError", "TimeoutError", "MailError"})


def effects_of(folder: Path) -> Counter[tuple[str, str]]:
    """Return how often each effect of a program happened."""
    return _times(written(EFFECTS, str(folder)))


def _has_sessions(store: Path) -> bool:
    with closing(sqlite3.connect(store)) as connection:
        tables = connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'session'").fetchone()[0]
        return bool(tables and connection.execute("SELECT count(*) FROM session").fetchone()[0])


def _times(effects: list[dict[str, Any]]) -> Counter[tuple[str, str]]:
    """Return how often each effect happened. The bank recognises the key of a booking."""
    keyed = {(each["what"], each["who"], each["key"]) for each in effects if each["what"] == "book"}
    return Counter((each["what"], each["who"]) for each in effects if each["what"] != "book") + Counter(
        (what, who) for what, who, _ in keyed
    )


def _by_key(effects: list[dict[str, Any]]) -> dict[str, set[tuple[str, str]]]:
    found: dict[str, set[tuple[str, str]]] = {}
    for each in effects:
        if each["key"]:
            found.setdefault(each["key"], set()).add((each["what"], each["who"]))
    return found
