"""Partitioned pools, and a map that runs one child for each item."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest
from supervision_kit import CrashError, Stage, settled

from holdfast import Err, InvalidError, Ok
from holdfast.actors import Actor, Child, GaveUpError, Pool, Supervisor
from holdfast.testing import run


class Counter(Actor):
    def __init__(self) -> None:
        self.count = 0

    async def add(self, n: int) -> int:
        if n < 0:
            raise KeyError(n)
        self.count += n
        return self.count


def test_A50_a_key_has_one_partition_and_a_crash_leaves_the_others_alone():
    async def main():
        async with Pool("counters", Counter, size=4) as pool:
            keys = [f"key-{number}" for number in range(40)]
            assert all(pool.partition(key) is pool.partition(key) for key in keys)
            assert {pool.partition(key).name for key in keys} == {f"counters/{number}" for number in range(4)}
            for ref in pool.refs:
                await ref.ask(Counter.add, 5)
            crashed = pool.partition("lobby")
            assert isinstance(await crashed.outcome(Counter.add, -1), Err)
            counts = [await ref.ask(Counter.add, 0) for ref in pool.refs]
            assert sorted(counts) == [0, 5, 5, 5]
            assert await crashed.ask(Counter.add, 0) == 0

    run(main())


def test_A50_keys_of_other_types():
    async def main():
        async with Pool("counters", Counter, size=3) as pool:
            for key in (7, b"x", ("a", 1), None):
                assert pool.partition(key) is pool.partition(key)

    run(main())


def test_keys_stay_where_they_are_when_partitions_have_ended():
    async def main():
        async with Pool("counters", Counter, size=4, child={"restart": "temporary"}) as pool:
            keys = [f"key-{number}" for number in range(40)]
            before = {key: pool.partition(key) for key in keys}
            crashed = pool.partition("lobby")
            await crashed.outcome(Counter.add, -1)
            await settled()
            assert {key: pool.partition(key) for key in keys} == before
            assert len(pool.refs) == 4
            outcome = await pool.partition("lobby").outcome(Counter.add, 1)
            assert outcome.fault.code == "ACTOR_STOPPED"
            others = [key for key in keys if before[key] is not crashed]
            assert all([(await pool.partition(key).outcome(Counter.add, 1)).ok for key in others])

    run(main())


def test_a_pool_is_a_child_like_any_other():
    async def main():
        async with Supervisor("root", children=[Child(Pool("pool", Counter, size=2), id="pool")]) as root:
            (info,) = await root.which_children()
            assert [ref.name for ref in info.ref.refs] == ["root/pool/0", "root/pool/1"]

    run(main())


def test_a_pool_has_partitions():
    with pytest.raises(InvalidError, match=r"pool\.size"):
        Pool("pool", Counter, size=0)


# Map


async def work(item):
    if item == "hangs":
        await asyncio.Event().wait()
    if item == "raises":
        raise CrashError(item)
    await asyncio.sleep(item)
    return item


def test_A51_results_are_in_order_with_errors_in_place_and_the_hung_item_is_cancelled():
    async def main():
        loop = asyncio.get_running_loop()
        async with Supervisor("team") as team:
            items = [3, "hangs", 1, "raises", 2]
            outcomes = [outcome async for outcome in team.map(work, items, concurrency=2, timeout=5)]
            assert [outcome.value if isinstance(outcome, Ok) else type(outcome.error) for outcome in outcomes] == [
                3, TimeoutError, 1, CrashError, 2,
            ]  # fmt: skip
            assert outcomes[1].fault.code == "SYS_TIMEOUT"
            # Two at a time: 3, then 1, raises and 2 beside the one that hangs for 5 seconds.
            assert loop.time() == pytest.approx(6, abs=0.1)
            assert await team.which_children() == []

    run(main())


def test_A51_never_more_at_once_than_allowed():
    async def main():
        running, most = 0, 0

        async def count(item):
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(item % 3)
            running -= 1
            return item

        async with Supervisor("team") as team:
            outcomes = [outcome.unwrap() async for outcome in team.map(count, range(20), concurrency=3)]
        assert outcomes == list(range(20))
        assert most == 3

    run(main())


def test_A51_raise_ends_the_map_and_cancels_the_rest():
    async def main():
        async with Supervisor("team") as team:
            with pytest.raises(TimeoutError, match="team/work"):
                async for _ in team.map(work, ["hangs", 100], timeout=5, on_timeout="raise"):
                    pass
            assert await team.which_children() == []

    run(main())


def test_leaving_a_map_early_leaves_nothing():
    async def main():
        async with Supervisor("team") as team:
            async with aclosing(team.map(work, [1, "hangs", "hangs"])) as outcomes:
                async for outcome in outcomes:
                    assert outcome == Ok(value=1)
                    break
            assert await team.which_children() == []

    run(main())


@pytest.mark.parametrize("concurrency", [1, 2, 3, 7])
def test_a_map_that_is_left_with_a_plain_break_works_on_nothing_more(concurrency):
    worked = []

    async def slow(item):
        await asyncio.sleep(5 if item else 1)
        worked.append(item)

    async def main():
        async with Supervisor("team") as team:
            async for _ in team.map(slow, range(20), concurrency=concurrency):
                break
            await asyncio.sleep(100)
            assert await team.which_children() == []
        assert worked == [0]

    run(main())


@pytest.mark.parametrize("turns", range(12))
def test_a_start_that_is_cancelled_leaves_no_child_whenever_the_cancellation_comes(turns):
    async def main():
        async with Supervisor("team") as team:
            starting = asyncio.ensure_future(team.start(asyncio.sleep, 1_000, id="one"))
            for _ in range(turns):
                await asyncio.sleep(0)
            was_started = starting.done()
            starting.cancel()
            await asyncio.wait([starting])
            await asyncio.sleep(1)
            assert [child.id for child in await team.which_children()] == (["one"] if was_started else [])
            assert starting.cancelled() != was_started

    run(main())


def test_the_words_of_a_programs_own_exception_choose_no_code_as_for_an_actor():
    failures = [
        RuntimeError("rate limit exceeded, try again in 20 s"),
        CrashError("permission denied"),
        ConnectionResetError("gone"),
        SystemExit(3),
    ]

    async def fail(error):
        raise error

    async def main():
        async with Supervisor("team") as team:
            return [outcome async for outcome in team.map(fail, failures)]

    plain, own, reset, ended = run(main())
    assert [one.fault.code for one in (plain, own, reset)] == ["ACTOR_CRASHED", "ACTOR_CRASHED", "CONN_RESET"]
    assert [plain.error, own.error, reset.error] == failures[:3]
    assert plain.fault.context["actor"] == "team/fail-1"
    assert "rate limit exceeded" in plain.fault.context["reason"]
    assert (plain.fault.retryable, reset.fault.retryable) == (False, True)
    assert ended.fault.code == "SYS_PROCESS_EXIT"
    assert ended.error.__cause__ is failures[3]


def test_items_that_fail_cost_no_restart():
    async def main():
        async with Supervisor("team", max_restarts=0) as team:
            outcomes = [outcome async for outcome in team.map(work, ["raises"] * 20, concurrency=5)]
            assert all(isinstance(outcome, Err) for outcome in outcomes)

    run(main())


def test_a_supervisor_that_gives_up_ends_its_maps():
    async def main():
        stage = Stage()
        with pytest.raises(GaveUpError):
            async with Supervisor("team", max_restarts=0, children=[stage.child("a")]) as team:
                mapped = asyncio.ensure_future(collect(team))
                await settled()
                await stage.crash("a")
                await asyncio.sleep(10)
        assert [outcome.fault.code for outcome in await mapped] == ["ACTOR_STOPPED"]

    async def collect(team):
        return [outcome async for outcome in team.map(work, ["hangs"])]

    run(main())


@pytest.mark.parametrize("options", [{"concurrency": 0}, {"timeout": 0}, {"on_timeout": "wait"}])
def test_wrong_options_of_a_map_are_rejected(options):
    async def main():
        async with Supervisor("team") as team:
            async for _ in team.map(work, [1], **options):
                pass

    with pytest.raises(InvalidError, match="map"):
        run(main())
