"""LangChain and LangGraph against a failing provider: the real packages, and a provider that fails on script.

No keys and no network: the provider is on this machine, its answers and failures are those of the real services, and
waiting is switched off.
"""

from __future__ import annotations

import sys
from typing import Any, NotRequired, TypedDict

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool as langchain_tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt
from pydantic import SecretStr

from holdfast import Policy, tool
from holdfast.events import Event, Fallback, Retry
from holdfast.langchain import RecoveryMiddleware, recovering, recovering_node
from holdfast.runtime.runtime import default_runtime
from holdfast.testing import FaultProvider, no_waiting, serve_in_thread


def show(title: str) -> None:
    print(f"\n\033[1m{title}\033[0m" if sys.stdout.isatty() else f"\n{title}\n{'-' * len(title)}")


def claude(provider: FaultProvider) -> ChatAnthropic:
    return ChatAnthropic(
        model_name="claude-haiku-4-5", api_key=SecretStr("none"), base_url=provider.url, timeout=9, stop=None
    )


def gpt(provider: FaultProvider) -> ChatOpenAI:
    return ChatOpenAI(model="gpt-5", api_key=SecretStr("none"), base_url=provider.openai_url)


def a_chain() -> None:
    show("A chain with a model that recovers: the caller does not notice a rate limit, an overload and a cut answer")
    with serve_in_thread("429;retry-after=7, 529, cut, ok") as provider:
        model = recovering(claude(provider))
        chain = ChatPromptTemplate.from_messages([("user", "{question}")]) | model | StrOutputParser()
        print("  answer  ", chain.invoke({"question": "What is a holdfast?"}))
        print("  provider", provider.counters)


def an_agent() -> None:
    show("An agent: its model is down and another one answers. Its tool only reads, so it is retried after a failure")
    failures = [ConnectionResetError(104, "Connection reset by peer")]

    @langchain_tool
    @tool(effect="read")
    def weather(city: str) -> str:
        """The weather in a city."""
        if failures:
            raise failures.pop()
        return f"rain in {city}"

    tools = 'replies = "tools"\n'
    with serve_in_thread("529, loop") as down, serve_in_thread(tools) as up:
        middleware = RecoveryMiddleware(gpt(up), policy=Policy(attempts=2))
        agent: Any = create_agent(claude(down), [weather], middleware=[middleware])
        state = agent.invoke({"messages": [{"role": "user", "content": "How is the weather?"}]})
        print("  answer  ", state["messages"][-1].text)
        print("  claude  ", down.counters)
        print("  gpt     ", up.counters)


class State(TypedDict):
    question: str
    answer: NotRequired[str]


def a_graph() -> None:
    show("A graph: a node recovers, and an interrupt inside it is not a failure")
    with serve_in_thread("529*2, ok, ok") as provider:
        model = claude(provider).model_copy(update={"max_retries": 0})

        @recovering_node
        def ask(state: State) -> dict[str, str]:
            answer = model.invoke(state["question"]).text
            return {"answer": answer if interrupt("Publish it?") == "yes" else "withheld"}

        graph: Any = StateGraph(State)
        graph.add_node("ask", ask)
        graph.add_edge(START, "ask")
        graph.add_edge("ask", END)
        app = graph.compile(checkpointer=InMemorySaver())
        thread = {"configurable": {"thread_id": "1"}}
        paused = app.invoke({"question": "Are you there?"}, thread)
        print("  asks    ", paused["__interrupt__"][0].value)
        print("  answer  ", app.invoke(Command(resume="yes"), thread)["answer"])
        print("  provider", provider.counters)


def print_event(event: Event) -> None:
    if isinstance(event, Retry):
        print("          ⟳", event.text, event.fault.code)
    elif isinstance(event, Fallback):
        print("          ↷", event.to)


def main() -> None:
    with default_runtime().on(print_event, Retry, Fallback), no_waiting():
        a_chain()
        an_agent()
        a_graph()


if __name__ == "__main__":
    main()
