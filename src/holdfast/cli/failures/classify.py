"""`holdfast classify`: one failure described by flags, or many as JSON Lines in the format of the corpus."""

from __future__ import annotations

import re
import sys
import time
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.classify import (
    from_grpc,
    from_http,
    from_jsonrpc,
    from_process,
    from_record,
    from_stream,
    from_text,
    read_record,
)
from holdfast.classify.records import Record, RecordedException
from holdfast.classify.times import parse_rfc3339
from holdfast.cli.exits import Exit, open_input
from holdfast.cli.output import fail, narrate, show_facts, show_json
from holdfast.faults import Fault, InvalidError
from holdfast.faults.redaction import MASK
from holdfast.faults.surfaces import spell_seconds
from holdfast.runtime import redactor_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.cli.app import FailureFlags
    from holdfast.faults import Redactor


_KINDS = ("exception", "exit_code", "jsonrpc", "sse", "grpc", "text")
"""Each of these flags describes one failure. The other flags only add facts to it."""


def classify(
    *, failure: str | None, given: FailureFlags, now: str | None, jsonl: str | None, strict: bool, as_json: bool
) -> Exit:
    """Classify the failure that the flags describe, or each record of a file."""
    # The classifier never reads a clock, and Retry-After may be a date. A fixed time makes the verdict repeatable.
    at = time.time() if now is None else parse_rfc3339(now)
    if at is None:
        fail(f"--now: expected an RFC 3339 date and time, got {now!r}", "for example 2026-03-20T14:32:00Z")
        return Exit.USAGE
    if failure is not None and given.text is not None:
        fail("TEXT and --text describe different failures", "give one of them")
        return Exit.USAGE
    # With --jsonl the records describe the failures.
    if jsonl is not None:
        return _classify_lines(jsonl, now=at, strict=strict)
    given = given if failure is None else msgspec.structs.replace(given, text=failure)
    return _classify_one(given, now=at, as_json=as_json)


def _classify_one(given: FailureFlags, *, now: float, as_json: bool) -> Exit:
    kinds = [name for name in _KINDS if getattr(given, name) is not None]
    if len(kinds) > 1:
        flags = " and ".join(f"--{name.replace('_', '-')}" for name in kinds)
        fail(f"{flags} describe different failures", "give one of them")
        return Exit.USAGE
    try:
        fault = _fault(given, now)
    except InvalidError as error:
        fail(str(error))
        return Exit.USAGE
    if fault is None:
        fail(
            "nothing to classify",
            "give --status, --exception, --exit-code, --jsonrpc, --sse, --grpc or --text, or --jsonl FILE",
        )
        return Exit.USAGE
    # The text is masked before the headline is cut, because half a secret would not be recognised.
    fault = fault.masked(redactor_for())
    if as_json:
        show_json({"schema": "holdfast.classify/1", **fault_document(fault), "message": fault.message})
    else:
        show_facts(fault_headline(fault), fault_facts(fault))
    return Exit.OK


def _classify_lines(source: str, *, now: float, strict: bool) -> Exit:
    """Classify every line of a file or of stdin.

    For a line that is not a record, write an error object and continue.
    """
    # The file is read line by line, because millions of records must not be in memory.
    read = bad = 0
    redactor = redactor_for()
    with open_input(source, "give a file of JSON lines, or - for stdin") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            read += 1
            answer, is_bad = _answer(line, number, now, redactor)
            bad += is_bad
            sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
    narrate(f"{read - bad} classified, {bad} could not be read")
    return Exit.DEGRADED if bad and strict else Exit.OK


def _answer(line: bytes, number: int, now: float, redactor: Redactor) -> tuple[dict[str, Any], bool]:
    """Return the result for a line, and whether the line was bad."""
    try:
        record = read_record(line)
    except InvalidError as error:
        context = error.fault.context
        problem = {"code": error.fault.code, "message": error.fault.message, **context}
        return {"line": number, "error": redactor.value(problem)}, True
    # Only the id needs masking. Everything else in a verdict is our own text.
    return fault_document(from_record(record, now=now), _shown_id(record.id, redactor)), False


def _shown_id(record_id: str | int | None, redactor: Redactor) -> str | int | None:
    """Return the id of a record. It is masked only if it contains a secret of the environment.

    An id such as `xai-403-no-credits` looks like a key, but the caller needs it to join results with records.
    """
    is_secret = isinstance(record_id, str) and any(secret in record_id for secret in redactor.secrets)
    return MASK if is_secret else record_id


def _fault(given: FailureFlags, now: float) -> Fault | None:
    # At most one of these flags is given. A status may be added to it. A status alone describes an HTTP response, so
    # it is last.
    provider = given.provider
    if given.exception is not None:
        module, _, name = given.exception.rpartition(".")
        exception = RecordedException(module=module, type=name, message=given.message)
        return from_record(
            Record(kind="exception", provider=provider, status=given.status, exception=exception), now=now
        )
    if given.exit_code is not None:
        return from_process(given.exit_code, given.stderr, provider=provider, now=now)
    if given.jsonrpc is not None:
        return from_jsonrpc(given.jsonrpc, status=given.status, provider=provider, now=now)
    if given.sse is not None:
        # A shell passes \n as two characters, and events of a stream end at line breaks.
        return from_stream(given.sse.replace("\\n", "\n"), provider=provider, now=now)
    if given.grpc is not None:
        return from_grpc(given.grpc, given.message, provider=provider, now=now)
    if given.text is not None:
        return from_text(given.text, provider=provider, now=now)
    if given.status is None and not given.body:
        # A message without its exception is a text like any other.
        return from_text(given.message, provider=provider, now=now) if given.message else None
    return from_http(given.status, _headers(given.header or ()), given.body, provider=provider, now=now)


def _headers(lines: Sequence[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        # Without this check `:status: 429` would become a header without a name.
        if not colon or not name.strip():
            raise InvalidError.at("--header", "'name: value'", line)
        headers[name.strip()] = value.strip()
    return headers


# --- a verdict, for people and as JSON ---


def fault_document(fault: Fault, record_id: str | int | None = None) -> dict[str, Any]:
    """Return a verdict as JSON values. The keys have the same order as in the corpus tools."""
    return {
        "id": record_id,
        "code": fault.code,
        "category": fault.category.value,
        "retryable": fault.retryable,
        "retry_after_s": fault.retry_after,
        "scope": fault.scope.value,
        "rule": fault.rule,
    }


_HEADLINE = 200
# SDKs print the whole response after the message, which repeats it.
_REPEATED = re.compile(r"\s+Error code: \d{3} - \{")


def fault_headline(fault: Fault) -> str:
    """Return the code and the message on one line, cut between words."""
    text = " ".join(_REPEATED.split(fault.message, maxsplit=1)[0].split())
    if len(text) > _HEADLINE:
        # A word that is longer than a line, such as an encoded body, is cut where it is.
        text = re.sub(r"\s\S{0,40}$", "", text[:_HEADLINE]) + "…"
    return f"{fault.code}  {text}"


def fault_facts(fault: Fault) -> list[tuple[str, str]]:
    """Return the facts that `classify` shows of a verdict."""
    return [
        ("category", fault.category.value),
        ("retryable", _retryable(fault)),
        ("scope", fault.scope.value),
        # This fact is shown only if the call may have had an effect. For most failures it is certain that it had none.
        ("effect", "may have happened: check before sending again" if fault.maybe_executed else ""),
        ("next", f"{fault.next_actor.value} must act"),
        ("do", fault.entry.suggestions[0]),
        ("rule", fault.rule),
        ("help", f"holdfast explain {fault.code}"),
    ]


def _retryable(fault: Fault) -> str:
    if fault.retryable and fault.code == "SYS_UNKNOWN":
        # `recover` retries it only if the effect allows it, and a bare `recover` does not know the effect.
        return "once, and only if repeating the call is safe"
    wait = None if fault.retry_after is None else spell_seconds(fault.retry_after)
    if fault.retryable:
        return "yes" if wait is None else f"yes, after {wait} as the server requested"
    return "no" if wait is None else f"no: the server requested a delay of {wait}"
