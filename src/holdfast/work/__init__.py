"""Work that any worker finishes: programs, what is submitted to them, and the workers that run it.

programs     `program`: a function of a session that workers know by its name and version
submission   `submit`, and changes from outside: cancel, retry, pause, resume
handle       `Handle`: what was submitted, to wait for, ask about and cancel
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
    from holdfast.work.handle import Handle
    from holdfast.work.programs import Program, program
    from holdfast.work.schedule import Schedule
    from holdfast.work.submission import cancel, pause, resume, retry, submit
    from holdfast.work.worker import Worker

__all__ = [
    "Handle",
    "Program",
    "Schedule",
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
    | dict.fromkeys(("submit", "cancel", "retry", "pause", "resume"), "holdfast.work.submission")
    | dict.fromkeys(("WorkItem", "WorkQueue", "WorkStatus"), "holdfast.stores.records")
    | {
        "Handle": "holdfast.work.handle",
        "Schedule": "holdfast.work.schedule",
        "Worker": "holdfast.work.worker",
        "signal": "holdfast.sessions.waits",
    }
)

__getattr__ = loader(__name__, globals(), _HOMES)
