"""Rules for keys, permissions, accounts and blocked regions."""

from __future__ import annotations

import re
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING

from holdfast.classify.evidence import Evidence, Verdict, applies_when, contains_any
from holdfast.classify.phrases import codes, phrases
from holdfast.faults import Scope

if TYPE_CHECKING:
    from holdfast.classify.phrases import Phrases
    from holdfast.faults import Code

_TABLE: tuple[tuple[Code, Phrases], ...] = (
    (
        "AUTH_REGION_BLOCKED",
        phrases("""
        country, region, or territory not supported | user location is not supported | location is not supported
        not available in your country | not available in your region | not supported in your country
        not supported in your region | unsupported country | region is not supported
        not available from unsupported | region not supported | serve your region | serve your country
        unavailable in your region
        unavailable in your country | blocked in your country | restricted in your region | not available in your location
        not supported in your location | available in your area | your country is not | your region is not
    """),
    ),
    # These are OpenRouter's privacy settings. They look like a content policy, but the account's owner has to change
    # them.
    ("AUTH_FORBIDDEN", phrases("data policy", "guardrail restrictions", "settings/privacy")),
    (
        # This stands before AUTH_FAILED, because an expired token can be refreshed and a wrong key cannot.
        "AUTH_TOKEN_EXPIRED",
        phrases("""
        token has expired | token is expired | token expired | expired token | api key expired | key has expired
        jwt expired | session has expired | credentials have expired
        security token included in the request is expired | login expired | oauth token has expired
        expired or revoked | refresh token | authentication token is expired | credentials expired | token is inactive
        inactive token | token is not active | token inactive | expired key | key expired | certificate has expired for user
        expiredtoken | expiredtokenexception | auth tokens | session is expired | login has expired | login session expired
    """),
    ),
    (
        "AUTH_TOKEN_REVOKED",
        phrases("""
        token has been revoked | token was revoked | key has been revoked | oauth token revoked | been invalidated
    """),
    ),
    (
        # This stands before AUTH_FAILED: many providers send 401 for a disabled account, and a new key would not help.
        "AUTH_ACCOUNT_DISABLED",
        phrases("""
        account has been deactivated | account is deactivated | organization has been restricted | has been disabled
        account disabled | organization has been disabled | account has been suspended | account is suspended
        account suspended | has been banned | account is disabled | account has been terminated
        account was suspended | account has been locked | account has been blocked | account is blocked | account blocked
        unusual activity detected | usage disabled
    """),
    ),
    # This stands before AUTH_FAILED: the token is right, but it is not allowed to do this.
    (
        "AUTH_FORBIDDEN",
        phrases("""
        not accessible by | missing required scope | missing scopes | insufficient scope | insufficient authentication scopes | insufficient_scope
    """),
    ),
    (
        "AUTH_FAILED",
        phrases("""
        invalid api key | incorrect api key | invalid x-api-key | invalid api-key | api key not valid | no api key
        api key is invalid | missing api key | api key is missing | api_key client option must be set
        api key not found | no auth credentials | invalid authentication | authentication_error
        authentication failed | failed to authenticate | could not resolve authentication | invalid bearer token
        invalid token | invalid credentials | unauthorized | unauthenticated | authentication fails | wrong api key
        security token included in the request is invalid | signature we calculated does not match
        invalid proxy server token | no cookie auth | please run /login | not logged in | please log in
        unable to locate credentials | missing credentials | authentication required | requires authentication
        authentication parameter not received | api key required | api key provided | did not provide an api key
        didn't provide an api key | user not found | invalid subscription key | access token is missing
        authenticationerror | reauthentication is needed | default credentials were not found | malformed api key
        login fail | provide a valid api key | check your api key | invalid_api_key | api secret key
        authorized_error | token not found | authorization header | api_key is not set | key is not set
        key not set | bad credentials | login required | sign in to | not signed in | sign in again | log in again
        must log in | re-authenticate | reauthenticate | session token invalid | unable to authenticate | could not authenticate
        cannot authenticate | not authenticated | authentication error | authentication failure | authentication failures
        credentials not correct | incorrect credentials | wrong credentials | invalid username | incorrect username
        bad username | incorrect password | wrong password | invalid password | missing password | incorrect or missing password
        login failed | failed to log in | logon failure | auth login | az login | sso login | npm login | docker login
        run login | please login | please sign in | must be logged in | need to log in | need to be logged in | requires sign in
        requires login | no credentials | credentials were not found | could not find credentials | no token found
        token is invalid | token is not valid | token is missing | api key is required | requires an api key | e401 | eotp
        could not read username | could not read password | one-time password | proxy authentication | access key id
        two-factor | no valid credential | could not load credentials | failed to get credentials | credentials are missing
        credentials are invalid | credentials are not valid | invalid user credentials | noauth | wrongpass | not logged into
        interactive login | authorization failed | authorization required | invalid authorization | authorization error
        load vertex credentials | load credentials | credentials are required | getting credentials | login was refused
        access_refused | login denied | logon denied | acquire token | acquire a token
        obtain a token | retrieve a token | improper token | aadsts | host key verification failed | auth token found
        in the keychain | keychain item | password is required | signature verification failed | invalid signature | signature mismatch | no password supplied | no password was | fe_sendauth
        username-password pair | 无效的令牌 | 令牌无效 | 未授权 | 鉴权失败 | 身份验证
    """),
    ),
    (
        "AUTH_FORBIDDEN",
        phrases("""
        permission denied | permission_denied | does not have permission | not have permission | not authorized
        access denied | not allowed for this organization | not allowed to access | insufficient permissions
        missing scopes | don't have access | do not have access to the | doesn't have access | forbidden
        row-level security | not authorised | lacks permission | authentication is currently not allowed | has not been used in project
        is disabled. enable it | not permitted to | must be a member | ip address is not | ip not allowed
        allowlist | whitelist | only authorized for use with | just a moment... | enable javascript and cookies
        attention required | sorry, you have been blocked | must accept the | gated repo | gated model | access to model
        cannot be used for other | key not authorized | not able to access | key_model_access_denied
        not allowed to call | can only access models | fair use | unauthorised | not eligible | ineligible
        insufficient privilege | e403 | error code: 1020 | error 1020 | error code: 1010
        restricted by your | operation not allowed | sufficient permission | requires permission | need permission
        protected branch | rule violations | denied by policy | denied request | not allowed by policy | blocked by policy
        pg_hba.conf entry | have authorization | cors policy | resource is denied | access has been restricted
        not an admin | image access denied | lack the required | accessdenied | policy enablement | scope has changed
    """),
    ),
)
_AUTH_CODES: dict[str, Code] = {
    "authentication_error": "AUTH_FAILED",
    "unauthorized": "AUTH_FAILED",
    "unauthenticated": "AUTH_FAILED",
    "permission_error": "AUTH_FORBIDDEN",
    "permission_denied": "AUTH_FORBIDDEN",
    "permissiondenied": "AUTH_FORBIDDEN",
    "forbidden": "AUTH_FORBIDDEN",
    "access_denied": "AUTH_FORBIDDEN",
    "access_terminated_error": "AUTH_FORBIDDEN",
    "auth_unavailable": "AUTH_FAILED",
}


@applies_when(reduce(or_, (group for _, group in _TABLE)), not_outage=True)
def in_prose(evidence: Evidence) -> Verdict | None:
    """The text names a bad key, a missing permission, a disabled account or a blocked region."""
    if evidence.rpc_code is not None or (
        evidence.exit_code is not None and evidence.text.endswith("permission denied")
    ):
        # A permission of a tool or a shell is not a permission of the provider.
        return None
    if evidence.status is None and contains_any(evidence.text, ("eacces", "eperm")):
        # The operating system denied it, not a provider.
        return None
    # The order of the table decides: region and account come before key, key comes before permission.
    code = evidence.first_match(_TABLE)
    return None if code is None else Verdict(code=code)


# Sentences that no gateway writes on a page of its own: the server behind it denied this caller.
_DENIED = phrases("""
    not authorized to perform | not authorized to access | access is denied | invalid api key | incorrect api key provided
    invalid x-api-key | api key not valid | does not have permission | unable to locate credentials
""")


@applies_when(_DENIED)
def denied_behind_gateway(evidence: Evidence) -> Verdict | None:
    """A gateway reports with 502, 503 or the like that the server behind it denied the caller. That stays."""
    passed_on = evidence.status is not None and evidence.status > 500 and not evidence.html
    return Verdict(code="AUTH_FORBIDDEN") if passed_on else None


@applies_when(codes(" ".join(_AUTH_CODES)))
def by_code(evidence: Evidence) -> Verdict | None:
    """The code is authentication_error, permission_error or similar."""
    return next((Verdict(code=_AUTH_CODES[code]) for code in evidence.codes if code in _AUTH_CODES), None)


_KEY_UNSET = phrases("api_key is not set", "key is not set", "key not set")
_ABSENT = phrases("""
    environment variable | env var | missing key | must be set | is required | not provided | is missing | must provide
    please set | please provide
    must be provided | is not set | not configured
""")
_KEY = re.compile(
    r"(?:\bapi[_ -]?key|\b(?:api|access|auth)[_ -]?token|\bsecret[_ -]?key|\b[a-z0-9_]+_(?:key|token|secret|password|credentials))\b"
)


_NOT_THERE = phrases("not found", "could not find", "couldn't find", "no such", "cannot find")
_SECRET_NAME = re.compile(r"\b(?:\w+_)?(?:api|access|auth|secret|bearer|refresh|private)[_ -](?:key|token)\b")


@applies_when(_KEY_UNSET | _ABSENT | _NOT_THERE)
def key_missing(evidence: Evidence) -> Verdict | None:
    """A key is not there. A gateway that lacks its key may answer with any status."""
    if evidence.matches(_KEY_UNSET):
        return Verdict(code="AUTH_FAILED")
    if evidence.status is not None or evidence.rpc_code is not None or len(evidence.text) >= _SENTENCE:
        return None
    if evidence.matches(_ABSENT) and _KEY.search(evidence.text):
        return Verdict(code="AUTH_FAILED")
    # "Not found" can be about many things, and a tool's keys may be those of a map.
    if evidence.matches(_NOT_THERE) and not evidence.exit_code and _SECRET_NAME.search(evidence.text):
        return Verdict(code="AUTH_FAILED")
    return None


_SENTENCE = 300
"""A missing key is reported in a sentence. A longer text may name a key for many reasons."""


_FOR_A_PERSON = phrases("""
    waiting for permission | waiting for permissions | waiting for approval | waiting for user | waiting for the user
    waiting for login | waiting for authorization | waiting for authentication | waiting for confirmation
    waiting for device code | waiting for consent | waiting for sign-in
""")


@applies_when(_FOR_A_PERSON)
def person_awaited(evidence: Evidence) -> Verdict | None:
    """A program waited for a person, who did not come. Another attempt without the person waits again."""
    return Verdict(code="AUTH_REQUIRED") if evidence.status is None and evidence.rpc_code is None else None


_HUMAN = phrases("""
    captcha | recaptcha | hcaptcha | are you a robot | not a robot | robot check | verify you are human | verify you are a human
    verifying you are human | verify that you are human | confirm you are human | prove you are human | human verification
    unusual traffic | automated queries | checking your browser | access to this page has been denied | pardon our interruption
    bot detection | bot protection | anti-bot
""")
_OF_THE_CHECK = phrases("timeout", "timed out", "unavailable", "solver")
_CHECKED = frozenset({None, 200, 202, 403})


@applies_when(_HUMAN)
def human_wanted(evidence: Evidence) -> Verdict | None:
    """A site wants to see a person. A program that asks again only looks more like one."""
    if evidence.status not in _CHECKED or evidence.rpc_code is not None or evidence.exit_code is not None:
        return None
    # The check itself may be slow or down. That passes.
    return None if evidence.matches(_OF_THE_CHECK) else Verdict(code="AUTH_FORBIDDEN", scope=Scope.REQUEST)


RULES = (person_awaited, human_wanted, key_missing, in_prose, denied_behind_gateway, by_code)
