"""The command itself: its verbs, its exit codes, and what it does when something of ours fails."""

from __future__ import annotations

import inspect
import json
import re

import pytest
from cli_runs import holdfast, holdfast_json, script

from holdfast import __version__
from holdfast.cli import app as module
from holdfast.cli.exits import Exit, table
from holdfast.faults import CATALOG, CircuitOpenError, Fault, HoldfastError, InvalidError

VERBS = {
    "explain", "codes", "classify", "demo", "run", "crashtest", "init", "doctor", "limits", "circuits", "completion", "help", "pair", "attach", "serve",
    "worker",
}  # fmt: skip


def test_the_verbs():
    named = {command.name or command.callback.__name__ for command in module.app.registered_commands}
    assert named == VERBS


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_names_every_verb(flag):
    result = holdfast(flag)
    assert result.exit_code == 0
    assert set(result.stdout.split()) >= VERBS


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_has_help_and_speaks_json(verb):
    result = holdfast(verb, "--help")
    assert result.exit_code == 0
    assert "--json" in result.stdout
    assert not re.search(r"\x1b", result.stdout)


def _declared(group):
    for command in group.registered_commands:
        if hasattr(command.callback, "implementation"):
            yield command.callback.implementation
    for inner in group.registered_groups:
        yield from _declared(inner.typer_instance)


@pytest.mark.parametrize("declared", list(_declared(module.app)), ids=lambda each: each.name)
def test_a_verb_takes_every_flag_that_is_declared_for_it(declared):
    taken = {
        name: each
        for name, each in inspect.signature(declared.load()).parameters.items()
        if each.kind is inspect.Parameter.KEYWORD_ONLY
    }
    assert taken.keys() == declared.arguments
    assert {name for name, each in taken.items() if each.default is not inspect.Parameter.empty} == set()


def test_version():
    result = holdfast("--version")
    assert (result.exit_code, result.stdout) == (0, f"holdfast {__version__}\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ("no-such-verb",),
        ("explain",),
        ("--no-such-flag",),
        ("help", "taxes"),
        ("help", "policy", "shwo"),
        ("help", "codes", "x"),
    ],
)
def test_a_wrong_call_exits_2_and_keeps_stdout_clean(arguments):
    result = holdfast(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Usage: " in result.stderr


@pytest.mark.parametrize(
    ("typed", "suggested"),
    [("expain", "Did you mean 'explain'?"), ("version", "Did you mean '--version'?"), ("verzijon", "")],
)
def test_a_mistyped_command_is_suggested_only_if_it_is_close(typed, suggested):
    result = holdfast(typed)
    assert result.exit_code == 2
    assert result.stderr.rstrip().endswith(f"No such command '{typed}'. {suggested}".rstrip())


@pytest.mark.parametrize(
    "group", ["actors", "agent", "audit", "config", "faults", "policy", "sessions", "tls", "tokens", "work", "workflow"]
)
def test_a_group_alone_shows_its_help(group):
    result = holdfast(group)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == holdfast(group, "--help").stdout


def test_alone_it_says_what_to_do_next(tmp_path):
    result = holdfast(env={"XDG_STATE_HOME": str(tmp_path), "HOLDFAST_STORE": ""})
    assert (result.exit_code, result.stderr) == (0, "")
    commands = re.findall(r"^  (holdfast [^ ]+(?: [^ ]+)?)  ", result.stdout, re.MULTILINE)
    assert "holdfast demo" in commands
    assert "holdfast --help" in commands
    assert max(map(len, result.stdout.splitlines())) <= 60
    for command in commands:
        assert holdfast(*command.split()[1:], "--help").exit_code == 0


def test_FU10_help_is_help():
    for words in ((), ("policy",), ("policy", "show"), ("sessions", "answer")):
        shown = holdfast("help", *words)
        by_option = holdfast(*words, "--help")
        assert (shown.exit_code, shown.stderr) == (0, "")
        assert shown.stdout.split("\n\n")[1:] == by_option.stdout.split("\n\n")[1:]
    document = holdfast_json("help")
    assert document["schema"] == "holdfast.help/1"
    assert set(document["commands"]) >= VERBS | {"policy", "sessions", "audit", "faults", "config"}


@pytest.mark.parametrize("columns", [60, 80, 120])
@pytest.mark.parametrize("words", [(), ("sessions",)], ids=["all", "sessions"])
def test_FU10_help_is_not_cut(columns, words):
    # A real process: the runner of the tests always has 80 columns.
    shown = script(*words, "--help", COLUMNS=str(columns)).stdout.decode()
    assert "..." not in shown.partition("Commands:")[2]
    lengths = [len(line) for line in shown.splitlines()]
    assert columns - 25 < max(lengths) <= columns


def test_a_misspelt_verb_or_option_gets_a_suggestion():
    assert "Did you mean 'sessions'?" in holdfast("sesions", "ls").stderr
    assert "Did you mean 'show'?" in holdfast("help", "policy", "shwo").stderr
    assert "--retryable" in holdfast("codes", "--retyrable").stderr


def test_UX_exit_codes():
    assert [(code.name, code.value) for code in Exit] == [
        ("OK", 0),
        ("FAILED", 1),
        ("USAGE", 2),
        ("NOT_FOUND", 3),
        ("EXHAUSTED", 4),
        ("CIRCUIT_OPEN", 5),
        ("TIMEOUT", 6),
        ("REFUSED", 7),
        ("DEGRADED", 8),
        ("INTERRUPTED", 130),
    ]
    assert [code for code, _ in table()] == [code.value for code in Exit]
    assert all(meaning for _, meaning in table())


def test_UX_help_exit_codes_in_both_forms():
    shown = [line.split(maxsplit=1) for line in holdfast("help", "exit-codes").stdout.splitlines()[1:]]
    document = holdfast_json("help", "exit-codes")
    assert document["schema"] == "holdfast.exit-codes/1"
    assert shown == [[str(row["code"]), row["meaning"]] for row in document["codes"]]
    assert [row["code"] for row in document["codes"]] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 130]


@pytest.mark.parametrize(
    "arguments",
    [
        ("explain", "AUTH_FAILED"),
        ("explain", "NO_SUCH_CODE"),
        ("codes",),
        ("codes", "--kind", "cancelled"),
        ("codes", "no-such-word"),
        ("classify", "--status", "429"),
        ("doctor",),
        ("actors", "tree"),
        ("help", "exit-codes"),
    ],
    ids=" ".join,
)
def test_UX_json_is_one_document_with_its_schema(arguments):
    document = json.loads(holdfast(*arguments, "--json").stdout)
    assert re.fullmatch(r"holdfast\.[a-z-]+/1", document["schema"])
    assert next(iter(document)) == "schema"


# What a verb that fails makes of it


def leave(verb) -> int:
    """The exit status of a verb that is run like the others."""
    with pytest.raises(module.typer.Exit) as left:
        module.perform(verb)
    return left.value.exit_code


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (CircuitOpenError.because(circuit="claude"), Exit.CIRCUIT_OPEN),
        (InvalidError.at("x", "y", 1), Exit.USAGE),
        *(
            (HoldfastError(Fault.of(code)), CATALOG[code].exit_code)
            for code in ("SESS_NOT_FOUND", "SYS_TIMEOUT", "TOOL_CANCELLED")
        ),
    ],
    ids=lambda value: value.fault.code if isinstance(value, HoldfastError) else "",
)
def test_a_failure_of_ours_gives_its_exit_code_and_says_where_to_read(error, status, capsys):
    def fails():
        raise error

    assert leave(fails) == status
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == f"holdfast: {error}\n  help: holdfast explain {error.fault.code}\n"


def test_an_interrupt_exits_130_in_silence(capsys):
    def interrupted():
        raise KeyboardInterrupt

    assert leave(interrupted) == 130
    assert capsys.readouterr() == ("", "")


def test_a_defect_of_ours_is_not_hidden():
    def defect():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        module.perform(defect)
