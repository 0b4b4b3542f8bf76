"""The pytest plugin: fixtures for virtual time, events and scripted faults, and the marker that scripts them.

pytest loads this module in every project that has Holdfast installed. Before each test it makes all recoveries of the process
forget their targets: failing tests must not open a circuit that rejects the calls of the next test.

Invariant: loading it imports only `holdfast` and `holdfast.testing`, whose names are lazy. It changes nothing in a project
that uses neither its names nor Holdfast.
"""

from __future__ import annotations

import inspect
import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import pytest

import holdfast
from holdfast import testing

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterator, Sequence

    from holdfast.testing.crashtest import Report

T = TypeVar("T")


class VirtualRun(Protocol):
    """Runs a coroutine in virtual time: the type of the fixture `virtual_run`.

    def test_it(virtual_run: VirtualRun) -> None:
        assert virtual_run(answer("hi")) == "hello"
    """

    def __call__(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the result of the coroutine."""
        ...


class OpenProxy(Protocol):
    """Opens a fault proxy in front of a server: the type of the fixture `fault_proxy`.

    def test_it(fault_proxy: OpenProxy) -> None:
        proxy = fault_proxy("127.0.0.1:8080", "latency=0.05")
    """

    def __call__(
        self, upstream: str | tuple[str, int], *toxics: testing.Toxic | str, seed: int = 0
    ) -> testing.FaultProxy:
        """Return the open proxy. It closes when the test ends."""
        ...


class RunCrashTest(Protocol):
    """Kills a program at each of its points and returns the report: the type of the fixture `crash_test`.

    def test_it(crash_test: RunCrashTest) -> None:
        assert not crash_test(["python", "agent.py"]).damage
    """

    def __call__(self, command: Sequence[str], **options: Any) -> Report:
        """Return what was found."""
        ...


_MARKER = 'faults(script, *, seed=0): the failures that the fixture `faults` or `fault_provider` plays: "429;retry-after=7, 503, ok"'

_ISOLATE = "holdfast_isolate"

_NEEDS_PLAIN_TEST = """the fixture `virtual_clock` needs a plain `def` test: in an `async def` test the loop of another plugin waits in real time. Write:
    def test_it(virtual_run):
        virtual_run(main())"""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the setting that lets tests share circuits."""
    parser.addini(
        _ISOLATE, "forget all circuits, quotas and limits of Holdfast before each test", type="bool", default=True
    )


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, so that --strict-markers accepts it."""
    config.addinivalue_line("markers", _MARKER)


def pytest_report_header() -> str | None:
    """Name the file whose settings the tests have: one of the current folder changes them without a word."""
    named, here = os.environ.get("HOLDFAST_CONFIG"), Path("holdfast.toml")
    if named == "none" or not (named or here.exists()):
        return None
    return f"holdfast: settings from {named or here.absolute()} (HOLDFAST_CONFIG=none: the defaults)"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Forget what earlier tests have taught the recoveries, before the fixtures of the test run."""
    # A project that has not imported the runtime has made no recovered call, and must not pay for the import.
    if "holdfast.runtime.runtime" in sys.modules and item.config.getini(_ISOLATE):
        testing.forget_targets()


@pytest.fixture
def holdfast_runtime(request: pytest.FixtureRequest) -> Iterator[holdfast.Runtime]:
    """The default runtime during the test: the program's settings, its own circuits, a random source from the marker's seed."""
    # The seed of the script is also the seed of the jitter, so one number repeats the whole test.
    marker = request.node.get_closest_marker("faults")
    seed = marker.kwargs.get("seed", 0) if marker else 0
    with testing.use_runtime(testing.default_runtime().fresh(rng=testing.seeded(seed))) as runtime:
        yield runtime


@pytest.fixture
def virtual_clock(request: pytest.FixtureRequest, holdfast_runtime: holdfast.Runtime) -> testing.VirtualClock:
    """The clock of the test's runtime. It moves when the test advances it, or when code under `virtual_run` waits.

    A coroutine test cannot have it: the plugin that runs such a test has a loop of its own, whose waits take real time.
    """
    if inspect.iscoroutinefunction(getattr(request.node, "obj", None)):
        pytest.fail(_NEEDS_PLAIN_TEST, pytrace=False)
    clock = testing.VirtualClock()
    # Set the clock of the runtime that the other fixtures share, so that all of them use the same clock.
    holdfast_runtime.clock = clock
    return clock


@pytest.fixture
def virtual_run(virtual_clock: testing.VirtualClock) -> VirtualRun:
    """Run a coroutine in virtual time, on `virtual_clock`: `virtual_run(main())`."""

    def run(coroutine: Coroutine[Any, Any, T]) -> T:
        return testing.run(coroutine, clock=virtual_clock)

    return run


@pytest.fixture
def recorded_events(holdfast_runtime: holdfast.Runtime) -> Iterator[testing.Capture]:
    """The events of the test's runtime, in order."""
    capture = testing.Capture()
    with holdfast_runtime.on(capture):
        yield capture


@pytest.fixture
def faults(
    request: pytest.FixtureRequest,
    holdfast_runtime: holdfast.Runtime,  # noqa: ARG001 - it must exist first, with the marker's seed
) -> testing.Script:
    """The script of the marker `faults`, as a callable. The test fails without the marker."""
    marker = request.node.get_closest_marker("faults")
    if marker is None:
        pytest.fail('the fixture `faults` needs a script: @pytest.mark.faults("429, ok")', pytrace=False)
    return testing.script(*marker.args, **marker.kwargs)


@pytest.fixture
def fault_provider(
    request: pytest.FixtureRequest,
    holdfast_runtime: holdfast.Runtime,  # noqa: ARG001 - it must exist first, the provider uses its clock
) -> Iterator[testing.FaultProvider]:
    """A provider on loopback that plays the script of the marker `faults`. Without the marker it answers every request."""
    marker = request.node.get_closest_marker("faults")
    with testing.serve_in_thread(*(marker.args if marker else ()), **(marker.kwargs if marker else {})) as provider:
        yield provider


@pytest.fixture
def fault_proxy() -> Iterator[OpenProxy]:
    """Open TCP proxies with toxics: `fault_proxy("127.0.0.1:8080", "latency=0.05")`. They close when the test ends."""
    # Close the proxies in reverse order, also if the test fails, because a later proxy may lead to an earlier proxy.
    with ExitStack() as stack:

        def open_proxy(
            upstream: str | tuple[str, int], *toxics: testing.Toxic | str, seed: int = 0
        ) -> testing.FaultProxy:
            return stack.enter_context(testing.FaultProxy(upstream, *toxics, seed=seed))

        yield open_proxy


@pytest.fixture
def crash_test() -> RunCrashTest:
    """Kill a program at each of its points, and return the report.

        assert not crash_test(["python", "agent.py"], fake_model=True).damage

    The options are those of `holdfast.testing.CrashTest`. The program `python` is the Python that runs the test.
    """

    def run(command: Sequence[str], **options: Any) -> Report:
        program, *arguments = command
        return testing.CrashTest([sys.executable if program == "python" else program, *arguments], **options).run()

    return run
