"""One PostgreSQL server for all the tests of a worker; each test has a schema of its own."""

from __future__ import annotations

import pytest

from holdfast.testing.postgres import PrivatePooler, PrivateServer


@pytest.fixture(scope="session")
def postgres():
    with PrivateServer(settings={"deadlock_timeout": "20ms"}) as server:
        yield server


@pytest.fixture(scope="session")
def pooler(postgres):
    with PrivatePooler(postgres) as pooler:
        yield pooler
