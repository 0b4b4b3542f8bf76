from __future__ import annotations

import pytest
from sinks_scenes import Stage


@pytest.fixture
def stage():
    return Stage()
