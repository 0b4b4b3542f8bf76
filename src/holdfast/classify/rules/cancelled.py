"""Rules for cancellation. It is not an error: it is never retried, counted or swallowed."""

from __future__ import annotations

import re

from holdfast.classify.evidence import Evidence, Source, Verdict, applies_when
from holdfast.classify.phrases import class_names, phrases
from holdfast.classify.words import Words
from holdfast.faults import Scope

_LISTED = Words("cancelled")

_CANCELLED = class_names(_LISTED["cancelled"])

# Google also sends 499 when its own backend gave up. Such a failure is worth a retry.
_THEIR_FAULT = phrases("backend error", "server cancelled", "the operation was cancelled by the server")


_BY_A_PERSON = phrases(_LISTED["by_a_person"])


@applies_when(_BY_A_PERSON)
def cancelled_by_a_person(evidence: Evidence) -> Verdict | None:
    """The text says that a person stopped the work. What it says after that is advice."""
    return Verdict(code="SYS_CANCELLED") if evidence.status is None and evidence.rpc_code is None else None


# "Interrupted system call" and "Interrupted: the peer is gone" name what was interrupted or why.
_NOTHING_BUT = re.compile(r"\W*(?:interrupted|cancelled|canceled)\s*(?:$|[.!(·•—–-])")


@applies_when(phrases("interrupted", "cancelled", "canceled"))
def only_cancelled(evidence: Evidence) -> Verdict | None:
    """The whole text is the word that an agent prints after Ctrl-C or Escape. A question or advice may follow it."""
    if evidence.source is not Source.TEXT or evidence.status is not None:
        return None
    return Verdict(code="SYS_CANCELLED") if _NOTHING_BUT.match(evidence.text) else None


@applies_when(local=True)
def cancelled_here(evidence: Evidence) -> Verdict | None:
    """A CancelledError of any library, KeyboardInterrupt, GeneratorExit or Ctrl-C stopped the call or the process."""
    if evidence.named_in(_CANCELLED):
        # Ctrl-C stops the whole process, so in a group it decides for all siblings.
        return Verdict(code="SYS_CANCELLED", scope=Scope.PROCESS if evidence.named("KeyboardInterrupt") else None)
    if evidence.source is Source.PROCESS and evidence.exit_code in (-2, 130):
        return Verdict(code="SYS_CANCELLED")
    return None


def cancelled_on_the_wire(evidence: Evidence) -> Verdict | None:
    """499, gRPC CANCELLED and JSON-RPC -32800 mean that the caller went away, unless the server blames itself."""
    closed = evidence.status == 499 or evidence.rpc_code == -32800
    by_grpc = evidence.source is Source.GRPC and "cancelled" in evidence.codes
    if closed or by_grpc or "grpc:cancelled" in evidence.codes:
        if "backenderror" in evidence.codes or evidence.matches(_THEIR_FAULT):
            return Verdict(code="PROVIDER_UNAVAILABLE")
        return Verdict(code="SYS_CANCELLED")
    return None


RULES = (cancelled_here, cancelled_by_a_person, only_cancelled, cancelled_on_the_wire)
