"""A runtime in virtual time, and a manager on it."""

from __future__ import annotations

import pytest

from holdfast import Runtime
from holdfast.manager import ResilienceManager
from holdfast.testing import Midpoint, VirtualClock


@pytest.fixture
def runtime() -> Runtime:
    return Runtime(clock=VirtualClock(), rng=Midpoint(), enabled=True)


@pytest.fixture
def manager(runtime) -> ResilienceManager:
    return ResilienceManager(runtime)
