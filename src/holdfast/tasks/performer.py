"""Who performs a task: an agent, or a function. Both are asked in the same way and answer in the same way.

Invariant: with a session, what an agent or a function has answered is stored before anything is done with it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard

import msgspec

from holdfast.faults import InvalidError
from holdfast.faults.redaction import whole_characters
from holdfast.once.outcome import Found, Mark
from holdfast.runtime.acts import acted, watch_acts
from holdfast.runtime.operation.postconditions import check_plain_call
from holdfast.runtime.tool import contract_of
from holdfast.sessions.call import as_step
from holdfast.tasks.task import Status, Task, TaskResult, as_json, tokens_in
from holdfast.tools.threads import call_function

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.sessions.session import Session

__all__ = [
    "Assignment",
    "Performance",
    "Performer",
    "TaskAgent",
    "is_agent",
    "is_unsafe",
    "performed",
    "requested_subtask",
]


_ANSWER = Mark("holdfast.task")
"""Stands around the stored answer of a performer."""
_ACTED = "acted"
"""The field of a stored answer that names the unsafe calls which the performer has made for it. It is stored, so it never changes."""


class _Reply(Protocol):
    @property
    def text(self) -> str: ...


class TaskAgent(Protocol):
    """What a task system needs of an agent. Every agent of `holdfast.agents` has it."""

    async def run(self, prompt: str, *, session: Session | None = None) -> _Reply:
        """Work on the prompt and return the answer, or raise."""
        ...


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """What a function that performs tasks gets: `async def perform(assignment): return assignment.prompt.upper()`."""

    task: Task
    prompt: str
    """The whole text: background, prompt with its inputs, the form of the output, and what was wrong with an earlier answer."""
    results: tuple[TaskResult, ...] = ()
    """The results of the subtasks that it asked for, in order."""


Performer: TypeAlias = "TaskAgent | Callable[[Assignment], Any]"


class Performance(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of a performer."""

    result: TaskResult
    output_tokens: int
    """As the provider counted them, else a quarter of the bytes."""


async def performed(name: str, performer: Performer, assignment: Assignment, session: Session | None) -> Performance:
    """Return the answer of an agent or a function. `name` is what it is called in the system."""
    if is_agent(performer):
        return _of_reply(await performer.run(assignment.prompt, session=session))
    if session is None:
        result = await _called(performer, assignment)
    else:
        # A function sees more than the prompt. Stored calls of tasks without inputs are known by the prompt alone.
        given = [each.content for each in assignment.results]
        seen = {"inputs": assignment.task.inputs, "results": given} if assignment.task.inputs or given else None
        args = (assignment.prompt,) if seen is None else (assignment.prompt, seen)
        result = _restored(await session.step(_step(name, performer, assignment), *args))
    return Performance(result=result, output_tokens=tokens_in(result.content))


def is_agent(performer: Performer) -> TypeGuard[TaskAgent]:
    """Return whether it is an agent, and not a function."""
    return hasattr(performer, "run") and hasattr(performer, "outcome")


def is_unsafe(performer: Performer) -> bool:
    """Return whether it declares that it must not be called twice for one task."""
    contract = contract_of(performer)
    return contract is not None and contract.effect == "unsafe"


def _step(name: str, performer: Any, assignment: Assignment) -> Callable[..., Any]:
    """Return the function that a session runs as a step: with the performer's name, and with its contract."""

    async def call(*_seen: Any) -> Any:
        with watch_acts() as acts:
            document = msgspec.to_builtins(await _called(performer, assignment))
        # A run that gets this answer from the store must know it, too.
        return _ANSWER.on({**document, _ACTED: list(acts.names)} if acts.names else document)

    contract = contract_of(performer)
    if contract is not None and (verify := contract.verify) is not None:

        def found(key: str, *_seen: Any) -> Any:
            return verify(key, assignment)

        contract = msgspec.structs.replace(contract, verify=found)
    return as_step(call, f"task:{name}", contract)


def _restored(stored: Any) -> TaskResult:
    """Return the result of a stored answer. What the performer's `verify` found, or a person, is what the performer itself returns."""
    answer = _ANSWER.read(stored)
    if not isinstance(answer, Found):
        for name in answer.get(_ACTED, ()):
            acted(name)
        return msgspec.convert(answer, TaskResult)
    # Earlier versions stored the fields of the result alone.
    if (
        isinstance(stored, dict)
        and stored.keys() & {"content", "status"}
        and stored.keys() <= set(TaskResult.__struct_fields__)
    ):
        return msgspec.convert(stored, TaskResult)
    return _as_result(stored)


def _of_reply(reply: Any) -> Performance:
    usage = getattr(reply, "usage", None)
    counted = None if usage is None else getattr(usage, "output", None)
    text, data = str(reply.text), getattr(reply, "data", None)
    match data:
        case {"status": Status.CONTINUATION, "notes": {"subtask_request": _} as notes}:
            # An agent asks for a subtask in the form of a result. It is plain data, so a session can store it.
            result = TaskResult(content=text, status=Status.CONTINUATION, notes=notes)
        case _:
            result = TaskResult(content=text, value=data)
    return Performance(result=result, output_tokens=tokens_in(text) if counted is None else int(counted))


async def _called(performer: Any, assignment: Assignment) -> TaskResult:
    answer = await call_function(performer, (assignment,), {})
    return _as_result(await check_plain_call(performer, answer, (assignment,), {}))


def _as_result(answer: Any) -> TaskResult:
    """Return an answer as a result. Its value is plain JSON: it is the same in a session, where it is stored."""
    if isinstance(answer, str):
        return TaskResult(content=whole_characters(answer))
    try:
        if isinstance(answer, TaskResult):
            value = None if answer.value is None else msgspec.json.decode(as_json(answer.value))
            return msgspec.structs.replace(answer, content=whole_characters(answer.content), value=value)
        content = as_json(answer)
    except (TypeError, ValueError):
        expected = "a text, a TaskResult, or a value that JSON has"
        raise InvalidError.at("task performer's answer", expected, answer, "TASK_OUTPUT_INVALID") from None
    return TaskResult(content=content, value=msgspec.json.decode(content))


def requested_subtask(result: TaskResult) -> Task | None:
    """Return the subtask that an answer asks for, if it asks for one."""
    if result.status != Status.CONTINUATION:
        return None
    request = result.notes.get("subtask_request")
    return request if isinstance(request, Task) else Task.from_request(request)
