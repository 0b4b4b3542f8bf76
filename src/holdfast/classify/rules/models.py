"""A model or an endpoint that is not there."""

from __future__ import annotations

import re

from holdfast.classify.evidence import Evidence, Verdict, asked_when
from holdfast.classify.phrases import codes, phrases

_GONE = phrases("""
    model not found | model_not_found | is not found for api version | unknown model | invalid model
    not a valid model | no such model | model does not exist | model not exist | has been deprecated
    been decommissioned | is deprecated | no longer available | no longer supported | no endpoints found for
    no allowed providers | deployment for this resource does not exist | not a supported model
    model is not available | model is not supported | unsupported model | model not available | failed to load model
    model unavailable | was retired | been retired | no longer exists | model may not exist | model not supported
    unable to access model | could not find model | no models loaded | model isn't available | is not a chat model
    requested model is not | model you requested | 模型不存在 | 不支持的模型 | 无可用渠道
""")
_MODEL_MISSING = re.compile(
    r"\bmodels?\b.{0,120}?\b(?:not found|does not exist|doesn't exist|not exist|could not be found|cannot be found|unavailable)\b",
    re.DOTALL,
)

_MISSING = phrases("""
    not found | does not exist | doesn't exist | not exist | could not be found | cannot be found | unavailable
""")
_NOT_FOUND = codes("not_found_error")
_FOR_NOW = phrases("temporarily", "temporary")


@asked_when(_GONE | _MISSING | _NOT_FOUND, refusal=True, limit=True)
def model_missing(evidence: Evidence) -> Verdict | None:
    """Wrong name, retired, or not open to this account."""
    if evidence.rpc_code is not None or evidence.exit_code is not None:
        return None
    if evidence.status is not None and evidence.status >= 500 and evidence.hears(_FOR_NOW):
        return None
    if evidence.hears(_GONE) or _MODEL_MISSING.search(evidence.text) or _only_names_it(evidence):
        return Verdict(code="PROVIDER_MODEL_NOT_FOUND")
    return None


def _only_names_it(evidence: Evidence) -> bool:
    """Anthropic's whole message is `model: NAME`."""
    return evidence.hears(_NOT_FOUND) and evidence.text.startswith("model: ")


RULES = (model_missing,)
