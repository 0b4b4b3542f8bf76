"""`Session`: work that survives the process doing it.

Invariant: what a session acknowledged is in its store. Whatever stops the process, opening the session again goes on after the last
step that is stored; nothing that may not be repeated is repeated by itself.
"""

from __future__ import annotations

import asyncio
import warnings
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, Self, TypeVar, overload

import msgspec

from holdfast.faults import Fault, HoldfastError, InvalidError
from holdfast.policies import options
from holdfast.sessions import codec, machine, owners
from holdfast.sessions.log import Message, StateChanged, StepEnded, TurnEnded, TurnStarted
from holdfast.sessions.manifest import (
    DriftPolicy,
    Manifest,
    decode_manifest,
    drift,
    encode_manifest,
    mismatch,
    refused,
)
from holdfast.sessions.saving import Journal, audit
from holdfast.sessions.scopes import Scope
from holdfast.sessions.turns import Turn
from holdfast.stores import Claim, Commit, NewSession, SessionState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
    from types import TracebackType

    from holdfast.faults import Outcome
    from holdfast.runtime.runtime import Runtime
    from holdfast.sessions.manifest import Drift
    from holdfast.sessions.scopes import Reason
    from holdfast.stores import Lease, Receipt, Store

__all__ = ["DriftWarning", "Session"]
