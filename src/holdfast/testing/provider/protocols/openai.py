"""What OpenAI's two protocols share: how errors are worded and limits announced. xAI speaks them with errors of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.testing.provider.protocols.base import Refusal

if TYPE_CHECKING:
    from holdfast.testing.provider.acts import Headers
    from holdfast.testing.provider.requests import Request

__all__ = ["REFUSALS", "XAI_REFUSALS", "error", "limits", "xai_error"]

_INVALID = "invalid_request_error"
REFUSALS = {
    "bad-request": Refusal(400, _INVALID, None, "Missing required parameter: 'messages'."),
    "auth": Refusal(
        401,
        _INVALID,
        "invalid_api_key",
        "Incorrect API key provided: sk-XXXX***XXXX. You can find your API key at https://platform.openai.com/account/api-keys.",
    ),
    "expired": Refusal(
        401, "", "token_expired", "Provided authentication token is expired. Please try signing in again."
    ),
    "billing": Refusal(400, _INVALID, "billing_hard_limit_reached", "Billing hard limit has been reached"),
    "quota": Refusal(
        429,
        "insufficient_quota",
        "insufficient_quota",
        "You exceeded your current quota, please check your plan and billing details. For more information on this error, read the docs: https://platform.openai.com/docs/guides/error-codes/api-errors.",
    ),
    "forbidden": Refusal(
        403,
        "request_forbidden",
        "unsupported_country_region_territory",
        "Country, region, or territory not supported",
    ),
    "not-found": Refusal(
        404, _INVALID, "model_not_found", "The model `{model}` does not exist or you do not have access to it."
    ),
    "overflow": Refusal(
        400,
        _INVALID,
        "context_length_exceeded",
        "This model's maximum context length is 128000 tokens. However, your messages resulted in 211305 tokens. Please reduce the length of the messages.",
    ),
    "too-large": Refusal(
        413, _INVALID, "string_above_max_length", "Request too large. Expected at most 10485760 characters."
    ),
    "rate-limit": Refusal(
        429,
        "requests",
        "rate_limit_exceeded",
        "Rate limit reached for {model} in organization org-XXXX on requests per min (RPM): Limit 3, Used 3, Requested 1.",
    ),
    "internal": Refusal(
        500, "server_error", None, "The server had an error while processing your request. Sorry about that!"
    ),
    "unavailable": Refusal(503, "server_error", None, "The server is temporarily unable to handle the request."),
    "timeout": Refusal(504, "server_error", None, "The request timed out while processing."),
    "overloaded": Refusal(
        503,
        "server_error",
        None,
        "That model is currently overloaded with other requests. You can retry your request, or contact us through our help center at help.openai.com if the error persists.",
    ),
}

_ARGUMENT = "Client specified an invalid argument"
_EXHAUSTED = "Some resource has been exhausted"
_TEAM = "00000000-0000-0000-0000-000000000000"
XAI_REFUSALS = REFUSALS | {
    "auth": Refusal(
        400,
        "",
        _ARGUMENT,
        "Incorrect API key provided: na***ys. You can obtain an API key from https://console.x.ai.",
    ),
    "overflow": Refusal(
        400,
        "",
        _ARGUMENT,
        "This model's maximum prompt length is 131072 but the request contains 211305 tokens.",
    ),
    "rate-limit": Refusal(
        429,
        "",
        _EXHAUSTED,
        f"Too many requests for team {_TEAM} and model {{model}}. Your team's rate limit is — Requests per Second (actual/limit): 9/8, Requests per Minute (actual/limit): 120/480, Tokens per Minute (actual/limit): 91000/2000000.",
    ),
    "quota": Refusal(
        429,
        "",
        _EXHAUSTED,
        f"Your team {_TEAM} has either used all available credits or reached its monthly spending limit. To continue making API requests, please purchase more credits or raise your spending limit.",
    ),
}


def error(refusal: Refusal, _: Request) -> dict[str, Any]:
    """Word an error as OpenAI does."""
    inner = {"message": refusal.message, "type": refusal.kind or None, "param": None, "code": refusal.code}
    return {"error": inner}


def xai_error(refusal: Refusal, _: Request) -> dict[str, Any]:
    """Word an error as xAI does."""
    return {"code": refusal.code or refusal.kind, "error": refusal.message}


def limits(limit: int, left: int, whole_again: float) -> Headers:  # noqa: ARG001 - OpenAI says how long, not until when
    """Announce the limits as OpenAI does."""
    return (
        ("x-ratelimit-limit-requests", str(limit)),
        ("x-ratelimit-remaining-requests", str(left)),
        ("x-ratelimit-reset-requests", "60s"),
    )
