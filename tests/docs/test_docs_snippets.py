"""Everything the documents tell a reader to type is typed here.

A file's Python blocks run in order in one namespace, as a reader would go through them; `python no-run` is left out, and
`python litellm` runs in LiteLLM's environment (tests/environments/litellm/test_litellm_page.py). Every
`$ holdfast …` line of a console block is run and must succeed, unless its fence says otherwise: `console exit=3`. Lines
below a command are what it prints.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest
from typer.testing import CliRunner

from holdfast.cli.app import app
from holdfast.cli.exits import table
from holdfast.faults import resolve

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    path for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))) if path.exists()
]
each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


class Block(NamedTuple):
    """One fenced block: what its fence says, its text, and the line it begins on."""

    info: str
    text: str
    line: int


def blocks_of(document: Path) -> list[Block]:
    page = document.read_text(encoding="utf-8")
    fences = re.finditer(
        r"^(?P<mark>`{3,})(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=mark)[ ]*$", page, re.MULTILINE | re.DOTALL
    )
    return [Block(m["info"].strip(), m["text"], page.count("\n", 0, m.start("text"))) for m in fences]


class Command(NamedTuple):
    """One command of a console block, and what the document says comes of it."""

    arguments: list[str]
    exit_code: int
    output: list[str]


def commands_of(document: Path) -> list[Command]:
    commands = []
    for block in blocks_of(document):
        language, _, said = block.info.partition(" ")
        if language != "console":
            continue
        status = re.search(r"\bexit=(\d+)", said)
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            line, *output = part.rstrip("\n").split("\n")
            if line.startswith("holdfast "):
                arguments = shlex.split(line, comments=True)[1:]
                commands.append(Command(arguments, int(status[1]) if status else 0, [o for o in output if o.strip()]))
    return commands


@each_document
def test_the_python_a_reader_is_shown_runs(document, monkeypatch, capsys, tmp_path):
    # The files that pages read are there; what a page writes is not left in the repository, where its next run would find it.
    for name in ("docs", "examples", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    for block in blocks_of(document):
        if block.info == "python":
            # Blank lines before it, so that a failure names the document's own line.
            exec(compile("\n" * block.line + block.text, str(document), "exec"), namespace)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("document", "command"),
    [
        pytest.param(document, command, id=f"{document.relative_to(ROOT)}: {shlex.join(command.arguments)[:60]}")
        for document in DOCUMENTS
        for command in commands_of(document)
    ],
)
def test_the_commands_a_reader_is_shown_work(document, command, monkeypatch):
    monkeypatch.chdir(ROOT)
    result = CliRunner().invoke(app, command.arguments)
    assert result.exit_code == command.exit_code, f"{document}: {result.output}"
    assert result.output.strip()
    shown = [" ".join(line.split()) for line in result.output.splitlines()]
    assert [line for line in command.output if " ".join(line.split()) not in shown] == []


def test_there_is_something_to_run():
    assert any(block.info == "python" for document in DOCUMENTS for block in blocks_of(document))
    assert any(commands_of(document) for document in DOCUMENTS)


@each_document
def test_every_fence_is_of_a_kind_this_test_knows(document):
    """A misspelt fence would be a snippet that nobody runs."""
    known = re.compile(
        r"|text|js|toml|json|jsonl|yaml|sh|python|python no-run|python litellm|console(?: exit=\d+)?|mermaid|makefile"
    )
    assert [block.info for block in blocks_of(document) if not known.fullmatch(block.info)] == []


@each_document
def test_every_link_leads_somewhere(document):
    prose = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    links = re.findall(r"\]\(([^)\s]+)\)", prose)
    here = [link.partition("#")[0] for link in links if not re.match(r"[a-z]+:", link)]
    assert [link for link in here if link and not (document.parent / link).exists()] == []


@each_document
def test_every_code_that_is_named_exists(document):
    shaped = r"`((?:CONN|AUTH|PROTO|SESS|TOOL|HOOK|SYS|PROVIDER|TASK|ACTOR|CONFIG)_[A-Z_]+[A-Z]|CIRCUIT_OPEN)`"
    named = set(re.findall(shaped, document.read_text(encoding="utf-8")))
    assert {name for name in named if resolve(name) is None} - {"TASK_FAILURE", "HOOK_TOKEN"} == set()


@each_document
def test_a_table_of_exit_codes_is_the_commands_own(document):
    rows = re.findall(
        r"^\| (\d+) \| (.+?) \|$", document.read_text(encoding="utf-8").partition("## Exit codes")[2], re.MULTILINE
    )
    if rows:
        assert [(int(code), meaning.replace("`", "")) for code, meaning in rows] == table()
