"""Libraries and versions that the tests' own environment does not have: each list gets an environment of its own.

They take minutes and a package index, so `make soak` runs them. Where an environment cannot be built, the test is skipped
with the reason, and nothing was tested.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import warnings
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]
HERE = ROOT / "tests" / "environments"
OLDEST = ["anthropic==0.49.0", "openai==1.66.0", "msgspec", "pytest"]
OLDEST_LITELLM = "litellm==1.100.0"
NEWEST = ["anthropic", "openai", "msgspec", "pytest"]

ENVIRONMENTS = {
    "the oldest SDKs": (OLDEST, "sdks"),
    "the newest SDKs": (NEWEST, "sdks"),
    "the oldest LiteLLM": ([OLDEST_LITELLM, "msgspec", "pytest"], "litellm"),
    "other libraries": (["-r", str(HERE / "frameworks.txt")], "frameworks"),
}


def build(venv: Path, packages: list[str]) -> Path:
    """Build an environment; skip loudly where that is not possible."""
    subprocess.run([sys.executable, "-m", "venv", venv], check=True, timeout=300)
    python = venv / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
    # The index is signed by a public authority; tests/conftest.py sets one that signs nothing.
    env = {name: value for name, value in os.environ.items() if name != "SSL_CERT_FILE"}
    done = subprocess.run(install, capture_output=True, text=True, timeout=1200, check=False, env=env)
    if done.returncode:
        reason = f"NOT TESTED: {' '.join(packages)} cannot be installed here: {done.stderr.strip()[-300:]}"
        warnings.warn(reason, pytest.PytestWarning, stacklevel=2)
        pytest.skip(reason)
    return python


@pytest.mark.soak
@pytest.mark.filterwarnings("default::pytest.PytestWarning")
@pytest.mark.parametrize("named", ENVIRONMENTS)
def test_FI8_in_an_environment_of_its_own(named: str, tmp_path: Path):
    packages, tests = ENVIRONMENTS[named]
    python = build(tmp_path / "venv", packages)
    environment = {**os.environ, "HOLDFAST_LOG": "off", "PYTHONPATH": str(ROOT / "src")}
    command = [python, "-m", "pytest", "-q", "-c", HERE / "pytest.ini", HERE / tests]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


# --- the packages below the bridge ---

BRIDGE = [
    "server",
    "port",
    "guard",
    "admission",
    "burst",
    "http",
    "hooks",
    "client",
    "hostile",
    "tls",
    "protocols",
    "versions",
]
"""The tests that meet these packages: `tests/bridge/test_bridge_….py`."""
BESIDE = ["msgspec", "pytest", "hypothesis", "httpx"]


def declared() -> dict[str, Requirement]:
    """Return what the extra `[server]` asks for, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    found = (Requirement(each) for each in project["optional-dependencies"]["server"])
    return {each.name: each for each in found if each.marker is None or each.marker.evaluate()}


def oldest(requirement: Requirement) -> str:
    """Return the oldest version that a requirement allows, of those that there are: `uvicorn==0.53.0`."""
    command = [sys.executable, "-m", "pip", "index", "versions", requirement.name, "--disable-pip-version-check"]
    env = {name: value for name, value in os.environ.items() if name != "SSL_CERT_FILE"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=env)
    listed = re.search(r"^Available versions: (.*)$", done.stdout, re.MULTILINE)
    if listed is None:
        pytest.skip(f"NOT TESTED: no package index says which versions of {requirement.name} there are")
    allowed = (Version(each) for each in listed.group(1).split(", ") if requirement.specifier.contains(each))
    return f"{requirement.name}=={min(allowed)}"


def check_bridge(python: Path, names: list[str]) -> None:
    files = [str(ROOT / "tests" / "bridge" / f"test_bridge_{name}.py") for name in names]
    # A newer package may warn of what it will change. Here it only matters whether the bridge works.
    options = [
        "-o",
        "filterwarnings=default",
        "-o",
        "addopts=-p hypothesispytest -p anyio.pytest_plugin -p holdfast.testing.plugin",
    ]
    command = [
        python,
        "-m",
        "pytest",
        "-q",
        "--disable-plugin-autoload",
        "-p",
        "no:cacheprovider",
        *options,
        "-m",
        "not soak",
        *files,
    ]
    env = {**os.environ, "HOLDFAST_LOG": "off", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, check=False, env=env, cwd=ROOT)
    installed = subprocess.run([python, "-m", "pip", "freeze"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"{installed.stdout}\n{done.stdout[-8000:]}{done.stderr[-2000:]}"


@pytest.mark.soak
@pytest.mark.filterwarnings("default::pytest.PytestWarning")
@pytest.mark.parametrize("which", ["oldest", "newest"])
def test_XB10_the_bridge_works_on_the_oldest_and_the_newest_of_its_packages(which: str, tmp_path: Path):
    wanted = [oldest(each) if which == "oldest" else str(each).partition(";")[0] for each in declared().values()]
    check_bridge(build(tmp_path / "venv", [*wanted, *BESIDE]), BRIDGE)


@pytest.mark.soak
@pytest.mark.filterwarnings("default::pytest.PytestWarning")
@pytest.mark.parametrize("old", ["uvicorn", "websockets", "httptools", "starlette"])
def test_XB10_the_bridge_works_on_an_old_package_among_new_ones(old: str, tmp_path: Path):
    wanted = [oldest(each) if name == old else str(each).partition(";")[0] for name, each in declared().items()]
    check_bridge(build(tmp_path / "venv", [*wanted, *BESIDE]), ["server", "port", "http"])


def test_FI8_the_extras_allow_what_is_tested():
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    for pinned in (*OLDEST[:2], OLDEST_LITELLM):
        name, _, version = pinned.partition("==")
        assert f'{name} = ["{name}>={version.removesuffix(".0")}"]' in project
