"""Models and providers of the OpenAI Agents SDK that recover keep their types. Checked, never run."""

from __future__ import annotations

from typing import assert_type

from agents import Agent, OpenAIChatCompletionsModel, OpenAIProvider, OpenAIResponsesModel, RunConfig, function_tool
from openai import AsyncOpenAI

from holdfast import BATCH, Runtime
from holdfast.openai_agents import recovering, tool_failure

client = AsyncOpenAI()
spare = OpenAIChatCompletionsModel("gpt-5-mini", client)
model = recovering(
    OpenAIResponsesModel("gpt-5", client),
    policy=BATCH,
    name="openai",
    fallbacks=[spare],
    after_first="restart",
    runtime=Runtime(),
)
assert_type(model, OpenAIResponsesModel)
assert_type(recovering(OpenAIProvider()), OpenAIProvider)
RunConfig(model_provider=recovering(OpenAIProvider()))
Agent(name="Helper", model=model)


@function_tool(failure_error_function=tool_failure)
def weather(city: str) -> str:
    return city


recovering(client)  # type: ignore[type-var] # pyright: ignore[reportArgumentType]
