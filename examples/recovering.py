"""Recovery at work, in virtual time: what happens to an agent's calls on a bad day, event by event.

Run it with `.venv/bin/python examples/recovering.py`. The failures are scripted. The waits pass at once, on a virtual clock.
"""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

from holdfast import (
    Budget,
    BudgetError,
    Changed,
    Circuit,
    Fault,
    HoldfastError,
    OutcomeUnknownError,
    Policy,
    Runtime,
    StreamCutError,
    recover,
    tool,
)
from holdfast.events import (
    AttemptEnded,
    AttemptStarted,
    CircuitStateChange,
    Degraded,
    Event,
    Failed,
    Fallback,
    Recovered,
    Repaired,
    Retry,
)
from holdfast.testing import VirtualClock, run, script, seeded, use_runtime

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

CLOCK = VirtualClock()
START = CLOCK.wall()


def show(title: str) -> None:
    print(f"\n\033[1m{title}\033[0m" if sys.stdout.isatty() else f"\n{title}\n{'-' * len(title)}")


def print_event(event: Event) -> None:
    """Print one line per event, with the seconds since the start."""
    text = ""
    match event:
        case Retry(delay=delay, requested=requested, fault=fault):
            text = f"⟳ {event.text} in {delay:.1f} s · {fault.code}{' · by Retry-After' if requested else ''}"
        case CircuitStateChange(circuit=name, from_=before, to=after):
            text = f"◍ circuit {name}: {before} → {after}"
        case Fallback(to=step, fault=Fault(code=code)):
            text = f"⤳ fall back to {step} · {code}"
        case Repaired(action=action, fault=fault):
            text = f"✎ {action} · {fault.code}"
        case Degraded(via=via):
            text = f"↓ a lesser answer: {via}"
        case Recovered(after=after, attempts=attempts, via=via):
            text = f"✓ recovered after {attempts} attempt{'s' * (attempts != 1)} and {after:.1f} s, by {via}"
        case Failed(fault=fault, exhausted=exhausted):
            text = f"✗ given up{' after all attempts' if exhausted else ''} · {fault.code} · next: {fault.next_actor}"
        case AttemptStarted() | AttemptEnded():
            return
        case _:
            text = f"· {type(event).__name__}"
    print(f"  {event.at - START:7.1f} s  {text}")


async def a_rate_limit_and_a_blip() -> None:
    show("After a rate limit the wait is exactly Retry-After; a short failure is retried")
    claude = script("429;retry-after=7, 503, ok:An anchor.")
    print("  answer:", await recover("claude").call(claude.acall, "What is a holdfast?"))


async def an_outage() -> None:
    show("An outage opens the circuit. Calls go to the fallback at once, and back to the provider when it is over")
    openai_calls = script("503*5, ok:back*99")

    @recover("openai", Policy(attempts=2, circuit=Circuit(failures=5, open_for=30)))
    async def answer(question: str) -> object:
        return await openai_calls.acall(question)

    @answer.fallback(name="local model")
    async def by_local_model(question: str) -> object:
        return f"(local) {question}"

    for _ in range(4):
        await answer("hello")
    await asyncio.sleep(30)
    for _ in range(2):
        print("  answer:", await answer("hello again"))


async def a_cut_stream() -> None:
    show("A stream that is cut after its first item is not repeated; the error carries the items that arrived")

    async def tokens() -> AsyncIterator[str]:
        for word in ("Kelp ", "holds "):
            yield word
        raise ConnectionResetError(104, "Connection reset by peer")

    try:
        async with recover("claude-stream").stream(tokens)() as stream:
            async for _ in stream:
                await asyncio.sleep(0.2)
    except StreamCutError as cut:
        print("  partial:", cut.partial.payload if cut.partial else "")


async def a_full_context() -> None:
    show("A context that is too long is compacted before it is sent again")

    @recover("gpt")
    async def ask(messages: list[str]) -> str:
        if len(messages) > 4:
            raise HoldfastError(Fault.of("PROVIDER_CONTEXT_OVERFLOW"))
        return f"an answer to {len(messages)} messages"

    @ask.repair("compact", times=3)
    async def drop_the_oldest_half(_: Fault, messages: list[str]) -> Changed:
        return Changed(messages[len(messages) // 2 :])

    print("  answer:", await ask([f"message {number}" for number in range(16)]))


async def an_unsafe_tool() -> None:
    show("A deployment that may have happened is not repeated")

    @tool(effect="unsafe")
    async def deploy() -> None:
        raise ConnectionResetError(104, "Connection reset by peer")

    try:
        await recover("tool:deploy").call(deploy)
    except OutcomeUnknownError as unknown:
        print(f"  {unknown}  (key {unknown.key})")


async def a_budget() -> None:
    show("A budget limits everything inside it, including retries")
    with Budget(attempts=4, seconds=60) as budget:
        try:
            for _ in range(9):
                await recover("batch").call(script("503, ok").acall)
        except (BudgetError, HoldfastError) as error:
            print(f"  {error}")
        print(f"  spent: {budget.spend()}")


async def bad_day() -> None:
    await a_rate_limit_and_a_blip()
    await an_outage()
    await a_cut_stream()
    await a_full_context()
    await an_unsafe_tool()
    await a_budget()


def main() -> None:
    runtime = Runtime(clock=CLOCK, rng=seeded(7))
    runtime.on(print_event)
    with use_runtime(runtime):
        run(bad_day(), clock=CLOCK)


if __name__ == "__main__":
    main()
