"""Work that any worker finishes: programs, what is submitted to them, and the workers that run it.

programs     `program`: a function of a session that workers know by its name and version
submission   `submit`; changes: cancel, retry, pause, resume
handle       `WorkHandle`: what was submitted, to wait for, ask about and cancel
worker       `Worker`: claims what is due, runs it, and goes on with what a dead worker left
schedule     `Schedule`: a program that is submitted at times; cron: which times
run          one run of a program in a worker, and what becomes of its item

A work item is a session with the name, version and input of a program in its log. The store keeps a row beside it, for the claims of workers.
The lease of the session decides who works.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._lazy import loader

if TYPE_CHECKING:
    from holdfast.sessions.waits import signal
    from holdfast.stores.records import WorkItem, WorkQueue, WorkStatus
    from holdfast.work.changes import cancel, pause, resume, retry
    from holdfast.work.handle import WorkHandle
    from holdfast.work.programs import Program, program
    from holdfast.work.schedule import Schedule
    from holdfast.work.submission import submit
    from holdfast.work.worker import Worker

__all__ = [
    "Program",
    "Schedule",
    "WorkHandle",
    "WorkItem",
    "WorkQueue",
    "WorkStatus",
    "Worker",
    "cancel",
    "pause",
    "program",
    "resume",
    "retry",
    "signal",
    "submit",
]

_HOMES = (
    dict.fromkeys(("Program", "program"), "holdfast.work.programs")
    | dict.fromkeys(("cancel", "retry", "pause", "resume"), "holdfast.work.changes")
    | dict.fromkeys(("WorkItem", "WorkQueue", "WorkStatus"), "holdfast.stores.records")
    | {
        "WorkHandle": "holdfast.work.handle",
        "Schedule": "holdfast.work.schedule",
        "submit": "holdfast.work.submission",
        "Worker": "holdfast.work.worker",
        "signal": "holdfast.sessions.waits",
    }
)

__getattr__ = loader(__name__, globals(), _HOMES)
