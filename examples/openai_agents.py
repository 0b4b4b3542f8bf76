"""An agent of the OpenAI Agents SDK against a failing provider: its model recovers, and its tool declares its effect.

No keys and no network: the provider is on this machine, its failures are those of the real service, and waiting is
switched off.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Literal

from agents import Agent, OpenAIChatCompletionsModel, OpenAIProvider, RunConfig, Runner, function_tool
from openai import AsyncOpenAI

from holdfast import StreamCutError, recover, tool
from holdfast.events import Event, Fallback, Retry
from holdfast.openai_agents import recovering, tool_failure
from holdfast.runtime.runtime import default_runtime
from holdfast.testing import FaultProvider, no_waiting
from holdfast.testing.provider import read_script

# The SDK logs each failed request as an error, also one that is retried. This example prints the events instead.
logging.getLogger("openai.agents").setLevel(logging.CRITICAL)


@function_tool(failure_error_function=tool_failure)
@recover("tool:charge")
@tool(effect="unsafe")
async def charge(amount: int) -> str:
    """Charge the customer's card."""
    raise ConnectionResetError(104, f"Connection reset by peer while charging {amount}")


def client(provider: FaultProvider) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=provider.openai_url, api_key="test")


QUIET = RunConfig(tracing_disabled=True)
"""Without tracing, which would be sent to OpenAI."""


async def a_storm() -> None:
    print(
        "\nEvery model of a provider recovers: the caller does not notice a rate limit, an overload and a lost connection"
    )
    async with FaultProvider("429;retry-after=7, 529, disconnect, ok") as provider, client(provider) as sdk:
        config = RunConfig(tracing_disabled=True, model_provider=recovering(OpenAIProvider(openai_client=sdk)))
        result = await Runner.run(Agent(name="Helper", model="gpt-5"), "What is a holdfast?", run_config=config)
        print("  answer  ", result.final_output)
        print("  provider", provider.counters)


async def an_outage() -> None:
    print("\nOne provider down: another model answers")
    async with FaultProvider("503, loop") as down, FaultProvider() as up, client(down) as one, client(up) as other:
        spare = OpenAIChatCompletionsModel("grok-4", other)
        model = recovering(OpenAIChatCompletionsModel("gpt-5", one), fallbacks=[spare])
        result = await Runner.run(Agent(name="Helper", model=model), "Are you there?", run_config=QUIET)
        print("  answer  ", result.final_output)
        print("  gpt     ", down.counters)
        print("  grok    ", up.counters)


async def a_cut_stream() -> None:
    print("\nA stream that is cut after its first words raises, or starts again if you choose that")
    async with FaultProvider("cut;after=2, cut;after=2, ok") as provider, client(provider) as sdk:
        modes: tuple[Literal["raise", "restart"], ...] = ("raise", "restart")
        for mode in modes:
            model = recovering(OpenAIChatCompletionsModel("gpt-5", sdk), after_first=mode)
            streamed = Runner.run_streamed(Agent(name="Helper", model=model), "Tell me of the sea.", run_config=QUIET)
            try:
                async for _ in streamed.stream_events():
                    pass
                print(f"  {mode:8}", streamed.final_output)
            except StreamCutError as cut:
                print(f"  {mode:8}", cut.partial.complete if cut.partial else 0, "events, then", cut.fault.code)


async def a_tool() -> None:
    print("\nA tool call that may have had its effect is not repeated, and the model gets this as the result")
    async with FaultProvider(read_script('replies = "tools"')) as provider, client(provider) as sdk:
        agent = Agent(name="Helper", model=recovering(OpenAIChatCompletionsModel("gpt-5", sdk)), tools=[charge])
        result = await Runner.run(agent, "Charge 5 euros.", run_config=QUIET)
        print("  result  ", *(item.output for item in result.new_items if item.type == "tool_call_output_item"))


def print_event(event: Event) -> None:
    if isinstance(event, Retry):
        print("          ⟳", event.text, event.fault.code)
    elif isinstance(event, Fallback):
        print("          ↳", event.to)


async def main() -> None:
    with default_runtime().on(print_event, Retry, Fallback), no_waiting():
        await a_storm()
        await an_outage()
        await a_cut_stream()
        await a_tool()


if __name__ == "__main__":
    asyncio.run(main())
