"""What becomes of a session when nobody is connected to it any more: nothing that was said is lost, and no place stays taken."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import httpx
from bridge_kit import LIMIT, Raw, Tokens, limits, raw, serving

from holdfast.bridge.identity import Identity
from holdfast.bridge.server import Bridge
from holdfast.bridge.turn import Turn
from holdfast.stores import SessionState

_HOOK = {"hook_event_name": "PreToolUse", "session_id": "s", "tool_name": "Bash"}


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(4 * LIMIT):
            await work()

    asyncio.run(limited())


async def echo(turn: Turn) -> str:
    return f"you said {turn.text}"


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT):
        while not holds():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.005)


async def joined(client: Raw, session: str = "s") -> None:
    await client.auth()
    await client.create(session)


async def let_go(bridge: Bridge) -> None:
    """Wait until no session is in use, and all that follows from it is done."""
    await until(lambda: not bridge.hub.sessions and not bridge.hub._tasks)


async def state(bridge: Bridge, session: str = "s") -> SessionState:
    return (await bridge.hub.store.session(session)).state


def test_B29_a_session_of_hooks_that_somebody_looked_at_takes_further_hooks() -> None:
    async def work() -> None:
        known = Tokens(
            token=Identity(token_id="t", kind="device", name="Ada"), hook=Identity(token_id="h", kind="hook", name="H")
        )
        async with (
            serving(echo, tokens=known, limits=limits(grace=0.02)) as bridge,
            httpx.AsyncClient(base_url=bridge.url, headers={"authorization": "Bearer hook"}) as http,
        ):
            assert (await http.post("/hooks/event", json=_HOOK)).status_code == 200
            async with raw(bridge) as client:
                await client.auth()
                await client.join("s")
            await let_go(bridge)
            assert (await http.post("/hooks/event", json=_HOOK)).status_code == 200

    run(work)


def test_B29_a_message_that_no_agent_has_answered_keeps_its_session() -> None:
    async def work() -> None:
        async with serving(None, limits=limits(grace=0.02)) as bridge:
            async with raw(bridge) as client:
                await joined(client)
                assert (await client.say("do it"))["status"] == "stored"
            await let_go(bridge)
            assert await state(bridge) is not SessionState.CLOSED

    run(work)
