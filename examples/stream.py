"""A stream: before the first item it starts again by itself; after that, the error holds what has arrived."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from holdfast import StreamCutError, recover
from holdfast.testing import run, script

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

service = script("503, ok, ok")  # the first connection fails


async def tokens(question: str) -> AsyncIterator[str]:
    await service.acall()
    for word in question.split():
        yield f"{word} "
        await asyncio.sleep(60 if word == "silence" else 0.1)


live = recover("claude").stream(tokens, first=20, idle=15)


async def main() -> None:
    for question in ("Kelp holds on to rocks.", "Then there is silence for a minute."):
        try:
            async with live(question) as stream:
                async for token in stream:
                    print(token, end="")
            print("· complete")
        except StreamCutError as cut:
            print("· cut:", cut.fault.code, "·", cut.partial.complete if cut.partial else 0, "items are kept")


run(main())  # in virtual time
assert service.calls == 3
