"""What a crash test found: how often each effect happened after a kill, compared with a run without one. No I/O."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from holdfast.testing.crashtest.points import Kill, Mark

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Verdict: TypeAlias = Literal["ok", "asks", "doubled", "lost", "wrong", "fails", "never ends", "not reached"]
"""ok: it ended as without the kill. asks: it does not repeat an effect that may have happened, and says so. doubled, lost: effects that
happened too often, or never. wrong: your check of the end failed. fails: it exits with an error each time. never ends: it ran out of time.
not reached: it did not come to the point of the kill again."""

DAMAGE: frozenset[Verdict] = frozenset({"doubled", "lost", "wrong", "fails", "never ends"})

_ID = re.compile(r"[0-9]+|[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-fA-F]{16,}|[a-z]+_[0-9A-Za-z]{12,}")
# What our error says in the program's output.
_ASKS_FIRST = 7
"""The exit status of `holdfast run` and of the other verbs where a person must answer first."""
_ASKS = re.compile(r"\bOutcomeUnknownError\b|\bTOOL_OUTCOME_UNKNOWN\b")


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was performed: the server behind the proxy has answered it, or may have."""

    kind: Literal["effect", "model", "request"]
    target: str
    method: str
    path: str
    body: str = ""
    """A digest of the body."""
    key: str = ""
    """Its idempotency key. A server performs requests with the same key once."""
    status: int | None = None
    """None: there was no answer."""

    @property
    def name(self) -> str:
        """The request without ids: `POST /orders/{id}/refunds`."""
        return f"{self.method} {path_name(self.path)}"


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the program."""

    how: Literal["ended", "killed", "timed out"]
    exit_code: int | None = None
    seconds: float = 0.0
    output: str = ""
    """What it wrote to stdout, or the end of it."""
    errors: str = ""
    """What it wrote to stderr, or the end of it."""

    @property
    def asks(self) -> bool:
        """Whether it ended because a person must say whether an effect happened."""
        return self.exit_code == _ASKS_FIRST or (bool(self.exit_code) and bool(_ASKS.search(self.errors)))

    @property
    def last_line(self) -> str:
        """The last line of its errors, which is usually the exception. The further lines of a long message are indented."""
        lines = [line for line in self.errors.splitlines() if line.strip()]
        return next(
            (line.strip() for line in reversed(lines) if not line[0].isspace()), lines[-1].strip() if lines else ""
        )


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """All runs from a fresh state to the end: one kill, or none."""

    runs: tuple[Run, ...]
    sent: tuple[Sent, ...]
    marks: tuple[Mark, ...] = ()
    kill: Kill | None = None
    wrong: str = ""
    """What your own check of the end says, if it failed."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What one kill did."""

    killed: str
    """Where: `after POST /charges`."""
    runs: int
    """How many runs it took, the killed one included."""
    doubled: int = 0
    """Effects that happened more often than without the kill."""
    lost: int = 0
    """Effects that did not happen."""
    paid: int = 0
    """Model requests more than without the kill: money, not damage."""
    verdict: Verdict = "ok"
    detail: str = ""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a crash test.

    report = CrashTest(["python", "agent.py"]).run()
    assert not report.damage, report.text()
    """

    command: tuple[str, ...]
    rows: tuple[Row, ...]
    points: int
    """How many points were seen in the run without a kill."""
    effects: int
    model_requests: int
    """How many effects and model requests there were in the run without a kill."""
    seconds: float
    """How long the run without a kill took."""
    notes: tuple[str, ...] = ()
    """What limits the result: requests that could not be seen, state outside of the folder."""

    started: str = ""
    """How the runs were started: `forked`, or `interpreter: ` and why."""
    unfinished: int = 0
    """How many kills were not made, because a signal ended the test; at least 1 if it came before they were known."""

    @property
    def damage(self) -> tuple[Row, ...]:
        """The kills after which something was doubled, lost, wrong, failing or without end."""
        return tuple(row for row in self.rows if row.verdict in DAMAGE)

    @property
    def doubled(self) -> int:
        """The effects that happened too often, over all kills."""
        return sum(row.doubled for row in self.rows)

    @property
    def lost(self) -> int:
        """The effects that never happened, over all kills."""
        return sum(row.lost for row in self.rows)

    @property
    def paid(self) -> int:
        """The model requests that were sent again, over all kills."""
        return sum(row.paid for row in self.rows)

    @property
    def summary(self) -> str:
        """The result in one line."""
        if not self.rows:
            return "nothing was killed" if self.unfinished else "no point was seen at which it could be killed"
        bad = len(self.damage)
        verdict = "nothing was damaged" if not bad else f"{bad} of them did damage"
        asks = sum(row.verdict == "asks" for row in self.rows)
        parts = [f"killed {len(self.rows)} times: {verdict}", f"{self.doubled} effects doubled, {self.lost} lost"]
        parts += [f"{asks} times a person is asked"] if asks else []
        return "; ".join([*parts, f"{self.paid} model requests paid again"])

    def text(self) -> str:
        """The table as text, for the message of a failed test."""
        lines = [COLUMNS, *(cells(row) for row in self.rows)]
        widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
        shown = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
        return "\n".join([*(line.rstrip() for line in shown), self.summary, *self.notes])


COLUMNS = ("killed", "runs", "doubled", "lost", "paid again", "verdict", "detail")


def cells(row: Row) -> tuple[str, ...]:
    """Return a row as the texts of its columns. A number that is 0 is left out, so that the others are seen."""
    numbers = (str(number) if number else "" for number in (row.doubled, row.lost, row.paid))
    return (row.killed, str(row.runs), *numbers, row.verdict, row.detail)


def path_name(path: str) -> str:
    """Return a path without its query, with ids replaced."""
    segments = path.partition("?")[0].split("/")
    return "/".join("{id}" if _ID.fullmatch(segment) else segment for segment in segments)


def judge(observed: Trial, trial: Trial, *, same_bodies: bool) -> Row:
    """Compare a trial with the run without a kill.

    same_bodies: two runs without a kill sent the same bodies, so that bodies tell effects apart.
    """
    doubled, lost = compare(observed.sent, trial.sent, same_bodies=same_bodies)
    paid = max(0, _model_requests(trial.sent) - _model_requests(observed.sent))
    last = trial.runs[-1]
    verdict, detail = _verdict(observed.runs[-1], trial, doubled, lost)
    if verdict == "lost" and not compare(observed.sent, trial.sent, same_bodies=False)[1]:
        detail = "an effect with another body was sent in its place"
    if verdict == "asks":
        # What is missing is not lost: a person decides, and the program goes on from there.
        lost = 0
    return Row(
        killed=str(trial.kill),
        runs=len(trial.runs),
        doubled=doubled,
        lost=lost,
        paid=paid,
        verdict=verdict,
        detail=detail or (last.last_line if verdict in ("fails", "asks") else ""),
    )


def _verdict(observed: Run, trial: Trial, doubled: int, lost: int) -> tuple[Verdict, str]:
    last = trial.runs[-1]
    if trial.kill is not None and trial.runs[0].how == "ended":
        return "not reached", "the program does something else in each run"
    if doubled:
        return "doubled", ""
    if last.how == "timed out":
        return "never ends", f"no end after {last.seconds:.0f} s"
    if last.exit_code != observed.exit_code:
        return ("asks" if last.asks else "fails"), ""
    if lost:
        return "lost", ""
    return ("wrong", trial.wrong) if trial.wrong else ("ok", "")


def compare(before: Iterable[Sent], after: Iterable[Sent], *, same_bodies: bool) -> tuple[int, int]:
    """Return how many effects happened too often, and how many are missing."""
    expected, found = _once(before), _once(after)
    doubled, lost = _difference([sent.name for sent in expected], [sent.name for sent in found])
    if same_bodies:
        bodies = [_with_body(sent) for sent in expected]
        # Numbers see a repetition whose body has another id or time. Bodies see that one payment was made twice, or another one in its place.
        twice, never = _difference(bodies, [body for body in map(_with_body, found) if body in bodies])
        doubled, lost = max(doubled, twice), max(lost, never)
    return doubled, lost


def _difference(expected: list[str], found: list[str]) -> tuple[int, int]:
    return (Counter(found) - Counter(expected)).total(), (Counter(expected) - Counter(found)).total()


def _with_body(sent: Sent) -> str:
    return f"{sent.target} {sent.method} {sent.path} {sent.body}"


def _once(sent: Iterable[Sent]) -> list[Sent]:
    """Return the effects that happened: without those that were rejected, and those that a server recognises by their key."""
    kept: dict[object, Sent] = {}
    for number, each in enumerate(sent):
        rejected = each.status is not None and each.status >= 400
        if each.kind == "effect" and not rejected:
            kept.setdefault((each.target, each.path, each.key) if each.key else number, each)
    return list(kept.values())


def _model_requests(sent: Sequence[Sent]) -> int:
    return sum(each.kind == "model" for each in sent)
