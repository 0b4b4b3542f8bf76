"""The retry quota: retries are a share of the traffic."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from recover_kit import Always, Flaky, World, reset

from holdfast import (
    Circuit,
    Policy,
    Quota,
)
from holdfast.events import (
    RetryDenied,
)

OFTEN = Circuit(failures=1_000_000, rate=None)


def test_R35_a_hundred_failing_callers_make_no_more_retries_than_the_quota() -> None:
    world = World()
    policy = Policy(retry_quota=Quota(share=0.1, floor=3, window=1000), circuit=OFTEN)
    works = [Always(reset, takes=1) for _ in range(100)]

    async def main() -> list[Any]:
        calls = (world.recover("a", policy).call(work.acall) for work in works)
        return await asyncio.gather(*calls, return_exceptions=True)

    errors = world.run(main())
    attempts = sum(work.calls for work in works)
    assert 100 < attempts <= 113
    assert all(error is work.raised[-1] for error, work in zip(errors, works, strict=True))
    denied = world.of(RetryDenied)
    assert {event.because for event in denied} == {"SYS_RETRY_QUOTA_SPENT"}
    assert len(denied) == 100
    assert "share of the traffic" in errors[-1].__notes__[0]


def test_R38_the_floor_permits_a_retry_where_there_is_no_traffic() -> None:
    world = World()
    policy = Policy(retry_quota=Quota(share=0.1, floor=1, window=10), circuit=OFTEN)
    for _ in range(5):
        assert world.recover("a", policy).call(Flaky(reset())) == "ok"
        world.clock.advance(60)


def test_R39_a_retry_that_succeeded_goes_back_to_the_quota() -> None:
    world = World()
    policy = Policy(retry_quota=Quota(share=0, floor=1, window=1000), circuit=OFTEN)
    for _ in range(5):
        assert world.recover("a", policy).call(Flaky(reset())) == "ok"
    with pytest.raises(ConnectionResetError):
        world.recover("a", policy).call(Always(reset))
    work = Always(reset)
    with pytest.raises(ConnectionResetError):
        world.recover("a", policy).call(work)
    assert work.calls == 1
