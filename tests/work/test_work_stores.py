"""Work items in a store: they are added and changed with a commit, and claimed by one worker at a time. The same in every store."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.faults import HoldfastError
from holdfast.stores import Commit, NewEntry, NewSession
from holdfast.stores.records import NewWork, SessionState, WorkChange, WorkQueue, WorkWanted
from holdfast.testing import VirtualClock

pytestmark = pytest.mark.anyio
P = (("program p", ""),)


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def clock():
    return VirtualClock()


@pytest.fixture
async def store(make_store, clock):
    async with make_store(clock) as opened:
        yield opened


async def add(store, name, **more):
    create = NewSession(manifest=b'{"sessionId":"x"}')
    work = NewWork(**{"program": "program p", **more})
    await store.commit(
        Commit(session=name, create=create, entries=(NewEntry(type="t", body=b"{}", id="1"),), work=work)
    )


def wanted(claim="c1", *, limit=10, queues=("default",), programs=P, ttl=30.0):
    queues = tuple(WorkQueue(name=each) if isinstance(each, str) else each for each in queues)
    return WorkWanted(claim=claim, ttl=ttl, programs=programs, queues=queues, limit=limit)


async def claimed(store, *args, **kwargs):
    return [item.session for item in await store.claim_work(wanted(*args, **kwargs))]


async def change(store, name, **more):
    return await store.commit(Commit(session=name, work=WorkChange(**more)))


async def status(store, name):
    (item,) = await store.work(name)
    return item.status


async def test_an_item_is_claimed_once(store):
    await add(store, "a")
    (item,) = await store.claim_work(wanted("first"))
    assert (item.session, item.status, item.claim, item.starts) == ("a", "running", "first", 1)
    assert await claimed(store, "second") == []
    assert (await store.work("a"))[0].claim_left == pytest.approx(30.0)


async def test_two_claims_at_the_same_time_share_the_items(store):
    for number in range(20):
        await add(store, f"s{number:02}")
    both = await asyncio.gather(*(claimed(store, f"c{n}", limit=7) for n in range(4)))
    found = [name for each in both for name in each]
    assert len(found) == len(set(found))
    found += await claimed(store, "rest", limit=20)
    assert sorted(found) == [f"s{number:02}" for number in range(20)]


async def test_the_most_important_are_claimed_first_and_then_the_oldest(store, clock):
    for name, priority in (("old", 0), ("new", 0), ("high", 5), ("low", -1)):
        await add(store, name, priority=priority)
        clock.advance(1)
    assert await claimed(store, limit=2) == ["high", "old"]
    assert await claimed(store, limit=9) == ["new", "low"]


async def test_an_item_that_is_due_later_waits(store, clock):
    await add(store, "later", due=clock.wall() + 60)
    assert await store.next_work(["default"]) == pytest.approx(60)
    assert await claimed(store) == []
    clock.advance(60)
    assert await store.next_work(["default"]) == 0
    assert await claimed(store) == ["later"]
    assert await store.next_work(["default"]) is None


async def test_only_known_programs_and_versions_of_the_queues_are_claimed(store):
    await add(store, "known")
    await add(store, "newer", version="2")
    await add(store, "other", program="program q")
    await add(store, "elsewhere", queue="slow")
    assert await claimed(store) == ["known"]
    assert await claimed(store, programs=(("program p", "2"), ("program q", ""))) == ["newer", "other"]
    assert await claimed(store, queues=("slow",)) == ["elsewhere"]
    assert await claimed(store, programs=()) == []


async def test_a_change_is_written_with_its_commit_or_not_at_all(store):
    await add(store, "a")
    entry = (NewEntry(type="t", body=b"{}", id="2"),)
    with pytest.raises(HoldfastError) as error:
        await store.commit(
            Commit(session="a", entries=entry, work=WorkChange(status="ready", only=("failed",), must=True))
        )
    assert error.value.fault.code == "SESS_ILLEGAL_TRANSITION"
    assert (await store.session("a")).top == 1
    # Without `must` the rest is written, and the item stays as it is.
    await store.commit(Commit(session="a", entries=entry, work=WorkChange(status="paused", only=("waiting",))))
    assert (await store.session("a")).top == 2
    assert await status(store, "a") == "ready"


async def test_a_session_that_is_no_work_item_takes_the_commit(store):
    await store.commit(Commit(session="plain", create=NewSession(manifest=b"{}")))
    await store.commit(Commit(session="plain", work=WorkChange(status="ready", only=("waiting",))))
    assert await store.work("plain") == []
    with pytest.raises(HoldfastError):
        await store.commit(Commit(session="plain", work=WorkChange(status="ready", must=True)))


async def test_an_item_that_waits_is_ready_when_its_log_has_news(store):
    await add(store, "a")
    await store.claim_work(wanted())
    # Somebody wrote after the program had looked at entry 1.
    await store.commit(Commit(session="a", entries=(NewEntry(type="t", body=b"{}", id="2"),)))
    await change(store, "a", status="waiting", seen=1)
    assert await status(store, "a") == "ready"
    await store.claim_work(wanted("c2"))
    await change(store, "a", status="waiting", seen=2)
    assert await status(store, "a") == "waiting"
    assert await store.next_work(["default"]) is None
    await change(store, "a", status="ready", only=("waiting",))
    assert await claimed(store, "c3") == ["a"]


async def test_a_stop_in_order_begins_the_count_of_starts_anew(store):
    await add(store, "a")
    for number in range(3):
        (item,) = await store.claim_work(wanted(f"c{number}"))
        assert item.starts == number + 1
        await store.free_work([("a", f"c{number}")])
    await store.claim_work(wanted("d"))
    await change(store, "a", status="waiting", due=0.0, failures=2, code="CONN_RESET")
    (item,) = await store.work("a")
    assert (item.starts, item.failures, item.code, item.claim) == (0, 2, "CONN_RESET", None)


async def test_only_the_own_claim_is_given_back(store, clock):
    await add(store, "a")
    await store.claim_work(wanted("mine"))
    await store.free_work([("a", "another")])
    assert await status(store, "a") == "running"
    await store.free_work([("a", "mine")], due=clock.wall() + 5)
    assert await status(store, "a") == "waiting"
    assert await store.next_work(["default"]) == pytest.approx(5)


async def test_the_lease_of_the_session_is_shown(store):
    await add(store, "a")
    await store.acquire("a", "me", 30.0)
    (item,) = await store.work("a")
    assert item.owner == "me"
    assert item.lease_left == pytest.approx(30.0)


async def test_a_stale_owner_changes_nothing(store, clock):
    await add(store, "a")
    lease = await store.acquire("a", "me", 1.0)
    clock.advance(2)
    await store.acquire("a", "other", 30.0)
    with pytest.raises(HoldfastError) as error:
        await store.commit(Commit(session="a", fence=lease.fence, work=WorkChange(status="done")))
    assert error.value.fault.code == "SESS_LEASE_LOST"
    assert await status(store, "a") == "ready"


async def test_a_queue_runs_no_more_than_its_concurrency(store):
    for number in range(5):
        await add(store, f"s{number}", queue="slow")
    slow = (WorkQueue(name="slow", concurrency=2),)
    both = await asyncio.gather(*(claimed(store, f"c{n}", queues=slow) for n in range(3)))
    assert sum(map(len, both)) == 2
    first, second = await store.work(statuses=["running"])
    await change(store, first.session, status="done")
    assert len(await claimed(store, "next", queues=slow)) == 1
    assert len(await store.work(statuses=["running"])) == 2
    assert second.session in [item.session for item in await store.work(statuses=["running"])]


async def test_a_queue_begins_no_more_than_its_rate(store, clock):
    for number in range(30):
        await add(store, f"s{number:02}")
    fast = (WorkQueue(name="default", per_second=4),)
    began = []
    for step in range(20):
        began += [step * 0.25] * len(await claimed(store, f"c{step}", queues=fast))
        clock.advance(0.25)
    # A burst of what a second allows, and from then on the rate.
    assert len(began) <= 4 + 4 * 5
    assert len(began) >= 4 * 5
    assert max(sum(at <= each < at + 1 for each in began) for at in began[4:]) <= 5


async def test_a_paused_queue_begins_nothing(store):
    await add(store, "a")
    await store.pause_work("default", paused=True)
    assert await store.paused_work() == ["default"]
    assert await claimed(store) == []
    await store.pause_work("default", paused=False)
    assert await claimed(store) == ["a"]
    assert await store.paused_work() == []


async def test_items_are_listed_in_pages(store):
    for number in range(5):
        await add(store, f"s{number}", queue="even" if number % 2 == 0 else "odd")
    await store.commit(Commit(session="plain", create=NewSession(manifest=b"{}")))
    first = await store.work(limit=3)
    rest = await store.work(after=first[-1].session)
    assert [item.session for item in first + rest] == ["s0", "s1", "s2", "s3", "s4"]
    assert [item.session for item in await store.work(queue="odd")] == ["s1", "s3"]
    assert await store.work(statuses=["failed", "done"]) == []


async def test_an_item_goes_with_its_session(store):
    await add(store, "a")
    await change(store, "a", status="done")
    await store.commit(Commit(session="a", state=SessionState.CLOSED))
    await store.remove("a")
    assert await store.work("a") == []
    await add(store, "a")
    assert await status(store, "a") == "ready"


async def test_a_worker_is_woken_by_a_commit(store):
    follower = store.follow_work()
    waiting = asyncio.ensure_future(follower.beyond(0, 30.0))
    await asyncio.sleep(0)
    await add(store, "a")
    async with asyncio.timeout(10):
        assert await waiting
    follower.close()
