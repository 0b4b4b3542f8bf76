"""Failures of actors: crashes, mailboxes that are full, messages to actors that have stopped or never were."""

from __future__ import annotations

import asyncio
from typing import Any

from holdfast import Fault, Runtime
from holdfast.actors import Actor, Child, Place, Shutdown
from holdfast.actors.host import host_for
from holdfast.actors.messages import Message, MessageActor, MessageSupervisor
from holdfast.testing import run
from holdfast.views import response


class _Worker(Actor, mailbox=1):
    async def crash(self) -> None:
        raise KeyError("plan")

    async def wait(self) -> None:
        await asyncio.sleep(60)


def _asked(*methods: Any, stop: bool = False) -> Fault:
    """Return the fault of the last of these asks, made at once."""

    async def main() -> Fault:
        host = host_for(Child(_Worker), Place("worker", "team/worker", Runtime()))
        running = await host.start(1, None)
        assert running is not None
        if stop:
            await running.stop(Shutdown(), 1)
            host.close(Shutdown())
        asked = [asyncio.ensure_future(host.ref.outcome(method)) for method in methods]
        await asyncio.sleep(0)
        fault: Fault = (await asked[-1]).fault
        await running.stop(Shutdown(), 1)
        host.close(Shutdown())
        await asyncio.gather(*asked)
        return fault

    return run(main())


def actor_crashes() -> Fault:
    return _asked(_Worker.crash)


def mailbox_is_full() -> Fault:
    return _asked(_Worker.wait, _Worker.wait, _Worker.wait)


def actor_has_stopped() -> Fault:
    return _asked(_Worker.wait, stop=True)


class _Crashing(MessageActor):
    async def on_go(self, payload: Any) -> None:
        raise KeyError(payload)


def _sent(to: str, kind: str, **options: Any) -> Fault:
    async def main() -> Fault:
        async with MessageSupervisor(**options) as supervisor:
            await supervisor.supervise(lambda: _Crashing("one"))
            return response.read(await supervisor.send(to, Message(id="m", type=kind)))

    return run(main())


def actor_is_not_known() -> Fault:
    return _sent("another", "go")


def actor_crashes_too_often() -> Fault:
    return _sent("one", "go", max_restarts=0)


def message_has_an_unknown_type() -> Fault:
    return _sent("one", "come")


CASES = (
    ("ACTOR_CRASHED", actor_crashes),
    ("ACTOR_MAILBOX_FULL", mailbox_is_full),
    ("ACTOR_STOPPED", actor_has_stopped),
    ("ACTOR_NOT_FOUND", actor_is_not_known),
    ("ACTOR_MAX_RESTARTS", actor_crashes_too_often),
    ("PROTO_UNKNOWN_TYPE", message_has_an_unknown_type),
)
