"""A bridge in a process of its own, to measure its memory: `python bridge_process.py STORE [SETTINGS as JSON]` prints its address."""

from __future__ import annotations

import asyncio
import json
import sys

from bridge_kit import Tokens

from holdfast.bridge.access.identity import TokenHolder
from holdfast.bridge.server import Bridge
from holdfast.bridge.settings import BridgeSettings
from holdfast.wire.server import ServerLimits


async def main() -> None:
    given = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    connection = ServerLimits(**given.pop("connection", {}))
    tokens = Tokens(
        **{name: TokenHolder(token_id=f"t-{name}", kind="device", name=name) for name in ("token", "other")}
    )
    bridge = Bridge(store=sys.argv[1], tokens=tokens, settings=BridgeSettings(connection=connection, **given))
    async with bridge.serving("127.0.0.1", 0):
        sys.stdout.write(f"{bridge.url}\n")
        sys.stdout.flush()
        # It ends when its parent closes its input.
        await asyncio.to_thread(sys.stdin.read)


asyncio.run(main())
