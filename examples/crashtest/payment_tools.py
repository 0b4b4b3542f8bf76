"""The tools of the agents in this folder: two requests to a payment service, which must not happen twice.

As durable steps they are stored in a session, and repeat a request that may have happened only with the key of the first one.
"""

from __future__ import annotations

import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, cast

import httpx

from holdfast import Session, call_key, tool

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine

    Step = Callable[..., Coroutine[Any, Any, str]]

PAYMENTS_URL = os.environ.get("PAYMENTS_URL", "http://127.0.0.1:8426")


@tool(effect="keyed")
async def charge(order: str, cents: int) -> str:
    """Charge the customer's card."""
    return await post("/charges", order=order, cents=cents)


@tool(effect="keyed")
async def send_receipt(order: str) -> str:
    """Send the receipt."""
    return await post("/receipts", order=order)


async def post(path: str, **body: Any) -> str:
    headers = {"Idempotency-Key": key} if (key := call_key()) else {}
    async with httpx.AsyncClient() as client:
        answer = await client.post(f"{PAYMENTS_URL}{path}", json=body, headers=headers)
    return answer.raise_for_status().text


@asynccontextmanager
async def protected(*, by_holdfast: bool) -> AsyncIterator[Step]:
    """Yield a function that calls a tool: as a step of a session, or just so."""
    if not by_holdfast:
        yield lambda fn, *args: fn(*args)
        return
    async with Session.open("order-42", store="sqlite:holdfast.db") as session:
        yield cast("Step", session.step)
