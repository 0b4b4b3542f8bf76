"""One failure as a JSON record, the format of the corpus, for `holdfast classify --jsonl`.

Invariant: an invalid record raises an error that names the wrong field, a field that does not exist, or that there is nothing
to read in it; a valid record is always classified. `docs/reference/classifier.md` describes the format.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from holdfast.classify.classifier import CLASSIFIER, from_evidence, most_limiting, unreadable
from holdfast.classify.evidence import Evidence, Source
from holdfast.classify.readers.responses import lower_headers, read_http, read_jsonrpc, read_stream
from holdfast.classify.readers.text import read_named, read_output, read_text
from holdfast.classify.times import parse_rfc3339
from holdfast.faults import InvalidError

if TYPE_CHECKING:
    from holdfast.classify.classifier import Classifier
    from holdfast.faults import Fault


class RecordedException(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An exception by name, with its causes (nearest first) or the leaves of a group."""

    module: str | None = ""
    type: str | None = ""
    message: str | None = ""
    cause: list[RecordedException] | RecordedException | None = None
    """The causes of the exception, as a list or as one exception that has a cause of its own."""
    exceptions: list[RecordedException] | None = None


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One failure as a line of JSON holds it.

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


class _Line(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A record with what a collection notes about it. The notes are not read."""

    body: Any = msgspec.UNSET
    expect: Any = None
    source: Any = None
    provenance: Any = None
    notes: Any = None


_CODE: Final = "PROTO_INVALID_MESSAGE"
_FIELDS: Final = tuple(name for name in Record.__struct_fields__ if name != "body")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>[^`]*)`(?: - at `(?P<path>\$[^`]*)`)?")
_OTHER_NAMES: Final = {
    "stderr": "body", "stdout": "body", "output": "body", "text": "body", "error": "body", "response": "body",
    "message": "body, or message of exception", "code": "status or returncode", "statuscode": "status",
    "exit_code": "returncode", "exitcode": "returncode", "return_code": "returncode", "type": "kind, or type of exception",
}  # fmt: skip
"""What other formats call a field."""
_MAX_CHAIN: Final = 12
_KINDS = frozenset({"http", "sse", "exception", "jsonrpc", "subprocess", "grpc", "text"})


def read_record(raw: bytes | str) -> Record:
    """Return the record that `raw` contains.

    Raises `InvalidError`, which names the wrong or unknown field, or says that the record holds nothing to classify.

    For example:
        record = read_record('{"kind": "http", "status": 529}')
    """
    try:
        line = _decoded(raw)
    except msgspec.ValidationError as error:
        raise _unknown_field(str(error)) or InvalidError.from_msgspec(error, _CODE) from None
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise InvalidError.at("$", "one JSON object per line", str(error), _CODE) from None
    if line.kind not in _KINDS:
        raise InvalidError.at("$.kind", f"one of {', '.join(sorted(_KINDS))}", line.kind, _CODE)
    if isinstance(line.now, str) and parse_rfc3339(line.now) is None:
        raise InvalidError.at("$.now", "an RFC 3339 date and time", line.now, _CODE)
    if not _is_readable(line):
        raise InvalidError.saying("$", _READABLE, "none of them", _CODE)
    body = "" if line.body is msgspec.UNSET else line.body
    return Record(body=body, **{name: getattr(line, name) for name in _FIELDS})


_READABLE: Final = "something to read: a status, headers, a body, an exception or a returncode"


def _is_readable(line: _Line) -> bool:
    """Whether the record describes a failure at all. An empty stream is one: it ended before it began."""
    if line.status is not None or line.status_code is not None or line.returncode is not None or line.headers:
        return True
    if line.kind == "sse" and line.body is not msgspec.UNSET:
        return True
    return (line.body is not msgspec.UNSET and _says_something(line.body)) or _names_something(line.exception)


def _says_something(body: Any) -> bool:
    return bool(body.strip()) if isinstance(body, str) else body not in (None, {}, [])


def _names_something(raised: RecordedException | None) -> bool:
    return raised is not None and bool(
        (raised.type or "").strip() or (raised.message or "").strip() or raised.exceptions or raised.cause
    )


def _unknown_field(account: str) -> InvalidError | None:
    """Return the error for a field that records do not have; None if msgspec's message is about something else."""
    found = _UNKNOWN.match(account)
    if found is None:
        return None
    known = (
        RecordedException.__struct_fields__ if "exception" in (found["path"] or "") else _Line.__struct_encode_fields__
    )
    likely = _OTHER_NAMES.get(found["name"].lower()) if "exception" not in (found["path"] or "") else None
    expected = f"one of the fields {', '.join(known)}" + (f" (perhaps {likely})" if likely else "")
    return InvalidError.saying(f"{found['path'] or '$'}.{found['name']}", expected, "an unknown field", _CODE)


def _decoded(raw: bytes | str) -> _Line:
    # Windows tools write a byte order mark at the beginning of a file.
    raw = raw.removeprefix(b"\xef\xbb\xbf") if isinstance(raw, bytes) else raw.removeprefix("\ufeff")
    try:
        return msgspec.json.decode(raw, type=_Line)
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
        return msgspec.json.decode(whole, type=_Line)


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
    if record.kind == "subprocess":
        chain = read_output(record.returncode, _text(record.body), provider=record.provider or "", now=now)
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
