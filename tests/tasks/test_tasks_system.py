"""Tasks: performed by functions and agents, checked, nested, split and merged; every failure holds what there was."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast import Agent, Budget, BudgetError, Err, HoldfastError, InvalidError, Ok, Runtime, Session, recover, tool
from holdfast.documents.task import TaskSystem
from holdfast.events import BudgetWarning
from holdfast.faults import Fault, Partial
from holdfast.providers import Offers, Reply
from holdfast.runtime.ambient import AMBIENT
from holdfast.stores.memory import MemoryStore
from holdfast.tasks import (
    ContextIndex,
    ContextUse,
    Decomposition,
    Status,
    Task,
    TaskError,
    TaskResult,
    XmlOutput,
    by_items,
    by_model,
    by_section,
)
from holdfast.tasks.execution import Execution
from holdfast.tasks.place import HERE, TaskPlace
from holdfast.tasks.reports import TaskReport
from holdfast.testing import VirtualClock
from holdfast.testing import run as virtual_run
from holdfast.views import task as view


@dataclass
class Summary:
    title: str
    points: list[str]


def answers(*texts):
    """A performer that gives these answers, one after the other, and remembers what it was asked."""
    left = list(texts)

    async def perform(assignment):
        perform.prompts.append(assignment.prompt)
        answer = left.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    perform.prompts = []
    return perform


def run(system, task, **options):
    return virtual_run(system.execute_task(task, **options))


# One task


def test_S3_6_a_task_returns_its_output_as_a_value_of_its_type():
    system = TaskSystem(answers('{"title": "Tides", "points": ["moon"]}'))
    task = Task("Summarise {doc}", inputs={"doc": "the moon"}, output=Summary)
    assert virtual_run(system.run(task)) == Summary("Tides", ["moon"])


def test_a_plain_function_may_perform_tasks_and_return_any_value():
    system = TaskSystem(lambda assignment: {"n": len(assignment.prompt)})
    result = run(system, Task("count me"))
    assert (result.value, result.content, result.status) == ({"n": 8}, '{"n":8}', Status.COMPLETE)


def test_inputs_are_filled_in_and_braces_can_be_written():
    perform = answers("ok")
    run(TaskSystem(perform), Task("{a} and {b} as {{json}}", inputs={"a": "x", "b": [1, 2]}))
    assert perform.prompts == ["x and [1,2] as {json}"]


@pytest.mark.parametrize(("prompt", "code"), [("{missing}", "TASK_INPUT_INVALID"), ("a { b", "TASK_MODEL_INVALID"), ("{a!r}", "TASK_INPUT_INVALID")])  # fmt: skip
def test_S3_3_an_input_that_is_missing_is_a_failure_that_names_it(prompt, code):
    result = run(TaskSystem(answers()), Task(prompt, inputs={"a": "x"}))
    assert (result.status, result.fault.code) == (Status.FAILED, code)


@pytest.mark.parametrize("wrong", [{"prompt": " "}, {"prompt": "a", "turns": 0}, {"prompt": "a", "inputs": {1: 2}}, {"prompt": "a", "seconds": -1}])  # fmt: skip
def test_a_wrong_task_says_where(wrong):
    with pytest.raises(InvalidError, match=r"task\."):
        Task(**wrong)


def test_outcome_returns_and_run_raises():
    broken = answers(ValueError("no"), ValueError("no"))
    system = TaskSystem(broken)
    assert isinstance(virtual_run(system.outcome(Task("a"))), Err)
    with pytest.raises(TaskError) as raised:
        virtual_run(system.run(Task("a")))
    assert raised.value.result.status is Status.FAILED
    assert isinstance(virtual_run(TaskSystem(answers("x")).outcome(Task("a"))), Ok)


# The form of the output


def test_A93_an_object_where_an_array_is_expected():
    system = TaskSystem(answers(*['{"a": 1}'] * 2))
    result = run(system, Task("list", output="array", reasks=1))
    error = result.notes["error"]
    assert (error["type"], error["reason"]) == ("TASK_FAILURE", "output_format_failure")
    assert error["message"] == 'Expected output of type "array" but got "object"'
    assert error["details"]["expectedType"] == "array"
    assert error["details"]["actualType"] == "object"
    assert error["details"]["originalOutput"] == error["details"]["partialOutput"] == '{"a": 1}'


def test_S3_9_the_agent_is_asked_again_with_what_was_wrong():
    perform = answers('{"a": 1}', "[1]")
    result = run(TaskSystem(perform), Task("list", output="array"))
    assert result.value == [1]
    assert 'Expected output of type "array" but got "object"' in perform.prompts[1]
    assert '{"a": 1}' in perform.prompts[1]


@pytest.mark.parametrize(
    ("word", "good", "bad"),
    [
        ("object", "{}", "[]"),
        ("array", "[1]", "{}"),
        ("[]", "[1]", "3"),
        ("string[]", '["a"]', "[1]"),
        ("number", "1", '"1"'),
        ("number", "1.5", "true"),
        ("boolean", "true", "1"),
    ],
)
def test_N3_9_the_words_of_a_schema(word, good, bad):
    task = Task("go", output=word, reasks=0)
    assert run(TaskSystem(answers(good)), task).status is Status.COMPLETE
    assert run(TaskSystem(answers(bad)), task).fault.code in {"TASK_OUTPUT_FORMAT", "TASK_OUTPUT_INVALID"}


def test_N3_9_text_that_is_no_json_is_a_note_or_with_strict_a_failure():
    loose = run(TaskSystem(answers("hello")), Task("go", output="array"))
    assert (loose.status, loose.content, loose.value) == (Status.COMPLETE, "hello", None)
    assert "not JSON" in loose.notes["parseError"]
    strict = run(TaskSystem(answers("hello")), Task("go", output="array", strict=True, reasks=0))
    assert (strict.status, strict.content) == (Status.FAILED, "hello")
    typed = run(TaskSystem(answers("hello")), Task("go", output=Summary, reasks=0))
    assert typed.fault.code == "TASK_OUTPUT_INVALID"


def test_all_violations_of_a_json_schema_are_listed_and_fenced_json_is_read():
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a", "b", "c"]}  # fmt: skip
    result = run(TaskSystem(answers('{"a": "x", "b": 2}')), Task("go", output=schema, reasks=0))
    assert len(result.fault.context["violations"]) == 3
    fenced = 'Here it is:\n```json\n{"a": 1, "b": "x", "c": 0}\n```\n'
    assert run(TaskSystem(answers(fenced)), Task("go", output=schema)).value == {"a": 1, "b": "x", "c": 0}


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("<r><a/></r>", None),
        ("<r><b/></r>", "TASK_XML_INVALID"),
        ("<q><a/></q>", "TASK_XML_INVALID"),
        ("<r><a></r>", "TASK_XML_PARSE_ERROR"),
        ('<!DOCTYPE r [<!ENTITY x "y">]><r><a>&x;</a></r>', "TASK_XML_INVALID"),
        ("", "TASK_XML_PARSE_ERROR"),
    ],
)
def test_S3_3_xml_is_well_formed_has_its_elements_and_no_document_type(text, code):
    result = run(TaskSystem(answers(text)), Task("go", output=XmlOutput("r", ("a",)), reasks=0))
    assert (result.fault and result.fault.code) == code


def test_a_wrong_word_for_the_output_is_rejected_with_the_right_one():
    result = run(TaskSystem(answers()), Task("go", output="arry"))
    assert result.fault.code == "TASK_MODEL_INVALID"
    assert "got 'arry'; did you mean `array`?" in result.fault.message


# Limits


def test_A83_a_turn_too_many_is_resource_exhaustion_with_metrics_and_the_partial_output():
    async def never_done(assignment):
        number = len(assignment.results)
        if assignment.task.prompt != "write":
            return "found"
        request = {"type": "atomic", "description": f"look {number}"}
        return TaskResult(content=f"draft {number}", status=Status.CONTINUATION, notes={"subtask_request": request})

    # Two turns of the task, one of its subtask: what a subtask spends is spent by the task.
    result = run(TaskSystem(never_done), Task("write", turns=3))
    error = result.notes["error"]
    assert (error["type"], error["resource"]) == ("RESOURCE_EXHAUSTION", "turns")
    assert (result.fault.context["used"], result.fault.context["limit"]) == (3, 3)
    assert (result.status, result.content) == (Status.FAILED, "draft 1")


def test_a_prompt_or_an_output_beyond_its_limit_is_resource_exhaustion():
    context = run(TaskSystem(answers()), Task("x" * 100, context=10))
    assert (context.notes["error"]["resource"], context.fault.context["used"]) == ("context", 25)
    output = run(TaskSystem(answers("y" * 100)), Task("go", max_output=10))
    assert (output.notes["error"]["resource"], output.content) == ("output", "y" * 100)


def test_a_budget_around_is_not_the_tasks_own_limit_and_is_not_decomposed():
    async def main():
        with Budget(turns=1):
            system = TaskSystem(answers("a", "b"), decomposer=by_section)
            first = await system.execute_task(Task("go"))
            return first, await system.execute_task(Task("{x}", inputs={"x": "one. two."}, turns=5))

    first, second = virtual_run(main())
    assert first.status is Status.COMPLETE
    assert second.fault.code == "SYS_BUDGET_EXHAUSTED"


def test_S3_3_a_task_over_its_time_is_execution_timeout():
    runtime = Runtime(clock=VirtualClock())

    async def slow(_assignment):
        await asyncio.sleep(100)

    async def recovered(assignment):
        return await recover("slow", runtime=runtime).call(slow, assignment)

    system = TaskSystem(recovered, runtime=runtime)
    result = virtual_run(system.execute_task(Task("go", seconds=5)), clock=runtime.clock)
    assert result.notes["error"]["reason"] == "execution_timeout"


def test_S3_3_a_function_that_does_not_end_is_stopped_when_the_time_of_its_task_is_over():
    runtime = Runtime(clock=VirtualClock())
    ended = []

    async def endless(_assignment):
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(runtime.clock.monotonic())

    system = TaskSystem(endless, runtime=runtime)
    result = virtual_run(system.execute_task(Task("go", seconds=5)), clock=runtime.clock)
    assert result.notes["error"]["reason"] == "execution_timeout"
    assert result.fault.code == "TASK_TIMEOUT"
    assert ended == [pytest.approx(5, abs=0.1)]


@pytest.mark.parametrize("seed", range(20))
def test_N3_6_parts_that_run_beside_each_other_never_spend_more_turns_than_there_are(seed):
    chance = random.Random(seed)
    turns = chance.randint(1, 12)
    performed = 0

    async def perform(assignment):
        nonlocal performed
        performed += 1
        await asyncio.sleep(chance.random())
        items = assignment.task.inputs["items"]
        if len(items) > 1:
            raise HoldfastError(Fault.of("TASK_TURNS_EXHAUSTED"))
        return items

    async def main():
        with Budget(turns=turns) as budget:
            system = TaskSystem(perform, decomposer=by_items, concurrency=chance.randint(1, 6), change=None)
            task = Task("{items}", inputs={"items": list(range(chance.randint(2, 9)))}, output="array")
            result = await system.execute_task(task)
            return result, budget.spend().turns, budget.left().turns

    result, spent, left = virtual_run(main())
    assert spent == performed <= turns
    assert left == turns - spent
    assert result.status is Status.COMPLETE or result.fault.code in {"SYS_BUDGET_EXHAUSTED", "TASK_TURNS_EXHAUSTED"}


# Progress


def test_S3_5_three_rounds_that_change_nothing_halt_the_task_and_an_alternative_is_tried_once():
    perform = answers(*["  same  text", "same text"] * 4, "[1]")
    stuck = run(TaskSystem(perform), Task("go", output="array", strict=True, reasks=9))
    assert (stuck.notes["error"]["reason"], len(perform.prompts)) == ("execution_halted", 3)
    assert stuck.content.strip().startswith("same")

    perform = answers("a", "a", "a", "[1]")
    system = TaskSystem(perform, alternative=lambda task, _fault: task.with_(prompt="otherwise"))
    assert run(system, Task("go", output="array", strict=True, reasks=9)).value == [1]
    assert perform.prompts[3].startswith("otherwise")


# Subtasks


def _asks_in_turn(requests):
    """A performer whose rounds end with these requests in turn, and whose subtasks have the results a and b."""

    def perform(assignment):
        if assignment.task.prompt != "watch":
            return assignment.task.prompt
        perform.rounds += 1
        return continuing(Task(requests[perform.rounds % len(requests)])) if perform.rounds < 12 else "done"

    perform.rounds = 0
    return perform


@pytest.mark.parametrize(("requests", "rounds"), [(["a"], 3), (["a", "b"], 5)])
def test_XK9_a_task_whose_rounds_alternate_is_halted_too(requests, rounds):
    perform = _asks_in_turn(requests)
    assert run(TaskSystem(perform), Task("watch")).fault.code == "TASK_HALTED"
    assert perform.rounds == rounds


def test_XK9_a_task_that_waits_for_the_world_may_go_on_unchanged():
    assert run(TaskSystem(_asks_in_turn(["a"])), Task("watch", unchanged=None)).content == "done"
    with pytest.raises(InvalidError, match=r"task\.unchanged"):
        Task("watch", unchanged=1)


def continuing(request):
    return TaskResult(status=Status.CONTINUATION, notes={"subtask_request": request})


def test_N3_3_a_subtask_is_performed_and_its_result_goes_back_to_the_parent():
    async def perform(assignment):
        if assignment.task.prompt != "parent":
            return f"did {assignment.prompt}"
        if not assignment.results:
            return continuing({"type": "atomic", "description": "look at {x}", "inputs": {"x": "it"}})
        return f"parent with {assignment.results[0].content}"

    assert run(TaskSystem(perform), Task("parent")).content == "parent with did look at it"


def test_A85_a_subtask_at_depth_two_fails_and_the_chain_is_readable_to_the_root():
    async def perform(assignment):
        following = {"root": "middle", "middle": "leaf"}.get(assignment.task.prompt)
        if following is not None:
            return continuing({"type": "atomic", "description": following, "inputs": {"of": assignment.task.prompt}})
        partial = Partial(payload="half")
        raise HoldfastError(Fault.of("TASK_HALTED", "Failed to process data format", partial=partial))

    result = run(TaskSystem(perform, change=None), Task("root"))
    details = result.notes["error"]["details"]
    assert result.notes["error"]["reason"] == "subtask_failure"
    assert details["subtaskRequest"] == {"type": "atomic", "description": "middle", "inputs": {"of": "root"}}
    assert details["nestingDepth"] == 2
    assert details["partialOutput"] == "half"
    inner = details["subtaskError"]["details"]
    assert inner["subtaskRequest"]["description"] == "leaf"
    assert inner["subtaskError"]["reason"] == "execution_halted"


def test_S3_15_a_failed_subtask_is_tried_once_more_with_a_modified_request_and_its_partial_output():
    prompts = []

    async def perform(assignment):
        prompts.append(assignment.prompt)
        if assignment.task.prompt == "parent":
            return assignment.results[0].content if assignment.results else continuing({"type": "atomic", "description": "{x} hard", "inputs": {"x": "too"}})  # fmt: skip
        if assignment.prompt.startswith("Retry"):
            return "simple"
        raise HoldfastError(Fault.of("TASK_HALTED", partial=Partial(payload="half {of} it")))

    result = run(TaskSystem(perform), Task("parent"))
    assert result.content == "simple"
    assert prompts[2].startswith("Retry with a simplified approach: too hard")
    assert "half {of} it" in prompts[2]


def test_a_deep_failure_is_tried_twice_where_it_happens_and_not_again_at_each_level():
    async def perform(assignment):
        perform.calls += 1
        depth = assignment.task.inputs.get("depth", 0)
        if depth == 4:
            raise HoldfastError(Fault.of("TASK_HALTED"))
        return continuing(Task(f"level {depth + 1}", inputs={"depth": depth + 1}))

    perform.calls = 0
    assert run(TaskSystem(perform), Task("level 0")).fault.code == "TASK_SUBTASK_FAILED"
    assert perform.calls == 4 + 2


def test_a_failure_that_the_model_must_act_on_is_tried_in_other_words():
    async def perform(assignment):
        if assignment.task.prompt == "parent":
            return assignment.results[0].content if assignment.results else continuing(Task("list", output="array", strict=True, reasks=0))  # fmt: skip
        return "[1]" if assignment.prompt.startswith("Retry") else "one"

    assert run(TaskSystem(perform), Task("parent")).content == "[1]"


def test_a_failure_that_a_person_must_act_on_is_not_tried_in_other_words():
    async def perform(assignment):
        if assignment.task.prompt == "parent":
            return continuing({"type": "atomic", "description": "child"})
        perform.calls += 1
        raise HoldfastError(Fault.of("AUTH_FAILED"))

    perform.calls = 0
    result = run(TaskSystem(perform), Task("parent"))
    assert (result.fault.code, perform.calls) == ("TASK_SUBTASK_FAILED", 1)


def test_N3_4_a_task_that_asks_for_itself_is_a_cycle_and_nesting_has_a_limit():
    async def again(assignment):
        return continuing({"type": "atomic", "description": assignment.task.prompt})

    cycle = run(TaskSystem(again), Task("a"))
    assert cycle.notes["error"]["details"]["subtaskError"]["message"].startswith("The task asks for itself: a → a")

    async def deeper(assignment):
        return continuing({"type": "atomic", "description": assignment.task.prompt + "a"})

    deep = run(TaskSystem(deeper, max_depth=3), Task("a"))
    error = deep.notes["error"]
    for _ in range(4):
        error = error["details"]["subtaskError"]
    assert "deeper than 3" in error["message"]
    with pytest.raises(InvalidError, match="from 0 to 10"):
        TaskSystem(deeper, max_depth=11)


def test_a_task_run_inside_of_a_performer_is_below_it_too():
    async def perform(assignment):
        return await system.run(Task(assignment.task.prompt))

    system = TaskSystem(perform)
    result = run(system, Task("a"))
    assert "asks for itself" in result.fault.message


@pytest.mark.parametrize(("inherit", "seen"), [("full", ["tides", "trains"]), ("subset", ["tides"]), ("none", [])])
def test_N3_5_a_subtask_inherits_all_of_the_background_what_fits_or_nothing(inherit, seen):
    prompts = []

    async def perform(assignment):
        prompts.append(assignment.prompt)
        if assignment.task.prompt == "parent":
            child = Task("explain the tides", use=ContextUse(inherit=inherit))
            return assignment.results[0].content if assignment.results else continuing(child)
        return "ok"

    background = "About tides and the moon.\n\nAbout trains and stations."
    run(TaskSystem(perform), Task("parent", background=background))
    assert [word for word in ("tides", "trains") if f"About {word}" in prompts[1]] == seen


@pytest.mark.parametrize(
    ("accumulate", "expected"),
    [("full_output", ["one", "two"]), ("notes_only", ['{"score":1}', "two"]), (None, ["two"])],
)
def test_N3_5_what_an_agent_sees_of_its_subtasks(accumulate, expected):
    class Parent:
        name = "parent"
        prompts: list[str] = []

        async def outcome(self, prompt, *, session=None):
            raise NotImplementedError

        async def run(self, prompt, *, session=None):
            self.prompts.append(prompt)
            return SimpleNamespace(text="done")

    agent = Parent()
    place = TaskPlace()
    task = Task("parent", use=ContextUse(accumulate=accumulate))
    report = TaskReport(Runtime(), task, 0, {})
    execution = Execution(task, ("parent", agent), place, session=None, runtime=Runtime(), subtask=None, report=report)
    execution._results = [TaskResult(content="one", notes={"score": 1}), TaskResult(content="two")]
    virtual_run(execution.run())
    shown = [part.partition(":\n")[2] for part in agent.prompts[0].split("\n\n")[1:]]
    assert shown == expected


# Templates

GOOD = """<task name="n" turns="3" disable_reparsing="true"><description>Do {a}</description>
<inputs><input name="a">it</input></inputs><output_format type="json" schema="array"/>
<context_management><inherit_context>full</inherit_context><accumulate_data>true</accumulate_data>
<accumulation_format>notes_only</accumulation_format></context_management></task>"""


def test_a_template_of_xml_is_read():
    task = Task.from_xml(GOOD)
    assert (task.name, task.turns, task.decompose, task.output, task.text()) == ("n", 3, False, "array", "Do it")
    assert task.use == ContextUse(inherit="full", accumulate="notes_only")


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (GOOD[:-3], "TASK_XML_PARSE_ERROR"),
        ("<job/>", "TASK_XML_INVALID"),
        ("<task/>", "TASK_MODEL_INVALID"),
        (GOOD.replace("array", "arry"), "TASK_MODEL_INVALID"),
        (GOOD.replace('turns="3"', 'turns="many"'), "TASK_MODEL_INVALID"),
        (GOOD.replace("description>", "descr>"), "TASK_MODEL_INVALID"),
        (GOOD.replace("<accumulate_data>true", "<accumulate_data>perhaps"), "TASK_MODEL_INVALID"),
        (GOOD.replace("</context", "<fresh_context>enabled</fresh_context></context"), "TASK_MODEL_INVALID"),
        ('<!DOCTYPE task [<!ENTITY a "b">]><task><description>&a;</description></task>', "TASK_XML_INVALID"),
    ],
)
def test_N3_5_a_template_that_is_not_understood_is_rejected_with_its_place(wrong, code):
    async def main():
        return await TaskSystem(answers("[]")).execute_task(Task.from_xml(wrong))

    try:
        found = virtual_run(main()).fault
    except HoldfastError as error:
        found = error.fault
    assert found.code == code


# Decomposition


def too_long(most):
    async def perform(assignment):
        text = assignment.task.inputs["doc"]
        if len(text) > most:
            raise HoldfastError(Fault.of("PROVIDER_CONTEXT_OVERFLOW"))
        return text.strip().upper()

    return perform


DOC = "# One\nalpha\n\n# Two\nbeta\n\n# Three\ngamma\n\n# Four\ndelta\n"


def test_S3_2_a_task_too_large_is_split_by_sections_and_merged_in_order():
    system = TaskSystem(too_long(20), decomposer=by_section)
    result = run(system, Task("Shout {doc}", inputs={"doc": DOC}))
    assert result.status is Status.COMPLETE
    assert result.content.split() == DOC.upper().split()
    assert result.notes["decomposed"] == {"parts": 2, "depth": 1}


def test_the_parts_of_a_task_have_its_background_once_and_what_it_inherited():
    prompts = []

    async def perform(assignment):
        if assignment.task.prompt == "parent":
            child = Task("shout {doc}", inputs={"doc": DOC}, background="Shout softly.")
            return assignment.results[0].content if assignment.results else continuing(child)
        if assignment.task.inputs["doc"] == DOC:
            raise HoldfastError(Fault.of("PROVIDER_CONTEXT_OVERFLOW"))
        prompts.append(assignment.prompt)
        return "ok"

    run(TaskSystem(perform, decomposer=by_section), Task("parent", background="Always shout in capitals."))
    assert [prompt.count("Shout softly.") for prompt in prompts] == [1, 1]
    assert [prompt.count("Always shout in capitals.") for prompt in prompts] == [1, 1]


def test_A87_what_always_exhausts_is_split_at_most_as_often_as_allowed_and_the_original_error_has_the_depth():
    calls = []

    async def perform(assignment):
        calls.append(len(assignment.task.inputs["doc"]))
        raise HoldfastError(Fault.of("PROVIDER_CONTEXT_OVERFLOW"))

    system = TaskSystem(perform, decomposer=by_section, max_depth=2, on_failure="collect")
    result = run(system, Task("Shout {doc}", inputs={"doc": DOC}))
    assert result.notes["error"]["resource"] == "context"
    assert result.fault.context["depth"] == 2
    assert len(calls) == 1 + 2 + 4


def test_disabled_decomposition_and_one_that_cannot_split_give_the_original_error():
    system = TaskSystem(too_long(5), decomposer=by_section)
    assert run(system, Task("{doc}", inputs={"doc": DOC}, decompose=False)).fault.code == "TASK_CONTEXT_EXHAUSTED"
    assert run(TaskSystem(too_long(0), decomposer=by_items), Task("{doc}", inputs={"doc": "x"})).fault.code == "TASK_CONTEXT_EXHAUSTED"  # fmt: skip


@pytest.mark.parametrize("parts", [1, 0, "same"])
def test_S3_16_a_part_that_is_not_smaller_is_refused(parts):
    async def decompose(task, _fault, _left):
        return Decomposition([task, task] if parts == "same" else [task.with_(prompt="a")] * parts)

    result = run(TaskSystem(too_long(5), decomposer=decompose), Task("{doc}", inputs={"doc": DOC}))
    assert result.fault.code == "TASK_MODEL_INVALID"


def test_lists_are_split_by_items_and_typed_results_are_put_together():
    async def perform(assignment):
        items = assignment.task.inputs["items"]
        if len(items) > 3:
            raise HoldfastError(Fault.of("TASK_OUTPUT_EXHAUSTED"))
        return [item * 2 for item in items]

    system = TaskSystem(perform, decomposer=by_items)
    assert virtual_run(system.run(Task("double {items}", inputs={"items": list(range(10))}, output=list[int]))) == [n * 2 for n in range(10)]  # fmt: skip


def numbers(most: int, **options) -> Task:
    return Task("Add {numbers}", inputs={"numbers": list(range(40))}, output=int, context=most, **options)


async def adds(assignment):
    return sum(assignment.task.inputs["numbers"])


@pytest.mark.parametrize("decomposer", [by_items, by_section])
def test_a_built_in_decomposer_takes_the_merge_of_its_results(decomposer):
    task = Task("Count {doc} {items}", inputs={"doc": DOC, "items": [1, 2, 3, 4]}, output=int)

    async def perform(assignment):
        inputs = assignment.task.inputs
        if inputs == task.inputs:
            raise HoldfastError(Fault.of("TASK_TURNS_EXHAUSTED"))
        return len(inputs["items"]) if decomposer is by_items else len(inputs["doc"].split())

    system = TaskSystem(perform, decomposer=decomposer(merge=lambda results: sum(each.value for each in results)))
    assert run(system, task).value == (4 if decomposer is by_items else len(DOC.split()))


def test_a_merge_of_the_wrong_kind_is_rejected_where_it_is_given():
    with pytest.raises(InvalidError, match=r"by_items\.merge"):
        by_items(merge="sum")


def test_a_function_that_does_not_know_the_merge_task_fails_with_its_name_and_what_to_do():
    result = run(TaskSystem(adds, decomposer=by_items, change=None), numbers(45, name="salaries"))
    assert result.fault.code == "SYS_PROGRAMMING_ERROR"
    assert result.fault.message.startswith("salaries (merge): KeyError: 'numbers'. ")
    assert "the input `results`" in result.fault.message
    assert "merge=" in result.fault.message


def test_the_fault_of_a_part_says_which_part_and_which_exception():
    async def perform(assignment):
        return assignment.task.inputs["typo"]

    result = run(TaskSystem(perform, decomposer=by_items, change=None), numbers(45, name="salaries"))
    assert result.fault.code == "SYS_PROGRAMMING_ERROR"
    assert result.fault.message.startswith("salaries (part 1): KeyError: 'typo'. ")
    alone = run(TaskSystem(perform, change=None), Task("Add", name="salaries"))
    assert alone.fault.message == "salaries: KeyError: 'typo'"


def test_an_item_that_fits_into_no_part_fails_at_once_and_says_so():
    performed = []
    task = numbers(30, name="salaries").with_(inputs={"numbers": [1, 2, "a" * 200, 3]})
    result = run(TaskSystem(performed.append, decomposer=by_items), task)
    assert result.fault.code == "TASK_CONTEXT_EXHAUSTED"
    assert "the largest item of `numbers` alone needs" in result.fault.message
    assert performed == []


def test_a_prompt_that_is_too_large_without_its_text_fails_at_once_and_says_so():
    task = Task("Read this with care, word by word: {doc}", inputs={"doc": DOC}, output=int, context=20)
    result = run(TaskSystem(adds, decomposer=by_section), task)
    assert result.fault.code == "TASK_CONTEXT_EXHAUSTED"
    assert "without `doc` the prompt needs" in result.fault.message


def test_N3_8_a_model_that_is_asked_for_the_parts_gets_the_error_and_the_prompt():
    asked = []

    async def specialist(prompt):
        asked.append(prompt)
        return 'Sure:\n["first {doc}", "second {doc}"]'

    async def perform(assignment):
        if assignment.task.prompt.startswith("do"):
            raise HoldfastError(Fault.of("TASK_TURNS_EXHAUSTED"))
        return assignment.task.prompt.split()[0]

    result = run(TaskSystem(perform, decomposer=by_model(specialist)), Task("do {doc}", inputs={"doc": "d" * 100}))
    assert result.content == "first\n\nsecond"
    assert "decomposition specialist" in asked[0]
    assert "TASK_TURNS_EXHAUSTED" in asked[0]


@pytest.mark.parametrize(("mode", "done"), [("fail-fast", 0), ("collect", 1)])
def test_A86_one_part_fails_and_its_siblings_are_cancelled_and_awaited_or_end(mode, done):
    ended = []

    async def perform(assignment):
        text = assignment.task.inputs["doc"]
        if text == DOC:
            raise HoldfastError(Fault.of("PROVIDER_CONTEXT_OVERFLOW"))
        if "alpha" in text:
            await asyncio.sleep(1)  # the sibling has begun
            raise HoldfastError(Fault.of("AUTH_FAILED"))
        try:
            await asyncio.sleep(10)
            return "late"
        finally:
            ended.append(text)

    result = run(TaskSystem(perform, decomposer=by_section, on_failure=mode), Task("{doc}", inputs={"doc": DOC}))
    assert result.fault.code == "AUTH_FAILED"
    assert len(ended) == 1
    assert result.fault.partial.complete == done
    assert len(result.fault.partial.errors) == 2 - done


@pytest.mark.parametrize("merge", ["collect", len, Task("join {results}", output="array")])
def test_results_are_merged_as_declared(merge):
    async def decompose(task, _fault, _left):
        return Decomposition([task.with_(inputs={"doc": text}) for text in ("a", "b")], merge)

    async def perform(assignment):
        if "results" in assignment.task.inputs:
            return assignment.task.inputs["results"]
        if len(assignment.task.inputs["doc"]) > 1:
            raise HoldfastError(Fault.of("TASK_TURNS_EXHAUSTED"))
        return assignment.task.inputs["doc"]

    result = run(TaskSystem(perform, decomposer=decompose), Task("{doc}", inputs={"doc": "abc" * 30}))
    assert result.value == (2 if merge is len else ["a", "b"])


def test_S3_8_partial_results_are_cut_at_their_limit_oldest_first_with_a_mark():
    fault = Fault.of("TASK_HALTED", partial=Partial(payload=["old" * 20_000, "new" * 2_000]))
    result = run(TaskSystem(answers(HoldfastError(fault))), Task("go"))
    assert result.fault.partial.truncated
    assert result.fault.partial.payload == ["[older results were cut]", "new" * 2_000]
    text = Fault.of("TASK_HALTED", partial=Partial(payload="a" * 70_000 + "end"))
    cut = run(TaskSystem(answers(HoldfastError(text))), Task("go")).content
    assert cut.startswith("[older results were cut]")
    assert cut.endswith("end")
    assert len(cut) < 66_000


# Workflows


PROGRAM = "(bind x (call-atomic-task 'task-a) (bind y (call-atomic-task 'task-b (input x)) (list x y)))"


def test_S3_18_a_program_calls_tasks_by_name():
    tasks = {"task-a": Task("make a plan"), "task-b": Task("carry out {input}")}
    system = TaskSystem(lambda assignment: assignment.prompt.upper())
    result = virtual_run(system.execute_s_expression(PROGRAM, tasks=tasks))
    assert (result.status, result.value) == (Status.COMPLETE, ["MAKE A PLAN", "CARRY OUT MAKE A PLAN"])


def test_A89_a_program_that_fails_has_the_values_that_were_bound():
    def perform(assignment):
        if assignment.prompt.startswith("carry"):
            raise HoldfastError(Fault.of("TASK_HALTED", "Failed to process data format"))
        return "the plan"

    tasks = {"task-a": Task("make a plan"), "task-b": Task("carry out {input}")}
    result = virtual_run(TaskSystem(perform).execute_s_expression(PROGRAM, tasks=tasks))
    error = result.notes["error"]
    assert (result.status, error["type"]) == (Status.FAILED, "TASK_FAILURE")
    assert error["details"]["s_expression_environment"] == {"x": "the plan"}
    unbound = virtual_run(TaskSystem(perform).execute_s_expression("(list nobody)"))
    assert (unbound.status, unbound.fault.code) == (Status.FAILED, "TASK_UNBOUND_SYMBOL")
    unread = virtual_run(TaskSystem(perform).execute_s_expression("(list "))
    assert (unread.status, unread.fault.code) == (Status.FAILED, "TASK_SYNTAX_ERROR")


# With a session


def test_in_a_session_a_task_that_ended_is_not_performed_again():
    calls = []

    async def perform(assignment):
        calls.append(assignment.prompt)
        if assignment.task.inputs["doc"] == DOC:
            raise HoldfastError(Fault.of("PROVIDER_CONTEXT_OVERFLOW"))
        if fails and "gamma" in assignment.prompt:
            await asyncio.sleep(1000)
        return assignment.prompt.upper()

    async def main():
        nonlocal fails
        async with MemoryStore() as store:
            system = TaskSystem(perform, decomposer=by_section, concurrency=1)
            task = Task("{doc}", inputs={"doc": DOC})
            fails = True
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(5), Session.open("s", store=store) as session:
                    await system.run(task, session=session)
            fails = False
            async with Session.open("s", store=store) as session:
                return await system.run(task, session=session)

    fails = False
    assert virtual_run(main()).split() == DOC.upper().split()
    assert len([prompt for prompt in calls if prompt != DOC and "alpha" in prompt]) == 1
    assert len([prompt for prompt in calls if prompt != DOC and "gamma" in prompt]) == 2


def in_two_runs(*works):
    """Return the result of each piece of work, each in a run of the program of its own, in one session."""

    async def main():
        async with MemoryStore() as store:
            found = []
            for work in works:
                async with Session.open("s", store=store) as session:
                    found.append(await work(session))
            return found

    return virtual_run(main())


def test_XK4_a_stored_result_is_not_returned_for_other_inputs():
    calls = []

    async def review(assignment):
        calls.append(assignment.task.inputs.get("pr"))
        return f"review of {calls[-1]}"

    system = TaskSystem(review)

    def of(**inputs):
        return lambda session: system.run(Task("Review the change", inputs=inputs), session=session)

    assert in_two_runs(of(pr=2), of(pr=1), of(pr=2), of(), of()) == [
        "review of 2",
        "review of 1",
        "review of 2",
        "review of None",
        "review of None",
    ]
    assert calls == [2, 1, None]


def test_XK4_a_task_of_a_program_is_known_by_its_own_inputs_too():
    async def review(assignment):
        return f"review of {assignment.task.inputs['pr']}"

    system = TaskSystem(review)

    def of(pr):
        tasks = {"review": Task("Review the change", inputs={"pr": pr})}
        return lambda session: system.execute_s_expression("(review)", tasks=tasks, session=session)

    assert [each.content for each in in_two_runs(of(2), of(1))] == ["review of 2", "review of 1"]


def test_XK4_calls_of_tasks_without_inputs_are_found_in_older_logs():
    """Their steps were known by the prompt alone."""

    async def older(session):
        async def call(*_seen: str) -> TaskResult:
            return TaskResult(content="stored")

        call.__qualname__ = "task:default"
        await session.step(call, "Go")

    def never(assignment):
        raise AssertionError

    assert in_two_runs(older, lambda session: TaskSystem(never).run(Task("Go"), session=session))[1] == "stored"


def test_a_failed_request_can_be_executed_again_as_it_stands_in_the_error():
    async def perform(assignment):
        if assignment.task.prompt == "parent":
            return continuing({"type": "atomic", "description": "child", "inputs": {"a": 1}})
        return "ok" if assignment.task.prompt.startswith("Retry:") else 1 / 0

    system = TaskSystem(perform, change=None)
    request = run(system, Task("parent")).notes["error"]["details"]["subtaskRequest"]
    again = {**request, "description": f"Retry: {request['description']} with simplified approach"}
    assert run(system, again).content == "ok"
    assert view.read_result(run(system, again).document()) is None


# Agents that run beside each other


class SlowModel:
    """A model that answers after a while, and sometimes not at all."""

    name, offers = "own/slow", Offers(streaming=False)

    def __init__(self, chance):
        self.chance = chance
        self.answered = self.sent = 0

    async def exchange(self, request):
        self.sent += 1
        await asyncio.sleep(self.chance.random())
        if self.chance.random() < 0.3:
            raise HoldfastError(Fault.of("PROVIDER_OUTPUT_INVALID", retryable=False))
        self.answered += 1
        return Reply(text=request.messages[-1].text)

    def stream(self, request, *, after_first="raise"):
        raise NotImplementedError


@pytest.mark.parametrize("seed", range(20))
def test_N3_6_agents_that_run_beside_each_other_never_take_more_turns_than_there_are(seed):
    """The answers come in any order, some fail, budgets are nested: no budget has less than nothing left, at any moment."""
    chance = random.Random(seed)
    outer, inner = chance.randint(1, 8), chance.randint(1, 5)
    model = SlowModel(chance)
    runtime = Runtime(clock=VirtualClock())
    seen = []

    async def one(number):
        with Budget(turns=inner, runtime=runtime) as own:
            for _ in range(chance.randint(1, 3)):
                await Agent(f"a{number}", model, runtime=runtime).outcome("go")
                seen.append((own.spend().turns, inner))

    async def main():
        with Budget(turns=outer, runtime=runtime) as budget:
            async with asyncio.TaskGroup() as group:
                for number in range(chance.randint(2, 8)):
                    group.create_task(one(number))
            return budget.spend().turns, budget.left().turns

    spent, left = virtual_run(main(), clock=runtime.clock)
    assert spent == model.answered <= outer
    assert left == outer - spent
    assert all(used <= limit for used, limit in seen)


def test_a_turn_that_got_no_answer_is_given_back():
    with Budget(turns=1) as budget:
        with pytest.raises(ConnectionError), budget.turn():
            assert budget.left().turns == 0
            with pytest.raises(BudgetError, match="turns"):
                budget.take_turn()
            raise ConnectionError
        assert budget.left().turns == 1
        with budget.turn():
            pass
        assert (budget.spend().turns, budget.left().turns) == (1, 0)


def test_threads_never_take_more_turns_than_there_are():
    with Budget(turns=50) as outer, Budget(turns=70) as budget:
        taken = []

        def work():
            for _ in range(20):
                with suppress(BudgetError), budget.turn():
                    taken.append(1)

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(taken) == outer.spend().turns == budget.spend().turns == 50


# Everything is released


@pytest.mark.parametrize("way", ["well", "fails", "too large", "too slow", "cancelled"])
def test_N3_7_whatever_ends_a_task_its_reservations_are_released_and_nothing_is_left(way, tmp_path, monkeypatch):
    """The budget around it has what was not used, nothing is in force any more, no file and no task is left."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    runtime = Runtime(clock=VirtualClock())

    class Model(SlowModel):
        async def exchange(self, request):
            self.sent += 1
            if way == "fails":
                raise HoldfastError(Fault.of("AUTH_FAILED"))
            await asyncio.sleep(100 if way in {"too slow", "cancelled"} else 1)
            self.answered += 1
            return Reply(text="done " * (100 if way == "too large" else 1))

    model = Model(random.Random(1))
    system = TaskSystem(Agent("a", model, runtime=runtime), runtime=runtime)
    task = Task("go", turns=3, seconds=10, max_output=50)

    async def main():
        with Budget(turns=5, runtime=runtime) as budget:
            around = AMBIENT.get()
            running = asyncio.ensure_future(system.execute_task(task))
            if way == "cancelled":
                await asyncio.sleep(5)
                running.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await running
            else:
                assert (await running).status is (Status.COMPLETE if way == "well" else Status.FAILED)
            assert AMBIENT.get() is around
            assert HERE.get() is None
            assert asyncio.all_tasks() == {asyncio.current_task()}
            return budget.spend().turns, budget.left().turns

    spent, left = virtual_run(main(), clock=runtime.clock)
    assert spent == model.answered
    assert left == 5 - spent
    assert list(tmp_path.iterdir()) == []


# --- what the caller needs to plan the next try ---


def _planned(task, perform=lambda _: "x" * 400, **options):
    return run(TaskSystem(perform, **options), task).notes["error"]


def test_S3_11_the_error_has_the_metrics_the_context_the_violation_and_the_partial_output():
    resource = _planned(Task("go", max_output=5))
    assert (resource["resource"], resource["metrics"]) == ("output", {"used": 100, "limit": 5})
    too_long = _planned(Task("go " * 100, context=5))
    assert (too_long["resource"], too_long["metrics"]["limit"]) == ("context", 5)
    invalid = _planned(Task("go", output="array", reasks=0), lambda _: '{"a": 1}')["details"]
    assert (invalid["expectedType"], invalid["actualType"]) == ("array", "object")
    assert invalid["partialOutput"] == invalid["originalOutput"] == '{"a": 1}'
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "a.txt").write_text("hello")
        use = ContextUse(inherit="none", fresh=True)
        context = _planned(Task("zebra quagga", use=use), context=ContextIndex(folder))["details"]
    assert (context["words"], context["success_score"]) == (["zebra", "quagga"], 0.0)


def test_S3_12_a_failure_from_below_keeps_its_own_error_its_request_and_its_depth():
    def perform(assignment):
        if assignment.task.prompt == "parent":
            return continuing({"type": "atomic", "description": "look it up", "inputs": {"n": 1}})
        raise HoldfastError(Fault.of("TASK_LLM_FAILED", "the model is away", partial=Partial(payload="half")))

    error = _planned(Task("parent"), perform, change=None)
    assert error["reason"] == "subtask_failure"
    details = error["details"]
    assert details["subtaskRequest"]["description"] == "look it up"
    assert details["subtaskError"]["message"] == "the model is away"
    assert details["nestingDepth"] == 1
    assert details["partialOutput"] == "half"


@pytest.mark.parametrize("where", ["around the system", "around a task"])
def test_XK7_tasks_side_by_side_do_not_exceed_their_money(where):
    """Sixteen parts of a task ask a model at the same time."""
    asked = []

    async def ask(**request):
        asked.append(request)
        await asyncio.sleep(1)
        return {"model": "claude-haiku-4-5", "usage": {"input_tokens": 10, "output_tokens": 400}}

    async def perform(assignment):
        request = {"model": "claude-haiku-4-5", "max_tokens": 400, "messages": [assignment.prompt]}
        await recover("claude", runtime=runtime).call(ask, **request)
        return "done"

    runtime = Runtime(clock=VirtualClock())
    system = TaskSystem(perform, runtime=runtime)

    async def main():
        with Budget(usd=0.01, runtime=runtime) as budget:
            own = {"usd": 0.01} if where == "around a task" else {}
            tasks = [system.run(Task(prompt=f"part {n}", **own)) for n in range(16)]
            ended = await asyncio.gather(*tasks, return_exceptions=True)
        return ended, budget.spend()

    ended, spend = virtual_run(main(), clock=runtime.clock)
    assert (len(asked), spend.usd <= 0.01) == (4, True)
    assert sum(isinstance(one, TaskError) for one in ended) == 12


# What a task starts spends from its limits


def paid(runtime, usd_tokens=400, seconds=1.0):
    """A performer whose calls take a second, and 400 tokens: 0.00201 dollars."""

    async def ask(**request):
        await asyncio.sleep(seconds)
        return {"model": "claude-haiku-4-5", "usage": {"input_tokens": 10, "output_tokens": usd_tokens}}

    async def perform(assignment):
        perform.prompts.append(assignment.prompt)
        request = {"model": "claude-haiku-4-5", "max_tokens": 400, "messages": [assignment.prompt]}
        await recover("claude", runtime=runtime).call(ask, **request)
        return "done"

    perform.prompts = []
    return perform


SHOUT = Task("Shout: {doc}", inputs={"doc": DOC}, context=12)


@pytest.mark.parametrize("concurrency", [1, 16])
def test_XK3_XK7_the_money_of_a_task_is_for_its_parts_and_its_merge_too(concurrency):
    runtime = Runtime(clock=VirtualClock())
    perform = paid(runtime)
    merge = Task("Merge {results}")
    system = TaskSystem(perform, decomposer=by_section(merge=merge), concurrency=concurrency, runtime=runtime)

    async def main():
        with Budget(runtime=runtime) as budget:
            return await system.execute_task(SHOUT.with_(usd=0.005)), budget.spend()

    result, spend = virtual_run(main(), clock=runtime.clock)
    assert (result.status, result.fault.code) == (Status.FAILED, "SYS_BUDGET_EXHAUSTED")
    assert (len(perform.prompts), spend.usd <= 0.005) == (3, True)


def test_XK3_the_time_of_a_task_is_for_its_parts_too():
    runtime = Runtime(clock=VirtualClock())
    system = TaskSystem(paid(runtime), decomposer=by_section, concurrency=1, runtime=runtime)

    async def main():
        began = runtime.clock.monotonic()
        result = await system.execute_task(SHOUT.with_(seconds=1.5))
        return result, runtime.clock.monotonic() - began

    result, took = virtual_run(main(), clock=runtime.clock)
    assert (result.fault.code, took) == ("TASK_TIMEOUT", pytest.approx(1.5, abs=0.06))
    assert (result.fault.context["timeout_s"], result.fault.partial.payload) == (1.5, ["done"])


async def _hangs(*_):
    await asyncio.sleep(1000)


async def _by_hand(task, fault, left):
    """Parts without limits of their own."""
    return Decomposition([Task("a"), Task("b")], "concatenate")


@pytest.mark.parametrize(
    ("decomposer", "perform"),
    [(_hangs, answers("x")), (by_section(merge=_hangs), answers(*"abcd")), (_by_hand, _hangs)],
    ids=["decomposer", "merge", "parts"],
)
def test_XK3_what_a_task_started_and_hangs_ends_with_its_time(decomposer, perform):
    runtime = Runtime(clock=VirtualClock())
    system = TaskSystem(perform, decomposer=decomposer, runtime=runtime)

    async def main():
        began = runtime.clock.monotonic()
        result = await system.execute_task(SHOUT.with_(seconds=0.5))
        return result, runtime.clock.monotonic() - began

    result, took = virtual_run(main(), clock=runtime.clock)
    assert (result.fault.code, took) == ("TASK_TIMEOUT", pytest.approx(0.55, abs=0.01))


def test_XK3_a_second_try_and_another_approach_spend_from_the_limits_of_the_task():
    runtime = Runtime(clock=VirtualClock())
    pay = paid(runtime)

    async def perform(assignment):
        if assignment.task.prompt == "parent":
            return continuing(Task("child", usd=0.003))
        await pay(assignment)
        raise HoldfastError(Fault.of("TASK_OUTPUT_INVALID"))

    async def main():
        with Budget(runtime=runtime) as budget:
            return await TaskSystem(perform, runtime=runtime).execute_task(Task("parent")), budget.spend()

    result, spend = virtual_run(main(), clock=runtime.clock)
    assert (result.fault.code, spend.usd <= 0.003) == ("SYS_BUDGET_EXHAUSTED", True)


def test_XK3_a_warning_of_a_limit_is_given_once():
    runtime = Runtime(clock=VirtualClock())
    warnings = []
    runtime.on(warnings.append, BudgetWarning)
    system = TaskSystem(paid(runtime), decomposer=by_section, concurrency=1, runtime=runtime)
    virtual_run(system.execute_task(SHOUT.with_(usd=0.005)), clock=runtime.clock)
    assert len(warnings) == 1


# Results keep their type, and nothing is lost on the way


def test_XK9_texts_of_the_parts_are_joined_and_not_their_json():
    def perform(assignment):
        if assignment.task.inputs["doc"] == DOC:
            raise HoldfastError(Fault.of("PROVIDER_CONTEXT_OVERFLOW"))
        return f'"{assignment.task.inputs["doc"].split()[2]}"'

    result = run(TaskSystem(perform, decomposer=by_section), Task("{doc}", inputs={"doc": DOC}, output=str))
    assert (result.value, result.content) == ("alpha\n\ngamma", "alpha\n\ngamma")


def test_XK9_null_is_a_value_where_the_output_may_be_none():
    assert virtual_run(TaskSystem(answers("null")).run(Task("a", output=int | None))) is None
    assert virtual_run(TaskSystem(answers("about 40")).run(Task("a", output="number"))) == "about 40"


@pytest.mark.parametrize(
    "answer", [{"n": 1}, [1, "a"], Summary("a", []), "text", TaskResult(content="x", value={"n": 1})]
)
def test_XK9_a_session_does_not_change_the_type_of_a_result(answer):
    system = TaskSystem(lambda _: answer)
    without = virtual_run(system.run(Task("a")))
    first, again = in_two_runs(*[lambda session: system.run(Task("a"), session=session)] * 2)
    assert without == first == again
    assert type(without) is type(first) is type(again)


def test_XK9_a_request_for_a_subtask_with_an_unknown_key_is_rejected():
    with pytest.raises(InvalidError, match="input"):
        Task.from_request({"description": "a", "input": {"x": 1}})
    assert Task.from_request({"type": "atomic", "description": "a", "inputs": {"x": 1}}).inputs == {"x": 1}


def test_XK9_prompts_of_a_model_may_have_braces():
    async def specialist(prompt):
        return '["Write a JSON object {\\"a\\": 1} for {doc}", "Write {} and {other}"]'

    def perform(assignment):
        if assignment.task.prompt.startswith("do"):
            raise HoldfastError(Fault.of("TASK_TURNS_EXHAUSTED"))
        return assignment.prompt

    result = run(TaskSystem(perform, decomposer=by_model(specialist)), Task("do {doc}", inputs={"doc": "it"}))
    assert result.content == 'Write a JSON object {"a": 1} for it\n\nWrite {} and {other}'


def test_XK9_a_split_by_a_model_that_helps_nothing_is_not_repeated():
    asked = []

    async def specialist(prompt):
        asked.append(prompt)
        return '["Look at {doc}", "Look at {doc} again", "And {doc}", "{doc}"]'

    task = Task("Do with {doc}", inputs={"doc": "d" * 400}, context=50)
    result = run(TaskSystem(answers(), decomposer=by_model(specialist)), task)
    assert (result.fault.code, len(asked)) == ("TASK_CONTEXT_EXHAUSTED", 1)
    assert "cannot be split" in result.fault.message


def test_XK9_a_large_partial_result_is_cut_at_once():
    failed = Fault.of("TASK_OUTPUT_INVALID", partial=Partial(payload=list(range(200_000))))

    async def perform(assignment):
        raise HoldfastError(failed)

    began = time.monotonic()
    result = run(TaskSystem(perform), Task("a"))
    assert time.monotonic() - began < 5
    payload = result.fault.partial.payload
    assert (payload[0], payload[-1]) == ("[older results were cut]", 199_999)
    assert 60_000 < len(json.dumps(payload, separators=(",", ":"))) <= 65_536


@pytest.mark.parametrize(("text", "whole"), [("a \ud83d\ude00", "a 😀"), ("a \ud83d", "a �"), ("é", "é")])
def test_XK9_halves_of_characters_can_be_stored(text, whole):
    system = TaskSystem(lambda _: text)
    assert in_two_runs(*[lambda session: system.run(Task("a"), session=session)] * 2) == [whole, whole]
    assert virtual_run(system.run(Task("a"))) == whole


def test_XK9_a_wrong_schema_is_found_before_anything_is_asked():
    perform = answers("1")
    result = run(TaskSystem(perform), Task("a", output={"type": "objekt"}))
    assert (result.fault.code, perform.prompts) == ("TASK_MODEL_INVALID", [])


@pytest.mark.parametrize("how", ["wrong output", "raises", "too long"])
def test_XK9_an_unsafe_performer_runs_once(how):
    calls = []

    @tool(effect="unsafe")
    async def charge(assignment):
        if assignment.task.prompt == "parent":
            return continuing(Task("child", output=int, max_output=1 if how == "too long" else None))
        calls.append(assignment.prompt)
        if how == "raises":
            raise HoldfastError(Fault.of("PROVIDER_UNAVAILABLE"))
        return "no number"

    async def plain(assignment):
        return await charge(assignment)

    system = TaskSystem(plain, agents={"bank": charge}, decomposer=by_section)
    assert run(
        system, Task("x", output=int, agent="bank", max_output=1 if how == "too long" else None)
    ).fault.maybe_executed
    assert len(calls) == 1
    calls.clear()
    request = Task("child", output=int, agent="bank", max_output=1 if how == "too long" else None)
    parent = TaskSystem(lambda _: continuing(request), agents={"bank": charge}, decomposer=by_section)
    assert run(parent, Task("parent")).fault.code == "TASK_SUBTASK_FAILED"
    assert len(calls) == 1


def test_XT8_notes_say_what_went_wrong_before_a_result_came():
    result = run(TaskSystem(answers("no", "[1]")), Task("list", output="array", strict=True))
    assert (result.value, result.notes) == ([1], {"rejected_outputs": 1})

    def perform(assignment):
        if assignment.task.prompt == "parent":
            return assignment.results[0].content if assignment.results else continuing(Task("child"))
        if assignment.task.prompt == "child":
            raise HoldfastError(Fault.of("TASK_OUTPUT_INVALID"))
        return "second try"

    again = run(TaskSystem(perform), Task("parent"))
    assert again.content == "second try"
    (failed,) = again.notes["retried_subtasks"]
    assert failed["reason"] == "output_format_failure"


@pytest.mark.parametrize("ends", ["well", "failing", "cut"])
@pytest.mark.parametrize("concurrency", [1, 4])
def test_XK9_parts_of_parts_are_performed_at_once_as_often_as_allowed(concurrency, ends):
    running, most = set(), 0

    async def perform(assignment):
        nonlocal most
        items = assignment.task.inputs["items"]
        if len(items) > 1:
            raise HoldfastError(Fault.of("TASK_TURNS_EXHAUSTED"))
        running.add(items[0])
        most = max(most, len(running))
        try:
            await asyncio.sleep(1)
            if ends == "failing" and items[0] == 20:
                raise HoldfastError(Fault.of("AUTH_FAILED"))
        finally:
            running.discard(items[0])
        return items[0]

    async def split(task, fault, left):
        items = task.inputs["items"]
        size = max(1, len(items) // 4)
        parts = [items[n : n + size] for n in range(0, len(items), size)]
        return Decomposition([task.with_(inputs={"items": part}) for part in parts], "collect")

    system = TaskSystem(perform, decomposer=split, concurrency=concurrency)

    async def main():
        with suppress(TimeoutError):
            async with asyncio.timeout(2.5 if ends == "cut" else 1000):
                return await system.execute_task(Task("{items}", inputs={"items": list(range(64))}))

    result = virtual_run(main())
    assert (most, running, system.open_tasks) == (concurrency, set(), ())
    if ends == "well":
        assert len(json.dumps(result.value)) > 64
    elif ends == "failing":
        assert result.fault.code == "AUTH_FAILED"
