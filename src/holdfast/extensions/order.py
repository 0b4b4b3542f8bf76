"""Which extensions start, in which order, and which are left out and why: decided from what they say of themselves.

Invariant: an extension that is left out leaves out those that need it, and nobody else (N2-14).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.faults import Fault, InvalidError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["CONTRACT", "Described", "Plan", "Skipped", "left_out", "plan"]

CONTRACT = 1
"""The version of the contract between extensions and this Holdfast. Another version is another contract."""


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """What an extension says of itself."""

    id: str
    contract: int
    requires: tuple[str, ...] = ()
    """The ids of extensions that must be started before it."""
    group: str = ""
    """What it adds: the entry point group it was found in."""


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """An extension that was left out, and why."""

    id: str
    fault: Fault

    @property
    def document(self) -> dict[str, str]:
        """Document 002's record, with the code beside it (N2-14)."""
        return {"extId": self.id, "reason": self.fault.message, "code": self.fault.code}


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to start, in this order, and what was left out. Stop in the opposite order."""

    order: tuple[Described, ...] = ()
    skipped: tuple[Skipped, ...] = ()


def plan(found: Iterable[Described], *, contract: int = CONTRACT, absent: Mapping[str, Fault] | None = None) -> Plan:
    """Return the order to start in: what is needed first, otherwise by id, so that it is the same every time.

    `absent` holds what could not even be asked, and why. After calling this you must call `left_out` before each start:
    what fails to start takes those that need it with it.
    """
    planning = _Planning(absent or {})
    planning.sort_out(found, contract)
    planning.leave_out_circles()
    return Plan(order=tuple(planning.order()), skipped=tuple(planning.skipped))


def left_out(described: Described, gone: Mapping[str, Fault], known: Iterable[str]) -> Fault | None:
    """Return why an extension cannot be started for want of another, or None; `gone` is what was left out so far."""
    installed = set(known)
    for need in described.requires:
        if need in gone:
            message = f"{described.id} needs {need}, which was left out: {gone[need].message}"
            return Fault.of("SYS_DEPENDENCY_MISSING", message, context={"name": described.id, "missing": need})
        if need not in installed:
            return Fault.of("SYS_DEPENDENCY_MISSING", context={"name": described.id, "missing": need})
    return None


class _Planning:
    """What is known while a plan is made."""

    def __init__(self, absent: Mapping[str, Fault]) -> None:
        self.known: dict[str, Described] = {}
        self.gone = dict(absent)
        self.skipped = [Skipped(id=name, fault=fault) for name, fault in absent.items()]

    def skip(self, described: Described, fault: Fault) -> None:
        self.gone[described.id] = fault
        self.skipped.append(Skipped(id=described.id, fault=fault))

    def sort_out(self, found: Iterable[Described], contract: int) -> None:
        for described in found:
            if described.id in self.known or described.id in self.gone:
                # The first keeps the name, started or not; the second is only told.
                self.skipped.append(Skipped(id=described.id, fault=_taken(described)))
                continue
            self.known[described.id] = described
            if described.contract != contract:
                self.skip(described, _mismatch(described, contract))

    def leave_out_circles(self) -> None:
        for circle in _circles({name: one for name, one in self.known.items() if name not in self.gone}):
            for name in circle:
                self.skip(self.known[name], _cycle(circle))

    def order(self) -> Iterator[Described]:
        waiting = {name: one for name, one in sorted(self.known.items()) if name not in self.gone}
        while waiting:
            # Without circles somebody always comes next: ready, or lacking what will never be there.
            ready = next(one for one in waiting.values() if self._is_due(one, waiting))
            del waiting[ready.id]
            fault = left_out(ready, self.gone, self.known)
            if fault is None:
                yield ready
            else:
                self.skip(ready, fault)

    def _is_due(self, described: Described, waiting: Mapping[str, Described]) -> bool:
        return not any(need in waiting for need in described.requires) or any(
            need in self.gone for need in described.requires
        )


def _taken(described: Described) -> Fault:
    return InvalidError.saying(
        f"extension {described.id}",
        "an id that no other extension has",
        f"{described.id!r} again, in {described.group}",
    ).fault


def _mismatch(described: Described, contract: int) -> Fault:
    context = {"name": described.id, "received": str(described.contract), "expected": str(contract)}
    return Fault.of("CONFIG_CONTRACT_MISMATCH", context=context)


def _cycle(circle: tuple[str, ...]) -> Fault:
    return Fault.of("SYS_DEPENDENCY_CYCLE", context={"cycle": " -> ".join((*circle, circle[0]))})


def _circles(known: Mapping[str, Described]) -> list[tuple[str, ...]]:
    """Return the circles, each from its first id by name; an extension that only leads into one is in none."""
    circles: list[tuple[str, ...]] = []
    taken: set[str] = set()
    for name in sorted(known):
        if name not in taken and (circle := _way_back(name, known, taken)):
            circles.append(circle)
            taken.update(circle)
    return circles


def _way_back(name: str, known: Mapping[str, Described], taken: set[str]) -> tuple[str, ...]:
    """Return the shortest way from an extension over what it needs to itself, or nothing."""
    ways: list[tuple[str, ...]] = [(name,)]
    seen: set[str] = set()
    for way in ways:
        for need in known[way[-1]].requires:
            if need == name:
                return way
            if need in known and need not in seen | taken:
                seen.add(need)
                ways.append((*way, need))
    return ()
