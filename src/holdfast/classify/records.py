"""One failure as a JSON record, the format of the corpus, for `holdfast classify --jsonl`.

Invariant: an invalid record raises an error that names the wrong field; a valid record is always classified.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.classify.classifier import CLASSIFIER, from_evidence, most_limiting, unreadable
from holdfast.classify.evidence import Evidence, Source
from holdfast.classify.readers.responses import lower_headers, read_http, read_jsonrpc, read_stream
from holdfast.classify.readers.text import read_named, read_process, read_text
from holdfast.classify.times import parse_rfc3339
from holdfast.faults import InvalidError

if TYPE_CHECKING:
    from holdfast.classify.classifier import Classifier
    from holdfast.faults import Fault

__all__ = ["Record", "RecordedException", "from_record", "read_record"]


class RecordedException(msgspec.Struct, frozen=True, kw_only=True):
    """An exception by name, with its causes (nearest first) or the leaves of a group."""

    module: str | None = ""
    type: str | None = ""
    message: str | None = ""
    cause: list[RecordedException] | RecordedException | None = None
    """The causes of the exception, as a list or as one exception that has a cause of its own."""
    exceptions: list[RecordedException] | None = None


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One failure as a line of JSON holds it. Unknown fields (`expect`, `source`, `notes` …) are ignored.

    For example:
        Record(kind="http", status=429, headers={"retry-after": "26"})
    """

    id: str | int | None = None
    provider: str | None = ""
    kind: str = "http"
    status: int | None = None
    headers: dict[str, Any] | None = None
    body: Any = ""
    exception: RecordedException | None = None
    returncode: int | None = None
    now: str | float | None = None
    status_code: int | None = msgspec.field(default=None, name="statusCode")
    """The status under the name that JavaScript clients use. It counts if there is no `status`."""


_CODE: Final = "PROTO_INVALID_MESSAGE"
_MAX_CHAIN: Final = 12
_KINDS = frozenset({"http", "sse", "exception", "jsonrpc", "subprocess", "grpc", "text"})


def read_record(raw: bytes | str) -> Record:
    """Return the record that `raw` contains. Raises `InvalidError`, which names the wrong field.

    For example:
        record = read_record('{"kind": "http", "status": 529}')
    """
    try:
        record = _decoded(raw)
    except msgspec.ValidationError as error:
        raise InvalidError.from_msgspec(error, _CODE) from None
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise InvalidError.at("$", "one JSON object per line", str(error), _CODE) from None
    if record.kind not in _KINDS:
        raise InvalidError.at("$.kind", f"one of {', '.join(sorted(_KINDS))}", record.kind, _CODE)
    if isinstance(record.now, str) and parse_rfc3339(record.now) is None:
        raise InvalidError.at("$.now", "an RFC 3339 date and time", record.now, _CODE)
    return record


def _decoded(raw: bytes | str) -> Record:
    # Windows tools write a byte order mark at the beginning of a file.
    raw = raw.removeprefix(b"\xef\xbb\xbf") if isinstance(raw, bytes) else raw.removeprefix("\ufeff")
    try:
        return msgspec.json.decode(raw, type=Record)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeError):
        # JavaScript may cut a text between the two halves of a character and write the half that is left. msgspec
        # rejects the half, json does not.
        text = raw if isinstance(raw, str) else raw.decode("utf-8", "replace")
        try:
            whole = json.dumps(json.loads(text), ensure_ascii=False).encode("utf-8", "replace")
        except ValueError:
            whole = b""
        if not whole:
            raise
        return msgspec.json.decode(whole, type=Record)


def from_record(record: Record, *, now: float | None = None, classifier: Classifier = CLASSIFIER) -> Fault:
    """Return the fault of a record; `now` is used if the record has no time of its own. Never raises.

    >>> from_record(Record(kind="http", status=529)).code
    'PROVIDER_OVERLOADED'
    """
    try:
        if record.status is None and record.status_code is not None:
            record = msgspec.structs.replace(record, status=record.status_code)
        own = parse_rfc3339(record.now) if isinstance(record.now, str) else record.now
        return _from_record(record, now if own is None else own, classifier)
    except Exception as defect:  # noqa: BLE001 - classifying never raises, as in the other entry points
        return unreadable(defect)


def _from_record(record: Record, now: float | None, classifier: Classifier) -> Fault:
    if record.exception is not None and record.exception.exceptions:
        faults = [_from_chain(record, leaf, now, classifier) for leaf in _leaves(record.exception)]
        return most_limiting(faults)
    written = _written(record)
    if record.exception is not None and written is None:
        return _from_chain(record, record.exception, now, classifier)
    if written is not None:
        # A log line may begin with the name of an exception, and a traceback may hold a chain of them.
        chain = read_text(written, provider=record.provider or "", now=now)
        headers = lower_headers(record.headers or {})
        if record.status is not None or headers:
            chain[0] = msgspec.structs.replace(chain[0], status=record.status or chain[0].status, headers=headers)
        return from_evidence(*chain, classifier=classifier)
    return classifier.fault(_evidence(record, now))


def _written(record: Record) -> str | None:
    """Return the text of a record of which nothing else is known: neither a class nor the end of a process. None for the others."""
    if record.kind == "text":
        return _text(record.body)
    raised = record.exception
    if record.kind != "exception" or raised is None or raised.type or raised.module or raised.cause or record.body:
        return None
    return raised.message or ""


def _evidence(record: Record, now: float | None) -> Evidence:
    headers = lower_headers(record.headers or {})
    match record.kind:
        case "sse":
            return read_stream(
                _text(record.body), status=record.status, headers=headers, provider=record.provider or "", now=now
            )
        case "jsonrpc":
            return read_jsonrpc(
                record.body, status=record.status, headers=headers, provider=record.provider or "", now=now
            )
        case "subprocess":
            return read_process(record.returncode, _text(record.body), provider=record.provider or "", now=now)
        case "http":
            return read_http(record.status, headers, record.body, provider=record.provider or "", now=now)
    return read_named(
        "",
        "",
        _text(record.body),
        status=record.status,
        headers=headers,
        provider=record.provider or "",
        now=now,
        source=Source.TEXT,
    )


def _from_chain(record: Record, outer: RecordedException, now: float | None, classifier: Classifier) -> Fault:
    source = Source.PROCESS if record.kind == "subprocess" else Source.EXCEPTION
    chain: list[Evidence] = []
    for index, one in enumerate(_with_causes(outer)):
        first = index == 0
        message = one.message or ""
        # A record may hold an exception and its response. The status and headers belong to the outermost exception.
        if first and record.body:
            message = f"{message}\n{_text(record.body)}"
        chain.append(
            read_named(
                one.module or "",
                one.type or "",
                message,
                status=record.status if first else None,
                headers=lower_headers(record.headers or {}) if first else None,
                exit_code=record.returncode if first else None,
                provider=record.provider or "",
                now=now,
                source=source,
            )
        )
    return from_evidence(*chain, classifier=classifier)


def _with_causes(outer: RecordedException) -> list[RecordedException]:
    """Return the exception and its causes, outermost first."""
    chain = [outer]
    for one in chain:
        held = one.cause if isinstance(one.cause, list) else [one.cause] if one.cause is not None else []
        chain += held[: _MAX_CHAIN - len(chain)]
    return chain


def _leaves(group: RecordedException) -> list[RecordedException]:
    if not group.exceptions:
        return [group]
    return [leaf for child in group.exceptions for leaf in _leaves(child)]


def _text(body: Any) -> str:
    if isinstance(body, str):
        return body
    return "" if body is None else msgspec.json.encode(body).decode()
