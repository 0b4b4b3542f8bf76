"""The catalog: one entry per code, and one index over every name that a failure has had.

Invariant: names are unique. A code, an old code, a `Class/Code` pair, a task reason and a category each resolve to
exactly one entry. `catalog.json` is written from the pages of the codes by `scripts/codes.py`.
"""

from __future__ import annotations

from pkgutil import get_data
from typing import TYPE_CHECKING

import msgspec

from holdfast.faults.codes import Code
from holdfast.faults.enums import Category, Kind, Layer, NextActor, Schedule, Scope, Severity

if TYPE_CHECKING:
    from collections.abc import Mapping


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A code and its defaults. A fault may override `retryable`, `scope` and `maybe_executed`. All other fields belong to the code.

    >>> CATALOG["PROVIDER_BILLING"].next_actor
    <NextActor.OPERATOR: 'operator'>
    """

    code: Code
    message: str
    """What happened, for logs. A clause in brackets names context fields in braces. The clause is shown if all its
    fields are known, otherwise the part after its bar. Examples: `The deadline[ of {limit_s} s] passed`, `did not
    finish [within {timeout_s} s|in time]`."""
    user: str
    """What happened and what happens next, for the person in front of the agent."""
    suggestions: tuple[str, ...]
    """What the next actor can do, most useful first."""
    aliases: tuple[str, ...]
    """Every other name of this failure: old codes, class/code pairs, task reasons, categories."""
    layer: Layer
    kind: Kind
    severity: Severity
    retryable: bool
    schedule: Schedule
    next_actor: NextActor
    scope: Scope
    http_status: int
    close_code: int
    exit_code: int
    category: Category
    classed: str
    """The failure as `Class/Code`, for the `classed` view."""
    task: str
    """The failure as `TYPE/reason` or `RESOURCE_EXHAUSTION/resource`, for the `task` view."""
    maybe_executed: bool
    """The request may have reached the server and taken effect before the call failed. After a rejected connection, a
    failed name lookup or an error status it has not, because the server did nothing."""

    @property
    def class_and_code(self) -> tuple[str, str]:
        """The two parts of `classed`."""
        failure_class, _, code = self.classed.partition("/")
        return failure_class, code


CATALOG: Mapping[Code, Entry] = {
    entry.code: entry
    for entry in msgspec.json.decode(get_data("holdfast.faults", "catalog.json") or b"[]", type=list[Entry])
}
"""Every code with its entry: `CATALOG["PROVIDER_BILLING"].suggestions`."""

MAY_HAVE_HAPPENED: frozenset[Code] = frozenset(entry.code for entry in CATALOG.values() if entry.maybe_executed)
"""The failures after which nobody knows whether the request took effect."""

_BY_PREFIX: Mapping[str, Code] = {
    "CONN": "CONN_WEBSOCKET_CLOSED",
    "AUTH": "AUTH_FAILED",
    "PROTO": "PROTO_INVALID_MESSAGE",
    "SESS": "SESS_ILLEGAL_TRANSITION",
    "TOOL": "TOOL_EXECUTION_FAILED",
    "HOOK": "HOOK_VALIDATION_FAILED",
    "TASK": "TASK_UNEXPECTED",
    "CONFIG": "CONFIG_INVALID",
}
"""An unknown code with one of these prefixes is treated as this code. Other prefixes cover too many different
failures."""

_BY_NAME: dict[str, Entry] = {alias: entry for entry in CATALOG.values() for alias in (entry.code, *entry.aliases)}
# Old clients and people write codes and categories in any case.
_BY_FOLDED_NAME: dict[str, Entry] = {name.casefold(): entry for name, entry in _BY_NAME.items()}


def resolve(name: str) -> Entry | None:
    """Return the entry that `name` means: a code or any alias, in any case; None if there is none.

    >>> resolve("rate_limit").code
    'PROVIDER_RATE_LIMITED'
    """
    folded = name.strip().casefold()
    # Document 003 also writes a reason without its type.
    return _BY_NAME.get(name) or _BY_FOLDED_NAME.get(folded) or _BY_FOLDED_NAME.get(f"task_failure/{folded}")


def meaning(name: str) -> Entry:
    """Return the entry that `name` means; for a code of a newer catalog, the entry of its prefix. Never raises.

    >>> meaning("AUTH_FROM_THE_FUTURE").code
    'AUTH_FAILED'
    """
    return resolve(name) or CATALOG[_BY_PREFIX.get(name.partition("_")[0], "SYS_UNKNOWN")]


CLOSE = 0.7
"""How similar a code must be to be suggested: a far guess leads people to the wrong page."""


def nearest(name: str, count: int = 3, *, closeness: float = 0.0) -> list[Code]:
    """Return the codes whose names are most similar to `name`, best first; for a mistyped code.

    `closeness`, from 0 to 1, is how similar they must be at least.

    >>> nearest("RATE_LIMTED", 1)
    ['CONN_RATE_LIMITED']
    """
    from difflib import SequenceMatcher  # noqa: PLC0415 - slow to import, and needed only for a mistyped code

    folded = name.strip().casefold().replace("-", "_")

    def likeness(known: str) -> float:
        # A whole word of a code is close to it: `BILLING` means PROVIDER_BILLING.
        least = CLOSE if folded and f"_{folded}_" in f"_{known}_" else 0.0
        return max(least, SequenceMatcher(None, folded, known).ratio())

    best: dict[Code, float] = {}
    for known, entry in _BY_FOLDED_NAME.items():
        best[entry.code] = max(best.get(entry.code, 0.0), likeness(known))
    close = [code for code, likeness in best.items() if likeness >= closeness]
    return sorted(close, key=lambda code: (-best[code], code))[:count]


def suggested_codes(name: object) -> str:
    """Return what to write instead of a code that does not exist: the codes that are close to it, or how to list all codes.

    >>> suggested_codes("PROVIDER_OVERLOAD")
    'did you mean PROVIDER_OVERLOADED, PROVIDER_MODEL_LOADING, PROVIDER_CONTEXT_OVERFLOW?'
    >>> suggested_codes("NOPE")
    '`holdfast codes` lists all codes'
    """
    close = nearest(str(name), closeness=CLOSE)
    return f"did you mean {', '.join(close)}?" if close else "`holdfast codes` lists all codes"
