"""Rules for the provider's own failures, by their words: overload, loading, memory, outage, a broken stream."""

from __future__ import annotations

from holdfast.classify.evidence import Evidence, Source, Verdict, applies_when, contains_any
from holdfast.classify.phrases import ENDED, codes, phrases
from holdfast.classify.words import Words
from holdfast.faults import Scope

_LISTED = Words("server")

_FULL = phrases(_LISTED["full"])
_BUSY_HERE = phrases(_LISTED["busy_here"])
_GUESSED = phrases("may be down or overloaded", "might be down or overloaded", "may be overloaded or down")
_LOADING = phrases(_LISTED["loading"])
_CANNOT_LOAD = phrases("error loading model", "failed to load", "unknown model architecture")
# The rule requires a status: without a status it is a local process that ran out of memory, which is a tool.
_MEMORY = phrases(_LISTED["memory"])
_GPU = phrases(_LISTED["gpu"])
_CUT = phrases(_LISTED["cut"])
_INTERNAL = phrases(_LISTED["internal"])
_DOWN = phrases(_LISTED["down"])
# The words of a proxy that could not reach its server. A relay may send them with a 400.
_PROXY = phrases("upstream connect error", "no healthy upstream", "upstream request timeout", "connection to upstream")
_CODES = _LISTED.lookup("codes")
_OWN_CODES = codes(" ".join(_CODES))
_NAMES_A_LOGIN = ("auth", "credential", "login", "permission", "forbidden", "accessdenied")


@applies_when(
    phrases("requires more system memory", "available memory for the cache", "gpu_memory_utilization", "oom if")
)
def never_fits(_: Evidence) -> Verdict | None:
    """A local server names the memory that the model lacks, in any wrapper."""
    return Verdict(code="PROVIDER_OUT_OF_MEMORY")


@applies_when(_MEMORY, not_defect=True)
def out_of_memory(evidence: Evidence) -> Verdict | None:
    """A local server does not have enough memory for the model: permanent on this host."""
    served = (
        evidence.exit_code is None
        and evidence.rpc_code is None
        and (
            evidence.status is not None
            or evidence.source is Source.SSE
            or (evidence.raised is None and evidence.matches(_GPU))
        )
    )
    return Verdict(code="PROVIDER_OUT_OF_MEMORY") if served else None


@applies_when(_LOADING, not_defect=True)
def loading(evidence: Evidence) -> Verdict | None:
    """The model is being loaded and answers soon."""
    return None if evidence.matches(_CANNOT_LOAD) else Verdict(code="PROVIDER_MODEL_LOADING")


@applies_when(_FULL, not_defect=True)
def full(evidence: Evidence) -> Verdict | None:
    """The provider is overloaded or at capacity. The status may also be 429 or 400."""
    if evidence.matches(_GUESSED):
        # "They may be overloaded" is a guess. The text says elsewhere what happened.
        return None
    if evidence.exit_code and evidence.matches(_BUSY_HERE):
        return Verdict(code="TOOL_RESOURCE_BUSY")
    return Verdict(code="PROVIDER_OVERLOADED", scope=Scope.MODEL if "model" in evidence.text else None)


@applies_when(ENDED | _CUT)
def stream_cut(evidence: Evidence) -> Verdict | None:
    """The stream broke off: an error says so, or its end is missing."""
    answered = (evidence.status or 0) >= 500 or (evidence.source is Source.SSE and evidence.matches(_OWN_CODES))
    if evidence.stream != "cut" and answered:
        # A status or a code of the server is more exact than the sentence around it.
        return None
    if evidence.stream == "cut" or evidence.matches(_CUT):
        return Verdict(code="PROVIDER_STREAM_CUT")
    return None


@applies_when(ENDED)
def stream_end(evidence: Evidence) -> Verdict | None:
    """The stream ended in the normal way, but its content is a failure."""
    match evidence.stream:
        case "empty":
            return Verdict(code="PROVIDER_EMPTY_RESPONSE")
        case "overflow":
            return Verdict(code="PROVIDER_CONTEXT_OVERFLOW")
        # The same request would be cut at the same length.
        case "length":
            return Verdict(code="PROVIDER_OUTPUT_INVALID", retryable=False)
        case "malformed":
            return Verdict(code="PROVIDER_OUTPUT_INVALID")
        case "done":
            return Verdict(code="PROVIDER_MALFORMED_RESPONSE")
    return None


@applies_when(phrases("model has crashed"))
def model_crashed(_: Evidence) -> Verdict | None:
    """The model of a local server crashed and must be loaded again.

    The status may be anything (LM Studio sends 400).
    """
    return Verdict(code="PROVIDER_UNAVAILABLE")


@applies_when(_DOWN | _INTERNAL)
def own_words(evidence: Evidence) -> Verdict | None:
    """The text names an internal error or an outage, inside a 200, a stream or an exception."""
    if evidence.status == 400 and evidence.matches(_PROXY):
        return Verdict(code="PROVIDER_UNAVAILABLE")
    if evidence.status is not None and evidence.status >= 400 and evidence.status not in (408, 429, 500):
        # Every other status is more exact than the sentence of a library or proxy.
        return None
    if evidence.source in (Source.PROCESS, Source.JSONRPC) or "bad request" in evidence.text:
        return None
    if evidence.raised is not None and contains_any(evidence.raised.type.lower(), _NAMES_A_LOGIN):
        # "Authentication unavailable" is no outage: the class names a login.
        return None
    down = evidence.matches(_DOWN)
    return Verdict(code="PROVIDER_UNAVAILABLE" if down else "PROVIDER_INTERNAL_ERROR", weak=evidence.raised is not None)


@applies_when(_OWN_CODES)
def own_codes(evidence: Evidence) -> Verdict | None:
    """The code is server_error, api_error or unavailable, and no status is more exact."""
    if evidence.status is not None and evidence.status >= 400 and evidence.status != 500:
        return None
    code = next((_CODES[code] for code in evidence.codes if code in _CODES), None)
    # Gateways send api_error for everything, and the rest of a long text may be clearer.
    return None if code is None else Verdict(code=code, weak=code == "PROVIDER_INTERNAL_ERROR")


def stream_failed(evidence: Evidence) -> Verdict | None:
    """A stream began and then sent an error that no rule knows. It broke off, whatever the reason is."""
    cut = evidence.source is Source.SSE and evidence.status is None and not evidence.stream
    return Verdict(code="PROVIDER_STREAM_CUT", weak=True, carrier=True) if cut else None


EARLY = (never_fits, out_of_memory, loading, full)
LATE = (stream_cut, stream_end, model_crashed, own_words, own_codes)
LAST = (stream_failed,)
