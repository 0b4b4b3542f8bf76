"""The package as a whole: what importing it costs, and what it shows. What each module keeps: `test_style.py`."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from importlib import metadata, resources
from pathlib import Path

import pytest

import holdfast

SOURCE = Path(holdfast.__file__).parent
ROOT = Path(__file__).parent.parent
ROOMS = [
    name
    for name in (
        "actors",
        "agents",
        "bridge",
        "classify",
        "events",
        "faults",
        "policies",
        "policies/models",
        "providers",
        "runtime",
        "sessions",
        "sinks",
        "stores",
        "testing",
        "tools",
        "transcript",
        "views",
    )
    if (SOURCE / name).is_dir()
]


# Importing it


def loaded_by(statement: str) -> set[str]:
    """The modules a fresh interpreter has after `statement` and had not before."""
    program = f"import sys; before = set(sys.modules)\n{statement}\nprint(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


def test_importing_it_loads_nothing_that_costs():
    loaded = loaded_by("import holdfast")
    assert "holdfast" in loaded
    assert loaded & {"asyncio", "logging", "email", "rich", "typer", "msgspec", "socket", "ssl", "inspect"} == set()


def test_its_names_come_when_they_are_used():
    assert "holdfast.faults" not in loaded_by("import holdfast")
    assert "holdfast.faults" in loaded_by("import holdfast; holdfast.Fault")


@pytest.mark.parametrize(
    "statement",
    ["from holdfast import Fault, Ok, Err, Policy, Circuit", "from holdfast import fault_of; fault_of(KeyError('x'))"],
)
def test_using_it_loads_no_event_loop_no_logger_and_no_screen(statement):
    assert (
        loaded_by(statement) & {"asyncio", "logging", "email", "rich", "typer", "socket", "ssl", "subprocess"} == set()
    )


HEAVY = {
    "asyncio", "concurrent.futures", "difflib", "email", "hashlib", "logging", "pathlib", "socket", "sqlite3", "ssl", "subprocess",
    "tomllib", "urllib.parse", "rich", "typer",
}  # fmt: skip
OURS_AND_HEAVY = {
    "holdfast.classify.classifier", "holdfast.classify.rules", "holdfast.classify.hints", "holdfast.config.sources",
    "holdfast.events.codec", "holdfast.policies.simulation", "holdfast.sessions", "holdfast.sinks", "holdfast.stores",
    "holdfast.views",
}  # fmt: skip


def test_FU12_importing_recover_loads_only_what_it_uses():
    loaded = loaded_by("from holdfast import Policy, Runtime, recover, tool, Budget")
    assert "holdfast.runtime.recover" in loaded
    assert loaded & (HEAVY | OURS_AND_HEAVY) == set()


def test_FU12_a_blocking_call_loads_no_event_loop():
    program = "from holdfast import recover, Runtime; recover('x', runtime=Runtime()).call(lambda: 1)"
    assert loaded_by(program) & {"asyncio", "ssl", "socket", "concurrent.futures", "holdfast.views"} == set()


def test_a_runtime_loads_the_rules_before_anything_has_failed():
    """While a failure is handled, open files may be what has run out."""
    program = (
        "import resource; from holdfast import Runtime, recover, fault_of; runtime = Runtime()\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))\n"
        "try: recover('x', runtime=runtime).call(open, '/dev/null')\n"
        "except OSError as error: assert fault_of(error).code == 'SYS_RESOURCE_EXHAUSTED', fault_of(error)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))"
    )
    loaded_by(program)


@pytest.mark.parametrize("library", ["httpx", "openai", "anthropic", "requests", "grpc", "botocore", "websockets"])
def test_no_library_is_imported_to_recognise_its_failures(library):
    statement = (
        f"from holdfast import fault_of; fault_of('{library}.SomeError: boom'); fault_of(ValueError('{library}'))"
    )
    assert library not in loaded_by(statement)


def test_help_loads_no_verb():
    program = (
        "import sys; sys.argv = ['holdfast', '--help']\n"
        "from holdfast.cli import main\n"
        "try: main()\n"
        "except SystemExit: print([name for name in sys.modules if name.startswith(('holdfast.cli.', 'rich.markdown'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    loaded = done.stdout.splitlines()[-1]
    assert "holdfast.cli.app" in loaded
    for verb in (
        *("failures.explain", "failures.codes", "failures.classify", "failures.policy", "failures.doctor"),
        *("programs.actors", "programs.agent", "programs.crashtest", "programs.faults", "programs.run"),
        *("store.access", "store.audit", "store.history", "store.sessions", "bridge.serve", "bridge.attach"),
    ):
        assert f"'holdfast.cli.{verb}'" not in loaded
    assert "rich.markdown" not in loaded


# What it shows


def test_the_surface_is_sorted_complete_and_importable():
    assert sorted(holdfast.__all__, key=_as_ruff_sorts) == holdfast.__all__
    assert len(set(holdfast.__all__)) == len(holdfast.__all__)
    for name in holdfast.__all__:
        assert getattr(holdfast, name) is not None
    assert set(holdfast.__all__) <= set(dir(holdfast))


@pytest.mark.parametrize("room", ROOMS)
def test_a_rooms_surface_is_sorted_and_importable(room):
    module = importlib.import_module(f"holdfast.{room.replace(chr(47), chr(46))}")
    assert sorted(module.__all__, key=_as_ruff_sorts) == module.__all__
    for name in module.__all__:
        assert hasattr(module, name)


def _as_ruff_sorts(name: str) -> tuple[int, str]:
    """Constants, then classes, then the rest."""
    constant = name.isupper() and len(name) > 1
    return (0 if constant else 1 if name[0].isupper() else 2, name)


def test_the_lazy_names_are_those_the_type_checker_sees():
    tree = ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8"))
    checked = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name for node in checked.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen | {"__version__"} == set(holdfast.__all__) | {"Client"}, "a star import must not need an extra"


def test_a_name_that_is_none_is_told_as_python_tells_it():
    with pytest.raises(AttributeError, match="module 'holdfast' has no attribute 'retrry'"):
        holdfast.retrry  # noqa: B018
    assert not hasattr(holdfast, "_nothing")


def test_the_version_is_the_installed_one():
    assert holdfast.__version__ == metadata.version("holdfast")


def test_types_and_pages_ship_with_it():
    assert resources.files("holdfast").joinpath("py.typed").is_file()
    assert resources.files("holdfast.faults").joinpath("pages", "SYS_UNKNOWN.md").is_file()


def test_the_command_is_installed():
    (command,) = (entry for entry in metadata.entry_points(group="console_scripts") if entry.name == "holdfast")
    assert command.value == "holdfast.cli:main"


def test_every_test_file_has_a_name_of_its_own():
    """Test folders are no packages: two files of one name would be one module. pytest keeps conftests apart itself."""
    files = [path.name for path in Path(__file__).parent.rglob("*.py") if path.name != "conftest.py"]
    assert sorted({name for name in files if files.count(name) > 1}) == []
