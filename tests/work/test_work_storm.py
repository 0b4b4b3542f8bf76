"""Workers are killed at random: every program ends once, and does each effect outside of the store once."""

from __future__ import annotations

import secrets

import pytest
from work_storm import LEASE_S, Storm

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:{tmp_path / 'storm.db'}"
    return f"{request.getfixturevalue('postgres').url}&schema=s{secrets.token_hex(6)}"


@pytest.fixture(autouse=True)
def _effects(tmp_path, monkeypatch):
    monkeypatch.setattr("storm_programs.FILE", str(tmp_path / "effects"))


async def test_every_program_ends_once_though_its_workers_are_killed(url, tmp_path):
    storm = Storm(url, tmp_path, seed=1, workers=2, items=24, kills=3, stops=False)
    values = await storm.blow(120)
    assert len(values) == 24
    storm.check(values)
    storm.check_one_at_a_time()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(3))
async def test_a_storm_of_two_minutes(url, tmp_path, seed):
    storm = Storm(url, tmp_path, seed=seed, workers=3, items=300, kills=60, stops=seed % 2 == 1)
    values = await storm.blow(600)
    storm.check(values)
    storm.check_one_at_a_time()
    times = storm.takeovers()
    figures = f"{len(storm.died)} kills, {len(times)} takeovers, slowest {times[-3:]}"
    assert all(seconds <= LEASE_S + 2 for seconds in times[: int(len(times) * 0.95)]), figures
