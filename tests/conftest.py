"""What holds for every test."""

from __future__ import annotations

import gc
import os
import signal
import sys
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Tests start hundreds of processes, and each would compile the library again where the machine forbids cached bytecode, as many
# container images do. The workers and the processes they start inherit the environment from here.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Tests talk to this machine only. Each client of a provider's SDK would read the list of all public authorities: a third of the time of
# a test that makes one. Nothing is signed by the one they trust instead.
os.environ["SSL_CERT_FILE"] = str(Path(__file__).parent / "no_public_authority.pem")

# A shell starts background jobs with SIGINT ignored, as `nohup make test &` and many CI runners do, and children inherit that. Here it
# works again: tests send Ctrl-C to the processes they start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes in real time says how busy the machine is, not whether the code is right.
settings.register_profile("any_load", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any_load")


def pytest_configure() -> None:
    """Collecting makes almost no garbage: 19,000 tests and all they import stay to the end."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Take what collecting has made out of the garbage collector: looking through it made each of the tests that collect garbage two
    seconds longer."""
    gc.collect()
    gc.freeze()
    gc.enable()
    typer_testing = sys.modules.get("typer.testing")
    if typer_testing is not None:
        # Its runner builds the commands of all verbs anew for each run of one: 80 of the 100 ms that a short verb takes in a test.
        typer_testing._get_command = cache(typer_testing._get_command)


def pytest_runtest_teardown() -> None:
    """Forget the configuration of structlog: after `capture_logs` the log of the default runtime would go there in every later test."""
    structlog = sys.modules.get("structlog")
    if structlog is not None and structlog.is_configured():
        structlog.reset_defaults()


@pytest.fixture(scope="session", autouse=True)
def _guard() -> None:
    """Start the guard of this process, whose pipe stays open until the process ends: tests look for what others have left open."""
    from holdfast.tools.guard import owner_if_possible  # noqa: PLC0415 - collecting the tests need not load it

    owner_if_possible()
