"""The doors of the classifier: one function per kind of foreign failure. All are total: they return a Fault, always."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.classify.classifier import Classifier
from holdfast.classify.evidence import NOTHING, Evidence, Verdict
from holdfast.classify.readers.exceptions import cause_of, causes, leaves, read_exception
from holdfast.classify.readers.grpc import read_grpc
from holdfast.classify.readers.http import read_http
from holdfast.classify.readers.jsonrpc import read_jsonrpc
from holdfast.classify.readers.named import read_text
from holdfast.classify.readers.process import read_process
from holdfast.classify.readers.stream import read_stream
from holdfast.faults import Fault, HoldfastError, Scope, Severity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from holdfast.faults import Cause

__all__ = [
    "CLASSIFIER",
    "from_evidence",
    "from_exception",
    "from_grpc",
    "from_http",
    "from_jsonrpc",
    "from_process",
    "from_stream",
    "from_text",
    "most_limiting",
    "unreadable",
]

CLASSIFIER = Classifier()
"""The rules of this package, in their order. `CLASSIFIER.with_rules(mine)` puts yours in front."""

_NAMES_LITTLE = frozenset({"SYS_UNKNOWN", "SYS_CANCELLED", "SYS_PROGRAMMING_ERROR"})
"""Under a wrapper that says more: a timeout is often carried out by a cancellation, a refusal met in a lookup."""
_PROSE = frozenset({"limits", "capacity", "overflow", "content", "access", "models", "request", "server", "plain"})
"""Families that read sentences."""
_LOUDNESS = {severity: rank for rank, severity in enumerate(Severity)}


def unreadable(defect: Exception) -> Fault:
    """Return the fault of a failure that could not be read: a defect in a rule, or an input nobody thought of.

    Every door ends with it, since classifying a failure must never be a second failure. In words rather than as a
    decorator: passing arguments on as `*args, **kwargs` costs an eighth of the whole classification.
    """
    return Fault.of(
        "SYS_UNKNOWN",
        "The failure could not be read",
        retryable=False,
        rule=f"classifier-failed.{type(defect).__name__}",
        cause=_cause_if_readable(defect),
    )


def _cause_if_readable(defect: BaseException) -> Cause | None:
    try:
        return cause_of(defect)
    except Exception:  # noqa: BLE001 - the defect may be the hostile exception itself
        return None


def from_exception(
    error: BaseException, *, provider: str = "", now: float | None = None, classifier: Classifier = CLASSIFIER
) -> Fault:
    """Return the fault of a live exception, its cause chain and, for a group, its leaves."""
    try:
        return _from_exception(error, provider, now, classifier)
    except Exception as defect:  # noqa: BLE001 - total
        return unreadable(defect)


def _from_exception(error: BaseException, provider: str, now: float | None, classifier: Classifier) -> Fault:
    if isinstance(error, HoldfastError):
        return error.fault
    if isinstance(error, BaseExceptionGroup):
        faults = [from_exception(leaf, provider=provider, now=now, classifier=classifier) for leaf in leaves(error)]
        return msgspec.structs.replace(most_limiting(faults), cause=cause_of(error))
    chain: list[Evidence] = []
    for one in causes(error):
        if isinstance(one, HoldfastError):
            # A failure of ours under somebody's wrapper: it already has its fault.
            return one.fault
        if isinstance(one, BaseExceptionGroup):
            # A wrapper that names the failure decides; one that does not gives way to what is in the group.
            evidence, verdict = _decide(tuple(chain), classifier)
            inside = from_exception(one, provider=provider, now=now, classifier=classifier)
            if verdict.code == "SYS_UNKNOWN" or (verdict.weak and inside.code not in _NAMES_LITTLE):
                return inside
            return classifier.conclude(evidence, verdict, cause_of(error))
        chain.append(read_exception(one, provider=provider, now=now))
    return from_evidence(*chain, classifier=classifier, cause_from=error)


def from_http(
    status: int | None,
    headers: Mapping[str, Any] | None = None,
    body: Any = "",
    *,
    provider: str = "",
    now: float | None = None,
    classifier: Classifier = CLASSIFIER,
) -> Fault:
    """Return the fault of an HTTP answer; `body` may be text, bytes or decoded JSON."""
    try:
        return classifier.fault(read_http(status, headers, body, provider=provider, now=now))
    except Exception as defect:  # noqa: BLE001 - total
        return unreadable(defect)


def from_stream(
    text: str, *, provider: str = "", now: float | None = None, classifier: Classifier = CLASSIFIER
) -> Fault:
    """Return the fault of a stream that began well: its error event, or its missing end (SSE or NDJSON text)."""
    try:
        return classifier.fault(read_stream(text, provider=provider, now=now))
    except Exception as defect:  # noqa: BLE001 - total
        return unreadable(defect)


def from_jsonrpc(
    message: Any,
    *,
    status: int | None = None,
    provider: str = "",
    now: float | None = None,
    classifier: Classifier = CLASSIFIER,
) -> Fault:
    """Return the fault of a JSON-RPC error or an MCP tool result that says `isError`; decoded or text."""
    try:
        return classifier.fault(read_jsonrpc(message, status=status, provider=provider, now=now))
    except Exception as defect:  # noqa: BLE001 - total
        return unreadable(defect)


def from_process(
    exit_code: int | None,
    stderr: str = "",
    *,
    provider: str = "",
    now: float | None = None,
    classifier: Classifier = CLASSIFIER,
) -> Fault:
    """Return the fault of a process that ended; a negative code is the signal that killed it."""
    try:
        return classifier.fault(read_process(exit_code, stderr, provider=provider, now=now))
    except Exception as defect:  # noqa: BLE001 - total
        return unreadable(defect)


def from_grpc(
    status: str | int,
    details: str = "",
    *,
    provider: str = "",
    now: float | None = None,
    classifier: Classifier = CLASSIFIER,
) -> Fault:
    """Return the fault of a gRPC call that ended with `status`, by name or number."""
    try:
        return classifier.fault(read_grpc(status, details, provider=provider, now=now))
    except Exception as defect:  # noqa: BLE001 - total
        return unreadable(defect)


def from_text(text: str, *, provider: str = "", now: float | None = None, classifier: Classifier = CLASSIFIER) -> Fault:
    """Return the fault of a log line, a traceback or a JSON error, as text."""
    try:
        return from_evidence(*read_text(text, provider=provider, now=now), classifier=classifier)
    except Exception as defect:  # noqa: BLE001 - total
        return unreadable(defect)


def from_evidence(
    *chain: Evidence, classifier: Classifier = CLASSIFIER, cause_from: BaseException | None = None
) -> Fault:
    """Return the fault of a chain of evidence, outermost first: the first that names the failure decides (R22)."""
    evidence, verdict = _decide(chain, classifier)
    cause = None if cause_from is None else cause_of(cause_from)
    return classifier.conclude(evidence, verdict, cause)


def most_limiting(faults: Iterable[Fault]) -> Fault:
    """Return the fault that limits most what may be done next: one leaf that must not be retried decides.

    Leaves that were only cancelled because a sibling failed do not count beside it.
    """
    every = list(faults)
    for fault in every:
        if fault.code == "SYS_CANCELLED" and fault.scope is Scope.PROCESS:
            return fault
    real = [fault for fault in every if fault.code != "SYS_CANCELLED"] or every
    if not real:
        return Fault.of("SYS_UNKNOWN", rule="empty-group")
    return max(real, key=lambda f: (not f.retryable, _LOUDNESS[f.severity], f.retry_after or 0.0))


def _only_said(evidence: Evidence, verdict: Verdict) -> bool:
    """Whether nothing but an exception's own sentence speaks: somebody wrote it around what really failed."""
    family = verdict.rule.partition(".")[0]
    return evidence.raised is not None and evidence.status is None and family in _PROSE


def _decide(chain: tuple[Evidence, ...], classifier: Classifier) -> tuple[Evidence, Verdict]:
    best: tuple[Evidence, Verdict] | None = None
    for evidence in chain:
        verdict = classifier.judge(evidence)
        if verdict.code == "SYS_UNKNOWN":
            continue
        if best is None:
            best = (evidence, verdict)
            if not verdict.weak and not _only_said(evidence, verdict):
                break
        elif not verdict.weak and verdict.code not in _NAMES_LITTLE:
            return evidence, verdict
    first = chain[0] if chain else NOTHING
    return best or (first, classifier.judge(first))
