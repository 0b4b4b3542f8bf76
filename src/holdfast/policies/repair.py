"""Repairs: what can be changed about a failed request (its size, its credential, its model) before it is sent again.

Invariant: each repair is used at most its number of times in one operation, and a request that failed is not sent again
unchanged, unless its credential was refreshed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import msgspec

from holdfast import options
from holdfast.faults import CATALOG, Code, InvalidError
from holdfast.faults.catalog import suggested_codes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from holdfast.faults import Fault

Action: TypeAlias = Literal["compact", "shrink", "reask", "refresh", "switch", "decompose", "ask"]
"""The known kinds of repair; each has the codes it usually answers."""

USUAL: dict[Action, tuple[Code, ...]] = {
    "compact": ("PROVIDER_CONTEXT_OVERFLOW", "TASK_CONTEXT_EXHAUSTED", "PROVIDER_REQUEST_TOO_LARGE"),
    "shrink": ("TASK_OUTPUT_EXHAUSTED",),
    "reask": ("PROVIDER_OUTPUT_INVALID", "TASK_OUTPUT_INVALID", "TASK_OUTPUT_FORMAT", "TOOL_INPUT_INVALID"),
    "refresh": ("AUTH_TOKEN_EXPIRED", "AUTH_FAILED", "AUTH_INVALID_TOKEN"),
    "switch": (
        "PROVIDER_MODEL_NOT_FOUND",
        "PROVIDER_CAPABILITY_MISSING",
        "PROVIDER_MISSING_STREAMING",
        "PROVIDER_MISSING_TOOL_CALLING",
        "PROVIDER_ENTITLEMENT_MISSING",
    ),
    "decompose": ("PROVIDER_CONTEXT_OVERFLOW", "TASK_CONTEXT_EXHAUSTED", "TASK_OUTPUT_EXHAUSTED"),
    "ask": ("AUTH_REQUIRED", "AUTH_FORBIDDEN", "PROVIDER_CONTENT_POLICY", "TOOL_INPUT_INVALID"),
}
"""The codes that each kind of repair answers by default."""


class Changed:
    """The arguments of the next attempt, returned by a repair.

    Arguments that were already sent and failed count as no repair, and the error is raised. A repair of a method may leave
    `self` out.

        @answer.repair("compact")
        def shorten(fault, question):
            return Changed(question[:1000])
    """

    __slots__ = ("args", "kwargs")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args
        self.kwargs: Mapping[str, Any] = kwargs


class Repair(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of repair: for which codes, and how often in one operation."""

    name: str
    codes: tuple[Code, ...]
    times: int = 1
    same_request: bool = False
    """The repair changes something outside the request, such as a credential, so the same request may be sent again."""

    def __post_init__(self) -> None:
        options.count(f"repair {self.name}: times", self.times)
        if not self.codes:
            raise InvalidError.at(f"repair {self.name}: codes", "at least one code", "none")
        for code in self.codes:
            if code not in CATALOG:
                raise InvalidError.at(f"repair {self.name}: codes", f"a code ({suggested_codes(code)})", code)

    @classmethod
    def of(cls, words: tuple[str, ...], name: str, times: int) -> Repair:
        """Return the repair that these words name: kinds (`compact`) or codes."""
        codes: dict[str, None] = {}
        for word in words:
            codes.update(dict.fromkeys(USUAL[word] if word in get_args(Action) else (word,)))  # type: ignore[index]
        # Only if every code is about credentials: a mixed repair must change the request itself.
        same = all(code in USUAL["refresh"] for code in codes)
        return cls(name=name, codes=tuple(codes), times=times, same_request=same)  # type: ignore[arg-type]


class Repairs:
    """The repairs of one operation: how often each was used, and which requests were sent already."""

    __slots__ = ("_repairs", "_sent", "_used")

    def __init__(self, repairs: Iterable[Repair]) -> None:
        self._repairs = tuple(repairs)
        self._used = [0] * len(self._repairs)
        self._sent: list[tuple[tuple[Any, ...], Mapping[str, Any]]] = []

    def choose(self, fault: Fault) -> int | None:
        """Return the index of the repair to run for this failure and count it as used; None if no repair is left."""
        # Several repairs may answer the same code. Then the repair that was added first is used.
        for index, repair in enumerate(self._repairs):
            if fault.code in repair.codes and self._used[index] < repair.times:
                self._used[index] += 1
                return index
        return None

    def sent(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Remember a request that failed."""
        self._sent.append((args, kwargs))

    def repeats(self, changed: Changed) -> bool:
        """Whether this very request was sent before. Arguments that cannot be compared count as changed."""
        for args, kwargs in self._sent:
            try:
                # `bool` inside the `try`: comparing arrays gives an array, whose truth raises.
                if bool(args == changed.args and kwargs == changed.kwargs):
                    return True
            except Exception:  # noqa: BLE001, S112 - comparing arrays may raise; then trust the repair that it changed something
                continue
        return False
