"""Virtual actors whose key moves to another process, and what their hooks leave in the state."""

from __future__ import annotations

import asyncio
import random

import msgspec
import pytest
from actors_kit import Stage

from holdfast.actors import Actor, Ref
from holdfast.actors.virtual import SaveError, VirtualActor, VirtualActors
from holdfast.events import SuppressedError
from holdfast.stores import MemoryStore
from holdfast.stores.errors import unavailable


class CountState(msgspec.Struct):
    count: int = 0


class Counter(VirtualActor, timeout=300):
    """Counts. `alive` has every instance that has started and has not said goodbye, whichever process it is in."""

    state: CountState
    alive: dict[str, list[object]] = {}
    goodbye_s = 0.0

    async def started(self) -> None:
        alive = self.alive.setdefault(self.key, [])
        assert not alive, "two activations of one key"
        alive.append(self)

    async def stopping(self, exit):  # noqa: A002
        await asyncio.sleep(type(self).goodbye_s)
        self.alive[self.key].remove(self)

    async def add(self) -> int:
        self.state.count += 1
        return self.state.count

    async def look(self) -> int:
        return self.state.count

    async def work(self, seconds: float) -> int:
        await asyncio.sleep(seconds)
        self.state.count += 1
        return self.state.count

    async def ignore_the_end(self, seconds: float) -> None:
        ends = asyncio.get_running_loop().time() + seconds
        while (left := ends - asyncio.get_running_loop().time()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                continue


@pytest.fixture(autouse=True)
def nobody_alive(monkeypatch):
    monkeypatch.setattr(Counter, "alive", {})


class Cluster:
    """Several systems on one store, as processes would be."""

    def __init__(self, store=None, *, count: int = 2, **options) -> None:
        self.stage = Stage()
        self.store = MemoryStore(clock=self.stage.clock) if store is None else store(clock=self.stage.clock)
        self.options, self.count = options, count

    def run(self, main):
        async def play():
            # Leases of different lengths have keepers of their own, as processes have.
            systems = [
                VirtualActors(self.store, lease=10 + n, runtime=self.stage.runtime, **self.options)
                for n in range(self.count)
            ]
            for system in systems:
                await system.__aenter__()
            try:
                return await main(*systems)
            finally:
                for system in systems:
                    await system.__aexit__()

        return self.stage.run(play())

    async def take_away(self, name: str = "lobby") -> None:
        """End the lease of a key, as if its owner had hung for longer than that."""
        for record in await self.store.sessions():
            if record.id.endswith(f"k{name}") and record.owner:
                await self.store.acquire(record.id, record.owner, 0.0)


# --- who has the key ---


def test_of_two_processes_that_want_a_new_key_at_once_one_gets_it_and_the_other_learns_who_has_it():
    cluster = Cluster()

    async def main(ours, theirs):
        keys = [f"k{n}" for n in range(20)]
        asks = [system.get(Counter, key).outcome(Counter.add) for key in keys for system in (ours, theirs)]
        return await asyncio.gather(*asks)

    outcomes = cluster.run(main)
    for pair in zip(outcomes[::2], outcomes[1::2], strict=True):
        (done,) = [outcome for outcome in pair if outcome.ok]
        (rejected,) = [outcome for outcome in pair if not outcome.ok]
        assert done.value == 1
        assert (rejected.fault.code, rejected.fault.maybe_executed) == ("SESS_LEASE_LOST", False)
        assert rejected.fault.retryable
        assert "is active in" in rejected.fault.message


def test_while_the_owner_gives_a_key_up_others_are_rejected_and_then_one_of_them_has_it(monkeypatch):
    monkeypatch.setattr(Counter, "goodbye_s", 3.0)
    cluster = Cluster(idle=1)

    async def main(ours, theirs):
        lobby, same = ours.get(Counter, "lobby"), theirs.get(Counter, "lobby")
        await lobby.ask(Counter.add)
        while ours.active:  # noqa: ASYNC110 - it leaves memory when it is idle
            await asyncio.sleep(0.1)
        during = await same.outcome(Counter.add)
        # Both want it back at the moment when it is free.
        waits = asyncio.ensure_future(lobby.outcome(Counter.add))
        while not (there := await same.outcome(Counter.add)).ok and not waits.done():  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        here = await waits
        return during, here, there

    during, here, there = cluster.run(main)
    assert (during.fault.code, during.fault.maybe_executed) == ("SESS_LEASE_LOST", False)
    assert sorted([here.ok, there.ok]) == [False, True]
    assert next(one.value for one in (here, there) if one.ok) == 2


def test_messages_behind_one_that_ignores_its_end_do_not_wait_for_it_when_the_key_is_lost():
    cluster = Cluster()

    async def main(ours, theirs):
        now = asyncio.get_running_loop().time
        lobby, same = ours.get(Counter, "lobby"), theirs.get(Counter, "lobby")
        stuck = asyncio.ensure_future(lobby.outcome(Counter.ignore_the_end, 200))
        await asyncio.sleep(1)
        waiting = [asyncio.ensure_future(lobby.outcome(Counter.add)) for _ in range(3)]
        await asyncio.sleep(0)
        await cluster.take_away()
        Counter.alive.clear()
        taken = await same.ask(Counter.add)
        began = now()
        behind = await asyncio.gather(*waiting)
        took = now() - began
        return taken, behind, took, await stuck

    taken, behind, took, stuck = cluster.run(main)
    assert taken == 1
    assert {(one.fault.code, one.fault.maybe_executed) for one in behind} == {("SESS_LEASE_LOST", False)}
    assert took < 15, "a renewal notices it, and the activation has a few seconds to end"
    assert isinstance(stuck.error, SaveError)
    assert (stuck.fault.code, stuck.fault.maybe_executed) == ("SESS_LEASE_LOST", True)


class Partitioned(MemoryStore):
    """A store that the first system can no longer renew its leases in: its requests hang."""

    hangs = False

    async def renew(self, lease, ttl):
        if self.hangs and ttl == 10:
            await asyncio.Event().wait()
        return await super().renew(lease, ttl)


def test_an_owner_that_cannot_renew_its_lease_answers_nothing_from_its_memory_after_its_time():
    cluster = Cluster(Partitioned)

    async def main(ours, theirs):
        lobby, same = ours.get(Counter, "lobby"), theirs.get(Counter, "lobby")
        await lobby.ask(Counter.add)
        cluster.store.hangs = True
        await asyncio.sleep(5)
        before = await lobby.ask(Counter.look)
        await asyncio.sleep(10)
        Counter.alive.clear()
        taken = await same.ask(Counter.add)
        stale = await lobby.outcome(Counter.look)
        later = await lobby.outcome(Counter.look)
        return before, taken, stale, later

    before, taken, stale, later = cluster.run(main)
    assert (before, taken) == (1, 2)
    assert stale.fault.code == "SESS_LEASE_LOST"
    assert (later.fault.code, later.fault.maybe_executed) == ("SESS_LEASE_LOST", False)


class SlowToLoad(MemoryStore):
    load_s = 0.0

    async def checkpoint(self, session):
        found = await super().checkpoint(session)
        seconds, self.load_s = self.load_s, 0.0
        await asyncio.sleep(seconds)
        return found


def test_an_actor_that_is_taken_over_while_it_is_loaded_does_not_work_with_the_old_state(monkeypatch):
    cluster = Cluster(SlowToLoad)

    async def main(ours, theirs):
        lobby, same = ours.get(Counter, "lobby"), theirs.get(Counter, "lobby")
        cluster.store.load_s = 8.0
        first = asyncio.ensure_future(lobby.outcome(Counter.look))
        await asyncio.sleep(1)
        await cluster.take_away()
        taken = await same.ask(Counter.add)
        return taken, await first

    async def at_once(self):
        """The stale instance starts too, before it is dropped."""

    monkeypatch.setattr(Counter, "started", at_once)
    taken, first = cluster.run(main)
    assert taken == 1
    assert (first.fault.code, first.fault.maybe_executed) == ("SESS_LEASE_LOST", False)


def test_work_that_has_begun_is_not_idle_although_its_sender_has_left():
    cluster = Cluster(count=1, idle=2)

    async def main(ours):
        lobby = ours.get(Counter, "lobby")
        left = await lobby.using(timeout=1).outcome(Counter.work, 30)
        await asyncio.sleep(60)
        return left.fault.maybe_executed, await lobby.ask(Counter.look)

    assert cluster.run(main) == (True, 1)


@pytest.mark.parametrize("seed", range(4))
def test_keys_that_move_all_the_time_lose_no_answered_message_and_answer_none_twice(seed, monkeypatch):
    """Three systems send to four keys, while actors leave memory and leases are taken away."""
    cluster, chance = Cluster(count=3, idle=0.5), random.Random(seed)
    answers: dict[str, list[int]] = {f"k{n}": [] for n in range(4)}
    unknown = dict.fromkeys(answers, 0)

    async def sender(system):
        for _ in range(60):
            key = chance.choice(list(answers))
            outcome = await system.get(Counter, key).using(timeout=20).outcome(Counter.work, chance.random() * 0.2)
            if outcome.ok:
                answers[key].append(outcome.value)
            elif outcome.fault.maybe_executed:
                unknown[key] += 1
            else:
                assert outcome.fault.code == "SESS_LEASE_LOST"
            await asyncio.sleep(chance.random())

    async def thief():
        while True:
            await asyncio.sleep(chance.random() * 3)
            key = chance.choice(list(answers))
            await cluster.take_away(key)
            # The instance that lost its lease does not know it yet.
            Counter.alive.pop(key, None)

    async def quiet(self, exit):  # noqa: A002
        if self in self.alive.get(self.key, ()):
            self.alive[self.key].remove(self)

    async def main(*systems):
        stealing = asyncio.ensure_future(thief())
        await asyncio.gather(*(sender(system) for system in systems for _ in range(2)))
        stealing.cancel()
        await asyncio.sleep(20)
        counts = {}
        for key in answers:
            counts[key] = await systems[0].get(Counter, key).ask(Counter.look)
        return counts

    monkeypatch.setattr(Counter, "stopping", quiet)
    counts = cluster.run(main)
    for key, values in answers.items():
        assert len(set(values)) == len(values), "one count was the answer to two messages"
        assert len(values) <= counts[key] <= len(values) + unknown[key]
    assert sum(map(len, answers.values())) > 50


# --- what hooks leave in the state ---


class Friends(VirtualActor):
    """Its state has who is there. Every hook writes to it."""

    state: CountState
    fails_in = ""

    async def started(self) -> None:
        self._write(100, "started")

    async def stopping(self, exit):  # noqa: A002
        self._write(10, "stopping")

    async def down(self, other, exit):  # noqa: A002
        self._write(1, "down")

    def _write(self, amount: int, hook: str) -> None:
        self.state.count += amount
        if type(self).fails_in == hook:
            raise RuntimeError("later")

    async def begin(self, other: Ref) -> None:
        self.watch(other)

    async def look(self) -> int:
        return self.state.count

    async def fail(self) -> None:
        raise TimeoutError("nothing to do with the state")


class Plain(Actor):
    pass


class Failing(MemoryStore):
    fails = False

    async def commit(self, commit):
        if commit.checkpoint is not None and self.fails:
            raise unavailable("the disk is full")
        return await super().commit(commit)


def test_the_state_after_the_end_of_a_watched_actor_is_stored_like_that_after_a_message():
    cluster = Cluster(count=1)

    async def main(ours):
        lobby = ours.get(Friends, "lobby")
        async with cluster.stage.actor(Plain) as other:
            await lobby.ask(Friends.begin, other)
        await asyncio.sleep(1)
        (record,) = await cluster.store.sessions()
        stored = msgspec.json.decode((await cluster.store.checkpoint(record.id)).snapshot)
        failed = await lobby.outcome(Friends.fail)
        return stored["state"], failed.fault.code, await lobby.ask(Friends.look)

    stored, code, count = cluster.run(main)
    assert stored == {"count": 101}
    assert code == "SYS_TIMEOUT"
    assert count == 101, "a message that fails takes back what it did, and nothing else"


def test_what_started_and_stopping_change_is_stored():
    cluster = Cluster(count=1, idle=1)

    async def main(ours):
        lobby = ours.get(Friends, "lobby")
        first = await lobby.ask(Friends.look)
        failed = await lobby.outcome(Friends.fail)
        after = await lobby.ask(Friends.look)
        while ours.active:  # noqa: ASYNC110 - it leaves memory when it is idle
            await asyncio.sleep(0.1)
        return first, failed.ok, after, await lobby.ask(Friends.look)

    assert cluster.run(main) == (100, False, 100, 210)


@pytest.mark.parametrize("hook", ["stopping", "down"])
def test_a_hook_that_fails_leaves_no_trace_in_the_state(monkeypatch, hook):
    monkeypatch.setattr(Friends, "fails_in", hook)
    cluster = Cluster(count=1, idle=1)

    async def main(ours):
        lobby = ours.get(Friends, "lobby")
        async with cluster.stage.actor(Plain) as other:
            await lobby.ask(Friends.begin, other)
            if hook == "stopping":
                await asyncio.sleep(5)
        await asyncio.sleep(0.5)
        monkeypatch.setattr(Friends, "fails_in", "")
        return await lobby.ask(Friends.look)

    assert cluster.run(main) == 200, "`started` of two activations, and nothing else"


def test_an_end_of_a_watched_actor_whose_state_cannot_be_stored_is_reported_and_the_activation_dropped():
    cluster = Cluster(Failing, count=1)

    async def main(ours):
        lobby = ours.get(Friends, "lobby")
        async with cluster.stage.actor(Plain) as other:
            await lobby.ask(Friends.begin, other)
            cluster.store.fails = True
        await asyncio.sleep(1)
        cluster.store.fails = False
        return await lobby.ask(Friends.look)

    assert cluster.run(main) == 200, "100 from the store, 100 from the next `started`"
    reported = cluster.stage.of(SuppressedError)
    assert any("Friends.down" in event.reason for event in reported)


def test_an_activation_whose_started_cannot_be_stored_fails_the_message_and_nothing_was_done():
    cluster = Cluster(Failing, count=1)

    async def main(ours):
        lobby = ours.get(Friends, "lobby")
        cluster.store.fails = True
        failed = await lobby.outcome(Friends.look)
        cluster.store.fails = False
        return failed, await lobby.ask(Friends.look)

    failed, count = cluster.run(main)
    assert isinstance(failed.error, SaveError)
    assert not failed.fault.maybe_executed
    assert count == 100
