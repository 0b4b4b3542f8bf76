"""The parts of an agent's work as values: what a remote client gets is what the program saw."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.agents import (
    AgentPart,
    AgentReply,
    Asking,
    Compacted,
    Done,
    FellBack,
    Parked,
    Retrying,
    Text,
    ToolCalled,
    ToolReturned,
)
from holdfast.faults import Fault

FAULT = Fault.of("PROVIDER_OVERLOADED", "busy")
PARTS = [
    Text(text="hi"),
    ToolCalled(id="1", name="search", arguments={"q": "x"}),
    ToolReturned(id="1", name="search", content="nothing", is_error=True, fault=FAULT),
    Retrying(line="Retrying... (2/3)", attempt=2, delay=1.5, fault=FAULT, restarts_text=True),
    FellBack(from_="a", to="b", fault=FAULT, usd=0.25),
    Compacted(before=90, after=12),
    Asking(id="q-1", kind="Approve", prompt="Deploy?", choices=("yes", "no")),
    Parked(until=12.5, fault=FAULT),
    Done(reply=AgentReply(text="done", turns=2, usd=0.5)),
]


@pytest.mark.parametrize("part", PARTS, ids=lambda part: type(part).__name__)
def test_a_part_is_the_same_after_json(part: AgentPart) -> None:
    assert msgspec.json.decode(msgspec.json.encode(part), type=AgentPart) == part
