"""A failure as a value: what failed, what it means, and who must act next.

Invariant: a Fault is frozen and complete. Its code decides everything the catalog knows; the fields here are the
verdict for *this* failure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.faults import surfaces
from holdfast.faults.catalog import CATALOG, Entry, meaning, nearest
from holdfast.faults.codes import AnyCode, Code
from holdfast.faults.effects import MAY_HAVE_HAPPENED
from holdfast.faults.masking import masked, shown
from holdfast.faults.partial import Partial
from holdfast.faults.redact import REDACTOR, Redactor
from holdfast.faults.words import Category, Kind, Layer, NextActor, Schedule, Scope, Severity

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Attempt", "Cause", "Fault"]


class Cause(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An exception as a value. The live exception stays on the exception that carries the fault."""

    type: str
    """The class's qualified name, `httpx.ConnectError`."""
    message: str = ""
    chain: tuple[Cause, ...] = ()
    """What caused it, nearest first; the leaves of an exception group."""

    __repr__ = shown


class Attempt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call that was made, and how it ended. Attempts are counted from 1 and include the first."""

    number: int
    code: AnyCode | None = None
    """Why it failed; None when it succeeded."""
    message: str = ""
    started: float = 0.0
    """Wall clock, seconds since the epoch."""
    took: float = 0.0
    """Seconds the call lasted."""
    waited: float = 0.0
    """Seconds slept before it."""
    via: str = "primary"
    """Who was called: the primary, or the name of a fallback."""
    then: str = ""
    """What was decided after it failed: `retry`, or why not (`attempts`, `deadline`, `budget` …)."""
    usd: float | None = None
    """What it cost; None: nobody knows."""
    tokens: int | None = None
    cause: Cause | None = None

    __repr__ = shown


class Fault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One failure, with one code from the catalog."""

    code: AnyCode
    message: str
    """What happened, for people who read logs. Wrapping adds to its front."""
    retryable: bool
    """Whether sending the same again is worthwhile: the verdict for this failure, not for its code."""
    scope: Scope
    """What the failure belongs to, and so which circuit counts it."""
    retry_after: float | None = None
    """Seconds the other side asked us to wait."""
    maybe_executed: bool = False
    """The effect may have happened although we saw it fail."""
    rule: str = ""
    """The classifier rule that decided; empty where nothing had to be recognised."""
    context: dict[str, Any] = {}
    """Facts that help: provider, model, status, request id, limits. JSON values only."""
    partial: Partial | None = None
    """What had been produced before it failed."""
    cause: Cause | None = None
    attempts: tuple[Attempt, ...] = ()

    __repr__ = shown

    @classmethod
    def of(
        cls,
        code: Code,
        message: str | None = None,
        *,
        retryable: bool | None = None,
        scope: Scope | None = None,
        retry_after: float | None = None,
        maybe_executed: bool | None = None,
        rule: str = "",
        partial: Partial | None = None,
        cause: Cause | None = None,
        context: Mapping[str, Any] | None = None,
    ) -> Fault:
        """Return the fault of `code`, with the catalog's verdict and wording unless told otherwise."""
        entry = CATALOG.get(code)
        if entry is None:
            message = f"there is no code {code!r}; did you mean {', '.join(nearest(code))}?"
            raise ValueError(message)
        facts = dict(context) if context else {}
        return cls(
            code=code,
            message=surfaces.fill(entry.message, facts) if message is None else message,
            retryable=entry.retryable if retryable is None else retryable,
            scope=entry.scope if scope is None else scope,
            retry_after=retry_after,
            maybe_executed=code in MAY_HAVE_HAPPENED if maybe_executed is None else maybe_executed,
            rule=rule,
            context=facts,
            partial=partial,
            cause=cause,
        )

    def wrapped(self, message: str, **context: Any) -> Fault:
        """Return this fault seen from one level up: same class and code, the message added in front (S2-9)."""
        return msgspec.structs.replace(
            self, message=f"{message}: {self.message}", context={**self.context, **context} if context else self.context
        )

    def with_attempts(self, attempts: tuple[Attempt, ...]) -> Fault:
        """Return this fault with the history of the calls that led to it."""
        return msgspec.structs.replace(self, attempts=attempts)

    def masked(self, redactor: Redactor) -> Fault:
        """Return this fault without the secrets `redactor` was given; this very fault where it holds none."""
        return masked(self, redactor)

    @property
    def entry(self) -> Entry:
        """What the catalog says of the code; of a newer catalog's code, what it says of its like."""
        try:
            return CATALOG[self.code]
        except KeyError:
            return meaning(self.code)

    @property
    def layer(self) -> Layer:
        return self.entry.layer

    @property
    def kind(self) -> Kind:
        return self.entry.kind

    @property
    def severity(self) -> Severity:
        return self.entry.severity

    @property
    def next_actor(self) -> NextActor:
        return self.entry.next_actor

    @property
    def schedule(self) -> Schedule:
        return self.entry.schedule

    @property
    def category(self) -> Category:
        return self.entry.category

    def for_user(self, now: float | None = None, *, redactor: Redactor = REDACTOR) -> str:
        """Return one or two sentences for the person in front of the agent; no internals (S2-11).

        With `now` (wall clock) a wait is told as a time of day, without as a duration.
        """
        return surfaces.for_user(self, now, redactor)

    def for_model(self, now: float | None = None, *, redactor: Redactor = REDACTOR) -> dict[str, Any]:
        """Return the typed shape a model may see: class, code, what to do; no stack and no secret (S2-11).

        The words of a failure are told only where the model must act on them, a file its own tool call named for one.
        """
        return surfaces.for_model(self, now, redactor)

    def for_audit(self, now: float | None = None, *, redactor: Redactor = REDACTOR) -> dict[str, Any]:
        """Return everything we know, with secrets redacted and long texts capped (N2-1, N2-16)."""
        return surfaces.for_audit(self, now, redactor)
