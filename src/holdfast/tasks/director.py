"""A director proposes, a program may try the proposal, an evaluator judges it: again and again until it is good, at most so often.

Invariant: a judgement that says no is no error. An error in any step ends the loop at once, and the history has every iteration, the
failing one too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast import options
from holdfast.faults import Fault, Partial
from holdfast.policies.profiles import TASK
from holdfast.sessions.call import as_step
from holdfast.tasks.output.format import code_in
from holdfast.tasks.place import HERE, TaskPlace
from holdfast.tasks.progress import NO_PROGRESS, Progress
from holdfast.tasks.task import Task, TaskResult, plain
from holdfast.tools import run
from holdfast.views import task as view

if TYPE_CHECKING:
    from holdfast.runtime.runtime import Runtime
    from holdfast.sessions.session import Session

    Perform = Callable[[Task], Awaitable[TaskResult]]

__all__ = ["DirectorLoop", "Iteration", "iterate", "not_accepted"]


class Iteration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One round: what was proposed, what the program did with it, and what was thought of it."""

    iteration: int
    output: str = ""
    script: dict[str, Any] | None = None
    """`stdout`, `stderr` and `exit_code` of the program."""
    evaluation: Any = None


class DirectorLoop(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A loop of proposals and judgements, which `TaskSystem.run` performs.

        loop = DirectorLoop(
            director=Task("{original_prompt} Feedback: {feedback}", agent="writer"),
            evaluator=Task("Judge this: {output}. Answer with success and feedback.", output="object", agent="critic"),
            prompt="Write a haiku",
        )
        result = (await tasks.outcome(loop)).unwrap()
        print(result.content, result.notes["iterations_completed"])

    director: its prompt may use `{original_prompt}`, `{feedback}` and `{iteration}`.
    evaluator: its prompt may use `{original_prompt}`, `{output}`, `{iteration}`, and with a script `{stdout}`, `{stderr}` and `{exit_code}`. Its
    output is an object: `success` ends the loop, `feedback` goes to the director. A text alone is feedback.
    script: a program that tries the proposal, or the code in its only fenced block. It gets it on its standard input, or as `file` in `cwd`; a
    `file` without `cwd` is in a new folder, in which the program starts. How it ends is for the evaluator to judge; a program that cannot be
    started or does not end within `script_timeout` is an error.
    until: ends the loop too, if it returns true for an iteration.
    unchanged: how many iterations may end alike before the loop is halted; None: any number.
    """

    director: Task
    evaluator: Task
    prompt: str = ""
    """The original prompt; without one that of the director."""
    script: Sequence[str] | None = None
    file: str = ""
    cwd: str | None = None
    script_timeout: float = TASK.timeout("script")
    max_iterations: int = int(TASK.limits["loop_iterations"])
    until: Callable[[Iteration], bool] | None = None
    unchanged: int | None = NO_PROGRESS

    def __post_init__(self) -> None:
        options.count("loop.unchanged", self.unchanged, least=2, optional=True)
        options.count("loop.max_iterations", self.max_iterations, least=0)
        options.seconds("loop.script_timeout", self.script_timeout)

    @property
    def title(self) -> str:
        """What messages call it."""
        return f"director-evaluator loop: {self.director.title}"


async def iterate(loop: DirectorLoop, perform: Perform, runtime: Runtime, session: Session | None) -> TaskResult:
    """Perform the loop. It never raises for a failed step: the result is then a failed one, with the history."""
    steps = ("director", *(("script",) if loop.script is not None else ()), "evaluator", "until")
    history: list[Iteration] = []
    progress = Progress(loop.unchanged)
    feedback: Any = ""
    success = is_over = False
    tasks: list[Task] = []

    async def performed(task: Task) -> TaskResult:
        tasks.append(task)
        return await perform(task)

    for number in range(1, loop.max_iterations + 1):
        iteration, done = Iteration(iteration=number), 0
        try:
            async for iteration in _steps(loop, number, feedback, performed, session):  # noqa: B007 - the last one counts
                done += 1
            is_over = loop.until is not None and loop.until(iteration)
        except Exception as error:  # noqa: BLE001 - whatever it is, it becomes the result
            task = tasks[-1] if steps[done] in {"director", "evaluator"} else None
            return _failed(loop, [*history, iteration], steps[done], done, runtime.fault_of(error), task=task)
        history.append(iteration)
        success, feedback = _judgement(iteration.evaluation)
        if success or is_over:
            break
        if progress.is_stuck(iteration.output, iteration.script, iteration.evaluation):
            halted = msgspec.structs.replace(progress.fault(), partial=Partial(payload=iteration.output))
            return TaskResult.of_fault(halted, notes={"iteration_history": _documents(history)})
    last = history[-1] if history else Iteration(iteration=0)
    notes = {
        "success": success,
        "final_evaluation": last.evaluation,
        "ended_by": "success" if success else "until" if is_over else "max_iterations",
        "iterations_completed": len(history),
        "iteration_history": _documents(history),
    }
    return TaskResult(content=last.output, notes=notes)


async def _steps(
    loop: DirectorLoop, number: int, feedback: Any, perform: Perform, session: Session | None
) -> AsyncIterator[Iteration]:
    """Yield the iteration as far as it is after each of its steps, so that a failing step leaves what came before it."""
    prompt = loop.prompt or loop.director.prompt
    given = {"original_prompt": prompt, "feedback": feedback, "iteration": number}
    proposed = await perform(_with(loop.director, given))
    iteration = Iteration(iteration=number, output=proposed.content)
    yield iteration
    given = {"original_prompt": prompt, "iteration": number, "output": proposed.content}
    if loop.script is not None:
        script = await _tried(loop, loop.script, proposed.content, session)
        iteration = msgspec.structs.replace(iteration, script=script)
        given |= script
        yield iteration
    judged = await perform(_with(loop.evaluator, given))
    evaluation = judged.content if judged.value is None else plain(judged.value)
    if "success" in judged.notes:
        evaluation = {"success": judged.notes["success"], "feedback": judged.notes.get("feedback", evaluation)}
    yield msgspec.structs.replace(iteration, evaluation=evaluation)


async def _tried(loop: DirectorLoop, script: Sequence[str], proposal: str, session: Session | None) -> dict[str, Any]:
    """Return how the program ended with a proposal. In a session it is a step: what it prints may differ from run to run."""

    async def tried(script: Sequence[str], proposal: str) -> dict[str, Any]:
        with ExitStack() as around:
            code, cwd = code_in(proposal), loop.cwd
            if loop.file:
                cwd = cwd or around.enter_context(TemporaryDirectory(prefix="holdfast-"))
                await asyncio.to_thread(_write, Path(cwd, loop.file), code)
            given = "" if loop.file else code
            ended = await run(list(script), input=given, cwd=cwd, timeout=loop.script_timeout, check=False)
        found = {"stdout": ended.stdout, "stderr": ended.stderr, "exit_code": ended.exit_code}
        return found if session is None else session.storable(found)

    step = as_step(tried, "task:script")
    return await (step(script, proposal) if session is None else session.step(step, list(script), proposal))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def not_accepted(loop: DirectorLoop, result: TaskResult) -> Fault | None:
    """Return why the last proposal is not the output of the loop, or None if it was accepted."""
    if result.fault is not None or result.notes["ended_by"] != "max_iterations":
        return result.fault
    context = {"used": result.notes["iterations_completed"], "limit": loop.max_iterations}
    message = f"{loop.title}: none of {context['used']} proposals was accepted"
    return Fault.of("TASK_LOOP_BOUND", message, context=context, partial=Partial(payload=result.content))


def _with(task: Task, given: dict[str, Any]) -> Task:
    return task.with_(inputs={**given, **task.inputs})


def _judgement(evaluation: Any) -> tuple[bool, Any]:
    """Return whether it is good, and what the director gets to know."""
    if isinstance(evaluation, Mapping):
        return evaluation.get("success") is True, evaluation.get("feedback", evaluation)
    return False, evaluation


def _documents(history: list[Iteration]) -> list[dict[str, Any]]:
    return [msgspec.to_builtins(each) for each in history]


def _failed(
    loop: DirectorLoop, history: list[Iteration], step: str, index: int, fault: Fault, *, task: Task | None
) -> TaskResult:
    last = history[-1]
    context = {
        "subtask": loop.title if task is None else task.title,
        **({} if task is None else {"subtask_request": task.request()}),
        "subtask_error": view.write(fault),
        "subtask_code": fault.code,
        "nesting_depth": 1 + max((HERE.get() or TaskPlace()).depth, fault.context.get("nesting_depth", 0)),
        "iteration": last.iteration,
        "step": step,
        "failed_step": index,
    }
    partial = fault.partial if fault.partial is not None else Partial(payload=last.output) if last.output else None
    message = f"{loop.title}: the step {step} of iteration {last.iteration} failed: {fault.message}"
    failed = Fault.of("TASK_SUBTASK_FAILED", message, context=context, partial=partial)
    return TaskResult.of_fault(failed, notes={"iteration_history": _documents(history)})
