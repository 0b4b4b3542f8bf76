"""The composition root: verbs, their flags, and what happens when one of them fails."""

from __future__ import annotations

import sys
import time
from enum import StrEnum
from typing import Annotated, Any

import typer

from holdfast._version import __version__
from holdfast.classify.times import parse_rfc3339
from holdfast.cli.exits import Exit, perform, prepare_streams, table
from holdfast.cli.output import fail, show_json, show_table
from holdfast.cli.store_app import audit, sessions
from holdfast.faults import Category, Kind, Layer, NextActor, Scope, Severity  # noqa: TC001 - typer reads annotations

__all__ = ["app", "run"]

app = typer.Typer(
    name="holdfast",
    help="Error handling and recovery for AI agents.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


class _Topic(StrEnum):
    EXIT_CODES = "exit-codes"


def run() -> None:
    """Run the command line; leaves by SystemExit with one of the exit codes."""
    prepare_streams()
    app()


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False,
) -> None:
    if version:
        perform(_show_version)


@app.command()
def explain(
    code: Annotated[
        str, typer.Argument(help="A code or any alias of it; - reads a traceback or a JSON error from stdin.")
    ],
    as_json: _Json = False,
) -> None:
    """Show what a code means, why it happens, and what to do."""
    from holdfast.cli.explain import explain as verb

    perform(lambda: verb(code, as_json=as_json, now=time.time()))


@app.command()
def codes(
    words: Annotated[
        list[str] | None, typer.Argument(help="Words that must all occur in code, text or aliases.")
    ] = None,
    kind: Annotated[Kind | None, typer.Option(help="Only this kind of failure.")] = None,
    layer: Annotated[Layer | None, typer.Option(help="Only this layer.")] = None,
    severity: Annotated[Severity | None, typer.Option(help="Only this severity.")] = None,
    category: Annotated[Category | None, typer.Option(help="Only this category.")] = None,
    scope: Annotated[Scope | None, typer.Option(help="Only this scope.")] = None,
    next_actor: Annotated[NextActor | None, typer.Option("--next", help="Only what this actor must act on.")] = None,
    retryable: Annotated[
        bool | None, typer.Option("--retryable/--permanent", help="Only what is (not) retried.")
    ] = None,
    as_json: _Json = False,
) -> None:
    """List the codes; filters add up."""
    from holdfast.cli.codes import codes as verb

    wanted = {
        "kind": kind,
        "layer": layer,
        "severity": severity,
        "category": category,
        "scope": scope,
        "next_actor": next_actor,
    }
    filters = {name: value and value.value for name, value in wanted.items()}
    perform(lambda: verb(words or [], filters, retryable=retryable, as_json=as_json))


@app.command()
def classify(
    status: Annotated[int | None, typer.Option(help="HTTP status.")] = None,
    header: Annotated[list[str] | None, typer.Option(help="'name: value'; may be repeated.")] = None,
    body: Annotated[str, typer.Option(help="The body as sent.")] = "",
    provider: Annotated[str, typer.Option(help="Who answered, where it helps: anthropic, openai, groq …")] = "",
    exception: Annotated[str | None, typer.Option(help="An exception's class, module.Type.")] = None,
    message: Annotated[str, typer.Option(help="The text of the exception or gRPC status.")] = "",
    exit_code: Annotated[
        int | None, typer.Option(help="A process's exit code; negative: the signal that killed it.")
    ] = None,
    stderr: Annotated[str, typer.Option(help="What the process wrote to stderr.")] = "",
    jsonrpc: Annotated[str | None, typer.Option(help="A JSON-RPC message, whole.")] = None,
    sse: Annotated[str | None, typer.Option(help="A stream's text.")] = None,
    grpc: Annotated[str | None, typer.Option(help="A gRPC status, by name.")] = None,
    text: Annotated[str | None, typer.Option(help="A log line or a traceback.")] = None,
    now: Annotated[
        str | None, typer.Option(help="The time dates are read by (RFC 3339); by default, the present.")
    ] = None,
    jsonl: Annotated[str | None, typer.Option(help="A file of records, one JSON object a line; - for stdin.")] = None,
    strict: Annotated[bool, typer.Option(help="With --jsonl: exit 8 if any line could not be read.")] = False,
    as_json: _Json = False,
) -> None:
    """Say what a failure is, whether to try again and when, and which rule decided."""
    from holdfast.cli.classify import Given, classify_lines, classify_one

    at = time.time() if now is None else parse_rfc3339(now)
    if at is None:
        fail(f"--now: expected an RFC 3339 date and time, got {now!r}", "for example 2026-03-20T14:32:00Z")
        raise typer.Exit(Exit.USAGE)
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
        text=text,
    )
    perform(lambda: classify_one(given, now=at, as_json=as_json))


@app.command()
def demo(
    seed: Annotated[int, typer.Option(min=0, help="The same seed, the same faults and the same counts.")] = 1,
    fast: Annotated[bool, typer.Option("--fast", help="In virtual time: the same storm without waiting.")] = False,
    as_json: _Json = False,
) -> None:
    """Watch workers with the real SDKs go through a storm of failures: half a minute, no keys, no network."""
    from holdfast.cli.demo import demo as verb

    perform(lambda: verb(seed=seed, fast=fast, as_json=as_json))


@app.command()
def doctor(as_json: _Json = False) -> None:
    """Check versions, packages, clock, settings and store, and suggest fixes."""
    from holdfast.cli.doctor import doctor as verb

    perform(lambda: verb(as_json=as_json))


policy = typer.Typer(help="What a policy will do: its waits, its mistakes, an outage under it.", no_args_is_help=True)
app.add_typer(policy, name="policy")
config = typer.Typer(help="The settings.", no_args_is_help=True)
app.add_typer(config, name="config")

_File = Annotated[
    str | None, typer.Argument(help="A holdfast.toml, - for stdin; without it, what a program started here would have.")
]
_Target = Annotated[str | None, typer.Option(help="The policy of this target: claude, tool:bash …")]


@policy.command("show")
def policy_show(file: _File = None, target: _Target = None, as_json: _Json = False) -> None:
    """Show the waits for every class of failures, and the worst case in calls and time."""
    from holdfast.cli.policy import policy_show as verb
    from holdfast.cli.policy import with_config

    perform(lambda: with_config(file, lambda settings: verb(settings, target=target, as_json=as_json)))


@policy.command("check")
def policy_check(
    file: _File = None,
    strict: Annotated[bool, typer.Option(help="Exit 8 if there are warnings.")] = False,
    as_json: _Json = False,
) -> None:
    """Say everything that is wrong with the settings, and what is suspicious about them."""
    from holdfast.cli.policy import policy_check as verb

    perform(lambda: verb(file, strict=strict, as_json=as_json))


@policy.command("simulate")
def policy_simulate(
    file: _File = None,
    target: _Target = None,
    outage: Annotated[str, typer.Option(help="When every call fails: FROM:TO in seconds.")] = "5:60",
    rate: Annotated[str, typer.Option(help="How many operations begin: 10/s, 90/m.")] = "10/s",
    duration: Annotated[float, typer.Option(help="Seconds in which operations begin.")] = 120.0,
    code: Annotated[str, typer.Option(help="What the calls fail with.")] = "PROVIDER_UNAVAILABLE",
    seed: Annotated[int, typer.Option(help="The same seed, the same result.")] = 1,
    as_json: _Json = False,
) -> None:
    """Play an outage through under a policy, without waiting, and plot it."""
    from holdfast.cli.policy import outage_of, with_config
    from holdfast.cli.policy import policy_simulate as verb

    def simulate() -> Exit:
        what = outage_of(outage, rate, duration, code)
        return with_config(file, lambda settings: verb(settings, what, target=target, seed=seed, as_json=as_json))

    perform(simulate)


@config.command("schema")
def config_schema() -> None:
    """Print the JSON Schema of holdfast.toml, for editors."""
    from holdfast.config.schema import json_schema

    perform(lambda: _show_schema(json_schema()))


app.add_typer(audit, name="audit")
app.add_typer(sessions, name="sessions")
faults = typer.Typer(help="Failures on demand, to test against.", no_args_is_help=True)
app.add_typer(faults, name="faults")


@faults.command("serve")
def faults_serve(
    script: Annotated[str | None, typer.Option(help="A script in TOML; - reads it from stdin.")] = None,
    steps: Annotated[str, typer.Option(help="A script in one line: '429;retry-after=7, 529*2, ok, loop'.")] = "",
    seed: Annotated[
        int | None, typer.Option(min=0, help="The same seed, the same faults; without it, the script's.")
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port on loopback; 0 takes a free one.")] = 8429,
    as_json: _Json = False,
) -> None:
    """Serve the providers' protocols and misbehave on script, until Ctrl-C."""
    from holdfast.cli.faults import serve

    perform(lambda: serve(script, steps, seed=seed, port=port, as_json=as_json))


@faults.command("list")
def faults_list(as_json: _Json = False) -> None:
    """List what a script may hold."""
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
    seed: Annotated[int, typer.Option(help="The same seed, the same jitter and luck.")] = 0,
    seconds: Annotated[float | None, typer.Option(help="Stop after this long, not only on Ctrl-C.")] = None,
    as_json: _Json = False,
) -> None:
    """Run a TCP proxy that misbehaves, and say at the end what passed through it."""
    from holdfast.cli.faults import proxy as verb

    perform(lambda: verb(to, listen=listen, toxics=toxic or [], seed=seed, seconds=seconds, as_json=as_json))


@app.command("help")
def help_topic(
    topic: Annotated[_Topic, typer.Argument(help="What to read about.")],
    as_json: _Json = False,
) -> None:
    """Read about a topic: exit-codes."""
    perform(lambda: _show_topic(topic, as_json=as_json))


def _show_schema(schema: dict[str, Any]) -> Exit:
    show_json(schema)
    return Exit.OK


def _show_version() -> Exit:
    sys.stdout.write(f"holdfast {__version__}\n")
    return Exit.OK


def _show_topic(topic: _Topic, *, as_json: bool) -> Exit:
    if as_json:
        codes = [{"code": code, "meaning": text} for code, text in table()]
        show_json({"schema": f"holdfast.{topic}/1", "codes": codes})
    else:
        show_table(("exit", "meaning"), [(str(code), text) for code, text in table()])
    return Exit.OK
