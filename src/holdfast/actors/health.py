"""`Health`: pings that an actor answers in its turn, so that one that hangs is noticed.

A ping goes through the mailbox like any message, before the others. An actor that does not get to it in time works too long on one
message, or hangs.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from holdfast import options
from holdfast.actors.mailbox import URGENT, Letter
from holdfast.faults import CircuitOpenError, Fault, HoldfastError

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.actors.cell import Cell

__all__ = ["Health", "HealthMonitor", "HealthState"]

HealthState: TypeAlias = Literal["healthy", "failing", "open", "half-open"]
"""`failing`: the last pings had no answer. `open`: messages are rejected. `half-open`: the next ping decides."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """When an actor counts as hung, and what happens then: `class Coder(Actor, health=Health(every=10, timeout=60)): ...`.

    every: seconds between pings. timeout: seconds that the answer may take. It must be longer than the actor's longest message.
    failures: pings without an answer in a row after which it counts as hung (5).
    then: `restart` ends the instance, and the supervisor restarts it. `reject` rejects messages with CIRCUIT_OPEN for `open_for`
        seconds (30); then one ping decides whether it takes messages again.

    Wrong options raise `InvalidError`.
    """

    every: float = 10.0
    timeout: float = 5.0
    failures: int = 5
    then: Literal["restart", "reject"] = "restart"
    open_for: float = 30.0

    def __post_init__(self) -> None:
        for name in ("every", "timeout", "open_for"):
            options.seconds(f"health.{name}", getattr(self, name))
        options.count("health.failures", self.failures)
        options.one_of("health.then", self.then, ("restart", "reject"))


class HealthMonitor:
    """Pings one instance of an actor until it ends."""

    def __init__(self, cell: Cell, health: Health, ping: Any, hung: Callable[[HoldfastError], None]) -> None:
        self._cell, self._health, self._ping, self._hung = cell, health, ping, hung
        self._failures = 0
        self._task = cell.loop.create_task(self._watch(), name=f"{cell.name} health")

    def stop(self) -> None:
        """The instance has ended."""
        self._task.cancel()
        self._open(None)
        self._cell.health = "healthy"

    async def _watch(self) -> None:
        health = self._health
        while True:
            await asyncio.sleep(health.every)
            if await self._answers():
                self._failures = 0
                self._cell.health = "healthy"
                continue
            self._failures += 1
            self._cell.health = "failing"
            if self._failures < health.failures:
                continue
            error = self._error()
            if health.then == "restart":
                self._hung(error)
                return
            await self._reject(error)

    async def _reject(self, error: HoldfastError) -> None:
        """Reject messages, and let one ping through after a while, until one is answered."""
        while True:
            self._cell.health = "open"
            self._open(CircuitOpenError(error.fault))
            await asyncio.sleep(self._health.open_for)
            self._cell.health = "half-open"
            if await self._answers():
                self._open(None)
                self._failures = 0
                self._cell.health = "healthy"
                return

    async def _answers(self) -> bool:
        reply: asyncio.Future[Any] = self._cell.loop.create_future()
        letter = Letter(self._ping, (), {}, reply)
        mailbox = self._cell.mailbox
        # A ping is not rejected with the messages: it finds out whether they still must be.
        rejecting, mailbox.closed = mailbox.closed, None
        try:
            # Nor by a full mailbox: an actor that has much to do does not hang.
            mailbox.put(letter, URGENT, is_bounded=False)
        except HoldfastError:
            return False
        finally:
            mailbox.closed = rejecting
        await asyncio.wait({reply}, timeout=self._health.timeout)
        answered = reply.done() and not reply.cancelled() and reply.exception() is None
        if reply.cancel():
            mailbox.withdrew()
        return answered

    def _open(self, error: HoldfastError | None) -> None:
        mailbox = self._cell.mailbox
        if mailbox.closed is None or isinstance(mailbox.closed, CircuitOpenError):
            mailbox.closed = error

    def _error(self) -> HoldfastError:
        name, health = self._cell.name, self._health
        text = f"Actor {name} hangs: {health.failures} pings in a row had no answer within {health.timeout:g} s each"
        if health.then == "reject":
            context: dict[str, Any] = {"actor": name, "circuit": name}
            return HoldfastError(Fault.of("CIRCUIT_OPEN", text, retry_after=health.open_for, context=context))
        return HoldfastError(Fault.of("ACTOR_CRASHED", text, context={"actor": name, "reason": "it hangs"}))
