"""Which extensions start, in which order, and which are skipped and why. This needs no I/O, only their declarations.

Invariant: if an extension is skipped, the extensions that require it are skipped too, and no others (N2-14).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from holdfast.faults import Fault, InvalidError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["CONTRACT", "Described", "Skipped", "StartOrder", "start_order", "unmet_requirement"]

CONTRACT = 1
"""The version of the contract between extensions and this Holdfast. An extension written for another one is skipped."""


class Described(msgspec.Struct, frozen=True, kw_only=True):
    """What an extension declares about itself.

    `Extensions.started` holds one for each extension that runs:

        from holdfast.extensions import Extensions

        with Extensions() as extensions:
            print([(one.id, one.group) for one in extensions.started])
    """

    id: str
    contract: int
    """The version of the contract it was written for; see `CONTRACT`."""
    requires: tuple[str, ...] = ()
    """The ids of extensions that must start before it."""
    group: str = ""
    """What it adds: the entry point group it was found in, such as `holdfast.rules`."""


class Skipped(msgspec.Struct, frozen=True, kw_only=True):
    """An extension that was not started, and why.

    `Extensions.skipped` holds them:

        from holdfast.extensions import Extensions

        with Extensions() as extensions:
            for one in extensions.skipped:
                print(one.id, one.fault.code, one.fault.message)
    """

    id: str
    fault: Fault

    @property
    def document(self) -> dict[str, str]:
        """The same as plain data: `{extId, reason, code}`."""
        return {"extId": self.id, "reason": self.fault.message, "code": self.fault.code}


class StartOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The extensions to start, in this order, and those that are skipped. They are stopped in the opposite order."""

    order: tuple[Described, ...] = ()
    skipped: tuple[Skipped, ...] = ()


def start_order(
    found: Iterable[Described], *, contract: int = CONTRACT, absent: Mapping[str, Fault] | None = None
) -> StartOrder:
    """Return the order to start in: requirements first, otherwise by id, so that it is the same every time.

    `absent` holds the extensions that could not be loaded, and why. Before each start, also check `unmet_requirement`: an
    extension may fail to start, and the ones that require it must then be skipped.
    """
    sorting = _Sorting(absent or {})
    sorting.take(found, contract)
    sorting.skip_circles()
    # The order is made first: making it skips more extensions.
    order = tuple(sorting.order())
    return StartOrder(order=order, skipped=tuple(sorting.skipped))


def unmet_requirement(described: Described, gone: Mapping[str, Fault], installed: Iterable[str]) -> Fault | None:
    """Return the fault if an extension that it requires was skipped (`gone`) or is not installed; otherwise None."""
    known = set(installed)
    for required in described.requires:
        if required in gone:
            message = f"{described.id} needs {required}, which was left out: {gone[required].message}"
            return Fault.of("SYS_DEPENDENCY_MISSING", message, context={"name": described.id, "missing": required})
        if required not in known:
            return Fault.of("SYS_DEPENDENCY_MISSING", context={"name": described.id, "missing": required})
    return None


class _Sorting:
    """The state while an order is made."""

    def __init__(self, absent: Mapping[str, Fault]) -> None:
        self.known: dict[str, Described] = {}
        self.gone = dict(absent)
        self.skipped = [Skipped(id=name, fault=fault) for name, fault in absent.items()]

    def skip(self, described: Described, fault: Fault) -> None:
        self.gone[described.id] = fault
        self.skipped.append(Skipped(id=described.id, fault=fault))

    def take(self, found: Iterable[Described], contract: int) -> None:
        for described in found:
            if described.id in self.known or described.id in self.gone:
                # The first one keeps the id, started or not. The second is reported but does not count as gone:
                # extensions that require the id mean the first.
                self.skipped.append(Skipped(id=described.id, fault=_taken(described)))
                continue
            self.known[described.id] = described
            if described.contract != contract:
                self.skip(described, _mismatch(described, contract))

    def skip_circles(self) -> None:
        for circle in _circles({name: one for name, one in self.known.items() if name not in self.gone}):
            fault = Fault.of("SYS_DEPENDENCY_CYCLE", context={"cycle": " -> ".join((*circle, circle[0]))})
            for name in circle:
                self.skip(self.known[name], fault)

    def order(self) -> Iterator[Described]:
        waiting = {name: one for name, one in sorted(self.known.items()) if name not in self.gone}
        while waiting:
            # There are no circles left, so some extension is always due: its requirements are started, or one of them
            # is gone.
            due = next(one for one in waiting.values() if self._is_due(one, waiting))
            del waiting[due.id]
            fault = unmet_requirement(due, self.gone, self.known)
            if fault is None:
                yield due
            else:
                self.skip(due, fault)

    def _is_due(self, described: Described, waiting: Mapping[str, Described]) -> bool:
        requires = described.requires
        return not any(name in waiting for name in requires) or any(name in self.gone for name in requires)


def _taken(described: Described) -> Fault:
    return InvalidError.saying(
        f"extension {described.id}",
        "an id that no other extension has",
        f"{described.id!r} again, in {described.group}",
    ).fault


def _mismatch(described: Described, contract: int) -> Fault:
    context = {"name": described.id, "received": str(described.contract), "expected": str(contract)}
    return Fault.of("CONFIG_CONTRACT_MISMATCH", context=context)


def _circles(known: Mapping[str, Described]) -> list[tuple[str, ...]]:
    """Return the circles of requirements, each beginning with its first id by name.

    An extension that requires a member of a circle, but is not required by one, is not part of it.
    """
    circles: list[tuple[str, ...]] = []
    taken: set[str] = set()
    for name in sorted(known):
        if name not in taken and (circle := _circle_from(name, known, taken)):
            circles.append(circle)
            taken.update(circle)
    return circles


def _circle_from(name: str, known: Mapping[str, Described], taken: set[str]) -> tuple[str, ...]:
    """Return the shortest path from an extension over its requirements back to itself, or () if no path leads back."""
    # Breadth first: the paths are longest at the end of the list, so the first way back is the shortest.
    paths: list[tuple[str, ...]] = [(name,)]
    seen: set[str] = set()
    for path in paths:
        for required in known[path[-1]].requires:
            if required == name:
                return path
            if required in known and required not in seen | taken:
                seen.add(required)
                paths.append((*path, required))
    return ()
