"""What to do next, as pure decisions: facts, the time and a random source go in, a decision comes out.

    Facts   ─▶ Decider.decide ─▶ Retry(delay) | RunRepair(index) | GiveUp(reason)
    a call  ─▶ Breaker.admit  ─▶ Permit | Rejection

Invariant: no code in this room reads a clock, sleeps, locks or calls a user's function. Machines hold state and are not
thread-safe: the runtime holds a lock around each of their calls, and each call is short.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast._lazy import loader
from holdfast.policies.backoff import Backoff, Tries
from holdfast.policies.circuit import Circuit
from holdfast.policies.decide import Decider, Effect, Facts, GiveUp, Reason, Retry
from holdfast.policies.fallback import Consent, When
from holdfast.policies.hedge import Hedge
from holdfast.policies.policy import BATCH, INTERACTIVE, PATIENT, Policy
from holdfast.policies.quota import Quota

if TYPE_CHECKING:
    from holdfast.policies.alerts import Alerts, Threshold
    from holdfast.policies.budget import Ledger, Left, Limits
    from holdfast.policies.bulkhead import Bulkhead, BulkheadMachine, Place
    from holdfast.policies.hedge import HedgeMachine, next_hedge
    from holdfast.policies.profiles import PROFILES
    from holdfast.policies.quota import QuotaMachine
    from holdfast.policies.rate_limit import RateLimit, RateLimitMachine

__all__ = [
    "BATCH",
    "INTERACTIVE",
    "PATIENT",
    "PROFILES",
    "Alerts",
    "Backoff",
    "Bulkhead",
    "BulkheadMachine",
    "Circuit",
    "Consent",
    "Decider",
    "Effect",
    "Facts",
    "GiveUp",
    "Hedge",
    "HedgeMachine",
    "Ledger",
    "Left",
    "Limits",
    "Place",
    "Policy",
    "Quota",
    "QuotaMachine",
    "RateLimit",
    "RateLimitMachine",
    "Reason",
    "Retry",
    "Threshold",
    "Tries",
    "When",
    "next_hedge",
]

# The machines, for programs that drive them without `recover`.
_HOMES = {
    "Alerts": "holdfast.policies.alerts",
    "Threshold": "holdfast.policies.alerts",
    "Ledger": "holdfast.policies.budget",
    "Left": "holdfast.policies.budget",
    "Limits": "holdfast.policies.budget",
    "Bulkhead": "holdfast.policies.bulkhead",
    "BulkheadMachine": "holdfast.policies.bulkhead",
    "Place": "holdfast.policies.bulkhead",
    "HedgeMachine": "holdfast.policies.hedge",
    "next_hedge": "holdfast.policies.hedge",
    "PROFILES": "holdfast.policies.profiles",
    "QuotaMachine": "holdfast.policies.quota",
    "RateLimit": "holdfast.policies.rate_limit",
    "RateLimitMachine": "holdfast.policies.rate_limit",
}
__getattr__ = loader(__name__, globals(), _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
