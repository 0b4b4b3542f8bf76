"""Runs a workflow in forked processes that are killed after some seconds.

Reads lines with seconds and a folder from stdin, and writes how the process ended: `killed`, or `done` with the value as JSON. 0: it is not killed.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import sys
import traceback
from pathlib import Path

from holdfast import Session
from holdfast.tasks.workflows import Workflow

SOURCE = """
(bind plan (a "goal"))
(bind parts (map (lambda (n) (bind y (b n)) (c y)) (range 4)))
(bind checked (try (d plan) (catch (e) (get-field e "message"))))
(bind again (retry 3 (f plan)))
(bind first-failed (try (map (lambda (n) (g n)) (range 3)) (catch (e) (get-field e "message"))))
(list plan parts checked again (length first-failed))
"""
WHOLE = ["a(goal)", ["c(b(0))", "c(b(1))", "c(b(2))", "c(b(3))"], "d is down", "f(a(goal))", len("g(1) is down")]


def tasks(notes: Path):
    def note(call: str) -> int:
        """Note that a call begins, in one write; return how often it has begun."""
        with notes.open("a") as file:
            file.write(call + "\n")
        return notes.read_text().split("\n").count(call)

    def of(name):
        async def run(x):
            call = f"{name}({x})"
            count = note(call)
            await asyncio.sleep(0)
            if name == "d" or (name == "f" and count < 3):
                raise ConnectionError(f"{name} is down")
            if call == "g(1)":
                raise ConnectionError("g(1) is down")
            return call

        return run

    return {name: of(name) for name in ("a", "b", "c", "d", "f", "g")}


async def work(folder: Path):
    # A killed process leaves its lease; on one machine the next process sees that its owner is gone.
    async with Session.open("s", store=f"sqlite:{folder / 'work.db'}") as session:
        return await Workflow(SOURCE, tasks=tasks(folder / "notes")).run(session)


def child(folder: Path, answer: int, work):
    try:
        value = asyncio.run(work(folder))
        os.write(answer, json.dumps(value).encode())
        code = 0
    except BaseException:
        traceback.print_exc()
        code = 1
    os._exit(code)


def serve(work):
    """Run `work` in a process of its own for each line of stdin."""
    # What is imported takes longer than a run.
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        seconds, _, folder = line.strip().partition(" ")
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read)
            child(Path(folder), write, work)
        os.close(write)
        with os.fdopen(read, "rb") as pipe:
            if float(seconds) and not select.select([pipe], [], [], float(seconds))[0]:
                os.kill(pid, signal.SIGKILL)
            value = pipe.read().decode()
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        ended = {0: f"done {value}", -signal.SIGKILL: "killed"}.get(code, f"failed {code}")
        sys.stdout.write(ended + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve(work)
