"""The flags of `holdfast workflow …`.

Each verb imports its implementation when it runs, so that `--help` and shell completion stay instant.
"""

from typing import Annotated

import typer

from holdfast.cli.exits import perform
from holdfast.cli.store_app import CommandGroup

__all__ = ["workflow"]

workflow = typer.Typer(
    cls=CommandGroup, help="Run, check and format workflows, which survive a crash.", no_args_is_help=True
)

_File = Annotated[str, typer.Argument(metavar="FILE", help="The program, such as review.sexp.")]
_Files = Annotated[list[str], typer.Argument(metavar="FILE…", help="Programs; - reads one from stdin.")]
_Tasks = Annotated[
    str | None,
    typer.Option(metavar="MODULE:NAME", help="The tasks: a dict or list of functions, or a function that returns one."),
]
_Agent = Annotated[str | None, typer.Option(metavar="MODULE:NAME", help="An agent that performs the tasks of defatom.")]
_Input = Annotated[
    list[str] | None,
    typer.Option(
        "--input", metavar="NAME=VALUE", help="A name to bind first; the value is JSON or a text; repeatable."
    ),
]
_Store = Annotated[
    str | None,
    typer.Option(help="Where the session is stored; by default, where programs here do.", envvar="HOLDFAST_STORE"),
]
_Scripts = Annotated[bool, typer.Option("--scripts", help="Let the program run commands with system:run_script.")]
_Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show the value only, not what is evaluated.")]
_Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


@workflow.command("run")
def workflow_run(
    file: _File,
    tasks: _Tasks = None,
    agent: _Agent = None,
    inputs: _Input = None,
    session: Annotated[str | None, typer.Option(help="The session to run in; by default, a new one.")] = None,
    store: _Store = None,
    scripts: _Scripts = False,
    quiet: _Quiet = False,
    as_json: _Json = False,
) -> None:
    """Run a workflow in a session. It shows each call and each binding, and prints the value."""
    from holdfast.cli.workflow import WorkflowRunFlags
    from holdfast.cli.workflow import workflow_run as verb

    flags = WorkflowRunFlags(
        file=file,
        tasks=tasks,
        agent=agent,
        inputs=tuple(inputs or ()),
        session=session,
        store=store,
        scripts=scripts,
        quiet=quiet,
        as_json=as_json,
    )
    perform(lambda: verb(flags))


@workflow.command("resume")
def workflow_resume(
    file: _File,
    session: Annotated[str, typer.Option(help="The session of the run to go on with.")],
    tasks: _Tasks = None,
    agent: _Agent = None,
    store: _Store = None,
    from_binding: Annotated[
        str | None, typer.Option("--from", metavar="BINDING", help="Fork: begin anew after this name was bound.")
    ] = None,
    fork: Annotated[str | None, typer.Option("--as", metavar="ID", help="With --from: the id of the fork.")] = None,
    scripts: _Scripts = False,
    quiet: _Quiet = False,
    as_json: _Json = False,
) -> None:
    """Go on with a run that failed or was interrupted. Stored results are not asked for again."""
    from holdfast.cli.workflow import WorkflowRunFlags
    from holdfast.cli.workflow import workflow_resume as verb

    flags = WorkflowRunFlags(
        file=file,
        tasks=tasks,
        agent=agent,
        session=session,
        store=store,
        scripts=scripts,
        quiet=quiet,
        as_json=as_json,
    )
    perform(lambda: verb(flags, from_binding, fork))


@workflow.command("due")
def workflow_due(
    files: _Files,
    tasks: _Tasks = None,
    agent: _Agent = None,
    store: _Store = None,
    every: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Look again every so many seconds, until it is stopped.")
    ] = None,
    scripts: _Scripts = False,
    as_json: _Json = False,
) -> None:
    """Go on with the runs of these workflows that wait in retry-later and whose time has come. Exit 1 if one of them failed."""
    from holdfast.cli.workflow import WorkflowRunFlags
    from holdfast.cli.workflow import workflow_due as verb

    flags = [
        WorkflowRunFlags(file=file, tasks=tasks, agent=agent, store=store, scripts=scripts, as_json=as_json)
        for file in files
    ]
    perform(lambda: verb(flags, every))


@workflow.command("check")
def workflow_check(files: _Files, tasks: _Tasks = None, inputs: _Input = None, as_json: _Json = False) -> None:
    """Find mistakes without running: syntax, unbound names, wrong arguments. Exit 1 if there are any."""
    from holdfast.cli.workflow import workflow_check as verb

    perform(lambda: verb(files, tasks, tuple(inputs or ()), as_json=as_json))


@workflow.command("fmt")
def workflow_fmt(
    files: _Files,
    check: Annotated[bool, typer.Option("--check", help="Change nothing; exit 1 if a file is not formatted.")] = False,
) -> None:
    """Write programs in the standard layout. Comments stay."""
    from holdfast.cli.workflow import workflow_fmt as verb

    perform(lambda: verb(files, check=check))


@workflow.command("repl")
def workflow_repl(
    file: Annotated[str | None, typer.Argument(metavar="FILE", help="A program to evaluate first.")] = None,
    tasks: _Tasks = None,
    agent: _Agent = None,
    scripts: _Scripts = False,
) -> None:
    """Evaluate expressions as you type them. Nothing is stored."""
    from holdfast.cli.workflow_repl import workflow_repl as verb

    perform(lambda: verb(file, tasks, agent, scripts=scripts))
