"""The provider's own faults, in words rather than status."""

from __future__ import annotations

from holdfast.classify.evidence import Evidence, Source, Verdict, asked_when
from holdfast.classify.phrases import ENDED, codes, phrases

_CUT = phrases("""
    unexpected eof | stream disconnected | stream closed before | closed before response.completed
    connection ended | stream ended | stream error | incomplete chunked read | stream terminated | stream was reset
    premature close | ended prematurely | stream aborted | before completion | terminated unexpectedly
    truncated stream | stream interrupted
""")
_INTERNAL = phrases("""
    internal server error | server had an error | internal error | an error occurred while processing
    unexpected error occurred | something went wrong | server error | internal_server_error | unknown error
    internal failure | unexpected internal | unable to process your request
""")
_DOWN = phrases("""
    service unavailable | temporarily unavailable | bad gateway | upstream connect error | no healthy upstream
    upstream request timeout | no available accounts | no available server | currently unavailable | upstream error
    connection to upstream | unavailable | backend is down | under maintenance | provider returned error
    no available channel | no deployments available | runner has unexpectedly stopped
    runner process has terminated | runner process no longer running | has crashed
""")
_CODES = {
    "server_error": "internal",
    "api_error": "internal",
    "internal_server_error": "internal",
    "internal": "internal",
    "internal_error": "internal",
    "unavailable": "down",
    "service_unavailable": "down",
    "provider_unavailable": "down",
    "unavailable_error": "down",
    "timeout_error": "timeout",
    "deadline_exceeded": "timeout",
    "gateway_timeout": "timeout",
    "request_timeout": "timeout",
}
_VERDICTS = {
    "internal": Verdict(code="PROVIDER_INTERNAL_ERROR", weak=True),
    "down": Verdict(code="PROVIDER_UNAVAILABLE"),
    "timeout": Verdict(code="PROVIDER_TIMEOUT"),
}


@asked_when(ENDED | _CUT)
def stream_cut(evidence: Evidence) -> Verdict | None:
    """A stream that broke off, by its words or by its missing end."""
    if evidence.stream == "cut" or evidence.hears(_CUT):
        return Verdict(code="PROVIDER_STREAM_CUT")
    return None


@asked_when(ENDED)
def stream_end(evidence: Evidence) -> Verdict | None:
    """A stream that ended by the book and still is a failure."""
    match evidence.stream:
        case "empty":
            return Verdict(code="PROVIDER_EMPTY_RESPONSE")
        case "overflow":
            return Verdict(code="PROVIDER_CONTEXT_OVERFLOW")
        case "length":
            return Verdict(code="PROVIDER_OUTPUT_INVALID", retryable=False)
        case "malformed":
            return Verdict(code="PROVIDER_OUTPUT_INVALID")
        case "done":
            return Verdict(code="PROVIDER_MALFORMED_RESPONSE")
    return None


@asked_when(phrases("model has crashed"))
def model_crashed(_: Evidence) -> Verdict | None:
    """A local server's model is gone until it is loaded again, whatever status tells it (LM Studio: 400)."""
    return Verdict(code="PROVIDER_UNAVAILABLE")


@asked_when(_DOWN | _INTERNAL)
def own_words(evidence: Evidence) -> Verdict | None:
    """Internal errors and outages inside a 200, a stream, or an exception's text."""
    if evidence.status is not None and evidence.status >= 400 and evidence.status not in (408, 429, 500):
        # Every other status says more than a library's or a proxy's sentence about it.
        return None
    if evidence.source in (Source.PROCESS, Source.JSONRPC):
        return None
    down = evidence.hears(_DOWN)
    return Verdict(code="PROVIDER_UNAVAILABLE" if down else "PROVIDER_INTERNAL_ERROR", weak=evidence.raised is not None)


@asked_when(codes(" ".join(_CODES)))
def own_codes(evidence: Evidence) -> Verdict | None:
    """server_error, api_error, unavailable: where no status speaks."""
    if evidence.status is not None and evidence.status >= 400 and evidence.status != 500:
        return None
    return next((_VERDICTS[_CODES[code]] for code in evidence.codes if code in _CODES), None)


RULES = (stream_cut, stream_end, model_crashed, own_words, own_codes)
