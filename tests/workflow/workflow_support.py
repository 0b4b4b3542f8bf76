"""Runs programs without I/O: answers come from a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast import Fault
from holdfast.workflow import Limits, Machine, Operators, read
from holdfast.workflow.requests import Bound, CallRequest, Log, Parallel, Request, WaitRequest

Answer = Callable[[CallRequest], Any]


class Drive:
    """Drives a machine to its end and keeps its requests."""

    def __init__(
        self,
        source: str,
        operators: Operators | None = None,
        answer: Answer | None = None,
        *,
        limits: Limits | None = None,
        inputs: dict[str, Any] | None = None,
    ) -> None:
        self.machine = Machine(read(source), operators, inputs=inputs, limits=limits)
        self.answer = answer or (lambda call: None)
        self.requests: list[Request] = []
        self.run(self.machine)

    def run(self, machine: Machine) -> None:
        request = machine.run()
        while request is not None:
            self.requests.append(request)
            if isinstance(request, Parallel):
                request = self.parallel(machine, request)
                continue
            if not isinstance(request, CallRequest):
                request = machine.resume()
                continue
            answer = request.misfit or self.answer(request)
            request = machine.fail(answer) if isinstance(answer, Fault) else machine.resume(answer)

    def parallel(self, machine: Machine, request: Parallel) -> Request | None:
        results = []
        for index in range(request.count):
            strand = request.strand(index)
            self.run(strand)
            if strand.failure is None:
                results.append(strand.value)
            elif request.collect:
                results.append(strand.failure.value())
            else:
                return machine.fail_strand(strand)
        return machine.resume(results)

    def of(self, kind: type) -> list[Any]:
        return [request for request in self.requests if isinstance(request, kind)]

    @property
    def calls(self) -> list[CallRequest]:
        return [call for call in self.of(CallRequest) if call.misfit is None]

    @property
    def logs(self) -> list[str]:
        return [request.text for request in self.of(Log)]

    @property
    def waits(self) -> list[float]:
        return [request.seconds for request in self.of(WaitRequest)]

    @property
    def bound(self) -> list[list[str]]:
        return [[binding.name for binding in request.bindings] for request in self.of(Bound)]

    @property
    def value(self) -> Any:
        if self.machine.failure is not None:
            raise self.machine.error()
        return self.machine.value


def value_of(source: str, **options: Any) -> Any:
    return Drive(source, **options).value
