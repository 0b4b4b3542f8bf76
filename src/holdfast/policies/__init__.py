"""What to do next, as arithmetic: facts, the time and a random source go in, a decision comes out.

    a Fault ─▶ Policy.tries ─▶ Retrying.decide ─▶ Again(delay) | GiveUp(reason)
    a call  ─▶ Breaker.admit ─▶ Permit | Rejection

Invariant: nothing here reads a clock, sleeps, locks or calls anybody. Machines hold state and are not thread-safe by
themselves; the runtime holds a lock around each of their calls, and each is short.
"""

from __future__ import annotations

from holdfast.policies.backoff import Backoff, Tries
from holdfast.policies.circuit import Circuit
from holdfast.policies.effect import Effect
from holdfast.policies.fallback import Consent, When
from holdfast.policies.hedge import Hedge
from holdfast.policies.policy import BATCH, INTERACTIVE, PATIENT, Policy
from holdfast.policies.quota import Quota
from holdfast.policies.retry import Again, GiveUp, Reason

__all__ = [
    "BATCH",
    "INTERACTIVE",
    "PATIENT",
    "Again",
    "Backoff",
    "Circuit",
    "Consent",
    "Effect",
    "GiveUp",
    "Hedge",
    "Policy",
    "Quota",
    "Reason",
    "Tries",
    "When",
]
