"""LangGraph's checkpoints in our stores: LangGraph's own conformance tests, real graphs, a real process that is killed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import TypedDict

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from holdfast.langchain import StoreSaver
from holdfast.stores import open_store

PROGRAM = """
import asyncio, os, sys
from typing import TypedDict
from langgraph.graph import END, START, StateGraph
from holdfast.langchain import StoreSaver
from holdfast.stores import open_store

database, log = sys.argv[1:]

class State(TypedDict):
    total: int

def note(word):
    with open(log, "a") as file:
        file.write(word + "\\n")

async def pay(state):
    note("paid")
    return {"total": state["total"] + 1}

async def report(state):
    # The process dies here the first time, as by SIGKILL.
    if open(log).read().count("report") == 0:
        note("report")
        os._exit(9)
    note("report")
    return {"total": state["total"] * 10}

async def main():
    graph = StateGraph(State).add_node(pay).add_node(report)
    graph.add_edge(START, "pay").add_edge("pay", "report").add_edge("report", END)
    async with open_store("sqlite:" + database) as store:
        made = graph.compile(checkpointer=StoreSaver(store))
        config = {"configurable": {"thread_id": "release-42"}}
        begun = (await made.aget_state(config)).next
        state = await made.ainvoke(None if begun else {"total": 1}, config, durability="sync")
        print(state["total"])

asyncio.run(main())
"""


class State(TypedDict):
    total: int
    word: str


def counting_graph():
    async def add(state):
        return {"total": state["total"] + 1}

    async def ask(state):
        return {"word": interrupt("which word?")}

    graph = StateGraph(State).add_node(add).add_node(ask)
    return graph.add_edge(START, "add").add_edge("add", "ask").add_edge("ask", END)


@pytest.mark.parametrize("address", ["memory:", "sqlite:{}"])
def test_the_conformance_tests_of_langgraph_pass(address, tmp_path):
    @checkpointer_test(name="StoreSaver")
    async def saver():
        async with open_store(address.format(tmp_path / "work.db")) as store:
            yield StoreSaver(store)

    report = asyncio.run(validate(saver))
    assert report.passed_all_base()
    assert report.passed_all()


def test_a_killed_process_goes_on_and_repeats_no_finished_node(tmp_path):
    """The process is killed in the second node. Started again, it does not pay twice."""
    log = tmp_path / "log"
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "work.db"), str(log)]
    first = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert first.returncode == 9, first.stderr
    second = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert second.stdout.strip() == "20"
    assert log.read_text().split() == ["paid", "report", "report"]


def test_an_interrupted_graph_is_resumed_by_another_saver(tmp_path):
    """Interrupts and resumes survive: the second saver knows only what is in the file."""
    config = {
        "configurable": {"thread_id": "any id / with spaces, ümlauts and more than a hundred characters " + "x" * 90}
    }
    address = f"sqlite:{tmp_path / 'work.db'}"

    async def main():
        async with open_store(address) as store:
            graph = counting_graph().compile(checkpointer=StoreSaver(store))
            stopped = await graph.ainvoke({"total": 1, "word": ""}, config)
            assert stopped["__interrupt__"][0].value == "which word?"
        async with open_store(address) as store:
            graph = counting_graph().compile(checkpointer=StoreSaver(store))
            assert (await graph.aget_state(config)).next == ("ask",)
            ended = await graph.ainvoke(Command(resume="holdfast"), config)
            history = [each.values.get("total") async for each in graph.aget_state_history(config)]
        return ended, history

    ended, history = asyncio.run(main())
    assert ended == {"total": 2, "word": "holdfast"}
    assert history == [2, 2, 1, None]


def test_two_savers_on_one_file_see_each_others_checkpoints(tmp_path):
    config = {"configurable": {"thread_id": "t"}}
    address = f"sqlite:{tmp_path / 'work.db'}"

    async def main():
        async with open_store(address) as one, open_store(address) as other:
            here, there = (counting_graph().compile(checkpointer=StoreSaver(store)) for store in (one, other))
            assert (await there.aget_state(config)).values == {}
            await here.ainvoke({"total": 1, "word": ""}, config)
            assert (await there.aget_state(config)).values["total"] == 2
            await there.aupdate_state(config, {"total": 7})
            assert (await here.aget_state(config)).values["total"] == 7
            await here.checkpointer.adelete_thread("t")
            assert (await there.aget_state(config)).values == {}
            await there.ainvoke({"total": 4, "word": ""}, config)
            assert (await here.aget_state(config)).values["total"] == 5

    asyncio.run(main())


def test_sync_calls_work_from_other_threads_and_not_in_the_event_loop():
    config = {"configurable": {"thread_id": "t"}}

    async def main():
        async with open_store("memory:") as store:
            graph = counting_graph().compile(checkpointer=StoreSaver(store))
            await graph.ainvoke({"total": 1, "word": ""}, config)
            found = await asyncio.to_thread(graph.get_state, config)
            with pytest.raises(asyncio.InvalidStateError, match="ainvoke"):
                graph.get_state(config)
            return found

    assert asyncio.run(main()).values["total"] == 2


def test_the_thread_is_a_session_that_the_command_line_shows(tmp_path):
    async def main():
        async with open_store(f"sqlite:{tmp_path / 'work.db'}") as store:
            graph = counting_graph().compile(checkpointer=StoreSaver(store))
            await graph.ainvoke({"total": 1, "word": ""}, {"configurable": {"thread_id": "release-42"}})

    asyncio.run(main())
    holdfast = [sys.executable, "-m", "holdfast", "sessions"]
    at = ["--store", f"sqlite:{tmp_path / 'work.db'}"]
    shown = subprocess.run(
        [*holdfast, "ls", *at], capture_output=True, text=True, timeout=60, check=True, cwd=Path.cwd()
    )
    assert "langgraph:release-42" in shown.stdout
