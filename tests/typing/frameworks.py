"""What the frameworks' models and functions are typed as after they recover. Checked, never run."""

from __future__ import annotations

from typing import Any, assert_type

from langchain_anthropic import ChatAnthropic
from langchain_core.runnables import Runnable, RunnableLambda
from langchain_openai import ChatOpenAI
from langgraph.types import RetryPolicy

from holdfast import BATCH
from holdfast.langchain import recovering, recovering_node, retry_policy
from holdfast.pydantic_ai import recovering_tool


def shout(text: str) -> str:
    return text.upper()


async def shout_later(text: str) -> str:
    return text.upper()


def models(claude: ChatAnthropic, gpt: ChatOpenAI, chain: Runnable[dict[str, Any], str]) -> None:
    assert_type(recovering(claude, policy=BATCH), ChatAnthropic)
    assert_type(recovering(gpt, name="gpt"), ChatOpenAI)
    assert_type(recovering(chain), Runnable[dict[str, Any], str])
    assert_type(recovering(RunnableLambda[str, str](shout)), Runnable[str, str])


def functions() -> None:
    assert_type(recovering_node(shout)("a"), str)
    assert_type(recovering_tool(effect="read")(shout)("a"), str)
    assert_type(retry_policy(BATCH), RetryPolicy)


async def coroutines() -> None:
    assert_type(await recovering_node(name="asker")(shout_later)("a"), str)
    assert_type(await recovering_tool(shout_later)("a"), str)
