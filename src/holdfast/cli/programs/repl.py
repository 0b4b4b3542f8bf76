"""`holdfast workflow repl`: evaluate expressions as they are typed.

Invariant: values go to stdout, prompts and failures to stderr. A failure does not end it, and Ctrl-C stops one evaluation only.
"""

from __future__ import annotations

import asyncio
import sys

from holdfast.cli.exits import Exit
from holdfast.cli.output import fail, narrate
from holdfast.cli.programs.workflow import failure_lines, options_of, source_of
from holdfast.faults import HoldfastError
from holdfast.tasks.workflows import Workflow
from holdfast.tasks.workflows.shell import WorkflowShell
from holdfast.workflow import WorkflowSyntaxError, read, show

_HELP = "Expressions are evaluated; :env shows what is bound, :quit ends."
_END = "the end of the source"


def workflow_repl(*, file: str | None, tasks: str | None, agent: str | None, scripts: bool) -> int:
    """Read expressions until the end of the input, and return the exit code."""
    shell = WorkflowShell(Workflow("", **options_of(tasks, agent, scripts=scripts)))
    if file is not None:
        _evaluate(shell, source_of(file))
    if sys.stdin.isatty():
        _edit_lines()
        narrate(_HELP)
    text = ""
    while (line := _line("… " if text else "> ")) is not None:
        if not text and line.strip() in {":quit", ":q"}:
            break
        if not text and line.strip() == ":env":
            for name, value in shell.bindings.items():
                sys.stdout.write(f"{name} = {show(value, 200)}\n")
            continue
        text += line + "\n"
        if not _goes_on(text):
            _evaluate(shell, text)
            text = ""
    if text.strip():
        _evaluate(shell, text)
    return Exit.OK


def _edit_lines() -> None:
    """Let the arrow keys edit a line, where Python can."""
    try:
        import readline
    except ImportError:
        return
    readline.parse_and_bind("tab: self-insert")


def _line(prompt: str) -> str | None:
    if not sys.stdin.isatty():
        line = sys.stdin.readline()
        return line.rstrip("\n") if line else None
    try:
        return input(prompt)
    except EOFError:
        return None
    except KeyboardInterrupt:
        narrate("")
        return ""


def _goes_on(text: str) -> bool:
    """Whether a list or a text in it is not closed yet."""
    try:
        read(text)
    except WorkflowSyntaxError as error:
        return bool(error.fault.context.get("received") == _END)
    return False


def _evaluate(shell: WorkflowShell, text: str) -> None:
    if not text.strip():
        return
    try:
        value = asyncio.run(shell.evaluate(text))
    except KeyboardInterrupt:
        narrate("interrupted")
    except HoldfastError as error:
        for line in failure_lines(error, text):
            narrate(line)
        fail(str(error))
    else:
        sys.stdout.write(show(value, 10_000) + "\n")
        sys.stdout.flush()
