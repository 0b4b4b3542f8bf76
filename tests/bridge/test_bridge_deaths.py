"""A message that kills the process of its agent: it neither kills every server that comes, nor keeps others from their answers."""

from __future__ import annotations

import asyncio
import random
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from holdfast.bridge import Client, Notification, RemoteSession, Text
from holdfast.bridge.sessions.deaths import CONTINUED, MOST, Deaths, rest

HERE = Path(__file__).parent
CRASH = ("session_paused", {"reason": "crash"})
BEGUN = ("turn_started", {})
AGAIN = (CONTINUED, {})
DONE = ("step_ended", {"ok": True})


def count(*entries: tuple[str, dict[str, Any]]) -> int:
    found = Deaths()
    for type_, body in entries:
        found = found.after(type_, body)
    return found.in_a_row


def test_a_death_counts_while_the_agent_works_and_nothing_gets_done() -> None:
    assert count(BEGUN) == 0
    assert count(BEGUN, CRASH) == 1
    assert count(BEGUN, CRASH, AGAIN, CRASH, AGAIN, CRASH) == 3
    # It rested when another turn killed the process.
    assert count(BEGUN, CRASH, CRASH, CRASH) == 1
    # It waited for a person.
    assert count(BEGUN, ("interaction_raised", {}), CRASH, AGAIN, ("interaction_answered", {}), CRASH) == 1
    # The server was stopped in order.
    assert count(BEGUN, ("session_paused", {"reason": "closed"}), CRASH) == 0
    # What gets done in between sets it back, and what fails does not.
    assert count(BEGUN, CRASH, AGAIN, DONE, CRASH) == 1
    assert count(BEGUN, CRASH, AGAIN, ("step_ended", {"ok": False}), CRASH) == 2
    assert count(BEGUN, CRASH, BEGUN) == 0


def test_a_turn_rests_longer_each_time_and_ends() -> None:
    rng = random.Random(1)
    assert rest(1, rng) == 0
    delays = [rest(deaths, rng) for deaths in range(2, 7)]
    assert 0.5 <= delays[0] < 1.5
    assert delays == sorted(delays)
    assert 300 <= delays[-1] < 900
    assert MOST == 6
    # Turns that were cut together do not go on together.
    assert len({rest(3, rng) for _ in range(10)}) == 10


PROGRAM = """
    import asyncio, os, sys
    from bridge_kit import Tokens
    from holdfast.bridge import Bridge
    from holdfast.bridge.sessions import agent_runner
    from holdfast.bridge.sessions import deaths

    deaths._RESTS_S = (0.0, 0.01, LAST)
    agent_runner.MOST = 3

    async def agent(turn):
        if turn.text == "poison":
            await asyncio.sleep(0)
            os._exit(137)  # as the kernel does that has no memory left
        return f"here: {turn.text}"

    async def main():
        async with Bridge(agent, store=sys.argv[1], tokens=Tokens()).serving("127.0.0.1", 0) as bridge:
            print(bridge.ws_url, flush=True)
            await asyncio.to_thread(sys.stdin.read)

    asyncio.run(main())
"""


class Served:
    """A server in a process of its own, which an agent may kill."""

    def __init__(self, store: Path, rests: str) -> None:
        self._arguments = (sys.executable, "-c", textwrap.dedent(PROGRAM).replace("LAST", rests), str(store))
        self.process: asyncio.subprocess.Process
        self.ws_url = ""

    async def start(self) -> None:
        pipe = asyncio.subprocess.PIPE
        self.process = await asyncio.create_subprocess_exec(*self._arguments, stdin=pipe, stdout=pipe, cwd=HERE)
        assert self.process.stdout is not None
        self.ws_url = (await self.process.stdout.readline()).decode().strip()

    async def end(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()


async def first(session: RemoteSession, kind: type[Any], type_: str = "", part: str = "") -> str:
    """Return the text of the first message of a kind."""
    async for message in session:
        if isinstance(message, kind) and (not type_ or message.kind == type_):
            text = str(message.text if kind is Text else message.title)
            if part in text:
                return text
    raise AssertionError(kind)


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_message_that_kills_its_process_is_given_up_and_others_are_served(tmp_path: Path, is_stopped: bool) -> None:
    """After the third death it rests for long, and can be stopped; or the fourth death is its last, and it is said."""

    async def scenario() -> None:
        served = Served(tmp_path / "s.db", "600.0" if is_stopped else "0.01")
        try:
            await served.start()
            async with Client(served.ws_url, token="token") as unlucky, unlucky.create("u") as session:
                await session.send("poison")
                assert await served.process.wait() == 137
            died = 1
            while died < (3 if is_stopped else 4):
                await served.start()
                # It takes the turn up by itself.
                assert await served.process.wait() == 137
                died += 1
            await served.start()
            async with Client(served.ws_url, token="token") as client:
                async with client.create("n") as neighbour:
                    await neighbour.send("hello")
                    assert await first(neighbour, Text) == "here: hello"
                async with client.join("u", history="full") as unlucky:
                    if is_stopped:
                        assert "The server died 3 times" in await first(unlucky, Notification, "turn_rests", "3 times")
                        await unlucky.stop()
                        await first(unlucky, Notification, "turn_cancelled")
                    else:
                        assert "The server died 4 times" in await first(unlucky, Notification, "agent_error")
                    await unlucky.send("and now?")
                    assert await first(unlucky, Text) == "here: and now?"
        finally:
            await served.end()

    asyncio.run(asyncio.wait_for(scenario(), 60))
