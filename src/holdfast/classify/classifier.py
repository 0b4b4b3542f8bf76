"""The classifier: evidence in, one Fault out, and the rule that decided named on it.

Invariant: total. Whatever it is given, it returns a Fault and never raises; what nothing recognises is SYS_UNKNOWN.
"""

from __future__ import annotations

from functools import reduce
from itertools import product
from operator import or_
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from holdfast.classify.delays import PATIENCE_S, stated_delay
from holdfast.classify.evidence import ALWAYS, Evidence, Rule, Source, Verdict
from holdfast.classify.phrases import BEGINNING, SECRETS, Phrases, listen
from holdfast.classify.rules import RULES
from holdfast.faults import CATALOG, REDACTOR, Category, Fault, Kind
from holdfast.faults.effects import MAY_HAVE_HAPPENED
from holdfast.faults.secrets import LONGEST_SECRET
from holdfast.faults.surfaces import fill

if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.faults import Cause

__all__ = ["PATIENCE_S", "Classifier", "name_of"]

_OUTAGES = frozenset({502, 503, 504, *range(520, 531)})
_WHATEVER: Phrases = 1
"""The bit no phrase has: heard always, wanted by the rules that are asked whatever was heard."""
_BLOCK = 6
_Agenda: TypeAlias = "tuple[tuple[Phrases, tuple[tuple[Phrases, Rule, str], ...]], ...]"
"""Blocks of rules, each with the phrases that any of its rules wants; a rule with those it wants, and its name."""
_WAITED_FOR = frozenset(
    code for code, entry in CATALOG.items() if entry.kind is Kind.TRANSIENT or entry.category is Category.RATE_LIMIT
) - {"PROVIDER_BILLING", "PROVIDER_ENTITLEMENT_MISSING"}
"""Failures that waiting answers: not a bad request with reset headers, not an empty account."""
_UNKNOWN = Verdict(code="SYS_UNKNOWN", rule="nothing-matched", weak=True)
_REQUEST_IDS = ("request-id", "x-request-id", "x-amzn-requestid", "apim-request-id", "cf-ray")


def name_of(rule: Rule) -> str:
    """Return the name a verdict carries: the family and the function, `limits.named_rate`."""
    family = (getattr(rule, "__module__", None) or "").rpartition(".")[2]
    name = getattr(rule, "__name__", type(rule).__name__)
    return f"{family}.{name}" if family else name


class Classifier:
    """An ordered list of rules. Frozen: adding a rule gives a new classifier."""

    __slots__ = ("_agendas", "_rules")

    def __init__(self, rules: Iterable[Rule] = RULES) -> None:
        self._rules = tuple(rules)
        self._agendas = {
            occasion: _agenda(self._rules, *occasion)
            for occasion in product((False, True), (False, True), (False, True))
        }

    def with_rules(self, *rules: Rule) -> Classifier:
        """Return a classifier that asks these rules first, in this order."""
        return Classifier((*rules, *self._rules))

    @property
    def rules(self) -> tuple[str, ...]:
        """The names of the rules, in the order they are asked."""
        return tuple(name_of(rule) for rule in self._rules)

    def judge(self, evidence: Evidence) -> Verdict:
        """Return the first verdict, with the name of the rule that gave it."""
        verdict = self._first(evidence)
        if verdict.weak and len(evidence.text) > BEGINNING:
            # Nothing in the beginning says more than a status or a class does: the rest may.
            return self._first(msgspec.structs.replace(evidence, heard=evidence.heard | listen(evidence.text)))
        return verdict

    def _first(self, evidence: Evidence) -> Verdict:
        heard = evidence.heard | _WHATEVER
        status = evidence.status
        local = evidence.raised is not None or evidence.exit_code is not None or evidence.rpc_code is not None
        defect = local and status is None and evidence.named("TypeError", "ValueError")
        for any_wanted, block in self._agendas[local, status in _OUTAGES, defect]:
            if not heard & any_wanted:
                continue
            for wanted, rule, name in block:
                if heard & wanted:
                    verdict = rule(evidence)
                    if verdict is not None:
                        return verdict if verdict.rule else msgspec.structs.replace(verdict, rule=name)
        return _UNKNOWN

    def fault(self, evidence: Evidence, cause: Cause | None = None) -> Fault:
        """Return the fault that the evidence shows."""
        return self.conclude(evidence, self.judge(evidence), cause)

    def conclude(self, evidence: Evidence, verdict: Verdict, cause: Cause | None = None) -> Fault:
        """Return the fault of a verdict: its code's defaults, corrected by what the other side said."""
        entry = CATALOG[verdict.code]
        wait = stated_delay(evidence) if verdict.code in _WAITED_FOR else None
        message = _shown(evidence)
        context = _context(evidence)
        return Fault(
            code=verdict.code,
            message=message or fill(entry.message, context),
            retryable=_retryable(
                entry.retryable if verdict.retryable is None else verdict.retryable, verdict, evidence, wait
            ),
            scope=entry.scope if verdict.scope is None else verdict.scope,
            retry_after=wait,
            maybe_executed=verdict.code in MAY_HAVE_HAPPENED,
            rule=verdict.rule,
            context=context,
            cause=cause,
        )


def _agenda(
    rules: tuple[Rule, ...],
    local: bool,  # noqa: FBT001
    outage: bool,  # noqa: FBT001
    defect: bool,  # noqa: FBT001
) -> _Agenda:
    """Return the rules worth asking of what happened here or there, of an outage, of a defect; in blocks, in order."""
    asked: list[tuple[Phrases, Rule, str]] = []
    for rule in rules:
        on = getattr(rule, "occasion", ALWAYS)
        if (local or not on.local) and not (outage and on.refusal) and not (defect and on.limit):
            asked.append((on.heard or _WHATEVER, rule, name_of(rule)))
    # Of most failures next to nothing is heard: one look passes over a whole block.
    blocks = [tuple(asked[start : start + _BLOCK]) for start in range(0, len(asked), _BLOCK)]
    return tuple((reduce(or_, (wanted for wanted, _, _ in block)), block) for block in blocks)


def _shown(evidence: Evidence) -> str:
    """Return what a fault shows of the text. Secrets are searched for only where one may be: the search costs much."""
    message = evidence.message
    if len(message) > BEGINNING:
        # Masked before it is cut: half a secret looks like none, and half of it would show.
        return REDACTOR.text(message[: BEGINNING + LONGEST_SECRET])[:BEGINNING].strip()
    unsafe = evidence.heard & SECRETS or not message.isascii()
    return (REDACTOR.text(message) if unsafe else message).strip()


def _retryable(retryable: bool, verdict: Verdict, evidence: Evidence, wait: float | None) -> bool:  # noqa: FBT001
    if verdict.only_if_told:
        retryable = wait is not None
    if evidence.headers.get("x-should-retry") == "false":
        return False
    return retryable and (wait is None or wait <= PATIENCE_S)


def _context(evidence: Evidence) -> dict[str, Any]:
    context: dict[str, Any] = {}
    if evidence.provider:
        context["provider"] = evidence.provider
    if evidence.status is not None:
        context["status"] = evidence.status
    if evidence.exit_code is not None:
        context["exit_code"] = evidence.exit_code
    if evidence.rpc_code:
        context["rpc_code"] = evidence.rpc_code
    for name in _REQUEST_IDS:
        if name in evidence.headers:
            context["request_id"] = evidence.headers[name][:200].encode("utf-8", "replace").decode()
            break
    if evidence.source is not Source.HTTP:
        context["source"] = evidence.source.value
    return context
