"""A task that is too large for its budget is split into smaller ones, and their results are merged.

Invariant: every part is smaller than the task, by its own estimate. Splitting again and again therefore ends, and its depth is limited too.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

import msgspec

from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.policies.budget import Left
from holdfast.tasks.task import Task, TaskResult, tokens_in

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Decomposer", "Decomposition", "Merge", "by_items", "by_model", "by_section", "check_parts"]

Merge: TypeAlias = "Literal['concatenate', 'collect'] | Callable[[list[TaskResult]], Any] | Task"
"""How results become one: texts (or lists) put together, a list of all, a function of the results, or a task whose input `results` they are."""

MOST_PARTS = 64
_USEFUL = 0.75
"""How large a part of a model's may be, as a share of a task whose prompt is too large."""


class Decomposition(msgspec.Struct, frozen=True):
    """The parts of a task, and how their results become one: `Decomposition([first, second], "concatenate")`."""

    parts: Sequence[Task]
    merge: Merge = "concatenate"
    """How the results become one."""


Decomposer: TypeAlias = Callable[[Task, Fault, Left], Awaitable[Decomposition | None]]
"""Splits a task: it gets the task, why it failed, and what is left to spend. None means that it cannot be split."""


def check_parts(task: Task, decomposition: Decomposition) -> None:
    """Raise TASK_MODEL_INVALID unless there are two parts or more and each is smaller than the task."""
    parts = decomposition.parts
    size = _bytes(task)
    if not 2 <= len(parts) <= MOST_PARTS:
        reason = f"a decomposer must return 2 to {MOST_PARTS} parts, and returned {len(parts)}"
    elif large := [part for part in parts if _bytes(part) >= size]:
        reason = f"the part {large[0].title!r} is not smaller ({_bytes(large[0])} bytes) than the task itself ({size})"
    else:
        return
    raise HoldfastError(Fault.of("TASK_MODEL_INVALID", reason, context={"path": "decomposition.parts"}))


def _bytes(task: Task) -> int:
    """Return the size in bytes: tokens are too coarse to compare small parts."""
    return (
        len((task.background + task.text()).encode("utf-8", "replace")) if task.estimate is None else task.estimate * 4
    )


@overload
def by_section(task: Task, fault: Fault, left: Left, /) -> Awaitable[Decomposition | None]: ...
@overload
def by_section(*, merge: Merge) -> Decomposer: ...
def by_section(*given: Any, merge: Merge | None = None) -> Any:
    """Split the largest text among the inputs at its headings, else its paragraphs, lines or sentences.

    With `merge` it returns a decomposer whose results are put together in that way. A task whose prompt is too large even without
    the text fails with TASK_CONTEXT_EXHAUSTED; a `merge` of another kind raises `InvalidError`.

    For example:
        tasks = TaskSystem(agent, decomposer=by_section)
        tasks = TaskSystem(count, decomposer=by_section(merge=lambda results: sum(each.value for each in results)))
    """
    return _decomposer("by_section", _by_section, given, merge)


@overload
def by_items(task: Task, fault: Fault, left: Left, /) -> Awaitable[Decomposition | None]: ...
@overload
def by_items(*, merge: Merge) -> Decomposer: ...
def by_items(*given: Any, merge: Merge | None = None) -> Any:
    """Split the longest list among the inputs: `TaskSystem(agent, decomposer=by_items)`.

    With `merge` it returns a decomposer whose results are put together in that way. A task with an item that is too large for any part
    fails with TASK_CONTEXT_EXHAUSTED; a `merge` of another kind raises `InvalidError`.

    For example:
        tasks = TaskSystem(add, decomposer=by_items(merge=lambda results: sum(each.value for each in results)))
    """
    return _decomposer("by_items", _by_items, given, merge)


def _decomposer(
    name: str, split: Callable[[Task, Fault], list[Task] | None], given: tuple[Any, ...], merge: Merge | None
) -> Any:
    """Return what a decomposer returns for `given`; the decomposer itself if nothing is given but how to merge."""
    if not (merge is None or merge in ("concatenate", "collect") or callable(merge) or isinstance(merge, Task)):
        expected = "'concatenate', 'collect', a function of the results, or a Task with the input {results}"
        raise InvalidError.at(f"{name}.merge", expected, merge)

    async def decompose(task: Task, fault: Fault, _left: Left) -> Decomposition | None:
        parts = split(task, fault)
        return None if parts is None else Decomposition(parts, _merge_of(task) if merge is None else merge)

    return decompose(*given) if given else decompose


def _by_section(task: Task, fault: Fault) -> list[Task] | None:
    texts = {name: value for name, value in task.inputs.items() if isinstance(value, str)}
    if not texts:
        return None
    name = max(texts, key=lambda each: len(texts[each]))
    _check_room(task, fault, {name: ""}, f"without `{name}` the prompt")
    wanted = _how_many(fault, tokens_in(texts[name]))
    sections = _sections(texts[name], wanted)
    return None if len(sections) < 2 else _with_input(task, name, sections)


def _by_items(task: Task, fault: Fault) -> list[Task] | None:
    lists = {name: value for name, value in task.inputs.items() if isinstance(value, list) and len(value) > 1}
    if not lists:
        return None
    name = max(lists, key=lambda each: len(lists[each]))
    items = lists[name]
    largest = max(items, key=lambda item: len(msgspec.json.encode(item, enc_hook=str)))
    _check_room(task, fault, {name: [largest]}, f"the largest item of `{name}` alone")
    return _with_input(task, name, _groups(items, min(len(items), _how_many(fault, task.size))))


def _check_room(task: Task, fault: Fault, least: dict[str, Any], what: str) -> None:
    """Raise TASK_CONTEXT_EXHAUSTED if the smallest part that is possible does not fit either: splitting would only fail later."""
    used, limit = fault.context.get("used"), fault.context.get("limit")
    if fault.code != "TASK_CONTEXT_EXHAUSTED" or not isinstance(used, int) or not isinstance(limit, int):
        return
    # What is sent beside the prompt, such as the background and the form of the output, is the same for each part.
    beside = max(0, used - tokens_in(task.text()))
    needed = beside + tokens_in(task.with_(inputs={**task.inputs, **least}).text())
    if needed > limit:
        form = ", the form of its output included" if task.output is not None else ""
        reason = f"The task cannot be split: {what} needs {needed} of {limit} context tokens{form}. Raise `context`"
        raise HoldfastError(msgspec.structs.replace(fault, message=reason))


def by_model(perform: Callable[[str], Awaitable[str]]) -> Decomposer:
    """Return a decomposer that asks a model for the parts. `perform` sends it a prompt and returns its answer.

    For example:
        tasks = TaskSystem(agent, decomposer=by_model(ask_claude))
    """

    async def decompose(task: Task, fault: Fault, _left: Left) -> Decomposition | None:
        prompt = _SPECIALIST.format(
            code=fault.code, message=fault.message, prompt=task.prompt, inputs=", ".join(task.inputs) or "none"
        )
        answer = await perform(prompt)
        found = re.search(r"\[.*\]", answer, re.DOTALL)
        try:
            prompts = msgspec.json.decode(found[0] if found else answer, type=list[str])
        except (msgspec.DecodeError, RecursionError) as error:
            reason = f"the decomposition specialist did not answer with a JSON list of texts: {error}"
            raise HoldfastError(Fault.of("TASK_OUTPUT_INVALID", context={"violations": [reason]})) from None
        parts = [_part_of(task, each) for each in prompts]
        if fault.code == "TASK_CONTEXT_EXHAUSTED":
            _check_smaller(task, fault, parts)
        else:
            # What is smaller about them is the work, and not the text.
            share = max(1, task.size // max(1, len(prompts)))
            parts = [part.with_(inputs=task.inputs, estimate=share) for part in parts]
        return Decomposition(parts, _merge_of(task))

    return decompose


def _part_of(task: Task, prompt: str) -> Task:
    """Return a part with a prompt that a model wrote: with the inputs that it names. Other braces are part of its text."""
    named = re.compile(r"\{(%s)\}|[{}]" % ("|".join(map(re.escape, task.inputs)) or r"(?!)"))
    inputs = {each[1]: task.inputs[each[1]] for each in named.finditer(prompt) if each[1]}
    escaped = named.sub(lambda each: each[0] if each[1] else each[0] * 2, prompt)
    return task.with_(prompt=escaped, inputs=inputs, name="", estimate=None)


def _check_smaller(task: Task, fault: Fault, parts: list[Task]) -> None:
    """Raise TASK_CONTEXT_EXHAUSTED if a part is nearly as large as the task: it would be split again and again."""
    needed = max((part.size for part in parts), default=0)
    if needed > task.size * _USEFUL:
        reason = f"The task cannot be split: a part needs {needed} of its {task.size} tokens again. Split its inputs: by_section, by_items"
        raise HoldfastError(msgspec.structs.replace(fault, message=reason))


_SPECIALIST = """\
You are a decomposition specialist. A task failed because it used up a resource: {code}, {message}.

The task:
{prompt}

It has these inputs, which each part may use as {{name}} in braces: {inputs}.

Split it into two or more smaller tasks that can be done one by one, and whose results together are the result of the task. Answer only with
a JSON list of texts, one prompt for each part."""


def _with_input(task: Task, name: str, values: Iterable[Any]) -> list[Task]:
    return [
        task.with_(inputs={**task.inputs, name: value}, name=f"{task.label} (part {number})", estimate=None)
        for number, value in enumerate(values, 1)
    ]


def _merge_of(task: Task) -> Merge:
    """Return how results of the task's form are put together: texts and lists as they are, anything else as a list of all."""
    is_list = task.output in ("array", "[]", list) or str(task.output).endswith("[]")
    is_list = is_list or getattr(task.output, "__origin__", None) is list
    is_list = is_list or (isinstance(task.output, dict) and task.output.get("type") == "array")
    if task.output is None or is_list or task.output in (str, "string"):
        return "concatenate"
    return Task(
        "These are the results of the parts of a larger task. Merge them into one result of the same form.\n\n{results}",
        output=task.output,
        name=f"{task.label} (merge)",
        agent=task.agent,
        decompose=False,
    )


def _how_many(fault: Fault, size: int) -> int:
    """Return how many parts are needed so that each fits, with a little room; two if nobody knows."""
    limit = fault.context.get("limit")
    if fault.code == "TASK_CONTEXT_EXHAUSTED" and isinstance(limit, int) and limit > 0:
        return max(2, min(MOST_PARTS, -(-size * 5 // (limit * 4))))
    return 2


_SPLITS = (
    re.compile(r"(?m)^(?=#{1,6} )"),
    re.compile(r"(?<=\n)\n+"),
    re.compile(r"(?<=\n)"),
    re.compile(r"(?<=[.!?])\s+"),
)


def _sections(text: str, count: int) -> list[str]:
    """Return about `count` pieces of a text, cut at the largest of its divisions that gives so many."""
    for split in _SPLITS:
        pieces = [piece for piece in split.split(text) if piece.strip()]
        if len(pieces) >= count:
            joined = "\n" if split is _SPLITS[1] else ("" if split is not _SPLITS[3] else " ")
            return [joined.join(group) for group in _balanced(pieces, count)]
    half = len(text) // 2
    return [text[:half], text[half:]] if half else [text]


def _balanced(pieces: list[str], count: int) -> list[list[str]]:
    """Return the pieces in `count` groups of about the same length, in order."""
    total = sum(map(len, pieces))
    groups: list[list[str]] = [[]]
    done = 0
    for place, piece in enumerate(pieces):
        # A piece belongs to the group in which most of it lies.
        is_due = done + len(piece) / 2 > total * len(groups) / count or len(pieces) - place <= count - len(groups)
        if groups[-1] and len(groups) < count and is_due:
            groups.append([])
        groups[-1].append(piece)
        done += len(piece)
    return groups


def _groups(items: list[Any], count: int) -> list[list[Any]]:
    return [items[len(items) * n // count : len(items) * (n + 1) // count] for n in range(count)]
