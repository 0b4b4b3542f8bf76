"""Which models of a chain are asked last for a while, because another one had to answer for them.

Invariant: a model that failed is asked first again after a time that the failure named, or that doubles with each failure. Nothing changes
for a request that no model answered, and for a failure that is the request's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from holdfast.faults import Scope
from holdfast.policies.decide import can_fall_back

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from holdfast.faults import Fault
    from holdfast.providers.model import Model
    from holdfast.runtime.runtime import Runtime

_REST_S = 30.0
_LONGEST_REST_S = 600.0


class _Rest(NamedTuple):
    until: float
    """Monotonic."""
    failures: int
    """Requests in a row that others had to answer."""
    is_named: bool
    """Whether its failure named the end."""


class Standings:
    """How the models of one chain stand."""

    def __init__(self) -> None:
        self._resting: dict[str, _Rest] = {}

    def ordered(self, models: Iterable[Model], now: float, is_warm: Callable[[Model], bool]) -> list[Model]:
        """Return the models in the order in which they are asked: those that rest come last.

        A model that has the prompt in its cache, and whose failure named its end, keeps its place: a wait for it may be cheaper.
        """
        given = list(models)
        resting = [
            model
            for model in (given if self._resting else ())
            if (rest := self._resting.get(model.name)) is not None
            and now < rest.until
            and not (rest.is_named and is_warm(model))
        ]
        return [*(model for model in given if model not in resting), *resting] if resting else given

    def rest(self, name: str, fault: Fault, now: float) -> float:
        """Let a model rest. Return for how long."""
        rest = self._resting.get(name)
        failures = 1 if rest is None else rest.failures + 1
        seconds = fault.retry_after or min(_REST_S * 2.0 ** (failures - 1), _LONGEST_REST_S)
        self._resting[name] = _Rest(now + seconds, failures, fault.retry_after is not None)
        return seconds

    def returned(self, name: str) -> None:
        """Note that a model has answered."""
        self._resting.pop(name, None)


class OneRequest:
    """One request to a chain: who has failed, and who answered."""

    def __init__(self, standings: Standings, runtime: Runtime) -> None:
        self._standings = standings
        self._runtime = runtime
        self._failed: dict[str, Fault] = {}

    def failed(self, model: Model, error: Exception) -> None:
        """Note that a model has failed for good."""
        fault = self._runtime.fault_of(error)
        # Another request may be shorter, or allowed.
        if can_fall_back(fault) and fault.scope is not Scope.REQUEST:
            self._failed[model.name] = fault

    def answered(self, model: Model) -> None:
        """Note that a model has answered: those that failed before it rest, and a rest of its own is over."""
        runtime, standings = self._runtime, self._standings
        # It may have been asked again after a wait.
        self._failed.pop(model.name, None)
        standings.returned(model.name)
        runtime.report_returned((_shown(model.name),), "")
        for name, fault in self._failed.items():
            seconds = standings.rest(name, fault, runtime.clock.monotonic())
            runtime.report_diverted(_shown(name), fault.code, runtime.clock.wall() + seconds, "")


def _shown(name: str) -> str:
    return f"model:{name}"
