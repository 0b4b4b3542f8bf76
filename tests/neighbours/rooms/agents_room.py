"""Models and keys: fifty tenants with a key each ask a model in one process; one tenant's key, prompts or tools go wrong.

What crosses rooms: the same process, runtime, model, HTTP client, tools and store serve them all. In virtual time, against the fault
provider in memory. Shapes: `alone` calls the SDK's client and agents without a session, `session` runs agents in sessions on one store.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import anthropic
import httpx2
from tests.neighbours.kit import Played, WrongError, beside, member, neighbours, same, shown

from holdfast import Agent, Budget, Session, tool
from holdfast.anthropic import recovering
from holdfast.providers.anthropic import anthropic_model
from holdfast.stores import MemoryStore
from holdfast.testing import FaultProvider, VirtualClock, run
from holdfast.testing.provider import Rule, Script
from holdfast.tools import Toolbox, read_file

if TYPE_CHECKING:
    from tests.neighbours.storm_world import World

MODEL = "claude-haiku-4-5"
STEPS = {
    "revoked": "expired", "limited": "429;retry-after=30", "quota": "quota", "overloaded": "429", "hangs": "hang", "cuts": "cut;after=1",
    "html": "html", "malformed": "malformed-json", "overflow": "overflow", "refuses": "401", "long-wait": "429;retry-after=600",
    "silence": "silence;after=1",
}  # fmt: skip
"""What the provider answers to the member's key. An outage of the model itself is not one member's."""
_PAUSE_S = 0.2
_HEAD_START_S = 1.0


def warm() -> None:
    """The SDK reads its authorities once, and builds its types at its first request."""
    run(_warm())


async def _warm() -> None:
    http = httpx2.AsyncClient(transport=FaultProvider().transport())
    client = recovering(anthropic.AsyncAnthropic(api_key="warm", http_client=http))
    await client.messages.create(model=MODEL, max_tokens=9, messages=[{"role": "user", "content": "hi"}])


def play(world: World, *, alone: bool) -> Played:
    clock = VirtualClock()
    with TemporaryDirectory() as folder:
        room = _Room(world, clock, Path(folder))
        return Played(done=run(room.perform(alone=alone), clock=clock))


class _Room:
    def __init__(self, world: World, clock: VirtualClock, folder: Path) -> None:
        self.world, self.clock, self.folder = world, clock, folder
        steps = [STEPS[each.kind] for each in world.acts if each.kind in STEPS]
        rules = tuple(Rule(steps=each, loop=True, keys=("foe",), share=1.0 / (n + 1)) for n, each in enumerate(steps))
        limits = ["requests=60;burst=5;keys=foe"] if any(each.kind == "greedy" for each in world.acts) else []
        self.provider = FaultProvider(Script(rules=rules), limits=limits, clock=clock)
        self.tools = FaultProvider(Script(rules=rules, replies="tools"), limits=limits, clock=clock)
        self.http = httpx2.AsyncClient(transport=self.provider.transport())
        self.tools_http = httpx2.AsyncClient(transport=self.tools.transport())
        (folder / "notes.txt").write_text("a note\n")
        self.runs = 0

    def client(self, key: str, *, tools: bool = False) -> anthropic.AsyncAnthropic:
        http = self.tools_http if tools else self.http
        return anthropic.AsyncAnthropic(api_key=key, http_client=http)

    def agent(self, key: str, tools: Any = ()) -> Agent:
        return Agent("clerk", anthropic_model(MODEL, self.client(key, tools=bool(tools))), tools, max_turns=4)

    async def perform(self, *, alone: bool) -> Any:
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        jobs = {name: getattr(self, name) for name in ("answer", "tool", "stream", "file")}
        acts = {each.kind: self._act(each.kind) for each in self.world.acts}
        async with AsyncExitStack() as stack:
            self.store = await stack.enter_async_context(MemoryStore(clock=self.clock))
            self.clients = [recovering(self.client(f"key-{who}")) for who in range(self.world.neighbours)]
            self.foe = recovering(self.client("foe"))
            other = None if alone else member(self.world, acts, _PAUSE_S)
            return await beside(neighbours(self.world, jobs, self.clock.monotonic, 1.0), other, _HEAD_START_S)

    async def _ask(self, client: Any, text: str, **more: Any) -> Any:
        return await client.messages.create(
            model=MODEL, max_tokens=99, messages=[{"role": "user", "content": text}], **more
        )

    async def _run(self, agent: Agent, prompt: str, who: str) -> str:
        if self.world.shape == "alone":
            return (await agent.run(prompt)).text
        self.runs += 1
        async with Session.open(f"{who}-{self.runs}", store=self.store, mode="yolo") as session:
            return (await agent.run(prompt, session=session)).text

    # What neighbours do.

    async def answer(self, who: int, turn: int) -> None:
        reply = await self._ask(self.clients[who], f"word {who} {turn}")
        same(reply.content[0].text, f"You said: word {who} {turn}")

    async def stream(self, who: int, turn: int) -> None:
        said = ""
        async for event in await self._ask(self.clients[who], f"word {who} {turn}", stream=True):
            if event.type == "content_block_delta":
                said += event.delta.text
        same(said, f"You said: word {who} {turn}")

    async def tool(self, who: int, turn: int) -> None:
        called = []

        @tool(effect="unsafe", name="pay")
        async def pay(to: str) -> str:
            """Pay somebody."""
            called.append(to)
            return f"paid {who} {turn}"

        text = await self._run(self.agent(f"key-{who}", [pay]), "pay", f"n{who}")
        same(len(called), 1)
        if f"paid {who} {turn}" not in text:
            raise WrongError(shown(text))

    async def file(self, who: int, turn: int) -> None:
        answer = await Toolbox([read_file(self.folder)]).answer("read_file", {"path": "notes.txt"})
        if answer.is_error:
            raise RuntimeError(answer.content)
        text = await self._run(self.agent(f"key-{who}"), f"word {who} {turn}", f"f{who}")
        same(text, f"You said: word {who} {turn}")

    # What the member does.

    def _act(self, kind: str) -> Any:
        special = getattr(self, "act_" + kind.replace("-", "_"), None)

        async def asks(strength: int) -> None:
            async def one(n: int) -> None:
                if n % 3 == 2:
                    await self._run(self.agent("foe", [_pay]), "pay", "foe")
                elif n % 3:
                    async for _ in await self._ask(self.foe, "hello", stream=True):
                        pass
                else:
                    await self._ask(self.foe, "hello")

            async with asyncio.timeout(20):
                await asyncio.gather(*(one(n) for n in range(3 * strength)), return_exceptions=True)

        return special or asks

    async def act_greedy(self, strength: int) -> None:
        async with asyncio.timeout(3):
            await asyncio.gather(
                *(self._ask(self.foe, "x" * 2000) for _ in range(60 * strength)), return_exceptions=True
            )

    async def act_cancels(self, strength: int) -> None:
        tasks = [asyncio.create_task(self._ask(self.foe, "hello")) for _ in range(20 * strength)]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)

    async def act_budget(self, strength: int) -> None:
        with Budget(usd=0.000_001, attempts=1, seconds=1):
            await asyncio.gather(*(self._ask(self.foe, "x" * 9000) for _ in range(20)), return_exceptions=True)

    async def _agent_of(self, strength: int, work: Any) -> None:
        agents = [self._run(self.agent("foe", [work]), "go", "foe") for _ in range(3 * strength)]
        await asyncio.gather(*agents, return_exceptions=True)

    async def act_bad_tool(self, strength: int) -> None:
        @tool(effect="unsafe", name="pay")
        async def pay(to: str) -> str:
            raise ConnectionResetError(104, "reset")

        await self._agent_of(strength, pay)

    async def act_exits_tool(self, strength: int) -> None:
        @tool(effect="read", name="pay")
        async def pay(to: str) -> str:
            raise SystemExit(2)

        await self._agent_of(strength, pay)

    async def act_endless(self, strength: int) -> None:
        @tool(effect="read", name="pay", timeout=5)
        async def pay(to: str) -> str:
            await asyncio.Event().wait()
            return ""

        await self._agent_of(strength, pay)

    async def act_loops(self, strength: int) -> None:
        @tool(effect="read", name="pay")
        async def pay(to: str) -> str:
            return "half \ud83d " + "x" * 100_000

        await self._agent_of(strength, pay)


@tool(effect="unsafe", name="pay")
async def _pay(to: str) -> str:
    """Pay somebody."""
    return "paid"
