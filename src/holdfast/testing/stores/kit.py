"""What a case is given, and the words it is written in."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from holdfast.faults import HoldfastError, Redactor
from holdfast.stores import Claim, Commit, NewAudit, NewEntry, NewSession, SessionState
from holdfast.testing.clock import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from holdfast.clock import Clock
    from holdfast.faults import Fault
    from holdfast.stores import Receipt, Store
    from holdfast.stores.records import Entry

__all__ = [
    "CANARY",
    "CASES",
    "Case",
    "Kit",
    "appending",
    "audit",
    "case",
    "claim",
    "create",
    "entries",
    "everything",
    "refused",
]

CANARY = "canary-Zq81-do-not-store-me"
"""A secret that the redactor knows: it must not be found in a store."""


class Case(NamedTuple):
    """One promise, as a coroutine function that fails where it is not kept."""

    name: str
    run: Callable[[Kit], Coroutine[Any, Any, None]]
    durable: bool
    """Whether it is a promise of durable stores only."""


CASES: list[Case] = []


def case(function: Callable[[Kit], Coroutine[Any, Any, None]]) -> Callable[[Kit], Coroutine[Any, Any, None]]:
    """Make a function one of the cases."""
    CASES.append(Case(function.__name__, function, durable=function.__module__.endswith(".reopening")))
    return function


class Kit:
    """Makes stores at one place, on a clock under the case's control."""

    def __init__(self, make: Callable[[Clock, Redactor], Store]) -> None:
        self._make = make
        self.clock = VirtualClock()
        self.redactor = Redactor.knowing((CANARY,))

    def store(self) -> Store:
        """Return a store that is not open yet."""
        return self._make(self.clock, self.redactor)


@contextmanager
def refused(code: str) -> Iterator[list[Fault]]:
    """Expect a typed refusal; it is in the list afterwards."""
    faults: list[Fault] = []
    try:
        yield faults
    except HoldfastError as error:
        if error.fault.code != code:
            raise AssertionError(f"expected {code}, got {error.fault.code}: {error}") from error
        faults.append(error.fault)
    else:
        raise AssertionError(f"expected {code}, and nothing was refused")


async def create(store: Store, session: str = "s1", state: SessionState | None = SessionState.ACTIVE) -> Receipt:
    return await store.commit(Commit(session=session, create=NewSession(manifest=b'{"model":"m"}'), state=state))


def entries(*ids: str) -> tuple[NewEntry, ...]:
    return tuple(NewEntry(type="message", body=msgspec.json.encode({"text": id_}), id=id_) for id_ in ids)


def appending(*ids: str, session: str = "s1", **more: Any) -> Commit:
    """Return a commit that appends entries with these ids."""
    return Commit(session=session, entries=entries(*ids), **more)


def audit(n: int = 0) -> NewAudit:
    return NewAudit(kind="Turn", correlation="run-1", payload=msgspec.json.encode({"n": n}))


def claim(id_: str = "m1", body: bytes = b"one", result: bytes = b'{"ok":1}') -> Claim:
    return Claim(client="c1", id=id_, body_hash=body, result=result)


async def everything(store: Store, session: str = "s1") -> list[Entry]:
    """Return the whole log, read by pages."""
    after = (await store.session(session)).oldest - 1
    found: list[Entry] = []
    while page := await store.read(session, after=after):
        found += page
        after = page[-1].offset
    return found
