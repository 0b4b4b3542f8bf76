"""Rules for rejected requests: content, history, tools, model, a missing feature, a file that cannot be fetched."""

from __future__ import annotations

import re

from holdfast.classify.evidence import Evidence, Source, Verdict, applies_when
from holdfast.classify.phrases import ENDED, codes, phrases
from holdfast.classify.words import Words

_LISTED = Words("request")

_POLICY = phrases(_LISTED["policy"])

_ACCOUNT_POLICY = phrases("data policy", "settings/privacy", "account is blocked", "account has been blocked")
_GONE = phrases(_LISTED["gone"])
# The model exists, but not for this account.
_NOT_FOR_YOU = phrases(_LISTED["not_for_you"])
_MISSING_FOR_ALL = phrases(_LISTED["missing_for_all"])
# A model's name may be between the words: "The model `gpt-9` does not exist".
_MODEL_MISSING = re.compile(
    r"\bmodels?\b.{0,120}?\b(?:not found|does not exist|doesn't exist|not exist|could not be found|cannot be found|unavailable)\b",
    re.DOTALL,
)

_MISSING = phrases(_LISTED["missing"])
_NOT_FOUND = codes("not_found_error")
# "model is temporarily unavailable" with a 5xx is an outage, not a missing model.
_FOR_NOW = phrases("temporarily", "temporary", "provider is currently unavailable", "provider is unavailable")
_HISTORY = phrases(_LISTED["history"])
_SCHEMA = phrases(_LISTED["schema"])
_TOOLS_MISSING = phrases(_LISTED["tools_missing"])
_STREAMING = phrases(_LISTED["streaming"])
_CAPABILITY = phrases(_LISTED["capability"])
_FETCH = phrases(_LISTED["fetch"])

_NOT_A_FILE = phrases("credential", "a token", "access token", "the token")
_IN_TIME = phrases("timeout", "timed out")
_SERVER_AWAY = phrases(_LISTED["server_away"])
_ITS_OWN_STATUS = frozenset({401, 403, 429, 502, 503, 504})
"""With these statuses the caller's own request failed: "HTTP 401 error: Unable to fetch record"."""
_BAD_OUTPUT = phrases(_LISTED["bad_output"])


@applies_when(_POLICY, not_outage=True, not_defect=True)
def content_policy(evidence: Evidence) -> Verdict | None:
    """A content filter, moderation, a usage policy or a safety system rejected the content."""
    # The text of a rate limit often quotes the terms of service.
    if evidence.status != 429 and not evidence.matches(_ACCOUNT_POLICY):
        return Verdict(code="PROVIDER_CONTENT_POLICY")
    return None


@applies_when(ENDED)
def filtered_stream(evidence: Evidence) -> Verdict | None:
    """A content filter ended the stream."""
    if evidence.stream == "filtered":
        return Verdict(code="PROVIDER_CONTENT_POLICY")
    return None


# What the network did. It is the cause of a sentence such as "failed to download".
_LINE = phrases(_LISTED["line"])


@applies_when(_FETCH)
def remote_fetch(evidence: Evidence) -> Verdict | None:
    """The provider could not fetch a URL of the request.

    A timeout while fetching is temporary, other failures are not.
    """
    if evidence.exit_code is not None or evidence.rpc_code is not None:
        # A tool that downloads is not a provider that fetches.
        return None
    if evidence.matches(_NOT_A_FILE) or evidence.status in _ITS_OWN_STATUS or evidence.matches(_SERVER_AWAY):
        return None
    answered = evidence.status is not None and 400 <= evidence.status < 500
    if not answered and evidence.matches(_LINE):
        # The sentence names its cause. A 4xx says that the caller's address is wrong; nothing else does.
        return None
    return Verdict(code="PROVIDER_TIMEOUT" if evidence.matches(_IN_TIME) else "PROVIDER_REMOTE_FETCH_FAILED")


@applies_when(_HISTORY, not_outage=True, not_defect=True)
def history(_: Evidence) -> Verdict | None:
    """The history is wrong: tool calls without results, roles out of order, changed signatures."""
    return Verdict(code="PROVIDER_HISTORY_INVALID")


@applies_when(_TOOLS_MISSING, not_outage=True)
def missing_tools(_: Evidence) -> Verdict | None:
    """The model cannot call tools."""
    return Verdict(code="PROVIDER_MISSING_TOOL_CALLING")


@applies_when(_STREAMING, not_outage=True)
def streaming(_: Evidence) -> Verdict | None:
    """The call must be streamed, or must not be."""
    return Verdict(code="PROVIDER_MISSING_STREAMING")


@applies_when(_SCHEMA, not_outage=True)
def tool_schema(evidence: Evidence) -> Verdict | None:
    """The provider does not accept the schema of a tool."""
    # The names of packages look the same on stderr: "com.android.tools.build".
    return Verdict(code="PROVIDER_TOOL_SCHEMA_INVALID") if evidence.exit_code is None else None


@applies_when(_BAD_OUTPUT)
def output_check(_: Evidence) -> Verdict | None:
    """The model's output failed the provider's own check. Sampling again helps."""
    return Verdict(code="PROVIDER_OUTPUT_INVALID")


@applies_when(_CAPABILITY, not_outage=True)
def missing_capability(evidence: Evidence) -> Verdict | None:
    """The model or the account does not support a parameter, a modality or a mode."""
    if evidence.exit_code is not None and evidence.status is None and "model" not in evidence.text:
        # An option or an engine that a tool does not support is not a capability of a model.
        return None
    # Local runtimes send 500 for what they do not support.
    rejected = evidence.status is None or 400 <= evidence.status <= 501
    # Without a status an exception's words may be about the program itself. With one, an SDK passes on a server's words.
    served = evidence.raised is None or evidence.status is not None
    return Verdict(code="PROVIDER_CAPABILITY_MISSING") if rejected and served else None


@applies_when(
    phrases("chat_template is not set", "chat template functions", "no chat template", "not have a chat template")
)
def chat_template(_: Evidence) -> Verdict | None:
    """A base model cannot hold a conversation, in any wrapper."""
    return Verdict(code="PROVIDER_CAPABILITY_MISSING")


_NOT_THE_ENDPOINT = phrases(_LISTED["not_the_endpoint"])


@applies_when(_NOT_THE_ENDPOINT)
def wrong_endpoint(evidence: Evidence) -> Verdict | None:
    """The address answers, but not in this protocol: another address is needed."""
    served = evidence.status is not None and evidence.status >= 400
    return None if served or evidence.exit_code else Verdict(code="PROVIDER_ENDPOINT_NOT_FOUND")


_REJECTED_PART = phrases(_LISTED["rejected_part"])
_SERVER_DEFECT = phrases(_LISTED["server_defect"])
# The server's own statement names something that its database lacks.
_SCHEMA_LACKS = re.compile(
    r"\b(?:column|relation|table|function|procedure|schema)\b.{0,80}\b(?:does not|doesn't) exist\b"
)
# A store that stopped writing stays so until somebody makes room.
_STORE_CLOSED = phrases(_LISTED["store_closed"])


@applies_when(_REJECTED_PART | _SERVER_DEFECT | _STORE_CLOSED | _MISSING)
def never_heals(evidence: Evidence) -> Verdict | None:
    """A 500 that stays: a part that the server does not know, a type error in its code, a store without room."""
    if evidence.status != 500:
        return None
    if evidence.matches(_REJECTED_PART):
        return Verdict(code="PROVIDER_CAPABILITY_MISSING")
    if not evidence.matches(_SERVER_DEFECT | _STORE_CLOSED) and not _SCHEMA_LACKS.search(evidence.text):
        return None
    return Verdict(code="PROVIDER_INTERNAL_ERROR", retryable=False)


@applies_when(phrases("无可用渠道 | available channel for model\n"))
def no_channel(evidence: Evidence) -> Verdict | None:
    """A relay has no channel for this model in this group. That is how it is set up, also if it sends a 503."""
    return Verdict(code="PROVIDER_MODEL_NOT_FOUND") if "model" in evidence.text or "模型" in evidence.text else None


_OLD_CLIENT = phrases(_LISTED["old_client"])
_RATES = phrases(_LISTED["rates"])


@applies_when(_OLD_CLIENT)
def old_client(evidence: Evidence) -> Verdict | None:
    """The server serves no client as old as this one, whatever status it sends. A newer one must be installed."""
    turned_away = evidence.source in (Source.HTTP, Source.SSE, Source.GRPC) and (evidence.status or 400) < 500
    return Verdict(code="PROVIDER_BAD_REQUEST") if turned_away and not evidence.matches(_RATES) else None


_CLOSED_TO_YOU = phrases("not have access to it", "not have access to the model", "not have access to this model")
_OLD_SETTING = phrases("deprecated for this model", "deprecated with this model", "deprecated for the model")


@applies_when(_GONE | _MISSING | _NOT_FOUND, not_outage=True, not_defect=True)
def model_missing(evidence: Evidence) -> Verdict | None:
    """The model has a wrong name, is retired, or is not open to this account."""
    if evidence.rpc_code is not None:
        return None
    if evidence.exit_code is not None:
        # Programs have models of many kinds. Only a provider is in doubt whether it is missing or closed to the caller.
        closed = evidence.matches(_CLOSED_TO_YOU) and _MODEL_MISSING.search(evidence.text)
        return Verdict(code="PROVIDER_MODEL_NOT_FOUND") if closed else None
    if (evidence.status is None or evidence.status >= 500) and evidence.matches(_FOR_NOW):
        return None
    if "grpc:unavailable" in evidence.codes or "grpc:deadline_exceeded" in evidence.codes:
        # The model could not be loaded because the process that loads it is away.
        return None
    if evidence.matches(_OLD_SETTING):
        # A parameter is not taken any more. The model is there.
        return Verdict(code="PROVIDER_BAD_REQUEST")
    if evidence.status in (401, 403) and "model" not in evidence.text:
        # "This website is no longer supported" is about no model, and the status names who may not.
        return None
    if evidence.matches(_NOT_FOR_YOU) and not evidence.matches(_MISSING_FOR_ALL):
        return Verdict(code="AUTH_FORBIDDEN")
    if evidence.matches(_GONE) or _MODEL_MISSING.search(evidence.text) or _only_names_it(evidence):
        return Verdict(code="PROVIDER_MODEL_NOT_FOUND")
    return None


def _only_names_it(evidence: Evidence) -> bool:
    """Whether the whole message is `model: NAME`, as Anthropic writes it."""
    return evidence.matches(_NOT_FOUND) and evidence.text.startswith("model: ")


# EARLY runs before the rules for overflow and rate limits, because its sentences may contain "too many" and "limit".
FIRST = (old_client, no_channel)
EARLY = (remote_fetch, history, output_check, content_policy, filtered_stream)
MODELS = (model_missing,)
LATE = (wrong_endpoint, chat_template, missing_tools, streaming, tool_schema, missing_capability, never_heals)
