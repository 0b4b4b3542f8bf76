"""A world is played: by the plain twin, or by Holdfast as it comes.

The twin is what one writes without Holdfast: the bare SDK with its own retries, the function itself, and for each extra a few
plain lines. Both play on a fresh virtual clock; Holdfast on a fresh runtime.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import random
import threading
import time
import warnings
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Any

import anthropic
import httpx2
import openai

import holdfast.anthropic
import holdfast.openai
from benchmarks.harm.service import WEB_URL, AsyncTransport, Service, Transport, answer_of, chance
from benchmarks.harm.world import REGIONS, WEB, WEB_LIMIT_S
from holdfast import BATCH, Budget, Hedge, Policy, Runtime, recover, tool
from holdfast.policies.models import LIST_PRICES, Usage
from holdfast.testing import StuckError, VirtualClock, run, seeded, use_runtime

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from benchmarks.harm.world import Call, Caller, World

    Ask = Callable[[str, Call], Awaitable[str]]

HANGS_S = 5 * 3600.0
"""Seconds after the last call of a world; a play that is still not over hangs."""


@dataclass
class Ended:
    """How a call ended: `answered`, `failed`, `cancelled`, or `wrong` if the answer belongs to another question."""

    how: str
    began: float
    ended: float
    error: BaseException | None = None

    @property
    def took(self) -> float:
        """Return the seconds to the answer; infinite if there was none."""
        return self.ended - self.began if self.how == "answered" else float("inf")


@dataclass
class Played:
    """A play: how each call ended, and what the services saw."""

    service: Service
    calls: dict[str, Ended] = field(default_factory=dict)
    hung: bool = False
    timers: int = 0
    """How often somebody began to wait for a time."""

    def of(self, names: set[str]) -> list[Any]:
        """Return the requests of these calls."""
        return [sent for sent in self.service.sent if sent.call in names]


def price_of(model: str, prompt: int, tokens: int) -> float:
    """Return dollars by list price."""
    return LIST_PRICES.cost(model, Usage(input=prompt, output=tokens)) or 0.0


def dollars(caller: Caller) -> float:
    """Return the limit of a caller with a budget: a share of what its calls cost at most, each answered once."""
    assert caller.extra
    return caller.extra.value * sum(price_of(caller.model, call.prompt, call.most) for call in caller.calls)


def _pool(caller: Caller) -> tuple[Any, ...]:
    """Return what callers have in common that share a pool of keys."""
    return "pool", caller.provider, caller.region, caller.timeout, caller.retries


class Ring:
    """Clients that are used in turn, as one writes it without Holdfast."""

    def __init__(self, clients: list[Any]) -> None:
        self._turns = cycle(clients)

    def __getattr__(self, name: str) -> Any:
        return getattr(next(self._turns), name)


def _request(caller: Caller, name: str, call: Call, model: str) -> dict[str, Any]:
    content = f"#{name}# " + "word " * max(1, call.prompt - 12)
    body: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": content}]}
    body["max_tokens" if caller.provider == "anthropic" else "max_completion_tokens"] = call.most
    if call.tools:
        schema = {"type": "object", "properties": {"at": {"type": "string"}}}
        anthropics = {"name": "look", "description": "Look.", "input_schema": schema}
        openais = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": schema}}
        body["tools"] = [anthropics if caller.provider == "anthropic" else openais]
    if call.timeout is not None:
        body["timeout"] = call.timeout
    return body


def _text(answer: Any) -> str:
    if hasattr(answer, "choices"):
        return answer.choices[0].message.content
    return "".join(part.text for part in answer.content if part.type == "text")


def _piece(event: Any) -> str:
    """Return the text of an event of a stream, or of a chunk."""
    if hasattr(event, "choices"):
        return (event.choices[0].delta.content or "") if event.choices else ""
    if event.type == "content_block_delta" and event.delta.type == "text_delta":
        return event.delta.text
    return ""


class ShopError(Exception):
    """What a user's function raises in place of the HTTP library's error."""

    def __init__(self, status: int | None) -> None:
        super().__init__(f"the shop answered {status}" if status else "connection to the shop lost")
        if status:
            self.status_code = status


class Plain:
    """The twin. Planted harm and Holdfast derive from it."""

    name = "plain"

    def __init__(self, world: World, service: Service, jitter: int) -> None:
        self.world = world
        self.service = service
        self.jitter = jitter
        self._clients: dict[Any, Any] = {}

    # clients

    def bare(self, caller: Caller, **options: Any) -> Any:
        """Return the SDK's client of a caller; callers with the same address, key and limit share one."""
        if caller.retries is not None:
            options = {"max_retries": caller.retries, **options}
        key = (caller.provider, caller.region, caller.key, caller.timeout, *options.items())
        if key not in self._clients:
            more = dict(options)
            if caller.region:
                more["base_url"] = REGIONS[caller.provider][caller.region]
            if caller.timeout is not None:
                more["timeout"] = caller.timeout
            self._clients[key] = self._made(caller.provider)(api_key=caller.key, http_client=self._http(), **more)
        return self._clients[key]

    def _made(self, provider: str) -> Any:
        if self.world.sync:
            return anthropic.Anthropic if provider == "anthropic" else openai.OpenAI
        return anthropic.AsyncAnthropic if provider == "anthropic" else openai.AsyncOpenAI

    def _http(self, **options: Any) -> Any:
        if self.world.sync:
            return httpx2.Client(transport=Transport(self.service), **options)
        return httpx2.AsyncClient(transport=AsyncTransport(self.service), **options)

    def web(self) -> Any:
        """Return the HTTP client of the functions around other services."""
        if "web" not in self._clients:
            self._clients["web"] = self._http(timeout=WEB_LIMIT_S)
        return self._clients["web"]

    def model_client(self, caller: Caller) -> Any:
        """Return what a caller asks models with."""
        if len(caller.keys) > 1:
            return self._clients.setdefault(_pool(caller), Ring(self._members(caller)))
        return self.bare(caller)

    def _members(self, caller: Caller) -> list[Any]:
        return [self.bare(replace(caller, key=key)) for key in caller.keys]

    # doors

    def asker(self, caller: Caller) -> Ask:
        """Return the function that makes a caller's calls. In a blocking world it returns the text itself."""
        if self.world.sync:
            return self.sync_door(caller)  # type: ignore[return-value]
        return self.limited(caller, self.door(caller))

    def door(self, caller: Caller) -> Ask:
        """Return the function behind a caller's door."""
        if caller.door in WEB:
            return partial(self.fetch, caller)
        if caller.door == "langchain":
            return partial(self.invoked, self.chat_model(caller))
        client = self.model_client(caller)
        if caller.door == "stream":
            return partial(self.streamed, caller, client)
        if caller.door == "helper":
            return partial(self.helped, caller, client)
        if caller.door == "iterator":
            return partial(self.streamed, caller, client)
        return partial(self.create, caller, client)

    async def create(self, caller: Caller, client: Any, name: str, call: Call, model: str = "") -> str:
        body = _request(caller, name, call, model or caller.model)
        if caller.provider == "anthropic":
            return _text(await client.messages.create(**body))
        return _text(await client.chat.completions.create(**body))

    async def pieces(self, caller: Caller, client: Any, name: str, call: Call) -> Any:
        body = _request(caller, name, call, caller.model)
        create = client.messages.create if caller.provider == "anthropic" else client.chat.completions.create
        async for event in await create(**body, stream=True):
            yield _piece(event)

    async def streamed(self, caller: Caller, client: Any, name: str, call: Call) -> str:
        return "".join([piece async for piece in self.pieces(caller, client, name, call)])

    async def helped(self, caller: Caller, client: Any, name: str, call: Call) -> str:
        body = _request(caller, name, call, caller.model)
        if caller.provider == "anthropic":
            async with client.messages.stream(**body) as stream:
                return _text(await stream.get_final_message())
        async with client.chat.completions.stream(**body) as stream:
            return _text(await stream.get_final_completion())

    def chat_model(self, caller: Caller) -> Any:
        """Return LangChain's model of a caller."""
        from langchain_openai import ChatOpenAI

        more = {"base_url": REGIONS["openai"][caller.region]} if caller.region else {}
        return ChatOpenAI(
            model=caller.model, api_key=caller.key, http_async_client=self._http(), timeout=caller.timeout, **more
        )

    async def invoked(self, model: Any, name: str, call: Call) -> str:
        return (await model.ainvoke(f"#{name}# " + "word " * max(1, call.prompt - 12), max_tokens=call.most)).text

    async def fetch(self, caller: Caller, name: str, _: Call) -> str:
        try:
            return (await self.web().request(*_web(caller, name))).raise_for_status().json()["text"]
        except httpx2.HTTPError as error:
            if (own := self._in_own_words(caller, error)) is None:
                raise
            raise own from error

    def _in_own_words(self, caller: Caller, error: httpx2.HTTPError) -> ShopError | None:
        """Return the exception of a POST's function in place of the library's; None: it lets that through, as every other one does."""
        # By a coin of its own: the random sequence of the worlds stays as it is.
        if caller.door != "post" or chance(f"{self.world.seed} words {caller.name}") < 0.5:
            return None
        return ShopError(error.response.status_code if isinstance(error, httpx2.HTTPStatusError) else None)

    # extras

    def limited(self, caller: Caller, ask: Ask) -> Ask:
        """Return `ask` with the caller's extra, in plain lines."""
        extra = caller.extra
        if extra is None:
            return ask
        if extra.kind in ("deadline", "seconds", "leaves"):
            return partial(_within, ask, extra.value)
        if extra.kind == "fallback":
            both: Ask = partial(
                _or_else, ask, partial(self.create, caller, self.model_client(caller), model=extra.model)
            )
            return partial(_within, both, extra.value) if extra.value else both
        if extra.kind == "hedge":
            return partial(_hedged, ask, extra.value)
        if extra.kind == "concurrency":
            return partial(_placed, ask, self._line(caller, int(extra.value)))
        if extra.kind == "per_second":
            return partial(_placed, ask, self._line(caller, 0, 1 / extra.value))
        return ask

    def _line(self, caller: Caller, places: int, step: float = 0.0) -> tuple[Line, int]:
        assert caller.extra
        key = ("line", caller.extra.shared or caller.name)
        line = self._clients.setdefault(key, Line(places, step))
        return line, {"high": 0, "normal": 1, "low": 2}[caller.extra.priority]

    def around(self, _: Caller) -> contextlib.AbstractContextManager[Any]:
        """Return what stands around all calls of a caller."""
        return contextlib.nullcontext()

    # blocking worlds

    def sync_door(self, caller: Caller) -> Callable[[str, Call], str]:
        if caller.door in WEB:
            return partial(self.sync_fetch, caller)
        client = self.model_client(caller)
        work = {"stream": self.sync_streamed, "iterator": self.sync_streamed, "helper": self.sync_helped}
        return partial(work.get(caller.door, self.sync_create), caller, client)

    def sync_fetch(self, caller: Caller, name: str, _: Call) -> str:
        try:
            return self.web().request(*_web(caller, name)).raise_for_status().json()["text"]
        except httpx2.HTTPError as error:
            if (own := self._in_own_words(caller, error)) is None:
                raise
            raise own from error

    def sync_create(self, caller: Caller, client: Any, name: str, call: Call) -> str:
        body = _request(caller, name, call, caller.model)
        create = client.messages.create if caller.provider == "anthropic" else client.chat.completions.create
        return _text(create(**body))

    def sync_streamed(self, caller: Caller, client: Any, name: str, call: Call) -> str:
        body = _request(caller, name, call, caller.model)
        create = client.messages.create if caller.provider == "anthropic" else client.chat.completions.create
        return "".join([_piece(event) for event in create(**body, stream=True)])

    def sync_helped(self, caller: Caller, client: Any, name: str, call: Call) -> str:
        body = _request(caller, name, call, caller.model)
        if caller.provider == "anthropic":
            with client.messages.stream(**body) as stream:
                return _text(stream.get_final_message())
        with client.chat.completions.stream(**body) as stream:
            return _text(stream.get_final_completion())


def _web(caller: Caller, name: str) -> tuple[str, str]:
    return ("GET" if caller.door == "read" else "POST"), f"{WEB_URL}/{caller.door}/{name}"


async def _within(ask: Ask, seconds: float, name: str, call: Call) -> str:
    async with asyncio.timeout(seconds):
        return await ask(name, call)


async def _or_else(ask: Ask, other: Ask, name: str, call: Call) -> str:
    try:
        return await ask(name, call)
    except Exception:
        return await other(name, call)


async def _hedged(ask: Ask, after: float, name: str, call: Call) -> str:
    tasks = [asyncio.ensure_future(ask(name, call))]
    try:
        done, _ = await asyncio.wait(tasks, timeout=after)
        if not done:
            tasks.append(asyncio.ensure_future(ask(name, call)))
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        good = [task for task in done if not task.exception()]
        return await (good or tasks)[0]
    finally:
        for task in tasks:
            task.cancel()


class Line:
    """A limit of calls at the same time, or of starts in a time, in plain lines. The highest priority goes first."""

    def __init__(self, places: int, step: float) -> None:
        self.places = places
        self.step = step
        self.waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self.number = 0

    async def enter(self, priority: int) -> None:
        if self._free() and not self.waiting:
            self._take()
            return
        self.number += 1
        mine = (priority, self.number, asyncio.get_running_loop().create_future())
        heapq.heappush(self.waiting, mine)
        try:
            await mine[2]
        except asyncio.CancelledError:
            if mine[2].done() and not mine[2].cancelled():
                self.leave()
            raise

    def leave(self) -> None:
        if not self.step:
            self.places += 1
            self._wake()

    def _free(self) -> bool:
        return self.places > 0 or (bool(self.step) and self.places == 0)

    def _take(self) -> None:
        self.places -= 1
        if self.step:
            asyncio.get_running_loop().call_later(self.step, self._tick)

    def _tick(self) -> None:
        self.places += 1
        self._wake()

    def _wake(self) -> None:
        while self.waiting and self._free():
            _, _, future = heapq.heappop(self.waiting)
            if not future.done():
                self._take()
                future.set_result(None)


async def _placed(ask: Ask, line: tuple[Line, int], name: str, call: Call) -> str:
    await line[0].enter(line[1])
    try:
        return await ask(name, call)
    finally:
        line[0].leave()


class Recovering(Plain):
    """Holdfast as it comes: `recovering(client)`, `@recover`, and the extra as the docs write it."""

    name = "holdfast"

    def policy(self, caller: Caller) -> Policy | None:
        """Return the policy of the caller's extra."""
        extra = caller.extra
        if extra is None:
            return None
        made = {
            "deadline": lambda: Policy(deadline=extra.value),
            "hedge": lambda: Policy(hedge=Hedge(after=extra.value)),
            "concurrency": lambda: Policy(concurrency=int(extra.value), priority=extra.priority),
            "per_second": lambda: Policy(per_second=extra.value, priority=extra.priority),
            "priority": lambda: BATCH if extra.value < 0 else Policy(priority="high"),
        }
        return made[extra.kind]() if extra.kind in made else None

    def recovered(self, caller: Caller, policy: Policy | None) -> Any:
        """Return a recovering client. A limit of calls counts those of its name, so such a caller has a name of its own."""
        named = _own(caller)
        key = (
            "recovering",
            caller.provider,
            caller.region,
            caller.key,
            caller.timeout,
            caller.retries,
            caller.extra if policy else None,
            named,
        )
        if key not in self._clients:
            recovering = (holdfast.anthropic if caller.provider == "anthropic" else holdfast.openai).recovering
            more = {"name": named} if named else {}
            self._clients[key] = recovering(self.bare(caller), policy=policy, **more)
        return self._clients[key]

    def model_client(self, caller: Caller) -> Any:
        if len(caller.keys) > 1:
            recovering = (holdfast.anthropic if caller.provider == "anthropic" else holdfast.openai).recovering
            if _pool(caller) not in self._clients:
                self._clients[_pool(caller)] = recovering(*self._members(caller))
            return self._clients[_pool(caller)]
        if caller.door in ("function", "method", "block", "iterator") and not _falls_back(caller):
            return self.bare(caller, max_retries=0)  # as the docs say for a client inside your own `recover`
        return self.recovered(caller, self.policy(caller) if caller.door != "nested" else None)

    def chat_model(self, caller: Caller) -> Any:
        from holdfast.langchain import recovering

        more = {"name": _own(caller)} if _own(caller) else {}
        return recovering(super().chat_model(caller), policy=self.policy(caller), **more)

    def target(self, caller: Caller) -> str:
        if _own(caller) or caller.target:
            return _own(caller) or caller.target
        return f"shop-{caller.door}" if caller.door in WEB else f"{caller.model}-{caller.region}-{caller.key}"

    def limited(self, caller: Caller, ask: Ask) -> Ask:
        if caller.extra is not None and caller.extra.kind == "leaves":
            return super().limited(caller, ask)
        if caller.extra is not None and (
            caller.extra.kind == "seconds" or (_falls_back(caller) and caller.extra.value)
        ):
            return partial(_within_budget, ask, caller.extra.value)
        return ask

    def around(self, caller: Caller) -> contextlib.AbstractContextManager[Any]:
        if caller.extra is not None and caller.extra.kind == "usd":
            return Budget(usd=dollars(caller))
        return contextlib.nullcontext()

    def door(self, caller: Caller) -> Ask:
        ask = super().door(caller)
        policy = self.policy(caller)
        if _falls_back(caller):
            return self._with_fallback(caller, ask)
        if caller.door == "unsafe":
            return recover("tool:pay", policy)(tool(effect="unsafe")(_named(ask)))
        effect = "read" if policy is not None and policy.hedge else None
        recovery = recover(self.target(caller), policy, effect=effect)
        if caller.door in ("function", "nested", "read", "post"):
            return recovery(_named(ask))
        if caller.door == "method":
            return _method(recovery, ask)
        if caller.door == "block":
            return partial(_block, recovery, ask)
        if caller.door == "iterator":
            return partial(_iterated, recovery.stream(partial(self.pieces, caller, self.model_client(caller))))
        return ask

    def _with_fallback(self, caller: Caller, ask: Ask) -> Ask:
        assert caller.extra
        other = partial(self.create, caller, self.model_client(caller), model=caller.extra.model)
        answer = recover(f"assistant-{caller.name}", Policy(circuit=None))(_named(ask))
        answer.fallback(_named(other, "other"))
        return answer

    def sync_door(self, caller: Caller) -> Callable[[str, Call], str]:
        ask = super().sync_door(caller)
        if caller.door == "unsafe":
            return recover("tool:pay")(tool(effect="unsafe")(_sync_named(ask)))
        recovery = recover(self.target(caller))
        if caller.door in ("function", "nested", "read", "post", "method"):
            return recovery(_sync_named(ask))
        if caller.door == "block":
            return partial(_sync_block, recovery, ask)
        return ask


def _own(caller: Caller) -> str:
    """Return the name of a caller, or of several, that share a limit of calls."""
    if caller.extra is None or caller.extra.kind not in ("concurrency", "per_second"):
        return ""
    return f"own-{caller.extra.shared or caller.name}"


def _falls_back(caller: Caller) -> bool:
    return caller.extra is not None and caller.extra.kind == "fallback"


def _named(ask: Ask, name: str = "answer") -> Any:
    async def answer(question: str, call: Call) -> str:
        return await ask(question, call)

    answer.__name__ = name
    return answer


def _sync_named(ask: Any) -> Any:
    def answer(question: str, call: Call) -> str:
        return ask(question, call)

    return answer


def _method(recovery: Any, ask: Ask) -> Ask:
    class Assistant:
        @recovery
        async def answer(self, question: str, call: Call) -> str:
            return await ask(question, call)

    return Assistant().answer


async def _block(recovery: Any, ask: Ask, name: str, call: Call) -> str:
    async for attempt in recovery:
        async with attempt:
            text = await ask(name, call)
    return text


def _sync_block(recovery: Any, ask: Any, name: str, call: Call) -> str:
    for attempt in recovery:
        with attempt:
            text = ask(name, call)
    return text


async def _iterated(live: Any, name: str, call: Call) -> str:
    async with live(name, call) as stream:
        return "".join([piece async for piece in stream])


async def _within_budget(ask: Ask, seconds: float, name: str, call: Call) -> str:
    with Budget(seconds=seconds):
        return await ask(name, call)


# the play


def play(world: World, side: type[Plain] = Plain, jitter: int = 0) -> Played:
    """Play a world to its end. `jitter` is the seed of the client's own chance."""
    clock = VirtualClock()
    service = Service(world, clock)
    played = Played(service)
    random.seed(f"{world.seed} {jitter}")  # the SDK's jitter
    runtime = Runtime(clock=clock, rng=seeded(jitter))
    with _virtual(clock), warnings.catch_warnings(), use_runtime(runtime):
        warnings.simplefilter("ignore")
        if world.sync:
            _play_sync(world, side(world, service, jitter), played)
        else:
            try:
                run(_play(world, side, jitter, played), clock=clock)
            except (TimeoutError, StuckError):
                played.hung = True
    return played


async def _play(world: World, side: type[Plain], jitter: int, played: Played) -> None:
    _count_timers(played)
    made = side(world, played.service, jitter)
    last = max((call.at for caller in world.callers for call in caller.calls), default=0.0)
    jumps = [asyncio.get_running_loop().call_later(at, played.service.clock.jump, by) for at, by in world.jumps]
    async with asyncio.timeout(last + HANGS_S):
        await asyncio.gather(*[_caller(made, caller, played) for caller in world.callers])
    for jump in jumps:
        jump.cancel()


def _count_timers(played: Played) -> None:
    loop = asyncio.get_running_loop()
    call_at = loop.call_at

    def counted(*args: Any, **options: Any) -> asyncio.TimerHandle:
        played.timers += 1
        return call_at(*args, **options)

    loop.call_at = counted  # type: ignore[method-assign]


async def _caller(side: Plain, caller: Caller, played: Played) -> None:
    with side.around(caller):
        ask = side.asker(caller)
        if caller.workers:
            ask = partial(_by_workers, ask, asyncio.Semaphore(caller.workers))
        names = [(f"{caller.name}.{number}", call) for number, call in enumerate(caller.calls)]
        await asyncio.gather(*[_call(ask, name, call, played) for name, call in names])


async def _by_workers(ask: Ask, workers: asyncio.Semaphore, name: str, call: Call) -> str:
    async with workers:
        return await ask(name, call)


async def _call(ask: Ask, name: str, call: Call, played: Played) -> None:
    now = played.service.now
    await asyncio.sleep(call.at - now())
    began = now()
    task = asyncio.ensure_future(ask(name, call))
    if call.cancel is not None:
        asyncio.get_running_loop().call_later(call.cancel, task.cancel)
    try:
        text = await task
    except asyncio.CancelledError as error:
        played.calls[name] = Ended("cancelled", began, now(), error)
        if not task.cancelled() or call.cancel is None:
            raise
    except Exception as error:
        played.calls[name] = Ended("failed", began, now(), error)
    else:
        played.calls[name] = Ended("answered" if text == answer_of(name) else "wrong", began, now())


def _play_sync(world: World, side: Plain, played: Played) -> None:
    service = played.service
    askers = {caller.name: side.asker(caller) for caller in world.callers}
    every = [
        (call.at, f"{caller.name}.{number}", caller.name, call)
        for caller in world.callers
        for number, call in enumerate(caller.calls)
    ]
    jumps = sorted(world.jumps)
    for at, name, who, call in sorted(every, key=lambda one: one[:2]):
        while jumps and jumps[0][0] <= service.now():
            service.clock.jump(jumps.pop(0)[1])
        service.clock.advance(max(0.0, at - service.now()))
        began = service.now()
        try:
            text: Any = askers[who](name, call)
        except Exception as error:
            played.calls[name] = Ended("failed", began, service.now(), error)
        else:
            played.calls[name] = Ended("answered" if text == answer_of(name) else "wrong", began, service.now())


@contextlib.contextmanager
def _virtual(clock: VirtualClock) -> Iterator[None]:
    """Let `time.time` and `time.sleep` of this thread read the clock: the SDKs know no other way."""
    real_time, real_sleep = time.time, time.sleep
    mine = threading.get_ident()

    def now() -> float:
        return clock.wall() if threading.get_ident() == mine else real_time()

    def sleep(seconds: float) -> None:
        (clock.sleep if threading.get_ident() == mine else real_sleep)(seconds)

    time.time, time.sleep = now, sleep  # type: ignore[assignment]
    try:
        yield
    finally:
        time.time, time.sleep = real_time, real_sleep
