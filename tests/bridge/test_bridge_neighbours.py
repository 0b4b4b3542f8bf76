"""One greedy or hostile client: its neighbours keep what they have, and what it costs is bounded."""

# ruff: noqa: SIM117 - the bridge and its clients are told apart more easily in blocks of their own
from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from uuid import uuid4

import httpx
import pytest
from bridge_kit import Tokens, limits, raw, serving
from socket_kit import PING, frame, wire

from holdfast.bridge.access.identity import TokenHolder
from holdfast.bridge.access.lockout import Lockout, LockoutLimits
from holdfast.bridge.access.tokens import Tokens as StoredTokens
from holdfast.bridge.sessions import summaries as session_summaries
from holdfast.faults import HoldfastError
from holdfast.sessions.journal import fresh_id
from holdfast.sessions.manifest import Manifest, encode_manifest
from holdfast.stores import Commit, MemoryStore, NewEntry, NewSession


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 30))


def test_XB7_a_flood_of_pings_whose_answers_are_not_read_costs_no_memory():
    async def scenario():
        async with serving() as bridge, wire(bridge.url, limit=1024, receive_buffer=4096) as flooder:
            await flooder.say("auth", {"token": "token"})
            await flooder.until("connection_ack")
            (connection,) = [each for each in bridge._port._state.connections if hasattr(each, "writable")]
            pings = frame(PING, b"x" * 125) * 2_000
            for _ in range(100):
                # 26 MB in all, if the server reads them.
                flooder.writer.write(pings)
                try:
                    async with asyncio.timeout(1.0):
                        await flooder.writer.drain()
                except TimeoutError:
                    break
            held = connection.transport.get_write_buffer_size()
            assert held < 1_000_000, held
            async with raw(bridge) as neighbour:
                await neighbour.auth()
                await neighbour.create("s")
                assert (await neighbour.say("hello"))["status"] == "stored"
            # It reads at last, and is served again.
            answered = 0
            while answered < 2_000:
                opcode, _ = await flooder.next()
                answered += opcode == 10

    run(scenario())


def test_XB7_a_right_token_is_never_refused_because_of_wrong_ones():
    async def scenario():
        tokens = StoredTokens(lockout=Lockout(LockoutLimits(attempts=1, overall=5)))
        device, hook = tokens.create("phone").text, tokens.create("CI", kind="hook").text
        async with serving(tokens=tokens) as bridge, httpx.AsyncClient(base_url=bridge.url) as http:
            event = {"session_id": "s", "hook_event_name": "Stop"}
            for number in range(20):
                # A program with a stale token, on the same address.
                stale = await http.post("/hooks/event", json=event, headers={"authorization": f"Bearer {hook}{number}"})
                assert stale.status_code in (401, 429)
                sent = await http.post("/hooks/event", json=event, headers={"authorization": f"Bearer {hook}"})
                assert sent.status_code not in (401, 429)
                async with raw(bridge) as client:
                    assert (await client.auth(device))["type"] == "connection_ack"

    run(scenario())


def test_XB7_a_short_token_of_the_settings_keeps_its_lock():
    tokens = StoredTokens(given={"device": "hunter2"}, lockout=Lockout(LockoutLimits(attempts=1)))
    for _ in range(2):
        with pytest.raises(HoldfastError, match="AUTH_INVALID_TOKEN"):
            tokens.identify("guess", peer="192.0.2.7")
    with pytest.raises(HoldfastError, match="CONN_RATE_LIMITED"):
        tokens.identify("hunter2", peer="192.0.2.7")
    assert tokens.identify("hunter2", peer="192.0.2.8").kind == "device"


def two_devices() -> Tokens:
    greedy = TokenHolder(token_id="t-1", kind="device", name="Greedy")
    return Tokens(greedy=greedy, ada=TokenHolder(token_id="t-2", kind="device", name="Ada"))


def test_XB7_one_device_does_not_take_all_session_places():
    async def scenario():
        async with serving(tokens=two_devices(), limits=limits(max_sessions=20)) as bridge:
            async with raw(bridge) as greedy, raw(bridge) as ada:
                await greedy.auth("greedy")
                made = [
                    await greedy.ask("session_create", {"session_id": f"g-{n}"}, "session_joined") for n in range(20)
                ]
                codes = [each["payload"].get("code", "") for each in made]
                assert codes == [""] * 10 + ["CONN_LIMIT"] * 10
                await ada.auth("ada")
                assert (await ada.ask("session_create", {"session_id": "a"}, "session_joined"))[
                    "type"
                ] == "session_joined"
                # What somebody else uses can be joined by anybody.
                assert (await greedy.ask("session_join", {"session_id": "a"}, "session_joined"))[
                    "type"
                ] == "session_joined"

    run(scenario())


@pytest.mark.parametrize("stranger", [{}, {"Authorization": "Bearer wrong"}])
def test_a_neighbour_without_a_right_token_takes_no_requests_from_the_holder_of_one(stranger):
    async def scenario():
        tokens = StoredTokens()
        hook = {"Authorization": f"Bearer {tokens.create('CI', kind='hook').text}"}
        event = {"session_id": "s", "hook_event_name": "Stop"}
        async with serving(tokens=tokens, limits=limits(hooks_per_minute=5)) as bridge:
            async with httpx.AsyncClient(base_url=bridge.url) as http:
                while (await http.post("/hooks/event", headers=stranger, json=event)).status_code != 429:
                    pass
                answers = [await http.post("/hooks/event", headers=hook, json=event) for _ in range(6)]
                assert [each.status_code for each in answers] == [200] * 5 + [429]
                assert int(answers[-1].headers["retry-after"]) > 0
                rejected = await http.post("/hooks/event", headers=stranger, json=event)
                assert (rejected.status_code, "retry-after" in rejected.headers) == (429, True)

    run(scenario())


@pytest.mark.parametrize("settings", [{"max_sessions": 3}, {"max_sessions": 40, "max_sessions_per_device": 3}])
def test_sessions_that_nobody_is_in_make_room_before_their_grace_is_over(settings):
    async def agent(turn):
        return f"done {turn.text}"

    async def scenario():
        async with serving(agent, tokens=two_devices(), limits=limits(**settings)) as bridge, raw(bridge) as client:
            await client.auth("greedy")
            for number in range(7):
                await client.create(f"job-{number}")
                await client.say("x")
                assert await client.said() == "done x"
                await client.until("session_event")
                await client.ask("session_leave", {"session_id": f"job-{number}"}, "ack")
            assert len(bridge.hub.sessions) == 3
            # What gave way goes on where it was.
            await client.join("job-0")
            await client.say("y")
            assert await client.said() == "done y"

    run(scenario())


def test_a_session_that_somebody_is_in_does_not_give_way_and_the_limit_says_so():
    async def scenario():
        async with serving(limits=limits(max_sessions=2, max_sessions_per_device=10)) as bridge, raw(bridge) as client:
            await client.auth()
            for name in ("a", "b"):
                await client.create(name)
            rejected = await client.ask("session_create", {"session_id": "c"}, "session_joined")
            assert rejected["payload"]["code"] == "CONN_LIMIT"
            assert rejected["payload"]["message"] == "Too many sessions are in use"
            assert rejected["payload"]["retry_after_ms"] == 10_000

    run(scenario())


def test_XB7_one_device_does_not_take_all_connections():
    async def scenario():
        async with serving(tokens=two_devices(), limits=limits(max_connections=20)) as bridge:
            clients = [raw(bridge) for _ in range(12)]
            answers = [await (await each.__aenter__()).auth("greedy") for each in clients]
            try:
                codes = [each["payload"].get("code", "") for each in answers]
                assert codes == [""] * 10 + ["CONN_LIMIT"] * 2
                async with raw(bridge) as ada:
                    assert (await ada.auth("ada"))["type"] == "connection_ack"
            finally:
                for each in clients:
                    await each.__aexit__(None, None, None)
            await asyncio.sleep(0.05)
            async with raw(bridge) as again:
                assert (await again.auth("greedy"))["type"] == "connection_ack"

    run(scenario())


def test_XB7_a_flood_of_requests_that_take_long_leaves_others_their_turn():
    async def scenario():
        names = frozenset(f"g-{n}" for n in range(3_000))
        tokens = Tokens(
            greedy=TokenHolder(token_id="t-1", kind="device", name="Greedy", sessions=names),
            ada=TokenHolder(token_id="t-2", kind="device", name="Ada"),
        )
        async with serving(tokens=tokens) as bridge, raw(bridge) as ada, raw(bridge) as greedy:
            await ada.auth("ada")
            await ada.create("s")
            await greedy.auth("greedy")
            for _ in range(100):
                # Each looks up every session that the token names, and none of them waits for anything.
                await greedy.send("session_list")
            assert (await ada.say("hello"))["status"] == "stored"
            # Ada's answer has not waited for all of them.
            still = await greedy.ask("session_list", {}, "sessions")
            answered_before = sum(
                each["type"] == "sessions" for each in greedy.received[: greedy.received.index(still)]
            )
            assert answered_before == 100
            times = [each["timestamp"] for each in greedy.received if each["type"] == "sessions"]
            stored_at = next(each["timestamp"] for each in ada.received if each["type"] == "ack")
            assert sum(each > stored_at for each in times) > 50

    run(scenario())


class Counted(MemoryStore):
    """Knows how many readers a log has at the same time."""

    readers = most = 0

    async def read(self, session, **options):
        self.readers += 1
        self.most = max(self.most, self.readers)
        try:
            await asyncio.sleep(0)
            return await super().read(session, **options)
        finally:
            self.readers -= 1


@pytest.mark.parametrize("path", ["snapshot", "events"])
def test_many_connections_of_one_token_read_no_more_than_one(path):
    """Ten of them took the event loop for seconds; now one request of a token reads a log at a time, and those of others beside it."""

    async def scenario():
        names = ("greedy", "ada")
        tokens = Tokens(**{name: TokenHolder(token_id=name, kind="device", name=name) for name in names})
        async with Counted() as store, serving(store=store, tokens=tokens) as bridge:
            # Nobody has it in use: each request reads it from the store.
            made = NewSession(manifest=encode_manifest(Manifest(session_id="s", store_id=store.id)))
            notes = tuple(NewEntry(type="notification", body=b'{"title": "x"}', id=f"n-{each}") for each in range(300))
            await store.commit(Commit(session="s", create=made, entries=notes))

            async def get(token):
                async with httpx.AsyncClient(base_url=bridge.url) as http:
                    answer = await http.get(f"/sessions/s/{path}", headers={"Authorization": f"Bearer {token}"})
                    assert answer.status_code == 200

            await asyncio.gather(*(get("greedy") for _ in range(10)))
            assert store.most == 1
            await asyncio.gather(*(get(token) for token in names for _ in range(5)))
            assert store.most == 2

    run(scenario())


class Busy(MemoryStore):
    """Its session "busy" has one message more each time that it is read."""

    grows = False

    async def read(self, session, **options):
        if session == "busy" and self.grows:
            note = NewEntry(type="notification", body=b'{"title": "x"}', id=fresh_id())
            await self.commit(Commit(session=session, entries=(note,)))
            await asyncio.sleep(0)
        return await super().read(session, **options)


class Stuck(MemoryStore):
    """Does not answer who reads the session "busy" while it is not free."""

    def __init__(self):
        super().__init__()
        self.free = asyncio.Event()
        self.free.set()

    async def read(self, session, **options):
        if session == "busy":
            await self.free.wait()
        return await super().read(session, **options)


def test_a_log_that_grows_as_fast_as_it_is_read_keeps_nobody_out():
    """One client that sent 1 MB messages kept all newcomers out: each waited for what that session does, and read after its end."""

    async def scenario():
        async with Busy() as store, serving(store=store) as bridge:
            async with raw(bridge) as busy:
                await busy.auth()
                await busy.create("busy")
                store.grows = True
                await busy.say("what it does has to be read again")
            async with raw(bridge) as ada:
                ack = await ada.auth()
                assert [each.get("turn") for each in ack["payload"]["active_sessions"]] == ["idle"]
                await ada.create("a")
                assert (await ada.say("hello"))["status"] == "stored"
            store.grows = False

    run(scenario())


def test_a_log_that_cannot_be_read_soon_keeps_nobody_out(monkeypatch):
    monkeypatch.setattr(session_summaries, "_PATIENCE_S", 0.05)

    async def scenario():
        async with Stuck() as store, serving(store=store) as bridge, raw(bridge) as busy, raw(bridge) as ada:
            await busy.auth()
            await busy.create("busy")
            store.free.clear()
            await busy.say("what it does has to be read again")
            (shown,) = (await ada.auth())["payload"]["active_sessions"]
            assert (shown["session_id"], shown.get("turn", "")) == ("busy", "")
            await ada.create("a")
            assert (await ada.say("hello"))["status"] == "stored"
            store.free.set()

    run(scenario())


@pytest.mark.parametrize("replays_log", [True, False])
def test_the_events_of_a_session_in_use_are_all_that_its_store_has(replays_log):
    """A client that got a gap reads them here, also if the bridge sends it nothing older than what it holds."""

    async def scenario():
        settings = limits(ring_bytes=600, replays_log=replays_log)
        async with serving(limits=settings) as bridge, raw(bridge) as client:
            await client.auth()
            await client.create("s")
            for number in range(20):
                await client.say(f"message {number}")
            async with httpx.AsyncClient(base_url=bridge.url, headers={"Authorization": "Bearer token"}) as http:
                page = (await http.get("/sessions/s/events")).json()
                assert [event["offset"] for event in page["events"]] == list(range(1, 21))
                assert len(bridge.hub.sessions["s"].clients) == 1

    run(scenario())


@pytest.mark.parametrize("status", [0, 3, "a text"])
def test_XB6_an_agent_that_calls_sys_exit_ends_its_turn_and_not_the_server(status, caplog):
    async def agent(turn):
        if turn.text == "exit":
            sys.exit(status)
        return "here"

    async def scenario():
        async with serving(agent) as bridge, raw(bridge) as unlucky, raw(bridge) as neighbour:
            await unlucky.auth()
            await unlucky.create("u")
            await unlucky.say("exit")
            notice = await unlucky.until("notification")
            assert notice["payload"]["notification_type"] == "agent_error"
            assert f"the agent called sys.exit({status!r})" in caplog.text
            await neighbour.auth()
            await neighbour.create("n")
            await neighbour.say("hello")
            assert (await neighbour.until("stream_chunk"))["payload"]["text"] == "here"
            await unlucky.say("hello")
            assert (await unlucky.until("stream_chunk"))["payload"]["text"] == "here"

    run(scenario())


async def in_wait_for(end):
    await asyncio.wait_for(end(), 5)


async def in_gather(end):
    await asyncio.gather(end(), asyncio.sleep(0))


async def in_task_group(end):
    async with asyncio.TaskGroup() as group:
        group.create_task(end())


async def in_a_task_of_a_task(end):
    await asyncio.create_task(in_wait_for(end))


@pytest.mark.parametrize("start", [in_wait_for, in_gather, in_task_group, in_a_task_of_a_task])
@pytest.mark.parametrize("error", [SystemExit(2), KeyboardInterrupt()], ids=["sys.exit", "KeyboardInterrupt"])
def test_XB6_an_exit_in_a_task_of_an_agent_ends_its_turn_and_not_the_server(start, error, caplog):
    """`asyncio` ends the event loop for these two, whichever task raises them. Command-line libraries raise one after each command."""

    async def end():
        await asyncio.sleep(0)
        raise error

    async def agent(turn):
        if turn.text == "exit":
            await start(end)
        if turn.text == "at once":
            raise error
        return "here"

    async def scenario():
        async with serving(agent) as bridge, raw(bridge) as unlucky:
            await unlucky.auth()
            await unlucky.create("u")
            for how in ("exit", "at once"):
                await unlucky.say(how)
                assert (await unlucky.until("notification"))["payload"]["notification_type"] == "agent_error"
            await unlucky.say("hello")
            assert (await unlucky.until("stream_chunk"))["payload"]["text"] == "here"
            assert caplog.text.count("a turn of u failed") == 2

    run(scenario())


def test_an_agent_keeps_its_tasks_as_they_are_except_for_exits():
    """Names, contexts, cancellation, results and a task factory of the program are what they are elsewhere."""
    made = []

    async def agent(turn):
        async def value():
            await asyncio.sleep(0)
            return "value"

        task = asyncio.create_task(value(), name="mine")
        cut = asyncio.create_task(asyncio.sleep(9))
        early = asyncio.create_task(value())
        early.cancel()
        await asyncio.sleep(0)
        cut.cancel()
        ended = await asyncio.gather(task, cut, early, return_exceptions=True)
        assert [type(each) for each in ended] == [str, asyncio.CancelledError, asyncio.CancelledError]
        assert "value" in repr(task)
        return f"{task.get_name()} {ended[0]}"

    async def scenario():
        loop = asyncio.get_running_loop()

        def factory(loop, coro, **more):
            made.append(coro)
            return asyncio.Task(coro, loop=loop, **more)

        loop.set_task_factory(factory)
        async with serving(agent) as bridge, raw(bridge) as client:
            await client.auth()
            await client.create("s")
            await client.say("go")
            assert (await client.until("stream_chunk"))["payload"]["text"] == "mine value"
        assert made

    run(scenario())


def test_an_agent_that_awaits_what_somebody_cancelled_ends_its_turn_once(caplog):
    """Nobody cancelled the turn, so it has failed. It is not begun again with every message."""
    calls = []

    async def agent(turn):
        calls.append(turn.text)
        if turn.text == "search":
            search = asyncio.create_task(asyncio.sleep(9))
            await asyncio.sleep(0)
            search.cancel()
            await search
        return "here"

    async def scenario():
        async with serving(agent) as bridge, raw(bridge) as client:
            await client.auth()
            await client.create("s")
            await client.say("search")
            notice = await client.until("notification")
            assert notice["payload"]["notification_type"] == "agent_error"
            assert "the agent awaited something that was cancelled" in caplog.text
            await client.say("hello")
            assert (await client.until("stream_chunk"))["payload"]["text"] == "here"
            assert calls == ["search", "hello"]

    run(scenario())


class Odd(BaseException):
    """What a library may raise that is not an `Exception`, as pytest and trio do."""


def cancel_self():
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def cancels_itself(turn):
    cancel_self()
    await asyncio.sleep(0)


async def cancels_itself_last(turn):
    cancel_self()


async def cancels_itself_twice(turn):
    cancel_self()
    cancel_self()
    await turn.say("never")


async def cancels_itself_in_a_step(turn):
    async def work():
        cancel_self()
        await asyncio.sleep(0)

    await turn.session.step(work)


async def raises_an_odd_one(turn):
    raise Odd


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (cancels_itself, "the agent cancelled its own turn"),
        (cancels_itself_last, "the agent cancelled its own turn"),
        (cancels_itself_twice, "the agent cancelled its own turn"),
        (cancels_itself_in_a_step, "the agent cancelled its own turn"),
        (raises_an_odd_one, "the agent raised Odd()"),
    ],
)
def test_an_agent_that_ends_its_own_turn_oddly_ends_it_once(caplog, bad, why):
    """Nobody stopped it, so it has failed. It is not begun again with every message."""
    calls = []

    async def agent(turn):
        calls.append(turn.text)
        if turn.text == "bad":
            await bad(turn)
            return None
        return "here"

    async def scenario():
        async with serving(agent) as bridge, raw(bridge) as client:
            await client.auth()
            await client.create("s")
            await client.say("bad")
            notice = await client.until("notification")
            assert notice["payload"]["notification_type"] == "agent_error"
            assert why in caplog.text
            await client.say("hello")
            assert (await client.until("stream_chunk"))["payload"]["text"] == "here"
            assert calls == ["bad", "hello"]

    run(scenario())


def test_an_agent_that_swallowed_its_own_cancellation_can_be_stopped():
    """Older libraries for time limits cancel the task and never take it back."""

    async def agent(turn):
        if turn.text == "limit":
            cancel_self()
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                await turn.say("too late")
            await asyncio.sleep(60)
        return "here"

    async def scenario():
        async with serving(agent) as bridge, raw(bridge) as client:
            await client.auth()
            await client.create("s")
            await client.say("limit")
            await client.until("stream_end")
            await client.send("stop", {})
            notice = await client.until("notification")
            assert notice["payload"]["notification_type"] == "turn_cancelled"
            await client.say("hello")
            assert (await client.until("stream_chunk"))["payload"]["text"] == "here"

    run(scenario())


def test_XB6_an_agent_that_talks_without_an_end_leaves_others_their_turn():
    async def agent(turn):
        if turn.text != "talk":
            return "here"
        for number in range(1_000_000):
            await turn.say(f"line {number}")
        return "done"

    async def scenario():
        async with serving(agent) as bridge, raw(bridge) as chatterer, raw(bridge) as neighbour:
            await chatterer.auth()
            await chatterer.create("c")
            await neighbour.auth()
            await neighbour.create("n")
            await chatterer.send("session_message", {"content": "talk"})
            await chatterer.until("stream_start")
            await neighbour.send("session_message", {"content": "hello"})
            assert (await neighbour.until("stream_chunk"))["payload"]["text"] == "here"
            await chatterer.send("stop")

    run(scenario())


def test_many_slow_readers_of_one_token_read_what_they_need_once_and_one_by_one():
    """100 connections that had joined one session and did not read took the event loop for 10 s: each read the whole answer from the store.

    Now one of a token reads at a time, and what it has read serves the others, also those with other tokens.
    """

    class Slow(Counted):
        reads = 0

        async def read(self, session, **options):
            self.reads += options.get("max_bytes") is not None and session == "s"
            return await super().read(session, **options)

    async def scenario():
        names = ("greedy", "ada")
        tokens = Tokens(**{name: TokenHolder(token_id=name, kind="device", name=name) for name in names})
        settings = limits(ring_bytes=1_000)
        async with Slow() as store, serving(store=store, tokens=tokens, limits=settings) as bridge:
            made = NewSession(manifest=encode_manifest(Manifest(session_id="s", store_id=store.id)))
            body = b'{"title": "%s"}' % (b"x" * 10_000)
            notes = tuple(NewEntry(type="notification", body=body, id=f"n-{each}") for each in range(100))
            await store.commit(Commit(session="s", create=made, entries=notes))

            async def read_all(token):
                async with raw(bridge) as client:
                    await client.auth(token, client_id=str(uuid4()))
                    await client.join("s", history="full")
                    offsets = []
                    while len(offsets) < 100:
                        replay = (await client.until("replay_buffer"))["payload"]
                        offsets += [each["offset"] for each in replay["messages"]]
                    assert offsets == list(range(1, 101))

            await asyncio.gather(*(read_all(token) for token in names * 10))
            # A megabyte is 16 pages. Two tokens may read the same one at the same time.
            assert store.reads <= 40, store.reads

    run(scenario())


def test_streams_of_one_session_follow_its_log_together():
    """Each of 60 streams read each new message from the store by itself."""

    async def scenario():
        async with MemoryStore() as store, serving(store=store) as bridge, AsyncExitStack() as stack:
            made = NewSession(manifest=encode_manifest(Manifest(session_id="s", store_id=store.id)))
            await store.commit(Commit(session="s", create=made))
            http = await stack.enter_async_context(httpx.AsyncClient(base_url=bridge.url))
            headers = {"Authorization": "Bearer token"}
            ask = [http.stream("GET", "/sessions/s/stream", headers=headers) for _ in range(5)]
            streams = [await stack.enter_async_context(each) for each in ask]
            routes = bridge._http.sessions
            assert [count for _, count in routes._followed.values()] == [5]
            note = NewEntry(type="notification", body=b'{"title": "news"}', id=fresh_id())
            await store.commit(Commit(session="s", entries=(note,)))
            for stream in streams:
                async for line in stream.aiter_lines():
                    if "news" in line:
                        break
            for stream in streams:
                await stream.aclose()
            while routes._followed:  # noqa: ASYNC110 - the server hears of each end by itself
                await asyncio.sleep(0.01)

    run(scenario())
