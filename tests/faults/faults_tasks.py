"""Tasks that fail, each with a code of its own."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.documents.task import TaskSystem
from holdfast.faults import Fault
from holdfast.tasks import ContextIndex, ContextUse, Status, Task, TaskResult, XmlOutput

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["CASES"]


def _fault(task: Task, perform: Callable[[Any], Any], **options: Any) -> Fault:
    result = asyncio.run(TaskSystem(perform, **options).execute_task(task))
    assert result.fault is not None
    return result.fault


def _nested(deeper: str) -> Fault:
    """Return the fault of a task whose performer runs another one, with a longer prompt or the same."""

    async def perform(assignment: Any) -> str:
        return str(await system.run(Task(assignment.task.prompt + deeper)))

    system = TaskSystem(perform)
    return asyncio.run(system.execute_task(Task("a"))).fault or Fault.of("SYS_UNKNOWN")


def _says(text: str) -> Callable[[Any], str]:
    return lambda _: text


def _unfit(*, is_damaged: bool) -> Fault:
    """Return the fault of an index in which nothing fits, or that cannot be kept."""
    with tempfile.TemporaryDirectory() as folder:
        index = ContextIndex(folder, folder if is_damaged else None)
        return _fault(Task("zebra", use=ContextUse(fresh=True, inherit="none")), _says("a"), context=index)


class _Vanishing(ContextIndex):
    """Somebody deletes the files after they were found."""

    async def match(self, query: str, **options: Any) -> Any:
        found = await super().match(query, **options)
        for match in found.matches:
            (self.root / match.path).unlink(missing_ok=True)
        return found


def _unreadable() -> Fault:
    """Return the fault of a file that fits by its name, and is gone when it is read."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "zebra.txt").write_text("stripes")
        index = _Vanishing(folder)
        return _fault(Task("zebra", use=ContextUse(fresh=True, inherit="none")), _says("a"), context=index)


class _Broken:
    """An agent whose model fails in a way that nobody knows."""

    name = "broken"

    async def run(self, prompt: str, **_: Any) -> Any:
        raise RuntimeError("the model said something odd")

    async def outcome(self, prompt: str, **_: Any) -> Any:
        raise NotImplementedError


def _raises(_: Any) -> str:
    raise RuntimeError("nobody foresaw this")


CASES: tuple[tuple[str, Callable[[], Fault]], ...] = (
    ("TASK_CONTEXT_EXHAUSTED", lambda: _fault(Task("x" * 100, context=10), _says("a"))),
    ("TASK_INPUT_INVALID", lambda: _fault(Task("{missing}"), _says("a"))),
    ("TASK_MODEL_INVALID", lambda: _fault(Task("a { b"), _says("a"))),
    ("TASK_OUTPUT_FORMAT", lambda: _fault(Task("a", output="array", reasks=0), _says("{}"))),
    ("TASK_OUTPUT_INVALID", lambda: _fault(Task("a", output="string[]", reasks=0), _says("[1]"))),
    ("TASK_TEMPLATE_NOT_FOUND", lambda: _fault(Task("a", agent="nobody"), _says("a"))),
    ("TASK_XML_INVALID", lambda: _fault(Task("a", output=XmlOutput("r"), reasks=0), _says("<q/>"))),
    ("TASK_XML_PARSE_ERROR", lambda: _fault(Task("a", output=XmlOutput("r"), reasks=0), _says("<r>"))),
    ("TASK_CONTEXT_MATCHING_FAILED", lambda: _unfit(is_damaged=False)),
    ("TASK_CONTEXT_RETRIEVAL_FAILED", lambda: _unfit(is_damaged=True)),
    ("TASK_CONTEXT_PARSING_FAILED", _unreadable),
    ("TASK_UNEXPECTED", lambda: _fault(Task("a"), lambda _: TaskResult(status=Status.FAILED, content="half"))),
    ("TASK_UNEXPECTED", lambda: _fault(Task("a"), _raises)),
    ("TASK_LLM_FAILED", lambda: _fault(Task("a"), _Broken())),
    ("TASK_CYCLE", lambda: _nested("")),
    ("TASK_DEPTH_EXCEEDED", lambda: _nested("a")),
)
