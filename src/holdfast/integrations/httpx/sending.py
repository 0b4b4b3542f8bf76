"""One request: what its method and its body allow, how long it may take, and which answers are failures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.policies.retry import GiveUp, Reason
from holdfast.runtime.fault_of import fault_of
from holdfast.runtime.operation import Operation

if TYPE_CHECKING:
    from collections.abc import Collection

    from holdfast.faults import Fault
    from holdfast.policies import Effect
    from holdfast.policies.retry import Decision
    from holdfast.runtime.plan import Plan

__all__ = ["IDEMPOTENT", "AnsweredError", "Sending", "effect_of", "failure_in", "limits", "may_repeat", "tells_failure"]

IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})
"""Methods that may be sent twice (RFC 9110, section 9.2.2)."""

_ASKS_TO_WAIT = frozenset({408, 425, 429})


class AnsweredError(Exception):
    """An answer that tells of a failure, on its way through the recovery; nobody outside sees it."""

    def __init__(self, fault: Fault, response: Any) -> None:
        super().__init__(fault)
        self.fault = fault
        self.response = response


class Sending(Operation):
    """The state of one request."""

    def __init__(self, plan: Plan, *, repeats: bool) -> None:
        super().__init__(plan)
        self._repeats = repeats

    def failed(self, error: BaseException, decision: Decision | None = None) -> float | None:
        """Take in a failure; what must not be sent twice is given up at once."""
        if decision is None and not self._repeats and self.attempts > len(self.history):
            decision = GiveUp(Reason.UNWANTED)
        return super().failed(error, decision)

    def _fault(self, error: Exception) -> Fault:
        return error.fault if isinstance(error, AnsweredError) else super()._fault(error)


def may_repeat(request: Any, methods: Collection[str]) -> bool:
    """Whether the request may be sent again: its method or its key allows it, and its body can be had again."""
    allowed = request.method in methods or "idempotency-key" in request.headers
    return allowed and _replays(request.stream)


def effect_of(request: Any, methods: Collection[str]) -> Effect | None:
    if request.method in ("GET", "HEAD", "OPTIONS", "TRACE"):
        return "read"
    return "idempotent" if request.method in methods or "idempotency-key" in request.headers else None


def limits(request: Any, seconds: float | None) -> dict[str, Any]:
    """Return the request's extensions with no part of its time limit above `seconds`."""
    given: dict[str, Any] = dict(request.extensions)
    if seconds is not None:
        parts = given.get("timeout") or dict.fromkeys(("connect", "read", "write", "pool"))
        given["timeout"] = {part: seconds if told is None else min(told, seconds) for part, told in parts.items()}
    return given


def tells_failure(response: Any) -> bool:
    return response.status_code >= 500 or response.status_code in _ASKS_TO_WAIT


def failure_in(response: Any, body: bytes, provider: str, now: float) -> AnsweredError:
    """Return the failure that an answer tells of, by its status, headers and body."""
    try:
        # The body as a reader would have it: whatever it was packed in is taken off.
        plain = type(response)(response.status_code, headers=response.headers, content=body)
    except Exception:  # noqa: BLE001 - an error page packed badly; the status still tells
        plain = response
    return AnsweredError(fault_of(plain, provider=provider, now=now), response)


def _replays(stream: Any) -> bool:
    """Whether a body can be read again: bytes can, a form can if its files can be rewound, what is generated cannot."""
    kind = type(stream).__name__
    if kind == "MultipartStream":
        files = (getattr(field, "file", b"") for field in stream.fields)
        return all(isinstance(file, (str, bytes)) or _rewinds(file) for file in files)
    return kind == "ByteStream"


def _rewinds(file: Any) -> bool:
    seekable = getattr(file, "seekable", None)
    return bool(callable(seekable) and seekable())
