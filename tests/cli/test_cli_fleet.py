"""`holdfast limits`, `holdfast circuits` and the line of `holdfast doctor`, on a real Redis."""

from __future__ import annotations

from functools import partial

import pytest
from cli_runs import holdfast, holdfast_json

from holdfast.policies.fleet import FleetReport, MetLimit, tell
from holdfast.stores.shared_state.redis import RedisState
from holdfast.testing.redis import PrivateRedis


def _tell(report, target, now):
    return tell(target, report, now)


@pytest.fixture(scope="module")
def url():
    with PrivateRedis() as server:
        engine = RedisState(server.url)
        for _ in range(6):
            engine.change("provider:claude", partial(_tell, FleetReport(process="a", limited=(MetLimit(),))))
        engine.change("provider:gpt", partial(_tell, FleetReport(process="a", is_away=True, wants_probe=True)))
        engine.close()
        yield server.url


def test_limits_shows_what_processes_keep_to(url):
    (row,) = [row for row in holdfast_json("limits", "--shared", url)["limits"] if row["target"] == "provider:claude"]
    assert (row["rejected"], row["calls_wait"], row["processes"]) == (6, True, 1)
    assert "provider:claude" in holdfast("limits", "--shared", url).stdout


def test_circuits_shows_what_is_away(url):
    rows = holdfast_json("circuits", "--shared", url)["circuits"]
    assert {row["target"]: row["state"] for row in rows} == {"provider:claude": "closed", "provider:gpt": "open"}


@pytest.mark.parametrize("verb", ["limits", "circuits"])
def test_an_engine_that_is_not_there(verb):
    done = holdfast(verb, "--shared", "redis://app:hunter2@127.0.0.1:1/0")
    assert done.exit_code == 1
    assert "hunter2" not in done.stderr
    assert "cannot be read" in done.stderr
    alone = holdfast(verb)
    assert alone.exit_code == 2
    assert "nothing is shared" in alone.stderr


def test_doctor_asks_the_engine(url, monkeypatch):
    monkeypatch.setenv("HOLDFAST_SHARED_URL", url)
    (line,) = [each for each in holdfast_json("doctor")["findings"] if each["what"] == "shared state"]
    assert line["state"] == "ok"
    assert "2 targets" in line["found"]
