"""A process that has everything imported and forks one child per plan, so that a killed run costs no start of Python.

It reads requests and writes answers, one JSON line each.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from holdfast.runtime.runtime import Runtime
from holdfast.stores.failpoints import FAILPOINTS
from holdfast.stores.sqlite import writer

LIMIT_S = 60.0
HUNG = "hung"


class Request(msgspec.Struct, frozen=True, kw_only=True):
    work: str
    """A module and a coroutine function in it, `crash_work:perform`."""
    plans: list[dict[str, Any]]


def die_at(point: str, nth: int) -> None:
    """Make this process kill itself when it reaches a point for the n-th time."""
    reached = 0

    def hook(name: str) -> None:
        nonlocal reached
        if name == point:
            reached += 1
            if reached == nth:
                os.kill(os.getpid(), signal.SIGKILL)

    FAILPOINTS.hook = hook


def in_child(work: str, given: dict[str, Any]) -> NoReturn:
    status = 1
    try:
        warnings.simplefilter("ignore")
        # The WAL is moved many times in a short run.
        writer.MOST_WAL_BYTES = 96 * 1024
        module, _, name = work.partition(":")
        perform = getattr(importlib.import_module(module), name)
        plan = msgspec.convert(given, perform.__globals__["Plan"])
        if plan.point is not None:
            die_at(plan.point, plan.nth)
        asyncio.run(perform(plan))
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def run(request: Request) -> list[str]:
    """Run the plans at the same time, each in a process; return how each ended."""
    children: dict[int, dict[str, Any]] = {}
    for plan in request.plans:
        pid = os.fork()
        if not pid:
            in_child(request.work, plan)
        children[pid] = plan
    begun = time.monotonic()
    ended: dict[int, str] = {}
    while len(ended) < len(children):
        for pid, plan in children.items():
            if pid not in ended:
                _look_after(pid, plan, time.monotonic() - begun, ended)
        time.sleep(0.001)
    return [ended[pid] for pid in children]


def _look_after(pid: int, plan: dict[str, Any], passed: float, ended: dict[int, str]) -> None:
    done, status = os.waitpid(pid, os.WNOHANG)
    if done:
        code = os.waitstatus_to_exitcode(status)
        ended[pid] = {0: "done", -signal.SIGKILL: "killed"}.get(code, f"failed ({code})")
    elif passed > LIMIT_S:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        ended[pid] = HUNG
    elif plan.get("after") is not None and passed > plan["after"]:
        os.kill(pid, signal.SIGKILL)


MODULES = ("crash_work", "crash_sessions", "crash_disks", "crash_forks", "crash_programs")


def main() -> None:
    for name in sys.argv[1:]:
        importlib.import_module(name)
    # A runtime imports the classifier's rules when it is made. Otherwise every child would: four fifths of a short run.
    Runtime()
    gc.collect()
    gc.freeze()
    for line in sys.stdin.buffer:
        answer = run(msgspec.json.decode(line, type=Request))
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()


class Server:
    """The same, seen from a test."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._lock = threading.Lock()

    def run(self, work: str, *plans: msgspec.Struct) -> list[str]:
        request = Request(work=work, plans=[msgspec.to_builtins(plan) for plan in plans])
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        with self._lock:
            stdin.write(msgspec.json.encode(request) + b"\n")
            stdin.flush()
            line = stdout.readline()
        assert line, "the server of crashes has crashed"
        return msgspec.json.decode(line, type=list[str])


@contextmanager
def serving(*modules: str) -> Iterator[Server]:
    """Start a server that has imported these modules; by default those of the store and of sessions."""
    here = Path(__file__)
    with subprocess.Popen(
        [sys.executable, str(here), *(modules or MODULES)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=here.parent,
    ) as process:
        yield Server(process)
        assert process.stdin is not None
        process.stdin.close()


if __name__ == "__main__":
    main()
