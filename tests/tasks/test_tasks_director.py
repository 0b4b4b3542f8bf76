"""The loop of a director and an evaluator: it ends when the work is good, at its limit, or at once when a step fails."""

from __future__ import annotations

import asyncio
import itertools
import sys

import pydantic
import pytest

from holdfast import Budget, Err, InvalidError, Session
from holdfast.documents.task import TaskSystem
from holdfast.stores.memory import MemoryStore
from holdfast.tasks import DirectorLoop, Status, Task, TaskError
from holdfast.testing import run as virtual_run
from holdfast.views import task as view

DIRECTOR = Task("write {original_prompt} {feedback} {iteration}", agent="director")
EVALUATOR = Task("judge {output} {iteration}", output="object", agent="evaluator", reasks=0)


def system(evaluate, direct=lambda assignment: assignment.prompt):
    return TaskSystem(lambda _: "", agents={"director": direct, "evaluator": evaluate})


def test_N3_10_it_ends_when_the_evaluator_is_content_and_feedback_goes_to_the_director():
    def evaluate(assignment):
        number = assignment.task.inputs["iteration"]
        return {"success": number == 3, "feedback": f"no {number}"}

    loop = DirectorLoop(director=DIRECTOR, evaluator=EVALUATOR, prompt="a haiku")
    result = virtual_run(system(evaluate).execute_task(loop))
    assert (result.status, result.content) == (Status.COMPLETE, "write a haiku no 2 3")
    assert (result.notes["success"], result.notes["iterations_completed"]) == (True, 3)
    assert result.notes["final_evaluation"] == {"success": True, "feedback": "no 3"}
    assert [each["iteration"] for each in result.notes["iteration_history"]] == [1, 2, 3]


def test_N3_10_a_judgement_that_says_no_is_no_error_and_the_number_of_iterations_is_limited():
    loop = DirectorLoop(director=DIRECTOR, evaluator=EVALUATOR)
    result = virtual_run(system(lambda _: {"success": False}).execute_task(loop))
    assert (result.status, result.notes["success"], result.notes["iterations_completed"]) == (Status.COMPLETE, False, 5)
    none = virtual_run(system(lambda _: {}).execute_task(DirectorLoop(director=DIRECTOR, evaluator=EVALUATOR, max_iterations=0)))  # fmt: skip
    assert (none.content, none.notes["iterations_completed"]) == ("", 0)
    with pytest.raises(InvalidError, match="max_iterations"):
        DirectorLoop(director=DIRECTOR, evaluator=EVALUATOR, max_iterations=-1)


def test_A91_the_evaluator_raises_in_the_second_iteration():
    def evaluate(assignment):
        if assignment.task.inputs["iteration"] == 2:
            raise ConnectionResetError("gone")
        return {"success": False, "feedback": "more"}

    loop = DirectorLoop(director=DIRECTOR, evaluator=EVALUATOR)
    result = virtual_run(system(evaluate).execute_task(loop))
    assert result.status is Status.FAILED
    error = result.notes["error"]
    assert (error["type"], error["reason"].upper()) == ("TASK_FAILURE", "SUBTASK_FAILURE")
    assert "gone" in str(error["details"]["subtaskError"])
    history = result.notes["iteration_history"]
    assert [each["iteration"] for each in history] == [1, 2]
    assert "evaluation" not in history[1]
    assert history[1]["output"].endswith("more 2")
    assert view.read_result(result.document()).code == "TASK_SUBTASK_FAILED"


def test_a_condition_of_the_caller_ends_it_too():
    loop = DirectorLoop(director=DIRECTOR, evaluator=EVALUATOR, until=lambda each: each.iteration == 2)
    assert virtual_run(system(lambda _: {}).execute_task(loop)).notes["iterations_completed"] == 2


def test_N3_10_a_script_gets_the_proposal_and_the_evaluator_gets_how_it_ended():
    program = "import sys; text = sys.stdin.read(); print(text[:5]); sys.exit(3)"
    judged = []

    def evaluate(assignment):
        judged.append(assignment.prompt)
        return {"success": True}

    judge = Task("{stdout}|{exit_code}", output="object", agent="evaluator")
    loop = DirectorLoop(director=DIRECTOR, evaluator=judge, script=[sys.executable, "-c", program])
    result = asyncio.run(system(evaluate).execute_task(loop))
    assert result.notes["success"]
    assert judged[0].startswith("write\n|3")
    assert result.notes["iteration_history"][0]["script"]["exit_code"] == 3


@pytest.mark.parametrize(
    "script", [["holdfast-no-such-program"], [sys.executable, "-c", "import time; time.sleep(60)"]]
)
def test_S3_13_a_script_that_cannot_run_or_does_not_end_stops_the_loop(script):
    loop = DirectorLoop(director=DIRECTOR, evaluator=EVALUATOR, script=script, script_timeout=0.2)
    result = asyncio.run(system(lambda _: {}).execute_task(loop))
    assert (result.status, result.fault.code) == (Status.FAILED, "TASK_SUBTASK_FAILED")
    assert len(result.notes["iteration_history"]) == 1
    assert result.content


def test_in_a_session_a_loop_goes_on_where_it_was_cut():
    calls = []

    def direct(assignment):
        calls.append(assignment.prompt)
        return assignment.prompt

    def evaluate(assignment):
        if len(calls) == 2 and not judged:
            judged.append(1)
            raise ConnectionResetError("gone")
        return {"success": assignment.task.inputs["iteration"] == 3, "feedback": "more"}

    judged: list[int] = []

    async def main():
        loop = DirectorLoop(director=DIRECTOR, evaluator=EVALUATOR)
        tasks = system(evaluate, direct)
        async with MemoryStore() as store:
            async with Session.open("s", store=store) as session:
                assert (await tasks.execute_task(loop, session=session)).status is Status.FAILED
            async with Session.open("s", store=store) as session:
                return await tasks.execute_task(loop, session=session)

    assert virtual_run(main()).notes["iterations_completed"] == 3
    assert len(calls) == 3


def cut_and_again(tasks, work):
    """Execute `work` in a session until it fails, and again in the next run of the program; return both results."""

    async def main():
        async with MemoryStore() as store:
            found = []
            for _ in range(2):
                async with Session.open("s", store=store) as session:
                    found.append(await tasks.execute_task(work, session=session))
            return found

    return asyncio.run(main())


def test_XK5_a_script_of_a_loop_is_a_step_so_later_prompts_are_found_in_the_store(tmp_path):
    ran = tmp_path / "ran"
    program = f"import pathlib, os; p = pathlib.Path({str(ran)!r}); p.open('a').write('x'); print(os.getpid())"
    calls, broken = [], [True]

    def evaluate(assignment):
        calls.append(assignment.prompt)
        if len(calls) == 3 and broken:
            broken.clear()
            raise ConnectionResetError("gone")
        return {"success": len(calls) == 4, "feedback": f"more {len(calls)}"}

    judge = Task("{output} {stdout}", output="object", agent="evaluator", reasks=0)
    loop = DirectorLoop(director=DIRECTOR, evaluator=judge, script=[sys.executable, "-c", program])
    cut, whole = cut_and_again(system(evaluate), loop)
    assert (cut.status, whole.status) == (Status.FAILED, Status.COMPLETE)
    assert (len(calls), len(set(calls)), ran.read_text()) == (4, 3, "xxx")


def test_XK8_an_evaluator_may_answer_with_a_model_or_a_dataclass():
    class Verdict(pydantic.BaseModel):
        success: bool
        feedback: str = ""

    judge = Task("judge {output}", output=Verdict, agent="evaluator")
    loop = DirectorLoop(director=DIRECTOR, evaluator=judge)
    result = virtual_run(system(lambda _: '{"success": true}').execute_task(loop))
    assert (result.notes["success"], result.notes["iterations_completed"]) == (True, 1)
    assert result.notes["final_evaluation"] == {"success": True, "feedback": ""}


def test_XK9_a_condition_that_raises_ends_the_loop_as_a_failure():
    loop = DirectorLoop(director=DIRECTOR, evaluator=EVALUATOR, until=lambda each: each.evaluation["score"] > 3)
    result = virtual_run(system(lambda _: {}).execute_task(loop))
    assert (result.status, result.fault.context["subtask_code"]) == (Status.FAILED, "SYS_PROGRAMMING_ERROR")
    assert [each["iteration"] for each in result.notes["iteration_history"]] == [1]


def test_XK3_a_budget_around_a_loop_ends_its_script():
    loop = DirectorLoop(
        director=DIRECTOR, evaluator=EVALUATOR, script=[sys.executable, "-c", "import time; time.sleep(60)"]
    )

    async def main():
        with Budget(seconds=0.3):
            return await system(lambda _: {}).execute_task(loop)

    result = asyncio.run(main())
    assert result.fault.context["subtask_code"] == "SYS_DEADLINE_EXCEEDED"


DRAFT = """Here is the test:

```python
def test_it():
    assert 1 + 1 == {total}
```
"""


def test_XK8_a_script_as_documented_tries_the_code_of_the_proposal_in_a_file():
    drafts = iter([3, 2])
    judge = Task("{exit_code} {stdout}", output="object", agent="evaluator")
    loop = DirectorLoop(
        director=DIRECTOR,
        evaluator=judge,
        script=[sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        file="test_draft.py",
    )
    tasks = system(
        lambda each: {"success": each.task.inputs["exit_code"] == 0}, lambda _: DRAFT.format(total=next(drafts))
    )
    result = asyncio.run(tasks.execute_task(loop))
    assert [each["script"]["exit_code"] for each in result.notes["iteration_history"]] == [1, 0]
    assert "1 passed" in result.notes["iteration_history"][1]["script"]["stdout"]


def test_XK8_a_script_gets_the_code_without_its_fence_and_starts_in_its_folder(tmp_path):
    program = "import os, sys; print(os.getcwd()); print(sys.stdin.read())"
    loop = DirectorLoop(
        director=DIRECTOR, evaluator=EVALUATOR, script=[sys.executable, "-c", program], cwd=str(tmp_path)
    )
    result = asyncio.run(system(lambda _: {"success": True}, lambda _: DRAFT).execute_task(loop))
    assert result.notes["iteration_history"][0]["script"]["stdout"].split("\n")[:2] == [str(tmp_path), "def test_it():"]
    in_it = DirectorLoop(
        director=DIRECTOR, evaluator=EVALUATOR, script=["cat", "a/b.py"], file="a/b.py", cwd=str(tmp_path)
    )
    asyncio.run(system(lambda _: {"success": True}, lambda _: DRAFT).execute_task(in_it))
    assert (tmp_path / "a" / "b.py").read_text().startswith("def test_it():")


def test_XK8_run_raises_if_no_proposal_was_accepted():
    loop = DirectorLoop(director=DIRECTOR, evaluator=EVALUATOR, max_iterations=2)
    tasks = system(lambda _: {"success": False})
    with pytest.raises(TaskError, match="none of 2 proposals was accepted") as raised:
        virtual_run(tasks.run(loop))
    assert (raised.value.fault.code, raised.value.fault.partial.payload[:5]) == ("TASK_LOOP_BOUND", "write")
    assert isinstance(virtual_run(tasks.outcome(loop)), Err)
    assert virtual_run(tasks.execute_task(loop)).notes["ended_by"] == "max_iterations"
    until = DirectorLoop(director=DIRECTOR, evaluator=EVALUATOR, until=lambda each: True)
    assert virtual_run(tasks.run(until)).startswith("write")


@pytest.mark.parametrize(("drafts", "rounds"), [("a", 3), ("ab", 4), ("abcd", 6)])
def test_XK8_XT8_a_loop_that_gets_nowhere_is_halted(drafts, rounds):
    made = itertools.cycle(drafts)
    calls = []

    def direct(assignment):
        calls.append(assignment.prompt)
        return next(made)

    loop = DirectorLoop(director=DIRECTOR, evaluator=EVALUATOR, max_iterations=40)
    result = virtual_run(system(lambda _: {"success": False, "feedback": "again"}, direct).execute_task(loop))
    assert (result.status, result.fault.code, len(calls)) == (Status.FAILED, "TASK_HALTED", rounds)
    assert (result.content, len(result.notes["iteration_history"])) == (drafts[(rounds - 1) % len(drafts)], rounds)


def test_XK9_a_loop_that_waits_for_the_world_may_go_on_unchanged():
    loop = DirectorLoop(director=DIRECTOR, evaluator=EVALUATOR, max_iterations=9, unchanged=None)
    result = virtual_run(system(lambda _: {"success": False}, lambda _: "look").execute_task(loop))
    assert result.notes["iterations_completed"] == 9
