"""Both machines against each other over a network that loses everything at any time.

The model: a client, a server with a durable log, and a wire between them that is cut, half open or slow. Whatever happens, what the
application got is a copy of the log, in order and once, with marks where something is missing; and what the server acknowledged is
stored once.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from holdfast.testing import VirtualClock
from holdfast.wire.client import ClientConnection
from holdfast.wire.client_effects import Connect, Deliver, Drop, Failed, GapFound
from holdfast.wire.client_effects import Send as ClientSend
from holdfast.wire.envelope import Envelope, encode, stamp
from holdfast.wire.messages import ConnectionAck, Limits, SessionJoined, Snapshot
from holdfast.wire.outbox import Acked, AckResult
from holdfast.wire.position import Gap, Reach, resume
from holdfast.wire.reconnect import Schedule
from holdfast.wire.server import CloseConnection, HandleMessage, Send, ServerConnection

S = "release-42"


class Log:
    """The durable log of the session, with the ids that it has seen from clients."""

    def __init__(self) -> None:
        self.epoch = "e1"
        self.entries: list[Envelope] = []
        self.dropped = 0
        self.seen: dict[str, int] = {}

    @property
    def top(self) -> int:
        return self.dropped + len(self.entries)

    def append(self, type_: str, payload: dict[str, Any], id_: str) -> int:
        offset = self.top + 1
        self.entries.append(
            Envelope(type=type_, id=id_, timestamp=stamp(offset), payload=payload, session_id=S, epoch=self.epoch, offset=offset)
        )  # fmt: skip
        return offset

    def after(self, offset: int) -> list[Envelope]:
        return self.entries[max(0, offset - self.dropped) :]

    def id_at(self, offset: int) -> str | None:
        place = offset - self.dropped - 1
        return self.entries[place].id if 0 <= place < len(self.entries) else None


class Pipe:
    """One connection: two directions that may be cut, each with what is on its way."""

    def __init__(self, server: ServerConnection) -> None:
        self.server = server
        self.up: deque[str] = deque()
        self.down: deque[bytes | tuple[int, str]] = deque()
        self.cursor: int | None = None
        self.is_dead = False


class Bridges(RuleBasedStateMachine):
    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.clock = VirtualClock()
        self.numbers = iter(range(1, 10**9))
        self.log = Log()
        self.pipes: list[Pipe] = []
        self.pipe: Pipe | None = None
        self.client = ClientConnection(
            "token",
            clock=self.clock,
            rng=random.Random(seed),
            new_id=self.new_id,
            client_id="phone",
            # The model's time has no end, and after the server's grace a client gives up.
            schedule=Schedule(grace=None),
        )
        self.connect_at: float | None = None
        self.got: list[tuple[str, int, str]] = []
        self.marks: list[int] = []
        self.sent: list[str] = []
        self.acked: dict[str, int | None] = {}
        self.gap_open = False
        self.client.join(S, history="full")
        self.perform(self.client.connect())

    def new_id(self) -> str:
        return str(UUID(int=next(self.numbers)))

    # --- the client's I/O ---

    def perform(self, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case Connect(delay=delay):
                    self.connect_at = self.clock.monotonic() + delay
                case ClientSend(frame) if self.pipe is not None:
                    self.pipe.up.append(frame.decode())
                case Drop():
                    self.pipe = None
                case Deliver(message) if message.offset:
                    self.got.append((message.epoch, message.offset, message.id))
                case Deliver(message) if message.type == "snapshot":
                    self.marks.append(len(self.got))
                    self.gap_open = False
                case GapFound():
                    self.gap_open = True
                case Acked(message, result):
                    assert message.id not in self.acked, "acknowledged twice to the application"
                    self.acked[message.id] = result.offset if result.status != "rejected" else None
                case Failed(fault):
                    raise AssertionError(fault)
                case _:
                    pass

    @rule()
    def reload(self) -> None:
        if self.gap_open:
            self.perform(self.client.reload(S))

    @rule()
    def say(self) -> None:
        id_, effects = self.client.send(S, "session_message", {"content": f"hi {len(self.sent)}"})
        self.sent.append(id_)
        self.perform(effects)

    @rule()
    def wake(self) -> None:
        self.perform(self.client.woke_up())

    # --- the server's I/O ---

    def serve(self, pipe: Pipe, effects: list[Any]) -> None:
        for effect in effects:
            match effect:
                case Send(frame):
                    pipe.down.append(frame)
                case CloseConnection(code, reason):
                    pipe.down.append((code, reason))
                    pipe.is_dead = True
                case HandleMessage(message, payload, _):
                    self.handle(pipe, message, payload)
                case _:
                    pass

    def handle(self, pipe: Pipe, message: Envelope, payload: Any) -> None:
        match message.type:
            case "auth":
                limits = Limits(max_frame=1_000_000, max_inflight=1, replay_bytes=1, replay_age_ms=1, grace_ms=1)
                ack = ConnectionAck(
                    connection_id="c", protocol=2, server_version="0", server_time=stamp(0), heartbeat_interval_ms=15_000, limits=limits
                )  # fmt: skip
                self.serve(pipe, pipe.server.accepted(message, ack))
            case "session_join":
                self.join(pipe, message, payload)
            case "session_message":
                self.store(pipe, message, payload)
            case "session_snapshot":
                snapshot = Snapshot(session_id=S, epoch=self.log.epoch, offset=self.log.top, state={})
                self.serve(pipe, pipe.server.answer("snapshot", snapshot, re=message.id, session_id=S))

    def join(self, pipe: Pipe, message: Envelope, payload: Any) -> None:
        log = self.log
        reach = Reach(epoch=log.epoch, oldest=log.dropped + 1, top=log.top)
        gap, first = None, log.dropped
        if payload.after is not None:
            match resume(payload.after, reach, log.id_at(payload.after.offset)):
                case Gap() as found:
                    gap = found.payload(snapshot=log.top)
                case going:
                    first = going.after
        joined = SessionJoined(
            session_id=S, state="active", role="controller", epoch=log.epoch, oldest_offset=reach.oldest, top_offset=log.top,
            from_offset=first, was_recovering=payload.after is not None, recovered=gap is None, gap=gap,
            resume_token="t", resume_expires_in_ms=1, clients=1,
        )  # fmt: skip
        pipe.cursor = first if gap is None else None
        pipe.server.sent.pop(S, None)
        self.serve(pipe, pipe.server.joined(message.id, joined))

    def store(self, pipe: Pipe, message: Envelope, payload: Any) -> None:
        offset = self.log.seen.get(message.id)
        status: Any = "stored" if offset is None else "duplicate"
        if offset is None:
            offset = self.log.seen[message.id] = self.log.append(
                "user_message", {"content": payload.content, "message_id": message.id}, self.new_id()
            )
        self.serve(pipe, pipe.server.stored([AckResult(id=message.id, status=status, offset=offset)]))

    # --- the network and the time ---

    @rule()
    def connect(self) -> None:
        if self.connect_at is None or self.pipe is not None:
            return
        self.clock.advance(max(0.0, self.connect_at - self.clock.monotonic()))
        self.connect_at = None
        self.pipe = Pipe(ServerConnection(clock=self.clock, new_id=self.new_id))
        self.pipes.append(self.pipe)
        self.perform(self.client.opened())

    @rule(most=st.integers(1, 6))
    def carry_up(self, most: int) -> None:
        # Also what an old connection still had on its way arrives.
        for pipe in self.pipes:
            for _ in range(most):
                if pipe.up and not pipe.is_dead:
                    self.serve(pipe, pipe.server.received(pipe.up.popleft()))

    @rule(most=st.integers(1, 6))
    def carry_down(self, most: int) -> None:
        self.tail()
        for _ in range(most):
            pipe = self.pipe
            if pipe is None or not pipe.down:
                return
            item = pipe.down.popleft()
            if isinstance(item, tuple):
                self.pipe = None
                self.perform(self.client.closed(*item))
            else:
                self.perform(self.client.received(item))

    def tail(self) -> None:
        for pipe in self.pipes:
            if pipe.cursor is not None and not pipe.is_dead:
                if pipe.cursor < self.log.dropped:
                    gap = Gap(reason="evicted", requested=pipe.cursor, oldest=self.log.dropped + 1, top=self.log.top)
                    pipe.down.append(
                        encode(Envelope(type="gap", id=self.new_id(), timestamp=stamp(0), payload=gap.payload(), session_id=S))
                    )  # fmt: skip
                    pipe.cursor = None
                    continue
                for entry in self.log.after(pipe.cursor):
                    pipe.down.append(encode(entry))
                    pipe.cursor = pipe.server.sent[S] = entry.offset

    @rule()
    def publish(self) -> None:
        self.log.append("stream_chunk", {"stream_id": "1", "text": str(self.log.top)}, self.new_id())

    @rule(keep=st.booleans())
    def cut(self, keep: bool) -> None:
        """The client loses its connection. With `keep` what it had sent still arrives: the server has not noticed yet."""
        pipe, self.pipe = self.pipe, None
        if pipe is None:
            return
        if not keep:
            pipe.up.clear()
            pipe.is_dead = True
        self.perform(self.client.closed(1006))

    @rule()
    def lose_a_message(self) -> None:
        """A broken proxy swallows a message of the server."""
        if self.pipe is not None and self.pipe.down and isinstance(self.pipe.down[0], bytes):
            lost = msgspec.json.decode(self.pipe.down[0])
            if lost.get("offset"):
                self.pipe.down.popleft()

    @rule()
    def restart_server(self) -> None:
        for pipe in self.pipes:
            pipe.is_dead = True
            pipe.up.clear()
        self.pipes.clear()
        if self.pipe is not None:
            self.pipe = None
            self.perform(self.client.closed(1012))

    @rule(count=st.integers(1, 5))
    def drop_oldest(self, count: int) -> None:
        gone = min(count, len(self.log.entries))
        del self.log.entries[:gone]
        self.log.dropped += gone

    @rule()
    def reset_log(self) -> None:
        self.log.epoch = f"e{next(self.numbers)}"
        self.log.entries, self.log.dropped = [], 0
        for pipe in self.pipes:
            pipe.is_dead = True
        self.pipes.clear()
        if self.pipe is not None:
            self.pipe = None
            self.perform(self.client.closed(4002))

    @rule(seconds=st.sampled_from([0.5, 5.0, 16.0, 26.0]))
    def time_passes(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.perform(self.client.tick())
        for pipe in self.pipes:
            if not pipe.is_dead:
                self.serve(pipe, pipe.server.tick())

    # --- what must hold ---

    @invariant()
    def the_application_got_a_copy_of_the_log_in_order(self) -> None:
        for place, ((epoch, offset, _), (next_epoch, next_offset, _)) in enumerate(
            zip(self.got, self.got[1:], strict=False), 1
        ):
            if place not in self.marks:
                assert (next_epoch, next_offset) == (epoch, offset + 1)
        known = {(entry.epoch, entry.offset): entry.id for entry in self.log.entries}
        for epoch, offset, id_ in self.got:
            assert known.get((epoch, offset), id_) == id_

    @invariant()
    def what_is_acknowledged_is_stored_once(self) -> None:
        stored = [entry.payload["message_id"] for entry in self.log.entries if entry.type == "user_message"]
        assert len(stored) == len(set(stored))
        assert all(id_ in self.log.seen for id_ in self.acked)

    def teardown(self) -> None:
        if not hasattr(self, "client"):
            return
        # The network heals: everything arrives, and everything that was sent is stored.
        for _ in range(12):
            if self.pipe is None:
                self.connect()
            self.carry_up(50)
            self.carry_down(50)
            self.reload()
            self.time_passes(15.0)
        assert set(self.acked) == set(self.sent)
        assert not self.client.outbox
        position = self.client.position(S)
        assert position is not None
        assert (position.epoch, position.offset) == (self.log.epoch, self.log.top)


TestBridges = Bridges.TestCase
TestBridges.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.soak
def test_the_same_for_long() -> None:
    run_state_machine_as_test(Bridges, settings=settings(max_examples=2500, stateful_step_count=60, deadline=None))
