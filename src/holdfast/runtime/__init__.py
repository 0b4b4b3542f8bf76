"""Performs the decisions of `policies`. This is the first room that does I/O; it imports only pure rooms and `config`.

The walk of a call: `recover` (or a block of `blocks`) makes a plan, `decorated` is the function that users call, and

    operation/  one operation: its attempts, waits and decisions, the drivers that make them, its events
    targets/    what all calls to one name share: circuit, pace, quota, limiter
    streams/    streams that recover; the integrations share their machine
    fallbacks/  what answers when a call has failed for good
    budgets/    `Budget`: what is reserved before a call and charged after it
    failures/   what a failure shows: its request, whether it happened

`runtime` holds what operations share: clock, chance, settings, targets, the `bus` of events. `fault_of` makes a fault of anything, `tool` declares
effects, `limits` are time limits, `ambient` is the scope around a call, `commands` act on an operation that waits.

This module imports little, because `fault_of` is also used in programs without an event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._lazy import loader
from holdfast.runtime.fault_of import FAULT_ATTRIBUTE, fault_of, page_of
from holdfast.runtime.secrets import process_redactor, redactor_for

if TYPE_CHECKING:
    from holdfast.runtime.failures.error_audit import audit_shape
    from holdfast.runtime.fallbacks.cache import MemoryCache
    from holdfast.runtime.runtime import Runtime, default_runtime, use_runtime
    from holdfast.runtime.suppress import suppressed

__all__ = [
    "FAULT_ATTRIBUTE",
    "MemoryCache",
    "Runtime",
    "audit_shape",
    "default_runtime",
    "fault_of",
    "page_of",
    "process_redactor",
    "redactor_for",
    "suppressed",
    "use_runtime",
]

# The runtime loads the rules and the event loop, which `fault_of` does not need.
_HOMES = {
    "MemoryCache": "holdfast.runtime.fallbacks.cache",
    "Runtime": "holdfast.runtime.runtime",
    "audit_shape": "holdfast.runtime.failures.error_audit",
    "default_runtime": "holdfast.runtime.runtime",
    "suppressed": "holdfast.runtime.suppress",
    "use_runtime": "holdfast.runtime.runtime",
}
__getattr__ = loader(__name__, globals(), _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
