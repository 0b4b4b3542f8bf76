"""Document 003, the error handling and recovery pattern of a task system: sentence by sentence, in its order."""

from __future__ import annotations

import asyncio
import itertools
import json
from dataclasses import dataclass
from typing import get_args

import pytest

from holdfast import Agent, Budget, HoldfastError, InvalidError, Runtime, Session, Workflow, tool
from holdfast.agents import AgentReply, FunctionAgent
from holdfast.documents.task import (
    ContextIndex,
    ContextUse,
    Decomposition,
    DirectorLoop,
    Handler,
    Task,
    TaskError,
    TaskFailureReason,
    TaskResult,
    TaskStatus,
    TaskSystem,
    XmlOutput,
    handle_task_error,
    read_task_error,
    task_error_of,
)
from holdfast.events import BudgetWarning, SubtaskFailed
from holdfast.faults import Fault, Partial
from holdfast.providers import Offers, Reply
from holdfast.runtime.ambient import AMBIENT
from holdfast.stores import MemoryStore
from holdfast.tasks import by_model, by_section
from holdfast.tasks.context.index import MAX_RESULTS
from holdfast.testing import VirtualClock, run
from holdfast.workflow import WorkflowError

NO_MATCH = {"type": "TASK_FAILURE", "reason": "context_matching_failure", "message": "Nothing fits"}
DOC = "# Oslo\nThree orders came.\n\n# Moss\nSix orders came.\n"


def answering(*answers):
    """A performer that gives these answers in turn, the last one again and again, and remembers its assignments."""
    left = list(answers)

    async def perform(assignment):
        perform.assignments.append(assignment)
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    perform.assignments = []
    return perform


def executed(performer, task, **options):
    """Return the result of a task, complete or failed."""
    return run(TaskSystem(performer, **options).execute_task(task))


def error_of(performer, task, **options):
    """Return the TaskError of a task that fails."""
    result = executed(performer, task, **options)
    assert (result.status, result.document()["status"]) == (TaskStatus.FAILED, "FAILED")
    return result.notes["error"]


def raising(code, *, partial=None, **context):
    return HoldfastError(Fault.of(code, context=context, partial=partial and Partial(payload=partial)))


def asking(**request):
    """An answer that asks for a subtask first."""
    return TaskResult(status=TaskStatus.CONTINUATION, notes={"subtask_request": {"type": "atomic", **request}})


class Model:
    """A model of the user's own, for an agent."""

    name = "own/model"

    def __init__(self, *replies, window=None):
        self.offers = Offers(context_window=window)
        self.requests = []
        self.replies = list(replies)

    async def exchange(self, request):
        self.requests.append(request)
        return Reply(text=self.replies.pop(0))

    def stream(self, request, *, after_first="raise"):
        raise NotImplementedError


@pytest.fixture
def files(tmp_path):
    folder = tmp_path / "notes"
    folder.mkdir()
    (folder / "tokens.md").write_text("Tokens are revoked by the operator.\n" * 3)
    (folder / "billing.md").write_text("Invoices are paid monthly.\n")
    return folder


# 1. Purpose and users


def test_S3_1_exhaustion_wrong_output_and_lack_of_progress_are_found_and_recovered():
    """The pattern finds and handles exhausted resources, invalid output, and work that makes no progress."""
    split = executed(answering("part"), Task("{doc}", inputs={"doc": DOC}, context=10), decomposer=by_section)
    assert (split.status, split.notes["decomposed"]["parts"]) == (TaskStatus.COMPLETE, 2)
    corrected = executed(answering("{}", "[1]"), Task("List", output="array"))
    assert (corrected.value, corrected.notes["rejected_outputs"]) == ([1], 1)
    stuck = error_of(answering("{}"), Task("List", output="array", reasks=9))
    assert stuck["reason"] == "execution_halted"


# 2.1 Resource exhaustion


@pytest.mark.parametrize(
    ("resource", "task", "used", "limit"),
    [
        ("turns", Task("x", turns=1, output="array"), 1, 1),
        ("context", Task("x" * 100, context=20), 25, 20),
        ("output", Task("x", max_output=2), 3, 2),
    ],
)
def test_S3_2_exhaustion_names_the_resource_and_what_was_used_of_how_much(resource, task, used, limit):
    """RESOURCE_EXHAUSTION has the resource (turns, context, output) and the metrics used and limit."""
    error = error_of(answering('{"town": 1}'), task)
    assert (error["type"], error["resource"]) == ("RESOURCE_EXHAUSTION", resource)
    assert error["metrics"] == {"used": used, "limit": limit}


def test_S3_2_the_recovery_of_exhaustion_is_to_split_the_task():
    """What exceeds its resources is decomposed, and the results of the parts are put together."""
    task = Task("Shout {doc}", inputs={"doc": DOC}, context=12)

    def shout(assignment):
        return assignment.task.inputs["doc"].upper()

    assert executed(shout, task).status is TaskStatus.FAILED
    assert executed(shout, task, decomposer=by_section).content.split() == DOC.upper().split()


# 2.2 Task failure


def failures(files):
    """What a program does that ends with each of the document's reasons."""
    broken = files.parent / "index"
    broken.mkdir()
    index = ContextIndex(files)
    unreadable = ContextIndex(files)
    run(unreadable.refresh())
    fresh = ContextUse(fresh=True, inherit="none")

    def lost(query):
        task = Task(query, use=fresh)
        (files / "tokens.md").unlink()
        (files / "tokens.md").mkdir()
        return executed(answering("x"), task, context=unreadable)

    return {
        "context_retrieval_failure": lambda: executed(
            answering("x"), Task("tokens", use=fresh), context=ContextIndex(files, broken)
        ),
        "context_matching_failure": lambda: executed(answering("x"), Task("zebra", use=fresh), context=index),
        "context_parsing_failure": lambda: lost("how are tokens revoked"),
        "xml_validation_failure": lambda: executed(answering("<a/>"), Task("x", output=XmlOutput("b"), reasks=0)),
        "output_format_failure": lambda: executed(answering("{}"), Task("x", output="array", reasks=0)),
        "execution_timeout": lambda: executed(lambda _: asyncio.sleep(60), Task("x", seconds=1)),
        "execution_halted": lambda: executed(answering("{}"), Task("x", output="array", reasks=9)),
        "subtask_failure": lambda: executed(
            answering(asking(description="part"), raising("TASK_HALTED")), Task("x"), change=None
        ),
        "input_validation_failure": lambda: executed(answering("x"), Task("{missing}")),
        "unexpected_error": lambda: executed(answering(RuntimeError("odd")), Task("x")),
    }


@pytest.mark.parametrize("reason", get_args(TaskFailureReason))
def test_S3_3_every_reason_is_the_end_of_some_real_task(reason, files):
    """A failed task says why with one of ten reasons."""
    result = failures(files)[reason]()
    error = result.notes["error"]
    assert (result.status, error["type"], error["reason"]) == (TaskStatus.FAILED, "TASK_FAILURE", reason)


def test_S3_4_context_failures_keep_the_context_there_was_and_its_metrics(files):
    """Details may hold partial_context and context_metrics."""
    index = ContextIndex(files)
    missing = Task("Which tokens?", background="We sell keys.", files=("billing.md", "gone.md"))
    details = error_of(answering("x"), missing, context=index)["details"]
    assert details["partial_context"] == "We sell keys.\n\nbilling.md:\nInvoices are paid monthly.\n"
    assert details["context_metrics"]["read"] == 1
    unmatched = Task("zebra", use=ContextUse(fresh=True, inherit="none"), background="We sell keys.")
    details = error_of(answering("x"), unmatched, context=index)["details"]
    assert (details["partial_context"], details["context_metrics"]) == (
        "We sell keys.",
        {"strategies": 2, "matches": 0},
    )
    searched = run(TaskSystem(answering("x"), context=index).recover_from_context_failure(NO_MATCH, "zebra"))
    assert searched.notes["error"]["details"]["context_metrics"] == {"words": 1, "matches": 0}


def test_S3_4_details_hold_violations_partial_results_and_the_failed_step():
    """Details may hold the violations, the results of finished steps, and the index of the step that failed."""
    system = {"runtime": Runtime(profile="task")}

    @dataclass
    class Point:
        x: int

    error = error_of(answering('{"x": "a"}'), Task("x", output=Point, reasks=0), **system)
    assert set(error) == {"type", "reason", "message", "details"}
    assert (error["type"], error["reason"]) == ("TASK_FAILURE", "output_format_failure")
    (violation,) = error["details"]["violations"]
    assert "`x`" in violation
    assert "integer" in violation

    def perform(assignment):
        if "Moss" in assignment.prompt:
            raise raising("TASK_HALTED")
        return "three"

    task = Task("{doc}", inputs={"doc": DOC}, context=10)
    details = error_of(perform, task, decomposer=by_section, concurrency=1, change=None, **system)["details"]
    assert (details["partialResults"], details["failedStep"]) == (["three"], 1)
    loop = DirectorLoop(director=Task("draft"), evaluator=Task("judge"), prompt="x")
    failed = executed(answering("draft", raising("TASK_HALTED")), loop, **system)
    assert failed.notes["error"]["details"]["failedStep"] == 1


# 2.3 Failure to make progress


def test_S3_5_rounds_without_a_change_end_the_task_although_resources_remain():
    """Several rounds with no state change are execution_halted; recovery is another approach or the end."""
    perform = answering("{}")
    error = error_of(perform, Task("x", output="array", reasks=50, turns=100))
    assert (error["type"], error["reason"], len(perform.assignments)) == ("TASK_FAILURE", "execution_halted", 3)
    other = lambda task, fault: task.with_(prompt="Another approach", output=None)  # noqa: E731
    recovered = executed(answering("{}"), Task("x", output="array", reasks=50), alternative=other)
    assert (recovered.status, recovered.content) == (TaskStatus.COMPLETE, "{}")


# 2.4 Partial results


def test_S3_6_the_output_before_a_failure_is_the_content_of_the_failed_result():
    """Output of an atomic task that fails midway is its content, and FAILED marks it as partial."""
    result = executed(answering(raising("PROVIDER_STREAM_CUT", partial="half of the ans")), Task("x"))
    assert (result.status, result.content) == (TaskStatus.FAILED, "half of the ans")
    later = answering('{"town": "Oslo"}', raising("TASK_HALTED"))
    assert executed(later, Task("x", output="array")).content == '{"town": "Oslo"}'
    with pytest.raises(TaskError) as caught:
        run(TaskSystem(answering(raising("PROVIDER_STREAM_CUT", partial="half"))).run(Task("x")))
    assert task_error_of(caught.value.fault)["content"] == "half"


PROGRAM = "(bind x (call-atomic-task 'task-a') (bind y (call-atomic-task 'task-b' (input x)) (process y)))"


def test_S3_7_a_workflow_that_fails_leaves_its_bindings():
    """Partial results of a program are the values bound by bind and let up to the failure, and no outputs of steps."""
    tasks = {"a": Task("A"), "b": Task("B")}
    perform = answering("of a", raising("TASK_HALTED"))
    source = "(bind x (call-atomic-task 'a) (let ((z 7)) (bind y (call-atomic-task 'b) (list y))))"
    result = run(TaskSystem(perform).execute_s_expression(source, tasks=tasks))
    details = result.notes["error"]["details"]
    assert details["s_expression_environment"] == {"x": "of a", "z": 7}
    assert "partialResults" not in details


@pytest.mark.parametrize(
    ("accumulates", "form", "seen"),
    [
        ("true", "full_output", ["of part 1", "of part 2"]),
        ("true", "notes_only", ['{"successScore":0.5}', "of part 2"]),
        ("false", "full_output", ["of part 2"]),
    ],
)
def test_S3_7_N3_5_accumulation_format_is_about_the_context_of_an_atomic_task_and_not_about_workflows(
    accumulates, form, seen
):
    """accumulation_format says how an atomic task keeps earlier results in its context; a workflow has them whole."""
    prompts = []

    async def plan(prompt):
        prompts.append(prompt)
        number = len(prompts)
        if number > 2:
            return "the plan"
        request = {"type": "atomic", "description": f"part {number}", "template_hints": ["worker"]}
        return AgentReply(data={"status": "CONTINUATION", "notes": {"subtask_request": request}})

    def worker(assignment):
        return TaskResult(content=f"of {assignment.prompt}", notes={"successScore": 0.5})

    def use(task):
        return f"""<task><description>{task}</description><context_management>
            <accumulate_data>{accumulates}</accumulate_data><accumulation_format>{form}</accumulation_format>
            </context_management></task>"""

    task = Task.from_xml(use("Plan"))
    tasks = TaskSystem(FunctionAgent("planner", plan), agents={"worker": worker})
    assert run(tasks.execute_task(task)).content == "the plan"
    assert [each.partition(":\n")[2] for each in prompts[2].split("\n\n")[1:]] == seen

    source = "(bind a (call-atomic-task 'task-a) (bind b (call-atomic-task 'task-b) (list a b)))"
    named = {name: Task.from_xml(use(name)) for name in ("task-a", "task-b")}
    whole = run(TaskSystem(worker).execute_s_expression(source, tasks=named))
    assert whole.value == ["of task-a", "of task-b"]


def test_S3_8_older_results_are_cut_or_summarised_and_the_result_says_so():
    """Accumulated data that is too large is summarised or truncated from its older end, and it is signalled."""
    text = "\n\n".join(
        f"# {town}\n{town * 4_000}" for town in ("Aa", "Bb", "Cc", "Dd", "Ee", "Ff", "Gg", "Hh", "Ii", "Jj")
    )

    def perform(assignment):
        if "Jj" in assignment.prompt:
            raise raising("TASK_HALTED")
        return assignment.task.inputs["doc"] * 2

    task = Task("{doc}", inputs={"doc": text}, context=2_100)
    options = {"decomposer": by_section, "concurrency": 1, "change": None}
    cut = executed(perform, task, **options)
    assert cut.fault.partial.truncated
    assert cut.fault.partial.payload[0] == "[older results were cut]"
    assert "Ii" in cut.fault.partial.payload[-1]
    told = executed(perform, task, **options, summary=lambda older: f"{len(older)} towns were done")
    assert told.fault.partial.truncated
    first = told.fault.partial.payload[0]
    assert "towns were done" in first
    assert len(json.dumps(told.fault.partial.payload)) <= 65_536


def test_S3_8_one_value_of_a_workflow_is_kept_reasonably_sized():
    """Individual step outputs are kept reasonably sized: one binding of a failed workflow has 16 KB, and says what is left out."""

    def perform(assignment):
        if assignment.task.prompt == "second":
            raise raising("TASK_HALTED")
        return "z" * 17_000

    source = "(bind x (call-atomic-task 'a)) (call-atomic-task 'b)"
    tasks = {"a": Task("first"), "b": Task("second")}
    result = run(TaskSystem(perform).execute_s_expression(source, tasks=tasks))
    kept = result.notes["error"]["details"]["s_expression_environment"]["x"]
    assert (kept.count("z"), kept[16_384:]) == (16_384, "… (616 bytes left out)")
    assert result.fault.partial.truncated


def test_S3_8_a_summary_that_raises_hides_nothing():
    """A hook that fails does not replace the failure of the task."""

    def broken(older):
        raise KeyError("x")

    big = [f"{number}" * 9_000 for number in range(10)]
    result = executed(answering(raising("TASK_HALTED", partial=big)), Task("x"), summary=broken)
    assert (result.fault.code, result.fault.partial.payload[0]) == ("TASK_HALTED", "[older results were cut]")


# 2.5 Output format


def test_S3_9_the_sample_of_a_wrong_type_is_what_a_task_returns():
    """JSON of another type is output_format_failure with both types and the original output, in both places."""
    task = Task.from_xml(
        '<task><description>List the towns</description><output_format type="json" schema="array"/></task>'
    )
    error = error_of(answering('{"town": "Oslo"}'), task.with_(reasks=0))
    assert error == {
        "type": "TASK_FAILURE",
        "reason": "output_format_failure",
        "message": 'Expected output of type "array" but got "object"',
        "details": {
            "expectedType": "array",
            "actualType": "object",
            "originalOutput": '{"town": "Oslo"}',
            "partialOutput": '{"town": "Oslo"}',
        },
    }
    assert executed(answering("no JSON at all"), task).status is TaskStatus.COMPLETE
    for answer, actual in (
        ("5", "number"),
        ("5.5", "number"),
        ('"s"', "string"),
        ("null", "null"),
        ("true", "boolean"),
    ):
        assert error_of(answering(answer), task.with_(reasks=0))["details"]["actualType"] == actual


@pytest.mark.parametrize("wrong", ['schema="array"', 'type="yaml"', 'type="json" scheme="array"'])
def test_S3_9_an_output_format_that_is_not_understood_is_rejected(wrong):
    """Only `type="json"` with a schema is checked: another spelling would be a form that nobody checks."""
    with pytest.raises(InvalidError, match=f"got {wrong}"):
        Task.from_xml(f"<task><description>x</description><output_format {wrong}/></task>")


# 3.1 Detection: the dispatch


@pytest.mark.parametrize(
    ("error", "handler"),
    [
        ({"type": "RESOURCE_EXHAUSTION", "resource": "turns"}, "resource"),
        ({"type": "TASK_FAILURE", "reason": "context_parsing_failure"}, "context"),
        ({"type": "TASK_FAILURE", "reason": "subtask_failure"}, "subtask"),
        ({"type": "TASK_FAILURE", "reason": "output_format_failure"}, "format"),
        ({"type": "TASK_FAILURE", "reason": "execution_timeout"}, "general"),
    ],
)
def test_S3_10_a_failure_goes_to_the_handler_of_its_kind(error, handler):
    """Exhaustion goes to its handler, then context, subtask and format failures, everything else to the general one."""
    document = {**error, "message": "m"}
    fault = read_task_error(document)
    for given in (document, fault, TaskError(fault)):
        assert handle_task_error(given) is Handler(handler)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("resource", "TASK_TURNS_EXHAUSTED"),
        ("context", "TASK_CONTEXT_RETRIEVAL_FAILED"),
        ("subtask", "TASK_SUBTASK_FAILED"),
        ("format", "TASK_OUTPUT_FORMAT"),
        ("general", "TASK_TIMEOUT"),
    ],
)
def test_S3_10_the_caller_may_handle_each_kind_by_itself(kind, code):
    """Each of the five handlers can be the caller's: it returns another task, a result, or nothing."""
    seen = []

    def other(task, fault):
        seen.append((task.prompt, fault.code))
        return task.with_(prompt="another way")

    def perform(assignment):
        if assignment.task.prompt == "x":
            raise raising(code)
        return assignment.task.prompt

    assert executed(perform, Task("x"), handlers={kind: other}).content == "another way"
    assert seen == [("x", code)]

    async def known(task, fault):
        return TaskResult(content=f"instead of {fault.code}")

    assert executed(perform, Task("x"), handlers={kind: known}).content == f"instead of {code}"
    assert executed(perform, Task("x"), handlers={kind: lambda task, fault: None}).fault.code == code
    others = {str(word): other for word in Handler if word != kind}
    assert executed(perform, Task("x"), handlers=others).fault.code == code


def test_S3_10_a_handler_with_a_defect_hides_nothing():
    """A handler of the caller that raises is reported, and the failure stays what it was."""

    def broken(task, fault):
        raise ZeroDivisionError

    assert (
        executed(answering("{}"), Task("x", output="array", reasks=0), handlers={"format": broken}).fault.code
        == "TASK_OUTPUT_FORMAT"
    )
    for wrong in ({"handlers": {"ctx": broken}}, {"handlers": {"context": 1}}, {"summary": 5}):
        with pytest.raises(InvalidError, match=r"tasks\."):
            TaskSystem(answering("x"), **wrong)


def test_S3_10_the_words_of_a_programmer_choose_no_reason():
    """The document's own sentence, raised by a function, is an unexpected error and not one of a provider."""
    result = executed(answering(RuntimeError("Failed to process data format")), Task("x"))
    error = result.notes["error"]
    assert (result.fault.code, error["reason"]) == ("TASK_UNEXPECTED", "unexpected_error")
    assert "Failed to process data format" in error["message"]


# 3.2, 3.3 Planning and execution


def test_S3_11_each_kind_of_error_brings_what_planning_needs(files):
    """Exhaustion brings metrics, context failures what was looked for, validation its violations, subtasks their partial data."""
    metrics = error_of(answering("x"), Task("x" * 100, context=20))["metrics"]
    assert metrics == {"used": 25, "limit": 20}
    fresh = Task("zebra", use=ContextUse(fresh=True, inherit="none"))
    context = error_of(answering("x"), fresh, context=ContextIndex(files))["details"]
    assert (context["query"], context["alternative"]) == ("zebra", "metadata")
    violated = error_of(answering('{"a": 1}'), Task("x", output={"type": "object", "required": ["b"]}, reasks=0))
    (violation,) = violated["details"]["violations"]
    assert "'b' is a required property" in violation
    half = raising("TASK_HALTED", partial="half")
    subtask = error_of(answering(asking(description="part"), half), Task("x"), change=None)["details"]
    assert (subtask["partialOutput"], subtask["subtaskRequest"]["description"]) == ("half", "part")


def test_S3_12_a_failure_surfaces_with_its_cause_through_the_usual_error_flow():
    """Errors keep their full context and diagnostics and surface as errors."""
    with pytest.raises(TaskError) as caught:
        run(TaskSystem(answering(KeyError("town"))).run(Task("x", name="orders")))
    error = caught.value
    assert isinstance(error.__cause__, KeyError)
    assert (error.fault.code, "orders" in error.fault.message) == ("SYS_PROGRAMMING_ERROR", True)
    assert error.fault.cause.type.endswith("KeyError")
    assert error.result.notes["error"]["type"] == "TASK_FAILURE"


# 3.3 A failure within a composite task


@pytest.mark.parametrize(
    ("step", "answers", "script"),
    [
        ("director", ["d1", {"success": False}, raising("TASK_HALTED", partial="half")], None),
        (
            "script",
            ["d1", {"success": False}, "d2"],
            ["bash", "-c", "test ! -e ran && touch ran && exec true || kill -STOP $$"],
        ),
        ("evaluator", ["d1", {"success": False}, "d2", raising("TASK_HALTED")], None),
    ],
)
def test_S3_13_a_failing_step_ends_the_loop_with_its_error_and_the_whole_history(step, answers, script, tmp_path):
    """An error in director, script or evaluator ends the loop at once: FAILED, subtask_failure, and all iterations."""
    loop = DirectorLoop(
        director=Task("draft"),
        evaluator=Task("judge", output="object"),
        prompt="Write",
        script=script,
        cwd=str(tmp_path),
        script_timeout=1.0,
    )
    result = asyncio.run(TaskSystem(answering(*answers)).execute_task(loop))
    error = result.notes["error"]
    assert (result.status, error["type"], error["reason"]) == (TaskStatus.FAILED, "TASK_FAILURE", "subtask_failure")
    assert len(result.notes["iteration_history"]) == 2
    assert error["details"]["subtaskError"]["message"]
    assert (error["details"]["step"], error["details"]["nestingDepth"]) == (step, 1)
    assert error["message"].startswith(f"director-evaluator loop: draft: the step {step} of iteration 2 failed: ")


def test_S3_13_the_request_of_a_failing_step_can_be_sent_again_as_it_is():
    """The error of a step has its request with the inputs that it had, as that of every other subtask has."""
    answers = ["draft", raising("TASK_HALTED"), "fine"]
    loop = DirectorLoop(director=Task("Write"), evaluator=Task("Judge {output}", inputs={"strict": True}))

    async def main():
        tasks = TaskSystem(answering(*answers))
        error = (await tasks.execute_task(loop)).notes["error"]
        request = error["details"]["subtaskRequest"]
        return request, await tasks.execute_task(request)

    request, again = run(main())
    given = {"original_prompt": "Write", "iteration": 1, "output": "draft", "strict": True}
    assert (request["inputs"], again.content) == (given, "fine")


@pytest.mark.parametrize("judged", [raising("TASK_HALTED"), {"success": False}])
def test_S3_13_N3_1_a_loop_that_raises_has_its_result_with_the_history_and_what_it_used(judged):
    """The error of `run` has the whole failed result: notes.error, notes.iteration_history and dataUsage."""
    loop = DirectorLoop(director=Task("d"), evaluator=Task("e", output="object"), max_iterations=1)
    with pytest.raises(TaskError) as caught:
        run(TaskSystem(answering("draft", judged)).run(loop))
    document = caught.value.result.document()
    assert (document["status"], document["content"]) == ("FAILED", "draft")
    assert document["notes"]["error"]["message"] == caught.value.message
    assert document["notes"]["iteration_history"][0]["output"] == "draft"
    assert document["notes"]["dataUsage"]["turns"] >= 1


def test_S3_6_S3_13_a_result_that_is_failed_and_has_an_error_in_its_notes_keeps_that_error():
    """`notes.error` of a FAILED result is its TaskError, also where a performer wrote it itself."""
    own = {"type": "TASK_FAILURE", "reason": "context_parsing_failure", "message": "no list"}
    result = executed(answering(TaskResult(status="FAILED", content="half", notes={"error": own})), Task("Look it up"))
    assert (result.content, result.notes["error"]) == ("half", own)


# 3.3 Associative matching


def matching(**more):
    return Task("Find what fits", subtype="associative_matching", **more)


def test_S3_14_a_matching_task_of_the_user_is_tried_again_by_itself_with_what_it_had_in_its_notes():
    """A matching task that fails is retried automatically; partial output and success score are kept in its notes."""
    scored = TaskResult(
        content="two of five",
        status=TaskStatus.FAILED,
        notes={"successScore": 0.4},
        fault=Fault.of("TASK_CONTEXT_MATCHING_FAILED", partial=Partial(payload="two of five")),
    )
    perform = answering(scored, "all five")
    result = executed(perform, matching())
    assert (result.content, len(perform.assignments)) == ("all five", 2)
    (tried,) = result.notes["retried"]
    assert tried["error"]["reason"] == "context_matching_failure"
    assert (tried["partialOutput"], tried["successScore"]) == ("two of five", 0.4)


def test_S3_14_after_the_second_failure_the_result_has_output_and_score():
    """The retry is one: a second failure surfaces, with partial output and score; other tasks are not retried."""
    scored = TaskResult(
        content="two",
        status=TaskStatus.FAILED,
        notes={"successScore": 0.4},
        fault=Fault.of("TASK_OUTPUT_INVALID", partial=Partial(payload="two")),
    )
    perform = answering(scored)
    runtime = Runtime(clock=VirtualClock())
    events = []
    runtime.on(events.append, SubtaskFailed)
    result = run(TaskSystem(perform, runtime=runtime).execute_task(matching()))
    assert (len(perform.assignments), len(events)) == (2, 1)
    assert (result.content, result.notes["successScore"]) == ("two", 0.4)
    plain = answering(scored)
    executed(plain, Task("Find what fits"))
    assert len(plain.assignments) == 1


def failed_of(code, had="two of five"):
    """A result with the failure of this code and a part; without a code, only the part and a score."""
    fault = Fault.of(code, partial=Partial(payload=had)) if code else None
    return TaskResult(content=had, status=TaskStatus.FAILED, notes={"successScore": 0.4}, fault=fault)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (failed_of(""), "context_matching_failure"),
        (failed_of("TASK_CONTEXT_MATCHING_FAILED"), "context_matching_failure"),
        (failed_of("TASK_CONTEXT_RETRIEVAL_FAILED"), "context_retrieval_failure"),
        (failed_of("TASK_CONTEXT_PARSING_FAILED"), "context_parsing_failure"),
        (failed_of("TASK_OUTPUT_INVALID"), "output_format_failure"),
        (failed_of("PROVIDER_STREAM_CUT"), "unexpected_error"),
    ],
)
def test_S3_14_insufficient_context_and_partial_output_are_retried_and_kept(answer, reason):
    """A matching task with too little context, or a part of its output, is retried once; the error has the part and the score."""
    perform = answering(answer, "all five")
    result = executed(perform, matching())
    assert (result.content, len(perform.assignments)) == ("all five", 2)
    (tried,) = result.notes["retried"]
    assert (tried["error"]["reason"], tried["partialOutput"], tried["successScore"]) == (reason, "two of five", 0.4)
    for_good = answering(answer)
    error = executed(for_good, matching())
    assert (len(for_good.assignments), error.content, error.notes["successScore"]) == (2, "two of five", 0.4)
    plain = answering(answer)
    executed(plain, Task("Find what fits"))
    assert len(plain.assignments) == 1


@pytest.mark.parametrize(("effect", "calls"), [(None, 1), ("read", 2), ("idempotent", 2), ("unsafe", 1)], ids=str)
@pytest.mark.parametrize("in_session", [False, True])
def test_S3_14_an_exception_that_nobody_foresaw_is_retried_only_where_it_may_be(effect, calls, in_session):
    """A matching function that raises anything is retried if it declares that it may be repeated: it may have done something."""
    made = []

    async def find(assignment):
        made.append(assignment)
        raise RuntimeError("insufficient context")

    perform = find if effect is None else tool(effect=effect)(find)

    async def main():
        system = TaskSystem(perform, runtime=Runtime(clock=VirtualClock()))
        if not in_session:
            return await system.execute_task(matching())
        async with Session.open("s", store=MemoryStore()) as session:
            return await system.execute_task(matching(), session=session)

    assert (run(main()).status, len(made)) == (TaskStatus.FAILED, calls)


def test_S3_14_in_a_session_a_matching_is_tried_twice_and_never_a_third_time():
    """The retry is a stored step like any other: a program that runs again repeats neither attempt."""
    perform = answering(raising("TASK_CONTEXT_MATCHING_FAILED"), "found")

    async def main():
        async with MemoryStore() as store:
            for _ in range(2):
                async with Session.open("s", store=store) as session:
                    result = await TaskSystem(perform).execute_task(matching(), session=session)
        return result.content, len(perform.assignments)

    assert run(main()) == ("found", 2)


@pytest.mark.parametrize(
    ("answer", "tries"), [(raising("TASK_CONTEXT_MATCHING_FAILED", partial="two"), 2), (RuntimeError("odd"), 1)]
)
def test_S3_14_a_matching_that_is_a_subtask_has_the_retry_of_a_matching_and_no_other(answer, tries):
    """It is tried twice, and not twice more in simpler words; what is not repeated for a matching is not repeated here."""
    tried = []

    def perform(assignment):
        if assignment.task.prompt == "plan":
            return asking(description="Find what fits", subtype="associative_matching")
        tried.append(assignment.prompt)
        raise answer

    assert error_of(perform, Task("plan"))["reason"] == "subtask_failure"
    assert tried == ["Find what fits"] * tries


def test_S3_14_no_retry_repeats_what_may_have_happened():
    """A matching that a person must put right, or that may have had an effect, is not retried."""
    perform = answering(raising("AUTH_FAILED"))
    assert executed(perform, matching()).fault.code == "AUTH_FAILED"
    assert len(perform.assignments) == 1
    for answer in (failed_of(""), failed_of("TASK_CONTEXT_MATCHING_FAILED"), raising("TASK_CONTEXT_PARSING_FAILED")):
        made = []

        @tool(effect="unsafe")
        async def order(assignment, answer=answer, made=made):
            made.append(assignment)
            if isinstance(answer, Exception):
                raise answer
            return answer

        executed(order, matching())
        assert len(made) == 1
    # An index looks for context in two ways by itself: a third try would find what they found.
    third = answering(raising("TASK_CONTEXT_MATCHING_FAILED", alternative="metadata"))
    executed(third, matching())
    assert len(third.assignments) == 1
    # What is exhausted is split, not repeated.
    spent = answering(raising("TASK_CONTEXT_EXHAUSTED"))
    executed(spent, matching())
    assert len(spent.assignments) == 1


# 3.3 Subtask failure


def test_S3_15_the_sample_of_a_subtask_failure_and_its_recovery_by_the_parent():
    """The error of a subtask has its request, its error, its depth and its partial output; the parent may retry a modified request."""

    def perform(assignment):
        prompt = assignment.task.prompt
        if prompt == "complex":
            return asking(description="outer") if not assignment.results else assignment.results[0]
        if prompt == "outer":
            return asking(description="Process complex data", inputs={"rows": 3})
        if prompt.startswith("Retry: "):
            return f"done in a simple way: {assignment.task.inputs}"
        raise raising(
            "TASK_HALTED", partial="Partial processing results before failure", reason="Failed to process data format"
        )

    async def main():
        tasks = TaskSystem(perform, change=None)
        failed = await tasks.execute_task(Task("complex"))
        assert failed.notes["error"]["details"]["nestingDepth"] == 2
        error = failed.notes["error"]["details"]["subtaskError"]
        request = error["details"]["subtaskRequest"]
        retried = await tasks.execute_task(
            {**request, "description": f"Retry: {request['description']} with simplified approach"}
        )
        return error, retried

    error, retried = run(main())
    assert (error["type"], error["reason"]) == ("TASK_FAILURE", "subtask_failure")
    assert error["message"] == 'Subtask "Process complex data" failed'
    details = error["details"]
    assert details["subtaskRequest"] == {"type": "atomic", "description": "Process complex data", "inputs": {"rows": 3}}
    assert (details["subtaskError"]["type"], details["subtaskError"]["reason"]) == ("TASK_FAILURE", "execution_halted")
    assert "Failed to process data format" in details["subtaskError"]["message"]
    assert (details["nestingDepth"], details["partialOutput"]) == (2, "Partial processing results before failure")
    assert (retried.status, retried.content) == (TaskStatus.COMPLETE, "done in a simple way: {'rows': 3}")


def test_S3_15_the_sample_of_a_parent_reads_type_reason_and_details_of_the_error():
    """The parent catches the error, and reads its type, reason and details as the sample does."""

    def perform(assignment):
        if assignment.task.prompt == "complex":
            return asking(description="Process complex data")
        raise raising("TASK_HALTED", partial="half")

    with pytest.raises(TaskError) as caught:
        run(TaskSystem(perform, change=None).run(Task("complex")))
    error = caught.value
    assert (error.type, error.reason) == ("TASK_FAILURE", "subtask_failure")
    assert error.message == 'Subtask "Process complex data" failed'
    assert error.details["subtaskRequest"]["description"] == "Process complex data"
    assert error.details["partialOutput"] == "half"
    with pytest.raises(TaskError) as caught:
        run(TaskSystem(perform).run(Task("x" * 99, context=2)))
    assert (caught.value.type, caught.value.reason, caught.value.details) == ("RESOURCE_EXHAUSTION", "context", {})


# 3.4 Validation of a recovery


def test_S3_16_a_recovery_is_checked_for_resources_progress_form_and_depth():
    """A recovery is validated: what it may use, whether it progresses, the form of its output, and how deep it goes."""
    too_large = Task("{doc}", inputs={"doc": DOC}, context=5)

    async def useless(task, fault, left):
        return Decomposition((task.with_(name="again"), task.with_(name="and again")))

    perform = answering("x")
    stuck = error_of(perform, too_large, decomposer=useless)
    assert "the part 'again' is not smaller" in stuck["message"]
    assert perform.assignments == []
    long = "\n\n".join(f"# {town}\n{'Orders came. ' * 60}" for town in ("Oslo", "Moss"))
    with_form = Task("{doc}", inputs={"doc": long}, context=300, output="array", reasks=0)
    perform = answering("[1]", "{}")
    wrong = error_of(perform, with_form, decomposer=by_section, change=None)
    details = wrong["details"]
    assert (details["failedStep"], details["subtaskError"]["reason"]) == (1, "output_format_failure")

    async def halves(task, fault, left):
        size = task.estimate // 2
        parts = (task.with_(prompt=f"{task.prompt}{half}", estimate=size) for half in "ab")
        return Decomposition(tuple(parts))

    forever = Task("x", estimate=1 << 20)
    result = executed(
        answering(raising("TASK_CONTEXT_EXHAUSTED")), forever, decomposer=halves, max_depth=2, change=None
    )
    assert (result.notes["error"]["resource"], result.fault.context["depth"]) == ("context", 2)

    async def bounded():
        with Budget(turns=3):
            return await TaskSystem(answering("x"), decomposer=by_section).execute_task(
                Task("{doc}", inputs={"doc": DOC * 3}, context=10)
            )

    assert run(bounded()).fault.code == "SYS_BUDGET_EXHAUSTED"


# 4. Examples


def test_S3_17_the_sample_of_a_broken_index_is_recovered_by_another_strategy(files, tmp_path):
    """The index is corrupted: context_retrieval_failure says how, and the context is found by the names of files."""
    error = {
        "type": "TASK_FAILURE",
        "reason": "context_retrieval_failure",
        "message": "Failed to access memory system index",
        "details": {"error": "Index corruption detected"},
    }

    database = tmp_path / "index.db"

    async def main():
        index = ContextIndex(files, database)
        await index.match("tokens")
        index.close()
        database.write_bytes(b"this is no database" * 500)
        tasks = TaskSystem(answering("x"), context=ContextIndex(files, database))
        return await tasks.recover_from_context_failure(error)

    recovery = run(main())
    assert recovery.status is TaskStatus.COMPLETE
    assert {match["path"] for match in recovery.value["matches"]} == {"tokens.md", "billing.md"}


def test_S3_17_a_context_failure_of_a_task_knows_its_question(files):
    """One argument is enough: the failure of a task says what it was about."""

    async def main():
        index = ContextIndex(files)
        tasks = TaskSystem(answering("x"), context=index)
        await index.match("tokens")
        (files / "tokens.md").rename(files / "keys.md")
        failed = await tasks.execute_task(Task("invoices", files=("gone.md",)))
        # The content of tokens.md has the word operator, and no name has it.
        (files / "operator.md").write_text("x")
        await index.refresh()
        named = await tasks.recover_from_context_failure(NO_MATCH, "the operator")
        assert [match["path"] for match in named.value["matches"]] == ["operator.md"]
        found = Fault.of("TASK_CONTEXT_MATCHING_FAILED", context={"query": "the billing of may"})
        other = await tasks.recover_from_context_failure(Fault.of("TASK_HALTED"))
        return failed, await tasks.recover_from_context_failure(found), other

    failed, recovered, other = run(main())
    assert failed.notes["error"]["reason"] == "context_retrieval_failure"
    assert [match["path"] for match in recovered.value["matches"]] == ["billing.md"]
    assert other.fault.code == "TASK_HALTED"


def test_S3_17_one_file_in_another_encoding_fails_no_task(files):
    """A file that cannot be read as it should is no reason to fail."""
    (files / "latin.md").write_bytes("Tokens für Öfen".encode("latin-1"))
    (files / "lost.md").write_text("Tokens are lost")
    index = ContextIndex(files)

    async def main():
        await index.match("tokens")
        (files / "lost.md").unlink()
        (files / "lost.md").mkdir()
        tasks = TaskSystem(lambda assignment: assignment.prompt, context=index)
        return await tasks.execute_task(Task("tokens", use=ContextUse(fresh=True, inherit="none")))

    result = run(main())
    assert result.status is TaskStatus.COMPLETE
    assert "Tokens f" in result.content
    assert "lost.md:" not in result.content
    assert result.notes["context"]["unread"] == ["lost.md"]


def test_S3_18_the_sample_of_a_workflow_fails_with_its_environment_or_its_subtask():
    """A program fails with subtask_failure or a reason of its own such as unbound_symbol, and with its environment."""
    tasks = {"task-a": Task("A"), "task-b": Task("B {input}")}

    async def main(perform, **more):
        return await TaskSystem(perform).execute_s_expression(PROGRAM, tasks={**tasks, **more})

    done = run(main(lambda assignment: f"<{assignment.prompt}>", process=lambda y: f"done {y}"))
    assert (done.status, done.content) == (TaskStatus.COMPLETE, "done <B <A>>")
    unbound = run(main(lambda assignment: "r")).notes["error"]
    assert unbound["reason"] == "unbound_symbol"
    assert unbound["details"]["s_expression_environment"] == {"x": "r", "y": "r"}
    failed = run(main(answering("r", raising("TASK_HALTED")))).notes["error"]
    assert (failed["type"], failed["reason"]) == ("TASK_FAILURE", "subtask_failure")
    assert failed["details"]["s_expression_environment"] == {"x": "r"}
    assert failed["details"]["failing_expression"].startswith("(call-atomic-task")
    assert failed["details"]["subtaskError"]["reason"] == "execution_halted"


def test_S3_18_the_request_of_a_failing_call_is_that_of_its_task():
    """Recovery may retry the atomic task that failed: its request has its prompt, and all of its inputs."""
    task = Task("Add {tax} to {price}", inputs={"tax": 25}, output="number")

    async def main():
        tasks = TaskSystem(answering(raising("TASK_HALTED"), "125"))
        failed = await tasks.execute_s_expression("(call-atomic-task 'sum (price 100))", tasks={"sum": task})
        request = failed.notes["error"]["details"]["subtaskRequest"]
        return request, await tasks.execute_task(request)

    request, again = run(main())
    assert (request["description"], request["inputs"]) == ("Add {tax} to {price}", {"tax": 25, "price": 100})
    assert (request["name"], again.value) == ("sum", 125)


def test_S3_15_S3_18_the_error_of_a_step_and_of_a_call_has_its_depth_and_partial_output():
    """The structure of a subtask's failure is standardized: nestingDepth and partialOutput are there for all of them."""

    def deep(assignment):
        if assignment.task.prompt == "inner":
            raise raising("TASK_HALTED", partial="half")
        return asking(description="inner")

    async def main():
        tasks = TaskSystem(deep, change=None)
        loop = await tasks.execute_task(DirectorLoop(director=Task("draft"), evaluator=Task("judge")))
        calls = {"direct": Task("inner"), "deep": Task("outer")}
        direct, nested = [
            await tasks.execute_s_expression(f"(bind x 1) (call-atomic-task '{name})", tasks=calls) for name in calls
        ]
        return [each.notes["error"] for each in (loop, direct, nested)]

    errors = run(main())
    details = [error["details"] for error in errors]
    assert [(each["nestingDepth"], each["partialOutput"]) for each in details] == [
        (2, "half"),
        (1, "half"),
        (2, "half"),
    ]
    assert details[1]["s_expression_environment"] == {"x": 1}
    assert [task_error_of(read_task_error(error)) for error in errors] == errors


def test_S3_18_the_request_of_a_template_has_its_instructions():
    """Access to the original subtask request for potential retry: what a template asks for, not its name."""

    class Down:
        name = "down"

        async def run(self, prompt, session=None):
            raise raising("TASK_HALTED")

    source = '(defatom sum (params a b) (instructions "Add {{a}} to {{b}} as {x}")) (sum :a 1 :b "two")'
    with pytest.raises(WorkflowError) as caught:
        run(Workflow(source, agent=Down()).run())
    request = caught.value.details["subtaskRequest"]
    assert (request["name"], request["inputs"]) == ("sum", {"a": 1, "b": "two"})
    assert Task.from_request(request).text() == "Add 1 to two as {x}"


@pytest.mark.parametrize("source", ['(+ 1 "a")', "(if 1 2)", "(1 2)", "(map list 3)"])
def test_S3_18_a_mistake_of_the_program_itself_has_a_reason_of_its_own(source):
    """`subtask_failure` is an atomic task that failed. A mistake has a reason of the language, and no handler of subtasks."""
    failed = run(TaskSystem(answering("r")).execute_s_expression(source))
    error = failed.notes["error"]
    assert (error["reason"], "subtaskError" in error["details"]) == ("evaluation_failed", False)
    assert handle_task_error(error) is Handler.GENERAL
    assert read_task_error(error).code == failed.fault.code


def test_S3_18_what_a_workflow_raises_has_type_message_reason_and_details():
    """The sample catches the error and reads its type, message, reason and details."""
    workflow = Workflow(PROGRAM, tasks={"task-a": lambda: "a", "task-b": lambda input: "b"})  # noqa: A006
    with pytest.raises(WorkflowError, match="process") as caught:
        run(TaskSystem(answering("r")).run(workflow))
    error = caught.value
    assert (error.type, error.reason) == ("TASK_FAILURE", "unbound_symbol")
    assert "the symbol process is not bound" in error.message
    assert error.details["s_expression_environment"] == {"x": "a", "y": "b"}


# 5. Known limitations


def test_S3_19_recovery_is_bounded_in_depth_and_starts_anew_in_another_session():
    """Recovery depth is limited, partial results may be truncated, and no recovery goes on across sessions."""
    counter = itertools.count()

    async def deeper(assignment):
        return asking(description=f"level {next(counter)}")

    error = error_of(deeper, Task("root"), change=None, max_depth=3)
    text = json.dumps(error)
    assert "level 2" in text
    assert "level 5" not in text

    async def parts(task, fault, left):
        return Decomposition([task.with_(prompt=f"{task.prompt}{n}", estimate=task.size - 1) for n in (1, 2)])

    again = error_of(
        answering("x" * 99), Task("x", max_output=1, estimate=100), decomposer=parts, max_depth=3, concurrency=1
    )
    assert (again["resource"], again["details"]["depth"]) == ("output", 3)
    long = executed(answering(raising("TASK_HALTED", partial="x" * 100_000)), Task("x"))
    assert len(long.content) <= 65_536
    assert long.content.startswith("[older results were cut]")

    async def main():
        perform = answering(raising("TASK_HALTED", partial="half"))
        async with MemoryStore() as store:
            for name in ("a", "b"):
                async with Session.open(name, store=store) as session:
                    await TaskSystem(perform).execute_task(Task("x"), session=session)
        return len(perform.assignments)

    assert run(main()) == 2


# What the project around the document adds


def test_N3_1_a_result_has_criteria_data_usage_and_its_notes():
    """TaskResult: content, status, criteria, parsedContent, notes with dataUsage, successScore, parseError and error."""
    scored = TaskResult(content="[1, 2]", notes={"successScore": 0.9})
    task = Task("Count", output="array", criteria="nothing is missing")
    perform = answering(scored)
    document = executed(perform, task).document()
    assert document == {
        "content": "[1, 2]",
        "status": "COMPLETE",
        "criteria": "nothing is missing",
        "parsedContent": [1, 2],
        "notes": {
            "successScore": 0.9,
            "dataUsage": {
                "turns": 1,
                "context": document["notes"]["dataUsage"]["context"],
                "output": 2,
                "peakContext": document["notes"]["dataUsage"]["context"],
                "peakOutput": 2,
            },
        },
    }
    assert "nothing is missing" in perform.assignments[0].prompt
    assert "not JSON" in executed(answering("no"), Task("x", output="array")).document()["notes"]["parseError"]
    own = executed(answering(TaskResult(content="x", criteria="mine")), task.with_(output=None))
    assert own.document()["criteria"] == "mine"


SHOUT = Task("Shout {doc}", inputs={"doc": DOC}, max_output=9)
MATCH = Task("Find", subtype="associative_matching")


@pytest.mark.parametrize(
    ("task", "answers", "options", "turns"),
    [
        (Task("x", output="array", reasks=0), ["{}"], {}, 1),
        (Task("x", turns=2, output="array", reasks=9), ["{}"], {}, 2),
        (MATCH, [TaskResult(status="FAILED", content="two"), "all"], {}, 2),
        (Task("x", output="array", reasks=0), ["{}"], {"handlers": {"format": lambda t, f: t.with_(output=None)}}, 2),
        (Task("x", output="array", reasks=9), ["{}"], {"alternative": lambda t, f: t.with_(output=None)}, 4),
        (Task("x"), [asking(description="y", output="array"), "{}", "{}", "{}", "[]", "done"], {}, 6),
        (Task("x"), [asking(description="y", supervision="ignore", output="array"), *["{}"] * 3, "done"], {}, 5),
        (Task("x"), [asking(description="y", output="array"), "{}"], {"change": None}, 4),
        (SHOUT, ["x" * 99, "x", "x"], {"decomposer": by_section}, 3),
        (SHOUT, ["x" * 99, "x", TaskResult(status="FAILED")], {"decomposer": by_section, "change": None}, 3),
        (DirectorLoop(director=Task("d"), evaluator=Task("e", output="object")), ["d", "{}", "d", {"success": True}], {}, 4),
        (DirectorLoop(director=Task("d"), evaluator=Task("e", output="object")), ["d", raising("TASK_HALTED")], {}, 1),
    ],
)  # fmt: skip
def test_N3_1_N3_7_data_usage_is_that_of_every_try_also_of_those_that_failed(task, answers, options, turns):
    """dataUsage counts all that was used for a task: by its failed tries, its subtasks and parts, and if it failed itself."""
    result = executed(answering(*answers), task, concurrency=1, **options)
    assert (result.document()["notes"]["dataUsage"]["turns"], result.usage.turns) == (turns, turns)


def test_N3_2_other_types_of_errors_hold_their_own_facts():
    """INVALID_OUTPUT has violations, VALIDATION_ERROR its path, XML_PARSE_ERROR its location; more reasons are accepted."""
    for document, code in (
        ({"type": "INVALID_OUTPUT", "message": "m", "violations": ["b is missing"]}, "TASK_OUTPUT_INVALID"),
        ({"type": "VALIDATION_ERROR", "message": "m", "path": "$.a", "invalidModel": {"a": 1}}, "TASK_MODEL_INVALID"),
        ({"type": "XML_PARSE_ERROR", "message": "m", "location": "3:14"}, "TASK_XML_PARSE_ERROR"),
    ):
        fault = read_task_error(document)
        assert (fault.code, task_error_of(fault)) == (code, document)
    xml = error_of(answering("<a>"), Task("x", output=XmlOutput("a"), reasks=0))
    assert (xml["reason"], xml["details"]["location"]) == ("xml_validation_failure", "line 1, column 4")
    both = {"inherit_context": "full", "fresh_context": "enabled"}
    model = error_of(answering("x"), {"type": "atomic", "description": "x", "context_management": both})
    assert (model["reason"], model["details"]["path"]) == ("input_validation_failure", "context.fresh")
    template = error_of(answering("x"), Task("x", agent="nobody"))
    assert template["reason"] == "template_not_found"
    assert read_task_error({"type": "TASK_FAILURE", "reason": "llm_error", "message": "m"}).code == "TASK_LLM_FAILED"


def test_N3_2_a_reduce_that_fails_names_its_item_and_what_it_had():
    """Details of a reduce: failedInputIndex, totalInputs, processedInputs and currentAccumulator."""
    source = "(reduce (lambda (sum n) (if (eq? n 3) (call-atomic-task 'count) (+ sum n))) 0 (list 1 2 3 4))"
    tasks = TaskSystem(answering(raising("TASK_HALTED")))
    details = run(tasks.execute_s_expression(source, tasks={"count": Task("Count")})).notes["error"]["details"]
    found = [details[name] for name in ("failedInputIndex", "totalInputs", "processedInputs", "currentAccumulator")]
    assert found == [2, 4, 2, "3"]


def test_N3_3_a_request_for_a_subtask_is_obeyed_in_all_its_fields(files):
    """A request may name file_paths, template_hints, context_management, a subtype and a depth, and each has its effect."""
    request = {
        "type": "atomic",
        "name": "prices",
        "description": "What costs {what}?",
        "inputs": {"what": "a token"},
        "template_hints": ["unknown", "clerk"],
        "context_management": {"inherit_context": "full", "accumulate_data": False},
        "file_paths": ["billing.md"],
        "max_depth": 0,
        "subtype": "lookup",
    }
    seen = []

    def clerk(assignment):
        seen.append(assignment)
        return "clerk: 5"

    def perform(assignment):
        return assignment.results[0].content if assignment.results else asking(**request)

    task = Task("Plan", background="We are a shop.\n\nWe sell keys.")
    system = {"agents": {"clerk": clerk}, "context": ContextIndex(files)}
    assert executed(perform, task, **system).content == "clerk: 5"
    (assignment,) = seen
    assert assignment.prompt.startswith("We are a shop.\n\nWe sell keys.\n\nbilling.md:\nInvoices are paid")
    assert (assignment.task.name, assignment.task.subtype, assignment.task.use.accumulate) == ("prices", "lookup", None)
    outside = {"type": "atomic", "description": "x", "file_paths": ["../secret"]}
    escape = executed(answering("x"), outside, **system)
    assert escape.notes["error"]["reason"] == "input_validation_failure"
    unknown = executed(answering("x"), {"type": "atomic", "description": "x", "file_path": ["a"]})
    assert "file_paths" in unknown.notes["error"]["message"]
    limited = Task.from_request(
        {"type": "atomic", "description": "x", "name": "n", "turns": 2, "seconds": 3, "output": "array"}
    )
    assert (limited.name, limited.turns, limited.seconds, limited.output) == ("n", 2, 3, "array")
    again = Task.from_request(assignment.task.with_(output="array", criteria="all").request())
    assert (again.files, again.hints, again.use) == (("billing.md",), ("unknown", "clerk"), assignment.task.use)
    assert (again.output, again.criteria, again.prompt) == ("array", "all", "What costs {what}?")

    def asks(assignment):
        prompt = assignment.task.prompt
        below = {"description": "below", "max_depth": 0} if prompt == "root" else {"description": "too deep"}
        return "done" if assignment.results else asking(**below)

    assert "TASK_DEPTH_EXCEEDED" in json.dumps(error_of(asks, Task("root"), change=None))
    whole = {**request, "criteria": "all", "output": "array", "turns": 2, "seconds": 3, "supervision": "ignore"}
    whole["context_management"] = {**again.use.document(), "inherit_context": "full"}
    assert Task.from_request(whole).request() == whole


@pytest.mark.parametrize("wrong", [{"type": "sequential"}, {"name": 5}, {"criteria": 5}, {"subtype": ["x"]}])
def test_N3_3_a_request_of_another_type_is_no_request(wrong):
    """The type of a request is atomic, and its name, criteria and subtype are texts: everything else is rejected."""
    error = error_of(answering("done"), {"type": "atomic", "description": "x", **wrong})
    assert error["reason"] == "input_validation_failure"
    assert next(iter(wrong)) in error["message"]


def test_N3_4_the_depth_is_limited_and_cycles_are_found_by_their_signature():
    """Subtasks are nested at most five deep by default, and a subtask that asks for itself is found."""
    counter = itertools.count()

    async def deeper(assignment):
        return asking(description=f"level {next(counter)}")

    assert "TASK_DEPTH_EXCEEDED" in json.dumps(error_of(deeper, Task("root"), change=None))
    assert next(counter) == 6
    cycle = error_of(answering(asking(description="root")), Task("root"), change=None)
    assert "asks for itself" in json.dumps(cycle)
    with pytest.raises(InvalidError, match="from 0 to 10"):
        TaskSystem(deeper, max_depth=11)


def test_N3_5_a_task_inherits_accumulates_and_looks_up_context_as_it_says(files):
    """inherit_context is full, none or subset; results accumulate as notes or whole; fresh excludes inheriting."""
    background = "Tokens are keys.\n\nInvoices are paid."

    def inherited(inherit):
        def perform(assignment):
            if assignment.task.prompt != "Plan":
                return assignment.prompt
            asked = asking(description="Which tokens?", context_management={"inherit_context": inherit})
            return assignment.results[0] if assignment.results else asked

        return executed(perform, Task("Plan", background=background)).content

    assert inherited("full") == f"{background}\n\nWhich tokens?"
    assert inherited("subset") == "Tokens are keys.\n\nWhich tokens?"
    assert inherited("none") == "Which tokens?"
    for asked, use in (
        ({}, ContextUse()),
        ({"inherit_context": "none"}, ContextUse(inherit="none")),
        ({"accumulation_format": "notes_only"}, ContextUse(accumulate="notes_only")),
        ({"accumulate_data": False}, ContextUse(accumulate=None)),
        ({"fresh_context": "enabled"}, ContextUse(inherit="none", fresh=True)),
    ):
        request = {"type": "atomic", "description": "x", "context_management": asked}
        clauses = "".join(f"<{name}>{str(value).lower()}</{name}>" for name, value in asked.items())
        xml = f"<task><description>x</description><context_management>{clauses}</context_management></task>"
        assert Task.from_request(request).use == Task.from_xml(xml).use == use
    fresh = Task("tokens", use=ContextUse(fresh=True, inherit="none"))
    assert "tokens.md:" in executed(lambda assignment: assignment.prompt, fresh, context=ContextIndex(files)).content
    with pytest.raises(InvalidError, match="inherit='none'"):
        ContextUse(fresh=True, inherit="full")


def test_N3_6_context_may_be_a_share_of_the_models_window_and_peaks_are_kept():
    """The limit of context is floor(window x fraction); use is checked before each call; 80 % warns; the peak is tracked."""
    model = Model('["a"', '["a", "b"]', window=1_000)
    agent = Agent("writer", model)
    task = Task("List", output="array", context=0.25, strict=True, turns=5)

    async def main():
        too_large = await TaskSystem(agent).execute_task(Task("x" * 2_000, context=0.25))
        return too_large, await TaskSystem(agent).execute_task(task)

    too_large, result = asyncio.run(main())
    assert too_large.notes["error"]["metrics"] == {"used": 500, "limit": 250}
    assert len(model.requests) == 2
    assert result.usage.turns == 2
    assert result.usage.context > result.usage.peak_context > 0
    unknown = executed(answering("x"), Task("x", context=0.25))
    assert "nobody knows the context window" in unknown.notes["error"]["message"]
    runtime = Runtime(clock=VirtualClock())
    warned = []
    runtime.on(warned.append, BudgetWarning)

    def asks(assignment):
        is_done = assignment.task.prompt != "root" or len(assignment.results) == 4
        return "done" if is_done else asking(description=f"step {len(assignment.results)}")

    assert run(TaskSystem(asks, runtime=runtime).execute_task(Task("root", turns=10))).content == "done"
    assert len(warned) == 1


def test_N3_7_an_exhausted_task_is_accounted_for_and_not_repeated():
    """On exhaustion nothing is used further, accounting ends, and there is no automatic retry."""
    perform = answering("{}")
    result = executed(perform, Task("x", output="array", turns=2, reasks=9))
    assert (result.notes["error"]["metrics"], len(perform.assignments)) == ({"used": 2, "limit": 2}, 2)
    assert AMBIENT.get() is None


def test_N3_8_a_model_decomposes_with_the_error_and_the_prompt_and_templates_may_forbid_it():
    """Reparsing gives the failed error and the original prompt to a specialist; disable_reparsing forbids it."""
    asked = []

    async def specialist(prompt):
        asked.append(prompt)
        return json.dumps(["Count Oslo", "Count Moss"])

    perform = lambda assignment: assignment.task.prompt  # noqa: E731
    task = Task("Count all the orders of all the towns, please: " + "x" * 60, context=12)
    result = executed(perform, task, decomposer=by_model(specialist))
    assert result.notes["decomposed"]["parts"] == 2
    assert "Count all the orders" in asked[0]
    assert "context" in asked[0]
    forbidden = Task.from_xml(
        f'<task disable_reparsing="true" context="12"><description>{task.prompt}</description></task>'
    )
    assert executed(perform, forbidden, decomposer=by_model(specialist)).notes["error"]["resource"] == "context"
    assert len(asked) == 1


@pytest.mark.parametrize(
    ("word", "good", "bad"),
    [
        ("object", "{}", "[]"),
        ("array", "[]", "{}"),
        ("[]", "[]", "{}"),
        ("string[]", '["a"]', "[1]"),
        ("number", "1.5", '"1"'),
        ("boolean", "true", "1"),
    ],
)
def test_N3_9_words_for_the_form_of_output(word, good, bad):
    """The schema is one of the words object, array, [], string[], number, boolean; content is kept beside the parsed value."""
    result = executed(answering(good), Task("x", output=word))
    assert (result.content, result.value) == (good, json.loads(good))
    wrong = executed(answering(bad), Task("x", output=word, reasks=0))
    assert (wrong.status, wrong.content) == (TaskStatus.FAILED, bad)
    assert wrong.notes["error"]["reason"] == "output_format_failure"


def test_N3_10_a_director_loop_ends_with_success_and_its_history():
    """At most five iterations; director gets prompt, feedback and iteration; a no is no error."""
    seen = []

    def write(assignment):
        seen.append(assignment.prompt)
        return f"draft {assignment.task.inputs['iteration']}"

    def judge(assignment):
        return {"success": assignment.task.inputs["output"] == "draft 3", "feedback": "shorter"}

    loop = DirectorLoop(
        director=Task("{original_prompt}|{feedback}|{iteration}", agent="writer"),
        evaluator=Task("Judge {output}", output="object", agent="critic"),
        prompt="Write",
    )
    result = executed(write, loop, agents={"writer": write, "critic": judge})
    assert seen == ["Write||1", "Write|shorter|2", "Write|shorter|3"]
    assert (result.content, result.notes["success"], result.notes["iterations_completed"]) == ("draft 3", True, 3)
    assert [each["evaluation"]["success"] for each in result.notes["iteration_history"]] == [False, False, True]
    noted = TaskResult(content="Well done", notes={"success": True, "feedback": "none"})
    once = executed(write, loop, agents={"writer": write, "critic": lambda a: noted})
    assert (once.notes["ended_by"], once.notes["iterations_completed"]) == ("success", 1)
    never = executed(write, loop, agents={"writer": write, "critic": lambda a: {"success": False}})
    assert (never.status, never.notes["iterations_completed"]) == (TaskStatus.COMPLETE, 5)
    assert (loop.max_iterations, loop.script_timeout) == (5, 300.0)


def test_N3_10_the_evaluator_sees_how_the_script_ended_and_a_condition_may_end_the_loop():
    """The script's stdout, stderr and exit code go to the evaluator; a termination condition ends the loop too."""
    judged = []

    def judge(assignment):
        judged.append(assignment.prompt)
        return {"success": False}

    loop = DirectorLoop(
        director=Task("draft"),
        evaluator=Task("{original_prompt}|{output}|{stdout}|{stderr}|{exit_code}", agent="critic"),
        prompt="Write",
        script=["bash", "-c", "read -r line; echo out: $line; echo err >&2; exit 3"],
        until=lambda iteration: iteration.script["exit_code"] == 3,
    )
    result = asyncio.run(TaskSystem(answering("d1"), agents={"critic": judge}).execute_task(loop))
    assert judged == ["Write|d1|out: d1\n|err\n|3"]
    assert (result.status, result.content, result.notes["ended_by"]) == (TaskStatus.COMPLETE, "d1", "until")
    (only,) = result.notes["iteration_history"]
    assert only["script"] == {"stdout": "out: d1\n", "stderr": "err\n", "exit_code": 3}


def evaluated(source):
    return run(TaskSystem(answering("x")).execute_s_expression(source))


def test_N3_11_the_form_of_a_director_loop_in_the_language():
    """The clauses get their arguments, iterations count from 1, the controller decides, n = 0 is nil."""
    source = """(director-evaluator-loop (max-iterations {n}) (initial-director-input 1)
        (director (lambda (input i) (+ input i))) (executor (lambda (plan i) plan))
        (evaluator (lambda (result plan i) result))
        (controller (lambda (feedback plan result i) (if (eq? i 2) (list 'stop result) (list 'continue feedback)))))"""
    assert evaluated(source.format(n=9)).value == 4
    assert evaluated(source.format(n=1)).value == 2
    assert evaluated(source.format(n=0)).value == []
    assert "initial-director-input" in evaluated("(director-evaluator-loop (max-iterations 2))").fault.message
    twice = source.format(n=2).replace("(initial-director-input 1)", "(initial-director-input 1)" * 2)
    assert "initial-director-input" in evaluated(twice).fault.message
    wrong = evaluated(source.format(n=2).replace("(list 'continue feedback)", "feedback")).fault
    assert (wrong.code, wrong.context["iteration"], wrong.context["phase"]) == (
        "TASK_EVALUATION_FAILED",
        1,
        "controller",
    )


def test_N3_11_each_function_of_a_director_loop_gets_its_own_arguments():
    """director(input, i), executor(plan, i), evaluator(result, plan, i), controller(feedback, plan, result, i)."""
    source = """(director-evaluator-loop (max-iterations 2) (initial-director-input "in")
        (director (lambda (input i) (list "plan" input i))) (executor (lambda (plan i) (list "result" plan i)))
        (evaluator (lambda (result plan i) (list "feedback" result plan i)))
        (controller (lambda (feedback plan result i)
            (list 'stop (list feedback plan result i (get-field *loop-config* "max-iterations"))))))"""
    plan = ["plan", "in", 1]
    result = ["result", plan, 1]
    assert evaluated(source).value == [["feedback", result, plan, 1], plan, result, 1, 2]


def test_N3_12_the_iterative_loop_in_the_language():
    """iterative-loop runs executor, validator and controller until the controller stops it."""
    source = """(iterative-loop (max-iterations 5) (initial-input 1) (test-command "t")
        (executor (lambda (input i) (+ input 1))) (validator (lambda (command i) command))
        (controller (lambda (result validation next i) (if (eq? i 3) (list 'stop i) (list 'continue i)))))"""
    result = evaluated(source)
    assert (result.status, result.value) == (TaskStatus.COMPLETE, 3)
    given = """(iterative-loop (max-iterations 5) (initial-input "in") (test-command "t")
        (executor (lambda (input i) (list "result" input i))) (validator (lambda (command i) (list command i)))
        (controller (lambda (result validation next i) (list 'stop (list result validation next i)))))"""
    assert evaluated(given).value == [["result", "in", 1], ["t", 1], "in", 1]


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("(if true 1 2)", 1),
        ("(let ((a 1) (b 2)) (+ a b))", 3),
        ("(progn (bind a 1) (+ a 1))", 2),
        ("((lambda (x) (- x 1)) 5)", 4),
        ("(loop 3 7)", 7),
        ("(loop 0 7)", []),
        ("(progn (bind n 0) (loop 3 (set! n (+ n 2))) n)", 6),
        ("(progn (bind a 1) (let ((a 2) (b a)) b))", 1),
        ("(let ((a 1)) (let ((f (lambda () a))) (let ((a 2)) (f))))", 1),
        ("(and 0 nobody)", 0),
        ("(or 1 nobody)", 1),
        ("(if (list) 1 2)", 2),
        ("(eq? 1 1)", True),
        ("(equal? (list 1) (list 1))", True),
        ("(nil? (list))", True),
        ('(get-property (quote (("a" 1))) "a")', 1),
        ("((lambda (n) (if (eq? n 0) 7 (recur (- n 1)))) 9)", 7),
        ('(progn (log-message "seen") 1)', 1),
        ("(and 1 0)", 0),
        ("(or 0 2)", 2),
        ("(quote (1 2))", [1, 2]),
        ("(progn (bind a 1) (set! a 5) a)", 5),
        ("(get-field (list 1 2) 1)", 2),
        ('(string=? "a" "a")', True),
        ("(null? (list))", True),
        ("(not 0)", True),
        ("(map (lambda (x) (+ x 1)) (list 1 2))", [2, 3]),
    ],
)
def test_N3_13_the_forms_and_primitives_of_the_language(source, value):
    """Special forms, primitives, closures and Python's truth work as the language says."""
    result = evaluated(source)
    assert (result.status, result.value) == (TaskStatus.COMPLETE, value), result.fault


@pytest.mark.parametrize(("source", "code"), [("(list nobody)", "TASK_UNBOUND_SYMBOL"), ("(list ", "TASK_SYNTAX_ERROR"), ("(if 1 2)", "TASK_EVALUATION_FAILED"), ("(let ((a 1)))", "TASK_EVALUATION_FAILED"), ("(set! a 1)", "TASK_UNBOUND_SYMBOL")])  # fmt: skip
def test_N3_13_mistakes_in_programs_are_typed(source, code):
    """Unbound symbols, syntax and evaluation errors are failures of their own."""
    result = evaluated(source)
    assert result.status is TaskStatus.FAILED
    assert result.fault.code == code


def test_N3_14_a_failed_call_may_be_returned_or_raised_and_names_its_expression():
    """The language wraps foreign errors with the failing expression."""

    def broken():
        raise ZeroDivisionError("1/0")

    async def main():
        tasks = TaskSystem(answering("x"))
        return await tasks.execute_s_expression("(list (broken))", tasks={"broken": broken})

    details = run(main()).notes["error"]["details"]
    assert details["failing_expression"] == "(broken)"
    returned = TaskResult(status=TaskStatus.FAILED, content="half", fault=Fault.of("TASK_HALTED"))
    for answer in (returned, raising("TASK_HALTED")):
        perform = answering(answer)
        result = run(TaskSystem(perform).execute_s_expression("(call-atomic-task 'a)", tasks={"a": Task("A")}))
        error = result.notes["error"]
        assert (result.status, error["reason"]) == (TaskStatus.FAILED, "subtask_failure")
        assert error["details"]["subtaskError"]["reason"] == "execution_halted"


def test_N3_15_a_match_has_a_summary_and_the_best_files_first(files):
    """A match has context_summary and matches with path, relevance from 0 to 1 and an excerpt; each failure has its reason."""

    async def main():
        for number in range(20):
            (files / f"{number}.md").write_text("Nobody counts the tokens that were lost in the sea, long ago.")
        index = ContextIndex(files)
        found = await index.match("tokens revoked")
        named = await index.match("billing", strategy="metadata")
        with pytest.raises(HoldfastError) as caught:
            await index.match("zebra")
        return found, named, caught.value.fault

    found, named, fault = run(main())
    assert found.context_summary.endswith("the best is tokens.md")
    assert (found.matches[0].path, found.matches[0].relevance) == ("tokens.md", 1.0)
    assert 0 < found.matches[1].relevance < 1
    assert len(found.matches) == MAX_RESULTS == 20
    assert "revoked" in found.matches[0].excerpt
    assert [match.path for match in named.matches] == ["billing.md"]
    assert task_error_of(fault)["reason"] == "context_matching_failure"


def test_N3_15_files_that_fit_and_cannot_be_read_are_a_parsing_failure(files):
    """Malformed is context_parsing_failure: the index knows the file, and nobody can read it."""

    async def main():
        index = ContextIndex(files)
        await index.match("tokens")
        (files / "tokens.md").unlink()
        (files / "tokens.md").mkdir()
        use = ContextUse(fresh=True, inherit="none")
        return await TaskSystem(answering("x"), context=index).execute_task(Task("revoked tokens", use=use))

    error = run(main()).notes["error"]
    assert error["reason"] == "context_parsing_failure"
    assert "revoked" in error["details"]["partial_context"]
