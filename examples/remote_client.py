"""A remote client: it sends, answers a question, loses its network, and reads on where it was."""

from __future__ import annotations

import asyncio

from holdfast.bridge import Bridge, Client, Gap, Question, Text, Tokens, Turn
from holdfast.stores import MemoryStore
from holdfast.testing import FaultProxy


async def agent(turn: Turn) -> str:  # `holdfast serve app:agent` serves it, too
    return "All tests pass." if await turn.approve("Run the tests?") else "Then not."


async def main() -> None:
    token = (tokens := Tokens()).create("Ada's phone").text
    async with (
        MemoryStore() as store,
        Bridge(agent, store=store, tokens=tokens).serving("127.0.0.1", 0) as bridge,
        FaultProxy(bridge.url.removeprefix("http://")) as network,
        Client(f"ws://{network.host}:{network.port}/ws", token=token) as client,
        client.create("release-42") as session,
    ):
        await session.send("fix the tests")  # returns when the message is stored
        async for message in session:
            match message:
                case Question(id=id_, prompt=prompt):
                    print(prompt, "· the network is cut")
                    network.cut()
                    await session.answer(id_, True)
                case Text(text=text):
                    print(text, "· connections:", network.counters.connections)
                    return
                case Gap():
                    await session.reload()


asyncio.run(main())
