"""Failures of stages."""

from __future__ import annotations

import asyncio

from holdfast import HoldfastError, Stage, StageMachine
from holdfast.runtime.tool import tool
from holdfast.tasks.stages import Go
from holdfast.testing import run


async def _echo(work):
    return work.prompt


async def _broken(work):
    raise ConnectionError(work.stage)


def _fault(make):
    try:
        made = make()
        if isinstance(made, StageMachine):
            run(made.run())
    except HoldfastError as error:
        return error.fault
    raise AssertionError


def turn_cap_is_zero():
    return _fault(lambda: Stage("a", _echo, turn_cap=0))


def schema_has_an_unknown_type():
    return _fault(lambda: Stage("a", _echo, completion={"type": "object", "properties": {"x": {"type": "list"}}}))


def context_is_changed_in_assert():
    return _fault(lambda: StageMachine([Stage("a", _echo, assert_=lambda ctx: ctx.update(x=1))]))


def body_names_what_nobody_set():
    return _fault(lambda: StageMachine([Stage("a", _echo, body="{ticket}")]))


def stage_fails():
    return _fault(lambda: StageMachine([Stage("a", _broken)]))


def fan_out_of_one():
    plan = Go(stages=("b",), execution="parallel", join="c")
    return _fault(lambda: StageMachine([Stage("a", _echo, next=plan), Stage("b", _echo), Stage("c", _echo)]))


def _fan(**of_b):
    plan = Go(stages=("b", "c"), execution="parallel", join="d")
    others = [Stage("c", _echo), Stage("d", _echo)]
    return StageMachine([Stage("a", _echo, next=plan), Stage("b", **{"act": _echo, **of_b}), *others])


def sibling_fails():
    return _fault(lambda: _fan(act=_broken))


def branch_goes_to_the_join():
    return _fault(lambda: _fan(next="d"))


def join_without_branches():
    return _fault(lambda: StageMachine([Stage("a", _echo), Stage("b", _echo, join=True)]))


def stage_is_cancelled():
    async def main():
        async def slow(work):
            await asyncio.sleep(100)

        machine = StageMachine([Stage("a", slow)])
        running = asyncio.ensure_future(machine.run())
        await asyncio.sleep(1)
        machine.cancel("a")
        try:
            await running
        except HoldfastError as error:
            return error.fault

    return run(main())


def _grants(act, attempts=1):
    """Return the fault of the last tool call of an Act."""
    seen = []

    @tool(effect="unsafe")
    async def deploy(version: str) -> str:
        return version

    async def work_on(work):
        seen.append((await act(work)).fault)
        if work.attempt <= attempts:
            raise ConnectionError("again")

    run(StageMachine([Stage("a", work_on, grant=lambda proposal: "approve")], tools=[deploy]).run())
    return seen[-1]


def grant_is_of_nobody():
    return _grants(lambda work: work.call("deploy", grant="grant-7f3a", version="4.2"))


def grant_is_used_twice():
    async def act(work):
        grant = await work.propose("deploy", version="4.2")
        await work.call("deploy", grant=grant, version="4.2")
        return await work.call("deploy", grant=grant, version="4.2")

    return _grants(act)


def grant_is_of_an_earlier_attempt():
    grants = []

    async def act(work):
        grants.append(await work.propose("deploy", version="4.2"))
        return await work.call("deploy", grant=grants[0], version="4.2")

    return _grants(act)
