"""What an editor shows for a public name: what it does, what it raises, and how it is used."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from typing import Any

import pytest

import holdfast

FRONT = ("holdfast", "holdfast.anthropic", "holdfast.openai", "holdfast.httpx", "holdfast.langchain", "holdfast.mcp",
         "holdfast.openai_agents", "holdfast.pydantic_ai", "holdfast.claude_agent")  # fmt: skip
"""What people import first. Every name here has an example."""
ROOMS = ("actors", "agents", "bridge", "config", "events", "extensions", "manager", "profiles", "sessions", "sinks", "stores",
         "tasks", "testing", "tools")  # fmt: skip


def names(modules: tuple[str, ...]) -> list[tuple[str, Any]]:
    """The public classes and functions of some modules."""
    found = {}
    for module in modules:
        public = importlib.import_module(module)
        for name in public.__all__:
            value = getattr(public, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                found[f"{module}.{name}"] = value
    return list(found.items())


EVERYWHERE = names((*FRONT, *(f"holdfast.{room}" for room in ROOMS)))


def has_example(text: str) -> bool:
    """Whether a docstring shows code: a block of its own, or a span with a call, a comparison or a statement."""
    block = re.search(r"\n\n? {4,}\S", "\n" + inspect.cleandoc(text))
    span = re.search(r"`(?:[^`]*\([^`]*\)|[^`]* is [^`]*|except [^`]*|(?:async )?with [^`]*)`", text)
    return bool(block or span or ">>>" in text)


@pytest.mark.parametrize(("name", "value"), EVERYWHERE, ids=[name for name, _ in EVERYWHERE])
def test_FU3_every_public_name_says_what_it_is(name: str, value: Any) -> None:
    text = value.__doc__ or ""
    first = text.strip().partition("\n")[0]
    assert len(first) > 12, f"{name} has no docstring of its own"
    assert re.search(r"[.:`…]$", first), f"the first line of {name} is a sentence"


@pytest.mark.parametrize(("name", "value"), names(FRONT), ids=[name for name, _ in names(FRONT)])
def test_FU3_what_people_import_first_has_an_example(name: str, value: Any) -> None:
    assert has_example(value.__doc__ or ""), f"{name} shows no example"


FUNCTIONS = [(name, value) for name, value in EVERYWHERE if inspect.isfunction(value)]


@pytest.mark.parametrize(("name", "value"), FUNCTIONS, ids=[name for name, _ in FUNCTIONS])
def test_FU3_every_public_function_has_an_example(name: str, value: Any) -> None:
    assert has_example(value.__doc__ or ""), f"{name} shows no example"


def is_checked(value: Any) -> bool:
    """Whether a value checks the options that it is given, which raises."""
    return isinstance(value, type(holdfast.Policy)) or hasattr(getattr(value, "__init__", None), "__wrapped__")


CHECKED = [(name, value) for name, value in EVERYWHERE if is_checked(value)]


@pytest.mark.parametrize(("name", "value"), CHECKED, ids=[name for name, _ in CHECKED])
def test_FU3_what_checks_its_options_says_what_it_raises(name: str, value: Any) -> None:
    assert re.search(r"raise|InvalidError", value.__doc__ or ""), f"{name} does not say what it raises"


def examples() -> list[tuple[str, str]]:
    """The blocks of code in the docstrings of `holdfast`'s own names. A list of parameters is none: its lines begin `name: `."""
    return [
        (name, inspect.cleandoc("\n" + block))
        for name, value in names(("holdfast",))
        for block in re.findall(r"(?:^|\n)\n((?: {4}.*\n?|\n)+)", inspect.cleandoc(value.__doc__ or "") + "\n")
        if re.search(r"^ {4,}(?:from|import|async|with|@|\w+ = |\w+\()", block, re.MULTILINE)
    ]


EXAMPLES = examples()


@pytest.mark.parametrize(("name", "code"), EXAMPLES, ids=[name for name, _ in EXAMPLES])
def test_FU3_an_example_is_python_and_imports_what_exists(name: str, code: str) -> None:
    # An example may begin with the `except` of a statement whose rest the reader knows.
    whole = f"try:\n    pass\n{code}" if code.startswith("except ") else code
    tree = compile(whole, name, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)
    for statement in ast.walk(tree):
        if isinstance(statement, ast.ImportFrom) and (statement.module or "").startswith("holdfast"):
            module = importlib.import_module(statement.module or "")
            assert [alias.name for alias in statement.names if not hasattr(module, alias.name)] == []


def test_the_measures_are_not_empty() -> None:
    assert len(EVERYWHERE) > 300
    assert len(EXAMPLES) > 20
    assert len(CHECKED) > 15
