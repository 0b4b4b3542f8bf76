"""A task that is cancelled, wherever it waits: permits come back, nothing is counted, connections are closed."""

from __future__ import annotations

import asyncio
from collections import Counter

import httpx2
import pytest
from anthropic import AsyncAnthropic
from clients_kit import LIMITED, OVERLOADED, REQUEST, WHOLE, Streaming, in_time, message, world

from holdfast.anthropic import recovering
from holdfast.events import AttemptStarted


class Slow:
    """Answers on script, each step after a second: a request, the first piece of a body, every further piece."""

    def __init__(self, *script) -> None:
        self.script = list(script)
        self.bodies = []

    async def __call__(self, request: httpx2.Request) -> httpx2.Response:
        await asyncio.sleep(1)
        answer = self.script.pop(0)()
        if isinstance(answer.stream, httpx2.AsyncByteStream) and hasattr(answer.stream, "pieces"):
            answer.stream = SlowBody(answer.stream.pieces)
            self.bodies.append(answer.stream)
        return answer


class SlowBody(httpx2.AsyncByteStream):
    def __init__(self, pieces) -> None:
        self.pieces = pieces
        self.closed = False

    async def __aiter__(self):
        for piece in self.pieces:
            await asyncio.sleep(1)
            yield piece

    async def aclose(self) -> None:
        self.closed = True


async def whole(claude) -> None:
    await claude.messages.create(**REQUEST)


async def streamed(claude) -> None:
    async with await claude.messages.create(**REQUEST, stream=True) as stream:
        async for _ in stream:
            pass


SCENES = {
    "a call": (whole, (OVERLOADED, message())),
    "a move to another key": (whole, (LIMITED, message())),
    "a stream": (streamed, (OVERLOADED, Streaming(*WHOLE))),
}


@pytest.mark.parametrize(("scene", "script"), SCENES.values(), ids=SCENES)
@pytest.mark.parametrize("at", [0.5, 1.5, 2.5, 3.5, 4.5, 5.5, 8.5])
def test_wherever_it_waits_a_cancelled_task_leaves_nothing_behind(scene, script, at):
    runtime, heard = world()
    slow = Slow(*script)

    def client(key: str) -> AsyncAnthropic:
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(slow))
        return AsyncAnthropic(api_key=key, http_client=http)

    claude = recovering(client("a"), client("b"), runtime=runtime)

    async def cancelled() -> bool:
        task = asyncio.create_task(scene(claude))
        await asyncio.sleep(at)
        was_running = task.cancel()
        await asyncio.wait([task])
        return was_running and task.cancelled()

    was_cancelled = in_time(runtime, cancelled())
    begun = len(heard.of(AttemptStarted))
    settled = Counter()
    for line in runtime.registry:
        breaker = line._breaker
        settled[line.name.partition(":")[0]] += (
            breaker.successes + breaker.failures + breaker.ignored + breaker.cancelled
        )
    assert settled == {"provider": begun, "model": begun, "key": begun}
    main = runtime.registry.get("provider:anthropic")._breaker
    assert main.successes == (0 if was_cancelled else 1)
    assert all(body.closed for body in slow.bodies)
