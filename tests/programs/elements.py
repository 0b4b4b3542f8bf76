"""Parts that are steps, turns and questions of a session, alone and beside each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.programs.part import Part, Style, element, indented, listed, literal, outcome, paid

if TYPE_CHECKING:
    from collections.abc import Iterator


_QUICK = ("no id", "reset", "refused", "slow")
"""Not "late": a call that is always cut before its payment never ends."""


@element("pay")
def step(part: Part, style: Style) -> Iterator[str]:
    (who,) = part.who
    yield f"{style.variable} = {paid(literal(who), style)}"
    yield f'say("paid {who}", {style.variable})'


@element("draft", whats="", odd=())
def draft(part: Part, style: Style) -> Iterator[str]:
    del style
    (who,) = part.who
    yield f'text = await session.step(draft, "{who}")'
    yield f'say("text {who}", text)'


@element("draft", "transfer", whats="transfer")
def chain(part: Part, style: Style) -> Iterator[str]:
    (who,) = part.who
    yield f'text = await session.step(draft, "{who}")'
    yield f'{style.variable} = await session.step(transfer, "{who}", text)'
    yield f'say("paid {who}", {style.variable})'


@element("pay", times=2, may_refuse="later")
def again(part: Part, style: Style) -> Iterator[str]:
    """The same payment twice, as in two equal orders."""
    (who,) = part.who
    yield "for number in range(2):"
    yield f"    {style.variable} = {paid(literal(who), style)}"
    yield f'    say(f"paid {who} {{number}}", {style.variable})'


@element("pay", names=3, inserts=True)
def loop(part: Part, style: Style) -> Iterator[str]:
    names = listed(part.names(style))
    if style.wrap:
        yield f"for who, outcome in zip({names}, [each async for each in session.map(pay, {names})]):"
        yield from indented(outcome('f"paid {who}"'))
        return
    yield f"for who in {names}:"
    yield f"    {style.variable} = {paid('who', style)}"
    yield f'    say(f"paid {{who}}", {style.variable})'


@element("pay", names=3, inserts=True)
def mapped(part: Part, style: Style) -> Iterator[str]:
    names = listed(part.names(style))
    yield f"outcomes = [each async for each in session.map(pay, {names}{_at_once(part)})]"
    yield f"for who, outcome in zip({names}, outcomes):"
    yield from indented(outcome('f"paid {who}"'))


def _at_once(part: Part) -> str:
    """Fewer than the items, in one of two programs."""
    return ", concurrency=2" if part.variant % 2 else ""


@element("pay", times=3)
def mapped_equal(part: Part, style: Style) -> Iterator[str]:
    del style
    names = listed(part.who * 3)
    yield f"outcomes = [each async for each in session.map(pay, {names})]"
    yield "for number, outcome in enumerate(outcomes):"
    yield from indented(outcome(f'f"paid {part.who[0]} {{number}}"'))


def _order(part: Part, style: Style, name: str = "order") -> Iterator[str]:
    """One branch of parallel work."""
    yield f"async def {name}(who):"
    if part.variant % 2:
        yield "    await asyncio.sleep(random.random() / 30)"
    yield '    text = await session.step(draft, f"to {who}")'
    yield f"    {style.variable} = {paid('who', style)}"
    yield '    say(f"text {who}", text)'
    yield f'    say(f"paid {{who}}", {style.variable})'


@element("draft", "pay", names=2)
def gather(part: Part, style: Style) -> Iterator[str]:
    yield from _order(part, style)
    yield f"await asyncio.gather({', '.join(f'order({literal(who)})' for who in part.who)})"


@element("draft", "pay", names=3)
def group(part: Part, style: Style) -> Iterator[str]:
    yield from _order(part, style)
    yield "async with asyncio.TaskGroup() as tasks:"
    yield f"    for who in {listed(part.who)}:"
    yield "        tasks.create_task(order(who))"


@element("pay", names=4)
def slow_sibling(part: Part, style: Style) -> Iterator[str]:
    """Another branch may come first in each run."""
    yield "async def order(who):"
    yield "    await asyncio.sleep(random.choice((0, 0.02, 0.04)))"
    yield f"    {style.variable} = {paid('who', style)}"
    yield f'    say(f"paid {{who}}", {style.variable})'
    yield f"await asyncio.gather({', '.join(f'order({literal(who)})' for who in part.who)})"


@element("new_id", "transfer", whats="transfer", names=2, may_refuse="first", weight=2)
def twins(part: Part, style: Style) -> Iterator[str]:
    """Each of two tasks takes a new id and pays with it."""
    yield "async def order(who):"
    yield "    token = await session.step(new_id)"
    yield f"    {style.variable} = await session.step(transfer, who, token)"
    yield '    say(f"token {who}", token)'
    yield f'    say(f"paid {{who}}", {style.variable})'
    yield f"await asyncio.gather({', '.join(f'order({literal(who)})' for who in part.who)})"


@element("pay", times=2, may_refuse="first")
def equal(part: Part, style: Style) -> Iterator[str]:
    call = f"session.step(pay, {style.arguments(literal(part.who[0]))})"
    yield f"first, second = await asyncio.gather({call}, {call})"
    yield f'say("paid {part.who[0]} first", first)'
    yield f'say("paid {part.who[0]} second", second)'


@element("draft", "pay")
def nested(part: Part, style: Style) -> Iterator[str]:
    (who,) = part.who
    yield "async def checkout(who):"
    yield '    await session.step(draft, f"for {who}")'
    yield f"    return {paid('who', style)}"
    yield f'{style.variable} = await session.step(checkout, "{who}")'
    yield f'say("paid {who}", {style.variable})'


@element("pay", odd=_QUICK)
def timeout(part: Part, style: Style) -> Iterator[str]:
    (who,) = part.who
    yield "try:"
    yield f"    async with asyncio.timeout(random.random() / {(1_000, 200, 50)[part.variant % 3]} + 0.003):"
    yield f"        {style.variable} = {paid(literal(who), style)}"
    yield "except TimeoutError:"
    yield f"    {style.variable} = {paid(literal(who), style)}"
    yield f'say("paid {who}", {style.variable})'


@element("pay", names=3, odd=_QUICK, weight=4)
def cancelled(part: Part, style: Style) -> Iterator[str]:
    yield f"for who in {listed(part.who)}:"
    yield from indented(_cancelled(part, f"session.step(pay, {style.arguments('who')})", 'f"paid {who}"'))


@element("draft", "note", whats="", odd=(), weight=4)
def cancelled_draft(part: Part, style: Style) -> Iterator[str]:
    del style
    function = "draft" if part.variant % 5 == 0 else "note"
    yield f"for number in range({6 if function == 'draft' else 30}):"
    call = f'session.step({function}, f"{part.who[0]} {{number}}")'
    yield from indented(_cancelled(part, call, f'f"text {part.who[0]} {{number}}"'))


_SOON = (100, 200, 500, 2_000)


def _cancelled(part: Part, call: str, label: str) -> list[str]:
    """A call that is cancelled and made again several times, and then left alone. Most are cut while they are written."""
    return [
        "for attempt in range(4):",
        f"    task = asyncio.create_task({call})",
        f"    await asyncio.sleep(random.random() / {_SOON[part.variant % 4]})",
        "    task.cancel()",
        "    try:",
        "        value = await task",
        "        break",
        "    except asyncio.CancelledError:",
        "        pass",
        "else:",
        f"    value = await {call}",
        f"say({label}, value)",
    ]


@element("pay")
def retry_loop(part: Part, style: Style) -> Iterator[str]:
    (who,) = part.who
    yield f"{style.variable} = None"
    yield "for attempt in range(3):"
    yield "    try:"
    yield f"        {style.variable} = {paid(literal(who), style)}"
    yield "        break"
    yield "    except (KeyError, ConnectionError):"
    yield "        await asyncio.sleep(0.001)"
    yield f"if {style.variable} is not None:"
    yield f'    say("paid {who}", {style.variable})'


@element("pay")
def recover_around(part: Part, style: Style) -> Iterator[str]:
    (who,) = part.who
    yield "async def attempt():"
    yield f"    return {paid(literal(who), style)}"
    yield f'{style.variable} = await recover("orders", QUICK).call(attempt)'
    yield f'say("paid {who}", {style.variable})'


# Without a declared effect `recover` may repeat what broke: only a refused connection is sure to have done nothing.
@element("careful", whats="careful", odd=("refused", "slow", "late"))
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
                f"{style.variable} = {paid(who, style)}",
                f"say({label}, {style.variable})",
            ]
        case 2:
            return [
                'text = await session.step(draft, f"a {question}")',
                f"{style.variable} = {paid(who, style)}",
                f"say({label}, {style.variable})",
                'await session.step(draft, f"b {text}")',
            ]
    return [f"{style.variable} = {paid(who, style)}", f"say({label}, {style.variable})"]


@element("draft", "pay", names=3, may_refuse="later")
def turns(part: Part, style: Style) -> Iterator[str]:
    yield f"for question in {listed(part.who)}:"
    yield "    async with session.turn(question):"
    yield from indented(_turn_body(part, style, 'f"paid {question}"'), 2)


@element("draft", "pay", times=2, may_refuse="later")
def turns_same(part: Part, style: Style) -> Iterator[str]:
    yield f"for number, question in enumerate([{', '.join([literal(part.who[0])] * 2)}]):"
    yield "    async with session.turn(question):"
    yield from indented(_turn_body(part, style, 'f"paid {question} {number}"'), 2)


@element("draft", "pay", names=3)
def keyed_turns(part: Part, style: Style) -> Iterator[str]:
    yield f"for question in {listed(part.who)}:"
    yield "    async with session.turn(question, key=question):"
    yield from indented(_turn_body(part, style, 'f"paid {question}"'), 2)


@element("draft", "pay", times=2)
def keyed_turns_same(part: Part, style: Style) -> Iterator[str]:
    """The same words twice, as two messages with ids of their own."""
    yield f"for number, question in enumerate([{', '.join([literal(part.who[0])] * 2)}]):"
    yield '    async with session.turn(question, key=f"message {question} {number}"):'
    yield from indented(_turn_body(part, style, 'f"paid {question} {number}"'), 2)


@element("pay")
def ask(part: Part, style: Style) -> Iterator[str]:
    (who,) = part.who
    yield f"{style.variable} = {paid(literal(who), style, 'session.step_or_ask')}"
    yield f'say("paid {who}", {style.variable})'


@element("pay")
def approve(part: Part, style: Style) -> Iterator[str]:
    (who,) = part.who
    yield f'if await session.approve("Pay {who}?"):'
    yield f"    {style.variable} = {paid(literal(who), style)}"
    yield f'    say("paid {who}", {style.variable})'


@element("pay")
def keyed(part: Part, style: Style) -> Iterator[str]:
    (who,) = part.who
    yield f"{style.variable} = {paid(literal(who), style, f'session.keyed({literal(who)}).step')}"
    yield f'say("paid {who}", {style.variable})'


@element("pay", may_refuse="first", weight=2)
def keyed_nested(part: Part, style: Style) -> Iterator[str]:
    (who,) = part.who
    yield "async def checkout():"
    yield f"    return {paid(literal(who), style, f'session.keyed({literal(who)}).step')}"
    yield f"{style.variable} = await session.keyed({literal(who)}).step(checkout)"
    yield f'say("paid {who}", {style.variable})'


@element(whats="", odd=(), weight=2)
def modules(part: Part, style: Style) -> Iterator[str]:
    """Two functions of one name, of two modules."""
    del style
    (who,) = part.who
    yield f'bill, letter = await asyncio.gather(session.step(billing.fetch, "{who}"), session.step(mail.fetch, "{who}"))'
    yield f'say("about billing of {who}", bill)'
    yield f'say("about mail of {who}", letter)'


@element("checked", whats="checked")
def verified(part: Part, style: Style) -> Iterator[str]:
    (who,) = part.who
    yield f'{style.variable} = await session.step(checked, "{who}")'
    yield f'say("paid {who}", {style.variable})'


@element("checked_outside", "checked_inside", whats="checked", odd=("no id", "refused", "slow", "late"), weight=3)
def verified_recovered(part: Part, style: Style) -> Iterator[str]:
    """The function recovers, or calls something that does."""
    (who,) = part.who
    function = ("checked_outside", "checked_inside")[part.variant % 2]
    yield f"{style.variable} = {paid(literal(who), style, function=function)}"
    yield f'say("paid {who}", {style.variable})'


@element("book", whats="book")
def booked(part: Part, style: Style) -> Iterator[str]:
    (who,) = part.who
    yield f'{style.variable} = await session.step(book, "{who}")'
    yield f'say("paid {who}", {style.variable})'


@element("pay", names=3)
def nested_many(part: Part, style: Style) -> Iterator[str]:
    """A step that pays several people."""
    yield "async def batch(names):"
    match part.variant % 3:
        case 0:
            yield "    receipts = []"
            yield "    for who in names:"
            yield f"        receipts.append({paid('who', style)})"
            yield "    return receipts"
        case 1:
            yield f"    return await asyncio.gather(*(session.step(pay, {style.arguments('who')}) for who in names))"
        case _:
            yield "    return [outcome.unwrap() for outcome in await session.map(pay, names, collect=True)]"
    yield f"receipts = await session.step(batch, {listed(part.who)})"
    yield f"for who, {style.variable} in zip({listed(part.who)}, receipts):"
    yield f'    say(f"paid {{who}}", {style.variable})'


@element("draft", "pay")
def nested_deep(part: Part, style: Style) -> Iterator[str]:
    (who,) = part.who
    yield "async def checkout(who):"
    yield f"    return {paid('who', style)}"
    yield "async def order(who):"
    yield '    await session.step(draft, f"for {who}")'
    yield "    return await session.step(checkout, who)"
    yield f'{style.variable} = await session.step(order, "{who}")'
    yield f'say("paid {who}", {style.variable})'


@element("notify", "pay")
def nested_failing(part: Part, style: Style) -> Iterator[str]:
    """What comes after the payment fails, and the whole is tried again."""
    (who,) = part.who
    yield "async def checkout(who):"
    yield f"    {style.variable} = {paid('who', style)}"
    yield "    await session.step(notify, who)"
    yield f"    return {style.variable}"
    if part.variant % 2:
        yield f'{style.variable} = await recover("shop", QUICK).call(session.step, checkout, "{who}")'
        yield f'say("paid {who}", {style.variable})'
        return
    yield "for attempt in range(9):"
    yield "    try:"
    yield f'        {style.variable} = await session.step(checkout, "{who}")'
    yield f'        say("paid {who}", {style.variable})'
    yield "        break"
    yield "    except MailError:"
    yield "        await asyncio.sleep(0.001)"


@element("draft", "pay", names=3)
def cancelled_group(part: Part, style: Style) -> Iterator[str]:
    """Something else in the group fails, and what was cancelled is done after it."""
    yield "async def order(who):"
    yield '    text = await session.keyed(f"draft {who}").step(draft, f"to {who}")'
    yield f"    {style.variable} = {paid('who', style, 'session.keyed(who).step')}"
    yield '    say(f"text {who}", text)'
    yield f'    say(f"paid {{who}}", {style.variable})'
    yield "async def other():"
    yield "    await asyncio.sleep(random.random() / 50)"
    yield '    raise ConnectionError("the other service is down")'
    yield "try:"
    yield "    async with asyncio.TaskGroup() as tasks:"
    yield "        tasks.create_task(other())"
    yield f"        for who in {listed(part.who)}:"
    yield "            tasks.create_task(order(who))"
    yield "except* ConnectionError:"
    yield f"    for who in {listed(part.who)}:"
    yield "        await order(who)"


@element("draft", "pay", names=3)
def workers(part: Part, style: Style) -> Iterator[str]:
    """Two tasks take the next order from a queue."""
    yield "queue = asyncio.Queue()"
    yield f"for who in {listed(part.who)}:"
    yield "    queue.put_nowait(who)"
    yield "async def worker():"
    yield "    while not queue.empty():"
    yield "        who = queue.get_nowait()"
    yield '        await session.step(draft, f"for {who}")'
    yield f"        {style.variable} = {paid('who', style)}"
    yield f'        say(f"paid {{who}}", {style.variable})'
    yield "await asyncio.gather(worker(), worker())"


@element("sure", whats="sure", weight=2)
def declared_above(part: Part, style: Style) -> Iterator[str]:
    """The tool is declared above its recovery."""
    (who,) = part.who
    yield f'{style.variable} = await session.step(sure, "{who}")'
    yield f'say("paid {who}", {style.variable})'


@element("pay", names=4, weight=5)
def pool(part: Part, style: Style) -> Iterator[str]:
    """Workers that take what comes, and may take a while before they pay."""
    yield f"waiting = {listed(part.who)}"
    yield "async def worker():"
    yield "    while waiting:"
    yield "        who = waiting.pop()"
    yield "        await asyncio.sleep(random.choice((0, 0.02, 0.04)))"
    yield f"        {style.variable} = {paid('who', style)}"
    yield f'        say(f"paid {{who}}", {style.variable})'
    yield "await asyncio.gather(worker(), worker())"


@element("pay", names=3, inserts=True)
def map_collected(part: Part, style: Style) -> Iterator[str]:
    names = listed(part.names(style))
    yield f"outcomes = await session.map(pay, {names}{_at_once(part)}, collect=True)"
    yield f"for who, outcome in zip({names}, outcomes):"
    yield from indented(outcome('f"paid {who}"'))


@element("draft", "transfer", whats="transfer")
def race(part: Part, style: Style) -> Iterator[str]:
    """The first of two drafts is taken. Another run may take the other one, so a key says that it is one payment."""
    (who,) = part.who
    yield f'drafts = [asyncio.create_task(session.step(draft, each)) for each in ("{who} a", "{who} b")]'
    yield "done, left = await asyncio.wait(drafts, return_when=asyncio.FIRST_COMPLETED)"
    yield "for task in left:"
    yield "    task.cancel()"
    yield f'{style.variable} = await session.keyed("payment of {who}").step(transfer, "{who}", done.pop().result())'
    yield f'say("paid {who}", {style.variable})'


@element("transfer", whats="transfer", odd=("refused", "slow", "late"))
def other_account(part: Part, style: Style) -> Iterator[str]:
    """What the first account rejects is paid from the second one. A key says that it is one payment."""
    (who,) = part.who
    yield "try:"
    yield f'    {style.variable} = await session.keyed("payment of {who}").step(transfer, "{who}", "account 1")'
    yield "except ConnectionRefusedError:"
    yield f'    {style.variable} = await session.keyed("payment of {who}").step(transfer, "{who}", "account 2")'
    yield f'say("paid {who}", {style.variable})'


@element("settle", whats="settle", weight=2)
def named(part: Part, style: Style) -> Iterator[str]:
    (who,) = part.who
    yield f'{style.variable} = await session.step({"close" if style.moved else "settle"}_invoice, "{who}")'
    yield f'say("paid {who}", {style.variable})'


@element("draft", "pay", odd=_QUICK)
def cancelled_turn(part: Part, style: Style) -> Iterator[str]:
    (who,) = part.who
    yield "async def answer(question):"
    yield "    async with session.turn(question, key=question):"
    yield from indented(_turn_body(part, style, 'f"paid {question}"'), 2)
    yield "try:"
    yield f"    async with asyncio.timeout(random.random() / {(1_000, 200, 50)[part.variant // 3 % 3]} + 0.003):"
    yield f'        await answer("{who}")'
    yield "except TimeoutError:"
    yield f'    await answer("{who}")'


@element("draft", "pay")
def recover_turn(part: Part, style: Style) -> Iterator[str]:
    (who,) = part.who
    yield "async def answer(question):"
    yield "    async with session.turn(question, key=question):"
    yield from indented(_turn_body(part, style, 'f"paid {question}"'), 2)
    yield f'await recover("orders", QUICK).call(answer, "{who}")'


@element("transfer", whats="transfer")
def asked(part: Part, style: Style) -> Iterator[str]:
    """Somebody says from which account."""
    (who,) = part.who
    yield f'account = await session.ask("From which account is {who} paid?")'
    yield f'{style.variable} = await session.step(transfer, "{who}", account)'
    yield f'say("paid {who}", {style.variable})'


@element("transfer", whats="transfer", names=2)
def asked_at_once(part: Part, style: Style) -> Iterator[str]:
    yield "async def order(who):"
    yield '    account = await session.select(f"From which account is {who} paid?", ["checking", "savings"])'
    yield f"    {style.variable} = await session.step(transfer, who, account)"
    yield f'    say(f"paid {{who}}", {style.variable})'
    yield f"await asyncio.gather({', '.join(f'order({literal(who)})' for who in part.who)})"


@element("fetch_post", names=3, odd=(), may_refuse="first", alone=True, weight=2)
def declared_twice(part: Part, style: Style) -> Iterator[str]:
    """One function is declared as two tools."""
    yield f"for who in {listed(part.who)}:"
    yield f"    {style.variable} = await session.step(charge, who)"
    yield f'    say(f"paid {{who}}", {style.variable})'


@element("new_id", "transfer", whats="transfer", names=2, weight=2)
def parts(part: Part, style: Style) -> Iterator[str]:
    """Tasks that only start tasks: parts tell the equal calls apart."""
    yield "async def customer(who):"
    yield "    with session.part(who):"
    yield '        token, other = await asyncio.gather(session.keyed(f"{who} 1").step(new_id), session.step(new_id))'
    yield f"        {style.variable} = await session.step(transfer, who, token + other)"
    yield '    say(f"token {who}", token + other)'
    yield f'    say(f"paid {{who}}", {style.variable})'
    yield f"await asyncio.gather({', '.join(f'customer({literal(who)})' for who in part.who)})"


@element("pay", names=3, may_refuse="later")
def turns_one_fails(part: Part, style: Style) -> Iterator[str]:
    """A turn fails after its payment, and the program goes on with the next one."""
    yield f"for question in {listed(part.who)}:"
    yield "    try:"
    yield "        async with session.turn(question):"
    yield f"            {style.variable} = {paid('question', style)}"
    yield f'            say(f"paid {{question}}", {style.variable})'
    yield f"            if question == {literal(part.who[part.variant % 3])}:"
    yield '                raise RuntimeError("the printer is out of paper")'
    yield "    except RuntimeError:"
    yield "        pass"


@element("pay", may_refuse="later")
def turn_loop(part: Part, style: Style) -> Iterator[str]:
    """A loop of one's own around a turn that fails at first."""
    (who,) = part.who
    unfinished = ', unfinished="continue"' if part.variant % 2 else ""
    yield "for attempt in range(3):"
    yield "    try:"
    yield f"        async with session.turn({literal(who)}{unfinished}):"
    yield f"            {style.variable} = {paid(literal(who), style)}"
    yield f'            say("paid {who}", {style.variable})'
    yield "            if attempt == 0:"
    yield '                raise RuntimeError("the printer is out of paper")'
    yield "        break"
    yield "    except RuntimeError:"
    yield "        pass"


@element("pay")
def toolbox(part: Part, style: Style) -> Iterator[str]:
    """A tool that is called by its name."""
    (who,) = part.who
    yield "tools = Toolbox([pay])"
    yield f'{style.variable} = await session.step(tools.call, "pay", {{"who": "{who}"}})'
    yield f'say("paid {who}", {style.variable})'


@element("pay")
def fallback(part: Part, style: Style) -> Iterator[str]:
    """If one bank fails, another one pays."""
    (who,) = part.who
    yield f'@recover("bank of {who}", QUICK)'
    yield "async def order():"
    yield f"    return {paid(literal(who), style)}"
    yield "@order.fallback"
    yield "async def elsewhere():"
    keyed = literal("elsewhere " + who)
    yield f"    return {paid(literal(who), style, f'session.keyed({keyed}).step')}"
    yield f"{style.variable} = await order()"
    yield f'say("paid {who}", {style.variable})'


@element("pay", names=2)
def agent_steps(part: Part, style: Style) -> Iterator[str]:
    """A run inside of a step, then another one of the same agent, which knows what the first one did."""
    del style
    first, second = part.who
    name = f"teller_{first}"
    yield f'{name} = Agent("{name}", Model("pay", {listed(part.who)}, remembers=True), [pay])'
    yield "async def morning():"
    yield f'    return (await {name}.run("Pay {first}.", session=session)).text'
    yield f'say("morning {first}", await session.step(morning))'
    yield f'reply = await {name}.run("Pay {second}.", session=session)'
    yield f'say("evening {first}", reply.text)'
