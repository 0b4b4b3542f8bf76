"""The families of rules, one file each, and the order they are asked in.

Order is meaning: cancellation before everything, exact machine codes before prose, the more limiting reading before the
milder one (no money before rate limit, overflow before bad request), words before bare status, wrappers last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.classify.rules import (
    access,
    aws,
    cancelled,
    capacity,
    content,
    google,
    grpc,
    limits,
    machine,
    models,
    network,
    overflow,
    plain,
    process,
    python,
    request,
    server,
    status,
    toolserver,
)

if TYPE_CHECKING:
    from holdfast.classify.evidence import Rule

__all__ = ["RULES"]

RULES: tuple[Rule, ...] = (
    *cancelled.RULES,
    *process.EARLY,
    *python.FIRST,
    *toolserver.RULES,
    *google.RULES,
    *limits.EARLY,
    *machine.RULES,
    *aws.RULES,
    *python.EARLY,
    *request.EARLY,
    *content.RULES,
    *overflow.RULES,
    *capacity.RULES,
    *limits.LATE,
    *access.RULES,
    *models.RULES,
    *request.LATE,
    *network.RULES,
    *process.LATE,
    *grpc.RULES,
    *server.RULES,
    *status.RULES,
    *python.LATE,
    *plain.RULES,
)
