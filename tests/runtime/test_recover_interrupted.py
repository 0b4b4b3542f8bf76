"""An exception that a signal's handler raises, such as an alarm or Ctrl-C, leaves no lock, place or reservation behind, wherever it comes.

CPython runs such a handler after a call, at the beginning of a function and at the end of a loop's turn. The tests raise at each of these
points of our code once, without signals.
"""

from __future__ import annotations

import asyncio
import contextvars
import dis
import gc
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

import holdfast
from holdfast import Budget, Policy, Runtime, recover

SOURCE = Path(holdfast.__file__).parent
CRITICAL = tuple(
    str(SOURCE / name)
    for name in (
        "runtime/targets/limiter.py",
        "runtime/locks.py",
        "runtime/budgets/reservations.py",
        "runtime/budgets/reserve.py",
        "runtime/budgets/charges.py",
        "runtime/operation/drivers.py",
        "runtime/operation/operation.py",
        "runtime/targets/target_state.py",
        "policies/bulkhead.py",
        "policies/budget.py",
        "policies/queue.py",
        "policies/reservation.py",
        "policies/rate_limit.py",
        "policies/circuit/machine.py",
    )
)
POINTS = frozenset({"RESUME", "CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD"})
REQUEST: dict[str, Any] = {"model": "claude-haiku-4-5", "max_tokens": 4000, "messages": []}


class AlarmError(BaseException):
    """What the handler raises."""


class Injector:
    """Raises once, at the n-th point where a handler could run."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.raised = False

    def run(self, call: Callable[[], object]) -> None:
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            call()
        except AlarmError:
            pass
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, event: str, _: object) -> Any:
        if self.raised or frame.f_code.co_filename not in CRITICAL:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        names = opcodes(frame.f_code)
        last = ""

        def step(frame: FrameType, event: str, _: object) -> Any:
            nonlocal last
            if event != "opcode" or self.raised:
                return step
            was, last = last, names[frame.f_lasti]
            # The instruction before this one has ended, and a handler may run.
            if was in POINTS:
                self.left -= 1
                if self.left < 0:
                    self.raised = True
                    raise AlarmError
            return step

        return step


@cache
def opcodes(code: CodeType) -> dict[int, str]:
    return {each.offset: each.opname for each in dis.get_instructions(code)}


def answer(**_: Any) -> dict[str, Any]:
    return {"model": "claude-haiku-4-5", "usage": {"input_tokens": 1, "output_tokens": 1}}


def in_time(call: Callable[[], object]) -> bool:
    """Whether a call in another thread ends."""
    done: list[object] = []
    thread = threading.Thread(target=lambda: done.append(call()), daemon=True)
    thread.start()
    thread.join(5)
    return bool(done)


def interrupted_everywhere(
    name: str, policy: Policy, budget: Callable[[], Any] | None, check: Callable[..., bool]
) -> int:
    """Interrupt a call at each point, and check after each that further calls are answered; return the number of points."""
    at = 0
    while True:
        runtime = Runtime()
        recovered = recover(name, policy, runtime=runtime)
        scope = None if budget is None else budget()

        def call(recovered: Any = recovered, scope: Any = scope) -> object:
            if scope is None:
                return recovered.call(answer)
            with scope:
                return recovered.call(answer, **REQUEST)

        call()
        injector = Injector(at)
        # In a context of its own: a context that was left keeps the last operation, which is over.
        contextvars.copy_context().run(injector.run, call)
        # What the call has left is young. All that other tests have left need not be looked through at each of some hundred points.
        gc.collect(1)
        assert check(recovered, call), f"point {at}"
        if not injector.raised:
            return at
        at += 1


def places_are_free(recovered: Any, call: Callable[[], object]) -> bool:
    """Both places are free: two calls run at once."""
    both = threading.Barrier(2, timeout=5)

    def together() -> object:
        return recovered.call(lambda: both.wait() >= 0)

    other = threading.Thread(target=together, daemon=True)
    other.start()
    return in_time(together)


def is_answered(recovered: Any, call: Callable[[], object]) -> bool:
    return in_time(call)


# One call fits into the budget beside what was charged for the interrupted one, and no two.
SCENARIOS: dict[str, Any] = {
    "default": (Policy(), None, is_answered),
    "concurrency": (Policy(concurrency=2), None, places_are_free),
    "per_second": (Policy(per_second=1e6, burst=1000), None, is_answered),
    "budget": (Policy(), lambda: Budget(usd=0.045), is_answered),
    "budget and concurrency": (Policy(concurrency=1), lambda: Budget(usd=0.045), is_answered),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_AK5_an_exception_at_any_point_leaves_nothing_behind(name):
    assert interrupted_everywhere(name, *SCENARIOS[name]) > 10


@pytest.mark.parametrize("is_kept", [False, True], ids=["dropped", "kept"])
@pytest.mark.parametrize("tasks", [1, 5])
@pytest.mark.parametrize("kind", ["concurrency", "budget"])
@pytest.mark.filterwarnings("ignore")
def test_AK11_calls_of_a_closed_loop_do_not_hold_up_others(kind, tasks, is_kept):
    policy = Policy(concurrency=1) if kind == "concurrency" else Policy()
    recovered = recover("closed", policy, runtime=Runtime())
    budget = Budget(usd=0.045)
    kept = []

    async def call(function: Any) -> object:
        with budget:
            return await recovered.call(function, **REQUEST)

    async def never(**_: Any) -> None:
        await asyncio.get_running_loop().create_future()

    async def at_once(**_: Any) -> dict[str, Any]:
        return answer()

    async def begin() -> None:
        for _ in range(tasks):
            task = asyncio.create_task(call(never))
            if is_kept:
                kept.append(task)
        for _ in range(3):
            await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(begin())
    loop.close()
    assert in_time(lambda: asyncio.run(call(at_once)))
