"""A failure as a value: what failed, what it means, and who must act next.

Invariant: a Fault is frozen and complete. The catalog's facts follow from its code; the fields here are the verdict for
*this* failure. A partial result never looks like a complete result: the fault holds it, with a list of the items that
failed (C26, S2-20, S3-6 to S3-9).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import msgspec

from holdfast.faults import surfaces
from holdfast.faults.catalog import CATALOG, Entry, meaning, suggested_codes
from holdfast.faults.codes import AnyCode, Code
from holdfast.faults.enums import Category, Kind, Layer, NextActor, Schedule, Scope, Severity
from holdfast.faults.redaction import MASK, REDACTOR, Redactor, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

PATIENCE_S = 900.0
"""If a requested delay is longer than this many seconds, Holdfast does not sleep: the work is parked or sent
elsewhere."""

_Value = TypeVar("_Value", bound=msgspec.Struct)

_FROM_CONTEXT = ("status", "provider", "model", "request_id")
_INSTEAD = {
    "Attempt": {
        "fault": "`code`, `message` and `cause` say how it failed",
        "error": "`cause` has the exception as a value",
        "delay": "`waited` has the seconds before it",
        "duration": "`took` has its seconds",
        "cost": "`usd` has its cost",
    },
    "Fault": {
        "error": "`cause` has the exception as a value",
        **{name: f'use `context.get("{name}")`' for name in _FROM_CONTEXT},
    },
}
"""What people write for a field that has another name."""


def _missing(value: msgspec.Struct, name: str) -> NoReturn:
    kind = type(value).__name__
    instead = _INSTEAD[kind].get(name)
    message = f"{kind!r} object has no attribute {name!r}" + (f": {instead}" if instead else "")
    # With name and object, Python adds the most similar attribute to a traceback.
    raise AttributeError(message, name=name, obj=value)


class Cause(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An exception as a value. The live exception is not stored in the fault.

    >>> fault_of(error).cause.type
    'httpx.ConnectError'
    """

    type: str
    """The qualified name of the class, such as `httpx.ConnectError`."""
    message: str = ""
    chain: tuple[Cause, ...] = ()
    """The causes of the exception, nearest first; for an exception group, its leaves."""

    __repr__ = shown


class Attempt(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call and how it ended. Attempts are counted from 1 and include the first call.

    For example:
        for attempt in fault_of(error).attempts:
            print(attempt.number, attempt.via, attempt.code, attempt.took)
    """

    number: int
    code: AnyCode | None = None
    """The code of its failure; None if it succeeded."""
    message: str = ""
    """What the failure says."""
    started: float = 0.0
    """Wall clock, seconds since the epoch."""
    took: float = 0.0
    """Seconds the call lasted."""
    waited: float = 0.0
    """Seconds slept before the call."""
    via: str = "primary"
    """What was called: the primary, or the name of a fallback."""
    then: str = ""
    """The decision after it failed: `retry`, or the reason to stop (`attempts`, `deadline`, `budget` …)."""
    usd: float | None = None
    """The cost of the call; None if it is not known."""
    tokens: int | None = None
    """The tokens of the call; None if they are not known."""
    cause: Cause | None = None
    """The exception, as a value."""

    __repr__ = shown

    if not TYPE_CHECKING:  # a type checker would take every name for an attribute
        __getattr__ = _missing


class ItemError(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One item of a batch that failed. `Partial.errors` lists them.

    For example:
        ItemError.of("https://example.org/3", fault_of(error))
    """

    item: Any
    """The name of the item: its index, URL or id, as the tool writes it."""
    code: str
    message: str
    classed: str = ""
    """The failure as `Class/Code`."""
    retryable: bool = False

    __repr__ = shown

    @classmethod
    def of(cls, item: Any, fault: Fault) -> ItemError:
        """Return the entry for `item`, which failed with `fault`."""
        return cls(
            item=item,
            code=fault.code,
            message=fault.message,
            classed=fault.entry.classed,
            retryable=fault.retryable,
        )

    @property
    def class_and_code(self) -> tuple[str, str]:
        """Its own class and code, which may be of a newer catalog; without them those of the catalog."""
        failure, _, code = (self.classed or meaning(self.code).classed).partition("/")
        return failure, code

    def for_model(self) -> dict[str, Any]:
        """Return the typed shape that a model may see: that of `Fault.for_model`, with the item."""
        failure, code = self.class_and_code
        context = {"item": self.item, "fault": self.code, "message": self.message, "retryable": self.retryable}
        return {"class": failure, "code": code, "context": context}


class Partial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What an operation produced before it failed: the payload in its declared shape, and an error per missing item.

    For example:
        Partial(payload=[page_1, page_2], errors=(ItemError.of(3, fault),), complete=2, expected=3)
    """

    payload: Any = None
    """The result so far, in the shape that the operation declares: text for a stream, a list for a batch, bindings for
    a workflow."""
    errors: tuple[ItemError, ...] = ()
    complete: int | None = None
    """How many items succeeded, if they can be counted."""
    expected: int | None = None
    """How many items a complete result has."""
    truncated: bool = False
    """True if older results were dropped to limit the size."""

    __repr__ = shown

    @property
    def is_empty(self) -> bool:
        """Whether nothing was produced and no missing item is known."""
        return not self.errors and self.payload in (None, "", [], {}, ())

    def for_model(self) -> dict[str, Any]:
        """Return what a model may see: each missing item has a typed error."""
        shown = {
            "payload": self.payload,
            "errors": [error.for_model() for error in self.errors] or None,
            "complete": self.complete,
            "expected": self.expected,
            "truncated": self.truncated or None,
        }
        return {name: value for name, value in shown.items() if value is not None}


class Fault(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One failure, with one code from the catalog.

        try:
            reply = await ask(prompt)
        except Exception as error:
            fault = fault_of(error)
            print(fault.code, fault.kind, fault.next_actor, fault.for_user())

    Build one with `Fault.of(code)`, which fills in the catalog's defaults.
    """

    code: AnyCode
    """The name of the failure, such as `PROVIDER_RATE_LIMITED`."""
    message: str
    """What happened, for people who read logs. `wrapped` adds text in front."""
    retryable: bool
    """Whether it is worth sending the same request again. This is the verdict for this failure, not for its code."""
    scope: Scope
    """What the failure belongs to. It decides which circuit counts the failure."""
    retry_after: float | None = None
    """The delay that the response requests, in seconds."""
    maybe_executed: bool = False
    """True if the call may have taken effect although it failed."""
    rule: str = ""
    """The classifier rule that decided; empty if no rule was needed."""
    context: dict[str, Any] = {}
    """Facts that help: provider, model, status, request id, limits. JSON values only."""
    partial: Partial | None = None
    """What was produced before the failure."""
    cause: Cause | None = None
    """The exception that caused the fault, as a value."""
    attempts: tuple[Attempt, ...] = ()
    """Every call that was made, in order."""

    __repr__ = shown

    if not TYPE_CHECKING:
        __getattr__ = _missing

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
        """Return the fault of `code`. Arguments that are not given take the catalog's value.

        Raises `ValueError` for a code that is not in the catalog; the message names the most similar codes.

        >>> Fault.of("PROVIDER_OVERLOADED", context={"provider": "anthropic"}).retryable
        True
        """
        # A mistyped code must fail here, not later when the fault is used.
        entry = CATALOG.get(code)
        if entry is None:
            message = f"there is no code {code!r}; {suggested_codes(code)}"
            raise ValueError(message)
        facts = dict(context) if context else {}
        return cls(
            code=code,
            message=surfaces.fill(entry.message, facts) if message is None else message,
            retryable=entry.retryable if retryable is None else retryable,
            scope=entry.scope if scope is None else scope,
            retry_after=retry_after,
            maybe_executed=entry.maybe_executed if maybe_executed is None else maybe_executed,
            rule=rule,
            context=facts,
            partial=partial,
            cause=cause,
        )

    # The code stays the same while callers wrap the fault, because they compare it.
    def wrapped(self, message: str, **context: Any) -> Fault:
        """Return this fault as the caller one level up sees it: the same code, the message added in front.

        >>> fault.wrapped("loading the index", shard=3).message
        'loading the index: The provider is overloaded'
        """
        return msgspec.structs.replace(
            self, message=f"{message}: {self.message}", context={**self.context, **context} if context else self.context
        )

    def with_attempts(self, attempts: tuple[Attempt, ...]) -> Fault:
        """Return this fault with the history of the calls that led to it."""
        return msgspec.structs.replace(self, attempts=attempts)

    def masked(self, redactor: Redactor) -> Fault:
        """Return this fault without the secrets that `redactor` knows; the same object if it contains none."""
        return _masked(self, redactor)

    @property
    def entry(self) -> Entry:
        """The catalog's entry for the code. A code of a newer catalog gets the entry of a similar code."""
        try:
            return CATALOG[self.code]
        except KeyError:
            return meaning(self.code)

    @property
    def layer(self) -> Layer:
        """Where in the system the failure happened: `Layer.TRANSPORT`, `PROTOCOL`, `APPLICATION` or `RECOVERY`."""
        return self.entry.layer

    @property
    def kind(self) -> Kind:
        """What kind of failure it is. If `fault.kind is Kind.TRANSIENT`, the same call may work later."""
        return self.entry.kind

    @property
    def severity(self) -> Severity:
        """How serious the failure is.

        It decides whether the sinks log, notify or alert: `fault.severity is Severity.CRITICAL`.
        """
        return self.entry.severity

    @property
    def next_actor(self) -> NextActor:
        """Who must act next. If `fault.next_actor is NextActor.OPERATOR`, page the people who run the system.

        `NextActor.MACHINE` means that the program retries by itself. After an operation has given up nothing does, and the
        failure goes to the operator.
        """
        if "parked_until" in self.context:
            # The run is parked: it goes on by itself when the limit has ended.
            return NextActor.MACHINE
        actor = self.entry.next_actor
        if actor is NextActor.MODEL and _is_outside_tools(self):
            # No model has called anything here, and none will read the failure.
            actor = NextActor.MACHINE if self.entry.retryable else NextActor.DEVELOPER
        # An operation leaves its attempts on the fault when it gives up, and marks the fault as not retryable (S2-1).
        given_up = bool(self.attempts) and not self.retryable
        return NextActor.OPERATOR if given_up and actor is NextActor.MACHINE else actor

    @property
    def schedule(self) -> Schedule:
        """The name of the code's default retry schedule; a policy holds its numbers. `Schedule.NONE` means no retry."""
        schedule = self.entry.schedule
        # A model decides whether to call its tool again. Outside of tools nobody does: what passes by itself is retried.
        return Schedule.TRANSIENT if schedule is Schedule.TOOL and _is_outside_tools(self) else schedule

    @property
    def ended_itself(self) -> bool:
        """Whether the program of an unsafe tool ended by itself. Its exit code and its output are its answer: nothing is left to find out."""
        return self.context.get("ended") == "itself"

    def outside_tools(self) -> Fault:
        """Return the fault for a call that is known to be no call of a tool: a locked database, a file that is missing.

        The code stays. The scope becomes `request`, the machine retries what passes by itself, and a developer acts on the rest.
        """
        return _replace(self, scope=Scope.REQUEST) if self.scope is Scope.TOOL else self

    @property
    def category(self) -> Category:
        """The broad category, such as `Category.RATE_LIMIT`; use it for counters, and `code` for decisions."""
        return self.entry.category

    def for_user(self, now: float | None = None, *, redactor: Redactor = REDACTOR) -> str:
        """Return one or two sentences for the person in front of the agent, without internals.

        With `now` (wall clock) a delay is shown as a time of day, otherwise as a duration.

        >>> Fault.of("PROVIDER_OVERLOADED", context={"provider": "anthropic"}).for_user()
        'The AI service is overloaded right now. Trying again.'
        >>> Fault.of("PROVIDER_OVERLOADED", context={"provider": "hotel-search"}).for_user()
        'The service is overloaded right now. Trying again.'
        """
        return surfaces.for_user(self, now, redactor)

    def for_model(self, now: float | None = None, *, redactor: Redactor = REDACTOR) -> dict[str, Any]:
        """Return the typed shape that a model may see: class, code and advice; no stack and no secret.

        The failure's own text is included only if the model must act on it, such as a file that its tool call named.

        >>> Fault.of("TOOL_TIMEOUT").for_model()["context"]["advice"]
        "The effect may have happened: check before calling again. Ask for less at once, or raise the tool's timeout."
        """
        return surfaces.for_model(self, now, redactor)

    def for_audit(self, now: float | None = None, *, redactor: Redactor = REDACTOR) -> dict[str, Any]:
        """Return everything that is known, with secrets masked and long texts capped.

        >>> Fault.of("PROVIDER_OVERLOADED").for_audit()["severity"]
        'error'
        """
        return surfaces.for_audit(self, now, redactor)


_CUT_FROM = 200
"""The classifier cuts only longer texts, so a shorter text cannot end in half a secret."""
_REVEALING = 5
"""A shorter part of a secret reveals nothing."""


def _is_outside_tools(fault: Fault) -> bool:
    """Whether its code is one of tools, and the call that failed is known to be no call of a tool."""
    return fault.scope is Scope.REQUEST and fault.entry.scope is Scope.TOOL


def _masked(fault: Fault, redactor: Redactor) -> Fault:
    # Most faults hold no secret. Then the same object is returned, so that identity and equality are kept.
    if not redactor.secrets or not _mentions(fault, redactor.secrets):
        return fault
    return _replace(
        fault,
        message=_masked_text(fault.message, redactor),
        context=redactor.value(fault.context),
        partial=fault.partial and _masked_partial(fault.partial, redactor),
        cause=fault.cause and _masked_cause(fault.cause, redactor),
        attempts=tuple(_masked_attempt(attempt, redactor) for attempt in fault.attempts),
    )


def _mentions(fault: Fault, secrets: tuple[str, ...]) -> bool:
    """Search the fault's JSON. This takes a microsecond; searching every field of the fault takes twenty."""
    if _cut_secret(fault.message, secrets) or (fault.cause and _cut_secret(fault.cause.message, secrets)):
        return True
    try:
        raw = msgspec.json.encode(fault)
        return any(msgspec.json.encode(secret)[1:-1] in raw for secret in secrets)
    except Exception:  # noqa: BLE001 - the context contains something that is not JSON: mask it value by value
        return True


def _masked_text(text: str, redactor: Redactor) -> str:
    text = redactor.text(text)
    head = _cut_secret(text, redactor.secrets)
    return text[:-head] + MASK if head else text


def _cut_secret(text: str, secrets: tuple[str, ...]) -> int:
    """Return how many characters at the end of `text` belong to a secret that the classifier cut in two."""
    if len(text) < _CUT_FROM:
        return 0
    for secret in secrets:
        if secret[:_REVEALING] in text[-len(secret) :]:
            for length in range(len(secret) - 1, _REVEALING - 1, -1):
                if text.endswith(secret[:length]):
                    return length
    return 0


def _masked_cause(cause: Cause, redactor: Redactor) -> Cause:
    chain = tuple(_masked_cause(link, redactor) for link in cause.chain)
    return _replace(cause, type=redactor.text(cause.type), message=_masked_text(cause.message, redactor), chain=chain)


def _masked_attempt(attempt: Attempt, redactor: Redactor) -> Attempt:
    cause = attempt.cause and _masked_cause(attempt.cause, redactor)
    return _replace(attempt, message=_masked_text(attempt.message, redactor), cause=cause)


def _masked_partial(partial: Partial, redactor: Redactor) -> Partial:
    errors = tuple(_masked_item(error, redactor) for error in partial.errors)
    return _replace(partial, payload=redactor.value(partial.payload), errors=errors)


def _masked_item(error: ItemError, redactor: Redactor) -> ItemError:
    return _replace(
        error,
        item=redactor.value(error.item),
        code=redactor.text(error.code),
        message=redactor.text(error.message),
        classed=redactor.text(error.classed),
    )


def _replace(value: _Value, **fields: object) -> _Value:
    return msgspec.structs.replace(value, **fields)
