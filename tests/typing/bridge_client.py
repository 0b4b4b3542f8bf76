"""Job 7 of the public surface as a type checker sees it. Never run."""

from __future__ import annotations

from typing import assert_type

from holdfast import Client
from holdfast.bridge import Gap, Message, Pending, Position, Question, RemoteSession, Snapshot, Text


async def remote(token: str) -> None:
    async with (
        Client("wss://host/ws", token=token, outbox="outbox.db") as bridge,
        bridge.join("release-42") as session,
    ):
        assert_type(bridge, Client)
        assert_type(session, RemoteSession)
        assert_type(await session.send("fix the tests"), int)
        async for m in session:
            assert_type(m, Message)
            match m:
                case Text(text=t):
                    assert_type(t, str)
                case Question(id=i):
                    await session.answer(i, True)
                case Gap():
                    assert_type(await session.reload(), Snapshot)
                case _:
                    pass
            assert_type(m.position, Position | None)
        assert_type(bridge.pending, list[Pending])


async def fresh() -> str:
    return "token"


def mistakes(token: str) -> None:
    Client("wss://host/ws", token=fresh)
    Client("wss://host/ws", token=lambda: token, reconnect="bridge")
    Client("wss://host/ws")  # type: ignore[call-arg] # pyright: ignore[reportCallIssue]
    Client("wss://host/ws", token=token, reconnect="often")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    Client("wss://host/ws", token=token).join("s", role="admin")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
