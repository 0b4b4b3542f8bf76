"""`Evidence`: the facts about a foreign failure, in one shape for every source. `Verdict`: the decision of a rule.

Invariant: evidence holds only text and numbers. It holds no live object and no clock, so looking at it cannot raise.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import msgspec

from holdfast.classify.phrases import Phrases
from holdfast.faults import Code, Scope

if TYPE_CHECKING:
    from collections.abc import Callable, Collection


class Source(StrEnum):
    """The source of the evidence; the corpus calls it `kind`."""

    HTTP = "http"
    SSE = "sse"
    EXCEPTION = "exception"
    JSONRPC = "jsonrpc"
    PROCESS = "subprocess"
    GRPC = "grpc"
    TEXT = "text"


# These values hold no reference cycles, so `gc=False` lets the garbage collector skip them. Thousands of them are built
# while a provider is down.
class Raised(msgspec.Struct, frozen=True, gc=False):
    """One exception, by name. `names` holds the class and its bases, most derived first, without modules."""

    module: str
    type: str
    names: tuple[str, ...] = ()
    errno: int | None = None


class Evidence(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Everything a rule may look at. The readers build it; a rule only reads it.

    For example:
        def our_gateway_drains(evidence: Evidence) -> Verdict | None:
            return Verdict(code="PROVIDER_UNAVAILABLE") if evidence.status == 470 else None
    """

    source: Source
    provider: str = ""
    status: int | None = None
    """The HTTP status that decides. If a gateway wrapped the response of another server, it is the innermost status."""
    headers: dict[str, str] = {}
    """Names in lower case."""
    codes: tuple[str, ...] = ()
    """Machine-readable words of the body (`code`, `type`, `status`, `reason` …), lower case, innermost first."""
    message: str = ""
    """The human text, as sent."""
    text: str = ""
    """`message` folded for matching: lower case, plain quotes."""
    delays: tuple[float, ...] = ()
    """Delays that fields of the body request, in seconds."""
    resets: tuple[float, ...] = ()
    """Times (epoch seconds) at which a limit resets, from fields of the body."""
    html: bool = False
    """The body is a web page, so a proxy or the wrong address answered."""
    stream: str = ""
    """How a stream without an error event ended: `cut`, `empty`, `done`, `filtered` or `length`."""
    raised: Raised | None = None
    exit_code: int | None = None
    """Negative: killed by that signal. 1,000: the process printed something and failed, with an exit code that is not known."""
    rpc_code: int | None = None
    """A JSON-RPC error code, or 0 for a tool result with `isError`."""
    now: float | None = None
    """The current wall-clock time in epoch seconds. Dates are compared with it."""
    matched: Phrases = 0
    """The groups of phrases and codes that occur in the text. Of a long text, only the beginning is searched."""

    def matches(self, group: Phrases) -> bool:
        """Whether any phrase of the group is in the text."""
        return self.matched & group != 0

    def first_match(self, table: tuple[tuple[Code, Phrases], ...]) -> Code | None:
        """Return the first code of the table that has a phrase in the text."""
        matched = self.matched
        for code, group in table:
            if matched & group:
                return code
        return None

    # The earlier names, for the rules of other packages.
    hears = matches
    first_heard = first_match

    @property
    def waits(self) -> tuple[float, ...]:
        """The earlier name of `delays`."""
        return self.delays

    @property
    def heard(self) -> Phrases:
        """The earlier name of `matched`."""
        return self.matched

    def named(self, *names: str) -> bool:
        """Whether the exception is one of these classes or derives from one."""
        return self.raised is not None and not set(names).isdisjoint(self.raised.names)

    def named_in(self, classes: frozenset[str]) -> bool:
        """Do the same as `named`, for a ready-made set.

        Rules that run for every exception must not build a set each time.
        """
        return self.raised is not None and not classes.isdisjoint(self.raised.names)


NOTHING = Evidence(source=Source.TEXT)
UNKNOWN_EXIT: Final = 1_000
"""The exit code of a process that failed and whose own exit code is not known. No process ends with this number."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """The decision of a rule. The catalog's defaults for the code apply unless the rule sets another value.

    For example:
        Verdict(code="PROVIDER_RATE_LIMITED", retryable=False)
    """

    code: Code
    rule: str = ""
    """Filled in by the classifier: the family and the name of the rule that decided."""
    retryable: bool | None = None
    scope: Scope | None = None
    only_with_delay: bool = False
    """Retryable only if the response names a delay that is worth waiting for, as rolling daily limits do."""
    weak: bool = False
    """The verdict is based only on a wrapper's class or a bare status. The cause or the rest of a long text may be
    clearer."""
    carrier: bool = False
    """Only what carries the text was recognised: a bare 500, an exit code, a number of JSON-RPC. The text by itself may say
    what failed, and it says the same whatever carries it."""


_R = TypeVar("_R", bound="Rule")

Rule: TypeAlias = "Callable[[Evidence], Verdict | None]"
"""A rule is a small pure function with a docstring. It returns None for evidence that it does not recognise."""


class Condition(msgspec.Struct, frozen=True):
    """When a rule runs. The classifier checks this first, so most rules never run for a given failure."""

    phrases: Phrases = 0
    """The rule runs only if one of these phrases matched; 0 means always."""
    local: bool = False
    """The rule runs only for exceptions, processes and tool servers, not for a provider's response."""
    not_outage: bool = False
    """The rule does not run if the status means an outage: a gateway's error page may contain any word."""
    not_defect: bool = False
    """The rule does not run for a TypeError or ValueError: its message may quote the words of a limit."""


ALWAYS = Condition()


def applies_when(
    phrases: Phrases = 0, *, local: bool = False, not_outage: bool = False, not_defect: bool = False
) -> Callable[[_R], _R]:
    """Give a rule its `Condition`, so that its body need not check it again."""

    def mark(rule: _R) -> _R:
        rule.condition = Condition(phrases, local, not_outage, not_defect)  # type: ignore[attr-defined]
        return rule

    return mark


def contains_any(text: str, phrases: Collection[str]) -> bool:
    """Whether any of the phrases is in `text`. This is the classifier's inner loop, so it is a plain loop."""
    for phrase in phrases:  # noqa: SIM110 - any() with a generator costs three times as much here
        if phrase in text:
            return True
    return False


_QUOTES = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u00a0": " ", "`": "'"})


def fold(text: str) -> str:
    """Return `text` in the form of the phrases: lower case and plain quotes."""
    folded = text.lower()
    return folded if folded.isascii() and "`" not in folded else folded.translate(_QUOTES)
