"""Rules for limits.

429 has many meanings: a limit per minute, per day or per plan, an empty account, a request that is too large for the
limit (R82).

Sentences that name a rate limit are checked before sentences about money, because the text of a rate limit often links
to the billing page.
"""

from __future__ import annotations

import re

from holdfast.classify.evidence import Evidence, Source, Verdict, applies_when
from holdfast.classify.hints import exhausted_window, field_delay, requested_delay
from holdfast.classify.phrases import codes, codes_like, phrases
from holdfast.classify.times import QUANTITY, parse_amount
from holdfast.classify.words import Words
from holdfast.faults import PATIENCE_S, Scope

_LISTED = Words("limits")

# "Limit 30000, Requested 41222": the numbers show that the request never fits into one minute.
_ALLOWED = re.compile(rf"limit(?:ed)?(?: is| was| of| to)?[:=]?\s+({QUANTITY})")
_ASKED = re.compile(rf"\b(?:requested|requesting|requires|required|needs)[:=]?\s+({QUANTITY})")

# Many providers send these sentences. The word "billing" alone is not enough: rate limits link to the billing page.
_BILLING = phrases(_LISTED["billing"])
_CARD = phrases(_LISTED["card"])
_CARD_ERROR = codes("card_error")
# A rate limit may name the page too: "Check your provider's dashboard for quota, usage, or billing details".
_BILLING_PAGE = phrases("billing details", "please check your plan and billing")
_BUDGET = phrases(_LISTED["budget"])
_NOT_MONEY = phrases(_LISTED["not_money"])
_ENTITLEMENT = phrases(_LISTED["entitlement"])
# These plans have windows of hours, days or weeks (Claude, Codex, Copilot). A window resets at a known time.
_WINDOW = phrases(_LISTED["window"])
_DAILY = phrases(_LISTED["daily"])
_RATE = phrases(_LISTED["rate"])
_QUOTA = phrases("quota exceeded")
_RATES = phrases(_LISTED["rates"])
_WINDOW_CODES = codes(_LISTED["window_codes"])
# OpenAI sends the code "tokens" or "requests" to name the limit that was reached.
_RATE_CODES = codes(_LISTED["rate_codes"])

_LONG_WINDOW = phrases(_LISTED["long_window"])
_RATE_WORDS = phrases("rate limit", "rate limited", "rate-limited")
_NAMED = phrases("rate limit reached for", "rate limit exceeded for", "rate limit exceeded:")
_LIMITED = phrases(_LISTED["limited"])
_ONE_REQUEST = phrases("request too large for")
_PER_MINUTE = phrases("tpm", "tokens per min…", "per minute")
_ASKED_FOR = phrases(_LISTED["asked_for"])
_SUSPENDED = phrases("suspended")
# The limit belongs to the server behind a gateway, so another key of ours would not help.
_THEIRS = phrases("upstream", "not your usage limit")
_FIREWORKS = phrases("exceeded your usage limits")
"""Fireworks writes this for a rate limit."""

_NOT_IN_PLAN = phrases(_LISTED["not_in_plan"])


# What a code says about money, in whatever words: `monthly_spend_cap_reached`, `NoCreditsRemaining`, `quotaExhausted`. The word
# for the money may stand before or after the word for its end. A rate, a retry or a balancer is no money.
_NO_MONEY_CODE = (
    r"rate(?!d)|throttl|minute|second|burst|concurren|in_?flight|retry|token|time|thinking|context|latency|error_?budget|balanced|balancer"
    r"|balancing|credential|address|intent|^credit_limit$|^quota:|request|tpm|rpm|per_?day|daily|capacity|disk|memory|storage"
)
_STATE = (
    r"exceed|exhaust|insufficient|deplet|reach|out_?of|(?:^|_)no_|^no|not_?enough|too_?low|empty|disabled|inactive|not_?active|required"
    r"|limit|cap(?:$|_|ped)|suspend|negative|used_?up|consumed|hard"
)


def _about(words: str) -> str:
    return rf"^(?!.*(?:{_NO_MONEY_CODE}))(?:(?:{words})$|(?=.*(?:{words}))(?=.*(?:{_STATE})))"


_MONEY_CODE = codes_like(_about(r"billing|credits?|balance|payment|(?<!su)spend(?:ing)?|funds?|prepaid|wallet"))
_BUDGET_CODE = codes_like(_about("budgets?"))
_OF_GOOGLE = codes("resource_exhausted resourceexhausted")
_QUOTA_CODE = codes_like(_about("quotas?|allowance"))


@applies_when(_MONEY_CODE | _BUDGET_CODE | _QUOTA_CODE)
def money_by_code(evidence: Evidence) -> Verdict | None:
    """A field for machines names money, a budget or a quota. Such a field is more exact than the status and the sentence.

    The 429 of a gateway whose budget is spent says "too many requests" like any other 429.
    """
    tool = _is_tool(evidence) or evidence.source is Source.JSONRPC
    if evidence.matches(_MONEY_CODE):
        return Verdict(code="TOOL_QUOTA_EXHAUSTED" if tool else "PROVIDER_BILLING")
    # A budget or a quota that the same fields give back soon is worth the wait.
    again = field_delay(evidence)
    soon = again is not None and again <= PATIENCE_S
    if evidence.matches(_BUDGET_CODE) and not soon:
        return Verdict(code="TOOL_QUOTA_EXHAUSTED" if tool else "PROVIDER_BILLING")
    if evidence.matches(_BUDGET_CODE):
        return Verdict(code="TOOL_QUOTA_EXHAUSTED" if tool else "PROVIDER_QUOTA_EXHAUSTED", only_with_delay=True)
    return quota_by_code(evidence) if tool else None


@applies_when(_QUOTA_CODE)
def quota_by_code(evidence: Evidence) -> Verdict | None:
    """A field for machines names a quota. The exact codes run before it: `insufficient_quota` is about money.

    A quota that the sentence counts by the minute is a rate. What Google means by a quota is in its details.
    """
    if not evidence.matches(_QUOTA_CODE) or evidence.matches(_OF_GOOGLE | _DAILY | _PER_MINUTE | _RATE_WORDS):
        return None
    tool = _is_tool(evidence) or evidence.source is Source.JSONRPC
    return Verdict(code="TOOL_QUOTA_EXHAUSTED" if tool else "PROVIDER_QUOTA_EXHAUSTED", only_with_delay=True)


@applies_when(_ONE_REQUEST | _ASKED_FOR, not_defect=True)
def request_never_fits(evidence: Evidence) -> Verdict | None:
    """One request is larger than the limit of a whole minute, so waiting cannot help (Aider#1880)."""
    if evidence.matches(_ONE_REQUEST) and evidence.matches(_PER_MINUTE):
        return Verdict(code="PROVIDER_REQUEST_TOO_LARGE")
    allowed = _ALLOWED.search(evidence.text)
    asked = None if allowed is None else _ASKED.search(evidence.text)
    if asked is None or allowed is None or abs(asked.start() - allowed.start()) > _ONE_SENTENCE:
        return None
    more = (parse_amount(asked[1]) or 0.0) > (parse_amount(allowed[1]) or 0.0)
    return Verdict(code="PROVIDER_REQUEST_TOO_LARGE") if more else None


_ONE_SENTENCE = 120
"""How far apart the two numbers may stand."""


@applies_when(phrases("error-code#token-limit"))
def token_limit_page(_: Evidence) -> Verdict | None:
    """DashScope reports a rate limit with the sentence that OpenAI uses for an empty account. Only the link differs."""
    return Verdict(code="PROVIDER_RATE_LIMITED")


@applies_when(codes("openrouter_in_flight_budget"))
def in_flight_budget(_: Evidence) -> Verdict | None:
    """OpenRouter sends a 402 while running requests reserve the remaining credit. The credit is not spent yet."""
    return Verdict(code="PROVIDER_RATE_LIMITED")


@applies_when(phrases("api rate limit exceeded"))
def tool_allowance(evidence: Evidence) -> Verdict | None:
    """GitHub's hourly limit belongs to a tool, not to a provider.

    Its end is in the headers. Where they are lost, it may be near.
    """
    if not _is_tool(evidence):
        return None
    if requested_delay(evidence) is None:
        return Verdict(code="TOOL_RATE_LIMITED")
    return Verdict(code="TOOL_QUOTA_EXHAUSTED", only_with_delay=True)


@applies_when(_NAMED, not_defect=True)
def named_rate(evidence: Evidence) -> Verdict | None:
    """The sentence names its window: 'Rate limit reached for MODEL … on tokens per day (TPD)'."""
    if evidence.matches(_DAILY):
        # The limit counts the last 24 hours. After the requested delay this request is allowed again.
        return Verdict(code="PROVIDER_DAILY_LIMIT", only_with_delay=True)
    return Verdict(code="PROVIDER_RATE_LIMITED")


_FEWER = re.compile(r"\breduce (?:your |the )?requests?(?: rate| frequency)?(?! ?(?:['\"-]|\w))")


@applies_when(phrases("please reduce | reduce your | reduce the | reduce request\n"), not_defect=True)
def fewer_requests(evidence: Evidence) -> Verdict | None:
    """S3 and its relatives ask for fewer requests. Smaller ones are asked for in other words: "reduce your request size"."""
    return Verdict(code="PROVIDER_RATE_LIMITED") if _FEWER.search(evidence.text) else None


def announced_window(evidence: Evidence) -> Verdict | None:
    """The headers show that a window (hours or days) of a subscription is used up."""
    used_up = evidence.headers and exhausted_window(evidence.headers)
    return Verdict(code="PROVIDER_QUOTA_EXHAUSTED", only_with_delay=True) if used_up else None


@applies_when(_WINDOW | _WINDOW_CODES, not_defect=True)
def subscription_window(evidence: Evidence) -> Verdict | None:
    """A window (hours or days) of a plan is used up until it resets."""
    return None if evidence.matches(_FIREWORKS) else Verdict(code="PROVIDER_QUOTA_EXHAUSTED", only_with_delay=True)


@applies_when(_ENTITLEMENT | _NOT_IN_PLAN)
def entitlement(evidence: Evidence) -> Verdict | None:
    """The plan does not include the requested feature. It looks like a limit, but waiting does not help."""
    if evidence.matches(_NOT_IN_PLAN):
        return Verdict(code="PROVIDER_ENTITLEMENT_MISSING")
    if evidence.matches(_RATE_WORDS):
        # The text of a rate limit often advertises a plan with a higher limit.
        return None
    return Verdict(code="PROVIDER_ENTITLEMENT_MISSING") if evidence.status in (402, 403, 429) else None


@applies_when(_CARD | _CARD_ERROR)
def declined_card(evidence: Evidence) -> Verdict | None:
    """A payment service declined a customer's card. Our own account is in order, so this is a result of the tool."""
    theirs = evidence.named("CardError") or evidence.matches(_CARD_ERROR)
    return Verdict(code="TOOL_EXECUTION_FAILED") if theirs else None


@applies_when(_BILLING | _BILLING_PAGE | _BUDGET | _SUSPENDED, not_defect=True)
def no_money(evidence: Evidence) -> Verdict | None:
    """The account has no credit, or billing is off. The status may be 400, 401, 402, 403, 412, 429 or 500."""
    # Fireworks sends 412 while an account is suspended for an unpaid bill.
    suspended = evidence.status == 412 and evidence.matches(_SUSPENDED)
    page = evidence.matches(_BILLING_PAGE) and not evidence.matches(_RATE_WORDS)
    budget = evidence.matches(_BUDGET) and not evidence.matches(_NOT_MONEY)
    return Verdict(code="PROVIDER_BILLING") if suspended or evidence.matches(_BILLING) or page or budget else None


@applies_when(phrases("pull rate limit"))
def pulls(_: Evidence) -> Verdict | None:
    """A registry counts pulls over hours, although it calls that a rate."""
    return Verdict(code="TOOL_QUOTA_EXHAUSTED", only_with_delay=True)


_THINGS = re.compile(
    r"\b(?:too many|maximum number of) (?:[a-z]+ ){0,2}"
    r"(?:certificates|registrations|accounts|projects|domains|api keys|buckets|repositories|workspaces|members|devices|licenses)\b"
)


@applies_when(phrases("too many", "maximum number of"))
def too_many_things(evidence: Evidence) -> Verdict | None:
    """A service counts what it made for the caller over days, or what still exists. It sends 429 as for a rate."""
    counted = evidence.status in (None, 429) and _THINGS.search(evidence.text)
    return Verdict(code="PROVIDER_QUOTA_EXHAUSTED", only_with_delay=True) if counted else None


_NO_QUOTA = re.compile(r"\blimit: 0\b")


@applies_when(
    phrases(_LISTED["quota_used_up"]),
    not_defect=True,
)
def quota_used_up(evidence: Evidence) -> Verdict | None:
    """The whole quota is used up, or there never was one."""
    if _NO_QUOTA.search(evidence.text):
        return Verdict(code="PROVIDER_QUOTA_EXHAUSTED")
    return Verdict(code="PROVIDER_QUOTA_EXHAUSTED", only_with_delay=True)


_OF_A_TOOL = re.compile(
    r"\bquota\b.{0,60}\bexceed(?:ed|s)?\b|\b(?:exceed(?:ed|ing|s)?|insufficient|reached)\b.{0,60}\bquota\b"
)


@applies_when(phrases("quota"), local=True)
def tool_quota(evidence: Evidence) -> Verdict | None:
    """A program printed that a quota of its cloud is used up. A quota per minute is a rate."""
    used_up = (
        evidence.exit_code
        and evidence.status is None
        and not evidence.matches(_PER_MINUTE)
        and "memory" not in evidence.text
        and "disk quota" not in evidence.text
    )
    return Verdict(code="TOOL_QUOTA_EXHAUSTED") if used_up and _OF_A_TOOL.search(evidence.text) else None


@applies_when(_DAILY, not_defect=True)
def daily(evidence: Evidence) -> Verdict | None:
    """The text names a daily limit."""
    limited = evidence.status == 429 or evidence.matches(_LIMITED)
    return Verdict(code="PROVIDER_DAILY_LIMIT", only_with_delay=True) if limited else None


# A supervisor gave up on a program that fails at every start.
_RESPAWNED = phrases(_LISTED["respawned"])


@applies_when(_RATE, not_defect=True)
def rate_in_prose(evidence: Evidence) -> Verdict | None:
    """There are too many requests, tokens or connections in a short time."""
    if "retries per request" in evidence.text:
        # A client counts its own retries. What failed each time was something else.
        return None
    if evidence.matches(_RESPAWNED):
        return Verdict(code="TOOL_EXECUTION_FAILED")
    if "disk quota" in evidence.text:
        return Verdict(code="SYS_RESOURCE_EXHAUSTED")
    if "memory quota" in evidence.text:
        return Verdict(code="TOOL_OUT_OF_MEMORY")
    if evidence.matches(_LONG_WINDOW) or _only_a_quota(evidence):
        return Verdict(code="PROVIDER_QUOTA_EXHAUSTED", only_with_delay=True)
    if (
        evidence.status == 403
        and (evidence.exit_code or evidence.raised)
        and not evidence.matches(_PER_MINUTE | _RATE_WORDS)
    ):
        # Clouds send 403 for a quota that somebody must raise, and 429 for a rate.
        return Verdict(code="TOOL_QUOTA_EXHAUSTED")
    return _rate(evidence)


def _only_a_quota(evidence: Evidence) -> bool:
    """Whether a quota is used up and nothing says that it fills again soon."""
    rate = evidence.matches(_PER_MINUTE | _RATE_WORDS | _RATES)
    return evidence.matches(_QUOTA) and evidence.status in (None, 429) and not rate


@applies_when(_RATE_CODES)
def rate_by_code(evidence: Evidence) -> Verdict | None:
    """The code is rate_limit_error or similar.

    Providers use such codes for everything, so all exact rules come first.
    """
    return _rate(evidence)


def _rate(evidence: Evidence) -> Verdict:
    tool = _is_tool(evidence)
    return (
        Verdict(code="TOOL_RATE_LIMITED")
        if tool
        else Verdict(code="PROVIDER_RATE_LIMITED", scope=_rate_scope(evidence))
    )


def _is_tool(evidence: Evidence) -> bool:
    return evidence.rpc_code is not None or evidence.provider in ("github_api", "github", "mcp", "tool")


def _rate_scope(evidence: Evidence) -> Scope | None:
    return Scope.PROVIDER if evidence.matches(_THEIRS) else None


# MONEY runs before every rule that reads a status, a number of a protocol or a sentence. EARLY runs before exact codes and overflow. LATE runs after them, because its words are used for everything.
MONEY = (money_by_code,)
QUOTAS = (quota_by_code,)
EARLY = (
    request_never_fits,
    token_limit_page,
    in_flight_budget,
    tool_allowance,
    named_rate,
    fewer_requests,
    announced_window,
    subscription_window,
    entitlement,
    declined_card,
    no_money,
    pulls,
    too_many_things,
    tool_quota,
    daily,
)
LATE = (quota_used_up, rate_in_prose, rate_by_code)
