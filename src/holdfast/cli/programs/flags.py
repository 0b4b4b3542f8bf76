"""The flags of `holdfast workflow …`."""

import shlex
from typing import Annotated

import msgspec
import typer

from holdfast.cli.flags import JsonOption, SessionStoreOption
from holdfast.cli.verbs import group_of, verb

workflow = group_of("Run, check and format workflows, which survive a crash.")

_File = Annotated[str, typer.Argument(metavar="FILE", help="The program, such as review.sexp.")]
_Files = Annotated[list[str], typer.Argument(metavar="FILE…", help="Programs; - reads one from stdin.")]
_Tasks = Annotated[
    str | None,
    typer.Option(metavar="MODULE:NAME", help="The tasks: a dict or list of functions, or a function that returns one."),
]
_Agent = Annotated[str | None, typer.Option(metavar="MODULE:NAME", help="An agent that performs the tasks of defatom.")]
_Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input", metavar="NAME=VALUE", help="A name to bind first; the value is JSON or a text; repeatable."
    ),
]
_Scripts = Annotated[bool, typer.Option("--scripts", help="Let the program run commands with system:run_script.")]
_Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show the value only, not what is evaluated.")]


class ProgramFlags(msgspec.Struct, frozen=True, kw_only=True):
    """The flags of the verbs that run a program: what it calls, and where it is stored."""

    tasks: _Tasks = None
    agent: _Agent = None
    store: SessionStoreOption = None
    scripts: _Scripts = False
    as_json: JsonOption = False

    def again(self, file: str, session: str) -> str:
        """Return the command that goes on with a session."""
        words = ["holdfast", "workflow", "resume", file, "--session", session]
        given = {"--tasks": self.tasks, "--agent": self.agent, "--store": self.store}
        words += [word for flag, value in given.items() if value for word in (flag, value)]
        return shlex.join([*words, "--scripts"] if self.scripts else words)


@verb(workflow, "run", "programs.workflow")
def workflow_run(
    file: _File,
    *,
    flags: ProgramFlags,
    inputs: _Inputs = None,
    session: Annotated[str | None, typer.Option(help="The session to run in; by default, a new one.")] = None,
    quiet: _Quiet = False,
) -> None:
    """Run a workflow in a session. It shows each call and each binding, and prints the value."""


@verb(workflow, "resume", "programs.workflow")
def workflow_resume(
    file: _File,
    *,
    session: Annotated[str, typer.Option(help="The session of the run to go on with.")],
    flags: ProgramFlags,
    from_binding: Annotated[
        str | None, typer.Option("--from", metavar="BINDING", help="Fork: begin anew after this name was bound.")
    ] = None,
    fork: Annotated[str | None, typer.Option("--as", metavar="ID", help="With --from: the id of the fork.")] = None,
    quiet: _Quiet = False,
) -> None:
    """Go on with a run that failed or was interrupted. Stored results are not asked for again."""


@verb(workflow, "due", "programs.workflow")
def workflow_due(
    files: _Files,
    *,
    flags: ProgramFlags,
    every: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Look again every so many seconds, until it is stopped.")
    ] = None,
) -> None:
    """Go on with the runs of these workflows that wait in retry-later and whose time has come. Exit 1 if one of them failed."""


@verb(workflow, "check", "programs.workflow")
def workflow_check(files: _Files, tasks: _Tasks = None, inputs: _Inputs = None, as_json: JsonOption = False) -> None:
    """Find mistakes without running: syntax, unbound names, wrong arguments. Exit 1 if there are any."""


@verb(workflow, "fmt", "programs.workflow")
def workflow_fmt(
    files: _Files,
    check: Annotated[bool, typer.Option("--check", help="Change nothing; exit 1 if a file is not formatted.")] = False,
) -> None:
    """Write programs in the standard layout. Comments stay."""


@verb(workflow, "repl", "programs.repl")
def workflow_repl(
    file: Annotated[str | None, typer.Argument(metavar="FILE", help="A program to evaluate first.")] = None,
    tasks: _Tasks = None,
    agent: _Agent = None,
    scripts: _Scripts = False,
) -> None:
    """Evaluate expressions as you type them. Nothing is stored."""
