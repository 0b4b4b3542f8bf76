"""The error model of an agent on the command line (document 002): its names, in Python's spelling.

    from holdfast.documents.stud import SuppressedError, suppress, typed_error

    shape = typed_error(fault_of(error))      # {"class": "ProviderTransient", "code": "RateLimited", …}

`RetryPolicy` is `holdfast.Tries` with its `Backoff`. The stages of a state machine are `Stage`: `Setup`, `Init`, `CheckGate`, `Act`,
`Assert`, `Exit` and `Next` are its functions. `Approve` and `Ask` are questions: `Session.approve` and `Session.ask`. Classes and codes,
such as `ProviderTransient/RateLimited`, are texts in `typed_error(fault)`.
"""

from __future__ import annotations

from holdfast.events import (
    SessionActive,
    SessionClosed,
    SessionPersisted,
    SessionResumed,
    SessionTurnEnd,
    SessionTurnStart,
    StagePostFired,
    StagePreFired,
    SuppressedError,
    write_envelope,
)
from holdfast.extensions import Extensions, Skipped
from holdfast.faults import ItemError, Partial
from holdfast.policies import Backoff
from holdfast.policies import Tries as RetryPolicy
from holdfast.profiles import stud
from holdfast.runtime import audit_shape
from holdfast.runtime.suppress import suppress
from holdfast.sessions import Answer, DeviceCode, Question, Session
from holdfast.tasks.stages import Stage, StageMachine
from holdfast.views.classed import read as read_typed_error
from holdfast.views.classed import write as typed_error

__all__ = [
    "Answer",
    "Backoff",
    "DeviceCode",
    "Extensions",
    "ItemError",
    "Partial",
    "Question",
    "RetryPolicy",
    "Session",
    "SessionActive",
    "SessionClosed",
    "SessionPersisted",
    "SessionResumed",
    "SessionTurnEnd",
    "SessionTurnStart",
    "Skipped",
    "Stage",
    "StageMachine",
    "StagePostFired",
    "StagePreFired",
    "SuppressedError",
    "audit_shape",
    "read_typed_error",
    "stud",
    "suppress",
    "typed_error",
    "write_envelope",
]
