"""The programs of the storm. What they do outside of the store is a line in a file, written by one call, which survives any kill."""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path

from holdfast import NOT_HAPPENED, Happened, Session, Tries, Verdict, tool
from holdfast.policies.backoff import Backoff
from holdfast.work import program

FILE = os.environ.get("STORM_EFFECTS", "effects")
SOON = Tries(attempts=50, backoff=Backoff(initial=0.05, cap=0.2))


def write(*words: object) -> None:
    """Note something: kind, item, process, time, and what."""
    line = " ".join(map(str, words)) + "\n"
    file = os.open(FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def note(kind: str, item: str, what: str = "-") -> None:
    write(kind, item, os.getpid(), time.monotonic(), what)


def happened(item: str, what: str) -> bool:
    lines = Path(FILE).read_text().splitlines() if Path(FILE).exists() else []
    return any(words[0] == "effect" and words[1] == item and words[4] == what for words in map(str.split, lines))


async def plain(item: str, number: int) -> int:
    await asyncio.sleep(random.uniform(0.0, 0.1))
    note("plain", item, str(number))
    return number


async def is_charged(_: str, item: str, what: str) -> Verdict:
    return Happened(what) if happened(item, what) else NOT_HAPPENED


@tool(effect="unsafe", verify=is_charged)
async def charge(item: str, what: str) -> str:
    """An unsafe call that can be looked up."""
    await asyncio.sleep(random.uniform(0.0, 0.1))
    note("effect", item, what)
    await asyncio.sleep(random.uniform(0.0, 0.1))
    return what


@tool(effect="unsafe")
async def send(item: str, what: str) -> str:
    """An unsafe call that only a person can find out about."""
    await asyncio.sleep(random.uniform(0.0, 0.1))
    note("effect", item, what)
    await asyncio.sleep(random.uniform(0.0, 0.1))
    return what


def entered(item: str) -> _Entered:
    return _Entered(item)


class _Entered:
    """The time in which a program runs in this process."""

    def __init__(self, item: str) -> None:
        self.item = item

    def __enter__(self) -> None:
        note("enter", self.item)

    def __exit__(self, *_: object) -> None:
        note("leave", self.item)


@program("steps", retry=SOON)
async def steps(session: Session, item: str) -> list[int]:
    with entered(item):
        found = [await session.step(plain, item, n) for n in range(4)]
        await session.step(charge, item, "one")
        await session.step(charge, item, "two")
        return found


@program("sleeps", retry=SOON)
async def sleeps(session: Session, item: str) -> str:
    with entered(item):
        first = await session.step(charge, item, "before")
    await session.sleep(1.2)
    with entered(item):
        return first + await session.step(charge, item, "after")


@program("signalled", retry=SOON)
async def signalled(session: Session, item: str) -> object:
    await session.step(charge, item, "asked")
    value = await session.wait_for("go")
    with entered(item):
        await session.step(charge, item, "told")
    return value


@program("asked", retry=SOON)
async def asked(session: Session, item: str) -> bool:
    answer = await session.approve(f"{item}?", expires=3600)
    with entered(item):
        await session.step(charge, item, "answered")
    return answer


@program("doubtful", retry=SOON)
async def doubtful(session: Session, item: str) -> str:
    with entered(item):
        await session.step(plain, item, 1)
        return await session.step(send, item, "sent")


@program("crowd", retry=SOON)
async def crowd(session: Session, item: str) -> int:
    async def one(number: int) -> int:
        await session.step(plain, item, number)
        await session.step(charge, item, f"c{number}")
        return number

    return sum(await asyncio.gather(*(one(n) for n in range(3))))


programs = [steps, sleeps, signalled, asked, doubtful, crowd]
EXPECTED = {
    "steps": ["one", "two"],
    "sleeps": ["after", "before"],
    "signalled": ["asked", "told"],
    "asked": ["answered"],
    "doubtful": ["sent"],
    "crowd": ["c0", "c1", "c2"],
}
