"""`holdfast codes`"""

from __future__ import annotations

import json

import pytest
from cli_runs import holdfast, holdfast_json

from holdfast.faults import CATALOG, CODES, Fault


def listed(*arguments: str) -> list[str]:
    """The codes of the table, after its header."""
    return [line.split()[0] for line in holdfast("codes", *arguments).stdout.splitlines()[1:]]


def as_json(*arguments: str) -> list[str]:
    return [entry["code"] for entry in holdfast_json("codes", *arguments)["codes"]]


def test_all_codes_in_their_order():
    assert listed() == as_json() == list(CATALOG)


def test_the_count_is_narration():
    result = holdfast("codes", "--kind", "cancelled")
    assert f" of {len(CODES)} codes" in result.stderr
    assert " codes; " not in result.stdout


FILTERS = [
    (("--kind", "transient"), lambda e: e.kind == "transient"),
    (("--layer", "recovery"), lambda e: e.layer == "recovery"),
    (("--severity", "critical"), lambda e: e.severity == "critical"),
    (("--category", "rate_limit"), lambda e: e.category == "rate_limit"),
    (("--scope", "credential"), lambda e: e.scope == "credential"),
    (("--next", "model"), lambda e: e.next_actor == "model"),
    (("--retryable",), lambda e: e.retryable),
    (("--permanent",), lambda e: not e.retryable),
    (("TIMEOUT",), lambda e: "timeout" in " ".join((e.code, e.message, e.user, e.classed, *e.aliases)).lower()),
]


@pytest.mark.parametrize(("arguments", "fits"), FILTERS, ids=[" ".join(arguments) for arguments, _ in FILTERS])
def test_a_filter_keeps_what_fits(arguments, fits):
    expected = [code for code, entry in CATALOG.items() if fits(entry)]
    assert expected
    assert listed(*arguments) == as_json(*arguments) == expected


def test_filters_add_up():
    both = set(as_json("--kind", "transient")) & set(as_json("--scope", "tool")) & set(as_json("--retryable"))
    assert both
    assert set(listed("--kind", "transient", "--scope", "tool", "--retryable")) == both
    words = set(as_json("rate")) & set(as_json("LIMIT"))
    assert set(listed("rate", "LIMIT")) == words


def test_words_are_looked_for_in_aliases_too():
    assert listed("CLAUDE_CLI_NETWORK") == ["ACTOR_CLI_NETWORK"]


def test_json_holds_what_the_table_holds_and_more():
    rows = holdfast("codes", "--category", "auth").stdout.splitlines()[1:]
    document = holdfast_json("codes", "--category", "auth")
    assert document["schema"] == "holdfast.codes/1"
    for row, entry in zip(rows, document["codes"], strict=True):
        assert row.startswith(entry["code"])
        assert row.endswith(entry["message"])
        for value in (entry["kind"], entry["next_actor"], entry["category"], str(entry["http_status"])):
            assert value in row.split()


def test_nothing_fits_and_that_is_reported():
    result = holdfast("codes", "no-such-word")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "no code fits all of these filters" in result.stderr
    empty = holdfast("codes", "no-such-word", "--json")
    assert (empty.exit_code, json.loads(empty.stdout)["codes"]) == (3, [])


@pytest.mark.parametrize("option", ["--kind", "--layer", "--severity", "--category", "--scope", "--next"])
def test_a_word_a_filter_does_not_know_is_a_wrong_call(option):
    result = holdfast("codes", option, "purple")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "purple" in result.stderr


def test_a_pipe_gets_whole_lines():
    lines = holdfast("codes").stdout.splitlines()
    assert len(lines) == len(CODES) + 1
    assert all("…" not in line for line in lines)
    column = lines[0].index("what happened")
    assert [line[column:] for line in lines[1:]] == [Fault.of(code).message for code in CODES]
