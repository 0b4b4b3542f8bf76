"""The command and the flags of its verbs. The verbs on a store are in `store_app`.

Each verb imports its implementation when it runs, so that `--help` and shell completion stay instant.
"""

import os
import sys
import time
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from holdfast._version import __version__
from holdfast.classify.times import parse_rfc3339
from holdfast.cli.bridge_app import attach, pair, serve, tls, tokens
from holdfast.cli.exits import Exit, perform, prepare_streams, table
from holdfast.cli.output import fail, show_json, show_table
from holdfast.cli.store_app import (
    CLOSE,
    CommandGroup,
    SinceOption,
    StoreOption,
    UntilOption,
    audit,
    complete_codes,
    sessions,
)
from holdfast.cli.workflow_app import workflow
from holdfast.faults import Category, Kind, Layer, NextActor, Scope, Severity

if TYPE_CHECKING:
    from holdfast.policies import Effect

__all__ = ["app", "run"]

app = typer.Typer(
    name="holdfast",
    help="Error handling and recovery for AI agents.",
    cls=CommandGroup,
    # `holdfast completion` prints the scripts.
    add_completion=False,
    # A defect of ours shows a plain traceback. Rich's traceback would fill the screen and show local variables with
    # secrets.
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)

_Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


def run() -> None:
    """Run the command line. It always raises SystemExit with one of the exit codes."""
    # The streams are prepared before Typer writes anything. With a closed stream Typer would print a traceback.
    prepare_streams()
    if "_HOLDFAST_COMPLETE" in os.environ:
        # Typer knows the shells only if it also adds its own options for completion.
        from typer.completion import completion_init  # type: ignore[attr-defined] # public, but not in an __all__

        completion_init()
    app()


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        perform(lambda: _write(f"holdfast {__version__}\n"))
    if context.invoked_subcommand is None:
        from holdfast.cli.start import start

        perform(start)


@app.command()
def explain(
    code: Annotated[
        str,
        typer.Argument(
            metavar="WORD",
            help="A code, a status, a provider's error, an exception class, or a file with a traceback or a JSON error; - reads stdin.",
            autocompletion=complete_codes,
        ),
    ],
    as_json: _Json = False,
) -> None:
    """Show what an error means, why it happens, and what to do."""
    from holdfast.cli.explain import explain as verb

    perform(lambda: verb(code, as_json=as_json, now=time.time()))


@app.command()
def codes(
    words: Annotated[
        list[str] | None, typer.Argument(help="Words that must all occur in the code, its text or its aliases.")
    ] = None,
    kind: Annotated[Kind | None, typer.Option(help="Only this kind of failure.")] = None,
    layer: Annotated[Layer | None, typer.Option(help="Only this layer.")] = None,
    severity: Annotated[Severity | None, typer.Option(help="Only this severity.")] = None,
    category: Annotated[Category | None, typer.Option(help="Only this category.")] = None,
    scope: Annotated[Scope | None, typer.Option(help="Only this scope.")] = None,
    next_actor: Annotated[
        NextActor | None, typer.Option("--next", help="Only failures after which this actor must act next.")
    ] = None,
    retryable: Annotated[
        bool | None,
        typer.Option("--retryable/--permanent", help="Only failures that are retried, or only those that are not."),
    ] = None,
    as_json: _Json = False,
) -> None:
    """List the codes that fit every filter."""
    from holdfast.cli.codes import codes as verb

    wanted = {
        "kind": kind,
        "layer": layer,
        "severity": severity,
        "category": category,
        "scope": scope,
        "next_actor": next_actor,
    }
    # The catalog compares plain strings. None means no filter.
    filters = {name: value and value.value for name, value in wanted.items()}
    perform(lambda: verb(words or [], filters, retryable=retryable, as_json=as_json))


@app.command()
def classify(
    failure: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="A log line or a traceback, as with --text.")
    ] = None,
    status: Annotated[int | None, typer.Option(help="HTTP status.")] = None,
    header: Annotated[list[str] | None, typer.Option(help="'name: value'; may be repeated.")] = None,
    body: Annotated[str, typer.Option(help="The body of the response.")] = "",
    provider: Annotated[str, typer.Option(help="The provider, if you know it: anthropic, openai, groq …")] = "",
    exception: Annotated[str | None, typer.Option(help="The class of an exception: module.Type.")] = None,
    message: Annotated[str, typer.Option(help="The text of the exception or gRPC status.")] = "",
    exit_code: Annotated[
        int | None, typer.Option(help="The exit code of a process. A negative code is the signal that killed it.")
    ] = None,
    stderr: Annotated[str, typer.Option(help="What the process wrote to stderr.")] = "",
    jsonrpc: Annotated[str | None, typer.Option(help="A complete JSON-RPC message.")] = None,
    sse: Annotated[str | None, typer.Option(help="The text of an SSE stream.")] = None,
    grpc: Annotated[str | None, typer.Option(help="The name of a gRPC status.")] = None,
    text: Annotated[str | None, typer.Option(help="A log line or a traceback.")] = None,
    now: Annotated[
        str | None, typer.Option(help="The current time for dates in headers (RFC 3339); by default, now.")
    ] = None,
    jsonl: Annotated[str | None, typer.Option(help="A file with one JSON record a line; - for stdin.")] = None,
    strict: Annotated[bool, typer.Option(help="With --jsonl: exit 8 if any line could not be read.")] = False,
    as_json: _Json = False,
) -> None:
    """Say what a failure is, whether and when to retry it, and which rule decided."""
    from holdfast.cli.classify import Given, classify_lines, classify_one

    # The classifier never reads a clock, and Retry-After may be a date. A fixed time makes the verdict repeatable.
    at = time.time() if now is None else parse_rfc3339(now)
    if at is None:
        fail(f"--now: expected an RFC 3339 date and time, got {now!r}", "for example 2026-03-20T14:32:00Z")
        raise typer.Exit(Exit.USAGE)
    if failure is not None and text is not None:
        fail("TEXT and --text describe different failures", "give one of them")
        raise typer.Exit(Exit.USAGE)
    # With --jsonl the records describe the failures. `perform` exits, so the code below does not read the other flags.
    if jsonl is not None:
        perform(lambda: classify_lines(jsonl, now=at, strict=strict))
    given = Given(
        status=status,
        headers=tuple(header or ()),
        body=body,
        provider=provider,
        exception=exception,
        message=message,
        exit_code=exit_code,
        stderr=stderr,
        jsonrpc=jsonrpc,
        sse=sse,
        grpc=grpc,
        text=text if failure is None else failure,
    )
    perform(lambda: classify_one(given, now=at, as_json=as_json))


@app.command()
def demo(
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same faults and counts.")] = 1,
    fast: Annotated[bool, typer.Option("--fast", help="The same storm in virtual time, without waiting.")] = False,
    as_json: _Json = False,
) -> None:
    """Watch real SDK clients recover from a storm of failures: half a minute, no keys, no network."""
    from holdfast.cli.demo import demo as verb

    perform(lambda: verb(seed=seed, fast=fast, as_json=as_json))


@app.command("run", context_settings={"allow_interspersed_args": False})
def run_verb(
    command: Annotated[list[str], typer.Argument(help="The command and its arguments.")],
    retries: Annotated[
        str | None,
        typer.Option(metavar="N", help="Repeat a failed command up to N times. This says that it may be repeated."),
    ] = None,
    timeout: Annotated[str | None, typer.Option(help="How long one attempt may take: 90, 90s, 5m.")] = None,
    idle: Annotated[str | None, typer.Option(help="How long the command may print nothing.")] = None,
    grace: Annotated[str, typer.Option(help="How long it has to end after SIGTERM, before SIGKILL.")] = "5",
    effect: Annotated[
        str | None,
        typer.Option(
            help="What the command does to the world: read and idempotent are repeated after a failure that may pass; unsafe never, once it has started."
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="The name in settings and events; by default tool:PROGRAM.")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(help="Write the attempts to the audit trail of this store.", envvar="HOLDFAST_STORE"),
    ] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing but the command's own output.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document on stdout; the command's output goes to stderr.")
    ] = False,
) -> None:
    """Run a command with time limits and retries, and classify how it failed. Its exit code is passed on."""
    from holdfast.cli.run import RunFlags, count_of, run_command, seconds_of

    def run_it() -> int:
        flags = RunFlags(
            retries=count_of("--retries", retries),
            timeout=seconds_of("--timeout", timeout),
            idle=seconds_of("--idle", idle),
            grace=seconds_of("--grace", grace, zero=True) or 0.0,
            effect=cast("Effect | None", effect),
            target=target,
            store=store,
            quiet=quiet,
            as_json=as_json,
        )
        return run_command(command, flags)

    perform(run_it)


_Effects = Annotated[
    list[str] | None,
    typer.Option(
        help="An address whose requests are effects (repeatable): URL, or NAME=URL for a program that reads it from NAME. By default every request that changes something, except to a model."
    ),
]
_Service = Annotated[
    list[str] | None,
    typer.Option(help="Another service, whose address the program reads from a variable (repeatable): NAME=URL."),
]
_FakeModel = Annotated[
    bool, typer.Option("--fake-model", help="Answer model requests here, without keys: it calls the first tool.")
]
_FakeEffects = Annotated[
    bool, typer.Option("--fake-effects", help="Send no effect at all: each is answered here with 200 and {}.")
]
_Live = Annotated[
    bool,
    typer.Option(
        "--live",
        help="Send everything in each run. By default effects and model requests are sent in the first run only, and its answers are played again.",
    ),
]
_Check = Annotated[
    str | None, typer.Option(help="A command that runs in the folder at the end, and fails if the result is wrong.")
]
_Every = Annotated[
    bool, typer.Option("--every", help="Kill at both sides of every point, also where the state is the same.")
]
_RunTimeout = Annotated[
    str | None, typer.Option(help="How long one run may take: 90, 90s, 5m. By default 5 times what it takes.")
]


@app.command("crashtest", context_settings={"allow_interspersed_args": False})
def crashtest_verb(
    command: Annotated[list[str], typer.Argument(help="The program and its arguments: python agent.py.")],
    effects: _Effects = None,
    target: _Service = None,
    folder: Annotated[str, typer.Option(help="The working directory with the program's state.")] = ".",
    fake_model: _FakeModel = False,
    script: Annotated[str | None, typer.Option(help="What the fake model answers: a script in TOML.")] = None,
    fake_effects: _FakeEffects = False,
    live: _Live = False,
    expect: Annotated[str, typer.Option(help="Text that the program prints when its work is done.")] = "",
    check: _Check = None,
    kills: Annotated[int | None, typer.Option(min=1, help="At most so many kills; effects first.")] = None,
    every: _Every = False,
    restarts: Annotated[int, typer.Option(min=1, help="How often it is run again after a kill.")] = 3,
    timeout: _RunTimeout = None,
    fork: Annotated[
        bool, typer.Option(help="Fork the runs where that is safe, instead of starting Python for each.")
    ] = True,
    strict: Annotated[bool, typer.Option("--strict", help="Exit 8 if anything but the ideal was seen.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing but the result.")] = False,
    as_json: _Json = False,
) -> None:
    """Kill a program at every request and write, run it again, and show what is doubled or lost."""
    from holdfast.cli.crashtest import CrashFlags
    from holdfast.cli.crashtest import crashtest as verb

    sources = {"effects": tuple(effects or ()), "targets": tuple(target or ()), "folder": folder, "script": script}
    answers = {"fake_model": fake_model, "fake_effects": fake_effects, "live": live, "expect": expect, "check": check}
    limits = {"kills": kills, "every": every, "restarts": restarts, "timeout": timeout, "fork": fork}
    given = {**sources, **answers, **limits, "strict": strict, "quiet": quiet, "as_json": as_json}
    perform(lambda: verb(command, CrashFlags(**cast("Any", given))))


@app.command()
def init(
    folder: Annotated[str, typer.Option(help="Where to write it; by default here.")] = ".", as_json: _Json = False
) -> None:
    """Write a holdfast.toml in which every option is explained and commented out."""
    from pathlib import Path

    from holdfast.cli.init import init as verb

    perform(lambda: verb(Path(folder), as_json=as_json))


@app.command()
def doctor(as_json: _Json = False) -> None:
    """Check versions, packages, clock, settings and store, and suggest fixes."""
    from holdfast.cli.doctor import doctor as verb

    perform(lambda: verb(as_json=as_json))


_Shared = Annotated[str | None, typer.Option("--shared", help="The engine; by default that of the settings.")]
_Namespace = Annotated[str | None, typer.Option("--namespace", help="By default that of the settings.")]


@app.command()
def limits(shared: _Shared = None, namespace: _Namespace = None, as_json: _Json = False) -> None:
    """Show the limits that several processes keep to together: pace, who waits, what was rejected."""
    from holdfast.cli.fleet import limits as verb

    perform(lambda: verb(shared, namespace, as_json=as_json))


@app.command()
def circuits(shared: _Shared = None, namespace: _Namespace = None, as_json: _Json = False) -> None:
    """Show which targets are away for all processes, and which process looks whether they are back."""
    from holdfast.cli.fleet import circuits as verb

    perform(lambda: verb(shared, namespace, as_json=as_json))


policy = typer.Typer(
    cls=CommandGroup, help="Show, check and simulate policies; sum up observe mode.", no_args_is_help=True
)
app.add_typer(policy, name="policy")
config = typer.Typer(cls=CommandGroup, help="Print the schema of the settings.", no_args_is_help=True)
app.add_typer(config, name="config")

_File = Annotated[
    str | None,
    typer.Argument(
        help="A holdfast.toml, or - for stdin; by default, the settings that a program started here would use."
    ),
]
_Target = Annotated[str | None, typer.Option(help="Only the policy of this target: claude, tool:bash …")]


@policy.command("show")
def policy_show(file: _File = None, target: _Target = None, as_json: _Json = False) -> None:
    """Show the delays for every class of failures, and the worst case in calls and time."""
    from holdfast.cli.policy import policy_show as verb
    from holdfast.cli.policy import with_config

    perform(lambda: with_config(file, lambda settings: verb(settings, target=target, as_json=as_json)))


@policy.command("check")
def policy_check(
    file: _File = None,
    strict: Annotated[bool, typer.Option(help="Exit 8 if there are warnings.")] = False,
    as_json: _Json = False,
) -> None:
    """List everything that is wrong or suspicious in the settings."""
    from holdfast.cli.policy import policy_check as verb

    perform(lambda: verb(file, strict=strict, as_json=as_json))


@policy.command("simulate")
def policy_simulate(
    file: _File = None,
    target: _Target = None,
    outage: Annotated[str, typer.Option(help="When calls fail: FROM:TO in seconds.")] = "5:60",
    kind: Annotated[
        str,
        typer.Option(
            help="How they fail: outage, brownout, blips, flapping, slow-return; or by a limit on the load: bucket, silent-bucket, tokens, burst, concurrency."
        ),
    ] = "outage",
    limit: Annotated[
        str, typer.Option(help="The limit on the load: 'requests=60;burst=5', 'tokens=30000', 'concurrency=4'.")
    ] = "",
    share: Annotated[float, typer.Option(help="The share of bad seconds in a brownout.")] = 0.5,
    rate: Annotated[str, typer.Option(help="How many operations start: 10/s, 90/m.")] = "10/s",
    duration: Annotated[float, typer.Option(help="For how many seconds operations start.")] = 120.0,
    code: Annotated[str, typer.Option(help="The code that calls fail with.")] = "PROVIDER_UNAVAILABLE",
    seed: Annotated[int, typer.Option(help="The same seed gives the same result.")] = 1,
    as_json: _Json = False,
) -> None:
    """Simulate an outage, or a limit on the load, under a policy, without waiting, and plot it."""
    from holdfast.cli.policy import load_of, outage_of, with_config
    from holdfast.cli.policy import policy_simulate as verb

    # The flags are read inside `perform`, so that a wrong flag is reported like every other error of ours.
    def simulate() -> Exit:
        load = load_of(kind, rate, duration, limit)
        what = outage_of(outage, rate, duration, code, kind, share) if load is None else load
        return with_config(file, lambda settings: verb(settings, what, target=target, seed=seed, as_json=as_json))

    perform(simulate)


@policy.command("observe")
def policy_observe(
    file: Annotated[
        str | None,
        typer.Argument(
            help="A file of events or of `holdfast audit export`, or - for stdin; by default, the audit trail of --store."
        ),
    ] = None,
    store: StoreOption = None,
    target: Annotated[str | None, typer.Option(help="Only calls to this target: claude, tool:bash …")] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    strict: Annotated[bool, typer.Option(help="Exit 8 if an answered call would have been worse off.")] = False,
    as_json: _Json = False,
) -> None:
    """Sum up what recovery would have changed, from the calls that observe mode reported."""
    from holdfast.cli.audit import filters_of
    from holdfast.cli.observe import observe_file, observe_store
    from holdfast.cli.store import with_store

    def observe() -> Exit:
        filters = filters_of(None, None, None, None, None, since, until, now=time.time())
        how: Any = {"target": target, "strict": strict, "as_json": as_json}
        if file is not None:
            return observe_file(file, filters, **how)
        return with_store(store, lambda opened: observe_store(opened, filters, **how))

    perform(observe)


@config.command("schema")
def config_schema() -> None:
    """Print the JSON Schema of holdfast.toml, for editors."""
    from holdfast.config.schema import json_schema

    perform(lambda: _show(json_schema()))


agent = typer.Typer(cls=CommandGroup, help="Run agents in sessions that survive a crash.", no_args_is_help=True)
app.add_typer(agent, name="agent")
app.add_typer(workflow, name="workflow")


@agent.command("run")
def agent_run(
    prompt: Annotated[
        str | None, typer.Argument(help="What the agent is to do; leave it out to go on with --session.")
    ] = None,
    agent_name: Annotated[
        str | None,
        typer.Option(
            "--agent",
            metavar="MODULE:NAME",
            help="An agent of yours; by default, one with tools for the files and the shell here.",
        ),
    ] = None,
    session: Annotated[
        str | None, typer.Option(help="The session to work in, or to go on with; by default, a new one.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="The model, such as claude-sonnet; repeat it for fallbacks.")
    ] = None,
    mode: Annotated[
        str | None,
        typer.Option(help="ask: a person approves unsafe tools; allowlist: only those of --allow run; yolo: all run."),
    ] = None,
    allow: Annotated[list[str] | None, typer.Option(metavar="TOOL", help="A tool that may run; repeatable.")] = None,
    store: Annotated[
        str | None,
        typer.Option(help="Where the session is stored; by default, where programs here do.", envvar="HOLDFAST_STORE"),
    ] = None,
    as_json: _Json = False,
) -> None:
    """Work on a prompt: with live retries, questions at the terminal, and the cost at the end."""
    from holdfast.cli.agent import AgentFlags
    from holdfast.cli.agent import agent_run as verb

    flags = AgentFlags(
        prompt=prompt,
        agent=agent_name,
        session=session,
        models=tuple(model or ()),
        mode=mode,
        allow=tuple(allow or ()),
        store=store,
        as_json=as_json,
    )
    perform(lambda: verb(flags))


actors = typer.Typer(cls=CommandGroup, help="Look at the actors of running programs.", no_args_is_help=True)
app.add_typer(actors, name="actors")


@actors.command("tree")
def actors_tree(
    pid: Annotated[
        int | None, typer.Option(min=1, help="Only this process; by default, all of yours that have a control socket.")
    ] = None,
    as_json: _Json = False,
) -> None:
    """Show the supervisors and actors of running programs: state, restarts, mailbox, last failure."""
    from holdfast.cli.actors import actors_tree as verb

    perform(lambda: verb(pid, as_json=as_json))


# The commands are added here and not at the top, because --help lists them in this order.
app.add_typer(audit, name="audit")
app.add_typer(sessions, name="sessions")
app.command("serve")(serve)
app.add_typer(tokens, name="tokens")
app.add_typer(tls, name="tls")
app.command("pair")(pair)
app.command("attach")(attach)
faults = typer.Typer(cls=CommandGroup, help="Run providers and networks that fail on script.", no_args_is_help=True)
app.add_typer(faults, name="faults")


@faults.command("serve")
def faults_serve(
    script: Annotated[str | None, typer.Option(help="A script in TOML; - reads it from stdin.")] = None,
    steps: Annotated[str, typer.Option(help="A script in one line: '429;retry-after=7, 529*2, ok, loop'.")] = "",
    limit: Annotated[
        list[str] | None,
        typer.Option(
            help="A limit that is enforced, repeatable: 'requests=60;burst=5', 'tokens=30000;headers=no', 'concurrency=4;shared'."
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="The same seed gives the same faults. The default is the script's seed.")
    ] = None,
    # The default port is fixed, so that the address in your program stays valid when the server is started again.
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port on loopback; 0 takes a free one.")] = 8429,
    as_json: _Json = False,
) -> None:
    """Run a fake provider that fails on script, until Ctrl-C."""
    from holdfast.cli.faults import serve

    perform(lambda: serve(script, steps, limits=limit or (), seed=seed, port=port, as_json=as_json))


@faults.command("list")
def faults_list(as_json: _Json = False) -> None:
    """List the faults that a script can use, the options of limits, and the paths that are served."""
    from holdfast.cli.faults import list_faults

    perform(lambda: list_faults(as_json=as_json))


@faults.command("proxy")
def faults_proxy(
    to: Annotated[str, typer.Option(help="The server behind it: HOST:PORT.")],
    listen: Annotated[
        str, typer.Option(help="Where clients connect: HOST:PORT; port 0 takes a free one.")
    ] = "127.0.0.1:0",
    toxic: Annotated[
        list[str] | None, typer.Option(help="latency=0.05, reset=100;direction=down …; may be repeated.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same jitter and chances.")] = 0,
    seconds: Annotated[float | None, typer.Option(help="Stop after this many seconds; by default, on Ctrl-C.")] = None,
    as_json: _Json = False,
) -> None:
    """Run a TCP proxy that breaks connections, and show its counters at the end."""
    from holdfast.cli.faults import proxy as verb

    perform(lambda: verb(to, listen=listen, toxics=toxic or [], seed=seed, seconds=seconds, as_json=as_json))


@app.command()
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish", "powershell"], typer.Argument(help="The shell.")],
    as_json: _Json = False,
) -> None:
    """Print the script that completes commands, options, codes and sessions in a shell.

    To switch it on in bash, write into ~/.bashrc: eval "$(holdfast completion bash)". For other shells, --json has the line as `use`.
    """
    from holdfast.cli.completion import completion as verb

    perform(lambda: verb(shell, as_json=as_json))


@app.command("help")
def help_topic(
    context: typer.Context,
    topic: Annotated[list[str] | None, typer.Argument(help="exit-codes, or a command: policy show.")] = None,
    as_json: _Json = False,
) -> None:
    """Show the help of a command, or what the exit codes mean."""
    # The argument is a list of words, because a command such as `policy show` has two words.
    words = topic or []
    if words == ["exit-codes"]:
        perform(lambda: _show_exit_codes(as_json=as_json))
    text, commands = _help_of(context, words)
    if as_json:
        perform(lambda: _show({"schema": "holdfast.help/1", "help": text, "commands": commands}))
    perform(lambda: _write(f"{text}\n"))


def _help_of(context: typer.Context, words: list[str]) -> tuple[str, list[str]]:
    """Return the help of the command that these words name, and the names of its own commands."""
    found = context.find_root()
    for word in words:
        group = found.command
        names = group.list_commands(found) if isinstance(group, CommandGroup) else []
        command = group.get_command(found, word) if isinstance(group, CommandGroup) else None
        if command is None:
            near = get_close_matches(word, [*names, *([] if found.parent else ["exit-codes"])], 1, CLOSE)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            message = f"There is no help on '{' '.join(words)}'.{hint}"
            raise typer.BadParameter(message)
        # Only the help is needed, so missing arguments must not be an error.
        found = command.make_context(word, [], parent=found, resilient_parsing=True)
    inner = found.command.list_commands(found) if isinstance(found.command, CommandGroup) else []
    return found.get_help(), inner


def _show_exit_codes(*, as_json: bool) -> Exit:
    if as_json:
        codes = [{"code": code, "meaning": text} for code, text in table()]
        return _show({"schema": "holdfast.exit-codes/1", "codes": codes})
    show_table(("exit", "meaning"), [(str(code), text) for code, text in table()])
    return Exit.OK


def _show(document: dict[str, Any]) -> Exit:
    show_json(document)
    return Exit.OK


def _write(text: str) -> Exit:
    sys.stdout.write(text)
    return Exit.OK
