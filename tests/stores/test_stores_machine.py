"""Any sequence of calls: every store answers as `MemoryStore`, which shares no code with those on SQL."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import tempfile
from pathlib import Path

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from holdfast.faults import HoldfastError
from holdfast.stores import (
    Claim,
    Commit,
    Lease,
    MemoryStore,
    NewAudit,
    NewCheckpoint,
    NewEntry,
    NewSession,
    PostgresStore,
    SessionState,
    SqliteStore,
)
from holdfast.testing import VirtualClock

SESSIONS = st.sampled_from(["a", "B"])
STATES = st.sampled_from(SessionState)
OWNERS = st.sampled_from(["x", "y"])
NUMBERS = st.integers(0, 6)
COMMITS = st.builds(
    Commit,
    session=SESSIONS,
    create=st.sampled_from([None, None, NewSession(manifest=b'{"v":1}')]),
    fence=st.sampled_from([None, None, 1, 2]),
    expect=st.lists(STATES, max_size=2).map(tuple),
    state=st.none() | STATES.filter(lambda state: state != SessionState.CLOSED) | st.just(SessionState.CLOSED),
    manifest=st.sampled_from([None, b'{"v":2}']),
    entries=st.lists(
        st.builds(NewEntry, type=st.just("t"), body=st.just(b'{"x":1}'), id=st.text("ab", min_size=1)), max_size=3
    ).map(tuple),
    checkpoint=st.none()
    | st.builds(NewCheckpoint, message_count=NUMBERS, last_message_id=st.none(), snapshot=st.just(b"{}")),
    claim=st.none()
    | st.builds(Claim, client=st.just("c"), id=st.sampled_from("mn"), body_hash=st.sampled_from([b"1", b"2"])),
    audit=st.lists(st.just(NewAudit(kind="Turn", correlation="r", payload=b"{}")), max_size=2).map(tuple),
    chain=st.sampled_from(["", "", "shared"]),
)


def machine(make):
    class Machine(RuleBasedStateMachine):
        def __init__(self):
            super().__init__()
            self.place = Path(tempfile.mkdtemp(prefix="holdfast-machine-"))
            self.clock = VirtualClock()
            self.runner = asyncio.Runner()
            self.model = MemoryStore(clock=self.clock)
            self.store = make(self.place, self.clock)
            self.runner.run(self.store.__aenter__())
            self.leases = [Lease(session="a", owner="x", fence=1, until=0.0)]

        def teardown(self):
            self.runner.run(self.store.__aexit__(None, None, None))
            self.runner.close()
            shutil.rmtree(self.place)

        def both(self, call):
            results = [self.runner.run(answer(call, store)) for store in (self.model, self.store)]
            assert plain(results[0]) == plain(results[1])
            return results[0]

        @rule(commit=COMMITS)
        def commit(self, commit):
            self.both(lambda store: store.commit(commit))

        @rule(session=SESSIONS)
        def create(self, session):
            self.both(lambda store: store.commit(Commit(session=session, create=NewSession(manifest=b"{}"))))

        @rule(session=SESSIONS, owner=OWNERS, ttl=st.sampled_from([1.0, 10.0]))
        def acquire(self, session, owner, ttl):
            lease = self.both(lambda store: store.acquire(session, owner, ttl))
            if isinstance(lease, Lease):
                self.leases.append(lease)

        @rule(n=NUMBERS)
        def renew(self, n):
            lease = self.leases[-1 - n % len(self.leases)]
            self.both(lambda store: store.renew(lease, 5.0))

        @rule(n=NUMBERS)
        def release(self, n):
            lease = self.leases[-1 - n % len(self.leases)]
            self.both(lambda store: store.release(lease))

        @rule(session=SESSIONS, after=NUMBERS, limit=st.integers(1, 4), size=st.sampled_from([1, 15, 10_000]))
        def read(self, session, after, limit, size):
            self.both(lambda store: store.read(session, after=after, limit=limit, max_bytes=size))

        @rule(session=SESSIONS, before=NUMBERS, fence=st.sampled_from([None, None, 1]))
        def compact(self, session, before, fence):
            self.both(lambda store: store.compact(session, before, fence=fence))

        @rule(session=SESSIONS)
        def forget(self, session):
            self.both(lambda store: store.forget_claims(session, self.clock.wall()))

        @rule(session=SESSIONS)
        def remove(self, session):
            self.both(lambda store: store.remove(session))

        @rule(states=st.lists(STATES, max_size=2), after=st.sampled_from(["", "A", "a"]), limit=st.integers(1, 3))
        def sessions(self, states, after, limit):
            self.both(lambda store: store.sessions(states=states, after=after, limit=limit))

        @rule(seconds=st.sampled_from([-20, 1, 7]))
        def time_moves(self, seconds):
            self.clock.jump(seconds)

        @invariant()
        def they_hold_the_same(self):
            self.both(lambda store: store.sessions())
            self.both(lambda store: store.chains())
            for session in ("a", "B"):
                self.both(lambda store, session=session: store.checkpoint(session))
                self.both(lambda store, session=session: store.audit(f"session:{session}"))

    return Machine


async def answer(call, store):
    try:
        return await call(store)
    except HoldfastError as error:
        return error.fault.code, str(error)


def plain(value):
    """As values that compare, without what is every store's own: the epochs."""
    match value:
        case msgspec.Raw():
            return bytes(value)
        case msgspec.Struct():
            return {name: plain(field) for name, field in msgspec.structs.asdict(value).items() if name != "epoch"}
        case list() | tuple():
            return [plain(item) for item in value]
        case _:
            return value


def check(make, examples):
    run_state_machine_as_test(
        machine(make),
        settings=settings(
            max_examples=examples,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            derandomize=True,
            database=None,
        ),
    )


def test_sqlite_answers_as_memory_does():
    check(lambda place, clock: SqliteStore(place / "sessions.db", clock=clock), 25)


def test_postgres_answers_as_memory_does(postgres):
    check(
        lambda _, clock: PostgresStore(postgres.url, schema=f"m{secrets.token_hex(8)}", clock=clock, connections=1), 8
    )
