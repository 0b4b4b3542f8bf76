"""A workflow whose program is edited between two runs in one session: what is stored stays stored."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from holdfast import OutcomeUnknownError, Session, tool
from holdfast.stores import MemoryStore
from holdfast.tasks.workflows import Workflow
from holdfast.workflow import WorkflowError

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


def test_a_doubt_about_an_item_is_raised_though_another_item_was_inserted():
    """The doubt stops the items after it, so the new one would be drift."""

    @tool(effect="unsafe")
    async def pay(who: str) -> str:
        if who == "ada":
            raise KeyError(who)
        return f"paid {who}"

    async def main():
        async with MemoryStore() as store:
            for names in ('"ada" "bob" "cy"', '"new" "ada" "bob" "cy"'):
                with pytest.raises(OutcomeUnknownError if "new" in names else WorkflowError):
                    async with Session.open("s", store=store) as session:
                        source = f"(map (lambda (who) (pay :who who)) (list {names}) :limit 2)"
                        await Workflow(source, name="flow", tasks=[pay]).run(session)

    asyncio.run(main())


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


async def runs_of(program: str, *versions: Any, how: str = "tasks") -> list[Any]:
    """Run a program once with each version of a function."""
    async with MemoryStore() as store:
        results = []
        for version in versions:
            async with Session.open("s", store=store) as session:
                registered = {"tasks": {"pay": version}} if how == "tasks" else {"tools": [version]}
                results.append(await Workflow(program, name="flow", **registered).run(session))
        return results


HANDLED = {
    "fallback": '(fallback (pay :who "ada") "nothing")',
    "try": '(try (pay :who "ada") (catch (failure) "nothing"))',
    "map": '(map (lambda (who) (pay :who who)) (list "ada") :collect true)',
    "retry": '(fallback (retry 3 (pay :who "ada")) "nothing")',
}


@pytest.mark.parametrize("how", ["tasks", "tools"])
@pytest.mark.parametrize("effect", ["unsafe", "read"])
@pytest.mark.parametrize("program", HANDLED)
def test_a_renamed_parameter_changes_no_result_that_the_program_had(program: str, effect: Any, how: str):
    @tool(name="pay", effect=effect)
    async def before(who: str) -> str:
        return f"paid {who}"

    @tool(name="pay", effect=effect)
    async def after(whom: str) -> str:
        raise AssertionError(whom)

    first, second = asyncio.run(runs_of(HANDLED[program], before, after, how=how))
    assert first == second
    assert "paid ada" in (first, *first)


@pytest.mark.parametrize("how", ["tasks", "tools"])
@pytest.mark.parametrize("effect", ["unsafe", "read"])
@pytest.mark.parametrize("program", HANDLED)
def test_a_call_that_did_not_fit_and_was_handled_stays_handled(program: str, effect: Any, how: str):
    @tool(name="pay", effect=effect)
    async def before(whom: str) -> str:
        raise AssertionError(whom)

    @tool(name="pay", effect=effect)
    async def after(who: str) -> str:
        return f"paid {who}"

    first, second = asyncio.run(runs_of(HANDLED[program], before, after, how=how))
    assert first == second
    assert first == "nothing" or first[0]["message"] == "pay takes whom; got who"


@pytest.mark.parametrize("effect", ["unsafe", "read"])
def test_a_call_that_did_not_fit_and_ended_the_workflow_is_made_when_it_fits(effect: Any):
    @tool(effect=effect)
    async def pay(who: str) -> str:
        return f"paid {who}"

    async def scenario() -> str:
        async with MemoryStore() as store, Session.open("s", store=store) as session:
            with pytest.raises(WorkflowError, match="pay takes who; got whom"):
                await Workflow('(pay :whom "ada")', name="flow", tasks=[pay]).run(session)
            assert session.unknown == ()
            return str(await Workflow('(pay :who "ada")', name="flow", tasks=[pay]).run(session))

    assert asyncio.run(scenario()) == "paid ada"


def test_an_unsafe_task_that_lacks_an_argument_has_surely_not_happened():
    @tool(effect="unsafe")
    async def pay(who: str, account: str) -> str:
        raise AssertionError(who, account)

    assert asyncio.run(runs('(fallback (pay :who "ada") "nothing")', tasks=[pay])) == ["nothing"]
