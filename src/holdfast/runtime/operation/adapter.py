"""How callers and integrations take part in an operation: the caller's signal to stop, and an integration's own rules.

An integration never derives a class from `Operation`. It passes an `Adapter` to the operation. The adapter chooses
keys, proposes decisions and names the exceptions that are no failures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.faults import Fault
    from holdfast.policies.decide import GiveUp, Retry
    from holdfast.policies.models.prompt_cache import Weighed
    from holdfast.policies.models.quote import Quote
    from holdfast.runtime.operation.operation import Operation
    from holdfast.runtime.operation.plan import Plan

__all__ = ["Abort", "Adapter"]


class Abort(Protocol):
    """The caller's own signal to stop, such as a `threading.Event` or an `asyncio.Event`.

    An aborted call counts as cancelled. It is neither a failure nor a timeout, and no circuit counts it.
    """

    def is_set(self) -> bool:
        """Whether to stop."""
        ...


class Adapter:
    """What an integration adds to an operation. These defaults add nothing."""

    passing: tuple[type[Exception], ...] = ()
    """Exceptions that steer a framework, such as interrupts and handoffs. They are no failures: they surface unchanged, and
    are never retried, counted or answered by a fallback."""

    bare_attempts = 1
    """Requests that the client makes for one call without Holdfast, if it retries by itself. Where nobody names a time limit, no
    fewer are made, however long each of them takes."""

    moves_on = False
    """After a failure it may call another key at once."""

    @property
    def is_free(self) -> bool:
        """Whether the call asks no model to answer, so that it costs no money and no tokens."""
        return False

    def choose(self, op: Operation) -> Plan | None:  # noqa: ARG002 - the default ignores it
        """Return the plan of the next attempt, such as one with another key; None keeps the present plan.

        May raise a `HoldfastError` if no attempt can be made now.
        """
        return None

    def propose(self, op: Operation, error: Exception) -> Retry | GiveUp | None:  # noqa: ARG002 - the default ignores it
        """Return the integration's own decision about a failed call; None leaves it to the policy."""
        return None

    def insists(self, error: Exception) -> bool:  # noqa: ARG002 - the default ignores it
        """Return whether the callee itself requests a retry of a failure that is not retried by default."""
        return False

    def repeats_plainly(self, error: Exception) -> bool:  # noqa: ARG002 - the default ignores it
        """Return whether the client without Holdfast makes another request after this failure, while it has retries left."""
        return False

    def fault_of(self, error: Exception) -> Fault | None:  # noqa: ARG002 - the default ignores it
        """Return the fault of an exception that only the integration knows; None leaves it to the classifier."""
        return None

    def reported(self, value: object) -> object:
        """Return the part of an answer that reports its usage in a known form."""
        return value

    def quote(self, op: Operation, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Quote | None:  # noqa: ARG002 - the default ignores them
        """Return what the next attempt, with these arguments, may use at most; None: nobody knows."""
        return None

    def weighed(self, fault: Fault) -> Weighed | None:  # noqa: ARG002 - the default ignores it
        """Return what the integration has weighed after a failure, for the event about it; None: nothing."""
        return None

    def succeeded(self, op: Operation, value: object) -> None:
        """React to a good answer. `value` is the answer, or what a stream reports about itself; None: nothing."""
