"""A TCP proxy that disturbs connections. Put it between a client and its server, and switch toxics on and off.

with FaultProxy("127.0.0.1:8080", Latency(seconds=0.05)) as proxy:      # `async with` in a task
    call(proxy.address)
    with proxy.under(Reset(after=100, direction="down")):
        call(proxy.address)

toxics   what can be wrong with a connection, as values and as text (`latency=0.05;direction=down`)
flow     decides what happens to the next bytes, without I/O
link     performs one connection: two flows on sockets
proxy    the server, its switches and counters
"""

from __future__ import annotations

from holdfast.testing.proxy.proxy import Counters, FaultProxy
from holdfast.testing.proxy.toxics import (
    Bandwidth,
    BlackHole,
    HalfOpen,
    Jitter,
    Latency,
    Limit,
    Reset,
    Slicing,
    Toxic,
    toxic_of,
)

__all__ = [
    "Bandwidth",
    "BlackHole",
    "Counters",
    "FaultProxy",
    "HalfOpen",
    "Jitter",
    "Latency",
    "Limit",
    "Reset",
    "Slicing",
    "Toxic",
    "toxic_of",
]
