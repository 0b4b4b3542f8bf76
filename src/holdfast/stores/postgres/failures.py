"""PostgreSQL's errors as faults.

Invariant: no message shows a connection string, because it may hold a password.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
from psycopg import errors
from psycopg_pool import PoolClosed, PoolTimeout, TooManyRequests

from holdfast.stores.errors import unavailable

if TYPE_CHECKING:
    from holdfast.faults import HoldfastError

CONFLICTS = (errors.SerializationFailure, errors.DeadlockDetected)
"""Two transactions were in conflict, and the server rolled this transaction back. It is retried."""

_REASONS: tuple[tuple[type[psycopg.Error], str], ...] = (
    (PoolTimeout, "no connection became free in time"),
    (TooManyRequests, "too many callers wait for a connection"),
    (PoolClosed, "the pool is closed"),
    (errors.LockNotAvailable, "another process holds the row"),
    (errors.DiskFull, "the server's disk is full"),
    (errors.TooManyConnections, "the server takes no more connections"),
    (errors.ReadOnlySqlTransaction, "the server takes no writes: it is a standby, or set to read only"),
    (errors.InsufficientPrivilege, "the user may not do this"),
    (errors.AdminShutdown, "the server is shutting down"),
    (errors.CrashShutdown, "the server crashed"),
    (errors.CannotConnectNow, "the server is starting"),
)


def typed(error: psycopg.Error, **context: object) -> HoldfastError:
    """Return the fault for an error of the driver or the server, with the error as its cause."""
    reason = next((reason for kind, reason in _REASONS if isinstance(error, kind)), None)
    # Only the first line: the rest may quote the statement and its values.
    first_line = str(error).strip().partition("\n")[0]
    failure = unavailable(f"{reason or first_line} (PostgreSQL, {error.sqlstate or type(error).__name__})", **context)
    failure.__cause__ = error
    return failure
