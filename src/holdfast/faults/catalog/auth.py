"""AUTH_: identity and permissions, at the bridge and at providers."""

from __future__ import annotations

from holdfast.faults.catalog.entry import PERMANENT, Traits, entry
from holdfast.faults.enums import Category, NextActor, Scope

_DENIED: Traits = {
    **PERMANENT,
    "scope": Scope.CREDENTIAL,
    "http_status": 401,
    "close_code": 4500,
    "exit_code": 1,
    "category": Category.AUTH,
    "classed": "ToolTerminal/Forbidden",
}

ENTRIES = (
    # A wrong key never becomes right by itself. The scope keeps other keys in use.
    entry(
        "AUTH_FAILED",
        _DENIED,
        "Authentication failed",
        "The credentials were not accepted. Someone has to check the key.",
        "Check that the API key is complete, belongs to this provider and was not revoked",
        "Check which environment variable the key is read from: `holdfast doctor` lists those that are set",
        aliases=("auth", "UNAUTHORIZED", "ProviderTransient/Unauthorized"),
    ),
    # The same call is not retried. If a refresh is configured, it gets a new token and repeats the call once.
    entry(
        "AUTH_TOKEN_EXPIRED",
        _DENIED,
        "The token has expired",
        "Your sign-in has expired. Please sign in again.",
        "Refresh the token or sign in again; Holdfast then repeats the call once",
        aliases=("TOKEN_EXPIRED",),
        next_actor=NextActor.USER,
        close_code=4005,
    ),
    # This code is not AUTH_TOKEN_EXPIRED, because a refresh must not restore access that somebody withdrew.
    entry(
        "AUTH_TOKEN_REVOKED",
        _DENIED,
        "The token was revoked",
        "Your access was withdrawn. Please sign in again.",
        "Issue a new token",
        next_actor=NextActor.USER,
        close_code=4509,
    ),
    entry(
        "AUTH_INVALID_TOKEN",
        _DENIED,
        "The token is not valid",
        "The access token was not recognised.",
        "Copy the token again, whole and without spaces",
        "Issue a new token if the old one is lost",
        aliases=("INVALID_TOKEN",),
        next_actor=NextActor.USER,
    ),
    entry(
        "AUTH_REQUIRED",
        _DENIED,
        "Not authenticated",
        "Please sign in first.",
        "Send `auth` as the first message, or an Authorization header",
        aliases=("NOT_AUTHENTICATED",),
        next_actor=NextActor.USER,
        close_code=4502,
    ),
    entry(
        "AUTH_FORBIDDEN",
        _DENIED,
        "Permission denied",
        "This account is not allowed to do that.",
        "Grant the permission, or use a key that has it",
        "Check organisation, project and data-policy settings of the account",
        aliases=("PERMISSION_DENIED",),
        http_status=403,
        close_code=4503,
    ),
    # The token is valid, so the client must not throw it away.
    entry(
        "AUTH_INSUFFICIENT_SCOPE",
        _DENIED,
        "The token lacks [the scope {scope}|a scope]",
        "This token may not be used for that.",
        "At a provider: give the key the scope the message names",
        "At the bridge: use a token of the right category, device, hook or admin",
        http_status=403,
        close_code=4503,
    ),
    # The place where this process runs is the cause. Neither the key nor the provider is broken.
    entry(
        "AUTH_REGION_BLOCKED",
        _DENIED,
        "The provider does not serve this country or region",
        "The provider does not offer its service where this request comes from.",
        "Use another provider, or a region the provider serves",
        http_status=403,
        close_code=4503,
        scope=Scope.PROCESS,
    ),
    # All keys of the account fail from now on, so an operator must act.
    entry(
        "AUTH_ACCOUNT_DISABLED",
        _DENIED,
        "The account is disabled",
        "The provider has disabled this account.",
        "Look for the provider's e-mail about it and write to its support",
        "Fail over to another provider meanwhile",
        http_status=403,
        close_code=4503,
    ),
    # The fault is this machine's clock, so every provider that signs requests is affected.
    entry(
        "AUTH_CLOCK_SKEW",
        _DENIED,
        "The request's signature is too old or too new: this machine's clock is off",
        "This machine's clock does not agree with the provider's.",
        "Set the clock (NTP); the Date header of any response shows the right time",
        "Refresh temporary credentials if they are stale",
        scope=Scope.PROCESS,
    ),
)
