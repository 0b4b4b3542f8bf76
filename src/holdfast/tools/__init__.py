"""Tools that an agent calls: programs, functions and HTTP services, with limits, effects, and an end that is certain.

    from holdfast.tools import run

    finished = await run(["git", "status"], timeout=30)

process       run a program, stream its output, end it with all it has started
process_tree  every process of a command        output       what is kept of what it prints
"""

from __future__ import annotations

from holdfast._lazy import loader

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.tools.output import Chunk
    from holdfast.tools.process import Process, Run, run
    from holdfast.tools.process_error import Finished, ProcessError, ProcessTimeoutError

__all__ = ["Chunk", "Finished", "Process", "ProcessError", "ProcessTimeoutError", "Run", "run"]

_HOMES = {
    "Chunk": "holdfast.tools.output",
    "Finished": "holdfast.tools.process_error",
    "Process": "holdfast.tools.process",
    "ProcessError": "holdfast.tools.process_error",
    "ProcessTimeoutError": "holdfast.tools.process_error",
    "Run": "holdfast.tools.process",
    "run": "holdfast.tools.process",
}

__getattr__ = loader(__name__, globals(), _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
