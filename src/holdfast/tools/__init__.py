"""Tools that an agent calls: programs, functions and HTTP services, with limits, effects, and an end that is certain.

    from holdfast.tools import run

    finished = await run(["git", "status"], timeout=30)

files, shell, web   the bundled tools
toolbox       the tools of an agent, as a model sees them and calls them
command       a program and how to run it, as a value
process       run a program, stream its output, end it with all it has started
process_tree  every process of a command, found by its mark (process_mark)
output        what is kept of what it prints
"""

from __future__ import annotations

from holdfast._lazy import loader

# Type checkers assume that a variable of this name is true.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.runtime.failures.tool_fault import ToolError
    from holdfast.tools.files import edit_file, read_file, search
    from holdfast.tools.output import Chunk
    from holdfast.tools.process import Process, Run, run
    from holdfast.tools.process_error import Finished, ProcessError, ProcessTimeoutError
    from holdfast.tools.program_tool import process_tool
    from holdfast.tools.shell import bash
    from holdfast.tools.toolbox import Answer, Tool, Toolbox, collect
    from holdfast.tools.web import http_tool, web_fetch

__all__ = [
    "Answer",
    "Chunk",
    "Finished",
    "Process",
    "ProcessError",
    "ProcessTimeoutError",
    "Run",
    "Tool",
    "ToolError",
    "Toolbox",
    "bash",
    "collect",
    "edit_file",
    "http_tool",
    "process_tool",
    "read_file",
    "run",
    "search",
    "web_fetch",
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
    "ToolError": "holdfast.runtime.failures.tool_fault",
    "Toolbox": "holdfast.tools.toolbox",
    "bash": "holdfast.tools.shell",
    "collect": "holdfast.tools.toolbox",
    "edit_file": "holdfast.tools.files",
    "http_tool": "holdfast.tools.web",
    "process_tool": "holdfast.tools.program_tool",
    "read_file": "holdfast.tools.files",
    "run": "holdfast.tools.process",
    "search": "holdfast.tools.files",
    "web_fetch": "holdfast.tools.web",
}

__getattr__ = loader(__name__, globals(), _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
