"""One PostgreSQL server for all the tests of a worker; each test has a schema of its own."""

from __future__ import annotations

import pytest

from holdfast.testing.postgres import PrivateServer


@pytest.fixture(scope="session")
def postgres():
    with PrivateServer(settings={"deadlock_timeout": "20ms"}) as server:
        yield server
