"""A list that stands in several places of a value is small here and may be astronomically large as JSON: it is counted before it leaves."""

from __future__ import annotations

import asyncio
import time

import pytest
from workflow_support import value_of

from holdfast import Session, Workflow
from holdfast.stores.memory import MemoryStore
from holdfast.workflow import Limits, Operators, WorkflowError
from holdfast.workflow.values import equal, size_of

BOMB = "(bind x (list 1)) (loop 60 (set! x (list x x))) "
OPERATORS = Operators(tasks={"send": ("text",)}, functions=frozenset({"call"}), primitives={"count": len})


@pytest.mark.parametrize(
    "end",
    [
        "x",
        "(list x)",
        "(to-json x)",
        "(concat x)",
        '(join (list x x) ",")',
        "(send x)",
        "(send :text x)",
        "(call x)",
        "(count x)",
        '(error "no" x)',
        "(map (lambda (i) x) (range 3))",
        '(try (error "no" x) (catch (failure) failure))',
        '(dict "a" x)',
    ],
)
def test_XK6_shared_structure_is_counted_where_it_would_be_written_out(end):
    with pytest.raises(WorkflowError, match="cells for the copies inside one value") as raised:
        value_of(BOMB + end, operators=OPERATORS)
    assert raised.value.fault.code == "TASK_OUTPUT_EXHAUSTED"


def test_XK6_a_text_that_stands_in_many_places_is_counted_too():
    text = f'(bind t "{"x" * 80_000}") '
    with pytest.raises(WorkflowError, match="cells for the copies inside one value"):
        value_of(text + "(map (lambda (i) t) (range 1000))")


@pytest.mark.parametrize(
    "end",
    [
        "(length x)",
        "(equal? x x)",
        "(bind y (list 1)) (loop 60 (set! y (list y y))) (equal? x y)",
        "(contains? (list 1 2) x)",
        '(log-message "x:" x) 1',
        "(length (map (lambda (i) (length x)) (range 3)))",
    ],
)
def test_XK6_what_does_not_write_it_out_works(end):
    value_of(BOMB + end)


def test_XK6_a_failure_with_shared_structure_in_its_environment_is_raised():
    with pytest.raises(WorkflowError, match="boom") as raised:
        value_of(BOMB + '(error "boom")')
    assert raised.value.environment["x"].startswith("((((")


def test_XK6_copies_are_counted_over_the_whole_run():
    limits = Limits(cells=5_000)
    source = "(bind x (list 1)) (loop 8 (set! x (list x x))) "
    assert value_of(source + "(length (to-json x))", limits=limits) > 500
    with pytest.raises(WorkflowError, match="values made by the workflow"):
        value_of(source + "(loop 10 (to-json x)) 1", limits=limits)


@pytest.mark.parametrize("stored", ["x", "(send x)", "(length x)", '(retry-later ((after 60)) (error "x" x))'])
def test_XK6_a_session_stores_what_binds_shared_structure(stored):
    async def send(text):
        return 1

    async def main():
        found = []
        async with MemoryStore() as store:
            for _ in range(2):
                async with Session.open("s", store=store) as session:
                    workflow = Workflow(f"(send 1) {BOMB} (bind y (list x)) (send 2) {stored}", tasks=[send])
                    try:
                        found.append(await workflow.run(session))
                    except WorkflowError as error:
                        found.append(error.fault.code)
        return found

    began = time.monotonic()
    first, again = asyncio.run(main())
    assert first == again == (2 if stored == "(length x)" else "TASK_OUTPUT_EXHAUSTED")
    assert time.monotonic() - began < 30


def test_the_size_of_a_value_is_that_of_its_json():
    inner = ["a" * 16, 2]
    assert size_of([inner, inner, {"a": inner}]) == (4 + 2 + 3 * 5, 2 * 5, 3)
    assert size_of(1) == (0, 0, 0)
    deep: list = []
    for _ in range(50_000):
        deep = [deep]
    assert (size_of(deep).depth, equal(deep, deep)) == (50_001, True)
