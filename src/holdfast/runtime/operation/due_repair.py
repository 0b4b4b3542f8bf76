"""A repair that is due before the next attempt, and how the user's function of it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.policies.repair import Changed
from holdfast.runtime.fallbacks.step_parameters import check_step, place_of_fault, with_fault

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.faults import Fault
    from holdfast.policies.repair import Repair

__all__ = ["DueRepair", "Repairer"]


class Repairer:
    """The user's function of a repair, and how it is called."""

    __slots__ = ("_fault_place", "_fn", "_of_method")

    def __init__(self, fn: Any, of: Any, *, of_method: bool) -> None:
        check_step("repair", fn, of)
        self._fn = fn
        self._of_method = of_method
        self._fault_place = place_of_fault("repair", fn, of, of_method=of_method)

    def __call__(self, fault: Fault, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call the function with the fault and the arguments of the failed call, the object of a method first."""
        return self._fn(*with_fault(self._fault_place, fault, args), **kwargs)

    def request(self, changed: Changed, args: tuple[Any, ...]) -> Changed:
        """Return the changed request with the object of the method before the arguments, where the function left it out."""
        if self._of_method and args and (not changed.args or changed.args[0] is not args[0]):
            return Changed(args[0], *changed.args, **changed.kwargs)
        return changed


class DueRepair:
    """A repair that the driver must perform before the next attempt."""

    __slots__ = ("_error", "fault", "fn", "repair")

    def __init__(self, repair: Repair, fn: Repairer, fault: Fault, error: Exception) -> None:
        self.repair = repair
        self.fn = fn
        self.fault = fault
        self._error: Exception | None = error

    def take_error(self) -> Exception:
        """Return the error of the failed call and forget it: it must not be kept alive by a frame that it passes through."""
        error, self._error = self._error, None
        assert error is not None
        return error
