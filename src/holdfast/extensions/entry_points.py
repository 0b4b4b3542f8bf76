"""The entry points that name extensions, and what the extension behind each one declares.

An entry point of one of the groups names an object, a class that is called without arguments, or a module. The object
has an `id`, a `contract`, the ids it `requires`, and `start(runtime)`, which returns what the extension adds. `stop()`
is optional.
"""

from __future__ import annotations

import inspect
from importlib.metadata import distributions, entry_points
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from holdfast.extensions.order import Described
from holdfast.faults import REDACTOR, Fault, InvalidError
from holdfast.runtime.fault_of import fault_of

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from holdfast.runtime.runtime import Runtime

__all__ = ["GROUPS", "Extension", "LoadedExtension", "failed", "find", "load"]

GROUPS = ("holdfast.providers", "holdfast.rules", "holdfast.sinks")
"""The groups of entry points that are searched for extensions."""


class Extension(Protocol):
    """The object that an entry point names.

    `requires` (a list of ids) and `stop()` may be left out. For the group `holdfast.rules`:

        class Gateway:
            id = "gateway"
            contract = 1

            def start(self, runtime):
                return [draining]       # a rule: a function of the evidence that returns a Verdict or None
    """

    id: str
    contract: int

    def start(self, runtime: Runtime) -> Any:
        """Start, and return what is added: a rule or a list of rules, a sink's subscription, or a provider's model."""
        ...


class LoadedExtension(msgspec.Struct, frozen=True):
    """An extension that was imported, and what it declares."""

    described: Described
    extension: Any


def find() -> tuple[list[EntryPoint], dict[str, Fault]]:
    """Return the entry points of all groups, and the packages whose entry points cannot be read, with the reason."""
    unreadable: dict[str, Fault] = {}
    try:
        points: list[EntryPoint] = [point for group in GROUPS for point in entry_points(group=group)]
    except Exception:  # noqa: BLE001 - a package with a broken list must not hide the extensions of the others
        points, unreadable = _find_by_package()
    # Sorted, so that the order does not depend on the order of folders in sys.path.
    return sorted(points, key=lambda point: (point.name, point.group)), unreadable


def _find_by_package() -> tuple[list[EntryPoint], dict[str, Fault]]:
    points: list[EntryPoint] = []
    unreadable: dict[str, Fault] = {}
    seen: set[str] = set()
    for package in distributions():
        # A package may be installed in two folders of sys.path; Python imports the first.
        name = str(package.metadata["Name"])
        if name in seen:
            continue
        seen.add(name)
        try:
            points += [point for point in package.entry_points if point.group in GROUPS]
        except Exception as error:  # noqa: BLE001 - a foreign file may be broken in any way
            unreadable[name] = failed(name, "load", error)
    return points, unreadable


def load(point: EntryPoint) -> LoadedExtension:
    """Import the extension and read what it declares; raise `InvalidError` if that is incomplete."""
    extension = point.load()
    if inspect.isclass(extension):
        extension = extension()
    start = getattr(extension, "start", None)
    if not callable(start):
        raise InvalidError.at("start", "a function of the runtime", start, "CONFIG_SHAPE_INVALID")
    declared = {
        "id": getattr(extension, "id", None),
        "contract": getattr(extension, "contract", None),
        "requires": getattr(extension, "requires", ()),
        "group": point.group,
    }
    try:
        return LoadedExtension(msgspec.convert(declared, Described), extension)
    except msgspec.ValidationError as error:
        raise InvalidError.from_msgspec(error, "CONFIG_SHAPE_INVALID") from error


def failed(name: str, phase: str, error: BaseException | str) -> Fault:
    """Return the fault of an extension that failed in a phase (load, start or stop) with an error or for a reason."""
    if isinstance(error, InvalidError) and error.fault.code == "CONFIG_SHAPE_INVALID":
        return error.fault.wrapped(f"Extension {name} failed in {phase}", name=name)
    reason = error if isinstance(error, str) else REDACTOR.text(f"{type(error).__name__}: {error}")
    fault = Fault.of("SYS_LIFECYCLE_FAILURE", context={"name": name, "phase": phase, "reason": reason})
    return fault if isinstance(error, str) else msgspec.structs.replace(fault, cause=fault_of(error).cause)
