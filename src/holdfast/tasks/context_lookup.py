"""The background of a task from a `ContextIndex`, and another way to it where the first fails.

Invariant: a context failure keeps what was found before it, and is followed by at most one other strategy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from holdfast.faults import Fault, HoldfastError, Partial
from holdfast.tasks.task import tokens_in

if TYPE_CHECKING:
    from holdfast.tasks.context_index import ContextIndex, Matches
    from holdfast.tasks.task import Task

__all__ = ["Background", "background_of", "matched"]

BACKGROUND_TOKENS = 8_000
"""The most that is put before a prompt, if the task names no limit of its own."""


async def matched(index: ContextIndex, query: str) -> Matches:
    """Return what fits a text, by content; else by the names of the files. Raises the fault of the first if both fail."""
    try:
        return await index.match(query)
    except HoldfastError as error:
        first = error.fault
        if not first.code.startswith("TASK_CONTEXT_"):
            raise
    try:
        return await index.match(query, strategy="metadata")
    except HoldfastError as error:
        tried = {**first.context, "alternative": "metadata", "alternative_error": error.fault.message}
        raise HoldfastError(msgspec.structs.replace(first, context=tried)) from error


class Background(NamedTuple):
    """What an index has for a task."""

    text: str
    strategy: str
    score: float
    """How well the best file fits."""
    is_second_try: bool
    """Whether it was found only when it was looked for in another way."""


async def background_of(task: Task, index: ContextIndex) -> Background:
    """Return the texts of the files that fit a task, the best first, as many as its context has room for."""
    found = await matched(index, task.text())
    room = BACKGROUND_TOKENS if task.context is None else max(0, task.context - task.size)
    parts: list[str] = []
    for match in found.matches:
        try:
            text = (index.root / match.path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            context = {"reason": f"{match.path} could not be read: {error}"}
            partial = Partial(payload=parts, complete=len(parts), expected=len(found.matches))
            raise HoldfastError(Fault.of("TASK_CONTEXT_PARSING_FAILED", context=context, partial=partial)) from error
        part = f"{match.path}:\n{text}"
        if tokens_in(part) > room:
            part = f"{match.path} (in part):\n{match.excerpt}"
        if tokens_in(part) > room:
            break
        room -= tokens_in(part)
        parts.append(part)
    again = found.retried or found.strategy != "content"
    return Background("\n\n".join(parts), found.strategy, found.matches[0].relevance, again)
