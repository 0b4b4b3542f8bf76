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
from holdfast.faults import PATIENCE_S, Scope

# "Limit 30000, Requested 41222": the numbers show that the request never fits into one minute.
_ALLOWED = re.compile(rf"limit(?:ed)?(?: is| was| of| to)?[:=]?\s+({QUANTITY})")
_ASKED = re.compile(rf"\b(?:requested|requesting|requires|required|needs)[:=]?\s+({QUANTITY})")

# Many providers send these sentences. The word "billing" alone is not enough: rate limits link to the billing page.
_BILLING = phrases("""
    credit balance is too low | insufficient balance | insufficient credit | insufficient funds | not enough credit
    insufficient quota | insufficient account balance | balance is insufficient | purchase more credits
    purchase credits | buy credits | add credits | add more credits | any credits | out of credits | no credits left
    no credits remaining | used all available credits | run out of credits | ran out of credits | credits exhausted
    credits have been exhausted | payment required | billing hard limit | billing is not
    billing not active | billing_not_active | billing account | account is not active | spending limit | spend limit
    spending cap | past invoices | unpaid | in arrears | arrearage | good standing | overdue payment
    account is overdue | can only afford | requires more credits | prompt tokens limit exceeded
    monthly included credits | included credits | recharge | top up your | prepayment
    free tier of the model has been exhausted | free quota | key limit exceeded | insufficient_quota
    exceeded your monthly | depleted your | credit limit reached | no remaining credits
    upgrade your plan to continue | negative balance | payment method on file
    credit limit exceeded | paid credits | crossed budget | sufficient credits | sufficient balance
    card was declined | payment declined | payment failed | payment was declined
    purchase more | out of quota | data quota | used up your | no remaining balance
    free trial limit | trial limit | trial has ended | trial has expired | trial credits | exceededbudget
    余额不足 | 积分不足 | 已用完 | 已耗尽 | 欠费 | 额度不足 | 额度已用尽 | 账户余额
""")
_CARD = phrases("card was declined | card has | card number | card's | your card | card does not\n")
_CARD_ERROR = codes("card_error")
# A rate limit may name the page too: "Check your provider's dashboard for quota, usage, or billing details".
_BILLING_PAGE = phrases("billing details", "please check your plan and billing")
_BUDGET = phrases(
    "budget limit", "budget has been exceeded", "budget exceeded", "over budget", "max budget", "budget_exceeded"
)
_NOT_MONEY = phrases("""
    time budget | token budget | retry budget | error budget | latency budget | thinking budget | context budget | step budget
""")
_ENTITLEMENT = phrases("""
    extra usage is required | is not included in your | not included in your plan | requires a paid plan
    upgrade to access | requires a subscription | subscription plan does not | not available on your plan
    not available on the free | only available to paid | paid plan | plan limit
""")
# These plans have windows of hours, days or weeks (Claude, Codex, Copilot). A window resets at a known time.
_WINDOW = phrases("""
    usage limit | reached your specified | usage_limit_reached | hour limit reached | session limit
    service has been paused | set inference limit | weekly limit | monthly limit | monthly quota | weekly quota
    quota will reset | subscription quota | limit will reset | hit your limit | exhausted your capacity
    weekly/monthly limit exhausted | premium request | monthly request limit | calls / month | calls per month
    service quota | monthly maximum | maximum monthly | quota exhausted | allocated quota exceeded | reached your monthly
    usage cap | usage quota
    limite de uso | limite de mensagens | límite de uso | límite de mensajes | limite d'utilisation | nutzungslimit | 使用上限 | 使用限额
""")
_DAILY = phrases("""
    tpd | rpd | per day | per-day | daily | requests/day | tokens/day | 24 hours | 24h | 24-hour | tomorrow | per 86400s
    perday
""")
_RATE = phrases("""
    rate limit | rate-limit | ratelimit | rate_limit | rate_limited | local_rate_limited | too many requests | too many calls | too many queries | too many concurrent | too many simultaneous | too many parallel | too frequent
    requests per min… | tokens per min… | per minute | per second | max rpm | max tpm | exceeded token rate
    concurrency limit | concurrent requests | concurrent connections | request rate increased too quickly
    throttled | throttling | throttle | quota exceeded | rate exceeded | requests rate | request limit
    exceeded your usage limits | high frequency | too quickly | flood control | flood wait | too high, slow | cooling down
    cooldown | model_cooldown | ratelimited | error code: 1015 | error 1015 | frequency limit | request frequency | too fast
    in flight requests
    resource has been exhausted (e | slow down | request_limit_exceeded | limit has been exceeded | 并发 | 限流 | 过于频繁 | 频率
    速率限制 | 请求数过多
""")
_QUOTA = phrases("quota exceeded")
_RATES = phrases(
    "try again | retry | too many requests | throttled | throttling | slow down | per second | requests per\n"
)
_WINDOW_CODES = codes("""
    usage_limit_reached gousagelimiterror quota_exceeded monthly_limit_exceeded usage_limit_exceeded 1308 1310
    setlimitexceeded weekly_limit_reached subscription_limit
""")
# OpenAI sends the code "tokens" or "requests" to name the limit that was reached.
_RATE_CODES = codes("""
    base_resp:1002 base_resp:1039 rate_limit_error rate_limit_exceeded rate_limit_reached_error rate_limited 1302
    1303 too_many_requests throttling.ratequota throttling.burstrate ratelimitreached tokens requests rate_limit
    ratelimitexceeded toomanyrequests credit_limit accountratelimitexceeded dynamic_request_limited frequency_limit frequency_limited
""")

_LONG_WINDOW = phrases(
    "this month", "per month", "the month", "this week", "per week", "billing period", "billing cycle"
)
_RATE_WORDS = phrases("rate limit", "rate limited", "rate-limited")
_NAMED = phrases("rate limit reached for", "rate limit exceeded for", "rate limit exceeded:")
_LIMITED = phrases("limit", "limits", "quota", "exceeded", "exhausted", "too many", "allowed", "allows")
_ONE_REQUEST = phrases("request too large for")
_PER_MINUTE = phrases("tpm", "tokens per min…", "per minute")
_ASKED_FOR = phrases("requested", "requesting", "requires", "required", "needs")
_SUSPENDED = phrases("suspended")
# The limit belongs to the server behind a gateway, so another key of ours would not help.
_THEIRS = phrases("upstream", "not your usage limit")
_FIREWORKS = phrases("exceeded your usage limits")
"""Fireworks writes this for a rate limit."""

_NOT_IN_PLAN = phrases("""
    subscription plan does not yet include | plan does not yet include | plan does not include access
""")


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
    phrases(
        "exceeded your current quota | limit: 0 | quota is exhausted | exceeds your quota | exceed your quota | over your quota\n"
    ),
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
_RESPAWNED = phrases("""
    repeated too quickly | respawning too fast | respawning too quickly | restarting too quickly | restarting too fast | restarted too quickly
    exiting too quickly | exited too quickly
""")


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
