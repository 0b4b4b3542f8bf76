"""The command and the flags of its verbs. The verbs on a store are in `store_app`."""

import os
import shlex
import sys
from difflib import get_close_matches
from typing import Annotated, Any, Literal

import msgspec
import typer

from holdfast._version import __version__
from holdfast.cli.bridge.flags import bridge, tls, tokens
from holdfast.cli.exits import Exit, perform, prepare_streams, table
from holdfast.cli.flags import JsonOption, SessionStoreOption, SinceOption, StoreOption, UntilOption, complete_codes
from holdfast.cli.journal.flags import runs
from holdfast.cli.output import show_json, show_table
from holdfast.cli.programs.flags import workflow
from holdfast.cli.store.flags import audit, sessions
from holdfast.cli.verbs import CLOSE, CommandGroup, group_of, verb
from holdfast.cli.work.flags import work, workers
from holdfast.faults import Category, Kind, Layer, NextActor, Scope, Severity

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


@verb(app, "explain", "failures.explain")
def explain(
    code: Annotated[
        str,
        typer.Argument(
            metavar="WORD",
            help="A code, a status, a provider's error, an exception class, or a file with a traceback or a JSON error; - reads stdin.",
            autocompletion=complete_codes,
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Show what an error means, why it happens, and what to do."""


class CodeFilters(msgspec.Struct, frozen=True, kw_only=True):
    """What the flags of `holdfast codes` ask for. A code must fit all of it."""

    kind: Annotated[Kind | None, typer.Option(help="Only this kind of failure.")] = None
    layer: Annotated[Layer | None, typer.Option(help="Only this layer.")] = None
    severity: Annotated[Severity | None, typer.Option(help="Only this severity.")] = None
    category: Annotated[Category | None, typer.Option(help="Only this category.")] = None
    scope: Annotated[Scope | None, typer.Option(help="Only this scope.")] = None
    next_actor: Annotated[
        NextActor | None, typer.Option("--next", help="Only failures after which this actor must act next.")
    ] = None
    retryable: Annotated[
        bool | None,
        typer.Option("--retryable/--permanent", help="Only failures that are retried, or only those that are not."),
    ] = None


@verb(app, "codes", "failures.codes")
def codes(
    words: Annotated[
        list[str] | None, typer.Argument(help="Words that must all occur in the code, its text or its aliases.")
    ] = None,
    *,
    filters: CodeFilters,
    as_json: JsonOption = False,
) -> None:
    """List the codes that fit every filter."""


class FailureFlags(msgspec.Struct, frozen=True, kw_only=True):
    """One failure as the flags of `holdfast classify` describe it."""

    status: Annotated[int | None, typer.Option(help="HTTP status.")] = None
    header: Annotated[list[str] | None, typer.Option(help="'name: value'; may be repeated.")] = None
    body: Annotated[str, typer.Option(help="The body of the response.")] = ""
    provider: Annotated[str, typer.Option(help="The provider, if you know it: anthropic, openai, groq …")] = ""
    exception: Annotated[str | None, typer.Option(help="The class of an exception: module.Type.")] = None
    message: Annotated[str, typer.Option(help="The text of the exception or gRPC status.")] = ""
    exit_code: Annotated[
        int | None, typer.Option(help="The exit code of a process. A negative code is the signal that killed it.")
    ] = None
    stderr: Annotated[str, typer.Option(help="What the process wrote to stderr.")] = ""
    jsonrpc: Annotated[str | None, typer.Option(help="A complete JSON-RPC message.")] = None
    sse: Annotated[str | None, typer.Option(help="The text of an SSE stream.")] = None
    grpc: Annotated[str | None, typer.Option(help="The name of a gRPC status.")] = None
    text: Annotated[str | None, typer.Option(help="A log line or a traceback.")] = None


@verb(app, "classify", "failures.classify")
def classify(
    failure: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="A log line or a traceback, as with --text.")
    ] = None,
    *,
    given: FailureFlags,
    now: Annotated[
        str | None, typer.Option(help="The current time for dates in headers (RFC 3339); by default, now.")
    ] = None,
    jsonl: Annotated[str | None, typer.Option(help="A file with one JSON record a line; - for stdin.")] = None,
    strict: Annotated[bool, typer.Option(help="With --jsonl: exit 8 if any line could not be read.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Say what a failure is, whether and when to retry it, and which rule decided."""


@verb(app, "demo", "demo")
def demo(
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same faults and counts.")] = 1,
    fast: Annotated[bool, typer.Option("--fast", help="The same storm in virtual time, without waiting.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Watch real SDK clients recover from a storm of failures: half a minute, no keys, no network."""


class RunFlags(msgspec.Struct, frozen=True, kw_only=True):
    """The flags of `holdfast run`."""

    retries: Annotated[
        str | None,
        typer.Option(metavar="N", help="Repeat a failed command up to N times. This says that it may be repeated."),
    ] = None
    timeout: Annotated[str | None, typer.Option(help="How long one attempt may take: 90, 90s, 5m.")] = None
    idle: Annotated[str | None, typer.Option(help="How long the command may print nothing.")] = None
    grace: Annotated[str, typer.Option(help="How long it has to end after SIGTERM, before SIGKILL.")] = "5"
    effect: Annotated[
        str | None,
        typer.Option(
            help="What the command does to the world: read and idempotent are repeated after a failure that may pass; unsafe never, once it has started."
        ),
    ] = None
    target: Annotated[str | None, typer.Option(help="The name in settings and events; by default tool:PROGRAM.")] = None
    store: Annotated[
        str | None,
        typer.Option(help="Write the attempts to the audit trail of this store.", envvar="HOLDFAST_STORE"),
    ] = None
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing but the command's own output.")] = False
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON document on stdout; the command's output goes to stderr.")
    ] = False


@verb(app, "run", "programs.run", context_settings={"allow_interspersed_args": False})
def run_command(
    command: Annotated[list[str], typer.Argument(help="The command and its arguments.")], *, flags: RunFlags
) -> None:
    """Run a command with time limits and retries, and classify how it failed. Its exit code is passed on."""


class CrashFlags(msgspec.Struct, frozen=True, kw_only=True):
    """The flags of `holdfast crashtest`."""

    effects: Annotated[
        list[str] | None,
        typer.Option(
            help="An address whose requests are effects (repeatable): URL, or NAME=URL for a program that reads it from NAME. By default every request that changes something, except to a model."
        ),
    ] = None
    target: Annotated[
        list[str] | None,
        typer.Option(help="Another service, whose address the program reads from a variable (repeatable): NAME=URL."),
    ] = None
    folder: Annotated[str, typer.Option(help="The working directory with the program's state.")] = "."
    fake_model: Annotated[
        bool, typer.Option("--fake-model", help="Answer model requests here, without keys: it calls the first tool.")
    ] = False
    script: Annotated[str | None, typer.Option(help="What the fake model answers: a script in TOML.")] = None
    fake_effects: Annotated[
        bool, typer.Option("--fake-effects", help="Send no effect at all: each is answered here with 200 and {}.")
    ] = False
    live: Annotated[
        bool,
        typer.Option(
            "--live",
            help="Send everything in each run. By default effects and model requests are sent in the first run only, and its answers are played again.",
        ),
    ] = False
    expect: Annotated[str, typer.Option(help="Text that the program prints when its work is done.")] = ""
    check: Annotated[
        str | None, typer.Option(help="A command that runs in the folder at the end, and fails if the result is wrong.")
    ] = None
    kills: Annotated[int | None, typer.Option(min=1, help="At most so many kills; effects first.")] = None
    every: Annotated[
        bool, typer.Option("--every", help="Kill at both sides of every point, also where the state is the same.")
    ] = False
    restarts: Annotated[int, typer.Option(min=1, help="How often it is run again after a kill.")] = 3
    timeout: Annotated[
        str | None, typer.Option(help="How long one run may take: 90, 90s, 5m. By default 5 times what it takes.")
    ] = None
    fork: Annotated[
        bool, typer.Option(help="Fork the runs where that is safe, instead of starting Python for each.")
    ] = True
    strict: Annotated[bool, typer.Option("--strict", help="Exit 8 if anything but the ideal was seen.")] = False
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print nothing but the result.")] = False
    as_json: JsonOption = False


@verb(app, "crashtest", "programs.crashtest", context_settings={"allow_interspersed_args": False})
def crashtest(
    command: Annotated[list[str], typer.Argument(help="The program and its arguments: python agent.py.")],
    *,
    flags: CrashFlags,
) -> None:
    """Kill a program at every request and write, run it again, and show what is doubled or lost."""


@verb(app, "init", "init")
def init(
    folder: Annotated[str, typer.Option(help="Where to write it; by default here.")] = ".", as_json: JsonOption = False
) -> None:
    """Write a holdfast.toml in which every option is explained and commented out."""


@verb(app, "doctor", "failures.doctor")
def doctor(as_json: JsonOption = False) -> None:
    """Check versions, packages, clock, settings and store, and suggest fixes."""


_Shared = Annotated[str | None, typer.Option("--shared", help="The engine; by default that of the settings.")]
_Namespace = Annotated[str | None, typer.Option("--namespace", help="By default that of the settings.")]


@verb(app, "limits", "fleet")
def limits(shared: _Shared = None, namespace: _Namespace = None, as_json: JsonOption = False) -> None:
    """Show the limits that several processes keep to together: pace, who waits, what was rejected."""


@verb(app, "circuits", "fleet")
def circuits(shared: _Shared = None, namespace: _Namespace = None, as_json: JsonOption = False) -> None:
    """Show which targets are away for all processes, and which process looks whether they are back."""


policy = group_of("Show, check and simulate policies; sum up observe mode.")
app.add_typer(policy, name="policy")
config = group_of("Print the schema of the settings.")
app.add_typer(config, name="config")

_File = Annotated[
    str | None,
    typer.Argument(
        help="A holdfast.toml, or - for stdin; by default, the settings that a program started here would use."
    ),
]
_Target = Annotated[str | None, typer.Option(help="Only the policy of this target: claude, tool:bash …")]


@verb(policy, "show", "failures.policy")
def policy_show(file: _File = None, target: _Target = None, as_json: JsonOption = False) -> None:
    """Show the delays for every class of failures, and the worst case in calls and time."""


@verb(policy, "check", "failures.policy")
def policy_check(
    file: _File = None,
    strict: Annotated[bool, typer.Option(help="Exit 8 if there are warnings.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List everything that is wrong or suspicious in the settings."""


class SimulationFlags(msgspec.Struct, frozen=True, kw_only=True):
    """What `holdfast policy simulate` simulates."""

    outage: Annotated[str, typer.Option(help="When calls fail: FROM:TO in seconds.")] = "5:60"
    kind: Annotated[
        str,
        typer.Option(
            help="How they fail: outage, brownout, blips, flapping, slow-return; or by a limit on the load: bucket, silent-bucket, tokens, burst, concurrency."
        ),
    ] = "outage"
    limit: Annotated[
        str, typer.Option(help="The limit on the load: 'requests=60;burst=5', 'tokens=30000', 'concurrency=4'.")
    ] = ""
    share: Annotated[float, typer.Option(help="The share of bad seconds in a brownout.")] = 0.5
    rate: Annotated[str, typer.Option(help="How many operations start: 10/s, 90/m.")] = "10/s"
    duration: Annotated[float, typer.Option(help="For how many seconds operations start.")] = 120.0
    code: Annotated[str, typer.Option(help="The code that calls fail with.")] = "PROVIDER_UNAVAILABLE"


@verb(policy, "simulate", "failures.policy")
def policy_simulate(
    file: _File = None,
    target: _Target = None,
    *,
    flags: SimulationFlags,
    seed: Annotated[int, typer.Option(help="The same seed gives the same result.")] = 1,
    as_json: JsonOption = False,
) -> None:
    """Simulate an outage, or a limit on the load, under a policy, without waiting, and plot it."""


@verb(policy, "observe", "store.observe")
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
    as_json: JsonOption = False,
) -> None:
    """Sum up what recovery would have changed, from the calls that observe mode reported."""


@verb(config, "schema", "failures.policy")
def config_schema() -> None:
    """Print the JSON Schema of holdfast.toml, for editors."""


agent = group_of("Run agents in sessions that survive a crash.")
app.add_typer(agent, name="agent")
app.add_typer(workflow, name="workflow")


class AgentFlags(msgspec.Struct, frozen=True, kw_only=True):
    """The flags of `holdfast agent run`."""

    prompt: Annotated[
        str | None, typer.Argument(help="What the agent is to do; leave it out to go on with --session.")
    ] = None
    agent: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:NAME",
            help="An agent of yours; by default, one with tools for the files and the shell here.",
        ),
    ] = None
    session: Annotated[
        str | None, typer.Option(help="The session to work in, or to go on with; by default, a new one.")
    ] = None
    model: Annotated[
        list[str] | None, typer.Option(help="The model, such as claude-sonnet; repeat it for fallbacks.")
    ] = None
    mode: Annotated[
        str | None,
        typer.Option(help="ask: a person approves unsafe tools; allowlist: only those of --allow run; yolo: all run."),
    ] = None
    allow: Annotated[list[str] | None, typer.Option(metavar="TOOL", help="A tool that may run; repeatable.")] = None
    store: SessionStoreOption = None
    as_json: JsonOption = False

    def again(self, session: str) -> str:
        """Return the command that goes on with a session."""
        words = ["holdfast", "agent", "run", "--session", session]
        given = {"--agent": self.agent, "--store": self.store, "--mode": self.mode}
        words += [word for flag, value in given.items() if value for word in (flag, value)]
        words += [word for model in self.model or () for word in ("--model", model)]
        return shlex.join(words)


@verb(agent, "run", "programs.agent")
def agent_run(flags: AgentFlags) -> None:
    """Work on a prompt: with live retries, questions at the terminal, and the cost at the end."""


actors = group_of("Look at the actors of running programs.")
app.add_typer(actors, name="actors")


@verb(actors, "tree", "programs.actors")
def actors_tree(
    pid: Annotated[
        int | None, typer.Option(min=1, help="Only this process; by default, all of yours that have a control socket.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Show the supervisors and actors of running programs: state, restarts, mailbox, last failure."""


# The commands are added here and not at the top, because --help lists them in this order.
app.add_typer(runs, name="runs")
app.add_typer(audit, name="audit")
app.add_typer(sessions, name="sessions")
app.registered_commands += workers.registered_commands
app.add_typer(work, name="work")
app.registered_commands += bridge.registered_commands
app.add_typer(tokens, name="tokens")
app.add_typer(tls, name="tls")
faults = group_of("Run providers and networks that fail on script.")
app.add_typer(faults, name="faults")


@verb(faults, "serve", "programs.faults")
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
    as_json: JsonOption = False,
) -> None:
    """Run a fake provider that fails on script, until Ctrl-C."""


@verb(faults, "list", "programs.faults")
def faults_list(as_json: JsonOption = False) -> None:
    """List the faults that a script can use, the options of limits, and the paths that are served."""


@verb(faults, "proxy", "programs.faults")
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
    as_json: JsonOption = False,
) -> None:
    """Run a TCP proxy that breaks connections, and show its counters at the end."""


@verb(app, "completion", "completion")
def completion(
    shell: Annotated[Literal["bash", "zsh", "fish", "powershell"], typer.Argument(help="The shell.")],
    as_json: JsonOption = False,
) -> None:
    """Print the script that completes commands, options, codes and sessions in a shell.

    To switch it on in bash, write into ~/.bashrc: eval "$(holdfast completion bash)". For other shells, --json has the line as `use`.
    """


@app.command("help")
def help_topic(
    context: typer.Context,
    topic: Annotated[list[str] | None, typer.Argument(help="exit-codes, or a command: policy show.")] = None,
    as_json: JsonOption = False,
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
