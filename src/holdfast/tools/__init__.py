"""Tools that an agent calls: programs, functions and HTTP services, with limits, effects, and an end that is certain.

    from holdfast.tools import run

    finished = await run(["git", "status"], timeout=30)

toolbox       the tools of an agent, as a model sees them and calls them
process       run a program, stream its output, end it with all it has started
process_tree  every process of a command        output       what is kept of what it prints
"""

from __future__ import annotations

from holdfast._lazy import loader

# Type checkers assume that a variable of this name is true.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.tools.output import Chunk
    from holdfast.tools.process import Process, Run, run
    from holdfast.tools.process_error import Finished, ProcessError, ProcessTimeoutError
    from holdfast.tools.process_tool import process_tool
    from holdfast.tools.toolbox import Answer, Tool, Toolbox, collect

__all__ = [
    "Answer",
    "Chunk",
    "Finished",
    "Process",
    "ProcessError",
    "ProcessTimeoutError",
    "Run",
    "Tool",
    "Toolbox",
    "collect",
    "process_tool",
    "run",
]

_HOMES = {
    "Answer": "holdfast.tools.toolbox",
    "Chunk": "holdfast.tools.output",
    "Finished": "holdfast.tools.process_error",
    "Process": "holdfast.tools.process",
    "ProcessError": "holdfast.tools.process_error",
    "ProcessTimeoutError": "holdfast.tools.process_error",
    "Run": "holdfast.tools.process",
    "Tool": "holdfast.tools.toolbox",
    "Toolbox": "holdfast.tools.toolbox",
    "collect": "holdfast.tools.toolbox",
    "process_tool": "holdfast.tools.process_tool",
    "run": "holdfast.tools.process",
}

__getattr__ = loader(__name__, globals(), _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
