"""What a contender adds to a call that works. The SDK's own time in memory is measured, too, so that it can be subtracted."""

from __future__ import annotations

import asyncio
import gc
import logging
from time import perf_counter, thread_time
from typing import Any

from benchmarks.inside.clients import CLIENTS, Question, sdk
from holdfast.testing import FaultProvider

BARE = "SDK alone"
MEASURED = {BARE: sdk(max_retries=0), "holdfast": CLIENTS["holdfast"], "LiteLLM Router": CLIENTS["LiteLLM Router"]}
_QUESTION = Question("What is a holdfast?")


class Bench:
    def __init__(self, name: str) -> None:
        logging.disable()
        self.loop = asyncio.new_event_loop()
        self.ask = self.loop.run_until_complete(self._make(name))

    def warm_up(self) -> bool:
        self.round(calls=50)
        gc.collect()
        gc.freeze()
        return True

    def round(self, *, calls: int) -> tuple[float, float]:
        """Return the wall and processor time of one call, in µs."""
        return self.loop.run_until_complete(self._timed(calls))

    async def _make(self, name: str) -> Any:
        return MEASURED[name](FaultProvider())

    async def _timed(self, calls: int) -> tuple[float, float]:
        wall, cpu = perf_counter(), thread_time()
        for _ in range(calls):
            await self.ask(_QUESTION)
        return (perf_counter() - wall) / calls * 1e6, (thread_time() - cpu) / calls * 1e6
