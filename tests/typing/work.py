"""Submitted work (API.md, job 9) as a type checker sees it. Never run."""

from __future__ import annotations

from typing import assert_type

from holdfast import Outcome, Session
from holdfast.tasks import workflow
from holdfast.work import Worker, WorkHandle, WorkQueue, program, signal, submit


class Order:
    id: str


class Receipt:
    number: int


@program("refund", version="2", accepts=["1"])
async def refund(session: Session, order: Order) -> Receipt:
    await session.sleep(1)
    return Receipt()


@program("two")
async def two(session: Session, order: Order, cents: int) -> int:
    return cents


@program("none")
async def none(session: Session) -> str:
    return session.id


@workflow
async def review(session: Session, pr: int, *, depth: int = 1) -> str:
    return f"{pr} {depth}"


async def job(order: Order) -> None:
    handle = await submit(refund, order, key=order.id, priority=3)
    assert_type(handle, WorkHandle[Receipt])
    assert_type(await handle, Receipt)
    assert_type(await handle.outcome(), Outcome[Receipt])
    assert_type(await handle.cancel(), bool)
    assert_type(await (await submit(two, order, 5)), int)
    assert_type(await (await submit(none)), str)
    assert_type(await (await submit(review.given(12, depth=2), key="pr-12")), str)
    await submit(refund, "order")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    review.given("twelve")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await signal(handle.id, "approved", value=True)
    async with Worker(
        "sqlite:work.db", [refund, review], queues=["fast", WorkQueue(name="slow", concurrency=2)]
    ) as worker:
        await worker.serve()
