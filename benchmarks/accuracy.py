"""Right and wrong on the labelled corpus, contender beside contender, by the corpus's own rule."""

from __future__ import annotations

from collections import Counter
from typing import Any

from benchmarks.cases import Failure, failures, read_corpus
from benchmarks.inside.contenders import CONTENDERS
from benchmarks.peers import Worker
from benchmarks.table import show

# The name of the part of `met/` that was collected last.
LAST = "sixteenth"

NOTES = """\
category: the label or one of its alternatives; all right: category, retryable and, where labelled, the delay within 2 % or 0.1 s
dangerous: says retry where the label says never; gave up: says never where the label says retry
the corpus is part of holdfast's own tests: take holdfast's figure as in-sample, the peers have not seen these lines. The lines put aside
  are the exception: they were labelled before any rule saw them, and none was written from them
status table: the status is all it reads, so it takes the lines that have one; a status under 400 it calls unknown, never retry
redress: AUTH, PERMISSION = auth; PERMANENT = invalid, not_found or overflow; SERVER_ERROR = unavailable or timeout; TRANSIENT =
  timeout, network or unavailable; RATE_LIMIT = rate_limit; CONCURRENCY = invalid; UNKNOWN = none. Retryable: all but AUTH, PERMISSION
  and PERMANENT; UNKNOWN, which its policies retry at most twice, counts as retryable. Its anthropic and openai classifiers get the error of
  the real SDK (a newer one than its extras name), its http classifier the rest
redress default: `default_classifier`, given an error with `.status`, without which it sees no status; read the same way
litellm: the class of the mapped exception: ContextWindowExceeded = overflow; PaymentRequired = rate_limit or auth; BadRequest,
  ContentPolicyViolation, Unprocessable = invalid; Authentication, PermissionDenied = auth; InternalServer, BadGateway, ServiceUnavailable
  = unavailable; APIError = by its status, as the table; APIConnection = network (also its answer to what it does not know). Retryable: `litellm.should_retry(status_code)`.
  Providers it has no name for are given as openai; it names no delay, so 'all right' counts against it where one is labelled
pydantic-ai: the typed error of its openai and anthropic adapters: Authentication = auth, NotFound = not_found, ContextWindowExceeded = overflow,
  RequestRejected = invalid, RateLimit = rate_limit, QuotaExceeded = rate_limit or auth, Unavailable, Overloaded and Server = unavailable,
  Timeout = timeout, Connection = network. Retryable: all but rejections of the request and used-up quotas; without a category, as the table
langchain: the error of langchain-openai and langchain-anthropic, read the same way; ModelAPIError = unavailable or timeout. Retryable: `is_retryable`
both take the http lines whose provider is reached through the openai or the anthropic SDK
on http lines holdfast does not get the provider's name; litellm does, and redress does by the choice of its classifier
redress calls `insufficient_quota` PERMANENT: right on retrying, counted as a wrong category
litellm's handlers turn some client-library errors (timeouts) into its own before the mapping; on exception lines that step is missing here
recorded exceptions are built again by class and text for the peers, with a class of the same name where the library is not installed
""".splitlines()


def run(*, quick: bool) -> dict[str, Any]:  # noqa: ARG001 - every part has this option; one pass is the whole measurement here
    # Read once and sent to every worker: the corpus may grow while this runs.
    snapshot = read_corpus()
    lines = failures(snapshot)
    answers: dict[str, list[Any]] = {}
    broken: dict[str, str] = {}
    for name in CONTENDERS:
        worker = Worker("classify", name)
        got = worker.ask("judge", lines=snapshot)
        worker.close()
        if got is None:
            broken[name] = worker.broken
        else:
            answers[name] = got
    groups = {
        "shared corpus (provider_errors.jsonl)": [line.file == "provider_errors.jsonl" for line in lines],
        "put aside (met/blind*.jsonl): no rule was written from it": [_put_aside(line) for line in lines],
        f"the part collected last (met/*_{LAST}.jsonl), both halves": [_last(line) for line in lines],
        f"the half of it that is put aside (met/blind_{LAST}.jsonl)": [
            _last(line) and _put_aside(line) for line in lines
        ],
        "http lines put aside": [_put_aside(line) and line.kind == "http" for line in lines],
        "http lines of all files": [line.kind == "http" for line in lines],
        "exception lines of all files": [line.kind == "exception" for line in lines],
        "all lines of all files": [True] * len(lines),
    }
    scores = {group: _scores(inside, lines, answers) for group, inside in groups.items()}
    _print(scores, lines, answers, broken)
    wrong = _wrong(lines, answers["holdfast"])
    return {"lines": len(lines), "scores": scores, "holdfast_wrong": wrong, "broken": broken}


def _last(line: Failure) -> bool:
    return line.file.endswith(f"_{LAST}.jsonl")


def _put_aside(line: Failure) -> bool:
    return line.file.startswith("met/blind")


def _scores(inside: list[bool], lines: list[Failure], answers: dict[str, list[Any]]) -> dict[str, dict[str, int]]:
    scores = {}
    for name, given in answers.items():
        taken = [i for i, answer in enumerate(given) if answer and inside[i]]
        if not taken:
            continue
        scores[name] = _score(lines, given, taken)
        if len(taken) < sum(inside):
            scores[f"{name}: holdfast, same lines"] = _score(lines, answers["holdfast"], taken)
    return scores


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


def _wrong(lines: list[Failure], given: list[Any]) -> list[str]:
    # The lines put aside are counted, never named: whoever reads this writes the rules.
    missed = (line for i, line in enumerate(lines) if not _put_aside(line) and not _score(lines, given, [i])["all"])
    return [f"{line.line['id']} ({line.file})" for line in missed]


def _delay_fits(wanted: float | None, given: float | None) -> bool:
    return wanted is None or (given is not None and abs(given - wanted) <= max(0.1, 0.02 * wanted))


def _why_not(failure: Failure) -> str:
    if failure.kind == "http":
        return "http with a status under 400 (no error is raised)"
    return {
        "exception": "exception (it lets BaseException pass, or has no status to look up)",
        "subprocess": "subprocess (no provider call, no exception or no status)",
    }.get(failure.kind, f"{failure.kind} (no exception)")


def _print(scores: dict[str, Any], lines: list[Failure], answers: dict[str, list[Any]], broken: dict[str, str]) -> None:
    rows = []
    for group, by_name in scores.items():
        rows.append([group, "", "", "", "", "", ""])
        rows += [_row(name, score) for name, score in by_name.items()]
    notes = [*NOTES]
    for name, given in answers.items():
        if left := Counter(_why_not(line) for line, answer in zip(lines, given, strict=True) if not answer):
            notes.append(f"{name} could not take: " + ", ".join(f"{count} {why}" for why, count in left.items()))
    if wrong := _wrong(lines, answers["holdfast"]):
        notes.append(f"holdfast is wrong on {len(wrong)}: {', '.join(wrong[:20])}")
    notes += [f"{name} could not be measured: {why}" for name, why in broken.items()]
    head = ["", "lines", "category", "retryable", "all right", "dangerous", "gave up"]
    show(f"Accuracy on the corpus ({len(lines)} lines)", head, rows, notes)


def _row(name: str, score: dict[str, int]) -> list[str]:
    shares = [f"{100 * score[what] / max(1, score['taken']):.1f} %" for what in ("category", "retryable", "all")]
    label = "    holdfast, same lines" if ":" in name else f"  {name}"
    return [label, str(score["taken"]), *shares, str(score["dangerous"]), str(score["gave_up"])]
