"""`holdfast crashtest -- COMMAND`: kill a program at every point, run it again, and show what is doubled or lost."""

from __future__ import annotations

import shlex
import subprocess
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.cli.exits import Exit
from holdfast.cli.output import fail, narrate, show_json, show_table, show_text
from holdfast.cli.programs.run import seconds_of
from holdfast.faults import InvalidError
from holdfast.testing.crashtest import CrashTest
from holdfast.testing.crashtest.report import COLUMNS, cells
from holdfast.testing.provider import read_file

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from holdfast.cli.app import CrashFlags
    from holdfast.testing.crashtest import Report, Row

_CHECK_TIMEOUT_S = 300


def crashtest(*, command: Sequence[str], flags: CrashFlags) -> Exit:
    """Make the test and print its table. Exit 1 if a kill did damage."""
    test = CrashTest(
        command,
        folder=flags.folder,
        effects=tuple(flags.effects or ()),
        targets=dict(map(_target, flags.target or ())),
        fake_model=read_file(flags.script) if flags.script is not None else flags.fake_model,
        fake_effects=flags.fake_effects,
        live=flags.live,
        expect=flags.expect,
        check=None if flags.check is None else _checked_by(flags.check),
        kills=flags.kills,
        every=flags.every,
        restarts=flags.restarts,
        timeout=seconds_of("--timeout", flags.timeout),
        fork=flags.fork,
        on_row=None if flags.quiet else _narrate_row,
    )
    report = test.run()
    if flags.as_json:
        show_json(_document(report))
    else:
        _show(report)
    return _exit(report, strict=flags.strict)


def _exit(report: Report, *, strict: bool) -> Exit:
    if report.damage:
        return Exit.FAILED
    if report.unfinished:
        return Exit.INTERRUPTED
    if not report.rows:
        fail(
            "the program has no point at which it could be killed: no request and no write was seen",
            "say --target NAME=URL for services whose address it reads from the variable NAME",
        )
        return Exit.NOT_FOUND
    spoilt = report.paid or report.notes or any(row.verdict != "ok" for row in report.rows)
    return Exit.DEGRADED if strict and spoilt else Exit.OK


def _show(report: Report) -> None:
    if report.rows:
        show_table(COLUMNS, [cells(row) for row in report.rows])
    show_text(report.summary)
    for note in report.notes:
        narrate(f"note: {note}")
    if report.started:
        narrate(f"runs: {report.started}")


def _document(report: Report) -> dict[str, Any]:
    return {
        "schema": "holdfast.crashtest/1",
        **msgspec.to_builtins(report),
        "doubled": report.doubled,
        "lost": report.lost,
        "paid": report.paid,
        "damage": len(report.damage),
    }


def _narrate_row(number: int, of: int, row: Row) -> None:
    narrate(f"{number}/{of} killed {row.killed}: {row.verdict}")


def _target(given: str) -> tuple[str, str]:
    variable, equals, url = given.partition("=")
    if not equals or not variable.isidentifier():
        raise InvalidError.at("--target", "NAME=URL, with the environment variable that the program reads", given)
    return variable, url


def _checked_by(command: str) -> Callable[[Path], str | None]:
    """Return a check of the end of a trial: a command that runs in its folder, and fails if something is wrong there."""
    words = shlex.split(command)
    if not words:
        raise InvalidError.at("--check", "a command", command)

    def check(folder: Path) -> str | None:
        try:
            done = subprocess.run(  # noqa: S603 - the command is the user's own
                words,
                cwd=folder,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_CHECK_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise InvalidError.saying("--check", "a command that runs", str(error)) from error
        if not done.returncode:
            return None
        lines = (done.stdout + done.stderr).strip().splitlines()
        return f"the check failed: {lines[-1] if lines else f'exit {done.returncode}'}"

    return check
