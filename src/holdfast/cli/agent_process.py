"""`python -m holdfast.cli.agent_process`: the process of a bridge's agents. `holdfast serve --detach-agents` starts it.

It reads what to do from its input, because everybody can see the arguments of a process, and the address of a store may have a password.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from holdfast.bridge.host.agent_host import AgentHost
from holdfast.bridge.host.files import HostFiles
from holdfast.bridge.settings import BridgeSettings
from holdfast.cli.bridge.serve import exit_soon, served_agent
from holdfast.cli.programs.agent import needs_keys, rehearsal


class _Start(msgspec.Struct, frozen=True, kw_only=True):
    """What the server says to the process that it starts."""

    agent: str | None
    models: tuple[str, ...]
    store: str
    folder: str
    key: str
    settings: dict[str, Any]


def host(given: bytes) -> int:
    """Host the agents that a server asks for, and return the exit code."""
    start = msgspec.json.decode(given, type=_Start)
    agent = served_agent(start.agent, start.models)
    files = HostFiles(Path(start.folder), start.key)
    with ExitStack() as stack:
        if needs_keys(agent):
            stack.enter_context(rehearsal())

        async def run() -> int:
            code = await AgentHost(agent, start.store, files, BridgeSettings(**start.settings)).run()
            exit_soon()
            return code

        return asyncio.run(run())


if __name__ == "__main__":
    sys.exit(host(sys.stdin.buffer.read()))
