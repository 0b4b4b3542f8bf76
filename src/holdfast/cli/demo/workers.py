"""The workers, with their clients and providers. A worker asks, reads a stream, or falls back to the other provider.

Workers catch only the exceptions that a real program catches: those of the SDKs, and ours.
Invariant: no request leaves this machine, whatever keys, addresses and proxies the environment names.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import httpx2
from anthropic import AnthropicError, AsyncAnthropic
from openai import AsyncOpenAI, OpenAIError

from holdfast.anthropic import recovering as recovering_claude
from holdfast.cli.demo.storm import ANTHROPIC, OPENAI, ActKind
from holdfast.faults import AbortedError, Fault, HoldfastError, StreamCutError
from holdfast.openai import recovering as recovering_gpt
from holdfast.policies.target import Target
from holdfast.runtime import fault_of
from holdfast.runtime.recover import recover
from holdfast.testing import FaultProvider, serve_in_thread
from holdfast.testing.provider.script import Rule, Script

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator, Mapping

    from holdfast.cli.demo.storm import Act, DemoCaller
    from holdfast.cli.demo.tally import DemoTally
    from holdfast.clock import Clock

_NO_KEY = "demo"
_QUESTION = "What is a holdfast, and why does kelp need one?"
_MOST_TOKENS = 200
_RESTARTS = "coder"
"""The worker that starts a cut stream again. The others keep the words so far."""


async def perform(
    act: Act, cast: tuple[DemoCaller, ...], stage: DemoStage, tally: DemoTally, say: Callable[[str], None]
) -> None:
    """Let every worker make its call at the same time. In a patient act, the first worker goes before the others."""
    work = _Work(act, stage, say)
    # True is 1 here: one worker goes first, as the probe of the half-open circuit.
    ahead = cast[: act.patient]
    for worker in ahead:
        await _make_call(work, worker, tally)
    async with asyncio.TaskGroup() as group:
        for worker in cast[len(ahead) :]:
            group.create_task(_make_call(work, worker, tally))


async def _make_call(work: _Work, worker: DemoCaller, tally: DemoTally) -> None:
    with tally.call(work.act.name, worker) as call:
        try:
            await work.do(worker)
        # The user pressed c and knows it, so nothing is printed.
        except AbortedError:
            call.given_up = True
        except StreamCutError as cut:
            call.degraded = True
            pieces = 0 if cut.partial is None else cut.partial.complete
            work.say(f"{worker.name} keeps the first {pieces} events of the answer (counted as degraded)")
        except (AnthropicError, OpenAIError, HoldfastError) as error:
            call.given_up = True
            fault = fault_of(error)
            work.say(f"{worker.name} gets the SDK's own {type(error).__name__}; next to act: {fault.next_actor}")


class _Work:
    """The calls of one act."""

    def __init__(self, act: Act, stage: DemoStage, say: Callable[[str], None]) -> None:
        self.act = act
        self.say = say
        self._plain = stage
        # A program needs only this line: it adds recovery to the SDK's own client.
        self._claude = recovering_claude(stage.claude, policy=act.policy, name=ANTHROPIC)
        self._gpt = recovering_gpt(stage.gpt, policy=act.policy, name=OPENAI)

    async def do(self, worker: DemoCaller) -> object:
        """Make one worker's call."""
        match self.act.way:
            case ActKind.STREAM if worker.name == _RESTARTS:
                return await self._stream_again(worker)
            case ActKind.STREAM:
                return await self._stream(worker)
            case ActKind.CHAIN if worker.spare:
                return await self._ask_or_fall_back(worker)
            case _:
                return await self._ask(worker)

    async def _ask(self, worker: DemoCaller) -> str:
        if worker.provider == ANTHROPIC:
            return await _claude_answer(self._claude, worker.model)
        return await _gpt_answer(self._gpt, worker.model)

    async def _stream(self, worker: DemoCaller) -> list[str]:
        words = _claude_words(self._claude, worker.model) if worker.provider == ANTHROPIC else _gpt_words(self._gpt, worker.model)  # fmt: skip
        return [word async for word in words]

    async def _stream_again(self, worker: DemoCaller) -> list[str]:
        """Read a stream that starts over when it is cut, also after its first word."""
        recovery = recover(Target(provider=ANTHROPIC, model=worker.model), self.act.policy)
        live = recovery.stream(_claude_words, after_first="restart")
        async with live(self._plain.claude, worker.model) as stream:
            return [word async for word in stream]

    async def _ask_or_fall_back(self, worker: DemoCaller) -> str:
        @recover(Target(provider=ANTHROPIC, model=worker.model), self.act.policy)
        async def answer() -> str:
            return await _claude_answer(self._plain.claude, worker.model)

        @answer.fallback(name=f"{OPENAI}/{worker.spare}")
        async def by_openai() -> str:
            return await _gpt_answer(self._gpt, worker.spare)

        @answer.degraded
        def lesser(fault: Fault) -> str:
            self.say(f"{worker.name} shows its user: {fault.for_user()}")
            return ""

        return await answer()


async def _claude_answer(client: AsyncAnthropic, model: str) -> str:
    message = await client.messages.create(
        model=model, max_tokens=_MOST_TOKENS, messages=[{"role": "user", "content": _QUESTION}]
    )
    return "".join(block.text for block in message.content if block.type == "text")


async def _gpt_answer(client: AsyncOpenAI, model: str) -> str:
    return (await client.responses.create(model=model, input=_QUESTION)).output_text


async def _claude_words(client: AsyncAnthropic, model: str) -> AsyncIterator[str]:
    events = await client.messages.create(
        model=model, max_tokens=_MOST_TOKENS, messages=[{"role": "user", "content": _QUESTION}], stream=True
    )
    async for event in events:
        if event.type == "content_block_delta" and event.delta.type == "text_delta":
            yield event.delta.text


async def _gpt_words(client: AsyncOpenAI, model: str) -> AsyncIterator[str]:
    events = await client.responses.create(model=model, input=_QUESTION, stream=True)
    async for event in events:
        if event.type == "response.output_text.delta":
            yield event.delta


# --- providers and clients ---


class DemoStage:
    """The providers by name, and one client of each."""

    def __init__(self, servers: Mapping[str, FaultProvider], *, memory: bool) -> None:
        self.servers = servers
        self.claude = AsyncAnthropic(
            base_url="http://anthropic.test" if memory else servers[ANTHROPIC].url,
            api_key=_NO_KEY,
            # The SDK must not retry by itself. Otherwise one attempt would be several requests.
            max_retries=0,
            http_client=_http(servers[ANTHROPIC], memory=memory),
        )
        self.gpt = AsyncOpenAI(
            base_url="http://openai.test/v1" if memory else servers[OPENAI].openai_url,
            api_key=_NO_KEY,
            max_retries=0,
            http_client=_http(servers[OPENAI], memory=memory),
        )

    def set(self, act: Act) -> None:
        """Load the script of an act into the providers, and reset their counters."""
        rules = tuple(Rule(steps=steps, models=(model,)) for model, steps in act.steps.items())
        for server in self.servers.values():
            server.set_script(Script(rules=rules))

    async def close(self) -> None:
        """Close the clients' connections."""
        await self.claude.close()
        await self.gpt.close()


@contextmanager
def on_loopback(clock: Clock) -> Iterator[dict[str, FaultProvider]]:
    """Serve both providers from threads, on loopback, while the block runs."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(serve_in_thread(clock=clock)) for name in (ANTHROPIC, OPENAI)}


@contextmanager
def in_memory(clock: Clock) -> Iterator[dict[str, FaultProvider]]:
    """Return both providers without a socket, for virtual time."""
    yield {name: FaultProvider(clock=clock) for name in (ANTHROPIC, OPENAI)}


def _http(server: FaultProvider, *, memory: bool) -> httpx2.AsyncClient:
    # trust_env is off: a proxy from the environment would send the requests elsewhere.
    transport = server.transport(httpx2) if memory else None
    return httpx2.AsyncClient(transport=transport, trust_env=False)
