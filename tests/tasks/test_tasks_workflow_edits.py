"""A workflow whose program is edited between two runs in one session: what is stored stays stored."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from holdfast import Session, tool
from holdfast.stores import MemoryStore
from holdfast.tasks.workflows import Workflow

MAP = "(map (lambda (who) (pay :who who)) (list {}))"
EDITS = {
    "an item before the others": (MAP.format('"ada" "bob"'), MAP.format('"new" "ada" "bob"')),
    "other order": (MAP.format('"ada" "bob"'), MAP.format('"bob" "ada"')),
    "a map before it": (
        MAP.format('"ada" "bob"'),
        "(map (lambda (x) (+ x 1)) (list 1 2)) " + MAP.format('"ada" "bob"'),
    ),
    "a list becomes a map": ('(list (pay :who "ada") (pay :who "bob"))', MAP.format('"ada" "bob"')),
    "a map becomes a list": (MAP.format('"ada" "bob"'), '(list (pay :who "ada") (pay :who "bob"))'),
    "a map in a map": (f'(map (lambda (x) {MAP.format("x")}) (list "ada" "bob"))', MAP.format('"ada" "bob"')),
}


async def runs(*programs: str, tasks: list[Any]) -> list[Any]:
    async with MemoryStore() as store:
        results = []
        for program in programs:
            async with Session.open("s", store=store) as session:
                results.append(await Workflow(program, name="flow", tasks=tasks).run(session))
        return results


@pytest.mark.parametrize("edit", EDITS)
def test_XK2_an_edit_repeats_no_stored_call(edit: str):
    paid: list[str] = []

    @tool(effect="unsafe")
    async def pay(who: str) -> str:
        paid.append(who)
        return f"paid {who}"

    asyncio.run(runs(*EDITS[edit], tasks=[pay]))
    assert sorted(paid) == (["ada", "bob", "new"] if "item" in edit else ["ada", "bob"])


def test_XK2_equal_calls_of_items_keep_their_results_when_an_item_is_inserted():
    numbers = itertools.count(1)

    async def new_id() -> int:
        await asyncio.sleep(0)
        return next(numbers)

    program = "(map (lambda (who) (list who (new-id))) (list {}))"
    first, second = asyncio.run(
        runs(program.format('"ada" "bob" "bob"'), program.format('"new" "bob" "ada" "bob"'), tasks=[new_id])
    )
    assert dict(map(tuple, second))["ada"] == dict(map(tuple, first))["ada"]
    assert [each for each in second if each[0] == "bob"] == [each for each in first if each[0] == "bob"]
