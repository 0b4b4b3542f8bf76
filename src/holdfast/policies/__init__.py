"""What to do next, as pure decisions: facts, the time and a random source go in, a decision comes out.

    Facts   ─▶ Decider.decide ─▶ Retry(delay) | RunRepair(index) | GiveUp(reason)
    a call  ─▶ Breaker.admit  ─▶ Permit | Rejection

Invariant: no code in this room reads a clock, sleeps, locks or calls a user's function. Machines hold state and are not
thread-safe: the runtime holds a lock around each of their calls, and each call is short.
"""

from __future__ import annotations

from holdfast.policies.backoff import Backoff, Tries
from holdfast.policies.circuit import Circuit
from holdfast.policies.decide import Decider, Effect, Facts, GiveUp, Reason, Retry
from holdfast.policies.fallback import Consent, When
from holdfast.policies.hedge import Hedge
from holdfast.policies.policy import BATCH, INTERACTIVE, PATIENT, Policy
from holdfast.policies.quota import Quota

__all__ = [
    "BATCH",
    "INTERACTIVE",
    "PATIENT",
    "Backoff",
    "Circuit",
    "Consent",
    "Decider",
    "Effect",
    "Facts",
    "GiveUp",
    "Hedge",
    "Policy",
    "Quota",
    "Reason",
    "Retry",
    "Tries",
    "When",
]
