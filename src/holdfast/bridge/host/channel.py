"""`HostChannel`: what a bridge and the process of its agents say to each other that must not be stored, one JSON document for each line.

    {"id": 1, "op": "stop_turn", "session": "s"}   →   {"id": 1, "result": true}
    {"op": "wake", "session": "s"}                     (nobody waits for an answer)

Invariant: each call gets its result, the other side's fault, or SYS_BRIDGE_ERROR when the channel is gone. None waits for ever.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import count
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.bridge.log import log_error
from holdfast.faults import Fault, HoldfastError
from holdfast.runtime.fault_of import fault_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

__all__ = ["LONGEST_LINE", "HostChannel", "host_is_gone"]

LONGEST_LINE = 64 * 1024 * 1024
"""Bytes of a line. An answer of a person may be as long as a message."""


def host_is_gone(why: str = "the process of the agents has ended, and is started again") -> HoldfastError:
    """Return the error of a call that got no answer."""
    return HoldfastError(Fault.of("SYS_BRIDGE_ERROR", context={"reason": why}))


class HostChannel:
    """One end of a channel. `await channel.run()` reads until the other end is gone.

    perform: does what the other side asks for: `await perform("stop_turn", {"session": "s"})`.
    """

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        perform: Callable[[str, dict[str, Any]], Awaitable[Any]],
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._perform = perform
        self._numbers = count(1)
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_gone = False

    async def run(self) -> None:
        """Read until the other end is gone. Then calls that wait raise SYS_BRIDGE_ERROR."""
        try:
            while line := await self._reader.readline():
                self._take(msgspec.json.decode(line))
        except (OSError, ValueError) as error:
            # A line that is too long, or no JSON: the other end is no host and no bridge.
            log_error("the channel to the agents broke: %s", error)
        finally:
            self.close()

    def close(self) -> None:
        """End it. What is under way for the other side goes on: it may be writing."""
        self._is_gone = True
        with suppress(OSError, RuntimeError):  # the other side, or the loop, has gone
            self._writer.close()
        for call in self._calls.values():
            if not call.done():
                call.set_exception(host_is_gone())
        self._calls.clear()

    async def call(self, op: str, **fields: Any) -> Any:
        """Ask the other side for something, and return its result."""
        number = next(self._numbers)
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[number] = reply
        try:
            self._send({"id": number, "op": op, **fields})
            return await reply
        finally:
            self._calls.pop(number, None)

    def tell(self, op: str, **fields: Any) -> None:
        """Tell the other side something, if it is there."""
        # The other side is gone, which its connection reports.
        with suppress(HoldfastError):
            self._send({"op": op, **fields})

    def _send(self, document: dict[str, Any]) -> None:
        if self._is_gone:
            raise host_is_gone()
        self._writer.write(msgspec.json.encode(document) + b"\n")

    def _take(self, document: dict[str, Any]) -> None:
        if "op" in document:
            task = asyncio.ensure_future(self._do(document))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            return
        call = self._calls.get(document["id"])
        if call is None or call.done():
            return
        fault = document.get("fault")
        if fault is None:
            call.set_result(document.get("result"))
        else:
            call.set_exception(
                HoldfastError(Fault.of(fault["code"], fault["message"], context=fault.get("context") or {}))
            )

    async def _do(self, document: dict[str, Any]) -> None:
        number, op = document.pop("id", None), document.pop("op")
        try:
            reply = {"id": number, "result": await self._perform(op, document)}
        except Exception as error:  # noqa: BLE001 - the other side gets it, and this side goes on
            fault = error.fault if isinstance(error, HoldfastError) else fault_of(error)
            if not isinstance(error, HoldfastError):
                log_error("%s failed in the process of the agents", op, cause=error)
            context = {name: value for name, value in fault.context.items() if isinstance(value, (str, int, float))}
            reply = {"id": number, "fault": {"code": fault.code, "message": fault.message, "context": context}}
        if number is not None:
            # Nobody waits for the reply any more: the other side is gone.
            with suppress(HoldfastError):
                self._send(reply)
