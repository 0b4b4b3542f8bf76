"""A missing extra is one sentence that says what to install, wherever it is met."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from holdfast.extras import MissingExtraError, missing_extra, needs_extra
from holdfast.faults import HoldfastError

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

HIDE = """
import sys

class Hide:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {hidden!r} else self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Hide, sys.meta_path)
try:
    {statement}
except ImportError as error:
    print(type(error).__name__, "|", error)
"""


def failure(statement: str, *hidden: str) -> str:
    """Return how a statement fails where these packages are not installed."""
    program = HIDE.format(hidden=hidden, statement=statement)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    ("statement", "hidden", "what", "package", "extra"),
    [
        ("import holdfast.anthropic", ("anthropic",), "holdfast.anthropic", "anthropic", "anthropic"),
        ("import holdfast.openai", ("openai",), "holdfast.openai", "openai", "openai"),
        ("import holdfast.langchain", ("langchain", "langchain_core"), "holdfast.langchain", "langchain", "langchain"),
        ("import holdfast.langchain", ("langgraph",), "holdfast.langchain", "langchain", "langchain"),
        ("import holdfast.pydantic_ai", ("pydantic_ai",), "holdfast.pydantic_ai", "pydantic-ai-slim", "pydantic-ai"),
        ("import holdfast.openai_agents", ("agents",), "holdfast.openai_agents", "openai-agents", "openai-agents"),
        ("import holdfast.claude_agent", ("claude_agent_sdk",), "holdfast.claude_agent", "claude-agent-sdk", "claude-agent"),
        ("from holdfast import Client", ("websockets",), "The client of the bridge", "websockets", "server"),
        ("import holdfast.httpx", ("httpx", "httpx2"), "holdfast.httpx", "httpx or httpx2", "httpx"),
        ("from holdfast.sinks import trace_recoveries", ("opentelemetry",), "trace_recoveries", "opentelemetry-api", "otel"),
        ("from holdfast.sinks import count_events", ("prometheus_client",), "count_events", "prometheus-client", "prometheus"),
        ("from holdfast.sinks import log_to_structlog", ("structlog",), "log_to_structlog", "structlog", "structlog"),
        (
            "from holdfast.stores import open_store; open_store('postgresql:///db')",
            ("psycopg",),
            "a store on PostgreSQL",
            "psycopg",
            "postgres",
        ),
        (
            "from holdfast.stores import EncryptedStore, MemoryStore; EncryptedStore(MemoryStore(), bytes(32)).key_id",
            ("cryptography",),
            "encryption of a store",
            "cryptography",
            "encryption",
        ),
    ],
)  # fmt: skip
def test_FU6_one_sentence_says_what_to_install(statement, hidden, what, package, extra):
    assert failure(statement, *hidden) == (
        f"MissingExtraError | SYS_DEPENDENCY_MISSING  {what} needs the {package} package: "
        f"pip install '.[{extra}]' in a clone"
    )
    assert extra in PROJECT["optional-dependencies"]


def test_XR10_a_star_import_needs_no_extra():
    hidden = (
        "websockets",
        "cryptography",
        "httpx",
        "httpx2",
        "typer",
        "starlette",
        "uvicorn",
        "psycopg",
        "openai",
        "anthropic",
    )
    assert failure("from holdfast import *; assert recover and Agent and Session", *hidden) == ""


def test_pages_and_messages_install_from_a_clone_only_since_the_package_is_not_published():
    source = ROOT / "src"
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *source.rglob("*.md"), *source.rglob("*.py")]
    named = re.compile(r"pip install [^\n]*holdfast\[")
    assert [page.name for page in pages if named.search(page.read_text(encoding="utf-8"))] == []


def test_a_defect_of_our_own_is_not_blamed_on_an_extra():
    with pytest.raises(ModuleNotFoundError) as caught, needs_extra("a test", "anthropic", "anthropic"):
        import_module("holdfast.no_such_module")
    assert not isinstance(caught.value, MissingExtraError)


def test_it_is_ours_and_an_import_error():
    error = missing_extra("holdfast.anthropic", "anthropic", "anthropic")
    assert isinstance(error, HoldfastError)
    assert isinstance(error, ModuleNotFoundError)
    assert error.name == "anthropic"
    assert error.fault.context == {"name": "holdfast.anthropic", "missing": "anthropic", "extra": "anthropic"}
    assert error.fault.entry.exit_code == 2
    assert pickle.loads(pickle.dumps(error)).fault == error.fault


def test_the_page_names_the_extras_that_exist():
    page = (Path(__file__).parents[1] / "src/holdfast/faults/pages/SYS_DEPENDENCY_MISSING.md").read_text("utf-8")
    listed = re.search(r"come[s]? in extras: (.*?)\.\n", page, re.DOTALL)
    assert listed is not None
    assert set(re.findall(r"`([\w-]+)`", listed[1])) == set(PROJECT["optional-dependencies"]) - {"dev", "demo", "docs"}
