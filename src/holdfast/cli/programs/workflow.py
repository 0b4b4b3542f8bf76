"""`holdfast workflow`: run, resume, check and format workflows.

    holdfast workflow run review.sexp --tasks app:tasks --input document=@README.md
    holdfast workflow resume review.sexp --tasks app:tasks --session review-20260320-1a2b

Invariant: only the value goes to stdout; what is evaluated goes to stderr. A run that fails or is interrupted leaves a session that can be
gone on with, and the last line says how.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.agents import stop_on_signals
from holdfast.cli.exits import Exit
from holdfast.cli.output import counted, fail, narrate, show_json, show_line
from holdfast.cli.programs.agent import ended_in_doubt, imported
from holdfast.cli.store.access import existing_store
from holdfast.faults import Err, Fault, HoldfastError, InvalidError, Ok
from holdfast.runtime.runtime import default_runtime
from holdfast.sessions import Session
from holdfast.sessions.admin import find
from holdfast.sessions.later import is_waiting, run_due, watch_due
from holdfast.tasks.workflows import (
    BindingKept,
    CallEnded,
    CallStarted,
    Logged,
    WaitStarted,
    Workflow,
    fork_from_binding,
)
from holdfast.workflow import Operators, WorkflowError, WorkflowSyntaxError, check_program, format_source, read

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.cli.programs.flags import ProgramFlags
    from holdfast.sessions.later import DueRun
    from holdfast.tasks.workflows import Observation

_CONTEXT = "holdfast.workflow"
"""The name of the session's context under which the inputs of a run are kept, for `resume`."""


# --- run and resume ---


def workflow_run(
    *, file: str, flags: ProgramFlags, inputs: Sequence[str] | None, session: str | None, quiet: bool
) -> int:
    """Run a workflow in a session, and return the exit code."""
    id_ = session or f"{Path(file).stem}-{time.strftime('%Y%m%d-%H%M%S')}-{os.urandom(2).hex()}"
    given = _inputs(inputs or ())
    return asyncio.run(_Run(file, flags, id_, quiet=quiet).run(given, strict=False))


def workflow_resume(
    *, file: str, flags: ProgramFlags, session: str, from_binding: str | None, fork: str | None, quiet: bool
) -> int:
    """Go on with the run in a session, or in a fork of it, and return the exit code."""
    if (from_binding is None) != (fork is None):
        raise InvalidError.saying("holdfast workflow resume", "--from and --as together", "one of them")
    id_ = asyncio.run(_session_of(flags.store, session, from_binding, fork))
    return asyncio.run(_Run(file, flags, id_, quiet=quiet).run(None, strict=True))


def workflow_due(*, files: Sequence[str], flags: ProgramFlags, every: float | None) -> int:
    """Go on with the runs whose time has come, and return the exit code."""
    workflows = [_workflow(file, flags) for file in files]
    return asyncio.run(_go_on(workflows, flags.store, every, as_json=flags.as_json))


async def _go_on(workflows: Sequence[Workflow], url: str | None, every: float | None, *, as_json: bool) -> int:
    failed = False
    with stop_on_signals():
        async with existing_store(url) as store:
            runs = run_due(store, *workflows) if every is None else watch_due(store, *workflows, every=every)
            async for run in runs:
                failed = _show_due(run, as_json=as_json) or failed
    return Exit.FAILED if failed else Exit.OK


def _show_due(run: DueRun, *, as_json: bool) -> bool:
    """Show how a run ended, and return whether it failed. One that waits again has not failed."""
    fault = None if isinstance(run.outcome, Ok) else run.outcome.fault
    waits = isinstance(run.outcome, Err) and is_waiting(run.outcome.error or ValueError())
    if as_json:
        shown = {"schema": "holdfast.workflow-due/1", "session": run.session, "program": run.program}
        ended = {"value": run.outcome.value} if isinstance(run.outcome, Ok) else {"fault": run.outcome.fault}
        show_line(shown | {"waits": waits} | msgspec.to_builtins(ended))
    else:
        how = "done" if fault is None else f"{fault.code}  {fault.message}"
        narrate(": ".join(word for word in (run.session, run.program, how) if word))
    return fault is not None and not waits


async def _session_of(url: str | None, given: str, from_binding: str | None, fork: str | None) -> str:
    async with existing_store(url) as store:
        session = await find(store, given)
        if from_binding is None or fork is None:
            return session
        await fork_from_binding(store, session, fork, from_binding)
        narrate(f"session {fork} begins with what {session} had when {from_binding} was bound")
        return fork


def _workflow(file: str, flags: ProgramFlags) -> Workflow:
    given = options_of(flags.tasks, flags.agent, scripts=flags.scripts)
    return Workflow(source_of(file), **given, name=Path(file).stem if file != "-" else "stdin", file=file)


class _Run:
    """One run: what is shown while it goes on, and at its end."""

    def __init__(self, file: str, flags: ProgramFlags, session: str, *, quiet: bool) -> None:
        self._file = file
        self._flags = flags
        self._quiet = quiet
        self._workflow = _workflow(file, flags)
        self._session = session
        self._made = self._stored = 0

    async def run(self, inputs: dict[str, Any] | None, *, strict: bool) -> int:
        flags, entered = self._flags, False
        # A stop by a service manager is like Ctrl-C: the session is left in order.
        with stop_on_signals():
            try:
                async with Session.open(self._session, store=flags.store, strict=strict, on_drift="accept") as session:
                    entered = True
                    given = await _kept_inputs(session, inputs)
                    value = await self._workflow.run(session, inputs=given, observe=None if self._quiet else self._show)
            except asyncio.CancelledError:
                narrate(f"interrupted; go on with: {self._again()}")
                raise
            except Exception as error:
                if not entered and isinstance(error, HoldfastError):
                    raise
                return self._failed(error)
        return self._ended(value, session)

    def _again(self) -> str:
        return self._flags.again(self._file, self._session)

    def _show(self, seen: Observation) -> None:
        match seen:
            case CallStarted(position=position, expression=expression, strand=strand):
                narrate(f"{position.line}:{position.column} {_strand(strand)}→ {expression}")
            case CallEnded(name=name, position=position, ok=ok, stored=stored, text=text, strand=strand):
                self._made, self._stored = self._made + (not stored), self._stored + stored
                how = ("" if ok else "failed: ") + text + (" (stored)" if stored else "")
                narrate(f"{position.line}:{position.column} {_strand(strand)}← {name}: {how}")
            case BindingKept(name=name, text=text, position=position, strand=strand):
                narrate(f"{position.line}:{position.column} {_strand(strand)}{name} = {text}")
            case Logged(text=text, position=position):
                narrate(f"{position.line}:{position.column} {text}")
            case WaitStarted(seconds=seconds):
                narrate(f"waits {seconds:g} s before the next attempt")

    def _ended(self, value: Any, session: Session) -> int:
        if self._flags.as_json:
            show_json({"schema": "holdfast.workflow-run/1", "ok": True, "session": self._session, "value": value})
        else:
            sys.stdout.write(_written(value) + "\n")
        if not self._quiet:
            stored = f", {self._stored} of them stored before" if self._stored else ""
            narrate(f"done: {counted(self._made + self._stored, 'call')}{stored} · session {self._session}")
        return ended_in_doubt(session, self._flags.store)

    def _failed(self, error: Exception) -> int:
        fault = default_runtime().fault_of(error)
        if self._flags.as_json:
            shown = {"schema": "holdfast.workflow-run/1", "ok": False, "session": self._session}
            show_json(shown | {"fault": fault.for_audit()["fault"]})
        for line in failure_lines(error, self._workflow.source):
            narrate(line)
        hints = [f"go on with: {self._again()}", f"holdfast explain {fault.code}"]
        fail(f"{fault.code}  {fault.message}", *hints)
        return Exit(fault.entry.exit_code)


def _strand(strand: str) -> str:
    return f"[{strand.rstrip('/')}] " if strand else ""


def _written(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def failure_lines(error: Exception, source: str) -> list[str]:
    """Return the line of the program at which it failed, with a mark, and what was bound."""
    if not isinstance(error, WorkflowError):
        return []
    lines, position = source.splitlines(), error.position
    shown: list[str] = []
    if 1 <= position.line <= len(lines):
        shown += [
            f"{position.line} | {lines[position.line - 1]}",
            " " * (len(str(position.line)) + 2 + position.column) + "^",
        ]
    for name, value in error.environment.items():
        text = msgspec.json.encode(value).decode()
        shown.append(f"  {name} = {text[:200]}{'…' if len(text) > 200 else ''}")
    return shown


async def _kept_inputs(session: Session, inputs: dict[str, Any] | None) -> dict[str, Any]:
    """Keep the inputs of a run in its session, or return those that are kept there."""
    if inputs is None:
        kept = session.context.get(_CONTEXT, {})
        return dict(kept.get("inputs", {}))
    session.context[_CONTEXT] = {"inputs": inputs}
    await session.checkpoint()
    return inputs


# --- what the flags name ---


def source_of(file: str) -> str:
    """Return the text of a file; - is stdin."""
    if file == "-":
        return sys.stdin.read()
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError as error:
        message = f"{file}: {error.strerror or error}"
        raise HoldfastError(Fault.of("TOOL_NOT_FOUND", message, context={"path": file})) from error
    except UnicodeDecodeError as error:
        raise InvalidError.saying(file, "a text in UTF-8", f"other bytes at {error.start}") from error


def options_of(tasks: str | None, agent: str | None, *, scripts: bool) -> dict[str, Any]:
    """Return the options of a workflow that the flags name."""
    given: dict[str, Any] = {"scripts": "idempotent" if scripts else None}
    if tasks is not None:
        found = imported(tasks, "--tasks")
        given["tasks"] = found() if callable(found) and not isinstance(found, type) else found
    if agent is not None:
        given["agent"] = imported(agent, "--agent")
    return given


def _inputs(given: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in given:
        name, sign, text = one.partition("=")
        if not sign or not name:
            raise InvalidError.at("--input", "NAME=VALUE", one)
        if text.startswith("@"):
            found[name] = _content(name, text[1:])
            continue
        try:
            found[name] = msgspec.json.decode(text)
        except msgspec.DecodeError:
            found[name] = text
    return found


def _content(name: str, file: str) -> str:
    try:
        return source_of(file)
    except HoldfastError as error:
        # The program's own file may be missing as well, so the error says which file it is about.
        raise InvalidError.saying(f"--input {name}", "a file that can be read", error.fault.message) from error


# --- check and fmt ---


def workflow_check(*, files: Sequence[str], tasks: str | None, inputs: Sequence[str] | None, as_json: bool) -> int:
    """Print the mistakes of programs, and return the exit code."""
    operators = Operators() if tasks is None else Workflow("", **options_of(tasks, None, scripts=True)).operators
    rows: list[dict[str, Any]] = []
    unknown: set[str] = set()
    for file in files:
        # A check needs only their names.
        names = frozenset(one.partition("=")[0] for one in inputs or ())
        rows += _findings(file, operators, names, unknown if tasks is None else None)
    if as_json:
        show_json({"schema": "holdfast.workflow-check/1", "findings": rows, "calls": sorted(unknown)})
    else:
        for row in rows:
            sys.stdout.write(f"{row['file']}:{row['line']}:{row['column']}: {row['message']}\n")
    if unknown and not as_json:
        narrate(f"calls that must be registered: {', '.join(sorted(unknown))} (--tasks MODULE:NAME checks them)")
    if not rows:
        narrate(f"{counted(len(files), 'program')} checked, no mistake found")
    return Exit.FAILED if rows else Exit.OK


def _findings(
    file: str, operators: Operators, inputs: frozenset[str], unknown: set[str] | None
) -> list[dict[str, Any]]:
    try:
        program = read(source_of(file))
    except WorkflowSyntaxError as error:
        at = error.fault.context
        message = f"expected {at['expected']}, got {at['received']}"
        return [{"file": file, "line": error.position.line, "column": error.position.column, "message": message}]
    found = check_program(program, operators, inputs=inputs, unknown_calls=unknown)
    return [
        {"file": file, "line": one.position.line, "column": one.position.column, "message": one.message}
        for one in found
    ]


def workflow_fmt(*, files: Sequence[str], check: bool) -> int:
    """Write programs in the standard layout, and return the exit code."""
    changed: list[str] = []
    for file in files:
        text = source_of(file)
        formatted = format_source(text, file)
        if file == "-" and not check:
            sys.stdout.write(formatted)
        elif formatted != text:
            changed.append(file)
            if not check:
                Path(file).write_text(formatted, encoding="utf-8")
    verb = "would be formatted" if check else "formatted"
    for file in changed:
        narrate(f"{verb}: {file}")
    return Exit.FAILED if check and changed else Exit.OK
