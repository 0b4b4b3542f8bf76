"""A remote client: it sends, answers a question, loses its network, and reads on where it was."""

from __future__ import annotations

import asyncio

from holdfast.bridge import Bridge, Client, Gap, Question, SessionEvent, Text, Tokens, Turn
from holdfast.testing import FaultProxy


async def agent(turn: Turn) -> str:  # `holdfast serve app:agent` serves it, too
    return "All tests pass." if await turn.approve("Run the tests?") else "Then not."


async def main() -> None:
    token = (tokens := Tokens()).create("Ada's phone").text
    async with (
        Bridge(agent, store="memory:", tokens=tokens).serving("127.0.0.1", 0) as bridge,
        FaultProxy(bridge.ws_url) as network,
        Client(network.url, token=token) as client,
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
                case Gap():
                    await session.reload()
                case SessionEvent(event="turn_ended"):  # a text is a piece of the answer, this is the end
                    return


asyncio.run(main())
