"""Parts that are agents, workflows, stages and tasks, which run in a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.programs.part import Part, Style, element, indented, listed, literal, outcome

if TYPE_CHECKING:
    from collections.abc import Iterator


@element("pay", names=2, weight=2)
def agent(part: Part, style: Style) -> Iterator[str]:
    at_once = ", at_once=True" if part.variant % 2 else ""
    name = f"clerk_{part.who[0]}"
    yield f'{name} = Agent("{name}", Model("pay", {listed(part.who)}{at_once}), [pay])'
    yield f'reply = await {name}.run("Pay {" and ".join(part.who)}.", session=session)'
    yield f'say("reply {part.who[0]}", reply.text)'
    del style


def _clerk(part: Part, tool: str = "pay", *, more: str = "") -> str:
    """Return an agent that pays those who are named in the prompt."""
    name = f"clerk_{part.who[0]}"
    at_once = ", at_once=True" if part.variant % 2 else ""
    return f'{name} = Agent("{name}", Model("{tool}"{at_once}), [{tool}]{more})'


@element("pay", names=2, weight=2)
def agent_runs(part: Part, style: Style) -> Iterator[str]:
    """Two requests to one agent, one after the other."""
    del style
    yield _clerk(part)
    yield f"for who in {listed(part.who)}:"
    yield f'    reply = await clerk_{part.who[0]}.run(f"Pay {{who}}.", session=session)'
    yield '    say(f"reply {who}", reply.text)'


@element("pay", names=2, weight=2)
def agent_turns(part: Part, style: Style) -> Iterator[str]:
    del style
    yield _clerk(part)
    yield f"for who in {listed(part.who)}:"
    yield "    async with session.turn(who, key=who):"
    yield f'        reply = await clerk_{part.who[0]}.run(f"Pay {{who}}.", session=session)'
    yield '        say(f"reply {who}", reply.text)'


@element("checked", whats="checked", names=2)
def agent_verified(part: Part, style: Style) -> Iterator[str]:
    del style
    yield _clerk(part, "checked")
    yield f'reply = await clerk_{part.who[0]}.run("Pay {" and ".join(part.who)}.", session=session)'
    yield f'say("reply {part.who[0]}", reply.text)'


@element("wire", whats="wire", odd=("no id", "reset", "refused"), weight=2)
def agent_wire(part: Part, style: Style) -> Iterator[str]:
    """A plain function that may take longer than its tool allows."""
    del style
    yield _clerk(part, "wire")
    yield f'reply = await clerk_{part.who[0]}.run("Pay {part.who[0]}.", session=session)'
    yield f'say("reply {part.who[0]}", reply.text)'


# Not "late": a call that is always cut before its payment never ends.
@element("pay", names=2, odd=("no id", "reset", "refused", "slow"))
def agent_timeout(part: Part, style: Style) -> Iterator[str]:
    del style
    run = f'await clerk_{part.who[0]}.run("Pay {" and ".join(part.who)}.", session=session)'
    yield _clerk(part)
    yield "try:"
    yield f"    async with asyncio.timeout(random.random() / {(200, 50, 20)[part.variant // 2 % 3]} + 0.003):"
    yield f"        reply = {run}"
    yield "except TimeoutError:"
    yield f"    reply = {run}"
    yield f'say("reply {part.who[0]}", reply.text)'


@element("pay", names=2, weight=2)
def agent_sub(part: Part, style: Style) -> Iterator[str]:
    """An agent is the tool of another one."""
    del style
    (first, second) = part.who
    yield _clerk(part, more=', description="Pays people."')
    yield f'boss_{first} = Agent("boss_{first}", Model("clerk_{first}", ["Pay {first}.", "Pay {second}."], argument="prompt"), [clerk_{first}])'
    yield f'reply = await boss_{first}.run("Pay {first} and {second}.", session=session)'
    yield f'say("reply {first}", reply.text)'


@element("pay", names=2, weight=2)
def agent_stream(part: Part, style: Style) -> Iterator[str]:
    del style
    yield _clerk(part)
    yield f'async with clerk_{part.who[0]}.stream("Pay {" and ".join(part.who)}.", session=session) as parts:'
    yield "    async for part in parts:"
    yield '        reply = getattr(part, "reply", None)'
    yield f'say("reply {part.who[0]}", reply.text)'


@element("pay", names=3, inserts=True, weight=4)
def workflow(part: Part, style: Style) -> Iterator[str]:
    names = part.names(style)
    if part.variant % 3 or style.wrap:
        quoted = " ".join(map(literal, names))
        source = f"(map (lambda (who) (pay :who who)) (list {quoted}) :limit 2)"
    else:
        source = f"(list {' '.join(f'(pay :who {literal(who)})' for who in names)})"
    if part.variant % 4 == 1:
        source = f"(bind receipts {source}) receipts"
    yield from _flow(part, source, label="flow with new" if style.insert else "flow")


@element("draft", "pay", names=3, inserts=True, weight=4)
def workflow_maps(part: Part, style: Style) -> Iterator[str]:
    """A map, and a map of what came of it."""
    quoted = " ".join(map(literal, part.names(style)))
    source = f"(bind texts (map (lambda (who) (draft :topic who)) (list {quoted})))"
    source += f" (map (lambda (who) (pay :who who)) (list {quoted}) :limit 2)"
    yield from _flow(part, source, "draft, pay", label="flow with new" if style.insert else "flow")


@element("pay", odd=("no id", "reset", "refused", "slow"), weight=6)
def workflow_retry(part: Part, style: Style) -> Iterator[str]:
    del style
    (who,) = part.who
    source = (f'(retry 3 (pay :who "{who}"))', f'(fallback (pay :who "{who}") "nothing")')[part.variant % 2]
    yield from _flow(part, source)


@element("pay", weight=2)
def workflow_tools(part: Part, style: Style) -> Iterator[str]:
    del style
    pay = f'(pay :who "{part.who[0]}")'
    source = (f"(retry 3 {pay})", f'(fallback {pay} "nothing")', f'(try {pay} (catch (failure) "nothing"))')
    yield from _flow(part, source[part.variant % 3], how="tools")


@element("wire", whats="wire", odd=("no id", "reset", "refused"), weight=2)
def workflow_wire(part: Part, style: Style) -> Iterator[str]:
    del style
    yield from _flow(part, f'(retry 3 (wire :who "{part.who[0]}"))', "wire", how="tools")


@element("pay")
def workflow_later(part: Part, style: Style) -> Iterator[str]:
    del style
    yield from _flow(part, f'(retry-later ((after 0.01) (attempts 9)) (pay :who "{part.who[0]}"))')


def _flow(part: Part, source: str, functions: str = "pay", *, how: str = "tasks", label: str = "flow") -> Iterator[str]:
    yield f"flow = Workflow('{source}', name=\"flow-{part.who[0]}\", {how}=[{functions}])"
    yield f'say("{label} {part.who[0]}", await flow.run(session))'


@element("pay", "payroll", names=3)
def payroll(part: Part, style: Style) -> Iterator[str]:
    """A workflow in Python."""
    del style
    name = ("payroll", "payroll_mapped", "payroll_gathered")[part.variant % 3]
    yield f"receipts = await {name}.run(session, {listed(part.who)})"
    yield f"for who, receipt in zip({listed(part.who)}, receipts):"
    yield '    say(f"paid {who}", receipt)'


def _equal_run(part: Part) -> Iterator[str]:
    """A run with the same inputs each time."""
    (who,) = part.who
    flow, machine = (
        f'Workflow(\'(pay "{who}")\', name="flow-{who}", tasks=[pay])',
        f'StageMachine([Stage("{who}", pay_{who})]',
    )
    match part.variant // 2 % 3:
        case 0:
            yield f'    return (await payroll.run(session, ["{who}"]))[0]'
        case 1:
            yield f"    return await {flow}.run(session)"
        case _:
            yield f"    async def pay_{who}(work):"
            yield f'        return await session.step(pay, "{who}")'
            yield f'    ended = await {machine}, name="stages-{who}").run(session)'
            yield f'    return ended.results["{who}"]'


@element("pay", "payroll", times=3, weight=3)
def runs_in_steps(part: Part, style: Style) -> Iterator[str]:
    """Equal runs, each inside of a step or an item of its own."""
    (who,) = part.who
    yield f"async def order_{who}(number: int):"
    yield from _equal_run(part)
    if part.variant % 2:
        yield f"outcomes = [each async for each in session.map(order_{who}, range(3))]"
        yield "for number, outcome in enumerate(outcomes):"
        yield from indented(outcome(f'f"paid {who} {{number}}"'))
        return
    yield "for number in range(3):"
    yield f"    {style.variable} = await session.step(order_{who}, number)"
    yield f'    say(f"paid {who} {{number}}", {style.variable})'


@element("draft", "pay", "payroll", times=2, may_refuse="first", weight=3)
def runs_in_tasks(part: Part, style: Style) -> Iterator[str]:
    """Equal runs, each in a task of its own."""
    (who,) = part.who
    yield f"async def order_{who}(number: int):"
    yield f'    await session.step(draft, f"{who} {{number}}")'
    yield from _equal_run(part)
    yield f"orders = (order_{who}(number) for number in range(2))"
    yield f"for number, {style.variable} in enumerate(await asyncio.gather(*orders)):"
    yield f'    say(f"paid {who} {{number}}", {style.variable})'


@element("pay", "dunning")
def dunning(part: Part, style: Style) -> Iterator[str]:
    del style
    yield f'say("paid {part.who[0]}", await dunning.run(session, "{part.who[0]}"))'


@element("pay", names=2)
def stages(part: Part, style: Style) -> Iterator[str]:
    del style
    for who in part.who:
        yield f"async def pay_{who}(work):"
        yield f'    answer = await work.call("pay", who="{who}")'
        yield "    return answer.content"
    listed = ", ".join(f'Stage("{who}", pay_{who})' for who in part.who)
    yield f'machine = StageMachine([{listed}], name="stages-{part.who[0]}", tools=[pay])'
    yield "ended = await machine.run(session)"
    yield f'say("stages {part.who[0]}", ended.results["{part.who[0]}"])'


@element("pay", "go", names=2)
def stages_parallel(part: Part, style: Style) -> Iterator[str]:
    del style
    first, second = part.who
    for who in part.who:
        yield f"async def pay_{who}(work):"
        yield f'    answer = await work.call("pay", who="{who}")'
        yield "    return answer.content"
    yield f'both = {{"stages": ("{first}", "{second}"), "execution": "parallel", "join": "end {first}"}}'
    yield (
        f'machine = StageMachine([Stage("begin {first}", plain, next=Go(**both)), Stage("{first}", pay_{first}), '
        f'Stage("{second}", pay_{second}), Stage("end {first}", plain)], name="stages-{first}", tools=[pay])'
    )
    yield "ended = await machine.run(session)"
    yield f'say("stages {first}", [ended.results[who] for who in {listed(part.who)}])'


@element("draft", "pay")
def stages_again(part: Part, style: Style) -> Iterator[str]:
    """A draft that is not good enough at first, and an agent that pays."""
    del style
    (who,) = part.who
    yield "async def compose(work):"
    yield f'    answer = await work.call("draft", topic="{who}")'
    yield "    return {'text': answer.content, 'good': work.attempt > 1}"
    yield _clerk(part)
    yield "good = lambda ctx: 'ok' if ctx.act.value['good'] else 'retry'"
    yield 'plan = Stage("plan", compose, assert_=good)'
    yield f'machine = StageMachine([plan, Stage("{who}", clerk_{who}, body="Pay {who}.")], name="stages-{who}", tools=[draft])'
    yield "ended = await machine.run(session)"
    yield f'say("text {who}", ended.results["plan"]["text"])'


@element("review", whats="", names=2, odd=(), inserts=True, weight=3)
def tasks(part: Part, style: Style) -> Iterator[str]:
    """One prompt, with other inputs, one after the other or all at once."""
    names = listed(part.names(style))
    task = 'reviews.run(Task("Review the document.", name="review", inputs={"doc": who}), session=session)'
    yield "reviews = TaskSystem(review)"
    if part.variant % 2:
        yield f"texts = await asyncio.gather(*({task} for who in {names}))"
        yield f"for who, text in zip({names}, texts):"
    else:
        yield f"for who in {names}:"
        yield f"    text = await {task}"
    yield '    say(f"about {who}", text)'


@element("remit", whats="remit")
def tasks_unsafe(part: Part, style: Style) -> Iterator[str]:
    del style
    (who,) = part.who
    output = ("", ', output="number"', ", output=int")[part.variant % 3]
    yield f'task = Task("Pay {{who}}", inputs={{"who": "{who}"}}{output})'
    yield f'say("remitted {who}", await TaskSystem(remit).run(task, session=session))'


@element("loop", whats="commission", times=2, weight=2)
def director(part: Part, style: Style) -> Iterator[str]:
    """A loop whose program prints something else each time it runs."""
    del style
    (who,) = part.who
    agents = f'{{"writer": {("write", "commission")[part.variant % 2]}, "critic": judge}}'
    yield "loop = DirectorLoop("
    yield '    director=Task("{original_prompt} {feedback}", agent="writer"),'
    yield '    evaluator=Task("Judge {output} {stdout}", output="object", agent="critic"),'
    yield f'    prompt="{who}",'
    yield '    script=["sh", "-c", "od -An -N4 -tx4 /dev/urandom"],'
    yield ")"
    yield f'say("loop {who}", await TaskSystem(write, agents={agents}).run(loop, session=session))'
