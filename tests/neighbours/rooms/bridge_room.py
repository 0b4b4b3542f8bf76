"""The bridge: fifty clients on loopback sockets talk to their agents; one client, stranger, hook or agent misbehaves.

Three processes: the server, the neighbours, and the intruder. Every neighbour has a token for sessions of its own, or in a household for all
of them, as `holdfast tokens create` makes it. The hostile member has a token for other sessions, one that may only look, a token for hooks, or none, and comes from the same address.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
from tests.neighbours.kit import FairClock, Played, WrongError, neighbours, same, shown
from tests.neighbours.rooms import intruder
from tests.neighbours.storm_play import peak_mb

from holdfast import Fault, HoldfastError, recover
from holdfast.bridge import Bridge, BridgeSettings, Client, Question, SessionEvent, Text, Tokens, Turn
from holdfast.stores import MemoryStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from tests.neighbours.storm_world import World

HEAD_START_S = 0.5
LONG = 150_000
"""Characters of a long answer."""


def warm() -> None:
    """Everything is imported."""


class Keys:
    """The tokens of a world, made before the processes part."""

    def __init__(self, count: int, *, is_household: bool) -> None:
        self.tokens = Tokens()
        own = [(f"n{who}", *(f"n{who}-{turn}" for turn in range(9))) for who in range(count)]
        self.ordinary = [
            self.tokens.create(f"n{who}", sessions=None if is_household else own[who]).text for who in range(count)
        ]
        self.hook = self.tokens.create("hooks", kind="hook").text
        self.foe = intruder.Tokens(
            device=self.tokens.create("foe", sessions=tuple(f"h-{n}" for n in range(2000))).text,
            observer=self.tokens.create("wall", role="observer").text,
            hook=self.tokens.create("foe-hooks", kind="hook").text,
        )


def play(world: World, *, alone: bool) -> Played:
    keys = Keys(world.neighbours, is_household=world.shape == "household")
    with tempfile.TemporaryDirectory() as folder:
        place = "" if world.shape == "memory" else folder
        server, url = _start_server(keys, place)
        foe = 0
        try:
            if not alone:
                foe = _fork(lambda: asyncio.run(intruder.intrude(world, url, keys.foe)))
                time.sleep(HEAD_START_S)
            done = asyncio.run(_Room(world, keys, url).perform(FairClock(server, os.getpid())))
            ended = "" if _runs(server) else "the server ended"
            return Played(done=done, peak_mb=peak_mb(server) if not ended else 0.0, ended=ended)
        finally:
            for pid in (foe, server):
                with contextlib.suppress(ProcessLookupError, ChildProcessError):
                    if pid:
                        os.kill(pid, signal.SIGKILL)
                        os.waitpid(pid, 0)


def _fork(work: Any) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(1)
    return pid


def _runs(pid: int) -> bool:
    return os.waitpid(pid, os.WNOHANG)[0] == 0


def _start_server(keys: Keys, folder: str) -> tuple[int, str]:
    reader, writer = os.pipe()
    pid = _fork(lambda: asyncio.run(_serve(keys, folder, writer)))
    os.close(writer)
    with os.fdopen(reader) as said:
        return pid, said.readline().strip()


async def _serve(keys: Keys, folder: str, writer: int) -> None:
    async with contextlib.AsyncExitStack() as stack:
        store: Any = Path(folder) / "work.db" if folder else await stack.enter_async_context(MemoryStore())
        bridge = Bridge(agent, store=store, tokens=keys.tokens, settings=BridgeSettings(port=0))
        await stack.enter_async_context(bridge.serving("127.0.0.1", 0))
        os.write(writer, f"{bridge.url}\n".encode())
        os.close(writer)
        await asyncio.Event().wait()


async def agent(turn: Turn) -> AsyncIterator[str]:
    """Do what the message says: as an ordinary agent, or as one that goes wrong."""
    word, _, rest = turn.text.partition(" ")
    if word == "echo":
        yield rest
    elif word == "long":
        yield f"{rest} " + "x" * LONG
    elif word == "ask":
        yield f"{rest}: {'yes' if await turn.approve(f'Really {rest}?') else 'no'}"
    elif word == "twice":
        yield f"{rest}: {[await turn.approve(f'Really {rest} {again}?') for again in (1, 2)]}"
    elif word == "mishap":
        await MISHAPS[rest](turn, 1)
    elif word in UNLUCKY:
        await UNLUCKY[word](turn, int(rest or 1))
        yield "survived"


async def _raises(turn: Turn, strength: int) -> None:
    raise RuntimeError("x" * 1000 * strength)


async def _hangs(turn: Turn, strength: int) -> None:
    await asyncio.Event().wait()


async def _huge(turn: Turn, strength: int) -> None:
    await turn.say("x" * 10_000_000 * strength)


async def _chatters(turn: Turn, strength: int) -> None:
    for n in range(20_000 * strength):
        await turn.say(f"line {n}")


async def _exits(turn: Turn, strength: int) -> None:
    raise SystemExit(strength)


async def _fatal(turn: Turn, strength: int) -> None:
    async def work() -> None:
        raise HoldfastError(Fault.of(("ACTOR_MAX_RESTARTS", "SESS_LEASE_LOST", "ACTOR_MAX_RESTARTS")[strength - 1]))

    await recover("fatal")(work)()


async def _questions(turn: Turn, strength: int) -> None:
    await asyncio.gather(*(turn.ask(f"question {n}?") for n in range(300 * strength)))


async def _interrupts(turn: Turn, strength: int) -> None:
    raise asyncio.CancelledError


async def _surrogates(turn: Turn, strength: int) -> None:
    await turn.say("half \ud83d \x00 \udcff" * strength)


async def _tasks(turn: Turn, strength: int) -> None:
    async def fails() -> None:
        await asyncio.sleep(0)
        raise MemoryError("in a task that nobody waits for")

    for _ in range(500 * strength):
        asyncio.create_task(fails())  # noqa: RUF006


async def _swallows(turn: Turn, strength: int) -> None:
    while True:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(1)


async def _cancels(turn: Turn, strength: int) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(1)


async def _recursion(turn: Turn, strength: int) -> None:
    async def down() -> None:
        await down()

    await down()


async def _memory(turn: Turn, strength: int) -> None:
    raise MemoryError


async def _huge_question(turn: Turn, strength: int) -> None:
    await turn.approve("Really " + "x" * 900_000 * strength + "?")


async def _notifies(turn: Turn, strength: int) -> None:
    for n in range(3000 * strength):
        await turn.notify(f"title {n}", body="x" * 1000)


UNLUCKY = {
    "raises": _raises, "hangs": _hangs, "huge": _huge, "chatters": _chatters, "exits": _exits, "fatal": _fatal, "questions": _questions,
    "interrupts": _interrupts, "surrogates": _surrogates, "tasks": _tasks, "swallows": _swallows, "cancels": _cancels,
    "recursion": _recursion, "memory": _memory, "huge-question": _huge_question, "notifies": _notifies,
}  # fmt: skip


class OddError(BaseException):
    """What a library may raise that is no `Exception`."""


async def _odd(turn: Turn, strength: int) -> None:
    raise OddError


async def _foreign(turn: Turn, strength: int) -> None:
    task = asyncio.create_task(asyncio.sleep(9))
    await asyncio.sleep(0)
    task.cancel()
    await task


async def _exits_in_a_task(turn: Turn, strength: int) -> None:
    await asyncio.wait_for(_exits(turn, strength), 5)


async def _exits_in_a_group(turn: Turn, strength: int) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(_exits(turn, strength))


MISHAPS = {
    "exits-in-a-task": _exits_in_a_task, "exits-in-a-group": _exits_in_a_group, "cancels": _cancels, "exits": _exits, "interrupts": _interrupts, "odd": _odd, "foreign": _foreign,
}  # fmt: skip
"""What may happen to the agent of a neighbour, too: its turn ends, and the next message is answered."""


class _Person:
    """A neighbour: a client with a session, who reads what comes."""

    def __init__(self, client: Client, session: Any) -> None:
        self.client, self.session = client, session
        self.texts: deque[str] = deque()
        self.news = asyncio.Event()
        self.answers: dict[str, bool] = {}
        self.owed: set[str] = set()

    async def read(self) -> None:
        said = ""
        async for message in self.session:
            match message:
                case Question(id=id_, prompt=prompt) if prompt in self.answers:
                    # A double click. The second one counts for nothing, whether or not the server says so.
                    clicks = (self.session.answer(id_, self.answers[prompt]) for _ in range(2))
                    await asyncio.gather(*clicks, return_exceptions=True)
                case Text(text=text):
                    said += text
                case SessionEvent(event="turn_ended"):
                    self.texts.append(said)
                    said = ""
                    self.news.set()

    async def say(self, text: str, right: str) -> None:
        """Send a message and hear its answer, or that of an earlier one which came too late."""
        await self.session.send(text)
        self.owed.add(right)
        while True:
            while not self.texts:
                self.news.clear()
                await self.news.wait()
            said = self.texts.popleft()
            if said == right:
                return
            if said not in self.owed:
                raise WrongError(f"{text}: got {shown(said)}")


class _Room:
    def __init__(self, world: World, keys: Keys, url: str) -> None:
        self.world, self.keys, self.url = world, keys, url
        self.ws = url.replace("http", "ws", 1) + "/ws"
        self.people: dict[int, _Person] = {}
        self.stack = contextlib.AsyncExitStack()
        self.http = httpx.AsyncClient(base_url=url, trust_env=False, verify=False, timeout=20)

    async def perform(self, clock: FairClock) -> Any:
        jobs: dict[str, Any] = {
            name: getattr(self, name) for name in ("echo", "ask", "long", "hook", "events", "new", "mishap", "twice")
        }
        jobs |= {"return": self.come_back, "list": self.sessions}
        async with self.http, asyncio.TaskGroup() as group:
            self.group = group
            done = await neighbours(self.world, jobs, clock)
            for person in self.people.values():
                person.reader.cancel()  # type: ignore[attr-defined]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(5):
                    await self.stack.aclose()
        return done

    async def person(self, who: int) -> _Person:
        """Return the client of a neighbour, who connects when it first needs to."""
        if who not in self.people:
            client = await self.stack.enter_async_context(Client(self.ws, token=self.keys.ordinary[who]))
            session = await self.stack.enter_async_context(client.create(f"n{who}"))
            person = self.people[who] = _Person(client, session)
            person.reader = self.group.create_task(_quietly(person.read()))  # type: ignore[attr-defined]
        return self.people[who]

    async def echo(self, who: int, turn: int) -> None:
        person = await self.person(who)
        await person.say(f"echo word {who} {turn}", f"word {who} {turn}")

    async def ask(self, who: int, turn: int) -> None:
        person = await self.person(who)
        right = (who + turn) % 2 == 0
        person.answers[f"Really {who} {turn}?"] = right
        await person.say(f"ask {who} {turn}", f"{who} {turn}: {'yes' if right else 'no'}")

    async def twice(self, who: int, turn: int) -> None:
        """Answer two questions, one yes and one no: a double click on the first is no answer to the second."""
        person = await self.person(who)
        first = (who + turn) % 2 == 0
        person.answers |= {f"Really {who} {turn} 1?": first, f"Really {who} {turn} 2?": not first}
        await person.say(f"twice {who} {turn}", f"{who} {turn}: {[first, not first]}")

    async def mishap(self, who: int, turn: int) -> None:
        """The neighbour's own agent goes wrong. It is told, and the next message is answered."""
        person = await self.person(who)
        await person.say(f"mishap {list(MISHAPS)[(who + turn) % len(MISHAPS)]}", "")
        await self.echo(who, turn)

    async def long(self, who: int, turn: int) -> None:
        person = await self.person(who)
        if who % 5:
            return await self.echo(who, turn)
        await person.say(f"long {who} {turn}", f"{who} {turn} " + "x" * LONG)
        return None

    async def come_back(self, who: int, turn: int) -> None:
        """Say something, and read all of the session again over a new connection."""
        await self.echo(who, turn)
        async with (
            Client(self.ws, token=self.keys.ordinary[who]) as client,
            client.join(f"n{who}", history="full") as session,
        ):
            async for message in session:
                if isinstance(message, Text) and message.text == f"word {who} {turn}":
                    return

    async def new(self, who: int, turn: int) -> None:
        """Come as a new client, and make another session."""
        async with (
            Client(self.ws, token=self.keys.ordinary[who]) as client,
            client.create(f"n{who}-{turn}") as session,
        ):
            await session.send("echo again")
            async for message in session:
                if isinstance(message, Text):
                    same(message.text, "again")
                    return

    async def sessions(self, who: int, turn: int) -> None:
        person = await self.person(who)
        listed = {each.session_id for each in await person.client.sessions()}
        if f"n{who}" not in listed:
            raise WrongError(f"n{who} is not in {sorted(listed)}")
        if self.world.shape != "household" and any(not each.startswith(f"n{who}") for each in listed):
            raise WrongError(f"n{who} sees {sorted(listed)}")

    async def hook(self, who: int, turn: int) -> None:
        """The hook of a neighbour's agent posts an event."""
        event = {
            "event": "Stop",
            "timestamp": "2026-03-20T14:32:00Z",
            "session_id": f"n{who}-{turn}",
            "payload": {"reason": "task_completed"},
        }
        reply = await self._http("POST", "/hooks/event", self.keys.hook, json=event)
        same(reply.get("received"), True)

    async def events(self, who: int, turn: int) -> None:
        await self.echo(who, turn)
        page = await self._http("GET", f"/sessions/n{who}/events?limit=1000", self.keys.ordinary[who])
        if not any(f"word {who} {turn}" in str(each) for each in page["events"]):
            raise WrongError(f"no word in {len(page['events'])} events")

    async def _http(self, method: str, path: str, token: str, **more: Any) -> Any:
        """Ask over HTTP, and again after the time that the server names, as a script does."""
        while True:
            reply = await self.http.request(method, path, headers={"Authorization": f"Bearer {token}"}, **more)
            if reply.status_code < 400:
                return reply.json()
            if "retry-after" not in reply.headers:
                raise RuntimeError(f"{reply.status_code} {reply.text[:200]}")
            await asyncio.sleep(float(reply.headers["retry-after"]))


async def _quietly(work: Coroutine[Any, Any, None]) -> None:
    """A reader whose connection has ended says so through the job that waits for it."""
    with contextlib.suppress(Exception):
        await work
