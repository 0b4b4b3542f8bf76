"""The functions, tools and workflows that the parts of a program call. A program holds only those that it needs."""

from __future__ import annotations

__all__ = ["FUNCTIONS"]

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
    "checked_outside": """
@tool(effect="unsafe", verify=find)
@recover("bank", QUICK)
async def checked_outside(who: str) -> str:
    answer = await bank.post("checked", who)
    return answer["id"]
""",
    "checked_inside": """
@tool(effect="unsafe", verify=find)
async def checked_inside(who: str) -> str:
    answer = await recover("bank", QUICK).call(bank.post, "checked", who)
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
    "sure": """
@tool(effect="unsafe")
@recover("bank", QUICK)
async def sure(who: str) -> str:
    answer = await bank.post("sure", who)
    return answer["id"]
""",
    "draft": """
async def draft(topic: str) -> str:
    await asyncio.sleep(random.random() / 100)
    return f"{topic} {uuid4().hex[:8]}"
""",
    "note": """
async def note(topic: str) -> str:
    return f"{topic} {uuid4().hex[:8]}"
""",
    "new_id": """
async def new_id() -> str:
    await asyncio.sleep(random.random() / 100)
    return uuid4().hex[:8]
""",
    "settle": """
@tool(effect="unsafe", name="settle")
async def settle_invoice(who: str) -> str:
    answer = await bank.post("settle", who)
    return answer["id"]
""",
    "wire": """
@tool(effect="unsafe", verify=find, timeout=0.02)
def wire(who: str) -> str:
    return bank.send("wire", who)["id"]
""",
    "notify": """
class MailError(Exception):
    pass


async def notify(who: str) -> str:
    if random.random() < 0.5:
        raise MailError(f"no mail to {who}")
    return f"told {who}"
""",
    "fetch_post": """
async def fetch_post(who: str) -> str:
    answer = await bank.post("pay", who)
    await asyncio.sleep(random.random() / 100)
    return answer["id"]


charge = tool(effect="unsafe")(fetch_post)
search = tool(effect="read")(fetch_post)
""",
    "payroll": """
from holdfast.tasks import workflow


@workflow
async def payroll(session: Session, names: list[str]) -> list[str]:
    receipts = []
    for who in names:
        receipts.append(await session.step(pay, who))
    return receipts


@workflow
async def payroll_mapped(session: Session, names: list[str]) -> list[str]:
    outcomes = await session.map(pay, names, collect=True)
    return [outcome.unwrap() for outcome in outcomes]


@workflow
async def payroll_gathered(session: Session, names: list[str]) -> list[str]:
    return await asyncio.gather(*(session.step(pay, who) for who in names))
""",
    "dunning": """
from holdfast.tasks import workflow


@workflow
async def dunning(session: Session, who: str) -> str:
    return await session.retry_later(after=0.01, attempts=9).step(pay, who)
""",
    "review": """
from holdfast import Task, TaskSystem


async def review(assignment) -> str:
    await asyncio.sleep(random.random() / 100)
    return f"review of {assignment.task.inputs['doc']} {uuid4().hex[:8]}"
""",
    "remit": """
from holdfast import Task, TaskSystem


@tool(effect="unsafe")
async def remit(assignment) -> str:
    answer = await bank.post("remit", assignment.task.inputs["who"])
    return answer["id"]
""",
    "go": """
from holdfast.tasks.stages import Go


async def plain(work) -> str:
    return work.stage
""",
    "act": """
from holdfast import Tries
from holdfast.tasks.stages import END


@tool(effect="unsafe")
async def act(work) -> str:
    answer = await bank.post("act", work.stage.split()[-1])
    return answer["id"]


def look_up(key, work):
    return find(key, work.stage)


@tool(effect="unsafe", verify=look_up)
async def act_checked(work) -> str:
    answer = await bank.post("act", work.stage.split()[-1])
    return answer["id"]


async def look(work) -> str:
    return "looked"
""",
    "ways": """
from holdfast import Fault, HoldfastError, Task, TaskError, TaskSystem
from holdfast.tasks import Decomposition, Status, TaskResult


def otherwise(task, fault):
    return task.with_(prompt=f"In another way: {task.prompt}", turns=None)


async def halves(task, fault, left):
    name = task.prompt.split()[-1]
    return Decomposition([task.with_(prompt=f"{half}: {name}", turns=None) for half in (1, 2)], "concatenate")


def is_in_doubt(fault) -> bool:
    return "TOOL_OUTCOME_UNKNOWN" in (fault.code, fault.context.get("subtask_code"))


async def wait() -> str:
    return "later"


def asks(description: str, **more) -> TaskResult:
    request = {"type": "atomic", "description": description, **more}
    return TaskResult(status=Status.CONTINUATION, notes={"subtask_request": request})
""",
    "loop": """
from holdfast import Task, TaskSystem
from holdfast.tasks import DirectorLoop


async def write(assignment) -> str:
    return f"draft {assignment.task.inputs['iteration']} {uuid4().hex[:8]}"


@tool(effect="unsafe")
async def commission(assignment) -> str:
    answer = await bank.post("commission", assignment.task.inputs["original_prompt"])
    return answer["id"]


async def judge(assignment) -> dict:
    good = assignment.task.inputs["iteration"] == 2
    return {"success": good, "feedback": f"shorter {assignment.task.inputs['stdout']}"}
""",
}
