"""Failures of workflows."""

from __future__ import annotations

import asyncio

from holdfast import Fault, HoldfastError, Workflow
from holdfast.testing import run
from holdfast.workflow import Machine, Operators, read


def _failure(source):
    try:
        machine = Machine(read(source), Operators(tasks={"a": None}))
    except HoldfastError as error:
        return error.fault
    if machine.run(1_000_000) is not None:
        machine.fail(Fault.of("TASK_LLM_FAILED"))
    return machine.error().fault


def workflow_is_driven_twice():
    """A second driver goes on with a workflow that has ended."""
    machine = Machine(read("(+ 1 2)"), Operators())
    machine.run()
    try:
        machine.resume(3)
    except HoldfastError as error:
        return error.fault


def list_is_not_closed():
    return _failure("(list 1")


def name_is_not_bound():
    return _failure("(list plan)")


def task_fails():
    return _failure("(a)")


def calls_without_end():
    return _failure("(bind f (lambda () (+ 1 (f)))) (f)")


def task_is_not_registered():
    return _failure("(call-atomic-task 'nobody)")


def budget_of_seconds_is_used():
    async def main():
        try:
            await Workflow("(with-budget ((seconds 5)) (sleep 10))", tasks={"sleep": asyncio.sleep}).run()
        except HoldfastError as error:
            return error.fault

    return run(main())
