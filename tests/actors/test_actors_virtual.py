"""Virtual actors: activation, saved state, eviction, conflicts, other processes."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from actors_kit import Stage
from actors_rooms import Room, RoomState

from holdfast import Ok
from holdfast.actors import Actor, Ref
from holdfast.actors.virtual import SaveError, VirtualActor, VirtualActors
from holdfast.events import MessageDropped, SuppressedError
from holdfast.faults import InvalidError
from holdfast.sessions.codec import arguments_hash
from holdfast.sessions.retention import Retention, prune
from holdfast.stores import Commit, MemoryStore
from holdfast.stores.errors import unavailable
from holdfast.stores.records import NewCheckpoint
from holdfast.testing.postgres import PrivateServer


@pytest.fixture(autouse=True)
def fresh_counts():
    Room.activated = Room.running = 0


def on_stage(main, *, store=None, **options):
    stage = Stage()
    store = MemoryStore(clock=stage.clock) if store is None else store

    async def play():
        async with VirtualActors(store, runtime=stage.runtime, **options) as rooms:
            return await main(rooms, stage, store)

    return stage.run(play())


def test_A67_many_first_calls_activate_an_actor_once_and_are_worked_on_one_at_a_time():
    async def main(rooms, *_):
        lobby = rooms.get(Room, "lobby")
        assert rooms.active == 0
        counts = await asyncio.gather(*(lobby.ask(Room.join, str(n)) for n in range(20)))
        return sorted(counts), Room.activated, rooms.active

    assert on_stage(main) == (list(range(1, 21)), 1, 1)


def test_each_key_has_a_state_of_its_own_and_any_text_is_a_key():
    async def main(rooms, *_):
        for key in ("a", "b", "a b/ü?", "x" * 500):
            assert await rooms.get(Room, key).ask(Room.join, key) == 1
            assert await rooms.get(Room, key).ask(Room.members) == [key]
        return rooms.active

    assert on_stage(main) == 4


def test_the_state_is_there_again_in_another_system():
    store = MemoryStore()

    async def first(rooms, *_):
        await rooms.get(Room, "lobby").ask(Room.join, "ann")

    async def second(rooms, *_):
        return await rooms.get(Room, "lobby").ask(Room.join, "bob"), await rooms.get(Room, "lobby").ask(Room.members)

    on_stage(first, store=store)
    assert on_stage(second, store=store) == (2, ["ann", "bob"])


def test_a_message_that_fails_leaves_no_trace_in_the_state_whatever_the_directive():
    async def main(rooms, *_):
        lobby = rooms.get(Room, "lobby")
        await lobby.ask(Room.join, "ann")
        resumed = await lobby.outcome(Room.join_and_fail, "ghost", TimeoutError("x"))
        after_resume = await lobby.ask(Room.members)
        crashed = await lobby.outcome(Room.join_and_fail, "ghost", KeyError("x"))
        after_crash = await lobby.ask(Room.members)
        return resumed.fault.kind, after_resume, crashed.fault.code, after_crash, Room.activated

    assert on_stage(main) == ("transient", ["ann"], "ACTOR_CRASHED", ["ann"], 2)


def test_an_explicit_save_is_kept_when_the_message_fails_later():
    async def main(rooms, *_):
        lobby = rooms.get(Room, "lobby")
        await lobby.outcome(Room.join_saved_and_fail, "ann")
        return await lobby.ask(Room.members)

    assert on_stage(main) == ["ann"]


def test_messages_behind_a_crash_are_worked_on_by_the_next_activation():
    async def main(rooms, *_):
        lobby = rooms.get(Room, "lobby")
        outcomes = await asyncio.gather(
            lobby.outcome(Room.join_and_fail, "ghost", KeyError("x")),
            *(lobby.outcome(Room.join, str(n)) for n in range(3)),
        )
        return [outcome.ok for outcome in outcomes], sorted(await lobby.ask(Room.members))

    assert on_stage(main) == ([False, True, True, True], ["0", "1", "2"])


class FlakyStore(MemoryStore):
    fails = False
    commits = 0

    async def commit(self, commit):
        if commit.checkpoint is not None:
            self.commits += 1
            if self.fails:
                raise unavailable("the disk is full")
        return await super().commit(commit)


def test_A70_a_failed_save_fails_the_message_and_the_next_one_reads_what_is_stored():
    store = FlakyStore()

    async def main(rooms, *_):
        lobby = rooms.get(Room, "lobby")
        await lobby.ask(Room.join, "ann")
        store.fails = True
        outcome = await lobby.outcome(Room.join, "bob")
        store.fails = False
        return outcome, await lobby.ask(Room.members), Room.activated

    outcome, members, activated = on_stage(main, store=store)
    assert isinstance(outcome.error, SaveError)
    assert (outcome.fault.code, outcome.fault.retryable) == ("SESS_STORE_UNAVAILABLE", True)
    assert outcome.fault.maybe_executed
    assert members == ["ann"]
    assert activated == 2


def test_a_message_that_changes_nothing_writes_nothing():
    store = FlakyStore()

    async def main(rooms, *_):
        lobby = rooms.get(Room, "lobby")
        await lobby.ask(Room.join, "ann")
        for _ in range(5):
            await lobby.ask(Room.members)
        return store.commits

    assert on_stage(main, store=store) == 1


def test_A71_a_stale_activation_is_rejected_by_the_store_and_dropped():
    stage = Stage()
    store = MemoryStore(clock=stage.clock)

    async def main():
        async with (
            VirtualActors(store, lease=10, runtime=stage.runtime) as ours,
            VirtualActors(store, lease=11, runtime=stage.runtime) as theirs,
        ):
            lobby, same = ours.get(Room, "lobby"), theirs.get(Room, "lobby")
            await lobby.ask(Room.join, "ann")
            rejected = await same.outcome(Room.join, "bob")
            # The other process takes the key over, as it would when this one hangs for longer than its lease.
            record = await store.session((await store.sessions())[0].id)
            await store.acquire(record.id, record.owner, 0.0)
            taken = await same.ask(Room.join, "bob")
            stale = await lobby.outcome(Room.join, "cal")
            later = await lobby.outcome(Room.members)
            return rejected, taken, stale, later, await same.ask(Room.members)

    rejected, taken, stale, later, members = stage.run(main())
    assert rejected.fault.code == "SESS_LEASE_LOST"
    assert rejected.fault.message == (
        f"Room/lobby is active in another VirtualActors of this process ({os.getpid()} on {socket.gethostname()}). "
        "Nothing was done: send the message there, or again when it has left memory (idle, or that process has ended)"
    )
    assert rejected.fault.retryable
    assert not rejected.fault.maybe_executed
    assert taken == 2
    assert isinstance(stale.error, SaveError)
    assert stale.fault.code == "SESS_LEASE_LOST"
    assert later.fault.code == "SESS_LEASE_LOST"
    assert members == ["ann", "bob"]


def test_a_key_does_the_work_once_and_is_stored_with_the_state():
    store = MemoryStore()

    async def pay(rooms, *_):
        lobby = rooms.get(Room, "lobby").using(key="order-17")
        first, again = await lobby.ask(Room.pay, 5), await lobby.ask(Room.pay, 5)
        other = await lobby.outcome(Room.pay, 6)
        return first, again, other.fault.code, await rooms.get(Room, "lobby").ask(Room.pay, 1)

    assert on_stage(pay, store=store) == (5, 5, "PROTO_DUPLICATE_ID", 6)
    # Also in another process, after a crash.
    assert on_stage(pay, store=store) == (5, 5, "PROTO_DUPLICATE_ID", 7)


class MeasuredStore(MemoryStore):
    """Remembers how many bytes each commit of an actor writes."""

    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.written: list[int] = []

    async def commit(self, commit):
        if commit.checkpoint is not None:
            result = b"" if commit.claim is None else commit.claim.result
            self.written.append(len(commit.checkpoint.snapshot) + len(result))
        return await super().commit(commit)


def test_XT2_an_idempotency_key_is_never_forgotten_and_costs_the_same_after_any_number_of_keys():
    store = MeasuredStore()

    async def pay(rooms, *_):
        lobby = rooms.get(Room, "lobby")
        for n in range(1_100):
            await lobby.using(key=f"order-{n}").ask(Room.pay, 1)
        first = await lobby.using(key="order-0").ask(Room.pay, 1)
        await prune(store, Retention(), time.time() + 30 * 86_400)
        return first, await lobby.using(key="order-0").ask(Room.pay, 1), await lobby.ask(Room.pay, 1)

    assert on_stage(pay, store=store) == (1, 1, 1_101)
    assert on_stage(pay, store=store)[0] == 1
    # The number of the version grows by a few digits.
    assert max(store.written) - min(store.written) < 20


def test_XT2_keys_that_an_earlier_version_kept_in_the_snapshot_are_known():
    store = MemoryStore()

    async def pay(rooms, *_):
        return await rooms.get(Room, "lobby").using(key="order-17").ask(Room.pay, 5)

    async def pay_one(rooms, *_):
        return await rooms.get(Room, "lobby").ask(Room.pay, 1)

    async def as_before():
        kept = await store.checkpoint("actor:Room:klobby")
        stored = json.loads(bytes(kept.snapshot))
        digest = arguments_hash((5,), {"": Room.pay.__qualname__}, "")
        stored["done"] = {"order-17": [digest, 99]}
        lease = await store.acquire("actor:Room:klobby", "before", 30)
        checkpoint = NewCheckpoint(message_count=1, last_message_id=None, snapshot=json.dumps(stored).encode())
        await store.commit(Commit(session="actor:Room:klobby", fence=lease.fence, checkpoint=checkpoint))
        await store.release(lease)

    on_stage(pay_one, store=store)
    asyncio.run(as_before())
    for _ in range(2):
        assert on_stage(pay, store=store) == 99
    snapshot = asyncio.run(store.checkpoint("actor:Room:klobby")).snapshot
    assert b"order-17" not in bytes(snapshot)


def test_an_idle_actor_leaves_memory_and_comes_back_with_its_state():
    async def main(rooms, *_):
        lobby = rooms.get(Room, "lobby")
        await lobby.ask(Room.join, "ann")
        await asyncio.sleep(5)
        assert rooms.active == 1
        await asyncio.sleep(20)
        evicted = rooms.active
        return evicted, await lobby.ask(Room.join, "bob"), Room.activated

    assert on_stage(main, idle=10) == (0, 2, 2)


class Broken(VirtualActor):
    async def started(self) -> None:
        raise ValueError("no such room")

    async def enter(self) -> None: ...


class Late(VirtualActor):
    turns = 0

    async def started(self) -> None:
        for _ in range(self.turns):
            await asyncio.sleep(0)

    async def enter(self) -> None: ...


def test_an_activation_that_fails_at_the_moment_when_another_is_evicted_disturbs_nobody():
    reported = []

    async def main(rooms, *_):
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        for Late.turns in range(40):
            late, broken = rooms.get(Late, "l").outcome(Late.enter), rooms.get(Broken, "b").outcome(Broken.enter)
            outcomes = await asyncio.gather(late, broken)
            assert [outcome.ok for outcome in outcomes] == [True, False]

    on_stage(main, most_active=1)
    assert reported == []


def test_the_ones_that_were_idle_longest_leave_first_and_one_at_work_stays():
    async def main(rooms, *_):
        slow = asyncio.ensure_future(rooms.get(Room, "slow").ask(Room.wait, 5))
        await asyncio.sleep(1)
        for n in range(10):
            await rooms.get(Room, str(n)).ask(Room.join, "ann")
        await asyncio.sleep(0.1)
        active = rooms.active
        return active, await slow

    assert on_stage(main, most_active=3) == (3, "slow")


@pytest.mark.parametrize("is_active", [False, True])
def test_what_was_told_before_goes_first(is_active: bool):
    async def main(rooms, *_):
        lobby = rooms.get(Room, "lobby")
        if is_active:
            await lobby.ask(Room.join, "zoe")
        lobby.tell(Room.join, "ann")
        lobby.tell(Room.join, "ben")
        return await lobby.ask(Room.join, "cy")

    assert on_stage(main) == 3 + is_active


def test_what_was_told_is_done_before_the_block_is_left():
    stage = Stage()
    store = MemoryStore(clock=stage.clock)

    async def main() -> int:
        async with VirtualActors(store, runtime=stage.runtime) as rooms:
            for name in ("ann", "ben"):
                rooms.get(Room, "lobby").tell(Room.join, name)
        async with VirtualActors(store, runtime=stage.runtime) as rooms:
            return await rooms.get(Room, "lobby").ask(Room.join, "cy")

    assert stage.run(main()) == 3


def test_after_a_burst_no_more_are_active_than_allowed():
    async def main(rooms, *_):
        await asyncio.gather(*(rooms.get(Room, f"room-{n}").ask(Room.pay, 1) for n in range(40)))
        await asyncio.sleep(1)
        assert rooms.active <= 5
        return [await rooms.get(Room, f"room-{n}").ask(Room.pay, 0) for n in range(40)]

    assert on_stage(main, most_active=5) == [1] * 40


def test_a_tell_activates_and_its_failure_is_reported():
    async def main(rooms, stage, _):
        lobby = rooms.get(Room, "lobby")
        lobby.tell(Room.join, "ann")
        lobby.tell(Room.join_and_fail, "ghost", TimeoutError("x"))
        await asyncio.sleep(1)
        return await lobby.ask(Room.members), len(stage.of(SuppressedError))

    assert on_stage(main) == (["ann"], 1)


@pytest.mark.parametrize("leaves_by", [None, ValueError])
def test_what_was_told_is_delivered_although_the_block_ends_at_once(leaves_by):
    stage, store = Stage(), MemoryStore()

    async def play():
        with suppress(ValueError):
            async with VirtualActors(store, runtime=stage.runtime) as rooms:
                for n in range(20):
                    rooms.get(Room, f"room-{n % 4}").tell(Room.pay, n)
                if leaves_by is not None:
                    raise leaves_by
        async with VirtualActors(store, runtime=stage.runtime) as rooms:
            return [await rooms.get(Room, f"room-{n}").ask(Room.pay, 0) for n in range(4)]

    assert stage.run(play()) == [sum(range(n, 20, 4)) for n in range(4)]
    assert not stage.of(MessageDropped)
    assert not stage.of(SuppressedError)


class Relay(VirtualActor):
    """Tells others what it is told, when its block is about to end."""

    state: int = 0
    system = None

    async def pass_on(self, n: int) -> None:
        if n:
            type(self).system.get(Relay, f"relay-{n}").tell(Relay.pass_on, n - 1)
        self.state += 1

    async def count(self) -> int:
        return self.state


def test_what_is_told_by_a_message_that_was_told_is_delivered_too():
    stage, store = Stage(), MemoryStore()

    async def play():
        async with VirtualActors(store, runtime=stage.runtime) as Relay.system:
            Relay.system.get(Relay, "first").tell(Relay.pass_on, 3)
        async with VirtualActors(store, runtime=stage.runtime) as again:
            return [await again.get(Relay, f"relay-{n}").ask(Relay.count) for n in (1, 2, 3)]

    assert stage.run(play()) == [1, 1, 1]


def test_what_was_told_and_cannot_be_delivered_in_time_is_reported():
    stage, store = Stage(), MemoryStore()

    async def play():
        async with VirtualActors(store, runtime=stage.runtime) as rooms:
            lobby = rooms.get(Room, "lobby")
            lobby.tell(Room.join, "ann")
            lobby.tell(Room.wait, 3600)
            lobby.tell(Room.join, "bob")
            began = asyncio.get_running_loop().time()
        took = asyncio.get_running_loop().time() - began
        async with VirtualActors(store, runtime=stage.runtime) as rooms:
            return await rooms.get(Room, "lobby").ask(Room.members), took

    members, took = stage.run(play())
    assert members == ["ann"]
    assert 5 <= took < 15
    dropped = stage.of(MessageDropped)
    assert sorted(event.message for event in dropped) == ["Room.join", "Room.wait"]
    assert {event.actor for event in dropped} == {"Room/lobby"}


def test_what_was_told_is_reported_when_the_program_is_cancelled():
    stage = Stage()

    async def play():
        async with VirtualActors(MemoryStore(), runtime=stage.runtime) as rooms:
            for n in range(5):
                rooms.get(Room, f"room-{n}").tell(Room.join, "ann")
            raise asyncio.CancelledError

    async def cancelled():
        with suppress(asyncio.CancelledError):
            await play()

    stage.run(cancelled())
    assert len(stage.of(MessageDropped)) == 5


def test_telling_outside_of_the_block_is_rejected():
    async def main(rooms, *_):
        return rooms.get(Room, "a")

    left = on_stage(main)
    with pytest.raises(InvalidError, match="async with VirtualActors"):
        left.tell(Room.members)


def test_misuse_is_rejected():
    async def main(rooms, *_):
        for wrong in ((int, "a"), (Room, ""), (Room, 3)):
            with pytest.raises(InvalidError, match="get"):
                rooms.get(*wrong)
        with pytest.raises(InvalidError, match=r"Room\.join"):
            await rooms.get(Room, "a").ask(len)
        return rooms.get(Room, "a")

    left = on_stage(main)
    with pytest.raises(InvalidError, match="async with VirtualActors"):
        asyncio.run(left.ask(Room.members))
    with pytest.raises(InvalidError, match="made by hand"):
        asyncio.run(VirtualActor().save())
    for options in ({"idle": 0}, {"most_active": 0}, {"lease": -1}):
        with pytest.raises(InvalidError, match="virtual"):
            VirtualActors(MemoryStore(), **options)


def test_a_class_in_a_function_knows_its_state_and_an_annotation_nobody_can_read_is_rejected():
    class Local(VirtualActor):
        state: dict[str, int]

        async def put(self, name: str) -> int:
            self.state[name] = 1
            return len(self.state)

    class Unreadable(VirtualActor):
        state: NoSuchName  # noqa: F821

    async def main(rooms, *_):
        with pytest.raises(InvalidError, match=r"Unreadable\.state"):
            rooms.get(Unreadable, "a")
        return await rooms.get(Local, "a").ask(Local.put, "x")

    assert on_stage(main) == 1


# --- real stores and real processes ---


@pytest.fixture(params=["sqlite", "postgres"])
def address(request, tmp_path):
    if request.param == "sqlite":
        yield f"sqlite:{tmp_path / 'rooms.db'}"
        return
    with PrivateServer() as server:
        yield server.url


def holder(address: str, key: str, count: int) -> subprocess.Popen[str]:
    program = [sys.executable, str(Path(__file__).with_name("actors_rooms.py")), address, key, str(count)]
    return subprocess.Popen(program, stdout=subprocess.PIPE, text=True)


def test_A69_the_state_of_a_killed_process_comes_back_here_and_its_key_is_free_at_once(address):
    process = holder(address, "lobby", 3)
    try:
        assert [process.stdout.readline().strip() for _ in range(4)] == ["1", "2", "3", "held"]

        async def main():
            async with VirtualActors(address) as rooms:
                lobby = rooms.get(Room, "lobby")
                rejected = await lobby.outcome(Room.members)
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
                return rejected, await lobby.outcome(Room.members)

        rejected, members = asyncio.run(main())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    # While the other process lives, it is named.
    assert rejected.fault.code == "SESS_LEASE_LOST"
    assert f"/{process.pid}/" in rejected.fault.context["owner"]
    assert f"active in process {process.pid} on {socket.gethostname()}." in rejected.fault.message
    assert members == Ok(value=["holder-0", "holder-1", "holder-2"])


def test_A69_processes_that_are_killed_at_random_lose_no_answered_message_and_repeat_none(address):
    answered = []
    for _ in range(3):
        process = holder(address, "lobby", 1_000)
        try:
            for _ in range(5):
                line = process.stdout.readline().strip()
                assert line.isdigit(), line
                answered.append(int(line))
        finally:
            process.kill()
            # What it printed before it was killed was answered, too.
            answered += [int(line) for line in process.stdout.read().split() if line.isdigit()]
            process.wait()
            process.stdout.close()

    async def main():
        async with VirtualActors(address) as rooms:
            return await rooms.get(Room, "lobby").ask(Room.members)

    members = asyncio.run(main())
    # Every answer was a new number, and is stored. At most one message of each process was stored and not answered.
    assert len(set(answered)) == len(answered)
    assert max(answered) <= len(members) <= max(answered) + 1
    assert len(members) - len(answered) <= 3


def test_an_actor_that_was_just_activated_stays_until_it_has_had_its_message():
    async def main(rooms, *_):
        slow = asyncio.ensure_future(rooms.get(Room, "slow").ask(Room.wait, 5))
        await asyncio.sleep(1)
        return await rooms.get(Room, "quick").ask(Room.join, "ann"), await slow

    assert on_stage(main, most_active=1) == (1, "slow")


def test_two_classes_of_one_name_do_not_share_their_state():
    other = type("Room", (VirtualActor,), {"__module__": "another", "__qualname__": Room.__qualname__})

    async def main(rooms, *_):
        await rooms.get(Room, "lobby").ask(Room.join, "ann")
        with pytest.raises(InvalidError, match=r"another\.Room.*actors_rooms\.Room"):
            rooms.get(other, "lobby")

    on_stage(main)


def test_long_names_of_classes_stay_different():
    ends = "x" * 60
    kinds = [type(first + ends, (VirtualActor,), {"__qualname__": first + ends}) for first in ("A", "B")]

    async def main(rooms, *_):
        return [rooms.get(kind, "k").key for kind in kinds]

    assert on_stage(main) == ["k", "k"]


def test_a_method_that_is_called_on_a_virtual_ref_says_how_it_is_asked():
    ref = VirtualActors(MemoryStore()).get(Room, "lobby")
    with pytest.raises(AttributeError, match=r"use await ref\.ask\(Room\.join, …\)"):
        ref.join("ann")


class SlowGoodbye(VirtualActor):
    """The hook of its first instance takes `seconds`, and ignores so many cancellations."""

    seconds = 0.0
    ignores = 0

    async def stopping(self, exit):  # noqa: A002
        kind = type(self)
        ends, kind.seconds = asyncio.get_running_loop().time() + kind.seconds, 0.0
        while (left := ends - asyncio.get_running_loop().time()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                if not kind.ignores:
                    raise
                kind.ignores -= 1

    async def work(self, seconds: float) -> float:
        await asyncio.sleep(seconds)
        return asyncio.get_running_loop().time()


@pytest.mark.parametrize(
    ("seconds", "ignores", "waits"), [(60.0, 0, 5), (8.0, 9, 6)], ids=["is cancelled", "ends late"]
)
def test_an_activation_whose_goodbye_takes_too_long_does_not_disturb_the_next_one(monkeypatch, seconds, ignores, waits):
    monkeypatch.setattr(SlowGoodbye, "seconds", seconds)
    monkeypatch.setattr(SlowGoodbye, "ignores", ignores)

    async def main(rooms, *_):
        slow = rooms.get(SlowGoodbye, "a")
        await slow.ask(SlowGoodbye.work, 0)
        while rooms.active:  # noqa: ASYNC110 - it leaves memory when it is idle
            await asyncio.sleep(0.1)
        began = asyncio.get_running_loop().time()
        # The next one works when the first one, which ignores its end, ends at last.
        return await slow.ask(SlowGoodbye.work, 10) - began

    assert on_stage(main, idle=1.0) == pytest.approx(waits + 10, abs=0.2)


class StuckStore(MemoryStore):
    def __init__(self, **options) -> None:
        super().__init__(**options)
        self.released = asyncio.Event()

    async def checkpoint(self, session):
        await self.released.wait()
        return await super().checkpoint(session)


def test_an_ask_whose_actor_is_not_active_in_time_ends_and_was_not_executed():
    async def main(rooms, stage, store):
        began = asyncio.get_running_loop().time()
        outcome = await rooms.get(Room, "lobby").using(timeout=5).outcome(Room.join, "ann")
        took = asyncio.get_running_loop().time() - began
        store.released.set()
        # The activation went on, for whoever asks next.
        return outcome.fault.code, outcome.fault.maybe_executed, took, await rooms.get(Room, "lobby").ask(Room.members)

    assert on_stage(main, store=StuckStore()) == ("SYS_TIMEOUT", False, 5, [])


def test_the_time_of_an_activation_counts_for_the_ask():
    async def main(rooms, stage, store):
        began = asyncio.get_running_loop().time()
        asyncio.get_running_loop().call_later(3, store.released.set)
        with pytest.raises(TimeoutError):
            await rooms.get(SlowGoodbye, "a").using(timeout=5).ask(SlowGoodbye.work, 60)
        return asyncio.get_running_loop().time() - began

    assert on_stage(main, store=StuckStore()) == 5


class Watching(VirtualActor):
    seen: list[str] = []

    async def begin(self, other: Ref) -> None:
        self.watch(other)

    async def down(self, other, exit):  # noqa: A002
        self.seen.append(other.name)


def test_an_actor_whose_last_message_was_the_end_of_another_one_leaves_memory_too():
    async def main(rooms, stage, _store):
        async with stage.actor(Plain) as other:
            await rooms.get(Watching, "a").ask(Watching.begin, other)
        await asyncio.sleep(0.5)
        assert Watching.seen == ["team/one"]
        await asyncio.sleep(3)
        return rooms.active

    assert on_stage(main, idle=1.0) == 0


class Plain(Actor):
    pass


def test_XT5_an_instance_that_crashed_is_not_kept_until_its_messages_would_have_timed_out():
    """Each crash kept its instance and the last result for the 30 s of an `ask`: 2.3 GB in a minute of crashes beside large results."""

    class CrashError(Exception):
        pass

    class Crashing(VirtualActor):
        state: dict[str, int]

        async def crash(self) -> None:
            error = CrashError("gone")
            made.append(weakref.ref(error))
            raise error

    made = []

    async def main():
        async with MemoryStore() as store, VirtualActors(store) as actors:
            for _ in range(10):
                await actors.get(Crashing, "c").outcome(Crashing.crash)
            gc.collect()
            return sum(each() is not None for each in made)

    assert asyncio.run(main()) <= 1


class Note(msgspec.Struct):
    text: str
    tags: list[str] = []


class Notes(msgspec.Struct):
    notes: list[Note] = []


class Board(VirtualActor):
    state: Notes

    async def add(self, note: Note, *more: Note, tags: list[str]) -> list[Note]:
        note.tags = tags
        self.state.notes += [note, *more]
        return self.state.notes

    async def all(self) -> Notes:
        return self.state

    async def same(self, refs: list[object]) -> list[object]:
        return refs

    async def with_client(self) -> tuple[Note, threading.Lock]:
        return self.state.notes[0], threading.Lock()


@pytest.mark.parametrize("key", [None, "k"])
def test_what_a_sender_does_to_an_argument_or_an_answer_does_not_change_the_state(key):
    async def main(rooms, *_):
        board = rooms.get(Board, "b")
        first, second, tags = Note("first"), Note("second"), ["a"]
        answer = await (board.using(key=key) if key else board).ask(Board.add, first, second, tags=tags)
        answer[0].text = "evil"
        answer.append(Note("evil"))
        first.text = second.text = "evil"
        tags.append("evil")
        (await board.ask(Board.all)).notes.clear()
        assert [(note.text, note.tags) for note in (await board.ask(Board.all)).notes] == [
            ("first", ["a"]),
            ("second", []),
        ]
        assert await board.ask(Board.same, [board]) == [board]
        # What cannot be copied is passed as it is.
        assert (await board.ask(Board.with_client))[0].text == "first"

    on_stage(main)


class Stuck(VirtualActor):
    state: RoomState

    async def started(self) -> None:
        await asyncio.Event().wait()

    async def count(self) -> int:
        return 0


def test_a_hook_that_hangs_does_not_keep_the_block_open():
    stage = Stage()

    async def main():
        async with VirtualActors(MemoryStore(clock=stage.clock), runtime=stage.runtime) as rooms:
            outcome = await rooms.get(Stuck, "a").using(timeout=1).outcome(Stuck.count)
            began = stage.clock.monotonic()
        return outcome.fault.code, stage.clock.monotonic() - began, asyncio.all_tasks() == {asyncio.current_task()}

    code, took, left_nothing = stage.run(main())
    assert (code, left_nothing) == ("SYS_TIMEOUT", True)
    assert took == pytest.approx(5, abs=0.1)
