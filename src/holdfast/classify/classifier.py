"""The classifier: a foreign failure in, one `Fault` out. One `from_…` function per kind of failure.

Invariant: these functions return a Fault for every input and never raise. A failure that no rule recognises is
`SYS_UNKNOWN`. The fault's `rule` names the rule that decided.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from holdfast.classify.concepts import LONGEST
from holdfast.classify.evidence import ALWAYS, NOTHING, UNKNOWN_EXIT, Evidence, Rule, Source, Verdict
from holdfast.classify.hints import may_name_a_time, requested_delay
from holdfast.classify.phrases import BEGINNING, SECRETS, Phrases, find_phrases
from holdfast.classify.readers.exceptions import cause_of, causes, leaves, read_class, read_exception, shape_of
from holdfast.classify.readers.responses import read_grpc, read_http, read_jsonrpc, read_stream
from holdfast.classify.readers.text import read_output, read_text
from holdfast.classify.restraint import given_reason, held_back, introduced_reason
from holdfast.classify.rules import RULES
from holdfast.classify.rules.toolserver import carried_by
from holdfast.faults import CATALOG, PATIENCE_S, REDACTOR, Category, Fault, HoldfastError, Kind, Scope, Severity
from holdfast.faults.redaction import LONGEST_SECRET
from holdfast.faults.surfaces import fill

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from holdfast.classify.readers.exceptions import Shape
    from holdfast.faults import Cause

# A gateway sends these statuses if the server behind it is down. The gateway writes the page, not the provider.
_OUTAGES = frozenset({502, 503, 504, *range(520, 531)})
_ALWAYS: Phrases = 1
"""A bit that no phrase has. It is always set, so that rules without phrases always run."""
_MOST_REMEMBERED = 1_000
"""How many faults of exceptions, and how many selections of rules, one classifier remembers."""
_Facts: TypeAlias = "tuple[bool, bool, bool] | str"
"""Whether a failure is local, an outage, a defect; or that only its text is judged, without guesses."""
_TEXT_ALONE = "text"
_OUTPUT_ALONE = "output"
_READ_BEFORE = frozenset({"plain.by_meaning", "python.named_in_text", "identifiers.in_text"})
"""Slow rules that have read the output of a program already, whatever carries it."""
_CONSEQUENCES = frozenset({
    "network.by_words", "network.in_stderr", "process.stderr", "process.download", "plain.by_meaning", "toolserver.by_number"
})  # fmt: skip
"""Rules for sentences that often name a consequence: something could not be reached, fetched or downloaded."""
_EXACT_OUTPUT = frozenset({"process.stderr", "process.curl_number", "network.in_stderr"})
"""Rules for outputs that look for fixed phrases."""
_Agenda: TypeAlias = "tuple[tuple[Phrases, Rule, str], ...]"
"""Rules, each with its phrases and its name."""
_Selected: TypeAlias = "tuple[tuple[Rule, str], ...]"
_WORTH_WAITING = frozenset(
    code for code, entry in CATALOG.items() if entry.kind is Kind.TRANSIENT or entry.category is Category.RATE_LIMIT
) - {"PROVIDER_BILLING", "PROVIDER_ENTITLEMENT_MISSING"}
"""Failures for which waiting can help. It cannot help for a bad request, even with reset headers, or for an empty
account."""
_UNKNOWN = Verdict(code="SYS_UNKNOWN", rule="nothing-matched", weak=True)
# Nobody can say whether repeating helps, and most sentences that no rule knows are about a limit, a setting or a defect.
_UNKNOWN_TEXT = Verdict(code="SYS_UNKNOWN", rule="nothing-matched", retryable=False, weak=True)
_NOTHING_TO_READ = Verdict(code="SYS_UNKNOWN", rule="nothing-to-read", weak=True)
_IMPOSSIBLE = Verdict(code="SYS_UNKNOWN", rule="impossible-status", retryable=False)
_REQUEST_IDS = ("request-id", "x-request-id", "x-amzn-requestid", "apim-request-id", "cf-ray")
_VAGUE = frozenset({"SYS_UNKNOWN", "SYS_CANCELLED", "SYS_PROGRAMMING_ERROR"})
"""Causes with these codes do not override the wrapper. Many timeouts cancel the call, and a KeyError is often only a
consequence of the real failure."""
_SAYS_LITTLE = frozenset(
    {
        "SYS_UNKNOWN",
        "SYS_PROGRAMMING_ERROR",
        "TOOL_EXECUTION_FAILED",
        "PROVIDER_MALFORMED_RESPONSE",
        "PROVIDER_INTERNAL_ERROR",
    }
)
"""Codes of a text that say no more than what carries it."""
_SURE_ON_STDERR = frozenset({
    "SYS_CANCELLED", "TOOL_NOT_FOUND", "TOOL_APPROVAL_DENIED", "TOOL_CONNECTION_LOST", "TASK_TURNS_EXHAUSTED", "TASK_LOOP_BOUND",
    "TOOL_INPUT_INVALID", "TOOL_FILE_NOT_FOUND",
})  # fmt: skip
"""What the output of a program may mean although its exit code says only that it failed. A program prints the words of a network
or of a provider for many reasons: in options, in reports, in advice."""
_GUESSED = (
    "guesses.",
    "concepts.",
    "plain.cautious",
    "plain.explained",
    "plain.failed_here",
    "plain.absent",
    "plain.told",
)
_LAST_GUESSES = frozenset({"plain.told", "plain.cautious", "plain.explained", "plain.failed_here"})
"""Rules that guess. What carries a text is more certain than a guess."""
_PROSE = frozenset({"restraint", "limits", "overflow", "access", "request", "server", "plain"})
"""Families of rules that read sentences."""
_SEVERITY_RANK = {severity: rank for rank, severity in enumerate(Severity)}


def name_of(rule: Rule) -> str:
    """Return the rule's name for a verdict, made of the family and the function: `limits.named_rate`."""
    family = (getattr(rule, "__module__", None) or "").rpartition(".")[2]
    name = getattr(rule, "__name__", type(rule).__name__)
    return f"{family}.{name}" if family else name


def _agenda(
    rules: tuple[Rule, ...],
    local: bool,  # noqa: FBT001 - called only with the key of the table, by position
    outage: bool,  # noqa: FBT001 - as above
    defect: bool,  # noqa: FBT001 - as above
) -> _Agenda:
    """Return, in order, the rules that can apply to a local failure, an outage or a defect."""
    kept: list[tuple[Phrases, Rule, str]] = []
    for rule in rules:
        condition = getattr(rule, "condition", ALWAYS)
        if condition.local and not local:
            continue
        if not (outage and condition.not_outage) and not (defect and condition.not_defect):
            kept.append((condition.phrases or _ALWAYS, rule, name_of(rule)))
    return tuple(kept)


class Classifier:
    """An ordered list of rules; the first verdict counts. Immutable: adding a rule returns a new classifier.

    For example:
        mine = CLASSIFIER.with_rules(our_gateway_drains)
        fault = from_http(470, classifier=mine)
    """

    __slots__ = ("_agendas", "_applicable", "_remembered", "_rules")

    def __init__(self, rules: Iterable[Rule] = RULES) -> None:
        self._rules = tuple(rules)
        # Our own rules read nothing but the evidence. A rule of somebody else may read anything, so its verdict holds once.
        self._remembered: dict[tuple[str, Shape], Fault] | None = {} if rules is RULES else None
        self._applicable: dict[tuple[Phrases, _Facts], _Selected] = {}
        # Three yes-or-no facts decide which rules can apply. All eight lists are prepared here, not for each failure.
        self._agendas: dict[_Facts, _Agenda] = {
            facts: _agenda(self._rules, *facts) for facts in product((False, True), (False, True), (False, True))
        }
        whole = self._agendas[False, False, False]
        self._agendas[_TEXT_ALONE] = tuple(entry for entry in whole if not entry[2].startswith(_GUESSED))
        self._agendas[_OUTPUT_ALONE] = tuple(
            entry for entry in self._agendas[_TEXT_ALONE] if entry[2] not in _READ_BEFORE
        )

    def with_rules(self, *rules: Rule) -> Classifier:
        """Return a classifier that runs these rules first, in this order."""
        return Classifier((*rules, *self._rules))

    @property
    def rules(self) -> tuple[str, ...]:
        """The names of the rules, in the order they run."""
        return tuple(name_of(rule) for rule in self._rules)

    def recall(self, provider: str, shape: Shape) -> Fault | None:
        """Return the fault of an earlier exception of the same shape, with a context of its own; None if there was none."""
        known = None if self._remembered is None else self._remembered.get((provider, shape))
        return None if known is None else msgspec.structs.replace(known, context=known.context.copy())

    def remember(self, provider: str, shape: Shape, fault: Fault) -> None:
        """Return this fault for every later exception of the same shape."""
        if self._remembered is not None:
            if len(self._remembered) >= _MOST_REMEMBERED:
                # Messages that are never the same twice fill it. Dropping all of it costs less than keeping an order.
                self._remembered.clear()
            self._remembered[provider, shape] = msgspec.structs.replace(fault, context=fault.context.copy())

    def judge(self, evidence: Evidence) -> Verdict:
        """Return the first verdict, with the name of its rule. Raises only if a rule raises."""
        verdict = self._first(evidence)
        if verdict.weak and len(evidence.text) > BEGINNING:
            # The verdict on the beginning of a long text is weak. The rest of the text may be clearer.
            evidence = msgspec.structs.replace(evidence, matched=evidence.matched | find_phrases(evidence.text))
            verdict = self._first(evidence)
        if verdict.weak and evidence.source is Source.TEXT and verdict.rule.startswith(_GUESSED):
            verdict = self._behind_the_colon(evidence, verdict)
        if verdict is _UNKNOWN_TEXT or verdict.rule == "plain.told":
            verdict = self._as_output(evidence, verdict)
        if verdict.carrier and evidence.text:
            verdict = self._unwrapped(evidence, verdict)
        verdict = held_back(evidence, verdict)
        return self._because(evidence, verdict) if verdict.rule in _CONSEQUENCES else verdict

    def _behind_the_colon(self, evidence: Evidence, guess: Verdict) -> Verdict:
        """Return the verdict on the reason alone if the guess read what was tried, and the reason is known by itself."""
        reason = introduced_reason(evidence)
        if reason is None:
            return guess
        inner = self._first(
            msgspec.structs.replace(evidence, text=reason, message=reason, matched=find_phrases(reason))
        )
        return guess if inner.code in _SAYS_LITTLE or inner.rule in _LAST_GUESSES else inner

    def _because(self, evidence: Evidence, verdict: Verdict) -> Verdict:
        """Return the verdict on the reason that a sentence gives for a line that broke, if that reason stays."""
        reason = given_reason(evidence, verdict)
        if reason is None:
            return verdict
        inner = self._first(
            msgspec.structs.replace(evidence, text=reason, message=reason, matched=find_phrases(reason))
        )
        retryable = CATALOG[inner.code].retryable if inner.retryable is None else inner.retryable
        if retryable or inner.carrier or inner.code in _SAYS_LITTLE:
            return verdict
        return msgspec.structs.replace(inner, rule=f"restraint.{verdict.rule.rpartition('.')[2]}")

    def _as_output(self, evidence: Evidence, guess: Verdict) -> Verdict:
        """Return what the text would mean as the output of a program. A caller that passes it on may have lost where it is from."""
        printed = msgspec.structs.replace(evidence, source=Source.PROCESS, exit_code=UNKNOWN_EXIT)
        verdict = self._first(printed)
        # A retry needs a phrase that only one failure has. What merely sounds like one is not worth it for an unknown text.
        sure = verdict.rule in _EXACT_OUTPUT or not CATALOG[verdict.code].retryable
        return verdict if sure and not verdict.carrier and verdict.code != "SYS_UNKNOWN" else guess

    def _unwrapped(self, evidence: Evidence, verdict: Verdict) -> Verdict:
        """Return the verdict on the text alone if it says more than the verdict on its carrier."""
        if evidence.source is Source.PROCESS and len(evidence.text) > LONGEST:
            # A long output is a log. It has such words for many reasons.
            return verdict
        text = msgspec.structs.replace(
            evidence, source=Source.TEXT, status=None, rpc_code=None, exit_code=None, raised=None
        )
        inner = self._first(text, _OUTPUT_ALONE if evidence.source is Source.PROCESS else _TEXT_ALONE)
        if inner.code in _SAYS_LITTLE:
            return verdict
        if evidence.source is Source.PROCESS and inner.code not in _SURE_ON_STDERR:
            return verdict
        if evidence.status is not None and evidence.status >= 500 and CATALOG[inner.code].retryable:
            # What passes is the server's own trouble, whatever it names: its connection, its disk, its timeout.
            return verdict
        return msgspec.structs.replace(inner, code=carried_by(evidence, inner.code))

    def _first(self, evidence: Evidence, alone: str = "") -> Verdict:
        matched = evidence.matched | _ALWAYS
        status = evidence.status
        local = (
            evidence.raised is not None
            or evidence.exit_code is not None
            or evidence.rpc_code is not None
            or evidence.source is Source.JSONRPC
        )
        defect = local and status is None and evidence.named("TypeError", "ValueError")
        facts: _Facts = alone or (local, status in _OUTAGES, defect)
        for rule, name in self._applicable.get((matched, facts)) or self._select(matched, facts):
            verdict = rule(evidence)
            if verdict is not None:
                return verdict if verdict.rule else msgspec.structs.replace(verdict, rule=name)
        return _unknown(evidence)

    def _select(self, matched: Phrases, facts: _Facts) -> _Selected:
        """Return the rules that can apply to these phrases, and remember them: most failures are like an earlier one."""
        selected = tuple((rule, name) for needed, rule, name in self._agendas[facts] if matched & needed)
        if len(self._applicable) >= _MOST_REMEMBERED:
            self._applicable.clear()
        self._applicable[matched, facts] = selected
        return selected

    def fault(self, evidence: Evidence, cause: Cause | None = None) -> Fault:
        """Return the fault that the evidence shows. Raises only if a rule raises."""
        return self.conclude(evidence, self.judge(evidence), cause)

    def conclude(self, evidence: Evidence, verdict: Verdict, cause: Cause | None = None) -> Fault:
        """Return the fault of a verdict: the catalog's defaults for its code, corrected by what the response contains."""
        entry = CATALOG[verdict.code]
        delay = requested_delay(evidence) if verdict.code in _WORTH_WAITING else None
        message = _shown(evidence)
        context = _context(evidence)
        return Fault(
            code=verdict.code,
            message=_UNSAID.get(verdict.rule, message) or fill(entry.message, context),
            retryable=_retryable(
                entry.retryable if verdict.retryable is None else verdict.retryable, verdict, evidence, delay
            ),
            scope=entry.scope if verdict.scope is None else verdict.scope,
            retry_after=delay,
            maybe_executed=entry.maybe_executed,
            rule=verdict.rule,
            context=context,
            cause=cause,
        )


CLASSIFIER = Classifier()
"""The built-in rules in their order. `CLASSIFIER.with_rules(mine)` runs yours before them."""


def unreadable(defect: Exception) -> Fault:
    """Return the fault of a failure that could not be read, because of a defect in a rule or an unexpected input.

    Every `from_…` function uses it, because classifying a failure must never cause a second failure. Each function has
    its own `except`: a decorator with `*args, **kwargs` would make classification an eighth slower.
    """
    return Fault.of(
        "SYS_UNKNOWN",
        "The failure could not be read",
        retryable=False,
        rule=f"classifier-failed.{type(defect).__name__}",
        cause=_cause_if_readable(defect),
    )


def from_exception(
    error: BaseException, *, provider: str = "", now: float | None = None, classifier: Classifier = CLASSIFIER
) -> Fault:
    """Return the fault of a live exception, its chain of causes and, for a group, its leaves. Never raises.

    For example:
        try:
            client.messages.create(...)
        except anthropic.APIError as error:
            print(from_exception(error, now=time.time()).code)
    """
    try:
        return _from_exception(error, provider, now, classifier)
    except Exception as defect:  # noqa: BLE001 - classifying never raises
        return unreadable(defect)


def from_class(error: BaseException, *, classifier: Classifier = CLASSIFIER) -> Fault:
    """Return the fault that the class of an exception names, whatever its words and its causes say. Never raises.

    >>> from_class(RuntimeError("rate limit exceeded")).code
    'SYS_UNKNOWN'
    """
    try:
        return classifier.fault(read_class(error))
    except Exception as defect:  # noqa: BLE001 - classifying never raises
        return unreadable(defect)


def from_http(
    status: int | None,
    headers: Mapping[str, Any] | None = None,
    body: Any = "",
    *,
    provider: str = "",
    now: float | None = None,
    classifier: Classifier = CLASSIFIER,
) -> Fault:
    """Return the fault of an HTTP response; `body` may be text, bytes or decoded JSON. Never raises.

    >>> from_http(429, {"retry-after": "26"}).retry_after
    26.0
    """
    try:
        return classifier.fault(read_http(status, headers, body, provider=provider, now=now))
    except Exception as defect:  # noqa: BLE001 - classifying never raises
        return unreadable(defect)


def from_stream(
    text: str, *, provider: str = "", now: float | None = None, classifier: Classifier = CLASSIFIER
) -> Fault:
    """Return the fault of a stream that began with success and then sent an error or has no end. Never raises.

    `text` is the stream as it arrived, SSE or NDJSON.

    >>> from_stream('data: {"type":"error","error":{"type":"overloaded_error"}}').code
    'PROVIDER_OVERLOADED'
    """
    try:
        return classifier.fault(read_stream(text, provider=provider, now=now))
    except Exception as defect:  # noqa: BLE001 - classifying never raises
        return unreadable(defect)


def from_jsonrpc(
    message: Any,
    *,
    status: int | None = None,
    provider: str = "",
    now: float | None = None,
    classifier: Classifier = CLASSIFIER,
) -> Fault:
    """Return the fault of a JSON-RPC error or an MCP tool result with `isError`, decoded or as text. Never raises.

    >>> from_jsonrpc({"error": {"code": -32601, "message": "Method not found"}}).code
    'TOOL_NOT_FOUND'
    """
    try:
        return classifier.fault(read_jsonrpc(message, status=status, provider=provider, now=now))
    except Exception as defect:  # noqa: BLE001 - classifying never raises
        return unreadable(defect)


def from_process(
    exit_code: int | None,
    stderr: str = "",
    *,
    provider: str = "",
    now: float | None = None,
    classifier: Classifier = CLASSIFIER,
) -> Fault:
    """Return the fault of a process that ended; a negative code is the signal that killed it. Never raises.

    >>> from_process(127, "sh: npx: command not found").code
    'TOOL_COMMAND_NOT_FOUND'
    """
    try:
        return from_evidence(*read_output(exit_code, stderr, provider=provider, now=now), classifier=classifier)
    except Exception as defect:  # noqa: BLE001 - classifying never raises
        return unreadable(defect)


def from_grpc(
    status: str | int,
    details: str = "",
    *,
    provider: str = "",
    now: float | None = None,
    classifier: Classifier = CLASSIFIER,
) -> Fault:
    """Return the fault of a gRPC call that ended with `status`, by name or number. Never raises.

    >>> from_grpc("UNAVAILABLE").code
    'PROVIDER_UNAVAILABLE'
    """
    try:
        return classifier.fault(read_grpc(status, details, provider=provider, now=now))
    except Exception as defect:  # noqa: BLE001 - classifying never raises
        return unreadable(defect)


def from_text(text: str, *, provider: str = "", now: float | None = None, classifier: Classifier = CLASSIFIER) -> Fault:
    """Return the fault of a log line, a traceback or a JSON error, as text. Never raises.

    >>> from_text("httpx.ConnectError: [Errno 111] Connection refused").code
    'CONN_REFUSED'
    """
    try:
        return from_evidence(*read_text(text, provider=provider, now=now), classifier=classifier)
    except Exception as defect:  # noqa: BLE001 - classifying never raises
        return unreadable(defect)


def from_evidence(
    *chain: Evidence, classifier: Classifier = CLASSIFIER, cause_from: BaseException | None = None
) -> Fault:
    """Return the fault of a chain of evidence, outermost first.

    The first evidence that names the failure decides (R22).
    """
    evidence, verdict = _decide(chain, classifier)
    cause = None if cause_from is None else cause_of(cause_from)
    return classifier.conclude(evidence, verdict, cause)


def most_limiting(faults: Iterable[Fault]) -> Fault:
    """Return the most limiting fault of a group. If one leaf must not be retried, the group must not be retried.

    If a leaf was only cancelled because a sibling failed, the sibling decides.
    """
    every = list(faults)
    for fault in every:
        # Ctrl-C stops the whole process, so it decides for the whole group.
        if fault.code == "SYS_CANCELLED" and fault.scope is Scope.PROCESS:
            return fault
    real = [fault for fault in every if fault.code != "SYS_CANCELLED"] or every
    if not real:
        return Fault.of("SYS_UNKNOWN", rule="empty-group")
    return max(real, key=lambda f: (not f.retryable, _SEVERITY_RANK[f.severity], f.retry_after or 0.0))


def _from_exception(error: BaseException, provider: str, now: float | None, classifier: Classifier) -> Fault:
    if isinstance(error, HoldfastError):
        return error.fault
    if isinstance(error, BaseExceptionGroup):
        faults = [from_exception(leaf, provider=provider, now=now, classifier=classifier) for leaf in leaves(error)]
        return msgspec.structs.replace(most_limiting(faults), cause=cause_of(error))
    shape = shape_of(error)
    if shape is not None and (known := classifier.recall(provider, shape)) is not None:
        return known
    chain: list[Evidence] = []
    for one in causes(error):
        if isinstance(one, HoldfastError):
            # An error of Holdfast is inside a foreign wrapper. It already has its fault.
            return one.fault
        if isinstance(one, BaseExceptionGroup):
            # A wrapper that names the failure decides. Otherwise the group inside it decides.
            evidence, verdict = _decide(tuple(chain), classifier)
            inside = from_exception(one, provider=provider, now=now, classifier=classifier)
            if verdict.code == "SYS_UNKNOWN" or (verdict.weak and inside.code not in _VAGUE):
                return inside
            return classifier.conclude(evidence, verdict, cause_of(error))
        chain.append(read_exception(one, provider=provider, now=now))
    fault = from_evidence(*chain, classifier=classifier, cause_from=error)
    if shape is not None and not any(map(may_name_a_time, chain)):
        classifier.remember(provider, shape, fault)
    return fault


def _decide(chain: tuple[Evidence, ...], classifier: Classifier) -> tuple[Evidence, Verdict]:
    """Return the link of a chain that names the failure, and its verdict."""
    best: tuple[Evidence, Verdict] | None = None
    for evidence in chain:
        verdict = classifier.judge(evidence)
        if verdict.code == "SYS_UNKNOWN":
            continue
        if best is None:
            best = (evidence, verdict)
            if not verdict.weak and not verdict.carrier and not _only_prose(evidence, verdict):
                break
        elif verdict.code in _VAGUE or (verdict.carrier and evidence.raised is None):
            continue
        # A status of a cause says more than the sentence of what wraps it: "the request failed".
        elif not verdict.weak or (evidence.status is not None and best[0].status is None and best[1].weak):
            return evidence, verdict
    first = chain[0] if chain else NOTHING
    return best or (first, classifier.judge(first))


def _only_prose(evidence: Evidence, verdict: Verdict) -> bool:
    """Whether only the sentence of an exception was recognised. The real failure may be its cause."""
    family = verdict.rule.partition(".")[0]
    return evidence.raised is not None and evidence.status is None and family in _PROSE


_UNSAID = {
    _NOTHING_TO_READ.rule: "The failure has no status, no code and no text",
    _IMPOSSIBLE.rule: "The status is not an HTTP status, and no rule recognises the rest",
}
"""What a fault says if the failure itself says nothing."""


def _unknown(evidence: Evidence) -> Verdict:
    """Return the verdict for evidence that no rule recognises. It says whether there was anything to recognise."""
    if evidence.status is not None and not 100 <= evidence.status < 600:
        return _IMPOSSIBLE
    # An empty exception at least has a class.
    if (
        evidence.message.strip("{}[] \n")
        or any(evidence.codes)
        or evidence.status is not None
        or evidence.raised is not None
    ):
        return _UNKNOWN_TEXT if evidence.source is Source.TEXT else _UNKNOWN
    return _NOTHING_TO_READ


def _cause_if_readable(defect: BaseException) -> Cause | None:
    try:
        return cause_of(defect)
    except Exception:  # noqa: BLE001 - the defect may be the hostile exception itself
        return None


def _shown(evidence: Evidence) -> str:
    """Return the part of the text that a fault shows.

    The slow search for secrets runs only if the text may contain one.
    """
    message = evidence.message
    if evidence.raised is not None and evidence.raised.type == "KeyError" and message.strip():
        # The whole text of a KeyError is the key.
        message = f"KeyError: {message}"
    if len(message) > BEGINNING:
        # The text is masked before it is cut. After the cut, half a secret would not be recognised and would be shown.
        return REDACTOR.text(message[: BEGINNING + LONGEST_SECRET])[:BEGINNING].strip()
    # A text with other alphabets is always searched, because the quick test knows only ASCII words.
    unsafe = evidence.matched & SECRETS or not message.isascii()
    return (REDACTOR.text(message) if unsafe else message).strip()


def _retryable(retryable: bool, verdict: Verdict, evidence: Evidence, delay: float | None) -> bool:  # noqa: FBT001 - private
    if verdict.only_with_delay:
        retryable = delay is not None
    if evidence.headers.get("x-should-retry") == "false":
        return False
    return retryable and (delay is None or delay <= PATIENCE_S)


def _context(evidence: Evidence) -> dict[str, Any]:
    context: dict[str, Any] = {}
    if evidence.provider:
        context["provider"] = evidence.provider
    if evidence.status is not None:
        context["status"] = evidence.status
    if evidence.exit_code is not None and evidence.exit_code != UNKNOWN_EXIT:
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
