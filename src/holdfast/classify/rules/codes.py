"""Rules for machine-readable codes that mean the same in every response. They are more exact than status and prose."""

from __future__ import annotations

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from holdfast.classify.evidence import Evidence, Verdict, applies_when
from holdfast.classify.phrases import codes, phrases

if TYPE_CHECKING:
    from holdfast.classify.phrases import Phrases
    from holdfast.faults import Code

# The most serious code comes first: a body with `rate_limit_error` and `1113` is about an empty account.
_CODES: tuple[tuple[Code, str], ...] = (
    (
        "PROVIDER_BILLING",
        """
        insufficient_quota insufficient_balance insufficient_credits insufficient_funds billing_not_active
        billing_hard_limit_reached billing_error payment_required arrearage account_overdue accountoverdueerror
        allocationquota.freetieronly exceeded_current_quota_error 1113 1112 base_resp:1008 credits_exhausted
        out_of_credits insufficient_user_quota pre_consume_token_quota_failed spend_limit_reached
        paymentrequirederror billing_limit_reached balance_insufficient
    """,
    ),
    (
        "PROVIDER_CONTENT_POLICY",
        """
        content_filter content_policy content_policy_error content_policy_violation responsibleaipolicyviolation cyber_policy bio_policy invalid_prompt
        data_inspection_failed datainspectionfailed moderation_blocked content_blocked sensitive_content
        safety_violation 1301 image_generation_user_error prohibited_content content_moderation content_violation
        inputtextsensitivecontentdetected guardrail_intervened outputtextsensitivecontentdetected
        sensitivecontentdetected base_resp:1026 base_resp:1027 moderation_error
    """,
    ),
    (
        # The table holds only exact codes. The overflow rules read sentences about length.
        "PROVIDER_CONTEXT_OVERFLOW",
        """
        context_length_exceeded exceed_context_size_error model_max_prompt_tokens_exceeded context_window_exceeded
        contextwindowexceedederror input_too_long prompt_too_long max_prompt_tokens_exceeded reduce_the_length
        context_overflow model_context_window_exceeded 1261 too_many_prompt_tokens too_many_tokens
    """,
    ),
    (
        "PROVIDER_REQUEST_TOO_LARGE",
        """
        request_too_large payload_too_large request_entity_too_large image_too_large file_too_large
        tokens_limit_reached requesttoolarge image_file_too_large content_too_large
    """,
    ),
    ("PROVIDER_OUT_OF_MEMORY", "insufficient_memory out_of_memory"),
    (
        "PROVIDER_MODEL_NOT_FOUND",
        """
        model_not_found deploymentnotfound model_decommissioned model_not_available modelnotfound model_not_exist
        invalid_model unknown_model model_not_supported invalidendpointormodel.notfound modelnotopen 1211
        operationnotsupported.model model_deprecated model_terms_required
    """,
    ),
    (
        "AUTH_ACCOUNT_DISABLED",
        """
        account_deactivated organization_restricted account_disabled account_suspended user_deactivated
        organization_deactivated 1121 1120 account_locked user_banned
    """,
    ),
    ("PROVIDER_ENTITLEMENT_MISSING", "1311 usage_not_included"),
    ("AUTH_FORBIDDEN", "1313 customer_verification_required fair_usage_violation"),
    ("AUTH_REGION_BLOCKED", "unsupported_country_region_territory region_not_supported"),
    ("AUTH_TOKEN_REVOKED", "token_revoked token_invalidated"),
    (
        "AUTH_TOKEN_EXPIRED",
        """
        token_expired expiredtokenexception expired_token tokenexpired expiredtoken 1003 requestexpired
    """,
    ),
    ("AUTH_CLOCK_SKEW", "requesttimetooskewed requestinthefuture"),
    (
        "AUTH_FAILED",
        """
        invalid_api_key unrecognizedclientexception api_key_invalid invalidsignatureexception incompletesignature
        invalidclienttokenid missingauthenticationtokenexception invalidapikey 1000 1001 1002 1004 base_resp:1004
        base_resp:2049 no_api_key invalid_token signaturedoesnotmatch authentication_failed missing_api_key
        invalid_authentication_error no_auth
    """,
    ),
    (
        # Numbers such as 1305 belong to z.ai. Numbers of MiniMax mean other things and have the prefix base_resp.
        "PROVIDER_OVERLOADED",
        """
        overloaded_error engine_overloaded_error engine_overloaded server_is_overloaded capacity_exceeded
        model_capacity_exhausted slow_down service_tier_capacity_exceeded overloaded 1305 1312 model_overloaded
        serveroverloaded server_overloaded provider_overloaded modelservingbusy
    """,
    ),
    (
        "PROVIDER_HISTORY_INVALID",
        """
        invalid_message invalid_thinking_signature invalid_encrypted_content invalid_chat_history invalid_tool_results
    """,
    ),
    # LangGraph puts its codes at the end of the message, in the address of a page.
    ("TASK_LOOP_BOUND", "graph_recursion_limit"),
    ("PROVIDER_TOOL_SCHEMA_INVALID", "invalid_function_parameters invalid_json_schema invalid_tool_schema"),
    (
        "PROVIDER_OUTPUT_INVALID",
        """
        tool_use_failed json_validate_failed output_parse_failed malformed_function_call malformed_tool_call
        output_parsing_failure
    """,
    ),
)


_TABLES: tuple[tuple[Code, Phrases], ...] = tuple((code, codes(written)) for code, written in _CODES)
_WORDED = codes(" ".join(word for _, written in _CODES for word in written.split() if not word.isdecimal()))
"""All codes that are words, not numbers."""
# In a plain text, only the codes that are clearly no words of a sentence: `context_length_exceeded`, not `overloaded`.
_IN_TEXT: tuple[tuple[Code, Phrases], ...] = tuple(
    (code, phrases(" | ".join(word for word in written.split() if word.count("_") > 1) + "\n"))
    for code, written in _CODES
)


@applies_when(reduce(or_, (group for _, group in _TABLES)))
def exact_code(evidence: Evidence) -> Verdict | None:
    """The code is exact, such as insufficient_quota, content_filter, context_length_exceeded or model_not_found."""
    code = evidence.first_match(_TABLES)
    if (evidence.status or 0) >= 500 and not evidence.matches(_WORDED):
        # A number means something else for each vendor. A server that reports its own failure is more exact.
        return None
    return None if code is None else Verdict(code=code)


@applies_when(reduce(or_, (group for _, group in _IN_TEXT)))
def code_in_text(evidence: Evidence) -> Verdict | None:
    """A text without a status quotes an exact code: "stop reason: model_context_window_exceeded"."""
    if evidence.status is not None and evidence.status >= 400:
        return None
    code = evidence.first_match(_IN_TEXT)
    return None if code is None else Verdict(code=code)


RULES = (exact_code, code_in_text)
