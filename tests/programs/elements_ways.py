"""Parts in which something could be done in the place of an unsafe call, or after it: other stages, attempts, tasks, handlers, agents, turns.

Each of them pays at most once: its other ways are only for a payment that certainly did not happen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.programs.part import Part, Style, element, indented, literal, paid

if TYPE_CHECKING:
    from collections.abc import Iterator

_FAILING = ("no id", "reset", "slow", "late")
"""Not "refused": a program that pays in another way after a refusal, and in the first way in its next run, pays twice by itself."""

# --- stages ---

_ROUTES = (
    "retry=Tries(attempts=3), next=END",
    'retry=Tries(attempts=1), next=lambda ctx: "other {who}" if ctx.outcome == "fail" else END',
    'resolution="skip", next=lambda ctx: "other {who}" if ctx.outcome == "fail" else END',
    'retry=Tries(attempts=1), resolution="skip"',
    'retry=Tries(attempts=1), resolution="retry-later", later=Tries(attempts=3, backoff=Backoff(initial=0.01)), next=END',
)
"""What a stage does about an attempt that failed."""


def _other(route: str, act: str) -> str:
    """Return the work of the other stage: it acts only if the first one has failed."""
    return act if "other" in route else "look"


@element("act", whats="act", odd=("no id", "reset", "refused"), oddly=0.9, weight=9)
def stages_unsafe(part: Part, style: Style) -> Iterator[str]:
    """A function that must not run twice is the work of a stage, and another stage may take its place."""
    (who,) = part.who
    act = ("act", "act_checked")[part.variant % 4 == 3]
    route = _ROUTES[part.variant % 5].format(who=who)
    stages = f'Stage("{who}", {act}, {route}), Stage("other {who}", {_other(route, act)})'
    yield f'machine = StageMachine([{stages}], name="stages-{who}")'
    yield "ended = await machine.run(session)"
    yield f'{style.variable} = ended.results.get("{who}", ended.results.get("other {who}")) or "nothing"'
    yield f'say("stages {who}", {style.variable})'


@element("pay", "act", odd=("no id", "reset", "refused"), oddly=0.9, weight=5)
def stages_call(part: Part, style: Style) -> Iterator[str]:
    """The work of a stage pays with a tool, and is done again if it has no receipt."""
    del style
    (who,) = part.who
    yield f"async def pay_{who}(work):"
    yield f'    answer = await work.call("pay", who="{who}")'
    if part.variant % 2:
        yield "    if answer.fault is not None:"
        yield '        raise ConnectionError("no receipt")'
    yield "    return answer.content"
    yield 'has_receipt = lambda ctx: "ok" if "pay-" in str(ctx.act.value) else "retry"'
    route = _ROUTES[part.variant // 2 % 5].format(who=who)
    stages = (
        f'Stage("{who}", pay_{who}, assert_=has_receipt, {route}), Stage("other {who}", {_other(route, f"pay_{who}")})'
    )
    yield f'machine = StageMachine([{stages}], name="stages-{who}", tools=[pay])'
    yield "ended = await machine.run(session)"
    yield f'say("stages {who}", ended.results.get("{who}", ended.results.get("other {who}")) or "nothing")'


# --- tasks ---

_WAYS = (
    ('handlers=dict.fromkeys(("general", "format", "resource"), otherwise)', ""),
    ("decomposer=halves", ""),
    ("alternative=otherwise", ""),
    ("", ", output=int"),
)
"""What a task system does about a task that failed, and what a task asks for."""
_ENDS = (
    "return receipt",
    'raise ConnectionError("the printer is out of paper")',
    'raise HoldfastError(Fault.of("TASK_TURNS_EXHAUSTED"))',
    'raise HoldfastError(Fault.of("TASK_OUTPUT_INVALID"))',
    'raise HoldfastError(Fault.of("TASK_HALTED"))',
)
"""How the function of a task ends after its payment."""


def _run(who: str, task: str) -> Iterator[str]:
    """Run a task that may fail after it has paid. A doubt is left to the person."""
    yield "try:"
    yield f'    say("task {who}", await tasks.run({task}, session=session))'
    yield "except TaskError as error:"
    yield "    if is_in_doubt(error.fault):"
    yield "        raise"


@element("pay", "ways", odd=_FAILING, weight=2)
def tasks_ways(part: Part, style: Style) -> Iterator[str]:
    """A function pays, and then its task fails: nothing is done in another way."""
    (who,) = part.who
    options, output = _WAYS[part.variant % 4]
    yield f"async def perform_{who}(assignment):"
    yield f"    receipt = {paid(literal(who), style)}"
    yield f"    {_ENDS[part.variant // 4 % 5]}"
    yield f"tasks = TaskSystem(perform_{who}{options and f', {options}'})"
    yield from _run(who, f'Task("Pay what is owed to {who}"{output})')


@element("pay", "ways", odd=_FAILING, weight=2)
def tasks_subtask(part: Part, style: Style) -> Iterator[str]:
    """A subtask pays, and then fails: it is not tried once more in simpler words."""
    (who,) = part.who
    yield f"async def perform_{who}(assignment):"
    yield "    if assignment.results:"
    yield "        return assignment.results[0].content"
    yield f'    if assignment.task.prompt == "Close the account of {who}":'
    yield f'        return asks("Pay {who}.")'
    yield f"    receipt = {paid(literal(who), style)}"
    yield f"    {_ENDS[part.variant % 5]}"
    yield f"tasks = TaskSystem(perform_{who})"
    yield from _run(who, f'Task("Close the account of {who}")')


def _payer(who: str, *, ends: bool = True) -> str:
    """Return an agent that pays once in each conversation. One that does not end asks for one more turn each time."""
    then, wait = ("", "") if ends else (', then="wait"', ", wait")
    return f'payer_{who} = Agent("payer_{who}", Model("pay", ["{who}"], remembers=True{then}), [pay{wait}])'


@element("pay", "ways", odd=_FAILING, weight=2)
def tasks_agent(part: Part, style: Style) -> Iterator[str]:
    """An agent performs a task, and pays before it fails."""
    del style
    (who,) = part.who
    options, _ = _WAYS[part.variant % 3]
    ends = part.variant // 3 % 2 == 0
    yield _payer(who, ends=ends)
    yield f"tasks = TaskSystem(payer_{who}, {options})"
    yield from _run(who, f'Task("Pay what is owed to {who}", {"output=int" if ends else "turns=4"})')


@element("pay", "ways", odd=_FAILING, weight=2)
def tasks_agent_sub(part: Part, style: Style) -> Iterator[str]:
    """An agent performs a subtask."""
    del style
    (who,) = part.who
    ends = part.variant % 2 == 0
    yield _payer(who, ends=ends)
    yield f"async def close_{who}(assignment):"
    yield "    if assignment.results:"
    yield "        return assignment.results[0].content"
    limit = "" if ends else ", turns=4"
    yield f'    return asks("Pay what is owed to {who}", template_hints=["payer_{who}"]{limit})'
    yield f'tasks = TaskSystem(close_{who}, agents={{"payer_{who}": payer_{who}}})'
    yield from _run(who, f'Task("Close the account of {who}")')


@element("pay", "act", odd=_FAILING)
def stages_agent(part: Part, style: Style) -> Iterator[str]:
    """An agent is the work of a stage that is tried again, and another agent may take its place."""
    del style
    (who,) = part.who
    route = _ROUTES[part.variant % 5].format(who=who)
    yield _payer(who)
    yield f'machine = StageMachine([Stage("{who}", payer_{who}, body="Pay {who}.", {route}), Stage("other {who}", look)], name="stages-{who}")'
    yield "ended = await machine.run(session)"
    yield f'say("stages {who}", ended.results.get("{who}") or "no reply")'


# --- equal calls inside and outside of turns ---


def _there(part: Part, style: Style, place: str, number: int) -> list[str]:
    """A payment outside of turns, or in a turn."""
    (who,) = part.who
    call = "session.step" if part.variant // 6 % 2 else f"session.keyed({literal(who)}).step"
    pay = f"{style.variable} = {paid(literal(who), style, call)}"
    if place == "outside":
        return [pay]
    key = f', key="turn {number} of {who}"' if part.variant // 12 % 2 else ""
    return [f'async with session.turn("turn {number} of {who}"{key}):', f"    {pay}"]


@element("pay", odd=("no id", "reset"), oddly=0.9, may_refuse="later", weight=7)
def turns_and_outside(part: Part, style: Style) -> Iterator[str]:
    """What fails outside of turns is tried in a turn, or the other way round."""
    (who,) = part.who
    first, then = (("outside", "turn"), ("turn", "outside"), ("turn", "turn"))[part.variant % 3]
    yield f"{style.variable} = None"
    yield "try:"
    yield from indented(_there(part, style, first, 1))
    yield "except (KeyError, ConnectionError):"
    yield "    pass"
    yield f"if {style.variable} is None:"
    yield from indented(_there(part, style, then, 2))
    yield f'say("paid {who}", {style.variable})'
