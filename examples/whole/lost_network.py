"""A client on a network that breaks: it sends orders while its connection is cut again and again. Each order arrives once."""

from __future__ import annotations

import asyncio

from count import Count

from holdfast.bridge import Bridge, Client, ConnectionStatus, Schedule, SessionEvent, Text, Tokens, Turn
from holdfast.stores import MemoryStore
from holdfast.testing import FaultProxy

ORDERS = [f"order {n}" for n in range(1, 13)]
CUT_AT = ("order 3", "order 6", "order 9")

performed: list[str] = []


async def agent(turn: Turn) -> str:
    performed.append(turn.text)
    return f"{turn.text} is done"


async def perform() -> tuple[int, list[str], int]:
    """Return how often the client connected again, what it read, and how many connections were cut."""
    tokens, connections = Tokens(), 0
    token = tokens.create("a phone").text

    def show(now: ConnectionStatus) -> None:
        nonlocal connections
        connections += now.status == "connected"
        print("  ", now.status, f"attempt {now.attempt} in {now.delay:.1f} s" if now.attempt else "")

    read: list[str] = []
    turns = 0
    async with (
        MemoryStore() as store,
        Bridge(agent, store=store, tokens=tokens).serving("127.0.0.1", 0) as bridge,
        FaultProxy(bridge.ws_url) as network,
        Client(network.url, token=token, on_status=show, reconnect=Schedule(delays=(0.3,))) as client,
        client.create("orders") as session,
    ):
        for order in ORDERS:
            sending = asyncio.create_task(session.send(order))
            if order in CUT_AT:
                print(f"   the network is cut at {order}")
                network.cut()
            await sending
        async for message in session:
            match message:
                case Text(text=text):
                    read.append(text)
                case SessionEvent(event="turn_ended"):
                    turns += 1
            if turns == len(ORDERS):
                break
        return connections - 1, read, network.counters.resets


def play() -> list[Count]:
    again, read, cuts = asyncio.run(perform())
    assert performed == ORDERS, "every order once, in the order in which it was sent"
    return [
        Count("network: connections that came back", again, cuts, "connections that were cut"),
        Count("network: orders that were sent", len(ORDERS), len(performed), "orders that the agent got"),
        Count("network: answers that were read", len(set(read)), len(performed), "answers that the agent gave"),
    ]
