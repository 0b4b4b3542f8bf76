"""What a task that was split fails with: the code and the error of what ended it, and the results of its parts as they are."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from holdfast import Budget, BudgetError, DeadlineError, Err, HoldfastError, recover
from holdfast.documents.task import TaskSystem
from holdfast.events import TaskFinished, decode, encode
from holdfast.faults import Fault
from holdfast.runtime.runtime import default_runtime
from holdfast.tasks import Decomposition, Status, Task, TaskError, TaskResult, by_items, by_section
from holdfast.views import task as view

DOC = "# One\nalpha\n\n# Two\nbeta\n\n# Three\ngamma\n\n# Four\ndelta\n"
LARGEST = len(DOC) - 1
WHOLE = Task("{doc}", inputs={"doc": DOC}, name="report")


def splitting(part, most=LARGEST):
    """A performer for which a text is too large; what is not is performed by `part`."""

    async def perform(assignment):
        text = assignment.task.inputs["doc"]
        if len(text) > most:
            raise HoldfastError(Fault.of("PROVIDER_CONTEXT_OVERFLOW"))
        return await part(text)

    return perform


def system(part, most=LARGEST, **options):
    return TaskSystem(splitting(part, most), **{"decomposer": by_section, "change": None, "concurrency": 1, **options})


async def failure(tasks, task=WHOLE):
    with pytest.raises(TaskError) as caught:
        await tasks.run(task)
    return caught.value


@recover("summariser")
async def upper(text):
    return text.upper()


async def slow(text):
    await asyncio.sleep(3)
    return text[2:5]


async def broken(text):
    if "gamma" in text:
        raise ValueError("cannot read the notes")
    return text[2:5]


# The code and the error


async def test_a_split_task_that_the_budget_around_it_ends_has_the_code_and_the_error_of_the_budget():
    with Budget(attempts=1):
        error = await failure(system(upper))
    fault = error.fault
    assert fault.code == "SYS_BUDGET_EXHAUSTED"
    assert isinstance(error.__cause__, BudgetError)
    assert fault.message.startswith("The budget of 1 attempts is spent. This ended report (part 2). ")
    assert fault.message.endswith("The task was split into 2 parts, 1 of which is done")
    assert fault.context["split"] == {"code": "TASK_CONTEXT_EXHAUSTED", "parts": 2}
    assert (fault.partial.complete, fault.partial.expected) == (1, 2)


async def test_a_split_task_that_the_deadline_around_it_ends_has_the_code_and_the_error_of_the_deadline():
    with Budget(seconds=5):
        error = await failure(system(slow))
    assert error.fault.code == "SYS_DEADLINE_EXCEEDED"
    assert isinstance(error.__cause__, DeadlineError)
    assert error.fault.partial.payload == ["One"]


async def test_a_split_task_ended_by_an_exception_of_a_part_has_its_code_and_the_exception():
    error = await failure(system(broken))
    assert error.fault.code == "SYS_PROGRAMMING_ERROR"
    assert error.fault.message.startswith("report (part 2): cannot read the notes. ")
    assert type(error.__cause__) is ValueError


async def test_a_task_that_is_not_split_has_the_exception_as_its_cause_too():
    async def perform(_assignment):
        raise ValueError("cannot read the notes")

    tasks = TaskSystem(perform)
    assert type((await failure(tasks)).__cause__) is ValueError
    match await tasks.outcome(WHOLE):
        case Err(error=error):
            assert type(error.__cause__) is ValueError


async def test_a_split_within_a_split_has_the_code_of_what_ended_it_and_says_it_once():
    with Budget(attempts=3):
        error = await failure(system(upper, most=20))
    assert error.fault.code == "SYS_BUDGET_EXHAUSTED"
    assert isinstance(error.__cause__, BudgetError)
    assert error.fault.message.count("split into") == 1
    assert error.fault.context["depth"] == 2


async def test_the_values_of_a_part_that_was_split_and_failed_are_in_the_partial_result():
    # Both halves are split once more. The last of the four sections fails.
    async def part(text):
        if "delta" in text:
            raise HoldfastError(Fault.of("AUTH_FAILED"))
        return text.split()[-1]

    partial = (await failure(system(part, most=20))).fault.partial
    assert partial.payload == ["alpha\n\nbeta", "gamma"]
    assert (partial.complete, partial.expected) == (2, 3), "the first half, and both parts of the second"


async def test_a_part_that_cannot_be_split_further_leaves_the_task_its_own_code():
    error = await failure(system(upper, most=0, max_depth=1))
    assert (error.fault.code, error.fault.context["depth"]) == ("TASK_CONTEXT_EXHAUSTED", 1)
    assert error.__cause__.fault.code == "PROVIDER_CONTEXT_OVERFLOW"


async def test_with_fail_fast_the_part_that_failed_first_counts_and_not_a_sibling_that_was_stopped():
    async def part(text):
        await asyncio.sleep(1 if "gamma" in text else 10)
        raise HoldfastError(Fault.of("AUTH_FAILED"))

    error = await failure(system(part, concurrency=2))
    assert error.fault.code == "AUTH_FAILED"
    assert error.__cause__.fault.code == "AUTH_FAILED"
    assert "This ended report (part 2)" in error.fault.message
    stopped = error.fault.partial.errors[0]
    assert (stopped.code, stopped.message) == ("TASK_SIBLING_FAILED", "Stopped, because report (part 2) failed")


async def test_a_part_that_did_not_begin_says_so():
    async def part(_text):
        raise HoldfastError(Fault.of("AUTH_FAILED"))

    error = await failure(system(part))
    assert error.fault.partial.errors[1].message == "Not begun, because report (part 1) failed"


async def test_collected_failures_have_the_code_of_the_first():
    async def part(text):
        raise HoldfastError(Fault.of("AUTH_FAILED" if "alpha" in text else "TASK_OUTPUT_INVALID"))

    error = await failure(system(part, on_failure="collect"))
    assert error.fault.code == "AUTH_FAILED"
    assert [each.code for each in error.fault.partial.errors] == ["AUTH_FAILED", "TASK_OUTPUT_INVALID"]


async def test_what_failed_twice_in_a_part_is_not_tried_again_for_each_split_around_it():
    calls = []

    async def part(text):
        calls.append(text)
        raise HoldfastError(Fault.of("TASK_OUTPUT_INVALID"))

    error = await failure(system(part, most=20, change=lambda task, _fault: task.with_(prompt="Briefly: {doc}")))
    assert error.fault.code == "TASK_OUTPUT_INVALID"
    assert len(calls) == 2


# Merging


async def test_a_merge_that_fails_keeps_the_results_of_the_parts_and_its_exception():
    def merge(_results):
        raise ValueError("they do not match")

    async def part(text):
        return text[2:5]

    error = await failure(system(part, decomposer=by_section(merge=merge)))
    assert error.fault.code == "SYS_PROGRAMMING_ERROR"
    assert error.fault.message == "report (merge): they do not match"
    assert type(error.__cause__) is ValueError
    assert error.fault.partial.payload == ["One", "Thr"]
    assert (error.fault.partial.complete, error.fault.partial.expected) == (2, 2)


async def test_a_merge_task_that_the_budget_ends_keeps_the_results_and_has_the_code_of_the_budget():
    async def decompose(task, _fault, _left):
        return Decomposition([task.with_(inputs={"doc": text}) for text in ("a", "b")], Task("Join {results}"))

    async def perform(assignment):
        texts = assignment.task.inputs.get("results")
        return await upper("".join(texts)) if texts else await splitting(upper)(assignment)

    with Budget(attempts=2):
        error = await failure(TaskSystem(perform, decomposer=decompose))
    assert error.fault.code == "SYS_BUDGET_EXHAUSTED"
    assert isinstance(error.__cause__, BudgetError)
    assert error.fault.partial.payload == ["A", "B"]


# Around it


async def test_a_subtask_that_was_split_and_ended_by_the_budget_ends_its_parent_with_the_code_of_the_budget():
    inner = splitting(upper)

    async def perform(assignment):
        if assignment.task.prompt != "parent":
            return await inner(assignment)
        return TaskResult(status=Status.CONTINUATION, notes={"subtask_request": WHOLE})

    with Budget(attempts=1):
        error = await failure(TaskSystem(perform, decomposer=by_section, concurrency=1), Task("parent"))
    assert error.fault.code == "SYS_BUDGET_EXHAUSTED"


async def test_a_workflow_around_it_sees_that_the_budget_is_spent():
    with Budget(attempts=1):
        result = await system(upper).execute_s_expression("(list (call-atomic-task 'sum))", tasks={"sum": WHOLE})
    assert result.fault.code == "SYS_BUDGET_EXHAUSTED"


# What it had


@dataclass
class Digest:
    errors: int


LINES = Task(
    "Digest {lines}", inputs={"lines": [f"line {n}" for n in range(40)]}, output=Digest, context=110, name="night"
)


async def digest(assignment):
    await asyncio.sleep(3)
    return Digest(len(assignment.task.inputs["lines"]))


async def test_the_results_of_typed_parts_are_values_of_the_type():
    with Budget(seconds=5):
        error = await failure(TaskSystem(digest, decomposer=by_items, concurrency=1), LINES)
    assert error.fault.partial.payload == [Digest(20)]
    assert error.result.content == '[{"errors":20}]'
    document = error.result.document()
    assert document["notes"]["error"]["details"]["partialResults"] == [{"errors": 20}]
    assert view.read_result(document).code == "TASK_TIMEOUT"


async def test_events_hold_the_results_of_typed_parts_as_plain_values():
    seen = []
    default_runtime().on(seen.append, TaskFinished)
    with Budget(seconds=5):
        await failure(TaskSystem(digest, decomposer=by_items, concurrency=1), LINES)
    assert seen[-1].fault.partial.payload == [{"errors": 20}]
    assert decode(encode(seen[-1])) == seen[-1]


async def test_the_text_of_a_failed_split_is_joined_as_that_of_a_complete_one():
    with Budget(seconds=8):
        result = await system(slow, most=20, concurrency=1).execute_task(WHOLE)
    assert (result.status, result.content) == (Status.FAILED, "One\n\nTwo")
