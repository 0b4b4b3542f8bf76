"""The parts of a program: each is rendered as a person would type it, and knows how often its effects may happen.

Nothing in a part looks whether it was done before: a program with such a guard would be no test.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["ELEMENTS", "FUNCTIONS", "ODD", "Element", "Part", "Style", "indented", "literal"]

ODD = {
    "no id": "KeyError",
    "reset": "ConnectionResetError",
    "refused": "ConnectionRefusedError",
    "slow": "",
    "late": "",
}
"""What may be odd about a name at the bank, and the error that the program sees."""

# What a program of these parts may call. A program holds only those that it needs.
FUNCTIONS = {
    "pay": """
@tool(effect="unsafe")
async def pay(who: str, amount: int = 5) -> str:
    answer = await bank.post("pay", who)
    return answer["id"]
""",
    "transfer": """
@tool(effect="unsafe")
async def transfer(who: str, token: str) -> str:
    answer = await bank.post("transfer", who, token=token)
    return answer["id"]
""",
    "checked": """
@tool(effect="unsafe", verify=find)
async def checked(who: str) -> str:
    answer = await bank.post("checked", who)
    return answer["id"]
""",
    "book": """
@tool(effect="keyed")
async def book(who: str) -> str:
    answer = await bank.post("book", who)
    return answer["id"]
""",
    "careful": """
@tool(effect="unsafe")
async def careful(who: str) -> str:
    answer = await recover("bank", QUICK).call(bank.post, "careful", who)
    return answer["id"]
""",
    "draft": """
async def draft(topic: str) -> str:
    await asyncio.sleep(random.random() / 100)
    return f"{topic} {uuid4().hex[:8]}"
""",
    "new_id": """
async def new_id() -> str:
    await asyncio.sleep(random.random() / 100)
    return uuid4().hex[:8]
""",
}


@dataclass(frozen=True)
class Style:
    """How the same program is typed: an edit between two runs is another style."""

    variable: str = "receipt"
    keyword: bool = False
    spelled: bool = False
    insert: bool = False
    wrap: bool = False
    reorder: bool = False

    def arguments(self, who: str) -> str:
        """Return the arguments of a call of `pay`, as this style types them."""
        return f"{'who=' if self.keyword else ''}{who}{', amount=5' if self.spelled else ''}"


@dataclass(frozen=True)
class Part:
    """One part of a program. The names are its own: no other part pays the same people."""

    kind: str
    who: tuple[str, ...]
    odd: str = ""
    """What is odd about its first name."""
    variant: int = 0

    @property
    def element(self) -> Element:
        return ELEMENTS[self.kind]

    def lines(self, style: Style) -> list[str]:
        return list(self.element.render(self, style))

    def calls(self) -> Counter[tuple[str, str]]:
        """Return how often each effect may happen at most."""
        times = self.element.times
        return Counter({(what, who): times for what in self.element.whats for who in self.who})


@dataclass(frozen=True)
class Element:
    """A kind of part."""

    render: Callable[[Part, Style], Iterator[str]]
    whats: tuple[str, ...]
    functions: tuple[str, ...]
    names: int = 1
    times: int = 1
    may_refuse: str = ""
    """When it may end with a typed refusal that says how to go on (`key=`). "first": before anything has happened, because its calls
    cannot be told apart. "later": when it is run again, because a turn without a key is new each time."""
    odd: tuple[str, ...] = tuple(ODD)
    """What may be odd about its first name."""


ELEMENTS: dict[str, Element] = {}


def literal(text: str) -> str:
    return f'"{text}"'


def indented(lines: list[str], by: int = 1) -> list[str]:
    return [f"{'    ' * by}{line}" for line in lines]


def _element(
    *functions: str,
    whats: str = "pay",
    names: int = 1,
    times: int = 1,
    may_refuse: str = "",
    odd: tuple[str, ...] = tuple(ODD),
) -> Callable[[Callable[[Part, Style], Iterator[str]]], Callable[[Part, Style], Iterator[str]]]:
    def keep(render: Callable[[Part, Style], Iterator[str]]) -> Callable[[Part, Style], Iterator[str]]:
        name = render.__name__.strip("_")
        ELEMENTS[name] = Element(render, tuple(whats.split()), functions, names, times, may_refuse, odd)
        return render

    return keep


def _list(part: Part) -> str:
    return f"[{', '.join(map(literal, part.who))}]"


def _pay(who: str, style: Style, call: str = "session.step", function: str = "pay") -> str:
    return f"await {call}({function}, {style.arguments(who) if function == 'pay' else who})"


@_element("pay")
def step(part: Part, style: Style) -> Iterator[str]:
    (who,) = part.who
    yield f"{style.variable} = {_pay(literal(who), style)}"
    yield f'say("paid {who}", {style.variable})'


@_element("draft", whats="", odd=())
def draft(part: Part, style: Style) -> Iterator[str]:
    del style
    (who,) = part.who
    yield f'text = await session.step(draft, "{who}")'
    yield f'say("text {who}", text)'


@_element("draft", "transfer", whats="transfer")
def chain(part: Part, style: Style) -> Iterator[str]:
    (who,) = part.who
    yield f'text = await session.step(draft, "{who}")'
    yield f'{style.variable} = await session.step(transfer, "{who}", text)'
    yield f'say("paid {who}", {style.variable})'


@_element("pay", times=2, may_refuse="later")
def again(part: Part, style: Style) -> Iterator[str]:
    """The same payment twice, as in two equal orders."""
    (who,) = part.who
    yield "for number in range(2):"
    yield f"    {style.variable} = {_pay(literal(who), style)}"
    yield f'    say(f"paid {who} {{number}}", {style.variable})'


@_element("pay", names=3)
def loop(part: Part, style: Style) -> Iterator[str]:
    names = [*(["new " + part.who[0]] if style.insert else []), *part.who]
    listed = f"[{', '.join(map(literal, names))}]"
    if style.wrap:
        yield f"for who, outcome in zip({listed}, [each async for each in session.map(pay, {listed})]):"
        yield from indented(_outcome('f"paid {who}"'))
        return
    yield f"for who in {listed}:"
    yield f"    {style.variable} = {_pay('who', style)}"
    yield f'    say(f"paid {{who}}", {style.variable})'


def _outcome(label: str) -> list[str]:
    return ["if isinstance(outcome, Err):", "    raise outcome.error", f"say({label}, outcome.value)"]


@_element("pay", names=3)
def mapped(part: Part, style: Style) -> Iterator[str]:
    names = [*(["new " + part.who[0]] if style.insert else []), *part.who]
    listed = f"[{', '.join(map(literal, names))}]"
    yield f"outcomes = [each async for each in session.map(pay, {listed})]"
    yield f"for who, outcome in zip({listed}, outcomes):"
    yield from indented(_outcome('f"paid {who}"'))


@_element("pay", times=3)
def mapped_equal(part: Part, style: Style) -> Iterator[str]:
    del style
    listed = f"[{', '.join([literal(part.who[0])] * 3)}]"
    yield f"outcomes = [each async for each in session.map(pay, {listed})]"
    yield "for number, outcome in enumerate(outcomes):"
    yield from indented(_outcome(f'f"paid {part.who[0]} {{number}}"'))


def _order(part: Part, style: Style, name: str = "order") -> Iterator[str]:
    """One branch of parallel work."""
    yield f"async def {name}(who):"
    if part.variant % 2:
        yield f'    await asyncio.sleep(0.02 if who == "{part.who[0]}" else 0)'
    yield '    text = await session.step(draft, f"to {who}")'
    yield f"    {style.variable} = {_pay('who', style)}"
    yield '    say(f"text {who}", text)'
    yield f'    say(f"paid {{who}}", {style.variable})'


@_element("draft", "pay", names=2)
def gather(part: Part, style: Style) -> Iterator[str]:
    yield from _order(part, style)
    yield f"await asyncio.gather({', '.join(f'order({literal(who)})' for who in part.who)})"


@_element("draft", "pay", names=3)
def group(part: Part, style: Style) -> Iterator[str]:
    yield from _order(part, style)
    yield "async with asyncio.TaskGroup() as tasks:"
    yield f"    for who in {_list(part)}:"
    yield "        tasks.create_task(order(who))"


@_element("new_id", "transfer", whats="transfer", names=2, may_refuse="first")
def twins(part: Part, style: Style) -> Iterator[str]:
    """Each of two tasks takes a new id and pays with it."""
    yield "async def order(who):"
    yield "    token = await session.step(new_id)"
    yield f"    {style.variable} = await session.step(transfer, who, token)"
    yield '    say(f"token {who}", token)'
    yield f'    say(f"paid {{who}}", {style.variable})'
    yield f"await asyncio.gather({', '.join(f'order({literal(who)})' for who in part.who)})"


@_element("pay", times=2, may_refuse="first")
def equal(part: Part, style: Style) -> Iterator[str]:
    call = f"session.step(pay, {style.arguments(literal(part.who[0]))})"
    yield f"first, second = await asyncio.gather({call}, {call})"
    yield f'say("paid {part.who[0]} first", first)'
    yield f'say("paid {part.who[0]} second", second)'


@_element("draft", "pay")
def nested(part: Part, style: Style) -> Iterator[str]:
    (who,) = part.who
    yield "async def checkout(who):"
    yield '    await session.step(draft, f"for {who}")'
    yield f"    return {_pay('who', style)}"
    yield f'{style.variable} = await session.step(checkout, "{who}")'
    yield f'say("paid {who}", {style.variable})'


@_element("pay")
def timeout(part: Part, style: Style) -> Iterator[str]:
    (who,) = part.who
    yield "try:"
    yield f"    async with asyncio.timeout(random.random() / {(1_000, 200, 50)[part.variant % 3]} + 0.003):"
    yield f"        {style.variable} = {_pay(literal(who), style)}"
    yield "except TimeoutError:"
    yield f"    {style.variable} = {_pay(literal(who), style)}"
    yield f'say("paid {who}", {style.variable})'


@_element("pay")
def cancelled(part: Part, style: Style) -> Iterator[str]:
    yield from _cancelled(part, f"session.step(pay, {style.arguments(literal(part.who[0]))})", "paid")


@_element("draft", whats="", odd=())
def cancelled_draft(part: Part, style: Style) -> Iterator[str]:
    del style
    yield from _cancelled(part, f"session.step(draft, {literal(part.who[0])})", "text")


def _cancelled(part: Part, call: str, label: str) -> Iterator[str]:
    yield f"task = asyncio.create_task({call})"
    yield f"await asyncio.sleep({(0, 0.001, 0.003, 0.006, 0.012)[part.variant % 5]})"
    yield "task.cancel()"
    yield "try:"
    yield "    value = await task"
    yield "except asyncio.CancelledError:"
    yield f"    value = await {call}"
    yield f'say("{label} {part.who[0]}", value)'


@_element("pay")
def retry_loop(part: Part, style: Style) -> Iterator[str]:
    (who,) = part.who
    yield f"{style.variable} = None"
    yield "for attempt in range(3):"
    yield "    try:"
    yield f"        {style.variable} = {_pay(literal(who), style)}"
    yield "        break"
    yield "    except (KeyError, ConnectionError):"
    yield "        await asyncio.sleep(0.001)"
    yield f"if {style.variable} is not None:"
    yield f'    say("paid {who}", {style.variable})'


@_element("pay")
def recover_around(part: Part, style: Style) -> Iterator[str]:
    (who,) = part.who
    yield "async def attempt():"
    yield f"    return {_pay(literal(who), style)}"
    yield f'{style.variable} = await recover("orders", QUICK).call(attempt)'
    yield f'say("paid {who}", {style.variable})'


# Without a declared effect `recover` may repeat what broke: only a refused connection is sure to have done nothing.
@_element("careful", whats="careful", odd=("refused", "slow", "late"))
def recover_inside(part: Part, style: Style) -> Iterator[str]:
    (who,) = part.who
    yield f'{style.variable} = await session.step(careful, "{who}")'
    yield f'say("paid {who}", {style.variable})'


def _turn_body(part: Part, style: Style, label: str) -> list[str]:
    who = "question"
    match part.variant % 3:
        case 1:
            return [
                'await asyncio.gather(session.step(draft, f"a {question}"), session.step(draft, f"b {question}"))',
                f"{style.variable} = {_pay(who, style)}",
                f"say({label}, {style.variable})",
            ]
        case 2:
            return [
                'text = await session.step(draft, f"a {question}")',
                f"{style.variable} = {_pay(who, style)}",
                f"say({label}, {style.variable})",
                'await session.step(draft, f"b {text}")',
            ]
    return [f"{style.variable} = {_pay(who, style)}", f"say({label}, {style.variable})"]


@_element("draft", "pay", names=3, may_refuse="later")
def turns(part: Part, style: Style) -> Iterator[str]:
    yield f"for question in {_list(part)}:"
    yield "    async with session.turn(question):"
    yield from indented(_turn_body(part, style, 'f"paid {question}"'), 2)


@_element("draft", "pay", times=2, may_refuse="later")
def turns_same(part: Part, style: Style) -> Iterator[str]:
    yield f"for number, question in enumerate([{', '.join([literal(part.who[0])] * 2)}]):"
    yield "    async with session.turn(question):"
    yield from indented(_turn_body(part, style, 'f"paid {question} {number}"'), 2)


@_element("draft", "pay", names=3)
def keyed_turns(part: Part, style: Style) -> Iterator[str]:
    yield f"for question in {_list(part)}:"
    yield "    async with session.turn(question, key=question):"
    yield from indented(_turn_body(part, style, 'f"paid {question}"'), 2)


@_element("draft", "pay", times=2)
def keyed_turns_same(part: Part, style: Style) -> Iterator[str]:
    """The same words twice, as two messages with ids of their own."""
    yield f"for number, question in enumerate([{', '.join([literal(part.who[0])] * 2)}]):"
    yield '    async with session.turn(question, key=f"message {question} {number}"):'
    yield from indented(_turn_body(part, style, 'f"paid {question} {number}"'), 2)


@_element("pay")
def ask(part: Part, style: Style) -> Iterator[str]:
    (who,) = part.who
    yield f"{style.variable} = {_pay(literal(who), style, 'session.step_or_ask')}"
    yield f'say("paid {who}", {style.variable})'


@_element("pay")
def approve(part: Part, style: Style) -> Iterator[str]:
    (who,) = part.who
    yield f'if await session.approve("Pay {who}?"):'
    yield f"    {style.variable} = {_pay(literal(who), style)}"
    yield f'    say("paid {who}", {style.variable})'


@_element("pay", names=2)
def agent(part: Part, style: Style) -> Iterator[str]:
    at_once = ", at_once=True" if part.variant % 2 else ""
    name = f"clerk_{part.who[0]}"
    yield f'{name} = Agent("{name}", Model("pay", {_list(part)}{at_once}), [pay])'
    yield f'reply = await {name}.run("Pay {" and ".join(part.who)}.", session=session)'
    yield f'say("reply {part.who[0]}", reply.text)'
    del style


@_element("pay", names=2)
def workflow(part: Part, style: Style) -> Iterator[str]:
    del style
    first, second = part.who
    source = f'(bind a (pay :who "{first}")) (bind b (pay :who "{second}")) (list a b)'
    if part.variant % 2:
        source = f'(map (lambda (who) (pay :who who)) (list "{first}" "{second}") :limit 2)'
    yield from _flow(part, source)


@_element("pay")
def workflow_retry(part: Part, style: Style) -> Iterator[str]:
    del style
    (who,) = part.who
    source = (f'(retry 3 (pay :who "{who}"))', f'(fallback (pay :who "{who}") "nothing")')[part.variant % 2]
    yield from _flow(part, source)


def _flow(part: Part, source: str) -> Iterator[str]:
    yield f"flow = Workflow('{source}', name=\"flow-{part.who[0]}\", tasks=[pay])"
    yield f'say("flow {part.who[0]}", await flow.run(session))'


@_element("pay", names=2)
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


@_element("pay")
def keyed(part: Part, style: Style) -> Iterator[str]:
    (who,) = part.who
    yield f"{style.variable} = {_pay(literal(who), style, f'session.keyed({literal(who)}).step')}"
    yield f'say("paid {who}", {style.variable})'


@_element("pay")
def keyed_nested(part: Part, style: Style) -> Iterator[str]:
    (who,) = part.who
    yield "async def checkout():"
    yield f"    return {_pay(literal(who), style, f'session.keyed({literal(who)}).step')}"
    yield f"{style.variable} = await session.keyed({literal(who)}).step(checkout)"
    yield f'say("paid {who}", {style.variable})'


@_element(whats="", odd=())
def modules(part: Part, style: Style) -> Iterator[str]:
    """Two functions of one name, of two modules."""
    del style
    (who,) = part.who
    yield f'bill, letter = await asyncio.gather(session.step(billing.fetch, "{who}"), session.step(mail.fetch, "{who}"))'
    yield f'say("bill {who}", bill)'
    yield f'say("letter {who}", letter)'


@_element("checked", whats="checked")
def verified(part: Part, style: Style) -> Iterator[str]:
    (who,) = part.who
    yield f'{style.variable} = await session.step(checked, "{who}")'
    yield f'say("paid {who}", {style.variable})'


@_element("book", whats="book")
def booked(part: Part, style: Style) -> Iterator[str]:
    (who,) = part.who
    yield f'{style.variable} = await session.step(book, "{who}")'
    yield f'say("paid {who}", {style.variable})'


@_element("pay")
def toolbox(part: Part, style: Style) -> Iterator[str]:
    """A tool that is called by its name."""
    (who,) = part.who
    yield "tools = Toolbox([pay])"
    yield f'{style.variable} = await session.step(tools.call, "pay", {{"who": "{who}"}})'
    yield f'say("paid {who}", {style.variable})'


@_element("pay")
def fallback(part: Part, style: Style) -> Iterator[str]:
    """If one bank fails, another one pays."""
    (who,) = part.who
    yield f'@recover("bank of {who}", QUICK)'
    yield "async def order():"
    yield f"    return {_pay(literal(who), style)}"
    yield "@order.fallback"
    yield "async def elsewhere():"
    keyed = literal("elsewhere " + who)
    yield f"    return {_pay(literal(who), style, f'session.keyed({keyed}).step')}"
    yield f"{style.variable} = await order()"
    yield f'say("paid {who}", {style.variable})'


@_element("pay", names=2)
def agent_steps(part: Part, style: Style) -> Iterator[str]:
    """A run inside of a step, then another one of the same agent, which knows what the first one did."""
    del style
    first, second = part.who
    name = f"teller_{first}"
    yield f'{name} = Agent("{name}", Model("pay", {_list(part)}, remembers=True), [pay])'
    yield "async def morning():"
    yield f'    return (await {name}.run("Pay {first}.", session=session)).text'
    yield f'say("morning {first}", await session.step(morning))'
    yield f'reply = await {name}.run("Pay {second}.", session=session)'
    yield f'say("evening {first}", reply.text)'
