"""The pytest plugin: fixtures for virtual time, events and scripted faults, and the marker that scripts them.

pytest loads this in every project that has Holdfast installed. Invariant: loading it imports nothing but the package's two
lazy roots, and a project that uses none of its names runs as if it were not there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from holdfast import testing

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from typing import Protocol, TypeVar

    T = TypeVar("T")

    class VirtualRun(Protocol):
        """Runs a coroutine in virtual time."""

        def __call__(self, coroutine: Coroutine[Any, Any, T]) -> T: ...


__all__ = ["faults", "pytest_configure", "recorded_events", "virtual_clock", "virtual_run"]

_MARKER = 'faults(script, *, seed=0): the failures that the `faults` fixture plays: "429;retry-after=7, 503, ok:hello"'


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, also under --strict-markers."""
    config.addinivalue_line("markers", _MARKER)


@pytest.fixture
def virtual_clock() -> testing.VirtualClock:
    """A clock that moves only when it is told to, or when `virtual_run` sleeps."""
    return testing.VirtualClock()


@pytest.fixture
def virtual_run(virtual_clock: testing.VirtualClock) -> VirtualRun:
    """Run a coroutine in virtual time, on `virtual_clock`: `virtual_run(main())`."""

    def run(coroutine: Coroutine[Any, Any, T]) -> T:
        return testing.run(coroutine, clock=virtual_clock)

    return run


@pytest.fixture
def recorded_events() -> testing.Capture:
    """The events of the test, in order."""
    return testing.Capture()


@pytest.fixture
def faults(request: pytest.FixtureRequest) -> testing.Script:
    """The script of the marker `faults`, as a callable."""
    marker = request.node.get_closest_marker("faults")
    if marker is None:
        pytest.fail('the fixture `faults` needs a script: @pytest.mark.faults("429, ok")', pytrace=False)
    return testing.script(*marker.args, **marker.kwargs)
