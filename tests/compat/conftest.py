"""A runtime in virtual time for every test of the compatibility layers."""

from __future__ import annotations

import pytest

from holdfast import Runtime
from holdfast.testing import Capture, Midpoint, VirtualClock, use_runtime


@pytest.fixture(autouse=True)
def runtime():
    with use_runtime(Runtime(clock=VirtualClock(), rng=Midpoint())) as runtime:
        yield runtime


@pytest.fixture
def events(runtime):
    capture = Capture()
    runtime.on(capture)
    return capture


@pytest.fixture
def now(runtime):
    return runtime.clock.monotonic
