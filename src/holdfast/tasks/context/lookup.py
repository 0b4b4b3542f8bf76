"""The background of a task from a `ContextIndex`, and another way to it where the first fails.

Invariant: a context failure keeps what was found before it and says what was looked for, and is followed by at most one other strategy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.tasks.task import tokens_in

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.tasks.context.index import ContextIndex, Match, Matches
    from holdfast.tasks.task import Task

__all__ = ["Background", "background_of", "matched", "read_files"]

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
        tried = {"alternative": "metadata", "alternative_error": error.fault.message}
        metrics = {"context_metrics": {"strategies": 2, "matches": 0}}
        context = {**first.context, **tried, **metrics, "query": query}
        raise HoldfastError(msgspec.structs.replace(first, context=context)) from error


class Background(NamedTuple):
    """What an index has for a task."""

    text: str
    strategy: str
    score: float
    """How well the best file fits."""
    is_second_try: bool
    """Whether it was found only when it was looked for in another way."""
    unread: tuple[str, ...] = ()
    """The files that fit and could not be read."""


async def background_of(task: Task, index: ContextIndex, inherited: str = "") -> Background:
    """Return the texts of the files that fit a task, the best first, as many as its context has room for.

    A file that cannot be read is left out. Raises TASK_CONTEXT_PARSING_FAILED if none can; its fault has what there is instead: the
    background that the task inherits, and what the index says about the files.
    """
    try:
        found = await matched(index, task.text())
    except HoldfastError as error:
        raise HoldfastError(_with_context(error.fault, inherited)) from error
    room = BACKGROUND_TOKENS if task.context is None else max(0, int(task.context) - task.size)
    used, unread = 0, dict[str, str]()
    parts: list[str] = []
    for match in found.matches:
        try:
            text = _text_of(index.root / match.path)
        except OSError as error:
            unread[match.path] = str(error)
            continue
        part = f"{match.path}:\n{text}"
        if used + tokens_in(part) > room:
            part = f"{match.path} (in part):\n{match.excerpt}"
        if used + tokens_in(part) > room:
            break
        used += tokens_in(part)
        parts.append(part)
    if unread and not parts:
        raise HoldfastError(_unreadable(task, found, unread, inherited))
    again = found.retried or found.strategy != "content"
    return Background("\n\n".join(parts), found.strategy, found.matches[0].relevance, again, tuple(unread))


def read_files(index: ContextIndex | None, paths: tuple[str, ...], inherited: str = "") -> str:
    """Return the texts of files that a task names, by their paths below the folder of an index.

    Raises TASK_INPUT_INVALID for a path that leads out of the folder, and TASK_CONTEXT_RETRIEVAL_FAILED, with those that could be read.
    """
    if index is None:
        reason = "the task names files, and the task system has no ContextIndex, whose folder they are in"
        raise HoldfastError(Fault.of("TASK_CONTEXT_RETRIEVAL_FAILED", context={"reason": reason}))
    parts: list[str] = []
    unread: dict[str, str] = {}
    root = index.root.resolve()
    for path in paths:
        file = (root / path).resolve()
        if not file.is_relative_to(root):
            raise InvalidError.saying("task.files", f"paths below {index.root}", repr(path), "TASK_INPUT_INVALID")
        try:
            parts.append(f"{path}:\n{_text_of(file)}")
        except OSError as error:
            unread[path] = str(error)
    text = "\n\n".join(parts)
    if unread:
        reason = "; ".join(f"{path} could not be read: {why}" for path, why in unread.items())
        metrics = {"matches": len(paths), "read": len(parts), "tokens": tokens_in(text)}
        fault = Fault.of("TASK_CONTEXT_RETRIEVAL_FAILED", context={"reason": reason, "context_metrics": metrics})
        raise HoldfastError(_with_context(fault, inherited, text))
    return text


def _text_of(path: Path) -> str:
    # As the index reads them: a file in another encoding is better with a few marks than not at all.
    return path.read_bytes().decode("utf-8", "replace")


def _unreadable(task: Task, found: Matches, unread: dict[str, str], inherited: str) -> Fault:
    path, why = next(iter(unread.items()))
    more = f", nor {len(unread) - 1} more" if len(unread) > 1 else ""
    metrics = {"matches": len(found.matches), "read": 0, "best": found.matches[0].relevance}
    context = {
        "reason": f"{path} could not be read: {why}{more}",
        "query": task.text(),
        "success_score": found.matches[0].relevance,
        "context_metrics": metrics,
    }
    excerpts = "\n\n".join(map(_excerpt, found.matches))
    return _with_context(Fault.of("TASK_CONTEXT_PARSING_FAILED", context=context), inherited, excerpts)


def _excerpt(match: Match) -> str:
    return f"{match.path} (in part):\n{match.excerpt}"


def _with_context(fault: Fault, *texts: str) -> Fault:
    """Return the fault with the context that there is."""
    partial = "\n\n".join(each for each in texts if each)
    return msgspec.structs.replace(fault, context={**fault.context, "partial_context": partial}) if partial else fault
