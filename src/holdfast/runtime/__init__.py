"""Performs the decisions of `policies`. This is the first room that does I/O.

What users call:

    recover     `recover` and `Recovery`: decorator, `.call`, `.outcome`, `.stream`, blocks
    decorated   the functions that `@recover` returns
    blocks      a block of code as a loop of attempts
    stream      streams that recover; flow: the loop behind them, shared with the integrations
    fallback    the fallback chain; cache: its cached step
    tool        `@tool`, the declared effect of a function, and `call_key`
    budget      `Budget`: seconds, money, tokens, turns and attempts
    runtime     `Runtime`: clock, chance, settings, circuits, events
    fault_of    `fault_of`: the fault of anything that failed, and the pages of the codes

How a call is made:

    plan        everything an operation reads, looked up once
    operation   the state of one call; it gathers facts for `policies.decide` and performs the decision
    drivers     the loops that call and sleep, in a task and in a thread
    limits      time limits on tasks and threads; limiter: calls at once and per second (limiter_shadow: in observe mode); hedge: a second call
    leaks       tasks that ignore their cancellation
    answers     accept an answer, or close it; repair: change the request before the next attempt
    facts       what a decision is made from
    overrides   `retry_on` and `never_retry`
    adapter     what an integration adds to an operation; callables: which functions are async
    ambient     the scope around a call: deadline and budget; shield: work that a cancellation must not cut in two

What calls share, and what they report:

    registry    what all calls to one target share: circuit, quota, limiter
    bus         handlers and readers of events; reports: the events of an operation
    commands    retry now, fall back or cancel an operation that waits
    errors      the errors that Holdfast itself raises; secrets: the values that are masked in every text

This module imports little, because `fault_of` is also used in programs without an event loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._lazy import loader
from holdfast.runtime.fault_of import FAULT_ATTRIBUTE, fault_of, page_of
from holdfast.runtime.secrets import process_redactor, redactor_for

if TYPE_CHECKING:
    from holdfast.runtime.cache import MemoryCache
    from holdfast.runtime.error_audit import audit_shape
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
    "MemoryCache": "holdfast.runtime.cache",
    "Runtime": "holdfast.runtime.runtime",
    "audit_shape": "holdfast.runtime.error_audit",
    "default_runtime": "holdfast.runtime.runtime",
    "suppressed": "holdfast.runtime.suppress",
    "use_runtime": "holdfast.runtime.runtime",
}
__getattr__ = loader(__name__, globals(), _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
