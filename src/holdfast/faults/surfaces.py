"""What each audience sees of a fault. The user sees a sentence, the model a typed shape, the audit everything (S2-11).

Invariant: no audience sees a secret, and only the audit shows a cause. The model never sees a stack. Of a fault's
context it sees only the fields listed here.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from math import ceil, isfinite
from typing import TYPE_CHECKING, Any

from holdfast.faults.enums import NextActor, Scope
from holdfast.faults.redaction import REDACTOR, Redactor, cap

if TYPE_CHECKING:
    from collections.abc import Mapping

    from holdfast.faults.fault import Fault

_CLAUSE = re.compile(r"\[(?P<known>[^]|]*)(?:\|(?P<otherwise>[^]]*))?\]")
_FIELD = re.compile(r"\{(\w+)\}")
_CENTURY = 3.2e9
# The model reads every token of an error at a cost, and the beginning describes the failure.
_MODEL_TEXT_BYTES = 2_048
_FACT_BYTES = 512
# Sentences in the catalog's user texts that promise a retry.
_PROMISES = (
    " Trying again.",
    " Waiting as long as it says.",
    " Trying once more.",
    " Trying again in a moment.",
    " Trying again if the tool allows it.",
    " Trying another way.",
    " Asking again.",
)
_WITH_EFFECTS = frozenset({Scope.TOOL, Scope.AGENT, Scope.SESSION})
"""Scopes with effects that a person can check. If a model answers twice, nothing is harmed."""
_MODELS = re.compile(
    r"anthropic|claude|openai|gpt|gemini|vertex|bedrock|mistral|cohere|groq|xai|grok|deepseek|qwen|llama|vllm|openrouter"
    r"|perplexity|fireworks|together|hugging|litellm|llm",
    re.IGNORECASE,
)
"""Names of targets that are models. Any other name may be a shop or a database, which nobody calls an AI service."""
_STACK = "Traceback (most recent call last)"
_MODEL_FACTS = frozenset({
    "actual", "column", "exit_code", "expected", "field", "limit", "line", "location", "path", "symbol", "timeout_s", "tool", "used",
})  # fmt: skip
"""Context fields without details of the machine, so the model may always see them."""
_MODEL_TEXTS = frozenset(
    {"errors", "failing_expression", "item", "reason", "received", "stderr", "supported", "violations"}
)
"""Context fields that may contain foreign text. The model sees them only if it must act on them."""


def for_user(fault: Fault, now: float | None = None, redactor: Redactor = REDACTOR) -> str:
    """Return one or two sentences for the person in front of the agent."""
    text = fault.entry.user
    if _is_of_model(fault) and "AI service" not in text:
        text = text.replace("service", "AI service", 1)
    if not fault.retryable or fault.attempts:
        # It is not retried, or its attempts are over.
        text = _without_promises(text)
    if fault.maybe_executed and fault.scope in _WITH_EFFECTS:
        text += " It may already have taken effect; please check before doing it again."
    if fault.retry_after:
        # Rounded up: nobody needs the fraction of a second, and earlier it cannot go on.
        wait = ceil(fault.retry_after) if isfinite(fault.retry_after) else fault.retry_after
        text += f" It can go on {_when(wait, now)}."
    return redactor.text(text)


def _without_promises(text: str) -> str:
    """Return a text of the catalog without the promise of a retry. It stands there because the code is usually retried."""
    for promise in _PROMISES:
        text = text.replace(promise, "")
    return text


def _is_of_model(fault: Fault) -> bool:
    if not fault.code.startswith("PROVIDER_"):
        return False
    return "model" in fault.context or bool(_MODELS.search(str(fault.context.get("provider", ""))[:100]))


def for_model(fault: Fault, now: float | None = None, redactor: Redactor = REDACTOR) -> dict[str, Any]:
    """Return the typed shape that a model may see."""
    entry = fault.entry
    failure_class, code = entry.class_and_code
    context: dict[str, Any] = {
        "fault": fault.code,
        "message": _model_message(fault, redactor),
        "retryable": fault.retryable,
        "advice": _advice(fault, now),
    }
    # If the model need not act, it gets no foreign text, because that could contain instructions.
    shown = _MODEL_FACTS | _MODEL_TEXTS if fault.next_actor is NextActor.MODEL else _MODEL_FACTS
    facts = {key: fault.context[key] for key in sorted(shown & fault.context.keys())}
    if isinstance(reason := facts.get("reason"), str) and reason in fault.message:
        # The model pays for each token, and the message has it already.
        del facts["reason"]
    context |= _without_stack(redactor.value(facts))
    # Masked first: a secret in a text that is written in two parts would not be found afterwards.
    if (partial := fault.masked(redactor).partial) is not None:
        context["partial"] = partial.for_model()
    return {"class": failure_class, "code": code, "context": redactor.value(context)}


def for_audit(fault: Fault, now: float | None = None, redactor: Redactor = REDACTOR) -> dict[str, Any]:
    """Return everything that is known."""
    entry = fault.entry
    failure_class, code = entry.class_and_code
    shown: dict[str, Any] = {
        "class": failure_class,
        "code": code,
        "layer": entry.layer,
        "kind": entry.kind,
        "severity": entry.severity,
        "category": entry.category,
        "next_actor": fault.next_actor,
        "fault": fault,
    }
    if now is not None:
        shown["at"] = _instant(now)
    redacted: dict[str, Any] = redactor.value(shown)
    return redacted


def fill(template: str, facts: Mapping[str, Any]) -> str:
    """Return the catalog's text.

    A clause in brackets gets its facts. If a fact is missing, the part after the bar is used.
    """
    if "[" not in template:
        return template

    def filled(clause: re.Match[str]) -> str:
        if any(_is_blank(facts.get(name)) for name in _FIELD.findall(clause["known"])):
            return clause["otherwise"] or ""
        return _FIELD.sub(lambda field: _fact(facts[field[1]]), clause["known"])

    return _CLAUSE.sub(filled, template)


def spell_seconds(seconds: float) -> str:
    """Return a duration for people: 0.4 s, 26 s, 7 min 12 s, 2 h 5 min, 3 days."""
    if not seconds < _CENTURY:
        # This is also true for nan.
        return "a very long time"
    if seconds < 10:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    if whole < 90:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest} s" if rest else f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if minutes else f"{hours} h"
    return f"{hours // 24} days"


def clock_time(at: float) -> str:
    """Return a wall-clock instant as `2026-03-10 14:02:14 UTC`; a time beyond the calendar as `later`."""
    date = _date(at)
    return "later" if date is None else f"{date:%Y-%m-%d %H:%M:%S} UTC"


def _when(wait: float, now: float | None) -> str:
    return f"in {spell_seconds(wait)}" if now is None else f"at {clock_time(now + wait)}"


def _instant(at: float) -> str | float:
    date = _date(at)
    return at if date is None else date.isoformat().replace("+00:00", "Z")


def _date(at: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(at, UTC)
    except (ValueError, OverflowError, OSError):  # beyond the calendar
        return None


def _is_blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())


def _fact(value: Any) -> str:
    text = str(value) if isinstance(value, (str, int, float)) else str(REDACTOR.value(value))
    # The text is masked before it is cut, because half a secret is not recognised.
    return text if len(text) * 4 <= _FACT_BYTES else cap(REDACTOR.text(text), _FACT_BYTES)


def _model_message(fault: Fault, redactor: Redactor) -> str:
    """Return the failure's own text only if the model must act on it: a provider's text may name hosts and accounts."""
    if fault.next_actor is not NextActor.MODEL:
        # What a model reads is the end of its call: nobody tries again.
        return _without_promises(fault.entry.user)
    # The text is masked before it is cut, because half a secret is not recognised.
    return cap(_without_stack(redactor.text(fault.message)), _MODEL_TEXT_BYTES)


def _without_stack(value: Any) -> Any:
    """Return JSON values without the tracebacks that their texts may quote (S2-11)."""
    match value:
        case str():
            return value.partition(_STACK)[0].strip() if _STACK in value else value
        case list():
            return [_without_stack(item) for item in value]
        case dict():
            return {key: _without_stack(item) for key, item in value.items()}
    return value


def _advice(fault: Fault, now: float | None) -> str:
    sentences: list[str] = []
    # This advice comes first, because acting on the other advice could repeat an effect.
    if fault.maybe_executed:
        sentences.append("The effect may have happened: check before calling again.")
    elif "evidence" in fault.context:
        sentences.append("It did not happen: that was checked.")
    if fault.retry_after:
        sentences.append(
            f"Do not retry before {clock_time(now + fault.retry_after)}."
            if now is not None
            else f"Do not retry for {spell_seconds(fault.retry_after)}."
        )
    elif not fault.retryable:
        sentences.append("Do not repeat the same call.")
    match fault.next_actor:
        case NextActor.MODEL:
            sentences.append(f"{fault.entry.suggestions[0]}.")
        case NextActor.MACHINE if fault.retryable:
            sentences.append("Nobody repeats it for you: call again later if it is still needed, or go on without it.")
        case NextActor.MACHINE:
            sentences.append("It will not be tried again by itself: go on without it, or tell the user.")
        case NextActor.USER:
            sentences.append("Tell the user and wait for them.")
        case NextActor.OPERATOR | NextActor.DEVELOPER:
            sentences.append("You cannot fix this: tell the user, or go on without it.")
    return " ".join(sentences)
