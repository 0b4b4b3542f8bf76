"""What is known about a foreign failure, in one shape whatever it came from.

Invariant: evidence is text and numbers only; no live object, no clock, nothing that can raise when looked at.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import msgspec

from holdfast.classify.phrases import Phrases
from holdfast.faults import Code, Scope

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["NOTHING", "Evidence", "Raised", "Rule", "Source", "Verdict", "asked_when", "fold", "says"]


class Source(StrEnum):
    """Where the evidence comes from; the corpus calls it `kind`."""

    HTTP = "http"
    SSE = "sse"
    EXCEPTION = "exception"
    JSONRPC = "jsonrpc"
    PROCESS = "subprocess"
    GRPC = "grpc"
    TEXT = "text"


class Raised(msgspec.Struct, frozen=True, gc=False):
    """One exception, by name. `names` holds the class and its bases, most derived first, without modules."""

    module: str
    type: str
    names: tuple[str, ...] = ()
    errno: int | None = None


class Evidence(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything a rule may look at."""

    source: Source
    provider: str = ""
    status: int | None = None
    """The HTTP status that tells: the innermost one where a gateway wrapped another's answer."""
    headers: dict[str, str] = {}
    """Names in lower case."""
    codes: tuple[str, ...] = ()
    """Machine-readable words of the body (`code`, `type`, `status`, `reason` …), lower case, innermost first."""
    message: str = ""
    """The human text, as sent."""
    text: str = ""
    """`message` folded for matching: lower case, plain quotes."""
    waits: tuple[float, ...] = ()
    """Delays the body states in fields of its own, in seconds."""
    resets: tuple[float, ...] = ()
    """Instants (epoch seconds) at which the body says a limit resets."""
    html: bool = False
    """The body is a web page, so a proxy or the wrong address answered."""
    stream: str = ""
    """How a stream without an error event ended: `cut`, `empty`, `done`, `filtered` or `length`."""
    raised: Raised | None = None
    exit_code: int | None = None
    """Negative: killed by that signal."""
    rpc_code: int | None = None
    """A JSON-RPC error code, or 0 for a tool result that says `isError`."""
    now: float | None = None
    """Wall clock at which dates are to be read, in epoch seconds."""
    heard: Phrases = 0
    """The groups of declared phrases of which one stands in the text, or in its beginning where it is long."""

    def hears(self, group: Phrases) -> bool:
        """Whether any phrase of the group stands in the text."""
        return self.heard & group != 0

    def first_heard(self, table: tuple[tuple[Code, Phrases], ...]) -> Code | None:
        """Return the first code of the table of whose phrases one stands in the text."""
        heard = self.heard
        for code, group in table:
            if heard & group:
                return code
        return None

    def named(self, *names: str) -> bool:
        """Whether the exception is one of these classes or derives from one."""
        return self.raised is not None and not set(names).isdisjoint(self.raised.names)

    def named_in(self, classes: frozenset[str]) -> bool:
        """The same of a declared set: for rules that are asked of every exception."""
        return self.raised is not None and not classes.isdisjoint(self.raised.names)


NOTHING = Evidence(source=Source.TEXT)


class Verdict(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What a rule recognised. The catalog's verdict for the code holds unless the rule knows better."""

    code: Code
    rule: str = ""
    retryable: bool | None = None
    scope: Scope | None = None
    only_if_told: bool = False
    """Retryable only when the other side names a delay that is worth waiting for (rolling daily limits)."""
    weak: bool = False
    """A mere wrapper's name, or a bare status: what caused it, or the rest of a long text, may say more."""


_R = TypeVar("_R", bound="Rule")

Rule: TypeAlias = "Callable[[Evidence], Verdict | None]"
"""A small pure function with a docstring; returns None for what it does not recognise."""


class Occasion(msgspec.Struct, frozen=True):
    """When a rule is worth asking. The classifier looks here first: most rules are never asked."""

    heard: Phrases = 0
    """Only where one of these phrases was heard; 0: whatever was heard."""
    local: bool = False
    """Only of exceptions, processes and tool servers: not of a provider's answer."""
    refusal: bool = False
    """Not where the status tells of an outage: a gateway's sentence may hold any word."""
    limit: bool = False
    """Not of a TypeError or ValueError: a defect may quote a limit's words."""


ALWAYS = Occasion()


def asked_when(
    heard: Phrases = 0, *, local: bool = False, refusal: bool = False, limit: bool = False
) -> Callable[[_R], _R]:
    """Mark a rule as worth asking only on an occasion, so that its body need not check for it again."""

    def mark(rule: _R) -> _R:
        rule.occasion = Occasion(heard, local, refusal, limit)  # type: ignore[attr-defined]
        return rule

    return mark


def says(text: str, phrases: tuple[str, ...]) -> bool:
    """Whether any of the phrases stands in `text`. A plain loop: this is the classifier's inner loop."""
    for phrase in phrases:  # noqa: SIM110 - any() with a generator costs three times as much here
        if phrase in text:
            return True
    return False


_QUOTES = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u00a0": " ", "`": "'"})


def fold(text: str) -> str:
    """Return `text` in the form phrases are written in: lower case, every quote plain."""
    folded = text.lower()
    return folded if folded.isascii() and "`" not in folded else folded.translate(_QUOTES)
