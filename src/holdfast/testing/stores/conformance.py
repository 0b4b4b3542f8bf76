"""`StoreConformance`: the promises of a store as a pytest class, and the kit that its cases are written with."""

from __future__ import annotations

import asyncio
import sys
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest

from holdfast.faults import HoldfastError, Redactor
from holdfast.stores import Claim, Commit, NewAudit, NewEntry, NewSession, SessionState
from holdfast.testing.clock import VirtualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

    from holdfast.clock import Clock
    from holdfast.faults import Fault
    from holdfast.stores import Receipt, Store
    from holdfast.stores.records import Entry

CANARY = "canary-Zq81-do-not-store-me"
"""A secret that the redactor knows. No store may contain it."""

_MODULES = tuple(
    f"holdfast.testing.stores.{name}"
    for name in ("writes", "claims", "leases", "reads", "retention", "audit", "limits")
)
_CASES: list[Case] = []


class Case(NamedTuple):
    """One promise of a store: `await case.run(kit)` raises `AssertionError` if the store does not keep it."""

    name: str
    run: Callable[[Kit], Coroutine[Any, Any, None]]
    durable: bool
    """Whether only durable stores promise it."""


class Kit:
    """The tools of a case. It makes stores at one place, on a virtual clock.

    For example:
        for case in cases():
            with TemporaryDirectory() as folder:  # each case needs an empty place
                asyncio.run(case.run(Kit(lambda clock, redactor: MyStore(folder, clock=clock, redactor=redactor))))
    """

    def __init__(self, make: Callable[[Clock, Redactor], Store]) -> None:
        self._make = make
        self.clock = VirtualClock()
        # A store must mask this secret. The cases search the store for it.
        self.redactor = Redactor.knowing((CANARY,))

    def store(self) -> Store:
        """Return a store that is not open yet."""
        return self._make(self.clock, self.redactor)


def cases(*, durable: bool = True) -> tuple[Case, ...]:
    """Return the cases for runners other than pytest. `durable=False` leaves out the cases that reopen a store."""
    # pytest rewrites assertions when a module is imported, so register first. Otherwise a failing case shows no values.
    # For a module that is already imported pytest would only warn that it comes too late.
    pytest.register_assert_rewrite(*(module for module in _MODULES if module not in sys.modules))
    for module in _MODULES:
        import_module(module)
    return tuple(case for case in _CASES if durable or not case.durable)


class StoreConformance:
    """The promises of a `Store` as a test class. A subclass makes the store, and sets whether it is durable.

    For example:
        class TestMyStore(StoreConformance):
            def make(self, place, clock, redactor):
                return MyStore(place / "sessions", clock=clock, redactor=redactor)

    A test fails with `AssertionError` for each promise that the store does not keep.
    """

    durable = True
    """Whether a new store at the same place has the data of the earlier store."""

    def make(self, place: Path, clock: Clock, redactor: Redactor) -> Store:
        """Return a store that is not open yet. `place` is an empty folder; a store without files may use its name."""
        raise NotImplementedError

    @pytest.fixture
    def store_kit(self, tmp_path: Path) -> Kit:
        """The kit of one case, in the test's own folder."""
        return Kit(lambda clock, redactor: self.make(tmp_path, clock, redactor))

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        # Make the test for each subclass, because `durable` decides which cases there are.
        cls.test_conformance = _parametrized(cases(durable=cls.durable))  # type: ignore[attr-defined]


def _parametrized(chosen: tuple[Case, ...]) -> Any:
    @pytest.mark.parametrize("case", chosen, ids=lambda case: case.name)
    def test_conformance(self: StoreConformance, case: Case, store_kit: Kit) -> None:
        # pytest needs a method, but the case needs only the kit.
        del self
        asyncio.run(case.run(store_kit))

    return test_conformance


# --- helpers for the cases ---


def case(function: Callable[[Kit], Coroutine[Any, Any, None]]) -> Callable[[Kit], Coroutine[Any, Any, None]]:
    """Add a function to the cases of all stores."""
    _CASES.append(Case(function.__name__, function, durable=False))
    return function


def durable_case(function: Callable[[Kit], Coroutine[Any, Any, None]]) -> Callable[[Kit], Coroutine[Any, Any, None]]:
    """Add a function to the cases of durable stores."""
    _CASES.append(Case(function.__name__, function, durable=True))
    return function


@contextmanager
def raises_fault(code: str) -> Iterator[list[Fault]]:
    """Expect an error with this code. After the block the list holds its fault."""
    faults: list[Fault] = []
    try:
        yield faults
    except HoldfastError as error:
        if error.fault.code != code:
            raise AssertionError(f"expected {code}, got {error.fault.code}: {error}") from error
        faults.append(error.fault)
    else:
        raise AssertionError(f"expected {code}, got no error")


async def create(store: Store, session: str = "s1", state: SessionState | None = SessionState.ACTIVE) -> Receipt:
    """Create a session."""
    return await store.commit(Commit(session=session, create=NewSession(manifest=b'{"model":"m"}'), state=state))


def entries(*ids: str) -> tuple[NewEntry, ...]:
    """Return new log entries with these ids."""
    return tuple(NewEntry(type="message", body=msgspec.json.encode({"text": id_}), id=id_) for id_ in ids)


def appending(*ids: str, session: str = "s1", **more: Any) -> Commit:
    """Return a commit that appends entries with these ids."""
    return Commit(session=session, entries=entries(*ids), **more)


def audit(n: int = 0) -> NewAudit:
    """Return a new audit record with the number `n` in it."""
    return NewAudit(kind="Turn", correlation="run-1", payload=msgspec.json.encode({"n": n}))


def claim(id_: str = "m1", body: bytes = b"one", result: bytes = b'{"ok":1}') -> Claim:
    """Return a claim of one client."""
    return Claim(client="c1", id=id_, body_hash=body, result=result)


async def everything(store: Store, session: str = "s1") -> list[Entry]:
    """Return the whole log, read by pages."""
    # Start at the oldest entry that is left, because reading before it raises SESS_GAP.
    after = (await store.session(session)).oldest - 1
    found: list[Entry] = []
    while page := await store.read(session, after=after):
        found += page
        after = page[-1].offset
    return found
