"""Right and wrong on the labelled corpus, contender beside contender, by the corpus's own rule."""

from __future__ import annotations

from collections import Counter
from typing import Any

from benchmarks.cases import Failure, corpus
from benchmarks.contenders import CONTENDERS
from benchmarks.peers import Worker
from benchmarks.table import show

NOTES = (
    "category: the label or one of its alternatives; all: category, retryable and, where labelled, the delay within 2 % or 0.1 s",
    "dangerous: says retry where the label says never; gave up: says never where the label says retry",
    "holdfast's rules were written with this corpus in view: its figure is in-sample, the peers' are not",
    "status table: the status is all it reads, so it takes the lines that have one",
    "redress: AUTH and PERMISSION = auth; PERMANENT = invalid, not_found or overflow; SERVER_ERROR = unavailable or timeout; TRANSIENT = "
    "timeout, network or unavailable; UNKNOWN = none. Retryable: all but AUTH, PERMISSION, PERMANENT (its policies retry UNKNOWN twice). "
    "Its anthropic and openai classifiers get the error of the real SDK (newer than the versions its extras name), its http one the rest",
    "redress default: `default_classifier` given an error with `.status`, without which it sees no status; same reading",
    "litellm: by class of the mapped exception: ContextWindowExceeded = overflow, PaymentRequired = rate_limit or auth, BadRequest, "
    "ContentPolicy and Unprocessable = invalid, Authentication and PermissionDenied = auth, InternalServer, BadGateway and "
    "ServiceUnavailable = unavailable, APIConnection = network (also its answer to whatever it does not know). Retryable: "
    "`litellm.should_retry(status_code)`. Providers it has no name for are given as openai; it returns no delay",
    "recorded exceptions are raised again by class and text for the peers, by a class of the same name where the library is not there",
)


def run(*, quick: bool) -> dict[str, Any]:  # noqa: ARG001 - one pass is the whole measure
    lines = corpus()
    answers: dict[str, list[Any]] = {}
    broken: dict[str, str] = {}
    for name in CONTENDERS:
        worker = Worker(name)
        got = worker.ask("judge")
        worker.close()
        if got is None:
            broken[name] = worker.broken
        else:
            answers[name] = got
    scores = {}
    for name, given in answers.items():
        taken = [i for i, answer in enumerate(given) if answer]
        scores[name] = {
            **_score(lines, given, taken),
            "holdfast_on_the_same_lines": _score(lines, answers["holdfast"], taken),
            "not_taken": dict(Counter(_why_not(line) for i, line in enumerate(lines) if i not in set(taken))),
        }
    _print(scores, len(lines), broken)
    return {"lines": len(lines), "scores": scores, "broken": broken}


def _score(lines: list[Failure], given: list[Any], taken: list[int]) -> dict[str, int]:
    score = Counter(taken=len(taken), category=0, retryable=0, all=0, dangerous=0, gave_up=0)
    for i in taken:
        expect, answer = lines[i].line["expect"], given[i]
        named = not {expect["category"], *expect.get("alt_categories", ())}.isdisjoint(answer["categories"])
        same = answer["retryable"] == expect["retryable"]
        score["category"] += named
        score["retryable"] += same
        score["all"] += named and same and _delay_fits(expect["delay_s"], answer["delay"])
        score["dangerous"] += answer["retryable"] and not expect["retryable"]
        score["gave_up"] += expect["retryable"] and not answer["retryable"]
    return dict(score)


def _delay_fits(wanted: float | None, given: float | None) -> bool:
    return wanted is None or (given is not None and abs(given - wanted) <= max(0.1, 0.02 * wanted))


def _why_not(failure: Failure) -> str:
    if failure.kind == "http":
        return f"http {failure.status}: no error raised"
    if failure.kind in {"exception", "subprocess"} and failure.line.get("exception"):
        return f"{failure.kind}, passes through or has no status"
    return f"{failure.kind}: not an exception"


def _print(scores: dict[str, Any], total: int, broken: dict[str, str]) -> None:
    rows = []
    for name, score in scores.items():
        rows.append(_row(name, score))
        if score["taken"] < total:
            rows.append(_row("  holdfast, same lines", score["holdfast_on_the_same_lines"]))
    left = [
        f"{name} could not take: " + ", ".join(f"{count} {why}" for why, count in score["not_taken"].items())
        for name, score in scores.items()
        if score["not_taken"]
    ]
    notes = [*NOTES, *left, *(f"{name} could not be measured: {why}" for name, why in broken.items())]
    head = ["", "lines", "category", "retryable", "all right", "dangerous", "gave up"]
    show(f"Accuracy on the corpus ({total} lines)", head, rows, notes)


def _row(name: str, score: dict[str, int]) -> list[str]:
    shares = [f"{100 * score[what] / max(1, score['taken']):.1f} %" for what in ("category", "retryable", "all")]
    return [name, str(score["taken"]), *shares, str(score["dangerous"]), str(score["gave_up"])]
