"""The Python client against a bridge over real sockets: what it sends, reads, and does when the connection is gone."""

# ruff: noqa: SIM117 - the bridge, the proxy and the client are told apart more easily in blocks of their own
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from bridge_kit import LIMIT, Tokens, limits, raw, serving

import holdfast
from holdfast import HoldfastError, InvalidError
from holdfast.bridge import (
    Answer,
    BridgeConnectionError,
    Client,
    ConnectionStatus,
    Gap,
    Position,
    Question,
    QuestionClosed,
    ReconnectionExhaustedError,
    RemoteSession,
    Schedule,
    SessionEvent,
    Snapshot,
    State,
    Text,
    Turn,
    UserText,
)
from holdfast.bridge.access.identity import TokenHolder
from holdfast.bridge.server import Bridge
from holdfast.sessions import Session
from holdfast.stores import Commit, MemoryStore, Receipt, SqliteStore
from holdfast.stores.errors import unavailable
from holdfast.testing import run as virtually
from holdfast.testing.proxy import BlackHole, FaultProxy, HalfOpen, Reset
from holdfast.wire.envelope import stamp
from holdfast.wire.server import ServerLimits

SOON = Schedule(delays=(0.01, 0.02, 0.05), jitter=0.0)


class Skewed:
    """A clock whose time of day is wrong."""

    def __init__(self, clock: Any, skew: float) -> None:
        self.monotonic = clock.monotonic
        self.wall = lambda: clock.wall() + skew


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(4 * LIMIT):
            await work()

    asyncio.run(limited())


def client(url: str, **options: Any) -> Client:
    return Client(url, **({"token": "token", "reconnect": SOON} | options))


@asynccontextmanager
async def behind_proxy(bridge: Bridge):
    async with FaultProxy(bridge.ws_url) as proxy:
        yield proxy


async def publish(bridge: Bridge, session: str, *texts: str) -> None:
    live = await bridge.hub.live(session)
    await live.publish(*(("stream_chunk", {"stream_id": "a", "text": text}) for text in texts))


async def eventually(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(LIMIT):
        while not condition():  # noqa: ASYNC110 - the condition is on the other side of a socket
            await asyncio.sleep(0.001)


async def until(session: RemoteSession, *wanted: type) -> Any:
    async with asyncio.timeout(LIMIT):
        async for message in session:
            if isinstance(message, wanted):
                return message
    raise AssertionError("the iteration has ended")


async def texts(session: RemoteSession, count: int) -> list[str]:
    """Read until there are so many texts."""
    found: list[str] = []
    while len(found) < count:
        found.append((await until(session, Text, UserText)).text)
    return found


def test_it_is_the_same_client_at_the_top_level() -> None:
    assert holdfast.Client is Client


def test_send_returns_the_offset_and_replay_and_live_read_alike() -> None:
    async def work() -> None:
        async with serving() as bridge, client(bridge.ws_url) as one, one.create("release-42") as session:
            assert bridge.url == f"http://{bridge.host}:{bridge.port}"
            await publish(bridge, "release-42", "a", "b")
            assert await session.send("fix the tests") == 3
            assert await texts(session, 3) == ["a", "b", "fix the tests"]
            await publish(bridge, "release-42", "c")
            assert await texts(session, 1) == ["c"]
            async with client(bridge.ws_url) as two, two.join("release-42", history="full") as again:
                assert await texts(again, 4) == ["a", "b", "fix the tests", "c"]
            assert [each.session_id for each in await one.sessions()] == ["release-42"]

    run(work)


def test_a_state_comes_after_the_replay_and_before_the_first_new_message() -> None:
    async def work() -> None:
        async with serving() as bridge, client(bridge.ws_url) as one, one.create("s") as first:
            await publish(bridge, "s", "a")
            assert await texts(first, 1) == ["a"]
            async with client(bridge.ws_url) as two, two.join("s", history="full") as session:
                found: list[object] = []
                async for message in session:
                    found.append(type(message))
                    if isinstance(message, State):
                        break
                assert found[-2:] == [Text, State]
                assert session.state is not None
                assert session.state.turn == "idle"

    run(work)


def test_create_joins_a_session_that_exists_and_join_does_not_make_one() -> None:
    async def work() -> None:
        async with serving() as bridge, client(bridge.ws_url) as one:
            with pytest.raises(HoldfastError) as error:
                async with one.join("s"):
                    pass
            assert error.value.fault.code == "SESS_NOT_FOUND"
            assert "create('s') makes it" in str(error.value)
            with pytest.raises(HoldfastError, match=r"payload\.session_id: .*received 'my session'"):
                async with one.create("my session"):
                    pass
            async with one.create("s") as session:
                await session.send("hello")
            async with one.create("s") as session:
                assert session.about["top_offset"] == 1

    run(work)


def test_a_question_is_answered_and_closed_for_everybody() -> None:
    async def work() -> None:
        async with MemoryStore() as store, serving(store=store) as bridge, client(bridge.ws_url) as one:
            async with Session.open("s", store=store) as asking, one.join("s", history="full") as session:
                asked = asyncio.create_task(asking.approve("Deploy?", expires=60))
                question = await until(session, Question)
                assert (question.kind, question.prompt) == ("Approve", "Deploy?")
                await session.answer(question.id, True)
                assert await asked is True
                closed = await until(session, QuestionClosed)
                assert (closed.id, closed.outcome) == (question.id, "accepted")
                with pytest.raises(HoldfastError) as error:
                    await session.answer(question.id, Answer.no("too late"))
                assert error.value.fault.code == "SESS_ALREADY_ANSWERED"

    run(work)


def test_a_lost_connection_is_not_seen_in_the_messages() -> None:
    """Each kind of loss while messages come: what arrives is the log, once and in order."""

    async def work() -> None:
        short = limits(connection=ServerLimits(heartbeat=0.1, heartbeat_timeout=0.1))
        async with serving(limits=short) as bridge, behind_proxy(bridge) as proxy:
            fast = {"connect_timeout": 0.5, "heartbeat_timeout": 0.1}
            async with client(proxy.url, **fast) as one, one.create("s") as session:
                expected = 0
                for toxic in (None, Reset(after=0), HalfOpen(after=0), BlackHole()):
                    lost = asyncio.Event()
                    one._driver._on_status = lambda now, lost=lost: now.status == "reconnecting" and lost.set()
                    if toxic is None:
                        proxy.cut()
                    else:
                        proxy.add(toxic)
                    await publish(bridge, "s", *(str(number) for number in range(expected, expected + 3)))
                    await asyncio.wait_for(lost.wait(), LIMIT)
                    proxy.clear()
                    assert await texts(session, 3) == [str(number) for number in range(expected, expected + 3)]
                    expected += 3

    run(work)


def test_B57_what_was_sent_offline_is_stored_once_each_in_order_after_the_reconnect() -> None:
    async def work() -> None:
        async with serving() as bridge, behind_proxy(bridge) as proxy:
            async with client(proxy.url) as one, one.create("s") as session:
                with proxy.under(Reset(after=0)):
                    proxy.cut()
                    sends = [asyncio.create_task(session.send(f"m{number}")) for number in range(20)]
                    await asyncio.sleep(0)
                    await eventually(lambda: one.status != "connected")
                    assert [each.text for each in one.pending] == [f"m{number}" for number in range(20)]
                assert await asyncio.gather(*sends) == list(range(1, 21))
                assert await texts(session, 20) == [f"m{number}" for number in range(20)]
                assert one.pending == []

    run(work)


def test_B58_a_lost_acknowledgement_does_not_store_the_message_twice() -> None:
    async def work() -> None:
        async with serving() as bridge, behind_proxy(bridge) as proxy:
            async with client(proxy.url) as one, one.create("s") as session:
                proxy.add(BlackHole(direction="down"))
                sent = asyncio.create_task(session.send("once"))
                live = await bridge.hub.live("s")
                await eventually(lambda: live.top >= 1)
                proxy.clear()
                proxy.cut()
                assert await sent == 1
                await session.send("end")
                assert await texts(session, 2) == ["once", "end"]

    run(work)


def test_a_gap_is_reported_once_and_a_snapshot_goes_on_after_it() -> None:
    async def work() -> None:
        async with serving(limits=limits(ring_bytes=600, replays_log=False)) as bridge, behind_proxy(bridge) as proxy:
            async with client(proxy.url) as one, one.create("s") as session:
                await publish(bridge, "s", "a")
                assert await texts(session, 1) == ["a"]
                with proxy.under(Reset(after=0)):
                    proxy.cut()
                    await eventually(lambda: one.status != "connected")
                    await publish(bridge, "s", *map(str, range(20)))
                gap = await until(session, Gap)
                assert (gap.reason, gap.requested, gap.top_offset) == ("evicted", 1, 21)
                assert gap.fault.code == "SESS_GAP"
                snapshot = await session.reload()
                assert snapshot.position is not None
                assert snapshot.position.offset == 21
                await publish(bridge, "s", "z")
                assert await texts(session, 1) == ["z"]

    run(work)


def test_an_application_that_ignores_a_gap_gets_the_snapshot_next() -> None:
    async def work() -> None:
        async with serving(limits=limits(ring_bytes=600, replays_log=False)) as bridge:
            async with client(bridge.ws_url) as one, one.create("s") as session:
                early = Position(epoch=session.about["epoch"], offset=0)
                await publish(bridge, "s", *map(str, range(20)))
            async with client(bridge.ws_url) as one, one.join("s", after=early) as session:
                assert isinstance(await until(session, Gap), Gap)
                assert isinstance(await anext(session), Snapshot)

    run(work)


def test_a_slow_application_holds_little_in_memory_and_misses_nothing() -> None:
    async def work() -> None:
        async with serving() as bridge, client(bridge.ws_url, inbox=10) as one, one.create("s") as session:
            # Eight of them fill a frame of a replay.
            sent = [f"{number}:{'x' * 8000}" for number in range(200)]
            for text in sent:
                await publish(bridge, "s", text)
            most, found = 0, []
            while len(found) < len(sent):
                # Let everything arrive that would, before the next one is taken.
                await asyncio.sleep(0)
                most = max(most, len(session._inbox))
                found += await texts(session, 1)
            assert found == sent
            assert most <= 20

    run(work)


def test_sending_works_while_a_session_is_not_read() -> None:
    async def work() -> None:
        async with serving() as bridge, client(bridge.ws_url, inbox=5) as one, one.create("s") as session:
            for number in range(30):
                assert await session.send(str(number)) == number + 1
            assert await texts(session, 30) == list(map(str, range(30)))

    run(work)


def test_two_sessions_of_one_client_do_not_hinder_each_other() -> None:
    async def work() -> None:
        async with serving() as bridge, client(bridge.ws_url, inbox=5) as one:
            async with one.create("a") as slow, one.create("b") as fast:
                await publish(bridge, "a", *map(str, range(50)))
                await publish(bridge, "b", "x")
                assert await texts(fast, 1) == ["x"]
                assert await texts(slow, 50) == list(map(str, range(50)))
                with pytest.raises(InvalidError, match="not joined yet"):
                    await one.join("a").__aenter__()

    run(work)


def test_a_message_that_expires_while_offline_is_not_sent_later() -> None:
    async def work() -> None:
        async with serving() as bridge, behind_proxy(bridge) as proxy:
            async with client(proxy.url) as one, one.create("s") as session:
                with proxy.under(Reset(after=0)):
                    proxy.cut()
                    await eventually(lambda: one.status != "connected")
                    with pytest.raises(HoldfastError, match="expired"):
                        await session.send("approve it", expires=0.05)
                assert await session.send("later") == 1

    run(work)


@pytest.mark.parametrize("skew", [-3600.0, 3600.0])
def test_what_expires_is_judged_by_its_age_and_not_by_the_clock_of_the_client(
    skew: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with serving() as bridge:
            monkeypatch.setattr(bridge.hub, "clock", Skewed(bridge.hub.clock, skew))
            async with client(bridge.ws_url) as one, one.create("s") as session:
                assert await session.send("yes", expires=120.0) == 1
            late = bridge.hub.clock.wall() - 1.0
            async with raw(bridge) as old:
                await old.auth()
                await old.join("s")
                message = {"content": "no", "expires_at": stamp(late)}
                assert (await old.ask("session_message", message, "ack"))["payload"][
                    "code"
                ] == "SESS_INTERACTION_EXPIRED"

    run(work)


def test_a_stop_that_arrives_late_does_not_stop_the_next_turn() -> None:
    async def work() -> None:
        ends = {"A": asyncio.Event(), "B": asyncio.Event()}

        async def agent(turn: Turn) -> str:
            await ends[turn.text].wait()
            return f"done {turn.text}"

        async with serving(agent) as bridge, behind_proxy(bridge) as proxy:
            async with client(bridge.ws_url) as bob, bob.create("s") as seen:
                async with client(proxy.url) as one, one.join("s") as session:
                    await session.send("A")
                    while (await until(session, SessionEvent)).event != "turn_started":
                        pass
                    with proxy.under(Reset(after=0)):
                        proxy.cut()
                        await eventually(lambda: one.status != "connected")
                        stopping = asyncio.create_task(session.stop())
                        await seen.send("B")
                        ends["A"].set()
                        while (await until(seen, SessionEvent)).details.get("turn") != 2:
                            pass
                    with pytest.raises(HoldfastError, match="Turn 1 of session 's' does not run") as caught:
                        await stopping
                    assert caught.value.fault.code == "SESS_ILLEGAL_TRANSITION"
                ends["B"].set()
                assert (await texts(seen, 1))[-1] == "done B"

    run(work)


def test_a_stop_names_the_turn_that_comes_next_if_none_runs_and_the_one_that_runs_after_a_join() -> None:
    async def work() -> None:
        begun = asyncio.Event()

        async def agent(turn: Turn) -> None:
            begun.set()
            await asyncio.Event().wait()

        async with serving(agent) as bridge, client(bridge.ws_url) as one, one.create("s") as session:
            await session.send("first")
            await begun.wait()
            await session.stop()
            begun.clear()
            await session.send("second")
            await begun.wait()
            async with client(bridge.ws_url) as two, two.join("s", history="none") as again:
                assert (await until(again, State)).turn_number == 2
                await again.stop()

    run(work)


@pytest.mark.parametrize("command", ["stop", "rename", "close", "command"])
def test_a_command_that_cannot_be_sent_in_time_is_not_sent_later(command: str) -> None:
    async def work() -> None:
        async with serving() as bridge, behind_proxy(bridge) as proxy:
            async with client(proxy.url) as one, one.create("s") as session:
                with proxy.under(Reset(after=0)):
                    proxy.cut()
                    await eventually(lambda: one.status != "connected")
                    arguments = {"rename": ("new",), "command": ("run", "cancel")}.get(command, ())
                    sending = asyncio.create_task(getattr(session, command)(*arguments))
                    await eventually(lambda: one.pending)
                    (waiting,) = one._driver.machine.outbox
                    assert waiting.expires_at is not None
                    sending.cancel()
                    await asyncio.wait([sending])
                    with pytest.raises(HoldfastError) as caught:
                        await getattr(session, command)(*arguments, expires=0.01)
                    assert caught.value.fault.code == "SYS_TIMEOUT"

    run(work)


class Locked(MemoryStore):
    """Another program holds it, as long as `left` says."""

    left = 0

    async def commit(self, commit: Commit) -> Receipt:
        self._check(commit)
        return await super().commit(commit)

    async def commit_all(self, commits: Sequence[Commit]) -> list[Receipt | Exception]:
        for commit in commits:
            self._check(commit)
        return await super().commit_all(commits)

    def _check(self, commit: Commit) -> None:
        if commit.claim is not None and self.left:
            self.left -= 1
            raise unavailable("another process holds the file")


def test_messages_that_a_locked_store_did_not_take_are_stored_later_once_and_in_order() -> None:
    async def work() -> None:
        async with Locked() as store, serving(store=store) as bridge:
            async with client(bridge.ws_url) as one, one.create("s") as session:
                store.left = 10
                assert await asyncio.gather(*(session.send(str(number)) for number in range(5))) == [1, 2, 3, 4, 5]
                assert await texts(session, 5) == ["0", "1", "2", "3", "4"]
                assert (store.left, one.pending) == (0, [])
                store.left = 1_000
                with pytest.raises(HoldfastError) as caught:
                    await session.send("too late", expires=0.1)
                # The client or the server notices first.
                assert caught.value.fault.code in ("SYS_TIMEOUT", "SESS_INTERACTION_EXPIRED")

    run(work)


@pytest.mark.parametrize("name", ["", "  "])
def test_a_session_without_a_name_is_rejected_at_once(name: str) -> None:
    async def work() -> None:
        async with serving() as bridge, client(bridge.ws_url) as one:
            for make in (one.create, one.join):
                with pytest.raises(InvalidError, match="session"):
                    make(name)

    run(work)


def test_the_iteration_ends_when_the_session_is_closed_by_anybody() -> None:
    async def work() -> None:
        async with serving() as bridge, client(bridge.ws_url) as one, one.create("s") as session:
            async with client(bridge.ws_url) as two, two.join("s") as seen:
                await session.send("hello")
                await session.close()
                for each in (session, seen):
                    async with asyncio.timeout(LIMIT):
                        found = [message async for message in each]
                    assert isinstance(found[-1], SessionEvent)
                    assert found[-1].event == "session_closed"

    run(work)


def test_a_text_that_utf_8_cannot_hold_is_rejected_with_its_character() -> None:
    async def work() -> None:
        async with serving() as bridge, client(bridge.ws_url) as one, one.create("s") as session:
            with pytest.raises(InvalidError, match="ud83d"):
                await session.send("half an emoji: \ud83d")
            assert await session.send("whole") == 1

    run(work)


def test_a_cancelled_send_stays_pending_and_is_sent() -> None:
    async def work() -> None:
        async with serving() as bridge, behind_proxy(bridge) as proxy:
            async with client(proxy.url) as one, one.create("s") as session:
                with proxy.under(Reset(after=0)):
                    proxy.cut()
                    await eventually(lambda: one.status != "connected")
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(0.01):
                            await session.send("patience")
                    assert [each.text for each in one.pending] == ["patience"]
                assert await texts(session, 1) == ["patience"]

    run(work)


def test_an_observer_may_not_send_and_learns_why() -> None:
    async def work() -> None:
        async with serving() as bridge, client(bridge.ws_url) as one, one.create("s") as session:
            async with client(bridge.ws_url) as two, two.join("s", role="observer") as watching:
                with pytest.raises(HoldfastError) as error:
                    await watching.send("hello")
                assert error.value.fault.code == "AUTH_FORBIDDEN"
                assert two.pending == []
            await session.send("hello")

    run(work)


# --- the end ---


def test_a_wrong_token_is_final_and_says_so() -> None:
    async def work() -> None:
        async with serving() as bridge:
            with pytest.raises(BridgeConnectionError) as error:
                async with client(bridge.ws_url, token="wrong"):
                    pass
            assert error.value.fault.code == "AUTH_FAILED"

    run(work)


def test_a_token_that_is_revoked_ends_the_iteration_with_its_code() -> None:
    async def work() -> None:
        tokens = Tokens(token=TokenHolder(token_id="t-1", kind="device", name="Ada"))
        async with serving(tokens=tokens) as bridge:
            with pytest.raises(BridgeConnectionError) as error:
                async with client(bridge.ws_url) as one, one.create("s") as session:
                    tokens.revoke("token")
                    await until(session, Text)
            assert error.value.fault.code == "AUTH_TOKEN_REVOKED"

    run(work)


def test_a_function_gives_a_token_for_each_attempt_and_its_error_is_raised_unchanged() -> None:
    async def work() -> None:
        given: list[str] = []

        async def token() -> str:
            given.append("token")
            if len(given) > 2:
                raise LookupError("the keyring is locked")
            return "token"

        async with serving() as bridge, behind_proxy(bridge) as proxy:
            with pytest.raises(LookupError, match="keyring"):
                async with client(proxy.url, token=token) as one, one.create("s") as session:
                    proxy.cut()
                    await publish(bridge, "s", "a")
                    assert await texts(session, 1) == ["a"]
                    proxy.cut()
                    await until(session, Text)
            assert len(given) == 3

    run(work)


@pytest.mark.parametrize("error", [OSError("no route"), ConnectionResetError(), "hangs"])
def test_a_token_that_cannot_be_fetched_now_is_fetched_for_the_next_attempt(error: OSError | str) -> None:
    """It comes over the same network, which is lost just when a new one is needed."""

    async def work() -> None:
        asked = 0

        async def token() -> str:
            nonlocal asked
            asked += 1
            if asked == 2:
                if isinstance(error, OSError):
                    raise error
                await asyncio.Event().wait()
            return "token"

        async with serving() as bridge, behind_proxy(bridge) as proxy:
            async with client(proxy.url, token=token, connect_timeout=0.2) as one, one.create("s") as session:
                proxy.cut()
                await publish(bridge, "s", "a")
                assert await texts(session, 1) == ["a"]
            assert asked == 3

    run(work)


def test_a_newer_client_with_the_same_id_supersedes_this_one_for_good() -> None:
    async def work() -> None:
        async with serving() as bridge, raw(bridge) as other:
            with pytest.raises(BridgeConnectionError) as error:
                async with client(bridge.ws_url) as one, one.create("s") as session:
                    await other.auth(client_id=one._driver.machine.client_id)
                    await until(session, Text)
            assert error.value.fault.code == "CONN_SUPERSEDED"

    run(work)


def test_S0_29_attempts_that_are_used_up_raise_and_name_their_number() -> None:
    async def work() -> None:
        seen: list[ConnectionStatus] = []
        few = Schedule(delays=(0.01,), attempts=3, grace=None, jitter=0.0, message="Max retries exceeded")
        async with serving() as bridge, behind_proxy(bridge) as proxy:
            async with client(proxy.url, reconnect=few, on_status=seen.append) as one, one.create("s") as session:
                proxy.add(Reset(after=0))
                sent = None
                with pytest.raises(ReconnectionExhaustedError, match="Max retries exceeded") as error:
                    proxy.cut()
                    await eventually(lambda: one.status != "connected")
                    sent = asyncio.create_task(session.send("kept"))
                    await until(session, Text)
                assert error.value.fault.context["attempts"] == 3
                assert isinstance(error.value, ConnectionError)
                assert [now.attempt for now in seen if now.status == "reconnecting"] == [1, 2, 3]
                assert (seen[-1].status, one.status) == ("error", "error")
                assert sent is not None
                with pytest.raises(ReconnectionExhaustedError):
                    await sent
                with pytest.raises(ReconnectionExhaustedError):
                    await session.send("too late")
                assert [each.text for each in one.pending] == ["kept"]

    run(work)


def test_the_end_of_the_client_ends_iterations_and_leaves_no_task() -> None:
    async def work() -> None:
        async with serving() as bridge:
            before = asyncio.all_tasks()
            one = client(bridge.ws_url)
            await one.__aenter__()
            session = await one.create("s").__aenter__()
            reading = asyncio.create_task(until(session, Text))
            await asyncio.sleep(0)
            await one.__aexit__(None, None, None)
            with pytest.raises(AssertionError, match="ended"):
                await reading
            names = {task.get_name() for task in asyncio.all_tasks() - before}
            assert not {name for name in names if name.startswith("holdfast")}
            with pytest.raises(InvalidError, match="async with"):
                one.join("s")

    run(work)


def test_leaving_in_the_middle_of_connecting_leaves_nothing() -> None:
    async def work() -> None:
        async with FaultProxy("127.0.0.1:1", BlackHole()) as proxy:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05), client(f"ws://{proxy.address}/ws"):
                    pass
            assert not {task for task in asyncio.all_tasks() if task.get_name().startswith("holdfast bridge")}

    run(work)


# --- offline, and what is kept ---


def test_offline_enters_at_once_and_sends_when_the_server_is_there(tmp_path: Path) -> None:
    async def work() -> None:
        async with serving() as bridge:
            address = bridge.url.removeprefix("http://")
            async with client(bridge.ws_url) as one, one.create("s"):
                pass
            async with FaultProxy(address, Reset(after=0)) as proxy:
                url = f"ws://{proxy.address}/ws"
                async with client(url, offline=True) as one, one.join("s") as session:
                    sent = asyncio.create_task(session.send("from the train"))
                    await eventually(lambda: one.status == "reconnecting")
                    proxy.clear()
                    assert await sent == 1

    run(work)


def test_a_restarted_program_sends_what_is_kept_and_reads_on(tmp_path: Path) -> None:
    async def work() -> None:
        kept = tmp_path / "outbox.db"
        async with serving() as bridge, behind_proxy(bridge) as proxy:
            async with client(proxy.url, outbox=kept) as one, one.create("s") as session:
                await publish(bridge, "s", "a", "b")
                assert await texts(session, 2) == ["a", "b"]
                proxy.add(Reset(after=0))
                proxy.cut()
                await eventually(lambda: one.status != "connected")
                waiting = asyncio.create_task(session.send("unsent"))
                await eventually(lambda: one.pending)
            with pytest.raises(BridgeConnectionError, match="closed"):
                await waiting
            proxy.clear()
            await publish(bridge, "s", "c")
            async with client(proxy.url, outbox=kept) as one:
                assert [each.text for each in one.pending] == ["unsent"]
                async with one.join("s") as session:
                    assert await texts(session, 2) == ["c", "unsent"]
                assert one.pending == []

    run(work)


def test_XB2_a_message_over_the_limit_is_rejected_with_the_limit_and_later_ones_go_on() -> None:
    async def work() -> None:
        small = limits(connection=ServerLimits(max_frame=2000))
        async with serving(limits=small) as bridge, client(bridge.ws_url) as one, one.create("s") as session:
            with pytest.raises(HoldfastError, match="2000") as caught:
                await session.send("x" * 2000)
            assert caught.value.fault.code == "PROTO_MESSAGE_TOO_LARGE"
            assert caught.value.fault.context["limit"] == 2000
            assert one.pending == []
            await session.send("short")
            assert await texts(session, 1) == ["short"]

    run(work)


def test_XB2_a_kept_message_over_the_limit_is_shown_and_can_be_discarded(tmp_path: Path) -> None:
    async def work() -> None:
        kept, small = tmp_path / "outbox.db", limits(connection=ServerLimits(max_frame=2000))
        async with client("ws://127.0.0.1:9/ws", outbox=kept, offline=True) as one, one.create("s") as session:
            sends = [asyncio.create_task(session.send(text)) for text in ("x" * 2000, "short")]
            await eventually(lambda: len(one.pending) == 2)
        await asyncio.gather(*sends, return_exceptions=True)
        async with serving(limits=small) as bridge, client(bridge.ws_url, outbox=kept) as one:
            async with one.create("s") as session:
                assert await texts(session, 1) == ["short"]
                (held,) = one.pending
                assert held.text == "x" * 2000
                assert held.fault is not None
                assert held.fault.code == "PROTO_MESSAGE_TOO_LARGE"
                assert one.discard(held.id)
                assert not one.discard(held.id)
        async with client("ws://127.0.0.1:9/ws", outbox=kept, offline=True) as one:
            assert one.pending == []

    run(work)


def test_XB2_who_waits_for_a_message_that_turns_out_to_be_too_large_learns_it() -> None:
    async def work() -> None:
        small = limits(connection=ServerLimits(max_frame=2000))
        async with (
            serving(limits=small) as bridge,
            client(bridge.ws_url, offline=True) as one,
            one.create("s") as session,
        ):
            with pytest.raises(HoldfastError, match="2000 at most"):
                await session.send("x" * 2000)
            assert one.pending == []

    run(work)


def test_a_message_whose_handling_failed_comes_again_after_a_restart(tmp_path: Path) -> None:
    async def work() -> None:
        kept = tmp_path / "outbox.db"
        async with serving() as bridge:
            with pytest.raises(ZeroDivisionError):
                async with client(bridge.ws_url, outbox=kept) as one, one.create("s") as session:
                    await publish(bridge, "s", "a", "b", "c")
                    async for message in session:
                        if isinstance(message, Text) and message.text == "b":
                            1 / 0  # noqa: B018
            async with client(bridge.ws_url, outbox=kept) as one, one.join("s") as session:
                assert await texts(session, 1) == ["b"]
            async with client(bridge.ws_url, outbox=kept) as one, one.join("s") as session:
                assert await texts(session, 1) == ["c"]

    run(work)


def test_B55_a_server_that_is_killed_and_started_again_loses_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        path = tmp_path / "work.db"
        async with SqliteStore(path) as store, serving(store=store) as bridge:
            port = int(bridge.url.rpartition(":")[2])
            one = client(bridge.ws_url)
            await one.__aenter__()
            session = await one.create("s").__aenter__()
            assert await session.send("before") == 1
        sent = asyncio.create_task(session.send("between"))
        async with SqliteStore(path) as store, serving(store=store, port=port) as bridge:
            assert await sent == 2
            assert await texts(session, 2) == ["before", "between"]
            await one.__aexit__(None, None, None)

    run(work)


# --- what is not connected to ---


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1/ws", "wss://host/ws"),
        ("127.0.0.1:3000", "wss://host/ws"),
        ("ws://example.com/ws", "read the token"),
        ("ws://user:secret@127.0.0.1/ws", "without a secret"),
        ("ws://127.0.0.1/ws?token=abc", "without a secret"),
    ],
)
def test_an_address_that_is_wrong_or_unsafe_is_rejected_before_anything_is_sent(url: str, expected: str) -> None:
    with pytest.raises(InvalidError, match=expected) as error:
        Client(url, token="token")
    assert "abc" not in str(error.value)
    assert "secret@" not in str(error.value)


def test_an_empty_token_is_rejected() -> None:
    with pytest.raises(InvalidError, match="token"):
        Client("ws://127.0.0.1/ws", token="")


async def _answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answer: bytes) -> None:
    # A client that asks whether it should have spoken TLS gets the answer at once, as from a real server, and need not wait.
    if (await reader.readexactly(1)).isalpha():
        await reader.readuntil(b"\r\n\r\n")
    writer.write(answer)
    await writer.drain()
    writer.close()


@pytest.mark.parametrize(
    ("answer", "code", "is_final"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "CONN_UPGRADE_REQUIRED", True),
        (b"HTTP/1.1 302 Found\r\nLocation: ws://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", "CONN_UPGRADE_REQUIRED", True),
        (b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n", "AUTH_FORBIDDEN", True),
        (b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n", "CONN_REFUSED", False),
        (b"SSH-2.0-OpenSSH\r\n", "CONN_RESET", False),
        (b"", "CONN_RESET", False),
    ],
)  # fmt: skip
def test_something_else_than_a_bridge_is_named_and_a_redirect_is_not_followed(
    answer: bytes, code: str, is_final: bool
) -> None:
    async def work() -> None:
        server = await asyncio.start_server(lambda *both: _answering(*both, answer), "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        once = Schedule(delays=(0.001,), attempts=1, grace=None)
        seen: list[ConnectionStatus] = []
        async with server:
            with pytest.raises(BridgeConnectionError) as error:
                async with client(f"ws://{host}:{port}/ws", reconnect=once, on_status=seen.append):
                    pass
        first = next(now.fault for now in seen if now.fault is not None)
        assert first.code == code
        assert error.value.fault.code == (code if is_final else "CONN_RECONNECT_EXHAUSTED")

    run(work)


def test_S0_12_an_attempt_that_takes_too_long_is_a_timeout_with_its_own_schedule() -> None:
    async def work() -> None:
        seen: list[ConnectionStatus] = []
        async with serving() as bridge, behind_proxy(bridge) as proxy:
            proxy.add(BlackHole())
            async with client(proxy.url, connect_timeout=0.02, offline=True, on_status=seen.append):
                await eventually(lambda: any(now.fault for now in seen))
        now = next(now for now in seen if now.fault is not None)
        assert now.fault is not None
        # Not the schedule of lost connections, which would try again after 10 ms.
        assert (now.fault.code, now.delay) == ("CONN_TIMEOUT", 1.0)

    run(work)


def test_a_request_whose_answer_is_lost_raises_after_the_answer_timeout_and_the_next_one_works() -> None:
    async def work() -> None:
        async with serving() as bridge, behind_proxy(bridge) as proxy:
            async with client(proxy.url, answer_timeout=0.5) as one:
                with proxy.under(BlackHole(direction="down")):
                    with pytest.raises(
                        BridgeConnectionError, match=r"did not answer session_list within 0\.5 s"
                    ) as error:
                        await one.sessions()
                assert error.value.fault.code == "CONN_HEARTBEAT_LOST"
                assert await one.sessions() == []

    run(work)


def test_every_entry_of_the_log_is_one_message() -> None:
    async def work() -> None:
        async with MemoryStore() as store, serving(store=store) as bridge:
            async with Session.open("s", store=store) as working:
                await working.step(_work)
            async with client(bridge.ws_url) as one, one.join("s", history="full") as session:
                offsets = []
                async for message in session:
                    if isinstance(message, State):
                        break
                    assert isinstance(message, SessionEvent)
                    assert message.position is not None
                    offsets.append(message.position.offset)
                assert offsets == list(range(1, len(offsets) + 1))
                assert len(offsets) >= 2

    run(work)


async def _work() -> int:
    return 1


# --- schedules, in virtual time: nobody listens at the port ---


@pytest.mark.parametrize(
    ("name", "delays", "total", "message"),
    [
        ("bridge", [1.0, 2.0, 5.0, 10.0, 30.0], 48.0, "after 5 attempts"),
        ("linear", [0.0, 1.0, 2.0, 3.0, 4.0], 10.0, "Max retries exceeded"),
    ],
)
def test_S0_6_a_named_schedule_makes_exactly_its_attempts_and_then_raises(
    name: Any, delays: list[float], total: float, message: str
) -> None:
    seen: list[ConnectionStatus] = []

    async def work() -> float:
        begun = asyncio.get_running_loop().time()
        with pytest.raises(ReconnectionExhaustedError, match=message):
            async with Client("ws://127.0.0.1:1/ws", token="token", reconnect=name, on_status=seen.append):
                pass
        return asyncio.get_running_loop().time() - begun

    assert virtually(work()) == pytest.approx(total)
    assert [now.delay for now in seen if now.status == "reconnecting"] == delays
    assert {now.fault.code for now in seen if now.status == "reconnecting" and now.fault} == {"CONN_REFUSED"}


def test_the_default_schedule_goes_on_until_the_session_is_given_up_and_spreads_its_delays() -> None:
    seen: list[ConnectionStatus] = []

    async def work() -> float:
        begun = asyncio.get_running_loop().time()
        with pytest.raises(ReconnectionExhaustedError):
            async with Client("ws://127.0.0.1:1/ws", token="token", on_status=seen.append):
                pass
        return asyncio.get_running_loop().time() - begun

    assert 300 <= virtually(work()) <= 336
    delays = [now.delay for now in seen if now.status == "reconnecting"]
    for delay, usual in zip(delays, [1, 2, 5, 10, *[30] * 20], strict=False):
        assert 0.8 * usual <= delay <= 1.2 * usual
    assert len({round(delay, 6) for delay in delays[4:]}) > 1
