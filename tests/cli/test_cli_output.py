"""How tables, facts and messages look: on terminals of any width, and in a pipe."""

from __future__ import annotations

import io
import sys

import pytest

from holdfast.cli import output

ROWS = [
    ("opentelemetry-api", "info", "not installed; only needed for traces", "pip install 'holdfast[otel]'"),
    ("sqlite", "warning", "has a bug that matters only if another program writes to the file", ""),
]
COLUMNS = ("what", "state", "found", "what to do")


@pytest.fixture
def terminal(monkeypatch):
    def of(width: int) -> None:
        monkeypatch.setattr(output, "_on_terminal", lambda: True)
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setenv("TERM", "dumb")

    return of


def words_of(text: str) -> set[str]:
    return set(text.split())


def test_in_a_pipe_a_table_is_not_wrapped(capsys):
    output.show_table(COLUMNS, ROWS)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert lines[1].split("  ")[0] == "opentelemetry-api"
    assert ROWS[0][3] in lines[1]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160])
def test_FU10_no_word_is_broken_or_lost_on_any_terminal(terminal, capsys, width):
    terminal(width)
    output.show_table(COLUMNS, ROWS)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= width
    for row in ROWS:
        assert words_of(" ".join(row)) <= words_of(shown)


def test_too_narrow_for_columns_rows_are_stacked(terminal, capsys):
    terminal(50)
    output.show_table(COLUMNS, ROWS)
    assert capsys.readouterr().out.splitlines() == [
        "opentelemetry-api",
        "  state: info · found: not installed; only needed",
        "  for traces · what to do: pip install",
        "  'holdfast[otel]'",
        "sqlite",
        "  state: warning · found: has a bug that matters",
        "  only if another program writes to the file",
    ]


def test_brackets_are_text_and_no_markup(terminal, capsys):
    terminal(120)
    output.show_table(("command",), [("pip install 'holdfast[cli]'",), ("[bold]x[/bold]",)])
    assert capsys.readouterr().out.splitlines() == ["command", "pip install 'holdfast[cli]'", "[bold]x[/bold]"]


def test_facts_wrap_under_their_value(terminal, capsys):
    terminal(40)
    output.show_facts("a headline", [("do", "wait until the provider is back again"), ("empty", "")])
    assert capsys.readouterr().out.splitlines() == [
        "a headline",
        "  do  wait until the provider is back",
        "      again",
    ]


def test_a_message_wraps_on_a_terminal_only(monkeypatch):
    line = "  help: fix what is named, or set HOLDFAST_STORE to another store"
    for is_terminal, lines in ((False, 1), (True, 2)):
        stream = io.StringIO()
        stream.isatty = lambda is_terminal=is_terminal: is_terminal
        monkeypatch.setattr(sys, "stderr", stream)
        monkeypatch.setenv("COLUMNS", "60")
        output.narrate(line)
        assert len(stream.getvalue().splitlines()) == lines
        assert stream.getvalue().split() == line.split()


@pytest.mark.parametrize(("number", "text"), [(0, "0 mistakes"), (1, "1 mistake"), (2, "2 mistakes")])
def test_FU10_numbers_and_nouns_agree(number, text):
    assert output.counted(number, "mistake") == text


@pytest.mark.parametrize("width", range(8, 40))
def test_a_number_is_not_parted_from_its_unit(width):
    text = "The call is cancelled after 1.5 s and retried in 20 ms"
    lines = output.wrapped(text, width).splitlines()
    assert not any(line.strip().startswith(("s ", "ms")) or line.strip() == "s" for line in lines)
    assert " ".join(line.strip() for line in lines) == text


def test_a_count_stays_with_what_it_counts(terminal, capsys):
    terminal(30)
    output.show_text("openai injected hang ×1, quota ×12")
    assert capsys.readouterr().out.splitlines() == ["openai injected hang ×1,", "quota ×12"]
    terminal(23)
    output.show_text("openai injected hang ×1, quota ×12")
    assert capsys.readouterr().out.splitlines() == ["openai injected", "hang ×1, quota ×12"]
